"""Certified bounds of a composition of steps: loss laws, grids and tilted sums put together.

The grid starts at the width that a saddle-point approximation suggests and is refined until the bounds are
narrow enough, or until the finest grid. Both orders of the pair are bounded and the larger counts.

Where to look (the tilt, the grid, the window) is no matter of validity, only of width: the cumulant
generating function K of the sum of losses comes from a quadrature of each step; at a tilt theta the sum
concentrates at K'(theta), and

    delta(K'(theta)) ~ exp(K(theta) - theta K'(theta)) / (theta (1 + theta) sqrt(2 pi K''(theta)))

(the leading term of the tail expansion, with the transform of (1 - exp(-x))_+; cf. Alghamdi et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import brentq

from workbench.accounting.grid.laws import ROUND_OFF, CellMasses, LossLaw
from workbench.accounting.grid.rounding import GridLaw, dominated, dominating
from workbench.accounting.grid.tilted import FINEST_GRID, TiltedSum, Window
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

MOST_GRIDS = 12
"""Grids that are tried for one bound."""

NEAR = 1.1
"""A grid is no finer than another one whose cells are less than so many times as wide."""

_MANY = 10**6
"""Steps beyond which round-off of float64 is more than rounding of losses."""

_STEEPEST = 10.0
"""Largest tilt over a cell: a steeper one sees nothing but the grid."""

_STEEPER = 4.0
"""How many times as steep as the quadrature's tilt that of a coarse grid may be."""

_SHARES = (0.01, 0.03, 0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.4, 2.0, 4.0)
"""Chernoff parameters that are tried, in units of what a Gaussian sum would want."""


@dataclass(frozen=True, kw_only=True)
class Saddle:
    """A tilt and what the sum of losses looks like there.

    Attributes:
        theta: The tilt.
        mean, deviation: Of the tilted sum.
        step_deviation: Root of the mean tilted variance of a step.
    """

    theta: float
    mean: float
    deviation: float
    step_deviation: float


class Cumulants:
    """Cumulants of the sum of losses under P, or of the mirrored pair.

    Args:
        steps: For each kind of step its losses, their weights, and the count.
    """

    def __init__(self, steps: Sequence[tuple[FloatArray, FloatArray, int]]) -> None:
        self._steps = [
            (losses[weights > 0], np.log(weights[weights > 0]), count) for losses, weights, count in steps
        ]
        self._count = sum(count for _, _, count in steps)

    def value(self, theta: float) -> float:
        """The cumulant function K(theta) of the summed loss."""
        return sum(count * _log_sum(theta * g + w) for g, w, count in self._steps)

    def saddle(self, theta: float) -> Saddle:
        """The tilted mean and deviation."""
        mean = variance = 0.0
        for (centre, spread), (_, _, count) in zip(self.each(theta), self._steps, strict=True):
            mean += count * centre
            variance += count * spread
        # A sum that is all but constant: its variance is rounding.
        deviation = max(math.sqrt(variance), 1e-9 * abs(mean), 1e-150)
        return Saddle(
            theta=theta,
            mean=mean,
            deviation=deviation,
            step_deviation=deviation / math.sqrt(self._count),
        )

    def each(self, theta: float) -> list[tuple[float, float]]:
        """The tilted mean and variance of each kind of step."""
        found = []
        for losses, log_weights, _ in self._steps:
            exponent = theta * losses + log_weights
            weights = np.exp(exponent - np.max(exponent))
            weights /= weights.sum()
            centre = float(weights @ losses)
            found.append((centre, float(weights @ (losses - centre) ** 2)))
        return found

    def log_delta(self, theta: float) -> float:
        """Log of delta at epsilon = K'(theta), approximately; theta > 0."""
        at = self.saddle(theta)
        # For small theta * deviation the Gaussian correction keeps the formula finite.
        spread = 1 + theta * at.deviation * math.sqrt(2 * math.pi)
        return self.value(theta) - theta * at.mean - math.log(spread) - math.log1p(theta)

    def at_delta(self, delta: float) -> Saddle:
        """The tilt at which the saddle-point delta is this one, with a mean of at least 0 if there is one."""
        target = math.log(delta)
        if self.log_delta(0.0) <= target:
            return self.at_epsilon(0.0)
        saddle = self._where(lambda theta: self.log_delta(theta) - target, 1e12)
        return saddle if saddle.mean > 0 else self.at_epsilon(0.0)

    def at_epsilon(self, epsilon: float) -> Saddle:
        """The tilt at which the mean is this epsilon: 0 where the untilted mean is larger already."""
        if self.saddle(0.0).mean >= epsilon:
            return self.saddle(0.0)
        return self._where(lambda theta: epsilon - self.saddle(theta).mean, 1e9)

    def at_fpr(self, fpr: float) -> Saddle:
        """The tilt at whose mean a likelihood-ratio test has about this false-positive rate; at least 0."""
        target = math.log(fpr)

        def excess(theta: float) -> float:
            at = self.saddle(theta)
            spread = 1 + (1 + theta) * at.deviation * math.sqrt(2 * math.pi)
            return self.value(theta) - (1 + theta) * at.mean - math.log(spread) - target

        return self.saddle(0.0) if excess(0.0) <= 0 else self._where(excess, 1e9)

    def _where(self, excess: Callable[[float], float], most: float) -> Saddle:
        """The tilt at which a falling function is 0; where there is none, about `most` over the deviation."""
        unit = 1.0 / max(self.saddle(0.0).deviation, 1e-150)
        low, high = 0.0, unit
        while excess(high) > 0 and high < most * unit:
            low, high = high, high * 2
        if excess(high) > 0:
            return self.saddle(high)
        return self.saddle(float(brentq(excess, low, high, rtol=1e-3, disp=False)))

    def window(self, at: Saddle) -> Window:
        """The Chernoff parameters that give the narrowest window."""
        base = self.value(at.theta)
        window = Window(theta=at.theta, centre=at.mean, lambda_low=-math.inf, lambda_high=math.inf)
        unit = math.sqrt(2 * window.log_odds) / at.deviation
        below = [-unit * share for share in _SHARES] + [-at.theta * share for share in (0.1, 0.3, 0.6, 1.0)]
        above = [unit * share for share in _SHARES]

        def edge(tilt: float) -> float:
            return (self.value(at.theta + tilt) - base + window.log_odds) / tilt

        lambda_low = max((tilt for tilt in below if tilt < 0), key=edge)
        return replace(window, lambda_low=lambda_low, lambda_high=min(above, key=edge))


