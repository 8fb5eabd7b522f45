"""Attack metrics with confidence intervals: AUC, advantage, accuracies, TPR at a fixed FPR.

All take scores and labels as `check_game` does (scores may all be equal: an AUC of 1/2, an advantage of 0),
need independent scores, identically distributed within each class, and raise `InputError` for unusable
arguments. Confidences are two-sided. Metrics that search over thresholds pay for the search.

An AUC below one half is no sign of privacy, but of a broken game or a flipped score. An attack whose higher
scores mean "member" has an AUC of one half where nothing leaks, and above where something does. One that is
significantly below has told members from non-members, in the wrong direction: whoever reads the scores upside
down has one less that AUC. So it counts neither for the mechanism nor for the attack before the cause is
known; `auc_below_half` and `runs_below_half` say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, ndtr
from scipy.stats import rankdata

from workbench.core.errors import InputError
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.estimation.inputs import INDEPENDENT_SCORES, check_game, check_probability, split_classes
from workbench.estimation.searching import smallest_count
from workbench.interfaces import BoolArray, FloatArray, Interval

_FEW_INVERSIONS = 10
NAMED = 3
"""Most runs that a remark names."""

_MOST_RECORDS = 2**40


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


def _interval(name: str, estimate: float, lower: float, upper: float, confidence: float) -> Interval:
    return Interval(
        name=name,
        estimate=estimate,
        lower=lower,
        upper=upper,
        confidence=confidence,
        assumption=INDEPENDENT_SCORES,
    )


def roc_curve(scores: FloatArray, members: BoolArray) -> RocCurve:
    """Returns the empirical ROC; tied scores share one point, so no order within a tie is invented."""
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
    distributions has, AUC (1 - AUC) / min(n1, n0) (Birnbaum and Klose 1957), takes its place. The confidence
    is approximate, checked by simulation.
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
    lower = float(betaincinv(won, lost + 1.0, error)) if won > 0 else 0.0
    upper = float(betaincinv(won + 1.0, lost, 1.0 - error)) if lost > 0 else 1.0
    return _interval("auc", area, lower, upper, confidence)


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
        """How far the tail at x is above the error."""
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
    """Returns the largest TPR - FPR over all thresholds; the interval pays for the choice of threshold.

    The confidence holds in finite samples.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    best, lower, upper = _best_difference(values, labels, (1.0, 1.0), confidence)
    return _interval("advantage", best, max(0.0, lower), min(1.0, upper), confidence)


def balanced_accuracy(scores: FloatArray, members: BoolArray, *, confidence: float) -> Interval:
    """Largest (TPR + 1 - FPR) / 2 over all thresholds: the accuracy at even odds; see `advantage`."""
    value = advantage(scores, members, confidence=confidence)
    estimate, lower, upper = ((1 + each) / 2 for each in (value.estimate, value.lower, value.upper))
    return _interval("balanced_accuracy", estimate, lower, upper, confidence)


def accuracy(scores: FloatArray, members: BoolArray, *, confidence: float) -> Interval:
    """Largest accuracy over all thresholds at the observed share of members; pays for the threshold.

    The confidence holds in finite samples.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    share = float(labels.mean())
    best, lower, upper = _best_difference(values, labels, (share, 1.0 - share), confidence)
    lower, upper = max(lower + 1.0 - share, share, 1.0 - share), min(upper + 1.0 - share, 1.0)
    return _interval("accuracy", best + 1.0 - share, lower, upper, confidence)


def tpr_at_fpr(scores: FloatArray, members: BoolArray, *, fpr: float, confidence: float) -> Interval:
    """True-positive rate at the lowest threshold whose false-positive rate is at most `fpr`, in (0, 1).

    The threshold is an estimate too. Order statistics of the non-members hold the true threshold between two
    of their scores, and Clopper-Pearson limits of the members' rates there close the interval; each of the
    four events takes a quarter of the error. The confidence holds in finite samples. With few non-members the
    interval is wide: below about 4 / fpr of them its lower end is 0.
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
    estimate = float(curve.tpr[curve.fpr <= fpr].max())
    return _interval(f"tpr_at_fpr_{fpr:g}", estimate, lower, upper, confidence)


