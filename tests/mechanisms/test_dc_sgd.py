"""DC-SGD: what its rules read off a histogram, what they cost, and what an auditor sees of both releases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from conformance import FALSE_ALARM, mu_interval, toy_plan, watched_plan
from kept_releases import keep_releases
from scipy import stats

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, GradientCanary
from workbench.mechanisms.dc_sgd import (
    BINS_FOLLOW,
    CHOICES,
    DCSGD,
    FINEST,
    DynamicClipping,
    bin_middles,
    expected_error_norm,
    next_width,
    norm_histogram,
    percentile_norm,
)

CANARY = GradientCanary(coordinate=3, magnitude=1e3)


def settled(**changes: object) -> DCSGD:
    return replace(DCSGD(noise_multiplier=1.0, measures_quality=False), **changes)  # type: ignore[arg-type]


def test_a_record_is_in_one_bin_whatever_its_norm() -> None:
    norms = torch.tensor([0.0, 0.49, 0.5, 1.99, 2.0, 1e30, math.inf, math.nan])
    assert norm_histogram(norms, width=0.5, bins=4).tolist() == [2.0, 1.0, 0.0, 5.0]
    assert norm_histogram(norms[:0], width=0.5, bins=4).tolist() == [0.0] * 4


def test_the_percentile_is_that_of_the_norms_but_for_the_width_of_a_bin() -> None:
    norms = torch.from_numpy(np.random.default_rng(0).lognormal(size=5000))
    counts = norm_histogram(norms, width=0.05, bins=400).numpy()
    for share in (0.1, 0.3, 0.9):
        found = percentile_norm(counts, 0.05, percentile=share, present=1.0)
        assert abs(found - float(norms.quantile(share))) <= 0.05


def least_error(counts: FloatArray, width: float, variance: float) -> float:
    """The naive twin: the smallest value of the error on a fine grid of all norms."""
    middles = bin_middles(len(counts), width)
    grid = np.linspace(1e-3, len(counts) * width, 4000)
    mean = [np.sum(counts * np.maximum(middles - c, 0) ** 2) / counts.sum() for c in grid]
    return float(np.min(variance * grid**2 + mean))


@pytest.mark.parametrize("variance", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("present", [1e-6, 1.0, 1e6])
def test_the_expected_error_is_nearly_the_least_wherever_the_search_begins(
    variance: float, present: float
) -> None:
    counts = np.array([3.0, 20.0, 40.0, 10.0, 5.0, 1.0])
    found = expected_error_norm(counts, 0.5, variance=variance, present=present)
    beyond = np.maximum(bin_middles(6, 0.5) - found, 0)
    error = variance * found**2 + np.sum(counts * beyond**2) / counts.sum()
    assert error <= 1.01 * least_error(counts, 0.5, variance)


def test_noise_without_records_moves_no_norm_out_of_the_histogram() -> None:
    generator = np.random.default_rng(1)
    for _ in range(200):
        counts = generator.normal(0.0, 5.0, 20)
        found = expected_error_norm(counts, 0.1, variance=3.0, present=0.7)
        assert found == 0.7 or FINEST * 0.1 <= found <= 2.0
        found = percentile_norm(counts, 0.1, percentile=0.3, present=0.7)
        assert found == 0.7 or 0.05 <= found <= 1.95
    assert percentile_norm(-np.ones(20), 0.1, percentile=0.3, present=0.7) == 0.7
    assert expected_error_norm(-np.ones(20), 0.1, variance=3.0, present=0.7) == 0.7


@pytest.mark.parametrize(
    ("counts", "width"),
    [([0, 0, 1, 9], 2.0), ([9, 1, 0, 0], 0.5), ([3, 3, 3, 3], 1.0), ([0, 0, 0, -1], 1.0)],
    ids=["beyond the end", "upper half empty", "even", "no total"],
)
def test_bins_widen_and_narrow(counts: Sequence[float], width: float) -> None:
    assert next_width(np.array(counts, dtype=np.float64), 1.0) == width


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5, 40.0])
def test_both_releases_together_have_the_noise_multiplier_that_is_accounted(sigma: float) -> None:
    mechanism = settled(noise_multiplier=sigma)
    parts = mechanism.sum_noise_multiplier(), mechanism.count_noise()
    assert math.isclose(sum(part**-2 for part in parts), sigma**-2)
    assert parts[1] >= max(5.0, 2 * sigma)


@dataclass(frozen=True, kw_only=True)
class UnpaidHistogram(DCSGD):
    """A negative control: the sum has the noise of the whole budget, and the histogram comes on top."""

    def side_queries(self) -> Sequence[float]:
        """Forgotten."""
        return ()


def shown(mechanism: DCSGD, trials: int = 20_000) -> tuple[float, float]:
    subject = mechanism.train(toy_plan())
    coins = np.random.default_rng(2).random(trials) < 0.5
    return mu_interval(subject.release_canary(CANARY, coins, np.random.default_rng(3)), coins)


def test_the_canary_sees_the_sum_and_the_histogram() -> None:
    """The histogram gets a quarter: the sum alone would show sqrt(3 / 4) of 1 / sigma."""
    low, high = shown(settled(noise_multiplier=0.5, histogram_noise=1.0))
    assert math.sqrt(3 / 4) / 0.5 < low < 1 / 0.5 < high
    low, _ = shown(UnpaidHistogram(noise_multiplier=0.5, histogram_noise=1.0, measures_quality=False))
    assert low > 1 / 0.5


@pytest.mark.parametrize(
    ("choice", "bins_follow"),
    list(itertools.product(CHOICES, BINS_FOLLOW)),
)
def test_every_step_of_a_run_is_read_on_one_scale(choice: str, bins_follow: str) -> None:
    plan = watched_plan(CANARY, steps=80)
    transcript = settled(choice=choice, bins_follow=bins_follow, l2_clip_norm=0.1).train(plan).transcript
    norms = transcript.traces["l2_clip_norm"]
    assert norms[0] == 0.1
    assert len(norms) == len(transcript.traces["bin_width"]) == 80
    assert norms.max() / norms.min() > 3  # otherwise there would be nothing to put on one scale
    whitened = transcript.canary_observations - transcript.canary_included
    assert stats.kstest(whitened, stats.norm(0.0, 1.0).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("choice", "bins_follow"),
    list(itertools.product(CHOICES, BINS_FOLLOW)),
)
def test_clipping_norms_are_functions_of_what_was_released(
    choice: str, bins_follow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep_releases(monkeypatch, DynamicClipping)
    plan = toy_plan(steps=20)
    mechanism = settled(choice=choice, bins_follow=bins_follow)
    traces = mechanism.train(plan).transcript.traces
    norm, size = mechanism.l2_clip_norm, len(plan.records)
    width = norm / 10 if bins_follow == "norm" else mechanism.bin_width
    for step, released in enumerate(kept):
        assert (traces["l2_clip_norm"][step], traces["bin_width"][step]) == (norm, width)
        counts, dimension = released[-mechanism.bins :].double().numpy(), len(released) - mechanism.bins
        batch = plan.sampling_probability * size
        norm = mechanism.next_norm(counts, norm, width, dimension=dimension, batch_size=batch)
        width = norm / 10 if bins_follow == "norm" else next_width(counts, width)


@pytest.mark.parametrize(
    "parameters",
    [
        {"choice": "median"},
        {"bins_follow": "median"},
        {"percentile": 1.0},
        {"bins": 1},
        {"bins": 10**12},
        {"bin_width": 0.0},
        {"bin_width": 1e300},
        {"histogram_noise": -1.0},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused_by_name(parameters: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(parameters))):
        DCSGD(**parameters)  # type: ignore[arg-type]
