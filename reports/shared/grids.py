"""Tables that `report.toml` declares as grids: rows by columns of the outcome table, and a number a cell.

```toml
[[table]]
id = "table-4"
title = "Membership by model"
part = "models"                        # whose runs
beside = true                          # at the place of the printed table of this id
rows = [                               # levels, the first slowest
    { column = "stands_for", header = "model", of = "$models" },
    { column = "epsilon", of = "$budgets", alone = [], ours = true },
]
columns = [
    { name = "AUC", number = "roc_auc", decimals = 3 },
    { each = "$methods", column = "method", number = "final", printed = "{{ method }}, {{ epsilon | g }}" },
    { name = "drop", cell = "drop" },  # a function of the paper's own
]
notes = ["Words, with {{ unit }} and whatever else templates know."]
```

`rows = "printed"` has a row for each printed one, whose headers are the columns of `printed_row`. A level's
values are `of` (`alone` where there are no printed numbers), then with `ours` what our runs
have besides, less `but`; and `further` ones where they have runs. A row without a run of ours stays where
there are printed numbers, unless its level says `keep = "runs"`. With `needs` a table stands only where a
run has that number. A cell is the mean over units of `number` (times `factor`); with `whole = true` only
where no run is lost; `why` says why finished runs have none. `each` may name values that the paper's Python
computes; the `name` of such a column, and the `row_names` of a row, are templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.checks.published import PublishedCell
from workbench.core.errors import unknown_name
from workbench.reports.shared.context import Bindings, Context, Place, Spot
from workbench.reports.shared.outcomes import METHOD, Parts
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.report import Cell, Table

Row = tuple[tuple[str, ...], tuple[Cell, ...]]
"""Headers and cells of a row."""

Entry = Mapping[str, Any]


def tables(context: Context) -> list[Table]:
    """Every table of the paper's `report.toml` that can be made, in its order."""
    made: list[Table] = []
    for entry in context.declared.content.get("table", ()):
        if "of" in entry:
            computed = context.functions.tables[entry["of"]](context)
            made += [computed] if isinstance(computed, Table) else computed or ()
        else:
            grid = _grid(context, entry)
            made += [] if grid is None else [grid]
    return made


def table(
    context: Context, table_id: str, rows: Sequence[Row], *, may_be_empty: bool = False, **changes: Any
) -> Table | None:
    """A table under its declared title and notes, with rows made in Python; None without any row.

    Args:
        table_id: Of the `[[table]]`.
        may_be_empty: Whether the table stands even without a row.
        changes: `id`, `columns` or `decimals` where they are not declared; anything else is a fact of title,
            headers and notes.
    """
    entry = context.declared.entry("table", table_id)
    return _finished(context, entry, rows, changes) if rows or may_be_empty else None


def _finished(context: Context, entry: Entry, rows: Sequence[Row], changes: Mapping[str, Any]) -> Table:
    fields = {name: value for name, value in changes.items() if name in ("id", "columns", "decimals")}
    facts = {name: value for name, value in changes.items() if name not in fields}
    columns = tuple(fields.get("columns") or [name for name, _, _ in _columns(context, entry)])
    table_id = str(fields.get("id", entry["id"]))
    printed = context.published(table_id) if entry.get("beside") else None
    return Table(
        id=table_id,
        title=context.render(entry["title"], **facts),
        row_headers=tuple(context.render(header, **facts) for header in _headers(entry)),
        columns=columns,
        rows=tuple(rows),
        place=str(entry.get("place", "")) if printed is None else printed.place,
        notes=context.lines(entry.get("notes", ()), **facts),
        decimals=fields.get("decimals") or _decimals(context, entry, columns),
    )


def _headers(entry: Entry) -> list[str]:
    if "headers" in entry:
        return list(entry["headers"])
    return [level.get("header", level["column"]) for level in entry["rows"]]


def _decimals(context: Context, entry: Entry, columns: Sequence[str]) -> dict[str, int]:
    usual = entry.get("decimals", 2 if entry.get("beside") else False)
    stated = {name: column.get("decimals", usual) for name, column, _ in _columns(context, entry)}
    by_column: dict[str, Any] = {name: stated.get(name, usual) for name in columns}
    return {name: decimals for name, decimals in by_column.items() if decimals is not False}


def _columns(context: Context, entry: Entry) -> Sequence[tuple[str, Entry, Bindings]]:
    """Header, entry and binding of each column."""
    return context.once(f"columns of {entry['id']}", lambda: list(_made_columns(context, entry)))


def _made_columns(context: Context, entry: Entry) -> Iterator[tuple[str, Entry, Bindings]]:
    for column in entry.get("columns", ()):
        if "each" not in column:
            yield column["name"], column, {METHOD: column[METHOD]} if METHOD in column else {}
            continue
        computed = context.functions.columns.get(column["each"])
        for value in context.declared.list(column["each"]) if computed is None else computed(context):
            bound = {column["column"]: value}
            yield context.render(column["name"], **bound) if "name" in column else str(value), column, bound


def _grid(context: Context, entry: Entry) -> Table | None:
    bound = rows_of(context, entry)
    places = [context.place(entry["part"], row) for row in bound]
    if not bound or not _has(context, places, entry.get("needs")):
        return None
    facts = {
        name: context.functions.facts[name](context, places, of)
        for name, of in entry.get("facts", {}).items()
    }
    rows = [(_row_names(context, entry, row), cells(context, entry, row, facts)) for row in bound]
    return _finished(context, entry, rows, facts)


