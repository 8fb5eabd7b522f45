"""PACZero's public candidate subsets of the universe, and the signs of their means (Ertan et al. 2026)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from workbench.core.arguments import require_count
from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import BoolArray, FloatArray

Signs = npt.NDArray[np.int8]

SCHEMES = ("pairs", "halves")
MOST_SUBSETS = 2**16
"""Each step looks at every candidate; the paper has 128."""
_STREAM = 0x5AB5E7
"""Sets the subsets' stream apart from the directions', which are drawn from the same public seed."""


def check_subset_count(count: int) -> None:
    """Refuse a number of candidates that has no halves, or too many.

    Raises `InputError`: it is no even whole number from 2 to `MOST_SUBSETS`.
    """
    if type(count) is not int or count < 2 or count % 2:
        raise InputError(f"subset_count must be an even whole number >= 2, got {count!r}")
    require_count("subset_count", count, least=2, most=MOST_SUBSETS)


def candidate_subsets(scheme: str, *, count: int, records: int, seed: int) -> BoolArray:
    """Draw M candidate subsets; a function of the public seed and of nothing else that is random.

    Args:
        scheme: `"pairs"`: M / 2 random halves, each followed by its complement, so that each record is in
            exactly M / 2 candidates. `"halves"`: M independent random halves; a record is in M / 2 of them on
            average only.
        count: M, even, 2 to `MOST_SUBSETS`.
        records: N >= 2. Where it is odd, a half has (N - 1) / 2 or (N + 1) / 2 records: of a pair one each,
            which of them being random; of independent halves either with probability 1/2.
        seed: Public, >= 0.

    Returns shape `(M, N)`; no row is empty. Raises `InputError`: a number is out of range, or the scheme is
    unknown.
    """
    if scheme not in SCHEMES:
        raise unknown_name("subsets", scheme, SCHEMES)
    check_subset_count(count)
    if records < 2:
        raise InputError(f"records must be at least 2 to have halves, got {records}")
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAM,)))
    drawn = np.zeros((count // 2 if scheme == "pairs" else count, records), dtype=np.bool_)
    for row in drawn:
        size = records // 2 + (int(generator.integers(2)) if records % 2 else 0)
        row[generator.permutation(records)[:size]] = True
    if scheme == "pairs":
        drawn = np.stack([drawn, ~drawn], axis=1).reshape(count, records)
    return drawn


def signs_of_means(held: FloatArray, scalars: FloatArray) -> Signs:
    """Signs of subsets' means, exact for the scalars as they are; sign(0) = +1 (appendix C).

    Clipped scalars often add up to 0, which a rounded sum misses. `held`: 1 where a subset holds a record,
    else 0, shape `(M, N)`; no row is empty. `scalars`: finite, shape `(N, K)`.

    Returns:
        -1 or 1, shape `(M, K)`.
    """
    sums: FloatArray = held @ scalars
    doubtful = np.abs(sums) <= np.abs(scalars).sum(axis=0) * (len(scalars) * 2.0**-52)
    for subset, column in np.argwhere(doubtful):
        sums[subset, column] = math.fsum(held[subset] * scalars[:, column])
    signs: Signs = np.where(sums >= 0, 1, -1).astype(np.int8)
    return signs
