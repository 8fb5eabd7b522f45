"""Tests of "no difference" and of equivalence, and intervals of a mean, over units of replication.

The routines are scipy's and statsmodels'; this module decides what they are given, and answers "not testable"
where they would warn, divide by zero, or count measurements of one trained model as replicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from workbench.core.errors import InputError
from workbench.reports.shared.statistics.results import (
    Answer,
    Equivalence,
    Interval,
    NotTestable,
    StatisticalTest,
    counted,
)
from workbench.reports.shared.statistics.sample import Matched, Sample, matched, spreads

PAIRED = "differences of the units' means are independent and normal"
INDEPENDENT = "units are independent and their means normal within each side"


def checked_confidence(confidence: float) -> float:
    """Refuse a confidence out of range; otherwise return it.

    Raises:
        InputError: it is not in (0.5, 1).
    """
    if not 0.5 < confidence < 1.0:
        raise InputError(f"confidence must be in (0.5, 1), got {confidence}")
    return confidence


def too_few(name: str, sample: Sample, least: int = 2) -> NotTestable:
    """The answer for a sample of fewer units than a method needs."""
    return NotTestable(
        name=name,
        why=f"needs at least {counted(least, sample.unit)}, got {sample.n_units}",
        n_units=sample.n_units,
        unit=sample.unit,
    )


def paired_units(name: str, first: Sample, second: Sample) -> tuple[Sample, Sample] | NotTestable:
    """Both sides' unit means, matched, of at least two units whose differences are not all one number."""
    pairs: Matched = matched(first, second)
    if pairs.first is None or pairs.second is None:
        return _no_pair(name, first)
    a, b = pairs.first.by_unit(), pairs.second.by_unit()
    if a.n_units < 2:
        return too_few(name, a)
    differences = a.values - b.values
    size = float(max(np.max(np.abs(pairs.first.values)), np.max(np.abs(pairs.second.values))))
    if not spreads(differences, size):
        why = (
            f"all {counted(a.n_units, a.unit)} differ by the same {differences[0]:.6g}, so no spread is known"
        )
        return NotTestable(name=name, why=why, n_units=a.n_units, unit=a.unit)
    return a, b


def independent_units(name: str, first: Sample, second: Sample) -> tuple[Sample, Sample] | NotTestable:
    """Both sides' unit means, at least two units each, not both without spread.

    Raises:
        InputError: the units of replication have different names.
    """
    if first.unit != second.unit:
        raise InputError(f"samples must share a unit of replication, got {first.unit!r} and {second.unit!r}")
    a, b = first.by_unit(), second.by_unit()
    if min(a.n_units, b.n_units) < 2:
        return too_few(name, min(a, b, key=lambda side: side.n_units))
    if not spreads(a.values) and not spreads(b.values):
        return NotTestable(
            name=name,
            why="neither side has any spread",
            n_units=a.n_units + b.n_units,
            unit=a.unit,
        )
    return a, b


def paired_t(first: Sample, second: Sample, *, confidence: float = 0.95) -> Answer:
    """Paired t test of the units' means (scipy.stats.ttest_rel), first less second.

    For a design of units times epsilons this is the cluster-aware comparison: the difference is taken within
    each unit and epsilon, averaged over the unit's epsilons, and the units' averages are tested. It is the
    test of a mixed model with a random effect of the unit on the difference, where all units have the same
    epsilons. See `workbench.reports.shared.statistics` for its measured error rates.
    """
    checked_confidence(confidence)
    sides = paired_units("paired t", first, second)
    if isinstance(sides, NotTestable):
        return sides
    left_out = matched(first, second).left_out
    from scipy import stats

    a, b = sides
    result = stats.ttest_rel(a.values, b.values)
    interval = result.confidence_interval(confidence_level=confidence)
    spread = float(np.std(a.values - b.values, ddof=1))
    return StatisticalTest(
        name="paired t",
        statistic=float(result.statistic),
        p_value=float(result.pvalue),
        estimate=float(np.mean(a.values - b.values)),
        lower=float(interval.low),
        upper=float(interval.high),
        confidence=confidence,
        counts=(a.n_units,),
        unit=a.unit,
        assumption=PAIRED,
        df=float(result.df),
        spread=spread,
        left_out=left_out,
    )


def _independent_t(first: Sample, second: Sample, *, name: str, pooled: bool, confidence: float) -> Answer:
    """Student's or Welch's t test of the units' means, through statsmodels."""
    checked_confidence(confidence)
    sides = independent_units(name, first, second)
    if isinstance(sides, NotTestable):
        return sides
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    a, b = sides
    compare = CompareMeans(DescrStatsW(a.values), DescrStatsW(b.values))
    variance = "pooled" if pooled else "unequal"
    statistic, p_value, df = compare.ttest_ind(usevar=variance)
    lower, upper = compare.tconfint_diff(alpha=1.0 - confidence, usevar=variance)
    counts = (a.n_units, b.n_units)
    spread = math.sqrt((np.var(a.values, ddof=1) + np.var(b.values, ddof=1)) / 2.0)
    return StatisticalTest(
        name=name,
        statistic=float(statistic),
        p_value=float(p_value),
        estimate=float(np.mean(a.values) - np.mean(b.values)),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        counts=counts,
        unit=a.unit,
        assumption=INDEPENDENT + (", with equal variances" if pooled else ""),
        df=float(df),
        spread=spread,
    )


