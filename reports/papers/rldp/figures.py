"""RLDP's Figs. 1 to 8, where memorisation begins, and the differences to the best baseline."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.reports.papers.rldp.runs import (
    BASELINES,
    CURVE,
    EXPOSURE,
    FINAL,
    INSERTIONS,
    MODELS,
    NOISE,
    OURS,
    RADIUS,
    STEPS,
    curves,
    drop,
    setting,
)
from workbench.reports.papers.rldp.tables import places
from workbench.reports.shared.context import Bindings, Context
from workbench.reports.shared.drawing.charts import ForestRow, Line, Scales, forest_chart, line_chart
from workbench.reports.shared.outcomes import Setting
from workbench.reports.shared.statistics import Sample
from workbench.studies.report import Figure, Value

MOST_LINES = 8
"""That a chart can hold."""

POINTS = 60
"""Most steps of a trace that are drawn."""

DIALS = {RADIUS: "radius", NOISE: "sigma"}


def figures(context: Context) -> list[Figure]:
    """Figs. 1 to 4 (a chart a budget), 5 to 8 (radius and noise), drops, and insertions."""
    made = [_drops(context)]
    for place, model in enumerate(context.declared.list("$models"), start=1):
        budgets = context.outcomes.values(MODELS, "epsilon", Setting.of(stands_for=model))
        made += [_curves(context, {"stands_for": model, "epsilon": epsilon}, place) for epsilon in budgets]
        made += [_dials(context, model, budgets, place + 4, name) for name in DIALS]
    made += _insertions(context)
    return [figure for figure in made if figure is not None]


def _line(context: Context, label: str, found: Mapping[float, Sample]) -> Line | None:
    if not found:
        return None
    return Line(label=label, x=tuple(found), values=tuple(context.mean(one) for one in found.values()))


def _curves(context: Context, at: Bindings, place: int) -> Figure | None:
    """Held-out perplexity over steps: both forms of RLDP, the lowest baselines, training without noise."""
    samples = {name: context.outcomes.sample(MODELS, setting(context, at, name), FINAL) for name in BASELINES}
    ends = {name: sample.values.mean() for name, sample in samples.items() if sample is not None}
    chosen = sorted(ends, key=lambda name: ends[name])[: MOST_LINES - len(OURS) - 1]
    drawn = [
        _line(context, name, curves(context, setting(context, at, name), CURVE, STEPS))
        for name in (*OURS, *chosen, "Non-private")
    ]
    lines = [line for line in drawn if line is not None]
    if not lines:
        return None
    words = context.declared.content["figures"]["curves"]
    left = [name for name in ends if name not in chosen]
    return line_chart(
        f"figure-{place}-epsilon-{at['epsilon']:g}".replace(".", "-"),
        context.render(words["title"], **at),
        lines,
        Scales(x_name="step", y_name="perplexity", log_x=False, log_y=True),
        spread=context.interval,
        note=context.render(words["note"], left=left),
        place=f"Figure {place}",
    )


def _dials(context: Context, model: str, budgets: list[float], place: int, name: str) -> Figure | None:
    """Mean radius or noise multiplier over steps, a line a budget, of the form that decides rarely."""
    words = context.declared.content["figures"][DIALS[name]]
    for form in OURS:
        drawn = [
            _line(
                context,
                f"epsilon {epsilon:g}",
                _thinned(curves(context, Setting.of(stands_for=model, epsilon=epsilon, method=form), name)),
            )
            for epsilon in budgets[:MOST_LINES]
        ]
        lines = [line for line in drawn if line is not None]
        if lines:
            return line_chart(
                f"figure-{place}-{DIALS[name]}",
                context.render(words["title"], form=form, model=model),
                lines,
                Scales(x_name="step", y_name=DIALS[name], log_x=False),
                spread=context.interval,
                note=words["note"],
                place=f"Figure {place}",
            )
    return None


def _thinned(found: Mapping[float, Sample]) -> dict[float, Sample]:
    """At most `POINTS` steps, the first and the last among them."""
    steps = list(found)
    kept = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    return {steps[place]: found[steps[place]] for place in kept} if steps else {}


def _drops(context: Context) -> Figure | None:
    """RLDP's drop below the best baseline, a row each setting."""
    found = {f"{at['stands_for']}, epsilon {at['epsilon']:g}": drop(context, at) for at in places(context)}
    rows = [
        ForestRow(label=label, difference=context.mean(one))
        for label, one in found.items()
        if not isinstance(one, str)
    ]
    if not rows:
        return None
    words = context.declared.content["figures"]["drops"]
    return forest_chart(
        "drops", words["title"], rows, x_name="percent", spread=context.interval, note=words["note"]
    )


def _insertions(context: Context) -> list[Figure]:
    """Exposure, exact matches and similarities over the number of insertions, beside chance."""
    made = []
    words = context.declared.content["figures"]["insertions"]
    for identifier, name, chance, of_continuations, title in (
        ("exposure", EXPOSURE, "attack_chance_exposure", False, "exposure, bits"),
        ("matches", "attack_exact_matches", "attack_chance_exact_matches", False, "exact matches"),
        ("similarity-1", "attack_jaccard_1", "attack_chance_jaccard_1", True, "similarity of 1-grams"),
        ("similarity-4", "attack_jaccard_4", "attack_chance_jaccard_4", True, "similarity of 4-grams"),
    ):
        lines = []
        for method in context.outcomes.values(INSERTIONS, "method"):
            counts = context.outcomes.values(INSERTIONS, "insertions", Setting.of(method=method))
            mine = [Setting.of(method=method, insertions=count) for count in counts]
            x = tuple(map(float, counts))
            values = tuple(context.value(INSERTIONS, one, name) for one in mine)
            if any(value is not None for value in values):
                lines.append(Line(label=method, x=x, values=values))
            levels = tuple(_chance(context, chance, one) for one in mine) if of_continuations else ()
            if any(level is not None for level in levels):
                lines.append(Line(label=f"chance, {method}", x=x, values=levels))
        if not lines:
            continue
        level = None if of_continuations else _chance(context, chance, Setting())
        if level is not None:
            lines.append(Line(label="chance", x=(), values=(level,)))
        made.append(
            line_chart(
                f"insertions-{identifier}",
                context.render(words["title"], what=title),
                lines,
                Scales(x_name="insertions", y_name=title),
                spread=context.render(words["spread"]),
                note=context.render(words["note"], of_continuations=of_continuations),
            )
        )
    return made


def _chance(context: Context, name: str, place: Setting) -> Value | None:
    """Mean of the chance levels over runs of the insertions, with the mean ends of their ranges."""
    found = [context.outcomes.sample(INSERTIONS, place, f"{name}{end}") for end in ("", "_low", "_high")]
    level, low, high = (None if one is None else float(one.values.mean()) for one in found)
    if level is None or found[0] is None:
        return None
    return Value(estimate=level, lower=low, upper=high, n=found[0].values.size)
