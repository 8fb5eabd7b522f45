"""Forced replay: what a training function's noise is, and what one record moves, measured step by step.

Run A is the training as it is. Run B repeats it without its noise, every gradient overwritten by run A's, so
that both have the same weights at each step; A minus B is the noise. Runs C are as B with one record
replaced; C minus B is what that record moves the update. What else differs between B and C has left the
training past the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import chi2
from torch import Tensor

from workbench.audit.replay.crafts import CRAFTS, LOUDER, Craft, copies, crafted, overflowing
from workbench.audit.replay.measured import Leak, Measured, NotMeasured
from workbench.audit.replay.noise import RARE, Noise, is_linear, is_repeated, noise_of, turned
from workbench.audit.replay.record import Layout, Recording, recorded
from workbench.core.errors import InputError
from workbench.core.streams import stream
from workbench.interfaces import BoolArray, FloatArray

NEGLIGIBLE = 1e-5
"""Distances of this share of the largest are rounding: a record that is not in a batch moves nothing."""

STRAIGHT = 1e-3
"""Two updates on copies of one record whose directions differ by less have no noise."""

OTHER = 0.3
"""Updates on copies that differ by more than this share of the noise have other noise besides."""

ADDS_UP = 1e-3
"""Records that together move an update by what each does, but for this share: none changes another's part."""

PLACES = 2
"""Records that are replaced by every craft, or by half of them, each in a training of its own."""

MORE_PLACES = 6
"""Records that are replaced by one craft, for the steps that they take part in."""

Train = Callable[[list[Any], int], Any]
"""Trains on records with one of two seeds, 0 or 1; returns the finished model's scores of fixed records."""


class _RefusedError(Exception):
    """Carries the reason why a training cannot be replayed."""


