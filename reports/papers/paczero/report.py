"""PACZero, regenerated: its tables and figures beside the printed numbers, and what its conclusions ask.

A nat and an epsilon are no common axis. What both allow an adversary to gain over guessing at even odds is
one: the promise's `max_success` less one half. It is the paper's own way of matching the two, and no claim
that they promise the same: one is about the secret subset, the other about a record. Settings of the paper's
larger model are left out, for none of our models stands in for it. Two pairs of printed settings that our
study does not tell apart are one condition.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from workbench.accounting import guarantee_from_json
from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.interfaces import FloatArray
from workbench.reports.papers.paczero.paper import CHECKS, PRINTED, REMARKS, VALUES
from workbench.reports.papers.paczero.runs import (
    AGGZO,
    BASELINES,
    CLIFF,
    DEV,
    DPZERO,
    DRIFT,
    FT,
    HEADLINE,
    HYBRID,
    MEZO,
    MI,
    NUMBERS,
    OTHER_MODEL,
    PLATEAU,
    QUESTION,
    SCORE,
    SENTIMENT,
    TASK_WORDS,
    TRACKS,
    UNANIMITY,
    ZPL,
    in_words,
    place,
    settings,
    trace,
)
from workbench.reports.papers.paczero.tables import CELLS, ROWS, TABLES, WORDS
from workbench.reports.papers.paczero.uncertainty import chance_p
from workbench.reports.shared.claims import Comparison, comparisons, ends_of
from workbench.reports.shared.conditions import (
    Asked,
    Condition,
    Ends,
    asked_between,
    differences,
    untestable,
)
from workbench.reports.shared.context import Bindings, Context, PaperFunctions, Place
from workbench.reports.shared.declared import declared
from workbench.reports.shared.drawing.charts import Line, Scales, line_chart
from workbench.reports.shared.findings import listed, parameter
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import Setting
from workbench.reports.shared.printed import SLACK, at, centre, stands_for
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import Outcome, Status, StudyResults
from workbench.studies.report import Figure, StudyReport, Value

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
    words = context.declared.content["figures"][name]
    if not lines:
        return None
    return line_chart(
        name,
        context.render(words["title"], **facts),
        lines,
        Scales(x_name=x_name, y_name=words["y"], log_x=log_x),
        spread=context.render(words.get("spread", "{{ interval }}")),
        note=context.render(words["note"], points=POINTS),
        place=words.get("place", ""),
    )


def _line_along(
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
        for line in _line_along(context, f"{MI}, {track}", PLATEAU, "epsilon", name, method=MI, track=track)
    ]
    levels = _levels(context, FT) if lines and name == SCORE else []
    return _chart(context, f"plateau-{name}", [*lines, *levels], "total budget, nats", log_x=True)


def _drift(context: Context) -> Figure | None:
    """Test accuracy over T, without a checkpoint chosen by dev records."""
    methods = context.outcomes.values(DRIFT, "method")[:MOST_LINES]
    lines = [
        line
        for method in methods
        for line in _line_along(context, method, DRIFT, "steps", SCORE, method=method)
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


METRICS = {
    "accuracy": SCORE,
    "f1": SCORE,
    "accuracy or f1": SCORE,
    "dev accuracy": DEV,
    "unanimity": UNANIMITY,
    "nats_used": "nats_used",
}

EXACT = 1e-9
"""Relative rounding error that a sum of charges may have."""

LEVEL = 0.05
"""Of the exact tests of the paper's cells."""


def _metric(claim: QualitativeClaim) -> str:
    name = str(claim.parameters.get("metric", ""))
    if name not in METRICS:
        raise unknown_name(f"metric of claim {claim.id!r}:", name, METRICS)
    return METRICS[name]


def _sample(context: Context, here: Place, metric: str) -> Sample | str:
    return here.why or context.outcomes.complete(here.parts, here.setting, metric)


def _is_awaited(context: Context, here: Place) -> bool:
    return not here.why and context.outcomes.is_awaited(here.parts, here.setting)


def _asked(
    context: Context, claim: QualitativeClaim, chosen: Iterable[Comparison], ends: Ends | None = None
) -> list[Asked]:
    """A number at a place, or at the first less the second, lies between the ends of the declared test."""
    ends, metric = ends or ends_of(claim, context.declared.content["test"][claim.test]), _metric(claim)
    conditions: dict[tuple[Place, ...], Asked] = {}
    for comparison in chosen:
        places = tuple(place(context, at) for at in comparison.places)
        if any(here.why == OTHER_MODEL for here in places) or places in conditions:
            continue
        where = " less ".join(in_words(here.setting) for here in places)
        samples = [_sample(context, here, metric) for here in places]
        lost = [sample for sample in samples if isinstance(sample, str)]
        known = [sample for sample in samples if isinstance(sample, Sample)]
        sample = lost[0] if lost else known[0] if len(known) == 1 else differences(*known)
        not_run = bool(lost) and any(_is_awaited(context, here) for here in places)
        conditions[places] = asked_between(where, sample, ends, context.confidence, not_run=not_run)
    return list(conditions.values())


def _compared(context: Context, claim: QualitativeClaim) -> list[Asked]:
    test = context.declared.content["test"][claim.test]
    return _asked(context, claim, comparisons(claim, test, context.declared))