def welch_t(first: Sample, second: Sample, *, confidence: float = 0.95) -> Answer:
    """Welch's t test of independent units' means, first less second.

    For units that share nothing. Where both sides were trained on the same splits, `paired_t` is the test.

    Raises:
        InputError: the units of replication have different names; or the confidence is not in (0.5, 1).
    """
    return _independent_t(first, second, name="Welch t", pooled=False, confidence=confidence)


def pooled_t(first: Sample, second: Sample, *, confidence: float = 0.95) -> Answer:
    """Student's t test of independent units' means with a pooled variance, first less second."""
    name = "Student t, pooled variance"
    return _independent_t(first, second, name=name, pooled=True, confidence=confidence)


def wilcoxon(first: Sample, second: Sample, *, confidence: float = 0.95) -> Answer:
    """Wilcoxon signed rank test of the units' means (scipy.stats.wilcoxon, method "auto").

    Exact for up to 50 pairs without ties or zeros, by enumeration of all signs for up to 13 pairs with them,
    by the normal approximation with tie correction otherwise. The estimate is the median difference; there is
    no interval.

    Differences of zero are dropped, as by scipy's default.
    """
    checked_confidence(confidence)
    name = "Wilcoxon signed rank"
    sample = signed_differences(name, first, second)
    if isinstance(sample, NotTestable):
        return sample
    differences = sample.values
    from scipy import stats

    result = stats.wilcoxon(differences, zero_method="wilcox", method="auto")
    return StatisticalTest(
        name=name,
        statistic=float(result.statistic),
        p_value=min(1.0, float(result.pvalue)),
        estimate=float(np.median(differences)),
        lower=None,
        upper=None,
        confidence=confidence,
        counts=(sample.n_units,),
        unit=sample.unit,
        assumption="differences are independent and symmetric about one centre; zeros are dropped",
        smallest_p=min(1.0, 2.0 ** (1 - int(np.count_nonzero(differences)))),
        left_out=matched(first, second).left_out,
    )


def _no_pair(name: str, sample: Sample) -> NotTestable:
    why = f"no {sample.unit} has a matching measurement on both sides"
    return NotTestable(name=name, why=why, n_units=0, unit=sample.unit)


def signed_differences(name: str, first: Sample, second: Sample) -> Sample | NotTestable:
    """Each unit's difference of means, not all zero; those that are rounding error alone are zero."""
    pairs = matched(first, second)
    if pairs.first is None or pairs.second is None:
        return _no_pair(name, first)
    a, b = pairs.first.by_unit(), pairs.second.by_unit()
    if a.n_units < 2:
        return too_few(name, a)
    noise = 8.0 * np.finfo(np.float64).eps * np.maximum(np.abs(a.values), np.abs(b.values))
    differences = a.values - b.values
    differences = np.where(np.abs(differences) <= noise, 0.0, differences)
    if not np.any(differences):
        why = f"every difference of the {counted(a.n_units, a.unit)} is zero"
        return NotTestable(name=name, why=why, n_units=a.n_units, unit=a.unit)
    return Sample(differences, a.units, a.unit)


def mean_interval(sample: Sample, *, confidence: float = 0.95) -> Interval:
    """Mean over units with Student's t interval (scipy.stats.t).

    Exact for normal unit means; see `workbench.reports.shared.statistics` for its measured coverage
    elsewhere.
    """
    checked_confidence(confidence)
    means = sample.by_unit()
    estimate, n = float(np.mean(means.values)), means.n_units
    lower = upper = spread = None
    why = ""
    if n < 2:
        why = f"no interval from one {sample.unit}"
    else:
        spread = float(np.std(means.values, ddof=1)) if spreads(means.values) else 0.0
        if spread == 0.0:
            why = f"no interval: all {counted(n, sample.unit)} gave the same value"
        else:
            from scipy import stats

            half = float(stats.t.ppf(0.5 + confidence / 2.0, n - 1)) * spread / math.sqrt(n)
            lower, upper = estimate - half, estimate + half
    return Interval(
        name="mean, t interval",
        estimate=estimate,
        lower=lower,
        upper=upper,
        confidence=confidence,
        n_units=n,
        unit=sample.unit,
        assumption="units' means are independent and normal",
        spread=spread,
        why=why,
    )