@dataclass(frozen=True, kw_only=True)
class MidpointMetrics:
    """Metrics at one threshold that was set with the labels, and hence optimistic.

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
    """Returns metrics at the midpoint between the mean scores of members and non-members."""
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


def auc_below_half(auc: float, lower: float, upper: float, *, confidence: float = 0.95) -> str | None:
    """Returns a remark on an AUC whose whole confidence interval lies below one half; None for any other.

    An AUC of one half is remarked on by chance with probability `(1 - confidence) / 2` at most, as far as the
    interval covers. No verdict may become more favourable by such an AUC. Numbers that are not finite get no
    remark.

    Raises `InputError`: the three numbers are not in order within [0, 1], or a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    if not all(math.isfinite(value) for value in (auc, lower, upper)):
        return None
    if not 0.0 <= lower <= auc <= upper <= 1.0:
        raise InputError(
            f"auc must lie between lower and upper in [0, 1], got {lower:g} <= {auc:g} <= {upper:g}"
        )
    if upper >= 0.5:
        return None
    one_sided = (1.0 + confidence) / 2.0
    return (
        f"AUC {auc:.3f} [{lower:.3f} to {upper:.3f}] is below one half: members score lower than non-members "
        f"with confidence {100.0 * one_sided:.4g} % (where nothing leaks, {_one_in(1.0 - one_sided)} such "
        "games looks so by chance). The game is broken (members and non-members differ in distribution, or "
        "the labels are swapped) or the score is flipped. Such an AUC does not show privacy: the flipped "
        f"score has AUC {1.0 - auc:.3f} [{1.0 - upper:.3f} to {1.0 - lower:.3f}]."
    )


def _one_in(probability: float) -> str:
    return f"one in {round(1.0 / probability):,}"


def records_below_half(auc: float, *, confidence: float = 0.95) -> int:
    """Returns the smallest number of records of each class with which an AUC is surely below one half.

    For printed AUCs with an unstated number of records: with at least so many members and as many non-members
    the interval of `auc` lies below one half even at the largest variance that any pair of distributions has.
    For a rounded AUC give the upper end of what it stands for.

    Raises `InputError`: an AUC outside [0, 1/2), or so near to it that no number of records would do.
    """
    check_probability("confidence", confidence)
    if not 0.0 <= auc < 0.5:
        raise InputError(f"auc must be in [0, 0.5), got {auc!r}")

    def shows(n: int) -> bool:
        """The Clopper-Pearson upper end of n auc hits in n coin tosses is below one half."""
        return bool(betainc(auc * n + 1.0, (1.0 - auc) * n, 0.5) > (1.0 + confidence) / 2.0)

    count = smallest_count(shows, start=1, most=_MOST_RECORDS)
    if count is None:
        raise InputError(f"auc must be further below 0.5 to tell it from one half, got {auc!r}")
    return count


def runs_below_half(
    runs: Mapping[str, tuple[FloatArray, BoolArray]], *, confidence: float = 0.95
) -> tuple[str, ...]:
    """Returns a remark on a study's runs whose AUCs are below one half: how many, and whether beyond chance.

    Each run has its own interval, so some of many runs are below by chance. Bonferroni's correction for the
    number of runs, which holds however they depend on each other (runs of one seed share their members),
    sorts those out: where nothing leaks, the second sentence appears in at most `(1 - confidence) / 2` of
    studies.

    `runs` maps names to scores and labels; runs without an AUC (one class alone, scores that are not finite)
    are left out. Raises `InputError`: a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    usable = {name: game for name, game in runs.items() if _has_area(*game)}
    corrected = 1.0 - (1.0 - confidence) / max(1, len(usable))
    below, beyond = {}, 0
    for name, (scores, members) in usable.items():
        area = auc(scores, members, confidence=confidence)
        if area.upper < 0.5:
            below[name] = area
            beyond += auc(scores, members, confidence=corrected).upper < 0.5
    if not below:
        return ()
    lowest = sorted(below, key=lambda name: (below[name].estimate, name))
    named = "; ".join(
        f"{name}: {below[name].estimate:.3f} [{below[name].lower:.3f} to {below[name].upper:.3f}]"
        for name in lowest[:NAMED]
    )
    more = f"; and {len(below) - NAMED} more" if len(below) > NAMED else ""
    expected = len(usable) * (1.0 - confidence) / 2.0
    head = (
        f"AUC below one half: in {len(below)} of {len(usable)} runs the whole {100.0 * confidence:g} % "
        f"interval lies below ({named}{more}); where nothing leaks, chance gives {expected:.2g}. "
    )
    if not beyond:
        return (
            head
            + f"None stays below when corrected for {len(usable)} runs (Bonferroni), so they may be luck. "
            "None of them shows privacy.",
        )
    worst = below[lowest[0]].estimate
    return (
        head
        + f"{beyond} of them stay below when corrected for {len(usable)} runs (Bonferroni): there members "
        "score lower than non-members. The game is broken (members and non-members differ in distribution, "
        "or the labels are swapped) or the score is flipped. Such an AUC does not show privacy: flipped, the "
        f"lowest is {1.0 - worst:.3f}.",
    )


def _has_area(scores: FloatArray, members: BoolArray) -> bool:
    """Whether both classes are there, and all scores finite."""
    labels = np.asarray(members, dtype=bool)
    return bool(labels.any() and not labels.all() and np.isfinite(scores).all())
