"""FERRET's Figures 1 to 5, and the transcript game against both readings of the claim.

What the axes of the paper's radar charts are stands only in its pictures, which our copy has not; ours have
privacy (AUC and advantage of the attack), utility (test and train perplexity) and efficiency (time).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.interfaces import FloatArray
from workbench.reports.papers.ferret.game import CANARIES, TranscriptCell, judged_cells
from workbench.reports.papers.ferret.places import (
    ADVANTAGE,
    AUC,
    COMPARISON,
    DITHER,
    GRANULARITIES,
    METHODS,
    METRIC_WORDS,
    MODELS,
    NON_DP,
    POSITIVE,
    TEST,
    at,
    epochs_of,
    epsilons_of,
    geometric,
    models,
    plain,
    plural_epochs,
    sample,
)
from workbench.reports.shared.context import Context
from workbench.reports.shared.drawing.charts import Line, Scales, line_chart
from workbench.reports.shared.drawing.figures import (
    MARKERS,
    FigureText,
    Panel,
    make_figure,
    marker,
    series_css,
)
from workbench.reports.shared.drawing.radar import (
    Better,
    Series,
    fitted_axis,
    radar,
)
from workbench.reports.shared.drawing.roc import RocSubject, roc_chart
from workbench.reports.shared.drawing.svg import Scale, SeriesChart
from workbench.reports.shared.numbers import percent
from workbench.reports.shared.paper_cells import has_curve
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Figure, FigureKey, Value

ROC_MODEL, ROC_EPSILON = "TinyLlama-1.1B", 2.0
"""Whose curves Figure 1 shows."""

POINTS = 24
"""Places along the steps at which medians of the toy regression's loss are drawn."""

LAST = 0.1
"""Share of the toy regression's steps whose mean is the final loss."""

MOST_LINES = 8
MOST_RECORDS = 4

_ROOM = 0.09
"""Room left of zero for one record's points without a false alarm, which would hide each other."""

_FIRST, _SLOT = 6.0, 4.6
"""Pixels from zero to the first of them, and from one to the next."""

_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def figures(context: Context) -> list[Figure]:
    """Figures 1 to 5, perplexity and AUC over epsilon, and both regions; what has no data is left out."""
    epochs = epochs_of(context)
    last = max(epochs, default=0)
    third = 3 if 3 in epochs else last
    drawn = [
        _roc(context, last, ROC_EPSILON),
        _roc(context, last, None),
        _radar(context, 2, third, epsilons_of(context)),
        _radar(context, 3, last, [0.5]),
        _radar(context, 4, last, [0.1]),
        dither_figure(context),
        regions_figure(context, judged_cells(context)),
        *(_lines(context, metric, last) for metric in (TEST, AUC)),
    ]
    return [figure for figure in drawn if figure is not None]


def _words(context: Context, name: str) -> Mapping[str, Any]:
    words: Mapping[str, Any] = context.declared.content["figures"][name]
    return words


def _roc(context: Context, epochs: int, epsilon: float | None) -> Figure | None:
    """One side of Figure 1: curves of all methods with a budget, or of the one without."""
    known = models(context)
    if not known:
        return None
    model = next((name for name in known if MODELS.get(name) == ROC_MODEL), known[0])
    subjects = []
    for method in METHODS:
        runs = [
            run
            for run in context.outcomes.runs(COMPARISON, at(method, epochs, epsilon))
            if (method == NON_DP) == (epsilon is None) and run.experiment.model == model and has_curve(run)
        ]
        if runs:
            subjects.append(RocSubject(label=method, scores=runs[0].scores, included=runs[0].included))
    if not subjects:
        return None
    words = _words(context, "roc")
    facts = {"model": model, "stands_for": MODELS.get(model), "epsilon": epsilon}
    return roc_chart(
        f"figure-1-{'non-private' if epsilon is None else f'epsilon-{epsilon:g}'}",
        context.render(words["title"], **facts),
        subjects,
        note=context.render(words["note"], epochs=plural_epochs(epochs), **facts),
        place=context.render(words["place"], **facts),
    )


