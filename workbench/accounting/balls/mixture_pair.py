"""Any pair of one-dimensional Gaussian mixtures of one standard deviation, once.

P - e^epsilon Q is the common Gaussian factor times a sum of exponentials, whose sign is certified on
cells by ball arithmetic (mean-value form), beyond the outermost cells by the dominating exponential;
cells too narrow to divide further count as undecided and widen the ball by no more than their mass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from flint import arb, ctx

from workbench.accounting.balls.ball import Curve, ends, to_arb, tpr_by_threshold
from workbench.accounting.balls.mixture import Components, Mixture
from workbench.accounting.events import GaussianMixturePair
from workbench.core.errors import InconclusiveError

CELL_LIMIT = 20_000
"""Cells after which what is undecided stays so."""


class MixtureOrder:
    """One order (P, Q) of any two mixtures.

    Args:
        p, q: The two mixtures, of the same standard deviation.
    """

    def __init__(self, p: Mixture, q: Mixture) -> None:
        self.p, self.q = p, q

    @property
    def increasing(self) -> bool:
        """Whether every mean of P is at least every mean of Q: then the loss increases with x."""
        return min(mean for _, mean in self.p.components) >= max(mean for _, mean in self.q.components)

    def tails(self, x: arb) -> tuple[arb, arb]:
        """P and Q above x."""
        return self.p.above(x), self.q.above(x)

    def masses(self, epsilon: arb) -> tuple[arb, arb, arb]:
        """P and Q of outputs whose loss is certainly above epsilon, and P of those where it is undecided."""
        signs = _Signs(self.p, self.q, epsilon)
        p_total, q_total, undecided = arb(0), arb(0), arb(0)
        for a, b, sign in signs.cells():
            p_mass = _mass(self.p, a, b)
            if sign > 0:
                p_total += p_mass
                q_total += _mass(self.q, a, b)
            elif sign == 0:
                undecided += p_mass
        return p_total, q_total, undecided

    def delta(self, epsilon: arb) -> arb:
        """The positive part of P - exp(epsilon) Q."""
        p, q, undecided = self.masses(epsilon)
        value: arb = (p - epsilon.exp() * q).max(arb(0))
        return value if undecided.is_zero() else value + undecided.union(arb(0))


def _mass(mixture: Mixture, a: arb | None, b: arb | None) -> arb:
    """Mass between two points; None stands for the infinite ends."""
    if a is None:
        return arb(1) if b is None else mixture.below(b)
    return mixture.above(a) if b is None else mixture.between(a, b)


class _Signs:
    """The sign of P - exp(epsilon) Q along the line, at the current precision."""

    def __init__(self, p: Mixture, q: Mixture, epsilon: arb) -> None:
        self._sigma = to_arb(p.sigma)
        p_weights = {mean: weight for weight, mean in p.components}
        q_weights = {mean: weight for weight, mean in q.components}
        weights = {}
        for mean in {*p_weights, *q_weights}:
            a, b = p_weights.get(mean, Fraction(0)), q_weights.get(mean, Fraction(0))
            # a - e^epsilon b, exactly 0 where both agree and epsilon is 0.
            weights[mean] = to_arb(a - b) - to_arb(b) * epsilon.expm1()
        self._means = sorted(mean for mean, weight in weights.items() if not weight.is_zero())
        variance = to_arb(p.sigma) ** 2
        self._rates = [to_arb(mean) / variance for mean in self._means]
        # exp(-mean^2 / 2 s^2), the part of each Gaussian that does not depend on x.
        self._weights = [
            weights[mean] * (-(to_arb(mean) ** 2) / (2 * variance)).exp() for mean in self._means
        ]

    def _sign_on(self, a: arb, b: arb) -> int:
        """Sign on the whole of [a, b]; 0 where it is not certain."""
        box, middle = a.union(b), ((a + b) / 2).mid()
        centre = [
            (rate * middle).exp() * weight for rate, weight in zip(self._rates, self._weights, strict=True)
        ]
        # Divided by one exponential of the sum, which changes no sign and keeps the balls of moderate size.
        pivot = max(range(len(centre)), key=lambda k: _Size(centre[k]))
        rates = [rate - self._rates[pivot] for rate in self._rates]
        scaled = [value / abs(centre[pivot]) for value in centre]
        moved = [(rate * (box - middle)).exp() for rate in rates]
        plain = sum((value * factor for value, factor in zip(scaled, moved, strict=True)), arb(0))
        slope = sum(
            (value * factor * rate for value, factor, rate in zip(scaled, moved, rates, strict=True)), arb(0)
        )
        refined = sum(scaled, arb(0)) + slope * (box - middle)
        for enclosure in (plain, refined):
            if enclosure > 0:
                return 1
            if enclosure < 0:
                return -1
        return 0

    def _sign_beyond(self, x: arb, *, upwards: bool) -> int:
        """Sign beyond x where the outermost mean's exponential dominates there; 0 where it does not."""
        values = [(rate * x).exp() * weight for rate, weight in zip(self._rates, self._weights, strict=True)]
        outer = values.pop() if upwards else values.pop(0)
        rest = sum((abs(value) for value in values), arb(0))
        if abs(outer) > rest:
            return 1 if outer > 0 else -1
        return 0

    def _edge(self, *, upwards: bool) -> tuple[arb, int]:
        """A point beyond which the sign is certain, or the mass negligible (sign 0)."""
        direction = 1 if upwards else -1
        extreme = to_arb(self._means[-1] if upwards else self._means[0])
        furthest = 1.2 * math.sqrt(ctx.prec)
        reach = 1.0
        while True:
            x = (extreme + direction * reach * self._sigma).mid()
            sign = self._sign_beyond(x, upwards=upwards)
            if sign or reach > furthest:
                return x, sign
            reach = min(2 * reach, 1.01 * furthest)

    def cells(self) -> list[tuple[arb | None, arb | None, int]]:
        """A partition of the line into cells with their sign, 0 where undecided; None for infinite ends."""
        if not self._means:
            return [(None, None, -1)]
        left, left_sign = self._edge(upwards=False)
        right, right_sign = self._edge(upwards=True)
        done: list[tuple[arb | None, arb | None, int]] = [(None, left, left_sign), (right, None, right_sign)]
        waiting = [(left, right)]
        narrow = self._sigma * arb(2) ** (-(ctx.prec // 2))
        while waiting:
            a, b = waiting.pop()
            sign = self._sign_on(a, b)
            if sign or b - a < narrow or len(done) + len(waiting) > CELL_LIMIT:
                done.append((a, b, sign))
                continue
            middle = ((a + b) / 2).mid()
            waiting += [(middle, b), (a, middle)]
        return _merged(done)


def _merged(cells: list[tuple[arb | None, arb | None, int]]) -> list[tuple[arb | None, arb | None, int]]:
    """Neighbouring cells of equal sign as one. Cells come leftmost, rightmost, then the rest in order."""
    first, last, *inner = cells
    merged = [first]
    for a, b, sign in (*inner, last):
        if merged[-1][2] == sign:
            merged[-1] = (merged[-1][0], b, sign)
        else:
            merged.append((a, b, sign))
    return merged


class _Size:
    """Orders balls by the size of their midpoints."""

    def __init__(self, value: arb) -> None:
        self.size = abs(value.mid())

    def __gt__(self, other: _Size) -> bool:
        return bool(self.size > other.size)


class MixtureCurve(Curve):
    """A pair of Gaussian mixtures, once; the larger of both orders.

    Args:
        event: The pair.
    """

    method = "pair of Gaussian mixtures: certified signs and closed-form masses in ball arithmetic"

    def __init__(self, event: GaussianMixturePair) -> None:
        sigma = Fraction(event.standard_deviation)
        p = Mixture(_normalised(event.p_weights, event.p_means), sigma)
        q = Mixture(_normalised(event.q_weights, event.q_means), sigma)
        self._orders = [MixtureOrder(p, q), MixtureOrder(q, p)]

    def delta(self, epsilon: arb) -> arb:
        """The larger order's."""
        first, second = (order.delta(epsilon) for order in self._orders)
        return first.max(second)

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """The larger order's power: tests {loss > epsilon} on both sides of the rate, and the line between.

        Raises:
            InconclusiveError: no two tests around the rate were found.
        """
        lows, highs = zip(*(self._order_tpr(order, fpr) for order in self._orders), strict=True)
        return max(lows), max(highs)

    def _order_tpr(self, order: MixtureOrder, fpr: float) -> tuple[float, float]:
        for candidate in (order, MixtureOrder(_mirrored(order.p), _mirrored(order.q))):
            if candidate.increasing:
                return tpr_by_threshold(candidate.tails, fpr, float(candidate.p.sigma))
        return _tpr_by_loss(order, fpr)


def _tpr_by_loss(order: MixtureOrder, fpr: float) -> tuple[float, float]:
    """Power at a rate, from tests {loss > epsilon}; every test and every line used holds at any epsilon."""
    target = arb(fpr)

    def test(epsilon: float) -> tuple[arb, arb, float]:
        with ctx.workprec(192):
            p, q, undecided = order.masses(arb(epsilon))
            line = (arb(epsilon).exp() * (target - q) + p + undecided.union(arb(0))).upper()
            return p, q, ends(line)[1]

    low, high = -1.0, 1.0
    while not test(low)[1] > target:
        low *= 2
        if low < -1e6:
            raise InconclusiveError(f"no test by the loss has a false-positive rate above fpr = {fpr!r}")
    while not test(high)[1] < target:
        high *= 2
        if high > 1e6:
            raise InconclusiveError(f"no test by the loss has a false-positive rate below fpr = {fpr!r}")
    for _ in range(50):
        middle = (low + high) / 2
        if test(middle)[1] >= target:
            low = middle
        else:
            high = middle
    (p_low, q_low, line_low), (p_high, q_high, line_high) = test(low), test(high)
    with ctx.workprec(192):
        share = (target - q_high) / (q_low - q_high)
        chord = p_high + share * (p_low - p_high)
        lower = ends(chord)[0] if share >= 0 and share <= 1 else ends(p_high)[0]
    return max(lower, fpr), min(line_low, line_high, 1.0)


def _mirrored(mixture: Mixture) -> Mixture:
    return Mixture(tuple((weight, -mean) for weight, mean in mixture.components), mixture.sigma)


def _normalised(weights: Sequence[float], means: Sequence[float]) -> Components:
    """Exact components; weights that sum to 1 up to rounding are divided by their exact sum."""
    total = sum(map(Fraction, weights), Fraction(0))
    merged: dict[Fraction, Fraction] = {}
    for weight, mean in zip(weights, means, strict=True):
        merged[Fraction(mean)] = merged.get(Fraction(mean), Fraction(0)) + Fraction(weight) / total
    return tuple((weight, mean) for mean, weight in merged.items())
