"""The parts of the Monte Carlo accountant check: intervals, pairs of neighbours, tilts and their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import comb, logsumexp
from scipy.stats import beta, binom, norm

from workbench.accounting.events import (
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
)
from workbench.attacks.accountant_checks.monte_carlo import (
    DiscretePair,
    GaussianPair,
    IntervalMethod,
    LaplacePair,
    MixturePair,
    VectorMixturePair,
    mean_interval,
    pair_of,
    permuted_gaussians,
    random_direction,
)
from workbench.attacks.accountant_checks.monte_carlo.pairs import Tilt
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.bounded_mean import predictable_bets
from workbench.interfaces import Adjacency, FloatArray

RIGOROUS = [method for method in IntervalMethod if method is not IntervalMethod.ASYMPTOTIC]
LAWS: dict[str, tuple[float, Callable[[np.random.Generator, int], FloatArray]]] = {
    "fair coins": (0.5, lambda rng, n: (rng.random(n) < 0.5).astype(float)),
    "rare coins": (0.01, lambda rng, n: (rng.random(n) < 0.01).astype(float)),
    "skewed": (1 / 11, lambda rng, n: rng.beta(0.5, 5, size=n)),
    "constant": (0.25, lambda rng, n: np.full(n, 0.25)),
}
SKEWED = MixturePair(
    p_means=(0.0, 1.0), p_weights=(0.9, 0.1), q_means=(0.0,), q_weights=(1.0,), standard_deviation=0.8
)
WIDE = MixturePair(
    p_means=(-3.0, 4.0),
    p_weights=(0.5, 0.5),
    q_means=(-4.0, 0.5),
    q_weights=(0.3, 0.7),
    standard_deviation=1.2,
)
SHUFFLE = VectorMixturePair(
    p_means=2 * np.eye(3),
    p_weights=np.full(3, 1 / 3),
    q_means=np.eye(3),
    q_weights=np.full(3, 1 / 3),
    standard_deviation=1.0,
)
TABLE = DiscretePair(
    log_p=tuple(np.log([0.5, 0.3, 0.2]).tolist()), log_q=tuple(np.log([0.1, 0.3, 0.6]).tolist())
)
PARTS = {
    "gaussian": GaussianPair(shift=(0.6, -0.8), standard_deviation=1.0),
    "laplace": LaplacePair(shift=(0.7, 0.0, -0.3), scale=0.8),
    "table": TABLE,
    "skewed": SKEWED,
    "skewed backward": SKEWED.swapped(),
    "wide": WIDE,
}


@pytest.mark.parametrize("method", RIGOROUS)
@pytest.mark.parametrize("law", LAWS)
def test_intervals_cover(method: IntervalMethod, law: str) -> None:
    """False alarm: each of 16 cells fails with probability at most 1e-6 by itself."""
    mean, draw = LAWS[law]
    rng = np.random.default_rng(1)
    repeats = 300
    missed = 0
    for _ in range(repeats):
        interval = mean_interval(draw(rng, 200), confidence=0.9, method=method)
        missed += not interval.lower <= mean <= interval.upper
    assert missed <= binom.isf(1e-6, repeats, 0.1)


@pytest.mark.parametrize("method", RIGOROUS)
def test_intervals_of_half_width_do_not_cover(method: IntervalMethod) -> None:
    """The negative control of the test above: the same kind of limit catches intervals that are too narrow.

    Empirical Bernstein needs samples until its second term fades.
    """
    rng = np.random.default_rng(2)
    repeats, n = 2000, 20_000 if method is IntervalMethod.EMPIRICAL_BERNSTEIN else 100
    missed = 0
    for _ in range(repeats):
        values = (rng.random(n) < 0.5).astype(float)
        interval = mean_interval(values, confidence=0.9, method=method)
        missed += abs(interval.estimate - 0.5) > (interval.upper - interval.lower) / 4
    assert missed > binom.isf(1e-6, repeats, 0.1)


def test_chernoff_contains_clopper_pearson() -> None:
    """Relative entropy bounds the binomial tail from above, so its interval holds the exact one."""
    for n, k in ((50, 0), (50, 1), (50, 25), (50, 49), (50, 50), (10**6, 3)):
        values = np.zeros(n)
        values[:k] = 1
        ours = mean_interval(values, confidence=0.95, method=IntervalMethod.CHERNOFF)
        low = beta.ppf(0.025, k, n - k + 1) if k else 0.0
        high = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
        assert ours.lower <= low + 1e-15
        assert high <= ours.upper + 1e-15


def test_betting_agrees_with_the_plain_product() -> None:
    """A naive twin: at the ends, the gambler's capital, multiplied out one by one, is what rejects."""
    values = np.random.default_rng(3).beta(1, 9, size=400)
    interval = mean_interval(values, confidence=0.9, method=IntervalMethod.BETTING)

    def capital(m: float) -> float:
        total, seen, squares, product = 0.0, 0, 0.0, 1.0
        variance = 0.25
        for value in values:
            stake = min(math.sqrt(2 * math.log(20) / (len(values) * variance)), 0.75 / m)
            product *= 1 + stake * (value - m)
            total, seen = total + value, seen + 1
            squares += (value - (0.5 + total) / (seen + 1)) ** 2
            variance = (0.25 + squares) / (seen + 1)
        return product

    assert capital(interval.lower) == pytest.approx(20, rel=1e-4)
    assert capital(interval.lower * 0.99) > 20 > capital(interval.lower * 1.01)


