"""What the tables of a PACZero report share: the printed cell beside ours, and the notes on scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.experiments import Status
from workbench.published import PublishedCell, PublishedPaper, PublishedTable
from workbench.reports import statistics
from workbench.reports._beside import NOT_IN_PAPER, beside
from workbench.reports._paczero_layout import UNIT, Setting
from workbench.reports._paczero_samples import Measured
from workbench.study_report import Cell, Table, Value

ONE_MODEL = "this study trains one model, which stands in for OPT-1.3B"

MODEL, OTHER_MODEL = "1.3B", "6.7B"
"""The paper's models: ours stands beside the first."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What every table is made from.

    Attributes:
        measured: The study's outcomes.
        paper: The printed numbers; None for our numbers alone.
        confidence: Of all intervals.
    """

    measured: Measured
    paper: PublishedPaper | None
    confidence: float

    @property
    def percent(self) -> str:
        """The confidence as a text: `"95 %"`."""
        return f"{100.0 * self.confidence:g} %"

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

    def value(self, groups: str | Iterable[str], setting: Setting, name: str) -> Value | None:
        """Mean over seeds with its deviation and interval; None where there is no number."""
        sample = self.measured.sample(groups, setting, name)
        if sample is None:
            return None
        return statistics.value_of(statistics.mean_interval(sample, confidence=self.confidence))

    def cell(
        self, printed: PublishedCell | None, groups: str | Iterable[str], setting: Setting, name: str
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


def scale_notes(context: Context, groups: Iterable[str]) -> list[str]:
    """How large our runs are, what stands in for what, and what did not finish."""
    runs = [one for group in groups for one in context.measured.by_group.get(group, ())]
    if not runs:
        return []
    sizes = sorted({one.experiment.members for one in runs})
    steps = sorted({one.experiment.steps for one in runs})
    seeds = sorted({one.experiment.seed for one in runs})
    models = sorted({str(one.experiment.model_parameters.get("base", one.experiment.model)) for one in runs})
    notes = [
        f"Ours: {', '.join(models)}; N = {_listed(sizes)} (the paper: 1000), T = {_listed(steps)}, "
        f"{len(seeds)} {UNIT}{'' if len(seeds) == 1 else 's'}. ± is the standard deviation over {UNIT}s, "
        f"brackets are the {context.interval}; a {UNIT} draws universe, evaluation records, directions, "
        "subsets and secret."
    ]
    lost = [one for one in runs if one.status is not Status.DONE]
    if lost:
        notes.append(f"{len(lost)} of {len(runs)} runs behind these numbers failed or are not done.")
    return notes


def _listed(values: Iterable[int]) -> str:
    return ", ".join(f"{value:g}" for value in values)


Row = tuple[tuple[str, ...], tuple[Cell, ...]]
"""Headers and cells of a row."""


def rows_of(table: PublishedTable) -> list[tuple[str, ...]]:
    """Rows of a printed table in their order, each once."""
    return list(dict.fromkeys(cell.row for cell in table.cells))


def beside_printed(
    context: Context,
    table_id: str,
    title: str,
    *,
    headers: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Row],
    groups: Sequence[str],
    notes: Sequence[str] = (),
) -> Table:
    """A table of the paper with our numbers, at its place.

    Args:
        context: Of the report.
        table_id: Of the printed table.
        title: In our words.
        headers, columns: Of the rows, and of the cells.
        rows: In order.
        groups: Whose runs stand behind our numbers, for the notes on scale.
        notes: Of the table; empty ones are left out.
    """
    printed = context.published(table_id)
    return Table(
        id=table_id,
        title=title,
        row_headers=tuple(headers),
        columns=tuple(columns),
        rows=tuple(rows),
        place="" if printed is None else printed.place,
        notes=(*(note for note in notes if note), *scale_notes(context, groups)),
        decimals=dict.fromkeys(columns, 2),
    )
