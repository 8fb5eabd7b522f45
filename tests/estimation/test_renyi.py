"""Bounds of a Rényi divergence: coverage on known divergences, the curve and the band against slow twins.

Cells of coverage are judged as in `test_coverage`: 5 % and three standard errors.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from oracles.known_truths import known_truths
from scipy.special import betaincinv

from workbench.accounting import RenyiDP
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import ESTIMATORS, renyi_lower, renyi_one_run
from workbench.estimation.deciding import implied_epsilon, unknown_prior_range
from workbench.estimation.judge import judge
from workbench.estimation.renyi import (
    _order_band,
    below_band_probability,
    binary_renyi,
    concave_hull,
    implied_excess,
    perfect_renyi,
    renyi_curve,
)
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Released,
    Trials,
    Verdict,
    VerdictKind,
)

TRUTHS = {truth.name: truth for truth in known_truths()}


def true_renyi(name: str, alpha: float) -> float:
    """Divergence of the known truths: alpha / 2 of unit normals one apart (Mironov 2017, proposition 7)."""
    if name == "noise":
        return 0.0
    if name == "gaussian":
        return alpha / 2.0
    if name == "randomised_response":
        return binary_renyi(math.e / (math.e + 1.0), 1.0 / (math.e + 1.0), alpha)
    assert name == "laplace"  # Mironov 2017, proposition 6, scale and shift 1.
    a = alpha / (2.0 * alpha - 1.0) * math.exp(alpha - 1.0)
    return math.log(a + (alpha - 1.0) / (2.0 * alpha - 1.0) * math.exp(-alpha)) / (alpha - 1.0)


def limit(repetitions: int) -> float:
    """Share of excesses above which a bound of 95 % confidence fails."""
    return 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)


def draw(name: str, n: int, generator: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    while True:
        members = generator.random(n) < 0.5
        if members.any() and not members.all():
            return TRUTHS[name].sample(members, generator), members


CELLS = [
    pytest.param(
        name, alpha, n, marks=() if (n, alpha) == (60, 2.0) and name[0] in "ng" else pytest.mark.slow
    )
    for name in ("noise", "randomised_response", "laplace", "gaussian")
    for alpha, n in ((2.0, 60), (8.0, 60), (64.0, 60), (2.0, 400), (64.0, 400))
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "alpha", "n"), CELLS)
def test_bounds_exceed_the_true_divergence_in_at_most_five_percent(name: str, alpha: float, n: int) -> None:
    truth, repetitions = true_renyi(name, alpha), 60 if n == 60 else 80
    generator = np.random.default_rng([n, int(alpha), len(name)])
    independent = one_run = 0
    for _ in range(repetitions):
        scores, members = draw(name, n, generator)
        independent += renyi_lower(scores, members, alpha=alpha, confidence=0.95).lower > truth
        one_run += renyi_one_run(scores, members, alpha=alpha, confidence=0.95).lower > truth
    assert independent / repetitions <= limit(repetitions)
    assert one_run / repetitions <= limit(repetitions)


def least_divergence(alpha: float, luck: float, honest: float) -> float:
    """Of a run that with probability `luck` tells every label, each true with probability `honest`."""
    p = np.array([luck * honest, luck * (1.0 - honest), 1.0 - luck])
    return math.log(float(np.sum(p**alpha * p[[1, 0, 2]] ** (1.0 - alpha)))) / (alpha - 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("luck", "honest"), [(0.04, 0.95), (0.09, 0.8), (0.15, 0.85)])
def test_a_run_that_puts_its_luck_into_one_case_is_covered(luck: float, honest: float) -> None:
    """Such a run breaks the bound for independent trials, which so is a negative control."""
    generator, repetitions, n, alpha = np.random.default_rng([1, int(100 * luck)]), 400, 100, 2.0
    truth = least_divergence(alpha, luck, honest)
    excesses = naive = 0
    for i in range(repetitions):
        members = generator.random(n) < 0.5
        told = generator.random(n) < (honest if generator.random() < luck else 0.5)
        scores = np.where(told, members, ~members) + 1e-3 * generator.random(n)
        excesses += renyi_one_run(scores, members, alpha=alpha, confidence=0.95).lower > truth
        if i < 150 and luck == 0.15:
            naive += renyi_lower(scores, members, alpha=alpha, confidence=0.95).lower > truth
    assert excesses / repetitions <= limit(repetitions)
    assert luck != 0.15 or naive / 150 > limit(150)


@pytest.mark.parametrize("alpha", [1.001, 2.0, 8.0, 500.0])
@pytest.mark.parametrize("rho", [0.0, 1e-3, 0.5, 5.0, 200.0])
def test_the_tabulated_curve_lies_closely_above_the_exact_one(alpha: float, rho: float) -> None:
    generator = np.random.default_rng(2)
    rates = np.concatenate([10.0 ** generator.uniform(-11, -0.31, 400), generator.random(400)])
    rates = np.concatenate([rates, 1.0 - 10.0 ** generator.uniform(-9, -0.31, 200)])
    curve, exact = renyi_curve(alpha, rho), RenyiDP(alpha=alpha, epsilon=rho).max_tpr(rates)
    if rho == 0.0:
        exact = rates
    table = curve.max_tpr(rates)
    assert np.all(table >= exact * (1.0 - 1e-12))
    assert np.all(table <= exact * 1.01 + 1e-9)
    assert np.all(np.diff(curve.max_tpr(np.sort(rates))) >= -1e-15)
    for rate, top in zip(rates.tolist(), exact.tolist(), strict=True):
        assert curve.min_fpr(top) <= rate * (1.0 + 1e-12)
        if 1e-9 < top < 1.0 - 1e-4:
            assert curve.max_tpr(np.array([curve.min_fpr(top)]))[0] >= top * (1.0 - 1e-6)


def test_the_band_holds_for_all_ranks_at_once() -> None:
    """Its error is that of 20,000 simulated samples (three standard errors), and less than Bonferroni's."""
    n, significance = 60, 0.1
    ranks, limits = _order_band(n, significance)
    assert below_band_probability(n, ranks, limits) <= significance
    alone = betaincinv(ranks, n + 1.0 - ranks, significance / ranks.size)
    assert np.all(limits >= alone)
    samples = np.sort(np.random.default_rng(3).random((20_000, n)), axis=1)[:, ranks - 1]
    for held in (limits, alone):
        below = float(np.mean(np.any(samples < held, axis=1)))
        assert abs(below - below_band_probability(n, ranks, held)) < 3 * math.sqrt(0.1 * 0.9 / 20_000)


