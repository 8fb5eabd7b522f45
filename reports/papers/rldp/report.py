"""RLDP, regenerated: Tables 2 to 9 and Figs. 1 to 8 beside the printed numbers.

Beside the paper's columns stand those that it lacks: what the noise was worth, what chance gives in every
canary table, exposures, and where memorisation begins. Each of the paper's conclusions is held to a stated
test.
"""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.reports.papers.rldp.attack_tables import attack_tables
from workbench.reports.papers.rldp.canaries import canary_tables
from workbench.reports.papers.rldp.cells import Context
from workbench.reports.papers.rldp.figures import figures
from workbench.reports.papers.rldp.findings import findings
from workbench.reports.papers.rldp.layout import GROUPS
from workbench.reports.papers.rldp.more_tables import more_tables
from workbench.reports.papers.rldp.paper import PaperSide, paper_side
from workbench.reports.papers.rldp.privacy import privacy_tables
from workbench.reports.papers.rldp.samples import Measured
from workbench.reports.papers.rldp.utility import utility_tables
from workbench.reports.shared.paper_samples import UNIT
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport


@register("study_report", "rldp")
def rldp(*, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95) -> StudyReport:
    """Tables, figures and conclusions of RLDP and its baselines over seeds.

    Args:
        results: Of a study with any of RLDP's groups, and the unit of replication "seed".
        published: `published("rldp")`; None for our numbers alone, without conclusions.
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
    side = PaperSide() if published is None else paper_side(published)
    study = results.study
    return StudyReport(
        name=study.name,
        title=study.title,
        profile=study.profile,
        tables=(
            *utility_tables(context),
            *privacy_tables(context),
            *attack_tables(context),
            *canary_tables(context),
            *more_tables(context),
        ),
        figures=tuple(figures(context)),
        findings=tuple(findings(context, published)) if published else (),
        inconsistencies=side.inconsistencies,
        notes=tuple(_notes(context, results, side)),
    )


def _notes(context: Context, results: StudyResults, side: PaperSide) -> list[str]:
    """What a reader must know of the whole: the study's notes, replication, failures."""
    failed = [outcome for outcome in results.outcomes if outcome.error]
    lines = [*results.study.notes]
    lines.append(
        f"Unit of replication: the {UNIT} ({len(context.measured.seeds)} in all; a group may have fewer). A "
        f"{UNIT} draws records, secrets, samples, noise and the controller's actions; methods of one share "
        "records and secrets, and are paired."
    )
    lines.append(
        "The privacy of RLDP is not judged here: `workbench claims rldp` holds its proof to exact cases, and "
        "`workbench audit --mechanism rldp` its releases to adversaries."
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
