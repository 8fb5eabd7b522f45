"""Certified bounds of compositions: against closed forms, naive twins, laws, and their own error bounds."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from workbench.accounting import certified, exact
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import (
    RELATIVE_WIDTH,
    calibrate_noise_multiplier,
    delta_bounds,
    epsilon_bounds,
    tpr_bounds,
)
from workbench.accounting.events import (
    Composed,
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta
from workbench.accounting.grid.composition import Composition, Step
from workbench.accounting.grid.laws import (
    CellMasses,
    GaussianLaw,
    LaplaceLaw,
    LossLaw,
    MixtureLaw,
    ReplaceLaw,
    SubsampledLaw,
)
from workbench.accounting.grid.rounding import GridLaw, dominated, dominating
from workbench.accounting.grid.tilted import TiltedSum
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency


def overlap(one: Bounds, other: Bounds) -> bool:
    """True where both may hold the same truth."""
    return max(one.lower, other.lower) <= min(one.upper, other.upper)


def on_grid(law: LossLaw, count: int, delta: float) -> tuple[float, float]:
    """(lower, upper) epsilon of `count` steps by the grid, whatever closed form there is."""
    composition = Composition([Step(law=law, count=count)], tail=delta * 1e-7)
    saddles = [cumulants.at_delta(delta) for cumulants in composition.cumulants]

    def answer(total: TiltedSum, shift: float, start: float) -> float:
        if total.upper:
            return max(0.0, total.epsilon(delta, start, -shift) + shift)
        return max(0.0, total.epsilon(delta, start) - shift)

    return composition.refined(answer, saddles, max(saddle.mean for saddle in saddles), RELATIVE_WIDTH)


# The grid against closed forms that it does not use


@pytest.mark.parametrize(
    ("sigma", "count", "delta"),
    [
        (1.0, 1, 1e-5),
        (1.0, 100, 1e-10),
        (0.3, 10_000, 1e-5),
        (50.0, 10, 1e-3),
        (5.0, 1000, 1e-15),
        (20.0, 1, 0.03),
    ],
)
def test_composed_gaussians_enclose_the_closed_form(sigma: float, count: int, delta: float) -> None:
    lower, upper = on_grid(GaussianLaw(1 / sigma), count, delta)
    truth = epsilon_of_delta(math.sqrt(count) / sigma, delta)
    assert lower <= truth <= upper
    assert upper - lower <= RELATIVE_WIDTH * max(lower, 1e-9)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(
    ("sigma", "q", "delta"),
    [
        (1.0, 0.01, 1e-5),
        (0.5, 0.3, 1e-10),
        (0.3, 1e-4, 1e-8),
        (3.0, 0.9, 1e-15),
        (50.0, 0.5, 1e-4),
        (2.0, 1e-3, 1e-6),
    ],
)
def test_one_subsampled_step_encloses_the_ball_arithmetic(
    sigma: float, q: float, delta: float, adjacency: Adjacency
) -> None:
    law = SubsampledLaw(sigma, q) if adjacency is Adjacency.ADD_REMOVE else ReplaceLaw(sigma, q)
    lower, upper = on_grid(law, 1, delta)
    event = SubsampledGaussian(noise_multiplier=sigma, sampling_probability=q)
    truth = exact.epsilon_bounds(event, delta, adjacency)
    assert lower <= truth.upper
    assert truth.lower <= upper
    assert upper - lower <= 2 * RELATIVE_WIDTH * max(lower, 1e-7)


def test_composed_randomised_response_encloses_the_exact_count() -> None:
    response = RandomisedResponse(noise_parameter=0.5, categories=3)
    weak = Gaussian(noise_multiplier=1e4)
    both = Composed(events=((response, 20), (weak, 1)))
    truth = exact.epsilon_bounds(Composed(events=((response, 20),)), 1e-6, Adjacency.REPLACE_ONE)
    found = epsilon_bounds(both, 1e-6, adjacency=Adjacency.REPLACE_ONE)
    # The weak Gaussian adds a little: its own epsilon at a hundredth of delta is far below 1e-2.
    assert truth.lower <= found.upper
    assert found.lower <= truth.upper + 1e-2
    assert found.relative_width < 0.02


def laplace_delta_by_quadrature(c: float, count: int, epsilon: float) -> float:
    """delta of `count` Laplace releases: a twin by brute-force convolution of a fine midpoint law."""
    cells = 4000
    edges = np.linspace(-c, c, cells + 1)
    below = 0.5 * np.exp((edges - c) / 2)
    mass = np.zeros(2 * cells + 1)
    mass[0], mass[-1] = below[0], 0.5
    mass[1::2] = np.diff(below)
    total = np.ones(1)
    for _ in range(count):
        total = np.convolve(total, mass)
    losses = -count * c + np.arange(len(total)) * (c / cells)
    above = losses > epsilon
    return float(total[above] @ -np.expm1(epsilon - losses[above]))


@pytest.mark.parametrize(("scale", "count", "epsilon"), [(1.0, 2, 1.0), (2.0, 3, 1.2), (4.0, 3, 0.1)])
def test_composed_laplace_encloses_a_naive_convolution(scale: float, count: int, epsilon: float) -> None:
    found = delta_bounds(Composed(events=((Laplace(scale=scale), count),)), epsilon)
    twin = laplace_delta_by_quadrature(1 / scale, count, epsilon)
    assert found.lower * (1 - 1e-5) <= twin <= found.upper * (1 + 1e-5)
    assert found.relative_width < 2e-3


def test_laplace_composed_reaches_its_pure_epsilon() -> None:
    event = Composed(events=((Laplace(scale=2.0), 4),))
    found = epsilon_bounds(event, 1e-12)
    assert 1.99 < found.lower <= found.upper <= 2.001
    assert delta_bounds(event, 2.001).upper == pytest.approx(0.0, abs=1e-12)


def test_two_steps_enclose_a_naive_two_dimensional_sum() -> None:
    sigma, q, epsilon = 0.8, 0.2, 1.0
    x = np.linspace(-8 * sigma, 1 + 8 * sigma, 3001)
    pace = x[1] - x[0]
    base = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    ratio = 1 - q + q * np.exp((x - 0.5) / sigma**2)
    p, q_density = base * ratio * pace, base * pace
    forward = np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(q_density, q_density), 0).sum()
    backward = np.maximum(np.outer(q_density, q_density) - math.exp(epsilon) * np.outer(p, p), 0).sum()
    found = delta_bounds(gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=2), epsilon)
    assert forward > backward
    assert found.lower * (1 - 1e-4) <= forward <= found.upper * (1 + 1e-4)


def test_mixtures_that_are_a_subsampled_gaussian_get_its_bounds() -> None:
    pair = GaussianMixturePair(
        p_means=(0.0, 1.0), p_weights=(0.9, 0.1), q_means=(0.0,), q_weights=(1.0,), standard_deviation=1.5
    )
    one = epsilon_bounds(Composed(events=((pair, 50),)), 1e-6)
    other = epsilon_bounds(gaussian_run(noise_multiplier=1.5, sampling_probability=0.1, steps=50), 1e-6)
    assert overlap(one, other)
    assert one.relative_width < 2e-3


def test_mixtures_without_a_monotone_ratio_are_refused_in_compositions() -> None:
    pair = GaussianMixturePair(
        p_means=(-1.0, 1.0), p_weights=(0.5, 0.5), q_means=(0.0,), q_weights=(1.0,), standard_deviation=1.0
    )
    with pytest.raises(UnsupportedError, match="monotone"):
        epsilon_bounds(Composed(events=((pair, 2),)), 1e-5)


# One step on a grid: both curves against the true one


def curve(law: GridLaw, h: float, u: np.ndarray) -> np.ndarray:
    """sum_j p_j (1 - u / r_j)_+ plus the infinite mass."""
    ratio = np.exp(law.offset + (law.first + np.arange(len(law.mass))) * h)
    return np.array([law.mass @ np.maximum(1 - at / ratio, 0) for at in u]) + law.infinite


def true_curve(sigma: float, q: float, u: np.ndarray, *, mirrored: bool) -> np.ndarray:
    """H(u) of the subsampled Gaussian, in either order."""
    level = 1 / u if mirrored else u
    with np.errstate(invalid="ignore", divide="ignore"):
        x = sigma**2 * np.log(np.maximum((level - 1 + q) / q, 0)) + 0.5
    if mirrored:
        mixture = (1 - q) * ndtr(x / sigma) + q * ndtr((x - 1) / sigma)
        return np.maximum(ndtr(x / sigma) - u * mixture, 0)
    mixture = (1 - q) * ndtr(-x / sigma) + q * ndtr(-(x - 1) / sigma)
    return mixture - u * ndtr(-x / sigma)


def cells_of(law: LossLaw, h: float, tail: float) -> CellMasses:
    """A step's cells as the composition lays them out."""
    offset = law.offset(h)
    low, high = law.span(tail)
    first, last = math.floor((low - offset) / h - 1e-6), math.ceil((high - offset) / h + 1e-6) + 1
    return law.cells(h, 2 * first, 2 * (last - first), offset)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("sigma", "q", "h"),
    [(1, 0.01, 1e-3), (1, 0.01, 0.05), (0.3, 1e-4, 0.01), (2, 0.9, 0.05), (50, 1e-4, 1e-6), (0.5, 0.1, 0.3)],
)
def test_grid_curves_lie_on_their_sides(sigma: float, q: float, h: float, *, mirrored: bool) -> None:
    cells = cells_of(SubsampledLaw(sigma, q), h, 1e-12)
    cells = cells.mirrored() if mirrored else cells
    low, high = SubsampledLaw(sigma, q).span(1e-12)
    losses = np.linspace(low, high, 801)
    u = np.exp(-losses[::-1] if mirrored else losses)
    truth = true_curve(sigma, q, u, mirrored=mirrored)
    below, above = curve(dominated(cells, h), h, u), curve(dominating(cells, h), h, u)
    rounding = 1e-14 * (1 + u)
    assert np.all(below <= truth + rounding)
    assert np.all(above >= truth - rounding)
    # Second order in h: neither side may be far off either.
    assert np.max(above - truth) <= h
    assert np.max(truth - below) <= 2 * h