def _log_sum(exponent: FloatArray) -> float:
    shift = float(np.max(exponent))
    return shift + math.log(float(np.sum(np.exp(exponent - shift))))


@dataclass(frozen=True, kw_only=True)
class Step:
    """The losses of a step, and how often it is run."""

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


@dataclass(frozen=True, kw_only=True)
class KeptSum:
    """A tilted sum that was computed for one value, and bounds others too.

    Attributes:
        total: The sum.
        mirrored: Which order of the pair it is of.
        shift: How far rounding may have moved epsilon.
        width: Of a cell.
    """

    total: TiltedSum
    mirrored: bool
    shift: float
    width: float


class Composition:
    """Bounds on one ordered pair and its mirror image.

    Attributes:
        kept: Where it is a list, every sum that is computed is put into it.

    Args:
        steps: What is composed; at least one.
        tail: Mass that each step may lose at each end of its losses.
        orders: Which orders of the pair count: False for the forward one, True for the mirrored one.

    Raises:
        UnsupportedError: all losses of a step are too large for the grid.
    """

    def __init__(self, steps: Sequence[Step], tail: float, orders: Sequence[bool] = (False, True)) -> None:
        self._steps = steps
        self.orders = tuple(orders)
        self.kept: list[KeptSum] | None = None
        self._last: _Layout | None = None
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
                raise UnsupportedError(
                    f"a step has too little noise for the grid: all its losses are beyond {_LARGEST_LOSS:g}"
                )
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
        *,
        at: Callable[[float], float] = lambda upper: upper,
        grids: int = MOST_GRIDS,
        first: float | None = None,
    ) -> tuple[float, float]:
        """Bounds over the orders of the pair, on finer and finer grids until they are narrow.

        Args:
            answer: See `Answer`.
            saddles: Of the forward and the mirrored order.
            epsilon: About where epsilon lies; decides the first grid.
            tolerance: Relative width at which to stop.
            at: Where epsilon lies, given the upper bound so far.
            grids: Tried at most.
            first: Width of a cell of the first grid; None for the width that a saddle point suggests.

        Raises:
            UnsupportedError: the losses are spread too wide for any grid.
        """
        leading = max(self.orders, key=lambda mirrored: saddles[mirrored].mean)
        at_leading, at_other = saddles[leading], saddles[not leading]
        width = first or self.first_width(at_leading, max(epsilon, 0.0), tolerance)
        lower, upper, gap = -math.inf, math.inf, math.inf
        other = math.inf if len(self.orders) == 2 else -math.inf
        precise, idle, fine, refused = self._count > _MANY, 0, math.inf, 0.0
        for _ in range(grids):
            try:
                layout = self.laid_out(width, precise=precise)
                high = self.bound(answer, at_leading, layout, mirrored=leading, upper=True)
                low = self.bound(answer, at_leading, layout, mirrored=leading, upper=False)
                # The other order seldom counts: once its upper bound is below, it is done with.
                if other > low:
                    other = min(other, self.bound(answer, at_other, layout, mirrored=not leading, upper=True))
                if other > low:
                    low = max(low, self.bound(answer, at_other, layout, mirrored=not leading, upper=False))
                    high = max(high, other)
            except UnsupportedError:
                if math.isinf(fine):
                    raise
                # Beyond the finest grid; one between that and the last may do.
                refused = max(refused, width)
                width = math.sqrt(fine * refused)
                if fine < NEAR * width:
                    break
                continue
            # A finer grid that is no better: what is left is round-off. Where a finer one again does not help
            # in extended precision, nothing will.
            stuck = not precise and high - low > max(0.5, layout.width / fine) * gap
            idle = idle + 1 if precise and high - low > 0.95 * gap else 0
            lower, upper, before = max(lower, low), min(upper, high), gap
            gap = upper - lower
            if refused and gap > 0.95 * before:
                break
            if gap <= tolerance * lower or upper < 1e-300 or math.isinf(lower) or idle == 2:
                break
            precise, fine = precise or stuck, layout.width
            if upper < math.inf:  # the approximation may have been far off: look where the bound says
                moved = self.cumulants[leading].at_epsilon(at(upper))
                # Above the largest sum no tilt has its mean, and the steepest sees nothing else.
                at_leading = moved if moved.mean > at(upper) - moved.deviation else at_leading
            width = layout.width
            if stuck:  # the same grid in extended precision
                continue
            target = tolerance * lower if lower > 0 else 0.01 * gap
            width *= max(0.1, min(0.5, 0.8 * math.sqrt(target / gap)))
            if width <= refused:
                width = math.sqrt(fine * refused)
            if fine < NEAR * width:
                break
        return lower, upper

    def first_upper(
        self, answer: Answer, saddles: Sequence[Saddle], epsilon: float, tolerance: float
    ) -> float:
        """The upper bound over the orders on the first grid that `refined` would take."""
        leading = max(self.orders, key=lambda mirrored: saddles[mirrored].mean)
        layout = self.laid_out(self.first_width(saddles[leading], max(epsilon, 0.0), tolerance))
        return max(
            self.bound(answer, saddles[mirrored], layout, mirrored=mirrored, upper=True)
            for mirrored in self.orders
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
        """All steps on a grid of about this width; refused where one would need too many cells."""
        h = self._aligned(width)
        if self._last is not None and self._last.width == h:
            return replace(self._last, precise=precise, windows={})
        cells, shift = [], 0.0
        for step, (low, high) in zip(self._steps, self._spans, strict=True):
            offset = step.law.offset(h)
            first = math.floor((low - offset) / h - 1e-6)
            last = math.ceil((high - offset) / h + 1e-6) + 1
            if last - first > FINEST_GRID:
                raise UnsupportedError("the losses are spread too wide for the finest grid")
            masses = step.law.cells(h, 2 * first, 2 * (last - first), offset)
            cells.append((masses, step.count))
            shift += step.count * (masses.eta * (1 + 1e-9) + 64 * ROUND_OFF * (abs(offset) + h))
        self._last = _Layout(width=h, cells=tuple(cells), shift=shift, precise=precise)
        return self._last

    def bound(self, answer: Answer, at: Saddle, layout: _Layout, *, mirrored: bool, upper: bool) -> float:
        """One bound of one order of the pair.

        Args:
            answer: See `Answer`.
            at: The tilt of this order, and what the sum looks like there.
            layout: What `laid_out` returned.
            mirrored: Which order of the pair.
            upper: True for an upper bound on delta, False for a lower one.
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
        shift = layout.shift + 64 * ROUND_OFF * abs(window.centre)
        if self.kept is not None:
            self.kept.append(KeptSum(total=total, mirrored=mirrored, shift=shift, width=width))
        return answer(total, shift, start)

    def _window(
        self, laws: Sequence[tuple[GridLaw, int]], at: Saddle, width: float, *, mirrored: bool
    ) -> Window:
        """Where to look; on a grid too coarse for the quadrature to speak for it, by the grid law itself."""
        if width > 0.3 * at.step_deviation or at.theta * width > 1:
            cumulants = _of_laws(laws, width)
            saddle = cumulants.at_epsilon(at.mean)
            # Where the mean is all but the largest sum, the grid's rounding decides what tilt has it.
            if saddle.theta > _STEEPER * at.theta > 0:
                saddle = cumulants.saddle(at.theta)
            if saddle.theta * width > _STEEPEST:
                saddle = cumulants.saddle(_STEEPEST / width)
            return cumulants.window(saddle)
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
