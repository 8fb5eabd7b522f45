"""PACZero's candidate subsets: balance, sizes, and that they are public."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import InputError
from workbench.mechanisms.shared.candidate_subsets import SCHEMES, candidate_subsets


@given(half=st.integers(1, 40), records=st.integers(2, 60), seed=st.integers(0, 2**62))
def test_pairs_hold_each_record_in_exactly_half_of_the_candidates(half: int, records: int, seed: int) -> None:
    held = candidate_subsets("pairs", count=2 * half, records=records, seed=seed)
    assert held.shape == (2 * half, records)
    np.testing.assert_array_equal(held.sum(axis=0), half)
    np.testing.assert_array_equal(held[::2], ~held[1::2])
    assert set(held.sum(axis=1)) <= {records // 2, records - records // 2}


@given(half=st.integers(1, 40), records=st.integers(2, 60), seed=st.integers(0, 2**62))
def test_halves_have_half_of_the_records(half: int, records: int, seed: int) -> None:
    held = candidate_subsets("halves", count=2 * half, records=records, seed=seed)
    assert held.shape == (2 * half, records)
    assert set(held.sum(axis=1)) <= {records // 2, records - records // 2}
    assert held.any(axis=1).all()


def test_halves_are_independent_and_pairs_are_not() -> None:
    """Overlaps of neighbours in the list, over 4,000 pairs: a mean of N / 4, or none at all.

    A mean of 4,000 overlaps of two halves of 20 records has a standard deviation of 0.02, so the
    first test fails one time in 10^6.
    """
    halves = candidate_subsets("halves", count=8000, records=20, seed=5)
    overlaps = (halves[::2] & halves[1::2]).sum(axis=1)
    assert abs(overlaps.mean() - 5.0) < 0.1
    assert len(set(halves.sum(axis=0))) > 1
    pairs = candidate_subsets("pairs", count=8000, records=20, seed=5)
    assert not (pairs[::2] & pairs[1::2]).any()


def test_of_an_odd_universe_either_half_may_be_the_greater() -> None:
    for scheme in SCHEMES:
        sizes = candidate_subsets(scheme, count=64, records=7, seed=1).sum(axis=1)
        assert set(sizes[::2]) == {3, 4}


def test_they_are_a_function_of_the_public_seed() -> None:
    for scheme in SCHEMES:
        first, again, other = (candidate_subsets(scheme, count=8, records=30, seed=s) for s in (3, 3, 4))
        np.testing.assert_array_equal(first, again)
        assert (first != other).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "pair"}, "unknown subsets 'pair'; did you mean 'pairs'"),
        ({"count": 3}, "subset_count must be an even whole number >= 2, got 3"),
        ({"count": 0}, "subset_count must be an even whole number >= 2, got 0"),
        ({"records": 1}, "records must be at least 2 to have halves, got 1"),
    ],
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        candidate_subsets(**{"scheme": "pairs", "count": 4, "records": 10, "seed": 0, **changes})  # type: ignore[arg-type]
