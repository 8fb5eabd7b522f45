"""Shuffled DPSGD, regenerated: Tables I to VIII and Figs. 2 to 4 beside the printed numbers.

Beside the paper's columns stands the one that it lacks: DP-SGD with the very noise of Theorem 6, and the
epsilon that a certified accountant gives for it. Three adversaries share one table, and each of the paper's
conclusions is held to a stated test.
"""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.reports.papers.shuffled_dp_sgd.audit import areas_table, audit_table
from workbench.reports.papers.shuffled_dp_sgd.cells import Context
from workbench.reports.papers.shuffled_dp_sgd.figures import figures
from workbench.reports.papers.shuffled_dp_sgd.findings import findings
from workbench.reports.papers.shuffled_dp_sgd.layout import GROUPS
from workbench.reports.papers.shuffled_dp_sgd.paper import PaperSide, paper_side
from workbench.reports.papers.shuffled_dp_sgd.recovery import recovery_table, sweep_table
from workbench.reports.papers.shuffled_dp_sgd.same_sigma import key_sentences, same_sigma_table
from workbench.reports.papers.shuffled_dp_sgd.samples import Measured
from workbench.reports.papers.shuffled_dp_sgd.sums import sums_table
from workbench.reports.papers.shuffled_dp_sgd.tables import model_tables
from workbench.reports.papers.shuffled_dp_sgd.times import time_tables
from workbench.reports.papers.shuffled_dp_sgd.utility import utility_tables
from workbench.reports.shared.paper_samples import UNIT
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport, Table

NO_SIDE = PaperSide(inconsistencies=(), remarks=(), tables=())


@register("study_report", "shuffled_dp_sgd")
def shuffled_dp_sgd(
    *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
) -> StudyReport:
    """Tables, figures and conclusions of Shuffled DPSGD over seeds, and the audit by three adversaries.

    Args:
        results: Of a study with any of Shuffled DPSGD's groups, and the unit of replication "seed".
        published: `published("shuffled_dp_sgd")`; None for our numbers alone, without conclusions.
        confidence: Of all intervals but the audit's, in (0.5, 1); tests are at level 1 - confidence.

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
    side = NO_SIDE if published is None else paper_side(published)
    study = results.study
    return StudyReport(
        name=study.name,
        title=study.title,
        profile=study.profile,
        tables=(*_tables(context), *side.tables),
        figures=tuple(figures(context)),
        findings=tuple(findings(context, published)) if published else (),
        inconsistencies=side.inconsistencies,
        notes=tuple(_notes(context, results, side)),
    )


def _tables(context: Context) -> list[Table]:
    """What sigma is worth, the paper's tables in their order, and what belongs to each."""
    audits = (audit_table(context), areas_table(context), recovery_table(context), sweep_table(context))
    found = [
        same_sigma_table(context),
        *model_tables(context),
        *utility_tables(context),
        *audits,
        *time_tables(context),
        sums_table(context),
    ]
    return [table for table in found if table is not None]


def _notes(context: Context, results: StudyResults, side: PaperSide) -> list[str]:
    """What a reader must know of the whole: the key numbers, the study's notes, replication, failures."""
    measured = context.measured
    failed = [outcome for outcome in results.outcomes if outcome.error]
    lines = [*key_sentences(context), *results.study.notes]
    count = len(measured.seeds)
    lines.append(
        f"Unit of replication: the {UNIT} ({count} in all; a group may have fewer). A {UNIT} draws records, "
        "the model's start, samples, noise and permutations; methods of one share records and start, and are "
        "paired."
    )
    lines.append(
        "Theorem 6 itself is not judged here: `workbench claims shuffled_dp_sgd` holds it to exact small "
        "cases, and Algorithm 1 to attacks."
    )
    if context.paper is not None:
        lines.append(
            f"Each of the {len(context.paper.claims)} conclusions is tested by itself at level "
            f"{context.level}: the chance of a false outcome is bounded for each, not for all together."
        )
        lines += side.remarks
    if failed:
        lines.append(
            f"{len(failed)} of {len(results.outcomes)} runs failed, the first: {failed[0].experiment.name}: "
            f"{failed[0].error}"
        )
    return lines
