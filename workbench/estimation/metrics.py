"""Attack metrics with confidence intervals that cover: AUC, advantage, accuracies, TPR at a fixed FPR.

All need independent scores, identically distributed within each class. Metrics that search over
thresholds pay for the search. Scores that are all alike are one tie: an AUC of 1/2, an advantage of 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, ndtr
from scipy.stats import rankdata

from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.estimation.inputs import check_game, check_probability, split_classes
from workbench.interfaces import BoolArray, FloatArray, Interval

_ASSUMPTION = "scores are independent, and identically distributed within each class"
_FEW_INVERSIONS = 10


@dataclass(frozen=True, kw_only=True)
class RocCurve:
    """The empirical ROC: one point for each distinct score, and the origin.

    Attributes:
        thresholds: Descending, `inf` first; a score at or above it is a guess "member". Shape `(k,)`.
        fpr: False-positive rates, ascending from 0 to 1, shape `(k,)`.
        tpr: True-positive rates, likewise.
    """

    thresholds: FloatArray
    fpr: FloatArray
    tpr: FloatArray


def roc_curve(scores: FloatArray, members: BoolArray) -> RocCurve:
    """Empirical ROC; tied scores share one point, so no order within a tie is invented.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`.

    Raises:
        InputError: unusable scores or labels.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    inside, outside = split_classes(values, labels)
    thresholds = np.unique(values)[::-1]
    # Counts divided once: 1 - 99 / 100 is above 0.01, and a rate of 1 % would miss its own point.
    tpr = (inside.size - np.searchsorted(inside, thresholds, side="left")) / inside.size
    fpr = (outside.size - np.searchsorted(outside, thresholds, side="left")) / outside.size
    return RocCurve(
        thresholds=np.concatenate([[np.inf], thresholds]),
        fpr=np.concatenate([[0.0], fpr]),
        tpr=np.concatenate([[0.0], tpr]),
    )


def auc(scores: FloatArray, members: BoolArray, *, confidence: float) -> Interval:
    """Area under the ROC, P[member > non-member] + P[tie] / 2, with an interval for any distribution.

    The variance (DeLong et al. 1988) is turned into a number of equivalent coin tosses, and these into a
    Clopper-Pearson interval, which stays inside [0, 1] and off its ends. With fewer than ten scores of a
    class in any inversion the variance estimate says little; the largest variance that any pair of
    distributions has, AUC (1 - AUC) / min(n1, n0) (Birnbaum and Klose 1957), takes its place.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`.
        confidence: Two-sided, in (0, 1); approximate, checked by simulation.

    Raises:
        InputError: unusable scores, labels or confidence.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    n1, n0 = int(labels.sum()), int(np.sum(~labels))
    ranks = rankdata(values)
    wins = (ranks[labels] - rankdata(values[labels])) / n0
    losses = 1.0 - (ranks[~labels] - rankdata(values[~labels])) / n1
    area = float(wins.mean())
    fewest = min(n1, n0)
    tosses = float(fewest)
    inverted = min(_inversions(wins), _inversions(losses))
    if inverted >= _FEW_INVERSIONS:
        variance = float(wins.var(ddof=1) / n1 + losses.var(ddof=1) / n0)
        tosses = max(tosses, area * (1.0 - area) / variance) if variance > 0 else tosses
    error = (1.0 - confidence) / 2
    won, lost = area * tosses, (1.0 - area) * tosses
    return Interval(
        name="auc",
        estimate=area,
        lower=float(betaincinv(won, lost + 1.0, error)) if won > 0 else 0.0,
        upper=float(betaincinv(won + 1.0, lost, 1.0 - error)) if lost > 0 else 1.0,
        confidence=confidence,
        assumption=_ASSUMPTION,
    )


def _inversions(placements: FloatArray) -> int:
    """How many scores lie on the wrong side of some score of the other class, whichever side is fewer."""
    return int(min(np.sum(placements < 1.0 - 1e-12), np.sum(placements > 1e-12)))


def _two_suprema(n1: int, n0: int, w1: float, w0: float, error: float) -> float:
    """Quantile of w1 sup(F1 - F1_hat) + w0 sup(F0_hat - F0), at most: convolves the two tails exp(-2 n x^2).

    The tails are the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant, one-sided and for
    every x (Reeve 2024), for independent samples. With a = w1 / (2 sqrt n1) and b = w0 / (2 sqrt n0) the
    sum is dominated by a R + b R' for independent Rayleigh variables, whose tail has a closed form.
    """
    a, b = w1 / (2 * math.sqrt(n1)), w0 / (2 * math.sqrt(n0))
    both = a * a + b * b
    spread = math.sqrt(both)

    def excess(x: float) -> float:
        middle = ndtr(a * x / (b * spread)) - ndtr(-b * x / (a * spread))
        height = a * b * x * math.sqrt(2 * math.pi) / (both * spread)
        peak = height * math.exp(-x * x / (2 * both)) * float(middle)
        left = a * a / both * math.exp(-x * x / (2 * a * a))
        right = b * b / both * math.exp(-x * x / (2 * b * b))
        return left + right + peak - error

    return float(brentq(excess, 0.0, 10.0 * (w1 + w0), xtol=1e-12))


