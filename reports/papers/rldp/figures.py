"""RLDP's Figs. 1 to 8, where memorisation begins, and the differences to the best baseline."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from workbench.reports.papers.rldp.canaries import insertion_settings
from workbench.reports.papers.rldp.cells import Context, Place, places
from workbench.reports.papers.rldp.layout import (
    BASELINES,
    CHANCE_EXPOSURE,
    CURVE,
    EXACT,
    EXPOSURE,
    FINAL,
    INSERTIONS,
    NOISE,
    NON_PRIVATE,
    OURS,
    PAPER_MODELS,
    RADIUS,
    STEPS,
    Setting,
    chance_jaccard,
    jaccard,
)
from workbench.reports.shared.charts import ForestRow, Line, Scales, forest_chart, line_chart
from workbench.reports.shared.statistics import Sample
from workbench.studies.report import Figure, Value

MOST_LINES = 8
"""That a chart can hold."""

POINTS = 60
"""Most steps of a trace that are drawn."""

OF_CONTINUATIONS = (chance_jaccard(1), chance_jaccard(4))
"""Chance levels that depend on what a model says, and so are each training's own."""


def figures(context: Context) -> list[Figure]:
    """Figs. 1 to 4 (a chart a budget), 5 to 8 (radius and noise), drops, and insertions."""
    made = [_drops(context)]
    for number, (group, model) in enumerate(PAPER_MODELS.items(), start=1):
        for epsilon in context.measured.budgets(group):
            made.append(_curves(context, (group, model, epsilon), number))
        made += [_dials(context, group, number + 4, name) for name in (RADIUS, NOISE)]
    made += _insertions(context)
    return [figure for figure in made if figure is not None]


def _line(context: Context, label: str, found: Mapping[float, Sample]) -> Line | None:
    if not found:
        return None
    return Line(label=label, x=tuple(found), values=tuple(context.mean(one) for one in found.values()))


def _curves(context: Context, place: Place, number: int) -> Figure | None:
    """Held-out perplexity over steps: both forms of RLDP, the lowest baselines, training without noise."""
    group, model, epsilon = place
    measured = context.measured
    ends = {
        name: sample.values.mean()
        for name in BASELINES
        if (sample := measured.sample(group, Setting(variant=name, epsilon=epsilon), FINAL)) is not None
    }
    room = MOST_LINES - len(OURS) - 1
    chosen = sorted(ends, key=lambda name: ends[name])[:room]
    lines = []
    for name in (*OURS, *chosen, NON_PRIVATE):
        setting = Setting(variant=name, epsilon=None if name == NON_PRIVATE else epsilon)
        line = _line(context, name, measured.curves(group, setting, CURVE, STEPS))
        if line is not None:
            lines.append(line)
    if not lines:
        return None
    left = [name for name in ends if name not in chosen]
    above = f" Above these at the end, and left out: {', '.join(left)}." if left else ""
    return line_chart(
        f"figure-{number}-epsilon-{epsilon:g}".replace(".", "-"),
        f"Held-out perplexity over steps, epsilon {epsilon:g}: in the place of {model}",
        lines,
        Scales(x_name="step", y_name="perplexity", log_x=False, log_y=True),
        spread=context.interval,
        note=f"The paper draws its utility; ours is the perplexity that Table 2 ends with.{above}",
        place=f"Figure {number}",
    )


def _dials(context: Context, group: str, number: int, name: str) -> Figure | None:
    """Mean radius or noise multiplier over steps, a line a budget, of the form that decides rarely."""
    words = {RADIUS: ("Mean clipping radius", "radius"), NOISE: ("Noise multiplier", "sigma")}[name]
    for form in OURS:
        lines = []
        for epsilon in context.measured.budgets(group)[:MOST_LINES]:
            found = context.measured.curves(group, Setting(variant=form, epsilon=epsilon), name)
            line = _line(context, f"epsilon {epsilon:g}", _thinned(found))
            if line is not None:
                lines.append(line)
        if lines:
            return line_chart(
                f"figure-{number}-{words[1]}",
                f"{words[0]} over steps, {form}: in the place of {PAPER_MODELS[group]}",
                lines,
                Scales(x_name="step", y_name=words[1], log_x=False),
                spread=context.interval,
                note="Mean over adapters, then over seeds." if name == RADIUS else "",
                place=f"Figure {number}",
            )
    return None


def _thinned(found: Mapping[float, Sample]) -> dict[float, Sample]:
    """At most `POINTS` steps, the first and the last among them."""
    steps = list(found)
    kept = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    return {steps[place]: found[steps[place]] for place in kept} if steps else {}


def _drops(context: Context) -> Figure | None:
    """RLDP's drop below the best baseline, a row each setting."""
    rows = []
    for group, model, epsilon in places(context):
        found = context.measured.drop(group, epsilon)
        if not isinstance(found, str):
            rows.append(ForestRow(label=f"{model}, epsilon {epsilon:g}", difference=context.mean(found)))
    if not rows:
        return None
    return forest_chart(
        "drops",
        "RLDP's perplexity below the best baseline's",
        rows,
        x_name="percent",
        spread=context.interval,
        note="To the right, RLDP is better. The best baseline is that of each seed, chosen on the data.",
    )


def _insertions(context: Context) -> list[Figure]:
    """Exposure, exact matches and similarities over the number of insertions, beside chance."""
    made = []
    for identifier, name, chance, words in (
        ("insertions-exposure", EXPOSURE, CHANCE_EXPOSURE, "exposure, bits"),
        ("insertions-matches", EXACT, "attack_chance_exact_matches", "exact matches"),
        ("insertions-similarity-1", jaccard(1), chance_jaccard(1), "similarity of 1-grams"),
        ("insertions-similarity-4", jaccard(4), chance_jaccard(4), "similarity of 4-grams"),
    ):
        lines = []
        settings = insertion_settings(context)
        for variant in dict.fromkeys(setting.variant for setting in settings):
            mine = {float(one.insertions or 0): one for one in settings if one.variant == variant}
            values = tuple(context.value(INSERTIONS, one, name) for one in mine.values())
            if any(value is not None for value in values):
                lines.append(Line(label=str(variant), x=tuple(mine), values=values))
            if chance in OF_CONTINUATIONS:
                levels = tuple(_chance(context, chance, one) for one in mine.values())
                if any(level is not None for level in levels):
                    lines.append(Line(label=f"chance, {variant}", x=tuple(mine), values=levels))
        if not lines:
            continue
        level = None if chance in OF_CONTINUATIONS else _chance(context, chance, Setting())
        if level is not None:
            lines.append(Line(label="chance", x=(), values=(level,)))
        made.append(
            line_chart(
                identifier,
                f"Where memorisation begins: {words} over insertions of each secret",
                lines,
                Scales(x_name="insertions", y_name=words),
                spread=f"{context.interval}; of chance, the range of sets",
                note="Chance: what secrets have that nobody trained on, mean over runs"
                + (", beside the same continuations" if chance in OF_CONTINUATIONS else "")
                + "; its range holds 95 % of sets of as many secrets, and is no interval of a mean.",
            )
        )
    return made


def _chance(context: Context, name: str, setting: Setting) -> Value | None:
    """Mean of the chance levels over runs of the insertions, with the mean ends of their ranges."""
    found = [context.measured.sample(INSERTIONS, setting, f"{name}{end}") for end in ("", "_low", "_high")]
    level, low, high = (None if one is None else float(one.values.mean()) for one in found)
    if level is None or found[0] is None:
        return None
    return Value(estimate=level, lower=low, upper=high, n=found[0].values.size)
