"""The papers' printed numbers: every cell with its table, row, column and unit, as printed.

`data/published/<paper>.toml` holds them in a compact form; `published(paper)` expands it to cells. A printed
number is a fact with a place, never corrected: what contradicts another table is reported, not mended. A cell
that is printed but that our copy does not show is `"?name"`, with the reason under that name in the table.

A cell is one text of one of these forms:

>>> printed_numbers("2.79 ± 0.96")  # mean ± spread
(PrintedNumber(value=2.79, decimals=2), PrintedNumber(value=0.96, decimals=2))
>>> [number.value for number in printed_numbers("12.0, 5.215e - 07")]  # statistic, p-value
[12.0, 5.215e-07]
>>> [number.decimals for number in printed_numbers("(-0.10, -0.001)")]  # interval
[2, 3]
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from workbench.core.errors import InputError, unknown_name


@dataclass(frozen=True, kw_only=True)
class PublishedCell:
    """One cell of a table that a paper prints.

    Attributes:
        table: Id of its table: `"table-1"`.
        row: The row's headers, in the order of the table's `row_headers`: `("5", "dp_model")`.
        column: The column's header.
        printed: The text as printed: `"2.79 ± 0.96"`.
        value: The number; NaN where the paper prints nan or words; of an interval alone, its midpoint.
        spread: The number after ±, or None.
        lower, upper: Of a printed interval or range, or None.
        p_value: Of a cell that prints a test's statistic (`value`) and p-value, or None.
        decimals: Digits printed after the point of `value`; its rounding error is half a unit of the last.
            Of an interval, of its coarser end.
        unit: `""` for a pure number; `"nats"`, `"percent"`, ...
    """

    paper: str
    table: str
    row: tuple[str, ...]
    column: str
    printed: str
    value: float
    decimals: int
    spread: float | None = None
    lower: float | None = None
    upper: float | None = None
    p_value: float | None = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class UnreadableCell:
    """A cell that is printed, but that our copy of the paper does not show, and why."""

    row: tuple[str, ...]
    column: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One printed table (or a section that prints a table's worth of numbers).

    Attributes:
        id: `"table-1"`, `"section-4.3"`.
        title: In our words.
        place: `"Table 1 (section 8.2)"`.
        row_headers: Names of the row's headers: `("batch size", "model")`.
        spread: What a cell's spread is: `"standard deviation over the 28 epsilons of one training each"`.
        seeds: Number of trainings behind a cell; None where the paper does not say.
        settings: What was held fixed, as the paper says: `{"epochs": "10"}`.
        unreadable: Printed cells that our copy does not show, row by row.
    """

    id: str
    title: str
    place: str
    row_headers: tuple[str, ...]
    columns: tuple[str, ...]
    spread: str
    seeds: int | None
    settings: dict[str, str]
    cells: tuple[PublishedCell, ...]
    unreadable: tuple[UnreadableCell, ...] = ()

    def cell(self, row: tuple[str, ...], column: str) -> PublishedCell | None:
        """The cell at a place, or None."""
        return self._by_place.get((row, column))

    @cached_property
    def _by_place(self) -> dict[tuple[tuple[str, ...], str], PublishedCell]:
        return {(cell.row, cell.column): cell for cell in self.cells}

    def why_unreadable(self, row: tuple[str, ...], column: str) -> str:
        """Why the cell at a place is not transcribed; empty where it is, or where nothing is printed."""
        reasons = (cell.reason for cell in self.unreadable if (cell.row, cell.column) == (row, column))
        return next(reasons, "")


@dataclass(frozen=True, kw_only=True)
class QualitativeClaim:
    """A conclusion that the paper draws from its tables, in our words.

    Attributes:
        id: `"similar-member-perplexity"`.
        statement: What it says, with its quantities.
        tables: Ids of the tables that it rests on.
        test: Name of the test that decides whether our results show it; the study's report knows it.
        parameters: Of that test: which metrics, models and settings the conclusion is about.
    """

    id: str
    place: str
    statement: str
    tables: tuple[str, ...]
    test: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PublishedPaper:
    """All that is transcribed from one paper."""

    paper: str
    title: str
    tables: tuple[PublishedTable, ...]
    claims: tuple[QualitativeClaim, ...]

    def table(self, table_id: str) -> PublishedTable:
        """The table of an id; InputError where there is none."""
        for table in self.tables:
            if table.id == table_id:
                return table
        raise unknown_name(f"table of {self.paper}", table_id, [table.id for table in self.tables])


@dataclass(frozen=True, kw_only=True)
class PrintedNumber:
    """A printed number; `decimals` are the digits after the point, less the exponent: 19 for `1.685e-16`."""

    value: float
    decimals: int

    @property
    def half_unit(self) -> float:
        """The largest rounding error of the number."""
        return 0.5 * 10.0**-self.decimals


