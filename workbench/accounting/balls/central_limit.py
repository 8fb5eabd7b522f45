"""Certified bounds on compositions of very many steps: exponential tilting and the Berry-Esseen theorem.

Let L be the sum of the losses under P, K its cumulant function, and tilt each step by theta > 0: the sum then
has the mean m = K'(theta) and the variance s^2 = K''(theta), and

    delta(epsilon) = exp(K(theta) - theta epsilon) E[h(L - epsilon)],  h(y) = exp(-theta y) (1 - exp(-y))_+,

with the expectation under the tilted law. That of a normal sum is known in closed form. A sum's distribution
function is within c rho / s^3 of the normal one, where rho sums the third absolute moments of the tilted
steps, and c is 0.56 (Shevtsova 2010), or 0.4748 for steps of one law (Shevtsova 2011); h has the variation
2 max h, so E[h] is within 2 max h times that. The error is relative to what is left of delta after tilting:
tails of 1e-15 are as good as others. The probabilities of L > t under P and under Q are bounded likewise, and
with them true-positive rates.

Moments are sums or Arb's rigorous integrals. This serves where a grid cannot: so many steps that rounding
each loss adds up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from flint import acb, arb
from scipy.optimize import brentq

from workbench.accounting.balls.ball import ends, normal_tail, to_arb

PRECISION = 160
"""Bits of all balls."""

_ABSOLUTE = 100
"""Bits after the point of moments, which are of order one in the units of the step."""

_PIECES = 16
"""Pieces of an integral, so that no integrand is asked on too large a part."""

_BERRY_ESSEEN = {True: Fraction(4748, 10_000), False: Fraction(56, 100)}
"""The theorem's constants, by whether all summands have one law."""

ASSUMPTIONS = (
    "the Berry-Esseen theorem with the constants 0.56 (Shevtsova 2010) and 0.4748 (Shevtsova 2011), "
    "and Arb's integrals",
)
"""What the bounds rest on."""

POWERS = (0, 1, 2, 4)
"""Of losses, whose tilted moments are taken."""


class Part(ABC):
    """The losses of one step under P, and of the mirrored pair: the negative ones under Q."""

    @abstractmethod
    def moments(self, theta: arb, centre: arb, scale: arb, *, mirrored: bool) -> list[arb]:
        """Of exp(theta (L - centre)) ((L - centre) / scale)^k, for the k in `POWERS`."""


class Atoms(Part):
    """Finitely many outputs, of positive mass under both.

    Args:
        pairs: Masses under P and Q.
    """

    def __init__(self, pairs: Sequence[tuple[Fraction, Fraction]]) -> None:
        self._pairs = pairs

    def moments(self, theta: arb, centre: arb, scale: arb, *, mirrored: bool) -> list[arb]:
        totals = [arb(0)] * len(POWERS)
        for p, q in self._pairs:
            own, other = (q, p) if mirrored else (p, q)
            away = to_arb(Fraction(own) / Fraction(other)).log() - centre
            weight = to_arb(own) * (theta * away).exp()
            totals = [
                total + weight * (away / scale) ** power for total, power in zip(totals, POWERS, strict=True)
            ]
        return totals


class Ramp(Part):
    """Laplace noise: half of P at the loss c, exp(-c) / 2 at -c, and exp((L - c) / 2) / 4 dL between.

    The mirrored pair has the same losses.
    """

    def __init__(self, c: Fraction) -> None:
        self._c = c

    def moments(self, theta: arb, centre: arb, scale: arb, *, mirrored: bool) -> list[arb]:
        c = to_arb(self._c)
        found = []
        for power in POWERS:
            at = _tilted_power(theta, centre, scale, power)

            def inner(x: acb, _: bool, at: Callable[[acb], acb] = at) -> acb:
                return at(x) * ((x - c) / 2).exp() / 4

            atoms = at(acb(c)).real / 2 + at(acb(-c)).real * (-c).exp() / 2
            found.append(atoms + _integral(inner, -c, c))
        return found


