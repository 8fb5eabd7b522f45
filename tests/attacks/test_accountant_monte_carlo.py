"""The Monte Carlo accountant check: coverage on known truths, verdicts, and a user's own pairs."""

from __future__ import annotations

import doctest
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom, norm

from workbench.accounting import certified
from workbench.accounting.events import (
    Composed,
    FinitePair,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.accounting.gaussian import delta_of_epsilon
from workbench.attacks.accountant_checks import monte_carlo as accountant_monte_carlo
from workbench.attacks.accountant_checks.monte_carlo import (
    Direction,
    GaussianPair,
    IntervalMethod,
    LaplacePair,
    PairOfNeighbours,
    Scope,
    estimate_both,
    estimate_delta,
    judge_claim,
    mean_interval,
    measure_claim,
    pair_of,
    permuted_gaussians,
    random_direction,
)
from workbench.core.errors import InconclusiveError, InputError
from workbench.interfaces import Adjacency, FloatArray, VerdictKind

SAMPLED = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.01)
ANSWERS = RandomisedResponse(noise_parameter=0.4, categories=3)
ANSWERS_EPSILON = math.log((0.6 + 0.4 / 3) / (0.4 / 3))


def sampled_delta(epsilon: float, direction: str) -> float:
    """One subsampled step, closed form: either density difference is one of two plain Gaussians."""
    q, mu = SAMPLED.sampling_probability, 1 / SAMPLED.noise_multiplier
    if direction == Direction.FORWARD:
        return q * delta_of_epsilon(mu, math.log1p(math.expm1(epsilon) / q))
    rest = 1 - math.exp(epsilon) * (1 - q)
    return rest * delta_of_epsilon(mu, math.log(math.exp(epsilon) * q / rest)) if rest > 0 else 0.0


def answers_delta(epsilon: float, count: int) -> float:
    """`count` answers of the three-way randomised response, by summing over all counts of both answers."""
    probabilities = np.array([0.6 + 0.4 / 3, 0.4 / 3, 0.4 / 3])
    total = 0.0
    for truths in range(count + 1):
        for others in range(count + 1 - truths):
            ways = math.comb(count, truths) * math.comb(count - truths, others)
            rest = count - truths - others
            p = float(np.prod(probabilities ** [truths, others, rest]))
            q = float(np.prod(probabilities ** [others, truths, rest]))
            total += ways * max(0.0, p - math.exp(epsilon) * q)
    return total


TRUTHS: dict[str, tuple[PairOfNeighbours, float, float]] = {
    "noise": (GaussianPair(shift=(0.0,), standard_deviation=1.0), 0.1, 0.0),
    "randomised response": (pair_of(ANSWERS, Adjacency.REPLACE_ONE), 0.5, answers_delta(0.5, 1)),
    "randomised response x 8": (
        pair_of(Composed(events=((ANSWERS, 8),)), Adjacency.REPLACE_ONE), 5.0, answers_delta(5.0, 8)
    ),
    "laplace": (pair_of(Laplace(scale=1.0)), 0.5, -math.expm1(-0.25)),
    "laplace, 3 dimensions": (LaplacePair(shift=(0.0, -1.0, 0.0), scale=1.0), 0.9, -math.expm1(-0.05)),
    "gaussian": (pair_of(Gaussian(noise_multiplier=1.0)), 1.0, delta_of_epsilon(1.0, 1.0)),
    "gaussian x 25": (
        pair_of(Composed(events=((Gaussian(noise_multiplier=5.0), 25),))), 3.0, delta_of_epsilon(1.0, 3.0)
    ),
    "gaussian, 20 dimensions": (
        GaussianPair(shift=random_direction(20, np.random.default_rng(1)), standard_deviation=1.0),
        4.0,
        delta_of_epsilon(1.0, 4.0),
    ),
    "permuted": (
        permuted_gaussians((1.0,) * 3, (0.0,) * 3, standard_deviation=1.5),
        2.0,
        delta_of_epsilon(math.sqrt(3) / 1.5, 2.0),
    ),
    "subsampled": (pair_of(SAMPLED), 0.5, sampled_delta(0.5, "forward")),
    "subsampled, backward": (
        pair_of(SAMPLED, direction="backward"), 0.008, sampled_delta(0.008, "backward")
    ),
    "gaussian at 1e-8": (pair_of(Gaussian(noise_multiplier=1.0)), 5.775, delta_of_epsilon(1.0, 5.775)),
    "gaussian x 4 at 1e-8": (
        pair_of(Composed(events=((Gaussian(noise_multiplier=2.0), 4),))), 5.775, delta_of_epsilon(1.0, 5.775)
    ),
    "subsampled at 1e-8": (pair_of(SAMPLED), 0.9, sampled_delta(0.9, "forward")),
    "subsampled at 1e-12": (pair_of(SAMPLED), 2.05, sampled_delta(2.05, "forward")),
}  # fmt: skip
"""Pair, epsilon, true delta."""
RIGOROUS = [method for method in IntervalMethod if method is not IntervalMethod.ASYMPTOTIC]