def test_betting_looks_at_the_past_only() -> None:
    """The lower end from the first half does not change with the second half's values being drawn."""
    rng = np.random.default_rng(4)
    values = rng.random(100)
    changed = values.copy()
    changed[-1] = 1 - changed[-1]
    assert np.array_equal(predictable_bets(values, 3.0), predictable_bets(changed, 3.0))


@pytest.mark.parametrize(
    ("values", "confidence", "message"),
    [
        (np.zeros(1), 0.9, "at least two numbers"),
        (np.array([0.0, 1.5]), 0.9, "must be in"),
        (np.array([0.0, math.nan]), 0.9, "must be in"),
        (np.zeros(3), 1.0, "confidence must be in"),
    ],
)
def test_unusable_values_are_refused(values: FloatArray, confidence: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mean_interval(values, confidence=confidence)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 7.5, 30.0])
def test_tilts_draw_what_they_say(name: str, t: float) -> None:
    """The mean loss under the tilt is the slope of log M; false alarm 1e-8 a cell, by normal tails."""
    part, rng = PARTS[name], np.random.default_rng(5)
    tilt = part.tilt(t)
    losses = part.losses(tilt.sample(40_000, rng))
    step = 1e-4 * (1 + t)
    if t == 0:  # a one-sided slope, of second order
        slope = (4 * part.log_envelope(step) - part.log_envelope(2 * step) - 3 * part.log_envelope(0.0)) / (
            2 * step
        )
    else:
        slope = (part.log_envelope(t + step) - part.log_envelope(t - step)) / (2 * step)
    error = 6 * losses.std() / math.sqrt(len(losses)) + 1e-4 * (1 + abs(slope))
    assert losses.mean() == pytest.approx(slope, abs=error)


@pytest.mark.parametrize("name", PARTS)
def test_losses_are_differences_of_log_densities(name: str) -> None:
    part = PARTS[name]
    x = part.sample(1000, np.random.default_rng(6))
    assert part.losses(x) == pytest.approx(part.log_density_p(x) - part.log_density_q(x), abs=1e-9)
    assert part.swapped().swapped().log_envelope(2.0) == pytest.approx(part.log_envelope(2.0), rel=1e-12)


