"""The mu bound of one run: its recursion against a linear program, coverage in the worst dependence, power.

Cells of coverage are judged as in `test_coverage`: 5 % and three standard errors.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracles.known_truths import known_truths
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri

from workbench.accounting import ApproximateDP, GaussianDP
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import gdp_one_run
from workbench.estimation.clopper_pearson import binomial_lower
from workbench.estimation.deciding import unknown_prior_range
from workbench.estimation.gdp_one_run import is_refuted, name_counts, perfect_mu
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
    Trials,
    VerdictKind,
)

TRUTHS = {truth.name: truth for truth in known_truths()}


def limit(repetitions: int) -> float:
    """Share of excesses above which a bound of 95 % confidence fails."""
    return 0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)


def coins(n: int, prior: float, generator: np.random.Generator) -> BoolArray:
    while True:
        members = generator.random(n) < prior
        if members.any() and not members.all():
            return members


def largest_chance(n: int, names: int, right: int, mu: float, chance: float | None) -> float:
    """Largest P[N >= right] that the inequalities of the module allow, by a linear program.

    Each curve is replaced by tangents, which lie above it: the value errs upwards, by little.
    """
    top, scale = (1.0, 1.0) if chance is None else (chance, 1.0 - chance)
    z = np.linspace(-7.0, 4.0, 900)
    x, y = scale * ndtr(z), top * ndtr(z + mu)
    slope = (top / scale) * np.exp(-mu * z - mu * mu / 2)
    i = np.arange(names + 1)
    rows, sides = [], []
    for t in range(1, names + 1):
        r, h = np.where(i >= t, i / n, 0.0), np.where(i >= t - 1, (names - i) / n, 0.0)
        rows.append(r[None, :] - slope[:, None] * h[None, :])
        sides.append(y - slope * x)
    found = linprog(
        -(i >= right).astype(float),
        A_ub=np.concatenate(rows),
        b_ub=np.concatenate(sides),
        A_eq=np.ones((1, names + 1)),
        b_eq=[1.0],
    )
    return float(-found.fun)


@pytest.mark.parametrize(
    ("n", "names", "right", "mu", "chance"),
    [(12, 12, 10, 0.5, None), (30, 10, 9, 1.0, None), (40, 8, 7, 0.6, 0.5), (20, 6, 5, 0.8, 0.25)],
)
def test_the_recursion_finds_what_a_linear_program_finds(
    n: int, names: int, right: int, mu: float, chance: float | None
) -> None:
    most = largest_chance(n, names, right, mu, chance)
    assert 0.005 < most < 0.9

    def refuted(chance_of_right: float) -> bool:
        return is_refuted(mu, n=n, names=names, right=right, significance=chance_of_right, chance=chance)

    assert refuted(most * 1.002)
    assert not refuted(most * 0.98)


def lucky(members: BoolArray, generator: np.random.Generator, *, luck: float, honest: float) -> FloatArray:
    """With probability `luck` all labels, each true with probability `honest`; else nothing."""
    told = generator.random(members.size) < (honest if generator.random() < luck else 0.5)
    return np.where(told, members, ~members) + 1e-3 * generator.random(members.size)


@pytest.mark.parametrize(("luck", "honest"), [(0.04, 0.95), (0.09, 0.8), (0.25, 0.7)])
def test_a_run_that_puts_its_luck_into_one_case_is_covered(luck: float, honest: float) -> None:
    """Such a run is mu-GDP, and breaks the bound that takes guesses for independent of each other."""
    generator, repetitions, n = np.random.default_rng([1, int(100 * luck)]), 1500, 100
    # The corners of its trade-off curve: nothing is told with probability 1 - luck.
    mu = float(ndtri(luck * honest) - ndtri(luck * (1 - honest)))
    excesses = naive = 0
    for _ in range(repetitions):
        members = coins(n, 0.5, generator)
        scores = lucky(members, generator, luck=luck, honest=honest)
        excesses += gdp_one_run(scores, members, confidence=0.95, quantity="mu").lower > mu
        right = int(np.sum((scores > 0.5) == members))
        naive += 2 * float(ndtri(max(0.5, binomial_lower(right, n, 0.05)))) > mu
    assert excesses / repetitions <= limit(repetitions)
    assert naive / repetitions > (limit(repetitions) if luck > 0.05 else 0.0)


CELLS = [
    pytest.param(truth, n, prior, marks=() if (n, prior) == (100, 0.5) else pytest.mark.slow)
    for truth in TRUTHS
    for n in (100, 1000)
    for prior in (0.5, 0.2)
]


@pytest.mark.parametrize(("truth", "n", "prior"), CELLS)
def test_bounds_exceed_the_true_mu_in_at_most_five_percent(truth: str, n: int, prior: float) -> None:
    generator, repetitions = np.random.default_rng([n, len(truth)]), 1000
    excesses = 0
    for _ in range(repetitions):
        members = coins(n, prior, generator)
        scores = TRUTHS[truth].sample(members, generator)
        bound = gdp_one_run(scores, members, confidence=0.95, prior=prior, quantity="mu", generator=generator)
        excesses += bound.lower > TRUTHS[truth].mu
    assert excesses / repetitions <= limit(repetitions)


@pytest.mark.parametrize(("n", "floor"), [(100, 0.9), (1000, 1.9), (10_000, 2.4)])
def test_mean_bound_on_one_gdp_beats_the_floor(n: int, floor: float, record_property: object) -> None:
    """At delta = 1e-5, where the truth is worth 4.38; at 1,000 the mean is 2.08, without a family 1.6."""
    generator = np.random.default_rng(3)
    lower = []
    for _ in range(60):
        members = coins(n, 0.5, generator)
        scores = generator.normal(size=n) + members
        bound = gdp_one_run(scores, members, confidence=0.95, quantity="mu")
        lower.append(epsilon_of_delta(bound.lower, 1e-5))
    record_property("mean_bound", float(np.mean(lower)))  # type: ignore[operator]
    assert np.mean(lower) > floor


def test_mu_and_its_worth_in_epsilon_are_labelled() -> None:
    generator = np.random.default_rng(4)
    members = coins(1000, 0.5, generator)
    scores = generator.normal(size=1000) + members
    in_mu = gdp_one_run(scores, members, confidence=0.95, quantity="mu")
    in_epsilon = gdp_one_run(scores, members, delta=1e-5, confidence=0.95)
    assert (in_mu.quantity, in_mu.delta, in_mu.family) == ("mu", None, Family.ANY)
    assert (in_epsilon.quantity, in_epsilon.delta, in_epsilon.family) == ("epsilon", 1e-5, Family.GAUSSIAN)
    assert in_epsilon.lower == epsilon_of_delta(in_mu.lower, 1e-5)
    assert "trade-off" in in_epsilon.assumption
    assert in_mu.lower < 1.0 < 2 * in_mu.estimate


def test_perfect_attacks_show_more_the_more_candidates_there_are() -> None:
    bounds = [perfect_mu(n, confidence=0.95) for n in (2, 20, 100, 1000, 10_000)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0.0
    assert bounds[-2] > 1.9
    assert name_counts(1000) == (469, 117, 29)


def test_what_is_wrong_is_named() -> None:
    members = np.arange(20) < 10
    with pytest.raises(UnsupportedError, match="only 2 of 20 values are distinct"):
        gdp_one_run(members * 1.0, members, confidence=0.9, delta=0.1)
    with pytest.raises(
        InputError, match=r"sides must not hold 'both' where prior is not 0\.5, got prior 0\.3"
    ):
        gdp_one_run(np.arange(20.0), members, confidence=0.9, delta=0.1, prior=0.3, sides={"both": 1.0})
    with pytest.raises(InputError, match="quantity must be 'epsilon' or 'mu', got 'nats'"):
        gdp_one_run(members * 1.0, members, confidence=0.9, quantity="nats")
    with pytest.raises(InputError, match=r"delta must be in \(0, 1\), got 0"):
        gdp_one_run(members * 1.0, members, confidence=0.9)
    with pytest.raises(InputError, match="scores must not be constant"):
        gdp_one_run(np.ones(20), members, confidence=0.9, quantity="mu")


def evidence(
    shift: float, *, prior: float = 0.5, n: int = 1000, seed: int = 5, known: bool = True
) -> Evidence:
    generator = np.random.default_rng(seed)
    members = coins(n, prior, generator)
    return Evidence(
        scores=generator.normal(size=n) + shift * members,
        members=members,
        game=GameTerms(
            description="a test",
            trials=Trials.ONE_RUN,
            prior=prior,
            prior_range=None if known else unknown_prior_range(members),
        ),
        attack="test",
    )


def claim(guarantee: Guarantee) -> Claim:
    about, released = Adjacency.ADD_REMOVE, Released.EVERY_UPDATE
    return Claim(guarantee=guarantee, about=about, released=released, source="the test")


def test_a_claim_of_mu_is_decided_in_mu_and_earlier_than_in_epsilon() -> None:
    """What mu = 0.46 implies at delta = 1e-5 is epsilon = 1.82, more than a bound in epsilon shows here."""
    generator = np.random.default_rng(6)
    scores = evidence(1.0)
    verdict = judge(claim(GaussianDP(mu=0.46)), scores, confidence=0.95, generator=generator)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert (verdict.bound.quantity, verdict.bound.name) == ("mu", "gdp_one_run")
    assert "where the claim allows mu = 0.46 (" in verdict.sentence
    implied = ApproximateDP(epsilon=epsilon_of_delta(0.46, 1e-5), delta=1e-5)
    in_epsilon = judge(claim(implied), scores, confidence=0.95, generator=generator)
    assert in_epsilon.kind is VerdictKind.NOT_REFUTED
    true = judge(claim(GaussianDP(mu=1.0)), scores, confidence=0.95, generator=generator)
    assert true.kind is VerdictKind.NOT_REFUTED


def test_a_claim_of_mu_out_of_reach_says_how_many_trials_would_do() -> None:
    strong = claim(GaussianDP(mu=1.5))
    verdict = judge(strong, evidence(50.0, n=60), confidence=0.95, generator=np.random.default_rng(7))
    assert verdict.kind is VerdictKind.UNDERPOWERED
    assert verdict.trials_needed is not None
    assert perfect_mu(verdict.trials_needed, confidence=0.95) > 1.5
    enough = evidence(50.0, n=round(1.25 * verdict.trials_needed))
    again = judge(strong, enough, confidence=0.95, generator=np.random.default_rng(7))
    assert again.kind is VerdictKind.REFUTED


@pytest.mark.parametrize("prior", [0.2, 0.7])
def test_an_unknown_prior_is_paid_for_in_mu_too(prior: float) -> None:
    generator = np.random.default_rng(8)
    tight = evidence(2.0, prior=prior, known=False)
    verdict = judge(claim(GaussianDP(mu=0.3)), tight, confidence=0.95, generator=generator)
    assert verdict.kind is VerdictKind.REFUTED
    assert verdict.bound is not None
    assert "one unknown probability" in verdict.bound.assumption
    refuted = 0
    for seed in range(100):
        noise = evidence(0.0, prior=prior, known=False, n=200, seed=seed)
        kept = judge(claim(GaussianDP(mu=0.01)), noise, confidence=0.95, generator=generator)
        refuted += kept.kind is VerdictKind.REFUTED
    assert refuted / 100 <= limit(100)
