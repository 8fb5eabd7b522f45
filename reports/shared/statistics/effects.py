"""How large a difference is, in units of its spread."""

from __future__ import annotations

import math

import numpy as np

from workbench.reports.shared.statistics.results import Interval, NotTestable, StatisticalTest
from workbench.reports.shared.statistics.sample import Sample
from workbench.reports.shared.statistics.tests import paired_t, pooled_t, signed_differences


def hedges_factor(df: float) -> float:
    """Hedges' exact correction J(df) < 1 of the bias of a standardised mean difference.

    J = gamma(df / 2) / (sqrt(df / 2) gamma((df - 1) / 2)) (Hedges 1981, equation 6e); 0 at df = 1, where the
    uncorrected estimate has no mean.
    """
    if df <= 1.0:
        return 0.0
    return math.exp(math.lgamma(df / 2.0) - math.lgamma((df - 1.0) / 2.0)) / math.sqrt(df / 2.0)


def _standardised(name: str, answer: StatisticalTest, scale: float) -> Interval:
    """Estimate J t scale with the interval that inverts the non-central t distribution."""
    from scipy import special

    t, df = answer.statistic, float(answer.df or 0.0)
    low, high = 0.5 - answer.confidence / 2.0, 0.5 + answer.confidence / 2.0
    factor = hedges_factor(df)
    estimate = factor * t * scale
    limits = [float(special.nctdtrinc(df, level, t)) * scale for level in (high, low)]
    known = all(math.isfinite(limit) for limit in limits)
    why = "" if known else "the non-central t distribution could not be inverted"
    if factor == 0.0:
        estimate, why = math.nan, "two units: the estimate has no mean"
    return Interval(
        name=name,
        estimate=estimate,
        lower=limits[0] if known else None,
        upper=limits[1] if known else None,
        confidence=answer.confidence,
        n_units=answer.n_units,
        unit=answer.unit,
        assumption=answer.assumption,
        why=why,
        label=answer.label,
    )


def cohens_d(first: Sample, second: Sample, *, confidence: float = 0.95) -> Interval | NotTestable:
    """Cohen's d of independent units (difference of means over the pooled SD), with Hedges' correction.

    The interval inverts the non-central t distribution (scipy.special.nctdtrinc): exact for normal units with
    equal variances. It is one of the uncorrected parameter delta, so it need not be centred on the estimate.

    Raises:
        InputError: as `welch_t`.
    """
    answer = pooled_t(first, second, confidence=confidence)
    if isinstance(answer, NotTestable):
        return answer
    n_first, n_second = answer.counts
    scale = math.sqrt(1.0 / n_first + 1.0 / n_second)
    name = "Cohen's d, Hedges' correction"
    return _standardised(name, answer, scale)


def cohens_d_paired(first: Sample, second: Sample, *, confidence: float = 0.95) -> Interval | NotTestable:
    """d_z: the mean of the units' differences over their SD, with Hedges' correction and interval.

    Raises:
        InputError: as `paired_t`.
    """
    answer = paired_t(first, second, confidence=confidence)
    if isinstance(answer, NotTestable):
        return answer
    name = "Cohen's d_z, Hedges' correction"
    return _standardised(name, answer, math.sqrt(1.0 / answer.n_units))


def rank_biserial(first: Sample, second: Sample) -> Interval | NotTestable:
    """Matched-pairs rank biserial correlation of the units' means: (R+ - R-) / (R+ + R-), in [-1, 1].

    R+ and R- are the sums of the ranks of the positive and negative differences, zeros dropped (Kerby 2014).
    No interval.

    Raises:
        InputError: as `wilcoxon`.
    """
    name = "rank biserial correlation"
    differences = signed_differences(name, first, second)
    if isinstance(differences, NotTestable):
        return differences
    from scipy import stats

    kept = differences.values[differences.values != 0.0]
    ranks = stats.rankdata(np.abs(kept))
    return Interval(
        name=name,
        estimate=float(np.sum(ranks * np.sign(kept)) / np.sum(ranks)),
        lower=None,
        upper=None,
        confidence=0.95,
        n_units=differences.n_units,
        unit=first.unit,
        assumption="differences are independent and symmetric about one centre",
        why="no interval is computed for a rank correlation of pairs",
        label=first.label,
    )
