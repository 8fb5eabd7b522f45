"""What chance gives where secrets are compared: the Jaccard similarity of two random strings.

Source of the measure: Khadangi et al. 2025, Eqs. 28 to 34. Each string's n-grams form a set; the
similarity is the number of shared ones over that of all.

>>> round(chance_similarity(1), 3), f"{chance_similarity(4):.1e}"
(0.145, '2.2e-06')
"""

from __future__ import annotations

import math
from functools import cache

LENGTH = 10
"""Characters of a secret."""

ALPHABET = 36
"""Characters that it is drawn from."""


@cache
def chance_similarity(n: int, *, length: int = LENGTH, alphabet: int = ALPHABET) -> float:
    """Mean Jaccard similarity of the n-grams of two independent uniform strings of one length.

    For n = 1 exact: by the numbers of distinct characters of the two strings, whose overlap given these is
    hypergeometric. For larger n the n-grams of a string are taken to be distinct and those of two strings to
    match independently, at most once; of the secrets' form that is right to 2 %.

    Args:
        n: Of the n-grams, 1 to `length`.
        length: Characters of each string.
        alphabet: Characters that they are drawn from.
    """
    if n == 1:
        return _exact(length, alphabet)
    grams = length + 1 - n
    return float(grams**2) / float(alphabet) ** n / (2 * grams - 1)


def _exact(length: int, alphabet: int) -> float:
    counts = _distinct(length, alphabet)
    total = 0.0
    for first, p in counts.items():
        for second, q in counts.items():
            for shared in range(max(0, first + second - alphabet), min(first, second) + 1):
                weight = (
                    math.comb(first, shared)
                    * math.comb(alphabet - first, second - shared)
                    / math.comb(alphabet, second)
                )
                total += p * q * weight * shared / (first + second - shared)
    return total


def _distinct(length: int, alphabet: int) -> dict[int, float]:
    """Probability of each number of distinct characters of a uniform string."""
    found = {0: 1.0}
    for _ in range(length):
        after: dict[int, float] = {}
        for count, p in found.items():
            after[count] = after.get(count, 0.0) + p * count / alphabet
            after[count + 1] = after.get(count + 1, 0.0) + p * (alphabet - count) / alphabet
        found = after
    return {count: p for count, p in found.items() if p > 0.0}


def least_similarity(n: int, *, length: int = LENGTH) -> float:
    """Smallest similarity above 0 of the n-grams of two strings of at most this length: one is shared."""
    return 1.0 / (2 * (length + 1 - n) - 1)
