"""Confidence bounds of the mean of independent values in a known range, by betting.

The gambler's capital against a mean m is the product of 1 + bet * (value - m), each bet a function of the
values before it. Where m is at least the mean, it is a non-negative supermartingale that starts at 1 and ends
at 1 / a or above with probability at most a (Markov). So the bound holds at every sample size, also where the
values are not identically distributed but each has a conditional mean of at most m. The sample size must be
fixed beforehand, since the bets depend on it: adding values until a mean is refuted gives no such bound.

Source: Waudby-Smith and Ramdas 2024, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from workbench.core.errors import InputError
from workbench.estimation.inputs import check_probability
from workbench.interfaces import FloatArray

_BLOCK = 1 << 20
_BET_CAP = 0.75
"""Largest share of the capital in one bet: below 1, so that no value bankrupts the gambler."""


def mean_lower(values: FloatArray, *, confidence: float, low: float = 0.0, high: float = 1.0) -> float:
    """Returns a lower confidence bound of the mean of independent values in `[low, high]`.

    Args:
        values: Shape `(n,)`, n >= 2, in the order in which they were drawn.
        confidence: One-sided, in (0, 1): the bound exceeds the mean with probability at most 1 - confidence.
        low, high: Ends of the range, fixed before the values are looked at.

    Raises `InputError`: fewer than two values, a value out of range, or a confidence out of range.
    """
    if values.ndim != 1 or values.size < 2:
        raise InputError(f"values must be a row of at least two numbers, got shape {values.shape}")
    if not (low < high and float(values.min()) >= low and float(values.max()) <= high):
        raise InputError(
            f"values must be in [{low:g}, {high:g}], got {float(values.min())!r} to {float(values.max())!r}"
        )
    check_probability("confidence", confidence)
    scaled = np.clip((values - low) / (high - low), 0.0, 1.0)
    return low + (high - low) * betting_lower(scaled, -math.log(1.0 - confidence))


def mean_bounds(
    values: FloatArray, *, confidence: float, low: float = 0.0, high: float = 1.0
) -> tuple[float, float]:
    """Two-sided interval of the mean, each end at half of the error; arguments as of `mean_lower`."""
    each = (1.0 + confidence) / 2.0
    lower = mean_lower(values, confidence=each, low=low, high=high)
    upper = -mean_lower(-values, confidence=each, low=-high, high=-low)
    return min(lower, float(values.mean())), max(upper, float(values.mean()))


def betting_lower(values: FloatArray, log_odds: float) -> float:
    """Returns the largest mean that a gambler who bets on larger values refutes; 0 if there is none.

    The bets are cut at 0.75 / m; the capital falls in m, so all smaller means are refuted too.

    Args:
        values: Shape `(n,)`, in [0, 1].
        log_odds: Logarithm of the capital at which a mean is refuted: minus that of the error probability.
    """
    bets = predictable_bets(values, log_odds)

    def excess(m: float) -> float:
        return _log_capital(values, bets, m) - log_odds

    return _last_refuted(excess, float(values.mean()))


def predictable_bets(values: FloatArray, log_odds: float) -> FloatArray:
    """Each round's stake from the values before it, shape `(n,)` (Waudby-Smith and Ramdas 2024, eq. 26)."""
    n = len(values)
    rounds = np.arange(1, n + 1)
    means = (0.5 + np.cumsum(values)) / (rounds + 1)
    variances = (0.25 + np.cumsum((values - means) ** 2)) / (rounds + 1)
    before = np.concatenate(([0.25], variances[:-1]))
    bets: FloatArray = np.sqrt(2 * log_odds / (n * before))
    return bets


def _log_capital(values: FloatArray, bets: FloatArray, m: float) -> float:
    """Logarithm of the capital of the gambler who stakes on a mean above m; falls in m."""
    cap = _BET_CAP / m
    total = 0.0
    for start in range(0, len(values), _BLOCK):
        block = slice(start, start + _BLOCK)
        total += float(np.log1p(np.minimum(bets[block], cap) * (values[block] - m)).sum())
    return total


def _last_refuted(excess: Callable[[float], float], mean: float) -> float:
    """Largest m that the falling function `excess` refutes (has >= 0), rounded down; 0 if there is none."""
    low, high = 1e-15, max(mean, 1e-14)
    if excess(low) < 0:
        return 0.0
    if excess(high) >= 0:  # only where the values hardly vary
        high = 1.0
        if excess(high) >= 0:
            return high
    root = float(brentq(excess, low, high, xtol=1e-16, rtol=1e-7))
    step = 1e-7
    while root > low and excess(root) < 0:
        root -= step * root
        step *= 2
    return max(root, low)
