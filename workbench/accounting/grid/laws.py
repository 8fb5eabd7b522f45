"""The law of one step's privacy loss: masses of cells of losses under both neighbours, with error bounds.

The privacy loss of an output x of the pair (P, Q) is L(x) = log(P(x) / Q(x)). A law answers, for the
cells between the half-grid points j * h / 2, how much mass P and Q put on the outputs whose loss falls
there. The reverse order of the pair (Q, P) has the losses -L, so its cells are the same, mirrored.

Every mass comes with a bound on its absolute error, from a forward error analysis in units of the
float64 round-off u = 2^-53 that allows each call of exp, expm1, log1p, asinh, sinh and of the normal
distribution function its own error (`_normal_tail`; the tests compare them with ball arithmetic). A
threshold that rounding moved is no error in the masses: the cell is then exactly the one between the
moved thresholds, whose losses leave the nominal ones by at most `eta`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray

ROUND_OFF = 2.0**-53
"""u: relative error of one float64 operation."""

_WIDEST = 1e5
"""Most standard deviations between the means of a mixture."""


@dataclass(frozen=True, kw_only=True)
class CellMasses:
    """Masses of half-cells (b_j, b_{j+1}], b_j = offset + (first + j) * h / 2, and of what lies outside.

    Attributes:
        first: Half-grid index of the lowest boundary; even.
        p, q: Mass of each half-cell under P and Q, shape `(2 n,)`.
        p_error, q_error: Bounds on the absolute errors of `p` and `q`.
        difference, difference_error: p - q where it is better known than from both, and likewise; else None.
        below, above: (p, q, error of p, error of q) of the losses below and above all cells.
        eta: How far a loss may lie outside the nominal ends of its cell.
        infinite: Mass under P of losses +infinity, and under Q of losses -infinity; in no cell.
        offset: Where the grid's zero lies.
    """

    first: int
    p: FloatArray
    q: FloatArray
    p_error: FloatArray
    q_error: FloatArray
    below: tuple[float, float, float, float]
    above: tuple[float, float, float, float]
    eta: float
    infinite: tuple[float, float] = (0.0, 0.0)
    offset: float = 0.0
    difference: FloatArray | None = None
    difference_error: FloatArray | None = None

    @classmethod
    def of(cls, whole: tuple[FloatArray, ...], **places: Any) -> CellMasses:
        """Split masses and errors, whose first entry lies below all cells and whose last above them."""
        below, above = (tuple(float(masses[end]) for masses in whole) for end in (0, -1))
        p, q, p_error, q_error = (masses[1:-1] for masses in whole)
        return cls(p=p, q=q, p_error=p_error, q_error=q_error, below=below, above=above, **places)  # type: ignore[arg-type]

    def mirrored(self) -> CellMasses:
        """The masses of the pair in reverse order."""
        low, high = self.below, self.above
        return CellMasses(
            first=-(self.first + len(self.p)),
            p=self.q[::-1],
            q=self.p[::-1],
            p_error=self.q_error[::-1],
            q_error=self.p_error[::-1],
            below=(high[1], high[0], high[3], high[2]),
            above=(low[1], low[0], low[3], low[2]),
            eta=self.eta,
            infinite=(self.infinite[1], self.infinite[0]),
            offset=-self.offset,
            difference=None if self.difference is None else -self.difference[::-1],
            difference_error=None if self.difference_error is None else self.difference_error[::-1],
        )


class LossLaw(ABC):
    """The privacy losses of one step, for the pair in its forward order."""

    lattice: float | None = None
    """A loss of which all atoms are multiples; the grid is aligned with it where there is one."""

    @abstractmethod
    def span(self, tail: float) -> tuple[float, float]:
        """Losses outside which P and Q put a mass of about `tail` at most, each side."""

    @abstractmethod
    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A quadrature, good to a few digits: losses, weights under P, weights under Q. Decides no bound."""

    def offset(self, h: float) -> float:
        """The place of the grid's zero at which a grid of width h serves this law best."""
        return 0.0

    @abstractmethod
    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """Masses of `count` half-cells of width h / 2 from half-grid index `first` up."""


