"""Runs of subsampled Gaussian releases: calibrations that never overshoot, and bounds on their own side."""

from __future__ import annotations

import doctest
import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.accounting import certified, events, subsampled_gaussian
from workbench.accounting.gaussian import epsilon_of_delta
from workbench.accounting.subsampled_gaussian import (
    calibrate_noise_multiplier,
    epsilon,
    mu_to_run_epsilon,
    same_sigma_epsilon,
)
from workbench.core.errors import InputError

SCHEDULE = {"sampling_probability": 0.1, "steps": 100}


@given(
    target=st.sampled_from([0.3, 1.0, 4.0]),
    q=st.sampled_from([0.02, 0.1, 0.5, 1.0]),
    steps=st.sampled_from([1, 20, 100]),
    delta=st.sampled_from([1e-5, 1e-7]),
)
@settings(max_examples=8, deadline=None)
def test_calibration_never_overshoots_and_is_nearly_tight(
    target: float, q: float, steps: int, delta: float
) -> None:
    noise = calibrate_noise_multiplier(
        target_epsilon=target, target_delta=delta, sampling_probability=q, steps=steps
    )
    schedule = {"sampling_probability": q, "steps": steps, "delta": delta}
    assert epsilon(noise_multiplier=noise, **schedule) <= target
    assert epsilon(noise_multiplier=noise * (1 - 1e-3), **schedule) > target


@pytest.mark.parametrize("noise", [0.2, 0.7, 5.0])
def test_the_same_sigma_is_worth_what_another_accountant_finds(noise: float) -> None:
    found = same_sigma_epsilon(noise_multiplier=noise, delta=1e-5, **SCHEDULE)
    step = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(noise))
    above = PLDAccountant(value_discretization_interval=1e-3).compose(step, 100).get_epsilon(1e-5)
    # That one rounds the loss of each of the hundred steps up, by less than its interval.
    assert found.lower <= above <= found.upper + 0.1
    assert found.upper == epsilon(noise_multiplier=noise, delta=1e-5, **SCHEDULE)
    assert found.rigorous
    assert found.relative_width <= certified.RELATIVE_WIDTH


def test_without_noise_nothing_is_left_but_not_to_be_sampled() -> None:
    assert same_sigma_epsilon(noise_multiplier=0.0, delta=1e-5, **SCHEDULE).lower == math.inf
    rare = same_sigma_epsilon(noise_multiplier=0.0, sampling_probability=1e-8, steps=2, delta=1e-5)
    assert (rare.lower, rare.upper) == (0.0, 0.0)
    with pytest.raises(InputError, match=r"noise_multiplier must be finite and >= 0, got -1\.0"):
        same_sigma_epsilon(noise_multiplier=-1.0, delta=1e-5, **SCHEDULE)
    with pytest.raises(InputError, match=r"delta must be in \(0, 1\), got 1\.5"):
        same_sigma_epsilon(noise_multiplier=1.0, delta=1.5, **SCHEDULE)


def test_epsilon_falls_with_noise_and_delta_and_rises_with_steps_and_sampling() -> None:
    base = epsilon(noise_multiplier=2.0, delta=1e-5, **SCHEDULE)
    assert epsilon(noise_multiplier=2.2, delta=1e-5, **SCHEDULE) < base
    assert epsilon(noise_multiplier=2.0, delta=1e-4, **SCHEDULE) < base
    assert epsilon(noise_multiplier=2.0, delta=1e-5, sampling_probability=0.1, steps=120) > base
    assert epsilon(noise_multiplier=2.0, delta=1e-5, sampling_probability=0.12, steps=100) > base


def test_subsampling_at_nearly_one_meets_the_closed_form_at_one() -> None:
    nearly = epsilon(noise_multiplier=5.0, sampling_probability=0.99999, steps=10, delta=1e-5)
    exact = epsilon(noise_multiplier=5.0, sampling_probability=1.0, steps=10, delta=1e-5)
    assert exact == pytest.approx(epsilon_of_delta(math.sqrt(10) / 5, 1e-5), rel=1e-12)
    assert nearly == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.2])
