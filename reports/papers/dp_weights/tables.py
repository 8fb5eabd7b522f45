"""Tables 1 to 10 and the t-tests of DP-Weights from a study's results, beside the printed numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.checks.published import PublishedCell, PublishedTable
from workbench.reports.papers.dp_weights.comparisons import Comparison, pooled
from workbench.reports.papers.dp_weights.runs import (
    COMPARISONS,
    EPSILONS,
    GRIDS,
    INTERVAL,
    LAYOUT,
    LEVEL,
    METRICS,
    MODELS,
    STATISTIC,
    WORDS,
    Grid,
    epsilons_of,
    first_unit,
    missing,
    pair,
    sample,
    values_of,
)
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import NOT_IN_PAPER, beside
from workbench.reports.shared.context import Context
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import Equivalence, Interval, NotTestable, Sample, value_of
from workbench.studies.report import Cell, Table, Value

WILCOXON = "Wilcoxon test"
FIRST, SECOND, THIRD = COMPARISONS
VARIATION = {FIRST: (FIRST, "cv_first"), SECOND: (FIRST, "cv_second"), THIRD: (THIRD, "cv_second")}
"""Whose coefficient of variation a column holds: each of one model, as the printed numbers are."""

NO_REPEATS = "the paper repeats no training"

Pair = tuple[Sample, Sample] | str
"""Both sides of a comparison, or why there is none."""


def _known(made: Table | None) -> list[Table]:
    return [] if made is None else [made]


def means(context: Context) -> list[Table]:
    """Tables 1 and 2."""
    return [made for grid in GRIDS.values() for made in _known(means_table(context, grid))]


def distances(context: Context) -> list[Table]:
    """Tables 3 to 10."""
    places = [(grid, value, name) for grid in GRIDS.values() for value, name in grid.details.items()]
    places.sort(key=lambda place: int(place[2].removeprefix("table-")))
    return [made for place in places for made in _known(distances_table(context, *place))]


def t_tests(context: Context) -> list[Table]:
    """Sections 4.3 and 4.4."""
    return [made for grid in GRIDS.values() for made in _known(t_tests_table(context, grid))]


def means_table(context: Context, grid: Grid) -> Table | None:
    """Table 1 or 2: mean over epsilons and seeds, the spread over epsilons, the interval over seeds."""
    variants = dict.fromkeys(
        [*MODELS, *(outcome.experiment.variant for outcome in context.outcomes.outcomes)]
    )
    values = sorted({*grid.details, *values_of(context, grid.group)})
    rows: list[Row] = [
        ((str(value), variant), tuple(_mean_cell(context, grid, value, variant, name) for name in METRICS))
        for value in values
        for variant in variants
    ]
    decimals = dict.fromkeys(METRICS, 2)
    return table(context, "means", rows, id=grid.means, grid=grid.group, decimals=decimals)


def _mean_cell(context: Context, grid: Grid, value: int, variant: str, metric: str) -> Cell:
    printed = context.printed(grid.means, (str(value), MODELS.get(variant, "")), metric)
    measured = sample(context, grid.group, variant, metric, values=[value])
    if measured is None:
        return Cell(paper=printed, why_blank=missing(context, grid.group, variant, [value], metric))
    within = statistics.spread_within_units(measured)
    spread = None if within is None else float(np.mean(within.values))
    return beside(printed, replace(context.mean(measured), spread=spread))


def distances_table(context: Context, grid: Grid, value: int, table_id: str) -> Table | None:
    """One of Tables 3 to 10: each measure within each seed over its epsilons, then over seeds."""
    printed_table = context.published(table_id)
    pairs: dict[tuple[str, str], Pair] = {
        (column, metric): pair(context, grid.group, sides, metric, [value])
        for column, sides in COMPARISONS.items()
        for metric in METRICS
    }
    measures = {
        place: {}
        if isinstance(both, str)
        else statistics.comparison_by_unit(*both, confidence=context.confidence)
        for place, both in pairs.items()
    }
    rows: list[Row] = []
    for measure in LAYOUT["measures"]:
        for metric in METRICS:
            places = [(measure, metric, column) for column in COMPARISONS]
            rows.append(
                (
                    (measure, metric),
                    tuple(_distance_cell(printed_table, pairs, measures, one) for one in places),
                )
            )
    comparable = len(epsilons_of(context, grid.group)) == EPSILONS
    for metric in METRICS:
        printed = [
            printed_table.cell((WILCOXON, metric), column) if printed_table else None
            for column in COMPARISONS
        ]
        both = [pairs[column, metric] for column in COMPARISONS]
        cells = [_wilcoxon(*one, comparable=comparable) for one in zip(printed, both, strict=True)]
        rows.append(((WILCOXON, metric), tuple(cells)))
    for metric in METRICS:
        over = tuple(_over_units(context, pairs[column, metric]) for column in COMPARISONS)
        rows.append(((f"paired t over {context.outcomes.unit}s", metric), over))
    return table(context, "distances", rows, id=table_id, grid=grid.group, value=value)


def _distance_cell(
    printed_table: PublishedTable | None,
    pairs: dict[tuple[str, str], Pair],
    measures: dict[tuple[str, str], dict[str, Interval]],
    place: tuple[str, str, str],
) -> Cell:
    measure, metric, column = place
    printed = printed_table.cell((measure, metric), column) if printed_table else None
    name, source = LAYOUT["measures"][measure], column
    if name == "cv":
        source, name = VARIATION[column]
    both, intervals = pairs[source, metric], measures[source, metric]
    if isinstance(both, str):
        return Cell(paper=printed, why_blank=both)
    if not intervals:
        return Cell(paper=printed, why_blank=f"no {both[0].unit} has both models")
    interval = intervals[name]
    if math.isnan(interval.estimate):
        return Cell(paper=printed, why_blank=f"not defined: {interval.why}")
    return beside(printed, replace(value_of(interval), spread=None))


def _wilcoxon(printed: PublishedCell | None, both: Pair, *, comparable: bool) -> Cell:
    """The test as the paper made it, on the first seed."""
    sides = both if isinstance(both, str) else first_unit(both) or f"no {both[0].unit} has both models"
    if isinstance(sides, str):
        return Cell(paper=printed, why_blank=sides)
    answer = statistics.wilcoxon_as_printed(*sides)
    if isinstance(answer, NotTestable):
        return Cell(paper=printed, why_blank=f"not testable: {answer.why}")
    return beside(printed, replace(value_of(answer), n=1), comparable=comparable)


def _over_units(context: Context, both: Pair) -> Cell:
    """The test over seeds beside it."""
    if isinstance(both, str):
        return Cell(why_blank=both)
    answer = statistics.paired_t(*both, confidence=context.confidence)
    if isinstance(answer, NotTestable):
        return Cell(why_blank=f"not testable: {answer.why}")
    why = f"{NOT_IN_PAPER}: it tests epsilons, not {context.outcomes.unit}s"
    return beside(None, value_of(answer), why=why)


def t_tests_table(context: Context, grid: Grid) -> Table | None:
    """Section 4.3 or 4.4: its t-tests as printed, and what the seeds say."""
    unit = context.outcomes.unit
    over = (f"difference over {unit}s", f"paired t over {unit}s", "equivalent?")
    same_scale = len(epsilons_of(context, grid.group)) == EPSILONS
    places = {
        (comparison.place.group, comparison.place.metric, comparison.place.column): comparison
        for comparison in pooled(context)
    }
    rows: list[Row] = []
    for metric in METRICS:
        for column in COMPARISONS:
            comparison, names = places[grid.group, metric, column], (STATISTIC, INTERVAL, WORDS)
            printed = [context.printed(grid.tests, (metric, column), name) for name in names]
            rows.append(
                (
                    (metric, column),
                    (*_as_printed(comparison, printed, same_scale), *_compared_over_units(comparison)),
                )
            )
    return table(
        context,
        "tests",
        rows,
        id=grid.tests,
        columns=(STATISTIC, INTERVAL, WORDS, *over),
        decimals={STATISTIC: 2, INTERVAL: 3, over[0]: 3, over[1]: 2},
        grid=grid.group,
        family=len(places),
    )


def _as_printed(
    comparison: Comparison, printed: Sequence[PublishedCell | None], same_scale: bool
) -> list[Cell]:
    """The paper's own test on the first seed: statistic, interval and words.

    A t statistic grows with the root of the number of epsilons, so that it has a difference only where both
    have as many.
    """
    answer = comparison.as_printed
    if isinstance(answer, NotTestable):
        return [Cell(paper=cell, why_blank=f"not testable: {answer.why}") for cell in printed]
    words = "not significant"
    if answer.p_value < LEVEL:
        words = f"significant, first {'higher' if answer.estimate > 0 else 'lower'}"
    values = (
        Value(estimate=answer.statistic, p_value=answer.p_value, n=1),
        Value(estimate=answer.estimate, lower=answer.lower, upper=answer.upper, n=1),
        Value(estimate=math.nan, text=words, n=1),
    )
    scales = (same_scale, True, True)
    return [
        beside(cell, value, comparable=scale)
        for cell, value, scale in zip(printed, values, scales, strict=True)
    ]


def _compared_over_units(comparison: Comparison) -> list[Cell]:
    """Difference with interval, test and equivalence over seeds."""
    answer, equivalence = comparison.difference, comparison.equivalence
    if isinstance(answer, NotTestable):
        return [Cell(why_blank=f"{NO_REPEATS}; ours: not testable: {answer.why}")] * 3
    difference = Value(estimate=answer.estimate, lower=answer.lower, upper=answer.upper, n=answer.n_units)
    cells = [beside(None, value, why=NO_REPEATS) for value in (difference, value_of(answer))]
    if isinstance(equivalence, Equivalence):
        words = f"{'yes' if equivalence.equivalent else 'not shown'} (±{number(equivalence.margin, 2)})"
        value = Value(estimate=math.nan, p_value=equivalence.p_value, n=equivalence.n_units, text=words)
        return [*cells, beside(None, value, why=NO_REPEATS)]
    return [*cells, Cell(why_blank=f"{NO_REPEATS}; ours: not testable: {equivalence.why}")]


TABLES = {"means": means, "distances": distances, "tests": t_tests}
