"""Events: records of randomised computations, described by what decides their privacy.

An event says what is released about one record, in the units in which a record contributes at most 1; the
adjacency says how neighbours differ, and is an argument of its own. With a contribution of norm at most 1, a
sum moves by at most 1 under add-remove and zero-out, and by at most 2 under replace-one. (Some libraries
normalise the noise to the sum's sensitivity instead: their adapters convert.)

The field's other records of the kind are dp-accounting's `DpEvent`s, whose names these follow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from workbench.core.arguments import number, whole_number
from workbench.core.errors import InputError
from workbench.core.one_line import object_line

_DEVIATIONS_BETWEEN = (1e-40, 1e15)
"""Between the outermost means of a mixture pair: fewer and more take numbers of too many digits."""

MOST_NESTED, MOST_EVENTS = 100, 1_000_000
"""Compositions in compositions, and events in all of them, not counting repeats."""


class Event(ABC):
    """A randomised computation, or a composition of several."""

    _depth: ClassVar[int] = 0
    _size: ClassVar[int] = 1

    def _set_positive(self, name: str) -> None:
        """Check a field of a frozen event and store it as a plain number."""
        object.__setattr__(self, name, number(name, getattr(self, name), above=0, below=math.inf))

    def _set_whole(self, name: str, least: int) -> None:
        """Check a whole number of a frozen event and store it as an integer."""
        object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least, most=None))

    @abstractmethod
    def describe(self) -> str:
        """The event in words, with its numbers: `"Gaussian (noise multiplier 1)"`."""

    def parts(self) -> Iterator[tuple[Event, int]]:
        """The elementary events with their counts; an elementary event is its own only part."""
        yield self, 1


@dataclass(frozen=True, kw_only=True)
class Gaussian(Event):
    """A sum of contributions of l2 norm at most 1, plus N(0, noise_multiplier^2 I).

    Raises:
        InputError: the noise multiplier is not finite and positive.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")

    def describe(self) -> str:
        """`Gaussian (noise multiplier 1)`."""
        return f"Gaussian (noise multiplier {self.noise_multiplier:g})"


@dataclass(frozen=True, kw_only=True)
class Laplace(Event):
    """A sum of contributions of l1 norm at most 1, plus Laplace noise of this scale.

    Raises:
        InputError: the scale is not finite and positive.
    """

    scale: float

    def __post_init__(self) -> None:
        self._set_positive("scale")

    def describe(self) -> str:
        """The event in words: `Laplace (scale 1)`."""
        return f"Laplace (scale {self.scale:g})"


@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Event):
    """Each record's category, replaced by a uniformly random one of all with probability `noise_parameter`.

    Neighbours differ in one record's category: adjacency replace-one only.

    Attributes:
        noise_parameter: Probability of answering at random, in (0, 1); the random answer may be the truth.
        categories: Number k of possible answers, >= 2.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_parameter: float
    categories: int = 2

    def __post_init__(self) -> None:
        noise = number("noise_parameter", self.noise_parameter, above=0, below=1)
        object.__setattr__(self, "noise_parameter", noise)
        self._set_whole("categories", least=2)

    def describe(self) -> str:
        """`randomised response (2 categories, noise parameter 0.5)`."""
        return f"randomised response ({self.categories} categories, noise parameter {self.noise_parameter:g})"

    def pair(self) -> FinitePair:
        """Output probabilities where the truth is category 0, and where it is category 1.

        The other categories, as likely in both, are one outcome.
        """
        noise = Fraction(self.noise_parameter)
        other = noise / self.categories
        truth = 1 - noise + other
        rest = (other * (self.categories - 2),) if self.categories > 2 else ()
        return FinitePair(p=(truth, other, *rest), q=(other, truth, *rest))


@dataclass(frozen=True, kw_only=True)
class SubsampledGaussian(Event):
    """The Gaussian event on a Poisson sample: each record takes part with this probability, in secret.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    sampling_probability: float

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        q = number("sampling_probability", self.sampling_probability, above=0, most=1)
        object.__setattr__(self, "sampling_probability", q)

    def describe(self) -> str:
        """`Poisson-subsampled Gaussian (noise multiplier 1, sampling probability 0.01)`."""
        return (
            f"Poisson-subsampled Gaussian (noise multiplier {self.noise_multiplier:g}, "
            f"sampling probability {self.sampling_probability:g})"
        )