@pytest.mark.thinned
@pytest.mark.parametrize("name", TRUTHS)
def test_intervals_cover_the_truth(name: str) -> None:
    """False alarm: at most 1e-6 for each truth and method by itself, 6e-5 in all."""
    pair, epsilon, truth = TRUTHS[name]
    rng, repeats = np.random.default_rng(2), 60
    for method in RIGOROUS:
        missed = 0
        for _ in range(repeats):
            estimate = estimate_delta(pair, epsilon, n=300, rng=rng, method=method, confidence=0.9)
            assert estimate.rigorous
            missed += not estimate.lower <= truth <= estimate.upper
        assert missed <= binom.isf(1e-6, repeats, 0.1), method


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "gaussian at 1e-8", "subsampled at 1e-12", "permuted"])
def test_half_the_width_is_caught(name: str) -> None:
    """The negative control: half the interval is outside the limit, also where weights are tiny."""
    pair, epsilon, truth = TRUTHS[name]
    rng, repeats, missed = np.random.default_rng(3), 400, 0
    for _ in range(repeats):
        estimate = estimate_delta(pair, epsilon, n=1000, rng=rng)
        missed += abs(estimate.estimate - truth) > (estimate.upper - estimate.lower) / 4
    assert missed > binom.isf(1e-6, repeats, 0.05)


@pytest.mark.parametrize("name", [name for name in TRUTHS if "1e-" in name])
def test_importance_sampling_resolves_tiny_deltas(name: str) -> None:
    """Within 20 per cent by 10,000 samples, where plain sampling sees nothing at all."""
    pair, epsilon, truth = TRUTHS[name]
    tilted = estimate_delta(pair, epsilon, n=10_000, rng=np.random.default_rng(4), confidence=1 - 1e-6)
    assert tilted.lower <= truth <= tilted.upper
    assert tilted.upper - tilted.lower < 0.2 * truth
    plain = estimate_delta(pair, epsilon, n=10_000, rng=np.random.default_rng(4), proposal="plain")
    assert plain.estimate < 0.1 * truth
    assert plain.upper > 1e-4


@pytest.mark.parametrize(
    ("noise", "q", "steps", "epsilon", "adjacency"),
    [
        (1.0, 0.01, 1000, 2.0, Adjacency.ADD_REMOVE),
        (2.0, 0.5, 100, 8.0, Adjacency.ADD_REMOVE),
        (0.8, 0.05, 20, 1.0, Adjacency.REPLACE_ONE),
        (1.0, 0.01, 3, 0.05, Adjacency.ADD_REMOVE),
    ],
)
def test_compositions_agree_with_certified_bounds(
    noise: float, q: float, steps: int, epsilon: float, adjacency: Adjacency
) -> None:
    """The larger direction's interval meets the certified enclosure; false alarm 1e-6 each."""
    event = gaussian_run(noise_multiplier=noise, sampling_probability=q, steps=steps)
    n = 2_000_000 // max(steps, 100)
    both = estimate_both(
        pair_of(event, adjacency), epsilon, n=n, rng=np.random.default_rng(5), confidence=1 - 1e-6
    )
    assert both[1] is not None
    known = certified.delta_bounds(event, epsilon, adjacency=adjacency)
    assert max(both[0].lower, both[1].lower) <= known.upper
    assert known.lower <= max(both[0].upper, both[1].upper)
    # No vacuous agreement: the interval is narrow.
    assert both[0].upper < 2 * both[0].lower


@pytest.mark.parametrize("name", TRUTHS)
def test_true_claims_are_not_refuted(name: str) -> None:
    """At the very truth, by 5 per cent at most; false alarm 1e-6 a truth."""
    pair, epsilon, truth = TRUTHS[name]
    other = estimate_both(pair, epsilon, n=4000, rng=np.random.default_rng(6))[1]
    assert other is not None
    claimed = max(truth, other.upper if other.lower > truth else truth)
    rng, repeats = np.random.default_rng(7), 60
    refuted = 0
    for _ in range(repeats):
        finding = judge_claim(pair, epsilon, claimed, n=300, rng=rng)
        refuted += finding.verdict is VerdictKind.REFUTED
    assert refuted <= binom.isf(1e-6, repeats, 0.05)


@pytest.mark.parametrize("name", [name for name in TRUTHS if name != "noise"])
def test_half_the_truth_is_refuted(name: str) -> None:
    pair, epsilon, truth = TRUTHS[name]
    finding = judge_claim(pair, epsilon, truth / 2, n=3000, rng=np.random.default_rng(8))
    assert finding.verdict is VerdictKind.REFUTED
    assert finding.confidence == 0.95
    assert finding.counterexample["epsilon"] == epsilon
    lower = finding.counterexample["delta_lower"]
    assert truth / 2 < lower <= finding.counterexample["delta_upper"]


