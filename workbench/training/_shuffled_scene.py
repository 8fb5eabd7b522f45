"""Who plays the game of shuffled weights, with what: the network's units, the canary's place, what is known.

What is known of a step without its noise is worked out by asking the mechanism's own privatise step with the
same coins of the records, of the records and the canary, and of nobody: the differences are free of noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.errors import InputError, UnsupportedError
from workbench.interfaces import (
    GradientCanary,
    IntArray,
    Mechanism,
    Model,
    Plan,
    Released,
    Sampling,
    Signals,
)
from workbench.training._flat import FlatLayout
from workbench.training.canary import SignalsWithCanaryRecord
from workbench.training.fine_tuning import averaging_size
from workbench.training.loop import GradientMechanism
from workbench.training.per_record import EmptySignals
from workbench.training.permutations import PermutationGroup, Unit
from workbench.weight_releases import ReleaseReader, Scene, WeightRelease

Layout = Mapping[str, tuple[slice, torch.Size]]

NOISE_DRAWS = 64
"""Releases of nobody by which the adversary measures the noise of the canary's weight."""


def unit_places(unit: Unit, layout: Layout) -> IntArray:
    """Places in the flat vector of the weights that each index of a unit owns, shape `(m, k)`.

    Args:
        unit: Of the group.
        layout: Place and shape of each parameter in the vector.
    """
    parts = []
    for slot in unit.slots:
        place, shape = layout[slot.parameter]
        whole = np.arange(place.start, place.stop, dtype=np.int64).reshape(tuple(shape))
        rows = np.moveaxis(whole, slot.axis, 0)[slot.start : slot.start + unit.size]
        parts.append(rows.reshape(unit.size, -1))
    return np.concatenate(parts, axis=1)


def orbit_of(coordinate: int, units: Sequence[IntArray]) -> IntArray:
    """All places that permutations of the units may move a weight to, in increasing order.

    Args:
        coordinate: Where the weight is.
        units: As in `Scene`.
    """
    orbit = np.array([coordinate], dtype=np.int64)
    while True:
        found = [orbit]
        for unit in units:
            found.append(unit[:, np.isin(unit, orbit).any(axis=0)].ravel())
        grown = np.unique(np.concatenate(found))
        if grown.size == orbit.size:
            return orbit
        orbit = grown


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What is known of one step: the known records' part of it, and the canary's, of the weights."""

    known: Tensor
    shift: float
    noise: float

    def release(self, before: Tensor, after: Tensor, *, participation: float) -> WeightRelease:
        return WeightRelease(
            expected=(before.double() - self.known.double()).numpy(),
            released=after.double().numpy(),
            shift=self.shift,
            noise=self.noise,
            participation=participation,
        )


@dataclass(kw_only=True)
class Table:
    """Who plays, with what: the mechanism as it releases, the scene, and the random streams."""

    mechanism: GradientMechanism
    group: PermutationGroup
    scene: Scene
    layout: FlatLayout
    canary: GradientCanary
    size: float
    draws: np.random.Generator
    permutations: np.random.Generator
    coins: torch.Generator
    own: torch.Generator
    _noise: float | None = None
    _nobody: tuple[Tensor, float] | None = None

    @classmethod
    def laid(cls, mechanism: Mechanism, model: Model, plan: Plan, reader: ReleaseReader, seed: int) -> Table:
        settled = playable(mechanism, plan)
        draws, permutations, coins, own = (
            np.random.default_rng(one) for one in np.random.SeedSequence(seed).spawn(4)
        )
        layout = FlatLayout.of(model.module)
        group = group_of(settled, model)
        units = tuple(unit_places(unit, layout.places) for unit in group.units)
        coordinate = _coordinate(units, layout.dimension, reader.place, draws)
        return cls(
            mechanism=settled,
            group=group,
            scene=Scene(
                names=tuple(unit.name for unit in group.units),
                units=units,
                coordinate=coordinate,
                orbit=orbit_of(coordinate, units),
            ),
            layout=layout,
            canary=GradientCanary(
                coordinate=coordinate, magnitude=reader.magnitude, record=plan.records[-1].id
            ),
            size=plan.sampling_probability * averaging_size(plan),
            draws=draws,
            permutations=permutations,
            coins=torch.Generator().manual_seed(int(coins.integers(2**62))),
            own=torch.Generator().manual_seed(int(own.integers(2**62))),
        )

    def released(self, before: Tensor, step: Tensor) -> Tensor:
        """What the mechanism releases of one step."""
        shuffled: Any = getattr(self.mechanism, "released_weights", None)
        if shuffled is None or not getattr(self.mechanism, "is_shuffling", True):
            return before - step
        found: Tensor = shuffled(before, step, self.group, self.permutations, layout=self.layout.places)
        return found

    def knowledge(self, known: Signals, rate: float) -> Knowledge:
        """What the adversary works out of a step whose sums are multiplied by `rate`."""
        if known.n:
            part, apart = self._sums(known)
        else:
            if self._nobody is None:
                self._nobody = self._sums(known)
            part, apart = self._nobody
        return Knowledge(known=rate * part, shift=-rate * apart, noise=rate * self._measured_noise())

    def _sums(self, known: Signals) -> tuple[Tensor, float]:
        """The known records' privatised sum without its noise, and what the canary adds to its coordinate."""
        state = self.own.get_state()
        sums = []
        for signals in (known, SignalsWithCanaryRecord(known, self.canary), EmptySignals(self.layout)):
            self.own.set_state(state)
            sums.append(self.mechanism.privatise(signals, self.own))
        place = self.scene.coordinate
        return sums[0] - sums[2], float(sums[1][place].double() - sums[0][place].double())

    def _measured_noise(self) -> float:
        """Standard deviation of the noise of a sum at the canary's coordinate.

        Taken over the coordinate's orbit, which a mechanism treats alike.
        """
        if self._noise is None:
            nobody = EmptySignals(self.layout)
            orbit = torch.from_numpy(self.scene.orbit)
            drawn = [self.mechanism.privatise(nobody, self.own)[orbit] for _ in range(NOISE_DRAWS)]
            self._noise = float(torch.stack(drawn).double().square().mean().sqrt())
        return self._noise


