"""Student's t of numbers at hand: tests, ends of an interval, and what the units at hand can find."""

from __future__ import annotations

import math

import numpy as np

from workbench.core.errors import InconclusiveError, InputError
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


POWER = 0.8
"""A difference counts as detectable if it is found four times in five."""

MOST_UNITS = 100_000
"""Beyond this the number of units that would be needed is only said to be larger."""


def power_of_t(effect: float, counts: tuple[int, ...], *, confidence: float = 0.95) -> float:
    """Probability that a two-sided t test of this size finds a true standardised difference.

    t² of the test is non-central F with 1 and n - 1 (or n - 2) degrees of freedom (scipy.special.ncfdtr).
    statsmodels' power classes use the non-central t, which is NaN for many effects (2 units, or a power near
    1); where theirs is finite, both agree.

    Args:
        effect: True difference over the SD: of the differences (paired), or within a side (independent).
        counts: `(pairs,)`, or `(first, second)`; each >= 2.

    Raises:
        InputError: an effect that is not finite, or a count below 2.
        InconclusiveError: scipy has no number for it.
    """
    if not math.isfinite(effect):
        raise InputError(f"effect must be finite, got {effect}")
    if len(counts) not in (1, 2) or min(counts) < 2:
        raise InputError(f"counts must be one or two numbers of units, each at least 2, got {counts}")
    from scipy import special, stats

    df = sum(counts) - len(counts)
    size = counts[0] if len(counts) == 1 else 1.0 / (1.0 / counts[0] + 1.0 / counts[1])
    critical = float(stats.t.ppf(0.5 + confidence / 2.0, df)) ** 2
    # At isolated points (1 degree of freedom, non-centrality 48.6², F = 1) ncfdtr is NaN; beside them not.
    for shift in (0.0, 1e-9, -1e-9, 1e-8, -1e-8):
        missed = float(special.ncfdtr(1.0, df, size * effect**2 * (1.0 + shift), critical))
        if math.isfinite(missed):
            return 1.0 - missed
    raise InconclusiveError(f"the power at effect {effect} with {counts} units could not be computed")


def detectable_difference(
    spread: float, counts: tuple[int, ...], *, confidence: float = 0.95, power: float = POWER
) -> float:
    """The smallest true difference that a two-sided t test of this size finds with this probability.

    Solves `power_of_t` for the effect, times the spread. A spread that was itself
    estimated from few units makes this a rough figure: at 3 units its own 95 % interval spans a factor of 12.

    Args:
        spread: SD of the differences (paired), or within a side (independent), in the metric's unit.
        counts: `(pairs,)`, or `(first, second)`; each >= 2.
        power: Wanted probability of finding it, in (1 - confidence, 1).

    Raises:
        InputError: a spread that is negative or not finite, a count below 2, or a power out of range.
    """
    if not (math.isfinite(spread) and spread >= 0.0):
        raise InputError(f"spread must be finite and at least 0, got {spread}")
    if not 1.0 - confidence < power < 1.0:
        raise InputError(f"power must be in ({1.0 - confidence:g}, 1), got {power}")
    from scipy.optimize import brentq

    power_of_t(0.0, counts, confidence=confidence)
    high = 1.0
    while power_of_t(high, counts, confidence=confidence) < power:
        high *= 2.0
    effect = brentq(
        lambda size: power_of_t(size, counts, confidence=confidence) - power, 0.0, high, xtol=1e-8
    )
    return float(effect) * spread


def units_to_decide(
    margin: float, spread: float, family: int = 1, *, confidence: float = 0.95, least: int = 3
) -> int | None:
    """Units with which a paired difference as large as the margin would be found, and equality shown, four
    times in five.

    By Bonferroni on its two sides, the equivalence test has the power 0.8 at a difference of zero where
    margin / spread * sqrt(n) >= t(confidence) + t(0.9), with n - 1 degrees of freedom; this is
    slightly more than is needed.

    Args:
        spread: SD of the differences, taken for the true one.
        family: Comparisons that the difference is corrected for.

    Returns:
        None without a spread, or where more than `MOST_UNITS` are needed.
    """
    if not spread > 0.0:
        return None
    effect, level = margin / spread, (1.0 - confidence) / family

    def is_enough(count: int) -> bool:
        reach = t_quantile(confidence, count - 1) + t_quantile(0.5 + POWER / 2.0, count - 1)
        has_power = power_of_t(min(effect, 50.0), (count,), confidence=1.0 - level) >= POWER
        return effect * math.sqrt(count) >= reach and has_power

    low, high = least - 1, least
    while not is_enough(high):
        low, high = high, 2 * high
        if high > MOST_UNITS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
