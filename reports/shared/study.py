"""The report of a paper's study, from its `report.toml` and what its folder adds in Python."""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.reports.shared.claims import conclusions
from workbench.reports.shared.context import Context, PaperFunctions
from workbench.reports.shared.declared import declared
from workbench.reports.shared.grids import tables
from workbench.reports.shared.outcomes import Outcomes
from workbench.reports.shared.statements import PaperSide, paper_side
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport


def context_of(
    functions: PaperFunctions, results: StudyResults, published: PublishedPaper | None, confidence: float
) -> Context:
    """Collect what the parts of a report are computed from.

    Raises:
        InputError: the study has none of the report's parts, or another unit of replication; the confidence
            is out of range.
    """
    if not 0.5 < confidence < 1.0:
        raise InputError(f"confidence must be in (0.5, 1), got {confidence}")
    report_file = declared(functions.paper)
    outcomes = Outcomes(results, report_file.layout, functions.numbers)
    context = Context(
        outcomes=outcomes, paper=published, confidence=confidence, declared=report_file, functions=functions
    )
    if functions.check is not None:
        functions.check(context)
    return context


def study_report(
    functions: PaperFunctions,
    *,
    results: StudyResults,
    published: PublishedPaper | None,
    confidence: float,
    only_findings: bool = False,
) -> StudyReport:
    """Tables, figures and conclusions of a paper.

    Args:
        confidence: Of all intervals, in (0.5, 1); tests are at level 1 - confidence.
        only_findings: Whether the conclusions are all that is asked for.
    """
    context = context_of(functions, results, published, confidence)
    if only_findings:
        return StudyReport(
            name=results.study.name,
            title=results.study.title,
            profile=results.study.profile,
            tables=(),
            figures=(),
            findings=() if published is None else tuple(conclusions(context, published)),
        )
    side = PaperSide() if published is None else paper_side(functions, context.declared, published)
    study, failed = results.study, [outcome for outcome in results.outcomes if outcome.error]
    return StudyReport(
        name=study.name,
        title=study.title,
        profile=study.profile,
        tables=tuple(tables(context)),
        figures=() if functions.figures is None else tuple(functions.figures(context)),
        findings=() if published is None else tuple(conclusions(context, published)),
        inconsistencies=side.inconsistencies,
        notes=(
            *context.lines(context.declared.content.get("opening", ())),
            *study.notes,
            *context.lines(
                context.declared.content["notes"],
                units=context.outcomes.units,
                claims=() if published is None else published.claims,
                remarks=side.remarks,
                runs=results.outcomes,
                failed=failed,
            ),
        ),
    )
