"""When a repeat with fresh seeds would decide the same.

A test that just reaches its level would reach it again, on as many fresh units, about every other time. So a
conclusion counts as decided only where its tests reach a stricter level: one at which a repeat reaches the
first level with probability `REPEAT`. With t the statistic of a t test on n units, and nothing known of the
true effect and spread beforehand, a repeat's statistic is distributed as

    (t sqrt(U) + sqrt(2) Z) / sqrt(V),   U, V ~ chi^2(n - 1) / (n - 1),   Z ~ N(0, 1), all independent,

because the true mean lies around the first one by the first error, and the repeat's mean around it by
another. Where many comparisons share a level (Holm's method), the strictest of their levels is raised by the
same factor, which is a little less than it needs: of 42 that just reach it, a repeat reaches each with
probability 0.90 (3 units) to 0.88 (27). A conclusion that rests on several comparisons, each just reached,
repeats less often.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

REPEAT = 0.9
"""Probability with which a repeat with as many fresh units decides the same."""

_POINTS = (np.arange(400) + 0.5) / 400


def repeat_probability(statistic: float, critical: float, units: int) -> float:
    """Probability that a repeat's t statistic, on as many fresh units, is beyond a critical value again."""
    from scipy.stats import chi2, norm  # The command line's help has no time for it.

    degrees = max(1, units - 1)
    root = np.sqrt(chi2.ppf(_POINTS, degrees) / degrees)
    return float(norm.cdf((statistic * root[:, None] - critical * root[None, :]) / np.sqrt(2)).mean())


@lru_cache(maxsize=256)
def repeat_level(level: float, units: int) -> float:
    """The level at which a test on some units must decide, for a repeat to decide at `level` as well.

    Args:
        level: In (0, 1), of a two-sided t test.
        units: Of replication, at least 1.
    """
    from scipy.stats import t

    degrees = max(1, units - 1)
    critical = float(t.isf(level / 2, degrees))
    statistic = brentq(
        lambda value: repeat_probability(value, critical, units) - REPEAT, critical, 100.0 * critical + 100.0
    )
    return float(2 * t.sf(statistic, degrees))


def repeat_words(level: float, units: int, unit: str) -> str:
    """A sentence on the stricter level, for readers."""
    return (
        f"It decides at level {repeat_level(level, units):.2g}, so that a repeat with as many fresh {unit}s "
        f"reaches {level:.2g} with probability {REPEAT:.0%}."
    )
