"""From drawings to a `Figure`: for the page as they are, and as one SVG file that carries its own style.

The file has a white background, its title, legend and caption inside, and literal colours in place of the
page's variables, for not every program that shows SVG knows those.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markupsafe import escape

from workbench.core.errors import InputError
from workbench.reports.shared.drawing.marks import swatch
from workbench.reports.shared.markup import printable
from workbench.studies.report import Figure, FigureKey

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
    """One drawing of a figure.

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
