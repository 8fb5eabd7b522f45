"""Radar charts that do not mislead.

A radar chart invites four mistakes: to compare areas, which change with the order and the ranges of the axes;
to take "outward" for "better" where it is not; to overlook that each axis has a range of its own; and to take
a mean for a fact. So nothing is filled, each axis prints its range and which way is better, every mark has
the whisker of its spread, and the caption says the rest. A missing value is a gap, never a zero.

Source: figures 3 to 7 of DP-Weights and figures 2 to 4 of FERRET are radar charts; these redraw their kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from markupsafe import escape

from workbench.core.errors import InputError
from workbench.reports.shared.drawing.figures import (
    MARKERS,
    FigureText,
    Panel,
    checked_identifier,
    checked_series_count,
    counted,
    interval_ends,
    make_figure,
    marker,
    series_css,
    series_key,
    shown_value,
    svg_element,
    wrapped,
)
from workbench.reports.shared.numbers import number
from workbench.studies.report import Figure, FigureKey, Value

# Axes: their range, their direction, and where a value lies on them

_LOG_FROM = 20.0
"""A positive quantity whose largest value is this many times its smallest gets a logarithmic axis."""


class Better(StrEnum):
    """Which way is better on an axis."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a radar chart.

    Attributes:
        name: `"perplexity, members"`.
        centre, rim: Values at the innermost and the outermost ring; different, and both > 0 where `log`.
        better: Which values are better, as the figure's author judges; drawn as a word.
        log: Equal distances are equal ratios.
    """

    name: str
    centre: float
    rim: float
    better: Better
    unit: str = ""
    log: bool = False

    def __post_init__(self) -> None:
        """Check the range."""
        if not (math.isfinite(self.centre) and math.isfinite(self.rim)) or self.centre == self.rim:
            raise InputError(
                f"centre and rim must be finite and differ, got {self.centre}, {self.rim} for {self.name!r}"
            )
        if self.log and min(self.centre, self.rim) <= 0:
            raise InputError(
                f"a logarithmic axis needs positive ends, got {self.centre}, {self.rim} for {self.name!r}"
            )

    @property
    def outward_is_better(self) -> bool | None:
        """Whether values grow better towards the rim; None where neither way is better."""
        if self.better is Better.NEITHER:
            return None
        return (self.rim > self.centre) is (self.better is Better.HIGHER)

    @property
    def range_text(self) -> str:
        """`500 → 1 nats`: from the innermost ring to the rim."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{number(self.centre)} → {number(self.rim)}{unit}"

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return -1e-9 <= self.share(value) <= 1.0 + 1e-9

    def share(self, value: float) -> float:
        """Where a value lies between centre (0) and rim (1); outside [0, 1] where it is off the axis."""
        if self.log:
            if value <= 0:
                return -math.inf if self.rim > self.centre else math.inf
            return math.log(value / self.centre) / math.log(self.rim / self.centre)
        return (value - self.centre) / (self.rim - self.centre)


def fitted_axis(
    name: str,
    values: Iterable[Value | None],
    better: Better,
    *,
    unit: str = "",
    log: bool | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Axis:
    """An axis that holds all values with their spreads, its ends round numbers, the better end outward.

    Args:
        values: All values that will be drawn on it, in every panel.
        better: Decides which end is the rim; `NEITHER` puts the larger one there.
        log: None decides: logarithmic where all is positive and the largest is 20 times the smallest.
        bounds: The quantity's own limits, such as (0, 1), which the ends will not exceed.

    Raises:
        InputError: there is no finite value, or a logarithmic axis is asked for values that are not positive.
    """
    ends = [end for value in values if value is not None for end in _finite_ends(value)]
    if not ends:
        raise InputError(f"axis {name!r} has no finite value to fit")
    low, high = min(ends), max(ends)
    if log and low <= 0:
        raise InputError(f"a logarithmic axis needs positive values, got {low:g} for {name!r}")
    logarithmic = log if log is not None else low > 0 and high / low >= _LOG_FROM
    low, high = _round_log(low, high) if logarithmic else _round_linear(low, high)
    low, high = max(low, bounds[0]), min(high, bounds[1])
    if better is Better.LOWER:
        low, high = high, low
    return Axis(name=name, centre=low, rim=high, better=better, unit=unit, log=logarithmic)


def _finite_ends(value: Value) -> list[float]:
    if not math.isfinite(value.estimate):
        return []
    return [value.estimate, *(end for end in interval_ends(value) or () if math.isfinite(end))]


def _round_linear(low: float, high: float) -> tuple[float, float]:
    length = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(length / 4.0))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= length / 4.0 * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    return round(first * step, 12), round(last * step, 12)


