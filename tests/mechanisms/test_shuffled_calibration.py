"""The noise of Shuffled DPSGD: against its accountant, the plain Gaussian, and a blunt search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from workbench.core.errors import InputError
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants import shuffled_dp_sgd as calibration
from workbench.mechanisms.accountants.shuffled_dp_sgd import (
    ZETA_2,
    ShuffledDPSGD,
    ShuffledGaussianRun,
    theorem_1_epsilon,
    theorem_2,
    theorem_6_delta,
)

VIT: dict[str, Any] = {"delta": 5e-6, "sampling_probability": 0.02, "steps": 500, "dimension": 85_800_000}
"""Table I's ViT at a batch of 1,000, a number that the table does not give."""

THREE: dict[str, Any] = {"dimension": 8, "batch_clip": 0.021, "zeta_2": "main text"}
ONE_STEP: dict[str, Any] = {"sampling_probability": 1.0, "steps": 1}

epsilons = st.floats(-2, 1).map(lambda exponent: 10.0**exponent)
deltas = st.floats(-12, -0.1).map(lambda exponent: 10.0**exponent)
ratios = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)
dimensions = st.one_of(st.integers(1, 20), st.integers(2, 10**9))


@pytest.mark.parametrize("zeta_2", ZETA_2)
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    ("dimension", "batch_clip"), [(1, 1.0), (2, 1.0), (1000, 0.1), (85_800_000, 1.0), (10**9, 100.0)]
)
def test_the_accountant_gives_the_budget_back(
    epsilon: float, dimension: int, batch_clip: float, zeta_2: str
) -> None:
    schedule: dict[str, Any] = {
        "sampling_probability": 0.02,
        "steps": 500,
        "dimension": dimension,
        "batch_clip": batch_clip,
    }
    noise = calibration.noise_multiplier_for(epsilon=epsilon, delta=5e-6, zeta_2=zeta_2, **schedule)
    accountant = ShuffledDPSGD(zeta_2=zeta_2)

    def found(noise_multiplier: float) -> float:
        run = ShuffledGaussianRun(noise_multiplier=noise_multiplier, **schedule)
        return accountant.epsilon(run, delta=5e-6, adjacency=Adjacency.ADD_REMOVE)

    assert found(noise) == pytest.approx(epsilon, rel=1e-9)
    assert found(0.9999 * noise) > epsilon > found(1.0001 * noise)


@pytest.mark.parametrize(("epsilon", "q", "steps"), [(0.1, 0.02, 500), (1.0, 1.0, 1), (5.0, 0.3, 40)])
def test_one_dimension_is_the_gaussian_mechanism(epsilon: float, q: float, steps: int) -> None:
    """A calibration of its own: Balle and Wang's delta of the Gaussian, composed and inverted by roots."""
    delta, kept = 1e-5, 5e-6

    def composed(per_step: float) -> float:
        amplified = math.log(1 + q * (math.exp(per_step) - 1))
        squares = steps * amplified**2
        return min(steps * amplified, squares / 2 + math.sqrt(2 * math.log(1 / kept) * squares))

    per_step = optimize.brentq(lambda value: composed(value) - epsilon, 1e-9, 50, xtol=1e-14, rtol=1e-14)

    def gap(sigma: float) -> float:
        near = stats.norm.cdf(1 / (2 * sigma) - per_step * sigma)
        far = math.exp(per_step) * stats.norm.cdf(-1 / (2 * sigma) - per_step * sigma)
        return float(near - far - (delta - kept) / (steps * q))

    expected = optimize.brentq(gap, 0.05, 1e4, xtol=1e-12, rtol=1e-12)
    found = calibration.noise_multiplier_for(
        epsilon=epsilon, delta=delta, sampling_probability=q, steps=steps, dimension=1
    )
    assert found == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    epsilon=epsilons,
    delta=deltas,
    q=st.floats(1e-5, 1),
    steps=st.integers(1, 10**6),
    slack=st.floats(0.01, 0.99),
)
def test_a_steps_budget_composes_to_the_runs(
    epsilon: float, delta: float, q: float, steps: int, slack: float
) -> None:
    per_step, share = calibration.step_budget(
        epsilon=epsilon, delta=delta, sampling_probability=q, steps=steps, slack=slack
    )
    amplified, amplified_delta = theorem_2(per_step, share, q)
    assert theorem_1_epsilon([(amplified, steps)], slack * delta) == pytest.approx(epsilon, rel=1e-9)
    assert steps * amplified_delta + slack * delta == pytest.approx(delta, rel=1e-12)


def turns(epsilon: float, delta: float, **options: Any) -> list[float]:
    """Where Eq. 25 begins or ceases to hold, by 20,000 noise levels from 0.01 to 100 and nothing else."""
    levels = np.geomspace(0.01, 100, 20_000).tolist()
    met = [theorem_6_delta(epsilon=epsilon, noise_multiplier=level, **options) <= delta for level in levels]
    return [levels[i] for i in range(1, len(levels)) if met[i] != met[i - 1]]


