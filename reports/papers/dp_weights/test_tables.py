"""Sections 4.3 and 4.4 of DP-Weights as tables: its t-tests as printed, and what the seeds say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from workbench.checks.published import PublishedCell, PublishedTable
from workbench.reports.papers.dp_weights.cells import Context, broadcast_note
from workbench.reports.papers.dp_weights.comparisons import Comparison
from workbench.reports.papers.dp_weights.layout import COMPARISONS, EPSILONS, GRIDS, METRICS, Grid
from workbench.reports.papers.dp_weights.samples import margin_in_words
from workbench.reports.papers.dp_weights.t_tests import INTERVAL, LEVEL, STATISTIC, WORDS
from workbench.reports.shared.beside import beside
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import Equivalence, NotTestable, value_of
from workbench.studies.report import Cell, Table, Value

NO_REPEATS = "the paper repeats no training"


def test_tables(context: Context, pooled: Sequence[Comparison]) -> list[Table]:
    """One table for each grid.

    Args:
        context: Of the report.
        pooled: The comparisons of `pooled_places`.
    """
    by_place = {(one.place.group, one.place.metric, one.place.column): one for one in pooled}
    return [_table(context, grid, by_place) for grid in GRIDS.values()]


def _table(context: Context, grid: Grid, found: Mapping[tuple[str, str, str], Comparison]) -> Table:
    shown = context.published(grid.tests)
    unit = context.unit
    over = (f"difference over {unit}s", f"paired t over {unit}s", "equivalent?")
    same_scale = len(context.measured.epsilons(grid.group)) == EPSILONS
    rows = []
    for metric in METRICS:
        for column in COMPARISONS:
            cells = _row(shown, found[grid.group, metric, column], same_scale)
            rows.append(((metric, column), cells))
    return Table(
        id=grid.tests,
        title=f"t-tests between the models, all settings of {grid.group} together",
        place=shown.place if shown else "",
        row_headers=("metric", "comparison"),
        columns=(STATISTIC, INTERVAL, WORDS, *over),
        rows=tuple(rows),
        notes=(
            f"The first three columns are the paper's test, made on the first {unit} alone: every setting "
            "and epsilon counted as an independent replicate, Student's p-value beside Welch's interval, "
            f"significant where p < {LEVEL:g}. Epsilons of one training are no replicates, so that its "
            "p-values and intervals mean little.",
            f"The last three count {unit}s, the unit of replication: differences within a {unit}, averaged "
            f"over settings and epsilons, with a {context.percent} t interval; the paired t test with "
            f"Holm's correction over all {len(found)} comparisons of both grids; and whether the difference "
            f"is shown to be within the margin (two one-sided tests at level {1 - context.confidence:.2g}); "
            f"{margin_in_words()}.",
            broadcast_note(),
            *context.scale_notes(grid, shown),
        ),
        decimals={STATISTIC: 2, INTERVAL: 3, over[0]: 3, over[1]: 2},
    )


def _row(shown: PublishedTable | None, comparison: Comparison, same_scale: bool) -> tuple[Cell, ...]:
    row = (comparison.place.metric, comparison.place.column)
    printed = [shown.cell(row, column) if shown else None for column in (STATISTIC, INTERVAL, WORDS)]
    return (*_as_printed(comparison, printed, same_scale), *_over_units(comparison))


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


def _over_units(comparison: Comparison) -> list[Cell]:
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
