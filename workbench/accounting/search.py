"""The smallest noise that meets a budget: a guess from an approximation, then certified secant steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from workbench.core.errors import InconclusiveError, InputError, UnsupportedError

NOISE_SLACK = 2e-4
"""Relative width to which the smallest sufficient noise multiplier is bracketed."""

_LOWEST, _HIGHEST = math.log(1e-2), math.log(1e9)


def smallest_meeting(
    upper: Callable[[float], float], approximate: Callable[[float], float], start: float, target: float
) -> float:
    """Smallest log noise at which `upper` is at most the target, to within `NOISE_SLACK`.

    Args:
        upper: Certified upper epsilon at a log noise multiplier, falling; expensive.
        approximate: About the same, cheap.
        start: A first guess.
        target: Finite, > 0.

    Raises:
        InputError: even the least noise meets the target.
        InconclusiveError: even the most noise misses it.
    """
    enough, short = _bracket(upper, _guess(approximate, start, target), target)
    while enough[0] - short[0] > NOISE_SLACK:
        (x1, y1), (x0, y0) = enough, short
        middle = (x0 + x1) / 2
        if y1 > 0 and y0 < math.inf:
            slope = (math.log(y1) - math.log(y0)) / (x1 - x0)
            at = x1 + (math.log(target) - math.log(y1)) / slope if slope < 0 else middle
            # A quarter of the slack to the safe side, so that the next point closes the bracket.
            middle = min(max(at + NOISE_SLACK / 4, x0 + NOISE_SLACK / 4), x1 - NOISE_SLACK / 4)
        value = _value(upper, middle)
        if value <= target:
            enough = (middle, value)
            probe = middle - NOISE_SLACK * 0.9
            if probe > short[0]:
                value = _value(upper, probe)
                if value <= target:
                    enough = (probe, value)
                else:
                    short = (probe, value)
        else:
            short = (middle, value)
    return enough[0]


def _value(upper: Callable[[float], float], at: float) -> float:
    """The upper bound; what is too wide for any grid counts as infinite."""
    try:
        return upper(at)
    except UnsupportedError:
        return math.inf


def _guess(approximate: Callable[[float], float], start: float, target: float) -> float:
    """Log noise at which the approximation meets the target: secant steps on log scales, else bisection."""
    x0, y0 = start, _log_ratio(approximate, start, target)
    x1 = min(max(x0 + min(max(y0 / 1.5, -1.0), 1.0), _LOWEST), _HIGHEST)
    for _ in range(8):
        y1 = _log_ratio(approximate, x1, target)
        if abs(y1) < 1e-4 or x1 == x0:
            return x1
        slope = (y1 - y0) / (x1 - x0)
        if not (math.isfinite(slope) and slope < -1e-3):
            break
        x0, y0, x1 = x1, y1, min(max(x1 - min(max(y1 / slope, -1.0), 1.0), _LOWEST), _HIGHEST)
    low, high = _LOWEST, _HIGHEST
    for _ in range(16):
        middle = (low + high) / 2
        meets = _log_ratio(approximate, middle, target) <= 0
        low, high = (low, middle) if meets else (middle, high)
    return high


def _log_ratio(approximate: Callable[[float], float], at: float, target: float) -> float:
    """log(epsilon / target) by the approximation; where it fails, large for little noise, else small."""
    try:
        return math.log(max(approximate(at), 1e-300) / target)
    except (UnsupportedError, ArithmeticError, ValueError):
        return -700.0 if at > 0 else 700.0


def _bracket(
    upper: Callable[[float], float], start: float, target: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(enough, short): log noises with their upper bounds at most and above the target."""
    at, step = start, 1e-3
    value = _value(upper, at)
    sign = 1 if value > target else -1
    while True:
        before = (at, value)
        at = min(max(at + sign * step, _LOWEST), _HIGHEST)
        if at == before[0]:
            break
        value = _value(upper, at)
        if (value > target) != (sign > 0):
            return ((at, value), before) if sign > 0 else (before, (at, value))
        step *= 4
    if sign > 0:
        raise InconclusiveError(f"no noise multiplier up to 1e9 brings epsilon down to {target:g}")
    raise InputError(f"target_epsilon {target:g} is met by any noise at this delta")
