"""Sets up the consecutive-weights game: units, the canary's place, and what the adversary knows.

The known part of a step without its noise comes from the mechanism's own privatise step, run with the same
coins on the records, on the records and the canary, and on nobody: the differences are free of noise.

A permutation that leaves a network's function unchanged hides nothing of that function. Of a release W' the
adversary takes outputs on probe inputs, less those of the weights that were expected without the canary:

    r = f(W') - f(W_expected) = J noise + (J e_w shift where the canary took part) + higher orders

with J the Jacobian of the outputs at the expected weights and e_w the canary's weight. For a direction a in
output space a . r is nearly normal with variance |J^T a|^2, weighted by the noise of each weight, and moves
by a . b where b = f(W_expected + shift e_w) - f(W_expected). The best direction solves J S J^T a = b, S being
the noise's variances; conjugate gradients from zero come nearer to it with each turn, and every a of theirs
gives a statistic whose mean and variance are known, only with less power. Where releases from one state are
many, the adversary rehearses: it draws its own releases, with the canary and without, and takes the turn that
separates them best, with their mean and deviation. That leaves out directions in which the linear part of the
noise is small and the rest is not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.core.errors import InputError, UnsupportedError
from workbench.execution.tasks import StepProgress, silent
from workbench.games.consecutive import (
    ConsecutiveAttack,
    PermutingMechanism,
    Projection,
    Scene,
    WeightRelease,
)
from workbench.games.consecutive.descent import Linearised
from workbench.interfaces import (
    GradientCanary,
    IntArray,
    Mechanism,
    Model,
    Plan,
    Record,
    Release,
    Released,
    Sampling,
    Signals,
)
from workbench.training.canary import SignalsWithCanaryRecord
from workbench.training.devices import widened
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


MOST_VALUES = 4096
"""Most outputs that are looked at."""


MOST_WORK = 2.5e9
"""Limit on one query of all probes: numbers of an input (pixels, tokens) times trainable weights times
probes.

An audit makes some four hundred queries before the first release: a minute or so on one core at this size.
"""

LEAST_PROBES = 4
"""With fewer probes, hardly anything is seen of the function."""


def probes_within(model: Model, records: Sequence[Record]) -> int:
    """Number of probes used: all, or as many as `MOST_WORK` allows, whatever they would show.

    Raises `UnsupportedError`: that would be fewer than `LEAST_PROBES`.
    """
    size = max(int(values[0].numel()) for values in model.encode(records).values())
    weights = FlatLayout.of(model.module).dimension
    able = int(MOST_WORK / (size * weights))
    if able < min(LEAST_PROBES, len(records)):
        raise UnsupportedError(
            f"model {model.name!r} is too large to look for a canary in its outputs ({weights:,} weights, "
            f"{size} numbers an input): give the attack invariant=sorted and probes=0"
        )
    return min(able, len(records))


class OutputProbe:
    """Computes outputs of a copy of the model at other weights, and their linearisation.

    Args:
        model: Copied.
        records: Whose inputs are the probes. Inputs of floating-point numbers are replaced by standard normal
            ones: images have pixels that no record lights, whose weights no record's output shows.
        seed: Of those inputs.
    """

    def __init__(self, model: Model, records: Sequence[Record], seed: int) -> None:
        self._model = copy.copy(model)
        self._model.module = copy.deepcopy(model.module).eval()
        self._layout = FlatLayout.of(self._model.module)
        self._generator = torch.Generator().manual_seed(seed)
        self.count = len(records)
        self._batch = _random_where_real(self._model.encode(records), self._generator)

    def at(
        self,
        expected: Tensor,
        *,
        place: int,
        shift: float,
        noise: Tensor,
        turns: int,
        rehearsals: int = 0,
        progress: StepProgress = silent,
    ) -> OutputView:
        """Returns the view from the expected weights towards a canary.

        Args:
            expected: Weights without canary and noise, shape `(d,)`; on the CPU, as `noise`.
            place: Of the canary's weight.
            shift: What the canary adds to it.
            noise: Standard deviation of each weight's noise, shape `(d,)`.
            turns: Conjugate-gradient steps, >= 1.
            rehearsals: Releases that the adversary draws, of each kind; 0 to go all turns.
            progress: Of the rehearsals.
        """
        inside = expected.clone()
        inside[place] += shift
        with torch.no_grad():
            moved = self.outputs(inside)
        self._set(expected)
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            plain = self._forward()
            towards = moved - plain.detach()
            scales = self._parts(noise.to(self._layout.device))
            directions = _directions(plain, self._layout.parameters, towards, scales, turns)
        plain = plain.detach()
        if rehearsals:
            drawn = self._rehearsed((expected, inside), noise, rehearsals, progress)
            without, there = drawn - plain
            return _best(self, plain, [direction for direction, _ in directions], without, there)
        direction, spread = directions[-1]
        return OutputView(
            probe=self, plain=plain, direction=direction, shift=float(direction @ towards), noise=spread
        )

    def _rehearsed(
        self, worlds: Sequence[Tensor], noise: Tensor, count: int, progress: StepProgress
    ) -> Tensor:
        """Outputs of `count` releases that the adversary draws of each world, shape `(worlds, count, m)`."""
        seen: list[Tensor] = []
        for weights in worlds:
            for _ in range(count):
                drawn = torch.randn(weights.shape, generator=self._generator, dtype=weights.dtype)
                seen.append(self.outputs(weights + noise * drawn))
                progress(len(seen), count * len(worlds), "rehearsals")
        return torch.stack(seen).reshape(len(worlds), count, -1)

    def outputs(self, weights: Tensor) -> Tensor:
        """Returns the outputs at these weights as one vector, float64, detached."""
        self._set(weights)
        with torch.no_grad():
            return self._forward()

    def _forward(self) -> Tensor:
        """Logits where the model has one row of them a record, else its losses."""
        seen: list[Any] = []
        hook = self._model.module.register_forward_hook(lambda _module, _given, output: seen.append(output))
        try:
            losses = self._model.losses(self._batch)
        finally:
            hook.remove()
        output = getattr(seen[-1], "logits", seen[-1]) if seen else losses
        values = output if isinstance(output, Tensor) and output.ndim == 2 else losses
        return widened(values).reshape(-1)[:MOST_VALUES]

    def _set(self, weights: Tensor) -> None:
        with torch.no_grad():
            for parameter, part in zip(self._layout.parameters, self._parts(weights), strict=True):
                parameter.copy_(part)

    def _parts(self, flat: Tensor) -> list[Tensor]:
        return [flat[place].view(shape) for place, shape in self._layout.places.values()]


class OutputView:
    """One direction in output space, ready for releases from one state."""

    def __init__(
        self,
        *,
        probe: OutputProbe,
        plain: Tensor,
        direction: Tensor,
        shift: float,
        noise: float,
        without: float = 0.0,
    ) -> None:
        self._probe, self._plain, self._direction = probe, plain, direction
        self._shift, self._noise, self._without = shift, noise, without

    def seen(self, released: Tensor) -> Projection:
        """Returns a release's outputs along the direction."""
        apart = self._probe.outputs(released) - self._plain
        value = float(self._direction @ apart) - self._without
        return Projection(value=value, shift=self._shift, noise=self._noise)


