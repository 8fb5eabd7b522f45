"""What recordings of a training say: its noise, what one record moves, who is in which step, and leaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from workbench.audit.replay.crafts import crafted
from workbench.audit.replay.record import Layout, Recording, recorded
from workbench.core.streams import stream
from workbench.interfaces import BoolArray, FloatArray

NEGLIGIBLE = 1e-5
"""Distances of this share of the largest are rounding: a record that is not in a batch moves nothing."""

PLACES = 2
"""Records that are replaced by every craft, each in a training of its own."""

MORE_PLACES = 6
"""Records that are replaced by one craft, for the steps that they take part in."""

Train = Callable[[list[Any], int], Any]
"""Trains on records with one of two seeds, 0 or 1; returns the finished model's scores of fixed records."""


@dataclass(frozen=True)
class Leak:
    """Something that differs between two trainings whose released updates are equal.

    Attributes:
        what: In words: `"weights before step 3"`.
        place: Which record was replaced; None where the training does not even repeat itself.
        tensor: The parameter in which it shows, where it is one.
    """

    what: str
    place: int | None = None
    tensor: str = ""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The run as it was.

    Attributes:
        steps: T, the number of optimizer steps.
        parameters: d, the trained parameters.
        names: Of the trained tensors.
        noise: Standard deviation of the noise by tensor, over all steps; 0 where there is none.
        step_noise: Of each step over that, shape `(T,)`; 1 where all steps are alike.
        noise_steps: Whether the noise differs between steps by more than chance (p below 0.001).
        is_schedule: Whether it does so in the same way under another seed.
        repeated: Steps whose noise is a copy of an earlier step's, or of that step's under another seed.
        same_norm: All updates without noise have one norm.
        coordinates: Number of noise values behind the estimate.
        present: Which replaced record took part in which step, shape `(places, T)`.
        added: At least so much one of the crafts adds to the update of each step, in standard deviations of
            the noise, shape `(deep, T)` for the places that were replaced by every craft; infinite where
            something without noise moves.
        replaced: Half of the largest distance of two crafts' updates, likewise.
        loudness: How much further a record of 16 times the loudness moves an update; about 1 where it is
            clipped, NaN where records have no loudness.
        naked: Tensors that a record moves and that have no noise.
        leaks: What left the training past the noise.
        recognised: Draws of noise that were met, by kind.
    """

    steps: int
    parameters: int
    names: tuple[str, ...]
    noise: Mapping[str, float]
    step_noise: FloatArray
    noise_steps: bool
    is_schedule: bool
    repeated: int
    same_norm: bool
    coordinates: int
    present: BoolArray
    added: FloatArray
    replaced: FloatArray
    loudness: float
    naked: tuple[str, ...]
    leaks: tuple[Leak, ...]
    recognised: Mapping[str, int] = field(default_factory=dict)

    def noise_factor(self, error: float) -> tuple[float, float]:
        """Between what multiples of the estimated noise the true one lies, with error probability `error`."""
        n = max(self.coordinates, 1)
        return math.sqrt(n / chi2.ppf(1 - error / 2, n)), math.sqrt(n / chi2.ppf(error / 2, n))


@dataclass(frozen=True)
class NotMeasured:
    """Why a training cannot be replayed."""

    reason: str


def measured(
    train: Train,
    records: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    places: int = PLACES,
    more_places: int = MORE_PLACES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured | NotMeasured:
    """Replay a training.

    Args:
        train: The user's training.
        records: What it trains on, as the user's function gets them.
        seed: Of generators that the training does not seed itself, and of the crafts.
        places, more_places: How many records are replaced by every craft, and by one.
        progress: Told of the trainings done and their number.
    """
    generator = stream(seed, "replay")
    chosen = [int(i) for i in generator.permutation(len(records))[: places + more_places]]
    crafts = {place: crafted(records, place, generator) for place in chosen}
    crafts |= {place: crafts[place][:1] for place in chosen[places:]}
    total, done = 5 + sum(map(len, crafts.values())), 0

    def run(
        own: Sequence[Mapping[str, Any]], forced: Recording | None = None, *, number: int = 0
    ) -> Recording:
        nonlocal done
        shapes = frozenset(s for layout in forced.layouts for s in layout.shapes) if forced else frozenset()
        made = recorded(
            lambda: train([dict(record) for record in own], number),
            seed=seed + number,
            forced=forced.gradients if forced else None,
            shapes=shapes,
        )
        done += 1
        progress(done, total)
        return made

    a = run(records)
    if not a.steps:
        return NotMeasured("no torch optimizer took a step")
    if len(a.layouts) > 1:
        return NotMeasured(f"{len(a.layouts)} optimizers took steps; replay follows one")
    if (broken := _difference(a, run(records))) is not None:
        return NotMeasured(f"two trainings with one seed are not equal: {broken.what}")
    b = run(records, a)
    if (broken := _difference(a, b, gradients=False)) is not None:
        return NotMeasured(
            f"with equal gradients the training goes another way: {broken.what}; so its randomness is "
            "not all in the gradients"
        )
    noise, norms = _Noise.of(a, b), np.array([float(gradient.norm()) for gradient in b.gradients])
    again = run(records, number=1)
    other = _Noise.of(again, run(records, again, number=1))
    layout = a.layouts[0]
    silent = sum(n for n, sd in zip(layout.sizes, noise.by_tensor, strict=True) if sd == 0)
    if 2 * silent >= sum(layout.sizes) and b.passed_over >= 0.5 * silent * a.steps:
        return NotMeasured(
            f"no noise is recognised on {silent:,} parameters, but {b.passed_over:,} random numbers were "
            f"drawn in {a.steps} steps that may be noise of another kind"
        )
    present = np.zeros((len(chosen), a.steps), dtype=bool)
    added, replaced_by = (
        np.zeros((min(places, len(chosen)), a.steps)),
        np.zeros((min(places, len(chosen)), a.steps)),
    )
    leaks: list[Leak] = []
    naked: dict[str, None] = {}
    louder: list[float] = []
    for row, place in enumerate(chosen):
        versions = [b]
        for craft in crafts[place]:
            replaced = [craft if i == place else record for i, record in enumerate(records)]
            c = run(replaced, a)
            leak = _difference(b, c, gradients=False, result=True)
            if leak is not None:
                leaks.append(Leak(leak.what, place, leak.tensor))
            versions.append(c)
        raw, scaled, bare = _distances(versions, noise, layout)
        present[row] = raw.max(axis=(0, 1)) > NEGLIGIBLE * max(float(raw.max()), 1e-30)
        naked.update(dict.fromkeys(bare))
        if row < places:
            added[row] = [_radius(scaled[:, :, t]) if present[row, t] else 0.0 for t in range(a.steps)]
            replaced_by[row] = np.where(present[row], scaled.max(axis=(0, 1)) / 2, 0.0)
            louder.append(_loudness(raw))
    return Measured(
        steps=a.steps,
        parameters=a.gradients[0].numel(),
        names=layout.names,
        noise=dict(zip(layout.names, noise.by_tensor.tolist(), strict=True)),
        step_noise=noise.by_step,
        noise_steps=noise.differs,
        is_schedule=noise.differs and noise.goes_like(other),
        repeated=noise.repeated + noise.shared_with(other),
        same_norm=bool(norms.std() < 1e-4 * norms.mean()),
        coordinates=noise.coordinates,
        present=present,
        added=added,
        replaced=replaced_by,
        loudness=float(np.median(louder)) if louder else math.nan,
        naked=tuple(naked),
        leaks=tuple(leaks),
        recognised=b.recognised,
    )


@dataclass(frozen=True, kw_only=True)
class _Noise:
    """A minus B: by tensor over all steps, and by step over all tensors."""

    by_tensor: FloatArray
    by_step: FloatArray
    differs: bool
    repeated: int
    coordinates: int
    marks: tuple[int, ...] = ()

    def goes_like(self, other: _Noise) -> bool:
        """Whether the noise of another seed changes from step to step in the same way."""
        if self.by_step.shape != other.by_step.shape or not other.by_step.all():
            return False
        return bool(np.allclose(self.by_step / other.by_step, 1.0, atol=5 * math.sqrt(1 / self.coordinates)))

    def shared_with(self, other: _Noise) -> int:
        """Steps whose noise is the same under another seed."""
        return sum(mark == its and mark != 0 for mark, its in zip(self.marks, other.marks, strict=False))

    @classmethod
    def of(cls, a: Recording, b: Recording) -> _Noise:
        """The noise of two recordings at equal weights."""
        layout = a.layouts[0]
        places = list(layout.slices())
        squares = np.zeros((a.steps, len(places)))
        marks: list[int] = []
        for step, (with_noise, without) in enumerate(zip(a.gradients, b.gradients, strict=False)):
            noise = (with_noise - without).double()
            squares[step] = [float(noise[place].square().sum()) for _, place in places]
            largest = float(noise.abs().max())
            marks.append(hash(np.round(noise[:64].numpy() / largest, 3).tobytes()) if largest else 0)
        sizes = np.array(layout.sizes, dtype=float)
        gradients = np.array(
            [np.mean([float(g[place].double().square().mean()) for g in b.gradients]) for _, place in places]
        )
        # Rounding of float32 sums is no noise.
        variance = squares.mean(axis=0) / sizes
        variance = np.where(variance > 1e-10 * np.maximum(gradients, 1e-30), variance, 0.0)
        noisy = variance > 0
        coordinates = int(sizes[noisy].sum())
        if not coordinates:
            return cls(
                by_tensor=np.zeros(len(places)),
                by_step=np.zeros(a.steps),
                differs=False,
                repeated=0,
                coordinates=0,
            )
        each = (squares[:, noisy] / variance[noisy]).sum(axis=1)
        statistic = float((((each - coordinates) ** 2) / (2.0 * coordinates)).sum())
        differs = bool(chi2.sf(statistic, a.steps) < 0.001)
        by_step = np.sqrt(each / coordinates) if differs else np.ones(a.steps)
        return cls(
            by_tensor=np.sqrt(variance),
            by_step=by_step,
            differs=differs,
            repeated=sum(mark != 0 and mark in marks[:step] for step, mark in enumerate(marks)),
            marks=tuple(marks),
            coordinates=coordinates if differs else coordinates * a.steps,
        )


def _distances(
    versions: Sequence[Recording], noise: _Noise, layout: Layout
) -> tuple[FloatArray, FloatArray, list[str]]:
    """Distances of all versions at each step, shape `(v, v, T)`: raw, and in units of the noise."""
    steps, count = min(version.steps for version in versions), len(versions)
    raw, scaled = np.zeros((count, count, noise.by_step.size)), np.zeros((count, count, noise.by_step.size))
    places, bare = list(layout.slices()), set()
    for step in range(steps):
        rows = torch.stack([version.gradients[step] for version in versions])
        if bool((rows == rows[0]).all()):
            continue
        parts = [
            (torch.cdist(rows[:, place].double(), rows[:, place].double()) ** 2).numpy()
            for _, place in places
        ]
        total = sum(parts)
        raw[:, :, step] = np.sqrt(total)
        scale = noise.by_tensor * noise.by_step[step]
        for (name, _), squares, sd in zip(places, parts, scale, strict=True):
            moved = squares > NEGLIGIBLE**2 * float(np.max(total))
            if sd > 0:
                scaled[:, :, step] += squares / sd**2
            elif moved.any():
                bare.add(name)
                scaled[:, :, step] = np.where(moved, math.inf, scaled[:, :, step])
    return raw, np.sqrt(scaled), sorted(bare)


def _radius(distances: FloatArray) -> float:
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


def _loudness(raw: FloatArray) -> float:
    """How much further than the first craft the last moves an update, at the median step.

    Distances from the crafts between them, the original left out.
    """
    if len(raw) < 4:
        return math.nan
    quiet, loud = raw[1, 2:-1].max(axis=0), raw[-1, 2:-1].max(axis=0)
    used = (quiet > 0) & (loud > 0)
    return float(np.median(loud[used] / quiet[used])) if used.any() else math.nan


def _difference(
    first: Recording, second: Recording, *, gradients: bool = True, result: bool = False
) -> Leak | None:
    """The first thing in which two runs differ; None where they are equal to the bit."""
    for step, (one, other) in enumerate(zip(first.weights, second.weights, strict=False)):
        if not torch.equal(one, other):
            tensor = _tensor(first.layouts[first.optimizers[step]], one, other)
            return Leak(f"weights before step {step + 1} ({tensor})", tensor=tensor)
        if gradients and not torch.equal(first.gradients[step], second.gradients[step]):
            tensor = _tensor(
                first.layouts[first.optimizers[step]], first.gradients[step], second.gradients[step]
            )
            return Leak(f"the gradient of step {step + 1} ({tensor})", tensor=tensor)
    if first.steps != second.steps:
        return Leak(f"the number of steps ({first.steps} and {second.steps})")
    if result and not np.array_equal(first.result, second.result, equal_nan=True):
        return Leak("the scores that the finished model gives")
    return None


def _tensor(layout: Layout, one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return "another number of parameters"
    for name, place in layout.slices():
        if not torch.equal(one[place], other[place]):
            return name
    return "?"
