"""A study's outcomes by group, variant and axes, and as samples over the unit of replication."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics.results import counted
from workbench.reports.shared.statistics.sample import Sample, usable
from workbench.studies.experiments import FIELD_ORDER, Experiment, Outcome, Status, StudyResults

Place = tuple[Hashable, ...]
"""Values of some axes, in their order."""

_SPLIT = {"corpus", "corpus_parameters", "members", "seed"}
"""The fields that decide which records are members."""


def axis_values(experiment: Experiment) -> dict[str, Hashable]:
    """Every setting of an experiment, parameters by their own names, in a form that compares and hashes."""
    settings: dict[str, Hashable] = {}
    for name in FIELD_ORDER:
        value = getattr(experiment, name)
        if isinstance(value, Mapping):
            settings.update({f"{name}.{key}": _plain(inner) for key, inner in value.items()})
        else:
            settings[name] = _plain(value)
    return settings


def _plain(value: Any) -> Hashable:
    if value is None or isinstance(value, str | int | float):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def slug(name: str, longest: int = 60) -> str:
    """A name as part of a file's: small letters, digits and dashes; names that differ may have the same."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:longest].strip("-") or "all"


def axis_text(value: Hashable) -> str:
    """How a row's header names a value of an axis."""
    if value is None:
        return "none"
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An outcome with the settings of its experiment, as `axis_values` names them."""

    outcome: Outcome
    settings: Mapping[str, Hashable]

    def at(self, axes: Sequence[str]) -> Place:
        """Its values of these axes."""
        return tuple(self.settings.get(axis) for axis in axes)

    def metric(self, name: str) -> float | None:
        """A measured number, or None where there is none."""
        return self.outcome.metrics.get(name) if self.outcome.status is Status.DONE else None


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group of a study.

    Attributes:
        name: Of the group.
        unit: The study's unit of replication.
        axes: Settings that vary within a variant, other than the unit of replication.
        metrics: Named in any outcome that is done, in order of appearance.
        members: By variant, in order of appearance: all of its outcomes, done or not.
    """

    name: str
    unit: str
    axes: tuple[str, ...]
    metrics: tuple[str, ...]
    members: Mapping[str, tuple[Placed, ...]]

    def unit_of(self, placed: Placed) -> str | int:
        """The replicate that an outcome belongs to."""
        value = placed.settings.get(self.unit)
        return value if isinstance(value, int) else str(value)

    def rows(self, variant: str) -> dict[Place, list[Placed]]:
        """A variant's outcomes by their values of the group's axes, in order of appearance."""
        rows: dict[Place, list[Placed]] = {}
        for placed in self.members[variant]:
            rows.setdefault(placed.at(self.axes), []).append(placed)
        return rows


def _varying(members: Sequence[Placed], axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if len({placed.settings.get(axis) for placed in members}) > 1)


def groups_of(results: StudyResults) -> list[Group]:
    """The groups of a study, in order of appearance."""
    placed: dict[str, list[Placed]] = {}
    for outcome in results.outcomes:
        located = Placed(outcome=outcome, settings=axis_values(outcome.experiment))
        placed.setdefault(outcome.experiment.group, []).append(located)
    return [_group(name, results.study.replication, everything) for name, everything in placed.items()]


def _group(name: str, unit: str, everything: Sequence[Placed]) -> Group:
    """A group of its outcomes."""
    members: dict[str, list[Placed]] = {}
    for placed in everything:
        members.setdefault(placed.outcome.experiment.variant, []).append(placed)
    known = dict.fromkeys(axis for placed in everything for axis in placed.settings)
    candidates = [axis for axis in known if axis not in {"group", "variant", unit}]
    varying = {axis for variant in members.values() for axis in _varying(variant, candidates)}
    done = [placed.outcome for placed in everything if placed.outcome.status is Status.DONE]
    return Group(
        name=name,
        unit=unit,
        axes=tuple(axis for axis in candidates if axis in varying),
        metrics=tuple(dict.fromkeys(metric for outcome in done for metric in outcome.metrics)),
        members={variant: tuple(placed) for variant, placed in members.items()},
    )


