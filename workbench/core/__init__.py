"""Errors, registry, random streams, store keys and output files; imports no other package of the bench."""
