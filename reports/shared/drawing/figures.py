"""From drawings to a `Figure`: for the page as they are, and as one SVG file that carries its own style.

The file has a white background, its title, legend and caption inside, and literal colours in place of the
page's variables, for not every program that shows SVG knows those.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape

from workbench.core.errors import InputError
from workbench.reports.shared.markup import printable
from workbench.reports.shared.numbers import number
from workbench.studies.report import Figure, FigureKey, Value

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


_XMLNS = '<svg xmlns="http://www.w3.org/2000/svg" '
_MARGIN = 18.0
_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_BASE = (
    f"text{{font:12px {_FONT};fill:#1c2126}}"
    "text.tick{font-size:11.5px;fill:#454d56}text.axis,text.row{fill:#454d56}"
    "text.strong{font-weight:700;fill:#1c2126}text.heading{font-size:13px;font-weight:700}"
    "text.title{font-size:15px;font-weight:700}text.caption{font-size:11px;fill:#333a41}"
    "text.row,text.strong{paint-order:stroke;stroke:#ffffff;stroke-width:3px;stroke-linejoin:round}"
    ".grid{stroke:#dedbd3;fill:none}.frame{fill:none;stroke:#a9a7a0}"
)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing of a figure that may have several.

    Attributes:
        svg: A whole `<svg>` element whose first attribute is its namespace.
        width, height: Of its view box, pixels.
        heading: Over it, where a figure has several.
    """

    svg: str
    width: float
    height: float
    heading: str = ""


@dataclass(frozen=True, kw_only=True)
class FigureText:
    """What a figure says beside its drawing; see `Figure`."""

    identifier: str
    title: str
    caption: str
    place: str = ""


def svg_element(identifier: str, size: tuple[float, float], title: str, about: str, body: str) -> str:
    """An accessible `<svg>` element; title and description are escaped, the body is markup."""
    name, description = f"{escape(identifier)}-title", f"{escape(identifier)}-about"
    return (
        f'{_XMLNS}viewBox="0 0 {size[0]:g} {size[1]:g}" role="img" aria-labelledby="{name} {description}">'
        f'<title id="{name}">{escape(title)}</title><desc id="{description}">{escape(about)}</desc>'
        f"{body}</svg>"
    )


def checked_identifier(identifier: str) -> str:
    """The identifier, which becomes a file name and ids of the page.

    Raises:
        InputError: it is anything but letters, digits, dots, dashes and underscores.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", identifier):
        raise InputError(f"identifier must be letters, digits, '.', '-' and '_', got {identifier!r}")
    return identifier


def make_figure(text: FigureText, panels: Sequence[Panel], legend: Sequence[FigureKey]) -> Figure:
    """The figure, for the page and as a file of its own."""
    if len(panels) == 1 and not panels[0].heading:
        page = panels[0].svg
    else:
        inner = "".join(
            f'<div class="panel"><p class="panel-name">{escape(panel.heading)}</p>{panel.svg}</div>'
            for panel in panels
        )
        page = f'<div class="panels">{inner}</div>'
    return Figure(
        id=text.identifier,
        title=text.title,
        caption=text.caption,
        svg=printable(page),
        standalone=printable(_standalone(text, panels, legend)),
        legend=tuple(legend),
        place=text.place,
    )


def text_width(text: str, size: float) -> float:
    """About how wide a text is, in pixels, at a font size of `size` pixels; rather too wide."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return size * (0.55 * (len(text) - wide) + wide)


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Lines no wider than `width` pixels; a word that is too long is cut after a joint, or anywhere."""
    lines = [""]
    for word in text.split():
        candidate = f"{lines[-1]} {word}".strip()
        if text_width(candidate, size) <= width:
            lines[-1] = candidate
            continue
        pieces = _pieces(word, width, size)
        lines += pieces
    return [line for line in lines if line]


def _pieces(word: str, width: float, size: float) -> list[str]:
    """A word in pieces that fit, cut after `_`, `-`, `/` or `.` where there is one in the second half."""
    pieces = []
    while text_width(word, size) > width:
        fits = max(
            next((n for n in range(len(word), 0, -1) if text_width(word[:n], size) <= width), 1),
            1,
        )
        joints = [n for n in range(fits // 2 + 1, fits + 1) if word[n - 1] in "_-/."]
        cut = joints[-1] if joints else fits
        pieces.append(word[:cut])
        word = word[cut:]
    return [*pieces, word] if word else pieces


@cache
def _style() -> str:
    """The style of a file: the page's rules for series, with the light colours in place of variables."""
    folder = files("workbench.reports") / "shared" / "templates"
    page, figures = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "figures.css"))
    colours = {
        name: value
        for sheet in (page, figures)
        for name, value in re.findall(r"(--[\w-]+):\s*([^;]+);", sheet[: sheet.index("}")])
    }
    rules = figures.split("/* rules */", 1)[1]
    return _BASE + re.sub(r"var\((--[\w-]+)\)", lambda match: colours[match[1]], rules).replace("\n", "")


def _text(x: float, y: float, words: str, css: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _standalone(text: FigureText, panels: Sequence[Panel], legend: Sequence[FigureKey]) -> str:
    across = 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3
    column = max(panel.width for panel in panels)
    width = across * column + 2 * _MARGIN
    room = width - 2 * _MARGIN
    parts, y = [], _MARGIN
    title = f"{text.title} ({text.place})" if text.place else text.title
    for line in wrapped(title, room, 15.5):
        y += 17.0
        parts.append(_text(_MARGIN, y, line, "title"))
    y += 12.0
    drawn, y = _legend_lines(legend, room, y)
    parts += drawn
    for start in range(0, len(panels), across):
        row = panels[start : start + across]
        y += 22.0 if any(panel.heading for panel in row) else 8.0
        for place, panel in enumerate(row):
            x = _MARGIN + place * column
            if panel.heading:
                parts.append(_text(x + 6, y - 5, panel.heading, "heading"))
            size = f'x="{x:g}" y="{y:.1f}" width="{panel.width:g}" height="{panel.height:g}" '
            parts.append(panel.svg.replace(_XMLNS, f"<svg {size}", 1))
        y += max(panel.height for panel in row)
    y += 6.0
    for line in wrapped(text.caption, room, 11.0):
        y += 14.5
        parts.append(_text(_MARGIN, y, line, "caption"))
    height = math.ceil(y + _MARGIN)
    return (
        f'{_XMLNS}width="{width:g}" height="{height}" viewBox="0 0 {width:g} {height}">'
        f"<style>{_style()}</style>"
        f'<rect width="{width:g}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _legend_lines(legend: Sequence[FigureKey], room: float, y: float) -> tuple[list[str], float]:
    """The legend's markup in as many lines as it takes, and where the next thing may begin."""
    parts, x = [], 0.0
    y += 10.0
    for key in legend:
        lines = wrapped(key.label, room - 40.0, 12.5) or [""]
        needed = 36.0 + max(text_width(line, 12.5) for line in lines) + 14.0
        if x and x + needed > room:
            x, y = 0.0, y + 18.0
        parts.append(f'<g transform="translate({_MARGIN + x:.1f} {y - 8:.1f})">{swatch(key)}</g>')
        for place, line in enumerate(lines):
            parts.append(_text(_MARGIN + x + 36, y + 2 + 15.0 * place, line, ""))
        if len(lines) > 1:
            x, y = 0.0, y + 15.0 * (len(lines) - 1) + 18.0
        else:
            x += needed
    return parts, y + 10.0
