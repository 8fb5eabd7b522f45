"""How much a sign in Gaussian noise tells: certified bounds, and the noise for a budget.

I(xi; xi + N(0, sigma^2)) with Pr[xi = +1] = q, in nats: Eq. 4 of Ertan et al. 2026 (PACZero). Their 60 nodes
of Gauss-Hermite quadrature come without an error bound (at sigma = 0.3, q = 1/2 they miss 9e-7 nats). Here
are two trapezoidal sums whose errors are bounded, and round-off with them. With a = 1 / sigma, y = (xi +
noise) / sigma, phi the standard normal density and, by symmetry, q <= 1/2:

**Weak signals, a <= 1.** With w = 2 a y, E = e^w - 1 and psi(x) = (1 + x) ln(1 + x) - x,

    I = integral of phi(y + a) g(w) dy,    g = q psi(E) - psi(q E) >= 0,

which is the mixture's density times the divergence of the posterior from q. (It is also q e^w w - D ln D with
D = 1 + q E, where all digits cancel for small a.)

- *Quadrature.* D leaves the negative reals alone for |Im w| < pi, so the integrand f is analytic there. Where
  |Im w| <= pi/2, Re D >= 1/2, hence |ln D| <= 2 q |E|, and with |E| <= |w| max(1, |e^w|) and |D| <= 1 +
  |e^w| / 2

      |g| <= q |w| (|e^w| + 2 |D| max(1, |e^w|)) <= q |w| (2 + 4 |e^w| + |e^w|^2).

  Integrated along Im y = d this is at most M = 2 a q e^(d^2 / 2) (6 + e^(4 a^2)) (sqrt(1 + 9 a^2) + d), and
  the trapezoidal sum of step s errs by at most 2 M / (e^(2 pi d / s) - 1) (Trefethen & Weideman 2014,
  theorem 5.1).
- *Tails.* For real y, f(y) <= 2 a q |y| phi(|y| - a): for y > 0 since D ln D >= 0, for y < 0 since -D ln D
  <= 1 - D <= q |w|. That falls beyond |y| = a + 2 and its integral from a + r is phi(r) + a Q(r) <= (1 + a /
  r) phi(r), Q the normal tail. Terms of f are never negative, so what is left out only adds.
- *Round-off.* Each part q psi(E), psi(q E) times phi is right to a relative 1e-12 (8 ulp an elementary
  function, |w| <= 22, exponents to 75), so their sums bound the error, whatever cancels in g.

**Strong signals, 1 < a < 40.** I = h(q) - H, H the posterior's mean entropy. In the log-odds v = 2 a y + l,
l = ln(q / (1 - q)), and with A = sqrt(q (1 - q)) e^(-a^2 / 2) / (2 a sqrt(2 pi)),

    H = integral of A exp(-(v - l)^2 / (8 a^2)) G(v) dv,
    G(v) = 2 cosh(v / 2) (ln(1 + e^-v) + v / (1 + e^v)),   even and positive.

- *Quadrature.* For |Im v| <= d = pi/2 and x = |Re v|: |G| <= 2 e^(-x/2) (1 + x + d). The weight A exp(..)
  e^(-x/2) is q N(l + 2 a^2, 4 a^2) for v < 0, and (1 - q) N(l - 2 a^2, 4 a^2) for v > 0, where it is below
  the former, since the odds there favour +1. So M = 2 e^(d^2 / (8 a^2)) q (1 + d + |l + 2 a^2| + 2 a).
- *Tails.* Right of U, G(v) <= 2 (1 + |U|) (1 + v - U) e^(-|v|/2), so that the terms lie under a log-concave
  sequence, whose rest is at most its next term over (1 - ratio); left likewise.
- *Round-off.* Terms are positive and right to a relative 1e-12 (exponents of a few thousand at most).
- H is never near h(q) here (at a = 1 at most 1 - 1/400 of it, for q >= 1e-290), so the difference keeps its
  digits.

**Nearly no noise, a >= 40.** H <= 2 ln 2 sqrt(q (1 - q)) e^(-a^2 / 2), from h(p) <= 2 ln 2 sqrt(p (1 - p)).

Always I <= h(q), and I <= ln(1 + 4 q (1 - q) a^2) / 2, the Gaussian of equal variance. Where numbers near the
end of the floats' range would be needed (q < 1e-290, or 4 q (1 - q) a^2 < 1e-280) these two alone are taken,
with 0 as the lower bound.

>>> lower, upper = binary_mi_bounds(0.5, 2.0)
>>> lower <= upper < lower * (1 + 1e-9), round(upper, 6)
(True, 0.111421)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from workbench.core.arguments import number
from workbench.core.errors import InputError
from workbench.interfaces import FloatArray

_ROUND_OFF = 1e-11
"""Relative error that is charged for a sum of terms; the module's docstring counts a tenth of it."""
_DUST = 1e-315
"""Charged for underflow: thousands of terms, each off by at most the least positive float."""
_REACH = 10.0
"""Standard deviations beyond the means at which the sum for weak signals ends."""
_DECAY = 56.0
"""The trapezoidal error is e^-_DECAY of the bound on the integrand, or less."""
_STEP = 3 / 16
"""Of the sum for strong signals: 2 pi (pi / 2) / _STEP > 52."""
_DROP = 48.0
"""That sum ends where the terms' exponent has fallen so far below its height."""
_NOISELESS = 40.0
_LEAST_AGREEMENT = 1e-290
_LEAST_NATS = 1e-280
_LEAST_BUDGET = 1e-300
"""A budget below is met by no finite noise here: the bounds' own slack is not far from it."""
_TIGHT = 1e-6
"""Relative distance from the least noise at which `noise_for` stops."""
_SERIES_BELOW = 0.125
_SERIES = tuple((-1) ** n / (n * (n - 1)) for n in range(20, 1, -1))
"""Of psi(x) / x^2, the highest power first: at |x| < 1/8 what is left out is below 1e-18 of it."""