def test_the_band_of_a_rank_alone_is_a_beta_quantile() -> None:
    """For n = 2: P[U_1 < a or U_2 < b] = 1 - (1 - a)^2 + (b - a)^2 where b > a."""
    a, b = 0.1, 0.4
    found = below_band_probability(2, np.array([1, 2]), np.array([a, b]))
    assert found == pytest.approx(1.0 - ((1.0 - a) ** 2 - (b - a) ** 2), abs=2e-9)
    assert found >= 1.0 - ((1.0 - a) ** 2 - (b - a) ** 2)


def test_a_coarser_curve_has_no_larger_divergence() -> None:
    generator = np.random.default_rng(4)
    x, y = np.sort(generator.random(6)), np.sort(generator.random(6))
    hull = concave_hull(np.array([0.0, *x, 1.0]), np.array([0.0, *np.maximum(x, y), 1.0]))
    slopes = np.diff(hull[:, 1]) / np.diff(hull[:, 0])
    assert all(first > second for first, second in pairwise(slopes))
    p, q = np.diff(hull[:, 1]), np.diff(hull[:, 0])
    whole = math.log(float(np.sum(p**3 / q**2))) / 2.0
    assert all(binary_renyi(top, right, 3.0) >= 0.0 for right, top in hull[1:-1])
    for right, top in hull[1:-1]:
        one_way = math.log(top**3 / right**2 + (1 - top) ** 3 / (1 - right) ** 2) / 2.0
        assert one_way <= whole + 1e-12


def test_many_scores_show_more_than_two_cells_can() -> None:
    """The best threshold between unit normals one apart has divergence 0.66 at alpha = 2; the truth is 1."""
    generator, n = np.random.default_rng(5), 200_000
    members = np.arange(n) < n // 2
    bound = renyi_lower(generator.normal(size=n) + members, members, alpha=2.0, confidence=0.95)
    assert 0.7 < bound.lower < 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("n", "floor"), [(100, 0.09), (1000, 0.4)])
def test_mean_bound_on_a_gaussian_beats_the_floor(n: int, floor: float) -> None:
    """The truth is 1 nat at alpha = 2; measured means are 0.14 and 0.45."""
    generator = np.random.default_rng(6)
    bounds = [renyi_lower(*draw("gaussian", n, generator), alpha=2.0, confidence=0.95) for _ in range(8)]
    assert np.mean([bound.lower for bound in bounds]) > floor
    assert all(bound.lower <= bound.estimate < math.inf for bound in bounds)


def test_bounds_say_what_they_bound_and_are_determined_by_the_seed() -> None:
    scores, members = draw("gaussian", 300, np.random.default_rng(7))
    for bound_of, trials in ((renyi_lower, Trials.INDEPENDENT), (renyi_one_run, Trials.ONE_RUN)):
        bound = bound_of(scores, members, alpha=20.0, confidence=0.9)
        assert (bound.quantity, bound.alpha, bound.delta, bound.trials) == ("renyi", 20.0, None, trials)
        assert bound == bound_of(scores, members, alpha=20.0, confidence=0.9)
        assert (bound.n, bound.confidence) == (300, 0.9)


