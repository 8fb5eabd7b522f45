"""Checks of anybody's accountant: a conformance suite, proofs about claims, and Monte Carlo verdicts."""
