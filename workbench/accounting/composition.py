"""Certified bounds of a composition of steps: loss laws, grids and tilted sums put together.

The grid starts at the width that the saddle-point approximation suggests and is refined until the bounds
are as narrow as asked, or until the finest grid. Both orders of the pair are bounded and the larger
counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.accounting.grids import GridLaw, dominated, dominating
from workbench.accounting.loss_laws import ROUND_OFF, CellMasses, LossLaw
from workbench.accounting.saddle import Cumulants, Saddle
from workbench.accounting.tilted import FINEST_GRID, TiltedSum, Window
from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray

Answer = Callable[[TiltedSum, float, float], float]
"""What to ask a tilted sum, given how far rounding may have moved epsilon, and about where epsilon lies."""

_FIRST_WIDTH = 0.5
"""First width of a cell, in deviations of a tilted step, before the drift of many steps narrows it."""

_FIRST_GRID = 2**15
"""About the most points of the first grid."""

_LARGEST_LOSS = 650.0
"""Of a step on the grid: larger ones count as infinite (upper bounds) or as this one (lower bounds)."""

_STEEPEST = 10.0
"""Largest tilt over a cell: a steeper one sees nothing but the grid."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A law with its count.

    Attributes:
        law: The losses of one step.
        count: How many such steps are composed.
    """

    law: LossLaw
    count: int


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """All steps on a grid of one width, in the forward order.

    Attributes:
        width: Of a cell.
        cells: Each step's cells, with its count.
        shift: How far rounding may have moved the sum of the losses.
        precise: Transform in extended precision.
        windows: Those that were chosen already, by order of the pair.
    """

    width: float
    cells: tuple[tuple[CellMasses, int], ...]
    shift: float
    precise: bool
    windows: dict[bool, Window] = field(default_factory=dict)


class Composition:
    """Bounds on one ordered pair and its mirror image.

    Args:
        steps: What is composed; at least one.
        tail: Mass that each step may lose at each end of its losses.

    Raises:
        UnsupportedError: all losses of a step are too large for the grid.
    """

    def __init__(self, steps: Sequence[Step], tail: float) -> None:
        self._steps = steps
        self._count = sum(step.count for step in steps)
        self._spans = []
        for step in steps:
            low, high = step.law.span(tail / self._count)
            self._spans.append((max(low, -_LARGEST_LOSS), min(high, _LARGEST_LOSS)))
        forward: list[tuple[FloatArray, FloatArray, int]] = []
        backward: list[tuple[FloatArray, FloatArray, int]] = []
        for step, (low, high) in zip(steps, self._spans, strict=True):
            losses, p, q = step.law.nodes()
            inside = (losses >= low) & (losses <= high)
            if not (p[inside].any() and q[inside].any()):
                raise UnsupportedError(f"losses beyond {_LARGEST_LOSS:g} are too large for the grid")
            forward.append((losses[inside], p[inside], step.count))
            backward.append((-losses[inside][::-1], q[inside][::-1], step.count))
        self.cumulants = (Cumulants(forward), Cumulants(backward))
        self._lattice = next((step.law.lattice for step in steps if step.law.lattice is not None), None)

    def refined(
        self,
        answer: Answer,
        saddles: Sequence[Saddle],
        epsilon: float,
        tolerance: float,
        at: Callable[[float], float] = lambda upper: upper,
    ) -> tuple[float, float]:
        """Bounds over both orders of the pair, on finer and finer grids until they are narrow.

        Args:
            answer: See `Answer`.
            saddles: Of the forward and the mirrored order.
            epsilon: About where epsilon lies; decides the first grid.
            tolerance: Relative width at which to stop.
            at: Where epsilon lies, given the upper bound so far.

        Raises:
            UnsupportedError: the losses are spread too wide for any grid.
        """
        leading = saddles[1].mean > saddles[0].mean
        at_leading, at_other = saddles[leading], saddles[not leading]
        width = self.first_width(at_leading, max(epsilon, 0.0), tolerance)
        lower, upper, gap, other = -math.inf, math.inf, math.inf, math.inf
        precise, idle = False, 0
        for _ in range(8):
            try:
                layout = self.laid_out(width, precise=precise)
                high = self.bound(answer, at_leading, layout, mirrored=leading, upper=True)
                low = self.bound(answer, at_leading, layout, mirrored=leading, upper=False)
                # The other order seldom counts: once its upper bound is below, it is done with.
                if other > low:
                    found = self.bound(answer, at_other, layout, mirrored=not leading, upper=True)
                    other = min(other, found)
                if other > low:
                    low = max(low, self.bound(answer, at_other, layout, mirrored=not leading, upper=False))
                    high = max(high, other)
            except UnsupportedError:
                if math.isinf(lower):
                    raise
                break
            # A finer grid that is no better: what is left is round-off. Where a finer one again does not help
            # in extended precision, nothing will.
            stuck = not precise and high - low > 0.5 * gap
            idle = idle + 1 if precise and high - low > 0.95 * gap else 0
            lower, upper = max(lower, low), min(upper, high)
            gap = upper - lower
            if gap <= tolerance * lower or upper < 1e-300 or math.isinf(lower) or idle == 2:
                break
            precise = precise or stuck
            if upper < math.inf:  # the approximation may have been far off: look where the bound says
                at_leading = self.cumulants[leading].at_epsilon(at(upper))
            target = tolerance * lower if lower > 0 else 0.01 * gap
            width = layout.width * (1 if stuck else max(0.1, min(0.5, 0.8 * math.sqrt(target / gap))))
        return lower, upper

    def first_upper(
        self, answer: Answer, saddles: Sequence[Saddle], epsilon: float, tolerance: float
    ) -> float:
        """The upper bound over both orders on the first grid that `refined` would take."""
        leading = saddles[1].mean > saddles[0].mean
        layout = self.laid_out(self.first_width(saddles[leading], max(epsilon, 0.0), tolerance))
        return max(
            self.bound(answer, saddles[mirrored], layout, mirrored=mirrored, upper=True)
            for mirrored in (False, True)
        )

    def first_width(self, at: Saddle, epsilon: float, tolerance: float) -> float:
        """A first width of a cell: narrow against a step's spread and against the drift of all of them.

        A chord over cells of width h lifts a curve of tilt theta by about theta (1 + theta) h^2 / 12,
        which moves epsilon by T (1 + theta) h^2 / 12.
        """
        drift = math.sqrt(4 * tolerance * max(epsilon, 1e-300) / (self._count * (1 + at.theta)))
        width = min(_FIRST_WIDTH * at.step_deviation, max(drift, 1e-3 * at.step_deviation))
        widest = max(high - low for low, high in self._spans)
        # Losses that are all but constant have no spread that a grid could follow.
        largest = max(abs(end) for span in self._spans for end in span)
        return max(width, (widest + at.deviation) / _FIRST_GRID, 1e-9 * largest)

    def laid_out(self, width: float, *, precise: bool = False) -> _Layout:
        """All steps on a grid of about this width.

        Raises:
            UnsupportedError: a step would need more than `FINEST_GRID` cells.
        """
        h = self._aligned(width)
        cells, shift = [], 0.0
        for step, (low, high) in zip(self._steps, self._spans, strict=True):
            offset = step.law.offset(h)
            first = math.floor((low - offset) / h - 1e-6)
            last = math.ceil((high - offset) / h + 1e-6) + 1
            if last - first > FINEST_GRID:
                raise UnsupportedError("the losses are spread too wide for the finest grid")
            found = step.law.cells(h, 2 * first, 2 * (last - first), offset)
            cells.append((found, step.count))
            shift += step.count * (found.eta * (1 + 1e-9) + 64 * ROUND_OFF * (abs(offset) + h))
        return _Layout(width=h, cells=tuple(cells), shift=shift, precise=precise)

    def bound(self, answer: Answer, at: Saddle, layout: _Layout, *, mirrored: bool, upper: bool) -> float:
        """One bound of one order of the pair.

        Args:
            answer: See `Answer`.
            at: The tilt of this order, and what the sum looks like there.
            layout: What `laid_out` returned.
            mirrored: Which order of the pair.
            upper: True for an upper bound on delta, False for a lower one.

        Raises:
            UnsupportedError: the sum is spread too wide for the finest grid.
        """
        width, start = layout.width, at.mean
        if at.theta * width > _STEEPEST:
            at = self.cumulants[mirrored].saddle(_STEEPEST / width)
        round_to = dominating if upper else dominated
        laws = [
            (round_to(cells.mirrored() if mirrored else cells, width), count) for cells, count in layout.cells
        ]
        if mirrored not in layout.windows:
            layout.windows[mirrored] = self._window(laws, at, width, mirrored=mirrored)
        window = layout.windows[mirrored]
        try:
            total = TiltedSum(laws, width, window, upper=upper, precise=layout.precise)
        except UnsupportedError:  # the quadrature misjudged the far tail: ask the grid law itself
            window = _of_laws(laws, width).window(at)
            total = TiltedSum(laws, width, window, upper=upper, precise=layout.precise)
        return answer(total, layout.shift + 64 * ROUND_OFF * abs(window.centre), start)

    def _window(
        self, laws: Sequence[tuple[GridLaw, int]], at: Saddle, width: float, *, mirrored: bool
    ) -> Window:
        """Where to look; on a grid too coarse for the quadrature to speak for it, by the grid law itself."""
        if width > 0.3 * at.step_deviation or at.theta * width > 1:
            cumulants = _of_laws(laws, width)
            found = cumulants.at_epsilon(at.mean)
            if found.theta * width > _STEEPEST:
                found = cumulants.saddle(_STEEPEST / width)
            return cumulants.window(found)
        return self.cumulants[mirrored].window(at)

    def _aligned(self, width: float) -> float:
        """The width itself with few significant bits, or an aliquot part of the atoms' lattice."""
        if self._lattice is not None:
            return self._lattice / math.ceil(self._lattice / width)
        mantissa, exponent = math.frexp(width)
        return math.ldexp(round(mantissa * 2**16), exponent - 16)


def _of_laws(laws: Sequence[tuple[GridLaw, int]], width: float) -> Cumulants:
    """Cumulants of the grid laws themselves."""
    return Cumulants(
        [
            (law.offset + (law.first + np.arange(len(law.mass), dtype=np.float64)) * width, law.mass, count)
            for law, count in laws
        ]
    )