def test_one_direction_is_not_enough() -> None:
    """An accountant that looked at *add* alone is refuted by *remove*, whichever way the pair is given."""
    claimed = sampled_delta(0.005, "backward")
    for direction in Direction:
        finding = judge_claim(
            pair_of(SAMPLED, direction=direction),
            0.005,
            claimed * 1.01,
            n=20_000,
            rng=np.random.default_rng(1),
        )
        assert finding.verdict is VerdictKind.REFUTED
        opposite = Direction.FORWARD if direction is Direction.FORWARD else Direction.BACKWARD
        assert finding.counterexample["direction"] == opposite


@pytest.mark.parametrize("count", [1, 7, 40])
def test_atoms_at_epsilon_refute_nothing(count: int) -> None:
    """Pure epsilon-DP claims delta 0 exactly where its losses have atoms: rounding must not refute it."""
    pair = pair_of(Composed(events=((ANSWERS, count),)), Adjacency.REPLACE_ONE)
    rng = np.random.default_rng(10)
    for epsilon in (count * ANSWERS_EPSILON, math.fsum([ANSWERS_EPSILON] * count)):
        for proposal in ("auto", "plain"):
            test = measure_claim(pair, epsilon, 0.0, n=3000, rng=rng, proposal=proposal)
            assert test.kind is not VerdictKind.REFUTED
    # The control: a hair below, the claim is false, and one sample shows it.
    below = judge_claim(pair, count * ANSWERS_EPSILON - 1e-3, 0.0, n=100_000, rng=rng)
    assert below.verdict is VerdictKind.REFUTED


def test_what_one_pair_may_say() -> None:
    pair, epsilon, truth = TRUTHS["gaussian"]
    rng = np.random.default_rng(11)
    about_all = judge_claim(pair, epsilon, 1.1 * truth, n=10_000, rng=rng)
    assert about_all.verdict is VerdictKind.UNDECIDED
    assert "cannot prove" in about_all.summary
    about_this = judge_claim(pair, epsilon, 1.1 * truth, n=10_000, rng=rng, scope=Scope.THIS_PAIR)
    assert about_this.verdict is VerdictKind.HOLDS_UNDER
    assert about_this.assumptions[0].text == "this pair of neighbours is the worst one"
    assert about_this.confidence == 0.95
    close = judge_claim(pair, epsilon, 1.0001 * truth, n=1000, rng=rng, scope="this pair")
    assert close.verdict is VerdictKind.UNDECIDED
    with pytest.raises(InputError, match="scope must be one of every pair, this pair, got 'all'"):
        judge_claim(pair, epsilon, truth, n=10, rng=rng, scope="all")


def test_wide_intervals_are_underpowered() -> None:
    pair, _, _ = TRUTHS["gaussian"]
    test = measure_claim(pair, 5.0, 1e-6, n=1000, rng=np.random.default_rng(12), proposal="plain")
    assert test.kind is VerdictKind.UNDERPOWERED
    assert "too few samples" in test.finding().summary
    test = measure_claim(pair, 5.0, 1e-6, n=1000, rng=np.random.default_rng(12))
    assert test.kind is VerdictKind.NOT_REFUTED


@dataclass
class OwnPair:
    """A user's pair: N(1, 1) against N(0, 1), with a proposal of its own, and nothing else."""

    mean: float = 3.5
    log_weight_bound: float | None = None

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        return rng.normal(1.0, size=n)

    def log_density_p(self, x: FloatArray) -> FloatArray:
        return np.asarray(norm.logpdf(x, 1.0))

    def log_density_q(self, x: FloatArray) -> FloatArray:
        return np.asarray(norm.logpdf(x))

    def sample_proposal(self, n: int, rng: np.random.Generator) -> FloatArray:
        return rng.normal(self.mean, size=n)

    def log_density_proposal(self, x: FloatArray) -> FloatArray:
        return np.asarray(norm.logpdf(x, self.mean))


class BarePair:
    """The least that a user may bring."""

    sample = OwnPair.sample
    log_density_p = OwnPair.log_density_p
    log_density_q = OwnPair.log_density_q


def own_bound(mean: float, epsilon: float) -> float:
    """log(p / g) falls in x for mean > 1: largest where the loss is epsilon, at x = epsilon + 1 / 2."""
    x = epsilon + 0.5
    return float(norm.logpdf(x, 1.0) - norm.logpdf(x, mean))


