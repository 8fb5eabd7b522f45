"""Tests that may be stopped at any time: error at the boundary of the claim whenever one looks, and power.

The truths lie on the boundary of their claims, so a share of refutations above 5 % and three standard errors
is a bound that does not hold.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import bdtrc

from workbench.accounting import ApproximateDP, GaussianDP, MutualInformation
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import SequentialTest, sequential
from workbench.estimation.betting import best_cut
from workbench.estimation.judge import judge
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Evidence,
    Family,
    FloatArray,
    GameTerms,
    Guarantee,
    Released,
    Secret,
    Trials,
    VerdictKind,
)

INDEPENDENT, ONE_RUN = Trials.INDEPENDENT, Trials.ONE_RUN


def randomised_response(members: BoolArray, epsilon: float, generator: np.random.Generator) -> FloatArray:
    honest = generator.random(members.size) < 1.0 / (1.0 + math.exp(-epsilon))
    return np.where(honest, members, ~members) + 1e-6 * generator.random(members.size)


def lucky(members: BoolArray, epsilon: float, delta: float, generator: np.random.Generator) -> FloatArray:
    """One run that tells all labels with probability delta; else randomised response. Tight at its delta."""
    if generator.random() < delta:
        return members + 1e-6 * generator.random(members.size)
    return randomised_response(members, epsilon, generator)


def gaussian(members: BoolArray, generator: np.random.Generator) -> FloatArray:
    return generator.normal(size=members.size) + members


def draw(truth: str, n: int, generator: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    """Scores and labels, in the order of arrival."""
    members = generator.random(n) < 0.5
    if truth == "members first":
        members = np.arange(n) < n // 4
    if truth == "gaussian":
        return gaussian(members, generator), members
    if truth == "lucky":
        return lucky(members, 1.0, 0.02, generator), members
    return randomised_response(members, 1.0, generator), members


BOUNDARIES = [
    ("randomised response", ONE_RUN, 1.0, 0.0),
    ("randomised response", INDEPENDENT, 1.0, 0.0),
    ("members first", INDEPENDENT, 1.0, 0.0),
    ("gaussian", INDEPENDENT, 0.5, delta_of_epsilon(1.0, 0.5)),
    ("gaussian", INDEPENDENT, 1.5, delta_of_epsilon(1.0, 1.5)),
    ("lucky", ONE_RUN, 1.0, 0.02),
]


def share_refuted(case: tuple[str, Trials, float, float], n: int, repetitions: int) -> float:
    truth, trials, epsilon, delta = case
    generator = np.random.default_rng([3, len(truth), n])
    refuted = 0
    for _ in range(repetitions):
        scores, members = draw(truth, n, generator)
        test = SequentialTest(
            np.array([epsilon]), delta=delta, confidence=0.95, trials=trials, most=n, generator=generator
        )
        for score, member in zip(scores.tolist(), members.tolist(), strict=True):
            test.watch(score, member)
            if test.rejected[0]:
                refuted += 1
                break
    return refuted / repetitions


@pytest.mark.slow
@pytest.mark.parametrize("case", BOUNDARIES, ids=lambda case: f"{case[0]}, {case[1]}, {case[3]:.2g}")
def test_a_true_claim_is_refuted_at_no_time_with_more_than_the_error(
    case: tuple[str, Trials, float, float],
) -> None:
    assert share_refuted(case, 80, 300) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.slow
@pytest.mark.parametrize("case", BOUNDARIES, ids=lambda case: f"{case[0]}, {case[1]}, {case[3]:.2g}")
def test_a_true_claim_is_refuted_at_no_time_of_many(case: tuple[str, Trials, float, float]) -> None:
    assert share_refuted(case, 250, 250) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 250)


def test_delta_is_what_keeps_these_claims_true() -> None:
    """The same Gaussian release without its delta is refuted."""
    assert share_refuted(("gaussian", INDEPENDENT, 0.5, 0.0), 300, 20) > 0.5


def test_looking_again_and_again_at_a_fixed_test_errs_more_often() -> None:
    """What the capital pays for: the exact test of a fixed number of guesses, asked after each guess."""
    generator, refuted = np.random.default_rng(4), 0
    p, n = 1 / (1 + math.exp(-1.0)), np.arange(1, 301)
    for _ in range(400):
        right = np.cumsum(generator.random(300) < p)
        refuted += bool(np.any(bdtrc(right - 1.0, n, p)[9:] <= 0.05))
    assert refuted / 400 > 0.15


def at_epsilon(scores: FloatArray, members: BoolArray, epsilon: float, trials: Trials) -> tuple[float, int]:
    bound = sequential(scores, members, epsilon=epsilon, delta=1e-5, confidence=0.95, trials=trials)
    return bound.lower, bound.n


@pytest.mark.parametrize("trials", list(Trials))
@pytest.mark.parametrize(("epsilon", "median", "most"), [(1.0, 40, 80), (2.0, 80, 130)])
def test_no_noise_is_refuted_with_a_tenth_of_the_scores(
    trials: Trials, epsilon: float, median: int, most: int, record_property: object
) -> None:
    """Of a fixed plan of 1,000 scores; medians of 15 runs were 28 and 62."""
    generator, watched = np.random.default_rng(5), []
    for _ in range(20):
        members = generator.random(1000) < 0.5
        lower, n = at_epsilon(members + 1e-6 * generator.random(1000), members, epsilon, trials)
        assert lower > epsilon
        watched.append(n)
    record_property("median", float(np.median(watched)))  # type: ignore[operator]
    assert np.median(watched) <= median <= 100
    assert max(watched) <= most


def test_the_best_cut_tells_most_labels_apart() -> None:
    generator = np.random.default_rng(11)
    for _ in range(50):
        scores = np.sort(np.round(generator.normal(size=12), 1))
        members = generator.random(12) < 0.5
        cut = best_cut(scores, members)
        if members.all() or not members.any() or np.ptp(scores) == 0.0:
            assert math.isnan(cut)
            continue
        assert cut not in scores
        between = (np.unique(scores)[1:] + np.unique(scores)[:-1]) / 2.0
        right = [np.sum((scores > place) == members) for place in between]
        assert np.sum((scores > cut) == members) == max(right)


def test_a_weak_leak_takes_longer_and_a_true_claim_leaves_a_bound_below_it() -> None:
    generator = np.random.default_rng(6)
    members = generator.random(800) < 0.5
    scores = generator.normal(size=800) + members
    lower, n = at_epsilon(scores, members, 0.5, ONE_RUN)
    assert lower > 0.5
    assert 40 < n < 800
    kept, watched = at_epsilon(scores, members, epsilon_of_delta(1.0, 1e-5), ONE_RUN)
    assert watched == 800
    assert 0.5 < kept < 4.0


def test_same_seed_same_answer_and_a_longer_file_goes_on() -> None:
    generator = np.random.default_rng(7)
    members = generator.random(400) < 0.5
    scores = generator.normal(size=400) + members

    def capitals(n: int) -> FloatArray:
        test = SequentialTest(np.array([0.5, 2.0]), delta=1e-5, confidence=0.9, trials=INDEPENDENT)
        seen = []
        for score, member in zip(scores[:n].tolist(), members[:n].tolist(), strict=True):
            test.watch(score, member)
            seen.append(test.log_capitals)
        return np.array(seen)

    assert np.array_equal(capitals(400)[:150], capitals(150))


def test_rounds_wait_for_their_coin() -> None:
    test = SequentialTest(np.array([1.0]), delta=0.0, confidence=0.95, trials=INDEPENDENT)
    for score in range(100):
        test.watch(float(score), True)
    assert test.watched == 100
    assert test.rounds < 20  # Until a coin asked for a non-member.
    assert test.lower == 0.0
    played = test.rounds
    for score in range(50):
        test.watch(-float(score), False)
    assert played + 50 <= test.rounds <= 150


def test_a_claim_out_of_floating_range_is_watched_without_bets() -> None:
    members = np.arange(40) % 2 == 0
    lower, n = at_epsilon(members * 1.0, members, 500.0, INDEPENDENT)
    assert 0.0 < lower < 500.0 or lower == 0.0
    assert n == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"epsilons": np.array([1.0, 1.0])},
            "epsilons must be a row of finite numbers >= 0 in ascending order",
        ),
        ({"epsilons": np.array([-1.0])}, "epsilons must be a row"),
        ({"epsilons": np.array([])}, "epsilons must be a row"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1"),
        ({"delta": 1.0}, r"delta must be in \[0, 1\), got 1"),
        ({"prior": 0.0}, r"prior must be in \(0, 1\), got 0"),
        ({"most": None}, "most must be"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str) -> None:
    given = {"epsilons": np.array([1.0]), "delta": 1e-5, "confidence": 0.9, "trials": ONE_RUN, "most": 5}
    with pytest.raises(InputError, match=message):
        SequentialTest(**{**given, **changes})  # type: ignore[arg-type]


def test_no_more_than_was_said_beforehand_may_be_watched() -> None:
    test = SequentialTest(np.array([1.0]), delta=1e-5, confidence=0.9, trials=ONE_RUN, most=2)
    test.watch(0.1, True)
    test.watch(0.2, False)
    with pytest.raises(InputError, match="most must be at least the number of scores watched, got 2"):
        test.watch(0.3, True)


def evidence(shift: float, **game: object) -> Evidence:
    generator = np.random.default_rng(8)
    members = generator.random(400) < 0.5
    return Evidence(
        scores=generator.normal(size=400) + shift * members,
        members=members,
        game=GameTerms(description="a test", sequential=True, **{"trials": ONE_RUN, **game}),  # type: ignore[arg-type]
        attack="test",
    )


def claim(guarantee: Guarantee) -> Claim:
    about = guarantee.secret if isinstance(guarantee, MutualInformation) else Adjacency.ADD_REMOVE
    return Claim(guarantee=guarantee, about=about, released=Released.EVERY_UPDATE, source="the test")


EPSILON_ONE = claim(ApproximateDP(epsilon=1.0, delta=1e-5))


@pytest.mark.parametrize("trials", list(Trials))
def test_the_verdict_says_after_how_many_scores(trials: Trials) -> None:
    generator = np.random.default_rng(9)
    verdict = judge(EPSILON_ONE, evidence(5.0, trials=trials), confidence=0.95, generator=generator)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert (verdict.bound.name, verdict.bound.family) == ("sequential", Family.ANY)
    assert verdict.bound.n < 200
    assert f"It was refuted after {verdict.bound.n} of 400 scores" in verdict.sentence
    assert verdict.bounds == (verdict.bound,)  # No bound that needs a number fixed beforehand stands with it.
    kept = judge(EPSILON_ONE, evidence(0.0, trials=trials), confidence=0.95, generator=generator)
    assert kept.kind is VerdictKind.NOT_REFUTED
    assert "All 400 scores were watched" in kept.sentence


def test_what_a_sequential_test_cannot_judge_is_refused() -> None:
    generator = np.random.default_rng(10)
    in_mu = judge(claim(GaussianDP(mu=0.2)), evidence(5.0), confidence=0.95, generator=generator)
    assert in_mu.kind is VerdictKind.REFUTED
    assert "epsilon = 0.72" in in_mu.sentence
    nats = claim(MutualInformation(nats=0.1, secret=Secret.RECORD))
    with pytest.raises(UnsupportedError, match="a sequential test is about epsilon, got mutual information"):
        judge(nats, evidence(5.0, trials=INDEPENDENT), confidence=0.95, generator=generator)
    with pytest.raises(UnsupportedError, match="state the prior"):
        judge(EPSILON_ONE, evidence(5.0, prior_range=(0.4, 0.6)), confidence=0.95, generator=generator)
    with pytest.raises(UnsupportedError, match="not about single releases"):
        judge(EPSILON_ONE, evidence(5.0, trials=INDEPENDENT, steps=3), confidence=0.95, generator=generator)
