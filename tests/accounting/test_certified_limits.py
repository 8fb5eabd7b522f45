"""Certified bounds at their limits: rounding errors, exact sums in any window, extreme questions."""

from __future__ import annotations

import doctest
import math
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from flint import arb, ctx

from workbench.accounting import certified, exact, subsampled_gaussian
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds, tpr_bounds
from workbench.accounting.events import (
    Composed,
    Event,
    FinitePair,
    GaussianMixturePair,
    Laplace,
    SubsampledGaussian,
)
from workbench.accounting.events import gaussian_run as run_of
from workbench.accounting.grid.composition import Composition, Step
from workbench.accounting.grid.laws import (
    ROUND_OFF,
    AtomicLaw,
    ReplaceLaw,
    SubsampledLaw,
    _masses_of,
)
from workbench.accounting.grid.laws_of_events import finite_law
from workbench.accounting.grid.rounding import GridLaw, _without_negative, dominated, dominating
from workbench.accounting.grid.tilted import TiltedSum, Window
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Direction

# The rounding errors that the bounds allow for


def test_normal_masses_keep_their_error_bounds() -> None:
    rng = np.random.default_rng(1)
    x = np.sort(np.concatenate([rng.normal(0, 3, 400), rng.uniform(-25, 25, 400)]))
    masses, errors = _masses_of(x, 0.7, 0.9)
    before = ctx.prec
    ctx.prec = 200
    try:
        t = [(arb(float(v)) - arb(0.7)) / arb(0.9) / arb(2).sqrt() for v in x]
        tails = [v.erfc() / 2 for v in t]
        lows = [(-v).erfc() / 2 for v in t]
        for k in range(len(x) - 1):
            truth = tails[k] - tails[k + 1] if x[k] > 0.7 else lows[k + 1] - lows[k]
            assert abs(float(truth - arb(float(masses[k + 1])))) <= errors[k + 1]
        assert abs(float(lows[0] - arb(float(masses[0])))) <= errors[0]
        assert abs(float(tails[-1] - arb(float(masses[-1])))) <= errors[-1]
    finally:
        ctx.prec = before


@pytest.mark.parametrize(
    "law",
    [
        SubsampledLaw(1.0, 0.01),
        SubsampledLaw(0.3, 1e-4),
        SubsampledLaw(50.0, 0.5),
        ReplaceLaw(0.7, 0.2),
        ReplaceLaw(20.0, 1e-3),
        SubsampledLaw(0.05, 1e-3),
        SubsampledLaw(1.0, 1 - 1e-9),
        SubsampledLaw(1e5, 0.1),
        SubsampledLaw(0.1, 1e-40),
        ReplaceLaw(0.08, 1e-3),
        ReplaceLaw(0.05, 0.5),
        ReplaceLaw(0.2, 1 - 1e-9),
        ReplaceLaw(1e4, 1e-6),
    ],
)
def test_thresholds_are_where_eta_says(law: SubsampledLaw | ReplaceLaw) -> None:
    low, high = law.span(1e-14)
    losses = np.linspace(max(low * (1 - 1e-9), -650), min(high, 650), 301)[1:-1]
    x, eta = law.thresholds(losses)
    sigma, q = law._sigma, law._rate
    before = ctx.prec
    ctx.prec = 200
    try:
        variance, rate = arb(sigma) ** 2, arb(q)
        for at, nominal in zip(x, losses, strict=True):
            up = 1 - rate + rate * ((arb(float(at)) - arb("0.5")) / variance).exp()
            down = arb(1)
            if isinstance(law, ReplaceLaw):
                down = 1 - rate + rate * ((-arb(float(at)) - arb("0.5")) / variance).exp()
            assert abs(float((up / down).log() - arb(float(nominal)))) <= eta
    finally:
        ctx.prec = before
    assert eta < 1e-11


def test_elementary_functions_are_as_exact_as_assumed() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-40, 40, 300), rng.normal(0, 1e-4, 300)])
    functions = [
        (np.exp, lambda a: a.exp(), x),
        (np.expm1, lambda a: a.exp() - 1, x),
        (np.log1p, lambda a: (1 + a).log(), np.abs(x)),
        (np.arcsinh, lambda a: a.asinh(), x),
        (np.sinh, lambda a: a.sinh(), x),
    ]
    before = ctx.prec
    ctx.prec = 200
    try:
        for fast, slow, points in functions:
            for point, value in zip(points, fast(points), strict=True):
                truth = slow(arb(float(point)))
                assert abs(float((arb(float(value)) - truth) / truth)) <= 4 * ROUND_OFF
    finally:
        ctx.prec = before


