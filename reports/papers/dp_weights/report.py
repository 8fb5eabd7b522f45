"""DP-Weights, regenerated: Tables 1 to 10, its t-tests and its radar charts beside the printed numbers.

Outward is better on every axis of a radar: a lower perplexity, and an attack that succeeds less. Whiskers are
intervals over seeds. Lines over epsilon and ROC curves show what the radars average away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from workbench.checks.published import PublishedCell, PublishedPaper, PublishedTable
from workbench.core.registry import register
from workbench.reports.papers.dp_weights.comparisons import FINDINGS, Comparison, pooled
from workbench.reports.papers.dp_weights.paper import CHECKS
from workbench.reports.papers.dp_weights.runs import (
    COMPARISONS,
    DP_SGD,
    DP_WEIGHTS,
    EPSILONS,
    FINE_TUNED,
    GRIDS,
    INTERVAL,
    LAYOUT,
    LEVEL,
    MARGIN_ATTACK,
    METRIC_WORDS,
    METRICS,
    MODELS,
    SECURITY_METRICS,
    STATISTIC,
    WORDS,
    Grid,
    check,
    epsilons_of,
    first_unit,
    missing,
    pair,
    sample,
    scale,
    values_of,
)
from workbench.reports.shared import statistics
from workbench.reports.shared.context import Context, PaperFunctions
from workbench.reports.shared.drawing.charts import ForestRow, Line, Scales, forest_chart, line_chart
from workbench.reports.shared.drawing.radar import Axis, Better, RadarPanel, Series, fitted_axis, radars
from workbench.reports.shared.drawing.roc import RocSubject, roc_chart
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_cells import NOT_IN_PAPER, compared_cell, has_curve
from workbench.reports.shared.statistics import (
    Equivalence,
    Interval,
    NotTestable,
    Sample,
    StatisticalTest,
    value_of,
)
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import Outcome, StudyResults
from workbench.studies.report import Cell, Figure, StudyReport, Table, Value

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
    """The tables of means (the paper's Tables 1 and 2)."""
    return [made for grid in GRIDS.values() for made in _known(means_table(context, grid))]


def distances(context: Context) -> list[Table]:
    """The tables of distances (the paper's Tables 3 to 10)."""
    places = [(grid, value, name) for grid in GRIDS.values() for value, name in grid.details.items()]
    places.sort(key=lambda place: int(place[2].removeprefix("table-")))
    return [made for place in places for made in _known(distances_table(context, *place))]


def t_tests(context: Context) -> list[Table]:
    """The tables of t tests (the paper's Sections 4.3 and 4.4)."""
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
    return compared_cell(printed, replace(context.mean(measured), spread=spread))


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
                    tuple(_distance_cell(printed_table, pairs, measures, place) for place in places),
                )
            )
    comparable = len(epsilons_of(context, grid.group)) == EPSILONS
    for metric in METRICS:
        printed = [
            printed_table.cell((WILCOXON, metric), column) if printed_table else None
            for column in COMPARISONS
        ]
        both = [pairs[column, metric] for column in COMPARISONS]
        cells = [_wilcoxon(*pair, comparable=comparable) for pair in zip(printed, both, strict=True)]
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
    return compared_cell(printed, replace(value_of(interval), spread=None))


def _wilcoxon(printed: PublishedCell | None, both: Pair, *, comparable: bool) -> Cell:
    """The test as the paper made it, on the first seed."""
    sides = both if isinstance(both, str) else first_unit(both) or f"no {both[0].unit} has both models"
    if isinstance(sides, str):
        return Cell(paper=printed, why_blank=sides)
    answer = statistics.wilcoxon_as_printed(*sides)
    if isinstance(answer, NotTestable):
        return Cell(paper=printed, why_blank=f"not testable: {answer.why}")
    return compared_cell(printed, replace(value_of(answer), n=1), comparable=comparable)


def _over_units(context: Context, both: Pair) -> Cell:
    """The test over seeds beside it."""
    if isinstance(both, str):
        return Cell(why_blank=both)
    answer = statistics.paired_t(*both, confidence=context.confidence)
    if isinstance(answer, NotTestable):
        return Cell(why_blank=f"not testable: {answer.why}")
    why = f"{NOT_IN_PAPER}: it tests epsilons, not {context.outcomes.unit}s"
    return compared_cell(None, value_of(answer), why=why)


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
        compared_cell(cell, value, comparable=scale)
        for cell, value, scale in zip(printed, values, scales, strict=True)
    ]