def _round_log(low: float, high: float) -> tuple[float, float]:
    def floor(value: float) -> float:
        power = 10.0 ** math.floor(math.log10(value))
        return max(power * factor for factor in (1.0, 2.0, 5.0) if power * factor <= value * (1 + 1e-9))

    def ceiling(value: float) -> float:
        power = 10.0 ** math.floor(math.log10(value))
        return min(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= value * (1 - 1e-9))

    lower, upper = floor(low), ceiling(high)
    return (lower / 2, upper * 2) if lower == upper else (lower, upper)


# The drawing

MOST_AXES = 9
_WIDTH = 480.0
_INNER, _OUTER = 22.0, 118.0
_RINGS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LINE = 16.5
_LABEL_GAP = 14.0


def radar(
    identifier: str,
    title: str,
    axes: Sequence[Axis],
    series: Sequence[Series],
    *,
    spread: str,
    note: str = "",
    place: str = "",
) -> Figure:
    """Draw a radar chart.

    Args:
        axes: 3 to 9 of them, clockwise from the top.
        series: 1 to 8 of them, each with a value an axis.
        spread: What a whisker is: `"95 % t interval of the mean over seeds"`. A value's whisker is its
            interval, or its standard deviation either way where it has no interval.
        note: What the caption opens with: what was averaged over what.

    Raises:
        InputError: the numbers of axes, series or values do not fit, or `identifier` is no file name.
    """
    panel = RadarPanel(heading="", series=tuple(series))
    return radars(identifier, title, axes, [panel], spread=spread, note=note, place=place)


def radars(
    identifier: str,
    title: str,
    axes: Sequence[Axis],
    panels: Sequence[RadarPanel],
    *,
    spread: str,
    note: str = "",
    place: str = "",
) -> Figure:
    """Small multiples: several radar charts on the same axes with the same ranges, such as ranges of epsilon.

    A series has the same colour, dash and marker in every panel. A panel without any value is not drawn, and
    the caption says which. Arguments and errors are those of `radar`.
    """
    checked_identifier(identifier)
    if not 3 <= len(axes) <= MOST_AXES:
        raise InputError(f"axes must be 3 to {MOST_AXES} in number, got {len(axes)}")
    labels = list(dict.fromkeys(series.label for panel in panels for series in panel.series))
    checked_series_count(len(labels))
    for panel in panels:
        _check_series(panel, axes)
    empty = [panel.heading for panel in panels if not any(map(any, (one.values for one in panel.series)))]
    if len(empty) < len(panels):
        panels = [panel for panel in panels if panel.heading not in empty]
        labels = list(dict.fromkeys(series.label for panel in panels for series in panel.series))
        note = " ".join([note, f"No values, so no panel: {', '.join(empty)}."] if empty else [note])
    several, layout = len(panels) > 1, _layout(axes)
    drawn = [
        Panel(
            svg=svg_element(
                f"{identifier}-{place_}" if several else identifier,
                (_WIDTH, layout.height),
                f"{title}: {panel.heading}" if panel.heading else title,
                in_words(axes, panel),
                _drawing(layout, axes, panel, labels),
            ),
            width=_WIDTH,
            height=layout.height,
            heading=panel.heading,
        )
        for place_, panel in enumerate(panels)
    ]
    legend = [
        *(series_key(index, label) for index, label in enumerate(labels)),
        FigureKey(css="series-6", label=f"whisker: {spread}", shape="whisker"),
    ]
    words = caption(axes, panels, spread, note)
    text = FigureText(identifier=identifier, title=title, caption=words, place=place)
    return make_figure(text, drawn, legend)