def why_none(members: Sequence[Placed], what: str) -> str:
    """Why there is no number at all: what came of the experiments."""
    failed = sum(placed.outcome.status is Status.FAILED for placed in members)
    missing = sum(placed.outcome.status is Status.MISSING for placed in members)
    done = len(members) - failed - missing
    parts = [(failed, "failed"), (missing, "not run yet"), (done, "without this metric")]
    return ", ".join(f"{counted(count, what)} {fate}" for count, fate in parts if count)


def row_sample(group: Group, members: Sequence[Placed], metric: str) -> Sample | str:
    """One metric of one row over the unit, or why there is none.

    A value that is not finite (a diverged perplexity), or whose square is not, leaves no mean; leaving it out
    would flatter it.
    """
    measured = [(group.unit_of(placed), placed.metric(metric)) for placed in members]
    values = [(unit, value) for unit, value in measured if value is not None]
    if not values:
        return why_none(members, group.unit)
    bad = sum(not usable(value) for _, value in values)
    if bad:
        return f"not finite in {bad} of {counted(len(values), group.unit)}"
    return Sample(np.array([value for _, value in values]), tuple(unit for unit, _ in values), group.unit)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Two variants' measurements of one metric, ready to be compared.

    Attributes:
        first, second: With the axes that vary in both as cells; averaged over axes that vary in one alone.
        paired: Whether equal units were trained on equal splits.
    """

    first: Sample
    second: Sample
    paired: bool


def sides(group: Group, first: str, second: str, metric: str) -> Sides | str:
    """Two variants of a group on one metric, or why they cannot be compared.

    An average over an axis that varies in one variant alone (a budget, which the baseline has not) is taken
    only where all of its experiments are done, so that a failed one does not shift it.
    """
    members = group.members[first], group.members[second]
    shared = tuple(axis for axis in group.axes if all(_varying(side, (axis,)) for side in members))
    a, b = (_side(group, side, metric, shared) for side in members)
    if isinstance(a, str):
        return f"{first}: {a}"
    if isinstance(b, str):
        return f"{second}: {b}"
    common = set(a.units) & set(b.units)
    if common and _splits(group, members[0], common) == _splits(group, members[1], common):
        return Sides(first=a, second=b, paired=True)
    complete = _complete_cells(a) & _complete_cells(b)
    if not complete:
        return f"no setting is done for every {group.unit} of both variants"
    return Sides(first=_only(a, complete), second=_only(b, complete), paired=False)


def _side(group: Group, members: Sequence[Placed], metric: str, shared: Sequence[str]) -> Sample | str:
    """A variant's metric by unit and shared place, averaged over its own axes where they are complete."""
    planned: dict[tuple[str | int, Place], int] = {}
    values: dict[tuple[str | int, Place], list[float]] = {}
    for placed in members:
        key = group.unit_of(placed), placed.at(shared)
        planned[key] = planned.get(key, 0) + 1
        value = placed.metric(metric)
        if value is not None:
            values.setdefault(key, []).append(value)
    bad = sum(not usable(value) for measured in values.values() for value in measured)
    if bad:
        return f"{counted(bad, 'measurement')} not finite"
    whole = {
        key: float(np.mean(measured)) for key, measured in values.items() if len(measured) == planned[key]
    }
    if not whole:
        return why_none(members, "experiment")
    units, places = zip(*whole, strict=True)
    return Sample(np.array(list(whole.values())), units, group.unit, places)


def _splits(group: Group, members: Sequence[Placed], units: set[str | int]) -> set[tuple[Hashable, ...]]:
    """What decides the members' draw, for each of these units of a variant."""
    splits: set[tuple[Hashable, ...]] = set()
    for placed in members:
        if group.unit_of(placed) in units:
            names = [name for name in placed.settings if name.partition(".")[0] in _SPLIT]
            splits.add((group.unit_of(placed), *((name, placed.settings[name]) for name in sorted(names))))
    return splits


def _complete_cells(sample: Sample) -> set[Hashable]:
    """Cells that every unit of a sample has."""
    sizes: dict[Hashable, int] = {}
    for cell in sample.cells:
        sizes[cell] = sizes.get(cell, 0) + 1
    return {cell for cell, size in sizes.items() if size == sample.n_units}


def _only(sample: Sample, cells: set[Hashable]) -> Sample:
    return sample.taken([place for place, cell in enumerate(sample.cells) if cell in cells])