@pytest.mark.parametrize(("q", "steps"), [(0.05, 50), (0.25, 1), (0.25, 40), (1.0, 30)])
def test_the_lower_bound_stays_below_the_upper_and_close_to_it(mu: float, q: float, steps: int) -> None:
    lower = mu_to_run_epsilon(mu, sampling_probability=q, steps=steps, delta=1e-5)
    upper = epsilon(noise_multiplier=1 / mu, sampling_probability=q, steps=steps, delta=1e-5)
    assert lower <= upper * (1 + 1e-12)  # at q = 1 both are the closed form
    assert lower == pytest.approx(upper, rel=0.01, abs=1e-3)


def test_the_ends_of_the_lower_bound() -> None:
    schedule = {"sampling_probability": 0.1, "steps": 10, "delta": 1e-5}
    assert mu_to_run_epsilon(0.0, **schedule) == 0.0
    assert mu_to_run_epsilon(-0.3, **schedule) == 0.0
    assert mu_to_run_epsilon(math.inf, **schedule) == math.inf
    assert math.isnan(mu_to_run_epsilon(math.nan, **schedule))
    largest = mu_to_run_epsilon(subsampled_gaussian.LARGEST_RELEASE_MU, **schedule)
    assert mu_to_run_epsilon(1e6, **schedule) == largest > 100
    single = mu_to_run_epsilon(1.0, sampling_probability=1.0, steps=1, delta=1e-5)
    assert epsilon_of_delta(1.0, 1e-5) - 1e-9 < single <= epsilon_of_delta(1.0, 1e-5)
    # A record that is hardly ever sampled: delta covers even releases without any noise.
    assert mu_to_run_epsilon(math.inf, sampling_probability=1e-7, steps=10, delta=1e-5) == 0.0


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputError, match=r"sampling_probability must be in \(0, 1\], got 1.5"):
        epsilon(noise_multiplier=1.0, sampling_probability=1.5, steps=1, delta=1e-5)
    with pytest.raises(InputError, match=r"noise_multiplier must be finite and > 0, got 0\.0"):
        epsilon(noise_multiplier=0.0, delta=1e-5, **SCHEDULE)
    with pytest.raises(InputError, match=r"target_epsilon must be in \(0, 2000\], got -1\.0"):
        calibrate_noise_multiplier(target_epsilon=-1.0, target_delta=1e-5, **SCHEDULE)
    with pytest.raises(InputError, match="steps must be a whole number >= 1, got 0"):
        mu_to_run_epsilon(1.0, sampling_probability=0.1, steps=0, delta=1e-5)


@pytest.mark.thinned
@pytest.mark.parametrize("target", [600.0, 1000.0, 2000.0])
@pytest.mark.parametrize(("q", "steps"), [(0.05, 200), (0.5, 20), (0.1, 10)])
def test_calibration_to_budgets_that_hardly_protect(target: float, q: float, steps: int) -> None:
    """DP-Weights compares budgets up to 1,000; dp-accounting's pessimistic PLD confirms the noise."""
    noise = calibrate_noise_multiplier(
        target_epsilon=target, target_delta=1e-4, sampling_probability=q, steps=steps
    )
    bounds = certified.epsilon_bounds(
        events.gaussian_run(noise_multiplier=noise, sampling_probability=q, steps=steps), 1e-4
    )
    assert 0.998 * target < bounds.lower <= bounds.upper <= target
    accountant = PLDAccountant(value_discretization_interval=0.01)
    sampled = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(noise))
    accountant.compose(dp_event.SelfComposedDpEvent(sampled, steps))
    # Its answer lies above the truth by some tenths: it rounds each of the T losses up.
    assert bounds.lower <= accountant.get_epsilon(1e-4) <= 1.003 * target


def test_doctest() -> None:
    assert doctest.testmod(subsampled_gaussian).failed == 0
