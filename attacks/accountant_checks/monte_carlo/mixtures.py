"""Pairs of Gaussian mixtures with their exponential tilts: exact in one dimension, in more with an envelope.

**One dimension.** f = p^(1 + t) * q^(-t) is drawn by rejection from a staircase above it. With the posterior
mean m_p(x) of p's component given x (and m_q), the slope of log f is (-x + (1 + t) m_p - t m_q) / s^2. A
posterior mean under Gaussian noise never falls in x (its derivative is the posterior variance over s^2), so
on a cell [a, b] the slope lies between its values with the means' ends put in: that bounds f on the cell.

The normaliser M(t) is the trapezoidal sum over the cells' ends. All components' phases differ by less than a
right angle in the strip |Im x| <= a = min(s, pi s^2 / (2 H)), H the width of the wider set of means, so p and
q have no zero there and |f(x + iy)| <= exp(a^2 / (2 s^2)) * 2^(t / 2) * f(x); by Trefethen and Weideman 2014,
theorem 5.1, the sum's relative error is at most 2 * exp(a^2 / (2 s^2)) * 2^(t / 2) / (exp(2 pi a / w) - 1).
The cell width w keeps it below 1e-16.

**A single draw** needs no tilt: `StaircaseProposal` is constant on each cell, in proportion to an upper
bound on p * (1 - exp(epsilon - L))_+ there, so the weighted integrand is at most the staircase's area, a few
percent above delta itself.

**More dimensions.** (a, b) -> a^(1 + t) * b^(-t) is jointly convex, so for any coupling c of p's components
with q's,

    p^(1 + t) * q^(-t) <= sum over (k, j) of c_kj * N_k^(1 + t) * N_j^(-t) = sum of c_kj * M_kj * g_kj,

with g_kj the tilt of the pair of Gaussians (k, j) and M_kj = exp(t (1 + t) |m_k - n_j|^2 / (2 s^2)). Drawing
from the mixture g with weights proportional to c_kj * M_kj therefore gives p * exp(t * L) <= M * g with the
envelope M = sum of c_kj * M_kj. The coupling decides how tight that is; its validity needs none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp, ndtr

from workbench.attacks.accountant_checks.monte_carlo.pairs import ExactTilt, Part, Samples, rows
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

_MARGIN = 12.0
"""Standard deviations that the cells reach beyond every mean of p and of the tilt."""
_FAR = 38.0
"""The same for a single draw: the tail beyond is below 1e-300."""
_DEPTH = 80.0
_MAX_RANGE = 1e6
_MAX_CELLS = 1 << 18
_BLOCK = 1 << 22


def require_mixture(means: FloatArray, weights: FloatArray, side: str) -> None:
    """Refuse means and weights that do not make a Gaussian mixture.

    Args:
        means: First axis one entry a component.
        weights: Shape `(k,)`.

    Raises:
        InputError: lengths differ, a mean is not finite, or the weights are no probabilities.
    """
    if len(means) == 0 or len(means) != len(weights) or not np.isfinite(means).all():
        raise InputError(
            f"{side}_means must be finite, one for each of {side}_weights, got {means.tolist()!r}"
        )
    if not (weights > 0).all() or not abs(weights.sum() - 1) < 1e-12:
        raise InputError(f"{side}_weights must be positive and sum to 1, got {weights.tolist()!r}")


def _log_ratio(y: FloatArray, means: FloatArray, log_weights: FloatArray) -> FloatArray:
    """Logarithm of a mixture's density over N(0, 1)'s, unit standard deviation; `y` of shape `(n,)`."""
    result: FloatArray | None = None
    for mean, log_weight in zip(means, log_weights, strict=True):
        term = y * mean + (log_weight - mean * mean / 2)
        result = term if result is None else np.logaddexp(result, term)
    assert result is not None  # a mixture has components
    return result


def _posterior_means(y: FloatArray, means: FloatArray, log_weights: FloatArray) -> FloatArray:
    """Mean of the component's mean given y, shape `(n,)`."""
    terms = y[:, None] * means + (log_weights - means**2 / 2)
    shares = np.exp(terms - terms.max(axis=1, keepdims=True))
    result: FloatArray = shares @ means / shares.sum(axis=1)
    return result


