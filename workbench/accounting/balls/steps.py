"""The privacy loss of one step, exactly, for the composition in balls: what lies above any loss."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction

import numpy as np
from flint import arb

from workbench.accounting.balls.ball import normal_tail, to_arb
from workbench.accounting.balls.mixture import AddOrder, RemoveOrder, ReplaceOrder
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

    def offset(self, width: float) -> float:
        """A loss that a grid of this width should have a point at, lest rounding moves most of the mass."""
        return 0.0


class GaussianStep(StepLaw):
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


class ThresholdStep(StepLaw):
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


class LaplaceStep(StepLaw):
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


class FiniteStep(StepLaw):
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


Steps = list[tuple[StepLaw, int]]


def step_orders(event: Event, adjacency: Adjacency) -> list[Steps]:
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


def _law(step: Event, adjacency: Adjacency, *, backward: bool) -> StepLaw:
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
