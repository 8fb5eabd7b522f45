"""Metrics against scikit-learn and hand counts; degenerate cases; power; tests of other guarantees."""

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from workbench.accounting import ApproximateDP, GaussianDP, MutualInformation
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation import (
    accuracy,
    advantage,
    auc,
    balanced_accuracy,
    midpoint_threshold_metrics,
    roc_curve,
    success_lower,
    tpr_at_fpr,
    tradeoff_violation,
)
from workbench.estimation.metrics import _two_suprema

PERFECT = np.arange(20) < 10


def game(n=200, seed=0, digits=None):
    generator = np.random.default_rng(seed)
    members = generator.random(n) < 0.4
    scores = generator.normal(size=n) + members
    return (scores if digits is None else np.round(scores, digits)), members


@pytest.mark.parametrize("count", [50, 100, 300, 1000, 3000])
def test_rates_of_an_roc_are_counts_divided_once(count: int) -> None:
    scores = np.concatenate([np.arange(count) + 0.5, np.arange(count)]).astype(np.float64)
    curve = roc_curve(scores, np.arange(2 * count) < count)
    rates = {k / count for k in range(count + 1)}
    assert set(curve.fpr.tolist()) == set(curve.tpr.tolist()) == rates


def test_the_point_at_a_false_positive_rate_itself_counts() -> None:
    """One of 100 non-members is above 88 members, and those above all others: 88 % at 1 %, not 0 %."""
    members = np.arange(200) < 100
    scores = np.where(members, np.where(np.arange(200) < 88, 2.0, 0.0), 1.0)
    scores[100] = 3.0
    assert tpr_at_fpr(scores, members, fpr=0.01, confidence=0.95).estimate == 0.88


@pytest.mark.parametrize("digits", [None, 1, 0])
def test_roc_and_auc_equal_scikit_learn(digits):
    scores, members = game(digits=digits)
    fpr, tpr, thresholds = sklearn_roc_curve(members, scores, drop_intermediate=False)
    curve = roc_curve(scores, members)
    assert curve.fpr == pytest.approx(fpr)
    assert curve.tpr == pytest.approx(tpr)
    assert curve.thresholds == pytest.approx(thresholds)
    assert auc(scores, members, confidence=0.9).estimate == pytest.approx(roc_auc_score(members, scores))


def test_best_threshold_metrics_equal_a_search():
    scores, members = game()
    guesses = scores[:, None] >= scores[None, :]
    tpr, fpr = guesses[members].mean(axis=0), guesses[~members].mean(axis=0)
    right = (guesses == members[:, None]).mean(axis=0)
    assert advantage(scores, members, confidence=0.9).estimate == pytest.approx((tpr - fpr).max())
    assert balanced_accuracy(scores, members, confidence=0.9).estimate == pytest.approx(
        (1 + (tpr - fpr).max()) / 2
    )
    assert accuracy(scores, members, confidence=0.9).estimate == pytest.approx(right.max())


def test_midpoint_metrics_equal_scikit_learn():
    scores, members = game()
    found = midpoint_threshold_metrics(scores, members)
    guesses = scores >= (scores[members].mean() + scores[~members].mean()) / 2
    assert found.accuracy == pytest.approx(np.mean(guesses == members))
    assert found.precision == pytest.approx(precision_score(members, guesses))
    assert found.recall == pytest.approx(recall_score(members, guesses))
    assert found.f1 == pytest.approx(f1_score(members, guesses))
    assert found.threshold_uses_labels


def test_a_perfect_attack_on_few_has_a_proper_interval():
    interval = auc(PERFECT * 1.0, PERFECT, confidence=0.95)
    assert interval.estimate == interval.upper == 1.0
    assert interval.lower == pytest.approx(0.025 ** (1 / 10))
    mirrored = auc(-1.0 * PERFECT, PERFECT, confidence=0.95)
    assert (mirrored.lower, mirrored.upper) == pytest.approx((0.0, 1 - interval.lower))
    assert 0.0 < advantage(PERFECT * 1.0, PERFECT, confidence=0.95).lower < 0.5
    assert tpr_at_fpr(PERFECT * 1.0, PERFECT, fpr=0.001, confidence=0.95).lower == 0.0