class SampledRamp(Part):
    """Laplace noise on a Poisson sample: the pairs of `grid.sampled_laplace`, whose c is 1 / scale.

    Args:
        c: The largest loss without sampling.
        q: Sampling probability, in (0, 1).
        replace_one: Which of the two pairs; the mirrored one has the same losses then.
    """

    def __init__(self, c: Fraction, q: Fraction, *, replace_one: bool) -> None:
        self._c, self._q, self._replace_one = c, q, replace_one

    def moments(self, theta: arb, centre: arb, scale: arb, *, mirrored: bool) -> list[arb]:
        c, q = to_arb(self._c), to_arb(self._q)
        none = (1 - q + q * (-c).exp()).log() if self._replace_one else arb(0)

        def ratio(x: acb) -> acb:
            return 1 - q + q * (c * (2 * x - 1)).exp()

        found = []
        for power in POWERS:
            at = _tilted_power(theta, centre, scale, power)

            def weighed(x: acb, is_analytic: bool, at: Callable[[acb], acb] = at) -> acb:
                """Over L(0) right of 0; where the pair mirrors itself, for both sides of 0."""
                loss = ratio(x).log(analytic=is_analytic) - none
                if self._replace_one:
                    return none.exp() * (loss.exp() * at(loss) + at(-loss))
                return at(-loss) if mirrored else loss.exp() * at(loss)

            def inner(x: acb, is_analytic: bool, weighed: Callable[..., acb] = weighed) -> acb:
                return weighed(x, is_analytic) * (-c * x).exp() * c / 2

            # Beyond 1, and for the pair that has no other side below 0, the loss is constant.
            atoms = weighed(acb(1), False).real * (-c).exp() / 2
            if not self._replace_one:
                atoms += weighed(acb(0), False).real / 2
            found.append(atoms + _integral(inner, arb(0), arb(1)))
        return found


def _tilted_power(theta: arb, centre: arb, scale: arb, power: int) -> Callable[[acb], acb]:
    """exp(theta (L - centre)) ((L - centre) / scale)^power, of a loss L."""

    def at(loss: acb) -> acb:
        away = loss - centre
        return (theta * away).exp() * (away / scale) ** power

    return at


def _integral(inner: Callable[[acb, bool], acb], low: arb, high: arb) -> arb:
    """Arb's rigorous quadrature, piece by piece."""
    total = arb(0)
    pieces = [low + (high - low) * k / _PIECES for k in range(_PIECES + 1)]
    for start, end in pairwise(pieces):
        tolerance = arb(2) ** -_ABSOLUTE
        total += acb.integral(inner, acb(start), acb(end), rel_tol=tolerance, abs_tol=tolerance).real
    return total


