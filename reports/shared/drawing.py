"""A chart with series on it: lines with gaps, bands, whiskers and markers over the axes of `_svg.Chart`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from workbench.interfaces import FloatArray
from workbench.reports.shared.figures import text_width
from workbench.reports.shared.marks import MARKERS, marker, series_css
from workbench.reports.shared.numbers import number
from workbench.reports.shared.svg import Chart, Scale, decades, nice_ticks

_ROOM = 52.0
"""Least distance of two labels on an axis, pixels."""


class SeriesChart(Chart):
    """A `Chart` whose marks follow the style of series (`_marks`)."""

    def trace(self, x: FloatArray, y: FloatArray, index: int) -> None:
        """A series' line; a NaN breaks it."""
        self.line(x, y, f"trace {series_css(index)}")

    def band(self, x: FloatArray, lower: FloatArray, upper: FloatArray, index: int) -> None:
        """The area between two lines over the same x; a NaN in any of them breaks it."""
        known = np.isfinite(x) & np.isfinite(lower) & np.isfinite(upper)
        for run in _runs(known):
            across = np.concatenate([x[run], x[run][::-1]])
            self.area(across, np.concatenate([upper[run], lower[run][::-1]]), f"cloud {series_css(index)}")

    def mark(self, x: float, y: float, index: int, size: float = 4.0) -> None:
        """A series' marker, not cut at the edge of the plot area."""
        self._over.append(marker(MARKERS[index], x, y, series_css(index), size))

    def put(self, markup: str) -> None:
        """Finished markup over everything else, not cut at the edge of the plot area."""
        self._over.append(markup)

    def whisker(self, start: tuple[float, float], end: tuple[float, float], index: int) -> None:
        """A line with a cap at each end, upright or level."""
        (x0, y0), (x1, y1) = start, end
        cap = (4.0, 0.0) if x0 == x1 else (0.0, 4.0)
        path = f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"
        for x, y in (start, end):
            path += f"M{x - cap[0]:.1f} {y - cap[1]:.1f}L{x + cap[0]:.1f} {y + cap[1]:.1f}"
        self._inside.append(f'<path class="whisker {series_css(index)}" d="{path}"/>')

    def tile(self, corner: tuple[float, float], size: tuple[float, float], shade: float) -> None:
        """A rectangle of a map, from its upper left corner; the darker, the larger the shade in [0, 1]."""
        (x, y), (width, height) = corner, size
        self._inside.append(
            f'<rect class="tile" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill-opacity="{0.06 + 0.6 * shade:.3f}"/>'
        )

    def small(self, x: float, y: float, index: int) -> None:
        """One of many points."""
        self._inside.append(f'<circle class="small {series_css(index)}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>')


def _runs(known: Sequence[bool] | np.ndarray) -> list[slice]:
    """The stretches of at least two true values."""
    runs, start = [], None
    for place, one in enumerate([*known, False]):
        if one and start is None:
            start = place
        elif not one and start is not None:
            if place - start > 1:
                runs.append(slice(start, place))
            start = None
    return runs


def ends(values: Sequence[float], *, log: bool, pad: float = 0.05) -> tuple[float, float]:
    """Ends of an axis that holds all finite values (positive ones if `log`) with some room beside them."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not finite:
        return (0.1, 10.0) if log else (0.0, 1.0)
    low, high = min(finite), max(finite)
    if log:
        room = max((high / low) ** pad, 1.1)
        return low / room, high * room
    room = (high - low) * pad or abs(high) * pad or 0.5
    return low - room, high + room


def log_ticks(scale: Scale) -> list[float]:
    """Powers of ten within a scale, with 2 and 5 times them where there are fewer than three."""
    ticks = decades(scale.lower, scale.upper)
    if len(ticks) >= 3:
        return ticks
    first = math.floor(math.log10(scale.lower))
    last = math.ceil(math.log10(scale.upper))
    finer = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    inside = [tick for tick in finer if scale.lower <= tick <= scale.upper]
    return inside if len(inside) >= 2 else nice_ticks(scale.lower, scale.upper, 4)


def ticks_of(scale: Scale, *, room: float = _ROOM, count: int = 5) -> tuple[list[float], list[str]]:
    """Ticks of a scale and their labels, thinned until labels do not touch."""
    ticks = log_ticks(scale) if scale.log else nice_ticks(scale.lower, scale.upper, count)
    labels = [number(tick) for tick in ticks]
    distance = abs(scale.end - scale.start) / max(len(ticks), 1)
    widest = max((text_width(label, 15.0) + 8.0 for label in labels), default=0.0)
    every = max(1, math.ceil(min(room, widest) / max(distance, 1.0)))
    return ticks[::every], labels[::every]


def shortened(text: str, width: float, size: float = 14.0) -> str:
    """The text, cut with an ellipsis where it is wider than `width` pixels."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"
