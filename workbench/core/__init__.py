"""Errors, registry, random streams, store keys and output files.

Every other package may use it, and it imports none of them.
"""
