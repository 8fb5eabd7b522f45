"""What a statistic is answered with: a test, an interval, an equivalence, or the reason why there is none.

All are plain frozen data that carry the unit of replication, how many of it there were, and the assumption
under which the number means what it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from workbench.reports.shared.statistics.student import detectable_difference
from workbench.studies.report import Value


def counted(count: int, unit: str) -> str:
    """A count with its unit in words: `"1 seed"`, `"4 seeds"`."""
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


@dataclass(frozen=True, kw_only=True)
class NotTestable:
    """There is no answer, and why.

    Attributes:
        name: Of the test or estimate.
        why: One clause: `"needs at least 2 seeds, got 1"`.
        n_units: Independent units at hand; for two independent groups, of both together.
        unit: What a unit is: `"seed"`.
    """

    name: str
    why: str
    n_units: int
    unit: str


@dataclass(frozen=True, kw_only=True)
class _OnUnits:
    """What a test on independent units says, whatever it tests."""

    p_value: float
    estimate: float
    confidence: float
    counts: tuple[int, ...]
    unit: str
    assumption: str
    adjusted_p: float | None = None
    family: int = 1
    correction: str = ""

    @property
    def n_units(self) -> int:
        """All units behind it; pairs count once."""
        return sum(self.counts)

    @property
    def decisive_p(self) -> float:
        """The adjusted p-value where there is one, else the raw one."""
        return self.p_value if self.adjusted_p is None else self.adjusted_p


@dataclass(frozen=True, kw_only=True)
class StatisticalTest(_OnUnits):
    """A two-sided test of "no difference", with its estimate.

    Attributes:
        name: `"paired t"`, `"Welch t"`, `"Student t, pooled variance"`, `"Wilcoxon signed rank"`.
        statistic: t, or the smaller sum of signed ranks.
        p_value: Two-sided, of this one test.
        estimate: First less second (difference of means; the Wilcoxon test: median of the differences).
        lower, upper: Two-sided interval of the estimate at `confidence`, or None where the test has none.
        counts: Units behind it: `(pairs,)`, or `(first, second)` of independent groups.
        unit: What a unit is: `"seed"`.
        assumption: Under which p-value and interval hold.
        df: Degrees of freedom, or None.
        spread: SD of the differences (paired), or within a side (independent: root of the mean of the two
            variances); None for tests without it.
        smallest_p: No data of this size give a smaller p-value (0: there is no such floor).
        left_out: Measurements of either side that had no partner on the other.
        adjusted_p: After the correction for many comparisons, or None.
        family: Number of tests that were corrected together.
        correction: `"Holm"`, `"Benjamini-Hochberg"`, or empty.
    """

    name: str
    statistic: float
    lower: float | None
    upper: float | None
    df: float | None = None
    spread: float | None = None
    smallest_p: float = 0.0
    left_out: int = 0

    @property
    def significant(self) -> bool:
        """Whether the decisive p-value is at most 1 - confidence."""
        return self.decisive_p <= 1.0 - self.confidence

    @property
    def detectable(self) -> float | None:
        """The smallest true difference that a t test of this size finds four times in five.

        It takes the spread seen here for the true one; None for tests without a spread.
        """
        if self.spread is None:
            return None
        return detectable_difference(self.spread, self.counts, confidence=self.confidence)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with a two-sided confidence interval, or with the reason why it has none.

    Attributes:
        estimate: NaN where it is not defined, and then `why` says so.
        lower, upper: None where there is no interval.
        confidence: Intended probability that the interval holds the truth.
        n_units, unit: Independent units behind it.
        assumption: Under which the confidence holds.
        spread: Standard deviation between units (ddof = 1), or None with fewer than two.
        why: Why the estimate or the interval is missing; else empty.
    """

    name: str
    estimate: float
    lower: float | None
    upper: float | None
    confidence: float
    n_units: int
    unit: str
    assumption: str
    spread: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Equivalence(_OnUnits):
    """Two one-sided tests (TOST) of "the difference is at least the margin".

    Attributes:
        name: `"TOST, paired"`, `"TOST, Welch"`.
        margin: m > 0, stated beforehand, in the metric's unit.
        p_value: The larger of the two one-sided p-values.
        p_below, p_above: Of "difference <= -m" and of "difference >= m".
        lower, upper: Interval at confidence 1 - 2 (1 - confidence), which lies within (-m, m) exactly if both
            tests reject.
        counts, unit, assumption, adjusted_p, family, correction: See `StatisticalTest`.
    """

    name: str
    margin: float
    p_below: float
    p_above: float
    lower: float
    upper: float

    @property
    def equivalent(self) -> bool:
        """Whether both one-sided tests reject at level 1 - confidence, with any correction applied."""
        return self.decisive_p <= 1.0 - self.confidence


Answer: TypeAlias = StatisticalTest | NotTestable
"""What a test returns."""


def value_of(result: Interval | StatisticalTest | Equivalence | NotTestable) -> Value:
    """A cell's value: an interval as estimate, limits and spread; a test as statistic and p-value."""
    if isinstance(result, Interval):
        return Value(
            estimate=result.estimate,
            lower=result.lower,
            upper=result.upper,
            spread=result.spread,
            n=result.n_units,
        )
    if isinstance(result, StatisticalTest):
        return Value(estimate=result.statistic, p_value=result.decisive_p, n=result.n_units)
    if isinstance(result, Equivalence):
        return Value(
            estimate=result.estimate,
            lower=result.lower,
            upper=result.upper,
            p_value=result.decisive_p,
            n=result.n_units,
        )
    return Value(estimate=math.nan, n=result.n_units, text="not testable")