def _random_where_real(batch: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    return {
        name: torch.randn(values.shape, generator=generator, dtype=values.dtype).to(values.device)
        if values.is_floating_point()
        else values
        for name, values in batch.items()
    }


def _best(
    probe: OutputProbe, plain: Tensor, directions: Sequence[Tensor], without: Tensor, there: Tensor
) -> OutputView:
    """The direction that separates rehearsed releases best."""
    views: list[tuple[float, int, OutputView]] = []
    for direction in directions:
        low, high = without @ direction, there @ direction
        noise = float(((low.var() + high.var()) / 2.0).sqrt())
        shift = float(high.mean() - low.mean())
        view = OutputView(
            probe=probe, plain=plain, direction=direction, shift=shift, noise=noise, without=float(low.mean())
        )
        views.append((shift / noise if noise > 0.0 else math.inf, len(views), view))
    return max(views)[2]


def _directions(
    outputs: Tensor, parameters: Sequence[Tensor], towards: Tensor, noise: Sequence[Tensor], turns: int
) -> list[tuple[Tensor, float]]:
    """Conjugate gradients for J S J^T a = `towards`, after 1, 2, 4, ... turns and at the end.

    Each with the deviation of a . (J noise).
    """
    free = torch.zeros_like(outputs, requires_grad=True)
    # Linear in `free`: its derivative along weights is J times them.
    pulled = torch.autograd.grad(outputs, parameters, free, create_graph=True, materialize_grads=True)

    def back(values: Tensor) -> list[Tensor]:
        parts = torch.autograd.grad(outputs, parameters, values, retain_graph=True, materialize_grads=True)
        return [part * scale for part, scale in zip(parts, noise, strict=True)]

    def ahead(weights: Sequence[Tensor]) -> Tensor:
        scaled = [part * scale for part, scale in zip(weights, noise, strict=True)]
        (moved,) = torch.autograd.grad(pulled, free, scaled, retain_graph=True, materialize_grads=True)
        return moved

    size = float(torch.linalg.vector_norm(towards)) or 1.0
    left = towards / size
    solution, line, squared = torch.zeros_like(left), left.clone(), float(left @ left)
    kept: list[Tensor] = []
    turns = min(turns, outputs.numel())  # More find nothing: the space has no more dimensions.
    for turn in range(1, turns + 1):
        if squared < 1e-20:
            break
        bent = ahead(back(line))
        curvature = float(line @ bent)
        if curvature <= 0.0:  # No noise along this line: nothing tells the canary better.
            solution = line
            break
        solution = solution + squared / curvature * line
        left = left - squared / curvature * bent
        now = float(left @ left)
        line, squared = left + now / squared * line, now
        if turn & (turn - 1) == 0 and turn < turns:
            kept.append(solution)
    return [(direction, _spread(back(direction))) for direction in (*kept, solution)]


def _spread(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(widened(part).square().sum()) for part in parts))


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The adversary's knowledge of a step's gradient: known records' part, canary's part, and noise.

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
            """The release as the adversary reads it from the released weights."""
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
        """A table for the game, its random streams spawned from the seed."""
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
            sums.append(self.mechanism.privatise(signals, self.adversary).cpu())
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
                drawn = self.mechanism.privatise(nobody, self.adversary).cpu()
                squares += drawn.double().square() / NOISE_DRAWS
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
