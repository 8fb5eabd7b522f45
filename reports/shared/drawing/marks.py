"""Marks of a figure: colour, dash and marker of a series, and the spread and replicates of a value."""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup, escape

from workbench.core.errors import InputError
from workbench.reports.shared.numbers import number
from workbench.studies.report import FigureKey, Value

MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross", "plus", "hexagon")
"""Marker of each series, in order; the style sheet gives `series-1` to `series-8` colour and dash, so that
any one of the three tells series apart."""

_SIZE = 4.4


def checked_series_count(count: int) -> None:
    """Refuse more series than can be told apart.

    Raises:
        InputError: there are none, or more than there are markers.
    """
    if not 1 <= count <= len(MARKERS):
        raise InputError(f"series must be 1 to {len(MARKERS)} in number, got {count}")


def series_css(index: int) -> str:
    """Class name of a series, counted from 0."""
    return f"series-{index + 1}"


def series_key(index: int, label: str) -> FigureKey:
    """The legend's entry of a series, counted from 0."""
    return FigureKey(css=series_css(index), label=label, shape=MARKERS[index])


def marker(shape: str, x: float, y: float, css: str, size: float = _SIZE) -> str:
    """A marker as markup, centred at (x, y) pixels."""
    return f'<path class="point {css}" d="{_outline(shape, x, y, size)}"/>'


def _outline(shape: str, x: float, y: float, size: float) -> str:
    if shape == "circle":
        arc = f"a{size:g} {size:g} 0 1 0"
        return f"M{x - size:.1f} {y:.1f}{arc} {2 * size:g} 0{arc} {-2 * size:g} 0Z"
    if shape == "square":
        side = 1.8 * size
        return f"M{x - side / 2:.1f} {y - side / 2:.1f}h{side:.1f}v{side:.1f}h{-side:.1f}Z"
    if shape in ("cross", "plus"):
        arm = size * (0.8 if shape == "cross" else 1.1)
        if shape == "cross":
            return (
                f"M{x - arm:.1f} {y - arm:.1f}L{x + arm:.1f} {y + arm:.1f}"
                f"M{x - arm:.1f} {y + arm:.1f}L{x + arm:.1f} {y - arm:.1f}"
            )
        return f"M{x - arm:.1f} {y:.1f}H{x + arm:.1f}M{x:.1f} {y - arm:.1f}V{y + arm:.1f}"
    corners, turn = {"triangle": (3, 0.0), "down": (3, 0.5), "diamond": (4, 0.0), "hexagon": (6, 0.0)}[shape]
    radius = 1.25 * size
    points = []
    for corner in range(corners):
        angle = 2 * math.pi * (corner / corners + turn)
        points.append(f"{x + radius * math.sin(angle):.1f} {y - radius * math.cos(angle):.1f}")
    return f"M{'L'.join(points)}Z"


def swatch(key: FigureKey) -> Markup:
    """The picture of a legend's entry, 28 by 12 pixels, as the content of an `<svg>` or `<g>`.

    Shapes are a marker's name (on its line; alone after `only `), `line`, `area`, `plain area`, `whisker`,
    `small` and `bar`.
    """
    css = escape(key.css)
    if key.shape == "area":
        return Markup('<rect class="cloud {}" x="1" y="1" width="26" height="10"/>').format(css)
    if key.shape == "plain area":
        return Markup('<rect class="{}" x="1" y="1" width="26" height="10"/>').format(css)
    if key.shape == "whisker":
        return Markup('<path class="whisker {}" d="M2 6H26M2 2.5V9.5M26 2.5V9.5"/>').format(css)
    if key.shape == "small":
        return Markup('<circle class="small {}" cx="14" cy="6" r="3"/>').format(css)
    if key.shape == "bar":
        return Markup('<path class="middle" d="M14 0V12"/>')
    line = "" if key.shape.startswith("only ") else f'<path class="trace {css}" d="M0 6H28"/>'
    shape = key.shape.removeprefix("only ")
    mark = marker(shape, 14.0, 6.0, str(css), 3.8) if shape in MARKERS else ""
    return Markup(line + mark)


def interval_ends(value: Value) -> tuple[float, float] | None:
    """The ends of a value's whisker: its interval, else its standard deviation either way, else None."""
    if value.lower is not None and value.upper is not None:
        ends = value.lower, value.upper
    elif value.spread is not None:
        ends = value.estimate - value.spread, value.estimate + value.spread
    else:
        return None
    return None if math.isnan(ends[0]) or math.isnan(ends[1]) else ends


def shown_value(value: Value | None, digits: int = 4) -> str:
    """A value with its spread, in words, at `digits` significant digits."""
    if value is None or math.isnan(value.estimate):
        return "no value"
    ends = interval_ends(value)
    text = number(value.estimate, digits)
    if ends is None:
        return text
    return f"{text} ({number(ends[0], digits)} to {number(ends[1], digits)})"


def counted(values: Iterable[tuple[str, Value]]) -> str:
    """The number of replicates behind labelled values: `n = 3 each`, or by label where labels differ."""
    counts: dict[str, set[int | None]] = {}
    for label, value in values:
        counts.setdefault(label, set()).add(value.n)
    every = set().union(*counts.values()) if counts else set()
    if every <= {None}:
        return "the number of replicates is not stated"
    if len(every) == 1:
        return f"n = {every.pop()} each"
    if len(counts) == 1:
        return f"n = {_range_of(every)}"
    return "; ".join(f"n = {_range_of(numbers)} for {label}" for label, numbers in counts.items())


def _range_of(numbers: set[int | None]) -> str:
    known = sorted(n for n in numbers if n is not None)
    if not known:
        return "not stated"
    words = str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
    return f"{words} (some not stated)" if None in numbers else words
