"""Draws of lognormal sums: coverage of the intervals, counts against terms, memory, resuming."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from lognormal_truths import RARE, far_apart, off_reference
from oracles.lognormal_judging import (
    Quality,
    largest_good_sigma,
    probability_at,
    quality,
    quantile,
    tail_ratio,
)
from oracles.lognormal_reference import reference_cdf
from scipy.special import ndtr
from scipy.stats import binom, norm

from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import (
    CountedSum,
    ErrorInterval,
    LognormalFit,
    LognormalSum,
    SumSample,
    error,
    fenton_wilkinson,
    monte_carlo,
)

# ---------------------------------------------------------------------------------------------- intervals


def misses(wrong: float, runs: int, n: int) -> int:
    """Runs in which the interval of sup |F - G| excludes its true value; G is off by a factor in sigma."""
    law = LognormalSum.identical(1, 1.0)
    claimed = LognormalFit(mu=0.0, sigma=wrong)
    at = np.linspace(-8, 8, 4001)
    truth = float(np.max(np.abs(ndtr(at) - claimed.cdf(at))))
    rng = np.random.default_rng(6)
    missed = 0
    for _ in range(runs):
        found = error(claimed, SumSample(log_sums=np.sort(law.draw(rng, n))), confidence=0.9)
        missed += not found.lower <= truth <= found.upper
    return missed


@pytest.mark.parametrize("wrong", [1.0, 1.5])
def test_the_error_interval_covers(wrong: float) -> None:
    # At 90 % at most a tenth of the runs miss; the limit is passed by chance one time in a million.
    assert misses(wrong, 500, 80) <= binom.isf(RARE, 500, 0.1)


def test_dkw_is_not_far_too_wide() -> None:
    # Against the exact law the share of misses tends to the nominal tenth; twice the width has none.
    assert misses(1.0, 500, 80) >= 10


def test_single_probabilities_cover_and_a_wrong_one_does_not() -> None:
    rng, law = np.random.default_rng(7), LognormalSum.identical(1, 1.0)
    held = wrong = 0
    for _ in range(500):
        sample = SumSample(log_sums=np.sort(law.draw(rng, 200)))
        found = probability_at(sample, -1.0, 0.9)
        held += found.lower <= norm.cdf(-1.0) <= found.upper
        wrong += found.lower <= norm.cdf(0.0) <= found.upper
    assert 500 - held <= binom.isf(RARE, 500, 0.1)
    assert wrong == 0
    nothing = probability_at(SumSample(log_sums=np.zeros(50), bias=0.01), -1.0, 0.95)
    assert (nothing.lower, nothing.estimate) == (0.0, 0.0)
    assert nothing.upper == pytest.approx(1 - 0.025 ** (1 / 50) + 0.01)


def test_quality_is_read_off_the_interval() -> None:
    def interval(low: float, high: float) -> ErrorInterval:
        return ErrorInterval(lower=low, estimate=(low + high) / 2, upper=high, confidence=0.95)

    good, bad, open_ = interval(0.0, 0.01), interval(0.06, 0.1), interval(0.0, 0.1)
    assert [quality(i, 0.05) for i in (good, bad, open_)] == [
        Quality.GOOD,
        Quality.NOT_GOOD,
        Quality.UNDECIDED,
    ]
    assert largest_good_sigma({0.5: good, 2.0: bad, 1.0: open_}, 0.05) == (0.5, 2.0)
    assert largest_good_sigma({0.5: open_, 1.0: good}, 0.05) == (None, None)


def test_the_ratio_in_a_tail() -> None:
    law = LognormalSum.identical(50, 2.0)
    sample = monte_carlo(law, repeats=20_000, seed=8)
    found = tail_ratio(fenton_wilkinson(law), sample, 0.01, confidence=1 - RARE)
    truth = float(reference_cdf(law, np.atleast_1d(quantile(fenton_wilkinson(law), 0.01)))[0]) / 0.01
    assert found.lower <= truth <= found.upper < 0.5
    exact = LognormalSum.identical(1, 2.0)
    sample = monte_carlo(exact, repeats=20_000, seed=8)
    found = tail_ratio(fenton_wilkinson(exact), sample, 0.01, confidence=1 - RARE)
    assert found.lower <= 1 <= found.upper


# ------------------------------------------------------------------------------------------- ways to draw


@pytest.mark.parametrize("sigma", [0.25, pytest.param(1.5, marks=pytest.mark.slow)])
def test_counts_draw_the_same_law(sigma: float) -> None:
    law = LognormalSum(sigma=sigma, groups=((0.0, 5000), (1.0, 20)))
    counted = CountedSum(law=law, tail=300, bins=256)
    sample = monte_carlo(counted, repeats=2000, seed=9)
    assert 0 < sample.bias < 0.05
    assert not far_apart(sample, monte_carlo(law, repeats=1500, seed=10))
    assert not off_reference(law, sample)
    broken = LognormalSum(sigma=1.2 * sigma, groups=law.groups)
    assert off_reference(law, monte_carlo(CountedSum(law=broken, tail=300, bins=256), repeats=2000, seed=9))


def test_counts_keep_mean_and_spread_at_the_largest_d() -> None:
    law = LognormalSum.identical(10**8, 0.25)
    values = monte_carlo(CountedSum(law=law, tail=1000, bins=1024), repeats=1000, seed=11).log_sums
    spread = fenton_wilkinson(law).sigma
    assert abs(values.mean() - law.log_mean) < 5 * spread / math.sqrt(1000)
    assert values.std() == pytest.approx(spread, rel=0.12)  # five standard errors
    assert CountedSum(law=law).bias < 2e-4
    assert CountedSum(law=law).work < 200_000


def test_memory_is_bounded() -> None:
    law = LognormalSum.identical(3_000_000, 0.25)
    counted = CountedSum(law=LognormalSum.identical(10**8, 2.0))
    for source, limit in ((law, 4e6), (counted, 16e6)):
        tracemalloc.start()
        monte_carlo(source, repeats=1, seed=12)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < limit


def test_the_chunk_does_not_change_the_law() -> None:
    law = LognormalSum.identical(1000, 0.5)
    whole = law.draw(np.random.default_rng(13), 300)
    pieces = law.draw(np.random.default_rng(13), 300, chunk=64)
    assert not far_apart(SumSample(log_sums=np.sort(whole)), SumSample(log_sums=np.sort(pieces)))
    assert len(np.unique(pieces)) == 300


def test_a_longer_run_begins_with_a_shorter_ones_draws() -> None:
    law = LognormalSum.identical(50, 1.0)
    whole, longer, shorter = (
        monte_carlo(law, repeats=repeats, seed=14, block_numbers=500).log_sums for repeats in (95, 200, 25)
    )
    assert set(shorter) <= set(whole) <= set(longer)


def test_same_seed_same_numbers() -> None:
    law = CountedSum(law=LognormalSum.identical(10**6, 1.0), tail=100)
    one, two = (monte_carlo(law, repeats=20, seed=16).log_sums for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, monte_carlo(law, repeats=20, seed=17).log_sums)