Point = tuple[float, float]


def _entropy_bounds(q: float) -> tuple[float, float]:
    """h(q) for q in (0, 1/2], and its round-off; both parts are positive."""
    found = -q * math.log(q) - (1.0 - q) * math.log1p(-q)
    return max(0.0, found * (1 - 1e-14) - _DUST), found * (1 + 1e-14) + _DUST


def _psi(x: FloatArray) -> FloatArray:
    """(1 + x) ln(1 + x) - x for x > -1, without cancellation."""
    near = np.abs(x) < _SERIES_BELOW
    small = np.where(near, x, 0.0)
    series = np.full(x.shape, _SERIES[0])
    for coefficient in _SERIES[1:]:
        series *= small
        series += coefficient
    found: FloatArray = np.where(near, series * small * small, (1.0 + x) * np.log1p(x) - x)
    return found


def _weak(q: float, a: float) -> tuple[float, float]:
    """The bounds for a <= 1."""
    d = min(math.pi / (4.0 * a), 4.0)
    wanted = 2.0 * math.pi * d / (_DECAY + d * d / 2.0)
    step = math.floor(wanted * 2**20) / 2**20  # few digits, so that the nodes are exact
    count = math.ceil((a + _REACH) / step)
    y: FloatArray = np.arange(-count, count + 1, dtype=np.float64) * step
    raised = np.expm1(2.0 * a * y)
    density = np.exp(-0.5 * (y + a) ** 2) * (step / math.sqrt(2.0 * math.pi))
    more, less = density * (q * _psi(raised)), density * _psi(q * raised)
    found = float((more - less).sum())
    slack = _ROUND_OFF * float((more + less).sum()) + _DUST
    bound = 2.0 * a * q * (6.0 + math.exp(4.0 * a * a)) * (math.sqrt(1.0 + 9.0 * a * a) + d)
    slack += 2.02 * bound * math.exp(d * d / 2.0 - 2.0 * math.pi * d / step)
    reach = count * step - a
    tails = 4.04 * a * q * (1.0 + a / reach) * math.exp(-reach * reach / 2.0) / math.sqrt(2.0 * math.pi)
    return found - slack, found + slack + tails


