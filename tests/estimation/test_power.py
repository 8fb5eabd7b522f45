"""Power of the judge's bounds: against experiments that are really judged, and its own limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from workbench.accounting import ApproximateDP
from workbench.core.errors import InputError
from workbench.estimation.judge import judge
from workbench.estimation.power import ONE_RUN, Strength, outcomes, trials_for_power
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    Family,
    GameTerms,
    Released,
    Trials,
    VerdictKind,
)

GIVEN = {"confidence": 0.95, "seed": 0}
EPSILON_ONE = ApproximateDP(epsilon=1.0, delta=1e-5)
INDEPENDENT = replace(ONE_RUN, trials=Trials.INDEPENDENT)
RELEASES = replace(INDEPENDENT, family=Family.GAUSSIAN, steps=20, sampling_probability=0.1)


def share_refuted(stated: ApproximateDP, game: GameTerms, strength: Strength, n: int, times: int) -> float:
    """How often the judge refutes: new coins and scores each time."""
    claim = Claim(guarantee=stated, about=Adjacency.ADD_REMOVE, released=Released.SCORES, source="the test")
    refuted = 0
    for seed in range(times):
        generator = np.random.default_rng([77, seed])
        members = generator.random(n) < 0.5 if game.trials is Trials.ONE_RUN else np.arange(n) < n // 2
        scores = strength.scores(members, generator)
        evidence = Evidence(
            scores=scores, members=members, game=replace(game, released=Released.SCORES), attack="test"
        )
        refuted += judge(claim, evidence, confidence=0.95, generator=generator).kind is VerdictKind.REFUTED
    return refuted / times


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "strength", "n", "epsilon"),
    [
        (ONE_RUN, "perfect", 240, 4.0),
        (ONE_RUN, "mu=1", 200, 1.0),
        (ONE_RUN, "tpr=0.2,fpr=0.01", 200, 1.0),
        pytest.param(INDEPENDENT, "mu=1.5", 100, 1.0, marks=pytest.mark.slow),
        pytest.param(RELEASES, "mu=1", 60, 1.0, marks=pytest.mark.slow),
    ],
)
def test_the_power_is_the_share_of_judged_experiments_that_refute(
    game: GameTerms, strength: str, n: int, epsilon: float
) -> None:
    """Both shares are of 100: they differ by more than 3 standard errors about once in 400."""
    stated, told = ApproximateDP(epsilon=epsilon, delta=1e-5), Strength.parse(strength)
    power = outcomes(stated, game, told, n, **GIVEN).power(epsilon)
    share = share_refuted(stated, game, told, n, 100)
    assert 0.05 < power < 0.95
    assert abs(power - share) <= 3 * math.sqrt(2 * 0.25 / 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strength", ["perfect", "mu=2", pytest.param("tpr=0.3,fpr=0.01", marks=pytest.mark.slow)]
)
def test_the_trials_are_enough_and_half_of_them_are_not(strength: str) -> None:
    told = Strength.parse(strength)
    half, often = (trials_for_power(EPSILON_ONE, ONE_RUN, told, p, **GIVEN) for p in (0.5, 0.95))
    assert half is not None
    assert often is not None
    assert half <= often
    assert outcomes(EPSILON_ONE, ONE_RUN, told, often, **{**GIVEN, "seed": 1}).power(1.0) >= 0.85
    assert outcomes(EPSILON_ONE, ONE_RUN, told, half // 2, **{**GIVEN, "seed": 1}).power(1.0) <= 0.4


def test_what_is_reached_with_a_probability_is_a_quantile() -> None:
    found = outcomes(EPSILON_ONE, ONE_RUN, Strength(mu=1.0), 200, **GIVEN)
    for probability in (0.05, 0.5, 0.95):
        assert np.mean(found.lowers >= found.reached(probability)) >= probability
    assert found.reached(0.05) > found.reached(0.5) > found.reached(0.95) >= 0.0


def test_no_number_of_trials_shows_more_than_the_attack_has() -> None:
    """The claim of what the curve itself allows is never refuted; just below it, it can be."""
    for game, strength, most in (
        (ONE_RUN, Strength(mu=1.0), 4.377),
        (ONE_RUN, Strength(rates=(0.1, 0.001)), math.log((0.1 - 1e-5) / 0.001)),
        (RELEASES, Strength(rates=(0.5, 0.01)), math.log1p(0.1 * ((0.5 - 1e-4) / 0.01 - 1.0))),
    ):
        assert strength.most(EPSILON_ONE, game) == pytest.approx(most, abs=1e-3)
        above = ApproximateDP(epsilon=most + 0.01, delta=1e-5)
        assert trials_for_power(above, game, strength, 0.5, **GIVEN) is None
    assert Strength().most(EPSILON_ONE, ONE_RUN) == math.inf


def test_strengths_are_read_and_described() -> None:
    assert Strength.parse(" perfect ") == Strength()
    assert Strength.parse("mu = 1.5").describe() == "mu = 1.5"
    assert Strength.parse("fpr=0.01,tpr=0.2").describe() == "TPR 0.2 at FPR 0.01"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mu=0", r"mu must be in \(0, 100\], got 0"),
        ("mu=nan", r"mu must be in \(0, 100\], got nan"),
        ("mu=x", "attack strength must be perfect, mu=..., or tpr=...,fpr=..., got 'mu=x'"),
        ("tpr=0.1,fpr=0.2", "tpr must be above fpr, got 0.1 and 0.2"),
        ("tpr=1,fpr=0", r"fpr must be in \(0, 1\), got 0"),
        ("tpr=0.5", "attack strength must be"),
        ("strong\n", "attack strength must be"),
    ],
)
def test_strengths_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Strength.parse(text)
