"""Sampled Gaussians of which few steps have large losses, beside quadrature and beside one grid for all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from workbench.accounting import epsilon, gaussian_run
from workbench.accounting.grid import rare_losses
from workbench.accounting.grid.laws import SubsampledLaw
from workbench.accounting.grid.questions import EpsilonQuestion, on_grid
from workbench.accounting.grid.rounding import dominated, dominating
from workbench.accounting.grid.tilted import TiltedSum, Window
from workbench.interfaces import Adjacency, Direction, FloatArray


def _of_one_step(epsilon: FloatArray, noise: float, rate: float) -> FloatArray:
    """delta of one step, the record against without, in closed form; epsilon may be negative."""
    gain = np.expm1(epsilon) + rate
    x = 0.5 + noise**2 * np.log(np.maximum(gain / rate, 1e-300))
    inside = rate * ndtr((1 - x) / noise) - gain * ndtr(-x / noise)
    return np.where(gain > 0, inside, -np.expm1(epsilon))


def _of_three_steps(epsilon: float, noise: float, rate: float, parts: int = 150) -> float:
    """delta of three steps: the mean of one step's over two others' outputs, by the trapezoidal rule."""
    x = np.arange(-10 * noise, 1 + 10 * noise, noise / parts)
    density = (1 - rate) * np.exp(-((x / noise) ** 2) / 2) + rate * np.exp(-(((x - 1) / noise) ** 2) / 2)
    weights = density * (x[1] - x[0]) / (noise * math.sqrt(2 * math.pi))
    loss = np.log1p(rate * np.expm1((x - 0.5) / noise**2))
    return sum(
        float(weight * (weights @ _of_one_step(epsilon - first - loss, noise, rate)))
        for weight, first in zip(weights, loss, strict=True)
    )


CELLS = [(0.4, 1e-5, 1e-6), (0.5, 1e-6, 1e-9), (0.7, 1e-4, 3e-5)]

RULE = 5e-5
"""Relative error of the trapezoidal rule, whose integrand all but has a kink."""


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "at"), CELLS)
def test_three_steps_are_as_by_quadrature(noise: float, rate: float, at: float) -> None:
    law = SubsampledLaw(noise, rate)
    lower, upper = rare_losses.epsilon_ends(law, 3, at)
    assert lower < upper < 1.001 * lower
    assert _of_three_steps(lower, noise, rate) >= at * (1 - RULE)
    assert _of_three_steps(upper, noise, rate) <= at * (1 + RULE)
    truth = _of_three_steps(lower, noise, rate)
    low, high = rare_losses.delta_ends(law, 3, lower)
    assert low * (1 - RULE) <= truth <= high * (1 + RULE)
    assert high < 1.001 * low


WIDE = [
    (0.465, 4.5e-6, 406_370, 2.5e-6),
    (0.4732, 2.24e-7, 144, 1.57e-9),
]
"""What grids of one width leave 2 % wide, or wider."""


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rate", "steps", "at"), WIDE)
def test_they_lie_within_a_grids_bounds(noise: float, rate: float, steps: int, at: float) -> None:
    run = gaussian_run(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    found = epsilon(run, at)
    assert 0 < found.lower < found.upper < 1.001 * found.lower
    below, above = on_grid(EpsilonQuestion(run, Adjacency.ADD_REMOVE, Direction.BOTH), at, 1e-3)
    assert below <= found.upper
    assert found.lower <= above


@pytest.mark.slow
def test_the_other_order_counts_where_it_is_asked_for() -> None:
    run = gaussian_run(noise_multiplier=0.5, sampling_probability=1e-6, steps=100)
    remove, add, both = (epsilon(run, 1e-9, direction=name) for name in ("remove", "add", "both"))
    assert both.lower == pytest.approx(max(remove.lower, add.lower), rel=1e-3)
    assert add.upper <= -100 * math.log1p(-1e-6) * (1 + 1e-9)
    upper = rare_losses.mirrored_epsilon_upper(SubsampledLaw(0.5, 1e-6), 100, 1e-9)
    assert add.lower <= upper <= both.lower


@pytest.mark.slow
def test_a_record_that_is_seldom_in_has_epsilon_0() -> None:
    run = gaussian_run(noise_multiplier=0.6, sampling_probability=1e-6, steps=100)
    assert epsilon(run, 1e-3).upper == 0
    assert epsilon(run, 1e-3, adjacency="replace-one").upper == 0
    assert epsilon(run, 1e-6).lower > 0


def test_a_table_has_what_is_answered_one_by_one() -> None:
    law = SubsampledLaw(1.0, 0.1)
    cells = law.cells(1e-2, -40, 1600)
    window = Window(theta=2.0, centre=1.0, lambda_low=-4.0, lambda_high=4.0)
    for upper, precise in ((False, False), (True, False), (True, True)):
        law = (dominating if upper else dominated)(cells, 1e-2)
        total = TiltedSum([(law, 10)], 1e-2, window, upper=upper, precise=precise)
        lowest, table = total.deltas()
        places = range(5, len(table), 29)
        alone = [total.delta(lowest + place * 1e-2) for place in places]
        assert table[list(places)] == pytest.approx(alone, rel=1e-6, abs=1e-13)