@pytest.mark.parametrize("t", [1, 2, 5, 20, 60])
def test_normalisers_of_subsampling_match_the_binomial_sum(t: int) -> None:
    """For an integer t and a single Gaussian Q, M(t) is a finite sum (Mironov et al. 2019, eq. 5)."""
    q, s = 0.1, 0.8
    k = np.arange(t + 2)
    terms = (
        np.log(comb(t + 1, k)) + k * math.log(q) + (t + 1 - k) * math.log1p(-q) + k * (k - 1) / (2 * s * s)
    )
    assert SKEWED.log_envelope(float(t)) == pytest.approx(float(logsumexp(terms)), rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("pair", [SKEWED.swapped(), WIDE, WIDE.swapped()])
@pytest.mark.parametrize("t", [0.5, 3.3])
def test_normalisers_of_mixtures_match_quadrature(pair: MixturePair, t: float) -> None:
    def f(x: float) -> float:
        at = np.array([x])
        return math.exp(float((1 + t) * pair.log_density_p(at)[0] - t * pair.log_density_q(at)[0]))

    pieces = [quad(f, low, low + 5, epsabs=0, epsrel=1e-12)[0] for low in range(-60, 60, 5)]
    assert pair.log_envelope(t) == pytest.approx(math.log(math.fsum(pieces)), abs=1e-10)


def test_normaliser_of_laplace_matches_quadrature() -> None:
    pair, t = LaplacePair(shift=(-0.7,), scale=0.8), 2.7

    def f(x: float) -> float:
        at = np.array([x])
        return math.exp(float((1 + t) * pair.log_density_p(at)[0] - t * pair.log_density_q(at)[0]))

    value = quad(f, -40, -0.7)[0] + quad(f, -0.7, 0)[0] + quad(f, 0, 40)[0]
    assert pair.log_envelope(t) == pytest.approx(math.log(value), abs=1e-9)


def test_staircase_lies_above_f() -> None:
    """On a fine grid, far finer than the cells; the negative control lowers the tops by 10 per cent."""
    lefts, width = WIDE._lattice(3.0, 0.02) or (np.zeros(0), 0.0)
    tops, _ = WIDE._log_tops(lefts, width, 3.0)
    inside = lefts[:, None] + width * np.linspace(0, 1, 21)
    values = WIDE._log_f(inside.ravel(), 3.0).reshape(inside.shape).max(axis=1)
    assert (values <= tops).all()
    assert not (values <= tops + math.log(0.9)).all()


@pytest.mark.parametrize("t", [0.2, 1.0, 4.0])
def test_coupled_envelopes_lie_above_the_tilted_density(t: float) -> None:
    """p * exp(t * L) <= M * g at many points, near P, Q and the tilt."""
    rng = np.random.default_rng(7)
    lopsided = VectorMixturePair(
        p_means=rng.normal(size=(4, 2)),
        p_weights=np.array([0.1, 0.2, 0.3, 0.4]),
        q_means=rng.normal(size=(3, 2)),
        q_weights=np.array([0.5, 0.3, 0.2]),
        standard_deviation=0.7,
    )
    for pair in (SHUFFLE, SHUFFLE.swapped(), lopsided):
        tilt = pair.tilt(t)
        x = np.concatenate([pair.sample(2000, rng), pair.swapped().sample(2000, rng), tilt.sample(2000, rng)])
        losses = pair.losses(x)
        assert (tilt.log_weights(x, losses) + t * losses <= tilt.log_envelope + 1e-9).all()
        assert pair is not lopsided or _mass(pair, tilt) == pytest.approx(1.0, abs=1e-9)


def _mass(pair: VectorMixturePair, tilt: Tilt) -> float:
    """Integral of g over the plane: p over the weight."""
    axis = np.arange(-25, 25, 0.1)
    x = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    return float(np.exp(pair.log_density_p(x) - tilt.log_weights(x, pair.losses(x))).sum() * 0.01)


def test_permuted_gaussians_are_permanents() -> None:
    a, b, s = (0.3, 1.1, -0.4), (0.0, 0.2, 0.0), 0.9
    pair = permuted_gaussians(a, b, standard_deviation=s)
    x = np.array([0.5, -1.0, 2.0])
    for values, ours in ((a, pair.log_density_p(x[None])), (b, pair.log_density_q(x[None]))):
        table = norm.pdf(x[:, None], np.array(values)[None, :], s)
        permanent = sum(
            math.prod(table[i, j] for i, j in enumerate(order)) for order in permutations(range(3))
        )
        assert ours[0] == pytest.approx(math.log(permanent / 6), abs=1e-12)
    with pytest.raises(InputError, match="1 to 6 numbers"):
        permuted_gaussians((0.0,) * 7, (0.0,) * 7, standard_deviation=1.0)


def test_random_directions_have_their_norm() -> None:
    rng = np.random.default_rng(8)
    assert math.hypot(*random_direction(7, rng, norm=2.0)) == pytest.approx(2.0)
    assert sum(map(abs, random_direction(7, rng, norm=2.0, order=1))) == pytest.approx(2.0)
    with pytest.raises(InputError, match="order must be 1 or 2"):
        random_direction(7, rng, order=3)


def test_pairs_follow_the_adjacency() -> None:
    """A record's contribution of 1 against nothing, or against -1."""
    rng = np.random.default_rng(9)
    for event, distances in (
        (Gaussian(noise_multiplier=2.0), (1.0, 2.0)),
        (Laplace(scale=2.0), (1.0, 2.0)),
    ):
        for adjacency, distance in zip((Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE), distances, strict=True):
            pair = pair_of(event, adjacency)
            # Either direction's Q is at 0, P a distance away from it: ten standard errors.
            assert pair.sample(40_000, rng).mean() == pytest.approx(distance, abs=0.15)
            assert pair.swapped().sample(40_000, rng).mean() == pytest.approx(-distance, abs=0.15)
    sampled = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.25)
    ((part, _),) = pair_of(sampled, Adjacency.REPLACE_ONE).parts
    assert isinstance(part, MixturePair)
    assert (part.p_means, part.p_weights) == ((0.0, 1.0), (0.75, 0.25))
    assert (part.q_means, part.q_weights) == ((0.0, -1.0), (0.75, 0.25))


