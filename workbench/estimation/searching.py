"""Searches that the estimators share: where a property that holds up to, or from, some number changes."""

from __future__ import annotations

import math
from collections.abc import Callable


def change_bracket(
    holds: Callable[[float], bool], *, absolute: float = 0.0, relative: float = 0.0, most: float = math.inf
) -> tuple[float, float]:
    """Brackets the largest x >= 0 at which a property holds that fails above some x; (0, 0) if it never does.

    Doubles from 1 and halves until the ends are within `absolute`, or within `relative` times the upper end.
    From `most` on nothing is tried.
    """
    if not holds(0.0):
        return 0.0, 0.0
    low, high = 0.0, 1.0
    while high < most and holds(high):
        low, high = high, 2.0 * high
    while high - low > max(absolute, relative * high):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def smallest_count(
    holds: Callable[[int], bool], *, start: int, most: int, coarseness: int | None = None
) -> int | None:
    """Smallest count at which a property holds that holds from some count on; None where it is above `most`.

    Doubles from `start`, which must not be twice the answer or more, and halves until the count is exact, or
    too large by at most its share 1 / `coarseness`.
    """
    high = start
    while not holds(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > (1 if coarseness is None else max(1, high // coarseness)):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