_NUMBER = r"nan|[-+]?\d+(?:\.\d+)?(?:\s*e\s*[-+]?\s*\d+)?"
_FORMS = {
    "value": re.compile(rf"({_NUMBER})"),
    "value ± spread": re.compile(rf"({_NUMBER}) ± ({_NUMBER})"),
    "statistic, p-value": re.compile(rf"({_NUMBER}), ({_NUMBER})"),
    "interval": re.compile(rf"[(\[]({_NUMBER}), ({_NUMBER})[)\]]"),
    "value [lower, upper]": re.compile(rf"({_NUMBER}) \[({_NUMBER}), ({_NUMBER})\]"),
}
_TEXTS = ("id", "title", "place", "spread")
_TABLE_FIELDS = (*_TEXTS, "row_headers", "columns", "words", "seeds", "settings", "units", "reasons", "rows")
_REQUIRED = ("id", "title", "place", "row_headers", "columns", "rows")
_CLAIM_TEXTS = ("id", "place", "statement", "test")
_CLAIM_FIELDS = (*_CLAIM_TEXTS, "tables", "parameters")


def printed_numbers(text: str) -> tuple[PrintedNumber, ...]:
    """The numbers of a printed cell, in its order; InputError where the text is not of a cell's form."""
    return _parse(text)[1]


def _parse(text: str) -> tuple[str, tuple[PrintedNumber, ...]]:
    """The form's name and the numbers of a cell's text."""
    for form, pattern in _FORMS.items():
        match = pattern.fullmatch(text)
        if match is not None:
            return form, tuple(_number(group) for group in match.groups())
    raise InputError(f"a cell must be one of {', '.join(map(repr, _FORMS))}, got {text!r}")


def _number(text: str) -> PrintedNumber:
    mantissa, _, exponent = text.replace(" ", "").partition("e")
    digits = len(mantissa.partition(".")[2])
    value = float(text.replace(" ", ""))
    return PrintedNumber(value=value, decimals=digits - int(exponent or 0))


@cache
def published(paper: str) -> PublishedPaper:
    """All that is transcribed from a paper of `workbench.checks.ledger.papers()`.

    Raises:
        InputError: there is no file `data/published/<paper>.toml`, or it is damaged; the message says where.
    """
    folder = files("workbench.data") / "published"
    known = sorted(
        place.name.removesuffix(".toml")
        for place in folder.iterdir()
        if place.name.endswith(".toml") and place.name != "claims.toml"
    )
    if paper not in known:
        raise unknown_name("paper with published numbers", paper, known)
    try:
        return parse_published((folder / f"{paper}.toml").read_text(encoding="utf-8"))
    except InputError as error:
        raise InputError(f"data/published/{paper}.toml: {error}") from error


def parse_published(text: str) -> PublishedPaper:
    """The contents of a file of printed numbers, as those of `data/published/`.

    Raises:
        InputError: it is no TOML; a field is missing, unknown or of a wrong type; an id or a place is given
            twice; a row is too short or too long; a cell has none of the known forms; a claim names a
            table that is not there.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no TOML: {error}") from error
    _require_fields(content, ("paper", "title", "table", "claim"), ("paper", "title", "table"), "the file")
    paper = _text(content, "paper", "the file")
    tables = tuple(_table(entry, paper) for entry in _entries(content, "table"))
    _require_unique([table.id for table in tables], "table id")
    _require_unique([table.place for table in tables], "place of a table")
    claims = tuple(_claim(entry, [table.id for table in tables]) for entry in _entries(content, "claim"))
    _require_unique([claim.id for claim in claims], "claim id")
    return PublishedPaper(
        paper=paper, title=_text(content, "title", "the file"), tables=tables, claims=claims
    )


def _entries(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = content.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{name} must be [[{name}]] tables")
    return entries


def _table(entry: Mapping[str, Any], paper: str) -> PublishedTable:
    """One `[[table]]`, its cells expanded."""
    label = f"table {entry.get('id', '?')!r}"
    _require_fields(entry, _TABLE_FIELDS, _REQUIRED, label)
    headers, columns = _texts(entry, "row_headers", label), _texts(entry, "columns", label)
    words = _texts(entry, "words", label)
    units, settings = _mapping(entry, "units", label), _mapping(entry, "settings", label)
    _require_unique(columns, f"{label}: column")
    for column in (*words, *units):
        if column not in columns:
            raise unknown_name(f"column of {label}", column, columns)
    seeds = entry.get("seeds")
    if seeds is not None and (not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1):
        raise InputError(f"{label}: seeds must be a whole number >= 1, or absent, got {seeds!r}")
    table_id, reasons = _text(entry, "id", label), _mapping(entry, "reasons", label)
    cells: list[PublishedCell] = []
    unreadable: list[UnreadableCell] = []
    for number, row in enumerate(_rows(entry, label), start=1):
        if len(row) != len(headers) + len(columns):
            raise InputError(
                f"{label}: row {number} must have {len(headers)} headers and {len(columns)} cells, "
                f"got {len(row)} texts: {row}"
            )
        place = tuple(row[: len(headers)])
        for column, printed in zip(columns, row[len(headers) :], strict=True):
            where = f"{label}, row {' | '.join(place)}, column {column}"
            if printed.startswith("?"):
                reason = _reason(printed, reasons, where)
                unreadable.append(UnreadableCell(row=place, column=column, reason=reason))
            elif printed:
                numbers = _words(printed, where) if column in words else _numbers(printed, where)
                cells.append(
                    PublishedCell(
                        paper=paper,
                        table=table_id,
                        row=place,
                        column=column,
                        printed=printed,
                        unit=units.get(column, ""),
                        **numbers,
                    )
                )
    places = [(cell.row, cell.column) for cell in cells] + [(cell.row, cell.column) for cell in unreadable]
    _require_unique([f"{' | '.join(row)}, {column}" for row, column in places], f"{label}: cell")
    return PublishedTable(
        id=table_id,
        title=_text(entry, "title", label),
        place=_text(entry, "place", label),
        row_headers=headers,
        columns=columns,
        spread=entry.get("spread", ""),
        seeds=seeds,
        settings=settings,
        cells=tuple(cells),
        unreadable=tuple(unreadable),
    )


def _reason(printed: str, reasons: Mapping[str, str], where: str) -> str:
    """Why a cell `"?name"` cannot be read: the table's reason of that name."""
    name = printed[1:]
    if name not in reasons:
        raise unknown_name(f"reason of {where}", name, sorted(reasons))
    return reasons[name]


