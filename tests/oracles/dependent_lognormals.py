"""Sums of lognormals whose exponents share one Gaussian vector: what Eq. 34 of Shuffled DPSGD is about.

The terms of Eq. 32 are exp(<Y, g_j> / sigma^2) for permutations g_j of one vector g and ONE Y = f + z: their
exponents have covariance <g_j, g_l> / sigma^2. Lemma 1 is about independent terms. How far the two are apart
depends on g:

- one coordinate beside equal others (Eqs. 43, 44): correlation -1 / (d - 1); nearly independent at large d,
  exactly opposed at d = 2;
- one coordinate and zeros (a Dirac canary): independent;
- equal entries: all terms are the same, and the sum does not concentrate at all;
- in general k is up to d! terms of d normals: Lemma 1's variance falls as 1 / k, the sum's does not.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr

from oracles.lognormal_judging import ProbabilityInterval, probability_at, sum_of
from oracles.lognormal_reference import lower_tail_bound
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import (
    CountedSum,
    LognormalFit,
    LognormalSum,
    fenton_wilkinson,
    lognormal_of_moments,
    monte_carlo,
    sum_of_exponentials,
)

_MOST_PERMUTED = 8
_CHUNK = 1 << 18
SIDES = ("f(x)", "f(x')")
"""Which of the two neighbours gave Y: Eq. 32 or Eq. 33."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DependentSum:
    """S = sum of exp(mean_j + <direction_j, z>), z ~ N(0, I) shared by all terms.

    Attributes:
        means: Shape `(k,)`.
        directions: Shape `(k, d)`.

    Raises:
        InputError: the shapes do not fit or a number is not finite.
    """

    means: FloatArray
    directions: FloatArray

    def __post_init__(self) -> None:
        if self.means.ndim != 1 or self.directions.ndim != 2 or len(self.means) != len(self.directions):
            raise InputError(
                f"means and directions must have shapes (k,) and (k, d), got {self.means.shape} and "
                f"{self.directions.shape}"
            )
        if not (self.means.size and np.isfinite(self.means).all() and np.isfinite(self.directions).all()):
            raise InputError("means and directions must hold at least one term, all finite")

    @classmethod
    def of_permutations(cls, f: FloatArray, g: FloatArray, *, noise: float) -> DependentSum:
        """Eq. 34's sum for i = 1: over the k distinct joint permutations of (f, g), Y = f + z.

        Args:
            f: The query's value, shape `(d,)`, d at most 8.
            g: Its difference to the neighbour's, shape `(d,)`. For Eq. 33 pass f + g as f.
            noise: Standard deviation of a coordinate of z, > 0.

        Raises:
            InputError: the shapes differ, d is too large, or noise is not > 0.
        """
        f, g = np.asarray(f, dtype=np.float64), np.asarray(g, dtype=np.float64)
        if f.ndim != 1 or f.shape != g.shape or not 1 <= f.size <= _MOST_PERMUTED:
            raise InputError(
                f"f and g must have one shape (d,), d in 1..{_MOST_PERMUTED}, got {f.shape} and {g.shape}"
            )
        if not 0 < noise < math.inf:
            raise InputError(f"noise must be finite and > 0, got {noise!r}")
        orders = np.array(list(itertools.permutations(range(f.size))))
        pairs = np.unique(np.concatenate([f[orders], g[orders]], axis=1), axis=0)
        permuted = pairs[:, f.size :]
        return cls(means=permuted @ f / noise**2, directions=permuted / noise)

    @property
    def work(self) -> int:
        """Numbers that one draw takes."""
        return self.directions.size

    @property
    def bias(self) -> float:
        """Draws are exact."""
        return 0.0

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """`size` draws of log S, shape `(size,)`."""
        out = np.empty(size)
        rows = max(1, _CHUNK // self.means.size)
        for first in range(0, size, rows):
            normals = rng.standard_normal((min(rows, size - first), self.directions.shape[1]))
            out[first : first + rows] = logsumexp(self.means + normals @ self.directions.T, axis=1)
        return out

    @property
    def log_mean(self) -> float:
        """log E[S]."""
        return float(logsumexp(self.means + (self.directions**2).sum(axis=1) / 2))

    @property
    def relative_variance(self) -> float:
        """Var[S] / E[S]^2 with the terms' covariances: exact."""
        weights = np.exp(self.means + (self.directions**2).sum(axis=1) / 2 - self.log_mean)
        total = 0.0
        rows = max(1, _CHUNK // self.means.size)
        for first in range(0, self.means.size, rows):
            grown = np.expm1(self.directions[first : first + rows] @ self.directions.T)
            total += float(weights[first : first + rows] @ grown @ weights)
        return max(total, 0.0)

    def matched(self) -> LognormalFit:
        """The lognormal with this sum's own mean and variance."""
        return lognormal_of_moments(self.log_mean, self.relative_variance)

    def as_if_independent(self) -> LognormalFit:
        """Eqs. 35 and 36 as printed: Lemma 1, which takes the terms as independent.

        Raises:
            InputError: the terms do not share one variance.
        """
        squares = (self.directions**2).sum(axis=1)
        if not np.allclose(squares, squares[0], rtol=1e-9):
            raise InputError("directions must all have one length for Eqs. 35 and 36")
        return fenton_wilkinson(sum_of(self.means.tolist(), math.sqrt(float(squares[0]))))


@dataclass(frozen=True, kw_only=True)
class WorstPairSum:
    """Eq. 34's sum for the f and g of Eqs. 43 and 44, in any dimension.

    The exponents are mu_j + a (z_j - mean of z), a = (c / sigma) sqrt(d / (d - 1)): independent terms times
    one common factor e^(-a mean(z)), which is within e^(+-6 a / sqrt(d)) but for 2e-9 of the draws.

    Attributes:
        dimension: d >= 2; also the number k of terms.
        noise_multiplier: sigma / c, > 0.
        batch_clip: c' / c, > 0.
        side: `"f(x)"` (Eq. 32) or `"f(x')"` (Eq. 33): the neighbour that Y comes from.

    Raises:
        InputError: an argument is out of range.
    """

    dimension: int
    noise_multiplier: float
    batch_clip: float = 1.0
    side: str = "f(x)"

    def __post_init__(self) -> None:
        if self.dimension < 2:
            raise InputError(f"dimension must be >= 2, got {self.dimension!r}")
        for name in ("noise_multiplier", "batch_clip"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InputError(f"{name} must be finite and > 0, got {value!r}")
        if self.side not in SIDES:
            raise InputError(f"side must be one of {', '.join(SIDES)}, got {self.side!r}")

    @property
    def _groups(self) -> tuple[tuple[float, int], ...]:
        """mu_1j: <f, g> / sigma^2 once, and - <f, g> / ((d - 1) sigma^2) for the others."""
        product = self.batch_clip + (0.0 if self.side == SIDES[0] else 1.0)
        own = product / self.noise_multiplier**2
        return (own, 1), (-own / (self.dimension - 1), self.dimension - 1)

    @property
    def as_independent(self) -> LognormalSum:
        """The same terms, had they been independent: what Theorem 6 applies Lemma 1 to."""
        return LognormalSum(sigma=1.0 / self.noise_multiplier, groups=self._groups)

    @property
    def _without_factor(self) -> LognormalSum:
        stretched = math.sqrt(self.dimension / (self.dimension - 1)) / self.noise_multiplier
        return LognormalSum(sigma=stretched, groups=self._groups)

    @property
    def work(self) -> int:
        """Numbers that one draw takes."""
        return self.dimension

    @property
    def bias(self) -> float:
        """Draws are exact."""
        return 0.0

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """`size` draws of log S, every term drawn, shape `(size,)`."""
        law = self._without_factor
        totals, normals = np.zeros(size), np.zeros(size)
        for mu, count in law.groups:
            part, plain = sum_of_exponentials(rng, size, count, law.sigma, chunk=_CHUNK)
            totals += math.exp(mu - law.groups[0][0]) * part
            normals += plain
        drawn: FloatArray = law.groups[0][0] + np.log(totals) - law.sigma * normals / self.dimension
        return drawn

    def log_threshold(self, epsilon: float) -> float:
        """log C(epsilon) of Eqs. 32 and 33."""
        return -epsilon + (1 + 2 * self.batch_clip) / (2 * self.noise_multiplier**2)

    def lemma_1_probability(self, epsilon: float) -> float:
        """P(S <= C(epsilon)) as Theorem 6 has it: by Lemma 1's lognormal (Eqs. 37 to 39)."""
        fit = fenton_wilkinson(self.as_independent)
        return float(ndtr((self.log_threshold(epsilon) - fit.mu) / fit.sigma))

    def probability_bound(self, epsilon: float) -> float:
        """A bound on P(S <= C(epsilon)) of the dependent sum that needs no draws (Chernoff).

        The common factor is within e^(+-30 a / sqrt(d)) but for a probability of 1e-197, which is added.
        """
        law = self._without_factor
        reach = 30.0 * law.sigma / math.sqrt(self.dimension)
        bound = lower_tail_bound(law, self.log_threshold(epsilon) + reach)
        return min(1.0, bound + float(ndtr(-30.0)))

    def probability(
        self, epsilon: float, *, repeats: int, seed: int, confidence: float = 0.95
    ) -> ProbabilityInterval:
        """P(S <= C(epsilon)) by draws of the dependent sum, with its interval.

        Up to 100,000 dimensions every term is drawn. Above, the independent part is drawn by counts
        (`CountedSum`), the common factor is bounded on both sides, and both bounds are in the ends.

        Args:
            epsilon: Of C(epsilon).
            repeats: Draws.
            seed: Of the draws.
            confidence: Two-sided, in (0, 1).

        Raises:
            InputError: repeats, seed or confidence is out of range.
        """
        at = self.log_threshold(epsilon)
        if self.dimension <= 100_000:
            return probability_at(monte_carlo(self, repeats=repeats, seed=seed), at, confidence)
        law = self._without_factor
        sample = monte_carlo(CountedSum(law=law), repeats=repeats, seed=seed)
        reach = 6.0 * law.sigma / math.sqrt(self.dimension)
        outside = 2e-9
        return ProbabilityInterval(
            lower=max(0.0, probability_at(sample, at - reach, confidence).lower - outside),
            estimate=probability_at(sample, at, confidence).estimate,
            upper=min(1.0, probability_at(sample, at + reach, confidence).upper + outside),
            confidence=confidence,
        )
