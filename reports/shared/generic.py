"""The report of any study: each variant's metrics over the unit of replication, and the variants compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.reports.shared.generic_figures import figures_of
from workbench.reports.shared.statistics import (
    CORRECTIONS,
    Answer,
    Equivalence,
    NotTestable,
    StatisticalTest,
    adjust,
    mean_interval,
    paired_t,
    tost_paired,
    tost_welch,
    value_of,
    welch_t,
)
from workbench.reports.shared.statistics.results import counted
from workbench.reports.shared.study_groups import Group, axis_text, groups_of, row_sample, sides, slug
from workbench.studies.experiments import Status, StudyResults
from workbench.studies.report import Cell, Figure, StudyReport, Table, Value

COLUMNS = ("difference", "p", "p, adjusted", "detectable")
"""Columns of the comparisons; `"equivalence"` follows where a margin is given."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """One comparison of two variants on one metric."""

    first: str
    second: str
    metric: str
    test: Answer
    equivalence: Equivalence | NotTestable | None


@register("study_report", "generic")
def generic(
    *,
    results: StudyResults,
    published: PublishedPaper | None = None,
    confidence: float = 0.95,
    correction: str = "holm",
    margins: Mapping[str, float] | None = None,
) -> StudyReport:
    """Means with t intervals over the unit of replication, and all pairwise comparisons of variants.

    Args:
        results: Of any study.
        published: Not used: a user's study has no paper.
        confidence: Of every interval and test, in (0.5, 1).
        correction: How p-values are adjusted within a group: a key of `CORRECTIONS`.
        margins: By metric: a difference smaller than this does not matter; metrics without one are not tested
            for equivalence.

    Returns:
        Two tables a group (one where it has a single variant), a picture for each of its metrics, no
        findings.

    Raises:
        InputError: a confidence, correction or margin that cannot be used, or a margin for an unknown metric.
    """
    stated = dict(margins or {})
    tables: list[Table] = []
    figures: list[Figure] = []
    undrawn: list[str] = []
    groups = groups_of(results)
    known = {metric for group in groups for metric in group.metrics}
    unknown = sorted(set(stated) - known)
    if unknown and known:
        raise InputError(f"margins names {unknown[0]!r}, which is no metric of this study: {sorted(known)}")
    for place, group in enumerate(groups, start=1):
        name = f"group-{place}-{slug(group.name)}"
        tables.append(_means(group, name, confidence))
        if len(group.members) > 1 and group.metrics:
            tables.append(_comparisons(group, name, confidence, correction, stated))
        pictures, note = figures_of(group, name, confidence)
        figures += pictures
        undrawn += [note] if note else []
    return StudyReport(
        name=results.study.name,
        title=results.study.title,
        profile=results.study.profile,
        tables=tuple(tables),
        figures=tuple(figures),
        findings=(),
        notes=(*results.study.notes, *_notes(results), *undrawn),
    )


def _means(group: Group, name: str, confidence: float) -> Table:
    """Rows: variant and axes; columns: metrics; cells: mean, t interval, SD and n over units."""
    rows = []
    for variant in group.members:
        for place, mine in group.rows(variant).items():
            cells = []
            for metric in group.metrics:
                sample = row_sample(group, mine, metric)
                if isinstance(sample, str):
                    cells.append(Cell(why_blank=sample))
                else:
                    cells.append(Cell(ours=value_of(mean_interval(sample, confidence=confidence))))
            rows.append(((variant, *(axis_text(value) for value in place)), tuple(cells)))
    return Table(
        id=name,
        title=f"{group.name}: means over {group.unit}s" if group.name else f"Means over {group.unit}s",
        row_headers=("variant", *group.axes),
        columns=group.metrics,
        rows=tuple(rows),
        notes=(
            f"Mean over {group.unit}s with a {100.0 * confidence:g} % t interval; the spread is the standard "
            f"deviation between {group.unit}s (ddof 1). The interval takes {group.unit}s for independent and "
            "their values for normal; a single one has neither interval nor spread.",
        ),
    )


def _comparisons(
    group: Group, name: str, confidence: float, correction: str, margins: Mapping[str, float]
) -> Table:
    """All pairs of variants on all metrics."""
    pairs = [
        _compared(group, (first, second, metric), confidence, margins.get(metric))
        for first, second in combinations(group.members, 2)
        for metric in group.metrics
    ]
    tests = adjust([pair.test for pair in pairs], method=correction)
    asked = [place for place, pair in enumerate(pairs) if pair.equivalence is not None]
    found = [pair.equivalence for pair in pairs if pair.equivalence is not None]
    equivalences = dict(zip(asked, adjust(found, method=correction), strict=True))
    columns = (*COLUMNS, "equivalence") if equivalences else COLUMNS
    rows = []
    for place, (pair, test) in enumerate(zip(pairs, tests, strict=True)):
        cells = _test_cells(test)
        if equivalences:
            cells = (*cells, _equivalence_cell(equivalences.get(place)))
        rows.append(((pair.first, pair.second, pair.metric), cells))
    return Table(
        id=f"{name}-comparisons",
        title=f"{group.name}: variants compared" if group.name else "Variants compared",
        row_headers=("first", "second", "metric"),
        columns=columns,
        rows=tuple(rows),
        notes=_comparison_notes(group, tests, tuple(equivalences.values()), confidence, correction),
    )


def _compared(group: Group, place: tuple[str, str, str], confidence: float, margin: float | None) -> _Pair:
    """One pair of variants: paired where units share their splits, else Welch."""
    first, second, metric = place
    both = sides(group, first, second, metric)
    test: Answer
    equivalence: Equivalence | NotTestable | None = None
    if isinstance(both, str):
        test = NotTestable(name="t test", why=both, n_units=0, unit=group.unit)
        if margin is not None:
            equivalence = NotTestable(name="TOST", why=both, n_units=0, unit=group.unit)
    elif both.paired:
        test = paired_t(both.first, both.second, confidence=confidence)
        if margin is not None:
            equivalence = tost_paired(both.first, both.second, margin=margin, confidence=confidence)
    else:
        test = welch_t(both.first, both.second, confidence=confidence)
        if margin is not None:
            equivalence = tost_welch(both.first, both.second, margin=margin, confidence=confidence)
    return _Pair(first=first, second=second, metric=metric, test=test, equivalence=equivalence)


def _test_cells(test: Answer) -> tuple[Cell, ...]:
    if isinstance(test, NotTestable):
        return tuple(Cell(why_blank=f"not testable: {test.why}") for _ in COLUMNS)
    n, detectable = test.n_units, test.detectable
    values = (
        Value(estimate=test.estimate, lower=test.lower, upper=test.upper, spread=test.spread, n=n),
        Value(estimate=test.p_value, n=n),
        Value(estimate=test.decisive_p, n=n),
        Value(estimate=math.nan if detectable is None else detectable, n=n),
    )
    return tuple(Cell(ours=value) for value in values)


def _equivalence_cell(result: Equivalence | NotTestable | None) -> Cell:
    if result is None:
        return Cell(why_blank="no margin was stated for this metric")
    if isinstance(result, NotTestable):
        return Cell(why_blank=f"not testable: {result.why}")
    words = "equivalent" if result.equivalent else "not shown"
    value = Value(
        estimate=math.nan,
        p_value=result.decisive_p,
        n=result.n_units,
        text=f"{words} within ±{result.margin:g}",
    )
    return Cell(ours=value)


def _comparison_notes(
    group: Group,
    tests: Sequence[Answer],
    equivalences: Sequence[Equivalence | NotTestable],
    confidence: float,
    correction: str,
) -> tuple[str, ...]:
    """What the comparisons rest on, and what they do not say."""
    done = [test for test in tests if isinstance(test, StatisticalTest)]
    names = sorted({test.name for test in done})
    significant = sum(test.significant for test in done)
    notes = [
        f"Differences are first less second, averaged within each {group.unit} before {group.unit}s are "
        f"compared ({', '.join(names) or 'no test could be run'}); {100.0 * confidence:g} % intervals, not "
        f"adjusted. A {group.unit} that both variants share, with the same split, makes a pair.",
        f"p-values are adjusted by {CORRECTIONS[correction]}'s method over the {len(tests)} comparisons of "
        f"this table: {significant} of {len(done)} testable differences remain at {1.0 - confidence:.3g}. A "
        'difference that is not shown is not absence: "detectable" is the smallest true difference that the '
        "test finds four times in five before that adjustment, if the spread seen is the true one.",
    ]
    if equivalences:
        shown = sum(isinstance(result, Equivalence) and result.equivalent for result in equivalences)
        notes.append(
            f"Equivalence is shown where two one-sided tests (TOST) both reject at {1.0 - confidence:.3g}, "
            f"adjusted over the {len(equivalences)} of this table: {shown} of them."
        )
    return tuple(notes)


def _notes(results: StudyResults) -> tuple[str, ...]:
    """Scale, unit of replication and failures."""
    unit = results.study.replication
    replicates = {
        group.unit_of(placed)
        for group in groups_of(results)
        for members in group.members.values()
        for placed in members
        if placed.outcome.status is Status.DONE
    }
    counts = {status: sum(o.status is status for o in results.outcomes) for status in Status}
    notes = [
        f"{counts[Status.DONE]} of {counted(len(results.outcomes), 'experiment')} done, "
        f"{counts[Status.FAILED]} failed, {counts[Status.MISSING]} not run yet. The unit of replication is "
        f"the {unit}: {len(replicates)} in all."
    ]
    if len(replicates) == 1:
        notes.append(f"With one {unit} nothing can be tested and no interval be given.")
    errors: dict[str, list[str]] = {}
    for outcome in results.outcomes:
        if outcome.status is Status.FAILED:
            errors.setdefault(outcome.error or "no reason recorded", []).append(outcome.experiment.name)
    for error, names in errors.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        notes.append(f"Failed ({len(names)}): {error} ({names[0]}{more}).")
    return tuple(notes)
