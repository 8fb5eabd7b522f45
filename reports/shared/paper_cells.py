"""What the tables of a paper's report share: the printed cell beside ours, and what stands for a blank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from workbench.checks.published import PublishedCell, PublishedPaper, PublishedTable
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import NOT_IN_PAPER, beside
from workbench.reports.shared.paper_samples import UNIT, RunSetting, SeededRuns
from workbench.studies.report import Cell, Table, Value

MeasuredT = TypeVar("MeasuredT", bound=SeededRuns)


@dataclass(frozen=True, kw_only=True)
class PaperContext(Generic[MeasuredT]):
    """What every table is made from.

    Attributes:
        measured: The study's outcomes.
        paper: The printed numbers; None for our numbers alone.
        confidence: Of all intervals.
    """

    measured: MeasuredT
    paper: PublishedPaper | None
    confidence: float

    @property
    def percent(self) -> str:
        """The confidence as a text: `"95 %"`."""
        return f"{100.0 * self.confidence:g} %"

    @property
    def level(self) -> str:
        """The level of tests as a text: `"0.05"`."""
        return f"{1.0 - self.confidence:.2g}"

    @property
    def interval(self) -> str:
        """What an interval over seeds is, in words."""
        return f"{self.percent} t interval of the mean over {UNIT}s"

    def published(self, table_id: str) -> PublishedTable | None:
        """A printed table, or None."""
        tables = () if self.paper is None else self.paper.tables
        return next((table for table in tables if table.id == table_id), None)

    def printed(self, table_id: str, row: tuple[str, ...], column: str) -> PublishedCell | None:
        """A printed cell, or None."""
        table = self.published(table_id)
        return None if table is None else table.cell(row, column)

    def value(self, groups: str | Iterable[str], setting: RunSetting, name: str) -> Value | None:
        """Mean over seeds with its deviation and interval; None where there is no number."""
        sample = self.measured.sample(groups, setting, name)
        return None if sample is None else self.mean(sample)

    def mean(self, sample: statistics.Sample) -> Value:
        """Mean of a sample with its deviation and interval."""
        return statistics.value_of(statistics.mean_interval(sample, confidence=self.confidence))

    def cell(
        self, printed: PublishedCell | None, groups: str | Iterable[str], setting: RunSetting, name: str
    ) -> Cell:
        """A number of ours beside the printed one, each blank with its reason."""
        groups = (groups,) if isinstance(groups, str) else tuple(groups)
        ours = self.value(groups, setting, name)
        if ours is not None:
            return beside(printed, ours)
        return blank(printed, self.measured.missing(groups, setting))


def blank(printed: PublishedCell | None, why: str) -> Cell:
    """A place without a number of ours, for a reason."""
    missing = "" if printed is not None else f"paper: {NOT_IN_PAPER}; "
    return Cell(paper=printed, why_blank=f"{missing}ours: {why}")


Row = tuple[tuple[str, ...], tuple[Cell, ...]]
"""Headers and cells of a row."""


def rows_of(table: PublishedTable) -> list[tuple[str, ...]]:
    """Rows of a printed table in their order, each once."""
    return list(dict.fromkeys(cell.row for cell in table.cells))


def printed_place(
    printed: PublishedTable | None,
    table_id: str,
    title: str,
    *,
    headers: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Row],
    notes: Sequence[str] = (),
    decimals: Mapping[str, int] | None = None,
) -> Table:
    """A table with our numbers, at the place of a printed one.

    Args:
        printed: The printed table; None where there is none.
        table_id: Of the table.
        title: In our words.
        headers, columns: Of the rows, and of the cells.
        rows: In order.
        notes: Of the table; empty ones are left out.
        decimals: Digits by column; two where it is None.
    """
    return Table(
        id=table_id,
        title=title,
        row_headers=tuple(headers),
        columns=tuple(columns),
        rows=tuple(rows),
        place="" if printed is None else printed.place,
        notes=tuple(note for note in notes if note),
        decimals=dict.fromkeys(columns, 2) if decimals is None else decimals,
    )
