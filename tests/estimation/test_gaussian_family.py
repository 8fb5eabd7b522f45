"""The Gaussian-family bounds: their formulas, their error, and what the guard refuses."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, stdtrit
from scipy.stats import chi2, nct

from workbench.accounting.gaussian import epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import gaussian_location, gaussian_rank
from workbench.estimation.gaussian_family import (
    GUARD_LEVEL,
    auc_standard_deviation,
    mann_whitney,
    mu_lower_from_auc,
    noncentral_t_lower,
    triple_probability,
)
from workbench.interfaces import Family

BOTH = pytest.mark.parametrize("estimator", [gaussian_location, gaussian_rank])


@pytest.mark.parametrize(
    ("t", "df"), [(-3.0, 18), (0.0, 98), (5.0, 98), (15.8, 998), (42.0, 99_998), (40.0, 18)]
)
def test_noncentral_t_bound_has_the_stated_tail(t, df):
    assert nct.sf(t, df, noncentral_t_lower(t, df, 0.95)) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("df", [18, 1998, 199_998])
def test_no_t_is_too_large_for_a_bound(df):
    """scipy's tail is too small at 1e6, with warnings that are errors here."""
    bound = noncentral_t_lower(3e4, df, 0.95)
    assert noncentral_t_lower(1e6, df, 0.95) == noncentral_t_lower(1e9, df, 0.95) == bound
    # T / noncentrality tends to sqrt(df / chi2): the 95 % quantile of chi2 is the bound's own.
    assert bound / 3e4 == pytest.approx(math.sqrt(chi2.ppf(0.05, df) / df), rel=1e-3)


def test_moments_of_the_auc_equal_simulation():
    """Standard errors: 0.0003 for the triple probability, 1 % for the deviation."""
    generator = np.random.default_rng(1)
    x, y, z = generator.normal(size=(3, 10**6))
    assert float(triple_probability(float(ndtr(1 / math.sqrt(2))))) == pytest.approx(
        float(np.mean((x + 1 > y) & (x + 1 > z))), abs=2e-3
    )
    members = np.arange(50) < 20
    areas = [mann_whitney(generator.normal(size=50) + members, members) for _ in range(5000)]
    assert np.std(areas) == pytest.approx(auc_standard_deviation(1.0, 20, 30), rel=0.05)


@pytest.mark.parametrize(("n1", "n0"), [(50, 50), (20, 80), (80, 20)])
@pytest.mark.parametrize("mu", [0.25, 1.0, 2.5])
def test_rank_bound_covers(n1, n0, mu):
    """4,000 repetitions of the AUC inversion; limit 5 % + 3 s.e."""
    generator = np.random.default_rng([n1, int(10 * mu)])
    scores = np.concatenate(
        [generator.normal(size=(4000, n1)) + mu, generator.normal(size=(4000, n0))], axis=1
    )
    ranks = np.argsort(np.argsort(scores, axis=1), axis=1)[:, :n1].sum(axis=1) + n1
    areas = (ranks - n1 * (n1 + 1) / 2) / (n1 * n0)
    # The bound exceeds mu exactly where the area exceeds this.
    critical = float(ndtr(mu / math.sqrt(2))) + float(stdtrit(n1 + n0 - 2, 0.95)) * auc_standard_deviation(
        mu, n1, n0
    )
    assert np.mean(areas > critical) <= 0.05 + 3 * math.sqrt(0.0475 / 4000)
    if critical < 1:
        assert mu_lower_from_auc(critical, n1, n0, 0.95) == pytest.approx(mu, abs=1e-6)


def test_rank_bound_at_the_ends():
    assert mu_lower_from_auc(0.5, 50, 50, 0.95) == 0.0
    assert mu_lower_from_auc(0.0, 50, 50, 0.95) == 0.0
    assert 1.0 < mu_lower_from_auc(1.0, 10, 10, 0.95) < mu_lower_from_auc(1.0, 1000, 1000, 0.95) < 30.0


