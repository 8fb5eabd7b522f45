"""Confidence intervals of a mean from independent values in [0, 1], valid at every sample size.

Each of the two ends may fail with half of `1 - confidence`. Nothing is assumed of the values beyond
independence, one common mean, and the range; `ASYMPTOTIC`, the normal approximation, is the exception, and no
verdict ever rests on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from scipy.optimize import brentq
from scipy.special import ndtri, rel_entr

from workbench.core.errors import InputError
from workbench.estimation.bounded_mean import betting_lower
from workbench.interfaces import FloatArray


class IntervalMethod(StrEnum):
    """How the interval is computed."""

    HOEFFDING = "hoeffding"
    """Width 1 / sqrt(n), whatever the values (Hoeffding 1963, theorem 2)."""
    CHERNOFF = "chernoff"
    """Relative entropy between observed and true mean (Hoeffding 1963, theorem 1): narrow near 0 and 1."""
    EMPIRICAL_BERNSTEIN = "empirical_bernstein"
    """Width by the sample variance (Maurer and Pontil 2009, theorem 4)."""
    BETTING = "betting"
    """Hedged capital (Waudby-Smith and Ramdas 2024, section 4): the narrowest at most sample sizes."""
    ASYMPTOTIC = "asymptotic"
    """Normal approximation: no guarantee at any n, never decides."""


@dataclass(frozen=True, kw_only=True)
class MeanInterval:
    """lower <= mean <= upper, all in [0, 1].

    Attributes:
        lower, estimate, upper: The ends, and the sample mean.
    """

    lower: float
    estimate: float
    upper: float


def interval_method(method: IntervalMethod | str) -> IntervalMethod:
    """The method of this name.

    Raises:
        InputError: there is none.
    """
    try:
        return IntervalMethod(method)
    except ValueError as error:
        names = ", ".join(IntervalMethod)
        raise InputError(f"method must be one of {names}, got {method!r}") from error


def mean_interval(
    values: FloatArray, *, confidence: float, method: IntervalMethod = IntervalMethod.EMPIRICAL_BERNSTEIN
) -> MeanInterval:
    """Two-sided confidence interval of the mean of independent values in [0, 1].

    Args:
        values: Shape `(n,)`, n >= 2; for `BETTING` in the order in which they were drawn.
        confidence: Two-sided, in (0, 1).
        method: See `IntervalMethod`.

    Raises:
        InputError: fewer than two values, a value outside [0, 1], or confidence out of range.
    """
    if values.ndim != 1 or len(values) < 2:
        raise InputError(f"values must be a row of at least two numbers, got shape {values.shape}")
    if not (float(values.min()) >= 0 and float(values.max()) <= 1):
        raise InputError(f"values must be in [0, 1], got {float(values.min())!r} to {float(values.max())!r}")
    if not 0 < confidence < 1:
        raise InputError(f"confidence must be in (0, 1), got {confidence!r}")
    mean, log_odds = float(values.mean()), -math.log((1 - confidence) / 2)
    if method is IntervalMethod.BETTING:
        lower, upper = _betting(values, log_odds)
    elif method is IntervalMethod.CHERNOFF:
        lower, upper = _chernoff(mean, log_odds / len(values))
    else:
        half = _half_width(values, log_odds, method)
        lower, upper = mean - half, mean + half
    return MeanInterval(lower=max(0.0, min(lower, mean)), estimate=mean, upper=min(1.0, max(upper, mean)))


def _half_width(values: FloatArray, log_odds: float, method: IntervalMethod) -> float:
    """Half width of the symmetric intervals; each end fails with probability exp(-log_odds)."""
    n = len(values)
    if method is IntervalMethod.HOEFFDING:
        return math.sqrt(log_odds / (2 * n))
    variance = float(values.var(ddof=1))
    if method is IntervalMethod.ASYMPTOTIC:
        return -float(ndtri(math.exp(-log_odds))) * math.sqrt(variance / n)
    each = log_odds + math.log(2)  # theorem 4 spends one half on the variance
    return math.sqrt(2 * variance * each / n) + 7 * each / (3 * (n - 1))


def _chernoff(mean: float, radius: float) -> tuple[float, float]:
    """Means whose Bernoulli relative entropy from the observed one is at most `radius`, rounded outwards."""
    return _chernoff_lower(mean, radius), 1 - _chernoff_lower(1 - mean, radius, mirrored=mean)


def _chernoff_lower(mean: float, radius: float, *, mirrored: float | None = None) -> float:
    """The smallest such mean; `mirrored` is 1 - mean where that is known more precisely."""
    rest = 1 - mean if mirrored is None else mirrored

    def excess(log_m: float) -> float:
        # 1 - m, which is at least 1 - mean, however small that is.
        return float(rel_entr(mean, math.exp(log_m)) + rel_entr(rest, max(rest, -math.expm1(log_m)))) - radius

    if mean <= 0:
        return 0.0
    if rest <= 0:
        return math.exp(-radius)
    # At the low end the first term alone is radius + mean, and the second is never below -mean.
    low = math.log(mean) - radius / mean - 1
    if low < -700 or excess(low) <= 0:
        return 0.0
    high = math.log(mean) if rest > 0.5 else math.log1p(-rest)
    return math.exp(float(brentq(excess, low, high, xtol=1e-14)) - 1e-12)


def _betting(values: FloatArray, log_odds: float) -> tuple[float, float]:
    """Means that neither of two gamblers refutes, one staking on "larger", one on "smaller".

    See `workbench.estimation.bounded_mean`.
    """
    return betting_lower(values, log_odds), 1 - betting_lower(1 - values, log_odds)