def _compared_over_units(comparison: Comparison) -> list[Cell]:
    """Difference with interval, test and equivalence over seeds."""
    answer, equivalence = comparison.difference, comparison.equivalence
    if isinstance(answer, NotTestable):
        return [Cell(why_blank=f"{NO_REPEATS}; ours: not testable: {answer.why}")] * 3
    difference = Value(estimate=answer.estimate, lower=answer.lower, upper=answer.upper, n=answer.n_units)
    cells = [compared_cell(None, value, why=NO_REPEATS) for value in (difference, value_of(answer))]
    if isinstance(equivalence, Equivalence):
        words = f"{'yes' if equivalence.equivalent else 'not shown'} (±{number(equivalence.margin, 2)})"
        value = Value(estimate=math.nan, p_value=equivalence.p_value, n=equivalence.n_units, text=words)
        return [*cells, compared_cell(None, value, why=NO_REPEATS)]
    return [*cells, Cell(why_blank=f"{NO_REPEATS}; ours: not testable: {equivalence.why}")]


TABLES = {"means": means, "distances": distances, "tests": t_tests}


SERIES = (DP_SGD, DP_WEIGHTS, FINE_TUNED)
RANGES = ((1.0, 10.0), (10.0, 100.0), (100.0, 1000.0))
"""Of epsilon in Figs. 4, 5 and 6; an epsilon at an end belongs to both."""

AXES = {name: words["axis"] for name, words in LAYOUT["metrics"].items()}
FEWEST_AXES = 3

STRONGEST = {"batch size": min, "epochs": max}
"""The end of each grid at which a model takes most steps, and so gives away most of its members."""

Slice = tuple[str, Sequence[int] | None, Sequence[float] | None]
"""A part of a grid: group, settings of its field, epsilons; None for all."""


def figures(context: Context) -> list[Figure]:
    """Figs. 3, 4 to 6, 2 and its like for epochs, lines over epsilon, ROC curves, differences.

    What has no data is left out.
    """
    drawn = [
        _radar(context, "averaged", "figure-3", "Figure 3", {"": [(group, None, None) for group in GRIDS]}),
        _radar(context, "by_epsilon", "figure-7", "Figures 4 to 7", _ranges(context)),
        *(_by_setting(context, group) for group in GRIDS),
        *(_lines(context, group, metric) for group in GRIDS for metric in ("perplexity_member", "roc_auc")),
        *(roc_figure(context, group) for group in GRIDS),
        _differences(context),
    ]
    return [figure for figure in drawn if figure is not None]


def _words(context: Context, figure: str, **facts: Any) -> tuple[str, str]:
    """A figure's title and note."""
    words = context.declared.content["figures"][figure]
    return context.render(words["title"], **facts), context.render(words["note"], **facts)


def _ranges(context: Context) -> dict[str, list[Slice]]:
    panels: dict[str, list[Slice]] = {}
    for low, high in RANGES:
        chosen = {
            group: [epsilon for epsilon in epsilons_of(context, group) if low <= epsilon <= high]
            for group in GRIDS
        }
        slices: list[Slice] = [(group, None, some) for group, some in chosen.items() if some]
        if slices:
            panels[f"epsilon {low:g} to {high:g}"] = slices
    return panels


def _by_setting(context: Context, group: str) -> Figure | None:
    panels: dict[str, list[Slice]] = {
        f"{group} {value}": [(group, [value], None)] for value in values_of(context, group)
    }
    names = ("figure-2", "Figure 2") if group == "batch size" else ("figure-epochs", "")
    return _radar(context, "by_setting", *names, panels, grid=group)


def _radar(
    context: Context, name: str, identifier: str, place: str, panels: dict[str, list[Slice]], **facts: str
) -> Figure | None:
    """Small multiples on axes that hold every panel; None with fewer than three axes that have a value."""
    values = {
        (heading, variant, metric): _value(context, variant, metric, slices)
        for heading, slices in panels.items()
        for variant in SERIES
        for metric in METRICS
    }
    axes: dict[str, Axis] = {}
    for metric in METRICS:
        column = [value for (_, _, of), value in values.items() if of == metric]
        if any(value is not None for value in column):
            bounds = (0.0, 1.0) if metric in SECURITY_METRICS else (0.0, math.inf)
            axes[metric] = fitted_axis(AXES[metric], column, Better.LOWER, bounds=bounds)
    if len(axes) < FEWEST_AXES:
        return None
    drawn = [
        RadarPanel(
            heading=heading,
            series=tuple(
                Series(label=variant, values=tuple(values[heading, variant, metric] for metric in axes))
                for variant in SERIES
            ),
        )
        for heading in panels
    ]
    title, note = _words(context, name, **facts)
    note = f"{note} {context.declared.content['figures']['better']}"
    return radars(
        identifier, title, list(axes.values()), drawn, spread=context.interval, note=note, place=place
    )


