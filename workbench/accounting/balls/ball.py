"""Ball arithmetic for privacy curves: precision, outward ends, certified signs, inversion of delta(epsilon).

Numbers are Arb balls (`flint.arb`): a midpoint and a radius that holds every rounding error. What is
computed here is therefore proved, up to the correctness of Arb: an end is rounded outwards to a float,
and a sign counts only where the whole ball has it. Floats that come in are taken at their exact binary
value.

The precision is a global of python-flint; it is changed only within `flint.ctx.workprec`, which restores
it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction

from flint import arb, ctx, fmpq
from scipy.optimize import brentq

from workbench.core.errors import InconclusiveError

START_BITS = 128
"""Precision of the first attempt."""

CAP_BITS = 1 << 13
"""Precision after which an answer is given as wide as it is."""

ACCURACY_BITS = 45
"""A ball is narrow where its radius is below 2^-45, about 3e-14, of its midpoint."""

_TINY_LOG = -1e9
_LARGEST_EPSILON = 1e18
_SMALLEST_EPSILON = 1e-90


def to_fmpq(value: float | Fraction) -> fmpq:
    """The exact rational value of a finite float, integer or fraction."""
    fraction = Fraction(value)
    return fmpq(fraction.numerator, fraction.denominator)


def to_arb(value: float | Fraction) -> arb:
    """A ball around the exact value; a point where the precision can hold it. Infinity stays infinite."""
    if isinstance(value, float):
        return arb(value)
    return arb(to_fmpq(value))


def ends(ball: arb) -> tuple[float, float]:
    """Floats below and above every number of the ball, as close as floats come.

    A ball that is not finite has the ends -inf and inf, unless it is an exact infinity.
    """
    if ball.is_nan():
        return -math.inf, math.inf
    low_ball, high_ball = ball.lower(), ball.upper()
    low, high = float(low_ball), float(high_ball)
    if not arb(low) <= low_ball:
        low = math.nextafter(low, -math.inf)
    if not arb(high) >= high_ball:
        high = math.nextafter(high, math.inf)
    return low, high


def settle(compute: Callable[[], arb], *, accuracy: int = ACCURACY_BITS, cap: int = CAP_BITS) -> arb:
    """The value at the first precision that makes its ball narrow; as wide as it is at the cap.

    Args:
        compute: Evaluates the quantity at the current precision.
        accuracy: Wanted relative accuracy in bits.
        cap: Largest precision in bits.
    """
    bits = START_BITS
    while True:
        with ctx.workprec(bits):
            value: arb = compute()
        if value.rel_accuracy_bits() >= accuracy or bits >= cap:
            return value
        bits *= 2


def certainly_above(compute: Callable[[], arb], target: arb, *, cap: int = CAP_BITS) -> bool | None:
    """True where the value is above an exact target, False where it is at most that, None where undecided."""
    bits = START_BITS
    while True:
        with ctx.workprec(bits):
            value = compute()
            if value > target:
                return True
            if value <= target:
                return False
        if bits >= cap:
            return None
        bits *= 2


def normal_tail(t: arb) -> arb:
    """P(N(0, 1) > t), accurate relative to itself in the far tail too; t may be infinite."""
    if not t.is_finite() and t.is_exact():
        return arb(0) if t > 0 else arb(1)
    return (t / arb(2).sqrt()).erfc() / 2


def clip_probability(ball: arb) -> arb:
    """The part of the ball that a probability may be; the caller knows that the quantity is one."""
    low, high = ball.lower(), ball.upper()
    if low >= 0 and high <= 1:
        return ball
    return low.max(arb(0)).min(arb(1)).union(high.max(arb(0)).min(arb(1)))


class ByMidpoint:
    """Sorts exact balls, such as midpoints."""

    def __init__(self, value: arb) -> None:
        self.value = value

    def __lt__(self, other: ByMidpoint) -> bool:
        return bool(self.value < other.value)


class Enclosure(ABC):
    """Encloses delta(epsilon), epsilon(delta) and the trade-off curve of one event under one adjacency."""

    method: str
    """How it is computed, in words."""

    @abstractmethod
    def delta_ends(self, epsilon: float) -> tuple[float, float]:
        """Ends of delta at a finite epsilon >= 0."""

    @abstractmethod
    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """Ends of the smallest epsilon >= 0 with delta(epsilon) <= delta, for delta in (0, 1)."""

    @abstractmethod
    def tpr_ends(self, fpr: float) -> tuple[float, float]:
        """Ends of the largest true-positive rate at a false-positive rate in (0, 1)."""

    def delta_limit_ends(self) -> tuple[float, float]:
        """Ends of delta at infinite epsilon: the mass of outputs that only one neighbour can give."""
        return 0.0, 0.0

    def pure_epsilon_ends(self) -> tuple[float, float]:
        """Ends of the smallest epsilon at which delta is 0; infinite where there is none."""
        return math.inf, math.inf


class Curve(Enclosure):
    """An enclosure that is one ball: the larger of both orders of the neighbours."""

    @abstractmethod
    def delta(self, epsilon: arb) -> arb:
        """A ball that holds delta(epsilon), for epsilon >= 0, at the current precision."""

    def delta_ends(self, epsilon: float) -> tuple[float, float]:
        """Ends of delta at epsilon: those of the ball `delta(epsilon)`."""
        low, high = ends(settle(lambda: self.delta(arb(epsilon))))
        return max(low, 0.0), min(high, 1.0)

    def delta_limit(self) -> arb:
        """delta as epsilon grows without bound: the mass of outputs that only one neighbour can give."""
        return arb(0)

    def largest_loss(self) -> arb:
        """The largest finite privacy loss; infinite where there is none."""
        return arb.pos_inf()

    def delta_limit_ends(self) -> tuple[float, float]:
        """Ends of delta at infinite epsilon: those of the ball `delta_limit()`."""
        low, high = ends(settle(self.delta_limit))
        return max(low, 0.0), min(high, 1.0)

    def pure_epsilon_ends(self) -> tuple[float, float]:
        """The largest loss, where none is infinite."""
        if self.delta_limit_ends()[1] > 0:
            return math.inf, math.inf
        low, high = ends(settle(self.largest_loss))
        return max(low, 0.0), max(high, 0.0)

    def epsilon_ends(self, delta: float) -> tuple[float, float]:
        """Ends of epsilon, by certified signs of delta(epsilon) - delta around a guess."""
        if certainly_above(lambda: self.delta(arb(0)), arb(delta)) is False:
            return 0.0, 0.0
        if certainly_above(self.delta_limit, arb(delta), cap=1024) is True:
            return math.inf, math.inf
        low, high = self.bracket(delta)
        guess = self.guess_epsilon(delta, low, high)
        return self._tighten(delta, guess, low, high)

    def guess_epsilon(self, delta: float, low: float, high: float) -> float:
        """An epsilon near the answer, from midpoints; nothing rests on its accuracy."""
        target = math.log(delta)

        def gap(epsilon: float) -> float:
            value = settle(lambda: self.delta(arb(epsilon)), accuracy=40, cap=1024).mid()
            return (float(value.log()) if value > 0 else _TINY_LOG) - target

        if math.isinf(high):
            return low
        at_low, at_high = gap(low), gap(high)
        if at_low <= 0 or at_high >= 0:
            return low if at_low <= 0 else high
        return float(brentq(gap, low, high, xtol=1e-300, rtol=1e-14, maxiter=200))

    def bracket(self, delta: float) -> tuple[float, float]:
        """Epsilons certainly at most and at least the answer, a factor of 2 apart (or the lower one 0)."""
        target = arb(delta)
        low, high = 0.0, 1.0
        while not self._is_at_most(high, target):
            if self._is_above(high, target):
                low = high
            high *= 2
            if high > _LARGEST_EPSILON:
                return low, math.inf
        while low == 0 and high > _SMALLEST_EPSILON:
            half = high / 2
            if self._is_at_most(half, target):
                high = half
            else:
                low = half if self._is_above(half, target) else low
                break
        return low, high

    def _is_above(self, epsilon: float, target: arb) -> bool:
        return certainly_above(lambda: self.delta(arb(epsilon)), target) is True

    def _is_at_most(self, epsilon: float, target: arb) -> bool:
        return certainly_above(lambda: self.delta(arb(epsilon)), target) is False

    def _tighten(self, delta: float, guess: float, low: float, high: float) -> tuple[float, float]:
        """The narrowest certified bracket around the guess; the one that came in where none is found."""
        target = arb(delta)
        step, lower, upper = 2.0**-46, low, high
        while step < 0.5 and guess * (1 - step) > low:
            if self._is_above(guess * (1 - step), target):
                lower = guess * (1 - step)
                break
            step *= 8
        step = 2.0**-46
        while step < 0.5 and guess * (1 + step) < high:
            if self._is_at_most(guess * (1 + step), target):
                upper = guess * (1 + step)
                break
            step *= 8
        return lower, upper


def tpr_by_threshold(
    tails: Callable[[arb], tuple[arb, arb]], fpr: float, scale: float
) -> tuple[float, float]:
    """Ends of the power of the test {x > t} at false-positive rate `fpr`, t found by certified bisection.

    Args:
        tails: P(x > t) and Q(x > t), each continuous and falling in t from 1 to 0.
        fpr: Q's tail that is wanted, in (0, 1).
        scale: A length on which the tails vary.

    Raises:
        InconclusiveError: no bracket of the threshold was found.
    """
    target = arb(fpr)

    def too_high(t: float) -> bool | None:
        return certainly_above(lambda: tails(arb(t))[1], target)

    low, high = -scale, scale
    while too_high(low) is not True:
        low *= 2
        if math.isinf(low):
            raise InconclusiveError(f"no threshold has a false-positive rate above fpr = {fpr!r}")
    while too_high(high) is not False:
        high *= 2
        if math.isinf(high):
            raise InconclusiveError(f"no threshold has a false-positive rate below fpr = {fpr!r}")
    while True:
        middle = low / 2 + high / 2
        side = too_high(middle) if low < middle < high else None
        if side is None:
            break
        low, high = (middle, high) if side else (low, middle)
    lower = ends(settle(lambda: tails(arb(high))[0]))[0]
    upper = ends(settle(lambda: tails(arb(low))[0]))[1]
    return max(lower, fpr), min(upper, 1.0)
