"""PACZero, regenerated: Tables 1 to 6, 8, 9, 11, 12, 14 and 18 beside the printed numbers.

The paper's means are over seeds, many of its cells of one; ours are over seeds, with t intervals, and each
conclusion is held to a stated test over them. What the claim is about and what it is not stand side by side,
and unanimity, spent budget and posterior entropy are drawn over the steps.
"""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.reports.papers.paczero.cells import Context
from workbench.reports.papers.paczero.figures import figures
from workbench.reports.papers.paczero.findings import findings
from workbench.reports.papers.paczero.game import game_table, nats_table
from workbench.reports.papers.paczero.hybrid import hybrid_table
from workbench.reports.papers.paczero.layout import GROUPS, UNIT
from workbench.reports.papers.paczero.paper import inconsistencies, remarks
from workbench.reports.papers.paczero.paper_claims import contradictions
from workbench.reports.papers.paczero.paper_seeds import recomputed_table
from workbench.reports.papers.paczero.samples import Measured
from workbench.reports.papers.paczero.tables import paper_tables
from workbench.reports.papers.paczero.utility import utility_table
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport, Table


@register("study_report", "paczero")
def paczero(
    *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
) -> StudyReport:
    """Tables, figures and conclusions of PACZero over seeds, and both sides of its claim.

    Args:
        results: Of a study with any of PACZero's groups, and the unit of replication "seed".
        published: `published("paczero")`; None for our numbers alone, without conclusions.
        confidence: Of all intervals, in (0.5, 1); tests are at level 1 - confidence.

    Raises:
        InputError: the study has none of the groups, or another unit of replication; the confidence is out
            of range.
    """
    if not 0.5 < confidence < 1.0:
        raise InputError(f"confidence must be in (0.5, 1), got {confidence}")
    measured = Measured(results)
    if not any(measured.by_group[name] for name in GROUPS):
        raise InputError(f"study {results.study.name!r} must have a group of {', '.join(map(repr, GROUPS))}")
    context = Context(measured=measured, paper=published, confidence=confidence)
    study = results.study
    return StudyReport(
        name=study.name,
        title=study.title,
        profile=study.profile,
        tables=tuple(_tables(context)),
        figures=tuple(figures(context)),
        findings=tuple(findings(context, published, contradictions)) if published else (),
        inconsistencies=tuple(inconsistencies(published)) if published else (),
        notes=tuple(_notes(context, results)),
    )


def _tables(context: Context) -> list[Table]:
    """Both sides of the claim, the paper's tables in their order, and its deviations recomputed."""
    sides, last = (game_table(context), nats_table(context), utility_table(context)), hybrid_table(context)
    tables = [
        *(table for table in sides if table is not None),
        *paper_tables(context),
        *([] if last is None else [last]),
    ]
    if context.paper is not None:
        tables.append(recomputed_table(context.paper, context.confidence))
    return tables


def _notes(context: Context, results: StudyResults) -> list[str]:
    """What a reader must know of the whole: the study's notes, replication, failures."""
    measured = context.measured
    failed = [outcome for outcome in results.outcomes if outcome.error]
    lines = [*results.study.notes]
    count = len(measured.seeds)
    lines.append(
        f"Unit of replication: the {UNIT} ({count} in all; a group may have fewer). A {UNIT} draws universe, "
        "dev and evaluation records, directions, subsets and the secret, so that methods of one are paired."
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