def test_tpr_at_fpr_equals_a_hand_count():
    scores = np.r_[np.arange(100) + 50.5, np.arange(100.0)]
    members = np.arange(200) < 100
    # FPR <= 0.1 allows the ten highest non-members, 90 ... 99: threshold above 89, members from 89.5 + 1 on.
    interval = tpr_at_fpr(scores, members, fpr=0.1, confidence=0.95)
    assert interval.estimate == pytest.approx(0.61)
    assert interval.lower < 0.61 < interval.upper


@pytest.mark.parametrize("metric", [auc, advantage, accuracy, balanced_accuracy])
def test_intervals_widen_with_confidence_and_narrow_with_data(metric):
    widths = {}
    for n in (200, 2000):
        scores, members = game(n)
        for confidence in (0.8, 0.99):
            interval = metric(scores, members, confidence=confidence)
            assert 0.0 <= interval.lower <= interval.estimate <= interval.upper <= 1.0
            widths[n, confidence] = interval.upper - interval.lower
    assert widths[200, 0.8] < widths[200, 0.99]
    assert widths[2000, 0.99] < widths[200, 0.99]


def test_sum_of_two_suprema_has_the_stated_tail():
    """10^6 draws of the dominating sum; standard error 0.00016."""
    first, second = np.random.default_rng(1).rayleigh(size=(2, 10**6))
    quantile = _two_suprema(50, 80, 0.3, 0.7, 0.025)
    total = 0.3 * first / (2 * math.sqrt(50)) + 0.7 * second / (2 * math.sqrt(80))
    assert np.mean(total > quantile) == pytest.approx(0.025, abs=8e-4)


def test_success_bound_of_a_perfect_and_of_a_blind_attack():
    members = np.arange(1000) < 500
    bound = success_lower(members * 1.0, members, confidence=0.95, generator=np.random.default_rng(2))
    assert bound.lower == pytest.approx(0.05 ** (1 / 500))
    assert bound.quantity == "success"
    assert bound.estimate == 1.0
    noise = np.random.default_rng(3).normal(size=1000)
    assert success_lower(noise, members, confidence=0.95, generator=np.random.default_rng(4)).lower < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [GaussianDP(mu=1.0), ApproximateDP(epsilon=1.0, delta=0.05)])
def test_a_true_guarantee_is_seldom_refuted(guarantee):
    """Members at the guarantee's own curve: u uniform for non-members, P[u <= t] = max_tpr(t) for members."""
    generator = np.random.default_rng(5)
    members = np.arange(400) < 200
    grid = np.linspace(0.0, 1.0, 20_001)
    curve = guarantee.max_tpr(grid)
    rejected = 0
    for _ in range(250):
        places = np.interp(generator.random(200), curve, grid)
        places = np.where(generator.random(200) < curve[0], -1e-9 * generator.random(200), places)
        scores = -np.concatenate([places, generator.random(200)])
        rejected += tradeoff_violation(scores, members, guarantee, significance=0.05).rejected
    assert rejected / 250 <= 0.05 + 3 * math.sqrt(0.0475 / 250)


def test_a_false_guarantee_is_refuted():
    generator = np.random.default_rng(6)
    members = np.arange(1000) < 500
    scores = generator.normal(size=1000) + members
    for guarantee in (GaussianDP(mu=0.5), ApproximateDP(epsilon=0.8, delta=1e-5)):
        for values in (scores, np.exp(scores)):
            found = tradeoff_violation(values, members, guarantee, significance=0.05)
            assert found.rejected
            assert found.p_value <= 0.05
            assert found.tpr > found.max_tpr


def test_a_guarantee_without_a_curve_is_unsupported():
    with pytest.raises(UnsupportedError):
        tradeoff_violation(
            PERFECT * 1.0, PERFECT, MutualInformation(nats=0.25, secret="record"), significance=0.05
        )


def test_unusable_input_is_named():
    with pytest.raises(InputError, match=r"fpr must be in \(0, 1\), got 0"):
        tpr_at_fpr(PERFECT * 1.0, PERFECT, fpr=0.0, confidence=0.95)
    with pytest.raises(InputError, match=r"confidence must be in \(0, 1\), got 95"):
        auc(PERFECT * 1.0, PERFECT, confidence=95)
    with pytest.raises(InputError, match=r"significance must be in \(0, 1\), got 0"):
        tradeoff_violation(PERFECT * 1.0, PERFECT, GaussianDP(mu=1.0), significance=0.0)
