"""What a composition on a grid is asked: epsilon at a delta, delta at an epsilon, a rate at a rate.

One value at a time, or several: the sums that are computed for one of them bound the whole curve, so that
values at which they are narrow enough are read off these, and only the others get sums of their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from workbench.accounting.events import Event
from workbench.accounting.grid.composition import MOST_GRIDS, Answer, Composition, Cumulants, KeptSum, Saddle
from workbench.accounting.grid.curves import SumCurve
from workbench.accounting.grid.laws_of_events import steps_of
from workbench.accounting.grid.tilted import TiltedSum
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Direction, FloatArray

LEAST_MASS = 1e-30
"""Mass that is cut off while the size of delta is still unknown."""

_CUT = 1e-7
"""Of a delta or a rate, what may be cut off."""

_MOST_ANCHORS = 8
"""Values of several for which sums of their own are computed, before the rest are asked one by one."""

_SHARE = 0.6
"""Of the width that is asked for, where a value's sums are to bound others too."""

_GRIDS = 2
"""Tried for each of these values: where more are wanted, it is one by one."""

ORDERS = {Direction.BOTH: (False, True), Direction.REMOVE: (False,), Direction.ADD: (True,)}
"""Which orders of a pair count: the forward one is p against q, with the record against without."""


@dataclass(frozen=True)
class GridQuestion(ABC):
    """What is asked of an event, but for the value at which it is asked."""

    event: Event
    adjacency: Adjacency
    direction: Direction

    def composition(self, values: Sequence[float]) -> Composition:
        """Of the event's steps, exact enough for all these values."""
        return self._cut(min(values) * _CUT)

    def _cut(self, tail: float) -> Composition:
        return Composition(steps_of(self.event, self.adjacency), tail, ORDERS[self.direction])

    @abstractmethod
    def saddle(self, cumulants: Cumulants, value: float) -> Saddle:
        """Where to look in one order of the pair."""

    @abstractmethod
    def answer(self, value: float) -> Answer:
        """What to ask a tilted sum."""

    @abstractmethod
    def read(self, curve: SumCurve, shift: float, values: FloatArray) -> FloatArray:
        """The bounds at several values that a curve has."""

    def refined(
        self,
        composition: Composition,
        value: float,
        width: float,
        *,
        grids: int = MOST_GRIDS,
        first: float | None = None,
    ) -> tuple[float, float]:
        """(lower, upper) over the orders of the pair, at one value.

        Args:
            composition: Of this event, exact enough for the value.
            value: At which the question is asked.
            width: Relative width at which bounds are no longer refined.
            grids, first: As in `Composition.refined`.
        """
        saddles = [self.saddle(cumulants, value) for cumulants in composition.cumulants]
        near = max(saddles[mirrored].mean for mirrored in composition.orders)
        return composition.refined(self.answer(value), saddles, near, width, grids=grids, first=first)

    def bounded(self, values: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Ends within what the answer can be at all."""
        return np.maximum(low, 0.0), np.maximum(high, 0.0)


class EpsilonQuestion(GridQuestion):
    """Epsilon at a delta."""

    def saddle(self, cumulants: Cumulants, value: float) -> Saddle:
        """Where delta is the value."""
        return cumulants.at_delta(value)

    def answer(self, value: float) -> Answer:
        """Epsilon, moved by the shift."""

        def answer(total: TiltedSum, shift: float, start: float) -> float:
            if total.upper:
                return max(0.0, total.epsilon(value, start, -shift) + shift)
            return max(0.0, total.epsilon(value, start) - shift)

        return answer

    def read(self, curve: SumCurve, shift: float, values: FloatArray) -> FloatArray:
        """Epsilons, moved by the shift."""
        return curve.epsilons(values) + (shift if curve.upper else -shift)

    def first_upper(self, value: float, width: float) -> float:
        """Upper bound over the orders on the first grid; the refined one is no larger."""
        composition = self.composition([value])
        saddles = [self.saddle(cumulants, value) for cumulants in composition.cumulants]
        near = max(saddles[mirrored].mean for mirrored in composition.orders)
        return composition.first_upper(self.answer(value), saddles, near, width)


class DeltaQuestion(GridQuestion):
    """Delta at an epsilon."""

    def composition(self, values: Sequence[float]) -> Composition:
        """The tails that are cut off must be small against a delta that may be tiny itself."""
        first = self._cut(LEAST_MASS)
        logs = []
        for value in {min(values), max(values)}:
            each = [c.log_delta(self.saddle(c, value).theta) for c in first.cumulants]
            logs.append(max(each[mirrored] for mirrored in first.orders))
        return self._cut(math.exp(max(min(*logs, 0.0), -600.0)) * _CUT)

    def saddle(self, cumulants: Cumulants, value: float) -> Saddle:
        """Where the mean is the value."""
        return cumulants.at_epsilon(value)

    def answer(self, value: float) -> Answer:
        """Delta at an epsilon that is moved by the shift."""

        def answer(total: TiltedSum, shift: float, start: float) -> float:
            return total.delta(value - shift if total.upper else value + shift)

        return answer

    def refined(
        self,
        composition: Composition,
        value: float,
        width: float,
        *,
        grids: int = MOST_GRIDS,
        first: float | None = None,
    ) -> tuple[float, float]:
        """As for others, but that it is known where epsilon lies."""
        saddles = [self.saddle(cumulants, value) for cumulants in composition.cumulants]
        return composition.refined(
            self.answer(value), saddles, value, width, at=lambda _: value, grids=grids, first=first
        )

    def read(self, curve: SumCurve, shift: float, values: FloatArray) -> FloatArray:
        """Deltas at epsilons that are moved by the shift."""
        return curve.deltas(values - shift if curve.upper else values + shift)


class RateQuestion(GridQuestion):
    """The largest true-positive rate at a false-positive rate."""

    def saddle(self, cumulants: Cumulants, value: float) -> Saddle:
        """Where the false-positive rate is the value."""
        return cumulants.at_fpr(value)

    def answer(self, value: float) -> Answer:
        """The rate, times exp of the shift."""

        def answer(total: TiltedSum, shift: float, start: float) -> float:
            factor = math.exp(shift if total.upper else -shift)
            return min(1.0, total.tpr(value) * factor)

        return answer

    def refined(
        self,
        composition: Composition,
        value: float,
        width: float,
        *,
        grids: int = MOST_GRIDS,
        first: float | None = None,
    ) -> tuple[float, float]:
        """As for others, but no bound on a rate says where epsilon lies; it is at least the value."""
        saddles = [self.saddle(cumulants, value) for cumulants in composition.cumulants]
        near = max(saddles[mirrored].mean for mirrored in composition.orders)
        lower, upper = composition.refined(
            self.answer(value), saddles, near, width, at=lambda _: near, grids=grids, first=first
        )
        return max(lower, value), max(upper, value)

    def read(self, curve: SumCurve, shift: float, values: FloatArray) -> FloatArray:
        """Rates, times exp of the shift."""
        return np.minimum(curve.rates(values) * math.exp(shift if curve.upper else -shift), 1.0)

    def bounded(self, values: FloatArray, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Rates are at least the false-positive one."""
        return np.maximum(low, values), np.maximum(high, values)


@lru_cache(maxsize=4096)
def on_grid(
    question: GridQuestion, value: float, width: float, *, grids: int = MOST_GRIDS
) -> tuple[float, float]:
    """(lower, upper) over the orders of the pair.

    Args:
        question: What is asked.
        value: At which it is asked.
        width: Relative width at which bounds are no longer refined.
        grids: Tried at most.

    Raises:
        UnsupportedError: the event has no law on the grid, or losses that are spread too wide for any.
    """
    return question.refined(question.composition([value]), value, width, grids=grids)


def several_on_grid(
    question: GridQuestion, values: Sequence[float], width: float
) -> dict[float, tuple[float, float]]:
    """(lower, upper) at those of several values where bounds that are shared are narrow enough.

    Args:
        question: What is asked.
        values: At which it is asked.
        width: Relative width that is narrow enough.

    Raises:
        UnsupportedError: the event has no law on the grid.
    """
    groups = [np.unique(np.asarray(values, dtype=np.float64))]
    found: dict[float, tuple[float, float]] = {}
    composition, first = question.composition(groups[0].tolist()), None
    for _ in range(_MOST_ANCHORS):
        if not groups:
            break
        group = groups.pop()
        anchor = float(group[len(group) // 2])
        kept = composition.kept = list[KeptSum]()
        try:
            ends = question.refined(composition, anchor, _SHARE * width, grids=_GRIDS, first=first)
        except UnsupportedError:  # No grid, or none as fine as for others: one by one, perhaps.
            continue
        if not _is_narrow(np.array(ends[0]), np.array(ends[1]), width):
            break  # What is left has bounds of other kinds, perhaps.
        low, high = _read(question, composition.orders, kept, group)
        narrow = _is_narrow(low, high, width)
        rows = zip(group[narrow].tolist(), low[narrow].tolist(), high[narrow].tolist(), strict=True)
        found |= {value: (below, above) for value, below, above in rows}
        found[anchor] = ends
        first = kept[-1].width
        rest = group[~narrow & (group != anchor)]
        groups += [part for part in (rest[rest < anchor], rest[rest > anchor]) if part.size]
    return found


def _is_narrow(low: FloatArray, high: FloatArray, width: float) -> npt.NDArray[np.bool_]:
    """Whether bounds are finite and no wider than this, relative to the lower end."""
    with np.errstate(invalid="ignore"):
        narrow: npt.NDArray[np.bool_] = np.isfinite(high) & (high - low <= width * low)
    return narrow


def _read(
    question: GridQuestion, orders: Sequence[bool], kept: Sequence[KeptSum], values: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Bounds over the orders of the pair, by all sums: the larger of the orders' upper bounds."""
    low = np.full(len(values), -math.inf)
    above = {mirrored: np.full(len(values), math.inf) for mirrored in orders}
    for each in kept:
        try:
            bounds = question.read(SumCurve(each.total), each.shift, values)
        except UnsupportedError:  # The window is too wide for a table.
            continue
        if each.total.upper:
            above[each.mirrored] = np.minimum(above[each.mirrored], bounds)
        else:
            low = np.maximum(low, bounds)
    high = np.maximum.reduce(list(above.values()))
    return question.bounded(values, low, high)
