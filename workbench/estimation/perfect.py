"""What a perfect attack can show, whose scores are the labels, when coins choose the labels.

With random coins the classes are uneven, and the longest guesses at both ends meet the wrong class: the bound
is a function of the number of members, which is binomial. `perfect_bound` is the bound that is reached with a
stated probability over the coins, `trials_to_reach` the number of trials for it. Both are of `one_run` and
`clopper_pearson_all`, whose own coins are those of the resampling.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.stats import binom

from workbench.core.arguments import number, whole_number
from workbench.estimation.one_run import (
    SIDES,
    DeltaStage,
    coin_sample_size,
    guess_bound,
    stages_if_independent,
    stages_in_one_run,
)
from workbench.estimation.searching import smallest_count
from workbench.interfaces import Trials

MOST_TRIALS = 1 << 20
"""Where the search for a number of trials ends."""

ALMOST_ALWAYS = 0.95
"""Probability, over coins, with which a number of trials that reports name is enough for a perfect attack."""


@lru_cache(maxsize=65536)
def bound_of_coins(
    size: int, heads: int, *, trials: Trials, prior: float, delta: float, confidence: float, top_only: bool
) -> float:
    """Returns the epsilon bound of a perfect attack where `heads` of `size` coins say member.

    `top_only`: guesses "in" alone, as for one release of a run.
    """
    if size < 2:
        return 0.0

    def prices(side: str, error: float) -> tuple[DeltaStage, ...]:
        if trials is Trials.INDEPENDENT:
            return stages_if_independent(size, delta, error)
        return stages_in_one_run(size, delta, prior, side, error)

    ranked = (np.arange(size) < heads).astype(np.int64)
    sides = {"top": 1.0} if top_only else SIDES
    return guess_bound(ranked, prices, prior, sides, 1.0 - confidence)[0]


def perfect_bound(
    n: int,
    *,
    trials: Trials,
    prior: float = 0.5,
    delta: float,
    confidence: float,
    probability: float,
    top_only: bool = False,
) -> float:
    """Returns the epsilon that a perfect attack's bound reaches with a probability, over the coins.

    The coins of one run choose the labels with probability `prior`. Independent trials are half members
    (`prior` is not read), and the estimator resamples them by coins. The bound at the ends and the middle of
    the central interval of the number of heads; a bound in between is taken to be no smaller.

    Args:
        n: Number of trials.
        trials, delta, confidence: Of the estimator.
        probability: In (0, 1).
        top_only: Guesses "in" alone, as for one release of a run.
    """
    n = whole_number("n", n, least=2, most=2 * MOST_TRIALS)
    probability = number("probability", probability, above=0, below=1)
    size, members = n, n
    if trials is Trials.INDEPENDENT:
        members = n // 2
        size, prior = coin_sample_size(members, n - members)
    low, high = (int(end) for end in binom.interval(probability, size, prior))
    if high > members or size - low > max(members, n - members):  # A class runs out.
        return 0.0
    heads = {low, high} if prior == 0.5 else {low, round(size * prior), high}
    return min(
        bound_of_coins(
            size,
            count,
            trials=trials,
            prior=prior,
            delta=delta,
            confidence=confidence,
            top_only=top_only,
        )
        for count in heads
    )


@lru_cache(maxsize=1024)
def trials_to_reach(
    epsilon: float,
    *,
    trials: Trials,
    prior: float = 0.5,
    delta: float,
    confidence: float,
    probability: float = ALMOST_ALWAYS,
    top_only: bool = False,
) -> int | None:
    """Returns with how many trials a perfect attack's bound exceeds epsilon, with a probability.

    At most a sixty-fourth above the smallest number; None where that is above 2^20. Arguments as of
    `perfect_bound`.
    """
    epsilon = number("epsilon", epsilon, least=0)

    def reaches(half: int) -> bool:
        return epsilon < perfect_bound(
            2 * half,
            trials=trials,
            prior=prior,
            delta=delta,
            confidence=confidence,
            probability=probability,
            top_only=top_only,
        )

    half = smallest_count(reaches, start=2, most=MOST_TRIALS // 2, coarseness=64)
    return None if half is None else 2 * half
