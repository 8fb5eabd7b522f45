"""FERRET, regenerated: Tables 1 to 6 and 8 to 14 and Figures 1 to 5 beside the printed numbers.

The paper's means are over five models, trained once each; so are ours, with t intervals over models. Each
conclusion is held to a stated test over models, and the same test is made of the paper's own five. Its claim
is judged by the transcript game in the claimed nats, and in the currency with which it is compared.
"""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.reports.papers.ferret.cells import Context
from workbench.reports.papers.ferret.dither import dither_table
from workbench.reports.papers.ferret.figures import figures
from workbench.reports.papers.ferret.findings import findings
from workbench.reports.papers.ferret.layout import COMPARISON, GROUPS, HEAD_ROOM
from workbench.reports.papers.ferret.more_tables import (
    compression_table,
    head_room_table,
    paid_advantage_table,
    ratio_table,
)
from workbench.reports.papers.ferret.paper import inconsistencies, remarks
from workbench.reports.papers.ferret.rates import rates_table
from workbench.reports.papers.ferret.samples import Measured
from workbench.reports.papers.ferret.tables import paper_tables
from workbench.reports.papers.ferret.views import attacks_table, judged_cells, view_tables
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport, Table


@register("study_report", "ferret")
def ferret(
    *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
) -> StudyReport:
    """Tables, figures and conclusions of FERRET over models, and its claim judged in both currencies.

    Args:
        results: Of a study with any of the groups "comparison", "head-room", "lira", "transcript",
            "unknown batches" and "dither", and the unit of replication "model".
        published: `published("ferret")`; None for our numbers alone, without conclusions.
        confidence: Of all intervals, in (0.5, 1); tests are at level 1 - confidence.

    Raises:
        InputError: the study has none of the groups, or another unit of replication; the confidence is out
            of range.
    """
    if not 0.5 < confidence < 1.0:
        raise InputError(f"confidence must be in (0.5, 1), got {confidence}")
    measured = Measured(results)
    if not any(measured.by_group.values()):
        raise InputError(f"study {results.study.name!r} must have a group of {', '.join(map(repr, GROUPS))}")
    context = Context(measured=measured, paper=published, confidence=confidence)
    cells = judged_cells(context)
    study = results.study
    return StudyReport(
        name=study.name,
        title=study.title,
        profile=study.profile,
        tables=(*view_tables(context, cells), *_tables(context)),
        figures=tuple(figures(context, cells)),
        findings=tuple(findings(context, published)) if published else (),
        inconsistencies=tuple(inconsistencies(published)) if published else (),
        notes=tuple(notes(context, results)),
    )


def _tables(context: Context) -> list[Table]:
    """The paper's tables in their order, then ours."""
    measured = context.measured
    tables = {table.id: table for table in paper_tables(context)}
    if measured.by_group[COMPARISON] or measured.by_group[HEAD_ROOM]:
        tables |= {table.id: table for table in (compression_table(context), head_room_table(context))}
    ordered = [tables[name] for name in sorted(tables, key=lambda name: int(name.removeprefix("table-")))]
    ours = [ratio_table(context), paid_advantage_table(context)] if measured.by_group[COMPARISON] else []
    made = (rates_table(context), attacks_table(context), dither_table(context))
    further = [table for table in made if table is not None]
    return [*ordered, *ours, *further]


def notes(context: Context, results: StudyResults) -> list[str]:
    """What a reader must know of the whole: the study's notes, replication, failures."""
    measured = context.measured
    failed = [outcome for outcome in results.outcomes if outcome.error]
    models, seeds = measured.models, measured.seeds
    lines = [*results.study.notes]
    if models:
        once = "once" if len(seeds) == 1 else f"with {len(seeds)} seeds"
        lines.append(
            f"Unit of replication: the model ({len(models)} of them, trained {once} a setting). Five models "
            "of one author's choice are no random draw, in the paper or here: the intervals say how much "
            "its numbers depend on the model, not what a model of another kind would do."
        )
    if context.paper is not None:
        lines.append(
            f"Each of the {len(context.paper.claims)} conclusions is tested by itself at level "
            f"{1.0 - context.confidence:.2g}: the chance of a false outcome is bounded for each, not for "
            "all together."
        )
        lines += remarks(context.paper)
    if failed:
        lines.append(
            f"{len(failed)} of {len(results.outcomes)} runs failed, the first: {failed[0].experiment.name}: "
            f"{failed[0].error}"
        )
    return lines
