"""Lower bounds of compositions in ball arithmetic: polynomial powers whose coefficients are balls.

One step's privacy loss is laid on a grid g_i = i h so that it tells at most as much as the step (the
*dominated* law): around each g_i, what lies half a cell above it is merged with as much of what lies half a
cell below as keeps the likelihood ratio of the merged output at e^{g_i} or more, and what remains is rounded
down. Merging is post-processing and rounding down lowers the loss of an output: both can only hide.

The T-fold law is the T-th power of the polynomial whose coefficients are the P-masses (repeated squaring).
Losses that leave the window are moved so that the bound stays one, and

    delta(epsilon) = sum over g > epsilon of P(g) (1 - e^(epsilon - g)) + P(infinity).

The grids of `workbench.accounting.grid` share nothing with this module but the definitions. The upper bounds
of the same kind, which the tests hold those grids to, are in `tests/oracles/ball_steps.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from flint import arb, arb_poly, ctx

from workbench.accounting.balls.ball import Curve
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import FloatArray


class StepLaw(ABC):
    """The privacy loss of one step, for one order (P, Q) of the neighbours."""

    @abstractmethod
    def above(self, g: arb) -> tuple[arb, arb]:
        """P- and Q-mass of the outputs with a loss above g, the infinite ones among them."""

    @abstractmethod
    def nodes(self, count: int = 4001) -> tuple[FloatArray, FloatArray]:
        """A quadrature in floats of about so many nodes: losses and P-weights. Decides no rigorous bound."""

    def infinite(self) -> arb:
        """P-mass of the outputs that Q never gives."""
        return arb(0)


Steps = list[tuple[StepLaw, int]]

MovedSteps = Sequence[tuple[StepLaw, float, int]]
"""Each step's law, the offset of its grid, and how often it is run."""


@dataclass(frozen=True, kw_only=True)
class GridLaw:
    """P-masses at the losses (first + j) h, beyond the offsets of the steps, and at infinity."""

    first: int
    masses: list[arb]
    infinite: arb


