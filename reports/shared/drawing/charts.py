"""Charts for what a radar chart would hide: lines with bands, differences, and all the values.

Each returns a `Figure` that says in its caption what its spread is and how many replicates stand behind it.
Series differ by colour, dash and marker; missing values are gaps, and the caption names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.reports.shared.drawing.figures import (
    FigureText,
    Panel,
    checked_identifier,
    checked_series_count,
    counted,
    interval_ends,
    make_figure,
    series_css,
    series_key,
    shown_value,
    text_width,
)
from workbench.reports.shared.drawing.svg import Scale, SeriesChart, ends, shortened, ticks_of
from workbench.reports.shared.numbers import number
from workbench.studies.report import Figure, FigureKey, Value

_ROW = 56.0
_BAND_FROM = 6
"""A line of at least as many points has a band; a shorter one whiskers."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: values over x, None (or NaN) where there is none.

    Attributes:
        label: For the legend.
        x: Of each value; empty for a level that holds for every x, such as a model without a budget.
        values: As many as `x`; exactly one where `x` is empty.
    """

    label: str
    x: tuple[float, ...]
    values: tuple[Value | None, ...]

    def __post_init__(self) -> None:
        """Check the lengths and that x is finite."""
        if len(self.values) != max(len(self.x), 1):
            raise InputError(
                f"line {self.label!r} must have {max(len(self.x), 1)} values, got {len(self.values)}"
            )
        if not all(math.isfinite(x) for x in self.x):
            raise InputError(f"x of line {self.label!r} must be finite, got {self.x!r}")


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Names of the two axes, and which of them are logarithmic."""

    x_name: str
    y_name: str
    log_x: bool = True
    log_y: bool = False


def line_chart(
    identifier: str,
    title: str,
    lines: Sequence[Line],
    scales: Scales,
    *,
    spread: str,
    note: str = "",
    place: str = "",
) -> Figure:
    """A metric over a parameter, one line a variant, with bands or whiskers.

    Args:
        lines: 1 to 8.
        scales: Names and kinds of the axes.
        spread: What a band or whisker is: `"95 % t interval of the mean over seeds"`; empty where the
            values have none.

    Raises:
        InputError: too many lines, no finite value, or an x that is not positive on a logarithmic axis.
    """
    checked_identifier(identifier)
    checked_series_count(len(lines))
    x_values = [x for line in lines for x in line.x]
    if scales.log_x and any(x <= 0 for x in x_values):
        raise InputError(f"x must be positive on a logarithmic axis, got {min(x_values):g}")
    known = [(line.label, value) for line in lines for value in line.values if _is_drawn(value, scales)]
    if not known:
        raise InputError(f"figure {identifier} has no finite value to draw")
    caption = _line_caption(lines, scales, spread, note)
    chart = SeriesChart(identifier=identifier, title=title, description=_lines_in_words(lines), height=330.0)
    chart.left = 78.0
    x = chart.horizontal(*ends(x_values, log=scales.log_x), log=scales.log_x)
    y = chart.vertical(*_y_range(known, scales.log_y), log=scales.log_y)
    for scale, draw, name in ((x, chart.x_axis, scales.x_name), (y, chart.y_axis, scales.y_name)):
        draw(scale, *ticks_of(scale), f"{name} (log scale)" if scale.log else name)
    for index, line in enumerate(lines):
        _draw_line(chart, (x, y), line, index)
    legend = [series_key(index, line.label) for index, line in enumerate(lines)]
    for word, shape in _spread_shapes(lines).items() if spread else ():
        legend.append(FigureKey(css="series-6", label=f"{word}: {spread}", shape=shape))
    text = FigureText(identifier=identifier, title=title, caption=caption, place=place)
    return make_figure(text, [Panel(svg=chart.svg(), width=chart.width, height=chart.height)], legend)


def _spread_shapes(lines: Sequence[Line]) -> dict[str, str]:
    """What the spread is drawn as, in words, and the legend's shape for each."""
    words = {"band": "area"} if any(_has_band(line) for line in lines) else {}
    return words | ({} if all(_has_band(line) for line in lines) else {"whisker": "whisker"})


def _is_drawn(value: Value | None, scales: Scales) -> bool:
    return value is not None and math.isfinite(value.estimate) and (value.estimate > 0 or not scales.log_y)


def _y_range(known: Sequence[tuple[str, Value | None]], log: bool) -> tuple[float, float]:
    """Ends that hold every estimate, and the spreads as far as these do not dwarf the estimates."""
    estimates = [value.estimate for _, value in known if value is not None]
    low, high = min(estimates), max(estimates)
    tips = [tip for _, value in known if value is not None for tip in interval_ends(value) or ()]
    if log:
        room = max(high / low, 10.0)
        allowed = [tip for tip in tips if low / room <= tip <= high * room]
    else:
        reach = max(high - low, 0.25 * max(abs(high), abs(low)), 1e-12)
        allowed = [tip for tip in tips if low - reach <= tip <= high + reach]
    return ends([*estimates, *allowed], log=log)