@BOTH
def test_quantities_convert_by_the_accountant(estimator):
    generator = np.random.default_rng(2)
    members = np.arange(500) < 250
    scores = generator.normal(size=500) + members
    mu = estimator(scores, members, delta=1e-5, confidence=0.95, quantity="mu")
    epsilon = estimator(scores, members, delta=1e-5, confidence=0.95)
    assert epsilon.lower == pytest.approx(epsilon_of_delta(mu.lower, 1e-5))
    assert (mu.quantity, mu.delta, epsilon.quantity, epsilon.delta) == ("mu", None, "epsilon", 1e-5)
    assert mu.family is Family.GAUSSIAN
    assert mu.lower < mu.estimate


def test_location_does_not_depend_on_units_nor_rank_on_any_increasing_transform():
    generator = np.random.default_rng(3)
    members = np.arange(500) < 250
    scores = generator.normal(size=500) + members
    for estimator, transform in ((gaussian_location, lambda s: 7 * s - 3), (gaussian_rank, np.exp)):
        bounds = [
            estimator(values, members, delta=1e-5, confidence=0.95).lower
            for values in (scores, transform(scores))
        ]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("n", [100, 2000])
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_the_guard_keeps_its_level(estimator, n, mu):
    """1,000 repetitions; limit GUARD_LEVEL + 4 s.e. (0.0226): 0.01 % false alarm where the level is exact."""
    generator = np.random.default_rng([n, int(mu)])
    members = np.arange(n) < n // 2
    refused = 0
    for _ in range(1000):
        try:
            estimator(generator.normal(size=n) + mu * members, members, delta=1e-5, confidence=0.95)
        except UnsupportedError:
            refused += 1
    assert refused / 1000 <= GUARD_LEVEL + 4 * math.sqrt(GUARD_LEVEL * (1 - GUARD_LEVEL) / 1000)


@BOTH
def test_ties_are_refused(estimator):
    members = np.arange(200) < 100
    scores = np.round(np.random.default_rng(4).normal(size=200) + members)
    with pytest.raises(UnsupportedError, match=r"distinct|normal"):
        estimator(scores, members, delta=1e-5, confidence=0.95)


@pytest.mark.parametrize("exponent", [-700, 1000])
def test_location_is_the_same_for_the_largest_and_the_smallest_scores(exponent):
    members = np.arange(60) % 2 == 1
    scores = np.random.default_rng(5).normal(size=60) + members
    plain = gaussian_location(scores, members, delta=1e-5, confidence=0.95)
    scaled = gaussian_location(np.ldexp(scores, exponent), members, delta=1e-5, confidence=0.95)
    assert scaled == plain


def test_a_release_without_noise_is_refused():
    members = np.arange(200) < 100
    with pytest.raises(UnsupportedError, match="zero variance"):
        gaussian_location(members * 1.0, members, delta=1e-5, confidence=0.95)


def test_heavy_tails_and_unequal_variances_are_refused():
    generator = np.random.default_rng(5)
    members = np.arange(2000) < 1000
    with pytest.raises(UnsupportedError, match="not normal"):
        gaussian_location(generator.standard_t(3, size=2000) + members, members, delta=1e-5, confidence=0.95)
    with pytest.raises(UnsupportedError, match="variances"):
        gaussian_location(generator.normal(size=2000) * (1 + members), members, delta=1e-5, confidence=0.95)
    with pytest.raises(UnsupportedError, match="not symmetric"):
        gaussian_rank(
            generator.normal(size=2000) * (1 + members) + members, members, delta=1e-5, confidence=0.95
        )


@BOTH
def test_unusable_input_is_named(estimator):
    scores, members = np.arange(10.0), np.arange(10) < 5
    with pytest.raises(InputError, match=r"delta must be in \(0, 1\), got 0"):
        estimator(scores, members, delta=0.0, confidence=0.95)
    with pytest.raises(InputError, match="quantity must be 'epsilon' or 'mu', got 'nats'"):
        estimator(scores, members, delta=1e-5, confidence=0.95, quantity="nats")