def _best_difference(
    scores: FloatArray, members: BoolArray, weights: tuple[float, float], confidence: float
) -> tuple[float, float, float]:
    """Interval for the supremum over thresholds of w1 TPR - w0 FPR: estimate, lower, upper."""
    curve = roc_curve(scores, members)
    n1, n0 = int(members.sum()), int(np.sum(~members))
    w1, w0 = weights
    best = float(np.max(w1 * curve.tpr - w0 * curve.fpr))
    error = (1.0 - confidence) / 2
    # Upwards: at the best true threshold the estimate is at least the observed difference (Hoeffding 1963).
    above = math.sqrt(math.log(1.0 / error) / 2 * (w1 * w1 / n1 + w0 * w0 / n0))
    return best, best - _two_suprema(n1, n0, w1, w0, error), best + above


def advantage(scores: FloatArray, members: BoolArray, *, confidence: float) -> Interval:
    """Largest TPR - FPR over all thresholds; the interval pays for the choice of threshold.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`.
        confidence: Two-sided, in (0, 1); holds in finite samples.

    Raises:
        InputError: unusable scores, labels or confidence.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    best, lower, upper = _best_difference(values, labels, (1.0, 1.0), confidence)
    return Interval(
        name="advantage",
        estimate=best,
        lower=max(0.0, lower),
        upper=min(1.0, upper),
        confidence=confidence,
        assumption=_ASSUMPTION,
    )


def balanced_accuracy(scores: FloatArray, members: BoolArray, *, confidence: float) -> Interval:
    """Largest (TPR + 1 - FPR) / 2 over all thresholds: the accuracy at even odds; see `advantage`."""
    value = advantage(scores, members, confidence=confidence)
    return Interval(
        name="balanced_accuracy",
        estimate=(1 + value.estimate) / 2,
        lower=(1 + value.lower) / 2,
        upper=(1 + value.upper) / 2,
        confidence=confidence,
        assumption=_ASSUMPTION,
    )


def accuracy(scores: FloatArray, members: BoolArray, *, confidence: float) -> Interval:
    """Largest accuracy over all thresholds at the observed share of members; pays for the threshold.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`.
        confidence: Two-sided, in (0, 1); holds in finite samples.

    Raises:
        InputError: unusable scores, labels or confidence.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    share = float(labels.mean())
    best, lower, upper = _best_difference(values, labels, (share, 1.0 - share), confidence)
    return Interval(
        name="accuracy",
        estimate=best + 1.0 - share,
        lower=max(lower + 1.0 - share, share, 1.0 - share),
        upper=min(upper + 1.0 - share, 1.0),
        confidence=confidence,
        assumption=_ASSUMPTION,
    )


def tpr_at_fpr(scores: FloatArray, members: BoolArray, *, fpr: float, confidence: float) -> Interval:
    """True-positive rate at the lowest threshold whose false-positive rate is at most `fpr`.

    The threshold is an estimate too. Order statistics of the non-members hold the true threshold between
    two of their scores, and Clopper-Pearson limits of the members' rates there close the interval; each
    of the four events takes a quarter of the error. With few non-members the interval is wide: below
    about 4 / fpr of them its lower end is 0.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`.
        fpr: In (0, 1).
        confidence: Two-sided, in (0, 1); holds in finite samples.

    Raises:
        InputError: unusable input.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("fpr", fpr)
    check_probability("confidence", confidence)
    inside, outside = split_classes(values, labels)
    n1, n0 = inside.size, outside.size
    quarter = (1.0 - confidence) / 4
    k = np.arange(1, n0 + 1, dtype=np.float64)
    # FPR beyond the k-th highest non-member is Beta(k, n0 + 1 - k) where scores are continuous.
    below_level = betainc(k, n0 + 1.0 - k, fpr)
    safe = int(np.sum(1.0 - below_level <= quarter))
    enough = n0 - int(np.sum(below_level <= quarter))

    def beyond(rank: int) -> int:
        return n1 - int(np.searchsorted(inside, outside[n0 - rank], side="right"))

    lower = binomial_lower(beyond(safe), n1, quarter) if safe > 0 else 0.0
    upper = binomial_upper(beyond(enough + 1), n1, quarter) if enough < n0 else 1.0
    curve = roc_curve(values, labels)
    return Interval(
        name=f"tpr_at_fpr_{fpr:g}",
        estimate=float(curve.tpr[curve.fpr <= fpr].max()),
        lower=lower,
        upper=upper,
        confidence=confidence,
        assumption=_ASSUMPTION,
    )


@dataclass(frozen=True, kw_only=True)
class MidpointMetrics:
    """The metrics of the DP-Weights paper: optimistic, for the threshold was set with the labels.

    Attributes:
        threshold: Midpoint of the members' and the non-members' mean score.
        auc: Area under the ROC.
        accuracy: Share of right guesses at the threshold.
        precision: Share of members among the guesses "member"; NaN without such guesses.
        recall: TPR at the threshold.
        f1: Harmonic mean of precision and recall; 0 where no guess "member" is right.
        threshold_uses_labels: True: no attacker knows this threshold, and no interval is given.
    """

    threshold: float
    auc: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    threshold_uses_labels: bool = True


def midpoint_threshold_metrics(scores: FloatArray, members: BoolArray) -> MidpointMetrics:
    """Metrics at the midpoint between the mean scores of members and non-members.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`.

    Raises:
        InputError: unusable scores or labels.

    Source: DP-Weights, section 3.3.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    threshold = float(values[labels].mean() + values[~labels].mean()) / 2
    guesses = values >= threshold
    hits, guessed, n1 = int(np.sum(guesses & labels)), int(guesses.sum()), int(labels.sum())
    return MidpointMetrics(
        threshold=threshold,
        auc=auc(values, labels, confidence=0.95).estimate,
        accuracy=float(np.mean(guesses == labels)),
        precision=hits / guessed if guessed else math.nan,
        recall=hits / n1,
        f1=2 * hits / (guessed + n1),
    )
