"""Noised sums over Poisson samples, divided by how many records were drawn: finite pairs from both sides.

n records, each drawn with probability q; b of them are. The release is (sum + s z) / b in d coordinates, z
standard normal. Let v be the law of Bin(n - 1, q). Units: a record's largest contribution is 1.

**Upper end.** b and the noised sum tell more. Given that b = k, the others' sample without the record is a
uniform set of k of them; with it, one of k - 1, which with a uniform further one j makes a set of k. So

    P_k = v_k (1 - q) E[N(S + x_j)] + v_{k-1} q E[N(S + x)]   against   Q_k = v_k E[N(S + x_j)]

with the record's contribution x, where S is the same on both sides. By joint convexity the worst x - x_j
counts, which has the length 2 and is attained by x = 1 among others of -1, whose sum k tells:

    P_k = v_k ((1 - q) N(0) + rho_k N(2)),   Q_k = v_k N(0),   rho_k = q v_{k-1} / v_k = (1 - q) k / (n - k).

Under zero-out and replace-one b has the same law on both sides, and given it the batch is one of fixed size:
the curve is the mean over Bin(n, q) of those of `grid.fixed_batch`.

**Lower end.** Let the record contribute 1, and all others -1, along the first coordinate. The mean y of a
batch has y_1 + 1 = (2 [it is in] + s z_1) / b, and the d - 1 other coordinates are noise, s z_i / b. Their
root mean square r tells the scale: t = (y_1 + 1) / r has, whatever b is, Student's t law with d - 1 degrees
of freedom, not central by 2 / s where the record is in. Half-lines of t are tests. By zero-out the record
contributes 0 under the other neighbour: 1 / s in place of 2 / s. Fewer coordinates tell less, so that no more
than `_MOST_DEGREES` need be looked at. What an empty batch releases is left open: it counts for the upper
end, and against the lower one.

So the divisor all but halves the noise: who adds a record to others that point away from it moves the mean
twice as far as the sum.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
from flint import arb, ctx
from scipy.special import ndtr

from workbench.accounting.balls.ball import ends, to_arb
from workbench.accounting.balls.finite_bounds import pair_above, pair_of_tests
from workbench.accounting.events import FinitePair
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, FloatArray

_BITS = 128
_MOST_DEGREES = 1_000_000
_DEVIATIONS = 14.0
_REACH = 11.0
_PACE = 1 / 30
_BINS = 4e4
"""Over the root of twice the degrees of freedom, for bins within which a tail changes by little."""

_MOST_BINS, _FEWEST_BINS = 4000, 400

_SLACK = 1e-11
"""Relative error granted to sums of products with SciPy's ndtr, whose own is below (64 + 8 t^2) 2^-53."""

_CANCELLED = 1e-4
"""Of u + 1, what differences of it lose, in units of the slack."""

_LEAST = 1e-300
"""Added where floats may have lost something."""


def batch_mean_pairs(
    noise_multiplier: float, q: float, count: int, dimension: int, adjacency: Adjacency
) -> tuple[FinitePair, FinitePair]:
    """Finite pairs that tell no less, and no more, than the release.

    Args:
        noise_multiplier: Of the sum, in [0.1, 100].
        q: Sampling probability in (0, 1).
        count: Records of the data set; under add-remove, of the larger neighbour.
        dimension: Of the release, at least 2.
        adjacency: Which data sets are neighbours.
    """
    with ctx.workprec(_BITS):
        if adjacency is Adjacency.ADD_REMOVE:
            upper = _upper_of_added(noise_multiplier, q, count)
        else:
            upper = _upper_of_replaced(noise_multiplier, q, count)
        return upper, _lower(noise_multiplier, q, count, dimension, adjacency)


def _binomial(count: int, q: float) -> tuple[FloatArray, FloatArray, arb]:
    """Numbers that count, their probabilities, and a bound on that of the others."""
    spread = _DEVIATIONS * math.sqrt(count * q * (1 - q)) + 40
    low, high = max(math.floor(count * q - spread), 0), min(math.ceil(count * q + spread), count)
    exact, first = arb(q), arb(low)
    log = (arb(count) + 1).lgamma() - (first + 1).lgamma() - (arb(count) - first + 1).lgamma()
    mass = (log + first * exact.log() + (count - first) * (1 - exact).log()).exp()
    odds, masses = exact / (1 - exact), [mass]
    for k in range(low, high):
        masses.append(masses[-1] * odds * (count - k) / (k + 1))
    rest = max(ends(1 - sum(masses, arb(0)))[1], 0.0)
    return np.arange(low, high + 1.0), np.array([float(mass.mid()) for mass in masses]), arb(rest)


def _exponents(noise: float) -> FloatArray:
    """(2 x - 2) / s^2 for x on a grid from below the lower mean to above the upper one."""
    x = np.arange(-_REACH * noise, 2 + _REACH * noise, noise * _PACE)
    grid: FloatArray = (2 * x - 2) / noise**2
    return grid


