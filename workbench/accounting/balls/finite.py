"""Compositions of finite mechanisms, counted exactly.

The output of a composition matters through its likelihood ratio only. A step's ratios are rationals;
written as products of powers of pairwise coprime integers, equal ratios are equal vectors of exponents,
ratios multiply by adding vectors, and an n-fold composition is a polynomial power: exact classes, with
masses in balls (all terms positive, so that even the far tail is accurate relative to itself). Where all
vectors are multiples of one, as for randomised response, the polynomial has one variable and 10,000 steps
take a fraction of a second.

An output that only the first neighbour can give has an infinite loss; one that only the second can give
has the loss minus infinity. The mass of both is carried apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import mul

from flint import arb, arb_poly, ctx

from workbench.accounting.balls.ball import ByMidpoint, Curve, clip_probability, ends, settle, to_arb
from workbench.accounting.events import FinitePair
from workbench.core.errors import InconclusiveError, UnsupportedError
from workbench.interfaces import Direction

STATE_LIMIT = 50_000
"""Largest number of classes of equal likelihood ratio."""

WORK_LIMIT = 2_000_000
"""Largest number of products in the convolution of classes with several generators."""

_DEGREE_LIMIT = 100_000

Vector = tuple[int, ...]


def coprime_base(numbers: Sequence[int]) -> list[int]:
    """Pairwise coprime integers > 1 such that each of the numbers (>= 1) is a product of their powers."""
    base: list[int] = []
    waiting = [number for number in numbers if number > 1]
    while waiting:
        number = waiting.pop()
        if number == 1:
            continue
        for index, other in enumerate(base):
            common = math.gcd(number, other)
            if common > 1:
                del base[index]
                waiting += [common, number // common, other // common]
                break
        else:
            base.append(number)
    return sorted(base)


def _exponents(ratio: Fraction, base: Sequence[int]) -> Vector:
    """The ratio's vector of exponents."""
    return tuple(_power(ratio.numerator, factor) - _power(ratio.denominator, factor) for factor in base)


def _power(number: int, factor: int) -> int:
    """How often the factor divides the number."""
    power = 0
    while number % factor == 0:
        number //= factor
        power += 1
    return power


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One finite step: classes of finite ratio with their mass under P, and its repetitions."""

    classes: dict[Vector, Fraction]
    count: int


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The composition's outputs from the largest loss down, at one precision.

    Attributes:
        losses: The finite losses, falling.
        p, q: Mass of the `k` outputs of largest finite loss, and of all of infinite loss, under P and Q; `k`
            from 0 to the number of losses.
    """

    losses: list[arb]
    p: list[arb]
    q: list[arb]


