"""Student's t of numbers at hand: one-sided tests, ends of an interval, Welch's degrees of freedom."""

from __future__ import annotations

import math

import numpy as np

from workbench.interfaces import FloatArray


def above_p(values: FloatArray, bound: float) -> float:
    """One-sided p-value of "the mean is at most the bound" against "above"; 0 for a bound of -infinity."""
    if math.isinf(bound):
        return 0.0
    from scipy import stats

    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return float(stats.t.sf((float(values.mean()) - bound) / error, values.size - 1))


def t_ends(values: FloatArray, confidence: float) -> tuple[float, float]:
    """Ends of the two-sided t interval of the mean."""
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    half = error * t_quantile(0.5 + confidence / 2.0, values.size - 1)
    return float(values.mean()) - half, float(values.mean()) + half


def below_zero_p(values: FloatArray, shared: float = 0.0) -> float:
    """One-sided p-value of "the mean is at least zero" against "below".

    Args:
        values: One a unit.
        shared: Standard error of their mean from what all units share.
    """
    from scipy import stats

    error, degrees = _with_shared(values, shared)
    mean = float(values.mean())
    return float(stats.t.cdf(mean / error, degrees)) if error > 0.0 else float(mean >= 0.0)


def ends_with_shared(values: FloatArray, confidence: float, shared: float) -> tuple[float, float]:
    """Ends of the two-sided t interval of a mean with a standard error that all values share."""
    error, degrees = _with_shared(values, shared)
    half, mean = t_quantile(0.5 + confidence / 2.0, degrees) * error, float(values.mean())
    return mean - half, mean + half


def _with_shared(values: FloatArray, shared: float) -> tuple[float, float]:
    """Standard error of a mean with the shared error added, and its degrees of freedom.

    Those of Satterthwaite; the shared error comes from hundreds of records and counts as known.
    """
    units = float(values.var(ddof=1)) / values.size
    both = units + shared**2
    return math.sqrt(both), (values.size - 1) * (both / units) ** 2 if units > 0.0 else math.inf


def t_quantile(level: float, degrees: float) -> float:
    """The t below which a share `level` of the distribution lies."""
    from scipy import stats

    return float(stats.t.ppf(level, degrees))


def two_sided_p(t: float, degrees: float) -> float:
    """Probability of a t at least as large in size."""
    from scipy import stats

    return 2.0 * float(stats.t.sf(abs(t), degrees))


def welch_degrees(first: float, second: float, values: int) -> float:
    """Welch's degrees of freedom of two sides with equally many values.

    Args:
        first, second: Each side's variance over its number of values.
        values: Of each side.
    """
    return (first + second) ** 2 / ((first**2 + second**2) / (values - 1))


def pitman_morgan(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """p-values that paired normal values vary less on the first side, and more (Pitman 1939; Morgan 1939).

    The variances are equal exactly where sum and difference are uncorrelated.
    """
    from scipy import stats

    correlation = float(np.clip(np.corrcoef(first + second, first - second)[0, 1], -1 + 1e-12, 1 - 1e-12))
    degrees = first.size - 2
    statistic = correlation * math.sqrt(degrees / (1.0 - correlation**2))
    return float(stats.t.cdf(statistic, degrees)), float(stats.t.sf(statistic, degrees))
