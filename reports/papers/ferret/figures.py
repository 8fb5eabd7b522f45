"""FERRET's Figures 1 to 5 from a study's results, and the transcript game against both readings of the claim.

What the axes of the paper's radar charts are stands only in its pictures, which our copy has not; ours have
privacy (AUC and advantage of the attack), utility (test and train perplexity) and efficiency (time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from workbench.reports.papers.ferret.cells import Context, draw_notes
from workbench.reports.papers.ferret.dither import dither_figure
from workbench.reports.papers.ferret.layout import (
    ADVANTAGE,
    AUC,
    DPSGD,
    METHODS,
    MODELS,
    NON_DP,
    POSITIVE,
    SECONDS,
    TEST,
    TRAIN,
    WORDS,
    Setting,
    plural_epochs,
)
from workbench.reports.papers.ferret.regions import regions_figure
from workbench.reports.papers.ferret.samples import UNIT, geometric
from workbench.reports.papers.ferret.transcript import TranscriptCell
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import has_curve
from workbench.reports.shared.charts import Line, RocSubject, Scales, line_chart, roc_chart
from workbench.reports.shared.radar import Better, Series, fitted_axis, radar
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome
from workbench.studies.report import Figure, Value

AXES = {
    AUC: "attack's AUC (privacy)",
    ADVANTAGE: "advantage (privacy)",
    TEST: "test PPL (utility)",
    TRAIN: "train PPL (utility)",
    SECONDS: "seconds (efficiency)",
}
"""Axes of the radar charts, clockwise; lower is better on each."""

ROC_MODEL = "llama_base"
"""Stands in for TinyLlama-1.1B, whose curves Figure 1 shows."""

ROC_EPSILON = 2.0


def figures(context: Context, cells: Sequence[TranscriptCell]) -> list[Figure]:
    """Figures 1 to 5, perplexity over epsilon, and both regions; what has no data is left out.

    Args:
        context: Of the report.
        cells: Of the transcript game.
    """
    measured = context.measured
    epochs = measured.epochs()
    last = max(epochs, default=0)
    third = 3 if 3 in epochs else last
    drawn = [
        _roc(context, last, ROC_EPSILON),
        _roc(context, last, None),
        _radar(
            context,
            ("figure-2", "Privacy: all epsilons", "Figure 2"),
            (third, list(measured.epsilons())),
            f"Means over all epsilons of {plural_epochs(third)}",
        ),
        _radar(
            context,
            ("figure-3", "Utility: epsilon 0.5", "Figure 3"),
            (last, [0.5]),
            f"Epsilon 0.5, {plural_epochs(last)}",
        ),
        _radar(
            context,
            ("figure-4", "Efficiency: epsilon 0.1", "Figure 4"),
            (last, [0.1]),
            f"Epsilon 0.1, {plural_epochs(last)}",
        ),
        dither_figure(context),
        regions_figure(cells, confidence=context.confidence),
        *(_lines(context, metric, last) for metric in (TEST, AUC)),
    ]
    return [figure for figure in drawn if figure is not None]


def _roc(context: Context, epochs: int, epsilon: float | None) -> Figure | None:
    """One side of Figure 1: curves of all methods with a budget, or of the one without."""
    models = context.measured.models
    if not models:
        return None
    model = ROC_MODEL if ROC_MODEL in models else models[0]
    subjects = []
    for variant in METHODS:
        if (variant == NON_DP) != (epsilon is None):
            continue
        run = _first(context, Setting(variant=variant, epochs=epochs, epsilon=epsilon), model)
        if run is not None:
            subjects.append(RocSubject(label=variant, scores=run.scores, included=run.included))
    if not subjects:
        return None
    stands = f", which stands in for {MODELS[model]}" if model in MODELS else ""
    side = "right: non-private" if epsilon is None else f"left: epsilon {epsilon:g}"
    budget = "non-private" if epsilon is None else f"epsilon {epsilon:g}"
    return roc_chart(
        f"figure-1-{'non-private' if epsilon is None else f'epsilon-{epsilon:g}'}",
        f"ROC of the attack on {model}, {budget}",
        subjects,
        note=(
            f"One training each of {model}{stands}, {plural_epochs(epochs)}, the first seed. The paper does "
            "not say how many epochs its curves are of."
        ),
        place=f"Figure 1, {side}",
    )


def _first(context: Context, setting: Setting, model: str) -> Outcome | None:
    runs = [one for one in context.measured.runs(setting) if one.experiment.model == model and has_curve(one)]
    return min(runs, key=lambda one: one.experiment.seed, default=None)


def _radar(
    context: Context, names: tuple[str, str, str], place: tuple[int, Sequence[float]], note: str
) -> Figure | None:
    """One radar chart on the axes that have values; None with fewer than three."""
    epochs, epsilons = place
    values = {
        (variant, metric): _value(context, variant, metric, epochs, epsilons)
        for variant in METHODS
        for metric in AXES
    }
    axes = {}
    for metric, name in AXES.items():
        column = [values[variant, metric] for variant in METHODS]
        if any(value is not None for value in column):
            share = metric in (AUC, ADVANTAGE)
            bounds = (0.0, 1.0) if share else (0.0, math.inf)
            log = False if share else None
            axes[metric] = fitted_axis(name, column, Better.LOWER, bounds=bounds, log=log)
    if len(axes) < 3:
        return None
    series = [
        Series(label=variant, values=tuple(values[variant, metric] for metric in axes))
        for variant in METHODS
        if any(values[variant, metric] is not None for metric in axes)
    ]
    identifier, title, where = names
    return radar(
        identifier,
        title,
        list(axes.values()),
        series,
        spread=f"{context.percent} t interval over {UNIT}s",
        note=(
            f"{note}; {NON_DP} has no epsilon. Means over {UNIT}s; of perplexities and seconds geometric "
            f"means, so that no {UNIT} outweighs the rest. Seconds are wall-clock and differ from run to "
            "run. The paper's own axes stand only in its picture."
        ),
        place=where,
    )


def _value(
    context: Context, variant: str, metric: str, epochs: int, epsilons: Sequence[float]
) -> Value | None:
    """Mean over models (and epsilons), with its interval; None where a part has no value."""
    budgets: list[float | None] = [None] if variant == NON_DP else list(epsilons)
    samples = []
    for epsilon in budgets:
        sample = context.measured.sample(Setting(variant=variant, epochs=epochs, epsilon=epsilon), metric)
        if sample is None:
            return None
        samples.append((epsilon, sample))
    if not samples:
        return None
    joined = Sample(
        np.concatenate([sample.values for _, sample in samples]),
        tuple(unit for _, sample in samples for unit in sample.units),
        UNIT,
        tuple((epsilon, cell) for epsilon, sample in samples for cell in sample.cells),
    )
    if metric in POSITIVE:
        return geometric(joined, context.confidence) if joined.values.min() > 0.0 else None
    found = statistics.value_of(statistics.mean_interval(joined, confidence=context.confidence))
    return Value(estimate=found.estimate, lower=found.lower, upper=found.upper, n=found.n)


def _lines(context: Context, metric: str, epochs: int) -> Figure | None:
    """A metric over epsilon at the longest training, a line each method."""
    epsilons = context.measured.epsilons()
    if not epsilons:
        return None
    lines = []
    for variant in METHODS:
        budgets: list[Sequence[float]] = [()] if variant == NON_DP else [[epsilon] for epsilon in epsilons]
        values = tuple(_value(context, variant, metric, epochs, one) for one in budgets)
        if any(value is not None for value in values):
            lines.append(Line(label=variant, x=() if variant == NON_DP else tuple(epsilons), values=values))
    if not lines:
        return None
    perplexity = metric in POSITIVE
    draw = "" if perplexity else "".join(f"{note} " for note in draw_notes(context))
    return line_chart(
        f"{metric.replace('_', '-')}-epsilon",
        f"{'Test perplexity' if perplexity else 'Membership AUC'} over epsilon, {plural_epochs(epochs)}",
        lines,
        Scales(x_name="epsilon", y_name=WORDS[metric], log_x=True, log_y=perplexity),
        spread=f"{context.percent} t interval over {UNIT}s",
        note=(
            f"{'Geometric means' if perplexity else 'Means'} over {UNIT}s. {draw}The epsilons of {DPSGD} are "
            "of (epsilon, delta)-DP, those of FERRET nats of mutual information: the same number on the axis "
            "is not the same promise."
        ),
    )