def test_a_law_that_is_too_informative_is_noticed() -> None:
    """Negative control: shifting the dominated law up by one cell puts it above the true curve."""
    sigma, q, h = 1.0, 0.01, 1e-3
    cells = cells_of(SubsampledLaw(sigma, q), h, 1e-12)
    law = dominated(cells, h)
    wrong = GridLaw(offset=law.offset + h, first=law.first, mass=law.mass, infinite=law.infinite)
    u = np.exp(np.linspace(-0.005, 1.0, 101))
    assert np.any(curve(wrong, h, u) > true_curve(sigma, q, u, mirrored=False) + 1e-14)


# Laws of composition


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    sigma=st.floats(0.5, 20),
    q=st.floats(1e-3, 0.9),
    steps=st.integers(2, 200),
    log_delta=st.floats(-12, -3),
)
def test_more_noise_fewer_steps_larger_delta_never_raise_epsilon(
    sigma: float, q: float, steps: int, log_delta: float
) -> None:
    delta = 10**log_delta
    base = epsilon_bounds(gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps), delta)
    quieter = epsilon_bounds(
        gaussian_run(noise_multiplier=1.1 * sigma, sampling_probability=q, steps=steps), delta
    )
    longer = epsilon_bounds(
        gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps + 1), delta
    )
    looser = epsilon_bounds(
        gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps), 2 * delta
    )
    assert quieter.lower <= base.upper
    assert looser.lower <= base.upper
    assert base.lower <= longer.upper
    replaced = epsilon_bounds(
        gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps),
        delta,
        adjacency=Adjacency.REPLACE_ONE,
    )
    assert base.lower <= replaced.upper


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    sigma=st.floats(0.5, 10), q=st.floats(1e-3, 0.9), steps=st.integers(2, 300), log_delta=st.floats(-12, -3)
)
def test_delta_and_epsilon_are_inverse(sigma: float, q: float, steps: int, log_delta: float) -> None:
    run = gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps)
    delta = 10**log_delta
    found = epsilon_bounds(run, delta)
    if found.lower > 1e-6:
        assert delta_bounds(run, found.upper).lower <= delta * (1 + 1e-9)
        assert delta_bounds(run, found.lower).upper >= delta * (1 - 1e-9)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_n_fold_is_n_parts_in_any_order(adjacency: Adjacency) -> None:
    a = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.1)
    b = SubsampledGaussian(noise_multiplier=2.0, sampling_probability=0.5)
    c, d = Laplace(scale=10.0), Gaussian(noise_multiplier=8.0)
    parts: tuple[tuple[Event, int], ...] = ((a, 3), (b, 2), (c, 1), (d, 2))
    singles = tuple((event, 1) for event, count in parts for _ in range(count))
    answers = [
        epsilon_bounds(Composed(events=order), 1e-6, adjacency=adjacency)
        for order in (parts, parts[::-1], singles, ((Composed(events=parts), 1),))
    ]
    for one, other in itertools.pairwise(answers):
        assert (one.lower, one.upper) == (other.lower, other.upper)
    assert answers[0].relative_width < 0.01


