"""Renders texts for readers from Jinja templates whose macros are sentences.

A macro gives one text, or entries: a line that begins with `@name` starts an entry of that name, and the
lines after it belong to it. White space within a text is folded, so templates may wrap lines freely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any


def percent(value: float, digits: int = 3) -> str:
    """Formats a probability in percent, by so many digits, or by as many as keep it apart from 1.

    >>> percent(0.95), percent(0.99999), percent(1.0), percent(0.9833333, 4)
    ('95 %', '99.999 %', '100 %', '98.33 %')
    """
    if value < 1.0 and float(f"{100.0 * value:.{digits}g}") >= 100.0:
        digits = 10
    return f"{100.0 * value:.{digits}g} %"


def between(estimate: float, lower: float, upper: float) -> str:
    """Formats a share with its interval."""
    return f"{percent(estimate)} [{percent(lower)} to {percent(upper)}]"


class Words:
    """The macros of a template file; `helpers` are functions that the macros may call, by name."""

    def __init__(self, path: Path, helpers: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._module = _module(path, tuple((helpers or {}).items()))

    def text(self, macro: str, **context: Any) -> str:
        """Renders a macro as one line."""
        return " ".join(self._render(macro, context).split())

    def entries(self, macro: str, **context: Any) -> dict[str, list[str]]:
        """Renders a macro's entries by name, each with its texts in order; empty texts are left out."""
        entries: dict[str, list[str]] = {}
        for part in self._render(macro, context).split("\n@")[1:]:
            name, *words = part.split()
            if words:
                entries.setdefault(name, []).append(" ".join(words))
        return entries

    def _render(self, macro: str, context: dict[str, Any]) -> str:
        return "\n" + str(getattr(self._module, macro)(**context))


@lru_cache(maxsize=64)
def _module(path: Path, helpers: tuple[tuple[str, Callable[..., Any]], ...]) -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, autoescape=False)
    environment.filters |= {"percent": percent, "f": format, "log": math.log}
    environment.globals |= {"between": between, "isfinite": math.isfinite, **dict(helpers)}
    return environment.from_string(path.read_text(encoding="utf-8")).module
