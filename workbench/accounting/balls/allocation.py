"""Gaussian sums in each of which a record takes part once, in a step drawn at random: bounds from both sides.

P is the mean over t of N(e_t, s^2 I), Q is N(0, s^2 I), in as many dimensions as steps. With y from either,
step t's output s_t + u_t y_t + (noise that makes up for what |u_t| <= 1 takes) has the law with the record's
contribution u_t, or that without, whatever earlier outputs s_t and u_t depend on: the mechanism is a
post-processing of y, with the record and without, so (P, Q) dominates (and Chua et al. 2024b, "Balls-and-bins
sampling for DP-SGD"). Others that contribute nothing and u_t = 1 attain it.

P / Q = (X_1 + ... + X_T) / T =: Y with X_t = exp((y_t - 1/2) / s^2), which under Q are independent, of mean
1. The divergence at level u is

    H(u) = E_Q max(Y - u, 0),

which grows where each X_t is replaced by another of the same mean that is larger in convex order, and falls
where it is smaller: where mass is spread from points to points around them, or gathered from there. So each
X_t is moved to a grid 0, h, 2 h, ...: spread to the two neighbouring grid points for the upper end, gathered
for the lower one. The law of the sum is a polynomial power, in balls.

Sums that leave a window are dropped. That lowers the lower end. For the upper one, Y has the mean 1 under Q:
what is missing of it is all that the dropped sums can add to H, at the widest about 1e-12.

Given t, P is a Gaussian; so H is no larger than that Gaussian's either, by joint convexity. And Y is at least
the geometric mean of the X_t: below level 1, where H(u) = 1 - u + u E_Q max(1 - Y / u, 0), Y may be replaced
by exp(-L), with L normal of mean 1 / (2 s^2) and variance 1 / (T s^2) under Q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from flint import arb, arb_poly, ctx

from workbench.accounting.balls.ball import normal_tail, to_arb
from workbench.accounting.balls.finite_bounds import pair_above, pair_of_tests
from workbench.accounting.balls.gaussian import GaussianCurve
from workbench.accounting.events import FinitePair

_CELLS = 1 << 13
_LEVELS = 400
_BITS = 128
_DEVIATIONS = 9.0
_REACHES = (3.0, 4.0, 5.0, 6.0, 7.0)

Masses = tuple[list[arb], list[arb]]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Which sums of the first X are kept, and the grid's width.

    Attributes:
        steps: How many X there are.
        deviation: Of one of them.
        largest: Of one of them, about.
    """

    steps: int
    deviation: float
    largest: float

    @classmethod
    def of(cls, sigma: float, steps: int, reach: float) -> Windows:
        """Such that what is outside is about what lies beyond so many deviations of y under P."""
        return cls(
            steps=steps,
            deviation=math.sqrt(math.expm1(sigma**-2)),
            largest=math.exp((0.5 + reach * sigma) / sigma**2),
        )

    def ends(self, count: int) -> tuple[float, float]:
        """Least and largest sum of so many that is kept."""
        spread = _DEVIATIONS * self.deviation * math.sqrt(count)
        return max(count - spread, 0.0), count + spread + self.largest

    @property
    def width(self) -> Fraction:
        """Of a cell; of few digits."""
        low, high = self.ends(self.steps)
        mantissa, exponent = math.frexp((high - low) / _CELLS)
        return Fraction(math.ceil(16 * mantissa), 16) * Fraction(2) ** exponent

    def cut(self, first: int, masses: list[arb], count: int) -> tuple[int, list[arb]]:
        """The masses of sums of so many within the window, of which the lowest stands at `first` cells."""
        low, high = (math.floor(end / float(self.width)) for end in self.ends(count))
        start = min(max(low - first, 0), len(masses) - 1)
        return first + start, masses[start : max(high - first + 1, start + 1)]

    def power(self, masses: list[arb]) -> tuple[int, list[arb]]:
        """The law of the sum of all, by repeated squaring."""
        square, count, result = (0, masses), 1, None
        left, done = self.steps, 0
        while left:
            if left % 2:
                done += count
                result = square if result is None else self._sum(result, square, done)
            left //= 2
            if left:
                count *= 2
                square = self._sum(square, square, count)
        assert result is not None
        return result

    def _sum(
        self, one: tuple[int, list[arb]], other: tuple[int, list[arb]], count: int
    ) -> tuple[int, list[arb]]:
        product = (arb_poly(one[1]) * arb_poly(other[1])).coeffs()
        return self.cut(one[0] + other[0], product, count)


def allocation_pairs(noise_multiplier: float, steps: int) -> tuple[FinitePair, FinitePair]:
    """Finite pairs that tell no less, and no more, than the pair (P, Q) above.

    By several windows, from narrow ones with fine grids to wide ones with coarse grids; at each level the
    best bound counts.
    """
    with ctx.workprec(_BITS):
        plain = GaussianCurve(1 / Fraction(noise_multiplier) ** 2)
        levels = _levels(noise_multiplier, steps)
        least = [_divergence(plain, to_arb(level)) for level in levels]
        for place, level in enumerate(levels):
            if level < 1:
                least[place] = least[place].min(_reverse(Fraction(noise_multiplier), steps, to_arb(level)))
        tests: list[tuple[arb, arb]] = []
        for reach in _REACHES:
            windows = Windows.of(noise_multiplier, steps, reach)
            cells = _cells(Fraction(noise_multiplier), windows)
            whole, *above = _tails(windows, *windows.power(_spread(cells, windows.width)), levels)
            for place, (level, (q, p)) in enumerate(zip(levels, above, strict=True)):
                least[place] = least[place].min(p - to_arb(level) * q + 1 - whole[1])
            below = _tails(windows, *windows.power(_gathered(cells, windows.width)), levels)
            tests += [(p, q) for q, p in below]
        return pair_above(levels, least), pair_of_tests(tests)


