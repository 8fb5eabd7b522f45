"""Sets up the consecutive-weights game: units, the canary's place, and what the adversary knows.

The known part of a step without its noise comes from the mechanism's own privatise step, run with the same
coins on the records, on the records and the canary, and on nobody: the differences are free of noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InputError, UnsupportedError
from workbench.execution.tasks import StepProgress, silent
from workbench.games.consecutive import ConsecutiveAttack, PermutingMechanism, Scene, WeightRelease
from workbench.games.consecutive.descent import Linearised
from workbench.games.consecutive.outputs import OutputProbe, probes_within
from workbench.interfaces import (
    GradientCanary,
    IntArray,
    Mechanism,
    Model,
    Plan,
    Release,
    Released,
    Sampling,
    Signals,
)
from workbench.training.canary import SignalsWithCanaryRecord
from workbench.training.fine_tuning import averaging_size
from workbench.training.flat import FlatLayout
from workbench.training.loop import GradientMechanism
from workbench.training.per_record import EmptySignals
from workbench.training.permutations import PermutationGroup, Unit

Layout = Mapping[str, tuple[slice, torch.Size]]

NOISE_DRAWS = 64
"""Releases of nobody from which the adversary measures the noise of the canary's weight."""

REHEARSALS = 100
"""Releases of either kind that the adversary draws to choose the direction in output space."""


def unit_places(unit: Unit, layout: Layout) -> IntArray:
    """Returns the places in the flat weight vector that each index of a unit owns, shape `(m, k)`.

    `layout` holds the place and shape of each parameter in the vector.
    """
    parts = []
    for slot in unit.slots:
        place, shape = layout[slot.parameter]
        whole = np.arange(place.start, place.stop, dtype=np.int64).reshape(tuple(shape))
        rows = np.moveaxis(whole, slot.axis, 0)[slot.start : slot.start + unit.size]
        parts.append(rows.reshape(unit.size, -1))
    return np.concatenate(parts, axis=1)


def orbit_of(coordinate: int, units: Sequence[IntArray]) -> IntArray:
    """Returns all places that permutations of the units may move a weight to, in increasing order."""
    orbit = np.array([coordinate], dtype=np.int64)
    while True:
        reached = [orbit]
        for unit in units:
            reached.append(unit[:, np.isin(unit, orbit).any(axis=0)].ravel())
        grown = np.unique(np.concatenate(reached))
        if grown.size == orbit.size:
            return orbit
        orbit = grown


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What is known of one step's gradient: the known records' part of it, the canary's, and the noise.

    Attributes:
        known: The known records' part, shape `(d,)`.
        shift: What the canary adds to its weight, which descends along the gradient.
        noise: Deviation of the noise in that weight's entry.
        spread: Of each entry, shape `(d,)`.
        place: Of the canary's weight.
        probe: Computes outputs; None to ignore them.
        turns: Of the search for the direction in which outputs are looked at; 0: they are not.
    """

    known: Tensor
    shift: float
    noise: float
    spread: Tensor
    place: int
    probe: OutputProbe | None
    turns: int

    def reading(
        self,
        before: Tensor,
        step: Linearised,
        *,
        participation: float = 1.0,
        of_run: bool = False,
        progress: StepProgress = silent,
    ) -> Callable[[Tensor], WeightRelease]:
        """Returns how releases from one state are seen: a function of the released weights.

        Args:
            before: Weights before the step, shape `(d,)`.
            step: The weights' change as a linear function of the gradient.
            participation, of_run: See `WeightRelease`.
            progress: Of the rehearsals.
        """
        expected = before.double() - step.drift.double() - step.gain.double() * self.known.double()
        gain = float(step.gain[self.place])
        view = None
        if self.probe is not None and self.turns:
            view = self.probe.at(
                expected.to(before.dtype),
                place=self.place,
                shift=gain * self.shift,
                noise=(step.gain * self.spread).to(before.dtype),
                turns=self.turns,
                rehearsals=0 if of_run else REHEARSALS,
                progress=progress,
            )

        def read(after: Tensor) -> WeightRelease:
            return WeightRelease(
                expected=expected.numpy(),
                released=after.double().numpy(),
                shift=gain * self.shift,
                noise=gain * self.noise,
                participation=participation,
                outputs=None if view is None else view.seen(after),
                of_run=of_run,
            )

        return read


@dataclass(kw_only=True)
class Table:
    """Everything that a game is played with: mechanism, scene, canary and random streams."""

    mechanism: GradientMechanism
    group: PermutationGroup
    scene: Scene
    layout: FlatLayout
    canary: GradientCanary
    size: float
    draws: np.random.Generator
    permutations: np.random.Generator
    coins: torch.Generator
    adversary: torch.Generator
    probe: OutputProbe | None
    _noise: tuple[float, Tensor] | None = None
    _nobody: tuple[Tensor, float] | None = None

    @property
    def probes(self) -> int:
        """Number of inputs on which outputs are looked at."""
        return 0 if self.probe is None else self.probe.count

    @classmethod
    def laid(
        cls, mechanism: Mechanism, model: Model, plan: Plan, reader: ConsecutiveAttack, seed: int
    ) -> Table:
        settled = playable(mechanism, plan)
        draws, permutations, coins, adversary = (
            np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)
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
            adversary=torch.Generator().manual_seed(int(adversary.integers(2**62))),
            probe=probe_of(model, plan, reader, seed),
        )

    def released(self, plain: Tensor) -> Tensor:
        """Returns what the mechanism releases of the weights after a step."""
        if not isinstance(self.mechanism, PermutingMechanism) or not self.mechanism.is_shuffling:
            return plain
        still, places = torch.zeros_like(plain), self.layout.places
        return self.mechanism.released_weights(plain, still, self.group, self.permutations, layout=places)

    def knowledge(self, known: Signals, rate: float, turns: int = 0) -> Knowledge:
        """What the adversary infers about a step's gradient, which is `rate` times the released sum."""
        if known.n:
            part, apart = self._sums(known)
        else:
            if self._nobody is None:
                self._nobody = self._sums(known)
            part, apart = self._nobody
        noise, spread = self._measured_noise()
        return Knowledge(
            known=rate * part,
            shift=-rate * apart,
            noise=rate * noise,
            spread=rate * spread,
            place=self.scene.coordinate,
            probe=self.probe,
            turns=turns,
        )

    def _sums(self, known: Signals) -> tuple[Tensor, float]:
        """The known records' privatised sum without its noise, and what the canary adds to its coordinate."""
        state = self.adversary.get_state()
        sums = []
        for signals in (known, SignalsWithCanaryRecord(known, self.canary), EmptySignals(self.layout)):
            self.adversary.set_state(state)
            sums.append(self.mechanism.privatise(signals, self.adversary))
        place = self.scene.coordinate
        return sums[0] - sums[2], float(sums[1][place].double() - sums[0][place].double())

    def _measured_noise(self) -> tuple[float, Tensor]:
        """Deviation of the noise of a sum: at the canary's coordinate, and everywhere, shape `(d,)`.

        The former is taken over the coordinate's orbit, the latter over parameters, which a mechanism treats
        alike.
        """
        if self._noise is None:
            nobody = EmptySignals(self.layout)
            squares = torch.zeros(self.layout.dimension, dtype=torch.float64)
            for _ in range(NOISE_DRAWS):
                squares += self.mechanism.privatise(nobody, self.adversary).double().square() / NOISE_DRAWS
            spread = torch.zeros(self.layout.dimension, dtype=self.layout.dtype)
            for place, _ in self.layout.places.values():
                spread[place] = float(squares[place].mean().sqrt())
            at_canary = float(squares[torch.from_numpy(self.scene.orbit)].mean().sqrt())
            self._noise = at_canary, spread
        return self._noise