def _upper_of_added(noise: float, q: float, count: int) -> FinitePair:
    """The pair under add-remove."""
    drawn, mass, rest = _binomial(count - 1, q)
    ratio = (1 - q) * drawn / (count - drawn)
    # With the record one more may be drawn than the most that count.
    lost = arb(q) * arb(float(mass[-1])) * (1 + arb(_SLACK))
    least = 1 - Fraction(q)
    excess = [Fraction(float(q * g)) for g in np.exp(_exponents(noise))]
    levels = [least / 2, least, *(least + e for e in excess)]
    found = [to_arb(1 - level) for level in levels[:2]]
    for e in map(float, excess):
        with np.errstate(divide="ignore"):
            x = 1 + noise**2 / 2 * (math.log(e) - np.log(ratio))
        gain = mass * ratio * ndtr((2 - x) / noise)
        loss = mass * e * ndtr(-x / noise)
        found.append(_ball(float((gain - loss).sum()), float((gain + loss).sum())) + rest + lost)
    return pair_above(levels, found)


def _upper_of_replaced(noise: float, q: float, count: int) -> FinitePair:
    """The pair under zero-out and replace-one: losses above 0, their mirror image, and the rest at 0."""
    drawn, mass, rest = _binomial(count, q)
    rate = drawn / count
    growth = np.log1p(q * np.expm1(_exponents(noise)))
    levels = sorted({Fraction(math.exp(log)) for log in (0.0, *map(float, growth)) if log >= 0})
    found = []
    for u in map(float, levels):
        forward, reverse = _of_batches(noise, rate, u), _of_batches_reversed(noise, rate, u)
        value, size = mass * np.maximum(forward[0], reverse[0]), mass * (forward[1] + reverse[1])
        found.append(_ball(float(value.sum()), float(size.sum())) + rest)
    above = pair_above(levels, found)
    p, q_side = (
        [*row] for row in zip(*((a, b) for a, b in zip(above.p, above.q, strict=True) if a > b), strict=True)
    )
    left = 1 - sum(p, Fraction(0)) - sum(q_side, Fraction(0))
    if left < 0:
        raise UnsupportedError(f"no dominating pair is known at a noise multiplier of {noise:g}")
    return FinitePair(p=(*p, left, *q_side), q=(*q_side, left, *p))


def _of_batches(noise: float, rate: FloatArray, u: float) -> FloatArray:
    """Divergence of (1 - r) N(0) + r N(2) from u N(0), u >= 1, and the size of its terms, for each rate r."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(rate > 0, 1 + noise**2 / 2 * np.log((u - 1 + rate) / rate), np.inf)
    gain, loss = rate * ndtr((2 - x) / noise), (u - 1 + rate) * ndtr(-x / noise)
    return np.stack((gain - loss, gain + np.abs(loss) + (u + 1) * _CANCELLED * ndtr(-x / noise)))


def _of_batches_reversed(noise: float, rate: FloatArray, u: float) -> FloatArray:
    """Divergence of N(0) from u ((1 - r) N(0) + r N(2)), u >= 1, and the size of its terms, for each r."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(1 / u > 1 - rate, 1 + noise**2 / 2 * np.log((1 / u - 1 + rate) / rate), -np.inf)
    loss, gain = u * rate * ndtr((x - 2) / noise), (1 - u * (1 - rate)) * ndtr(x / noise)
    return np.stack((gain - loss, np.abs(gain) + loss + (u + 1) * _CANCELLED * ndtr(x / noise)))


def _ball(value: float, size: float) -> arb:
    """A float within the slack of its terms, and of the least that floats hold."""
    return arb(value, _SLACK * size + _LEAST)


def _lower(noise: float, q: float, count: int, dimension: int, adjacency: Adjacency) -> FinitePair:
    """Tests by half-lines of t."""
    places, masses, outside = _scales(min(dimension - 1, _MOST_DEGREES))
    shift = 2 / noise
    other = 1 / noise if adjacency is Adjacency.ZERO_OUT else 0.0
    with_empty = count - 1 if adjacency is Adjacency.ADD_REMOVE else count
    empty = float(ends((1 - arb(q)) ** with_empty)[1])
    tests = []
    for t in np.arange(-_REACH, shift + _REACH, _PACE):

        def above(away: float, *, up: bool, t: float = float(t)) -> float:
            """P(t' > t), rounded up or down; at the scale of a bin's end that is no better or no worse."""
            at = places[:-1] if up == (t > 0) else places[1:]
            found = float((masses * ndtr(away - t * at)).sum())
            return found * (1 + _SLACK) + outside if up else found * (1 - _SLACK)

        true = (1 - q) * above(0.0, up=False) + q * above(shift, up=False)
        false = (1 - q) * above(0.0, up=True) + q * above(other, up=True)
        tests.append((arb(max((true - empty) * (1 - _SLACK), 0.0)), arb((false + empty) * (1 + _SLACK))))
    return pair_of_tests(tests)


def _scales(degrees: int) -> tuple[FloatArray, FloatArray, float]:
    """Bins of the root mean square of so many normals, the mass of each, and at most what is left."""
    spread = 9 / math.sqrt(2 * degrees)
    bins = min(max(math.ceil(_BINS / math.sqrt(2 * degrees)), _FEWEST_BINS), _MOST_BINS)
    places = np.linspace(max(1 - spread, 0.0), 1 + spread + 9 / degrees, bins + 1)
    half = arb(degrees) / 2
    tails = [(half * arb(w) ** 2).gamma_upper(half, 1) if w else arb(1) for w in map(float, places)]
    masses = [max(float((a - b).mid()), 0.0) for a, b in pairwise(tails)]
    return places, np.array(masses), ends(1 - tails[0] + tails[-1])[1] + _LEAST
