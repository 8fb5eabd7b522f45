"""Compositions of any steps in ball arithmetic, from below and from above: polynomial powers of grid laws.

`workbench.accounting.balls.shuffled` bounds from below; here are the laws of all mechanisms, the upper
bound, and grids that are moved until rounding costs little. The *dominating* law of the upper bound is at
least as bad as the step: the masses (p, q) of a cell (g_i, g_{i + 1}] go to the two ends of the cell so that
both p and q are kept, losses above the grid go to infinity, losses below it to its lowest point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from flint import arb, ctx

from workbench.accounting.balls.ball import normal_tail, to_arb
from workbench.accounting.balls.mixture import AddOrder, RemoveOrder, ReplaceOrder
from workbench.accounting.balls.shuffled import (
    Cells,
    GridChoice,
    GridCurve,
    GridLaw,
    MovedSteps,
    StepLaw,
    Sweep,
    Window,
    grid_curve,
    half_tails,
    relevant,
    step_cells,
)
from workbench.accounting.events import (
    Event,
    FinitePair,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, FloatArray

_OFFSET_ROUNDS = 5
_OFFSET_SHARE = 1.0
"""Share of the window that offsets may add up to; beyond it they cost more cells than they save."""


class OracleStep(StepLaw):
    """A law that says where its grid should lie."""

    def offset(self, width: float) -> float:
        """A loss that a grid of this width should have a point at, lest rounding moves most of the mass."""
        return 0.0


class GaussianStep(OracleStep):
    """N(mu, 1) against N(0, 1)."""

    def __init__(self, mu: Fraction) -> None:
        self._mu = mu

    def above(self, g: arb) -> tuple[arb, arb]:
        """Closed form."""
        mu = to_arb(self._mu)
        return normal_tail(g / mu - mu / 2), normal_tail(g / mu + mu / 2)

    def nodes(self, count: int = 4001) -> tuple[FloatArray, FloatArray]:
        """Trapezoid."""
        mu = float(self._mu)
        x, weights = _normal_nodes(count)
        return mu * (x + mu / 2), weights


class ThresholdStep(OracleStep):
    """A subsampled Gaussian."""

    def __init__(self, order: RemoveOrder | AddOrder | ReplaceOrder) -> None:
        self._order = order

    def above(self, g: arb) -> tuple[arb, arb]:
        """P and Q above the threshold."""
        return self._order.tails(self._order.threshold(g))

    def nodes(self, count: int = 4001) -> tuple[FloatArray, FloatArray]:
        """Trapezoid on each component of P."""
        sigma = float(self._order.p.sigma)
        x, weights = _normal_nodes(count)
        points = [sigma * x + float(mean) for _, mean in self._order.p.components]
        shares = [float(share) * weights for share, _ in self._order.p.components]
        at = np.concatenate(points)
        return self._order.loss(at), np.concatenate(shares)

    def offset(self, width: float) -> float:
        """Where most of the mass has less than a cell's spread: the loss of all of it, merged.

        It lies just above the smallest loss log(1 - q) where P samples the record, just below the largest
        -log(1 - q) where Q does.
        """
        if isinstance(self._order, ReplaceOrder):
            return 0.0
        q = float(self._order.sampling_probability)
        if isinstance(self._order, RemoveOrder):
            p_mass, q_mass = (1 - mass for mass in self.above(arb(math.log1p(-q) + width)))
        else:
            p_mass, q_mass = self.above(arb(-math.log1p(-q) - width))
        offset = float((p_mass / q_mass).log())
        return offset if math.isfinite(offset) else 0.0


class LaplaceStep(OracleStep):
    """The unit Laplace law against itself shifted.

    Args:
        shift: Sensitivity over scale.
    """

    def __init__(self, shift: Fraction) -> None:
        self.shift = shift

    def above(self, g: arb) -> tuple[arb, arb]:
        """Atoms at both ends of [-shift, shift], a density between."""
        shift = to_arb(self.shift)
        if g >= shift:
            return arb(0), arb(0)
        if g < -shift:
            return arb(1), arb(1)
        return 1 - ((g - shift) / 2).exp() / 2, (-(shift + g) / 2).exp() / 2

    def nodes(self, count: int = 4001) -> tuple[FloatArray, FloatArray]:
        """The atoms and a midpoint rule."""
        shift = float(self.shift)
        edges = np.linspace(-shift, shift, count)
        inside = np.diff(np.exp((edges - shift) / 2) / 2)
        losses = np.concatenate(([-shift, shift], (edges[:-1] + edges[1:]) / 2))
        return losses, np.concatenate(([math.exp(-shift) / 2, 0.5], inside))


class FiniteStep(OracleStep):
    """A finite pair."""

    def __init__(self, pair: FinitePair) -> None:
        self._never_q = sum((a for a, b in zip(pair.p, pair.q, strict=True) if b == 0), Fraction(0))
        self._outputs = [(a, b) for a, b in zip(pair.p, pair.q, strict=True) if a > 0 and b > 0]

    def above(self, g: arb) -> tuple[arb, arb]:
        """Sums; a loss that the precision does not tell from g counts between 0 and 1 times."""
        p, q = self.infinite(), arb(0)
        for a, b in self._outputs:
            loss = to_arb(a / b).log()
            if loss > g:
                p, q = p + to_arb(a), q + to_arb(b)
            elif not loss <= g:
                p, q = p + to_arb(a).union(arb(0)), q + to_arb(b).union(arb(0))
        return p, q

    def nodes(self, count: int = 4001) -> tuple[FloatArray, FloatArray]:
        """The outputs."""
        losses = [math.log(a / b) for a, b in self._outputs]
        return np.array(losses), np.array([float(a) for a, _ in self._outputs])

    def infinite(self) -> arb:
        """Sum of P where Q is 0."""
        return to_arb(self._never_q)


def _normal_nodes(count: int) -> tuple[FloatArray, FloatArray]:
    x = np.linspace(-38.0, 38.0, count)
    weights = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    return x, weights


OracleSteps = Sequence[tuple[OracleStep, int]]


def step_orders(event: Event, adjacency: Adjacency) -> list[OracleSteps]:
    """The steps' laws for both orders of the neighbours; one order where the other is its mirror image.

    Raises:
        UnsupportedError: a step has no law here.
    """
    parts = list(event.parts())
    forward = [(_law(step, adjacency, backward=False), count) for step, count in parts]
    symmetric = all(
        isinstance(step, Gaussian | Laplace | RandomisedResponse)
        or (isinstance(step, SubsampledGaussian) and (step.sampling_probability == 1 or _replaces(adjacency)))
        for step, _ in parts
    )
    if symmetric:
        return [forward]
    return [forward, [(_law(step, adjacency, backward=True), count) for step, count in parts]]


def _replaces(adjacency: Adjacency) -> bool:
    return adjacency is Adjacency.REPLACE_ONE


def _law(step: Event, adjacency: Adjacency, *, backward: bool) -> OracleStep:
    sensitivity = 2 if _replaces(adjacency) else 1
    if isinstance(step, SubsampledGaussian) and step.sampling_probability == 1:
        step = Gaussian(noise_multiplier=step.noise_multiplier)
    if isinstance(step, RandomisedResponse) and _replaces(adjacency):
        step = step.pair()
    if isinstance(step, Gaussian):
        return GaussianStep(sensitivity / Fraction(step.noise_multiplier))
    if isinstance(step, Laplace):
        return LaplaceStep(sensitivity / Fraction(step.scale))
    if isinstance(step, FinitePair):
        return FiniteStep(FinitePair(p=step.q, q=step.p) if backward else step)
    if isinstance(step, SubsampledGaussian):
        q, sigma = Fraction(step.sampling_probability), Fraction(step.noise_multiplier)
        if _replaces(adjacency):
            return ThresholdStep(ReplaceOrder(q, sigma))
        return ThresholdStep(AddOrder(q, sigma) if backward else RemoveOrder(q, sigma))
    raise UnsupportedError(f"{step.describe()} has no law of its privacy loss here under {adjacency}")


def dominating_law(step: StepLaw, cells: Cells) -> GridLaw:
    """The step on the grid, at least as bad as it is."""
    low, high, h = cells.low, cells.high, cells.width
    tails = [step.above(cells.loss(i)) for i in range(low, high + 1)]
    shrink = -(-h).expm1()
    masses = [arb(0)] * (high - low + 1)
    masses[0] = 1 - tails[0][0]
    growth, ratio = cells.loss(low).exp(), h.exp()
    for j in range(high - low):
        p, q = tails[j][0] - tails[j + 1][0], tails[j][1] - tails[j + 1][1]
        to_upper = ((p - growth * q) / shrink).max(arb(0)).min(p.max(arb(0)))
        masses[j] += (p - to_upper).max(arb(0))
        masses[j + 1] += to_upper
        growth *= ratio
    return GridLaw(first=low, masses=masses, infinite=tails[-1][0])


@dataclass(frozen=True, kw_only=True)
class DominatingWindow(Window):
    """Losses outside are moved so that they hide less."""

    def lay(self, step: StepLaw, cells: Cells) -> GridLaw:
        """The step on the grid."""
        return dominating_law(step, cells)

    def moved(self, law: GridLaw, below: list[arb], over: list[arb]) -> GridLaw:
        """The law with the masses below the window at its lowest point, and those above it at infinity."""
        law.masses[0] += sum(below, arb(0))
        return replace(law, infinite=law.infinite + sum(over, arb(0)))


def composed_curves(steps: OracleSteps, choice: GridChoice) -> tuple[GridCurve, GridCurve]:
    """Curves below and above the composition's, for one order of the neighbours."""
    with ctx.workprec(choice.bits):
        moved: MovedSteps = [(step, 0.0, count) for step, count in steps]
        low, high = relevant(moved, choice.tail)
        width = _aligned((high - low) / choice.cells, steps)
        if sum(abs(step.offset(width)) * count for step, count in steps) < _OFFSET_SHARE * (high - low):
            total = sum(count for _, count in steps)
            moved = [(step, _offset(step, width, choice.tail / total), count) for step, count in steps]
        low, high = relevant(moved, choice.tail)
        ends = {"low": math.floor(low / width), "high": math.ceil(high / width)}
        below, above = (
            grid_curve(moved, window, width, choice.tail)
            for window in (Window(**ends), DominatingWindow(**ends))
        )
    return below, above


