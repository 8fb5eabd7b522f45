"""Laplace noise on a Poisson sample, once, in closed form.

Which pairs dominate, and why, says `grid.sampled_laplace`. With c = 1 / scale, L(m) Laplace noise around m
and D(t) = (1 - exp((t - c) / 2))_+ the curve of L(1) against L(0) at epsilon = t:

    remove    (1 - q) L(0) + q L(1) against L(0):  q D(log(1 + (e^epsilon - 1) / q))
    add       L(0) against (1 - q) L(0) + q L(1):  r D(log(q e^epsilon / r)), r = 1 - (1 - q) e^epsilon > 0
    replace   (1 - q) L(0) + q L(1) against (1 - q) L(0) + q L(-1):  q D(log w),
              w = e^-c + (e^epsilon - 1) (1 - q + q e^-c) / q

The first two take the common part of both sides off. Under replace-one the loss passes epsilon > 0 at an x
in (0, 1), where 1 - q + q w = e^epsilon (1 - q + q e^-c) for log w = c (2 x - 1); P above x is
(1 - q) e^-cx / 2 + q (1 - e^-c(1 - x) / 2), Q above it (1 - q + q e^-c) e^-cx / 2, and P less e^epsilon Q is
what stands above. The loss rises with x, so half-lines are the best tests.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from flint import arb

from workbench.accounting.balls.ball import Curve, to_arb, tpr_by_threshold
from workbench.interfaces import Direction

Mixed = tuple[tuple[Fraction, int], ...]
"""(weight, centre) of each Laplace law."""


class SampledLaplaceCurve(Curve):
    """The larger of the orders that count.

    Args:
        scale: Of the noise.
        q: Sampling probability, in (0, 1].
        replace_one: Whether neighbours differ by a record's value, so that both orders are alike.
        direction: Which orders count otherwise.
    """

    method = "closed form of the Poisson-subsampled Laplace mechanism, once, in ball arithmetic"

    def __init__(self, scale: Fraction, q: Fraction, *, replace_one: bool, direction: Direction) -> None:
        self._shift, self._q = 1 / scale, q
        none: Mixed = ((Fraction(1), 0),)
        deltas: list[Callable[[arb], arb]] = []
        pairs: list[tuple[Mixed, Mixed]] = []
        if replace_one:
            deltas.append(self._replace)
            pairs.append((self._sampled(1), self._sampled(-1)))
        elif direction is not Direction.ADD:
            deltas.append(self._remove)
            pairs.append((self._sampled(1), none))
        if not replace_one and direction is not Direction.REMOVE:
            deltas.append(self._add)
            pairs.append((none, self._sampled(-1)))
        self._deltas, self._pairs = deltas, pairs

    def _sampled(self, centre: int) -> Mixed:
        return (1 - self._q, 0), (self._q, centre)

    def _unsampled(self, log_ratio: arb) -> arb:
        """D of the module."""
        value = -((log_ratio - to_arb(self._shift)) / 2).expm1()
        return value if value > 0 else value.max(arb(0))

    def _remove(self, epsilon: arb) -> arb:
        q = to_arb(self._q)
        return q * self._unsampled((epsilon.expm1() / q).log1p())

    def _add(self, epsilon: arb) -> arb:
        q = to_arb(self._q)
        rest = q - to_arb(1 - self._q) * epsilon.expm1()
        if rest > 0:
            return rest * self._unsampled((q / rest).log() + epsilon)
        return arb(0) if rest <= 0 else arb(0).union(arb(1))

    def _replace(self, epsilon: arb) -> arb:
        q, least = to_arb(self._q), (-to_arb(self._shift)).exp()
        common = to_arb(1 - self._q) + q * least
        return q * self._unsampled((least + epsilon.expm1() * common / q).log())

    def delta(self, epsilon: arb) -> arb:
        """The closed form of the module; the larger of the orders."""
        value = self._deltas[0](epsilon)
        for delta in self._deltas[1:]:
            value = value.max(delta(epsilon))
        return value if value.is_finite() else arb(0).union(arb(1))

    def largest_loss(self) -> arb:
        """Forwards log(1 - q + q e^c), backwards -log(1 - q + q e^-c); under replace-one their sum."""
        q, c = to_arb(self._q), to_arb(self._shift)
        forward, backward = (q * c.expm1()).log1p(), -(q * (-c).expm1()).log1p()
        if self._deltas == [self._replace]:
            return forward + backward
        # The forward one is the larger: log is concave.
        return forward if self._remove in self._deltas else backward

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Ends of the power of half-lines, the larger of the orders."""
        scale = float(1 / self._shift)
        lows, highs = zip(*(self._order_tpr(p, q, fpr, scale) for p, q in self._pairs), strict=True)
        return max(lows), max(highs)

    def _order_tpr(self, p: Mixed, q: Mixed, fpr: float, scale: float) -> tuple[float, float]:
        return tpr_by_threshold(lambda x: (self._above(p, x), self._above(q, x)), fpr, scale)

    def _above(self, mixed: Mixed, x: arb) -> arb:
        """The mass above x."""
        total, c = arb(0), to_arb(self._shift)
        for weight, centre in mixed:
            away = x - centre
            tail = (-c * abs(away)).exp() / 2
            if away >= 0:
                mass = tail
            elif away <= 0:
                mass = 1 - tail
            else:
                mass = tail.union(1 - tail)
            total += to_arb(weight) * mass
        return total