def _strong(q: float, a: float) -> tuple[float, float]:
    """The bounds for 1 < a < 40."""
    odds = math.log(q) - math.log1p(-q)
    scale = 1.0 / (8.0 * a * a)
    height = 0.5 * (math.log(q) + math.log1p(-q) - a * a) - math.log(2.0 * a * math.sqrt(2.0 * math.pi))

    def exponent(v: FloatArray) -> FloatArray:
        return height - (v - odds) ** 2 * scale - 0.5 * np.abs(v)

    centre = min(0.0, odds + 2.0 * a * a)
    first = math.floor((centre - _fallen(centre, odds, scale, -1)) / _STEP)
    last = math.ceil((centre + _fallen(centre, odds, scale, 1)) / _STEP)
    v: FloatArray = np.arange(first, last + 1, dtype=np.float64) * _STEP
    size = np.abs(v)
    shrunk = np.exp(-np.minimum(size, 700.0))
    spread = (1.0 + shrunk) * (np.log1p(shrunk) / shrunk) + size
    entropy = _STEP * float((np.exp(exponent(v)) * spread).sum())
    d = math.pi / 2.0
    bound = 2.0 * math.exp(d * d * scale) * q * (1.0 + d + abs(odds + 2.0 * a * a) + 2.0 * a)
    slack = _ROUND_OFF * entropy + 2.02 * bound * math.exp(-2.0 * math.pi * d / _STEP) + _DUST
    rest = 0.0
    for end, outwards in ((v[0], -1), (v[-1], 1)):
        ahead = np.array([1.0, 2.0]) * _STEP
        hull = exponent(end + outwards * ahead) + np.log1p(ahead)
        ratio = math.exp(hull[1] - hull[0])
        rest += 2.02 * _STEP * (1.0 + abs(end)) * math.exp(hull[0]) / (1.0 - ratio)
    low, high = _entropy_bounds(q)
    return float(low - (entropy + slack + rest)), float(high - (entropy - slack))


def _fallen(centre: float, odds: float, scale: float, way: int) -> float:
    """How far from the centre the exponent has fallen by `_DROP`, at the latest."""
    slope = max(0.0, 2.0 * way * (centre - odds) * scale + 0.5 * (1.0 if way * centre >= 0 else -1.0))
    return 2.0 * _DROP / (slope + math.sqrt(slope * slope + 4.0 * scale * _DROP))


def _bounds(q: float, noise: float) -> tuple[float, float]:
    """The bounds for q in (0, 1/2] and positive, possibly infinite noise."""
    a = 1.0 / noise
    low_entropy, high_entropy = _entropy_bounds(q)
    power = 4.0 * q * (1.0 - q) * a * a
    ceiling = min(high_entropy, 0.5 * math.log1p(power) * (1 + 1e-14) + _DUST)
    if q < _LEAST_AGREEMENT or power < _LEAST_NATS:
        return 0.0, ceiling
    if a <= 1.0:
        low, high = _weak(q, a)
    elif a < _NOISELESS:
        low, high = _strong(q, a)
    else:
        missing = 1.4 * math.exp(0.5 * math.log(q) - 0.5 * a * a) * (1 + 1e-11)
        low, high = low_entropy - missing, high_entropy
    return max(0.0, low), min(ceiling, high)


def binary_mi_bounds(agreement: float, noise: float) -> tuple[float, float]:
    """Certified bounds of I(xi; xi + N(0, noise^2)), nats.

    `agreement`: Pr[xi = +1], in [0, 1]. As the information is that of 1 - agreement, too, give the smaller of
    the two where it is tiny: its digits count. `noise`: standard deviation, in (0, inf]. Returns lower and
    upper bound; they differ by less than 1e-8 of the value where it is above 1e-12. Raises `InputError`: an
    argument is out of range.
    """
    agreement = number("agreement", agreement, least=0, most=1)
    q = min(agreement, 1.0 - agreement)
    noise = number("noise", noise, above=0)
    if q == 0.0 or math.isinf(noise):
        return 0.0, 0.0
    return _bounds(q, noise)


