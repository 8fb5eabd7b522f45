"""Parses a study file and checks it part by part, before any profile is chosen.

Nothing here looks at the registry; `workbench.studies.study` does that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from workbench.checks.ledger import papers
from workbench.core.errors import InputError, unknown_name
from workbench.core.one_line import object_line, one_line
from workbench.interfaces import Currency
from workbench.studies.fields import FIELDS, NAMES, checked, checked_table, value_text

SCHEMA = 1
"""The grammar's version; a file names it, so that an old workbench refuses a newer file."""

_TOP = (
    "schema", "title", "paper", "report", "replication", "notes",
    "base", "lists", "profile", "variant", "group",
)  # fmt: skip
_PROFILE = ("base", "lists", "notes", "groups", "variants")
_GROUP = ("name", "tags", "set", "grid", "zip", "exclude", "variants")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile's changes to a study file: fields, lists, notes, and which groups and variants it keeps."""

    base: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A named mechanism with its fields and tags, and the axes that it does not have."""

    name: str
    fields: Mapping[str, Any]
    without: tuple[str, ...]
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A part of the grid: an axis is a list of values, or the name of a list after a dollar sign."""

    name: str
    fields: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any] | str]
    zips: tuple[Mapping[str, Sequence[Any] | str], ...]
    exclude: tuple[Mapping[str, Any], ...]
    variants: tuple[str, ...] | None
    tags: Mapping[str, str]

    @property
    def axes(self) -> tuple[str, ...]:
        """Fields that take several values."""
        return (*self.grid, *(name for table in self.zips for name in table))


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A whole file; dicts keep the file's order."""

    title: str
    paper: str
    report: str
    replication: str
    notes: tuple[str, ...]
    base: Mapping[str, Any]
    lists: Mapping[str, Sequence[Any]]
    profiles: Mapping[str, Profile]
    variants: Mapping[str, Variant]
    groups: Mapping[str, Group]


@contextmanager
def place(name: str) -> Iterator[None]:
    """Put the place in the file in front of the message of an `InputError` that is raised inside."""
    try:
        yield
    except InputError as error:
        raise InputError(one_line(f"{name}: {error}")) from error


def parse(text: str) -> StudyFile:
    """A study file's text, checked.

    Raises:
        InputError: it is no TOML (with the line), or a table, key, field, list, variant or value is unknown,
            missing, of a wrong type or out of range; names the place.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Besides a syntax error: too deep, or too long a number.
        raise InputError(one_line(f"is no TOML: {error}")) from error
    _require_known("key", content, _TOP)
    if content.get("schema") != SCHEMA or isinstance(content.get("schema"), bool):
        given = object_line(content["schema"]) if "schema" in content else "none"
        raise InputError(f"schema must be {SCHEMA}, got {given}")
    for name in ("title", "replication"):
        if name not in content:
            raise InputError(f"{name} is missing")
    parsed = StudyFile(
        title=_label("title", content["title"]),
        paper=_paper(content),
        report=_label("report", content["report"]) if "report" in content else "",
        replication=_replication(content["replication"]),
        notes=_texts("notes", content.get("notes", [])),
        base=_fields("base", content),
        lists=_lists("lists", content),
        profiles={name: _profile(name, table) for name, table in _tables("profile", content)},
        variants={name: _variant(name, table) for name, table in _tables("variant", content)},
        groups=_groups(content.get("group")),
    )
    _check_references(parsed)
    return parsed


def _require_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)


def _label(name: str, value: Any) -> str:
    """A text that tables and displays show: on one line, without spaces around it."""
    if not isinstance(value, str) or not value or not value.isprintable() or value != value.strip():
        raise InputError(f"{name} must be a text on one line, got {object_line(value)}")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"{name} must be a list of texts, got {object_line(value)}")
    texts = tuple(_label(name, " ".join(item.split()) if isinstance(item, str) else item) for item in value)
    for text in texts:
        if texts.count(text) > 1:
            raise InputError(f"{name} must not repeat, got {object_line(text)} twice")
    return texts


def _paper(content: Mapping[str, Any]) -> str:
    if "paper" not in content:
        return ""
    paper = _label("paper", content["paper"])
    _require_known("paper", [paper], papers())
    return paper


def _replication(value: Any) -> str:
    name = _label("replication", value)
    _require_known("field of replication", [name], FIELDS)
    return name


def _table(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"{name} must be a table, got {object_line(table)}")
    return table


def _tables(name: str, content: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The named tables `[name.x]`, in the file's order."""
    for key, table in _table(name, content).items():
        _label(f"the name of a {name}", key)
        if not isinstance(table, dict):
            raise InputError(f'{name} must hold tables ([{name}."a name"]), got {key} = {object_line(table)}')
        yield key, table


