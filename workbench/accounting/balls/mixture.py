"""Pairs of one-dimensional Gaussian mixtures, once; among them the Poisson-subsampled Gaussian.

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
2024; add-remove: Zhu, Dong and Wang 2022, theorem 11. Their privacy loss is monotone, with a closed form.

**Any other pair.** P - e^epsilon Q is the common Gaussian factor times a sum of exponentials, whose sign is
certified on cells by ball arithmetic (mean-value form), beyond the outermost cells by the dominating
exponential; cells too narrow to divide further count as undecided and widen the ball by no more than their
mass.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from flint import arb, ctx

from workbench.accounting.balls.ball import ByMidpoint, Curve, ends, normal_tail, to_arb, tpr_by_threshold
from workbench.accounting.events import GaussianMixturePair, SubsampledGaussian
from workbench.core.errors import InconclusiveError
from workbench.interfaces import Direction, FloatArray

Components = tuple[tuple[Fraction, Fraction], ...]
"""(weight, mean) of each Gaussian; weights sum to 1."""


CELL_LIMIT = 20_000
"""Cells after which what is undecided stays so."""


_FAR, _WIDE = 1e11, 1e5
"""Epsilons above this are not looked for, where means lie at least so many standard deviations apart."""


class Mixture:
    """A mixture of Gaussians of one standard deviation, with its masses in balls.

    Args:
        components: (weight, mean) pairs.
        sigma: Standard deviation of every component.
    """

    def __init__(self, components: Components, sigma: Fraction) -> None:
        self.components, self.sigma = components, sigma

    def above(self, x: arb) -> arb:
        """The mixture's mass above x."""
        sigma = to_arb(self.sigma)
        total = arb(0)
        for weight, mean in self.components:
            total += to_arb(weight) * normal_tail((x - to_arb(mean)) / sigma)
        return total

    def below(self, x: arb) -> arb:
        """The mixture's mass below x."""
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


class Order:
    """One order (P, Q) of two mixtures of the same standard deviation."""

    def __init__(self, p: Mixture, q: Mixture) -> None:
        self.p, self.q = p, q

    def tails(self, x: arb) -> tuple[arb, arb]:
        """The masses of P and of Q above x."""
        return self.p.above(x), self.q.above(x)


class ThresholdOrder(Order):
    """An order whose loss increases with x, with a closed form of where it passes epsilon."""

    @abstractmethod
    def threshold(self, epsilon: arb) -> arb:
        """The x above which the loss exceeds epsilon; infinite where it always or never does.

        No number where the precision does not tell which.
        """

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
        """Ends of the power of the test that rejects above a threshold, at this false-positive rate."""
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
        """delta(epsilon), with the common part of P and Q taken off first, so that less cancels."""
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
    """The larger of some threshold orders."""

    method = "closed form of the Poisson-subsampled Gaussian, once, in ball arithmetic"

    def __init__(self, orders: Sequence[ThresholdOrder]) -> None:
        self._orders = orders

    def delta(self, epsilon: arb) -> arb:
        """delta(epsilon), the larger of both orders of the neighbours."""
        value = self._orders[0].delta(epsilon)
        for order in self._orders[1:]:
            value = value.max(order.delta(epsilon))
        return value

    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Ends of the true-positive rate, the larger of both orders of the neighbours."""
        lows, highs = zip(*(order.tpr_ends(fpr) for order in self._orders), strict=True)
        return max(lows), max(highs)


def subsampled_orders(
    event: SubsampledGaussian, *, replace_one: bool, direction: Direction = Direction.BOTH
) -> list[ThresholdOrder]:
    """The orders of the dominating pair that count, sampling probability below 1; the remove order first."""
    q, sigma = Fraction(event.sampling_probability), Fraction(event.noise_multiplier)
    if replace_one:
        return [ReplaceOrder(q, sigma)]
    orders = {Direction.REMOVE: RemoveOrder(q, sigma), Direction.ADD: AddOrder(q, sigma)}
    return list(orders.values()) if direction is Direction.BOTH else [orders[direction]]


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


class MixtureOrder(Order):
    """One order of any two mixtures."""

    @property
    def increasing(self) -> bool:
        """Whether every mean of P is at least every mean of Q: then the loss increases with x."""
        return min(mean for _, mean in self.p.components) >= max(mean for _, mean in self.q.components)

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
        pivot = max(range(len(centre)), key=lambda k: ByMidpoint(abs(centre[k].mid())))
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


class MixtureCurve(Curve):
    """A pair of Gaussian mixtures, once; the larger of the orders that count."""

    method = "pair of Gaussian mixtures: certified signs and closed-form masses in ball arithmetic"

    def __init__(self, event: GaussianMixturePair, direction: Direction = Direction.BOTH) -> None:
        sigma = Fraction(event.standard_deviation)
        p = Mixture(_normalised(event.p_weights, event.p_means), sigma)
        q = Mixture(_normalised(event.q_weights, event.q_means), sigma)
        orders = {Direction.REMOVE: MixtureOrder(p, q), Direction.ADD: MixtureOrder(q, p)}
        self._orders = list(orders.values()) if direction is Direction.BOTH else [orders[direction]]

    def delta(self, epsilon: arb) -> arb:
        """delta(epsilon), the larger of the orders of the neighbours that count."""
        value = self._orders[0].delta(epsilon)
        for order in self._orders[1:]:
            value = value.max(order.delta(epsilon))
        return value

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """As of any curve; beyond `_FAR`, where signs take thousands of bits, without an upper end."""
        order = self._orders[0]
        means = [mean for _, mean in (*order.p.components, *order.q.components)]
        if max(means) - min(means) >= _WIDE * order.p.sigma and self._is_above(_FAR, arb(delta)):
            return _FAR, math.inf
        return super().epsilon_ends(delta)

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
