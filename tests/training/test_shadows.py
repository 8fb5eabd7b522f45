"""The shadows' design: balanced for each candidate, independent across candidates."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.core.errors import InputError
from workbench.training.shadows import shadow_memberships


@pytest.mark.parametrize("n_shadows", [1, 2, 5, 8, 64])
def test_each_candidate_is_in_half_of_the_shadows(n_shadows: int) -> None:
    included = shadow_memberships(300, n_shadows, np.random.default_rng(0))
    assert included.shape == (n_shadows, 300)
    assert included.dtype == np.bool_
    counts = included.sum(axis=0)
    assert set(counts) == {n_shadows // 2, (n_shadows + 1) // 2}


def test_shadows_hold_about_half_and_candidates_are_independent() -> None:
    """Fair pairs agree in half of all trials less 1 / (n - 1); six standard errors, so one alarm in 5e8."""
    included = shadow_memberships(20_000, 8, np.random.default_rng(1))
    assert np.all(np.abs(included.mean(axis=1) - 0.5) < 6 * 0.5 / np.sqrt(20_000))
    agree_next = np.mean(included[:, :-1] == included[:, 1:])
    assert abs(agree_next - 0.5) < 6 * 0.5 / np.sqrt(8 * 20_000)
    agree_shadows = np.mean(included[0] == included[1])
    assert abs(agree_shadows - 3 / 7) < 6 * 0.5 / np.sqrt(20_000)


def test_same_generator_same_design() -> None:
    first = shadow_memberships(50, 6, np.random.default_rng(2))
    assert np.array_equal(first, shadow_memberships(50, 6, np.random.default_rng(2)))
    assert not np.array_equal(first, shadow_memberships(50, 6, np.random.default_rng(3)))


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="n_shadows must be at least 1, got 0"):
        shadow_memberships(5, 0, np.random.default_rng(0))
    with pytest.raises(InputError, match="n_candidates must be at least 1, got 0"):
        shadow_memberships(0, 5, np.random.default_rng(0))