def _radar(context: Context, place: int, epochs: int, epsilons: Sequence[float]) -> Figure | None:
    """One radar chart on the axes that have values; None with fewer than three."""
    words, names = _words(context, "radar"), _words(context, "axes")
    values = {
        (method, metric): _value(context, method, metric, epochs, epsilons)
        for method in METHODS
        for metric in names
    }
    axes = {}
    for metric, name in names.items():
        column = [values[method, metric] for method in METHODS]
        if any(value is not None for value in column):
            is_share = metric in (AUC, ADVANTAGE)
            bounds, log = ((0.0, 1.0), False) if is_share else ((0.0, math.inf), None)
            axes[metric] = fitted_axis(name, column, Better.LOWER, bounds=bounds, log=log)
    if len(axes) < 3:
        return None
    series = [
        Series(label=method, values=tuple(values[method, metric] for metric in axes))
        for method in METHODS
        if any(values[method, metric] is not None for metric in axes)
    ]
    chosen = words[f"figure-{place}"]
    return radar(
        f"figure-{place}",
        chosen["title"],
        list(axes.values()),
        series,
        spread=context.render(words["spread"]),
        note=context.render(words["note"], of=chosen["of"], epochs=plural_epochs(epochs)),
        place=f"Figure {place}",
    )


def _value(
    context: Context, method: str, metric: str, epochs: int, epsilons: Sequence[float]
) -> Value | None:
    """Mean over models (and epsilons), with its interval; None where a part has no value."""
    budgets: list[float | None] = [None] if method == NON_DP else list(epsilons)
    known = {
        epsilon: known_sample
        for epsilon in budgets
        if (known_sample := sample(context, at(method, epochs, epsilon), metric)) is not None
    }
    if not known or len(known) < len(budgets):
        return None
    joined = Sample(
        np.concatenate([known_sample.values for known_sample in known.values()]),
        tuple(unit for known_sample in known.values() for unit in known_sample.units),
        context.outcomes.unit,
        tuple((epsilon, cell) for epsilon, known_sample in known.items() for cell in known_sample.cells),
    )
    if metric in POSITIVE:
        return geometric(joined, context.confidence) if joined.values.min() > 0.0 else None
    return plain(context.mean(joined))


def _lines(context: Context, metric: str, epochs: int) -> Figure | None:
    """A metric over epsilon at the longest training, a line each method."""
    epsilons, lines = epsilons_of(context), []
    for method in METHODS if epsilons else ():
        budgets: list[Sequence[float]] = [()] if method == NON_DP else [[epsilon] for epsilon in epsilons]
        values = tuple(_value(context, method, metric, epochs, epsilon) for epsilon in budgets)
        if any(value is not None for value in values):
            lines.append(Line(label=method, x=() if method == NON_DP else tuple(epsilons), values=values))
    if not lines:
        return None
    words, is_perplexity = _words(context, "lines"), metric in POSITIVE
    return line_chart(
        f"{metric.replace('_', '-')}-epsilon",
        context.render(words["title"], is_perplexity=is_perplexity, epochs=plural_epochs(epochs)),
        lines,
        Scales(x_name="epsilon", y_name=METRIC_WORDS[metric], log_x=True, log_y=is_perplexity),
        spread=context.render(words["spread"]),
        note=context.render(words["note"], is_perplexity=is_perplexity),
    )


# Figure 5: the toy regression


def dithers(context: Context) -> dict[float, list[Outcome]]:
    """Finished outcomes of the toy regression by the dither's standard deviation, ascending."""
    by_sigma: dict[float, list[Outcome]] = {}
    for outcome in context.outcomes.part(DITHER):
        if outcome.status is Status.DONE and outcome.training_losses:
            sigma = float(outcome.experiment.mechanism_parameters.get("dither_standard_deviation", 0.0))
            by_sigma.setdefault(sigma, []).append(outcome)
    return dict(sorted(by_sigma.items()))


