"""Pairs of neighbours that Monte Carlo can draw from: Gaussian, Laplace, finite; and their exponential tilts.

A privacy loss is L(x) = log p(x) - log q(x). Tilting by t >= 0 draws from g(x) proportional to
p(x) * exp(t * L(x)) instead of p; with M(t) the mean of exp(t * L) under p, the weight is

    p(x) / g(x) = M(t) * exp(-t * L(x)).

**Why the weighted integrand is bounded.** delta(epsilon) is the mean under p of (1 - exp(epsilon - L))_+,
hence under g that of Z = M(t) * exp(-t * L) * (1 - exp(epsilon - L))_+. With s = L - epsilon > 0,

    Z = M(t) * exp(-t * epsilon) * exp(-t * s) * (1 - exp(-s))
      <= M(t) * exp(-t * epsilon) * t^t / (1 + t)^(1 + t),

as exp(-t * s) * (1 - exp(-s)) is largest where exp(-s) = t / (1 + t). (The bound is the delta that
Canonne, Kamath and Steinke 2020, proposition 12, find for a Rényi guarantee of order 1 + t; here it bounds
every single value.) Only p * exp(t * L) <= M(t) * g was used, so an envelope M(t) above the true mean serves
too; and both sides multiply over independent parts, so the bound holds for compositions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

Samples = npt.NDArray[np.generic]
"""Outputs of a mechanism, first axis one entry a sample: shape `(n,)` or `(n, d)`."""

Sampler = Callable[[int, np.random.Generator], Samples]
"""Draws `n` independent outputs."""

E = TypeVar("E", bound=StrEnum)


def member_of(kind: type[E], value: E | str, name: str) -> E:
    """The member of this value; the argument's name is for the error.

    Raises:
        InputError: there is none.
    """
    try:
        return kind(value)
    except ValueError as error:
        raise InputError(f"{name} must be one of {', '.join(kind)}, got {value!r}") from error


@runtime_checkable
class PairOfNeighbours(Protocol):
    """The least that Monte Carlo needs: outputs on one data set, and both log-densities."""

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """`n` independent outputs under P, shape `(n,)` or `(n, d)`."""

    def log_density_p(self, x: Samples) -> FloatArray:
        """Logarithm of P's density at each output, shape `(n,)`; -inf is legal."""

    def log_density_q(self, x: Samples) -> FloatArray:
        """Logarithm of Q's density, against the same measure, shape `(n,)`; -inf is legal."""


@runtime_checkable
class Swappable(Protocol):
    """A pair that also knows its other direction."""

    def swapped(self) -> PairOfNeighbours:
        """The pair with P and Q exchanged."""


class Tilt(Protocol):
    """A tilted distribution g of one part."""

    @property
    def log_envelope(self) -> float:
        """log M with p * exp(t * L) <= M * g everywhere in reach."""

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """`n` independent draws from g."""

    def log_weights(self, x: Samples, losses: FloatArray) -> FloatArray:
        """log(p / g) at each draw, given the draw's loss."""


class Part(ABC):
    """A pair that can be tilted; an elementary event. Its outputs are as of `PairOfNeighbours`."""

    @abstractmethod
    def describe(self) -> str:
        """The mechanism in words, with its numbers."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Numbers that an output consists of."""

    @property
    def infinite_mass(self) -> float:
        """P of the outputs that Q never gives; they are out of every tilt's reach."""
        return 0.0

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """Draw `n` independent outputs from P."""

    @abstractmethod
    def log_density_p(self, x: Samples) -> FloatArray:
        """Natural logarithm of P's density at each output, shape `(n,)`."""

    @abstractmethod
    def log_density_q(self, x: Samples) -> FloatArray:
        """Natural logarithm of Q's density at each output, shape `(n,)`."""

    @abstractmethod
    def losses(self, x: Samples) -> FloatArray:
        """log p - log q, with less rounding than the difference."""

    @abstractmethod
    def swapped(self) -> Part:
        """P and Q exchanged (and moved, where only distances count)."""

    @abstractmethod
    def log_envelope(self, t: float) -> float:
        """`tilt(t).log_envelope`, cheaper; infinite where the part cannot be tilted so far."""

    def truncated_share(self, t: float) -> float:
        """Upper bound on the share of M(t) that the tilt cannot reach; 0 for most mechanisms."""
        return 0.0

    @abstractmethod
    def tilt(self, t: float) -> Tilt:
        """The law with density proportional to p * exp(t * loss), or close to it, for t >= 0."""


