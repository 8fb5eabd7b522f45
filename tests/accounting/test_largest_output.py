"""Lower ends by tests of the largest output, for records that are seldom drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from workbench.accounting import Bounds, Composed, Laplace, epsilon, gaussian_run
from workbench.accounting.balls.largest_output import largest_output_pair

WIDE = {"noise_multiplier": 0.4247083493179584, "sampling_probability": 2.3701754534052085e-07}


@pytest.mark.parametrize(("noise", "q", "steps"), [(0.5, 1e-3, 100), (1.0, 0.01, 20), (0.3, 1e-6, 10**6)])
def test_it_tells_what_the_best_threshold_does(noise: float, q: float, steps: int) -> None:
    """delta is the largest over all thresholds of TPR - exp(epsilon) FPR, by SciPy."""
    thresholds = 1 + noise * np.linspace(0, 14, 20_001)
    false = norm.sf(thresholds / noise)
    true = (1 - q) * false + q * norm.sf((thresholds - 1) / noise)
    ever_false, ever_true = (-np.expm1(steps * np.log1p(-each)) for each in (false, true))
    pair = largest_output_pair(noise, q, steps)
    p, without = np.array(pair.p, float), np.array(pair.q, float)
    for level in (0.01, 0.5, 2.0):
        best = max(float((ever_true - math.exp(level) * ever_false).max()), 0.0)
        curve = float(np.maximum(p - math.exp(level) * without, 0.0).sum())
        assert best * (1 - 1e-3) - 1e-15 <= curve <= best * (1 + 1e-6) + 1e-15


@pytest.mark.parametrize("noise", [0.5, 0.8])
@pytest.mark.parametrize("q", [pytest.param(1e-4, marks=pytest.mark.slow), 3e-3])
def test_it_is_below_what_the_whole_run_tells(noise: float, q: float) -> None:
    """Runs of which grids know the curve; the pair of 5 % less noise tells more than the smaller run."""
    run = gaussian_run(noise_multiplier=noise, sampling_probability=q, steps=50)
    pair = largest_output_pair(noise, q, 50)
    for value in (1e-4, 1e-6, 1e-9):
        below, whole = epsilon(pair, value, direction="remove"), epsilon(run, value)
        assert isinstance(below, Bounds)
        assert isinstance(whole, Bounds)
        assert below.lower <= whole.upper
        louder = epsilon(largest_output_pair(0.6 * noise, q, 50), value, direction="remove")
        assert isinstance(louder, Bounds)
        assert louder.lower > whole.upper or whole.upper == 0


@pytest.mark.slow
def test_a_cell_of_the_holdout_is_narrow() -> None:
    """Was [0, 1.8775]."""
    found = epsilon(gaussian_run(**WIDE, steps=2021036), 1.0785365511296712e-10)
    assert isinstance(found, Bounds)
    assert 1.877 < found.lower < found.upper < 1.0005 * found.lower
    assert "largest output" in found.method


@pytest.mark.slow
def test_compositions_of_others_are_left_alone() -> None:
    parts = Composed(events=((Laplace(scale=100.0), 10**6),))
    found = epsilon(parts, 1e-5)
    assert isinstance(found, Bounds)
    assert "largest output" not in found.method
