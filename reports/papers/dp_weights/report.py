"""DP-Weights, regenerated: Tables 1 to 10, its t-tests and its radar charts beside the printed numbers."""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.registry import register
from workbench.reports.papers.dp_weights.comparisons import FINDINGS
from workbench.reports.papers.dp_weights.figures import figures
from workbench.reports.papers.dp_weights.paper import CHECKS
from workbench.reports.papers.dp_weights.runs import check, scale
from workbench.reports.papers.dp_weights.tables import TABLES
from workbench.reports.shared.context import Own
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport

DP_WEIGHTS = Own(
    paper="dp_weights",
    tables=TABLES,
    words={"scale": scale},
    findings=FINDINGS,
    checks=CHECKS,
    figures=figures,
    check=check,
)


@register("study_report", "dp_weights")
def dp_weights(
    *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
) -> StudyReport:
    """Tables 1 to 10, t-tests, radar charts and conclusions of DP-Weights, with intervals over seeds.

    Args:
        results: Of a study with the groups "batch size" and "epochs" and the variants "DP-SGD", "DP-Weights"
            and "Fine-tuned";
            further variants get rows of their own in Tables 1 and 2.
        published: `published("dp_weights")`; None for our numbers alone, without conclusions.
        confidence: Of all intervals, in (0.5, 1); tests are at level 1 - confidence.

    Raises:
        InputError: the study has neither group or none of the variants; the confidence is out of range.
    """
    return study_report(DP_WEIGHTS, results=results, published=published, confidence=confidence)
