"""The pair of neighbours of an event, ready to be drawn from, and products of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import permutations

import numpy as np

from workbench.accounting.events import (
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
)
from workbench.attacks.accountant_checks.monte_carlo.mixtures import MixturePair, VectorMixturePair
from workbench.attacks.accountant_checks.monte_carlo.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    PairOfNeighbours,
    Part,
    Samples,
    Tilt,
    member_of,
)
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, FloatArray

_LARGEST_TILT = 2.0**30
_LOG_NEGLIGIBLE = -800.0
"""Logarithm of a bound that is 0 in double precision."""
_GOLDEN = (1 + math.sqrt(5)) / 2
_SECTIONS = 10


class Direction(StrEnum):
    """Which of the two neighbours P is, the one whose outputs are drawn."""

    FORWARD = "forward"
    """P is with the record, Q without it (*remove*); or in the order in which an event names its pair."""
    BACKWARD = "backward"
    """The other way round (*add*)."""


@dataclass(frozen=True, kw_only=True)
class ProductPair:
    """Independent parts, each drawn many times over; losses add up.

    An output is one row: the columns of the first part's draws, then the second's, and so on.

    Attributes:
        parts: Each part with its count, >= 1.

    Raises:
        InputError: there is no part, or a count is below 1.
    """

    parts: tuple[tuple[Part, int], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InputError("parts must hold at least one part, got ()")
        for _, count in self.parts:
            if count < 1:
                raise InputError(f"count must be >= 1, got {count!r}")

    @property
    def dimension(self) -> int:
        """How many numbers an output consists of: those of all parts."""
        return sum(part.dimension * count for part, count in self.parts)

    def describe(self) -> str:
        """`1000 x pair of Gaussian mixtures (...)`."""
        return " + ".join(f"{count} x {part.describe()}" for part, count in self.parts)

    @property
    def draws(self) -> int:
        """Draws of parts that make one output."""
        return sum(count for _, count in self.parts)

    @property
    def width(self) -> int:
        """Numbers that one output takes in memory while its density is computed."""
        return sum(count * max(part.dimension, _components(part)) for part, count in self.parts)

    @property
    def infinite_mass(self) -> float:
        """P of the outputs with an infinite loss in any part."""
        finite = math.fsum(
            count * math.log1p(-part.infinite_mass) if part.infinite_mass < 1 else -math.inf
            for part, count in self.parts
        )
        return -math.expm1(finite)

    def sample(self, n: int, rng: np.random.Generator) -> Samples:
        """Outputs under P, shape `(n, dimension)`, or `(n,)` for a single column."""
        blocks = [
            np.asarray(part.sample(n * count, rng), dtype=np.float64).reshape(n, -1)
            for part, count in self.parts
        ]
        table = np.concatenate(blocks, axis=1) if len(blocks) > 1 else blocks[0]
        return table[:, 0] if table.shape[1] == 1 else table

    def _columns(self, x: Samples) -> list[Samples]:
        """Each part's draws, shape `(n * count,)` or `(n * count, d)`."""
        table, start, blocks = np.asarray(x).reshape(len(x), -1), 0, []
        for part, count in self.parts:
            stop = start + part.dimension * count
            block = table[:, start:stop].reshape(-1, part.dimension)
            blocks.append(block[:, 0] if part.dimension == 1 else block)
            start = stop
        return blocks

    def _sum(self, x: Samples, method: str) -> FloatArray:
        total = np.zeros(len(x))
        for (part, _), block in zip(self.parts, self._columns(x), strict=True):
            values: FloatArray = getattr(part, method)(block)
            total += values.reshape(len(x), -1).sum(axis=1)
        return total

    def log_density_p(self, x: Samples) -> FloatArray:
        return self._sum(x, "log_density_p")

    def log_density_q(self, x: Samples) -> FloatArray:
        return self._sum(x, "log_density_q")

    def losses(self, x: Samples) -> FloatArray:
        return self._sum(x, "losses")

    def swapped(self) -> ProductPair:
        """P and Q exchanged in every part."""
        return ProductPair(parts=tuple((part.swapped(), count) for part, count in self.parts))

    def log_envelope(self, t: float) -> float:
        return math.fsum(count * part.log_envelope(t) for part, count in self.parts)

    def truncated_share(self, t: float) -> float:
        """Share of M(t) that the tilt cannot reach: at most the sum of the parts' shares."""
        return math.fsum(count * part.truncated_share(t) for part, count in self.parts)

    @property
    def single_mixture(self) -> MixturePair | None:
        """The only part, where that is one draw of a one-dimensional mixture."""
        part, count = self.parts[0]
        return part if len(self.parts) == count == 1 and isinstance(part, MixturePair) else None

    def log_bound(self, t: float, epsilon: float) -> float:
        """Logarithm of the largest weighted integrand under the tilt by t."""
        shape = t * math.log(t / (1 + t)) - math.log1p(t) if t > 0 else 0.0
        return self.log_envelope(t) - t * epsilon + shape

    @cached_property
    def _best_tilts(self) -> dict[float, float]:
        """Those that were found so far."""
        return {}

    def best_tilt(self, epsilon: float) -> float:
        """The t >= 0 whose bound is smallest."""
        if epsilon not in self._best_tilts:
            self._best_tilts[epsilon] = self._find_best_tilt(epsilon)
        return self._best_tilts[epsilon]

    def _find_best_tilt(self, epsilon: float) -> float:
        """By bracketing and golden sections: the bound's logarithm is convex in t."""
        if self.log_envelope(0.0) == -math.inf:
            return 0.0
        best, value = 0.0, self.log_bound(0.0, epsilon)
        high = 1.0
        while high <= _LARGEST_TILT and (there := self.log_bound(high, epsilon)) < value:
            best, value, high = high, there, 2 * high
            if value < _LOG_NEGLIGIBLE:
                return best
        low = best / 2
        for _ in range(_SECTIONS):
            left, right = high - (high - low) / _GOLDEN, low + (high - low) / _GOLDEN
            at_left, at_right = self.log_bound(left, epsilon), self.log_bound(right, epsilon)
            if at_left < value:
                best, value = left, at_left
            if at_right < value:
                best, value = right, at_right
            low, high = (low, right) if at_left <= at_right else (left, high)
        return best

    def tilted(self, t: float) -> ProductTilt:
        """The law of the whole output with every part tilted by t."""
        return ProductTilt(pair=self, t=t)