@dataclass(frozen=True, kw_only=True)
class GaussianMixturePair(Event):
    """One pair of neighbours' output distributions: two mixtures of one-dimensional Gaussians.

    The pair is the whole statement: no adjacency is added to it, and both orders of the pair count.

    Attributes:
        p_means, p_weights: Components of the one output; weights positive, summing to 1.
        q_means, q_weights: Components of the other.
        standard_deviation: Of every component, > 0. Where there are more than two components, the outermost
            means must be 1e-40 to 1e15 standard deviations apart, or equal.

    Raises:
        InputError: lengths differ, or a parameter is out of range.
    """

    p_means: tuple[float, ...]
    p_weights: tuple[float, ...]
    q_means: tuple[float, ...]
    q_weights: tuple[float, ...]
    standard_deviation: float

    def __post_init__(self) -> None:
        self._set_positive("standard_deviation")
        for name in ("p_means", "p_weights", "q_means", "q_weights"):
            row = _row(name, getattr(self, name))
            finite = tuple(number(name, value, above=-math.inf, below=math.inf) for value in row)
            object.__setattr__(self, name, finite)
        for side, means, weights in (
            ("p", self.p_means, self.p_weights),
            ("q", self.q_means, self.q_weights),
        ):
            if not means or len(means) != len(weights):
                raise InputError(f"{side}_weights must be as many as {side}_means, got {weights!r}")
            if not all(0 < weight <= 1 for weight in weights) or abs(math.fsum(weights) - 1) > 1e-12:
                raise InputError(f"{side}_weights must be positive and sum to 1, got {weights!r}")
        means = (*self.p_means, *self.q_means)
        apart, (fewest, most) = max(means) - min(means), _DEVIATIONS_BETWEEN
        if len(means) > 2 and apart > 0 and not fewest <= apart / self.standard_deviation <= most:
            raise InputError(
                f"standard_deviation must be from {apart / most:g} to {apart / fewest:g} for means that are "
                f"{apart:g} apart, got {self.standard_deviation!r}"
            )

    def describe(self) -> str:
        """`pair of Gaussian mixtures (2 and 2 components, standard deviation 1)`."""
        return (
            f"pair of Gaussian mixtures ({len(self.p_means)} and {len(self.q_means)} components, "
            f"standard deviation {self.standard_deviation:g})"
        )


@dataclass(frozen=True, kw_only=True)
class FinitePair(Event):
    """One pair of neighbours' output distributions over finitely many outputs, as exact rationals.

    The pair is the whole statement: no adjacency is added to it, and both orders of the pair count.

    Attributes:
        p, q: Probability of each output under the one neighbour and under the other; each sums to 1.

    Raises:
        InputError: lengths differ, a probability is negative, or a sum is not exactly 1.
    """

    p: tuple[Fraction, ...]
    q: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        for name in ("p", "q"):
            exact = tuple(
                value if isinstance(value, Fraction) else Fraction(number(name, value, least=0, most=1))
                for value in _row(name, getattr(self, name))
            )
            object.__setattr__(self, name, exact)
        if len(self.p) != len(self.q):
            raise InputError(f"q must be as long as p ({len(self.p)}), got {len(self.q)}")
        for name, row in (("p", self.p), ("q", self.q)):
            if any(value < 0 for value in row) or sum(row) != 1:
                raise InputError(f"{name} must be probabilities that sum to 1, got {[*map(str, row)]}")

    def describe(self) -> str:
        """`pair of finite distributions (3 outputs)`."""
        return f"pair of finite distributions ({len(self.p)} outputs)"