@dataclass(frozen=True, kw_only=True)
class Window:
    """Grid indices to which compositions are cut; losses outside are moved so that they hide more."""

    low: int
    high: int

    def lay(self, step: StepLaw, cells: Cells) -> GridLaw:
        """The step on the grid."""
        return dominated_law(step, cells)

    def cut(self, law: GridLaw) -> GridLaw:
        """The law with all finite losses inside the window."""
        start, end = max(self.low - law.first, 0), self.high - law.first + 1
        below, kept, over = law.masses[:start], law.masses[start:end], law.masses[max(end, 0) :]
        first = law.first + start
        if not kept:
            kept, first = [arb(0)], min(max(first, self.low), self.high)
        return self.moved(GridLaw(first=first, masses=kept, infinite=law.infinite), below, over)

    def moved(self, law: GridLaw, below: list[arb], over: list[arb]) -> GridLaw:
        """The law with the masses below the window dropped, and those above it at its top."""
        if over:
            law.masses[-1] += sum(over, arb(0))
        return law

    def product(self, a: GridLaw, b: GridLaw) -> GridLaw:
        """The law of the sum of two independent losses."""
        masses = (arb_poly(a.masses) * arb_poly(b.masses)).coeffs()
        infinite = a.infinite + b.infinite - a.infinite * b.infinite
        return self.cut(GridLaw(first=a.first + b.first, masses=masses, infinite=infinite))

    def power(self, law: GridLaw, count: int) -> GridLaw:
        """The law of the sum of `count` independent losses, by repeated squaring."""
        square = law
        while count % 2 == 0:
            square, count = self.product(square, square), count // 2
        result = square
        while count > 1:
            square, count = self.product(square, square), count // 2
            if count % 2:
                result = self.product(result, square)
        return result


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Grid points offset + j width, j from `low` to `high`."""

    width: arb
    offset: arb
    low: int
    high: int

    def loss(self, j: float) -> arb:
        """The loss at a grid point, or between two."""
        return self.offset + self.width * j


def dominated_law(step: StepLaw, cells: Cells) -> GridLaw:
    """The step on the grid, at most as bad as it is.

    From the top down, g_i gets what lies between it and g_{i + 1} and is still free, and as much of what lies
    below it, down to g_{i - 1}, as the likelihood ratio of the merged output allows.
    """
    infinite = step.infinite()
    tails = half_tails(step, cells)
    sweep = Sweep(tails, cells, above=((tails[-1][0] - infinite).max(arb(0)), tails[-1][1]))
    masses = [arb(0)] * (cells.high - cells.low + 1)
    for j in range(cells.high - cells.low, 0, -1):
        masses[j] = sweep.take(j)
    masses[0] = sweep.free[0]
    return GridLaw(first=cells.low, masses=masses, infinite=infinite)


def half_tails(step: StepLaw, cells: Cells) -> list[tuple[arb, arb]]:
    """Masses above the grid points and the middles between them, from the lowest up."""
    return [step.above(cells.loss(j / 2)) for j in range(2 * cells.low, 2 * cells.high + 1)]


class Sweep:
    """The dominated law's pass over the cells from the top down.

    Args:
        tails: P- and Q-masses above each half-cell's lower end, see `half_tails`.
        cells: The grid.
        above: Masses above the grid.
    """

    def __init__(self, tails: list[tuple[arb, arb]], cells: Cells, above: tuple[arb, arb]) -> None:
        self.halves = [((a[0] - b[0]).max(arb(0)), (a[1] - b[1]).max(arb(0))) for a, b in pairwise(tails)]
        self._growth, self._ratio = cells.loss(cells.high).exp(), (-cells.width).exp()
        self.free = above
        """Masses above the next grid point that no group has yet, all with that point's ratio at least."""

    def take(self, j: int) -> arb:
        """P-mass of the group of the j-th grid point, counted from the lowest; to be called downwards."""
        (free_p, free_q), left = self.free, (arb(0), arb(0))
        for p, q in (self.halves[2 * j - 1], self.halves[2 * j - 2]):
            full = left[0].is_zero() and left[1].is_zero()
            share = _share(free_p - self._growth * free_q, self._growth * q - p) if full else arb(0)
            free_p, free_q = free_p + share * p, free_q + share * q
            left = left[0] + (1 - share) * p, left[1] + (1 - share) * q
        self.free = left
        self._growth *= self._ratio
        return free_p


def _share(spare: arb, lack: arb) -> arb:
    """A number certainly in [0, 1] and at most spare / lack; 1 where there is enough to spare."""
    if spare >= lack:
        return arb(1)
    quotient = (spare / lack).lower() if lack > 0 else arb(0)
    return quotient if quotient >= 0 and quotient <= 1 else arb(0)


class GridCurve(Curve):
    """delta(epsilon) of a law on a grid whose points are h apart; `offset` sums the steps' offsets."""

    method = "polynomial powers in ball arithmetic"

    def __init__(self, law: GridLaw, h: arb, offset: arb) -> None:
        self._h, self._law, self._offset = h, law, offset
        # Sums from the top down: over the losses from index j on, of P(g) and of P(g) e^-g.
        p, q = [law.infinite], [arb(0)]
        decay, ratio = (-self._loss(len(law.masses) - 1)).exp(), h.exp()
        for mass in reversed(law.masses):
            p.append(p[-1] + mass)
            q.append(q[-1] + mass * decay)
            decay *= ratio
        self._p, self._q = p[::-1], q[::-1]

    def _loss(self, index: int) -> arb:
        return self._h * (self._law.first + index) + self._offset

    def delta(self, epsilon: arb) -> arb:
        """The sum over the grid's losses above epsilon."""
        low, high = 0, len(self._law.masses)
        while low < high:
            middle = (low + high) // 2
            if self._loss(middle) >= epsilon:
                high = middle
            else:
                low = middle + 1
        value: arb = self._p[low] - epsilon.exp() * self._q[low]
        # A loss that the precision does not tell from epsilon adds next to nothing, and no less than that.
        if low > 0 and not self._loss(low - 1) <= epsilon:
            value = value.union(self._p[low - 1] - epsilon.exp() * self._q[low - 1])
        return value

    def delta_limit(self) -> arb:
        """The mass at infinity."""
        return self._law.infinite

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Refused: not computed."""
        raise UnsupportedError(
            "polynomial powers answer for epsilon and delta only, not for a trade-off curve"
        )


@dataclass(frozen=True, kw_only=True)
class GridChoice:
    """Where a composition is computed.

    Attributes:
        cells: Number of grid points over the window of composed losses; time grows a little faster than it.
        tail: Mass that may leave the window at either side, about; the bounds carry what does.
        bits: Precision of the balls.
    """

    cells: int = 1 << 14
    tail: float = 1e-18
    bits: int = 128


def composed_below(steps: Steps, choice: GridChoice) -> GridCurve:
    """A curve below the composition's, for one order of the neighbours."""
    with ctx.workprec(choice.bits):
        moved = [(step, 0.0, count) for step, count in steps]
        low, high = relevant(moved, choice.tail)
        width = (high - low) / choice.cells
        window = Window(low=math.floor(low / width), high=math.ceil(high / width))
        return grid_curve(moved, window, width, choice.tail)


