"""The papers' printed numbers: every cell with its table, row, column and unit, as printed.

`data/published/<paper>.toml` holds them in a compact form; `published(paper)` expands it to cells. A printed
number is a fact with a place, never corrected: what contradicts another table is reported, not mended.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublishedCell:
    """One printed cell.

    Attributes:
        paper: Key of the paper.
        table: Id of its table: `"table-1"`.
        row: The row's headers, in the order of the table's `row_headers`: `("5", "dp_model")`.
        column: The column's header.
        printed: The text as printed: `"2.79 ± 0.96"`.
        value: The number; NaN where the paper prints nan.
        spread: The number after ±, or None.
        lower, upper: Of a printed interval or range, or None.
        p_value: Of a cell that prints a test's statistic (`value`) and p-value, or None.
        decimals: Digits printed after the point of `value`; its rounding error is half a unit of the last.
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
class PublishedTable:
    """One printed table (or a section that prints a table's worth of numbers).

    Attributes:
        id: `"table-1"`, `"section-4.3"`.
        title: In our words.
        place: `"Table 1 (section 8.2)"`.
        row_headers: Names of the row's headers: `("batch size", "model")`.
        columns: The columns' headers, in order.
        spread: What a cell's spread is: `"standard deviation over the 28 epsilons of one training each"`.
        seeds: Number of trainings behind a cell; None where the paper does not say.
        settings: What was held fixed, as the paper says: `{"epochs": "10"}`.
        cells: Row by row.
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

    def cell(self, row: tuple[str, ...], column: str) -> PublishedCell | None:
        """The cell at a place, or None."""
        for cell in self.cells:
            if cell.row == row and cell.column == column:
                return cell
        return None


@dataclass(frozen=True, kw_only=True)
class QualitativeClaim:
    """A conclusion that the paper draws from its tables, in our words.

    Attributes:
        id: `"dp-weights-similar-member-perplexity"`.
        place: Where it is drawn.
        statement: What it says, with its quantities.
        tables: Ids of the tables that it rests on.
        test: Name of the stated test by which our results are held to it; the study's report registers it.
    """

    id: str
    place: str
    statement: str
    tables: tuple[str, ...]
    test: str


@dataclass(frozen=True, kw_only=True)
class PublishedPaper:
    """All that is transcribed from one paper."""

    paper: str
    title: str
    tables: tuple[PublishedTable, ...]
    claims: tuple[QualitativeClaim, ...]

    def table(self, table_id: str) -> PublishedTable:
        """The table of an id.

        Raises:
            InputError: there is none.
        """
        from workbench.errors import unknown_name

        for table in self.tables:
            if table.id == table_id:
                return table
        raise unknown_name(f"table of {self.paper}", table_id, [table.id for table in self.tables])
