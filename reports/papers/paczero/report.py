"""PACZero, regenerated: its tables beside the printed numbers, and both sides of its claim."""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.registry import register
from workbench.reports.papers.paczero.conclusions import AGAINST, QUESTIONS
from workbench.reports.papers.paczero.figures import figures
from workbench.reports.papers.paczero.paper import CHECKS, PRINTED, REMARKS, VALUES
from workbench.reports.papers.paczero.runs import NUMBERS
from workbench.reports.papers.paczero.tables import CELLS, ROWS, TABLES, WORDS
from workbench.reports.shared.context import Own
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport

PACZERO = Own(
    paper="paczero",
    numbers=NUMBERS,
    printed=PRINTED,
    rows=ROWS,
    cells=CELLS,
    tables=TABLES,
    words=WORDS,
    questions=QUESTIONS,
    against=AGAINST,
    checks=CHECKS,
    values=VALUES,
    remarks=REMARKS,
    figures=figures,
)


@register("study_report", "paczero")
def paczero(
    *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
) -> StudyReport:
    """Tables, figures and conclusions of PACZero over seeds, and both sides of its claim.

    Args:
        results: Of a study with any of PACZero's parts, and the unit of replication "seed".
        published: `published("paczero")`; None for our numbers alone, without conclusions.
        confidence: Of all intervals, in (0.5, 1); tests are at level 1 - confidence.

    Raises:
        InputError: the study has none of the parts, or another unit of replication; the confidence is out of
            range.
    """
    return study_report(PACZERO, results=results, published=published, confidence=confidence)
