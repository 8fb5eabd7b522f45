"""A sum of independent lognormals that share one sigma, and the laws that approximate its own.

Fenton-Wilkinson, Schwartz-Yeh, least squares (a line or a parabola) and kernel density.
Everything is said of the logarithm of the sum: at d = 1e8 and sigma = 0.25 the sum is 1.03e8 with a relative
spread of 2.5e-5, and its logarithm keeps all digits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import expit, ndtr, ndtri

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

_LARGEST_SIGMA = 50.0
_LARGEST_COUNT = 10**12
_ROWS = 1 << 15
_CHUNK = 1 << 20

LEAST_SQUARES_OF = ("probability plot", "distribution function")


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


# Approximations


def fenton_wilkinson(law: LognormalSum) -> LognormalFit:
    """The lognormal with the sum's mean and variance.

    Source: Fenton 1960; Shuffled DPSGD, Lemma 1, Eqs. 8 to 10.
    """
    relative = law.relative_variance
    if math.isinf(relative):
        raise InputError(f"sigma must leave the sum a finite variance in floats, got {law.sigma!r}")
    return lognormal_of_moments(law.log_mean, relative)


def lognormal_of_moments(log_mean: float, relative_variance: float) -> LognormalFit:
    """The lognormal with mean e^log_mean and variance relative_variance * mean^2."""
    square = math.log1p(relative_variance)
    return LognormalFit(name="Fenton-Wilkinson", mu=log_mean - square / 2, sigma=math.sqrt(square))


def schwartz_yeh(law: LognormalSum, *, one_by_one: int = 1024) -> LognormalFit:
    """The lognormal with the mean and variance of log S, had every partial sum been lognormal.

    Each step takes the exact mean and variance of log(e^X + e^Y) for independent normal X and Y, by the
    trapezoidal rule, and calls the result normal. The paper adds the terms one at a time, d - 1 steps. Ours
    adds the first `one_by_one` terms of a group so, and from there on adds equal blocks to each other
    (doubling): the same two-term step in another order, O(log d) of them, which is what makes d = 1e8
    feasible. The order matters: every doubling of blocks that are not yet normal moves the mean of log S the
    same way, while its spread shrinks. At large d and sigma the error of doubling is larger than that of the
    paper's order, which is `one_by_one` = d (some 25 microseconds a term); `benchmarks/lognormal_sums.py` has
    both.

    Args:
        law: The sum; its groups are summed apart, then to each other.
        one_by_one: Terms of a group that are added one at a time, >= 1.

    Raises:
        InputError: one_by_one is below 1.

    Source: Schwartz and Yeh 1982 (their series replaced by quadrature of the same integrals).
    """
    if one_by_one < 1:
        raise InputError(f"one_by_one must be >= 1, got {one_by_one!r}")
    total: tuple[float, float] | None = None
    for mu, count in law.groups:
        mean, variance = _identical(count, law.sigma**2, one_by_one)
        part = (mean + mu, variance)
        total = part if total is None else _log_of_two(total, part)
    if total is None:
        raise InputError("groups must hold at least one pair (mu, count), got none")
    return LognormalFit(name="Schwartz-Yeh", mu=total[0], sigma=math.sqrt(total[1]))


def _identical(count: int, square: float, one_by_one: int) -> tuple[float, float]:
    """Mean and variance of log S for `count` terms N(0, square)."""
    blocks, rest = divmod(count, min(count, one_by_one))
    block = (0.0, square)
    remainder: tuple[float, float] | None = block if rest == 1 else None
    for number in range(2, min(count, one_by_one) + 1):
        block = _log_of_two(block, (0.0, square))
        if number == rest:
            remainder = block
    total = remainder
    while blocks:
        if blocks & 1:
            total = block if total is None else _log_of_two(total, block)
        blocks >>= 1
        if blocks:
            block = _log_of_two(block, block)
    return block if total is None else total


@lru_cache(maxsize=1)
def _nodes() -> tuple[FloatArray, FloatArray]:
    """Trapezoidal rule of the standard normal: nodes and weights that sum to 1."""
    at = np.linspace(-12.0, 12.0, 481)
    weights = np.exp(-(at**2) / 2)
    return at, weights / weights.sum()


def _log_of_two(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Mean and variance of log(e^X + e^Y), X and Y independent normals given by mean and variance.

    With W = Y - X and g(w) = log(1 + e^w): log(e^X + e^Y) = X + g(W), and by Stein's identity
    Cov(X, g(W)) = -Var[X] E[g'(W)].
    """
    (mean_x, square_x), (mean_y, square_y) = (one, other) if one[0] >= other[0] else (other, one)
    at, weights = _nodes()
    w = (mean_y - mean_x) + math.sqrt(square_x + square_y) * at
    grown = np.logaddexp(0.0, w)
    mean = float(weights @ grown)
    variance = float(weights @ (grown - mean) ** 2)
    return mean_x + mean, square_x * (1.0 - 2.0 * float(weights @ expit(w))) + variance


