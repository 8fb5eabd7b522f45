"""The Poisson-subsampled Gaussian, once: two Gaussian mixtures whose privacy loss is monotone.

**Subsampled Gaussian, add-remove and zero-out.** P = (1 - q) N(0, s^2) + q N(1, s^2), Q = N(0, s^2), and
the reverse order. **Replace-one.** P as above, Q = (1 - q) N(0, s^2) + q N(-1, s^2).

Why these pairs dominate (and so bound what an adaptive adversary gets, in any dimension): given which
other records take part, a step's outputs under two neighbours are (1 - q) N(0) + q N(u) and (1 - q) N(0)
+ q N(v), up to a common shift, |u|, |v| <= 1 (v = 0 under add-remove); averaging over the others is joint
convexity. For alpha >= 1 and any event E, with p = N(u)(E),

    P(E) - alpha Q(E) = q p - (alpha - 1) (1 - q) N(0)(E) - alpha q N(v)(E),

and by Neyman and Pearson N(0)(E) >= Phi(Phi^-1(p) - |u| / s), N(v)(E) >= Phi(Phi^-1(p) - |u - v| / s).
Both are smallest at |u| = 1, |u - v| = 2, where a half-line attains both at once: no pair has a larger
divergence than u = 1, v = -1. For alpha < 1, H_alpha(P || Q) = 1 - alpha + alpha H_{1 / alpha}(Q || P),
and the family is symmetric. The pair is attained by records with contributions 1 and -1, so both ends of
the bounds are proved. The same pair, for the substitution of a record: Lebeda, Regehr, Kamath and Steinke
2024; add-remove: Zhu, Dong and Wang 2022, theorem 11.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from flint import arb

from workbench.accounting.balls.ball import Curve, normal_tail, to_arb, tpr_by_threshold
from workbench.accounting.events import SubsampledGaussian
from workbench.interfaces import FloatArray

Components = tuple[tuple[Fraction, Fraction], ...]
"""(weight, mean) of each Gaussian; weights sum to 1."""


class Mixture:
    """A mixture of Gaussians of one standard deviation, with its masses in balls.

    Args:
        components: (weight, mean) pairs.
        sigma: Standard deviation of every component.
    """

    def __init__(self, components: Components, sigma: Fraction) -> None:
        self.components, self.sigma = components, sigma

    def above(self, x: arb) -> arb:
        """Mass of (x, inf)."""
        sigma = to_arb(self.sigma)
        total = arb(0)
        for weight, mean in self.components:
            total += to_arb(weight) * normal_tail((x - to_arb(mean)) / sigma)
        return total

    def below(self, x: arb) -> arb:
        """Mass of (-inf, x)."""
        sigma = to_arb(self.sigma)
        total = arb(0)
        for weight, mean in self.components:
            total += to_arb(weight) * normal_tail((to_arb(mean) - x) / sigma)
        return total

    def between(self, a: arb, b: arb) -> arb:
        """Mass of (a, b), each component from the side where it is small."""
        sigma = to_arb(self.sigma)
        total = arb(0)
        for weight, mean in self.components:
            low, high = (a - to_arb(mean)) / sigma, (b - to_arb(mean)) / sigma
            inside = (
                normal_tail(low) - normal_tail(high) if low > 0 else normal_tail(-high) - normal_tail(-low)
            )
            total += to_arb(weight) * inside
        return total


class ThresholdOrder:
    """An order (P, Q) whose loss increases with x, with a closed form of where it passes epsilon.

    Args:
        p, q: The two mixtures.
    """

    def __init__(self, p: Mixture, q: Mixture) -> None:
        self.p, self.q = p, q

    @abstractmethod
    def threshold(self, epsilon: arb) -> arb:
        """The x above which the loss exceeds epsilon; infinite where it always or never does.

        No number where the precision does not tell which.
        """

    def tails(self, x: arb) -> tuple[arb, arb]:
        """P and Q above x."""
        return self.p.above(x), self.q.above(x)

    def loss(self, x: FloatArray) -> FloatArray:
        """log P(x) / Q(x) in floats; steers searches, decides nothing. Shape of `x`."""
        result: FloatArray = _log_density(self.p, x) - _log_density(self.q, x)
        return result

    def delta(self, epsilon: arb) -> arb:
        """P above the threshold, less exp(epsilon) Q above it."""
        p, q = self.tails(self.threshold(epsilon))
        value: arb = p - epsilon.exp() * q
        return value if value.is_finite() else arb(0).union(arb(1))

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Power of the test {x > t}."""
        scale = float(self.q.sigma)
        return tpr_by_threshold(self.tails, fpr, scale)


