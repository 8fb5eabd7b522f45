"""What the tables of a PACZero report share: their context, and the notes on scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from workbench.reports.papers.paczero.layout import UNIT
from workbench.reports.papers.paczero.samples import Measured
from workbench.reports.shared.paper_cells import PaperContext, Row, blank, printed_place, rows_of
from workbench.studies.experiments import Status
from workbench.studies.report import Table

__all__ = [
    "MODEL",
    "ONE_MODEL",
    "OTHER_MODEL",
    "Context",
    "Row",
    "beside_printed",
    "blank",
    "rows_of",
    "scale_notes",
]

ONE_MODEL = "this study trains one model, which stands in for OPT-1.3B"

MODEL, OTHER_MODEL = "1.3B", "6.7B"
"""The paper's models: ours stands beside the first."""

Context: TypeAlias = PaperContext[Measured]


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
    return printed_place(
        context.published(table_id),
        table_id,
        title,
        headers=headers,
        columns=columns,
        rows=rows,
        notes=(*notes, *scale_notes(context, groups)),
    )