def noise_for(agreement: float, nats: float) -> float:
    """The least noise, to a millionth, whose certified information is at most a budget.

    `agreement`: as in `binary_mi_bounds`. `nats`: the budget, >= 0. Returns a standard deviation at which the
    upper bound is at most `nats`; at one smaller by a relative 1e-6 it is above. Infinite for a budget of 0,
    and for one below 1e-300. Raises `InputError`: an argument is out of range, or the budget is not below
    h(agreement): no noise is needed.
    """
    agreement = number("agreement", agreement, least=0, most=1)
    q = min(agreement, 1.0 - agreement)
    nats = number("nats", nats, least=0, below=math.inf)
    if nats < _LEAST_BUDGET:
        return math.inf
    entropy = _entropy_bounds(q)[0] if q > 0.0 else 0.0
    if nats >= entropy:
        raise InputError(f"nats must be below h({agreement:g}) = {entropy:.6g}, got {nats!r}")

    def excess(log_noise: float) -> float:
        """Falls in the noise, but for round-off; at most 0 where the upper bound is within the budget.

        In the log-odds of the share of the entropy that is told, which are straight where there is much noise
        and no plateau where there is little.
        """
        found = _bounds(q, math.exp(log_noise))[1]
        left = max(entropy - found, 1e-14 * entropy)
        odds = math.log(found / nats) + math.log((entropy - nats) / left)
        return odds if (odds > 0.0) == (found > nats) else 0.0 if found <= nats else 1e-16

    # The Gaussian bound, solved, is enough noise.
    high = 0.5 * math.log(4.0 * q * (1.0 - q) / math.expm1(2.0 * nats))
    while (above := excess(high)) > 0.0:
        high += _TIGHT / 4.0
    gap = _TIGHT / 2.0
    while (below := excess(high - gap)) <= 0.0:
        high, above = high - gap, below
        gap = max(0.02, 2.0 * gap)
    return math.exp(_bracketed(excess, (high - gap, below), (high, above)))


def _bracketed(excess: Callable[[float], float], low: Point, high: Point) -> float:
    """The upper end of a bracket of the root, a millionth wide, by Chandrupatla's method (1997).

    `excess`: falls; above 0 at the lower end, at most 0 at the upper. `low`, `high`: ends, each a place and
    its excess.
    """
    old, share = low, 0.5
    while (width := high[0] - low[0]) > _TIGHT:
        # A guess at a root found to all digits would move one end only: step over it.
        margin = min(0.45 * _TIGHT / width, 0.5)
        place = low[0] + min(max(share, margin), 1.0 - margin) * width
        if not low[0] < place < high[0]:
            break
        new = (place, excess(place))
        old, low, high = (low, new, high) if new[1] > 0.0 else (high, low, new)
        share = _interpolated(low, high, old)
    return high[0]


def _interpolated(low: Point, high: Point, old: Point) -> float:
    """Where the root lies in a bracket, as a share of its width: by the inverse parabola, or the middle."""
    new, far = (low, high) if old[0] < low[0] else (high, low)
    if far[1] == old[1]:
        return 0.5
    xi = (new[0] - far[0]) / (old[0] - far[0])
    phi = (new[1] - far[1]) / (old[1] - far[1])
    if not phi * phi < xi or not (1.0 - phi) ** 2 < 1.0 - xi:
        return 0.5
    share = new[1] / (far[1] - new[1]) * old[1] / (far[1] - old[1])
    share += (old[0] - new[0]) / (far[0] - new[0]) * new[1] / (old[1] - new[1]) * far[1] / (old[1] - far[1])
    return share if new is low else 1.0 - share