def test_merged_gaussians_are_their_closed_form() -> None:
    parts = Composed(events=((Gaussian(noise_multiplier=2.0), 3), (Gaussian(noise_multiplier=4.0), 4)))
    found = delta_bounds(parts, 1.0)
    assert found.lower == pytest.approx(delta_of_epsilon(1.0, 1.0), rel=1e-12)
    assert found.relative_width < 1e-12
    assert found.rigorous


def test_removing_a_record_is_worse_than_adding_one() -> None:
    law, delta = SubsampledLaw(1.0, 0.05), 1e-6
    composition = Composition([Step(law=law, count=100)], tail=delta * 1e-7)
    saddles = [cumulants.at_delta(delta) for cumulants in composition.cumulants]
    layout = composition.laid_out(1e-3)

    def epsilon(total: TiltedSum, shift: float, start: float) -> float:
        return total.epsilon(delta, start)

    forward = composition.bound(epsilon, saddles[0], layout, mirrored=False, upper=False)
    assert composition.bound(epsilon, saddles[1], layout, mirrored=True, upper=True) < forward


def test_a_finite_pair_with_certain_outputs_keeps_its_infinite_losses() -> None:
    pair = FinitePair(
        p=(Fraction(9, 10), Fraction(1, 10), Fraction(0)), q=(Fraction(9, 10), Fraction(0), Fraction(1, 10))
    )
    noisy = Composed(
        events=((pair, 2), (SubsampledGaussian(noise_multiplier=5.0, sampling_probability=0.5), 1))
    )
    found = delta_bounds(noisy, 5.0)
    assert found.lower == pytest.approx(0.19, rel=1e-3)
    assert found.upper == pytest.approx(0.19, rel=1e-3)
    assert epsilon_bounds(noisy, 0.1).upper == math.inf