def _components(part: Part) -> int:
    """Components whose densities are held at a time."""
    return part.components if isinstance(part, VectorMixturePair) else 1


@dataclass(frozen=True, kw_only=True)
class ProductTilt:
    """The tilts of a product's parts.

    Attributes:
        pair: The product.
        t: The common tilt, >= 0.
    """

    pair: ProductPair
    t: float

    @cached_property
    def _tilts(self) -> list[Tilt]:
        return [part.tilt(self.t) for part, _ in self.pair.parts]

    def draw(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Losses and log(p / g) of `n` draws from g, each of shape `(n,)`."""
        losses, log_weights = np.zeros(n), np.zeros(n)
        for (part, count), tilt in zip(self.pair.parts, self._tilts, strict=True):
            x = tilt.sample(n * count, rng)
            loss = part.losses(x)
            log_weights += tilt.log_weights(x, loss).reshape(n, count).sum(axis=1)
            losses += loss.reshape(n, count).sum(axis=1)
        return losses, log_weights


def as_product(pair: PairOfNeighbours) -> PairOfNeighbours:
    """A part by itself as a product of one, so that it is drawn by its tilt; any other pair as it is."""
    return ProductPair(parts=((pair, 1),)) if isinstance(pair, Part) else pair


def permuted_gaussians(
    p_values: tuple[float, ...], q_values: tuple[float, ...], *, standard_deviation: float
) -> VectorMixturePair:
    """A uniformly random order of noisy values, against the same of other values: d! components each.

    Args:
        p_values: The d values under P, at most 6.
        q_values: The d values under Q.

    Raises:
        InputError: there are more than 6 values, none, or not equally many.
    """
    d = len(p_values)
    if not 1 <= d <= 6:
        raise InputError(f"p_values must be 1 to 6 numbers, got {d}")
    if len(q_values) != d:
        raise InputError(f"q_values must be as many as p_values ({d}), got {len(q_values)}")
    orders = np.array(list(permutations(range(d))))
    weights = np.full(len(orders), 1 / len(orders))
    return VectorMixturePair(
        p_means=np.array(p_values, dtype=float)[orders],
        p_weights=weights,
        q_means=np.array(q_values, dtype=float)[orders],
        q_weights=weights,
        standard_deviation=standard_deviation,
    )


def _mixture(p: dict[float, float], q: dict[float, float], standard_deviation: float) -> MixturePair:
    """Mixtures from means to weights; components of weight 0 are left out."""
    p, q = ({mean: weight for mean, weight in side.items() if weight > 0} for side in (p, q))
    return MixturePair(
        p_means=tuple(p),
        p_weights=tuple(p.values()),
        q_means=tuple(q),
        q_weights=tuple(q.values()),
        standard_deviation=standard_deviation,
    )


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _discrete(pair: FinitePair) -> DiscretePair:
    return DiscretePair(
        log_p=tuple(_log(float(value)) for value in pair.p),
        log_q=tuple(_log(float(value)) for value in pair.q),
    )


def _shuffled(event: ShuffledBatches, adjacency: Adjacency) -> VectorMixturePair:
    """One epoch, the record in a uniformly random batch, every other record contributing -1.

    In units of the noise, and moved by the common sum: the record's batch is higher by 2 where it
    contributes 1, by 1 where it is zeroed out, and by 0 where it contributes -1 like the others.
    """
    if adjacency is Adjacency.ADD_REMOVE:
        raise UnsupportedError("shuffled batches of fixed sizes have no add-remove neighbours; use zero-out")
    other = 1.0 if adjacency is Adjacency.ZERO_OUT else 0.0
    unit = np.eye(event.batches)
    weights = np.full(event.batches, 1 / event.batches)
    q_means = other * unit if other else np.zeros((1, event.batches))
    return VectorMixturePair(
        p_means=2 * unit,
        p_weights=weights,
        q_means=q_means,
        q_weights=weights if other else np.ones(1),
        standard_deviation=event.noise_multiplier,
    )


def _part(event: Event, adjacency: Adjacency) -> tuple[Part, int]:
    """The forward pair of an elementary event, and how many of it the event consists of."""
    replaced = adjacency is Adjacency.REPLACE_ONE
    shift = 2.0 if replaced else 1.0
    if isinstance(event, Gaussian):
        return GaussianPair(shift=(shift,), standard_deviation=event.noise_multiplier), 1
    if isinstance(event, Laplace):
        return LaplacePair(shift=(shift,), scale=event.scale), 1
    if isinstance(event, SubsampledGaussian):
        q = event.sampling_probability
        without = {0.0: 1 - q, -1.0: q} if replaced else {0.0: 1.0}
        return _mixture({0.0: 1 - q, 1.0: q}, without, event.noise_multiplier), 1
    if isinstance(event, GaussianMixturePair):
        pair = MixturePair(
            p_means=event.p_means,
            p_weights=event.p_weights,
            q_means=event.q_means,
            q_weights=event.q_weights,
            standard_deviation=event.standard_deviation,
        )
        return pair, 1
    if isinstance(event, FinitePair):
        return _discrete(event), 1
    if isinstance(event, RandomisedResponse):
        if not replaced:
            raise UnsupportedError(f"randomised response has replace-one neighbours only, not {adjacency}")
        return _discrete(event.pair()), 1
    if isinstance(event, ShuffledBatches):
        return _shuffled(event, adjacency), event.epochs
    raise UnsupportedError(f"no pair of neighbours is known for {event.describe()}")


def pair_of(
    event: Event, adjacency: Adjacency = Adjacency.ADD_REMOVE, direction: Direction | str = Direction.FORWARD
) -> ProductPair:
    """One pair of neighbours' outputs of an event: the pair at which the event is known to be worst.

    With the record contributing 1 against nothing (add-remove, zero-out) or against -1 (replace-one); other
    records' contributions are known and subtracted. For shuffled batches it is a pair that is known to be
    bad (Chua et al. 2024), not known to be worst; the event's `Composed` parts are independent.

    Args:
        adjacency: How neighbours differ; events that are pairs themselves carry their own.

    Raises:
        InputError: there is no such direction.
        UnsupportedError: the event has no such neighbours.
    """
    wanted = member_of(Direction, direction, "direction")
    made = [(_part(inner, adjacency), count) for inner, count in event.parts()]
    pair = ProductPair(parts=tuple((part, times * count) for (part, times), count in made))
    return pair if wanted is Direction.FORWARD else pair.swapped()
