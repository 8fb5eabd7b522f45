"""A sum of independent lognormals that share one sigma, and the laws that stand in for its own.

Everything is said of the logarithm of the sum: at d = 1e8 and sigma = 0.25 the sum is 1.03e8 with a relative
spread of 2.5e-5, and its logarithm keeps all digits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

_LARGEST_SIGMA = 50.0
_LARGEST_COUNT = 10**12
_ROWS = 1 << 15


class LogSumLaw(Protocol):
    """An approximation: it answers the distribution function of log S."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    def cdf(self, log_sum: FloatArray) -> FloatArray:
        """P(log S <= each value), shape as given."""
        ...


@dataclass(frozen=True, kw_only=True)
class LognormalSum:
    """S = sum of exp(Y_i), Y_i ~ N(mu_i, sigma^2), independent.

    Attributes:
        sigma: Standard deviation of every exponent, in (0, 50]. In Theorem 6 of Shuffled DPSGD this is
            c / sigma of the noise, one over the noise multiplier, not the noise multiplier.
        groups: Pairs (mu, number of terms with it); at most 1e12 terms in all.

    Raises:
        InputError: sigma, a mu or a number of terms is out of range.
    """

    sigma: float
    groups: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        if not 0 < self.sigma <= _LARGEST_SIGMA:
            raise InputError(f"sigma must be in (0, {_LARGEST_SIGMA:g}], got {self.sigma!r}")
        if not self.groups:
            raise InputError("groups must hold at least one pair (mu, count), got none")
        for mu, count in self.groups:
            if not math.isfinite(mu):
                raise InputError(f"mu must be finite, got {mu!r}")
            if count < 1:
                raise InputError(f"count must be >= 1, got {count!r}")
        if self.count > _LARGEST_COUNT:
            raise InputError(f"count must be at most {_LARGEST_COUNT}, got {self.count}")

    @classmethod
    def identical(cls, count: int, sigma: float, mu: float = 0.0) -> LognormalSum:
        """`count` terms with the same mu."""
        return cls(sigma=float(sigma), groups=((float(mu), int(count)),))

    @classmethod
    def of(cls, means: Iterable[float], sigma: float) -> LognormalSum:
        """One term for each of `means`; equal ones are put together."""
        counted = Counter(float(mu) for mu in means)
        return cls(sigma=float(sigma), groups=tuple(sorted(counted.items())))

    @property
    def count(self) -> int:
        """Number d of terms."""
        return sum(count for _, count in self.groups)

    @property
    def log_total(self) -> float:
        """log of the sum of e^mu_i."""
        return self._log_power_sum(1)

    @property
    def log_mean(self) -> float:
        """log E[S]."""
        return self.log_total + self.sigma**2 / 2

    @property
    def relative_variance(self) -> float:
        """Var[S] / E[S]^2, infinite above the range of floats."""
        log_share = self._log_power_sum(2) - 2 * self.log_total
        square = self.sigma**2
        if log_share + square > 700:
            return math.inf
        return math.exp(log_share + (square if square > 30 else math.log(math.expm1(square))))

    def _log_power_sum(self, power: int) -> float:
        logs = [power * mu + math.log(count) for mu, count in self.groups]
        top = max(logs)
        return top + math.log(math.fsum(math.exp(value - top) for value in logs))

    @property
    def work(self) -> int:
        """Normal numbers that one repeat draws."""
        return self.count

    @property
    def bias(self) -> float:
        """Bound on the distance of the drawn distribution function from the law's: drawn term by term, 0."""
        return 0.0

    def describe(self) -> str:
        """One line that names the law exactly (floats in hexadecimal)."""
        groups = ", ".join(f"{count} x {mu.hex()}" for mu, count in self.groups)
        return f"lognormals, sigma {self.sigma.hex()}: {groups}"

    def draw(self, rng: np.random.Generator, size: int, *, chunk: int = 1 << 18) -> FloatArray:
        """Draws of log S, every term drawn.

        Args:
            rng: Where the normals come from.
            size: Number of draws.
            chunk: Normals held at a time.

        Returns:
            Shape `(size,)`.
        """
        top = max(mu for mu, _ in self.groups)
        totals = np.zeros(size)
        for mu, count in self.groups:
            totals += math.exp(mu - top) * sum_of_exponentials(rng, size, count, self.sigma, chunk=chunk)[0]
        drawn: FloatArray = top + np.log(totals)
        return drawn


def sum_of_exponentials(
    rng: np.random.Generator, size: int, count: int, sigma: float, *, chunk: int
) -> tuple[FloatArray, FloatArray]:
    """`size` draws of (sum of e^(sigma Z_i), sum of Z_i) over `count` standard normals, `chunk` at a time."""
    totals, plain = np.zeros(size), np.zeros(size)
    rows = max(1, min(size, chunk // count, _ROWS))
    columns = min(count, chunk)
    buffer = np.empty(rows * columns)
    for first in range(0, size, rows):
        these = min(rows, size - first)
        for start in range(0, count, columns):
            width = min(columns, count - start)
            part = buffer[: these * width].reshape(these, width)
            rng.standard_normal(out=part)
            plain[first : first + these] += part.sum(axis=1)
            np.multiply(part, sigma, out=part)
            np.exp(part, out=part)
            totals[first : first + these] += part.sum(axis=1)
    return totals, plain


@dataclass(frozen=True, kw_only=True)
class LognormalFit:
    """log S ~ N(mu, sigma^2).

    Attributes:
        name: Method that fitted it.
        mu: Mean of log S.
        sigma: Standard deviation of log S, > 0.

    Raises:
        InputError: mu or sigma is unusable.
    """

    name: str
    mu: float
    sigma: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mu) and 0 < self.sigma < math.inf):
            raise InputError(f"mu and sigma must be finite, sigma > 0, got {self.mu!r} and {self.sigma!r}")

    def cdf(self, log_sum: FloatArray) -> FloatArray:
        """P(log S <= each value)."""
        values: FloatArray = ndtr((np.asarray(log_sum) - self.mu) / self.sigma)
        return values

    def quantile(self, probability: FloatArray | float) -> FloatArray:
        """log S at which the distribution function is `probability`."""
        values: FloatArray = self.mu + self.sigma * ndtri(probability)
        return values