@dataclass(frozen=True, kw_only=True)
class ExactTilt:
    """A tilt whose density is exactly p * exp(t * L) / M."""

    t: float
    log_envelope: float
    sampler: Sampler

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """Draw `n` independent outputs from the tilted law."""
        return self.sampler(n, rng)

    def log_weights(self, x: Samples, losses: FloatArray) -> FloatArray:
        """Natural logarithm of P over the tilted law, log M - t * L, at each draw."""
        return self.log_envelope - self.t * losses


def random_direction(
    dimension: int, rng: np.random.Generator, *, norm: float = 1.0, order: int = 2
) -> tuple[float, ...]:
    """A shift of the given l1 or l2 norm in a random direction (uniform for l2).

    Args:
        dimension: At least 1.
        norm: Norm of the shift, >= 0.
        order: 1 or 2.

    Raises:
        InputError: an argument is out of range.
    """
    if dimension < 1:
        raise InputError(f"dimension must be >= 1, got {dimension!r}")
    if order not in (1, 2):
        raise InputError(f"order must be 1 or 2, got {order!r}")
    raw = rng.normal(size=dimension)
    return tuple(float(value) for value in raw * (norm / np.linalg.norm(raw, ord=order)))


def _require_shift(shift: tuple[float, ...], scale: float, name: str) -> None:
    if not shift or not all(map(math.isfinite, shift)):
        raise InputError(f"shift must be finite numbers, at least one, got {shift!r}")
    if not 0 < scale < math.inf:
        raise InputError(f"{name} must be finite and > 0, got {scale!r}")


def rows(x: Samples) -> FloatArray:
    """The outputs as a matrix, shape `(n, d)`; a row of scalars becomes a column."""
    table: FloatArray = np.asarray(x, dtype=np.float64)
    return table[:, None] if table.ndim == 1 else table


def _as_drawn(x: FloatArray) -> Samples:
    """Scalars as a row, vectors as a matrix."""
    return x[:, 0] if x.shape[1] == 1 else x


@dataclass(frozen=True, kw_only=True)
class GaussianPair(Part):
    """P = N(shift, s^2 I) against Q = N(0, s^2 I), in any dimension.

    The tilt is N((1 + t) * shift, s^2 I) with log M(t) = t * (1 + t) * |shift|^2 / (2 s^2).

    Attributes:
        shift: How far neighbours differ, one number a dimension.
        standard_deviation: Of the noise in each dimension.

    Raises:
        InputError: a value is out of range.
    """

    shift: tuple[float, ...]
    standard_deviation: float

    def __post_init__(self) -> None:
        _require_shift(self.shift, self.standard_deviation, "standard_deviation")

    def describe(self) -> str:
        distance = math.hypot(*self.shift)
        return (
            f"Gaussian pair (distance {distance:g} in {self.dimension} dimensions, "
            f"standard deviation {self.standard_deviation:g})"
        )

    @property
    def dimension(self) -> int:
        return len(self.shift)

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        return self._around(1.0, n, rng)

    def _around(self, times: float, n: int, rng: np.random.Generator) -> Samples:
        noise = rng.normal(scale=self.standard_deviation, size=(n, self.dimension))
        return _as_drawn(noise + times * np.array(self.shift))

    def _log_density(self, x: Samples, mean: FloatArray) -> FloatArray:
        squares = (((rows(x) - mean) / self.standard_deviation) ** 2).sum(axis=1)
        constant = self.dimension * math.log(self.standard_deviation * math.sqrt(2 * math.pi))
        density: FloatArray = -squares / 2 - constant
        return density

    def log_density_p(self, x: Samples) -> FloatArray:
        return self._log_density(x, np.array(self.shift))

    def log_density_q(self, x: Samples) -> FloatArray:
        return self._log_density(x, np.zeros(self.dimension))

    def losses(self, x: Samples) -> FloatArray:
        """(<x, shift> - |shift|^2 / 2) / s^2."""
        shift = np.array(self.shift)
        losses: FloatArray = (rows(x) @ shift - shift @ shift / 2) / self.standard_deviation**2
        return losses

    def swapped(self) -> GaussianPair:
        return GaussianPair(shift=tuple(-v for v in self.shift), standard_deviation=self.standard_deviation)

    def log_envelope(self, t: float) -> float:
        """log M(t) = t (1 + t) mu^2 / 2, with mu the shift over the standard deviation."""
        return t * (1 + t) / 2 * math.fsum((v / self.standard_deviation) ** 2 for v in self.shift)

    def tilt(self, t: float) -> ExactTilt:
        """Move the mean on, along the shift."""
        return ExactTilt(
            t=t, log_envelope=self.log_envelope(t), sampler=lambda n, rng: self._around(1 + t, n, rng)
        )