@pytest.mark.parametrize("distance", [Fraction(1, 10**12), Fraction(1, 10**7), Fraction(1, 3), Fraction(5)])
def test_losses_of_atoms_are_relatively_exact(distance: Fraction) -> None:
    p, q = Fraction(1, 10**9) * (1 + distance), Fraction(1, 10**9)
    law = finite_law(FinitePair(p=(p, 1 - p), q=(q, 1 - q)), lattice=False)
    before = ctx.prec
    ctx.prec = 200
    try:
        for found, ratio in zip(law.span(0.0), sorted([p / q, (1 - p) / (1 - q)]), strict=True):
            truth = (arb(ratio.numerator) / ratio.denominator).log()
            assert abs(float((arb(found) - truth) / truth)) <= 8 * ROUND_OFF
    finally:
        ctx.prec = before


def test_masses_of_many_atoms_keep_their_error_bounds() -> None:
    share = np.full(10**5, 1e-5)
    cells = AtomicLaw(np.linspace(0.1, 0.2, 10**5), share, share).cells(1.0, 0, 2)
    assert abs(cells.p[0] - math.fsum(share)) <= cells.p_error[0]


def test_chords_over_negative_kinks_never_raise_the_curve() -> None:
    generator = np.random.default_rng(3)
    for _ in range(300):
        h = float(10 ** generator.uniform(-7, 0))
        mass = generator.exponential(1.0, 8) * generator.choice([1.0, 1.0, -0.4], 8)
        mass[-1] = 9.0
        after = _without_negative(mass, h)
        assert np.all(after >= 0)
        ratios = np.exp(np.arange(8) * np.longdouble(h))
        for u in ratios[:-1]:
            hinges = np.maximum(1 - u / ratios, 0)
            assert (after * (1 - 1e-13)) @ hinges <= mass @ hinges


# Any tilt, any window


def tail_of_coins(count: int, epsilon: int) -> Fraction:
    """delta of `count` fair coins of losses 0 and log 2 at `epsilon` log 2, exactly."""
    weights = (
        math.comb(count, k) * (1 - Fraction(2) ** (epsilon - k)) for k in range(epsilon + 1, count + 1)
    )
    return sum(weights, Fraction(0)) / 2**count


@pytest.mark.thinned
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("theta", [0.0, 0.3, 2.0, 8.0])
@pytest.mark.parametrize("centre", [-1e4, 0.0, 300.0, 1e4])
def test_any_tilt_gives_valid_bounds(theta: float, centre: float, *, precise: bool) -> None:
    count, h = 1000, math.log(2)
    coin = GridLaw(offset=0.0, first=0, mass=np.array([0.5, 0.5]), infinite=0.0)
    window = Window(theta=theta, centre=centre, lambda_low=-0.2, lambda_high=0.2)
    bounds = [TiltedSum([(coin, count)], h, window, upper=upper, precise=precise) for upper in (False, True)]
    for k in (0, 300, 499, 500, 600, 800, 990, 999, 1000):
        truth = float(tail_of_coins(count, k))
        # Between the losses delta is known as well as at them; the epsilons themselves are rounded.
        assert bounds[0].delta(k * h * (1 + 1e-13)) <= truth * (1 + 1e-9)
        assert bounds[1].delta(k * h * (1 - 1e-13)) >= truth * (1 - 1e-9)
    for fpr in (1e-12, 1e-3, 0.3, 0.9):
        assert fpr <= bounds[0].tpr(fpr) <= bounds[1].tpr(fpr) <= 1 + 1e-9


# Extreme questions: an answer or a refusal


def answer(event: Event, question: str, at: float, adjacency: Adjacency) -> Bounds | None:
    """The bounds; None where they are refused."""
    asked = {"epsilon": epsilon_bounds, "delta": delta_bounds, "tpr": tpr_bounds}[question]
    try:
        return asked(event, at, adjacency=adjacency)
    except UnsupportedError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(
    ("sigma", "q", "steps"),
    [(0.03, 0.5, 10), (0.1, 1e-3, 100), (1, 1e-12, 1000), (1e6, 0.1, 10), (1, 1 - 1e-15, 9)],
)
def test_extreme_questions_are_answered_or_refused(
    sigma: float, q: float, steps: int, adjacency: Adjacency
) -> None:
    run = run_of(noise_multiplier=sigma, sampling_probability=q, steps=steps)
    questions = [("epsilon", 1e-9), ("epsilon", 1 - 1e-15), ("delta", 0.0), ("delta", 1e6), ("tpr", 0.999999)]
    for question, at in questions:
        found = answer(run, question, at, adjacency)
        assert found is None or 0 <= found.lower <= found.upper


