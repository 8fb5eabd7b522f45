"""One choice by a mechanism of bounded range, in closed form: see `grid.bounded_range` for the curve.

Each divergence is attained by a choice between two candidates, so the curve is exact for one choice. So is
the trade-off curve: at the false-positive rate f the two candidates with Q(first) = f have the power
exp(r) f / (1 + f (exp(r) - 1)), and the dominating pair has no larger one.
"""

from __future__ import annotations

from fractions import Fraction

from flint import arb

from workbench.accounting.balls.ball import Curve, ends, settle, to_arb


class BoundedRangeCurve(Curve):
    """The privacy curve of one choice.

    Args:
        range_: By how much losses differ at most, > 0.
    """

    method = "closed form of a bounded range in ball arithmetic"

    def __init__(self, range_: Fraction) -> None:
        self._range = range_

    def delta(self, epsilon: arb) -> arb:
        """(exp(r / 2) - exp(epsilon / 2))^2 / (exp(r) - 1) up to epsilon = r, and 0 from there."""
        whole = to_arb(self._range)
        # Divided by exp(r) on both sides.
        value = -((epsilon - whole) / 2).expm1()
        value = value if value > 0 else value.max(arb(0))
        return value**2 / -(-whole).expm1()

    def largest_loss(self) -> arb:
        """The range."""
        return to_arb(self._range)

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """r + 2 log(1 - sqrt(delta (1 - exp(-r)))), at least 0."""

        def epsilon() -> arb:
            whole = to_arb(self._range)
            return whole + 2 * (-(arb(delta) * -(-whole).expm1()).sqrt()).log1p()

        low, high = ends(settle(epsilon))
        return max(low, 0.0), max(high, 0.0)

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """exp(r) f / (1 + f (exp(r) - 1)), divided by exp(r) on both sides."""

        def tpr() -> arb:
            shrunk = (-to_arb(self._range)).exp()
            return arb(fpr) / (shrunk + arb(fpr) * (1 - shrunk))

        low, high = ends(settle(tpr))
        return max(low, fpr), min(high, 1.0)
