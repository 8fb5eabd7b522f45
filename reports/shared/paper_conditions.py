"""One condition of a paper's conclusion, held to a score over seeds by one-sided t tests.

Every conclusion is a list of conditions that are all said to hold: that a mean over seeds lies in an
interval, of which one end may be open. "Flat", "like" and "at chance" have two ends, and are shown by two
one-sided tests alone, never by a test that found no difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.interfaces import FloatArray
from workbench.reports.papers.ferret.conditions import Condition, untestable
from workbench.reports.shared.beside import LEAST_UNITS, too_few
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_samples import UNIT
from workbench.reports.shared.statistics import POWER, Sample, matched, power_of_t
from workbench.reports.shared.statistics.sample import spreads

SLACK = 1.0
"""Points: "higher" is shown not to hold where a difference is shown to be below this."""

MOST_SEEDS = 500
"""More are not counted."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The interval that a mean is said to lie in, and from where on it is shown not to.

    Attributes:
        low, high: Ends, in the score's own measure; infinite for an open one.
        slack: How far inside the ends a mean may be shown to be outside of: see `SLACK`.
    """

    low: float = -math.inf
    high: float = math.inf
    slack: float = 0.0


def differences(first: Sample, second: Sample) -> Sample | str:
    """First less second of each seed that both have; the reason where there is none."""
    pair = matched(first, second)
    if pair.first is None or pair.second is None:
        return f"no {UNIT} has both"
    return Sample(pair.first.values - pair.second.values, pair.first.units, UNIT)


def between(
    where: str, sample: Sample, ends: Ends, confidence: float, *, measure: str = " points"
) -> Condition:
    """The mean over seeds lies between the ends.

    Args:
        where: What is compared, in words.
        sample: One value a seed.
        ends: Said to hold it.
        confidence: Of the interval in words; 1 - confidence is the level.
        measure: Of the values, as it stands behind a number.
    """
    values = sample.values
    if values.size < LEAST_UNITS:
        return untestable(where, too_few(values.size, UNIT), values.size)
    if not spreads(values, max(float(np.max(np.abs(values))), 1.0)):
        return untestable(
            where, f"all {UNIT}s give the same {number(float(values[0]))}, which shows no spread", values.size
        )
    above, below = _above_p(values, ends.low), _above_p(-values, -ends.high)
    outside = [
        _above_p(-values, -(ends.low + ends.slack)) if math.isfinite(ends.low) else 1.0,
        _above_p(values, ends.high - ends.slack) if math.isfinite(ends.high) else 1.0,
    ]
    sided = sum(map(math.isfinite, (ends.low, ends.high)))
    mean, (lower, upper) = float(values.mean()), _interval(values, confidence)
    return Condition(
        where=where,
        shown=f"{number(mean, 3)} [{number(lower, 3)}, {number(upper, 3)}]{measure}",
        hold_p=max(above, below),
        break_p=min(1.0, sided * min(outside)),
        n=values.size,
    )


def _above_p(values: FloatArray, bound: float) -> float:
    """p-value of "the mean is at most the bound" against "above"; 0 for an open end."""
    if math.isinf(bound):
        return 0.0
    from scipy import stats

    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return float(stats.t.sf((float(values.mean()) - bound) / error, values.size - 1))


def _interval(values: FloatArray, confidence: float) -> tuple[float, float]:
    from scipy import stats

    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    half = error * float(stats.t.ppf(0.5 + confidence / 2.0, values.size - 1))
    return float(values.mean()) - half, float(values.mean()) + half


def seeds_to_decide(sample: Sample, ends: Ends, confidence: float) -> int | None:
    """Seeds with which the condition would be shown four times in five, were it as it looks.

    It takes the spread seen here for the true one. With two ends the true mean is taken to be in their
    middle, with one end to be the mean seen; None where that is outside, or for more than `MOST_SEEDS`.
    """
    values = sample.values
    if values.size < 2 or not spreads(values, max(float(np.max(np.abs(values))), 1.0)):
        return None
    spread, both = float(values.std(ddof=1)), math.isfinite(ends.low) and math.isfinite(ends.high)
    mean = float(values.mean())
    distance = (ends.high - ends.low) / 2.0 if both else max(mean - ends.low, ends.high - mean, key=_finite)
    if distance <= 0.0:
        return None
    return _least_count(round(distance / spread, 4), both, confidence)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


@lru_cache(maxsize=1024)
def _least_count(effect: float, both: bool, confidence: float) -> int | None:
    """Fewest seeds with that power of one one-sided test, or of two at once."""
    wanted = 1.0 - (1.0 - POWER) / 2.0 if both else POWER
    for count in range(LEAST_UNITS, MOST_SEEDS + 1):
        if power_of_t(effect, (count,), confidence=2.0 * confidence - 1.0) >= wanted:
            return count
    return None