@dataclass(frozen=True, kw_only=True)
class Tilted:
    """A sum of losses, tilted.

    Attributes:
        theta: The tilt, at least 0.
        log_mass: K(theta).
        mean, deviation: Of the tilted sum.
        error: Between its distribution function and the normal one, at most.
    """

    theta: arb
    log_mass: arb
    mean: arb
    deviation: arb
    error: arb

    @classmethod
    def of(
        cls,
        parts: Sequence[tuple[Part, int]],
        square: arb,
        theta: float,
        guesses: Sequence[tuple[float, float]],
        *,
        mirrored: bool,
    ) -> Tilted | None:
        """Tilt a sum; None where a moment is not known well enough.

        Args:
            parts: The steps, with their counts.
            square: mu^2 of the Gaussian mechanism that is composed with them; 0 where there is none.
            theta: The tilt.
            guesses: About the tilted mean and deviation of each part.
            mirrored: Whether the pair is taken in the other order.
        """
        tilt = arb(theta)
        # Normal losses are sums of as many normal ones as one likes: they add nothing to the error.
        log_mass = square * tilt * (1 + tilt) / 2
        mean, variance, third = square * (arb(1) / 2 + tilt), square, arb(0)
        for (part, count), (centre, scale) in zip(parts, guesses, strict=True):
            unit = arb(scale)
            zero, one, two, four = part.moments(tilt, arb(centre), unit, mirrored=mirrored)
            if not zero > 0:
                return None
            first, second, fourth = one / zero, two / zero, four / zero
            spread = second - first**2
            if not (spread > 0 and fourth > 0):
                return None
            log_mass += count * (zero.log() + tilt * centre)
            mean += count * (centre + unit * first)
            variance += count * unit**2 * spread
            # E|L - m|^3 by Minkowski's and Cauchy's inequalities.
            third += count * unit**3 * ((second * fourth).sqrt().root(3) + abs(first)) ** 3
        deviation = variance.sqrt()
        constant = to_arb(_BERRY_ESSEEN[len(parts) == 1 and bool(square == 0)])
        return cls(
            theta=tilt,
            log_mass=log_mass,
            mean=mean,
            deviation=deviation,
            error=constant * third / deviation**3,
        )

    def delta(self, epsilon: float, *, upper: bool) -> arb:
        """A number that delta at this epsilon is not above, or not below."""
        theta = self.theta
        usual = self._laplace(theta, epsilon) - self._laplace(theta + 1, epsilon)
        highest = (theta * (theta / (1 + theta)).log()).exp() / (1 + theta) if theta > 0 else arb(1)
        return self._bounded(theta, epsilon, usual, 2 * highest, upper=upper)

    def above(self, loss: float, *, under_q: bool, upper: bool) -> arb:
        """Likewise of the probability of a sum above this loss, under P or under Q."""
        rate = self.theta + under_q
        # A jump by 1, and down again.
        return self._bounded(rate, loss, self._laplace(rate, loss), arb(2), upper=upper)

    def _bounded(self, rate: arb, loss: float, usual: arb, variation: arb, *, upper: bool) -> arb:
        factor, error = (self.log_mass - rate * loss).exp(), variation * self.error
        return factor * (usual + error if upper else usual - error)

    def _laplace(self, rate: arb, loss: float) -> arb:
        """E[exp(-rate (y - loss)); y > loss] of a normal y of the tilted mean and deviation."""
        away, spread = self.mean - loss, self.deviation
        return (rate * (rate * spread**2 / 2 - away)).exp() * normal_tail(rate * spread - away / spread)

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """Bounds on epsilon at this delta; 0 or infinity where none is found near the tilted mean."""
        low = self._reached(lambda epsilon: self.delta(epsilon, upper=False), delta, above=True)
        high = self._reached(lambda epsilon: self.delta(epsilon, upper=True), delta, above=False)
        return max(0.0, low), max(0.0, high)

    def delta_ends(self, epsilon: float) -> tuple[float, float]:
        """Bounds on delta at this epsilon."""
        low, high = (ends(self.delta(epsilon, upper=upper))[upper] for upper in (False, True))
        return max(0.0, low), min(1.0, high)

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Bounds on the true-positive rate at this false-positive rate."""
        # A test that calls losses above t members, at a false-positive rate that is surely not above `fpr`.
        loss = self._reached(lambda t: self.above(t, under_q=True, upper=True), fpr, above=False)
        low = ends(self.above(loss, under_q=False, upper=False))[0] if math.isfinite(loss) else 0.0
        # For any epsilon, the rate is at most exp(epsilon) fpr + delta(epsilon).
        epsilon = ends(self.mean)[0] if math.isinf(loss) else loss
        high = ends(arb(epsilon).exp() * fpr + self.delta(epsilon, upper=True))[1]
        return max(fpr, low), min(1.0, high)

    def _reached(self, curve: Callable[[float], arb], target: float, *, above: bool) -> float:
        """A place at which a falling curve is surely above the target, or surely not, near the tilted mean.

        Minus infinity, or infinity, where none is found.
        """
        nowhere = -math.inf if above else math.inf
        middle, spread = ends(self.mean)[0], ends(self.deviation)[1]

        def excess(place: float) -> float:
            found = curve(place).mid()
            return float(found.log()) - math.log(target) if found > 0 else -1e9

        low, high = middle - spread, middle + spread
        if not (math.isfinite(low) and math.isfinite(high) and excess(low) > 0 >= excess(high)):
            return nowhere
        root = float(brentq(excess, low, high, xtol=1e-14 * spread, rtol=1e-14))
        moved = 1e-12 * spread
        while moved < spread:
            found = root - moved if above else root + moved
            value = curve(found)
            if value > target if above else value <= target:
                return found
            moved *= 10
        return nowhere