def known_losses(outcome: Outcome) -> FloatArray:
    """Loss of every step, shape `(T,)`; a silent step, which is not measured, has the last one.

    Steps before the first measured one have the first measured loss.
    """
    losses = np.array(outcome.training_losses, dtype=np.float64)
    places = np.flatnonzero(np.isfinite(losses))
    if not places.size:
        return losses
    last = np.maximum.accumulate(np.where(np.isfinite(losses), np.arange(losses.size), places[0]))
    return np.asarray(losses[last], dtype=np.float64)


def final_loss(outcome: Outcome) -> float:
    """Mean loss of the last tenth of the steps; NaN where no step was measured."""
    losses = known_losses(outcome)
    return float(np.mean(losses[-max(1, round(LAST * losses.size)) :]))


def final_losses(context: Context, sigma: float) -> Sample | None:
    """Final losses at a dither's deviation, by seed; None without a run, or where one is not finite."""
    outcomes = dithers(context).get(sigma, [])
    values = np.array([final_loss(outcome) for outcome in outcomes])
    if not values.size or not np.all(np.isfinite(values)):
        return None
    return Sample(values, tuple(run.experiment.seed for run in outcomes), "seed")


def dither_figure(context: Context) -> Figure | None:
    """Figure 5: median and quartiles over seeds along the steps, a line each sigma; None without data."""
    lines = []
    for sigma, outcomes in list(dithers(context).items())[:MOST_LINES]:
        curves = [known_losses(outcome) for outcome in outcomes]
        steps = min(curve.size for curve in curves)
        edges = np.unique(np.linspace(0, steps, min(POINTS, steps) + 1).astype(int))
        blocks = np.array([[float(np.mean(curve[a:b])) for a, b in pairwise(edges)] for curve in curves])
        quartiles = np.quantile(blocks, [0.25, 0.5, 0.75], axis=0)
        values = tuple(
            Value(estimate=float(middle), lower=float(low), upper=float(high), n=len(outcomes))
            for low, middle, high in quartiles.T
        )
        x = tuple(float(a + b + 1) / 2.0 for a, b in pairwise(edges))
        lines.append(Line(label=f"σ = {sigma:g}", x=x, values=values))
    if not any(math.isfinite(value.estimate) for line in lines for value in line.values if value):
        return None
    words = _words(context, "dither")
    return line_chart(
        "figure-5",
        words["title"],
        lines,
        Scales(x_name="step", y_name="mean squared error", log_x=False, log_y=True),
        spread=words["spread"],
        note=context.render(words["note"], points=POINTS),
        place="Figure 5",
    )


# The transcript game: measured points against what both readings of the claim allow


def regions_figure(context: Context, cells: Sequence[TranscriptCell]) -> Figure | None:
    """Panels by epsilon: (FPR, TPR) of each grouping (marker) and record (colour); None without a game."""
    variants = _ordered([cell.variant for cell in cells], GRANULARITIES)[: len(MARKERS)]
    usual = [f"{name} record" for name in CANARIES]
    records = _ordered([cell.record for cell in cells], usual)[:MOST_RECORDS]
    drawn = [cell for cell in cells if cell.variant in variants and cell.record in records]
    if not drawn:
        return None
    panels = []
    for place, epsilon in enumerate(sorted({cell.epsilon for cell in drawn})):
        here = [cell for cell in drawn if cell.epsilon == epsilon]
        panels.append(_panel(f"both-regions-{place}", epsilon, here, variants, records))
    words = _words(context, "regions")
    legend = [
        *(
            FigureKey(css="series-6", label=name, shape=f"only {MARKERS[i]}")
            for i, name in enumerate(variants)
        ),
        *(FigureKey(css=series_css(i), label=name, shape="whisker") for i, name in enumerate(records)),
        FigureKey(css="margin", label=words["dp"], shape="plain area"),
        FigureKey(css="zero", label=words["nats"]),
        FigureKey(css="chance", label="guessing"),
    ]
    caption = context.render(
        words["caption"],
        trials=sorted({cell.trials for cell in drawn}),
        delta=drawn[0].reading.delta,
        beyond=dict.fromkeys(
            (cell.game_words, cell.evidence.game.beyond) for cell in drawn if cell.evidence.game.beyond
        ),
    )
    text = FigureText(identifier="both-regions", title=words["title"], caption=caption)
    return make_figure(text, panels, legend)


