"""Epsilon lower bounds over all thresholds, from independent trials with any labels.

With coin labels the nested guess sets of `one_run` search all thresholds at the price of an exact
boundary-crossing probability. Fixed class sizes are turned into coin labels without an approximation: toss N
coins of probability n1 / n, and give each coin the next unused member or non-member, in random order. While
neither class runs out, that is a sample of independent (coin, score) pairs; where one does, the bound is 0.
So the error probability is what it would be with unlimited data. N is the largest number for which a class
runs out with probability 0.002 at most, about n - 3 sqrt(n).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from scipy.special import betainc

from workbench.estimation.inputs import INDEPENDENT_SCORES, check_epsilon_game, family_free
from workbench.estimation.one_run import (
    SIDES,
    Prices,
    check_sides,
    guess_bound,
    ranked_labels,
    stages_if_independent,
)
from workbench.interfaces import BoolArray, Bound, FloatArray

_RUN_OUT = 0.002


def _more_than(count: int, n: int, p: float) -> float:
    """P[Binomial(n, p) > count]."""
    return 0.0 if count >= n else float(betainc(count + 1, n - count, p))


@lru_cache(maxsize=4096)
def coin_sample_size(n_members: int, n_nonmembers: int) -> tuple[int, float]:
    """Returns the number N >= 1 of coins that the classes can serve, and the coin's probability of "member".

    Where N > 1, a class runs out with probability 0.002 at most. Sizes are rounded down (by less than a
    hundredth) to few distinct values, which makes tables reusable.
    """
    share = n_members / (n_members + n_nonmembers)
    prior = 0.5 if abs(share - 0.5) < 0.05 else float(f"{share:.2g}")
    low, high = 1, n_members + n_nonmembers
    while low < high:
        middle = (low + high + 1) // 2
        run_out = _more_than(n_members, middle, prior) + _more_than(n_nonmembers, middle, 1.0 - prior)
        low, high = (middle, high) if run_out <= _RUN_OUT else (low, middle - 1)
    step = 2 ** max(0, low.bit_length() - 8)
    return max(1, low - low % step), prior


def clopper_pearson_all(
    scores: FloatArray,
    members: BoolArray,
    *,
    delta: float,
    confidence: float,
    generator: np.random.Generator,
    sides: Mapping[str, float] = SIDES,
) -> Bound:
    """Returns an epsilon lower bound over all thresholds at both ends, for labels fixed in any way.

    It exceeds the truth with probability at most 1 - confidence. Scores that are all alike give the bound 0.

    Args:
        scores, members: See `check_game`.
        generator: Tosses the coins of the resampling and breaks ties.
        sides: See `one_run`.

    Raises `InputError`: an argument is unusable.
    """
    values, labels = check_epsilon_game(
        scores, members, delta=delta, confidence=confidence, constant_allowed=True
    )
    check_sides(sides)
    inside, outside = generator.permutation(values[labels]), generator.permutation(values[~labels])
    size, prior = coin_sample_size(inside.size, outside.size)
    wanted = int(generator.binomial(size, prior))
    lower, estimate = 0.0, float("nan")
    ordered = values.min() < values.max()  # One score for everybody: 0, whatever the coins say.
    if ordered and size >= 2 and wanted <= inside.size and size - wanted <= outside.size:
        drawn = np.concatenate([inside[:wanted], outside[: size - wanted]])
        coins = np.arange(size) < wanted
        ranked = ranked_labels(drawn, coins, generator)
        lower, estimate = guess_bound(ranked, _prices(size, delta), prior, sides, 1.0 - confidence)
    name, n = "clopper_pearson_all", values.size
    return family_free(name, "epsilon", (lower, estimate), INDEPENDENT_SCORES, confidence, n=n, delta=delta)


def perfect_guesses_bound(size: int, prior: float, delta: float, significance: float) -> float:
    """`clopper_pearson_all` where `size` coins fall in their proportion and every guess is right."""
    if size < 2:
        return 0.0
    ranked = (np.arange(size) < round(size * prior)).astype(np.int64)
    return guess_bound(ranked, _prices(size, delta), prior, SIDES, significance)[0]


def _prices(size: int, delta: float) -> Prices:
    return lambda _, error: stages_if_independent(size, delta, error)