@dataclass(frozen=True, kw_only=True)
class LaplacePair(Part):
    """P = shift + Laplace(scale) against Q = Laplace(scale), independent in each dimension.

    In a dimension with shift v > 0, in units of the scale, the loss is -v left of 0, 2 x - v between, and v
    right of v. The tilt keeps p's shape outside and has density proportional to exp((1 + 2 t) x) between;
    the three masses, relative to p * exp(t * L), are

        exp(-(1 + t) v) / 2,   exp(-(1 + t) v) * (exp((1 + 2 t) v) - 1) / (2 (1 + 2 t)),   exp(t v) / 2.

    Attributes:
        shift: How far neighbours differ, one number a dimension.
        scale: Of the noise.

    Raises:
        InputError: a value is out of range.
    """

    shift: tuple[float, ...]
    scale: float

    def __post_init__(self) -> None:
        _require_shift(self.shift, self.scale, "scale")

    def describe(self) -> str:
        distance = math.fsum(map(abs, self.shift))
        return f"Laplace pair (l1 distance {distance:g} in {self.dimension} dimensions, scale {self.scale:g})"

    @property
    def dimension(self) -> int:
        return len(self.shift)

    @property
    def _steps(self) -> FloatArray:
        """|shift| in units of the scale."""
        steps: FloatArray = np.abs(np.array(self.shift)) / self.scale
        return steps

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        return _as_drawn(rng.laplace(scale=self.scale, size=(n, self.dimension)) + np.array(self.shift))

    def log_density_p(self, x: Samples) -> FloatArray:
        return self._noise(rows(x) - np.array(self.shift))

    def log_density_q(self, x: Samples) -> FloatArray:
        return self._noise(rows(x))

    def _noise(self, y: FloatArray) -> FloatArray:
        density: FloatArray = -np.abs(y).sum(axis=1) / self.scale
        return density - self.dimension * math.log(2 * self.scale)

    def losses(self, x: Samples) -> FloatArray:
        """|x| - |x - shift|, summed, in units of the scale; exactly at its bound outside."""
        y = rows(x) * np.sign(self.shift) / self.scale
        steps = self._steps
        losses: FloatArray = (2 * np.clip(y, 0, steps) - steps).sum(axis=1)
        return losses

    def swapped(self) -> LaplacePair:
        return LaplacePair(shift=tuple(-v for v in self.shift), scale=self.scale)

    def _log_masses(self, t: float) -> FloatArray:
        """Logarithms of the three masses in each dimension, shape `(3, d)`; -inf between for a shift of 0."""
        v = self._steps
        with np.errstate(divide="ignore"):
            between = t * v - math.log(2 * (1 + 2 * t)) + np.log(-np.expm1(-(1 + 2 * t) * v))
        return np.stack([-(1 + t) * v - math.log(2), between, t * v - math.log(2)])

    def log_envelope(self, t: float) -> float:
        """log M(t), summed over dimensions."""
        return float(np.logaddexp.reduce(self._log_masses(t), axis=0).sum())

    def tilt(self, t: float) -> ExactTilt:
        """Choose one of the three pieces, then its exponential."""
        logs, v = self._log_masses(t), self._steps
        shares = np.exp(logs - np.logaddexp.reduce(logs, axis=0))

        def sampler(n: int, rng: np.random.Generator) -> Samples:
            """`n` draws, each from one of the three pieces."""
            u = rng.random((n, self.dimension))
            tail = rng.exponential(size=(n, self.dimension))
            # Between: the exponential, truncated at v, measured back from v.
            share = rng.random((n, self.dimension))
            back = -np.log1p(share * np.expm1(-(1 + 2 * t) * v)) / (1 + 2 * t)
            y = np.where(u < shares[0], -tail, np.where(u < shares[0] + shares[1], v - back, v + tail))
            signs = np.where(np.array(self.shift) < 0, -1.0, 1.0)
            return _as_drawn(y * self.scale * signs)

        return ExactTilt(t=t, log_envelope=self.log_envelope(t), sampler=sampler)


