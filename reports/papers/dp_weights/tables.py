"""Tables 1 to 10 of DP-Weights from a study's results, beside the printed numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from workbench.checks.published import PublishedCell, PublishedTable
from workbench.reports.papers.dp_weights.cells import Context, broadcast_note, first_unit
from workbench.reports.papers.dp_weights.layout import COMPARISONS, EPSILONS, GRIDS, METRICS, MODELS, Grid
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import NOT_IN_PAPER, beside
from workbench.reports.shared.statistics import Interval, Sample, value_of
from workbench.studies.report import Cell, Table

MEASURES = {
    "RMSE": "rmse",
    "Pearson correlation": "pearson",
    "MAE": "mae",
    "R² score": "r2",
    "MSE": "mse",
    "MedAE": "medae",
    "Coefficient of Variation": "cv",
    "MAPE": "mape",
}
"""The measures of Tables 3 to 10 in their order, before the Wilcoxon test; names of `PairMetrics`."""

WILCOXON = "Wilcoxon test"
FIRST, SECOND, THIRD = COMPARISONS
VARIATION = {FIRST: (FIRST, "cv_first"), SECOND: (FIRST, "cv_second"), THIRD: (THIRD, "cv_second")}
"""Whose coefficient of variation a column holds: each of one model, as the printed numbers are."""

Pair = tuple[Sample, Sample] | str
"""Both sides of a comparison, or why there is none."""


def paper_tables(context: Context) -> list[Table]:
    """Tables 1 to 10."""
    details = [(grid, value, table) for grid in GRIDS.values() for value, table in grid.details.items()]
    details.sort(key=lambda place: int(place[2].removeprefix("table-")))
    return [
        *(means_table(context, grid) for grid in GRIDS.values()),
        *(distances_table(context, *place) for place in details),
    ]


def means_table(context: Context, grid: Grid) -> Table:
    """Table 1 or 2: mean over epsilons and seeds, the spread over epsilons, the interval over seeds."""
    shown = context.published(grid.means)
    unit = context.unit
    variants = [*MODELS, *(name for name in context.measured.variants if name not in MODELS)]
    rows = []
    for value in sorted({*grid.details, *context.measured.values(grid.group)}):
        for variant in variants:
            cells = tuple(_mean_cell(context, grid, (value, variant, metric)) for metric in METRICS)
            rows.append(((str(value), variant), cells))
    names = ", ".join(f"{ours} is its {theirs}" for ours, theirs in MODELS.items())
    return Table(
        id=grid.means,
        title=f"Metrics by {grid.group}",
        place=shown.place if shown else "",
        row_headers=(grid.group, "model"),
        columns=METRICS,
        rows=tuple(rows),
        notes=(
            f"± is the standard deviation over the epsilons of one {unit} (ours: averaged over {unit}s): "
            "how much the budget matters, not how well the mean is known.",
            f"Brackets: {context.percent} t interval of the mean over {unit}s, the unit of replication; it "
            "knows no limits, so with few of them it may pass 0 or 1. The paper has one training for each "
            "setting as far as it says, hence no such interval.",
            f"{broadcast_note()} In the paper's words {names}.",
            *context.scale_notes(grid, shown),
        ),
        decimals=dict.fromkeys(METRICS, 2),
    )


def _mean_cell(context: Context, grid: Grid, place: tuple[int, str, str]) -> Cell:
    value, variant, metric = place
    shown = context.published(grid.means)
    printed = shown.cell((str(value), MODELS[variant]), metric) if shown and variant in MODELS else None
    sample = context.measured.sample(grid.group, variant, metric, values=[value])
    if sample is None:
        return Cell(paper=printed, why_blank=context.missing(grid, variant, [value], metric))
    interval = statistics.mean_interval(sample, confidence=context.confidence)
    within = statistics.spread_within_units(sample)
    spread = None if within is None else float(np.mean(within.values))
    return beside(printed, replace(value_of(interval), spread=spread))


def distances_table(context: Context, grid: Grid, value: int, table_id: str) -> Table:
    """One of Tables 3 to 10: each measure within each seed over its epsilons, then over seeds."""
    shown = context.published(table_id)
    unit = context.unit
    pairs: dict[tuple[str, str], Pair] = {
        (column, metric): context.pair(grid, sides, metric, [value])
        for column, sides in COMPARISONS.items()
        for metric in METRICS
    }
    found = {
        place: {}
        if isinstance(pair, str)
        else statistics.comparison_by_unit(*pair, confidence=context.confidence)
        for place, pair in pairs.items()
    }
    rows: list[tuple[tuple[str, ...], tuple[Cell, ...]]] = []
    for measure in MEASURES:
        for metric in METRICS:
            cells = tuple(
                _distance_cell(shown, pairs, found, (measure, metric, column)) for column in COMPARISONS
            )
            rows.append(((measure, metric), cells))
    comparable = len(context.measured.epsilons(grid.group)) == EPSILONS
    for metric in METRICS:
        cells = tuple(
            _wilcoxon_cell(
                shown.cell((WILCOXON, metric), column) if shown else None,
                pairs[column, metric],
                comparable=comparable,
            )
            for column in COMPARISONS
        )
        rows.append(((WILCOXON, metric), cells))
    over_units = f"paired t over {unit}s"
    for metric in METRICS:
        cells = tuple(_over_units(context, pairs[column, metric]) for column in COMPARISONS)
        rows.append(((over_units, metric), cells))
    return Table(
        id=table_id,
        title=f"Distances between the models at {grid.group} {value}",
        place=shown.place if shown else "",
        row_headers=("measure", "metric"),
        columns=tuple(COMPARISONS),
        rows=tuple(rows),
        notes=(
            f"Each measure is computed over the epsilons of one {unit}; ours is the mean over {unit}s with "
            f"its {context.percent} t interval (which may pass a measure's limits), the paper's is of one "
            "training.",
            f"{WILCOXON}, as printed: statistic and p-value of the first {unit} alone, its epsilons counted "
            "as replicates, as in the paper. Epsilons of one training are no replicates, so that this "
            f"p-value means little; the rows “{over_units}” count {unit}s (statistic t; p-values not "
            f"corrected for the {len(METRICS) * len(COMPARISONS)} tests of the table).",
            "R² and MAPE take the first model for the truth. Coefficients of variation are of single "
            "models, as the printed numbers are: DP-SGD, DP-Weights and fine-tuned, in this order.",
            *context.scale_notes(grid, shown),
        ),
        decimals=dict.fromkeys(COMPARISONS, 3),
    )


def _distance_cell(
    shown: PublishedTable | None,
    pairs: dict[tuple[str, str], Pair],
    found: dict[tuple[str, str], dict[str, Interval]],
    place: tuple[str, str, str],
) -> Cell:
    measure, metric, column = place
    printed = shown.cell((measure, metric), column) if shown else None
    name, source = MEASURES[measure], column
    if name == "cv":
        source, name = VARIATION[column]
    pair, intervals = pairs[source, metric], found[source, metric]
    if isinstance(pair, str):
        return Cell(paper=printed, why_blank=pair)
    if not intervals:
        return Cell(paper=printed, why_blank=f"no {pair[0].unit} has both models")
    interval = intervals[name]
    if math.isnan(interval.estimate):
        return Cell(paper=printed, why_blank=f"not defined: {interval.why}")
    return beside(printed, replace(value_of(interval), spread=None))


def _wilcoxon_cell(printed: PublishedCell | None, pair: Pair, *, comparable: bool) -> Cell:
    """The test as the paper made it, on the first seed."""
    if isinstance(pair, str):
        return Cell(paper=printed, why_blank=pair)
    sides = first_unit(pair)
    if sides is None:
        return Cell(paper=printed, why_blank=f"no {pair[0].unit} has both models")
    answer = statistics.wilcoxon_as_printed(*sides)
    if isinstance(answer, statistics.NotTestable):
        return Cell(paper=printed, why_blank=f"not testable: {answer.why}")
    ours = replace(value_of(answer), n=1)
    return beside(printed, ours, comparable=comparable)


def _over_units(context: Context, pair: Pair) -> Cell:
    """The seed-level test beside it."""
    if isinstance(pair, str):
        return Cell(why_blank=pair)
    answer = statistics.paired_t(*pair, confidence=context.confidence)
    if isinstance(answer, statistics.NotTestable):
        return Cell(why_blank=f"not testable: {answer.why}")
    return beside(None, value_of(answer), why=f"{NOT_IN_PAPER}: it tests epsilons, not {context.unit}s")