def _has_band(line: Line) -> bool:
    return not line.x or len(line.x) >= _BAND_FROM


def _draw_line(chart: SeriesChart, scales: tuple[Scale, Scale], line: Line, index: int) -> None:
    x, y = scales
    order = sorted(range(len(line.x)), key=lambda place: line.x[place])
    values = [line.values[place] for place in order] if line.x else [line.values[0]] * 2
    across = x(np.array([line.x[place] for place in order])) if line.x else np.array([x.start, x.end])
    estimates = np.array([_estimate(value) for value in values])
    limits = np.array([_limits(value) for value in values])
    if y.log:
        estimates[estimates <= 0] = np.nan
    heights, lower, upper = y(estimates), y(limits[:, 0]), y(limits[:, 1])
    if _has_band(line):
        chart.band(across, lower, upper, index)
    chart.trace(across, heights, index)
    if not line.x and math.isfinite(heights[0]):
        chart.mark((x.start + x.end) / 2.0, float(heights[0]), index, 3.2)
    for place in range(len(line.x)):
        if not math.isfinite(heights[place]):
            continue
        if not _has_band(line) and math.isfinite(lower[place]):
            spot = float(across[place])
            chart.whisker((spot, float(lower[place])), (spot, float(upper[place])), index)
        chart.mark(float(across[place]), float(heights[place]), index, 3.2)


def _estimate(value: Value | None) -> float:
    return value.estimate if value is not None and math.isfinite(value.estimate) else math.nan


def _limits(value: Value | None) -> tuple[float, float]:
    limits = interval_ends(value) if value is not None and math.isfinite(value.estimate) else None
    return limits or (math.nan, math.nan)


def _lines_in_words(lines: Sequence[Line]) -> str:
    sentences = []
    for line in lines:
        if line.x:
            values = (f"at {number(x)} {shown_value(v)}" for x, v in zip(line.x, line.values, strict=True))
            sentences.append(f"{line.label}: {'; '.join(values)}.")
        else:
            sentences.append(f"{line.label}: {shown_value(line.values[0])} throughout.")
    return " ".join(sentences)


def _line_caption(lines: Sequence[Line], scales: Scales, spread: str, note: str) -> str:
    parts = [note] if note else []
    drawn = [(line.label, value) for line in lines for value in line.values if value is not None]
    if spread:
        words = " and ".join(f"{word}s" for word in _spread_shapes(lines)).capitalize()
        parts.append(f"{words}: {spread}; {counted(drawn)}.")
    levels = [line.label for line in lines if not line.x]
    if levels:
        parts.append(f"Without {scales.x_name}, and so level: {', '.join(levels)}.")
    gaps = [
        f"{line.label} at {number(x)}"
        for line in lines
        for x, value in zip(line.x, line.values, strict=False)
        if not _is_drawn(value, scales)
    ]
    gaps += [line.label for line in lines if not line.x and not _is_drawn(line.values[0], scales)]
    if gaps:
        parts.append(f"No {'positive ' if scales.log_y else ''}finite value, so a gap: {'; '.join(gaps)}.")
    return " ".join(parts)


# Differences


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """A row of a forest chart: what differs, and by how much."""

    label: str
    difference: Value


