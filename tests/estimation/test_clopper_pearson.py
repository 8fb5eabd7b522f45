"""Error-rate bounds against statsmodels, and their error by exact enumeration."""

import math

import numpy as np
import pytest
from scipy.stats import binom
from statsmodels.stats.proportion import proportion_confint

from workbench.core.errors import InputError
from workbench.estimation import clopper_pearson, clopper_pearson_split
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper, half_split, ratio_lower
from workbench.interfaces import Family, Trials


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 10), (7, 10), (10, 10), (311, 1000)])
def test_binomial_limits_equal_statsmodels(successes, trials):
    low, high = proportion_confint(successes, trials, alpha=0.1, method="beta")
    assert binomial_lower(successes, trials, 0.05) == pytest.approx(0.0 if successes == 0 else low, abs=1e-9)
    assert binomial_upper(successes, trials, 0.05) == pytest.approx(
        1.0 if successes == trials else high, abs=1e-9
    )


def two_limits(hits, members, alarms, nonmembers):
    """The textbook bound at 95 %: a Clopper-Pearson limit at half the error for each rate; delta 1e-5."""
    tpr = binomial_lower(hits, members, 0.025)
    return math.log((tpr - 1e-5) / binomial_upper(alarms, nonmembers, 0.025))


def test_combined_p_values_beat_two_limits_where_both_rates_vary():
    for counts in ((80, 500, 12, 500), (300, 500, 100, 500), (50, 500, 5, 500), (20, 100, 4, 100)):
        assert ratio_lower(*counts, delta=1e-5, significance=0.05) > two_limits(*counts)


@pytest.mark.parametrize("epsilon", [0.0, 0.8, 2.0])
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_ratio_bound_errs_at_most_at_the_significance(epsilon, delta):
    """Sums over all counts of 24 members and 24 non-members, the TPR as large as allowed, for many FPRs."""
    members, nonmembers = 24, 24
    wrong = np.array(
        [
            [
                ratio_lower(h, members, a, nonmembers, delta=delta, significance=0.3) > epsilon
                for a in range(25)
            ]
            for h in range(25)
        ]
    )
    worst, counts = 0.0, np.arange(25)
    for fpr in np.linspace(0.0, 1.0, 201):
        tpr = min(1.0, math.exp(epsilon) * fpr + delta)
        chance = np.outer(binom.pmf(counts, members, tpr), binom.pmf(counts, nonmembers, fpr))
        worst = max(worst, float(chance[wrong].sum()))
    assert 0.01 < worst <= 0.3


def test_ratio_bound_is_monotone_in_the_counts():
    bounds = [ratio_lower(hits, 100, 5, 100, delta=1e-5, significance=0.05) for hits in range(101)]
    assert np.all(np.diff(bounds) >= 0)
    bounds = [ratio_lower(60, 100, alarms, 100, delta=1e-5, significance=0.05) for alarms in range(101)]
    assert np.all(np.diff(bounds) <= 0)
    assert ratio_lower(0, 10, 0, 10, delta=0.0, significance=0.05) == 0.0
    assert ratio_lower(10, 10, 10, 10, delta=0.0, significance=0.05) == 0.0


def test_both_directions_are_seen():
    """A leak of non-members (they score very low) gives the bound that its mirror image gives."""
    scores = np.r_[np.full(100, 5.0), np.full(60, 5.0), np.full(40, -5.0)]
    members = np.arange(200) < 100
    low = clopper_pearson(scores, members, threshold=0.0, delta=1e-5, confidence=0.95)
    high = clopper_pearson(-scores, ~members, threshold=0.0, delta=1e-5, confidence=0.95)
    assert low.lower == pytest.approx(high.lower, abs=2e-3)
    assert low.lower > 1.0
    assert (low.family, low.trials, low.n, low.delta) == (Family.ANY, Trials.INDEPENDENT, 200, 1e-5)
    assert low.estimate == math.inf


def test_halves_are_disjoint_exhaustive_and_random():
    labels = np.arange(101) < 41
    first = half_split(labels, np.random.default_rng(0))
    assert first[labels].sum() == 20
    assert first[~labels].sum() == 30
    assert not np.array_equal(first, half_split(labels, np.random.default_rng(1)))


def test_split_repeats_under_one_seed():
    generator = np.random.default_rng(2)
    members = np.arange(400) < 200
    scores = generator.normal(size=400) + members
    bounds = {
        clopper_pearson_split(
            scores, members, delta=1e-5, confidence=0.95, generator=np.random.default_rng(3)
        ).lower
        for _ in range(3)
    }
    assert len(bounds) == 1


def test_unusable_input_is_named():
    scores, members = np.arange(10.0), np.arange(10) < 5
    with pytest.raises(InputError, match="threshold must be finite, got nan"):
        clopper_pearson(scores, members, threshold=math.nan, delta=1e-5, confidence=0.95)
    with pytest.raises(InputError, match=r"delta must be in \[0, 1\), got -0.1"):
        clopper_pearson(scores, members, threshold=0.0, delta=-0.1, confidence=0.95)
    with pytest.raises(InputError, match="at least two of each class"):
        clopper_pearson_split(
            scores, np.arange(10) < 1, delta=1e-5, confidence=0.95, generator=np.random.default_rng(0)
        )
