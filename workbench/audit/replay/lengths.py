"""How far one of many copies of a record moves an update: tensor by tensor, and however loud it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from workbench.audit.replay.crafts import LOUDER
from workbench.audit.replay.recording import Recording
from workbench.audit.replay.runs import Place, Runs, agreement
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

ONE_LENGTH = 2e-3
"""A group of tensors whose length is within this share of its largest, most of the time, is held to that."""


MOST_TENSORS = 200
"""Groups of more are not looked for."""

FINER = 1e-6
"""Of the whole's square: groups of which there are more may add up to so much more each."""


@dataclass(frozen=True)
class Lengths:
    """What one of many copies adds to updates, in the gradient's own units.

    Attributes:
        usual: At the median step, of the craft that adds more; NaN where batches could not be counted.
        groups: Of groups of neighbouring tensors, by name, the largest length of each over that of all, where
            each has its own most of the time: each is clipped by itself. Empty otherwise.
        loudest: The least and the most, over the steps, that a record 100,000 times as loud as the data adds;
            NaN where records have no loudness.
        louder: What one 100 times as loud adds over what one 1,000 times as loud as the data does, at the
            median step; likewise.
    """

    usual: float = math.nan
    groups: Mapping[str, float] = field(default_factory=dict)
    loudest: tuple[float, float] = (math.nan, math.nan)
    louder: float = math.nan


def lengths_of_one(
    runs: Runs, a: Recording, first: Place, pair: Sequence[Recording], sizes: npt.NDArray[np.int64]
) -> Lengths:
    """Measure what one copy adds.

    Args:
        a: Run A.
        first: A place with its versions.
        pair: Trainings on copies of two of its crafts, at run A's weights.
        sizes: Records in the batch of each step, shape `(T,)`; -1 where they are not known.
    """
    loud = _the_loudest(runs, a, first)
    agree = agreement([*pair, *loud], a.steps) & (sizes > 0)
    parts = [
        _by_tensor(run, np.flatnonzero(here)) / sizes[here, None]
        for run, here in zip([*pair, *loud], agree, strict=True)
        if here.any()
    ]
    if not agree[: len(pair)].any(axis=1).all():
        return Lengths()
    usual, loudest = parts[: len(pair)], parts[len(pair) :]
    most = np.array([np.sqrt((part**2).sum(axis=1)) for part in loudest if len(part) == len(usual[0])])
    most = most.max(axis=0, initial=0.0)
    moved = most[most > 0] if len(loudest) == len(loud) else np.zeros(0)
    return Lengths(
        usual=max(float(np.median(np.sqrt((part**2).sum(axis=1)))) for part in usual),
        groups=shares(a.layouts[0].names, parts),
        loudest=(float(moved.min()), float(moved.max())) if moved.size > 1 else (math.nan, math.nan),
        louder=_louder(runs, a, first, loud),
    )


def _louder(runs: Runs, a: Recording, first: Place, loud: Sequence[Recording]) -> float:
    """The median ratio of updates on copies of the loudest craft and of the one before, of one label."""
    less = next((craft.record for craft in first.crafts if craft.loudness == LOUDER[0]), None)
    if less is None or not loud:
        return math.nan
    runs.expect(1)
    try:
        other = runs(runs.with_records(dict.fromkeys(range(len(runs.records)), less)), forced=a)
    except InputError:
        return math.nan
    steps = np.flatnonzero(agreement([loud[0], other], a.steps).all(axis=0))
    norms = np.array([[float(run.gradients[t].double().norm()) for run in (loud[0], other)] for t in steps])
    moved = norms[norms.all(axis=1)] if norms.size else np.zeros((0, 2))
    return float(np.median(moved[:, 0] / moved[:, 1])) if len(moved) else math.nan


def _by_tensor(run: Recording, steps: npt.NDArray[np.intp]) -> FloatArray:
    """Norm of each tensor's part of these updates, shape `(steps, tensors)`."""
    places = [place for _, place in run.layouts[0].slices()]
    return np.array(
        [[float(run.gradients[step][place].double().norm()) for place in places] for step in steps]
    )


def _the_loudest(runs: Runs, a: Recording, first: Place) -> list[Recording]:
    """Trainings on copies of the loudest craft, with its own label and with another.

    Whatever a model says of the image, one of the two is far from that. None where records have no loudness.
    """
    loudest = next((craft.record for craft in first.crafts if craft.loudness == LOUDER[-1]), None)
    if loudest is None:
        return []
    versions = []
    for label in dict.fromkeys(craft.record["label"] for craft in first.crafts[:2]):
        record = {**loudest, "label": label}
        others = dict.fromkeys(range(len(runs.records)), record)
        try:
            versions.append(runs(runs.with_records(others), forced=a))
        except InputError:
            return []
    return versions


def shares(names: Sequence[str], parts: Sequence[FloatArray]) -> dict[str, float]:
    """The largest length of each group of neighbouring tensors that is held to one, over that of all.

    A group is held to a length where it has that in most steps of some training. All groups have theirs at
    once in some step: otherwise it is one norm of all that holds now this group and now that.

    Args:
        names: Of the tensors.
        parts: Their norms in each training, shape `(steps, tensors)`.

    Returns:
        By the names of a group's first and last tensor; empty where it is not so of two groups and more.
    """
    if len(names) > MOST_TENSORS or not any(part.any() for part in parts):
        return {}
    sums = [np.pad(np.cumsum(part**2, axis=1), ((0, 0), (1, 0))) for part in parts]
    whole = max(float(total[:, -1].max()) for total in sums)
    # Of the tensors up to each one: the least sum of squares of two groups or more, or of one, and where
    # the last one begins. Of groups that add up alike the most are taken.
    least: list[dict[bool, tuple[float, int]]] = [{} for _ in range(len(names) + 1)]
    lengths: dict[tuple[int, int], float] = {}
    for end in range(1, len(names) + 1):
        for first in range(end):
            squares = [total[:, end] - total[:, first] for total in sums]
            longest = max(float(square.max()) for square in squares)
            if not any((square > (1 - ONE_LENGTH) ** 2 * longest).mean() > 0.5 for square in squares):
                continue
            lengths[first, end] = math.sqrt(longest / whole)
            before = min((cost for cost, _ in least[first].values()), default=0.0 if first == 0 else math.inf)
            cost, several = before + longest / whole - FINER, first > 0
            if cost < least[end].get(several, (math.inf, 0))[0]:
                least[end][several] = cost, first
    end, found = len(names), {}
    cost, first = least[end].get(True, (math.inf, 0))
    if cost > (1 + ONE_LENGTH) ** 2:
        return {}
    while True:
        found[" to ".join(dict.fromkeys((names[first], names[end - 1])))] = lengths[first, end]
        if first == 0:
            return dict(reversed(found.items()))
        end = first
        first = min(least[end].values())[1]
