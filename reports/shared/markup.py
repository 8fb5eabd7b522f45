"""What all pages have in common: their templates, and text that any HTML or XML file can hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

_UNPRINTABLE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160), 0xFFFE, 0xFFFF), "\ufffd")
"""Control characters, which HTML and XML forbid."""


def source(name: str) -> str:
    """Read the text of a template by its file name."""
    return (files("workbench.reports") / "shared" / "templates" / name).read_text(encoding="utf-8")


def printable(markup: str) -> str:
    """The markup without what HTML and XML forbid: control characters, and halves of surrogate pairs.

    A lone surrogate in somebody's string is legal JSON, and no file could hold it.
    """
    return markup.translate(_UNPRINTABLE).encode("utf-8", "replace").decode("utf-8")


class Once:
    """Drops from a text the sentences that an earlier text of the same page had."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, text: str) -> str:
        """Returns the text without them; empty if it had no other."""
        kept = []
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z“])", text):
            if sentence not in self._said:
                self._said.add(sentence)
                kept.append(sentence)
        return " ".join(kept)


def rendered(name: str, context: Mapping[str, Any]) -> str:
    """A page from its template; all text is escaped unless it is markup. Templates have `once`, an `Once`."""
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(source),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["once"] = Once()
    return printable(environment.get_template(name).render(context))
