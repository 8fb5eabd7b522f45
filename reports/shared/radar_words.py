"""What a radar chart says in words: its series, its description for those who do not see it, its caption."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workbench.reports.shared.numbers import number
from workbench.reports.shared.radar_axes import Axis, Better
from workbench.reports.shared.spread import counted, interval_ends, shown_value
from workbench.studies.report import Value


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a radar chart: a value for each axis, None (or a NaN estimate) where there is none."""

    label: str
    values: tuple[Value | None, ...]


@dataclass(frozen=True, kw_only=True)
class RadarPanel:
    """One of several radar charts on the same axes: `"epsilon 1 to 10"`."""

    heading: str
    series: tuple[Series, ...]


def in_words(axes: Sequence[Axis], panel: RadarPanel) -> str:
    """All values, for those who do not see the drawing."""
    sentences = []
    for one in panel.series:
        values = (f"{axis.name} {shown_value(value)}" for axis, value in zip(axes, one.values, strict=True))
        sentences.append(f"{one.label}: {'; '.join(values)}.")
    return " ".join(sentences)


def caption(axes: Sequence[Axis], panels: Sequence[RadarPanel], spread: str, note: str) -> str:
    """What the spread is, how many replicates there are, what is missing, and what area does not mean."""
    values = [(one.label, value) for panel in panels for one in panel.series for value in one.values if value]
    parts = [note] if note else []
    parts.append(f"Whiskers: {spread}; {counted(values)}.")
    bare = sum(math.isfinite(value.estimate) and interval_ends(value) is None for _, value in values)
    if bare:
        parts.append(f"{bare} of the {len(values)} marks have no spread, and so no whisker.")
    parts.append(f"Axes, from the innermost ring to the rim: {'; '.join(map(_axis_words, axes))}.")
    parts.append(_sense(axes))
    missing = _missing(axes, panels)
    if missing:
        parts.append(f"No value, so a gap: {'; '.join(missing)}.")
    parts += _off_axis(axes, panels)
    parts.append(
        "Lines only lead the eye from mark to mark: neither the enclosed area nor the shape means anything, "
        "for both change with the order and the ranges of the axes."
    )
    return " ".join(parts)


def _axis_words(axis: Axis) -> str:
    log = ", logarithmic" if axis.log else ""
    better = "neither way is better" if axis.better is Better.NEITHER else f"{axis.better} is better"
    return f"{axis.name}, {axis.range_text.replace('→', 'to')}{log}, {better}"


def _sense(axes: Sequence[Axis]) -> str:
    against = [axis.name for axis in axes if axis.outward_is_better is False]
    neutral = [axis.name for axis in axes if axis.outward_is_better is None]
    exceptions = []
    if against:
        exceptions.append(f"inward is better on {', '.join(against)}")
    if neutral:
        exceptions.append(f"neither way is better on {', '.join(neutral)}")
    if not exceptions:
        return "Outward is better on every axis."
    if len(against) + len(neutral) == len(axes):
        return f"Mind the direction: {' and '.join(exceptions)}."
    return f"Outward is better, but {' and '.join(exceptions)}."


def _places(axes: Sequence[Axis], panels: Sequence[RadarPanel]) -> Iterable[tuple[str, Axis, Value | None]]:
    for panel in panels:
        prefix = f"{panel.heading}, " if panel.heading else ""
        for one in panel.series:
            for axis, value in zip(axes, one.values, strict=True):
                yield f"{prefix}{one.label} on {axis.name}", axis, value


def _missing(axes: Sequence[Axis], panels: Sequence[RadarPanel]) -> list[str]:
    words = []
    for where, _, value in _places(axes, panels):
        if value is None or math.isnan(value.estimate):
            words.append(where)
        elif math.isinf(value.estimate):
            words.append(f"{where} (not finite)")
    return words


def _off_axis(axes: Sequence[Axis], panels: Sequence[RadarPanel]) -> list[str]:
    marks, cut = [], 0
    for where, axis, value in _places(axes, panels):
        if value is None or not math.isfinite(value.estimate):
            continue
        if not axis.holds(value.estimate):
            marks.append(f"{where} ({number(value.estimate)})")
        cut += any(not axis.holds(end) for end in interval_ends(value) or ())
    words = [f"Beyond its axis, and drawn at the end: {'; '.join(marks)}."] if marks else []
    if cut:
        words.append(f"Whiskers cut at the end of an axis, and there without a cap: {cut}.")
    return words
