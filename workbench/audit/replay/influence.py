"""What records change beside their own part of an update: others' parts, others' batches, and the noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.audit.replay.crafts import (
    Craft,
    fitted,
    near_copies,
    overflowing,
    twins,
    two_for_many,
    variants,
)
from workbench.audit.replay.leaks import leaks_of
from workbench.audit.replay.measured import Leak
from workbench.audit.replay.recording import Recording
from workbench.audit.replay.runs import Place, Runs, agreement
from workbench.core.errors import InputError
from workbench.interfaces import BoolArray

FEWEST_EXPECTED = 3
"""Steps that an exchange of two records should move, before it says anything that it moves none."""

MOST_IDLE = 0.2
"""Share of the steps that a craft moves in which a near copy of its record may move nothing."""

TIES = 0.8
"""Of what another seed moves updates: records that are sorted move them by less when their places change."""

FAINT = 0.05
"""Updates of less than this share of the largest are of records that the model fits."""

ONE_SCALE = 1e-3
"""Two noises of a tensor that differ by less from multiples of each other are the same numbers, scaled."""


def together(
    runs: Runs, a: Recording, b: Recording, craft: Craft
) -> tuple[float, int, list[tuple[Leak, Recording]]]:
    """What two quarters of the records replaced by crafts show, and what nearly all of them do.

    Returns:
        What their moves of the updates do not add up to, as a share; by how many fewer records batches are
        drawn where near copies of others are among them; and what else they change, each with its run.
        Between the two ends of a chain of neighbours that differ, some two neighbours do.
    """
    for made in two_for_many(runs.records, craft):
        sets: list[dict[int, Mapping[str, Any]]] = [
            dict.fromkeys(range(part, len(runs.records), 4), made[part]) for part in (0, 1)
        ]
        sets.append({**sets[0], **sets[1]})
        with suppress(InputError):
            versions = [runs(runs.with_records(own), forced=a) for own in sets]
            break
    else:
        return math.nan, 0, []
    dropped, share = 0, _left_over(a, b, versions)
    with suppress(InputError):
        beside = [twins(runs.records, part) for part in (0, 1)]
        beside.append({**beside[0], **beside[1]})
        near = [runs(runs.with_records(own), forced=a) for own in beside]
        left = _left_over(a, b, near)
        share = float(np.nanmax([share, left])) if math.isfinite(left) else share
        dropped = _dropped(runs, (a, b), beside[0], near[0])
    # A choice by all records, as of the best of all models, turns where most of them change. Labels stay.
    kept = {record["label"]: i for i, record in enumerate(runs.records)}.values()
    sets.append(dict.fromkeys(set(range(len(runs.records))) - set(kept), craft.record))
    with suppress(InputError):
        versions.append(runs(runs.with_records(sets[-1]), forced=a))
    found = []
    for others, version in zip(sets, versions, strict=False):
        # Fewer labels may make another model: that tells a label of a quarter, and no more.
        if version.layouts == b.layouts:
            found += [(replace(leak, records=len(others)), version) for leak in leaks_of(b, version)]
    return share, dropped, found


def _dropped(
    runs: Runs, own: tuple[Recording, Recording], beside: Mapping[int, Mapping[str, Any]], near: Recording
) -> int:
    """How many near copies are left out because of what they are near, from batches drawn from all at first.

    What is left out also where those are not there, whose places the replaced records take, is left out for
    what it holds itself.

    Args:
        own: Run A and run B.
        beside: Near copies of the records two places on, by their places; `near`: the run with them.
    """
    a, b = own
    if b.among != len(runs.records) or near.among == b.among:
        return 0
    moved = {place + 2: runs.records[place] for place in beside}
    alone = runs(runs.with_records({**moved, **beside}), forced=a)
    return max(alone.among - near.among, 0)


def _left_over(a: Recording, b: Recording, versions: Sequence[Recording]) -> float:
    """What the moves of two sets of replaced records do not add up to in the run of both, as a share.

    Args:
        versions: With the one set, the other, and both.
    """
    shares = []
    for step in np.flatnonzero(agreement([b, *versions], a.steps).all(axis=0)):
        own, one, two, both = (run.gradients[step].double() for run in (b, *versions))
        least = min(float((one - own).norm()), float((two - own).norm()))
        if least > 0:
            shares.append(float((both - one - two + own).norm()) / least)
    return float(np.median(shares)) if shares else math.nan


def renamed(runs: Runs, a: Recording, b: Recording) -> list[tuple[Leak, Recording]]:
    """What another id of the first record changes beside the updates, as in a look-up; and the run.

    The first is among those that the finished model is asked about.
    """
    own, ids = runs.records[0], {str(record["id"]) for record in runs.records}
    stem = str(own["id"])[:-1]
    other = next(name for end in itertools.count() if (name := f"{stem}{end}") not in ids)
    try:
        version = runs([{**own, "id": other}, *runs.records[1:]], forced=a)
    except InputError:
        return []
    return [
        (replace(leak, what=f"{leak.what}, by its id alone", place=0), version)
        for leak in leaks_of(b, version)
    ]


def follows_contents(
    runs: Runs, own: tuple[Recording, Recording], places: Sequence[Place], crafts: Sequence[Craft]
) -> bool:
    """Whether records that change places take their batches with them, or move steps that neither is in.

    To be asked where not every record is in every batch: there, one whose craft the model has learned passes
    for absent. Where batches are drawn by place, exchanging two crafts moves the steps that just one of the
    places is in.

    Args:
        own: Run A and run B.
        places: The first with all its versions.
        crafts: Of the first place.
    """
    pairs = [
        (int((one.present ^ two.present).sum()), one, two)
        for i, one in enumerate(places)
        for two in places[:i]
    ]
    steps, one, two = max(pairs, key=lambda pair: pair[0], default=(0, places[0], places[0]))
    if steps < FEWEST_EXPECTED:
        return False
    (a, b), this, other = own, crafts[0].record, crafts[2].record
    try:
        run, exchanged = (
            runs(runs.with_records({one.place: first, two.place: second}), forced=a)
            for first, second in ((this, other), (other, this))
        )
    except InputError:
        return False
    compared = agreement([b, run, exchanged], a.steps).all(axis=0)
    usual = float(np.median(places[0].raw[1, 3][places[0].present]))
    moved = np.zeros(a.steps)
    for step in np.flatnonzero(compared):
        moved[step] = float((run.gradients[step] - exchanged.gradients[step]).double().norm())
    expected = (one.present ^ two.present) & compared
    if bool((moved[~one.present & ~two.present] > 0.1 * usual).any()):
        return True
    return bool(expected.sum() >= FEWEST_EXPECTED and (moved < 1e-4 * usual).all())


def has_coins_of_versions(
    runs: Runs, own: tuple[Recording, Recording], deep: Sequence[Place], craft: Craft
) -> bool:
    """Whether some variants of a craft are in a batch that others, in the same place, are not in.

    What moves an update exactly as far as another version, while a third moves it otherwise, is not in the
    batch, or is fitted perfectly. Where one variant is fitted, no other that is so much like it is with
    another label: where two of different labels leave the same update, neither is in it. Both are changed, so
    that what all are read by, as by their mean, is not the same. Where batches are drawn by place, a third is
    not in it then either. Asked where some versions of a place are equal in a step that others move: as where
    coins are a hash of a record, and so many are in a batch that some version of a record is always there.
    """
    a, b = own
    if not any(_are_equal(at.raw > 0, at.agree) for at in deep):
        return False
    records = variants(runs.records, craft)
    if not records:
        return False
    labels, held = zip(*((one["label"], (one["image"], one["text"])) for one in records), strict=True)
    runs.expect(len(records))
    updates, agree = [], []
    try:
        for record in records:
            run = runs(runs.with_records({deep[0].place: record}), forced=a)
            agree.append(agreement([b, run], a.steps)[1])
            updates.append([_digest(run.gradients[t]) if here else 0 for t, here in enumerate(agree[-1])])
    except InputError:
        return False
    found = np.array(updates)
    has_labels = len(set(labels)) > 1
    differ = [
        [(x != y or not has_labels) and p != q for y, q in zip(labels, held, strict=True)]
        for x, p in zip(labels, held, strict=True)
    ]
    return _are_equal(found[:, None] != found[None], np.array(agree), np.array(differ))


def _digest(update: Tensor) -> int:
    """A number that equal updates share, so that these need not be kept."""
    return hash((update.double() + 0.0).cpu().numpy().tobytes())  # -0 is 0.


def _are_equal(differ: BoolArray, agree: BoolArray, asked: BoolArray | None = None) -> bool:
    """Whether two versions that differ in some step are exactly equal in one in which others differ.

    Args:
        differ: Whether two versions do at a step, shape `(v, v, T)`.
        agree: Steps at which each is known, shape `(v, T)`.
        asked: Of which pairs, shape `(v, v)`; all by default.
    """
    known: BoolArray = np.array(agree[:, None] & agree[None], dtype=bool)
    apart: BoolArray = np.array(differ & known, dtype=bool)
    equal: BoolArray = ~apart & known & apart.any(axis=2, keepdims=True) & apart.any(axis=(0, 1))
    if asked is not None:
        equal &= asked[:, :, None]
    return bool(equal.any())


def moves_others(runs: Runs, a: Recording, b: Recording, places: Sequence[Place], *, adds_up: bool) -> bool:
    """Whether a craft moves steps that near copies of its record do not: it moves others with it.

    So it is where records are sorted, or capped in number, by what they hold, and batches are drawn by place:
    those between where the record was and where the craft is get other coins. Or whether, where moves are not
    seen to add up, a sampler's batches are nearly the same ones where each record takes the next one's place,
    as where the order is that of a hash, or where so many are in a batch that near copies move all steps.
    """
    if not adds_up and _has_own_order(runs, a, b):
        return True
    most = max(places, key=lambda at: int(at.present.sum()))
    idle: BoolArray = np.array(most.present, dtype=bool)
    # Cropped, cut to a length, or shifted, a training does not see every change.
    copies = near_copies(runs.records, most.place)
    runs.expect(len(copies))
    for near in copies:
        try:
            run = runs(runs.with_records({most.place: near}), forced=a)
        except InputError:
            return False
        agree = agreement([b, run], a.steps)[1]
        for step in np.flatnonzero(idle):
            idle[step] = bool(agree[step]) and torch.equal(b.gradients[step], run.gradients[step])
        if int(idle.sum()) < max(FEWEST_EXPECTED, MOST_IDLE * int(most.present.sum())):
            return False
    return bool(copies)


def _has_own_order(runs: Runs, a: Recording, b: Recording) -> bool:
    """Whether updates move much less than under another seed, where each record takes the next one's place.

    Where batches are drawn by place, they move as much. Where records are sorted, nothing moves but the last
    record, if it ties with others.
    """
    pair = runs.still(a, 1)
    # The first step of another seed is of other weights.
    steps = range(1, min(a.steps, b.steps, pair[1].steps)) if pair is not None else range(0)
    if pair is None or not _apart(b, pair[1], steps) > 0:
        return False  # No sampling is seen.
    runs.expect(1)
    try:
        run = runs(runs.with_records(dict(enumerate([*runs.records[-1:], *runs.records[:-1]]))), forced=a)
    except InputError:
        return False
    agree = agreement([b, run], a.steps)
    known = [step for step in steps if agree[:, step].all()]
    return len(known) >= FEWEST_EXPECTED and _apart(b, run, known) < TIES * _apart(b, pair[1], known)


def _apart(one: Recording, other: Recording, steps: Iterable[int]) -> float:
    """By how much the updates of these steps differ beyond rounding, together."""
    squares = 0.0
    for step in steps:
        x, y = one.gradients[step].double(), other.gradients[step].double()
        if not bool(x.any()):
            continue
        if x.shape != y.shape:
            return math.inf
        apart = float((x - y).norm())
        squares += apart**2 if apart > 1e-4 * float(x.norm()) else 0.0
    return math.sqrt(squares)


def emptied(runs: Runs, a: Recording, first: Place, crafts: Mapping[int, Sequence[Craft]]) -> float:
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
    for step in np.flatnonzero(agreement([usual, run], a.steps).all(axis=0) & first.present):
        moved = float((run.gradients[step] - usual.gradients[step]).double().norm())
        found.append(moved / float(first.raw[:, :, step].max()))
    return max(found, default=math.nan)


def noise_moved(runs: Runs, a: Recording, b: Recording, first: Place, *, differs: bool) -> float:
    """The largest share of a step's noise that replaced records change.

    Args:
        differs: The noise changes from step to step. Then the last usual craft, of images the faintest, is
            asked too: a count of records above a bound, say, is not changed by one loud record for another.
            Where it does not, all records are also replaced by one that a model comes to fit: where most are
            as loud as the clipping allows, one does not change the largest norm of a batch. Of the chain of
            neighbours from these records to those, some two differ.
    """
    usual = [number for number, craft in enumerate(first.crafts) if not craft.loudness]
    if not usual:
        return math.nan
    found = []
    for number in dict.fromkeys([usual[0], usual[-1]] if differs else usual[:1]):
        version, record = first.versions[number], first.crafts[number].record
        with suppress(InputError):
            noisy = runs(runs.with_records({first.place: record}), forced=a, share=1.0)
            agree = agreement([version, noisy], a.steps).all(axis=0)
            for step in np.flatnonzero(agree & first.present):
                own = (a.gradients[step] - b.gradients[step]).double()
                theirs = (noisy.gradients[step] - version.gradients[step]).double()
                if float(own.norm()) > 0:
                    found.append(float((theirs - own).norm()) / float(own.norm()))
    if not differs and not b.elsewhere:  # By other noise, a clipping norm may be found that falls with them.
        found.append(_rescaled(runs, a, b))
    return float(np.nanmax(found)) if found and not np.isnan(found).all() else math.nan


def _rescaled(runs: Runs, a: Recording, b: Recording) -> float:
    """The largest share of a step's noise that is more or less where all records are one that is fitted.

    Noisy sums of other records lead code that reads them elsewhere (uphill, say): then what noise makes of an
    update is no multiple of it, and such a step tells nothing.
    """
    found = []
    for record in fitted(runs.records):
        with suppress(InputError):
            records = runs.with_records(dict.fromkeys(range(len(runs.records)), record))
            bare = runs(records, forced=a)
            if bare.layouts != b.layouts or not _gets_faint(bare):
                continue
            noisy = runs(records, forced=a, share=1.0)
            for step in np.flatnonzero(agreement([b, bare, noisy], a.steps).all(axis=0)):
                own = (a.gradients[step] - b.gradients[step]).double()
                theirs = (noisy.gradients[step] - bare.gradients[step]).double()
                parts = [(own[at], theirs[at]) for _, at in a.layouts[0].slices() if bool(own[at].any())]
                if parts and all(_are_one(*pair) for pair in parts):
                    found.append(float((theirs - own).norm()) / float(own.norm()))
            break
    return max(found, default=math.nan)


def _gets_faint(bare: Recording) -> bool:
    """Whether some updates of a run are small beside the largest."""
    norms = [float(gradient.norm()) for gradient in bare.gradients]
    return sum(norm < FAINT * max(norms) for norm in norms) >= FEWEST_EXPECTED


def _are_one(own: Tensor, other: Tensor) -> bool:
    """Whether the other is a multiple of the own one, which is not zero."""
    multiple = float(own @ other) / float(own @ own)
    return float((other - multiple * own).norm()) < ONE_SCALE * float(own.norm())