@pytest.mark.parametrize(
    ("epsilon", "delta", "options", "count"),
    [
        (1.3278, 1.345e-13, THREE, 3),
        (0.000311, 2.38e-11, {"dimension": 19, "batch_clip": 0.5178, "zeta_2": "main text"}, 3),
        (1.3278, 1.345e-13, {**THREE, "zeta_2": "appendix"}, 1),
        (0.5, 1e-6, {"dimension": 10**6}, 1),
    ],
)
def test_every_crossing_is_found_and_the_last_is_taken(
    epsilon: float, delta: float, options: dict[str, Any], count: int
) -> None:
    asked = {"epsilon": epsilon, "delta": 2 * delta, **ONE_STEP, **options}  # half of it is a step's own
    found = calibration.crossings_for(**asked)
    assert len(found) == count
    assert list(found) == pytest.approx(turns(epsilon, delta, **options), rel=2e-3)
    assert calibration.noise_multiplier_for(**asked) == found[-1]
    for turn in found:
        left = theorem_6_delta(epsilon=epsilon, noise_multiplier=turn, **options)
        assert left <= delta * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(
    epsilon=st.floats(-4, 1.3).map(lambda exponent: 10.0**exponent),
    delta=deltas,
    options=st.fixed_dictionaries(
        {"dimension": dimensions, "batch_clip": ratios, "zeta_2": st.sampled_from(ZETA_2)}
    ),
    beyond=st.floats(1, 50),
)
def test_the_searched_range_misses_nothing_outside(
    epsilon: float, delta: float, options: dict[str, Any], beyond: float
) -> None:
    high = calibration._all_above(epsilon, delta)
    low = calibration._all_below(epsilon, delta, options["dimension"], options["batch_clip"])
    assert low < high
    assert theorem_6_delta(epsilon=epsilon, noise_multiplier=high * beyond, **options) <= delta
    assert theorem_6_delta(epsilon=epsilon, noise_multiplier=low / beyond, **options) > delta


def test_the_papers_settings() -> None:
    """Computed here; the paper prints its noise levels in figures alone."""
    shuffled = [calibration.noise_multiplier_for(epsilon=epsilon, **VIT) for epsilon in (0.1, 0.5, 1.0)]
    alone = [
        calibration.noise_multiplier_for(epsilon=epsilon, **{**VIT, "dimension": 1})
        for epsilon in (0.1, 0.5, 1.0)
    ]
    assert shuffled == pytest.approx([0.274248, 0.273718, 0.273157], abs=1e-6)
    assert alone == pytest.approx([87.0967, 20.7159, 11.7517], abs=1e-4)


def test_a_loose_batch_clip_is_no_shuffling() -> None:
    asked = {**VIT, "epsilon": 0.5}
    alone = calibration.noise_multiplier_for(**{**asked, "dimension": 1})
    loose = calibration.noise_multiplier_for(**asked, batch_clip=1e6)
    assert loose == pytest.approx(alone, rel=1e-9)
    tighter = [calibration.noise_multiplier_for(**asked, batch_clip=ratio) for ratio in (0.01, 1.0, 100.0)]
    assert tighter == sorted(tighter)
    assert tighter[-1] < alone


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, r"epsilon must be in \(0, 100000\], got 0\.0"),
        ({"epsilon": 1e300}, r"epsilon must be in \(0, 100000\], got 1e\+300"),
        ({"delta": 1.5}, r"delta must be in \(0, 1\), got 1\.5"),
        ({"sampling_probability": 0.0}, r"sampling_probability must be in \(0, 1\], got 0\.0"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"dimension": 0}, "dimension must be >= 1 and at most 1e18, got 0"),
        ({"dimension": 10**300}, r"dimension must be >= 1 and at most 1e18, got 1e\+300"),
        ({"batch_clip": 0.0}, r"batch_clip must be finite and > 0, got 0\.0"),
        ({"slack": 1.0}, r"slack must be in \(0, 1\), got 1\.0"),
        ({"zeta_2": "main"}, "zeta_2 must be one of appendix, main text, got 'main'"),
        ({"delta": 0.9, "sampling_probability": 1e-4, "steps": 1}, "takes noise to meet it, got 0.9"),
    ],
)
def test_what_has_no_answer_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibration.noise_multiplier_for(**{"epsilon": 1.0, **VIT, **changes})


@pytest.mark.parametrize("dimension", [1, 2, 10**9])
def test_noise_beyond_the_squares_of_floats_is_none_or_all(dimension: int) -> None:
    asked = {"epsilon": 1.0, "dimension": dimension}
    assert calibration.theorem_6_delta(noise_multiplier=1e-200, **asked) == 1.0
    assert calibration.theorem_6_delta(noise_multiplier=1e200, **asked) == 0.0