def test_events_without_such_neighbours_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="replace-one neighbours only"):
        pair_of(RandomisedResponse(noise_parameter=0.5))
    with pytest.raises(UnsupportedError, match="no add-remove neighbours"):
        pair_of(ShuffledBatches(noise_multiplier=1.0, batches=3))
    with pytest.raises(InputError, match="direction must be one of forward, backward, got 'up'"):
        pair_of(Gaussian(noise_multiplier=1.0), direction="up")


def test_event_pairs_keep_their_order() -> None:
    event = GaussianMixturePair(
        p_means=(0.0, 1.0), p_weights=(0.5, 0.5), q_means=(0.0,), q_weights=(1.0,), standard_deviation=1.0
    )
    ((forward, _),) = pair_of(event).parts
    ((backward, _),) = pair_of(event, direction="backward").parts
    assert isinstance(forward, MixturePair)
    assert isinstance(backward, MixturePair)
    assert (forward.p_means, backward.p_means) == ((0.0, 1.0), (0.0,))
    half = Fraction(1, 2)
    pair = pair_of(FinitePair(p=(half, half, Fraction(0)), q=(half, Fraction(0), half)))
    assert pair.infinite_mass == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianPair(shift=(), standard_deviation=1.0), "shift must be finite numbers"),
        (
            lambda: GaussianPair(shift=(1.0,), standard_deviation=0.0),
            "standard_deviation must be finite and > 0",
        ),
        (lambda: LaplacePair(shift=(math.inf,), scale=1.0), "shift must be finite numbers"),
        (lambda: DiscretePair(log_p=(0.0,), log_q=(0.0, 0.0)), "as long as log_p"),
        (lambda: DiscretePair(log_p=(0.0,), log_q=(-1.0,)), "sum to 1"),
    ],
)
def test_unusable_pairs_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