def _offset(step: OracleStep, width: float, tail: float) -> float:
    """The step's offset, moved until its lowest group of outputs has a ratio that is a grid point's.

    Else what the groups above take from it leaves it below the grid point, to be rounded a whole cell down.
    It ends a little low rather than high: too low costs the difference, too high many times as much.
    """
    offset = step.offset(width)
    change = 0.0
    for _ in range(_OFFSET_ROUNDS if offset < 0 else 0):
        cells = step_cells(step, offset, width, tail, -1)
        tails = half_tails(step, cells)
        sweep = Sweep(tails, cells, above=tails[-1])
        for j in range(cells.high + 1, 1, -1):
            sweep.take(j)
        p, q = _rest(sweep, 1)
        moved = float((p / q).log()) if p > 0 and q > 0 else math.nan
        if not math.isfinite(moved):
            return offset
        offset, change = moved, abs(moved - offset)
    return offset - change


def _rest(sweep: Sweep, j: int) -> tuple[arb, arb]:
    """What is free at the j-th grid point, and all in the cell below it."""
    lower = sweep.halves[2 * j - 2 : 2 * j]
    return sweep.free[0] + sum(p for p, _ in lower), sweep.free[1] + sum(q for _, q in lower)


def _aligned(width: float, steps: OracleSteps) -> float:
    """A grid width, at most the wanted one, that puts a Laplace step's atoms a hair outside grid points.

    There the dominated law rounds the upper atom by next to nothing, and merges the lower one with what lies
    above it.
    """
    for law, _ in steps:
        if isinstance(law, LaplaceStep):
            shift = float(law.shift)
            return shift / math.ceil(shift / width) * (1 - 1e-14)
    return width