@dataclass(frozen=True, kw_only=True)
class DiscretePair(Part):
    """Two distributions over the outputs 0, 1, ..., k - 1, as log-probabilities.

    Attributes:
        log_p, log_q: One entry an output; -inf for an output that never comes.

    Raises:
        InputError: lengths differ, or the probabilities do not sum to 1.
    """

    log_p: tuple[float, ...]
    log_q: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.log_p) != len(self.log_q):
            raise InputError(f"log_q must be as long as log_p ({len(self.log_p)}), got {len(self.log_q)}")
        for name, logs in (("log_p", self.log_p), ("log_q", self.log_q)):
            total = math.fsum(map(math.exp, logs))
            if not abs(total - 1) < 1e-12:
                raise InputError(f"{name} must be probabilities that sum to 1, their sum is {total!r}")

    def describe(self) -> str:
        return f"discrete pair ({len(self.log_p)} outputs)"

    @property
    def dimension(self) -> int:
        return 1

    @property
    def _table(self) -> FloatArray:
        """Loss of each output; +inf where only P gives it."""
        log_p, log_q = np.array(self.log_p), np.array(self.log_q)
        with np.errstate(invalid="ignore"):
            loss: FloatArray = np.where(np.isneginf(log_p), -np.inf, log_p - log_q)
        return loss

    @property
    def infinite_mass(self) -> float:
        return math.fsum(math.exp(p) for p, q in zip(self.log_p, self.log_q, strict=True) if q == -math.inf)

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        return rng.choice(len(self.log_p), size=n, p=_normalised(np.array(self.log_p)))

    def log_density_p(self, x: Samples) -> FloatArray:
        return np.array(self.log_p)[_indices(x)]

    def log_density_q(self, x: Samples) -> FloatArray:
        return np.array(self.log_q)[_indices(x)]

    def losses(self, x: Samples) -> FloatArray:
        return self._table[_indices(x)]

    def swapped(self) -> DiscretePair:
        return DiscretePair(log_p=self.log_q, log_q=self.log_p)

    def _tilted(self, t: float) -> FloatArray:
        """log(p * exp(t * L)) of each output, -inf where the loss is not finite."""
        table = self._table
        finite = np.isfinite(table)
        tilted = np.full(len(table), -np.inf)
        tilted[finite] = np.array(self.log_p)[finite] + t * table[finite]
        return tilted

    def log_envelope(self, t: float) -> float:
        """log M(t) over the finite losses."""
        return float(np.logaddexp.reduce(self._tilted(t)))

    def tilt(self, t: float) -> ExactTilt:
        """The table's probabilities reweighted by exp(t * loss)."""
        tilted = self._tilted(t)
        shares = _normalised(tilted) if np.isfinite(tilted).any() else None

        def sampler(n: int, rng: np.random.Generator) -> Samples:
            if shares is None:
                raise InputError("q must give some output of p, to be tilted")
            return rng.choice(len(tilted), size=n, p=shares)

        return ExactTilt(t=t, log_envelope=self.log_envelope(t), sampler=sampler)


def _normalised(logs: FloatArray) -> FloatArray:
    """Probabilities of these log-weights."""
    weights = np.exp(logs - logs.max())
    shares: FloatArray = weights / weights.sum()
    return shares


def _indices(x: Samples) -> npt.NDArray[np.int64]:
    """Output numbers, whatever type they travelled in."""
    return np.asarray(x).reshape(len(x)).astype(np.int64)
