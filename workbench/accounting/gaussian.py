"""The Gaussian mechanism's exact trade-off between epsilon, delta and mu.

A mechanism is mu-GDP where no test tells its outputs on neighbours apart better than N(0, 1) from N(mu, 1)
(Dong, Roth and Su 2022). The Gaussian mechanism of sensitivity C and noise multiplier s, standard deviation
s * C, is exactly (1 / s)-GDP, and its delta at each epsilon is known in closed form (Balle and Wang 2018,
theorem 8):

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - exp(epsilon) * Phi(-mu / 2 - epsilon / mu).

Written so, the two terms cancel and exp(epsilon) overflows. With a = mu / 2 - epsilon / mu and b = a - mu one
has epsilon - b^2 / 2 = -a^2 / 2, hence Phi(b) * exp(epsilon) = exp(-a^2 / 2) * erfcx(-b / sqrt(2)) / 2, which
stays accurate for epsilon in the thousands and delta far below 1e-12.

>>> round(epsilon_of_delta(1.0, 1e-5), 2)
4.38
>>> round(mu_of_epsilon(4.377179, 1e-5), 4)
1.0
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, ndtr, ndtri

from workbench.core.arguments import number

_TINY = 1e-320
_RELATIVE_TOLERANCE = 1e-13


def _log_delta(mu: float, epsilon: float) -> float:
    """Natural logarithm of delta(epsilon), for finite mu > 0 and epsilon >= 0; -inf where it underflows."""
    a = mu / 2 - epsilon / mu
    b = a - mu
    if a > 0:
        value = float(ndtr(a)) - math.exp(-a * a / 2) * float(erfcx(-b / math.sqrt(2))) / 2
        return math.log(max(value, _TINY))
    gap = float(erfcx(-a / math.sqrt(2)) - erfcx(-b / math.sqrt(2)))
    return -a * a / 2 + math.log(gap / 2) if gap > 0 else -math.inf


def delta_of_epsilon(mu: float, epsilon: float) -> float:
    """Smallest delta at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Args:
        mu: GDP parameter, in [0, inf].
        epsilon: In [0, inf].

    Returns:
        delta in [0, 1]; 1 for infinite mu, unless epsilon is infinite too: then 0.

    Raises:
        InputError: an argument is negative or NaN.

    Source: Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022, corollary 1.
    """
    mu = number("mu", mu, least=0)
    epsilon = number("epsilon", epsilon, least=0)
    if mu == 0 or math.isinf(epsilon):
        return 0.0
    if math.isinf(mu):
        return 1.0
    return min(1.0, math.exp(_log_delta(mu, epsilon)))


def epsilon_of_delta(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 at which a mu-GDP mechanism is (epsilon, delta)-DP.

    Args:
        mu: GDP parameter, in [0, inf].
        delta: In (0, 1).

    Returns:
        epsilon in [0, inf]; relative error about 1e-12.

    Raises:
        InputError: an argument is out of range.
    """
    mu = number("mu", mu, least=0)
    delta = number("delta", delta, above=0, below=1)
    if mu == 0 or delta_of_epsilon(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    # delta(epsilon) < Phi(mu / 2 - epsilon / mu): where the latter equals delta, there is an upper end.
    # For huge mu both are equal up to rounding, which the last factor makes room for.
    high = mu * (mu / 2 - float(ndtri(delta))) * (1 + 1e-12)
    target = math.log(delta)
    root = brentq(lambda e: _log_delta(mu, e) - target, 0.0, high, xtol=1e-300, rtol=_RELATIVE_TOLERANCE)
    return float(root)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Largest mu whose mu-GDP mechanisms are all (epsilon, delta)-DP; inverse of `epsilon_of_delta`.

    Args:
        epsilon: In [0, inf].
        delta: In (0, 1).

    Returns:
        mu in (0, inf]; relative error about 1e-12.

    Raises:
        InputError: an argument is out of range.
    """
    epsilon = number("epsilon", epsilon, least=0)
    delta = number("delta", delta, above=0, below=1)
    if math.isinf(epsilon):
        return math.inf
    # Two lower ends: delta <= 2 Phi(mu / 2) - 1, its value at 0, and delta < Phi(mu / 2 - epsilon / mu).
    at_zero = 2 * math.sqrt(2) * float(erfinv(delta))
    if epsilon == 0:
        return at_zero
    quantile = float(ndtri(delta))
    root = math.sqrt(quantile * quantile + 2 * epsilon)
    at_tail = 2 * epsilon / (root - quantile) if quantile < 0 else quantile + root
    low = max(at_zero, at_tail)
    target = math.log(delta)
    high = 2 * low
    while _log_delta(high, epsilon) < target:
        high *= 2
    if _log_delta(low, epsilon) >= target:  # equal up to rounding
        return low
    return float(
        brentq(lambda m: _log_delta(m, epsilon) - target, low, high, xtol=1e-300, rtol=_RELATIVE_TOLERANCE)
    )