class FiniteOrder:
    """One order of the neighbours, P against Q; `parts` holds the steps' (pair, count).

    Raises:
        UnsupportedError: there are too many classes of equal likelihood ratio.
    """

    def __init__(self, parts: Sequence[tuple[FinitePair, int]]) -> None:
        numbers = {
            number
            for pair, _ in parts
            for a, b in zip(pair.p, pair.q, strict=True)
            if a > 0 and b > 0
            for number in (a / b).as_integer_ratio()
        }
        self._base = coprime_base(sorted(numbers))
        counts: dict[FinitePair, int] = {}
        for pair, count in parts:
            counts[pair] = counts.get(pair, 0) + count
        self._steps = [_Step(classes=self._classes(pair), count=count) for pair, count in counts.items()]
        self._generator = self._common_generator()
        self._tables: dict[int, _Table] = {}
        self._refuse_if_too_many()

    def _classes(self, pair: FinitePair) -> dict[Vector, Fraction]:
        classes: dict[Vector, Fraction] = {}
        for a, b in zip(pair.p, pair.q, strict=True):
            if a > 0 and b > 0:
                vector = _exponents(a / b, self._base)
                classes[vector] = classes.get(vector, Fraction(0)) + a
        return classes

    def _common_generator(self) -> Vector | None:
        """The primitive vector with a positive loss of which all are multiples; None where there is none."""
        vectors = [vector for step in self._steps for vector in step.classes if any(vector)]
        if not vectors:
            return (0,) * len(self._base)
        first = vectors[0]
        primitive = tuple(entry // math.gcd(*first) for entry in first)
        if not settle(lambda: self._loss(primitive)) > 0:
            primitive = tuple(-entry for entry in primitive)
        if any(_multiple(vector, primitive) is None for vector in vectors):
            return None
        return primitive

    def _refuse_if_too_many(self) -> None:
        """Refuse before any work is done."""
        states = work = 1
        if self._generator is not None:
            for step in self._steps:
                multiples = [_multiple(vector, self._generator) or 0 for vector in step.classes]
                states += (max(multiples) - min(multiples)) * step.count if multiples else 0
            limit = _DEGREE_LIMIT
        else:
            for step in self._steps:
                kinds, before = max(len(step.classes), 1), states
                states *= math.comb(step.count + kinds - 1, kinds - 1)
                # Sum over the repetitions of the states before each, times the classes that each is moved by.
                work += (before * kinds) * math.comb(step.count + kinds - 1, kinds)
            limit = STATE_LIMIT
        if states > limit or work > WORK_LIMIT:
            raise UnsupportedError(
                f"exact counting takes at most {limit} classes of equal likelihood ratio and {WORK_LIMIT} "
                f"products; this composition may need {states} and {work}: "
                "workbench.accounting.certified bounds it"
            )

    def _loss(self, vector: Vector) -> arb:
        """The loss of a class: exponents times logarithms of the base."""
        total = arb(0)
        for power, factor in zip(vector, self._base, strict=True):
            if power:
                total += power * arb(factor).log()
        return total

    def infinite(self) -> arb:
        """P-mass of the outputs that Q never gives."""
        survives = arb(1)
        for step in self._steps:
            survives *= to_arb(sum(step.classes.values(), Fraction(0))) ** step.count
        return 1 - survives if any(sum(s.classes.values()) != 1 for s in self._steps) else arb(0)

    def table(self) -> _Table:
        """The composition at the current precision, kept for the next question."""
        if ctx.prec not in self._tables:
            self._tables[ctx.prec] = self._make_table()
        return self._tables[ctx.prec]

    def _make_table(self) -> _Table:
        line = self._generator
        masses = self._masses() if line is None else self._masses_on_a_line(line)
        p, q = [self.infinite()], [arb(0)]
        for loss, mass in masses:
            p.append(p[-1] + mass)
            q.append(q[-1] + mass * (-loss).exp())
        losses = [loss for loss, _ in masses]
        if not all(a > b for a, b in pairwise(losses)):
            raise InconclusiveError("two likelihood ratios are too close to tell which is larger")
        return _Table(losses=losses, p=p, q=q)

    def _masses_on_a_line(self, generator: Vector) -> list[tuple[arb, arb]]:
        """(loss, P-mass) from the largest loss down, all losses multiples of one."""
        product, lowest = [arb(1)], 0
        for step in self._steps:
            multiples = {_multiple(v, generator) or 0: mass for v, mass in step.classes.items()}
            if not multiples:
                return []
            bottom = min(multiples)
            row = [Fraction(0)] * (max(multiples) - bottom + 1)
            for times, mass in multiples.items():
                row[times - bottom] += mass
            power = polynomial_power([to_arb(mass) for mass in row], step.count)
            product = power if len(product) == 1 else (arb_poly(product) * arb_poly(power)).coeffs()
            lowest += bottom * step.count
        unit = self._loss(generator)
        indexed = [(lowest + j, mass) for j, mass in enumerate(product) if not mass.is_zero()]
        return [(unit * times, mass) for times, mass in reversed(indexed)]

    def _masses(self) -> list[tuple[arb, arb]]:
        """(loss, P-mass) from the largest loss down, by convolution of the classes."""
        entries = [abs(entry) for step in self._steps for vector in step.classes for entry in vector]
        steps = sum(step.count for step in self._steps)
        radix = 2 * max(entries) * steps + 1
        powers = [radix**index for index in range(len(self._base))]
        # A vector as one integer: sums stay below half the radix in every digit, so nothing is confused.
        states: dict[int, arb] = {0: arb(1)}
        for step in self._steps:
            row = [(sum(map(mul, vector, powers)), to_arb(mass)) for vector, mass in step.classes.items()]
            for _ in range(step.count):
                following: dict[int, arb] = {}
                for at, mass in states.items():
                    for move, weight in row:
                        key = at + move
                        known = following.get(key)
                        following[key] = mass * weight if known is None else known + mass * weight
                states = following
        losses = [(self._loss(_digits(key, radix, len(powers))), mass) for key, mass in states.items()]
        return sorted(losses, key=lambda entry: ByMidpoint(entry[0].mid()), reverse=True)

    def delta(self, epsilon: arb) -> arb:
        """Sum over the outputs with a loss above epsilon of P - exp(epsilon) Q."""
        table = self.table()
        certain, possible = _count_above(table.losses, epsilon)
        growth = epsilon.exp()
        value: arb = table.p[certain] - growth * table.q[certain]
        # Losses that equal epsilon up to the precision: each adds between 0 and what it would add.
        for index in range(certain, possible):
            mass = table.p[index + 1] - table.p[index]
            value += (-(epsilon - table.losses[index]).expm1() * mass).max(arb(0))
        return value

    def largest_loss(self) -> arb:
        """The largest finite loss; minus infinity where no output is possible under both."""
        losses = self.table().losses
        return losses[0] if losses else arb.neg_inf()

    def tpr(self, fpr: arb) -> arb:
        """The Neyman-Pearson test's power: outputs of largest loss first, the last one by a coin.

        Source: the curve is the concave one through the vertices (Q, P) of the table; a point that may lie on
        several of its segments has one of their values.
        """
        table = self.table()
        low = _first(len(table.q), lambda k: not table.q[k] < fpr)
        high = _first(len(table.q), lambda k: bool(table.q[k] > fpr))
        if low == len(table.q):
            return arb(1)
        value = None
        for index in range(max(low - 1, 0), min(high, len(table.losses))):
            slope = table.losses[index].exp()
            on_segment = clip_probability(table.p[index] + slope * (fpr - table.q[index]))
            value = on_segment if value is None else value.union(on_segment)
        if value is None or high == len(table.q):
            value = arb(1) if value is None else value.union(arb(1))
        return value


class FiniteCurve(Curve):
    """The composition of finite pairs, the larger of the orders that count; see `FiniteOrder`."""

    method = "exact counting of likelihood ratios in ball arithmetic"

    def __init__(
        self, parts: Sequence[tuple[FinitePair, int]], direction: Direction = Direction.BOTH
    ) -> None:
        self._orders = []
        if direction is not Direction.ADD:
            self._orders.append(FiniteOrder(parts))
        is_symmetric = all(
            sorted(zip(a.p, a.q, strict=True)) == sorted(zip(a.q, a.p, strict=True)) for a, _ in parts
        )
        if direction is Direction.ADD or (direction is Direction.BOTH and not is_symmetric):
            self._orders.append(
                FiniteOrder([(FinitePair(p=pair.q, q=pair.p), count) for pair, count in parts])
            )

    def delta(self, epsilon: arb) -> arb:
        """delta(epsilon), the larger of both orders of the neighbours."""
        return _largest([order.delta(epsilon) for order in self._orders])

    def delta_limit(self) -> arb:
        """The larger order's mass of infinite loss."""
        return _largest([order.infinite() for order in self._orders])

    def largest_loss(self) -> arb:
        """The larger order's; at least 0."""
        return _largest([arb(0), *(order.largest_loss() for order in self._orders)])

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """Ends of epsilon, by certified signs; a largest loss where delta is the mass of infinite loss."""
        low, high = super().epsilon_ends(delta)
        if high - low > 1e-9 * high and math.isfinite(high):
            for order in self._orders:
                guess = ends(settle(order.largest_loss))[1]
                if low < guess < high:
                    low, high = self._tighten(delta, guess, low, high)
        return low, high

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Ends of the true-positive rate, the larger of both orders of the neighbours."""
        low, high = ends(settle(lambda: _largest([order.tpr(arb(fpr)) for order in self._orders])))
        return max(low, fpr), min(high, 1.0)


def polynomial_power(row: list[arb], count: int) -> list[arb]:
    """Coefficients of (sum row[j] x^j)^count, for row[j] >= 0 with positive first and last.

    Up to degree 2, f = g^n solves g f' = n g' f, whose recurrence for the coefficients adds positive terms
    only up to the n-th, coming from either end: n small steps instead of long products.
    """
    if len(row) > 3:
        power: list[arb] = (arb_poly(row) ** count).coeffs()
        return power
    if len(row) < 3:
        return _lower_half([*row, *[arb(0)] * (2 - len(row))], count)[: (len(row) - 1) * count + 1]
    upwards, downwards = _lower_half(row, count), _lower_half(row[::-1], count)
    return upwards + downwards[-2::-1]


def _lower_half(row: list[arb], count: int) -> list[arb]:
    """Coefficients 0 to `count` of a power of a polynomial of degree at most 2."""
    first, second, *rest = row
    known = [first**count]
    for k in range(count):
        value = (count - k) * second * known[k]
        if rest and k:
            value += (2 * count - k + 1) * rest[0] * known[k - 1]
        known.append(value / ((k + 1) * first))
    return known


def _digits(number: int, radix: int, count: int) -> Vector:
    """The digits of an integer, each within half the radix of 0."""
    digits = []
    for _ in range(count):
        digit = (number + radix // 2) % radix - radix // 2
        digits.append(digit)
        number = (number - digit) // radix
    return tuple(digits)


def _multiple(vector: Vector, primitive: Vector) -> int | None:
    """How many times the primitive vector this is; None where it is no multiple."""
    pivot = next((index for index, entry in enumerate(primitive) if entry), None)
    times = 0 if pivot is None else vector[pivot] // primitive[pivot]
    return times if all(times * a == b for a, b in zip(primitive, vector, strict=True)) else None


def _largest(values: Sequence[arb]) -> arb:
    largest = values[0]
    for value in values[1:]:
        largest = largest.max(value)
    return largest


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first index below `count` where a condition holds that, once it holds, goes on holding."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _count_above(losses: list[arb], epsilon: arb) -> tuple[int, int]:
    """How many of the falling losses are certainly above epsilon, and how many may be."""
    certain = _first(len(losses), lambda k: not losses[k] > epsilon)
    return certain, _first(len(losses), lambda k: bool(losses[k] <= epsilon))