def _normal_tail(t: FloatArray) -> FloatArray:
    """Phi(-|t|); its relative error is below (64 + 8 t^2) u."""
    tail: FloatArray = ndtr(-np.abs(t))
    return tail


class MonotoneLaw(LossLaw):
    """Mixtures of Gaussians of one standard deviation whose loss increases with x.

    Args:
        p_components, q_components: (weight, mean) pairs.
        sigma: Standard deviation of every component.
        differences: (weight, mean) pairs of P - Q, where these weights are exact: little is left of P - Q
            where a record seldom takes part, and its losses are known as well as it is.
    """

    def __init__(
        self,
        p_components: tuple[tuple[float, float], ...],
        q_components: tuple[tuple[float, float], ...],
        sigma: float,
        differences: tuple[tuple[float, float], ...] = (),
    ) -> None:
        self._p, self._q, self._sigma = p_components, q_components, sigma
        self._differences = differences
        self._means = sorted({mean for _, mean in (*p_components, *q_components)})

    @abstractmethod
    def loss(self, x: FloatArray) -> FloatArray:
        """Loss at x, for the quadrature."""

    @abstractmethod
    def thresholds(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """x at which each loss is reached (-inf below the lowest, inf above the highest), and eta."""

    def span(self, tail: float) -> tuple[float, float]:
        """Losses at so many standard deviations below the lowest mean and above the highest."""
        reach = -float(ndtri(max(tail, 1e-300))) * self._sigma
        low, high = self.loss(np.array([self._means[0] - reach, self._means[-1] + reach]))
        return float(low), float(high)

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The trapezoidal rule with eight nodes a standard deviation."""
        if self._means[-1] - self._means[0] > _WIDEST * self._sigma:
            raise UnsupportedError(
                f"means more than {_WIDEST:g} standard deviations apart are too far for the grid"
            )
        reach, pace = 14.0 * self._sigma, self._sigma / 8
        x = np.arange(self._means[0] - reach, self._means[-1] + reach, pace)
        scale = pace / (self._sigma * math.sqrt(2 * math.pi))

        def density(components: tuple[tuple[float, float], ...]) -> FloatArray:
            total = np.zeros_like(x)
            for weight, mean in components:
                total += weight * np.exp(-0.5 * ((x - mean) / self._sigma) ** 2)
            return scale * total

        return self.loss(x), density(self._p), density(self._q)

    def offset(self, h: float) -> float:
        """The mean of the losses in the cell around 0: under weak sampling most of the mass lies near."""
        around = self.cells(h, -1, 2)
        p, q = float(around.p.sum()), float(around.q.sum())
        return math.log(p / q) if p > 1e-3 and q > 1e-3 else 0.0

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """Masses of half-cells of width h / 2 and bounds on their errors, as `LossLaw.cells` defines them."""
        losses = offset + (first + np.arange(count + 1, dtype=np.float64)) * (h / 2)
        return replace(self.cells_between(losses), first=first, offset=offset)

    def cells_between(self, losses: FloatArray) -> CellMasses:
        """Masses between increasing losses, as of half-cells; `first` and `offset` say nothing."""
        x, eta = self.thresholds(losses)
        # Where rounding put a threshold below the one before, that one's loss is within eta of both.
        x = np.maximum.accumulate(x)
        by_mean = {mean: _masses_of(x, mean, self._sigma) for mean in self._means}

        def mixed(components: tuple[tuple[float, float], ...]) -> tuple[FloatArray, FloatArray]:
            parts = [(weight, *by_mean[mean]) for weight, mean in components]
            mass: FloatArray = sum((w * m for w, m, _ in parts), np.zeros(len(losses) + 1))
            error: FloatArray = sum((w * e for w, _, e in parts), (8 + len(parts)) * ROUND_OFF * mass)
            return mass, error

        (p, p_error), (q, q_error) = mixed(self._p), mixed(self._q)
        places: dict[str, Any] = {"first": 0, "eta": eta}
        if self._differences:
            difference, _ = mixed(self._differences)
            _, error = mixed(tuple((abs(weight), mean) for weight, mean in self._differences))
            places |= {"difference": difference[1:-1], "difference_error": error[1:-1]}
        return CellMasses.of((p, q, p_error, q_error), **places)


def _masses_of(x: FloatArray, mean: float, sigma: float) -> tuple[FloatArray, FloatArray]:
    """Mass of N(mean, sigma^2) below x_0, between neighbours, and above x_n; and bounds on the errors."""
    with np.errstate(invalid="ignore"):
        t = (x - mean) / sigma
        tail = _normal_tail(t)
        size = np.abs(t)
        relative = 64 + 8 * size * size + 8 * (1 + size) * (np.abs(x) + abs(mean)) / sigma
        error = np.where(tail > 0, ROUND_OFF * relative * tail, 0.0)
    upper, lower = t[1:], t[:-1]
    inner = np.where(
        lower > 0,
        tail[:-1] - tail[1:],
        np.where(upper <= 0, tail[1:] - tail[:-1], 1 - tail[:-1] - tail[1:]),
    )
    straddles = (lower <= 0) & (upper > 0)
    inner_error = error[:-1] + error[1:] + ROUND_OFF * (tail[:-1] + tail[1:] + 2 * straddles)
    below = tail[0] if t[0] <= 0 else 1 - tail[0]
    above = tail[-1] if t[-1] > 0 else 1 - tail[-1]
    mass = np.concatenate(([below], np.maximum(inner, 0.0), [above]))
    # Tails below the smallest float64 are lost: 1e-300 covers them.
    outer = [error[0] + ROUND_OFF * (t[0] > 0), error[-1] + ROUND_OFF * (t[-1] <= 0)]
    errors = np.concatenate((outer[:1], inner_error, outer[1:])) + 1e-300
    return mass, errors


class SubsampledLaw(MonotoneLaw):
    """Poisson-subsampled Gaussian, add-remove, forward order "remove": (1 - q) N(0) + q N(1) against N(0)."""

    def __init__(self, sigma: float, q: float) -> None:
        super().__init__(((1 - q, 0.0), (q, 1.0)), ((1.0, 0.0),), sigma, ((-q, 0.0), (q, 1.0)))
        if q < 1e-250:
            raise UnsupportedError(f"sampling_probability {q:g} is too small for the grid")
        self._rate = q

    def loss(self, x: FloatArray) -> FloatArray:
        """log(1 - q + q exp((2 x - 1) / (2 sigma^2)))."""
        z = (x - 0.5) / self._sigma**2
        return np.where(
            z > 0,
            z + np.log(self._rate + (1 - self._rate) * np.exp(-np.abs(z))),
            np.log1p(self._rate * np.expm1(np.minimum(z, 0.0))),
        )

    def thresholds(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """x = 1/2 + sigma^2 z with z = log(1 + (exp(L) - 1) / q).

        The rounding of expm1 and of the division moves L by at most 8 u |1 - exp(-L)|; that of z and x
        moves z by 8 u (|z| + |x| / sigma^2), hence L by that times dL/dz = q exp(z - L).
        """
        q, variance = self._rate, self._sigma**2
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            growth = np.expm1(losses)
            ratio = growth / q
            # Beyond 100, log(1 + (exp(L) - 1) / q) is L - log(q) up to exp(-100).
            near = losses < 100
            z = np.where(near, np.log1p(np.maximum(ratio, -1.0)), losses - math.log(q))
            x = variance * z + 0.5
            slope = np.where(np.isfinite(x), q * (1 + ratio) / (1 + growth), 0.0)
            moved = np.abs(growth / (1 + growth))
            moved += np.where(np.isfinite(x), slope * (np.abs(z) + np.abs(x) / variance), 0.0)
            far = 4 * (np.abs(losses) + np.abs(z) + np.abs(x) / variance)
        # Clearly below the lowest loss nothing is lost; close to it, rounding may have emptied a cell.
        errors = np.where(near, np.where(ratio > -1 - 1e-14, moved, 0.0), far)
        return x, float(16 * ROUND_OFF * np.max(errors, initial=0.0))


class ReplaceLaw(MonotoneLaw):
    """Poisson-subsampled Gaussian, replace-one: (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1).

    That no pair of contributions of norm at most 1 does worse is proved in `balls.mixture`.
    """

    def __init__(self, sigma: float, q: float) -> None:
        sampled, other = ((1 - q, 0.0), (q, 1.0)), ((1 - q, 0.0), (q, -1.0))
        super().__init__(sampled, other, sigma, ((q, 1.0), (-q, -1.0)))
        self._rate = q
        self._log_c = math.log(q) - 0.5 / sigma**2
        if self._log_c < -690:
            raise UnsupportedError(
                f"noise_multiplier {sigma:g} is too small for replace-one subsampling on the grid"
            )

    def loss(self, x: FloatArray) -> FloatArray:
        """Log-ratio of the two mixtures."""
        z = x / self._sigma**2
        a = math.log1p(-self._rate) if self._rate < 1 else -math.inf
        return np.logaddexp(a, self._log_c + z) - np.logaddexp(a, self._log_c - z)

    def thresholds(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """x = sigma^2 (L / 2 + asinh(a sinh(L / 2) / c)), a = 1 - q and c = q exp(-1 / (2 sigma^2)).

        With y = exp(x / sigma^2) the ratio is (a + c y) / (a + c / y): a quadratic equation in y. The
        steps keep relative accuracy, but for a / c, which is off by 8 u (|log a| + |log c|) and moves
        asinh by as much times at most min(1, |z|); dL/dz <= 2 min(1, c cosh(z) / a).
        """
        half = losses / 2
        log_a = math.log1p(-self._rate)
        # Where sinh may be out of reach, asinh(sinh(x) b) = x + log(b) up to exp(-38).
        beyond = np.abs(half) + log_a - self._log_c
        far = (np.abs(half) > 20) & (beyond > 20)
        stretched = np.sinh(np.where(far, 0.0, half)) * math.exp(log_a - self._log_c)
        z = half + np.where(far, np.sign(half) * beyond, np.arcsinh(stretched))
        size = np.abs(z)
        with np.errstate(over="ignore", divide="ignore"):
            slope = 2 * np.minimum(
                1.0, np.cosh(np.minimum(size, 700)) * math.exp(self._log_c) / max(1 - self._rate, 1e-300)
            )
        moved = size + (abs(log_a) + abs(self._log_c)) * np.minimum(size, 1.0)
        return z * self._sigma**2, float(32 * ROUND_OFF * np.max(slope * moved, initial=0.0))


class GaussianLaw(MonotoneLaw):
    """The Gaussian mechanism of parameter mu, on the scale of its loss: N(mu^2 / 2, mu^2) and mirrored."""

    def __init__(self, mu: float) -> None:
        super().__init__(((1.0, mu * mu / 2),), ((1.0, -mu * mu / 2),), mu)

    def loss(self, x: FloatArray) -> FloatArray:
        """The privacy loss at x; here x is the loss itself."""
        return x

    def thresholds(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """The losses; mu (of several mechanisms: by a few u) and mu^2 / 2 are rounded, which moves them."""
        mu = self._sigma
        return losses, float(16 * ROUND_OFF * (np.max(np.abs(losses), initial=0.0) + mu * mu))


class MixtureLaw(MonotoneLaw):
    """Any pair of Gaussian mixtures whose loss is monotone.

    It is where, over the means in increasing order, the weight under P never falls relative to that
    under Q: the Gaussian kernel is totally positive, so the ratio of the mixtures inherits the order
    (Karlin 1968).

    Raises:
        UnsupportedError: the weights are not so ordered, in either direction.
    """

    def __init__(
        self,
        p_components: tuple[tuple[float, float], ...],
        q_components: tuple[tuple[float, float], ...],
        sigma: float,
    ) -> None:
        if not _ordered(p_components, q_components):
            p_components = tuple((weight, -mean) for weight, mean in p_components)
            q_components = tuple((weight, -mean) for weight, mean in q_components)
            if not _ordered(p_components, q_components):
                raise UnsupportedError(
                    "Gaussian mixtures are composed only where their likelihood ratio is monotone"
                )
        super().__init__(p_components, q_components, sigma)

    def loss(self, x: FloatArray) -> FloatArray:
        """Log-ratio of the two mixtures."""
        variance = self._sigma**2

        def log_density(components: tuple[tuple[float, float], ...]) -> FloatArray:
            terms = [math.log(w) + (m * x - m * m / 2) / variance for w, m in components]
            total: FloatArray = np.logaddexp.reduce(terms, axis=0)
            return total

        return log_density(self._p) - log_density(self._q)

    def thresholds(self, losses: FloatArray) -> tuple[FloatArray, float]:
        """Newton's method from a table of the loss; eta is what the loss misses there."""
        reach = 60 * self._sigma
        table = np.linspace(self._means[0] - reach, self._means[-1] + reach, 4097)
        known = np.maximum.accumulate(self.loss(table))
        place = np.clip(np.searchsorted(known, losses), 1, len(table) - 1)
        low, high = table[place - 1], table[place]
        x = np.clip(np.interp(losses, known, table), low, high)
        for _ in range(12):
            gap = self.loss(x) - losses
            low, high = np.where(gap <= 0, x, low), np.where(gap >= 0, x, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                moved = x - gap / self._slope(x)
            x = np.where((moved >= low) & (moved <= high), moved, (low + high) / 2)
        never, always = known[0] > losses, known[-1] < losses
        usable = ~never & ~always
        spread = np.max(np.abs(x[usable]), initial=0.0) + max(map(abs, self._means))
        largest = max(map(abs, self._means))
        rounding = (64 + 8 * len(self._means)) * ROUND_OFF * (1 + spread * largest / self._sigma**2)
        missed = np.max(np.abs(self.loss(x) - losses)[usable], initial=0.0)
        x = np.where(never, -np.inf, np.where(always, np.inf, x))
        return x, float(missed + rounding)

    def _slope(self, x: FloatArray) -> FloatArray:
        """Derivative of the loss: the difference of the mean components at x, over the variance."""
        variance = self._sigma**2

        def mean_at(components: tuple[tuple[float, float], ...]) -> FloatArray:
            if len(components) == 1:
                return np.full_like(x, components[0][1])
            terms = [math.log(w) + (m * x - m * m / 2) / variance for w, m in components]
            shift = np.maximum.reduce(terms)
            weights = [np.exp(term - shift) for term in terms]
            total: FloatArray = sum((w * m for w, (_, m) in zip(weights, components, strict=True)), 0 * x)
            mean: FloatArray = total / np.add.reduce(weights)
            return mean

        slope: FloatArray = (mean_at(self._p) - mean_at(self._q)) / variance
        return slope

    def span(self, tail: float) -> tuple[float, float]:
        """As `MonotoneLaw.span`, from the means below and above which the weights reach the tail."""
        reach = -float(ndtri(max(tail / 2, 1e-300))) * self._sigma
        sides = [sorted((mean, weight) for weight, mean in side) for side in (self._p, self._q)]
        lowest = min(_first_beyond(side, tail / 2) for side in sides)
        highest = max(_first_beyond(side[::-1], tail / 2) for side in sides)
        low, high = self.loss(np.array([lowest - reach, highest + reach]))
        return float(low), float(high)


def _first_beyond(components: list[tuple[float, float]], tail: float) -> float:
    """The first mean at which the summed weights exceed the tail."""
    total = 0.0
    for mean, weight in components:
        total += weight
        if total > tail:
            return mean
    return components[-1][0]


def _ordered(p: tuple[tuple[float, float], ...], q: tuple[tuple[float, float], ...]) -> bool:
    """True where P's weight over Q's never falls as the mean grows."""
    means = sorted({mean for _, mean in (*p, *q)})
    weights = [(sum(w for w, m in p if m == mean), sum(w for w, m in q if m == mean)) for mean in means]
    return all(
        low[0] * high[1] <= high[0] * low[1]
        for index, low in enumerate(weights)
        for high in weights[index + 1 :]
    )


class AtomicLaw(LossLaw):
    """Finitely many losses (randomised response, finite mechanisms), given with their masses.

    Args:
        losses: Finite losses, increasing.
        p, q: Their masses, relative errors at most 8 u.
        p_infinite: Mass under P of outputs that Q never gives.
        q_infinite: Mass under Q of outputs that P never gives.
        lattice: See `LossLaw.lattice`.
    """

    def __init__(
        self,
        losses: FloatArray,
        p: FloatArray,
        q: FloatArray,
        *,
        p_infinite: float = 0.0,
        q_infinite: float = 0.0,
        lattice: float | None = None,
    ) -> None:
        self._losses, self._p, self._q = losses, p, q
        self._infinite = (p_infinite, q_infinite)
        self.lattice = lattice

    def span(self, tail: float) -> tuple[float, float]:
        """The lowest and the highest finite loss."""
        return float(self._losses[0]), float(self._losses[-1])

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The atoms' losses and their masses under P and Q."""
        return self._losses, self._p, self._q

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """Each atom in the half-cell that its loss falls into, within rounding."""
        place = np.ceil((self._losses - offset) / (h / 2) - 1e-9).astype(np.int64) - first
        # Slot 0 is below all cells, slot k is (b_{k-1}, b_k], slot count + 1 is above.
        slot = np.clip(place, 0, count + 1)
        p: FloatArray = np.bincount(slot, self._p, minlength=count + 2).astype(np.float64)
        q: FloatArray = np.bincount(slot, self._q, minlength=count + 2).astype(np.float64)
        slack = (16 + len(self._losses)) * ROUND_OFF
        # The smallest float64 covers masses that are below it.
        p_error, q_error = (slack * mass + np.where(mass > 0, 1e-300, 0.0) for mass in (p, q))
        return CellMasses.of(
            (p, q, p_error, q_error),
            first=first,
            # An atom that the ceiling's slack put one half-cell lower leaves it by 1e-9 of a half-cell.
            eta=1e-9 * h + 16 * ROUND_OFF * float(np.max(np.abs(self._losses))),
            infinite=self._infinite,
            offset=offset,
        )


class LaplaceLaw(LossLaw):
    """Laplace noise: half of P at loss c, half of Q at loss -c, and a ramp between; c = sensitivity / scale.

    P is centred at 0 and Q at the sensitivity; the loss at x in between is c (1 - 2 x). The pair in
    reverse order has the same law.
    """

    def __init__(self, c: float) -> None:
        self._c = c
        self.lattice = c

    def span(self, tail: float) -> tuple[float, float]:
        """The least and the largest loss, -c and c."""
        return -self._c, self._c

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Both atoms, and midpoints of 400 cells of the ramp."""
        edges = np.linspace(-self._c, self._c, 401)
        below = 0.5 * np.exp((edges - self._c) / 2)
        p = np.concatenate(([below[0]], np.diff(below), [0.5]))
        losses = np.concatenate(([-self._c], (edges[:-1] + edges[1:]) / 2, [self._c]))
        return losses, p, p[::-1].copy()

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """P(L <= l) = exp((l - c) / 2) / 2 for -c <= l < c, Q(L <= l) = 1 - exp(-(l + c) / 2) / 2."""
        edges = offset + (first + np.arange(count + 1, dtype=np.float64)) * (h / 2)
        inside = np.clip(edges, -self._c, self._c)
        # Rounding must not push an edge that means c below it: within 1e-12 it is c.
        reached = edges >= self._c * (1 - 1e-12)
        started = edges >= -self._c * (1 + 1e-12)
        p_below = np.where(reached, 1.0, np.where(started, 0.5 * np.exp((inside - self._c) / 2), 0.0))
        q_above = np.where(reached, 0.0, np.where(started, 0.5 * np.exp(-(inside + self._c) / 2), 1.0))
        p = np.diff(p_below, prepend=0.0, append=1.0)
        q = -np.diff(q_above, prepend=1.0, append=0.0)
        # 0 and 1 are exact.
        slack = np.where(started & ~reached, 32 * ROUND_OFF * (1 + self._c), 0.0)
        p_slack, q_slack = slack * p_below, slack * q_above
        p_error = np.append(p_slack, 0.0) + np.append(0.0, p_slack) + ROUND_OFF * p
        q_error = np.append(q_slack, 0.0) + np.append(0.0, q_slack) + ROUND_OFF * q
        return CellMasses.of(
            (p, q, p_error, q_error),
            first=first,
            eta=4e-12 * self._c,
            offset=offset,
        )