@dataclass(frozen=True, kw_only=True)
class MixturePair(Part):
    """Two one-dimensional Gaussian mixtures with one standard deviation.

    Attributes:
        p_means, p_weights: Components of P; weights positive, summing to 1.
        q_means, q_weights: Components of Q.
        standard_deviation: Of every component.

    Raises:
        InputError: a value is out of range.
    """

    p_means: tuple[float, ...]
    p_weights: tuple[float, ...]
    q_means: tuple[float, ...]
    q_weights: tuple[float, ...]
    standard_deviation: float

    def __post_init__(self) -> None:
        if not 0 < self.standard_deviation < math.inf:
            raise InputError(f"standard_deviation must be finite and > 0, got {self.standard_deviation!r}")
        require_mixture(np.array(self.p_means), np.array(self.p_weights), "p")
        require_mixture(np.array(self.q_means), np.array(self.q_weights), "q")

    @property
    def dimension(self) -> int:
        return 1

    def describe(self) -> str:
        return (
            f"pair of Gaussian mixtures ({len(self.p_means)} and {len(self.q_means)} components, "
            f"standard deviation {self.standard_deviation:g})"
        )

    @cached_property
    def _p(self) -> tuple[FloatArray, FloatArray]:
        """Means in standard deviations, and log-weights."""
        return np.array(self.p_means) / self.standard_deviation, np.log(self.p_weights)

    @cached_property
    def _q(self) -> tuple[FloatArray, FloatArray]:
        return np.array(self.q_means) / self.standard_deviation, np.log(self.q_weights)

    def _scaled(self, x: Samples) -> FloatArray:
        return rows(x)[:, 0] / self.standard_deviation

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        means = np.array(self.p_means)
        weights = np.array(self.p_weights) / math.fsum(self.p_weights)
        chosen = means[rng.choice(len(means), size=n, p=weights)] if len(means) > 1 else means[0]
        drawn: FloatArray = chosen + self.standard_deviation * rng.standard_normal(n)
        return drawn

    def _log_density(self, x: Samples, side: tuple[FloatArray, FloatArray]) -> FloatArray:
        y = self._scaled(x)
        constant = math.log(self.standard_deviation * math.sqrt(2 * math.pi))
        return _log_ratio(y, *side) - y * y / 2 - constant

    def log_density_p(self, x: Samples) -> FloatArray:
        return self._log_density(x, self._p)

    def log_density_q(self, x: Samples) -> FloatArray:
        return self._log_density(x, self._q)

    def losses(self, x: Samples) -> FloatArray:
        """log p - log q; the common Gaussian factor never enters."""
        return self._losses(self._scaled(x))

    def _losses(self, y: FloatArray) -> FloatArray:
        return _log_ratio(y, *self._p) - _log_ratio(y, *self._q)

    def weigh(self, y: FloatArray, log_g: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Losses and log(p / g) at `y`, both densities in units of the standard deviation."""
        log_p = _log_ratio(y, *self._p)
        return log_p - _log_ratio(y, *self._q), log_p - y * y / 2 - math.log(2 * math.pi) / 2 - log_g

    def swapped(self) -> MixturePair:
        """The pair with P and Q exchanged."""
        p, q = (self.p_means, self.p_weights), (self.q_means, self.q_weights)
        return replace(self, p_means=q[0], p_weights=q[1], q_means=p[0], q_weights=p[1])

    def _lattice(self, t: float, widest: float) -> tuple[FloatArray, float] | None:
        """Left ends and common width of the cells that hold all of f but a share of 1e-20.

        Cells are halved until they are at most `widest` (in standard deviations), and dropped where even
        their upper bound lies exp(80) below f's largest known value. None where that leaves too many.
        """
        p, q = self._p[0], self._q[0]
        low = min(p.min(), (1 + t) * p.min() - t * q.max()) - _MARGIN
        high = max(p.max(), (1 + t) * p.max() - t * q.min()) + _MARGIN
        if high - low > _MAX_RANGE:
            return None
        cells, index = 64, np.arange(64)
        while True:
            width = (high - low) / cells
            lefts = low + width * index
            log_tops, values = self._log_tops(lefts, width, t)
            kept = log_tops >= values.max() - _DEPTH
            if kept.sum() > _MAX_CELLS:
                return None
            if width <= widest:
                return lefts[kept], width
            cells *= 2
            index = np.concatenate([2 * index[kept], 2 * index[kept] + 1])

    @property
    def _spread(self) -> float:
        """Width of the wider set of means, in standard deviations."""
        return max(float(np.ptp(self._p[0])), float(np.ptp(self._q[0])))

    def _log_f(self, y: FloatArray, t: float) -> FloatArray:
        log_p = _log_ratio(y, *self._p)
        return -y * y / 2 + log_p + t * (log_p - _log_ratio(y, *self._q))

    def log_envelope(self, t: float) -> float:
        """log M(t), relative error of M below 1e-13; infinite where t needs too many cells."""
        if t == 0:
            return 0.0
        strip = 1.0 if self._spread == 0 else min(1.0, math.pi / (2 * self._spread))
        lattice = self._lattice(t, 2 * math.pi * strip / (38 + strip * strip / 2 + t * math.log(2) / 2))
        if lattice is None:
            return math.inf
        lefts, width = lattice
        return float(logsumexp(self._log_f(lefts, t))) + math.log(width) - math.log(2 * math.pi) / 2

    def truncated_share(self, t: float) -> float:
        """Bound on M(t)'s share in dropped cells: f lies exp(80) below its top there, or exp(72), falling."""
        return 0.0 if t == 0 else 1e-20

    def tilt(self, t: float) -> ExactTilt:
        """Rejection from the staircase.

        Raises:
            InputError: t needs too many cells.
        """
        if t == 0:
            return ExactTilt(t=0.0, log_envelope=0.0, sampler=self.sample)
        # Narrow enough for an acceptance of about 0.95; any width is valid.
        lattice = self._lattice(t, min(0.02, 0.1 / math.sqrt(1 + (1 + 2 * t) * self._spread**2 / 4)))
        if lattice is None:
            raise InputError(f"t must not need more than {_MAX_CELLS} cells, got {t!r}")
        lefts, width = lattice
        log_tops, _ = self._log_tops(lefts, width, t)
        staircase = Staircase(lefts=lefts, width=width, log_tops=log_tops)

        def sampler(n: int, rng: np.random.Generator) -> Samples:
            """`n` draws by rejection from the staircase."""
            kept: list[FloatArray] = []
            missing = n
            while missing > 0:
                size = min(int(missing * 1.1) + 32, _BLOCK)
                y, log_top = staircase.draw(size, rng)
                accepted = y[np.log1p(-rng.random(size)) <= self._log_f(y, t) - log_top]
                kept.append(accepted[:missing])
                missing -= len(kept[-1])
            return np.concatenate(kept) * self.standard_deviation

        return ExactTilt(t=t, log_envelope=self.log_envelope(t), sampler=sampler)

    def _log_tops(self, lefts: FloatArray, width: float, t: float) -> tuple[FloatArray, FloatArray]:
        """An upper bound on log f over each cell, by its ends and the slopes' bounds, and its left values."""
        rights = lefts + width
        steepest = (
            (1 + t) * _posterior_means(rights, *self._p) - t * _posterior_means(lefts, *self._q) - lefts
        )
        flattest = (
            (1 + t) * _posterior_means(lefts, *self._p) - t * _posterior_means(rights, *self._q) - rights
        )
        values = self._log_f(lefts, t)
        by_left = values + np.maximum(steepest, 0) * width
        by_right = self._log_f(rights, t) + np.maximum(-flattest, 0) * width
        return np.minimum(by_left, by_right) + 1e-12 * (1 + t), values

    def sharp_proposal(self, epsilon: float) -> StaircaseProposal:
        """The proposal for a single draw: a staircase above p * (1 - exp(epsilon - L))_+."""
        p, q = self._p, self._q
        low, high = p[0].min() - _FAR, p[0].max() + _FAR
        cells = min(_MAX_CELLS, math.ceil((high - low) / min(0.02, 0.1 / math.sqrt(1 + self._spread**2))))
        width = (high - low) / cells
        lefts = low + width * np.arange(cells)
        rights = lefts + width
        log_tops, _ = self._log_tops(lefts, width, 0.0)
        # The loss moves by m_p - m_q, whose bounds over the cell come from the ends as f's do.
        rise = _posterior_means(rights, *p) - _posterior_means(lefts, *q)
        fall = _posterior_means(lefts, *p) - _posterior_means(rights, *q)
        by_left = self._losses(lefts) + np.maximum(rise, 0) * width
        by_right = self._losses(rights) + np.maximum(-fall, 0) * width
        excess = np.minimum(by_left, by_right) + 1e-9 * max(1.0, epsilon) - epsilon
        inside = excess > 0
        log_p_tops = log_tops[inside] - math.log(2 * math.pi) / 2
        log_tops = log_p_tops + np.log(-np.expm1(-excess[inside]))
        lefts = lefts[inside]
        outside = float(np.exp(p[1]) @ (ndtr(low - p[0]) + ndtr(p[0] - high)))
        if len(lefts) == 0:
            return StaircaseProposal(pair=self, staircase=None, left_out=outside, log_reach=-math.inf)
        kept = log_tops >= log_tops.max() - _DEPTH
        dropped = math.exp(min(0.0, float(log_tops.max()) - _DEPTH + math.log(width * len(lefts))))
        return StaircaseProposal(
            pair=self,
            staircase=Staircase(lefts=lefts[kept], width=width, log_tops=log_tops[kept]),
            left_out=outside + dropped,
            log_reach=float(logsumexp(log_p_tops)) + math.log(width),
        )


@dataclass(frozen=True, kw_only=True)
class StaircaseProposal:
    """Draws from a staircase above a pair's integrand.

    Attributes:
        staircase: Its logarithmic tops bound p * (1 - exp(epsilon - L))_+, in standard deviations; None where
            that is 0 everywhere.
        left_out: At most this part of delta lies outside.
        log_reach: Logarithm of an upper bound on P of the losses above epsilon, but for what lies outside.
    """

    pair: MixturePair
    staircase: Staircase | None
    left_out: float
    log_reach: float

    @property
    def log_bound(self) -> float:
        """Logarithm of the staircase's area, which bounds the weighted integrand."""
        return -math.inf if self.staircase is None else self.staircase.log_area

    def draw(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Losses and log(p / g) of `n` draws, each of shape `(n,)`."""
        if self.staircase is None:
            return np.full(n, -np.inf), np.zeros(n)
        y, log_top = self.staircase.draw(n, rng)
        return self.pair.weigh(y, log_top - self.staircase.log_area)


@dataclass(frozen=True, kw_only=True)
class Staircase:
    """A density that is constant on each cell, drawn by the alias method.

    Attributes:
        log_tops: Logarithm of each cell's unnormalised density.
    """

    lefts: FloatArray
    width: float
    log_tops: FloatArray

    @property
    def log_area(self) -> float:
        """Logarithm of the area under the tops."""
        return float(logsumexp(self.log_tops)) + math.log(self.width)

    @cached_property
    def _alias(self) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """Walker's table: probability of keeping each cell, and the cell taken otherwise."""
        weights = np.exp(self.log_tops - self.log_tops.max())
        keep = weights / weights.mean()
        other = np.arange(len(keep))
        small, large = list(np.flatnonzero(keep < 1)), list(np.flatnonzero(keep >= 1))
        while small and large:
            poor, rich = small.pop(), large[-1]
            other[poor] = rich
            keep[rich] -= 1 - keep[poor]
            if keep[rich] < 1:
                small.append(large.pop())
        return keep, other

    def draw(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draws and the log-tops of their cells."""
        keep, other = self._alias
        cells = rng.integers(len(keep), size=n)
        cells = np.where(rng.random(n) < keep[cells], cells, other[cells])
        return self.lefts[cells] + self.width * rng.random(n), self.log_tops[cells]


_MAX_COUPLED = 1 << 16


@dataclass(frozen=True, kw_only=True)
class VectorMixturePair(Part):
    """Two Gaussian mixtures in d dimensions with one standard deviation in every direction.

    Attributes:
        p_means: Shape `(k, d)`.
        p_weights: Shape `(k,)`, positive, summing to 1.
        q_means: Shape `(j, d)`.
        q_weights: Shape `(j,)`.

    Raises:
        InputError: a value is out of range, or components are too many to be coupled.
    """

    p_means: FloatArray
    p_weights: FloatArray
    q_means: FloatArray
    q_weights: FloatArray
    standard_deviation: float

    def __post_init__(self) -> None:
        if not 0 < self.standard_deviation < math.inf:
            raise InputError(f"standard_deviation must be finite and > 0, got {self.standard_deviation!r}")
        if self.p_means.ndim != 2 or self.q_means.shape[1:] != self.p_means.shape[1:]:
            raise InputError(f"q_means must be as wide as p_means, got {self.q_means.shape}")
        require_mixture(self.p_means, self.p_weights, "p")
        require_mixture(self.q_means, self.q_weights, "q")

    def describe(self) -> str:
        return (
            f"pair of Gaussian mixtures ({len(self.p_means)} and {len(self.q_means)} components in "
            f"{self.dimension} dimensions, standard deviation {self.standard_deviation:g})"
        )

    @property
    def dimension(self) -> int:
        return int(self.p_means.shape[1])

    @property
    def components(self) -> int:
        """Number of components of the larger mixture, the tilt's included."""
        return len(self._coupled[0])

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
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
        return self.log_ratio(x, self.p_means, self.p_weights) + self._base(x)

    def log_density_q(self, x: Samples) -> FloatArray:
        return self.log_ratio(x, self.q_means, self.q_weights) + self._base(x)

    def losses(self, x: Samples) -> FloatArray:
        """log p - log q; the common Gaussian factor never enters."""
        q = self.log_ratio(x, self.q_means, self.q_weights)
        return self.log_ratio(x, self.p_means, self.p_weights) - q

    def swapped(self) -> VectorMixturePair:
        """The pair with P and Q exchanged."""
        p, q = (self.p_means, self.p_weights), (self.q_means, self.q_weights)
        return replace(self, p_means=q[0], p_weights=q[1], q_means=p[0], q_weights=p[1])

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
        means: Shape `(c, d)`.
        weights: Shape `(c,)`.
    """

    pair: VectorMixturePair
    log_envelope: float
    means: FloatArray
    weights: FloatArray

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        return self.pair.draw(self.means, self.weights, n, rng)

    def log_weights(self, x: Samples, losses: FloatArray) -> FloatArray:
        """log(p / g); the common Gaussian factor never enters."""
        log_g = self.pair.log_ratio(x, self.means, self.weights)
        return self.pair.log_ratio(x, self.pair.p_means, self.pair.p_weights) - log_g
