"""The distribution function of a sum of lognormals by its characteristic function: no draws, no fit.

A second truth beside Monte Carlo, good to about 1e-6 and checked by a finer grid of its own; it knows no
confidence. It has no bound on its error in balls: the verdicts of this bench do not rest on it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.interpolate import CubicSpline
from scipy.special import ndtr

from workbench.core.errors import InconclusiveError
from workbench.interfaces import FloatArray
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import LognormalSum, LogSumLaw, schwartz_yeh

ComplexArray: TypeAlias = npt.NDArray[np.complex128]

_SMALLEST = 1e-11
_FADED = 25.0
_OUTSIDE = 1e-3
_MOST_POINTS = 2_000_000


def reference_cdf(law: LognormalSum, log_sum: FloatArray, *, tolerance: float = 1e-6) -> FloatArray:
    """P(log S <= each value), by Gil-Pelaez's integral over log t.

    The characteristic function of one term is integrated along a line turned into the upper half plane, where
    the integrand fades; the sum's is its product over the terms. Both rules are trapezoidal and converge
    exponentially. The grid in t is halved once, and the two answers must agree.

    Args:
        law: The sum; a single term is answered in closed form.
        log_sum: Values of log S.
        tolerance: Largest difference of the two grids, absolute.

    Raises:
        InconclusiveError: the grids differ by more, or more points would be needed than are kept.

    Source: Gil-Pelaez 1951; the turned contour: Gubner 2006.
    """
    at = np.atleast_1d(np.asarray(log_sum, dtype=np.float64))
    if law.count == 1:
        single: FloatArray = ndtr((at - law.groups[0][0]) / law.sigma)
        return single
    values = np.exp(at - law.log_mean)
    transform = _transform(law)
    fine = transform.invert(values, 1)
    coarse = transform.invert(values, 2)
    worst = float(np.max(np.abs(fine - coarse)))
    if not worst <= tolerance:
        raise InconclusiveError(
            f"two grids of the characteristic function differ by {worst:.2g}, more than tolerance "
            f"{tolerance:g} ({law.count} terms, sigma {law.sigma:g})"
        )
    inside: FloatArray = np.clip(fine, 0.0, 1.0)
    return inside


def reference_error(approximation: LogSumLaw, law: LognormalSum, *, points: int = 401) -> float:
    """sup |F - F_S| of an approximation on a grid of values, by `reference_cdf`: a lower bound, nearly sharp.

    Args:
        approximation: What is judged.
        law: The truth.
        points: Values, spread over the range in which F_S is inside (1e-3, 1 - 1e-3), ends included.

    Raises:
        InconclusiveError: the characteristic function gave no answer.
    """
    low, high = _range_of(law)
    at = np.linspace(low, high, points)
    return float(np.max(np.abs(approximation.cdf(at) - reference_cdf(law, at))))


def lower_tail_bound(law: LognormalSum, log_sum: float) -> float:
    """Chernoff's bound on P(log S <= log_sum), for tails that no draw reaches.

    P(S <= x) <= e^(t x) E[e^(-t S)] for every t > 0; the best of a grid of t is taken, so a coarse grid costs
    sharpness, not truth. E[e^(-t X)] of one term is a trapezoidal sum, good to rounding.

    Returns:
        A bound on the probability, at most 1.
    """
    y = np.arange(-12.0, 12.0 + 0.01, 0.02)
    weights = np.exp(-(y**2) / 2)
    weights /= weights.sum()
    best = 0.0
    for log_t in np.linspace(-25.0, 25.0, 401) - log_sum:
        exponent = math.exp(min(log_t + log_sum, 700.0))
        for mu, count in law.groups:
            grown = np.exp(np.minimum(law.sigma * y + mu + log_t, 700.0))
            exponent += count * math.log1p(max(float(weights @ np.expm1(-grown)), -1.0 + 1e-12))
        best = min(best, exponent)
    return math.exp(best)


def _range_of(law: LognormalSum) -> tuple[float, float]:
    """Ends of an interval of log S that holds all but about 2e-3 of it."""
    fit = schwartz_yeh(law, one_by_one=min(64, law.count))
    low, high = fit.mu - 4 * fit.sigma, fit.mu + 4 * fit.sigma
    for _ in range(40):
        ends = reference_cdf(law, np.array([low, high]), tolerance=1e-5)
        if ends[0] < _OUTSIDE and ends[1] > 1 - _OUTSIDE:
            break
        low, high = (
            low - (ends[0] >= _OUTSIDE) * (high - low),
            high + (ends[1] <= 1 - _OUTSIDE) * (high - low) / 2,
        )
    for _ in range(3):
        at = np.linspace(low, high, 65)
        values = reference_cdf(law, at, tolerance=1e-5)
        first = int(np.argmax(values > _OUTSIDE))
        last = int(at.size - 1 - np.argmax(values[::-1] < 1 - _OUTSIDE))
        low, high = float(at[max(first - 1, 0)]), float(at[min(last + 1, at.size - 1)])
    return low, high


@lru_cache(maxsize=8)
def _transform(law: LognormalSum) -> _Transform:
    return _Transform(law)


class _Transform:
    """log E[e^(it(S / E[S] - 1))] as a function of log t, splined."""

    def __init__(self, law: LognormalSum) -> None:
        self._law = law
        spread = math.sqrt(min(law.relative_variance, 1e12))
        low = math.log(_SMALLEST / (1.0 + spread)) if spread > 1e-3 else math.log(_SMALLEST / spread)
        high = 0.0 if spread > 1 else -math.log(spread)
        while self._exponents(np.array([high]))[0].real > -_FADED:
            high += 0.5
            if high > 200:
                raise InconclusiveError("the characteristic function does not fade")
        self._low, self._high = low, high
        grid = np.linspace(low, high, max(64, math.ceil((high - low) / 0.02)))
        exponents = self._exponents(grid)
        self._real = CubicSpline(grid, exponents.real)
        self._imaginary = CubicSpline(grid, exponents.imag)

    def _exponents(self, log_t: FloatArray) -> ComplexArray:
        """Sum over the terms of log phi, less i t."""
        total = np.zeros(log_t.shape, dtype=np.complex128)
        for mu, count in self._law.groups:
            # In units of the sum's mean, this group's term has mean e^(mu - log_total).
            scale = mu - self._law.log_total
            total += count * self._log_of_one(np.exp(log_t + scale))
        return total

    def _log_of_one(self, t: FloatArray) -> ComplexArray:
        """log E[e^(it(X - 1))], X lognormal with mean 1."""
        sigma = self._law.sigma
        angle = min(sigma, 1.4)
        step = 0.02
        y = np.arange(-11.0, 11.0 + step / 2, step)
        weights = np.exp(-(y**2) / 2 + (angle / sigma) ** 2 / 2 - 1j * y * angle / sigma)
        weights *= step / math.sqrt(2 * math.pi)
        term = np.exp(sigma * y - sigma**2 / 2 + 1j * angle)
        out = np.empty(t.shape, dtype=np.complex128)
        rows = 256
        for first in range(0, t.size, rows):
            part = t[first : first + rows, None]
            out[first : first + rows] = np.expm1(1j * part * term) @ weights
        # e^(-it) is taken off as a number, not as an exponent of each node, which would overflow.
        log_phi = np.log1p(out)
        imaginary = np.unwrap(log_phi.imag) - t
        centred: ComplexArray = log_phi.real + 1j * imaginary
        return centred

    def invert(self, values: FloatArray, coarser: int) -> FloatArray:
        """F at values of S / E[S]."""
        reach = float(np.max(np.abs(values - 1.0))) * math.exp(self._high) + 1.0
        step = min(0.004, 0.5 / reach)
        points = math.ceil((self._high - self._low) / step)
        if points > _MOST_POINTS:
            raise InconclusiveError(f"the inversion would need {points} points, more than {_MOST_POINTS}")
        log_t = np.linspace(self._low, self._high, points | 1)[::coarser]
        t = np.exp(log_t)
        damped = np.exp(self._real(log_t))
        phase = self._imaginary(log_t)
        weights = damped * (log_t[1] - log_t[0]) / math.pi
        weights[[0, -1]] /= 2
        return np.array([0.5 - float(weights @ np.sin(phase - t * (value - 1.0))) for value in values])