def _divergence(curve: GaussianCurve, level: arb) -> arb:
    """The hockey-stick divergence of a pair that is the same in both orders, also below level 1."""
    if level >= 1:
        return curve.delta(level.log())
    return 1 - level + level * curve.delta(-level.log())


def _reverse(sigma: Fraction, steps: int, level: arb) -> arb:
    """A bound on H below level 1: 1 - level, and what Q may exceed P / level by."""
    mean, variance = to_arb(1 / (2 * sigma**2)), to_arb(1 / (steps * sigma**2))
    away, deviation = -level.log() - mean, variance.sqrt()
    gain = normal_tail(away / deviation)
    gain -= (away + variance / 2).exp() * normal_tail((away + variance) / deviation)
    return 1 - level + level * gain


def _cells(sigma: Fraction, windows: Windows) -> list[Masses]:
    """Q- and P-mass of X in the halves of each cell [j h, (j + 1) h]."""
    count = math.ceil(windows.largest / float(windows.width)) + 1
    variance, deviation = to_arb(sigma**2), to_arb(sigma)

    def tails(half: int) -> tuple[arb, arb]:
        if not half:
            return arb(1), arb(1)
        y = arb("0.5") + variance * to_arb(half * windows.width / 2).log()
        return normal_tail(y / deviation), normal_tail((y - 1) / deviation)

    rows = [tails(half) for half in range(2 * count + 1)]
    halves = [((a[0] - b[0]).max(arb(0)), (a[1] - b[1]).max(arb(0))) for a, b in pairwise(rows)]
    return [
        ([low[0], high[0]], [low[1], high[1]]) for low, high in zip(halves[::2], halves[1::2], strict=True)
    ]


def _spread(cells: list[Masses], width: Fraction) -> list[arb]:
    """Each cell's mass at its two ends, with the same mean."""
    masses = [arb(0)] * (len(cells) + 1)
    for j, (q, p) in enumerate(cells):
        right = (sum(p, arb(0)) / to_arb(width) - j * sum(q, arb(0))).max(arb(0))
        masses[j] += (sum(q, arb(0)) - right).max(arb(0))
        masses[j + 1] += right
    return masses


def _gathered(cells: list[Masses], width: Fraction) -> list[arb]:
    """From the top down, each grid point takes what is above it and free, and of what is below for balance.

    What stays above balance is moved down, as little as it is.
    """
    masses = [arb(0)] * (len(cells) + 1)
    free_q, free_p = arb(0), arb(0)
    for j in range(len(cells), 0, -1):
        point = to_arb(j * width)
        parts = [(cells[j][0][0], cells[j][1][0])] if j < len(cells) else []
        free_q, free_p = (
            free_q + sum((q for q, _ in parts), arb(0)),
            free_p + sum((p for _, p in parts), arb(0)),
        )
        q, p = cells[j - 1][0][1], cells[j - 1][1][1]
        share = _share(free_p - point * free_q, point * q - p)
        masses[j] = free_q + share * q
        free_q, free_p = (1 - share) * q, (1 - share) * p
    masses[0] = free_q + cells[0][0][0]
    return masses


def _share(spare: arb, lack: arb) -> arb:
    """A number certainly in [0, 1] and at most spare / lack; 1 where there is enough to spare."""
    if spare >= lack:
        return arb(1)
    quotient = (spare / lack).lower() if lack > 0 else arb(0)
    return quotient if quotient >= 0 and quotient <= 1 else arb(0)


def _levels(sigma: float, steps: int) -> list[Fraction]:
    """Levels from below the least Y that counts to the largest, a hundredth apart or little more."""
    reach = _REACHES[-1]
    low = -0.5 / sigma**2 - reach / (sigma * math.sqrt(steps))
    high = math.log(Windows.of(sigma, steps, reach).ends(steps)[1] / steps)
    rough = [math.exp(low + (high - low) * k / (_LEVELS - 1)) for k in range(_LEVELS)]
    return sorted({Fraction(round(level * 2**24), 2**24) for level in rough} - {Fraction(0)})


def _tails(windows: Windows, first: int, masses: list[arb], levels: list[Fraction]) -> list[tuple[arb, arb]]:
    """Q- and P-mass of all kept sums, and of those with Y above each level."""
    unit = to_arb(windows.width) / windows.steps
    q = list(accumulate(reversed(masses), initial=arb(0)))[::-1]
    weighted = ((first + index) * mass for index, mass in reversed(list(enumerate(masses))))
    p = [unit * total for total in accumulate(weighted, initial=arb(0))][::-1]
    found = [(q[0], p[0])]
    for level in levels:
        place = min(max(math.floor(level * windows.steps / windows.width) + 1 - first, 0), len(masses))
        found.append((q[place], p[place]))
    return found
