"""Expands a study file into experiments: products, zips, exclusions, variants.

The order follows the file: groups, then variants, then the axes' values; the axes themselves are ordered as
the fields of `Experiment` are, the first one slowest, so that the order of keys in a table means nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import Currency
from workbench.studies.experiments import Experiment
from workbench.studies.fields import DELTAS_OF_MEMBERS, FIELDS, REQUIRED, checked, value_text
from workbench.studies.file import Group, Profile, StudyFile, Variant, place, variants_of

MOST_EXPERIMENTS = 1_000_000
"""More than that are refused before they are made: they could neither be run nor held."""


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """Fields that vary together, and their rows of values."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The experiments of one group and variant, before exclusions."""

    group: Group
    variant: Variant | None
    fixed: Mapping[str, Any]
    axes: tuple[_Axis, ...]

    @property
    def count(self) -> int:
        return math.prod(len(axis.rows) for axis in self.axes)

    @property
    def name(self) -> str:
        variant = f", variant {self.variant.name!r}" if self.variant is not None else ""
        return f"group {self.group.name!r}{variant}"


def expand(file: StudyFile, profile_name: str | None) -> tuple[Experiment, ...]:
    """The experiments of a checked file under one of its profiles; None for the file as it stands.

    Raises:
        InputError: an unknown profile, a value of a named list that its field refuses, zipped lists of
            unequal length, repeated values, fields that are missing or do not fit each other, an exclusion
            that matches nothing under any profile, a group without experiments, or too many experiments.
    """
    parts = _parts(file, profile_name)
    total = sum(part.count for part in parts)
    if total > MOST_EXPERIMENTS:
        raise InputError(f"{total} experiments are more than {MOST_EXPERIMENTS}")
    experiments: list[Experiment] = []
    unused = {(group.name, number) for group in file.groups.values() for number in range(len(group.exclude))}
    for name, of_group in itertools.groupby(parts, key=lambda part: part.group.name):
        before = len(experiments)
        for part in of_group:
            made, matched = _experiments(part)
            experiments.extend(made)
            unused -= {(name, number) for number in matched}
        if len(experiments) == before:
            raise InputError(f"group {name!r} has no experiments: everything is excluded")
    _require_used(file, profile_name, unused)
    return tuple(experiments)


def _parts(file: StudyFile, profile_name: str | None) -> list[_Part]:
    profile = Profile()
    if profile_name is not None:
        if profile_name not in file.profiles:
            raise unknown_name("profile", profile_name, file.profiles)
        profile = file.profiles[profile_name]
    lists = {**file.lists, **profile.lists}
    parts: list[_Part] = []
    for group in file.groups.values():
        if profile.groups is not None and group.name not in profile.groups:
            continue
        with place(f"group {group.name!r}"):
            axes = _axes(group, lists)
            variants: list[Variant | None] = [*variants_of(file, group)] if file.variants else [None]
            if profile.variants is not None:
                variants = [
                    variant
                    for variant in variants
                    if variant is not None and variant.name in profile.variants
                ]
            if not variants:
                raise InputError(f"profile {profile_name!r} leaves it without a variant")
            parts += [
                _part(group, variant, {**file.base, **profile.base, **group.fields}, axes)
                for variant in variants
            ]
    return parts


def _axes(group: Group, lists: Mapping[str, Sequence[Any]]) -> tuple[_Axis, ...]:
    """The group's axes with their values, in the order of their first fields."""
    axes = [_axis("grid", {name: values}, lists) for name, values in group.grid.items()]
    axes += [_axis("zip", table, lists) for table in group.zips]
    return tuple(sorted(axes, key=lambda axis: FIELDS.index(axis.names[0])))


def _axis(kind: str, table: Mapping[str, Sequence[Any] | str], lists: Mapping[str, Sequence[Any]]) -> _Axis:
    names = tuple(sorted(table, key=FIELDS.index))
    with place(kind):
        columns = [_values(name, table[name], lists) for name in names]
        lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InputError(f"lists that go together must be of equal length: {counts}")
        rows = tuple(zip(*columns, strict=True))
        _require_distinct(names, rows)
    return _Axis(names=names, rows=rows)


def _values(name: str, values: Sequence[Any] | str, lists: Mapping[str, Sequence[Any]]) -> list[Any]:
    if not isinstance(values, str):
        return list(values)
    if values[1:] not in lists:
        raise unknown_name("list", values[1:], lists)
    with place(f"list {values[1:]!r}"):
        return [checked(name, value) for value in lists[values[1:]]]


