"""FERRET, regenerated: Tables 1 to 6 and 8 to 14 and Figures 1 to 5 beside the printed numbers."""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.registry import register
from workbench.reports.papers.ferret.conclusions import FINDINGS
from workbench.reports.papers.ferret.figures import figures
from workbench.reports.papers.ferret.paper import AGAINST, CHECKS, REMARKS
from workbench.reports.papers.ferret.places import NUMBERS, check
from workbench.reports.papers.ferret.tables import CELLS, COLUMNS, ROWS, TABLES, WORDS
from workbench.reports.shared.context import Own
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport

FERRET = Own(
    paper="ferret",
    numbers=NUMBERS,
    rows=ROWS,
    columns=COLUMNS,
    cells=CELLS,
    tables=TABLES,
    words=WORDS,
    findings=FINDINGS,
    against=AGAINST,
    checks=CHECKS,
    remarks=REMARKS,
    figures=figures,
    check=check,
)


@register("study_report", "ferret")
def ferret(
    *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
) -> StudyReport:
    """Tables, figures and conclusions of FERRET over models, and its claim judged in both currencies.

    Args:
        results: Of a study with any of FERRET's parts, and the unit of replication "model".
        published: `published("ferret")`; None for our numbers alone, without conclusions.
        confidence: Of all intervals, in (0.5, 1); tests are at level 1 - confidence.

    Raises:
        InputError: the study has none of the parts, another unit of replication, or two experiments in one
            place; the confidence is out of range.
    """
    return study_report(FERRET, results=results, published=published, confidence=confidence)
