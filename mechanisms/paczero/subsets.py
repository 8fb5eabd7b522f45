"""PACZero's public candidate subsets of the universe (Ertan et al. 2026, section 2)."""

from __future__ import annotations

import numpy as np

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import BoolArray

SCHEMES = ("pairs", "halves")
_STREAM = 0x5AB5E7
"""Sets the subsets' stream apart from the directions', which are drawn from the same public seed."""


MOST_SUBSETS = 2**16
"""Each step looks at every candidate; the paper has 128."""


def check_subset_count(count: int) -> None:
    """Refuse a number of candidates that has no halves, or too many.

    Raises:
        InputError: it is no even whole number from 2 to `MOST_SUBSETS`.
    """
    if not isinstance(count, int) or count < 2 or count % 2:
        raise InputError(f"subset_count must be an even whole number >= 2, got {count!r}")
    if count > MOST_SUBSETS:
        raise InputError(f"subset_count must be at most {MOST_SUBSETS}, got {count}")


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

    Returns:
        Shape `(M, N)`; no row is empty.

    Raises:
        InputError: a number is out of range, or the scheme is unknown.
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