def _as_printed(test: Callable[..., Answer], first: Sample, second: Sample, confidence: float) -> Answer:
    """A paired test in which every matched measurement is a pair."""
    pairs = matched(first, second)
    if pairs.first is None or pairs.second is None:
        return _no_pair("paired comparison", first)
    answer = test(
        pairs.first.every_measurement(),
        pairs.second.every_measurement(),
        confidence=confidence,
    )
    return answer if isinstance(answer, NotTestable) else replace(answer, left_out=pairs.left_out)


def wilcoxon_as_printed(first: Sample, second: Sample, *, confidence: float = 0.95) -> Answer:
    """The test of DP-Weights, Tables 3 to 10: every measurement of one training counts as a pair.

    Each exact printed pair is scipy's: statistic 0 at n = 28 gives p = 2^-27 = 7.451e-09, statistic 12 gives
    5.215e-07; where values tie, the printed p is the normal approximation with zeros dropped (statistic 0 at
    22 differences that are not zero: 4.0e-05, printed 3.991e-05 for the ROC AUC at batch size 5).
    """
    return _as_printed(wilcoxon, first, second, confidence)


def pooled_t_as_printed(first: Sample, second: Sample, *, confidence: float = 0.95) -> Answer:
    """The test of DP-Weights, sections 4.3 and 4.4: pooled t and p beside Welch's interval.

    Recomputed from the means and standard deviations of its Tables 1 and 2, 28 epsilons times 4 batch sizes
    (or numbers of epochs) a side: the printed p-values are those of the printed t at 112 + 112 - 2 = 222
    degrees of freedom (member perplexity over epochs, DP less fine-tuned: t = 6.573, p = 3.47e-10 as printed;
    Welch's df of 123 gives 1.25e-09), while the printed intervals are Welch's (the same comparison: (6.60,
    12.29) as printed; pooled (6.61, 12.27)). Ignores that the 112 values come from four trainings a side.
    """
    a, b = first.every_measurement(), second.every_measurement()
    answer, interval = pooled_t(a, b, confidence=confidence), welch_t(a, b, confidence=confidence)
    if isinstance(answer, NotTestable) or isinstance(interval, NotTestable):
        return answer
    return replace(
        answer,
        name="Student t, pooled variance, with Welch's interval",
        lower=interval.lower,
        upper=interval.upper,
    )


# Equivalence within a stated margin: "no significant difference" is not "similar"


def _checked_margin(margin: float) -> float:
    if not (math.isfinite(margin) and margin > 0.0):
        raise InputError(f"margin must be a finite number above 0, got {margin}")
    return margin


def tost_paired(
    first: Sample, second: Sample, *, margin: float, confidence: float = 0.95
) -> Equivalence | NotTestable:
    """Paired TOST of the units' means (statsmodels ttost_paired): |first - second| < margin?

    Declares equivalence wrongly with probability at most 1 - confidence, for normal differences.

    Raises:
        InputError: a margin that is not above 0; see `matched`; or the confidence is not in (0.5, 1).
    """
    checked_confidence(confidence)
    _checked_margin(margin)
    sides = paired_units("TOST, paired", first, second)
    if isinstance(sides, NotTestable):
        return sides
    from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

    a, b = sides
    p_value, below, above = ttost_paired(a.values, b.values, -margin, margin)
    lower, upper = DescrStatsW(a.values - b.values).tconfint_mean(alpha=2.0 * (1.0 - confidence))
    return Equivalence(
        name="TOST, paired",
        margin=margin,
        p_value=float(p_value),
        p_below=float(below[1]),
        p_above=float(above[1]),
        estimate=float(np.mean(a.values - b.values)),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        counts=(a.n_units,),
        unit=a.unit,
        assumption=PAIRED,
    )


def tost_welch(
    first: Sample, second: Sample, *, margin: float, confidence: float = 0.95
) -> Equivalence | NotTestable:
    """TOST of independent units' means with unequal variances (statsmodels ttost_ind).

    Raises:
        InputError: a margin that is not above 0; as `welch_t`.
    """
    checked_confidence(confidence)
    _checked_margin(margin)
    sides = independent_units("TOST, Welch", first, second)
    if isinstance(sides, NotTestable):
        return sides
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttost_ind

    a, b = sides
    p_value, below, above = ttost_ind(a.values, b.values, -margin, margin, usevar="unequal")
    compare = CompareMeans(DescrStatsW(a.values), DescrStatsW(b.values))
    lower, upper = compare.tconfint_diff(alpha=2.0 * (1.0 - confidence), usevar="unequal")
    return Equivalence(
        name="TOST, Welch",
        margin=margin,
        p_value=float(p_value),
        p_below=float(below[1]),
        p_above=float(above[1]),
        estimate=float(np.mean(a.values) - np.mean(b.values)),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        counts=(a.n_units, b.n_units),
        unit=a.unit,
        assumption=INDEPENDENT,
    )
