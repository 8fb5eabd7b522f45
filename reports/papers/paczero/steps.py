"""What happens over the steps of a run: unanimity, the budget that is spent, and the posterior's entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from workbench.interfaces import FloatArray
from workbench.reports.papers.paczero.cells import Context
from workbench.reports.papers.paczero.layout import (
    DRIFT,
    HEADLINE,
    HYBRID,
    MI,
    QUESTION,
    SENTIMENT,
    TASK_WORDS,
    TRACKS,
    UNIT,
    ZPL,
    Setting,
    trace,
)
from workbench.reports.shared.charts import Line, Scales, line_chart
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Figure, Value

POINTS = 16
"""Stretches of the steps over which a series is averaged."""

MOST_LINES = 8

STEPS = (HEADLINE, HYBRID)
"""Groups whose runs are drawn over the steps."""


@dataclass(frozen=True)
class _Series:
    """A series that is drawn: its name in traces, its factor, and what figure it makes."""

    name: str
    factor: float
    identifier: str
    title: str
    y_name: str
    note: str
    ends: bool
    """Whether a stretch is told by its last value (of what accumulates), else by its mean."""


UNANIMOUS = _Series(
    "unanimous",
    100.0,
    "steps-unanimity",
    "Unanimity rate over the steps",
    "steps with one sign, %",
    "Share of the steps in which all candidate subsets that the transcript leaves possible have one sign, "
    "so that the release is free.",
    False,
)
SPENT = _Series(
    "budget_used",
    1.0,
    "steps-budget",
    "Budget used over the steps",
    "nats used",
    "What the ledger has charged so far.",
    True,
)
ENTROPY = _Series(
    "posterior_entropy",
    1.0,
    "steps-entropy",
    "Entropy of the posterior over the secret subset",
    "nats",
    "Entropy of the ledger's posterior over the M candidates, which begins at ln M; it may rise on the way, "
    "and its fall is what this one transcript has told, not the mutual information, which is a mean over "
    "transcripts. Where the ledger conditions on values that are not released, the adversary knows less.",
    True,
)


def step_figures(context: Context) -> list[Figure]:
    """Unanimity, budget and entropy of the sentiment runs, and unanimity by task and track."""
    private = _private(context)
    made = [
        *(_figure(series, private) for series in (UNANIMOUS, SPENT, ENTROPY)),
        _by_cell(context),
        _losses(context),
    ]
    return [figure for figure in made if figure is not None]


def _private(context: Context) -> dict[str, list[Outcome]]:
    """Runs of each private variant and budget, of the first track and task that has them."""
    found: dict[str, list[Outcome]] = {}
    for group in STEPS:
        for task in (SENTIMENT, ""):
            settings = context.measured.settings(group, task=task, track=TRACKS[0])
            for setting in settings:
                budget = "" if setting.epsilon is None else f", {setting.epsilon:g} nats"
                found.setdefault(f"{setting.variant}{budget}", _done(context.measured.runs(group, setting)))
            if settings:
                break
    return found


def _by_cell(context: Context) -> Figure | None:
    """Unanimity of PACZero-ZPL (where there is none, PACZero-MI) by task and track."""
    found = {}
    for variant in (ZPL, MI):
        for task in (SENTIMENT, QUESTION):
            for track in TRACKS:
                setting = Setting(variant=variant, task=task, track=track)
                runs = _done(context.measured.runs(HEADLINE, setting))
                if runs:
                    least = min(one.experiment.epsilon or 0.0 for one in runs)
                    kept = [one for one in runs if (one.experiment.epsilon or 0.0) == least]
                    found[f"{TASK_WORDS[task]}, {track}"] = kept
        if found:
            series = _Series(
                UNANIMOUS.name,
                UNANIMOUS.factor,
                "steps-unanimity-by-task",
                f"Unanimity rate of {variant} over the steps, by task and track",
                UNANIMOUS.y_name,
                UNANIMOUS.note,
                UNANIMOUS.ends,
            )
            return _figure(series, found)
    return None


def _losses(context: Context) -> Figure | None:
    """Loss of the universe over the steps of the longest runs without a checkpoint that is kept."""
    settings = context.measured.settings(DRIFT)
    if not settings:
        return None
    longest = max(settings, key=lambda setting: setting.steps or 0)
    runs = [one for one in _done(context.measured.runs(DRIFT, longest)) if one.training_losses]
    if not runs:
        return None
    curves = {str(longest): [np.array(one.training_losses, dtype=np.float64) for one in runs]}
    series = _Series(
        "losses",
        1.0,
        "drift-losses",
        "Loss of the universe over the steps of the longest run",
        "nats",
        "Mean loss of all records of the universe in each step, averaged over stretches of steps.",
        False,
    )
    return _drawn(series, curves)


def _done(runs: Sequence[Outcome]) -> list[Outcome]:
    return [one for one in runs if one.status is Status.DONE]


def _figure(series: _Series, runs: dict[str, list[Outcome]]) -> Figure | None:
    """One line a label, of the runs that have the series; None where none has."""
    curves: dict[str, list[FloatArray]] = {}
    for label, some in list(runs.items())[:MOST_LINES]:
        kept = [trace(one, series.name) for one in some]
        kept = [values for values in kept if values.size and np.isfinite(values).any()]
        if kept:
            curves[label] = kept
    return _drawn(series, curves) if curves else None


def _drawn(series: _Series, curves: dict[str, list[FloatArray]]) -> Figure:
    lines = [_line(label, some, series) for label, some in curves.items()]
    return line_chart(
        series.identifier,
        series.title,
        lines,
        Scales(x_name="step", y_name=series.y_name, log_x=False),
        spread=f"from the least to the largest {UNIT}",
        note=f"{series.note} Means over {UNIT}s, over {POINTS} stretches of the steps.",
    )


def _line(label: str, curves: Sequence[FloatArray], series: _Series) -> Line:
    steps = min(curve.size for curve in curves)
    edges = np.unique(np.linspace(0, steps, min(POINTS, steps) + 1).astype(int))
    places, values = [], []
    for first, last in pairwise(edges):
        blocks = [_block(curve[first:last], series) for curve in curves]
        known = np.array([value for value in blocks if np.isfinite(value)])
        places.append(float(last if series.ends else (first + last + 1) / 2.0))
        values.append(_mean(known) if known.size else None)
    return Line(label=label, x=tuple(places), values=tuple(values))


def _block(values: FloatArray, series: _Series) -> float:
    known = values[np.isfinite(values)]
    if not known.size:
        return float("nan")
    return series.factor * float(known[-1] if series.ends else known.mean())


def _mean(values: FloatArray) -> Value:
    """Mean, least and largest: a t interval of three shares would leave the shares."""
    return Value(
        estimate=float(values.mean()),
        lower=float(values.min()),
        upper=float(values.max()),
        n=values.size,
    )