def _row_names(context: Context, entry: Entry, row: Bindings) -> tuple[str, ...]:
    if "row_names" in entry:
        return tuple(context.render(name, **row) for name in entry["row_names"])
    return tuple(map(header_text, row.values()))


def _has(context: Context, places: Sequence[Place], number: str | None) -> bool:
    """Whether a finished run of some places has a number."""
    runs = (run for place in places for run in context.outcomes.done(place.parts, place.setting))
    return number is None or any(usable(context.outcomes.number(run, number)) for run in runs)


def header_text(value: Any) -> str:
    """How a row's header names a value."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows_of(context: Context, entry: Entry) -> list[Bindings]:
    """The rows of a declared table, each by the values of its columns."""
    if entry["rows"] == "printed":
        table = context.published(entry["id"])
        headers = () if table is None else dict.fromkeys(cell.row for cell in table.cells)
        return [dict(zip(entry["printed_row"], row, strict=True)) for row in headers]
    if isinstance(entry["rows"], str):
        if entry["rows"] not in context.functions.rows:
            raise unknown_name(f"rows of table {entry['id']!r}:", entry["rows"], context.functions.rows)
        return list(context.functions.rows[entry["rows"]](context))
    rows: list[Bindings] = [{}]
    for level in entry["rows"]:
        rows = [
            {**row, level["column"]: value} for row in rows for value in _values(context, entry, level, row)
        ]
    return rows


def _values(context: Context, entry: Entry, level: Entry, row: Bindings) -> list[Any]:
    """The values of a level below a row's start."""
    column, parts, declared = level["column"], entry["part"], context.declared
    is_alone = context.paper is None
    stated = declared.list(level["alone"] if is_alone and "alone" in level else level.get("of", ()))
    ours = (
        context.outcomes.values(parts, column, context.place(parts, row).setting) if level.get("ours") else []
    )
    left_out = [*stated, *declared.list(level.get("but", ()))]
    more = [value for value in ours if value not in left_out]
    numbers = all(isinstance(value, int | float) for value in (*stated, *more))
    values = sorted([*stated, *more]) if numbers else [*stated, *more]
    if level.get("keep") == "runs" or (is_alone and level is entry["rows"][-1]):
        values = [value for value in values if has_runs(context, parts, {**row, column: value})]
    for value in declared.list(level.get("further", ())):
        if value not in values and has_runs(context, parts, {**row, column: value}):
            values.append(value)
    return values


def has_runs(context: Context, parts: Parts, bindings: Bindings) -> bool:
    """Whether runs of ours fit; a method without a budget only beside budgets that other methods have."""
    place = context.place(parts, bindings)
    if place.setting.get("epsilon") is None and bindings.get("epsilon") is not None:
        start = place.setting.but(**{METHOD: None})
        budgets = context.outcomes.values(parts, "epsilon", start)
        if budgets and bindings["epsilon"] not in budgets:
            return False
    return bool(context.outcomes.runs(parts, place.setting))


def cells(
    context: Context, entry: Entry, row: Bindings, facts: Mapping[str, Any] | None = None
) -> tuple[Cell, ...]:
    """The cells of a row, one a column of a declared table."""
    return tuple(
        _cell(context, entry, {**column, "name": name}, {**row, **column_names}, facts or {})
        for name, column, column_names in _columns(context, entry)
    )


def _cell(
    context: Context, entry: Entry, column: Entry, bindings: Bindings, facts: Mapping[str, Any]
) -> Cell:
    is_beside = bool(entry.get("beside"))
    printed, unreadable = _printed(context, entry, column, bindings) if is_beside else (None, "")
    spot = Spot(
        place=context.place(entry["part"], bindings),
        bindings=bindings,
        column=column,
        printed=printed,
        unreadable=unreadable,
        is_beside=is_beside,
        facts=facts,
    )
    if "cell" in column:
        return context.functions.cells[column["cell"]](context, spot)
    return mean_cell(context, spot)


def _printed(
    context: Context, entry: Entry, column: Entry, bindings: Bindings
) -> tuple[PublishedCell | None, str]:
    """The printed cell, and why our copy does not show it."""
    names = entry.get("printed_row") or [level["column"] for level in entry["rows"]]
    row = tuple(header_text(bindings[name]) for name in names)
    table = context.published(entry["id"])
    if table is None:
        return None, ""
    name = context.render(column.get("printed", column["name"]), **bindings)
    return table.cell(row, name), table.why_unreadable(row, name)


def mean_cell(context: Context, spot: Spot) -> Cell:
    """The mean over units of a column's number, beside the printed cell where the table has one."""
    (parts, setting), column = (spot.place.parts, spot.place.setting), spot.column
    if spot.is_beside:
        factor = column.get("factor", 1.0)
        return context.cell(spot.printed, parts, setting, column["number"], factor=factor)
    if column.get("whole"):
        return context.alone(context.outcomes.complete(parts, setting, column["number"]))
    value = context.value(parts, setting, column["number"])
    return Cell(why_blank=why(context, spot)) if value is None else Cell(ours=value)


def why(context: Context, spot: Spot) -> str:
    """Why a cell is blank: what came of its runs, or what its column says of runs that lack the number."""
    place = spot.place
    known = "why" in spot.column and bool(context.outcomes.done(place.parts, place.setting))
    return str(spot.column["why"]) if known else context.outcomes.missing(place.parts, place.setting)
