"""The information of a sign in Gaussian noise, in ball arithmetic: PACZero's Eq. 4, enclosed."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

from workbench.attacks.claim_checks.shared.claims import ball
from workbench.core.errors import InconclusiveError

REACH = 16
"""The integral runs over so many standard deviations; what lies outside is bounded."""

TOLERANCE = 2.0**-64
"""Accuracy asked of the integral; the ball says what was reached."""


def binary_mi(agreement: Fraction, noise: Fraction) -> Any:
    """I(xi; xi + N(0, noise^2)), nats, for Pr[xi = +1] = agreement in (0, 1): a ball."""
    from flint import arb

    total = arb(0)
    for own in (agreement, 1 - agreement):
        total += ball(own) * _divergence(own, noise)
    return total


def _divergence(own: Fraction, noise: Fraction) -> Any:
    """KL of the noise around one sign from the mixture of both."""
    from flint import acb, arb

    weight, other, sigma = ball(own), ball(1 - own), ball(noise)
    steep, offset = 2 / sigma, 2 / (sigma * sigma)

    def integrand(z: Any, analytic: bool) -> Any:
        inside = weight + other * (-offset - steep * z).exp()
        return -(-z * z / 2).exp() * inside.log(analytic=analytic)

    # The integrand bends where the two terms are equal, so the range is cut there.
    bend = (weight.log() - other.log() + offset) / -steep
    cuts = [arb(-REACH), arb(REACH)]
    if -REACH < bend < REACH:
        cuts.insert(1, bend.mid())
    inner = arb(0)
    for low, high in pairwise(cuts):
        inner += acb.integral(integrand, acb(low), acb(high), rel_tol=TOLERANCE, abs_tol=TOLERANCE).real
    root = (2 * arb.pi()).sqrt()
    level = offset + 1 - weight.log()
    edge = (-(arb(REACH) ** 2) / 2).exp() / root
    tail = 2 * (level * (arb(REACH) / arb(2).sqrt()).erfc() + steep * edge)
    return inner / root + arb(0, tail.upper())


def noise_between(agreement: Fraction, nats: Fraction, *, rounds: int = 34) -> tuple[Fraction, Fraction]:
    """Noises between which the information falls through `nats`: more at the lower end, less at the upper.

    Raises:
        InconclusiveError: no such noise was found between 2^-6 and 2^20.
    """
    low, high, target = Fraction(1, 64), Fraction(2**20), ball(nats)
    if not (binary_mi(agreement, low) > target and binary_mi(agreement, high) < target):
        raise InconclusiveError(
            f"no noise in [2^-6, 2^20] leaks {float(nats):g} nats at {float(agreement):g}"
        )
    for _ in range(rounds):
        middle = _between(low, high)
        found = binary_mi(agreement, middle)
        if found > target:
            low = middle
        elif found < target:
            high = middle
        else:
            break
    return low, high


def _between(low: Fraction, high: Fraction) -> Fraction:
    """Roughly the geometric mean while the ends are far apart, then the middle; with a short denominator."""
    middle = Fraction((float(low) * float(high)) ** 0.5) if high > 2 * low else (low + high) / 2
    return middle.limit_denominator(2**40)