def measured(
    train: Train,
    records: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured | NotMeasured:
    """Replay a training.

    Args:
        train: The user's training.
        records: What it trains on, as the user's function gets them.
        seed: Of generators that the training does not seed itself, and of the crafts.
        progress: Told of the trainings done and their number.

    Raises:
        InputError: the training fails on its own records.
    """
    generator = stream(seed, "replay")
    chosen = [int(i) for i in generator.permutation(len(records))[: PLACES + MORE_PLACES]]
    crafts = {place: crafted(records, place, generator) for place in chosen}
    count = 18 + len(chosen) + len(crafts[chosen[0]]) - 1 + CRAFTS // 2 - 1
    runs = _Runs(train, records, seed, count, progress)
    try:
        return _measured(runs, crafts)
    except _RefusedError as refused:
        return NotMeasured(str(refused))


class _Runs:
    """Calls the training and counts."""

    def __init__(
        self,
        train: Train,
        records: Sequence[Mapping[str, Any]],
        seed: int,
        total: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.records = records
        self._train, self._seed, self._total, self._progress = train, seed, total, progress
        self._done = 0

    def with_records(self, others: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The records with others in some places; each keeps its id."""
        return [{**others.get(i, own), "id": own["id"]} for i, own in enumerate(self.records)]

    def __call__(
        self,
        records: Sequence[Mapping[str, Any]] | None = None,
        *,
        forced: Recording | None = None,
        like: Recording | None = None,
        share: float = 0.0,
        number: int = 0,
        still: bool = False,
    ) -> Recording:
        """One run, with seed 0 or 1; on the records that are measured, unless others are given."""
        own = [dict(record) for record in (self.records if records is None else records)]
        made = recorded(
            lambda: self._train(own, number),
            seed=self._seed + number,
            forced=forced,
            like=like,
            share=share,
            still=still,
        )
        self._done += 1
        self._progress(min(self._done, self._total), self._total)
        return made


def _measured(runs: _Runs, crafts: Mapping[int, Sequence[Craft]]) -> Measured:
    a = runs()
    if not a.steps:
        raise _RefusedError("no torch optimizer took a step")
    if len({layout.shapes for layout in a.layouts}) > 1:
        raise _RefusedError(f"{len(a.layouts)} optimizers of different parameters took steps")
    if (broken := _difference(a, runs(like=a))) is not None:
        raise _RefusedError(f"two trainings with one seed are not equal: {broken.what}")
    b = runs(forced=a, like=a)
    if (broken := _difference(a, b, gradients=False)) is not None:
        raise _RefusedError(
            f"with equal gradients the training goes another way: {broken.what}; so its randomness is "
            "not all in the gradients"
        )
    noise = noise_of(a, b)
    if noise.values and not is_linear(a, runs(forced=a, like=a, share=0.5), b):
        raise _RefusedError(
            "half of the noise does not move the updates half as far: something clips, rescales or rounds "
            "them after the noise"
        )
    _require_known(runs, a, noise)
    again = runs(number=1)
    bare = runs(number=1, forced=again, like=again)
    fixed = is_repeated((a, b), (again, bare)) if noise.values else 0
    ignores = _difference(a, again) is None
    norms = np.array([float(gradient.norm()) for gradient in b.gradients])
    fewer, spread = _of_fewer(runs, noise) if noise.values else (math.nan, math.nan)
    return Measured(
        steps=a.steps,
        parameters=a.gradients[0].numel(),
        noise=noise.by_tensor,
        noise_values=noise.values,
        step_noise=noise.by_step,
        noise_steps=noise.differs,
        is_schedule=noise.differs and _goes_like(noise, noise_of(again, bare)),
        excess=noise.excess,
        is_gaussian=noise.is_gaussian,
        correlation=noise.correlation,
        is_correlated=noise.is_correlated,
        copies=noise.copies,
        fixed=fixed,
        ignores_seed=ignores,
        fewer=fewer,
        fewer_spread=spread,
        bare_steps=int((noise.by_step == 0).sum()) if noise.values else a.steps,
        same_norm=bool(a.steps > 1 and norms.std() < 1e-4 * norms.mean()),
        recognised=b.recognised,
        **_of_records(runs, (a, b, again), noise, crafts),
    )


def _goes_like(noise: Noise, other: Noise) -> bool:
    """Whether the noise of another seed changes from step to step in the same way."""
    if noise.by_step.shape != other.by_step.shape or not other.by_step.all():
        return False
    return bool(np.allclose(noise.by_step / other.by_step, 1.0, atol=5 * math.sqrt(1 / noise.values)))


def _of_fewer(runs: _Runs, noise: Noise) -> tuple[float, float]:
    """The noise of a training with one record fewer, over the noise, and that ratio's standard error."""
    records = runs.records[:-1]
    try:
        with_noise = runs(records)
        bare = runs(records, forced=with_noise, like=with_noise)
    except InputError:
        return math.nan, math.nan
    if not bare.steps or _difference(with_noise, bare, gradients=False) is not None:
        return math.nan, math.nan
    theirs, noisy = noise_of(with_noise, bare), noise.scale > 0
    if noise.differs or theirs.differs or not torch.equal(theirs.scale > 0, noisy):
        return math.nan, math.nan
    ratio = theirs.scale[noisy] / noise.scale[noisy]
    if float(ratio.max()) > 1.1 * float(ratio.min()):
        return math.nan, math.nan
    return float(ratio.square().mean().sqrt()), math.sqrt(0.5 / noise.values + 0.5 / theirs.values)


def _require_known(runs: _Runs, a: Recording, noise: Noise) -> None:
    """Refuse a training that has noise which is not recognised.

    On copies of one record, updates of two seeds at equal weights, without the noise that is recognised, are
    multiples of one gradient, whatever the sampler drew; other noise is not.

    Raises:
        _RefusedError: they are not, or the training does not take copies and some parameters have no noise.
    """
    silent = noise.scale == 0
    labels = {record["label"] for record in runs.records if record["label"] is not None}
    # Code that counts the labels, or takes the largest, makes a smaller model of copies.
    for kept in (set(), {max(labels)}, labels) if labels else (set(),):
        records = copies(runs.records, kept)
        try:
            pair = [runs(records, forced=a, number=number, still=True) for number in (0, 1)]
        except InputError:
            continue
        if any(run.layouts != a.layouts for run in pair):
            continue
        bare, noisy = turned(pair[0], pair[1], silent), turned(pair[0], pair[1], ~silent)
        if bare is None or noisy is None or (kept and max(bare[0], noisy[0]) >= STRAIGHT):
            continue
        if bare[0] >= STRAIGHT or noisy[1] > OTHER * float(noise.scale.norm()):
            count = int((silent if bare[0] >= STRAIGHT else ~silent).sum())
            raise _RefusedError(
                f"on {count:,} parameters, updates on copies of one record point in different directions: "
                "they have random numbers of a kind that replay does not know"
            )
        return
    if bool(silent.any()):
        raise _RefusedError(
            f"no noise is recognised on {int(silent.sum()):,} parameters, and the training does not take "
            "copies of one record, which would show whether there is noise that replay does not know"
        )


def _of_records(
    runs: _Runs,
    own: tuple[Recording, Recording, Recording],
    noise: Noise,
    crafts: Mapping[int, Sequence[Craft]],
) -> dict[str, Any]:
    """What replaced records show: fields of `Measured`.

    Args:
        own: Run A, run B, and run A under the other seed.
    """
    a, b, again = own
    places = [_Place(place) for place in crafts]
    shown: dict[str, Any] = {"leaks": [], "failed": [], "naked": {}, "loudness": math.nan}

    def add(at: _Place, theirs: Sequence[Craft]) -> None:
        for craft in theirs:
            try:
                c = runs(runs.with_records({at.place: craft.record}), forced=a, like=b)
            except InputError as error:
                shown["failed"].append(str(error))
                continue
            if (leak := _leak(b, c)) is not None:
                shown["leaks"].append(Leak(leak.what, at.place, leak.tensor))
            at.versions.append(c)
            at.loud.append(craft.loudness)
        at.agree = _agreement([b, *at.versions], a.steps)
        at.raw, at.scaled, bare = _distances([b, *at.versions], at.agree, noise, a.layouts[0])
        largest = at.raw.max(axis=2, keepdims=True)
        at.present = (at.raw > NEGLIGIBLE * np.maximum(largest, 1e-30)).any(axis=(0, 1))
        shown["naked"].update(dict.fromkeys(bare))

    for at in places:
        add(at, crafts[at.place][:1])
        if not noise.values and at.present.any():
            break
    seen = [at for at in places if at.raw.size]
    if not any(at.versions for at in seen):
        raise _RefusedError(f"the training takes none of the crafted records: {shown['failed'][0]}")
    # Many crafts where there is most to see.
    deep = sorted(seen, key=lambda at: -int(at.present.sum()))[:PLACES]
    for number, at in enumerate(deep if noise.values else ()):
        more = crafts[at.place]
        add(at, more[1:] if number == 0 else more[1 : CRAFTS // 2])
    ordered = [*deep, *(at for at in seen if at not in deep)]
    first = deep[0]
    if all(by in first.loud for by in LOUDER):
        shown["loudness"] = _loudness(first.raw, [1 + first.loud.index(by) for by in LOUDER])
    usual = noise.values and len(first.versions) > 1
    batches = _batches(runs, (a, again), first, crafts[first.place][:2], noise) if usual else _Batches()
    counted, tries, sizes = _counted(batches, len(runs.records))
    together = _together(runs, a, b, crafts[first.place][0]) if usual else math.nan
    return {
        "present": np.array([at.present for at in ordered]),
        "compared": np.array([at.agree[1:].any(axis=0) for at in ordered]),
        "added": np.array([at.added() for at in deep]),
        "replaced": np.array([np.where(at.present, at.scaled.max(axis=(0, 1)) / 2, 0.0) for at in deep]),
        "loudness": shown["loudness"],
        "naked": tuple(shown["naked"]),
        "leaks": tuple(shown["leaks"]),
        "failed": tuple(shown["failed"][:3]),
        "counted": counted,
        "tries": tries,
        "sizes": sizes,
        "alone": batches.alone if together < ADDS_UP else np.zeros(0),
        "together": together,
        "emptied": _emptied(runs, a, first, crafts) if usual else math.nan,
        "noise_moved": _noise_moved(runs, a, b, first, crafts) if usual else math.nan,
    }


@dataclass
class _Place:
    """A replaced record: its versions, and what they show (`_distances`)."""

    place: int
    versions: list[Recording] = field(default_factory=list)
    loud: list[float] = field(default_factory=list)
    agree: BoolArray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    raw: FloatArray = field(default_factory=lambda: np.zeros((0, 0, 0)))
    scaled: FloatArray = field(default_factory=lambda: np.zeros((0, 0, 0)))
    present: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def added(self) -> list[float]:
        """The lower end of what some version adds, of each step."""
        return [
            _radius(self.scaled[:, :, t][np.ix_(self.agree[:, t], self.agree[:, t])]) if here else 0.0
            for t, here in enumerate(self.present)
        ]


@dataclass(frozen=True)
class _Batches:
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


def _batches(
    runs: _Runs, own: tuple[Recording, Recording], first: _Place, copied: Sequence[Craft], noise: Noise
) -> _Batches:
    """Count the records of batches.

    With all records the first craft or all the second, updates differ by what one place's two crafts do, as
    often as there are records in the batch. Where records so loud add one length, because they are clipped,
    lengths count the records of all steps, under another seed too; and a batch's update over its records is
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
        return _Batches()
    agree = _agreement([first.versions[0], first.versions[1], *pair], a.steps).all(axis=0)
    norms, theirs = (
        np.array([_lengths(run, own.steps) for run in two]) for own, two in ((a, pair), (again, others))
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
            return _Batches()
        sizes.append(min(max(round(count), 1), len(runs.records)))
        lengths.append(norms[:, step].max() / sizes[-1])
    unit = max(lengths, default=0.0)
    if sum(length > (1 - 1e-4) * unit for length in lengths) < max(2, len(lengths) / 2):
        return _Batches(sizes)
    # Where no craft is loud enough to be clipped, the length says nothing.
    every, elsewhere = (_whole(rows.max(axis=0) / unit) for rows in (norms, theirs))
    every[~agree] = -1
    counted = [int(size) for size in (*every, *elsewhere) if size >= 0]
    if len(counted) <= 0.5 * (agree.sum() + again.steps) or max(counted) > len(runs.records):
        return _Batches(sizes)
    alone = np.zeros(a.steps)
    for step in np.flatnonzero((every > 0) & (noise.by_step > 0)):
        update = pair[int(norms[:, step].argmax())].gradients[step].double()[noise.scale > 0]
        scale = noise.scale[noise.scale > 0] * float(noise.by_step[step])
        alone[step] = float((update / scale).norm()) / every[step]
    return _Batches(counted, True, alone)


def _lengths(run: Recording, steps: int) -> FloatArray:
    """Norms of its updates, shape `(steps,)`; NaN where there is none."""
    norms = [float(gradient.double().norm()) for gradient in run.gradients[:steps]]
    return np.array(norms + [math.nan] * (steps - len(norms)))


def _whole(counts: FloatArray) -> npt.NDArray[np.int64]:
    """The whole numbers among some counts; -1 for the others, and for 0 but for rounding."""
    near = np.where(np.isfinite(counts), counts, -1.0).round()
    is_whole = (np.abs(counts - near) < 2e-3) & ((near > 0) | (counts < 1e-6))
    return np.where(is_whole, near, -1.0).astype(np.int64)


def _counted(found: _Batches, records: int) -> tuple[int, int, tuple[int, ...]]:
    """Records in the batches that can be counted, records that might be in them, and all sizes if known."""
    # Of steps that are known because a record is in them, this record says nothing.
    sizes = [size - (not found.is_whole) for size in found.sizes]
    most = records - (not found.is_whole)
    hits, tries = sum(sizes), most * len(sizes)
    share = hits / max(tries, 1)
    if 0 < share < 1:
        # Batches that vary more than by chance: records come together, or steps are no fair sample.
        spread = sum((size - most * share) ** 2 for size in sizes) / (most * share * (1 - share))
        if chi2.sf(spread, max(len(sizes) - 1, 1)) < RARE:
            return 0, 0, ()
    return hits, tries, tuple(sizes) if found.is_whole else ()


def _together(runs: _Runs, a: Recording, b: Recording, craft: Craft) -> float:
    """Of two quarters of the records replaced by a craft: what their moves do not add up to, as a share."""
    quarters = [range(part, len(runs.records), 4) for part in (0, 1)]
    sets = [dict.fromkeys(quarter, craft.record) for quarter in quarters]
    try:
        versions = [
            runs(runs.with_records(own), forced=a) for own in (sets[0], sets[1], {**sets[0], **sets[1]})
        ]
    except InputError:
        return math.nan
    agree = _agreement([b, *versions], a.steps).all(axis=0)
    shares = []
    for step in np.flatnonzero(agree):
        own, one, two, both = (run.gradients[step].double() for run in (b, *versions))
        least = min(float((one - own).norm()), float((two - own).norm()))
        if least > 0:
            shares.append(float((both - one - two + own).norm()) / least)
    return float(np.median(shares)) if shares else math.nan


def _emptied(runs: _Runs, a: Recording, first: _Place, crafts: Mapping[int, Sequence[Craft]]) -> float:
    """How much further than others a craft that is not finite moves an update; NaN if that is not either."""
    record = overflowing(crafts[first.place][0])
    if record is None:
        return math.nan
    try:
        with np.errstate(all="ignore"):
            run = runs(runs.with_records({first.place: record}), forced=a)
    except InputError:
        return math.nan
    usual = first.versions[0]
    found = []
    for step in np.flatnonzero(_agreement([usual, run], a.steps).all(axis=0) & first.present):
        moved = float((run.gradients[step] - usual.gradients[step]).double().norm())
        found.append(moved / float(first.raw[:, :, step].max()))
    return max(found, default=math.nan)


def _noise_moved(
    runs: _Runs, a: Recording, b: Recording, first: _Place, crafts: Mapping[int, Sequence[Craft]]
) -> float:
    """The largest share of a step's noise that a replaced record changes."""
    records = runs.with_records({first.place: crafts[first.place][0].record})
    try:
        noisy = runs(records, forced=a, share=1.0)
    except InputError:
        return math.nan
    agree = _agreement([first.versions[0], noisy], a.steps).all(axis=0)
    found = []
    for step in np.flatnonzero(agree & first.present):
        own = (a.gradients[step] - b.gradients[step]).double()
        theirs = (noisy.gradients[step] - first.versions[0].gradients[step]).double()
        if float(own.norm()) > 0:
            found.append(float((theirs - own).norm()) / float(own.norm()))
    return max(found, default=math.nan)


def _agreement(versions: Sequence[Recording], steps: int) -> BoolArray:
    """At which steps each version has drawn what the first one has, and a finite gradient: `(v, T)`."""
    agree = np.zeros((len(versions), steps), dtype=bool)
    for row, version in enumerate(versions):
        for step in range(min(version.steps, steps)):
            agree[row, step] = (
                version.draws[step] == versions[0].draws[step]
                and version.gradients[step].numel() == versions[0].gradients[step].numel()
                and bool(torch.isfinite(version.gradients[step]).all())
            )
    return agree


def _distances(
    versions: Sequence[Recording], agree: BoolArray, noise: Noise, layout: Layout
) -> tuple[FloatArray, FloatArray, list[str]]:
    """Distances of all versions at each step, shape `(v, v, T)`: raw, and in units of the noise."""
    count, steps = agree.shape
    raw, scaled = np.zeros((count, count, steps)), np.zeros((count, count, steps))
    noisy, bare = noise.scale > 0, set()
    for step in range(steps):
        own = versions[0].gradients[step]
        rows = [version.gradients[step] if agree[i, step] else own for i, version in enumerate(versions)]
        if all(row is own for row in rows):
            continue
        stacked = torch.stack(rows).double()
        squares = torch.cdist(stacked, stacked).square().numpy()
        raw[:, :, step] = np.sqrt(squares)
        limit = NEGLIGIBLE * float(raw[:, :, step].max())
        if noise.by_step[step] == 0:
            scaled[:, :, step] = np.where(raw[:, :, step] > limit, math.inf, 0.0)
            continue
        seen = stacked[:, noisy] / (noise.scale[noisy] * float(noise.by_step[step]))
        scaled[:, :, step] = torch.cdist(seen, seen).numpy()
        for name, place in layout.slices():
            hidden = stacked[:, place][:, ~noisy[place]]
            if hidden.shape[1] and not bool((hidden == hidden[0]).all()):
                moved = torch.cdist(hidden, hidden).numpy() > limit
                scaled[:, :, step] = np.where(moved, math.inf, scaled[:, :, step])
                bare.update([name] if moved.any() else [])
    return raw, scaled, sorted(bare)


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


def _loudness(raw: FloatArray, louder: Sequence[int]) -> float:
    """How much further than the first louder version the second moves an update, at the median step."""
    others = [i for i in range(1, len(raw)) if i not in louder]
    quiet, loud = (raw[i, others].max(axis=0) for i in louder)
    used = (quiet > 0) & (loud > 0)
    return float(np.median(loud[used] / quiet[used])) if used.any() else math.nan


def _leak(b: Recording, c: Recording) -> Leak | None:
    """What a replaced record changes although updates and random draws are equal."""
    same = 0
    while same < min(b.steps, c.steps) and b.draws[same] == c.draws[same]:
        same += 1
    if (found := _difference(b, c, gradients=False, steps=same)) is not None:
        return found
    if same < min(b.steps, c.steps):
        return None  # From here on other numbers are drawn, and what differs may come from them.
    if b.steps != c.steps:
        return Leak(f"the number of steps ({b.steps} and {c.steps})")
    if b.draws[-1] == c.draws[-1] and not np.array_equal(b.result, c.result, equal_nan=True):
        return Leak("the scores that the finished model gives")
    return None


def _difference(
    first: Recording, second: Recording, *, gradients: bool = True, steps: int | None = None
) -> Leak | None:
    """The first thing in which two runs differ, of the first steps if not of all; None where none does."""
    for step, (one, other) in enumerate(zip(first.weights[:steps], second.weights[:steps], strict=False)):
        if not torch.equal(one, other):
            tensor = _tensor(first.layouts[first.optimizers[step]], one, other)
            return Leak(f"weights before step {step + 1} ({tensor})", tensor=tensor)
        if gradients and not torch.equal(first.gradients[step], second.gradients[step]):
            tensor = _tensor(
                first.layouts[first.optimizers[step]], first.gradients[step], second.gradients[step]
            )
            return Leak(f"the gradient of step {step + 1} ({tensor})", tensor=tensor)
    if steps is None and first.steps != second.steps:
        return Leak(f"the number of steps ({first.steps} and {second.steps})")
    return None


def _tensor(layout: Layout, one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return "another number of parameters"
    for name, place in layout.slices():
        if not torch.equal(one[place], other[place]):
            return name
    return "?"
