"""Corpora, their generators, and the embedded models."""
