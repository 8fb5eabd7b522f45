"""What benchmarks and tests ask of sums of lognormals, and the report does not: tails, other least squares.

Probabilities by Clopper and Pearson, where an approximation stops being good, and the other readings of
"LSQ": squares of the distribution function, and a parabola, which is no lognormal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.optimize import least_squares as minimise
from scipy.special import betaincinv, ndtr, ndtri

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import (
    ErrorInterval,
    LognormalFit,
    LognormalSum,
    SumSample,
    check_confidence,
    least_squares,
    sorted_draws,
)


def sum_of(means: Iterable[float], sigma: float) -> LognormalSum:
    """One term for each of `means`; equal ones are put together."""
    counted = Counter(float(mu) for mu in means)
    return LognormalSum(sigma=float(sigma), groups=tuple(sorted(counted.items())))


def quantile(fit: LognormalFit, probability: FloatArray | float) -> FloatArray:
    """log S at which the distribution function is `probability`."""
    values: FloatArray = fit.mu + fit.sigma * ndtri(probability)
    return values


@dataclass(frozen=True, kw_only=True)
class ProbabilityInterval:
    """A probability, by Clopper and Pearson."""

    lower: float
    estimate: float
    upper: float
    confidence: float


def probability_at(sample: SumSample, log_sum: float, confidence: float = 0.95) -> ProbabilityInterval:
    """P(log S <= log_sum) at one value that was fixed beforehand (Clopper-Pearson, widened by `bias`)."""
    check_confidence(confidence)
    n = sample.log_sums.size
    k = int(np.searchsorted(sample.log_sums, log_sum, side="right"))
    share = (1 - confidence) / 2
    low = float(betaincinv(k, n - k + 1, share)) if k > 0 else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - share)) if k < n else 1.0
    return ProbabilityInterval(
        lower=max(0.0, low - sample.bias),
        estimate=k / n,
        upper=min(1.0, high + sample.bias),
        confidence=confidence,
    )


class Quality(StrEnum):
    """What an interval of an error says at a tolerance."""

    GOOD = "good"
    NOT_GOOD = "not good"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class QuadraticFit:
    """P(log S <= x) = Phi(a + b z + c z^2), z = (x - middle) / spread, as far as the parabola rises.

    Beyond its vertex it is held: there is a smallest probability where c > 0, a largest one where c < 0.

    Attributes:
        middle, spread: Of the sample.
        coefficients: a, b and c.
    """

    middle: float
    spread: float
    coefficients: tuple[float, float, float]

    def cdf(self, log_sum: FloatArray) -> FloatArray:
        """P(log S <= each value)."""
        a, b, c = self.coefficients
        at = (np.asarray(log_sum, dtype=np.float64) - self.middle) / self.spread
        if c:
            vertex = -b / (2 * c)
            at = np.maximum(at, vertex) if c > 0 else np.minimum(at, vertex)
        values: FloatArray = ndtr(a + b * at + c * at**2)
        return values


def least_squares_quadratic(log_sums: FloatArray) -> QuadraticFit:
    """The parabola nearest to a sample's normal scores in squares: LSQ.

    A lognormal is a straight line on normal probability paper; the sum of some is bent.

    Args:
        log_sums: Draws of log S, at least 10, independent of those that the fit is judged by.

    Raises:
        InputError: fewer than 10 draws, or equal draws.

    Source: Zhao and Ding 2007, "Least squares approximations to lognormal sum distributions".
    """
    values = sorted_draws(log_sums)
    middle, spread = float(values.mean()), float(values.std(ddof=1))
    at = (values - middle) / spread
    scores = ndtri((np.arange(values.size) + 0.5) / values.size)
    a, b, c = np.linalg.lstsq(np.stack([np.ones_like(at), at, at**2], axis=1), scores, rcond=None)[0]
    return QuadraticFit(middle=middle, spread=spread, coefficients=(float(a), float(b), float(c)))


def least_squares_of_distribution(log_sums: FloatArray) -> LognormalFit:
    """The least squares of Phi((log S - mu) / sigma) - (i - 1/2) / n (Zhao and Ding 2007)."""
    line, values = least_squares(log_sums), sorted_draws(log_sums)
    levels = (np.arange(values.size) + 0.5) / values.size

    def residuals(shift_and_log_scale: FloatArray) -> FloatArray:
        shift, log_scale = shift_and_log_scale
        out: FloatArray = ndtr(((values - line.mu) / line.sigma - shift) * math.exp(-log_scale)) - levels
        return out

    shift, log_scale = minimise(residuals, np.zeros(2)).x
    return LognormalFit(mu=line.mu + float(shift) * line.sigma, sigma=line.sigma * math.exp(float(log_scale)))


def quality(interval: ErrorInterval, tolerance: float) -> Quality:
    """Good if the whole interval is at most the tolerance, not good if all of it is above.

    Raises:
        InputError: tolerance is outside (0, 1).
    """
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance must be in (0, 1), got {tolerance!r}")
    if interval.upper <= tolerance:
        return Quality.GOOD
    return Quality.NOT_GOOD if interval.lower > tolerance else Quality.UNDECIDED


def largest_good_sigma(
    errors: Mapping[float, ErrorInterval], tolerance: float
) -> tuple[float | None, float | None]:
    """Where an approximation stops being good, at one d: between which two sigmas.

    Args:
        errors: For each sigma, the error's interval.
        tolerance: In (0, 1).

    Returns:
        The largest sigma up to which all are good (None: not even the smallest), and the smallest that is not
        good (None: none is). What lies between is undecided at this number of draws.

    Raises:
        InputError: tolerance is outside (0, 1).
    """
    good: float | None = None
    for sigma in sorted(errors):
        if quality(errors[sigma], tolerance) is not Quality.GOOD:
            break
        good = sigma
    bad: Iterable[float] = (s for s in errors if quality(errors[s], tolerance) is Quality.NOT_GOOD)
    return good, min(bad, default=None)


def tail_ratio(
    fit: LognormalFit, sample: SumSample, probability: float, *, confidence: float = 0.95
) -> ProbabilityInterval:
    """P(S <= x) over what the fit says it is, at the fit's own quantile x: 1 is right.

    A supremum of 0.01 says little about a tail of 0.001; this says what is left there.

    Args:
        fit: A lognormal that has not seen the sample.
        sample: Draws of log S.
        probability: The fit's, in (0, 1).
        confidence: Two-sided.

    Returns:
        Interval and estimate of the ratio (may exceed 1).

    Raises:
        InputError: probability or confidence is outside (0, 1).
    """
    if not 0 < probability < 1:
        raise InputError(f"probability must be in (0, 1), got {probability!r}")
    found = probability_at(sample, float(quantile(fit, probability)), confidence)
    return ProbabilityInterval(
        lower=found.lower / probability,
        estimate=found.estimate / probability,
        upper=found.upper / probability,
        confidence=confidence,
    )
