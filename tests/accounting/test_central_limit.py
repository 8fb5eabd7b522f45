"""Bounds on very many steps: against exact counts, closed forms and the grids, and where they are needed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, ctx
from scipy.stats import binom

from workbench.accounting import (
    Composed,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SubsampledLaplace,
    delta,
    epsilon,
    tpr,
)
from workbench.accounting.balls.central_limit import PRECISION, Atoms, Part, Ramp, SampledRamp, Tilted
from workbench.accounting.events import Event
from workbench.accounting.grid import many_steps
from workbench.accounting.grid.composition import Composition
from workbench.accounting.grid.laws_of_events import counted, steps_of
from workbench.accounting.grid.questions import EpsilonQuestion, on_grid
from workbench.interfaces import Adjacency, Direction

SPINS = Fraction(11, 20)
STEPS = 4000


def tilted(part: Part, theta: float, guess: tuple[float, float], *, mirrored: bool = False) -> Tilted:
    found = Tilted.of([(part, STEPS)], arb(0), theta, [guess], mirrored=mirrored)
    assert found is not None
    return found


def of_spins(loss: float, *, under_q: bool) -> float:
    """The probability of a sum above `loss` of +-log(p / (1 - p)), counted."""
    unit = math.log(SPINS / (1 - SPINS))
    fewest = math.floor((loss / unit + STEPS) / 2) + 1
    return float(binom.sf(fewest - 1, STEPS, float(1 - SPINS if under_q else SPINS)))


@pytest.mark.parametrize("theta", [0.0, 0.2, 1.5])
def test_probabilities_and_deltas_of_coins_are_within_the_bounds(theta: float) -> None:
    with ctx.workprec(PRECISION):
        sum_of = tilted(Atoms([(SPINS, 1 - SPINS), (1 - SPINS, SPINS)]), theta, (0.02, 0.2))
        middle, spread = float(sum_of.mean.mid()), float(sum_of.deviation.mid())
        for shift in (-2.0, -0.5, 0.0, 0.7, 2.0):
            loss = middle + shift * spread
            above = {under: of_spins(loss, under_q=under) for under in (False, True)}
            for under, true in above.items():
                low, high = (
                    float(sum_of.above(loss, under_q=under, upper=upper).mid()) for upper in (False, True)
                )
                assert low <= true <= high
                assert high - low < 12 * float(sum_of.error.mid()) * math.exp(
                    float((sum_of.log_mass - (theta + under) * loss).mid())
                )
            low, high = sum_of.delta_ends(loss)
            assert low <= above[False] - math.exp(loss) * above[True] <= high


def test_moments_of_laplace_losses_are_those_of_a_fine_sum() -> None:
    scale, x = 0.5, np.linspace(-12, 13, 2**20)
    p, q = (np.exp(-np.abs(x - mean) / scale) / (2 * scale) for mean in (0, 1))
    loss = np.log(p / q)
    for theta in (0.3, 2.0):
        with ctx.workprec(PRECISION):
            found = Ramp(Fraction(2)).moments(arb(theta), arb(0.1), arb(0.5), mirrored=False)
        for power, moment in zip((0, 1, 2, 4), found, strict=True):
            wanted = np.exp(theta * (loss - 0.1)) * ((loss - 0.1) / 0.5) ** power * p
            assert float(moment.mid()) == pytest.approx(float(np.trapezoid(wanted, x)), rel=1e-4)
            assert float(moment.rad()) < 1e-20


@pytest.mark.parametrize("replace_one", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
def test_moments_of_sampled_laplace_losses_are_those_of_a_fine_sum(replace_one: bool, mirrored: bool) -> None:
    scale, q, x = 0.5, 0.3, np.linspace(-12, 13, 2**20)
    plain = {mean: np.exp(-np.abs(x - mean) / scale) / (2 * scale) for mean in (-1, 0, 1)}
    with_record = (1 - q) * plain[0] + q * plain[1]
    other = (1 - q) * plain[0] + q * plain[-1] if replace_one else plain[0]
    p, against = (other, with_record) if mirrored else (with_record, other)
    loss = np.log(p / against)
    part = SampledRamp(Fraction(2), Fraction(3, 10), replace_one=replace_one)
    for theta in (0.0, 0.3, 2.0):
        with ctx.workprec(PRECISION):
            found = part.moments(arb(theta), arb(0.1), arb(0.5), mirrored=mirrored)
        for power, moment in zip((0, 1, 2, 4), found, strict=True):
            wanted = np.exp(theta * (loss - 0.1)) * ((loss - 0.1) / 0.5) ** power * p
            assert float(moment.mid()) == pytest.approx(float(np.trapezoid(wanted, x)), rel=1e-4)
            assert float(moment.rad()) < 1e-20


SAMPLED = SubsampledLaplace(scale=3, sampling_probability=1e-3)
WIDE: list[tuple[Event, Adjacency]] = [
    (Composed(events=((Laplace(scale=100), 10**7),)), Adjacency.ADD_REMOVE),
    (
        Composed(events=((RandomisedResponse(noise_parameter=0.999, categories=2), 10**7),)),
        Adjacency.REPLACE_ONE,
    ),
    (Composed(events=((SAMPLED, 10**6),)), Adjacency.ADD_REMOVE),
    (Composed(events=((SAMPLED, 10**8),)), Adjacency.REPLACE_ONE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("event", "adjacency"), WIDE)
def test_millions_of_steps_have_narrow_bounds_that_the_grids_hold(event: Event, adjacency: Adjacency) -> None:
    at = 1e-5
    found = epsilon(event, at, adjacency=adjacency)
    assert "central limit" in found.method
    assert found.relative_width < 1e-3
    low, high = on_grid(EpsilonQuestion(event, adjacency, Direction.BOTH), at, 1e-3)
    assert low <= found.lower <= found.upper <= high
    back = delta(event, found.lower, adjacency=adjacency)
    assert back.lower <= at * (1 + 1e-2)
    assert back.upper >= at


@pytest.mark.slow
def test_a_million_laplace_steps_are_nearly_a_gaussian_of_the_same_variance() -> None:
    steps, scale = 10**7, 1000.0
    run = Composed(events=((Laplace(scale=scale), steps),))
    # Losses of Laplace noise have nearly the variance 1 / scale^2, and half of it as their mean.
    alike = Gaussian(noise_multiplier=scale / math.sqrt(steps))
    for fpr in (1e-12, 1e-3):
        found, known = tpr(run, fpr), tpr(alike, fpr)
        assert found.relative_width < 0.05
        assert found.lower == pytest.approx(known.lower, rel=0.02)
    found, known = epsilon(run, 1e-12), epsilon(alike, 1e-12)
    assert found.lower == pytest.approx(known.lower, rel=2e-3)


@pytest.mark.slow
def test_a_composed_gaussian_adds_to_moments_and_not_to_the_error() -> None:
    """Beside the grid, where both answer."""
    run = Composed(events=((Laplace(scale=20.0), 20_000), (Gaussian(noise_multiplier=0.5), 1)))
    low, high = on_grid(EpsilonQuestion(run, Adjacency.ADD_REMOVE, Direction.BOTH), 1e-3, 1e-3)
    parts, squares = counted(run, Adjacency.ADD_REMOVE)
    known = many_steps.known_parts(parts, Adjacency.ADD_REMOVE)
    assert known is not None
    composition = Composition(steps_of(run, Adjacency.ADD_REMOVE), 1e-10)
    found = many_steps.ends_of(known, squares, composition, question="epsilon", value=1e-3)
    assert found is not None
    assert found[0] <= high
    assert low <= found[1]
    assert 0 < found[1] / found[0] - 1 < 0.02