def grid_curve(steps: MovedSteps, window: Window, width: float, tail: float) -> GridCurve:
    """The curve of the composition's law on a grid of this width, rounded the window's way."""
    total = sum(count for _, _, count in steps)
    composed: GridLaw | None = None
    for step, offset, count in steps:
        law = window.lay(step, step_cells(step, offset, width, tail / total, window.low))
        power = window.power(window.cut(law), count)
        composed = power if composed is None else window.product(composed, power)
    if composed is None:
        raise InputError("steps must hold at least one step, got []")
    return GridCurve(composed, arb(width), sum((arb(loss) * count for _, loss, count in steps), arb(0)))


def step_cells(step: StepLaw, offset: float, width: float, tail: float, low: int) -> Cells:
    """The grid of one step, from `low` at the lowest; the highest point does not depend on the offset."""
    bottom, top = reach([(step, 0.0, 1)], tail)
    return Cells(
        width=arb(width),
        offset=arb(offset),
        low=max(math.floor((bottom - abs(offset)) / width) - 1, low),
        high=max(math.ceil(top / width), 1) + 1,
    )


def relevant(steps: MovedSteps, tail: float) -> tuple[float, float]:
    """The composition's reach, drawn in from below.

    Only sums of losses above 0 count: from further below than the upper end is above, hardly one comes back.
    """
    low, high = reach(steps, tail)
    total = sum(offset * count for _, offset, count in steps)
    return max(low, -max(total, 0.0) - high), high


def reach(steps: MovedSteps, tail: float) -> tuple[float, float]:
    """Losses, offsets taken off, that are left with probability `tail` at most at either side (Chernoff).

    The composition's, and those of the fewer steps on the way to it; always with 0 between. In floats: steers
    the choice of grids, decides no bound.
    """
    total = sum(count for _, _, count in steps)
    nodes = [(*_likely(law, tail / (4 * total)), offset, count) for law, offset, count in steps]
    shares = 2.0 ** -np.arange(math.ceil(math.log2(total)) + 1)
    ends = []
    for side in (-1.0, 1.0):
        best = np.full(len(shares), math.inf)
        for t in np.geomspace(1e-4, 1e4, 161):
            moment = 0.0
            for losses, weights, offset, count in nodes:
                exponents = side * t * (losses - offset)
                peak = float(np.max(exponents))
                moment += count * (peak + math.log(float(weights @ np.exp(exponents - peak))))
            best = np.minimum(best, (shares * moment - math.log(tail)) / t)
        ends.append(side * max(float(np.max(best)), 0.0))
    return ends[0], ends[1]


def _likely(law: StepLaw, tail: float) -> tuple[FloatArray, FloatArray]:
    """The law's nodes without the outermost losses of that much mass at either side.

    They would decide the moments at high orders, although hardly a composition meets one of them.
    """
    losses, weights = law.nodes()
    order = np.argsort(losses)
    losses, weights = losses[order], weights[order]
    kept = (np.cumsum(weights) > tail) & (np.cumsum(weights[::-1])[::-1] > tail)
    return losses[kept], weights[kept]
