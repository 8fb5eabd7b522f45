"""Finds where the answer to a yes-or-no question changes: on a grid, and between two points by bisection.

For formulas that are not known to fall in their argument, so that bisection alone would find some crossing.

>>> met = [noise >= 0.7 for noise in (0.1, 0.5, 0.9)]
>>> turns(met)
(2,)
>>> round(crossing(lambda noise: noise >= 0.7, 0.5, 0.9), 9)
0.7
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from workbench.core.arguments import number

HALVINGS = 60
"""Halvings of a bracket, after which its ends are neighbouring numbers."""


def turns(met: Sequence[bool]) -> tuple[int, ...]:
    """Places i at which `met[i]` is another than `met[i - 1]`, increasing."""
    return tuple(place for place in range(1, len(met)) if met[place] != met[place - 1])


def crossing(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    middle: Callable[[float, float], float] = lambda low, high: (low + high) / 2,
    precision: float = 0.0,
) -> float:
    """The point where `holds` changes between two points, from the side on which it holds.

    Args:
        holds: The question.
        low: Below the crossing.
        high: Above it; returned as it is where the answer is the same at both ends, as rounding may make it
            at the proved end of a grid.
        middle: Where a bracket is halved.
        precision: Relative width of the last bracket of positive numbers; 0 for neighbouring numbers.

    Raises:
        InputError: an end or the precision is no finite number.
    """
    low = number("low", low, above=-math.inf, below=math.inf)
    high = number("high", high, above=-math.inf, below=math.inf)
    precision = number("precision", precision, least=0, below=math.inf)
    at_low, at_high = holds(low), holds(high)
    if at_low == at_high:
        return high
    for _ in range(HALVINGS):
        between = middle(low, high)
        if between in (low, high) or (precision and high <= low * (1 + precision)):
            break
        low, high = (low, between) if holds(between) == at_high else (between, high)
    return high if at_high else low