# Trade-off curves


def test_trade_off_of_composed_gaussians_encloses_the_closed_form() -> None:
    # An almost certain sample: too little short of q = 1 to matter, enough to be summed on the grid.
    run = gaussian_run(noise_multiplier=4.0, sampling_probability=1 - 1e-13, steps=16)
    for fpr in (1e-6, 1e-3, 0.1, 0.6):
        found = tpr_bounds(run, fpr)
        truth = float(ndtr(ndtri(fpr) + 1.0))
        assert found.method == certified.METHOD
        assert found.lower <= truth * (1 + 1e-9)
        assert truth <= found.upper * (1 + 1e-9)
        assert found.relative_width < 2e-3


def test_trade_off_is_above_chance_and_falls_with_noise() -> None:
    found = [
        tpr_bounds(gaussian_run(noise_multiplier=s, sampling_probability=0.1, steps=50), 0.01)
        for s in (0.7, 1.0, 3.0)
    ]
    assert all(one.lower > two.upper for one, two in itertools.pairwise(found))
    assert found[-1].lower > 0.01


# Calibration


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(
    ("epsilon", "delta", "q", "steps"),
    [(1.0, 1e-5, 0.01, 1000), (8.0, 1e-6, 1.0, 10), (0.1, 1e-8, 0.05, 100)],
)
def test_calibration_lands_on_the_private_side(
    epsilon: float, delta: float, q: float, steps: int, adjacency: Adjacency
) -> None:
    noise = calibrate_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sampling_probability=q, steps=steps, adjacency=adjacency
    )
    enough = epsilon_bounds(
        gaussian_run(noise_multiplier=noise, sampling_probability=q, steps=steps), delta, adjacency=adjacency
    )
    less = epsilon_bounds(
        gaussian_run(noise_multiplier=0.997 * noise, sampling_probability=q, steps=steps),
        delta,
        adjacency=adjacency,
    )
    assert enough.upper <= epsilon < less.upper
    assert enough.upper > 0.99 * epsilon


