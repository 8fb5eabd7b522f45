"""Pairs of Gaussian mixtures in many dimensions, with a tilt whose envelope is proven.

(a, b) -> a^(1 + t) * b^(-t) is jointly convex, so for any coupling c of p's components
with q's,

    p^(1 + t) * q^(-t) <= sum over (k, j) of c_kj * N_k^(1 + t) * N_j^(-t) = sum of c_kj * M_kj * g_kj,

with g_kj the tilt of the pair of Gaussians (k, j) and M_kj = exp(t (1 + t) |m_k - n_j|^2 / (2 s^2)). Drawing
from the mixture g with weights proportional to c_kj * M_kj therefore gives p * exp(t * L) <= M * g with the
envelope M = sum of c_kj * M_kj. The coupling decides how tight that is; its validity needs none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from workbench.attacks.accountant_checks.monte_carlo.mixtures import require_mixture
from workbench.attacks.accountant_checks.monte_carlo.pairs import Samples, rows
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

_MAX_COUPLED = 1 << 16


@dataclass(frozen=True, kw_only=True)
class VectorMixturePair:
    """Two Gaussian mixtures in d dimensions with one standard deviation in every direction.

    Attributes:
        p_means: Shape `(k, d)`.
        p_weights: Shape `(k,)`, positive, summing to 1.
        q_means: Shape `(j, d)`.
        q_weights: Shape `(j,)`.
        standard_deviation: Of every component in each dimension.

    Raises:
        InputError: a value is out of range, or components are too many to be coupled.
    """

    p_means: FloatArray
    p_weights: FloatArray
    q_means: FloatArray
    q_weights: FloatArray
    standard_deviation: float
    infinite_mass: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.standard_deviation < math.inf:
            raise InputError(f"standard_deviation must be finite and > 0, got {self.standard_deviation!r}")
        if self.p_means.ndim != 2 or self.q_means.shape[1:] != self.p_means.shape[1:]:
            raise InputError(f"q_means must be as wide as p_means, got {self.q_means.shape}")
        require_mixture(self.p_means, self.p_weights, "p")
        require_mixture(self.q_means, self.q_weights, "q")

    def describe(self) -> str:
        """`pair of Gaussian mixtures (24 and 24 components in 4 dimensions, standard deviation 1)`."""
        return (
            f"pair of Gaussian mixtures ({len(self.p_means)} and {len(self.q_means)} components in "
            f"{self.dimension} dimensions, standard deviation {self.standard_deviation:g})"
        )

    @property
    def dimension(self) -> int:
        """d."""
        return int(self.p_means.shape[1])

    @property
    def components(self) -> int:
        """Of the mixture with the most of them, the tilt's included."""
        return len(self._coupled[0])

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """Draws from P, shape `(n, d)`."""
        return self.draw(self.p_means, self.p_weights, n, rng)

    def draw(self, means: FloatArray, weights: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
        chosen = rng.choice(len(means), size=n, p=weights / weights.sum())
        drawn: FloatArray = means[chosen] + self.standard_deviation * rng.standard_normal((n, self.dimension))
        return drawn

    def log_ratio(self, x: Samples, means: FloatArray, weights: FloatArray) -> FloatArray:
        """Log-density over that of N(0, s^2 I)."""
        y, scaled = rows(x) / self.standard_deviation, means / self.standard_deviation
        terms = y @ scaled.T
        terms += np.log(weights) - (scaled**2).sum(axis=1) / 2
        top = terms.max(axis=1)
        terms -= top[:, None]
        np.exp(terms, out=terms)
        total: FloatArray = np.log(terms.sum(axis=1)) + top
        return total

    def _base(self, x: Samples) -> FloatArray:
        squares = ((rows(x) / self.standard_deviation) ** 2).sum(axis=1)
        density: FloatArray = -squares / 2
        return density - self.dimension * math.log(self.standard_deviation * math.sqrt(2 * math.pi))

    def log_density_p(self, x: Samples) -> FloatArray:
        """Of P."""
        return self.log_ratio(x, self.p_means, self.p_weights) + self._base(x)

    def log_density_q(self, x: Samples) -> FloatArray:
        """Of Q."""
        return self.log_ratio(x, self.q_means, self.q_weights) + self._base(x)

    def losses(self, x: Samples) -> FloatArray:
        """log p - log q; the common Gaussian factor never enters."""
        q = self.log_ratio(x, self.q_means, self.q_weights)
        return self.log_ratio(x, self.p_means, self.p_weights) - q

    def swapped(self) -> VectorMixturePair:
        """P and Q exchanged."""
        return VectorMixturePair(
            p_means=self.q_means,
            p_weights=self.q_weights,
            q_means=self.p_means,
            q_weights=self.p_weights,
            standard_deviation=self.standard_deviation,
        )

    @cached_property
    def _coupled(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Coupled components: log-weights `(c,)`, p's means, and p's less q's means, both `(c, d)`.

        Equally many and equally heavy components are matched one to one, nearest in total; others are coupled
        independently.

        Raises:
            InputError: components are too many.
        """
        k, j = len(self.p_means), len(self.q_means)
        if k * j > _MAX_COUPLED * 16:
            raise InputError(
                f"p_means and q_means must make fewer pairs than {_MAX_COUPLED * 16}, got {k * j}"
            )
        heavy = (self.p_weights, self.q_weights)
        if k == j and all(np.allclose(weights, 1 / k, rtol=1e-12, atol=0) for weights in heavy):
            p2, q2 = (self.p_means**2).sum(axis=1), (self.q_means**2).sum(axis=1)
            left, right = linear_sum_assignment(p2[:, None] + q2 - 2 * self.p_means @ self.q_means.T)
            log_weights = np.full(k, -math.log(k))
        elif k * j > _MAX_COUPLED:
            raise InputError(f"p_means and q_means must make fewer pairs than {_MAX_COUPLED}, got {k * j}")
        else:
            left, right = np.repeat(np.arange(k), j), np.tile(np.arange(j), k)
            log_weights = np.log(np.outer(self.p_weights, self.q_weights).ravel())
        return log_weights, self.p_means[left], self.p_means[left] - self.q_means[right]

    def _log_envelopes(self, t: float) -> FloatArray:
        """log(c_kj * M_kj) of the coupled components."""
        log_weights, _, shifts = self._coupled
        squares = (shifts**2).sum(axis=1) / self.standard_deviation**2
        logs: FloatArray = log_weights + t * (1 + t) / 2 * squares
        return logs

    def log_envelope(self, t: float) -> float:
        """Logarithm of the sum of c_kj * M_kj."""
        return float(logsumexp(self._log_envelopes(t)))

    def truncated_share(self, t: float) -> float:
        """Nothing is left out."""
        return 0.0

    def tilt(self, t: float) -> CoupledTilt:
        """The mixture of the coupled components' tilts."""
        logs = self._log_envelopes(t)
        log_weights = logs - logsumexp(logs)
        kept = np.exp(log_weights) > 0  # components of no weight are never drawn
        _, starts, shifts = self._coupled
        return CoupledTilt(
            pair=self,
            log_envelope=self.log_envelope(t),
            means=(starts + t * shifts)[kept],
            weights=np.exp(log_weights[kept]),
        )


@dataclass(frozen=True, kw_only=True)
class CoupledTilt:
    """A Gaussian mixture g with p * exp(t * L) <= M * g.

    Attributes:
        pair: The pair.
        log_envelope: log M.
        means: Shape `(c, d)`.
        weights: Shape `(c,)`.
    """

    pair: VectorMixturePair
    log_envelope: float
    means: FloatArray
    weights: FloatArray

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """Draws from g."""
        return self.pair.draw(self.means, self.weights, n, rng)

    def log_weights(self, x: Samples, losses: FloatArray) -> FloatArray:
        """log(p / g); the common Gaussian factor never enters."""
        log_g = self.pair.log_ratio(x, self.means, self.weights)
        return self.pair.log_ratio(x, self.pair.p_means, self.pair.p_weights) - log_g
