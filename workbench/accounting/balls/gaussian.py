"""Gaussian and Laplace curves in balls.

Gaussian releases compose exactly: with sensitivities D_i and standard deviations s_i the composition is
mu-GDP with mu^2 = sum (D_i / s_i)^2 and no less (Dong, Roth and Su 2022, corollary 2), so its curve is
that of N(0, 1) against N(mu, 1) (`workbench.accounting.gaussian`).

Laplace noise in d dimensions on contributions of l1 norm at most D is no worse than in one: shifting the
centre along one coordinate by v turns a test of error rate p into one of rate at most F(F^-1(p) + |v|), F
the distribution function of the unit Laplace law (the shift in one dimension has a monotone likelihood
ratio, and the bound is concave in p, so that it survives averaging over the other coordinates);
coordinates shifted one after the other add up to F(F^-1(p) + |v|_1), which one coordinate alone attains.
"""

from __future__ import annotations

import math
from fractions import Fraction

from flint import arb

from workbench.accounting.balls.ball import Curve, certainly_above, ends, normal_tail, settle, to_arb
from workbench.accounting.gaussian import epsilon_of_delta


class GaussianCurve(Curve):
    """The privacy curve of a Gaussian mechanism: N(mu, 1) against N(0, 1).

    Args:
        mu_squared: The exact square of mu, > 0.
    """

    method = "closed form of the Gaussian mechanism in ball arithmetic"

    def __init__(self, mu_squared: Fraction) -> None:
        self._mu_squared = mu_squared

    def mu(self) -> arb:
        """mu, at the current precision."""
        return to_arb(self._mu_squared).sqrt()

    def delta(self, epsilon: arb) -> arb:
        """Balle and Wang 2018, theorem 8."""
        mu = self.mu()
        ratio = epsilon / mu
        return normal_tail(ratio - mu / 2) - epsilon.exp() * normal_tail(ratio + mu / 2)

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """A float guess, certified a little below and above it."""
        guess = epsilon_of_delta(math.sqrt(self._mu_squared), delta)
        if guess > 0:
            low, high = self._tighten(delta, guess, 0.0, math.inf)
            if low > 0 and high < math.inf:
                return low, high
        return super().epsilon_ends(delta)

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Phi(Phi^-1(fpr) + mu) (Dong, Roth and Su 2022, equation 6)."""

        def tpr() -> arb:
            quantile = arb(2).sqrt() * (2 * arb(fpr)).erfcinv()
            return normal_tail(quantile - self.mu())

        low, high = ends(settle(tpr))
        return max(low, fpr), min(high, 1.0)


class LaplaceCurve(Curve):
    """The unit Laplace law against itself shifted.

    Args:
        shift: Sensitivity over scale, > 0.
    """

    method = "closed form of the Laplace mechanism in ball arithmetic"

    def __init__(self, shift: Fraction) -> None:
        self._shift = shift

    def delta(self, epsilon: arb) -> arb:
        """1 - exp((epsilon - shift) / 2) up to epsilon = shift, and 0 from there."""
        value = -((epsilon - to_arb(self._shift)) / 2).expm1()
        return value if value > 0 else value.max(arb(0))

    def largest_loss(self) -> arb:
        """The largest privacy loss: the sensitivity over the Laplace scale."""
        return to_arb(self._shift)

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """shift + 2 log(1 - delta), at least 0."""
        low, high = ends(settle(lambda: to_arb(self._shift) + 2 * (-arb(delta)).log1p()))
        return max(low, 0.0), max(high, 0.0)

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """F(F^-1(fpr) + shift), F the unit Laplace law's distribution function."""
        quantile_sign = certainly_above(lambda: 2 * arb(fpr), arb(1))

        def tpr() -> arb:
            """The rate on the side that the quantile's sign tells."""
            if quantile_sign:
                return 1 - (1 - arb(fpr)) * (-to_arb(self._shift)).exp()
            moved = (2 * arb(fpr)).log() + to_arb(self._shift)
            below, above = moved.exp() / 2, 1 - (-moved).exp() / 2
            if moved <= 0:
                return below
            return above if moved >= 0 else below.union(above)

        low, high = ends(settle(tpr))
        return max(low, fpr), min(high, 1.0)