@pytest.mark.parametrize(
    ("sigma", "q", "question", "at"),
    [
        (0.1, 1e-3, "epsilon", 1 - 1e-15),
        (0.1, 1e-3, "tpr", 1e-15),
        (1.0, 1 - 1e-15, "tpr", 0.5),
        (1.0, 1e-260, "epsilon", 1e-5),
    ],
)
def test_few_extreme_questions_are_answered_or_refused(
    sigma: float, q: float, question: str, at: float
) -> None:
    run = run_of(noise_multiplier=sigma, sampling_probability=q, steps=10)
    found = answer(run, question, at, Adjacency.ADD_REMOVE)
    assert found is None or 0 <= found.lower <= found.upper


def test_losses_beyond_the_range_of_exp_keep_the_bounds_valid() -> None:
    step = SubsampledGaussian(noise_multiplier=0.03, sampling_probability=0.01)
    composition = Composition([Step(law=SubsampledLaw(0.03, 0.01), count=1)], tail=1e-10)
    for epsilon in (5.0, 500.0, 600.0):
        truth = exact.delta_bounds(step, epsilon)
        saddles = [cumulants.at_epsilon(epsilon) for cumulants in composition.cumulants]

        def delta(total: TiltedSum, shift: float, start: float, at: float = epsilon) -> float:
            return total.delta(at - shift if total.upper else at + shift)

        lower, upper = composition.refined(delta, saddles, epsilon, 1e-3, at=lambda _, at=epsilon: at)
        assert 0.5 * truth.lower < lower <= truth.upper
        assert truth.lower <= upper


def test_infinite_losses_of_more_mass_than_delta_make_epsilon_infinite() -> None:
    third = Fraction(1, 3)
    pair = FinitePair(p=(third, 2 * third, Fraction(0)), q=(third, Fraction(0), 2 * third))
    noisy = Composed(
        events=((pair, 1), (SubsampledGaussian(noise_multiplier=5.0, sampling_probability=0.5), 2))
    )
    for delta in (1e-9, 0.5, 0.6):
        found = epsilon_bounds(noisy, delta)
        assert found.lower == found.upper == math.inf
    assert epsilon_bounds(noisy, 0.7).upper < math.inf


def test_a_constant_finite_loss_is_summed() -> None:
    half = Fraction(1, 2)
    pair = FinitePair(p=(half, half, Fraction(0)), q=(half / 2, Fraction(0), 3 * half / 2))
    law = finite_law(pair, lattice=False)
    composition = Composition([Step(law=law, count=3)], tail=1e-12)
    layout = composition.laid_out(composition.first_width(composition.cumulants[0].saddle(0.0), 1.0, 1e-3))

    def delta(total: TiltedSum, shift: float, start: float) -> float:
        return total.delta(1.0 - shift if total.upper else 1.0 + shift)

    at = composition.cumulants[0].saddle(0.0)
    lower, upper = (
        composition.bound(delta, at, layout, mirrored=False, upper=side) for side in (False, True)
    )
    truth = exact.delta_bounds(Composed(events=((pair, 3),)), 1.0)
    assert lower <= truth.upper
    assert truth.lower <= upper


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (FinitePair(p=(Fraction(1), Fraction(0)), q=(Fraction(0), Fraction(1))), "without a common output"),
        (
            FinitePair(
                p=(Fraction(1, 10**400), 1 - Fraction(1, 10**400)), q=(Fraction(1, 2), Fraction(1, 2))
            ),
            "too unlike",
        ),
    ],
)
def test_finite_pairs_that_no_grid_holds_are_refused(pair: FinitePair, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        epsilon_bounds(Composed(events=((pair, 1), (Laplace(scale=1.0), 1))), 1e-3)


@pytest.mark.slow
def test_weak_laplace_noise_has_a_largest_loss_at_any_delta() -> None:
    found = epsilon_bounds(Composed(events=((Laplace(scale=1e3), 3),)), 1e-25)
    assert found.upper <= 3.001e-3


def test_means_too_far_apart_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="standard deviations apart"):
        delta_bounds(run_of(noise_multiplier=1e-9, sampling_probability=0.1, steps=2), 1.0)