def group_of(mechanism: Mechanism, model: Model) -> PermutationGroup:
    """The permutations that a mechanism draws from; for one that does not shuffle, those that it could."""
    reach: Any = getattr(mechanism, "reach", None)
    return PermutationGroup.of(model.module, None if reach is None else reach())


def playable(mechanism: Mechanism, plan: Plan) -> GradientMechanism:
    """The mechanism, settled for the plan.

    Raises:
        InputError, UnsupportedError: it, or the plan, is not one that this game can be played with.
    """
    if not isinstance(mechanism, GradientMechanism) or not (
        mechanism.releases_sums or hasattr(mechanism, "released_weights")
    ):
        raise UnsupportedError("the game of shuffled weights needs a mechanism of noised sums of gradients")
    if mechanism.released is not Released.EVERY_UPDATE:
        raise UnsupportedError(
            f"the mechanism releases its {mechanism.released}; consecutive weights need every update"
        )
    if plan.sampling is not Sampling.POISSON:
        raise UnsupportedError("the game of shuffled weights needs Poisson samples, not shuffled ones")
    if plan.optimizer != "sgd":
        raise InputError(
            f"optimizer must be 'sgd', as in Algorithm 1, to read steps from weights, got {plan.optimizer!r}"
        )
    if plan.weight_decay != 0.0:
        raise InputError(f"weight_decay must be 0 to read steps from weights, got {plan.weight_decay:g}")
    if not plan.records:
        raise InputError("records must hold the canary's place, got none")
    return replace(mechanism, measures_quality=False).for_plan(plan)


def _coordinate(units: Sequence[IntArray], dimension: int, place: str, generator: np.random.Generator) -> int:
    """The canary's weight, drawn among those that permutations move, or among the others."""
    moved = np.zeros(dimension, dtype=np.bool_)
    for unit in units:
        moved[unit] = True
    able = np.flatnonzero(moved if place == "moved" else ~moved)
    if able.size == 0:
        wanted = "is moved by a permutation" if place == "moved" else "stays where it is"
        raise UnsupportedError(f"no weight of the model {wanted}, so there is no place for the canary")
    return int(generator.choice(able))
