"""Bounds on the privacy of shuffled batches, each end by an argument of its own.

**Lower end** (Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang 2024, "How Private are DP-SGD
Implementations?"). Let the record contribute 1 under one neighbour, 0 under the other (zero-out) or -1
(replace-one), and every other record w, always in the direction of the first coordinate. In one epoch,
batch t releases a normal number of standard deviation s; up to the constant (batch size) w, the T batches
give

    (1/T) sum_t N(a e_t, s^2 I)  and  (1/T) sum_t N(b e_t, s^2 I),
    (a, b) = (1 - w, -w) under zero-out, (1 - w, -1 - w) under replace-one,

because the record is equally likely to be in each batch. The event "some batch is above C" has the
probability 1 - Phi((C - a) / s) Phi(C / s)^(T - 1) under the first and the same with b under the second.
Any event bounds delta from below, so C is chosen by a float search and only the final evaluation is in
balls. w = -1 gives the paper's pair (2, 1). With several epochs, each is reduced to which of some
intervals its largest batch falls in, a finite pair, and the reduced epochs are composed: the shuffles are
independent, and what is computed from an output shows no more than it (after Chua et al. 2024b, "Scalable
DP-SGD: Shuffling vs. Poisson Subsampling").

**Upper end.** Given the order of the records, each epoch releases the record's contribution once: the
Gaussian event. Which order it was does not depend on the record, and the divergence is jointly convex:
the mixture over orders has no larger a delta. An adversary learns at most sqrt(epochs) * sensitivity / s
in the sense of GDP.

Zero-out and replace-one only: removing a record changes how many records there are to be dealt into
batches, and the event does not say how.

**Compositions** are bounded from below in balls (`composed_below`). One step's privacy loss is laid on a grid
g_i = i h so that it tells at most as much as the step (the *dominated* law): around each g_i, what lies half
a cell above it is merged with as much of what lies half a cell below as keeps the likelihood ratio of the
merged output at e^{g_i} or more, and what remains is rounded down. Both can only hide. The T-fold law is the
T-th power of the polynomial whose coefficients are the P-masses; losses that leave the window are moved so
that the bound stays one, and

    delta(epsilon) = sum over g > epsilon of P(g) (1 - e^(epsilon - g)) + P(infinity).

The grids of `workbench.accounting.grid` share nothing with this but the definitions; upper bounds of the same
kind, which the tests hold those grids to, are in `tests/oracles/ball_steps.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from flint import arb, arb_poly, ctx
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from workbench.accounting.balls.ball import (
    Curve,
    Enclosure,
    ends,
    normal_tail,
    settle,
    to_arb,
    tpr_by_threshold,
)
from workbench.accounting.balls.gaussian import GaussianCurve
from workbench.accounting.events import ShuffledBatches
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
        """A step's privacy losses moved to the grid, so that it reveals at most as much."""
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
        """delta at infinite epsilon: the mass of infinite loss."""
        return self._law.infinite

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Refuse: true-positive rates are not computed for this curve."""
        raise UnsupportedError(
            "polynomial powers answer for epsilon and delta only, not for a trade-off curve"
        )


@dataclass(frozen=True, kw_only=True)
class GridChoice:
    """The grid on which a composition is computed.

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


_Gain = Callable[[FloatArray, FloatArray], FloatArray]
_SCAN = 400
_LARGEST_EXPONENT = 690.0
_FINE = 20_001
_BINS = 300
_LEAST_MASS = 1e-25
_BIN_BITS = 192
_CELLS = 1 << 12
_TAIL = 1e-16


