"""DP-Weights' radar charts from a study's results, with the lines over epsilon and ROC curves that show what
its radars average away.

Outward is better on every axis: a lower perplexity, and an attack that succeeds less. Whiskers are intervals
over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np

from workbench.reports.papers.dp_weights.cells import Context
from workbench.reports.papers.dp_weights.comparisons import Comparison
from workbench.reports.papers.dp_weights.layout import (
    DP_SGD,
    DP_WEIGHTS,
    FINE_TUNED,
    GRIDS,
    METRIC_WORDS,
    METRICS,
    SECURITY_METRICS,
)
from workbench.reports.papers.dp_weights.roc import roc_figure
from workbench.reports.papers.dp_weights.samples import MARGIN_ATTACK
from workbench.reports.shared import statistics
from workbench.reports.shared.charts import ForestRow, Line, Scales, forest_chart, line_chart
from workbench.reports.shared.radar import Axis, Better, RadarPanel, Series, fitted_axis, radars
from workbench.reports.shared.statistics import Sample, StatisticalTest, value_of
from workbench.studies.report import Figure, Value

SERIES = (DP_SGD, DP_WEIGHTS, FINE_TUNED)
RANGES = ((1.0, 10.0), (10.0, 100.0), (100.0, 1000.0))
"""Of epsilon in Figs. 4, 5 and 6; an epsilon at an end belongs to both."""

NAMES = {
    "perplexity_member": "perplexity, members",
    "perplexity_non_member": "perplexity, non-members",
    "roc_auc": "attack's ROC AUC",
    "accuracy": "attack's accuracy",
    "precision": "attack's precision",
    "recall": "attack's recall",
    "f1": "attack's F1 score",
}
FEWEST_AXES = 3
BETTER = "Better is a lower perplexity, and an attack that succeeds less."

Slice = tuple[str, Sequence[int] | None, Sequence[float] | None]
"""A part of a grid: group, settings of its field, epsilons; None for all."""


def figures(context: Context, pooled: Sequence[Comparison]) -> list[Figure]:
    """Figs. 3, 4 to 6, 2 and its like for epochs, lines over epsilon, ROC curves, differences.

    What has no data is left out.

    Args:
        context: Of the report.
        pooled: The comparisons of `pooled_places`.
    """
    drawn = [
        _averaged(context),
        _by_epsilon(context),
        *(_by_setting(context, group) for group in GRIDS),
        *(_lines(context, group, metric) for group in GRIDS for metric in ("perplexity_member", "roc_auc")),
        *(roc_figure(context, group) for group in GRIDS),
        _differences(context, pooled),
    ]
    return [figure for figure in drawn if figure is not None]


def _averaged(context: Context) -> Figure | None:
    slices: list[Slice] = [(group, None, None) for group in GRIDS]
    return _radar(
        context,
        ("figure-3", "The models averaged over all settings and epsilons", "Figure 3"),
        {"": slices},
        "Means over all batch sizes, numbers of epochs and epsilons.",
    )


def _by_epsilon(context: Context) -> Figure | None:
    panels: dict[str, list[Slice]] = {}
    for low, high in RANGES:
        slices: list[Slice] = []
        for group in GRIDS:
            chosen = [epsilon for epsilon in context.measured.epsilons(group) if low <= epsilon <= high]
            if chosen:
                slices.append((group, None, chosen))
        if slices:
            panels[f"epsilon {low:g} to {high:g}"] = slices
    return _radar(
        context,
        ("figure-7", "The models by range of epsilon", "Figures 4 to 7"),
        panels,
        f"Means over all batch sizes and numbers of epochs. {FINE_TUNED} has no epsilon and is the same in "
        "each.",
    )


def _by_setting(context: Context, group: str) -> Figure | None:
    panels: dict[str, list[Slice]] = {
        f"{group} {value}": [(group, [value], None)] for value in context.measured.values(group)
    }
    known = group == "batch size"
    return _radar(
        context,
        ("figure-2" if known else "figure-epochs", f"The models by {group}", "Figure 2" if known else ""),
        panels,
        "Means over all epsilons.",
    )


def _radar(
    context: Context, names: tuple[str, str, str], panels: dict[str, list[Slice]], note: str
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
        column = [value for (_, _, name), value in values.items() if name == metric]
        if any(value is not None for value in column):
            bounds = (0.0, 1.0) if metric in SECURITY_METRICS else (0.0, math.inf)
            axes[metric] = fitted_axis(NAMES[metric], column, Better.LOWER, bounds=bounds)
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
    identifier, title, place = names
    return radars(
        identifier,
        title,
        list(axes.values()),
        drawn,
        spread=_spread(context),
        note=f"{note} {BETTER}",
        place=place,
    )


def _lines(context: Context, group: str, metric: str) -> Figure | None:
    epsilons = context.measured.epsilons(group)
    if not epsilons:
        return None
    lines = []
    for variant in SERIES:
        budgets: list[Sequence[float] | None] = (
            [None] if variant == FINE_TUNED else [[epsilon] for epsilon in epsilons]
        )
        values = tuple(_value(context, variant, metric, [(group, None, chosen)]) for chosen in budgets)
        lines.append(Line(label=variant, x=() if variant == FINE_TUNED else tuple(epsilons), values=values))
    perplexity = metric not in SECURITY_METRICS
    drawable = [value for line in lines for value in line.values if value is not None]
    if not drawable:
        return None
    return line_chart(
        f"{metric.replace('_', '-')}-{group.replace(' ', '-')}",
        f"{METRIC_WORDS[metric][0].upper()}{METRIC_WORDS[metric][1:]} over epsilon ({group} grid)",
        lines,
        Scales(x_name="epsilon", y_name=NAMES[metric], log_x=True, log_y=perplexity),
        spread=_spread(context),
        note=f"Means over all settings of {group}.",
    )


def _differences(context: Context, pooled: Sequence[Comparison]) -> Figure | None:
    """DP-SGD less DP-Weights in the attack's metrics, against the margin."""
    rows = []
    for one in pooled:
        ours, place = one.difference, one.place
        chosen = (place.first, place.second) == (DP_SGD, DP_WEIGHTS) and place.metric in SECURITY_METRICS
        if chosen and isinstance(ours, StatisticalTest):
            value = Value(estimate=ours.estimate, lower=ours.lower, upper=ours.upper, n=ours.n_units)
            rows.append(ForestRow(label=f"{METRIC_WORDS[place.metric]}, {place.group}", difference=value))
    if not rows:
        return None
    return forest_chart(
        "differences",
        f"{DP_SGD} less {DP_WEIGHTS}: the attack's metrics",
        rows,
        x_name="difference",
        spread=_spread(context).replace("the mean", "the difference"),
        margin=MARGIN_ATTACK,
        note=f"Means over all settings and epsilons. Left of zero {DP_SGD} leaks less to the attack.",
    )


def _spread(context: Context) -> str:
    return f"{context.percent} t interval of the mean over {context.unit}s"


def _value(context: Context, variant: str, metric: str, slices: Sequence[Slice]) -> Value | None:
    """Mean over parts of the grids, with its interval over seeds; None where a part has no value."""
    samples = []
    for group, settings, epsilons in slices:
        if not context.measured.outcomes[group]:
            continue
        sample = context.measured.sample(group, variant, metric, values=settings, epsilons=epsilons)
        if sample is None:
            return None
        samples.append((group, sample))
    if not samples:
        return None
    joined = Sample(
        np.concatenate([sample.values for _, sample in samples]),
        tuple(chain.from_iterable(sample.units for _, sample in samples)),
        context.unit,
        tuple((group, cell) for group, sample in samples for cell in sample.cells),
    )
    found = value_of(statistics.mean_interval(joined, confidence=context.confidence))
    return Value(estimate=found.estimate, lower=found.lower, upper=found.upper, n=found.n)