def probe_of(model: Model, plan: Plan, reader: ConsecutiveAttack, seed: int) -> OutputProbe | None:
    """Returns the probe of the model's outputs, on public records where the plan has some.

    Raises `UnsupportedError`: the model is too large for that, see `probes_within`.
    """
    if not reader.probes:
        return None
    known = plan.dev or plan.held_out or plan.records[:-1]
    chosen = np.random.default_rng(seed).integers(len(known or plan.records[-1:]), size=reader.probes)
    probed = [(known or plan.records[-1:])[i] for i in chosen]
    return OutputProbe(model, probed[: probes_within(model, probed)], seed)


def group_of(mechanism: Mechanism, model: Model) -> PermutationGroup:
    """Permutations that a mechanism draws from; for one that does not shuffle, those that it could."""
    reach = mechanism.reach() if isinstance(mechanism, PermutingMechanism) else None
    return PermutationGroup.of(model.module, reach)


def playable(mechanism: Mechanism, plan: Plan) -> GradientMechanism:
    """Returns the mechanism, settled for the plan.

    Raises `InputError`, `UnsupportedError`: the game cannot be played with it, or with the plan.
    """
    can = mechanism.capabilities
    has_sums = bool(can.releases & {Release.SUMS, Release.PERMUTED_WEIGHTS}) and not can.is_zeroth_order
    if not isinstance(mechanism, GradientMechanism) or not has_sums:
        raise UnsupportedError(
            "it reads weights after steps of noised sums of gradients, and the mechanism makes no such steps"
        )
    if Release.COUNTS in can.releases:
        raise UnsupportedError("it reads weights alone, and the mechanism also releases noised counts")
    if can.released is not Released.EVERY_UPDATE:
        raise UnsupportedError(
            f"it reads the weights after every step, and the mechanism releases its {can.released} alone"
        )
    if plan.sampling is not Sampling.POISSON:
        raise UnsupportedError("it needs Poisson samples, not shuffled ones")
    if not plan.records:
        raise InputError("records must hold the canary's place, got none")
    return mechanism.without_quality().for_plan(plan)


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