def _ordered(names: Sequence[str], order: Sequence[str]) -> list[str]:
    present = dict.fromkeys(names)
    return [*(name for name in order if name in present), *(name for name in present if name not in order)]


def _panel(
    identifier: str,
    epsilon: float,
    cells: Sequence[TranscriptCell],
    variants: Sequence[str],
    records: Sequence[str],
) -> Panel:
    about = "; ".join(
        f"{cell.variant}, {cell.game_words}: FPR {percent(cell.fpr.estimate)}, TPR "
        f"{percent(cell.tpr.estimate)}"
        for cell in cells
    )
    chart = SeriesChart(
        identifier=identifier,
        title=f"Measured rates at epsilon {epsilon:g}",
        description=f"{about}.",
        height=430.0,
    )
    is_certain = any(cell.fpr.estimate == 0.0 for cell in cells)
    x = chart.horizontal(-_ROOM * len(records) if is_certain else -0.03, 1.03)
    y = chart.vertical(-0.03, 1.03)
    labels = [percent(tick) for tick in _TICKS]
    chart.x_axis(x, _TICKS, labels, "False-positive rate")
    chart.y_axis(y, _TICKS, labels, "True-positive rate")
    _allowed(chart, (x, y), cells[0])
    for cell in cells:
        shape, colour = variants.index(cell.variant), records.index(cell.record)
        _cross(chart, (x, y), cell, (shape, colour, colour * len(variants) + shape))
    return Panel(svg=chart.svg(), width=chart.width, height=chart.height, heading=f"epsilon {epsilon:g}")


def _allowed(chart: SeriesChart, scales: tuple[Scale, Scale], cell: TranscriptCell) -> None:
    """The DP region, both sides of the diagonal, and the line of the nats."""
    x, y = scales
    fpr = np.linspace(0.0, 1.0, 201)
    top: FloatArray = np.asarray(cell.reading.max_tpr(fpr), dtype=np.float64)
    # A test that is always wrong tells as much: the region is symmetric about the centre.
    low = 1.0 - np.asarray(cell.reading.max_tpr(1.0 - fpr), dtype=np.float64)
    across = x(fpr)
    chart.area(np.concatenate([across, across[::-1]]), np.concatenate([y(top), y(low)[::-1]]), "margin")
    ends = np.array([0.0, 1.0])
    chart.line(x(ends), y(ends), "trace chance")
    gain = 2.0 * cell.claim.max_success(0.5) - 1.0
    line = np.array([0.0, 1.0 - gain])
    chart.line(x(line), y(line + gain), "trace zero")
    if gain >= 1.0:
        chart.label(x.at(1.0), y.at(0.02), "the claimed nats allow every point", "row", "end")


def _cross(
    chart: SeriesChart, scales: tuple[Scale, Scale], cell: TranscriptCell, style: tuple[int, int, int]
) -> None:
    """A marker with its arms; without a false alarm it stands left of zero, in a place of its own."""
    (x, y), (shape, colour, slot), (fpr, tpr) = scales, style, (cell.fpr, cell.tpr)
    across = x.at(fpr.estimate) if fpr.estimate > 0.0 else x.at(0.0) - _FIRST - _SLOT * slot
    up = y.at(tpr.estimate)
    chart.whisker((x.at(fpr.lower), up), (x.at(fpr.upper), up), colour)
    chart.whisker((across, y.at(tpr.lower)), (across, y.at(tpr.upper)), colour)
    chart.put(marker(MARKERS[shape], across, up, series_css(colour), 3.6))
