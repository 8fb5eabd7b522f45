"""Pictures of any study's metrics: lines over a numeric axis, or every replicate where no axis varies."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import count

from workbench.reports.shared.charts import Group as Strip
from workbench.reports.shared.charts import Line, Scales, line_chart, strip_chart
from workbench.reports.shared.statistics.results import value_of
from workbench.reports.shared.statistics.tests import mean_interval
from workbench.reports.shared.study_groups import Group, Placed, axis_text, row_sample, slug
from workbench.studies.report import Figure, Value

MOST_SERIES = 8
"""More than these cannot be told apart; the tables hold them all."""


def figures_of(group: Group, name: str, confidence: float) -> tuple[list[Figure], str]:
    """A picture for each metric of a group, and a note where there are too many series for one.

    Args:
        group: Of a study.
        name: Start of the figures' ids.
        confidence: Of the t intervals that bands and whiskers show.
    """
    axis = _numeric_axis(group)
    series = _series(group, axis)
    if len(series) > MOST_SERIES:
        return [], f"{group.name}: {len(series)} series are too many for one picture; see its table."
    figures: list[Figure] = []
    for metric in group.metrics:
        identifier = _identifier(name, metric, figures)
        title = f"{group.name}: {metric}" if group.name else metric
        figure = (
            _strips(group, series, metric, (identifier, title))
            if axis is None
            else _lines(group, series, metric, axis, (identifier, title, confidence))
        )
        if figure is not None:
            figures.append(figure)
    return figures, ""


def _identifier(name: str, metric: str, figures: Sequence[Figure]) -> str:
    """A figure's id, which is a file's name: an attack may call its metrics anything."""
    wanted = f"{name}-{slug(metric)}"
    taken = {figure.id for figure in figures}
    numbered = (f"{wanted}-{number}" for number in count(2))
    return wanted if wanted not in taken else next(one for one in numbered if one not in taken)


def _numeric_axis(group: Group) -> str | None:
    """The axis to draw along: epsilon where it varies, else the first whose values are all numbers."""
    numeric = [
        axis
        for axis in group.axes
        if all(
            placed.settings.get(axis) is None or _is_number(placed.settings.get(axis))
            for members in group.members.values()
            for placed in members
        )
    ]
    return "epsilon" if "epsilon" in numeric else next(iter(numeric), None)


def _is_number(value: Hashable) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _series(group: Group, axis: str | None) -> dict[str, list[Placed]]:
    """Outcomes by what a legend calls them: the variant and its axes other than the one drawn along."""
    others = [name for name in group.axes if name != axis]
    found: dict[str, list[Placed]] = {}
    for variant, members in group.members.items():
        for placed in members:
            settings = zip(others, placed.at(others), strict=True)
            parts = [variant, *(f"{name} {axis_text(value)}" for name, value in settings)]
            found.setdefault(", ".join(parts), []).append(placed)
    return found


def _value(group: Group, members: Sequence[Placed], metric: str, confidence: float) -> Value | None:
    sample = row_sample(group, members, metric)
    return None if isinstance(sample, str) else value_of(mean_interval(sample, confidence=confidence))


def _lines(
    group: Group,
    series: dict[str, list[Placed]],
    metric: str,
    axis: str,
    words: tuple[str, str, float],
) -> Figure | None:
    """A line a series; one without the axis (no budget) is level."""
    identifier, title, confidence = words
    lines: list[Line] = []
    places: set[float] = set()
    for label, members in series.items():
        at: dict[float, list[Placed]] = {}
        level = [placed for placed in members if placed.settings.get(axis) is None]
        for placed in members:
            value = placed.settings.get(axis)
            if isinstance(value, int | float):
                at.setdefault(float(value), []).append(placed)
        if at:
            x = tuple(sorted(at))
            places.update(x)
            values = tuple(_value(group, at[place], metric, confidence) for place in x)
            lines.append(Line(label=label, x=x, values=values))
        if level:
            name = f"{label}, no {axis}" if at else label
            lines.append(Line(label=name, x=(), values=(_value(group, level, metric, confidence),)))
    if len(lines) > MOST_SERIES or all(value is None for line in lines for value in line.values):
        return None
    log_x = min(places) > 0.0 and max(places) >= 10.0 * min(places)
    spread = f"{100.0 * confidence:g} % t interval of the mean over {group.unit}s"
    scales = Scales(x_name=axis, y_name=metric, log_x=log_x)
    return line_chart(identifier, title, lines, scales, spread=spread)


def _strips(
    group: Group, series: dict[str, list[Placed]], metric: str, words: tuple[str, str]
) -> Figure | None:
    """Every replicate of every series."""
    strips = []
    for label, members in series.items():
        values = [value for value in (placed.metric(metric) for placed in members) if value is not None]
        strips.append(Strip(label=label, values=tuple(values)))
    if not any(math.isfinite(value) for strip in strips for value in strip.values):
        return None
    identifier, title = words
    return strip_chart(identifier, title, strips, x_name=metric, unit=f"one {group.unit}")
