"""Scores whose supplier declares them Gaussian: what decides, what it shows, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracles.known_truths import known_truths

from workbench.accounting import ApproximateDP, GaussianDP
from workbench.core.errors import UnsupportedError
from workbench.estimation.deciding import deciding_tests
from workbench.estimation.judge import judge
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    Family,
    GameTerms,
    Guarantee,
    Released,
    Trials,
    VerdictKind,
)

TRUTHS = {truth.name: truth for truth in known_truths()}
DELTA = 1e-5


def evidence(truth: str, trials: Trials, generator: np.random.Generator, n: int = 1000) -> Evidence:
    members = generator.random(n) < 0.5
    return Evidence(
        scores=TRUTHS[truth].sample(members, generator),
        members=members,
        game=GameTerms(description="a test", trials=trials, family=Family.GAUSSIAN),
        attack="test",
    )


def claim(guarantee: Guarantee) -> Claim:
    about, released = Adjacency.ADD_REMOVE, Released.EVERY_UPDATE
    return Claim(guarantee=guarantee, about=about, released=released, source="the test")


def best(played: Evidence, generator: np.random.Generator) -> float:
    stated, bounds = ApproximateDP(epsilon=1.0, delta=DELTA), []
    for test in deciding_tests(stated, played, 0.95, generator):
        try:
            bounds.append(test(played.scores).lower)
        except UnsupportedError:
            continue
    return max(bounds)


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "floor"), [(Trials.INDEPENDENT, 3.6), (Trials.ONE_RUN, 1.9)])
def test_the_deciding_bound_on_one_gdp_beats_the_floor(
    trials: Trials, floor: float, record_property: object
) -> None:
    """Of 4.38; measured over 500 runs 3.82 and 2.0, where the bounds without a family reach 1.6."""
    generator = np.random.default_rng(1)
    lower = [best(evidence("gaussian", trials, generator), generator) for _ in range(20)]
    record_property("mean_bound", float(np.mean(lower)))  # type: ignore[operator]
    assert np.mean(lower) > floor


@pytest.mark.slow
@pytest.mark.parametrize("trials", [pytest.param(Trials.INDEPENDENT, marks=pytest.mark.slow), Trials.ONE_RUN])
@pytest.mark.parametrize("truth", ["noise", "gaussian", "laplace", "randomised_response"])
def test_the_better_of_both_bounds_covers(truth: str, trials: Trials) -> None:
    """Also outside the family, at a size at which the guard sees it."""
    generator, repetitions = np.random.default_rng([2, len(truth)]), 200
    epsilon = TRUTHS[truth].epsilon(DELTA)
    above = sum(best(evidence(truth, trials, generator), generator) > epsilon for _ in range(repetitions))
    assert above / repetitions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)


@pytest.mark.parametrize("trials", list(Trials))
def test_scores_outside_the_family_are_judged_without_it_and_the_verdict_says_why(trials: Trials) -> None:
    generator = np.random.default_rng(3)
    told = evidence("randomised_response", trials, generator)
    stated = claim(ApproximateDP(epsilon=0.4, delta=DELTA))
    verdict = judge(stated, told, confidence=0.95, generator=generator)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert verdict.bound.family is Family.ANY
    (reason,) = verdict.reasons
    assert reason.startswith("scores are outside the Gaussian family: ")


@pytest.mark.parametrize("trials", list(Trials))
def test_the_family_that_decided_is_named(trials: Trials) -> None:
    generator = np.random.default_rng(4)
    stated = claim(ApproximateDP(epsilon=1.75, delta=DELTA))
    verdict = judge(stated, evidence("gaussian", trials, generator), confidence=0.95, generator=generator)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert verdict.bound.family is Family.GAUSSIAN
    assert "family: Gaussian" in verdict.sentence
    assert {bound.family for bound in verdict.bounds[:2]} == {Family.GAUSSIAN, Family.ANY}


@pytest.mark.parametrize(("trials", "n"), [(Trials.INDEPENDENT, 399), (Trials.ONE_RUN, 999)])
def test_too_few_scores_for_the_test_of_fit_are_judged_without_the_family(trials: Trials, n: int) -> None:
    """Laplace noise would pass for Gaussian, and a true claim be refuted."""
    generator, refuted = np.random.default_rng(7), 0
    stated = claim(ApproximateDP(epsilon=1.0, delta=DELTA))
    for _ in range(12):
        verdict = judge(
            stated, evidence("laplace", trials, generator, n=n), confidence=0.95, generator=generator
        )
        refuted += verdict.kind is VerdictKind.REFUTED
        assert verdict.bound is not None
        assert verdict.bound.family is Family.ANY
        assert verdict.reasons[0].startswith(f"{n} scores, ")
        assert "too few to be tested for the Gaussian family" in verdict.reasons[0]
    assert refuted <= 2


@pytest.mark.parametrize("trials", list(Trials))
def test_few_scores_in_one_class_are_too_few_as_well(trials: Trials) -> None:
    generator = np.random.default_rng(8)
    members = generator.random(2000) < 0.05
    uneven = Evidence(
        scores=TRUTHS["laplace"].sample(members, generator),
        members=members,
        game=GameTerms(description="a test", trials=trials, prior=0.05, family=Family.GAUSSIAN),
        attack="test",
    )
    stated = claim(ApproximateDP(epsilon=1.0, delta=DELTA))
    verdict = judge(stated, uneven, confidence=0.95, generator=generator)
    assert "in the smaller class, are too few" in verdict.reasons[0]
    assert verdict.bound is None or verdict.bound.family is Family.ANY


@pytest.mark.slow
def test_a_claim_of_mu_is_decided_within_the_family_from_independent_trials() -> None:
    generator = np.random.default_rng(5)
    played = evidence("gaussian", Trials.INDEPENDENT, generator)
    refuted = judge(claim(GaussianDP(mu=0.87)), played, confidence=0.95, generator=generator)
    assert refuted.kind is VerdictKind.REFUTED
    assert refuted.bound is not None
    assert (refuted.bound.name, refuted.bound.quantity) == ("gaussian_location", "mu")
    without = Evidence(
        scores=played.scores,
        members=played.members,
        game=GameTerms(description="a test", trials=Trials.INDEPENDENT),
        attack="test",
    )
    kept = judge(claim(GaussianDP(mu=0.87)), without, confidence=0.95, generator=generator)
    assert kept.kind is VerdictKind.NOT_REFUTED
    assert judge(claim(GaussianDP(mu=1.0)), played, confidence=0.95, generator=generator).kind is (
        VerdictKind.NOT_REFUTED
    )


@pytest.mark.slow
def test_few_scores_of_one_run_are_underpowered_with_a_family_too() -> None:
    generator = np.random.default_rng(6)
    stated = claim(ApproximateDP(epsilon=9.0, delta=DELTA))
    few = evidence("gaussian", Trials.ONE_RUN, generator, n=60)
    verdict = judge(stated, few, confidence=0.95, generator=generator)
    assert verdict.kind is VerdictKind.UNDERPOWERED
