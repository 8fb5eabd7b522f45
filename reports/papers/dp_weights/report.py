"""DP-Weights' radar charts, and the lines over epsilon and ROC curves that show what its radars average away.

Outward is better on every axis: a lower perplexity, and an attack that succeeds less. Whiskers are intervals
over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from workbench.checks.published import PublishedPaper
from workbench.core.registry import register
from workbench.reports.papers.dp_weights.comparisons import FINDINGS, pooled
from workbench.reports.papers.dp_weights.paper import CHECKS
from workbench.reports.papers.dp_weights.runs import (
    DP_SGD,
    DP_WEIGHTS,
    FINE_TUNED,
    GRIDS,
    LAYOUT,
    MARGIN_ATTACK,
    METRIC_WORDS,
    METRICS,
    SECURITY_METRICS,
    check,
    epsilons_of,
    sample,
    scale,
    values_of,
)
from workbench.reports.papers.dp_weights.tables import TABLES
from workbench.reports.shared.beside import has_curve
from workbench.reports.shared.context import Context, Own
from workbench.reports.shared.drawing.charts import ForestRow, Line, Scales, forest_chart, line_chart
from workbench.reports.shared.drawing.radar import Axis, Better, RadarPanel, Series, fitted_axis, radars
from workbench.reports.shared.drawing.roc import RocSubject, roc_chart
from workbench.reports.shared.statistics import Sample, StatisticalTest
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import Outcome, StudyResults
from workbench.studies.report import Figure, StudyReport, Value

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

    Args:
        context: Of the report.
        group: A key of `GRIDS`.
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
    found = {name: [one for one in SERIES if one in runs] for name, runs in by_unit.items()}
    if not any(found.values()):
        return None
    name = max(sorted(found, key=str), key=lambda one: len(found[one]))
    runs = {variant: by_unit[name][variant] for variant in found[name]}
    subjects = [
        RocSubject(label=variant, scores=one.scores, included=one.included) for variant, one in runs.items()
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


REPORT = Own(
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

    Further variants than "DP-SGD", "DP-Weights" and "Fine-tuned" get rows of their own in Tables 1 and 2.
    """
    return study_report(REPORT, results=results, published=published, confidence=confidence)
