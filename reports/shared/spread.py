"""What a mark's spread is and how many replicates stand behind it, for drawings and their captions."""

from __future__ import annotations

import math
from collections.abc import Iterable

from workbench.reports.shared.numbers import number
from workbench.studies.report import Value


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
    return "; ".join(f"n = {_range_of(found)} for {label}" for label, found in counts.items())


def _range_of(found: set[int | None]) -> str:
    known = sorted(n for n in found if n is not None)
    if not known:
        return "not stated"
    words = str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
    return f"{words} (some not stated)" if None in found else words
