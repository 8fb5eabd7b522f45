"""PACZero's figures: accuracy against what is promised, drift, and what happens over the steps of a run.

A nat and an epsilon are no common axis. What both allow an adversary to gain over guessing at even odds is
one: the promise's `max_success` less one half. It is the paper's own way of matching the two, and no claim
that they promise the same: one is about the secret subset, the other about a record.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.accounting import guarantee_from_json
from workbench.interfaces import FloatArray
from workbench.reports.papers.paczero.runs import (
    AGGZO,
    BASELINES,
    CLIFF,
    DPZERO,
    DRIFT,
    FT,
    HEADLINE,
    HYBRID,
    MEZO,
    MI,
    PLATEAU,
    QUESTION,
    SCORE,
    SENTIMENT,
    TASK_WORDS,
    TRACKS,
    UNANIMITY,
    ZPL,
    in_words,
    settings,
    trace,
)
from workbench.reports.shared.context import Context
from workbench.reports.shared.drawing.charts import Line, Scales, line_chart
from workbench.reports.shared.outcomes import Setting
from workbench.studies.experiments import Outcome
from workbench.studies.report import Figure, Value

MOST_LINES = 8

POINTS = 16
"""Stretches of the steps over which a series is averaged."""


def figures(context: Context) -> list[Figure]:
    """All figures that the study has runs for."""
    private = _private(context)
    made = [
        _promises(context),
        _budgets(context, SCORE),
        _budgets(context, UNANIMITY),
        _drift(context),
        *(_over_steps(context, name, private) for name in SERIES),
        _by_task(context),
        _losses(context),
    ]
    return [figure for figure in made if figure is not None]


def _chart(
    context: Context, name: str, lines: Sequence[Line], x_name: str, *, log_x: bool, **facts: Any
) -> Figure | None:
    """A figure under its declared words; None without any line."""
    said = context.declared.content["figures"][name]
    if not lines:
        return None
    return line_chart(
        name,
        context.render(said["title"], **facts),
        lines,
        Scales(x_name=x_name, y_name=said["y"], log_x=log_x),
        spread=context.render(said.get("spread", "{{ interval }}")),
        note=context.render(said["note"], points=POINTS),
        place=said.get("place", ""),
    )


def _along(
    context: Context, label: str, part: str, x_column: str, number: str, **values: Hashable
) -> list[Line]:
    """A number over a column of a part's runs, as a line; none where it has no number."""
    chosen = sorted(settings(context, part, **values), key=lambda setting: setting.get(x_column) or 0)
    line = tuple(context.value(part, setting, number) for setting in chosen)
    x = tuple(float(setting.get(x_column) or 0.0) for setting in chosen)
    return [Line(label=label, x=x, values=line)] if any(value is not None for value in line) else []


def _levels(context: Context, track: str) -> list[Line]:
    """PACZero-ZPL and MeZO, which have no budget, as levels."""
    lines = []
    for method, part, label in (
        (ZPL, HEADLINE, f"{ZPL} (zero nats)"),
        (MEZO, BASELINES, f"{MEZO} (no privacy)"),
    ):
        levels = (
            context.value(part, Setting.of(method=method, task=task, track=track), SCORE)
            for task in (SENTIMENT, "")
        )
        value = next((level for level in levels if level is not None), None)
        lines += [] if value is None else [Line(label=label, x=(), values=(value,))]
    return lines


def _promises(context: Context) -> Figure | None:
    """Accuracy over the gain over guessing that each promise allows."""
    lines = []
    for method, part in ((MI, PLATEAU), (DPZERO, CLIFF), (AGGZO, CLIFF)):
        points: dict[float, Value] = {}
        for setting in settings(context, part, method=method, track=FT):
            gain = _gain(context.outcomes.done(part, setting))
            value = context.value(part, setting, SCORE)
            if gain is not None and value is not None:
                points[gain] = value
        if points:
            x = tuple(sorted(points))
            lines.append(Line(label=method, x=x, values=tuple(points[gain] for gain in x)))
    levels = _levels(context, FT) if lines else []
    x_name = "gain over guessing at even odds that is allowed"
    return _chart(context, "plateau-and-cliff", [*lines, *levels], x_name, log_x=True)


def _gain(runs: Sequence[Outcome]) -> float | None:
    """The allowed success less one half; None where a run has no claim, or one that allows nothing."""
    for run in runs:
        form = None if run.claim is None else run.claim.get("guarantee")
        if isinstance(form, dict):
            gain = guarantee_from_json(form).max_success(0.5) - 0.5
            return gain if gain > 0.0 else None
    return None


def _budgets(context: Context, name: str) -> Figure | None:
    """A number over the budget in nats, a line each track."""
    lines = [
        line
        for track in TRACKS
        for line in _along(context, f"{MI}, {track}", PLATEAU, "epsilon", name, method=MI, track=track)
    ]
    levels = _levels(context, FT) if lines and name == SCORE else []
    return _chart(context, f"plateau-{name}", [*lines, *levels], "total budget, nats", log_x=True)