def _at_chance(context: Context, claim: QualitativeClaim) -> list[Asked]:
    test, chance = context.declared.content["test"][claim.test], parameter(claim, "chance")
    ends = Ends(low=chance - test["margin"], high=chance + test["margin"])
    return _asked(context, claim, comparisons(claim, test, context.declared), ends)


def _along(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Each of the settings that our study has runs of against the next."""
    kept = _present(context, listed(claim, "settings"))
    pairs = pairwise(kept)
    return _asked(context, claim, (Comparison(names={}, places=pair) for pair in pairs))


def _flat(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """All pairs; of settings that ran the same steps in every seed one stands for all.

    At small budgets the noise drowns the sign, and every released bit is the same noise's: such runs are one
    run, whose difference to itself tests nothing.
    """
    distinct: list[Bindings] = []
    for setting in _present(context, listed(claim, "settings")):
        if not any(_same_steps(context, setting, other) for other in distinct):
            distinct.append(setting)
    pairs = combinations(distinct, 2)
    return _asked(context, claim, (Comparison(names={}, places=pair) for pair in pairs))


def _same_steps(context: Context, first: Bindings, second: Bindings) -> bool:
    """Whether two settings have the same losses in every step of every seed."""
    losses = []
    for setting in (first, second):
        here = place(context, setting)
        runs = [] if here.why else context.outcomes.runs(here.parts, here.setting)
        losses.append({run.experiment.seed: run.training_losses for run in runs})
    return losses[0] == losses[1] and all(losses[0].values()) and bool(losses[0])


def _present(context: Context, settings: Sequence[Bindings]) -> Sequence[Bindings]:
    """The settings that our study has runs of; all of them where those are fewer than two."""
    places = [place(context, setting) for setting in settings]
    kept = [
        setting
        for setting, here in zip(settings, places, strict=True)
        if not here.why and context.outcomes.runs(here.parts, here.setting)
    ]
    return kept if len(kept) > 1 else settings


def _budget_kept(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Of every run with a budget in nats: a fact of each realisation, which needs no test."""
    metric = _metric(claim)
    shares = [
        run.metrics[metric] / float(run.experiment.epsilon or math.nan)
        for run in context.outcomes.outcomes
        if run.status is Status.DONE and run.experiment.epsilon is not None and metric in run.metrics
    ]
    if not shares:
        return [Asked(untestable("nats used", "no finished run with a budget tells what it used"))]
    holds = max(shares) <= 1.0 + EXACT
    return [
        Asked(
            Condition(
                where=f"nats used over the budget in the worst of {len(shares)} runs",
                shown=number(max(shares), 6),
                hold_p=0.0 if holds else 1.0,
                break_p=1.0 if holds else 0.0,
                n=len(shares),
            )
        )
    ]


QUESTIONS = {
    **dict.fromkeys(("higher", "within", "like", "above chance"), _compared),
    "at chance": _at_chance,
    "falls": _along,
    "flat": _flat,
    "budget kept": _budget_kept,
}


# The paper's cells, where they are not compared one by one


def setting_named(setting: Mapping[str, object]) -> str:
    """A conclusion's setting in words: `PACZero-MI, FT, 1.3B, SST-2, 0.33 nats`."""
    return declared("paczero").render("{% from 'named' import named %}{{ named(setting) }}", setting=setting)


def _flat_cells(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    values = [stands_for(at(paper, setting["cell"])) for setting in claim.parameters["settings"]]
    span = max(value.lower for value in values) - min(value.upper for value in values)
    middles = [centre(value) for value in values]
    text = f"spans {max(middles) - min(middles):.2f} points"
    allowed = ends_of(claim, {"high": "span"}, rounded="written").high
    yield text if span > allowed else ""


def _chance_cells(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    settings, chance = claim.parameters["settings"], parameter(claim, "chance") / 100.0
    for setting in settings:
        value = at(paper, setting["cell"]).value
        p_value = chance_p(value, chance)
        text = f"{setting_named(setting)}: {value:g} %, p = {p_value:.2g}"
        yield text if p_value * len(settings) < LEVEL else ""


def _spent_cells(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    for setting in claim.parameters["settings"]:
        spent = stands_for(at(paper, setting["cell"]))
        text = f"{setting_named(setting)}: {centre(spent):g} nats"
        yield text if spent.lower > setting["nats"] * (1.0 + SLACK) else ""


AGAINST = {"flat": _flat_cells, "at chance": _chance_cells, "budget kept": _spent_cells}


PACZERO = PaperFunctions(
    paper="paczero",
    numbers=NUMBERS,
    printed=PRINTED,
    rows=ROWS,
    cells=CELLS,
    tables=TABLES,
    words=WORDS,
    questions=QUESTIONS,
    against=AGAINST,
    checks=CHECKS,
    values=VALUES,
    remarks=REMARKS,
    figures=figures,
)


@register("study_report", "paczero")
def paczero(
    *,
    results: StudyResults,
    published: PublishedPaper | None,
    confidence: float = 0.95,
    only_findings: bool = False,
) -> StudyReport:
    """Tables, figures and conclusions of PACZero over seeds, and both sides of its claim."""
    return study_report(
        PACZERO, results=results, published=published, confidence=confidence, only_findings=only_findings
    )