@dataclass(frozen=True, kw_only=True)
class ShuffledBatches(Event):
    """Gaussian sums over the batches of a shuffled epoch: every record in exactly one batch of each epoch.

    Attributes:
        noise_multiplier: As in `Gaussian`, of each batch's sum.
        batches: Number of batches in an epoch, >= 1.
        epochs: Number of epochs, each with a fresh shuffle, >= 1.

    Raises:
        InputError: a parameter is out of range.
    """

    noise_multiplier: float
    batches: int
    epochs: int = 1

    def __post_init__(self) -> None:
        self._set_positive("noise_multiplier")
        self._set_whole("batches", least=1)
        self._set_whole("epochs", least=1)

    def describe(self) -> str:
        """`shuffled batches (noise multiplier 1, 100 batches, 1 epochs)`."""
        return (
            f"shuffled batches (noise multiplier {self.noise_multiplier:g}, "
            f"{self.batches} batches, {self.epochs} epochs)"
        )


@dataclass(frozen=True, kw_only=True)
class Composed(Event):
    """Independent events on the same records, one after the other; the adversary sees all outputs.

    Attributes:
        events: Each event with the number of times that it is run, >= 1. The order carries no meaning.

    Raises:
        InputError: there is no event, a count is below 1, or compositions are nested more than 100 deep or
            hold more than a million events, not counting repeats.
    """

    events: tuple[tuple[Event, int], ...]

    def __post_init__(self) -> None:
        pairs = [_row("events", pair) for pair in _row("events", self.events)]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise InputError(
                f"events must be pairs of an event and its count, got {object_line(self.events)}"
            )
        counted = tuple(
            (require_event(event), whole_number("count", count, least=1, most=None)) for event, count in pairs
        )
        object.__setattr__(self, "events", counted)
        object.__setattr__(self, "_depth", 1 + max(event._depth for event, _ in counted))
        object.__setattr__(self, "_size", sum(event._size for event, _ in counted))
        if self._depth > MOST_NESTED:
            raise InputError(f"events must be nested at most {MOST_NESTED} deep")
        if self._size > MOST_EVENTS:
            raise InputError(f"events must hold at most {MOST_EVENTS:,} events in all, got {self._size:,}")

    def describe(self) -> str:
        """`1000 x Poisson-subsampled Gaussian (...) + 2 x Laplace (...)`."""
        return " + ".join(f"{count} x {event.describe()}" for event, count in self.events)

    def parts(self) -> Iterator[tuple[Event, int]]:
        """The elementary events with their counts, nested compositions multiplied out."""
        for event, count in self.events:
            for inner, times in event.parts():
                yield inner, times * count


def _row(name: str, values: Any) -> tuple[Any, ...]:
    """The values as a tuple; refuses what holds none, and bytes, whose values are codes of letters."""
    try:
        if isinstance(values, bytes | bytearray | memoryview):
            raise TypeError
        return tuple(values)
    except TypeError:
        raise InputError(f"{name} must be a row of values, got {object_line(values)}") from None


def require_event(event: Event) -> Event:
    """Refuse what is no `Event`; otherwise return it.

    Raises:
        InputError: it is none.
    """
    if not isinstance(event, Event):
        raise InputError(f"event must be an Event, got {object_line(event)}")
    return event


def gaussian_run(*, noise_multiplier: float, sampling_probability: float, steps: int) -> Event:
    """A run of `steps` Gaussian releases, each on a fresh Poisson sample (of everybody at probability 1).

    Raises:
        InputError: a parameter is out of range.
    """
    step = SubsampledGaussian(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)
    steps = whole_number("steps", steps, least=1, most=None)
    if step.sampling_probability == 1:
        return Composed(events=((Gaussian(noise_multiplier=step.noise_multiplier), steps),))
    return Composed(events=((step, steps),))