def test_large_orders_of_one_run_are_also_held_against_epsilon() -> None:
    scores, members = draw("gaussian", 100, np.random.default_rng(8))
    bound = renyi_one_run(3.0 * members + scores, members, alpha=64.0, confidence=0.95)
    generator = np.random.default_rng(9)
    epsilon = ESTIMATORS["one_run"](
        3.0 * members + scores, members, delta=1e-5, confidence=0.975, generator=generator
    )
    assert bound.lower >= epsilon.lower - implied_excess(64.0)
    stated = implied_epsilon(RenyiDP(alpha=64.0, epsilon=0.5))
    assert implied_excess(64.0) < stated.epsilon - 0.5  # Tighter than Mironov's proposition 3.


def test_what_is_wrong_is_named() -> None:
    members, scores = np.arange(20) < 10, np.arange(20.0)
    for bound_of in (renyi_lower, renyi_one_run):
        with pytest.raises(InputError, match="alpha must be finite and > 1, got 1"):
            bound_of(scores, members, alpha=1.0, confidence=0.9)
        with pytest.raises(UnsupportedError, match=r"alpha must be at least 1\.001 to be judged"):
            bound_of(scores, members, alpha=1.0001, confidence=0.9)
        with pytest.raises(InputError, match="confidence must be"):
            bound_of(scores, members, alpha=2.0, confidence=1.0)
    assert renyi_lower(np.ones(20), members, alpha=2.0, confidence=0.9).lower == 0.0
    with pytest.raises(InputError, match="scores must not be constant"):
        renyi_one_run(np.ones(20), members, alpha=2.0, confidence=0.9)
    with pytest.raises(InputError, match=r"sides must not hold 'both' where prior is not 0\.5"):
        renyi_one_run(scores, members, alpha=2.0, confidence=0.9, prior=0.3, sides={"both": 1.0})


def judged(
    claim: RenyiDP, shift: float, trials: Trials, *, n: int = 1000, seed: int = 0, known: bool = True
) -> Verdict:
    generator = np.random.default_rng(seed)
    members = generator.random(n) < 0.5
    reach = None if known else unknown_prior_range(members)
    evidence = Evidence(
        scores=generator.normal(size=n) + shift * members,
        members=members,
        game=GameTerms(description="a test", trials=trials, prior_range=reach),
        attack="test",
    )
    held = Claim(
        guarantee=claim, about=Adjacency.ADD_REMOVE, released=Released.EVERY_UPDATE, source="the test"
    )
    return judge(held, evidence, confidence=0.95, generator=generator)


@pytest.mark.parametrize("trials", list(Trials))
def test_a_claim_is_decided_by_a_bound_at_its_order(trials: Trials) -> None:
    """True of unit normals one apart; false of three apart, in either kind of trials."""
    claim = RenyiDP(alpha=2.0, epsilon=1.0)
    kept = judged(claim, 1.0, trials)
    assert kept.kind is VerdictKind.NOT_REFUTED
    verdict = judged(RenyiDP(alpha=2.0, epsilon=0.2), 3.0, trials)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert (verdict.bound.quantity, verdict.bound.alpha) == ("renyi", 2.0)
    assert "at alpha = 2 with 95 % confidence (estimator renyi_" in verdict.sentence
    assert "where the claim allows renyi = 0.2 at alpha = 2 (" in verdict.sentence


def test_one_run_refutes_what_the_implied_epsilon_never_would() -> None:
    """(2, 0.2)-Rényi DP implies epsilon 11.7 at delta = 1e-5, which no bound of 1,000 guesses reaches."""
    assert implied_epsilon(RenyiDP(alpha=2.0, epsilon=0.2)).epsilon > 11.0
    assert judged(RenyiDP(alpha=2.0, epsilon=0.2), 3.0, Trials.ONE_RUN).kind is VerdictKind.REFUTED


def test_a_claim_out_of_reach_says_how_many_trials_would_do() -> None:
    claim = RenyiDP(alpha=2.0, epsilon=1.0)
    verdict = judged(claim, 50.0, Trials.ONE_RUN, n=60)
    assert verdict.kind is VerdictKind.UNDERPOWERED
    assert verdict.trials_needed is not None
    assert perfect_renyi(verdict.trials_needed, alpha=2.0, confidence=0.95) > 1.0
    again = judged(claim, 50.0, Trials.ONE_RUN, n=round(1.25 * verdict.trials_needed))
    assert again.kind is VerdictKind.REFUTED


def test_an_unknown_prior_is_paid_for() -> None:
    verdict = judged(RenyiDP(alpha=8.0, epsilon=0.2), 3.0, Trials.ONE_RUN, known=False)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert "one unknown probability" in verdict.bound.assumption
