"""Trainings under the hooks, what one replaced record shows in them, and where two of them compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workbench.audit.replay.crafts import Craft
from workbench.audit.replay.leaks import same_tensor
from workbench.audit.replay.record import recorded
from workbench.audit.replay.recording import Modes, Recording
from workbench.core.errors import InputError
from workbench.interfaces import BoolArray, FloatArray

NEGLIGIBLE = 1e-5
"""Distances of this share of the largest are rounding: a record that is not in a batch moves nothing."""

Train = Callable[[list[Any], int], Any]
"""Trains on records with a seed of its own for each number from 0; returns what scores fixed records."""


def _is_count(tensor: torch.Tensor) -> bool:
    """Whether it is one whole number."""
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    return is_whole and tensor.numel() == 1


class UnequalStepsError(InputError):
    """A training that is read by its weights does not move these as often as was forced."""


class Runs:
    """Calls the training and counts.

    `modes`: how they are read.
    `noises`: what was drawn as noise under the seed of each number, in some run.
    """

    def __init__(
        self,
        train: Train,
        records: Sequence[Mapping[str, Any]],
        seed: int,
        total: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.records = records
        self.modes = Modes()
        self.noises: dict[int, list[int]] = {}
        self._train, self._seed, self._total, self._progress = train, seed, total, progress
        self._done = 0
        self._computed: dict[tuple[int, int | None], Sequence[int]] = {}
        self._pairs: dict[int, tuple[Recording, Recording] | None] = {}

    @property
    def by_weights(self) -> bool:
        """Whether steps are read by the weights."""
        return self.modes.tracked is not None

    def expect(self, more: int) -> None:
        """So many runs are to come beside those that progress is told of."""
        self._total += more

    def still(self, a: Recording, number: int) -> tuple[Recording, Recording] | None:
        """At the weights of run A, under the seed of this number: with its noise, and without.

        None where the training fails, or draws other numbers without its noise. Made once for number 1.
        """
        if number not in self._pairs:
            pair = None
            with suppress(InputError):
                noisy, bare = (
                    self(forced=a, like=a, number=number, still=True, share=share) for share in (1.0, 0.0)
                )
                pair = (noisy, bare) if noisy.draws == bare.draws else None
            if number > 1:
                return pair
            self._pairs[number] = pair
        return self._pairs[number]

    def follows_seed(self, a: Recording, b: Recording) -> tuple[bool, str]:
        """What another seed's run at the same weights, without noise, has like run B, and unlike it.

        Returns:
            Whether the batches are the same: all updates but the first, which is of other weights; and the
            name of a whole number that the finished model keeps and that differs, or nothing.
        """
        pair = self.still(a, 1)
        if pair is None or b.steps < 2 or pair[1].steps != b.steps:
            return False, ""
        other = pair[1]
        are_same = all(map(torch.equal, b.gradients[1:], other.gradients[1:]))
        counts = [
            name
            for (name, one), (its, two) in zip(b.buffers, other.buffers, strict=False)
            if name == its and name not in b.unlike and _is_count(one) and not same_tensor(one, two)
        ]
        moves = any(bool(gradient.any()) for gradient in b.gradients[1:])
        return are_same and moves, counts[0] if counts else ""

    def rates_follow(self, sizes: npt.NDArray[np.int64], a: Recording, b: Recording) -> bool:
        """Whether the rates of the steps follow the sizes of their batches, and other batches have others.

        Args:
            sizes: Of the batch of each step, -1 where not known.
        """
        pair = self.still(a, 1)
        if pair is None or pair[1].rates[1:] == b.rates[1:] or len(sizes) != len(b.rates):
            return False
        rates: dict[int, set[tuple[float, ...]]] = {}
        for size, rate in zip(sizes.tolist(), b.rates, strict=True):
            if size > 0:
                rates.setdefault(size, set()).add(rate)
        repeated = sum(int((sizes == size).sum()) > 1 for size in rates)
        each = [next(iter(own)) for own in rates.values()]
        return repeated > 1 and all(len(own) == 1 for own in rates.values()) and len(set(each)) == len(each)

    def with_records(self, others: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The records with others in some places; each keeps its id."""
        return [{**others.get(i, own), "id": own["id"]} for i, own in enumerate(self.records)]

    def __call__(
        self,
        records: Sequence[Mapping[str, Any]] | None = None,
        *,
        forced: Recording | None = None,
        like: Recording | None = None,
        share: float | Sequence[float | torch.Tensor] = 0.0,
        number: int = 0,
        still: bool = False,
        disturbs: bool = False,
        most: int | None = None,
    ) -> Recording:
        """One run, with the seed of this number; on the records that are measured unless others are given.

        Raises:
            InputError: the training fails (`UnequalStepsError` among them).
        """
        own = [dict(record) for record in (self.records if records is None else records)]
        computed: Sequence[int] = forced.computed if forced is not None and forced.number == number else ()
        if self.modes.late and forced is not None and not computed:
            computed = self._gradients_under(number, most)
        made = recorded(
            lambda: self._train(own, number),
            seed=self._seed + number,
            records=len(own),
            forced=forced,
            like=like,
            share=share,
            still=still,
            disturbs=disturbs,
            modes=self.modes,
            computed=computed,
            most=most,
            keeps_noises=number not in self.noises,
        )
        made.number = number
        for step, (found, expected) in enumerate(zip(made.computed, computed, strict=False)):
            if found != expected and step < len(made.draws):
                made.draws[step] = hash((made.draws[step], found))  # Its noise may be told otherwise.
        if self.by_weights and forced is not None and most is None and made.steps != forced.steps:
            raise UnequalStepsError("steps are read by the weights, and one without noise moves none")
        if made.noises:
            self.noises.setdefault(number, made.noises)
        self._done += 1
        self._progress(min(self._done, self._total), self._total)
        return made

    def _gradients_under(self, number: int, most: int | None) -> Sequence[int]:
        """How many gradients are computed before each step of the training as it is, under another seed."""
        key = number, most
        if key not in self._computed:
            own = [dict(record) for record in self.records]
            made = recorded(
                lambda: self._train(own, number),
                seed=self._seed + number,
                records=len(own),
                modes=self.modes,
                most=most,
            )
            if self.modes.wide and not all(made.computed):
                raise InputError("a step has no gradient, after which its noise would come")
            self._computed[key] = made.computed
        return self._computed[key]


