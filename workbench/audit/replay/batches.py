"""How many records a training's batches have, from trainings on copies of one record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2
from torch import Tensor

from workbench.audit.replay.crafts import faint
from workbench.audit.replay.lengths import Lengths, lengths_of_one
from workbench.audit.replay.noise import RARE, Noise
from workbench.audit.replay.recording import Recording
from workbench.audit.replay.runs import NEGLIGIBLE, Place, Runs, agreement
from workbench.core.errors import InputError
from workbench.interfaces import BoolArray, FloatArray

SEEDS = 5
"""Seeds under which batches are counted; the more there are, the better the rate is known."""

WHOLE = 2e-3
"""A count that is so near a whole number is one."""

MOST_COUNTED = 2**31
"""Numbers beyond it count nothing: lengths of updates that nothing clips."""

MOST = 100
"""Records that a batch may have where its size is found by a common measure."""

ALIKE = 1e-3
"""Share of a record's part that may be no record's."""

FEWEST_VALUES = 10_000
"""Values of noise by which the sizes of batches are counted."""

MANY = 4.0
"""Standard deviations that chance adds nowhere."""

FEWEST_STEPS = 4
"""Steps of known batches by which a divisor is told."""

LARGE = 8
"""Records that batches have on average where their common measure is taken for one record."""


@dataclass(frozen=True)
class Batches:
    """What trainings on copies of a craft show.

    Attributes:
        sizes: Records in each batch that could be counted.
        is_whole: Whether these are the batches of nearly all steps, rather than of those that a place is in.
        alone: What one record adds at each step, in standard deviations of the noise, shape `(T,)`, of the
            record that adds most in all; 0 where that is not known.
        lengths: The same in the gradient's own units, and tensor by tensor.
        by_step: Records in the batch of each step of the measured run, shape `(T,)`; -1 where not known.
    """

    sizes: list[int] = field(default_factory=list)
    is_whole: bool = False
    alone: FloatArray = field(default_factory=lambda: np.zeros(0))
    lengths: Lengths = field(default_factory=Lengths)
    by_step: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def numerator(self, noise: Noise) -> float:
        """What the noise of each step is over the records of its batch, which vary; 0 where it is not so."""
        if not self.by_step.size or not noise.differs:
            return 0.0
        known = np.flatnonzero((self.by_step > 0) & (noise.by_step > 0))
        if len(known) < FEWEST_STEPS:
            return 0.0
        sizes, coordinates = self.by_step[known], int((noise.scale > 0).sum())
        products = noise.by_step[known] * sizes
        spread = float(((products / products.mean() - 1) ** 2).sum()) * 2 * coordinates
        divides = len(set(sizes)) > 1 and chi2.sf(spread, len(known) - 1) > RARE
        return float(products.mean()) * divides


def batches_of(runs: Runs, a: Recording, b: Recording, first: Place, noise: Noise) -> Batches:
    """Count the records of batches (`_counted`); where they cannot be, again without augmentation.

    That changes no batch, if each replaced record is in the same steps.

    Args:
        a: Run A.
        b: Run B.
        first: A place with its versions.
    """
    farthest = _farthest(first)
    crafted = [first.crafts[version].record for version in farthest]
    found = _counted(runs, a, first, (crafted, [first.versions[version] for version in farthest]), noise)
    if found is None and (crafted := _of_largest_label(runs, first, crafted)):
        versions = _replaced(runs, a, first, crafted)
        found = _counted(runs, a, first, (crafted, versions), noise) if versions else None
    if found is None:
        return Batches()
    if found.is_whole or not b.elsewhere or b.unheard:
        return found
    usual = runs.modes
    runs.modes = replace(usual, centred=True)
    try:
        versions = _replaced(runs, a, first, crafted)
        without = _counted(runs, a, first, (crafted, versions), noise) if _is_where(first, versions) else None
    finally:
        runs.modes = usual
    return without or found


def _replaced(
    runs: Runs, a: Recording, first: Place, crafted: Sequence[Mapping[str, Any]]
) -> list[Recording]:
    """Runs with a place replaced by each of these; none where the training does not take one."""
    runs.expect(len(crafted) + 2 * SEEDS)
    try:
        return [runs(runs.with_records({first.place: record}), forced=a) for record in crafted]
    except InputError:
        return []


def _is_where(first: Place, versions: Sequence[Recording]) -> bool:
    """Whether two versions of a place's record are in the steps that it is in, as far as these compare."""
    steps = len(first.present)
    if not versions or any(version.steps != steps for version in versions):
        return False
    pairs = zip(*(version.gradients for version in versions), strict=True)
    apart = np.array([float((one - two).norm()) for one, two in pairs])
    is_known = agreement([*first.versions, *versions], steps).all(axis=0)
    is_present: BoolArray = apart > NEGLIGIBLE * apart.max()
    return bool((is_present == first.present)[is_known].all())