def _check_series(panel: RadarPanel, axes: Sequence[Axis]) -> None:
    names = [series.label for series in panel.series]
    if len(set(names)) != len(names):
        raise InputError(f"series labels must differ, got {names!r}")
    for series in panel.series:
        if len(series.values) != len(axes):
            raise InputError(
                f"series {series.label!r} must have {len(axes)} values, one an axis, got {len(series.values)}"
            )


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where the drawing lies: the number of axes, the centre in pixels, and the height that labels need."""

    count: int
    centre: tuple[float, float]
    height: float

    def spot(self, place: int, share: float, aside: float = 0.0) -> tuple[float, float]:
        """Pixels of a share of an axis, `aside` pixels clockwise of it; others lie on an end."""
        angle = 2.0 * math.pi * place / self.count
        radius = _INNER + min(max(share, 0.0), 1.0) * (_OUTER - _INNER)
        return (
            self.centre[0] + radius * math.sin(angle) + aside * math.cos(angle),
            self.centre[1] - radius * math.cos(angle) + aside * math.sin(angle),
        )


def _layout(axes: Sequence[Axis]) -> _Layout:
    tops, bottoms = [-_OUTER], [_OUTER]
    for place, axis in enumerate(axes):
        cosine = math.cos(2.0 * math.pi * place / len(axes))
        length = _LINE * len(_label_lines(axis))
        tops.append(_label_top(cosine, length))
        bottoms.append(tops[-1] + length)
    return _Layout(
        count=len(axes),
        centre=(_WIDTH / 2.0, math.ceil(8.0 - min(tops))),
        height=math.ceil(8.0 - min(tops)) + math.ceil(8.0 + max(bottoms)),
    )


def _drawing(layout: _Layout, axes: Sequence[Axis], panel: RadarPanel, labels: Sequence[str]) -> str:
    parts = []
    for share in _RINGS:
        radius = _INNER + share * (_OUTER - _INNER)
        css = "ring" if share in (0.0, 1.0) else "ring inner"
        parts.append(
            f'<circle class="{css}" cx="{layout.centre[0]:g}" cy="{layout.centre[1]:g}" r="{radius:.1f}"/>'
        )
    for place, axis in enumerate(axes):
        (x0, y0), (x1, y1) = (layout.spot(place, share) for share in (0.0, 1.0))
        parts.append(f'<path class="spoke" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"/>')
        parts.append(_axis_label(layout, axis, place))
    gap = min(8.0, 24.0 / max(len(labels) - 1, 1))
    for series in panel.series:
        index = labels.index(series.label)
        parts.append(_series(layout, axes, series, (index, (index - (len(labels) - 1) / 2) * gap)))
    return "".join(parts)


def _series(layout: _Layout, axes: Sequence[Axis], series: Series, style: tuple[int, float]) -> str:
    """A line with gaps, and marks with whiskers, all a few pixels beside the axes so none hides another."""
    index, aside = style
    css, shape = series_css(index), MARKERS[index]
    points: list[tuple[float, float] | None] = []
    whiskers, marks = [], []
    for place, (axis, value) in enumerate(zip(axes, series.values, strict=True)):
        if value is None or not math.isfinite(value.estimate):
            points.append(None)
            continue
        x, y = layout.spot(place, axis.share(value.estimate), aside)
        points.append((x, y))
        marks.append(marker(shape, x, y, css, 3.5))
        ends = interval_ends(value)
        if ends is not None:
            whiskers.append(_whisker(layout, axis, (place, aside), ends))
    segments = []
    for place, point in enumerate(points):
        following = points[(place + 1) % layout.count]
        if point is not None and following is not None:
            segments.append(f"M{point[0]:.1f} {point[1]:.1f}L{following[0]:.1f} {following[1]:.1f}")
    return (
        f'<path class="trace {css}" d="{_joined(segments)}"/>'
        f'{"".join(marks)}<path class="whisker {css}" d="{"".join(whiskers)}"/>'
    )


def _joined(segments: Sequence[str]) -> str:
    """Segments as one path, with no pen-up between those that share an end, so that dashes run on."""
    joined = ""
    last = ""
    for segment in segments:
        start, end = segment[1:].split("L")
        joined += f"L{end}" if start == last else segment
        last = end
    return joined


def _whisker(layout: _Layout, axis: Axis, spot: tuple[int, float], ends: tuple[float, float]) -> str:
    """From one end to the other along the axis; an end on the axis has a cap, one off it has none."""
    place, aside = spot
    angle = 2.0 * math.pi * place / layout.count
    across = 4.2 * math.cos(angle), 4.2 * math.sin(angle)
    (x0, y0), (x1, y1) = (layout.spot(place, axis.share(end), aside) for end in ends)
    path = f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"
    for end, (x, y) in zip(ends, ((x0, y0), (x1, y1)), strict=True):
        if axis.holds(end):
            path += f"M{x - across[0]:.1f} {y - across[1]:.1f}L{x + across[0]:.1f} {y + across[1]:.1f}"
    return path


def _label_lines(axis: Axis) -> list[tuple[str, str]]:
    """Name, range from the innermost ring to the rim, scale and direction: each line with its class."""
    name = wrapped(axis.name, 106.0, 14.5)
    if len(name) > 2:
        name = [name[0], f"{name[1][:11]}…"]
    lines = [(line, "strong") for line in name]
    lines += [(line, "tick") for line in wrapped(axis.range_text, 106.0, 13.5)]
    if axis.log:
        lines.append(("log scale", "tick"))
    lines.append((_direction(axis), "strong" if axis.outward_is_better is False else "tick"))
    return lines


def _label_top(cosine: float, length: float) -> float:
    """Top of a label against the centre: above the rim at the top, below it at the bottom, else beside it."""
    return -(_OUTER + _LABEL_GAP) * cosine - length * (1.0 + cosine) / 2.0


def _axis_label(layout: _Layout, axis: Axis, place: int) -> str:
    lines = _label_lines(axis)
    angle = 2.0 * math.pi * place / layout.count
    sine = math.sin(angle)
    x = layout.centre[0] + (_OUTER + _LABEL_GAP) * sine
    anchor = "middle" if abs(sine) < 0.25 else "start" if sine > 0 else "end"
    top = layout.centre[1] + _label_top(math.cos(angle), _LINE * len(lines))
    return "".join(
        f'<text class="{css}" x="{x:.1f}" y="{top + _LINE * row + 12.5:.1f}" text-anchor="{anchor}">'
        f"{escape(line)}</text>"
        for row, (line, css) in enumerate(lines)
    )


def _direction(axis: Axis) -> str:
    if axis.better is Better.NEITHER:
        return "neither is better"
    if axis.outward_is_better:
        return f"{axis.better} is better"
    return "inward is better"


# Series, and what a chart says in words: its description for those who do not see it, and its caption


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
    for series in panel.series:
        values = (
            f"{axis.name} {shown_value(value)}" for axis, value in zip(axes, series.values, strict=True)
        )
        sentences.append(f"{series.label}: {'; '.join(values)}.")
    return " ".join(sentences)


def caption(axes: Sequence[Axis], panels: Sequence[RadarPanel], spread: str, note: str) -> str:
    """What the spread is, how many replicates there are, what is missing, and what area does not mean."""
    values = [
        (series.label, value)
        for panel in panels
        for series in panel.series
        for value in series.values
        if value
    ]
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
        for series in panel.series:
            for axis, value in zip(axes, series.values, strict=True):
                yield f"{prefix}{series.label} on {axis.name}", axis, value


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
