"""Canary extraction in words: what a subject tells of its planted secrets, and what chance gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from workbench.core.keys import JSON
from workbench.core.templates import Words

SHOWN, NOT_SHOWN = "MEMORISED", "NOT SHOWN"

NGRAMS = (1, 2, 3, 4)


def extraction_form(name: str, role: str, details: Mapping[str, JSON]) -> dict[str, JSON]:
    """What a report says of a subject from which planted secrets were to be extracted.

    Args:
        name, role: Of the subject.
        details: Of the attack.

    Returns:
        `subject`, `role`, `verdict` (`SHOWN` or `NOT_SHOWN`), what it `says` in sentences, and the `rows` of
        a table: `name`, `measured`, `chance` (with the range that holds 95 % of secrets never trained on,
        where there is one) and `p_value`.
    """
    numbers, words = {key: float(value) for key, value in details.items()}, _words()
    entries = words.entries("says", name=name, numbers=numbers, planted=round(numbers["secrets"]))
    rows = words.entries("rows", numbers=numbers, ngrams=NGRAMS)
    columns = zip(*(rows[column] for column in ("name", "measured", "chance", "p_value")), strict=True)
    return {
        "subject": name,
        "role": role,
        "verdict": SHOWN if numbers["memorised"] else NOT_SHOWN,
        "says": entries["says"],
        "rows": [dict(zip(("name", "measured", "chance", "p_value"), row, strict=True)) for row in columns],
    }


def extraction_terms() -> dict[str, str]:
    """What a report calls these forms."""
    return {name: entry for name, (entry,) in _words().entries("terms").items()}


def _words() -> Words:
    return Words(Path(__file__).with_suffix(".j2"), _HELPERS)


def _shown(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "none"


def _count(value: float) -> str:
    return f"{round(value):,}"


_HELPERS = {"shown": _shown, "count": _count}
