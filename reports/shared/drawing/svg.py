"""A small SVG drawing kit: scales, a plot area with axes, and paths, as text.

Plots are written by hand, not by a plotting library, so that the page's style sheet colours them (light,
dark and print from one file), their text stays text, and the same record gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from markupsafe import escape

from workbench.interfaces import FloatArray
from workbench.reports.shared.drawing.figures import MARKERS, marker, series_css, text_width
from workbench.reports.shared.numbers import number


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps a range of values, linear or logarithmic, to a range of pixels.

    Attributes:
        lower, upper: Values at the two ends, `lower < upper`; both > 0 on a logarithmic scale.
        start, end: Their pixels.
        log: Whether equal ratios are equal distances.
    """

    lower: float
    upper: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: FloatArray) -> FloatArray:
        """Pixels of values; on a logarithmic scale values below `lower` lie on the lower end."""
        values = np.asarray(values, dtype=np.float64)
        if self.log:
            kept = np.maximum(values, self.lower)
            share = np.log(kept / self.lower) / math.log(self.upper / self.lower)
        else:
            share = (values - self.lower) / (self.upper - self.lower)
        return np.asarray(self.start + share * (self.end - self.start), dtype=np.float64)

    def at(self, value: float) -> float:
        """The place of one value on the axis, pixels."""
        return float(self(np.array([value]))[0])