def forest_chart(
    identifier: str,
    title: str,
    rows: Sequence[ForestRow],
    *,
    x_name: str,
    spread: str,
    margin: float | None = None,
    note: str = "",
) -> Figure:
    """Differences with their intervals against zero, a row each.

    Args:
        rows: Top to bottom; those without a finite estimate are named in the caption.
        x_name: `"ours less the paper's, ROC AUC"`.
        spread: What an interval is, and at which confidence.
        margin: Differences up to this count as none, as declared before; drawn as a shaded strip.

    Raises:
        InputError: no row has a finite estimate, or the margin is not positive.
    """
    checked_identifier(identifier)
    if margin is not None and not (math.isfinite(margin) and margin > 0):
        raise InputError(f"margin must be positive and finite, got {margin}")
    drawn = [row for row in rows if math.isfinite(row.difference.estimate)]
    if not drawn:
        raise InputError(f"figure {identifier} has no finite difference to draw")
    tips = [tip for row in drawn for tip in interval_ends(row.difference) or ()]
    reached = [0.0, *(row.difference.estimate for row in drawn), *tips]
    reached += [-margin, margin] if margin is not None else []
    about = "; ".join(f"{row.label}: {shown_value(row.difference)}" for row in drawn) + "."
    chart = SeriesChart(
        identifier=identifier, title=title, description=about, height=_ROW * len(drawn) + 66.0, left=14.0
    )
    x = chart.horizontal(*ends(reached, log=False))
    chart.x_axis(x, *ticks_of(x), x_name)
    base = chart.height - chart.bottom
    if margin is not None:
        sides = x(np.array([-margin, margin, margin, -margin]))
        chart.area(sides, np.array([chart.top, chart.top, base, base]), "margin")
    chart.line(np.array([x.at(0.0)] * 2), np.array([chart.top, base]), "trace zero")
    for place, row in enumerate(drawn):
        _draw_difference(chart, x, row, chart.top + _ROW * place + 43.0)
    legend = [FigureKey(css=series_css(0), label="difference", shape="only circle")]
    legend.append(FigureKey(css=series_css(0), label=spread, shape="whisker"))
    legend.append(FigureKey(css="zero", label="no difference"))
    if margin is not None:
        words = f"within {number(margin)}, declared to be no difference"
        legend.append(FigureKey(css="margin", label=words, shape="plain area"))
    text = FigureText(identifier=identifier, title=title, caption=_forest_caption(rows, drawn, spread, note))
    return make_figure(text, [Panel(svg=chart.svg(), width=chart.width, height=chart.height)], legend)


def _draw_difference(chart: SeriesChart, x: Scale, row: ForestRow, y: float) -> None:
    interval = interval_ends(row.difference)
    if interval is not None:
        # An endless interval runs into the edge of the plot area, where its cap is cut off.
        left, right = (min(max(x.at(end), x.start - 9.0), x.end + 9.0) for end in interval)
        chart.whisker((left, y), (right, y), 0)
    chart.mark(x.at(row.difference.estimate), y, 0)
    room = chart.width - chart.left - chart.right - 12.0
    chart.label(chart.left + 6, y - 27, shortened(row.label, room), "row strong")
    chart.label(chart.left + 6, y - 12, shown_value(row.difference, 3), "row")


def _forest_caption(rows: Sequence[ForestRow], drawn: Sequence[ForestRow], spread: str, note: str) -> str:
    parts = [note] if note else []
    limits = [interval_ends(row.difference) for row in drawn]
    apart = sum(interval is not None and (interval[0] > 0 or interval[1] < 0) for interval in limits)
    parts.append(f"Whiskers: {spread}; {counted([('', row.difference) for row in drawn])}.")
    many = ", not corrected for their number" if len(drawn) > 1 else ""
    intervals = sum(interval is not None for interval in limits)
    parts.append(f"{apart} of {intervals} intervals exclude zero{many}.")
    missing = [row.label for row in rows if row not in drawn]
    if missing:
        parts.append(f"No finite difference: {'; '.join(missing)}.")
    return " ".join(parts)


# All the values

VIOLIN_FROM = 20
"""A group of at least as many values has a density drawn; a smaller one has its points alone."""

_POINTS_TO = 80
_STRIP_ROW, _HALF = 62.0, 16.0


@dataclass(frozen=True, kw_only=True)
class Group:
    """All values of a metric under one variant; those that are not finite are counted in the caption."""

    label: str
    values: tuple[float, ...]


def strip_chart(
    identifier: str,
    title: str,
    groups: Sequence[Group],
    *,
    x_name: str,
    unit: str,
    log: bool = False,
    note: str = "",
    place: str = "",
) -> Figure:
    """Every value of a metric, a row for each variant: points where few, a violin where many.

    Args:
        groups: 1 to 8, top to bottom.
        unit: What one point is: `"one seed at one epsilon"`; not necessarily a unit of replication.
        log: Logarithmic axis; values that are not positive are then left out and counted.

    Raises:
        InputError: too many groups, or none has a value to draw.
    """
    checked_identifier(identifier)
    checked_series_count(len(groups))
    drawn = [
        np.array([v for v in group.values if math.isfinite(v) and (v > 0 or not log)]) for group in groups
    ]
    if not any(values.size for values in drawn):
        raise InputError(f"figure {identifier} has no finite value to draw")
    about = " ".join(map(_row_words, groups, drawn))
    chart = SeriesChart(
        identifier=identifier,
        title=title,
        description=about,
        height=_STRIP_ROW * len(groups) + 66.0,
        left=14.0,
    )
    x = chart.horizontal(*ends([float(v) for values in drawn for v in values], log=log), log=log)
    chart.x_axis(x, *ticks_of(x), f"{x_name} (log scale)" if log else x_name)
    for index, (group, values) in enumerate(zip(groups, drawn, strict=True)):
        _draw_group(chart, x, (group.label, values), index)
    text = FigureText(
        identifier=identifier, title=title, caption=_strip_caption(groups, drawn, unit, note), place=place
    )
    panel = Panel(svg=chart.svg(), width=chart.width, height=chart.height)
    return make_figure(text, [panel], _strip_legend(drawn))


