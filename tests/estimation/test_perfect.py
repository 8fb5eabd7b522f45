"""What a perfect attack can show where coins choose the labels: against all numbers of heads, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from workbench.core.errors import InputError
from workbench.estimation import clopper_pearson_all, one_run
from workbench.estimation.perfect import bound_of_coins, perfect_bound, trials_to_reach
from workbench.interfaces import Trials

GIVEN = {"delta": 1e-5, "confidence": 0.95}


def reached(n: int, epsilon: float, prior: float = 0.5, trials: Trials = Trials.ONE_RUN) -> float:
    """The exact probability that a perfect attack's bound exceeds epsilon: the sum over all heads."""
    chances = binom.pmf(np.arange(n + 1), n, prior)
    given = {**GIVEN, "trials": trials, "prior": prior, "top_only": False}
    return float(
        sum(
            chance
            for heads, chance in enumerate(chances)
            if chance > 1e-9 and bound_of_coins(n, heads, **given) > epsilon  # type: ignore[arg-type]
        )
    )


@pytest.mark.parametrize("prior", [0.5, 0.35, 0.1])
@pytest.mark.parametrize("probability", [0.5, 0.95])
def test_a_bound_is_reached_with_its_probability_at_least(prior: float, probability: float) -> None:
    for n in (40, 250):
        bound = perfect_bound(n, trials=Trials.ONE_RUN, prior=prior, probability=probability, **GIVEN)
        assert reached(n, bound - 1e-9, prior) >= probability


def test_the_bound_of_coins_is_that_of_the_estimator() -> None:
    """`clopper_pearson_all` tosses its own coins: its bounds are among those of all numbers of heads."""
    for n, heads in ((200, 100), (200, 90), (999, 520)):
        members = np.arange(n) < heads
        found = one_run(members * 1.0, members, **GIVEN).lower
        assert found == bound_of_coins(n, heads, trials=Trials.ONE_RUN, prior=0.5, top_only=False, **GIVEN)
    members, generator = np.arange(200) < 100, np.random.default_rng(0)
    bounds = [clopper_pearson_all(members * 1.0, members, generator=generator, **GIVEN) for _ in range(100)]
    likely = perfect_bound(200, trials=Trials.INDEPENDENT, probability=0.9, **GIVEN)
    assert 80 <= sum(bound.lower >= likely - 1e-9 for bound in bounds) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("trials", list(Trials))
def test_trials_are_enough_for_real_coins_and_not_many_more(trials: Trials) -> None:
    for epsilon in (1.0, 4.0):
        needed = trials_to_reach(epsilon, trials=trials, **GIVEN)
        assert needed is not None
        assert perfect_bound(needed, trials=trials, probability=0.95, **GIVEN) > epsilon
        fewer = 2 * int(0.45 * needed)
        assert perfect_bound(fewer, trials=trials, probability=0.95, **GIVEN) <= epsilon
    assert trials_to_reach(25.0, trials=trials, **GIVEN) is None


@pytest.mark.slow
def test_eleven_thousand_perfect_scores_do_not_refute_epsilon_eight_and_sixteen_thousand_do() -> None:
    given = {**GIVEN, "trials": Trials.ONE_RUN, "probability": 0.5}
    assert bound_of_coins(11136, 5568, trials=Trials.ONE_RUN, prior=0.5, top_only=False, **GIVEN) > 8.0
    assert perfect_bound(11136, **given) < 8.0  # type: ignore[arg-type]
    assert perfect_bound(16000, **{**given, "probability": 0.99}) > 8.0  # type: ignore[arg-type]


def test_unusable_input_is_named() -> None:
    with pytest.raises(InputError, match=r"probability must be in \(0, 1\), got 1"):
        perfect_bound(100, trials=Trials.ONE_RUN, probability=1, **GIVEN)
    with pytest.raises(InputError, match="n must be a whole number >= 2, got 1"):
        perfect_bound(1, trials=Trials.ONE_RUN, probability=0.5, **GIVEN)
    with pytest.raises(InputError, match="epsilon must be >= 0, got -1"):
        trials_to_reach(-1.0, trials=Trials.ONE_RUN, **GIVEN)
