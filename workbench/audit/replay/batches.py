"""How many records a training's batches have, from trainings on copies of one record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from workbench.audit.replay.crafts import Craft
from workbench.audit.replay.noise import RARE, Noise
from workbench.audit.replay.record import Recording
from workbench.audit.replay.runs import Place, Runs, agreement
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

MORE_SEEDS = 3
"""Seeds under which batches are counted, besides the two of the runs; they make the rate better known."""


@dataclass(frozen=True)
class Batches:
    """What trainings on copies of a craft show.

    Attributes:
        sizes: Records in each batch that could be counted.
        is_whole: Whether these are the batches of nearly all steps, rather than of those that a place is in.
        alone: What one record adds at each step, in standard deviations of the noise, shape `(T,)`; 0 where
            that is not known.
    """

    sizes: list[int] = field(default_factory=list)
    is_whole: bool = False
    alone: FloatArray = field(default_factory=lambda: np.zeros(0))


def batches_of(
    runs: Runs, own: tuple[Recording, Recording], first: Place, copied: Sequence[Craft], noise: Noise
) -> Batches:
    """Count the records of batches.

    With all records the first craft or all the second, updates differ by what one place's two crafts do, as
    often as there are records in the batch. Where records so loud add one length, because they are clipped,
    lengths count the records of all steps, under other seeds too; and a batch's update over its records is
    what one adds.

    Args:
        own: Run A, and under the other seed.
        copied: Two crafts of the place.
    """
    a, again = own
    everywhere = [
        runs.with_records(dict.fromkeys(range(len(runs.records)), craft.record)) for craft in copied
    ]
    try:
        pair = [runs(records, forced=a) for records in everywhere]
        others = [runs(records, forced=again, number=1) for records in everywhere]
    except InputError:
        return Batches()
    agree = agreement([first.versions[0], first.versions[1], *pair], a.steps).all(axis=0)
    norms, theirs = (
        np.array([lengths_of(run, own.steps) for run in two]) for own, two in ((a, pair), (again, others))
    )
    sizes, lengths = [], []
    for step in np.flatnonzero(agree & first.present):
        once = (first.versions[0].gradients[step] - first.versions[1].gradients[step]).double()
        all_of = (pair[0].gradients[step] - pair[1].gradients[step]).double()
        size = float(once.square().sum())
        if size == 0:
            continue
        count = float(all_of @ once) / size
        aside = float((all_of - count * once).norm())
        if abs(count - round(count)) > 0.01 or aside > 1e-2 * math.sqrt(size) * max(count, 1.0):
            return Batches()
        sizes.append(min(max(round(count), 1), len(runs.records)))
        lengths.append(norms[:, step].max() / sizes[-1])
    unit = max(lengths, default=0.0)
    if sum(length > (1 - 1e-4) * unit for length in lengths) < max(1, len(lengths) / 2):
        return Batches(sizes)
    # Where no craft is loud enough to be clipped, the length says nothing.
    every, elsewhere = (whole_numbers(rows.max(axis=0) / unit) for rows in (norms, theirs))
    every[~agree] = -1
    seeds = [every, elsewhere]
    for number in range(2, 2 + MORE_SEEDS):
        rows = [lengths_of(runs(records, forced=a, number=number), a.steps) for records in everywhere]
        seeds.append(whole_numbers(np.max(rows, axis=0) / unit))
    # Samples that are the same under another seed are counted once.
    different = {sizes.tobytes(): sizes for sizes in seeds}.values()
    counted = [int(size) for sizes in different for size in sizes if size >= 0]
    if len(counted) <= 0.5 * (len(every) + len(elsewhere)) or max(counted) > len(runs.records):
        return Batches(sizes)
    alone = np.zeros(a.steps)
    for step in np.flatnonzero((every > 0) & (noise.by_step > 0)):
        update = pair[int(norms[:, step].argmax())].gradients[step].double()[noise.scale > 0]
        scale = noise.scale[noise.scale > 0] * float(noise.by_step[step])
        alone[step] = float((update / scale).norm()) / every[step]
    return Batches(counted, True, alone)


def lengths_of(run: Recording, steps: int) -> FloatArray:
    """Norms of its updates, shape `(steps,)`; NaN where there is none."""
    norms = [float(gradient.double().norm()) for gradient in run.gradients[:steps]]
    return np.array(norms + [math.nan] * (steps - len(norms)))


def whole_numbers(counts: FloatArray) -> npt.NDArray[np.int64]:
    """The whole numbers among some counts; -1 for the others, and for 0 but for rounding."""
    near = np.where(np.isfinite(counts), counts, -1.0).round()
    is_whole = (np.abs(counts - near) < 2e-3) & ((near > 0) | (counts < 1e-6))
    return np.where(is_whole, near, -1.0).astype(np.int64)


def counted(found: Batches, records: int) -> tuple[int, int, tuple[int, ...], bool]:
    """Records in the batches that can be counted, records that might be in them, all sizes if known, and
    whether they vary more than those of Poisson samples of one rate.
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
    return hits, tries, tuple(sizes) if found.is_whole else (), False
