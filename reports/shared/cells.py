"""A table of *paper / ours / difference* as text: what every writer and the page print in each place.

Each row of a `Table` becomes up to three lines (paper, ours, difference), so that a wide table stays as wide
as the paper's. A blank place carries the number of the reason for which it is blank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.core.errors import InputError
from workbench.reports.shared.numbers import MISSING, number
from workbench.studies.report import Cell, ReplicationFinding, Table, Value

NO_REASON = "no reason was given"
PAPER, OURS, DIFFERENCE = "paper", "ours", "difference"
MANY_COLUMNS = 4
"""A table of more columns is written with intervals on lines of their own, to stay narrow."""

_TOO_LONG = 1e7
"""From this size on a number of fixed decimals is printed with a power of ten instead."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """The text of one table cell.

    Attributes:
        value: The number, as printed; empty where there is none.
        rest: What belongs to it, as printed: its spread.
        detail: Its interval, p-value and number of replicates, as printed.
        reason: Number of the reason for a blank, counted from 1; 0 where nothing need be explained.
    """

    value: str = ""
    rest: str = ""
    detail: str = ""
    reason: int = 0

    @property
    def mark(self) -> str:
        """The number of the reason, in brackets; empty where there is none."""
        return f"[{self.reason}]" if self.reason else ""

    def split(self) -> tuple[Text, Text]:
        """The number with its spread, and the detail alone, for lines of their own."""
        return replace(self, detail=""), Text(detail=self.detail)

    def __str__(self) -> str:
        """Everything in one line."""
        return " ".join(part for part in (self.value, self.rest, self.detail, self.mark) if part)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One of a row's lines: its kind (`"paper"`, `"ours"`, `"difference"`) and a text for every column."""

    kind: str
    texts: tuple[Text, ...]

    def split(self) -> list[Line]:
        """This line with its details on a line of their own, where there are any."""
        first, second = zip(*(text.split() for text in self.texts), strict=True)
        lines = [Line(kind=self.kind, texts=tuple(first))]
        return [*lines, Line(kind="", texts=tuple(second))] if any(map(str, second)) else lines


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: its headers and its lines."""

    headers: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class TableText:
    """A table whose cells are text, ready to be laid out.

    Attributes:
        compares: Whether it has a paper's numbers; else every row has one line, ours.
        reasons: Why places are blank; `Text.reason` counts them from 1.
        notes: The table's own, then how many replicates stand behind our numbers.
    """

    compares: bool
    rows: tuple[Row, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def table_text(table: Table) -> TableText:
    """Format a table's numbers as text.

    Raises:
        InputError: a row has not one header for each row header, or not one cell for each column.
    """
    check_shape(table)
    cells = [cell for _, row in table.rows for cell in row]
    compares = any(cell.paper is not None for cell in cells)
    usual = _usual_count(cells)
    reasons: dict[str, int] = {}
    rows = []
    for headers, row in table.rows:
        lines = [_line(PAPER, table, row, reasons, usual)] if compares else []
        lines.append(_line(OURS, table, row, reasons, usual))
        if compares and any(cell.difference is not None for cell in row):
            lines.append(_line(DIFFERENCE, table, row, reasons, usual))
        rows.append(Row(headers=headers, lines=tuple(lines)))
    notes = list(table.notes)
    if usual is not None:
        notes.append(f"Independent replicates behind each of our numbers: n = {usual}, unless stated.")
    if compares:
        notes.append(
            "Difference: ours less the paper's number, which is taken as exact; "
            "its interval is ours, moved by that number."
        )
    return TableText(compares=compares, rows=tuple(rows), reasons=tuple(reasons), notes=tuple(notes))


def narrow_lines(row: Row, columns: int) -> list[Line]:
    """The lines of a row; where there are many columns, each with its details on a line of their own."""
    if columns <= MANY_COLUMNS:
        return list(row.lines)
    return [part for line in row.lines for part in line.split()]


def check_shape(table: Table) -> None:
    """Refuse a table whose rows do not have its headers and columns."""
    for headers, row in table.rows:
        if len(headers) != len(table.row_headers):
            raise InputError(
                f"rows of {table.id} must have {len(table.row_headers)} headers, got {headers!r}"
            )
        if len(row) != len(table.columns):
            raise InputError(
                f"row {headers!r} of {table.id} must have {len(table.columns)} cells, got {len(row)}"
            )


def findings_of(table: Table, findings: Sequence[ReplicationFinding]) -> list[ReplicationFinding]:
    """The findings that rest on a table."""
    return [finding for finding in findings if table.id in finding.tables]


def _usual_count(cells: Sequence[Cell]) -> int | None:
    counts = Counter(cell.ours.n for cell in cells if cell.ours is not None and cell.ours.n is not None)
    return min(counts, key=lambda n: (-counts[n], -n)) if counts else None


def _line(kind: str, table: Table, row: Sequence[Cell], reasons: dict[str, int], usual: int | None) -> Line:
    texts = []
    for column, cell in zip(table.columns, row, strict=True):
        decimals = table.decimals.get(column)
        if kind == PAPER:
            text = _printed(cell)
        elif kind == OURS:
            text = None if cell.ours is None else value_text(cell.ours, decimals, usual=usual)
        else:
            text = Text() if cell.difference is None else value_text(cell.difference, decimals, signed=True)
        if text is None:
            why = " ".join(cell.why_blank.split()) or NO_REASON
            text = Text(reason=reasons.setdefault(why, len(reasons) + 1))
        texts.append(text)
    return Line(kind=kind, texts=tuple(texts))


def _printed(cell: Cell) -> Text | None:
    if cell.paper is None:
        return None
    value, _, rest = " ".join(cell.paper.printed.split()).partition(" ")
    return Text(value=_minus(value), rest=_minus(rest))


def _minus(text: str) -> str:
    """The text with a typographic minus where one opens a number."""
    return "".join(
        "−"
        if letter == "-" and text[place + 1 : place + 2].isdigit() and not text[:place][-1:].isalnum()
        else letter
        for place, letter in enumerate(text)
    )


def value_text(
    value: Value, decimals: int | None = None, *, signed: bool = False, usual: int | None = None
) -> Text:
    """A value as printed: `0.69`, `± 0.21 [0.45, 0.93]`.

    Args:
        value: Its own `text` takes the place of estimate and spread where it is not empty.
        decimals: Digits after the point; None for four significant digits.
        signed: Print the sign of positive numbers too.
        usual: A number of replicates that need not be printed.
    """
    if value.text:
        printed, _, rest = " ".join(value.text.split()).partition(" ")
    else:
        printed = fixed(value.estimate, decimals)
        if signed and value.estimate > 0 and math.isfinite(value.estimate) and printed.strip("0."):
            printed = f"+{printed}"
        rest = "" if value.spread is None else f"± {fixed(value.spread, decimals)}"
    detail = []
    if value.lower is not None and value.upper is not None:
        detail.append(f"[{fixed(value.lower, decimals)}, {fixed(value.upper, decimals)}]")
    if value.p_value is not None:
        detail.append(p_text(value.p_value))
    if value.n is not None and usual is not None and value.n != usual:
        detail.append(f"n = {value.n}")
    return Text(value=printed, rest=rest, detail=" ".join(detail))


def fixed(value: float, decimals: int | None) -> str:
    """A number at fixed decimals, where that fits, else at four significant digits."""
    if decimals is None or not math.isfinite(value) or abs(value) >= _TOO_LONG:
        return number(value)
    text = f"{value:.{decimals}f}"
    if not text.strip("-0."):
        text = text.removeprefix("-")
    return text.replace("-", "−")


def p_text(p_value: float) -> str:
    """`p = 0.804`; with a power of ten below 0.001."""
    return f"p = {MISSING}" if math.isnan(p_value) else f"p = {number(p_value, 3)}"
