"""The losses of integer noise moved by an integer: P(x) = f(x - s) against Q(x) = f(x).

f is symmetric and log-concave, so the loss log f(x - s) - log f(x) increases with x, tests of half-lines are
best for all shifts at once, and the pair in reverse order has the same law, mirrored. In several dimensions
with a noise for each coordinate, shifts of an l1 norm of at most s do no worse than s in one coordinate: a
test of error rate p becomes, by a shift of one coordinate, one of rate at most t(p, |v|) of the best test
(randomised, so that t is concave in p and survives averaging over the other coordinates), the same half-line
is best again, and so shifts of coordinates, one after the other, add up.

Probabilities are computed in ball arithmetic up to a point beyond which the tail is below exp(-`_NATS`), by
geometric series; what is left beyond goes into the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from flint import arb, ctx

from workbench.accounting.balls.ball import to_arb
from workbench.accounting.grid.laws import ROUND_OFF, AtomicLaw, CellMasses
from workbench.accounting.integers import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam
from workbench.core.errors import UnsupportedError

_NATS = 200.0
_MOST_ATOMS = 2**18
_COARSE = 64
"""Atoms within a deviation of the loss up to which the grid is aligned with them."""


class IntegerNoiseLaw(AtomicLaw):
    """The law above.

    Args:
        event: The noise.
        shift: s, >= 1.

    Raises:
        UnsupportedError: there are too many atoms, or the noise is out of reach.
    """

    def __init__(self, event: IntegerNoise, shift: int) -> None:
        with ctx.workprec(160):
            probabilities, tail = _probabilities(event, shift)
            last = len(probabilities) - 1 - shift
            # x from -last to last + s: outside both probabilities are parts of the tails.
            f = [probabilities[abs(x)] for x in range(-last - shift, last + shift + 1)]
            p, q = f[:-shift], f[shift:]
            losses = [_middle((a / b).log()) for a, b in zip(p, q, strict=True)]
            masses = [np.array([_middle(value) for value in side]) for side in (p, q)]
            self._tail = float(tail.upper()) * 1.000001
        lattice = None
        if isinstance(event, DiscreteGaussian) and event.sigma <= _COARSE:
            lattice = shift / event.sigma**2 / 2
        if isinstance(event, DiscreteLaplace):
            lattice = event.noise_parameter
        super().__init__(np.maximum.accumulate(np.array(losses)), masses[0], masses[1], lattice=lattice)

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """As `AtomicLaw.cells`, with the mass beyond the computed atoms as an error at both ends."""
        inner = super().cells(h, first, count, offset)
        (p1, q1, ep1, eq1), (p2, q2, ep2, eq2) = inner.below, inner.above
        tail = self._tail
        return CellMasses(
            first=inner.first,
            p=inner.p,
            q=inner.q,
            p_error=inner.p_error,
            q_error=inner.q_error,
            below=(p1, q1, ep1 + tail, eq1 + tail),
            above=(p2, q2, ep2 + tail, eq2 + tail),
            # The losses as rounded from balls, and where rounding made two of them equal.
            eta=inner.eta + 16 * ROUND_OFF * float(np.max(np.abs(self._losses))),
            offset=inner.offset,
        )


def _middle(value: arb) -> float:
    """The ball's midpoint; its radius at 160 bits is far below the rounding of a float."""
    if value.rel_accuracy_bits() < 60 and not abs(value) < arb(2) ** -80:
        raise UnsupportedError("the noise's probabilities are out of the grid's reach")
    return float(value.mid())


def _probabilities(event: IntegerNoise, shift: int) -> tuple[list[arb], arb]:
    """f(0), f(1), ... and a bound on the mass of P and of Q beyond the last but `shift` on each side."""
    weight, ratio_beyond, scale = _weights(event)
    last = _last(event) + shift
    if not last <= _MOST_ATOMS:
        raise UnsupportedError(f"{event.describe()} has more than {_MOST_ATOMS} outputs that count")
    values = [weight(x) for x in range(last + shift + 1)]
    # Beyond x the probabilities fall at least geometrically: log-concavity.
    ratio = ratio_beyond(last)
    tail = values[last] / (1 - ratio)
    if not (ratio < 1 and tail > 0):
        raise UnsupportedError(f"{event.describe()} is out of the grid's reach")
    total = scale(values)
    return [value / total for value in values], tail / total


def _last(event: IntegerNoise) -> int:
    """Where the tail is below exp(-`_NATS`)."""
    if isinstance(event, DiscreteLaplace):
        return math.ceil(min(_NATS / event.noise_parameter, 1e9)) + 1
    deviation = event.sigma if isinstance(event, DiscreteGaussian) else math.sqrt(_variance(event))
    gaussian = deviation * math.sqrt(2 * _NATS)
    if isinstance(event, DiscreteGaussian):
        return math.ceil(min(gaussian, 1e9)) + 2
    # Bernstein's inequality for Poisson tails.
    return math.ceil(min(gaussian + _NATS, 1e9)) + 2


def _variance(event: IntegerNoise) -> float:
    return event.variance if isinstance(event, Skellam) else 0.0


def _weights(
    event: IntegerNoise,
) -> tuple[Callable[[int], arb], Callable[[int], arb], Callable[[list[arb]], arb]]:
    """Unnormalised probabilities, their ratio from x to x + 1 (an upper bound beyond x), and their sum."""
    if isinstance(event, DiscreteLaplace):
        a = to_arb(Fraction(event.noise_parameter))
        return lambda x: (-a * x).exp(), lambda x: (-a).exp(), lambda values: 1 / (a / 2).tanh()
    if isinstance(event, DiscreteGaussian):
        twice = 2 * to_arb(Fraction(event.sigma)) ** 2

        def gaussian(x: int) -> arb:
            return (-(arb(x) ** 2) / twice).exp()

        def falls(x: int) -> arb:
            return (-(2 * arb(x) + 1) / twice).exp()

        def total(values: list[arb]) -> arb:
            beyond = values[-1] * falls(len(values) - 1) / (1 - falls(len(values) - 1))
            inside = sum(values[1:], arb(0))
            return values[0] + 2 * inside + beyond.union(arb(0)) * 2

        return gaussian, falls, total
    variance = to_arb(Fraction(_variance(event)))

    def bessel(x: int) -> arb:
        return (-variance).exp() * variance.bessel_i(arb(x))

    return bessel, lambda x: bessel(x + 1) / bessel(x), lambda values: arb(1)