def _words(printed: str, where: str) -> dict[str, Any]:
    """Fields of a cell that holds a conclusion, not a number."""
    if any(pattern.fullmatch(printed) for pattern in _FORMS.values()):
        raise InputError(f"{where}: a column of words must not hold a number, got {printed!r}")
    return {"value": math.nan, "decimals": 0}


def _numbers(printed: str, where: str) -> dict[str, Any]:
    """Fields of a cell from its text."""
    try:
        form, numbers = _parse(printed)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    values = [number.value for number in numbers]
    first: dict[str, Any] = {"value": values[0], "decimals": numbers[0].decimals}
    if form == "value ± spread":
        if values[1] < 0:
            raise InputError(f"{where}: spread must be >= 0, got {printed!r}")
        return {**first, "spread": values[1]}
    if form == "statistic, p-value":
        if not 0.0 <= values[1] <= 1.0:
            raise InputError(f"{where}: p-value must be in [0, 1], got {printed!r}")
        return {**first, "p_value": values[1]}
    if form == "value":
        return first
    lower, upper = values[-2:]
    if lower > upper:
        raise InputError(f"{where}: lower must be <= upper, got {printed!r}")
    if form == "interval":
        coarse = min(number.decimals for number in numbers)
        first = {"value": 0.5 * (lower + upper), "decimals": coarse}
    return {**first, "lower": lower, "upper": upper}


def _claim(entry: Mapping[str, Any], tables: Sequence[str]) -> QualitativeClaim:
    """One `[[claim]]`."""
    label = f"claim {entry.get('id', '?')!r}"
    _require_fields(entry, _CLAIM_FIELDS, (*_CLAIM_TEXTS, "tables"), label)
    named = _texts(entry, "tables", label)
    for table in named:
        if table not in tables:
            raise unknown_name(f"table of {label}", table, tables)
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InputError(f"{label}: parameters must be a table, got {parameters!r}")
    texts = {name: _text(entry, name, label) for name in _CLAIM_TEXTS}
    return QualitativeClaim(tables=named, parameters=parameters, **texts)


def _require_fields(
    entry: Mapping[str, Any], known: Sequence[str], required: Sequence[str], label: str
) -> None:
    for name in entry:
        if name not in known:
            raise unknown_name(f"field of {label}:", name, known)
    for name in required:
        if name not in entry:
            raise InputError(f"{label}: {name} is missing")


def _require_unique(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{what} {name!r} is given twice")
        seen.add(name)


def _text(entry: Mapping[str, Any], name: str, label: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{label}: {name} must be a text, got {value!r}")
    return value


def _texts(entry: Mapping[str, Any], name: str, label: str) -> tuple[str, ...]:
    values = entry.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise InputError(f"{label}: {name} must be a list of texts, got {values!r}")
    return tuple(values)


def _mapping(entry: Mapping[str, Any], name: str, label: str) -> dict[str, str]:
    values = entry.get(name, {})
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise InputError(f"{label}: {name} must map names to texts, got {values!r}")
    return dict(values)


def _rows(entry: Mapping[str, Any], label: str) -> list[list[str]]:
    rows = entry["rows"]
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{label}: rows must be a list of rows, got {rows!r}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list) or not all(isinstance(text, str) for text in row):
            raise InputError(f"{label}: row {number} must be a list of texts, got {row!r}")
    return rows