def least_squares(log_sums: FloatArray, *, of: str = "probability plot") -> LognormalFit:
    """The lognormal nearest to a sample in squares.

    The paper names the method "LSQ" without saying what is squared. Both usual readings of a lognormal are
    here; in the literature on these sums LSQ is the parabola of `least_squares_quadratic`, which is none.

    Args:
        log_sums: Draws of log S, at least 10, independent of those that the fit is judged by.
        of: `"probability plot"`: the straight line through the points (normal score, log S);
            `"distribution function"`: the squares of Phi((log S - mu) / sigma) - (i - 1/2) / n.

    Raises:
        InputError: fewer than 10 draws, equal draws, or an unknown `of`.

    Source: Zhao and Ding 2007, "Least squares approximations to lognormal sum distributions" (the line, there
    fitted to the distribution function by simulation).
    """
    if of not in LEAST_SQUARES_OF:
        raise InputError(f"of must be one of {', '.join(LEAST_SQUARES_OF)}, got {of!r}")
    values = _sample(log_sums)
    levels = (np.arange(values.size) + 0.5) / values.size
    scores = ndtri(levels)
    mu = float(values.mean())
    sigma = float(scores @ (values - mu) / (scores @ scores))
    if of == "distribution function":
        from scipy.optimize import least_squares as minimise

        def residuals(shift_and_log_scale: FloatArray) -> FloatArray:
            shift, log_scale = shift_and_log_scale
            out: FloatArray = ndtr(((values - mu) / sigma - shift) * math.exp(-log_scale)) - levels
            return out

        shift, log_scale = minimise(residuals, np.zeros(2)).x
        mu, sigma = mu + float(shift) * sigma, sigma * math.exp(float(log_scale))
    return LognormalFit(name=f"least squares, {of}", mu=mu, sigma=sigma)


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

    @property
    def name(self) -> str:
        """What tables call it."""
        return "least squares, quadratic"

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
    values = _sample(log_sums)
    middle, spread = float(values.mean()), float(values.std(ddof=1))
    at = (values - middle) / spread
    scores = ndtri((np.arange(values.size) + 0.5) / values.size)
    a, b, c = np.linalg.lstsq(np.stack([np.ones_like(at), at, at**2], axis=1), scores, rcond=None)[0]
    return QuadraticFit(middle=middle, spread=spread, coefficients=(float(a), float(b), float(c)))


@dataclass(frozen=True, kw_only=True)
class KernelDensity:
    """Gaussian kernels on a sample of log S.

    Attributes:
        log_sums: The sample, sorted, shape `(n,)`.
        bandwidth: Standard deviation of a kernel, > 0.
    """

    log_sums: FloatArray
    bandwidth: float

    @property
    def name(self) -> str:
        """What tables call it."""
        return "kernel density"

    def cdf(self, log_sum: FloatArray) -> FloatArray:
        """P(log S <= each value), in bounded memory."""
        at = np.atleast_1d(np.asarray(log_sum, dtype=np.float64))
        out = np.empty(at.shape)
        flat, answers = at.reshape(-1), out.reshape(-1)
        rows = max(1, _CHUNK // self.log_sums.size)
        for first in range(0, flat.size, rows):
            part = (flat[first : first + rows, None] - self.log_sums) / self.bandwidth
            answers[first : first + rows] = ndtr(part).mean(axis=1)
        return out


def kernel_density(log_sums: FloatArray, *, bandwidth: float | None = None) -> KernelDensity:
    """Kernel density of log S.

    Args:
        log_sums: Draws of log S, at least 10, independent of those that the fit is judged by.
        bandwidth: Standard deviation of a kernel; None for Silverman's 0.9 min(s, IQR / 1.34) n^(-1/5).

    Raises:
        InputError: fewer than 10 draws, equal draws, or a bandwidth that is not > 0.
    """
    values = _sample(log_sums)
    if bandwidth is None:
        low, high = np.quantile(values, [0.25, 0.75])
        spread = min(float(values.std(ddof=1)), float(high - low) / 1.34)
        bandwidth = 0.9 * spread * values.size**-0.2
    if not 0 < bandwidth < math.inf:
        raise InputError(f"bandwidth must be finite and > 0, got {bandwidth!r}")
    return KernelDensity(log_sums=values, bandwidth=float(bandwidth))


def _sample(log_sums: FloatArray) -> FloatArray:
    values = np.sort(np.asarray(log_sums, dtype=np.float64).reshape(-1))
    if values.size < 10:
        raise InputError(f"log_sums must hold at least 10 draws, got {values.size}")
    if not np.isfinite(values).all() or values[0] == values[-1]:
        raise InputError("log_sums must be finite and not all equal")
    return values
