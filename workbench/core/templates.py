"""Texts for readers: Jinja templates whose macros give sentences, and the filters that they share.

A macro gives one text, or entries: a line that begins with `@name` starts an entry of that name, and the
lines after it belong to it. White space within a text is folded, so that templates wrap their lines as they
like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any


def percent(value: float) -> str:
    """A probability in percent, three digits."""
    return f"{100.0 * value:.3g} %"


def between(estimate: float, lower: float, upper: float) -> str:
    """A share with its interval."""
    return f"{percent(estimate)} [{percent(lower)} to {percent(upper)}]"


class Words:
    """The macros of a template file.

    Args:
        path: The file.
        helpers: Functions that its macros may call, by name.
    """

    def __init__(self, path: Path, helpers: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._module = _module(path, tuple((helpers or {}).items()))

    def text(self, macro: str, **context: Any) -> str:
        """What a macro says, as one line."""
        return " ".join(self._render(macro, context).split())

    def entries(self, macro: str, **context: Any) -> dict[str, list[str]]:
        """The entries of a macro by name, each with its texts in order; empty texts are left out."""
        found: dict[str, list[str]] = {}
        for part in self._render(macro, context).split("\n@")[1:]:
            name, *words = part.split()
            if words:
                found.setdefault(name, []).append(" ".join(words))
        return found

    def _render(self, macro: str, context: dict[str, Any]) -> str:
        return "\n" + str(getattr(self._module, macro)(**context))


@lru_cache(maxsize=64)
def _module(path: Path, helpers: tuple[tuple[str, Callable[..., Any]], ...]) -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, autoescape=False)
    environment.filters |= {"percent": percent, "f": format, "log": math.log}
    environment.globals |= {"between": between, "isfinite": math.isfinite, **dict(helpers)}
    return environment.from_string(path.read_text(encoding="utf-8")).module