def test_bare_pairs_are_sampled_plainly() -> None:
    truth = delta_of_epsilon(1.0, 1.0)
    finding = judge_claim(BarePair(), 1.0, truth / 2, n=5000, rng=np.random.default_rng(13))
    assert finding.verdict is VerdictKind.REFUTED
    # One direction alone: within the claim, and still no statement about the pair.
    finding = judge_claim(
        BarePair(), 1.0, 2 * truth, n=5000, rng=np.random.default_rng(13), scope=Scope.THIS_PAIR
    )
    assert finding.verdict is VerdictKind.UNDECIDED
    assert len(finding.evidence) == 1


def test_own_proposals_need_a_bound_to_decide() -> None:
    epsilon, truth = 3.0, delta_of_epsilon(1.0, 3.0)
    unknown = estimate_delta(OwnPair(), epsilon, n=5000, rng=np.random.default_rng(14))
    assert (unknown.rigorous, unknown.method) == (False, IntervalMethod.ASYMPTOTIC)
    assert unknown.estimate == pytest.approx(truth, rel=0.1)
    finding = judge_claim(OwnPair(), epsilon, truth / 10, n=5000, rng=np.random.default_rng(14))
    assert finding.verdict is VerdictKind.UNDECIDED
    assert "asymptotic only" in finding.evidence[0]

    bounded = OwnPair(log_weight_bound=own_bound(3.5, epsilon))
    known = estimate_delta(bounded, epsilon, n=5000, rng=np.random.default_rng(14))
    assert known.rigorous
    assert known.lower <= truth <= known.upper
    assert judge_claim(bounded, epsilon, truth / 2, n=5000, rng=np.random.default_rng(14)).verdict is (
        VerdictKind.REFUTED
    )


def test_wrong_bounds_and_broken_densities_are_noticed() -> None:
    wrong = OwnPair(log_weight_bound=own_bound(3.5, 3.0) - 3)
    with pytest.raises(InconclusiveError, match="must be at most its bound"):
        estimate_delta(wrong, 3.0, n=5000, rng=np.random.default_rng(15))

    class Broken(BarePair):
        def log_density_q(self, x: FloatArray) -> FloatArray:
            return np.full(len(x), math.nan)

    with pytest.raises(InconclusiveError, match="got NaN"):
        estimate_delta(Broken(), 1.0, n=100, rng=np.random.default_rng(15))


def test_losses_without_end_are_exact() -> None:
    """Where Q never gives a quarter of P's outputs, delta is a quarter and more at every epsilon."""
    half, quarter, never = Fraction(1, 2), Fraction(1, 4), Fraction(0)
    event = FinitePair(p=(half, quarter, quarter, never), q=(half, quarter, never, quarter))
    for count in (1, 5):
        pair = pair_of(Composed(events=((event, count),)))
        estimate = estimate_delta(pair, 3.0, n=500, rng=np.random.default_rng(16))
        assert estimate.lower == pytest.approx(1 - 0.75**count, rel=1e-6)
        assert estimate.upper == pytest.approx(1 - 0.75**count, rel=1e-6)


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("epsilon", [0.0, 30.0, 500.0])
def test_extreme_epsilons_give_numbers(name: str, epsilon: float) -> None:
    forward, backward = estimate_both(TRUTHS[name][0], epsilon, n=100, rng=np.random.default_rng(17))
    for estimate in (forward, backward):
        assert estimate is not None
        assert 0 <= estimate.lower <= estimate.upper <= 1
    if epsilon == 500.0:
        assert forward.upper < 1e-200


def test_same_seed_same_numbers() -> None:
    pair = TRUTHS["gaussian x 25"][0]
    first, second, other = (
        estimate_both(pair, 1.0, n=500, rng=np.random.default_rng(seed)) for seed in (18, 18, 19)
    )
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    ("epsilon", "delta", "n", "message"),
    [
        (-1.0, 0.1, 10, "epsilon must be finite and >= 0, got -1.0"),
        (math.nan, 0.1, 10, "epsilon must be finite"),
        (1.0, 1.5, 10, r"delta must be in \[0, 1\], got 1.5"),
        (1.0, 0.1, 1, "n must be at least 2, got 1"),
    ],
)
def test_unusable_claims_are_refused(epsilon: float, delta: float, n: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        judge_claim(TRUTHS["gaussian"][0], epsilon, delta, n=n, rng=np.random.default_rng(20))


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(InputError, match="method must be one of hoeffding"):
        estimate_delta(TRUTHS["gaussian"][0], 1.0, n=10, rng=np.random.default_rng(21), method="bootstrap")
    with pytest.raises(InputError, match="confidence must be in"):
        estimate_both(TRUTHS["gaussian"][0], 1.0, n=10, rng=np.random.default_rng(21), confidence=1.0)
    assert mean_interval(np.zeros(2), confidence=0.9).upper <= 1


def test_doctests() -> None:
    result = doctest.testmod(accountant_monte_carlo)
    assert result.attempted >= 3
    assert result.failed == 0