def _row_words(group: Group, values: FloatArray) -> str:
    if not values.size:
        return f"{group.label}: no value."
    low, first, middle, third, high = (float(q) for q in np.quantile(values, [0, 0.25, 0.5, 0.75, 1]))
    return (
        f"{group.label}: {values.size} values, median {number(middle)}, quartiles {number(first)} and "
        f"{number(third)}, from {number(low)} to {number(high)}."
    )


def _strip_legend(drawn: Sequence[FloatArray]) -> list[FigureKey]:
    legend = []
    if any(0 < values.size <= _POINTS_TO for values in drawn):
        legend.append(FigureKey(css="series-6", label="one value", shape="small"))
    if any(values.size >= VIOLIN_FROM for values in drawn):
        legend.append(FigureKey(css="series-6", label="density", shape="area"))
    if any(values.size >= 4 for values in drawn):
        legend.append(FigureKey(css="series-6", label="quartiles", shape="whisker"))
    return [*legend, FigureKey(css="middle", label="median", shape="bar")]


def _strip_caption(groups: Sequence[Group], drawn: Sequence[FloatArray], unit: str, note: str) -> str:
    parts = [note] if note else []
    counts = "; ".join(f"{group.label} {values.size}" for group, values in zip(groups, drawn, strict=True))
    parts.append(f"Each point is {unit}; numbers of values: {counts}. Heights within a row mean nothing.")
    if any(values.size >= VIOLIN_FROM for values in drawn):
        parts.append(
            f"Densities from {VIOLIN_FROM} values on: Gaussian kernel, Silverman's bandwidth, cut at the "
            "least and the largest value, each of the same greatest height."
        )
    hidden = [group.label for group, values in zip(groups, drawn, strict=True) if values.size > _POINTS_TO]
    if hidden:
        parts.append(f"Points not drawn, for there are too many: {', '.join(hidden)}.")
    lost = [
        f"{len(group.values) - values.size} of {group.label}"
        for group, values in zip(groups, drawn, strict=True)
        if len(group.values) > values.size
    ]
    if lost:
        parts.append(f"Not drawn, for they are not finite or off a logarithmic axis: {'; '.join(lost)}.")
    return " ".join(parts)


def _draw_group(chart: SeriesChart, x: Scale, group: tuple[str, FloatArray], index: int) -> None:
    label, values = group
    y = chart.top + _STRIP_ROW * index + 40.0
    count = f"n = {values.size}"
    room = chart.width - chart.left - chart.right - 24.0 - text_width(count, 14.0)
    chart.label(chart.left + 6, y - _HALF - 7, shortened(label, room), "row strong")
    chart.label(chart.width - chart.right - 6, y - _HALF - 7, count, "row", "end")
    if not values.size:
        return
    across = x(values)
    if values.size >= VIOLIN_FROM:
        grid, height = _density(across)
        outline = np.concatenate([y - _HALF * height, (y + _HALF * height)[::-1]])
        chart.area(np.concatenate([grid, grid[::-1]]), outline, f"cloud {series_css(index)}")
    if values.size <= _POINTS_TO:
        for place, spot in enumerate(np.sort(across)):
            # Multiples of the golden ratio spread neighbours apart, the same way every time.
            aside = ((place * 0.6180339887498949) % 1.0 - 0.5) * 1.5 * _HALF if values.size > 1 else 0.0
            chart.small(float(spot), y + aside, index)
    first, middle, third = (float(q) for q in np.quantile(across, [0.25, 0.5, 0.75]))
    if values.size >= 4:
        chart.whisker((first, y), (third, y), index)
    chart.line(np.array([middle, middle]), np.array([y - 10.0, y + 10.0]), "middle")


def _density(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A kernel density between the least and the largest value, in pixels, its greatest height 1."""
    low, high = float(values.min()), float(values.max())
    quartiles = np.quantile(values, [0.25, 0.75])
    scale = min(float(values.std(ddof=1)), float(quartiles[1] - quartiles[0]) / 1.34) or float(
        values.std(ddof=1)
    )
    width = max(0.9 * scale * values.size**-0.2, 0.5)
    grid = np.linspace(low, high, 81) if high > low else np.array([low - 1.0, low, low + 1.0])
    height = np.exp(-0.5 * ((grid[:, None] - values[None, :]) / width) ** 2).sum(axis=1)
    return grid, height / height.max()