def _require_distinct(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    seen: set[str] = set()
    for row in rows:
        text = ", ".join(f"{name} = {_canonical(value)}" for name, value in zip(names, row, strict=True))
        if text in seen:
            raise InputError(f"{text} is given twice")
        seen.add(text)


def _canonical(value: Any) -> str:
    """One text for equal values, whatever the order of keys in a table."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_canonical(item)}" for key, item in sorted(value.items())) + "}"
    return repr(str(value)) if isinstance(value, str) else repr(value)


def _part(group: Group, variant: Variant | None, below: Mapping[str, Any], axes: tuple[_Axis, ...]) -> _Part:
    """The variant's fields laid over the group's, less the axes that the variant does not have."""
    if variant is None:
        return _Part(group=group, variant=None, fixed=below, axes=axes)
    dropped = set(variant.without)
    fixed = {**below, **variant.fields}
    if "epsilon" in dropped:  # A variant without a budget has no delta either.
        dropped.add("delta")
        fixed.pop("epsilon", None)
        fixed.pop("delta", None)
    elif fixed.get("currency", Currency.DP) is not Currency.DP:  # Nats have none, whatever the others have.
        dropped.add("delta")
        fixed.pop("delta", None)
    kept = []
    for axis in axes:
        places = [number for number, name in enumerate(axis.names) if name not in dropped]
        if not places:
            continue
        rows = [tuple(row[number] for number in places) for row in axis.rows]
        different = {tuple(map(_canonical, row)): row for row in rows}  # A table of parameters has no hash.
        names = tuple(axis.names[number] for number in places)
        kept.append(_Axis(names=names, rows=tuple(different.values())))
    return _Part(group=group, variant=variant, fixed=fixed, axes=tuple(kept))


def _experiments(part: _Part) -> tuple[list[Experiment], set[int]]:
    """The experiments that no exclusion drops, and the numbers of the exclusions that dropped some."""
    made: list[Experiment] = []
    matched: set[int] = set()
    names = [name for axis in part.axes for name in axis.names]
    with place(part.name):
        for rows in itertools.product(*(axis.rows for axis in part.axes)):
            varied = zip(names, itertools.chain.from_iterable(rows), strict=True)
            experiment = _experiment(part, {**part.fixed, **dict(varied)})
            dropping = {
                number for number, table in enumerate(part.group.exclude) if _matches(experiment, table)
            }
            matched |= dropping
            if not dropping:
                _require_fit(experiment)
                made.append(experiment)
    return made, matched


def _experiment(part: _Part, given: dict[str, Any]) -> Experiment:
    for name in REQUIRED:
        if name not in given:
            raise InputError(f"{name} is missing")
    if given.get("currency", Currency.DP) is not Currency.DP:
        given["delta"] = None
    elif "delta" in given:
        given["delta"] = _delta(given["delta"], given["members"])
    variant = part.variant.name if part.variant is not None else given["mechanism"]
    tags = {**part.group.tags, **({} if part.variant is None else part.variant.tags)}
    return Experiment(group=part.group.name, variant=variant, tags=tags, **given)


def _matches(experiment: Experiment, table: Mapping[str, Any]) -> bool:
    return all(
        getattr(experiment, name) == (_delta(value, experiment.members) if name == "delta" else value)
        for name, value in table.items()
    )


def _delta(value: Any, members: int) -> Any:
    """A delta as a number, where it is written as a share of the members."""
    rule = DELTAS_OF_MEMBERS.get(value) if isinstance(value, str) else None
    return value if rule is None else rule(members)


def _require_fit(experiment: Experiment) -> None:
    """Refuse fields that contradict each other."""
    if experiment.batch_size > experiment.members:
        raise InputError(
            f"batch_size must be in [1, members = {experiment.members}], got {experiment.batch_size}"
        )
    if experiment.scored_members is not None and experiment.scored_members > experiment.members:
        raise InputError(
            f"scored_members must be in [2, members = {experiment.members}], got {experiment.scored_members}"
        )
    if experiment.currency is not Currency.DP:
        if experiment.epsilon is None:
            raise InputError(
                f"currency = {value_text(experiment.currency)} is given without epsilon, the nats"
            )
    elif (experiment.epsilon is None) != (experiment.delta is None):
        given, lacking = ("epsilon", "delta") if experiment.delta is None else ("delta", "epsilon")
        value = value_text(getattr(experiment, given))
        raise InputError(f"{given} = {value} is given without {lacking}: a budget needs both")


def _require_used(file: StudyFile, profile_name: str | None, unused: set[tuple[str, int]]) -> None:
    """Refuse an exclusion that matches nothing under any profile: it is a mistake in the file."""
    for other in file.profiles:
        if not unused:
            return
        if other != profile_name:
            with place(f"profile {other!r}"):
                unused = unused - _matched_under(file, other)
    for group, number in sorted(unused):
        table = file.groups[group].exclude[number]
        conditions = ", ".join(f"{name} = {value_text(value)}" for name, value in table.items())
        raise InputError(f"group {group!r}: exclude: nothing matches {conditions}")


def _matched_under(file: StudyFile, profile_name: str) -> set[tuple[str, int]]:
    """The exclusions that drop something under a profile."""
    parts = _parts(file, profile_name)
    if sum(part.count for part in parts) > MOST_EXPERIMENTS:
        return set()
    return {(part.group.name, number) for part in parts for number in _experiments(part)[1]}