class RemoveOrder(ThresholdOrder):
    """(1 - q) N(0) + q N(1) against N(0)."""

    def __init__(self, q: Fraction, sigma: Fraction) -> None:
        super().__init__(_sampled(q, 1, sigma), Mixture(((Fraction(1), Fraction(0)),), sigma))
        self.sampling_probability = q

    def threshold(self, epsilon: arb) -> arb:
        """Solves 1 - q + q exp((2 x - 1) / (2 s^2)) = exp(epsilon); always above up to log(1 - q)."""
        inside = 1 + epsilon.expm1() / to_arb(self.sampling_probability)
        if inside <= 0:
            return arb.neg_inf()
        return to_arb(self.p.sigma) ** 2 * inside.log() + arb(1) / 2

    def delta(self, epsilon: arb) -> arb:
        """The same divergence with the common part of P and Q taken off, so that less cancels."""
        at, sigma, q = self.threshold(epsilon), to_arb(self.p.sigma), to_arb(self.sampling_probability)
        return q * normal_tail((at - 1) / sigma) - (epsilon.expm1() + q) * normal_tail(at / sigma)


class AddOrder(ThresholdOrder):
    """N(0) against (1 - q) N(0) + q N(1), mirrored so that the loss increases with x."""

    def __init__(self, q: Fraction, sigma: Fraction) -> None:
        super().__init__(Mixture(((Fraction(1), Fraction(0)),), sigma), _sampled(q, -1, sigma))
        self.sampling_probability = q

    def threshold(self, epsilon: arb) -> arb:
        """Solves 1 - q + q exp((-2 x - 1) / (2 s^2)) = exp(-epsilon); never met from -log(1 - q) up."""
        inside = 1 + (-epsilon).expm1() / to_arb(self.sampling_probability)
        if inside <= 0:
            return arb.pos_inf()
        return -(to_arb(self.p.sigma) ** 2) * inside.log() - arb(1) / 2


class ReplaceOrder(ThresholdOrder):
    """(1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1); the reverse order is its mirror image."""

    def __init__(self, q: Fraction, sigma: Fraction) -> None:
        super().__init__(_sampled(q, 1, sigma), _sampled(q, -1, sigma))
        self.sampling_probability = q

    def threshold(self, epsilon: arb) -> arb:
        """The positive root y = exp(x / s^2) of q c y^2 - (1 - q) (e^epsilon - 1) y - e^epsilon q c = 0."""
        variance, q = to_arb(self.p.sigma) ** 2, to_arb(self.sampling_probability)
        c = q * (-1 / (2 * variance)).exp()
        linear = (1 - q) * epsilon.expm1()
        square = 4 * epsilon.exp() * c**2
        radical = (linear**2 + square).sqrt()
        # Of the two forms of the root, the one that adds.
        doubled = square / (radical - linear) if linear < 0 else linear + radical
        return variance * (doubled / (2 * c)).log()


class ThresholdCurve(Curve):
    """The larger of some threshold orders.

    Args:
        orders: Each order whose divergence counts.
    """

    method = "closed form of the Poisson-subsampled Gaussian, once, in ball arithmetic"

    def __init__(self, orders: Sequence[ThresholdOrder]) -> None:
        self._orders = orders

    def delta(self, epsilon: arb) -> arb:
        """The larger order's."""
        value = self._orders[0].delta(epsilon)
        for order in self._orders[1:]:
            value = value.max(order.delta(epsilon))
        return value

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """The larger order's power."""
        lows, highs = zip(*(order.tpr_ends(fpr) for order in self._orders), strict=True)
        return max(lows), max(highs)


def subsampled_orders(event: SubsampledGaussian, *, replace_one: bool) -> list[ThresholdOrder]:
    """The orders of the dominating pair, sampling probability below 1; the remove order first."""
    q, sigma = Fraction(event.sampling_probability), Fraction(event.noise_multiplier)
    if replace_one:
        return [ReplaceOrder(q, sigma)]
    return [RemoveOrder(q, sigma), AddOrder(q, sigma)]


def _log_density(mixture: Mixture, x: FloatArray) -> FloatArray:
    """Logarithm of the density up to a constant, shape of `x`."""
    variance = float(mixture.sigma) ** 2
    terms = [
        math.log(weight) - (x - float(mean)) ** 2 / (2 * variance) for weight, mean in mixture.components
    ]
    result: FloatArray = np.logaddexp.reduce(terms)
    return result


def _sampled(q: Fraction, mean: int, sigma: Fraction) -> Mixture:
    return Mixture(((1 - q, Fraction(0)), (q, Fraction(mean))), sigma)
