"""Sums of lognormals: the approximations of Shuffled DPSGD's Fig. 2, their errors, and where they end.

S = sum of d terms exp(Y_i), Y_i ~ N(mu_i, sigma^2). Theorem 6 of Shuffled DPSGD takes S as one lognormal
(Fenton-Wilkinson, Lemma 1); the paper compares five methods at sigma = 0.25 and d = 1e8. Here:

    ===================  ==========================================================================
    method               what it is
    ===================  ==========================================================================
    `fenton_wilkinson`   the sum's mean and variance, closed form
    `schwartz_yeh`       mean and variance of log S, two terms at a time; doubling at large d
    `least_squares`      straight line through a sample's probability plot, or a fit of its distribution;
                         `least_squares_quadratic`, a parabola, stands beside it
    `kernel_density`     Gaussian kernels on a sample of log S
    `monte_carlo`        draws, term by term or by counts (`CountedSum`), in bounded memory, resumable
    `reference_cdf`      a second truth: the characteristic function, inverted
    ===================  ==========================================================================

`error` is sup |F - F_S| with an interval that holds at every number of draws (DKW); `quality` turns it into
an answer at a tolerance, and `largest_good_sigma` into the place where an approximation stops being good.

The sigma of these lognormals is c / sigma of Theorem 6, one over the noise multiplier. Fig. 2's 0.25 is a
noise multiplier of 4; a noise multiplier of 0.25 is a sigma of 4, where the same approximation is another
matter.

`DependentSum` and `WorstPairSum` are the sums that Theorem 6 is really about: their terms share one Y.

>>> law = LognormalSum.identical(100, 0.25)
>>> draws = monte_carlo(law, repeats=2000, seed=1)
>>> bool(error(fenton_wilkinson(law), draws).lower == 0.0)
True
>>> hard = LognormalSum.identical(1000, 4.0)
>>> bool(error(fenton_wilkinson(hard), monte_carlo(hard, repeats=2000, seed=1)).lower > 0.5)
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums.dependent import (
    SIDES,
    DependentSum,
    WorstPairSum,
)
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums.fits import (
    LEAST_SQUARES_OF,
    KernelDensity,
    QuadraticFit,
    fenton_wilkinson,
    kernel_density,
    least_squares,
    least_squares_quadratic,
    lognormal_of_moments,
    schwartz_yeh,
)
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums.law import LognormalFit, LognormalSum, LogSumLaw
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums.reference import (
    lower_tail_bound,
    reference_cdf,
    reference_error,
)
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums.sampling import (
    CountedSum,
    Drawable,
    ErrorInterval,
    ProbabilityInterval,
    SumSample,
    error,
    monte_carlo,
)

__all__ = [
    "LEAST_SQUARES_OF",
    "METHODS",
    "SIDES",
    "Comparison",
    "CountedSum",
    "DependentSum",
    "Drawable",
    "ErrorInterval",
    "KernelDensity",
    "LogSumLaw",
    "LognormalFit",
    "LognormalSum",
    "ProbabilityInterval",
    "QuadraticFit",
    "Quality",
    "SumSample",
    "WorstPairSum",
    "approximate",
    "compare",
    "error",
    "fenton_wilkinson",
    "kernel_density",
    "largest_good_sigma",
    "least_squares",
    "least_squares_quadratic",
    "lognormal_of_moments",
    "lower_tail_bound",
    "monte_carlo",
    "quality",
    "reference_cdf",
    "reference_error",
    "schwartz_yeh",
    "tail_ratio",
]

METHODS = ("fenton_wilkinson", "schwartz_yeh", "least_squares", "kernel_density")
"""The approximations; Monte Carlo is what they are judged by."""


class Quality(StrEnum):
    """What an interval of an error says at a tolerance."""

    GOOD = "good"
    NOT_GOOD = "not good"
    UNDECIDED = "undecided"


def approximate(
    method: str, law: LognormalSum, *, sample: SumSample | None = None, one_by_one: int = 1024
) -> LogSumLaw:
    """An approximation by its name.

    Args:
        method: One of `METHODS`.
        law: What is approximated.
        sample: Draws for the two methods that need them; never those that the error is measured with.
        one_by_one: Of `schwartz_yeh`.

    Raises:
        InputError: the name is unknown, or a method that needs draws got none.
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if method == "fenton_wilkinson":
        return fenton_wilkinson(law)
    if method == "schwartz_yeh":
        return schwartz_yeh(law, one_by_one=one_by_one)
    if sample is None:
        raise InputError(f"sample must be given for {method}, got None")
    return least_squares(sample.log_sums) if method == "least_squares" else kernel_density(sample.log_sums)


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Fig. 2 at one sigma and d: distribution functions on one grid, and their errors.

    Attributes:
        law: The sum.
        log_sums: Grid of log S, shape `(points,)`.
        curves: For each method its distribution function on the grid, shape `(points,)`.
        monte_carlo: The draws' distribution function on the grid.
        band: Ends of its simultaneous band.
        errors: For each method sup |F - F_S| with its interval; the intervals hold all at once.
        sample: The draws.
    """

    law: LognormalSum
    log_sums: FloatArray
    curves: Mapping[str, FloatArray]
    monte_carlo: FloatArray
    band: tuple[FloatArray, FloatArray]
    errors: Mapping[str, ErrorInterval]
    sample: SumSample


def compare(
    law: LognormalSum,
    *,
    seed: int,
    repeats: int = 1000,
    draws: Drawable | None = None,
    confidence: float = 0.95,
    one_by_one: int = 1024,
    points: int = 201,
) -> Comparison:
    """All approximations of one sum against draws of it.

    Least squares and kernel density get draws of their own, as many as those that they are judged by.

    Args:
        law: The sum.
        seed: Of the draws, >= 0; the two methods that learn from draws use the next one.
        repeats: Draws; the paper took 1,000.
        draws: How the law is drawn: None for term by term, or a `CountedSum` of it.
        confidence: Of the band and the intervals.
        one_by_one: Of `schwartz_yeh`.
        points: Size of the grid, which spans the draws and a fifth beyond.

    Raises:
        InputError: an argument is out of range.
    """
    source = law if draws is None else draws
    judged = monte_carlo(source, repeats=repeats, seed=seed)
    learned = monte_carlo(source, repeats=repeats, seed=seed + 1)
    low, high = float(judged.log_sums[0]), float(judged.log_sums[-1])
    grid = np.linspace(low - 0.2 * (high - low), high + 0.2 * (high - low), points)
    laws = {name: approximate(name, law, sample=learned, one_by_one=one_by_one) for name in METHODS}
    return Comparison(
        law=law,
        log_sums=grid,
        curves={name: fit.cdf(grid) for name, fit in laws.items()},
        monte_carlo=judged.cdf(grid),
        band=judged.band(grid, confidence),
        errors={name: error(fit, judged, confidence=confidence) for name, fit in laws.items()},
        sample=judged,
    )


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
    found = sample.probability(float(fit.quantile(probability)), confidence)
    return ProbabilityInterval(
        lower=found.lower / probability,
        estimate=found.estimate / probability,
        upper=found.upper / probability,
        confidence=confidence,
    )
