"""Axes of a radar chart: their range, their direction, and where a value lies on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from workbench.core.errors import InputError
from workbench.reports.shared.numbers import number
from workbench.reports.shared.spread import interval_ends
from workbench.studies.report import Value

_LOG_FROM = 20.0
"""A positive quantity whose largest value is this many times its smallest gets a logarithmic axis."""


class Better(StrEnum):
    """Which way is better on an axis."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a radar chart.

    Attributes:
        name: `"perplexity, members"`.
        centre, rim: Values at the innermost and the outermost ring; different, and both > 0 where `log`.
        better: Which values are better, as the figure's author judges; drawn as a word.
        unit: `"nats"`; empty for a pure number.
        log: Equal distances are equal ratios.
    """

    name: str
    centre: float
    rim: float
    better: Better
    unit: str = ""
    log: bool = False

    def __post_init__(self) -> None:
        """Check the range."""
        if not (math.isfinite(self.centre) and math.isfinite(self.rim)) or self.centre == self.rim:
            raise InputError(
                f"centre and rim must be finite and differ, got {self.centre}, {self.rim} for {self.name!r}"
            )
        if self.log and min(self.centre, self.rim) <= 0:
            raise InputError(
                f"a logarithmic axis needs positive ends, got {self.centre}, {self.rim} for {self.name!r}"
            )

    @property
    def outward_is_better(self) -> bool | None:
        """Whether values grow better towards the rim; None where neither way is better."""
        if self.better is Better.NEITHER:
            return None
        return (self.rim > self.centre) is (self.better is Better.HIGHER)

    @property
    def range_text(self) -> str:
        """`500 → 1 nats`: from the innermost ring to the rim."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{number(self.centre)} → {number(self.rim)}{unit}"

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return -1e-9 <= self.share(value) <= 1.0 + 1e-9

    def share(self, value: float) -> float:
        """Where a value lies between centre (0) and rim (1); outside [0, 1] where it is off the axis."""
        if self.log:
            if value <= 0:
                return -math.inf if self.rim > self.centre else math.inf
            return math.log(value / self.centre) / math.log(self.rim / self.centre)
        return (value - self.centre) / (self.rim - self.centre)


def fitted_axis(
    name: str,
    values: Iterable[Value | None],
    better: Better,
    *,
    unit: str = "",
    log: bool | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Axis:
    """An axis that holds all values with their spreads, its ends round numbers, the better end outward.

    Args:
        name: Of the axis.
        values: All values that will be drawn on it, in every panel.
        better: Decides which end is the rim; `NEITHER` puts the larger one there.
        unit: See `Axis`.
        log: None decides: logarithmic where all is positive and the largest is 20 times the smallest.
        bounds: The quantity's own limits, such as (0, 1), which the ends will not exceed.

    Raises:
        InputError: there is no finite value, or a logarithmic axis is asked for values that are not positive.
    """
    ends = [end for value in values if value is not None for end in _finite_ends(value)]
    if not ends:
        raise InputError(f"axis {name!r} has no finite value to fit")
    low, high = min(ends), max(ends)
    if log and low <= 0:
        raise InputError(f"a logarithmic axis needs positive values, got {low:g} for {name!r}")
    logarithmic = log if log is not None else low > 0 and high / low >= _LOG_FROM
    low, high = _round_log(low, high) if logarithmic else _round_linear(low, high)
    low, high = max(low, bounds[0]), min(high, bounds[1])
    if better is Better.LOWER:
        low, high = high, low
    return Axis(name=name, centre=low, rim=high, better=better, unit=unit, log=logarithmic)


def _finite_ends(value: Value) -> list[float]:
    if not math.isfinite(value.estimate):
        return []
    return [value.estimate, *(end for end in interval_ends(value) or () if math.isfinite(end))]


def _round_linear(low: float, high: float) -> tuple[float, float]:
    length = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(length / 4.0))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= length / 4.0 * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    return round(first * step, 12), round(last * step, 12)


def _round_log(low: float, high: float) -> tuple[float, float]:
    def floor(value: float) -> float:
        power = 10.0 ** math.floor(math.log10(value))
        return max(power * factor for factor in (1.0, 2.0, 5.0) if power * factor <= value * (1 + 1e-9))

    def ceiling(value: float) -> float:
        power = 10.0 ** math.floor(math.log10(value))
        return min(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= value * (1 - 1e-9))

    lower, upper = floor(low), ceiling(high)
    return (lower / 2, upper * 2) if lower == upper else (lower, upper)
