"""Searches for the noise at which an epsilon comes down to a target, over the noise's logarithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from workbench.core.arguments import number
from workbench.core.errors import InconclusiveError, InputError

SLACK = 2e-4
"""Relative width to which the smallest sufficient noise is bracketed."""

_LOWEST, HIGHEST = math.log(1e-2), math.log(1e9)

Known: TypeAlias = tuple[float, float]
"""A log noise and the function's value there."""


def smallest_meeting(
    upper: Callable[[float], float], target: float, start: float, slack: float = SLACK
) -> tuple[Known, Known]:
    """Where a falling function of the log noise comes down to a target, to within `slack`.

    Returns:
        The least argument found at which it is at most the target, and the largest at which it is above, each
        with its value.

    Raises:
        InputError: even the least noise meets the target, or an argument is no number or out of range.
        InconclusiveError: even the most noise misses it.
    """
    target = number("target", target, above=0, below=math.inf)
    start = number("start", start, above=-math.inf, below=math.inf)
    slack = number("slack", slack, above=0, below=1)
    enough, short = _bracket(upper, target, start)
    while enough[0] - short[0] > slack:
        (x1, y1), (x0, y0) = enough, short
        middle = (x0 + x1) / 2
        if y1 > 0 and y0 < math.inf:
            slope = (math.log(y1) - math.log(y0)) / (x1 - x0)
            at = x1 + (math.log(target) - math.log(y1)) / slope if slope < 0 else middle
            # A quarter of the slack to the safe side, so that the next point closes the bracket.
            middle = min(max(at + slack / 4, x0 + slack / 4), x1 - slack / 4)
        value = upper(middle)
        if value > target:
            short = (middle, value)
            continue
        enough = (middle, value)
        probe = middle - slack * 0.9
        if probe > short[0]:
            value = upper(probe)
            enough, short = ((probe, value), short) if value <= target else (enough, (probe, value))
    return enough, short


def root(function: Callable[[float], float], start: float) -> float:
    """About where a falling function of the log noise is 0: by secant steps, else by bisection.

    `start`: finite, else an `InputError`.
    """
    start = number("start", start, above=-math.inf, below=math.inf)
    x0, y0 = start, function(start)
    x1 = min(max(x0 + min(max(y0 / 1.5, -1.0), 1.0), _LOWEST), HIGHEST)
    for _ in range(8):
        y1 = function(x1)
        if abs(y1) < 1e-4 or x1 == x0:
            return x1
        slope = (y1 - y0) / (x1 - x0)
        if not (math.isfinite(slope) and slope < -1e-3):
            break
        x0, y0, x1 = x1, y1, min(max(x1 - min(max(y1 / slope, -1.0), 1.0), _LOWEST), HIGHEST)
    low, high = _LOWEST, HIGHEST
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) <= 0 else (middle, high)
    return high


def _bracket(upper: Callable[[float], float], target: float, start: float) -> tuple[Known, Known]:
    """(enough, short): log noises with their upper bounds at most and above the target."""
    at, step = start, 1e-3
    value = upper(at)
    sign = 1 if value > target else -1
    while True:
        before = (at, value)
        at = min(max(at + sign * step, _LOWEST), HIGHEST)
        if at == before[0]:
            break
        value = upper(at)
        if (value > target) != (sign > 0):
            return ((at, value), before) if sign > 0 else (before, (at, value))
        step *= 4
    if sign > 0:
        raise InconclusiveError(f"no noise multiplier up to 1e9 brings epsilon down to {target:g}")
    raise InputError(f"target_epsilon {target:g} is met by any noise at this delta")