def test_a_finer_grid_that_does_not_help_once_is_no_reason_to_stop() -> None:
    run = run_of(noise_multiplier=0.9756044253103786, sampling_probability=0.003960700543849788, steps=5)
    assert epsilon_bounds(run, 2.4485917063747286e-07).relative_width < 1e-3


@pytest.mark.slow
def test_nearly_equal_mixtures_lose_nearly_nothing() -> None:
    pair = GaussianMixturePair(
        p_means=(0.0, 1.0),
        p_weights=(0.5, 0.5),
        q_means=(0.0, 1.0),
        q_weights=(0.5 + 1e-9, 0.5 - 1e-9),
        standard_deviation=1.0,
    )
    found = delta_bounds(Composed(events=((pair, 10),)), 0.0)
    assert 0 < found.lower <= found.upper < 1e-7


@pytest.mark.parametrize("module", [certified, exact, subsampled_gaussian])
def test_doctest(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("sigma", "q", "steps"), [(1e-300, 1.0, 1), (1e-300, 0.5, 10), (1.0, 0.1, 10**18), (1e300, 0.1, 10)]
)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_numbers_beyond_float64_are_refused_in_one_line(
    sigma: float, q: float, steps: int, adjacency: Adjacency
) -> None:
    run = run_of(noise_multiplier=sigma, sampling_probability=q, steps=steps)
    with pytest.raises(UnsupportedError, match="out of the range"):
        epsilon_bounds(run, 1e-5, adjacency=adjacency)


# Losses that are tiny, or looked at far out


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("mirrored", [False, True])
def test_grids_of_losses_of_a_billionth_hold_one_step_and_are_narrow(
    adjacency: Adjacency, mirrored: bool
) -> None:
    """The curves on the grid, around that of one step in ball arithmetic."""
    sigma, q = 10.0, 1e-7
    law = SubsampledLaw(sigma, q) if adjacency is Adjacency.ADD_REMOVE else ReplaceLaw(sigma, q)
    low, high = law.span(1e-20)
    h = 2e-10
    first = math.floor(low / h)
    cells = law.cells(h, 2 * first, 2 * (math.ceil(high / h) - first), law.offset(h))
    cells = cells.mirrored() if mirrored else cells
    for epsilon in (1e-9, 1e-8, 3e-8):
        step = SubsampledGaussian(noise_multiplier=sigma, sampling_probability=q)
        direction = Direction.BOTH
        if adjacency is Adjacency.ADD_REMOVE:
            direction = Direction.ADD if mirrored else Direction.REMOVE
        truth = delta_bounds(step, epsilon, adjacency=adjacency, direction=direction)
        curves = []
        for grid in (dominated(cells, h), dominating(cells, h)):
            losses = grid.offset + (grid.first + np.arange(len(grid.mass))) * h
            gains = -np.expm1(epsilon - losses[losses > epsilon])
            curves.append(float(grid.mass[losses > epsilon] @ gains) + grid.infinite)
        assert curves[0] <= truth.upper * (1 + 1e-12)
        assert curves[1] >= truth.lower * (1 - 1e-12)
        assert curves[1] - curves[0] < 0.02 * truth.lower + 1e-18


@pytest.mark.slow
def test_tiny_losses_add_up_over_millions_of_steps() -> None:
    run = run_of(noise_multiplier=10.0, sampling_probability=1e-7, steps=10**7)
    bounds = epsilon_bounds(run, 1e-15)
    assert bounds.relative_width < 1e-3


@pytest.mark.parametrize("fpr", [1e-12, 1e-9])
def test_true_positive_rates_are_narrow_far_out(fpr: float) -> None:
    """By what delta and epsilon say at the same place, and not by the round-off of a rate of 1."""
    run = run_of(noise_multiplier=2.0, sampling_probability=0.1, steps=100)
    bounds = tpr_bounds(run, fpr)
    assert bounds.relative_width < 5e-3
    assert all(
        bounds.lower <= (math.exp(epsilon) * fpr + delta_bounds(run, epsilon).upper) * (1 + 1e-9)
        for epsilon in (2.0, 3.0, 4.0, 5.0)
    )