def nice_ticks(lower: float, upper: float, count: int = 5) -> list[float]:
    """About `count` round values (1, 2 or 5 times a power of ten) within [lower, upper]."""
    raw = (upper - lower) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(lower / step - 1e-9)
    last = math.floor(upper / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def decades(lower: float, upper: float) -> list[float]:
    """The powers of ten within [lower, upper]."""
    first, last = math.ceil(math.log10(lower) - 1e-9), math.floor(math.log10(upper) + 1e-9)
    return [10.0**exponent for exponent in range(first, last + 1)]


def thin(x: FloatArray, y: FloatArray, least: float = 0.6) -> FloatArray:
    """Indices of a polyline's vertices without those closer than `least` pixels to the last one kept.

    First and last vertex stay, so 10,000 scores draw the same picture as 500.
    """
    kept = [0] if x.size else []
    for index in range(1, x.size - 1):
        last = kept[-1]
        if abs(x[index] - x[last]) + abs(y[index] - y[last]) >= least:
            kept.append(index)
    if x.size > 1:
        kept.append(x.size - 1)
    return np.array(kept, dtype=np.int64)


def path(x: FloatArray, y: FloatArray, *, close: bool = False) -> str:
    """The `d` attribute of a polyline; a NaN breaks it."""
    parts, pen_up = [], True
    for horizontal, vertical in zip(x, y, strict=True):
        if not (math.isfinite(horizontal) and math.isfinite(vertical)):
            pen_up = True
            continue
        parts.append(f"{'M' if pen_up else 'L'}{horizontal:.1f} {vertical:.1f}")
        pen_up = False
    return "".join(parts) + ("Z" if close and parts else "")


@dataclass(kw_only=True)
class Chart:
    """One plot: a viewport, a plot area that clips, axes, and what is drawn in it.

    Attributes:
        identifier: Unique on the page; a prefix of the ids within.
        title: Accessible name.
        description: What the plot shows, in a sentence, for those who do not see it.
        width, height: Of the view box, pixels.
        left, right, top, bottom: Margins around the plot area, pixels.
    """

    identifier: str
    title: str
    description: str
    width: float = 460.0
    height: float = 300.0
    left: float = 70.0
    right: float = 24.0
    top: float = 14.0
    bottom: float = 46.0
    _behind: list[str] = field(default_factory=list)
    _inside: list[str] = field(default_factory=list)
    _over: list[str] = field(default_factory=list)

    def horizontal(self, lower: float, upper: float, *, log: bool = False) -> Scale:
        """The scale of the x axis from `lower` to `upper`."""
        return Scale(lower=lower, upper=upper, start=self.left, end=self.width - self.right, log=log)

    def vertical(self, lower: float, upper: float, *, log: bool = False) -> Scale:
        """The scale of the y axis; its pixels grow downwards."""
        return Scale(lower=lower, upper=upper, start=self.height - self.bottom, end=self.top, log=log)

    def line(self, x: FloatArray, y: FloatArray, css: str) -> None:
        """A polyline in the plot area, given in pixels."""
        self._inside.append(f'<path class="{css}" d="{path(x, y)}"/>')

    def area(self, x: FloatArray, y: FloatArray, css: str) -> None:
        """A filled polygon in the plot area, given in pixels."""
        self._inside.append(f'<path class="{css}" d="{path(x, y, close=True)}"/>')

    def dot(self, x: float, y: float, css: str) -> None:
        """A small disc in the plot area."""
        self._inside.append(f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')

    def label(
        self,
        x: float,
        y: float,
        text: str,
        css: str = "",
        anchor: Literal["start", "middle", "end"] = "start",
    ) -> None:
        """Write text over everything else."""
        self._over.append(self._text(x, y, text, css, anchor))

    def _text(self, x: float, y: float, text: str, css: str, anchor: str) -> str:
        return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

    def x_axis(self, scale: Scale, ticks: Sequence[float], labels: Sequence[str], name: str) -> None:
        """Grid lines, tick labels and the name of the x axis."""
        base = self.height - self.bottom
        for tick, label in zip(ticks, labels, strict=True):
            x = scale.at(tick)
            self._behind.append(f'<path class="grid" d="M{x:.1f} {self.top:.1f}V{base:.1f}"/>')
            self._over.append(self._text(x, base + 17, label, "tick", "middle"))
        centre = (self.left + self.width - self.right) / 2
        self._over.append(self._text(centre, self.height - 8, name, "axis", "middle"))

    def y_axis(self, scale: Scale, ticks: Sequence[float], labels: Sequence[str], name: str) -> None:
        """Grid lines, tick labels and the name of the y axis."""
        for tick, label in zip(ticks, labels, strict=True):
            y = scale.at(tick)
            self._behind.append(
                f'<path class="grid" d="M{self.left:.1f} {y:.1f}H{self.width - self.right:.1f}"/>'
            )
            self._over.append(self._text(self.left - 7, y + 4, label, "tick", "end"))
        if name:
            self.y_name(name)

    def y_name(self, name: str) -> None:
        """The name of the y axis alone, upright beside it."""
        centre = (self.top + self.height - self.bottom) / 2
        self._over.append(
            f'<text class="axis" transform="translate(16 {centre:.1f}) rotate(-90)" '
            f'text-anchor="middle">{escape(name)}</text>'
        )

    def svg(self) -> str:
        """The finished drawing as an `<svg>` element."""
        inner_width, inner_height = self.width - self.left - self.right, self.height - self.top - self.bottom
        name, about, clip = (f"{self.identifier}-{part}" for part in ("title", "about", "clip"))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'role="img" aria-labelledby="{name} {about}">'
            f'<title id="{name}">{escape(self.title)}</title>'
            f'<desc id="{about}">{escape(self.description)}</desc>'
            f'<clipPath id="{clip}"><rect x="{self.left:g}" y="{self.top:g}" width="{inner_width:g}" '
            f'height="{inner_height:g}"/></clipPath>'
            f'{"".join(self._behind)}<g clip-path="url(#{clip})">{"".join(self._inside)}</g>'
            f'<rect class="frame" x="{self.left:g}" y="{self.top:g}" width="{inner_width:g}" '
            f'height="{inner_height:g}"/>{"".join(self._over)}</svg>'
        )


_ROOM = 52.0
"""Least distance of two labels on an axis, pixels."""


class SeriesChart(Chart):
    """A `Chart` with series on it: lines with gaps, bands, whiskers and markers in the style of `marks`."""

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
        """Draw a small dot for one of many points."""
        self._inside.append(f'<circle class="small {series_css(index)}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>')


def _runs(known: Sequence[bool] | np.ndarray) -> list[slice]:
    """The stretches of at least two true values."""
    runs, start = [], None
    for place, is_known in enumerate([*known, False]):
        if is_known and start is None:
            start = place
        elif not is_known and start is not None:
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