def _lines(context: Context, group: str, metric: str) -> Figure | None:
    epsilons = epsilons_of(context, group)
    if not epsilons:
        return None
    lines = []
    for variant in SERIES:
        x = () if variant == FINE_TUNED else tuple(epsilons)
        budgets: list[Sequence[float] | None] = [[epsilon] for epsilon in x] or [None]
        values = tuple(_value(context, variant, metric, [(group, None, chosen)]) for chosen in budgets)
        lines.append(Line(label=variant, x=x, values=values))
    if all(value is None for line in lines for value in line.values):
        return None
    title, note = _words(context, "lines", metric=METRIC_WORDS[metric], grid=group)
    return line_chart(
        f"{metric.replace('_', '-')}-{group.replace(' ', '-')}",
        title,
        lines,
        Scales(x_name="epsilon", y_name=AXES[metric], log_x=True, log_y=metric not in SECURITY_METRICS),
        spread=context.interval,
        note=note,
    )


def roc_figure(context: Context, group: str) -> Figure | None:
    """The three models' curves where the attack is strongest; None where no score was kept.

    One training each: scores of several trainings have no threshold in common. The seed is the first that has
    most of the models, the epsilon the middle one of the study.
    """
    values, epsilons, unit = values_of(context, group), epsilons_of(context, group), context.outcomes.unit
    if not values:
        return None
    value = STRONGEST[group](values)
    epsilon = epsilons[len(epsilons) // 2] if epsilons else None
    by_unit: dict[str | int, dict[str, Outcome]] = {}
    for outcome in context.outcomes.part(group):
        experiment = outcome.experiment
        fits = getattr(experiment, GRIDS[group].field) == value and experiment.epsilon in (None, epsilon)
        if fits and has_curve(outcome):
            by_unit.setdefault(getattr(experiment, unit), {})[experiment.variant] = outcome
    variants_by_unit = {
        name: [variant for variant in SERIES if variant in runs] for name, runs in by_unit.items()
    }
    if not any(variants_by_unit.values()):
        return None
    name = max(sorted(variants_by_unit, key=str), key=lambda unit: len(variants_by_unit[unit]))
    runs = {variant: by_unit[name][variant] for variant in variants_by_unit[name]}
    subjects = [
        RocSubject(label=variant, scores=outcome.scores, included=outcome.included)
        for variant, outcome in runs.items()
    ]
    title, note = _words(context, "roc", grid=group, value=value, name=name, epsilon=epsilon)
    return roc_chart(f"roc-{group.replace(' ', '-')}", title, subjects, note=note)


def _differences(context: Context) -> Figure | None:
    """DP-SGD less DP-Weights in the attack's metrics, against the margin."""
    rows = []
    for comparison in pooled(context):
        ours, place = comparison.difference, comparison.place
        chosen = (place.first, place.second) == (DP_SGD, DP_WEIGHTS) and place.metric in SECURITY_METRICS
        if chosen and isinstance(ours, StatisticalTest):
            value = Value(estimate=ours.estimate, lower=ours.lower, upper=ours.upper, n=ours.n_units)
            rows.append(ForestRow(label=f"{METRIC_WORDS[place.metric]}, {place.group}", difference=value))
    if not rows:
        return None
    title, note = _words(context, "differences")
    return forest_chart(
        "differences",
        title,
        rows,
        x_name="difference",
        spread=context.interval.replace("the mean", "the difference"),
        margin=MARGIN_ATTACK,
        note=note,
    )


def _value(context: Context, variant: str, metric: str, slices: Sequence[Slice]) -> Value | None:
    """Mean over parts of the grids, with its interval over seeds; None where a part has no value."""
    samples = []
    for group, settings, epsilons in slices:
        if context.outcomes.part(group):
            measured = sample(context, group, variant, metric, values=settings, epsilons=epsilons)
            if measured is None:
                return None
            samples.append((group, measured))
    if not samples:
        return None
    joined = Sample(
        np.concatenate([part.values for _, part in samples]),
        tuple(chain.from_iterable(part.units for _, part in samples)),
        context.outcomes.unit,
        tuple((group, cell) for group, part in samples for cell in part.cells),
    )
    mean = context.mean(joined)
    return Value(estimate=mean.estimate, lower=mean.lower, upper=mean.upper, n=mean.n)


REPORT = PaperFunctions(
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
    *,
    results: StudyResults,
    published: PublishedPaper | None,
    confidence: float = 0.95,
    only_findings: bool = False,
) -> StudyReport:
    """Tables 1 to 10, t-tests, radar charts and conclusions of DP-Weights, with intervals over seeds.

    Further variants than "DP-SGD", "DP-Weights" and "Fine-tuned" get rows of their own in Tables 1 and 2.
    """
    return study_report(
        REPORT, results=results, published=published, confidence=confidence, only_findings=only_findings
    )