@dataclass(frozen=True, kw_only=True)
class MaximumPair:
    """The law of the largest batch when the record's batch is shifted by `a`, and when by `b`.

    The event is "the largest is above C" where a > b, "at most C" where a < b.
    """

    a: int
    b: int
    batches: int
    sigma: Fraction

    def probability(self, shift: int, c: arb) -> arb:
        """Probability of the event under one of the shifts, at threshold C."""
        sigma = to_arb(self.sigma)
        records, others = normal_tail((c - shift) / sigma), normal_tail(c / sigma)
        log_below = (-records).log1p() + (self.batches - 1) * (-others).log1p()
        return -log_below.expm1() if self.a > self.b else log_below.exp()

    def probabilities(self, c: arb) -> tuple[arb, arb]:
        """Probabilities of the event under the shift `a` and under `b`, at threshold C."""
        return self.probability(self.a, c), self.probability(self.b, c)

    def floats(self, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both probabilities in floats, shape of `c`; steers the search and decides nothing."""
        sigma = float(self.sigma)
        rows = []
        for shift in (self.a, self.b):
            with np.errstate(divide="ignore", invalid="ignore"):
                log_below = np.log1p(-ndtr((shift - c) / sigma))
                log_below = log_below + (self.batches - 1) * np.log1p(-ndtr(-c / sigma))
            rows.append(-np.expm1(log_below) if self.a > self.b else np.exp(log_below))
        return rows[0], rows[1]

    def grid(self) -> FloatArray:
        """Thresholds C among which the search looks, ascending."""
        reach = 39 * float(self.sigma)
        return np.linspace(min(self.a, self.b, 0) - reach, max(self.a, self.b, 0) + reach, _SCAN)


class BinnedMaximum(StepLaw):
    """The privacy loss of one epoch that is reduced to the interval in which its largest batch falls."""

    def __init__(self, pair: MaximumPair) -> None:
        high_side = replace(pair, a=max(pair.a, pair.b), b=min(pair.a, pair.b))
        coarse = high_side.grid()
        fine = np.linspace(float(coarse[0]), float(coarse[-1]), _FINE)
        heaviest = np.maximum(*high_side.floats(fine))
        inside = fine[(heaviest > _LEAST_MASS) & (heaviest < 1 - 1e-12)]
        cuts = [float(c) for c in np.linspace(inside[0], inside[-1], _BINS)]
        with ctx.workprec(_BIN_BITS):
            above = [high_side.probabilities(arb(c)) for c in cuts]
            tails = [(arb(1), arb(1)), *above, (arb(0), arb(0))]
            bins = [(lower[0] - upper[0], lower[1] - upper[1]) for lower, upper in pairwise(tails)]
            if pair.a < pair.b:
                bins = [(q, p) for p, q in bins]
            atoms = [((p / q).log(), p, q) for p, q in bins if p > 0 and q > 0]
        self._atoms = sorted(atoms, key=lambda atom: -float(atom[0]))
        self._p, self._q = [arb(0)], [arb(0)]
        with ctx.workprec(_BIN_BITS):
            for _, p, q in self._atoms:
                self._p.append(self._p[-1] + p)
                self._q.append(self._q[-1] + q)

    def above(self, g: arb) -> tuple[arb, arb]:
        """Sums over the intervals; one whose loss is not told from g counts between 0 and 1 times."""
        near = float(g)
        count = bisect_left(self._atoms, -near, key=lambda atom: -float(atom[0]))
        while count < len(self._atoms) and not self._atoms[count][0] < g:
            count += 1
        certain = count
        while certain > 0 and not self._atoms[certain - 1][0] > g:
            certain -= 1
        return self._p[certain].union(self._p[count]), self._q[certain].union(self._q[count])

    def nodes(self, count: int = 4001) -> tuple[FloatArray, FloatArray]:
        """The privacy losses of the intervals and their masses under P."""
        losses = np.array([float(loss) for loss, _, _ in self._atoms])
        return losses, np.array([max(float(p), 0.0) for _, p, _ in self._atoms])


class ShuffledEnclosure(Enclosure):
    """Shuffled batches under zero-out or replace-one."""

    method = (
        "lower end: largest batch of each shuffled epoch (Chua et al. 2024); upper end: the Gaussian event "
        "without amplification; ball arithmetic"
    )

    def __init__(self, event: ShuffledBatches, *, replace_one: bool) -> None:
        sigma = Fraction(event.noise_multiplier)
        shifts = ((2, 0), (1, -1), (0, 2)) if replace_one else ((2, 1), (1, 0), (1, 2), (0, 1))
        self._pairs = [MaximumPair(a=a, b=b, batches=event.batches, sigma=sigma) for a, b in shifts]
        self._epochs = event.epochs
        self._reduced: list[GridCurve] | None = None
        sensitivity = 2 if replace_one else 1
        self._above = GaussianCurve(event.epochs * (sensitivity / sigma) ** 2)

    def delta_ends(self, epsilon: float) -> tuple[float, float]:
        """The best event's P - exp(epsilon) Q, and the Gaussian's delta."""
        growth = math.exp(min(epsilon, _LARGEST_EXPONENT))
        best = 0.0
        for pair, c in self._candidates(lambda p, q: p - growth * q):
            point = arb(c)

            def value(pair: MaximumPair = pair, point: arb = point) -> arb:
                p, q = pair.probabilities(point)
                return p - arb(epsilon).exp() * q

            best = max(best, ends(settle(value, cap=2048))[0])
        for curve in self._composed():
            best = max(best, curve.delta_ends(epsilon)[0])
        return best, max(best, self._above.delta_ends(epsilon)[1])

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """The best event's log((P - delta) / Q), and the Gaussian's epsilon."""

        def gain(p: FloatArray, q: FloatArray) -> FloatArray:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where((p > delta) & (q > 0), np.log(np.maximum(p - delta, 0) / q), -np.inf)

        best = 0.0
        for pair, c in self._candidates(gain):
            point = arb(c)

            def value(pair: MaximumPair = pair, point: arb = point) -> arb:
                p, q = pair.probabilities(point)
                return ((p - arb(delta)) / q).log()

            best = max(best, ends(settle(value, cap=2048))[0])
        for curve in self._composed():
            best = max(best, curve.epsilon_ends(delta)[0])
        return best, max(best, self._above.epsilon_ends(delta)[1])

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """The best event of one epoch at this false-positive rate, and the Gaussian's power."""
        best = fpr
        for pair in self._pairs:
            sign = 1 if pair.a > pair.b else -1

            def tails(t: arb, pair: MaximumPair = pair, sign: int = sign) -> tuple[arb, arb]:
                return pair.probabilities(sign * t)

            best = max(best, tpr_by_threshold(tails, fpr, float(pair.sigma))[0])
        return best, max(best, self._above.tpr_ends(fpr)[1])

    def _composed(self) -> list[GridCurve]:
        """Curves below the composition's, of the reduced epochs; none for one epoch."""
        if self._reduced is None:
            choice = GridChoice(cells=_CELLS, tail=_TAIL)
            self._reduced = [
                composed_below([(BinnedMaximum(pair), self._epochs)], choice)
                for pair in (self._pairs if self._epochs > 1 else [])
            ]
        return self._reduced

    def _candidates(self, gain: _Gain) -> Iterator[tuple[MaximumPair, float]]:
        """Each pair with the C that gains most, where any gains."""
        for pair in self._pairs:
            grid = pair.grid()
            gains = np.nan_to_num(gain(*pair.floats(grid)), nan=-np.inf, neginf=-np.inf)
            index = int(np.argmax(gains))
            if not gains[index] > -math.inf:
                continue
            low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]

            def loss(c: float, pair: MaximumPair = pair) -> float:
                value = float(gain(*pair.floats(np.array([c])))[0])
                return -value if value > -math.inf else 1e9

            best = minimize_scalar(loss, bounds=(low, high), method="bounded")
            yield pair, float(best.x if best.fun <= -gains[index] else grid[index])
