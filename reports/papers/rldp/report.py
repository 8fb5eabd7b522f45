"""RLDP, regenerated: Tables 2 to 9 and Figs. 1 to 8 beside the printed numbers, and what the paper lacks."""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.registry import register
from workbench.reports.papers.rldp.conclusions import AGAINST, QUANTITIES, QUESTIONS
from workbench.reports.papers.rldp.figures import figures
from workbench.reports.papers.rldp.paper import CHECKS, PRINTED, REMARKS
from workbench.reports.papers.rldp.runs import NUMBERS
from workbench.reports.papers.rldp.tables import CELLS, FACTS, ROWS, TABLES, WORDS
from workbench.reports.shared.context import Own
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport

RLDP = Own(
    paper="rldp",
    numbers=NUMBERS,
    quantities=QUANTITIES,
    printed=PRINTED,
    rows=ROWS,
    cells=CELLS,
    facts=FACTS,
    tables=TABLES,
    words=WORDS,
    questions=QUESTIONS,
    against=AGAINST,
    checks=CHECKS,
    remarks=REMARKS,
    figures=figures,
)


@register("study_report", "rldp")
def rldp(*, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95) -> StudyReport:
    """Tables, figures and conclusions of RLDP and its baselines over seeds.

    Args:
        results: Of a study with any of RLDP's parts, and the unit of replication "seed".
        published: `published("rldp")`; None for our numbers alone, without conclusions.
        confidence: Of all intervals, in (0.5, 1); tests are at level 1 - confidence.

    Raises:
        InputError: the study has none of the parts, or another unit of replication; the confidence is out of
            range.
    """
    return study_report(RLDP, results=results, published=published, confidence=confidence)