def _drift(context: Context) -> Figure | None:
    """Test accuracy over T, without a checkpoint chosen by dev records."""
    methods = context.outcomes.values(DRIFT, "method")[:MOST_LINES]
    lines = [
        line for method in methods for line in _along(context, method, DRIFT, "steps", SCORE, method=method)
    ]
    return _chart(context, "drift", lines, "steps T", log_x=False)


# Over the steps


@dataclass(frozen=True)
class Series:
    """A series over steps: its name in a run's traces, its factor, and how a stretch of it is summed up.

    Attributes:
        name: Of the trace.
        factor: 100 for percent.
        is_total: Whether a stretch is told by its last value (of what accumulates), else by its mean.
    """

    name: str
    factor: float = 1.0
    is_total: bool = False


UNANIMOUS = Series("unanimous", 100.0)
SERIES = {
    "steps-unanimity": UNANIMOUS,
    "steps-budget": Series("budget_used", is_total=True),
    "steps-entropy": Series("posterior_entropy", is_total=True),
}
"""By figure."""


def _private(context: Context) -> dict[str, list[Outcome]]:
    """Runs of each private method and budget, of the first track and task that has them."""
    runs: dict[str, list[Outcome]] = {}
    for part in (HEADLINE, HYBRID):
        several = (settings(context, part, task=task, track=TRACKS[0]) for task in (SENTIMENT, ""))
        for setting in next((some for some in several if some), []):
            budget = setting.get("epsilon")
            label = f"{setting.get('method')}{'' if budget is None else f', {budget:g} nats'}"
            runs.setdefault(label, context.outcomes.done(part, setting))
    return runs


def _over_steps(context: Context, figure: str, runs: Mapping[str, Sequence[Outcome]]) -> Figure | None:
    return _drawn(context, figure, SERIES[figure], _curves(SERIES[figure], runs))


def _curves(series: Series, runs: Mapping[str, Sequence[Outcome]]) -> dict[str, list[FloatArray]]:
    """The traces of the runs that have any, by label."""
    curves = {}
    for label, some in list(runs.items())[:MOST_LINES]:
        traces = [trace(run, series.name) for run in some]
        kept = [values for values in traces if values.size and np.isfinite(values).any()]
        if kept:
            curves[label] = kept
    return curves


def _by_task(context: Context) -> Figure | None:
    """Unanimity of PACZero-ZPL (where there is none, PACZero-MI) by task and track."""
    for method in (ZPL, MI):
        by_label = {}
        for task in (SENTIMENT, QUESTION):
            for track in TRACKS:
                runs = context.outcomes.done(HEADLINE, Setting.of(method=method, task=task, track=track))
                least = min((run.experiment.epsilon or 0.0 for run in runs), default=0.0)
                kept = [run for run in runs if (run.experiment.epsilon or 0.0) == least]
                if kept:
                    by_label[f"{TASK_WORDS[task]}, {track}"] = kept
        if by_label:
            curves = _curves(UNANIMOUS, by_label)
            return _drawn(context, "steps-unanimity-by-task", UNANIMOUS, curves, method=method)
    return None


def _losses(context: Context) -> Figure | None:
    """Loss of the universe over the steps of the longest runs without a checkpoint that is kept."""
    chosen = settings(context, DRIFT)
    if not chosen:
        return None
    longest = max(chosen, key=lambda setting: setting.get("steps") or 0)
    runs = [run for run in context.outcomes.done(DRIFT, longest) if run.training_losses]
    curves = [np.array(run.training_losses, dtype=np.float64) for run in runs]
    return _drawn(context, "drift-losses", Series("losses"), {in_words(longest): curves} if runs else {})


def _drawn(
    context: Context, figure: str, series: Series, curves: Mapping[str, Sequence[FloatArray]], **facts: Any
) -> Figure | None:
    lines = [_line(label, some, series) for label, some in curves.items()]
    return _chart(context, figure, lines, "step", log_x=False, **facts)


def _line(label: str, curves: Sequence[FloatArray], series: Series) -> Line:
    steps = min(curve.size for curve in curves)
    edges = np.unique(np.linspace(0, steps, min(POINTS, steps) + 1).astype(int))
    places, values = [], []
    for first, last in pairwise(edges):
        blocks = [_block(curve[first:last], series) for curve in curves]
        known = np.array([value for value in blocks if np.isfinite(value)])
        places.append(float(last if series.is_total else (first + last + 1) / 2.0))
        values.append(_mean(known) if known.size else None)
    return Line(label=label, x=tuple(places), values=tuple(values))


def _block(values: FloatArray, series: Series) -> float:
    known = values[np.isfinite(values)]
    if not known.size:
        return float("nan")
    return series.factor * float(known[-1] if series.is_total else known.mean())


def _mean(values: FloatArray) -> Value:
    """Mean, least and largest: a t interval of three shares would leave the shares."""
    return Value(
        estimate=float(values.mean()), lower=float(values.min()), upper=float(values.max()), n=values.size
    )