def _fields(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    table = _table(name, content)
    with place(name):
        return checked_table(table)


def _lists(name: str, content: Mapping[str, Any]) -> dict[str, list[Any]]:
    lists = _table(name, content)
    for key, values in lists.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{name}: {key} must be a list of at least one value, got {object_line(values)}")
    return lists


def _profile(name: str, table: Mapping[str, Any]) -> Profile:
    with place(f"profile {name!r}"):
        _require_known("key", table, _PROFILE)
        return Profile(
            base=_fields("base", table),
            lists=_lists("lists", table),
            notes=_texts("notes", table.get("notes", [])),
            groups=_some_texts("groups", table),
            variants=_some_texts("variants", table),
        )


def _some_texts(name: str, table: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Names to restrict to, at least one, or None for all."""
    if name not in table:
        return None
    texts = _texts(name, table[name])
    if not texts:
        raise InputError(f"{name} must name at least one, or be left out for all")
    return texts


def _variant(name: str, table: Mapping[str, Any]) -> Variant:
    with place(f"variant {name!r}"):
        without = _texts("without", table.get("without", []))
        with place("without"):
            _require_known("field", without, FIELDS)
        fixed = checked_table({key: value for key, value in table.items() if key not in ("without", "tags")})
        if "epsilon" in without and ("delta" in fixed or "epsilon" in fixed):
            raise InputError("a variant without epsilon has no delta and no epsilon of its own")
        if fixed.get("currency", Currency.DP) is not Currency.DP and "delta" in fixed:
            raise InputError(
                f"a budget in {fixed['currency']} has no delta, got {value_text(fixed['delta'])}"
            )
        return Variant(name=name, fields=fixed, without=without, tags=_tags(table))


def _groups(tables: Any) -> dict[str, Group]:
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError("at least one [[group]] table is needed")
    groups: dict[str, Group] = {}
    for number, table in enumerate(tables, start=1):
        with place(f"group number {number}"):
            if "name" not in table:
                raise InputError("name is missing")
            name = _label("name", table["name"])
        if name in groups:
            raise InputError(f"group {name!r} is given twice")
        with place(f"group {name!r}"):
            groups[name] = _group(name, table)
    return groups


def _group(name: str, table: Mapping[str, Any]) -> Group:
    _require_known("key", table, _GROUP)
    fixed = _fields("set", table)
    grid = _axes("grid", _table("grid", table))
    zips = tuple(_axes("zip", item) for item in _list_of_tables("zip", table))
    seen: dict[str, str] = dict.fromkeys(fixed, "set")
    for kind, axes in (("grid", grid), *(("zip", item) for item in zips)):
        for key in axes:
            if key in seen:
                raise InputError(f"{key} stands in both {seen[key]} and {kind}")
            seen[key] = kind
    return Group(
        name=name,
        fields=fixed,
        grid=grid,
        zips=zips,
        exclude=tuple(_exclusion(item) for item in _list_of_tables("exclude", table)),
        variants=_some_texts("variants", table),
        tags=_tags(table),
    )


def _tags(table: Mapping[str, Any]) -> dict[str, str]:
    """Texts that reports group experiments by, under names that no field has."""
    tags = _table("tags", table)
    with place("tags"):
        for name in tags:
            if name in FIELDS or name in NAMES:
                raise InputError(f"{name} is a field of an experiment, and no tag")
        return {name: _label(name, value) for name, value in tags.items()}


def _list_of_tables(name: str, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = table.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(item, dict) and item for item in tables):
        raise InputError(f"{name} must be a list of tables, none empty, got {object_line(tables)}")
    return tables


def _axes(kind: str, table: Mapping[str, Any]) -> dict[str, list[Any] | str]:
    """Fields with their values, or with the name of a list; the values of named lists are checked later."""
    axes: dict[str, list[Any] | str] = {}
    with place(kind):
        for name, values in table.items():
            if isinstance(values, str) and values.startswith("$"):
                _require_known("field", [name], FIELDS)
                axes[name] = values
            elif not isinstance(values, list) or not values:
                raise InputError(
                    f"{name} must be a list of at least one value, "
                    f'or the name of one ("${name}s"), got {object_line(values)}'
                )
            else:
                axes[name] = [checked(name, value) for value in values]
    return axes


def _exclusion(table: Mapping[str, Any]) -> dict[str, Any]:
    with place("exclude"):
        return {
            name: _label(name, value) if name == "variant" else checked(name, value)
            for name, value in table.items()
        }


def _check_references(file: StudyFile) -> None:
    """Check the names by which one part of the file refers to another: lists, variants, groups, axes."""
    used: set[str] = set()
    for group in file.groups.values():
        with place(f"group {group.name!r}"):
            used |= _check_group(file, group)
    _check_lists(file, used)
    for name, profile in file.profiles.items():
        with place(f"profile {name!r}"):
            _check_lists(file, used, profile)
            for key, wanted, known in (
                ("group", profile.groups, file.groups),
                ("variant", profile.variants, file.variants),
            ):
                _require_known(key, wanted or (), known)
    for variant in file.variants.values():
        with place(f"variant {variant.name!r}"):
            _check_without(file, variant)


def _check_group(file: StudyFile, group: Group) -> set[str]:
    """Check a group's variants and exclusions; returns the names of the lists that it uses."""
    _require_known("variant", group.variants or (), file.variants)
    for table in group.exclude:
        if "variant" in table and file.variants:
            with place("exclude"):
                _require_known("variant", [table["variant"]], file.variants)
    for variant in variants_of(file, group):
        for key in variant.fields:
            if key in group.axes and key not in variant.without:
                raise InputError(f"{key} is an axis here, and variant {variant.name!r} sets it: see without")
    axes = (group.grid, *group.zips)
    return {values[1:] for table in axes for values in table.values() if isinstance(values, str)}


def _check_lists(file: StudyFile, used: set[str], profile: Profile | None = None) -> None:
    """Check that every list that a group uses exists, and that every list that exists is used."""
    given = profile.lists if profile is not None else file.lists
    for name in given:
        if name not in used:
            with place("lists"):
                raise unknown_name("list", name, used) if used else InputError(f"no group uses {name!r}")
    if profile is None and file.profiles:
        return
    for name in sorted(used):
        if name not in given and name not in file.lists:
            raise unknown_name("list", name, {**file.lists, **given})


def _check_without(file: StudyFile, variant: Variant) -> None:
    """Check that the axes that a variant leaves out exist in its groups; epsilon may also be fixed."""
    groups = [group for group in file.groups.values() if variant in variants_of(file, group)]
    if not groups:
        raise InputError("no group has this variant")
    axes = {name for group in groups for name in group.axes}
    layers = [
        file.base,
        *(profile.base for profile in file.profiles.values()),
        *(group.fields for group in groups),
    ]
    if any("epsilon" in layer for layer in layers):
        axes.add("epsilon")
    for name in variant.without:
        if name not in axes:
            known = ", ".join(sorted(axes)) or "none"
            raise InputError(f"without {name!r}: no group of this variant has that axis (axes: {known})")


def variants_of(file: StudyFile, group: Group) -> list[Variant]:
    """The variants of a group: those that it names, in its order, or all in the file's."""
    return [file.variants[name] for name in (file.variants if group.variants is None else group.variants)]