def _of_largest_label(
    runs: Runs, first: Place, crafted: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Two crafts of the largest label of all: models that follow it are the same ones on copies of these.

    Where two differ by their label alone, another one is taken for the second. None of records without one.
    """
    labels = [record["label"] for record in runs.records if record["label"] is not None]
    if not labels:
        return []
    usual = [*crafted, *(craft.record for craft in first.crafts if not craft.loudness)]
    alike = [{**record, "label": max(labels)} for record in usual]
    return [alike[0], next((record for record in alike if record != alike[0]), alike[1])]


def _counted(
    runs: Runs,
    a: Recording,
    first: Place,
    replaced: tuple[Sequence[Mapping[str, Any]], Sequence[Recording]],
    noise: Noise,
) -> Batches | None:
    """Count them by copies; None where the model on copies is another one, or does not take them.

    With all records one craft or all another, the two that are farthest apart, updates differ by what one
    place's two crafts do, as often as there are records in the batch. That counts the batches that the place
    is in. Under other seeds, at the same weights, they differ by a multiple of the same. Where records so
    loud add one length, because they are clipped, lengths count the records of all steps; and a batch's
    update over its records is what one adds.

    Args:
        replaced: Two crafts, and the runs with that place replaced by each.
    """
    crafted, versions = replaced
    everywhere = [runs.with_records(dict.fromkeys(range(len(runs.records)), record)) for record in crafted]
    try:
        pair = [runs(records, forced=a) for records in everywhere]
    except InputError:
        return None
    if any(run.layouts != a.layouts for run in (*versions, *pair)):
        return None
    try:
        agree = agreement([*versions, *pair], a.steps).all(axis=0)
        known = _batches_with(versions, pair, agree & first.present, len(runs.records))
        if known is None:
            return Batches()
        others = [
            [runs(records, forced=a, number=number, still=True) for records in everywhere]
            for number in range(1, SEEDS)
        ]
        seen = [_Seed.of(two, pair, a.steps) for two in (pair, *others)]
    except InputError:
        return Batches()
    norms = np.array([seed.lengths for seed in seen])
    lengths = [float(norms[0][:, step].max()) / size for step, size in known.items()]
    unit = max(lengths, default=0.0)
    # Where no craft is loud enough to be clipped, the length says nothing.
    if lengths and sum(length > (1 - 1e-4) * unit for length in lengths) >= max(1, len(lengths) / 2):
        counts, alike = whole_numbers(norms.max(axis=1) / unit), True
    else:
        counts, alike = by_common_measure(np.array([seed.multiples for seed in seen]), known), False
    every = counts[0]
    every[~agree] = -1
    # Samples that are the same under another seed are counted once.
    different = {sizes.tobytes(): sizes for sizes in counts}.values()
    counted = [int(size) for sizes in different for size in sizes if size >= 0]
    # One size; or under all seeds the same two, as of epochs whose last batch is smaller.
    is_fixed = len(set(counted)) == 1 or (len(different) == 1 and len(set(counted)) == 2)
    is_whole = len(counted) > a.steps or (len(counted) > 0.9 * a.steps and is_fixed)
    if not is_whole or max(counted) > len(runs.records):
        every = np.array([known.get(step, -1) for step in range(a.steps)])
        lengths_of_some = lengths_of_one(runs, a, first, pair, every)
        return Batches(list(known.values()), lengths=lengths_of_some, by_step=every)
    alone = _alone(pair, norms[0], every, noise) if alike else np.zeros(a.steps)
    lengths_of_loud = lengths_of_one(runs, a, first, pair, every)
    rows, usual = [alone], [lengths_of_loud.usual]
    for record in faint(runs.records, first.crafts[0]):
        parts = _parts(runs, a, record, (pair[0], every), None if alike else (others[0][0], counts[1]))
        rows.append(_scaled(parts, noise))
        if parts:
            usual.append(float(np.median([float(part.norm()) for part in parts.values()])))
    alone = max(rows, key=lambda row: float(np.square(row).sum()))
    lengths_of_loud = replace(lengths_of_loud, usual=max(filter(math.isfinite, usual), default=math.nan))
    return Batches(counted, True, alone, lengths_of_loud, every)


def _farthest(first: Place) -> tuple[int, int]:
    """The two of a place's crafts, none of the louder ones, whose updates are farthest apart."""
    usual = [number for number, craft in enumerate(first.crafts) if not craft.loudness]
    if len(usual) < 2 or not first.present.any():
        return 0, 1
    pairs = [(i, j) for i in usual for j in usual if i < j]
    apart = [float(np.median(first.raw[1 + i, 1 + j][first.present])) for i, j in pairs]
    return pairs[int(np.argmax(apart))] if np.isfinite(apart).all() else (0, 1)


def _alone(
    pair: Sequence[Recording], lengths: FloatArray, sizes: npt.NDArray[np.int64], noise: Noise
) -> FloatArray:
    """What one of the copies adds at each step, in standard deviations of the noise, shape `(T,)`.

    Args:
        pair: Trainings on copies.
        lengths: Of their updates, shape `(2, T)`.
        sizes: Records in each batch, shape `(T,)`; -1 where they are not known.
    """
    alone = np.zeros(len(sizes))
    for step in np.flatnonzero((sizes > 0) & (noise.by_step > 0)):
        update = pair[int(lengths[:, step].argmax())].gradients[step].double()[noise.scale > 0]
        scale = noise.scale[noise.scale > 0] * float(noise.by_step[step])
        alone[step] = float((update / scale).norm()) / sizes[step]
    return alone


def _parts(
    runs: Runs,
    a: Recording,
    record: Mapping[str, Any],
    counted_run: tuple[Recording, npt.NDArray[np.int64]],
    other: tuple[Recording, npt.NDArray[np.int64]] | None,
) -> dict[int, Tensor]:
    """What one of many copies of a record adds to updates, by step, where that is known.

    That is an update over its size, where nothing but records is in it: then two updates at equal weights, on
    batches of different sizes, give the same. It is a mean of what records add, and so no more than the most.

    Args:
        counted_run: A training on other copies, and its batches' sizes, -1 where they are not known.
        other: The same under the next seed; None where nothing but records is in the updates.
    """
    records = runs.with_records(dict.fromkeys(range(len(runs.records)), record))
    pairs = [counted_run, *([other] if other is not None else [])]
    runs.expect(len(pairs))
    try:
        own = [runs(records, forced=a)]
        own += [runs(records, forced=a, number=1, still=True)] if other is not None else []
    except InputError:
        return {}
    parts = {}
    is_known = np.all(
        [
            agreement([run, of], a.steps)[1] & (sizes >= 0)
            for (run, sizes), of in zip(pairs, own, strict=True)
        ],
        axis=0,
    )
    for step in np.flatnonzero(is_known):
        sizes = [int(known[step]) for _, known in pairs]
        if 0 in sizes:
            continue
        parts_of_one = [run.gradients[step].double() / size for run, size in zip(own, sizes, strict=True)]
        if other is not None:
            # Before the first step, another seed has other weights. What is in both updates, and is no
            # record's, moves the parts apart by its length times the difference of one over the sizes.
            if step == 0 or sizes[0] == sizes[1]:
                continue
            apart = float((parts_of_one[0] - parts_of_one[1]).norm())
            of_none = apart * max(sizes) / abs(sizes[0] - sizes[1])
            if of_none > ALIKE * float(parts_of_one[0].norm()):
                continue
        parts[int(step)] = parts_of_one[0]
    return parts


def _scaled(parts: Mapping[int, Tensor], noise: Noise) -> FloatArray:
    """Lengths in standard deviations of the noise, shape `(T,)`; 0 where nothing is known.

    The longest tenth is shortened to the next: so few batches might be miscounted.
    """
    found = np.zeros(len(noise.by_step))
    noisy = noise.scale > 0
    for step, part in parts.items():
        if noise.by_step[step] > 0:
            found[step] = float((part[noisy] / noise.scale[noisy]).norm()) / float(noise.by_step[step])
    longest = np.sort(found[found > 0])
    return np.minimum(found, longest[int(0.9 * (len(longest) - 1))]) if longest.size else found


def _batches_with(
    versions: Sequence[Recording], pair: Sequence[Recording], steps: BoolArray, records: int
) -> dict[int, int] | None:
    """Records in the batches of these steps, which the place is in; None where they are no whole numbers."""
    known = {}
    for step in np.flatnonzero(steps):
        once = (versions[0].gradients[step] - versions[1].gradients[step]).double()
        all_of = (pair[0].gradients[step] - pair[1].gradients[step]).double()
        size = float(once.square().sum())
        if size == 0:
            continue
        count = float(all_of @ once) / size
        aside = float((all_of - count * once).norm())
        if abs(count - round(count)) > 0.01 or aside > 1e-2 * math.sqrt(size) * max(count, 1.0):
            return None
        known[int(step)] = min(max(round(count), 1), records)
    return known


@dataclass(frozen=True)
class _Seed:
    """What two trainings on copies show under one seed.

    Attributes:
        lengths: Norms of the updates, shape `(2, T)`; NaN where there is none.
        multiples: What the updates differ by, over what those of the first seed do, shape `(T,)`; NaN where
            that is no multiple.
    """

    lengths: FloatArray
    multiples: FloatArray

    @classmethod
    def of(cls, pair: Sequence[Recording], usual: Sequence[Recording], steps: int) -> _Seed:
        """Of one seed's two trainings, against the `usual` two of the first seed."""
        multiples = np.full(steps, math.nan)
        for step in range(min(steps, *(run.steps for run in (*pair, *usual)))):
            both = [run.gradients[step] for run in (*pair, *usual)]
            if len({one.shape for one in both}) > 1:
                continue
            here, there = (both[0] - both[1]).double(), (both[2] - both[3]).double()
            if float(there.norm()) == 0:
                continue
            multiple = float(here @ there) / float(there.square().sum())
            if float((here - multiple * there).norm()) <= WHOLE * float(there.norm()) * max(multiple, 1.0):
                multiples[step] = multiple
        return cls(np.array([lengths_of(run, steps) for run in pair]), multiples)


def by_common_measure(multiples: FloatArray, known: Mapping[int, int]) -> npt.NDArray[np.int64]:
    """Sizes of batches of several seeds, from the multiples of the first seed's that they are.

    Where that size is not known, it is the least that makes all of them whole. All might share a divisor;
    then they are fewer than those of other steps by a factor, and are taken by it.

    Args:
        multiples: Shape `(seeds, T)`.
        known: Sizes of the first seed's batches, of some steps.

    Returns:
        Same shape; -1 where nothing is known.
    """
    sizes = np.full(multiples.shape, -1, dtype=np.int64)
    for step in np.flatnonzero(np.isfinite(multiples).all(axis=0)):
        row = multiples[:, step]
        for size in [known[int(step)]] if int(step) in known else range(1, MOST + 1):
            if (whole := whole_numbers(row * size)).min() >= 0:
                sizes[:, step] = whole
                break
    is_known = np.isin(np.arange(multiples.shape[1]), list(known))
    means = sizes.mean(axis=0)
    found = (sizes >= 0).all(axis=0)
    usual = float(np.median(means[found])) if found.any() else 0.0
    if usual < LARGE:
        return np.full(multiples.shape, -1, dtype=np.int64)
    times = np.where(is_known, 1, np.maximum(1, np.round(usual / np.maximum(means, 1.0)))).astype(np.int64)
    return np.where(found, sizes * times, -1)


def lengths_of(run: Recording, steps: int) -> FloatArray:
    """Norms of its updates, shape `(steps,)`; NaN where there is none."""
    norms = [float(gradient.double().norm()) for gradient in run.gradients[:steps]]
    return np.array(norms + [math.nan] * (steps - len(norms)))


def whole_numbers(counts: FloatArray) -> npt.NDArray[np.int64]:
    """The whole numbers among some counts; -1 for the others, and for 0 but for rounding."""
    near = np.where(np.abs(counts) < MOST_COUNTED, counts, -1.0).round()
    is_whole = (np.abs(counts - near) < WHOLE) & ((near > 0) | (counts < 1e-6))
    return np.where(is_whole, near, -1.0).astype(np.int64)


def counted(found: Batches, records: int, noise: Noise) -> tuple[int, int, tuple[int, ...], bool]:
    """Records in the batches that can be counted, records that might be in them, all sizes if known, and
    whether they vary more than those of Poisson samples of one rate.

    Where the noise is a number over the batch's records, it counts those of all steps, if only in all.
    """
    # Of steps that are known because a record is in them, this record says nothing.
    sizes = [size - (not found.is_whole) for size in found.sizes]
    most = records - (not found.is_whole)
    hits, tries = sum(sizes), most * len(sizes)
    share = hits / max(tries, 1)
    if 0 < share < 1:
        # Batches that vary more than by chance: records come together, or steps are no fair sample.
        spread = sum((size - most * share) ** 2 for size in sizes) / (most * share * (1 - share))
        if chi2.sf(spread, max(len(sizes) - 1, 1)) < RARE:
            return 0, 0, (), True
    if not found.is_whole and (numerator := found.numerator(noise)) and noise.by_step.all():
        values = int((noise.scale > 0).sum()) * sum(found.by_step > 0)
        # Fewer by what chance in the noise may add, so that the rate's lower end is none of it.
        sizes_all = float((numerator / noise.by_step).sum()) * (1 - MANY / math.sqrt(2 * values))
        if values >= FEWEST_VALUES:
            hits, tries = math.floor(sizes_all), records * len(noise.by_step)
    return hits, tries, tuple(sizes) if found.is_whole else (), False