# The goal grid, and what is refused


def corners() -> list[tuple[float, float, int, float]]:
    return list(itertools.product((0.3, 1.0, 50.0), (1e-4, 0.01, 0.5), (10, 1000), (1e-3, 1e-5, 1e-10)))


@pytest.mark.slow
def test_bounds_are_narrow_and_consistent_over_the_goal_grid() -> None:
    wide = []
    for sigma, q, steps, delta in corners():
        found = epsilon_bounds(
            gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps), delta
        )
        assert found.rigorous
        if found.upper > 0 and found.relative_width > RELATIVE_WIDTH:
            wide.append((sigma, q, steps, delta, found.relative_width))
    assert not wide


def test_tiny_deltas_are_valid_and_monotone() -> None:
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
    found = [epsilon_bounds(run, 10.0**-k) for k in (10, 12, 14, 15, 18)]
    assert all(one.upper < two.lower for one, two in itertools.pairwise(found))
    assert all(one.upper < math.inf for one in found)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match=r"delta must be in \(0, 1\), got"):
        epsilon_bounds(gaussian_run(noise_multiplier=1.0, sampling_probability=0.1, steps=2), delta)


def test_randomised_response_has_no_membership_to_hide() -> None:
    event = Composed(events=((RandomisedResponse(noise_parameter=0.5), 2), (Laplace(scale=1.0), 2)))
    with pytest.raises(UnsupportedError, match="replace-one"):
        epsilon_bounds(event, 1e-5)


def test_shuffled_batches_say_where_they_are_bounded() -> None:
    event = ShuffledBatches(noise_multiplier=1.0, batches=10)
    with pytest.raises(UnsupportedError, match="under zero-out and replace-one"):
        epsilon_bounds(event, 1e-5)
    assert epsilon_bounds(event, 1e-5, adjacency=Adjacency.ZERO_OUT).lower > 0


def test_bounds_say_what_they_rest_on() -> None:
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.1, steps=10)
    found = epsilon_bounds(run, 1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert any("IEEE" in line for line in found.assumptions)
    assert certified.METHOD in found.describe()


def test_laws_mirror_onto_themselves() -> None:
    for law in (LaplaceLaw(0.5), SubsampledLaw(1.0, 0.2), MixtureLaw(((1.0, 1.0),), ((1.0, 0.0),), 1.0)):
        cells = cells_of(law, 0.01, 1e-12)
        again = cells.mirrored().mirrored()
        assert again.first == cells.first
        assert np.array_equal(again.p, cells.p)
        total = cells.p.sum() + cells.below[0] + cells.above[0]
        assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta", "width"),
    [
        (0.7736, 2.04e-4, 64_136, 1.5e-7, 1e-3),
        pytest.param(0.4618, 1.48e-5, 34_643, 9.7e-4, 4e-3, marks=pytest.mark.slow),
    ],
)
def test_a_grid_between_the_last_and_the_finest_is_tried(
    noise: float, rate: float, steps: int, delta: float, width: float
) -> None:
    """Where the next width would be beyond the finest grid; another library's upper end agrees."""
    from dp_accounting.pld import privacy_loss_distribution

    run = gaussian_run(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    bounds = epsilon_bounds(run, delta)
    assert bounds.upper - bounds.lower <= width * bounds.upper
    peer = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-4
    )
    assert bounds.lower <= peer.self_compose(steps).get_epsilon_for_delta(delta) * (1 + 1e-9)
