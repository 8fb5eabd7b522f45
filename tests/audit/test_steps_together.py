"""Tests of whether records take part in steps that go together, on rows that are drawn here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from workbench.audit.replay.sampler import BY_CHANCE, in_one_part, neighbouring
from workbench.interfaces import BoolArray

TESTS = [neighbouring, in_one_part]


def rows(steps: int, *places: tuple[int, ...]) -> BoolArray:
    """Rows with hits at these places."""
    found = np.zeros((len(places), steps), dtype=bool)
    for row, at in zip(found, places, strict=True):
        row[list(at)] = True
    return found


def pairs(at: tuple[int, ...]) -> int:
    """Hits that are followed by another."""
    return sum(later == earlier + 1 for earlier, later in pairwise(at))


def test_the_probability_of_neighbours_is_that_of_all_orders() -> None:
    orders = list(combinations(range(7), 3)), list(combinations(range(7), 2))
    seen = rows(7, (1, 2, 4), (5, 6))
    counted = [pairs(one) + pairs(two) >= 2 for one, two in product(*orders)]
    assert neighbouring(seen) == pytest.approx(np.mean(counted))


def test_the_probability_of_one_part_is_that_of_all_orders() -> None:
    spans = [at[-1] - at[0] for at in combinations(range(9), 3)]
    # Fisher's method leaves the probability of a single row as it is.
    assert in_one_part(rows(9, (2, 3, 5))) == pytest.approx(np.mean(np.array(spans) <= 3))


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(("rate", "steps"), [(0.02, 40), (0.1, 40), (0.5, 30), (0.05, 300)])
def test_poisson_samples_are_rarely_flagged(
    test: Callable[[BoolArray], float], rate: float, steps: int
) -> None:
    generator = np.random.default_rng(1)
    found = np.array([test(generator.random((8, steps)) < rate) for _ in range(600)])
    for level in (0.01, 0.05, 0.2):
        assert (found <= level).mean() <= level + 3 * np.sqrt(level / 600)
    assert (found < BY_CHANCE).sum() <= 1


def test_batches_that_are_used_again_and_shards_are_seen() -> None:
    generator = np.random.default_rng(2)
    again, shards, last = [], [], []
    for _ in range(200):
        again.append(neighbouring(np.repeat(generator.random((8, 14)) < 0.1, 3, axis=1)))
        block = np.arange(150) // 30 == generator.integers(5, size=8)[:, None]
        shards.append(in_one_part((generator.random((8, 150)) < 0.15) & block))
        drawn = generator.random((8, 41)) < 0.1
        last.append(neighbouring(drawn[:, 1:] | drawn[:, :-1]))
    assert (np.array(again) < BY_CHANCE).mean() > 0.95
    assert (np.array(shards) < BY_CHANCE).mean() > 0.95
    assert (np.array(last) < BY_CHANCE).mean() > 0.8


@pytest.mark.parametrize("test", TESTS)
def test_rows_without_hits_or_full_ones_say_nothing(test: Callable[[BoolArray], float]) -> None:
    assert test(np.zeros((3, 10), dtype=bool)) == 1.0
    assert test(np.ones((3, 10), dtype=bool)) == pytest.approx(1.0)
