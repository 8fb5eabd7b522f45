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
        """Pixel of one value."""
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
        """The scale of the x axis."""
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
        """Text over everything else."""
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
        """The finished drawing."""
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
