"""DP-Weights, regenerated: its Tables 1 to 10, its t-tests and its radar charts beside the printed numbers.

The paper trains once for each setting, counts the 28 epsilons as replicates, and reads "no significant
difference" as "similar". Here every number comes with the interval over seeds, the paper's tests are repeated
as printed and labelled so, and each conclusion is held to an equivalence test or to a paired test over seeds.
"""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.reports.papers.dp_weights.cells import Context
from workbench.reports.papers.dp_weights.comparisons import compare, pooled_places
from workbench.reports.papers.dp_weights.figures import figures
from workbench.reports.papers.dp_weights.findings import findings
from workbench.reports.papers.dp_weights.layout import GRIDS, MODELS
from workbench.reports.papers.dp_weights.paper import inconsistencies
from workbench.reports.papers.dp_weights.samples import Measured
from workbench.reports.papers.dp_weights.tables import paper_tables
from workbench.reports.papers.dp_weights.test_tables import test_tables
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport


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
    measured = Measured(results)
    if not any(measured.outcomes.values()):
        raise InputError(f"study {results.study.name!r} must have a group of {', '.join(map(repr, GRIDS))}")
    if not any(variant in measured.variants for variant in MODELS):
        raise InputError(
            f"study {results.study.name!r} must have a variant of {', '.join(map(repr, MODELS))}"
        )
    if not 0.5 < confidence < 1.0:
        raise InputError(f"confidence must be in (0.5, 1), got {confidence}")
    context = Context(measured=measured, paper=published, confidence=confidence)
    pooled = compare(context, pooled_places())
    study = results.study
    return StudyReport(
        name=study.name,
        title=study.title,
        profile=study.profile,
        tables=(*paper_tables(context), *test_tables(context, pooled)),
        figures=tuple(figures(context, pooled)),
        findings=tuple(findings(context, published, pooled)) if published else (),
        inconsistencies=tuple(inconsistencies(published)) if published else (),
        notes=tuple(notes(context, results)),
    )


def notes(context: Context, results: StudyResults) -> list[str]:
    """What a reader must know of the whole: the study's notes, replication, failures."""
    unit = context.unit
    replicates = {getattr(outcome.experiment, unit) for outcome in results.outcomes}
    failed = [outcome for outcome in results.outcomes if outcome.error]
    lines = [
        *results.study.notes,
        f"Unit of replication: the {unit} ({len(replicates)} of them). Settings and epsilons within a "
        f"{unit} are no replicates.",
    ]
    if context.paper is not None:
        lines.append(
            f"Each of the {len(context.paper.claims)} conclusions is tested by itself, with its own "
            f"correction for many comparisons at level {1.0 - context.confidence:.2g}: the chance of a false "
            "outcome is bounded for each, not for all of them together."
        )
    if failed:
        lines.append(
            f"{len(failed)} of {len(results.outcomes)} runs failed, the first: {failed[0].experiment.name}: "
            f"{failed[0].error}"
        )
    return lines
