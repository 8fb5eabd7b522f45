"""A Griffe extension: docstrings of this project in the form that the site's reference reads.

A line of a section that names several parameters (`scores, members: ...`) becomes one line for each of them,
and a doctest that stands in the text becomes a block of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^(Args|Attributes):$")
_SEVERAL = re.compile(r"^ {4}(\w+(?:, \w+)+): ")


def separated(lines: list[str]) -> list[str]:
    """The lines of a docstring, each parameter of a section by itself."""
    result: list[str] = []
    names: list[str] = []
    block: list[str] = []
    inside = False

    def close() -> None:
        for name in names:
            first = block[0].partition(":")[2]
            result.extend([f"    {name}:{first}", *block[1:]])
        names.clear()
        block.clear()

    for line in lines:
        if names and line.startswith(" " * 5):
            block.append(line)
            continue
        close()
        inside = bool(_SECTION.match(line)) or (inside and (not line or line.startswith(" ")))
        if inside and (several := _SEVERAL.match(line)):
            names += several[1].split(", ")
            block.append(line)
        else:
            result.append(line)
    close()
    return result


def fenced(lines: list[str]) -> list[str]:
    """The lines of a docstring, each doctest between fences."""
    result: list[str] = []
    inside = False
    for line in lines:
        if line.startswith(">>>") and not inside:
            result.append("```pycon")
            inside = True
        if inside and not line:
            result.append("```")
            inside = False
        result.append(line)
    return [*result, "```"] if inside else result


class Docstrings(griffe.Extension):
    """Rewrites each docstring once it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            lines = obj.docstring.value.splitlines()
            obj.docstring.value = "\n".join(fenced(separated(lines)))