@dataclass
class Place:
    """A replaced record: its versions, and what they show (`_distances`).

    `present`: steps whose update it moves, shape `(T,)`. `weak`: those of them that it moves much less.
    """

    place: int
    versions: list[Recording] = field(default_factory=list)
    crafts: list[Craft] = field(default_factory=list)
    agree: BoolArray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    raw: FloatArray = field(default_factory=lambda: np.zeros((0, 0, 0)))
    scaled: FloatArray = field(default_factory=lambda: np.zeros((0, 0, 0)))
    present: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    weak: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def added(self) -> list[float]:
        """The lower end of what some version adds, of each step."""
        return [
            radius(self.scaled[:, :, t][np.ix_(self.agree[:, t], self.agree[:, t])]) if here else 0.0
            for t, here in enumerate(self.present)
        ]


def agreement(versions: Sequence[Recording], steps: int) -> BoolArray:
    """At which steps each version has drawn what the first one has, and a finite gradient: `(v, T)`."""
    agree = np.zeros((len(versions), steps), dtype=bool)
    for row, version in enumerate(versions):
        for step in range(min(version.steps, versions[0].steps, steps)):
            agree[row, step] = (
                version.draws[step] == versions[0].draws[step]
                and version.gradients[step].numel() == versions[0].gradients[step].numel()
                and bool(torch.isfinite(version.gradients[step]).all())
            )
    return agree


def chooses_otherwise(version: Recording, own: Recording, agree: BoolArray) -> bool:
    """Whether other records were chosen than in the own run, by the same draws."""
    pairs = zip(version.chosen, own.chosen, agree, strict=False)
    return any(one != two for one, two, is_known in pairs if is_known)


def radius(distances: FloatArray) -> float:
    """At least so far from any point is one of these points, by their distances from each other.

    A lower end of the radius of the smallest ball around them: for any weights w, the root of w D^2 w / 2.
    One of the points is what a record without any influence would leave, whichever that is.
    """
    if np.isinf(distances).any():
        return math.inf
    squares = distances**2
    weights = np.full(len(squares), 1.0 / len(squares))
    for iteration in range(200):
        farthest = int(np.argmax(squares @ weights))
        weights *= 1.0 - 1.0 / (iteration + 2.0)
        weights[farthest] += 1.0 / (iteration + 2.0)
    return math.sqrt(0.5 * float(weights @ squares @ weights))
