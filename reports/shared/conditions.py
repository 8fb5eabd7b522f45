"""One condition of a paper's conclusion, held to samples by one-sided tests over units.

Every conclusion is a list of conditions that are all said to hold. A condition has two p-values: of "it does
not hold", which is small where it is shown to hold, and of "it holds, by a margin at least", which is small
where it is shown not to. "Flat", "like" and "at chance" have two ends, and are shown by two one-sided tests
alone, never by a test that found no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import NOT_HERE, UNIT
from workbench.reports.shared.paper_cells import LEAST_UNITS, too_few
from workbench.reports.shared.statistics import POWER, Sample, matched, power_of_t
from workbench.reports.shared.statistics.sample import spreads
from workbench.reports.shared.statistics.student import above_p, pitman_morgan, t_ends

SLACK = 1.0
"""Points: "higher" is shown not to hold where a difference is shown to be below this."""

MOST_SEEDS = 500
"""More are not counted."""

LEAST_FOR_SPREAD = 4
"""Fewer units say nothing of two variances."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition of a conclusion and the result of its test.

    Attributes:
        shown: The estimate with its interval, in words; empty where there is none.
        hold_p: p-value of "it does not hold"; 1 where it cannot be tested.
        break_p: p-value of "it holds (by the margin at least)"; 1 where it cannot be tested.
        why: Why it cannot be tested; empty where it can.
        otherwise: On which side of what is claimed it lies where it does not hold, in words; empty where the
            condition itself has but one other side.
        is_seen: It is seen to hold or not, without a test: there is no p-value to show.
    """

    where: str
    shown: str = ""
    hold_p: float = 1.0
    break_p: float = 1.0
    n: int = 0
    why: str = ""
    otherwise: str = ""
    is_seen: bool = False

    def describe(self) -> str:
        """The condition and its outcome as one clause of a sentence."""
        if self.why:
            return f"{self.where}: not testable, {self.why}"
        if self.is_seen:
            return f"{self.where}: {self.shown}"
        return (
            f"{self.where}: {self.shown}, p = {number(self.hold_p, 2)} "
            f"(against: {number(self.break_p, 2)}), n = {self.n}"
        )


@dataclass(frozen=True)
class Asked:
    """A condition, how many units would show it, and whether a run that it asks for is not made yet."""

    condition: Condition
    seeds: int | None = None
    not_run: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether it asks for a setting that this profile does not have."""
        return self.condition.why == NOT_HERE


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


def untestable(where: str, why: str, n: int = 0) -> Condition:
    """A condition that nothing decides."""
    return Condition(where=where, why=why, n=n)


def seen(where: str, outcome: str, holds: bool, n: int = 1) -> Condition:
    """A condition that is seen to hold or not: no sample, and no test."""
    return Condition(
        where=where,
        shown=outcome,
        hold_p=0.0 if holds else 1.0,
        break_p=1.0 if holds else 0.0,
        n=n,
        is_seen=True,
    )


def differences(first: Sample, second: Sample) -> Sample | str:
    """First less second of each unit that both have; the reason where there is none."""
    pair = matched(first, second)
    if pair.first is None or pair.second is None:
        return f"no {first.unit} has both"
    return Sample(pair.first.values - pair.second.values, pair.first.units, first.unit)


def less(first: Sample | str, second: Sample | str) -> Sample | str:
    """First less second, paired over units; the reason where there is none."""
    if isinstance(first, str) or isinstance(second, str):
        reasons = [side for side in (first, second) if isinstance(side, str)]
        return NOT_HERE if NOT_HERE in reasons else reasons[0]
    return differences(first, second)


def between(
    where: str, sample: Sample, ends: Ends, confidence: float, *, measure: str = " points"
) -> Condition:
    """The mean over units lies between the ends.

    Args:
        ends: Said to hold it.
        confidence: Of the interval in words; 1 - confidence is the level.
        measure: Of the values, as it stands behind a number.
    """
    values = sample.values
    if values.size < LEAST_UNITS:
        return untestable(where, too_few(values.size, UNIT), values.size)
    if not _differ(sample):
        return untestable(
            where, f"all {UNIT}s give the same {number(float(values[0]))}, which shows no spread", values.size
        )
    outside = [
        above_p(-values, -(ends.low + ends.slack)) if math.isfinite(ends.low) else 1.0,
        above_p(values, ends.high - ends.slack) if math.isfinite(ends.high) else 1.0,
    ]
    sided = sum(map(math.isfinite, (ends.low, ends.high)))
    mean, (lower, upper) = float(values.mean()), t_ends(values, confidence)
    return Condition(
        where=where,
        shown=f"{number(mean, 3)} [{number(lower, 3)}, {number(upper, 3)}]{measure}",
        hold_p=max(above_p(values, ends.low), above_p(-values, -ends.high)),
        break_p=min(1.0, sided * min(outside)),
        n=values.size,
    )


def _differ(sample: Sample) -> bool:
    return spreads(sample.values, max(float(np.max(np.abs(sample.values))), 1.0))


def asked_between(
    where: str,
    sample: Sample | str,
    ends: Ends,
    confidence: float,
    *,
    not_run: bool = False,
    measure: str = " points",
) -> Asked:
    """Test a sample as `between` does, or give the reason why there is no sample.

    Args:
        where, ends, confidence, measure: See `between`.
        sample: One value a unit, or the reason.
        not_run: Whether a run of the sample is not made yet.
    """
    if isinstance(sample, str):
        return Asked(untestable(where, sample), not_run=not_run)
    made = between(where, sample, ends, confidence, measure=measure)
    return replace(Asked(made, seeds_to_decide(sample, ends, confidence)), not_run=not_run)


def asked(
    where: str, sample: Sample | str, ends: Ends, confidence: float, *, not_run: bool, measure: str
) -> Asked:
    """Test a sample as `asked_between` does; by a sign test where all units give one number.

    A t test knows nothing of values without a spread. That all n lie on one side of an end has a chance of
    2^-n where the median is at it, whatever the distribution.
    """
    if isinstance(sample, str):
        return Asked(untestable(where, sample), not_run=not_run and sample != NOT_HERE)
    values = sample.values
    if values.size < LEAST_UNITS or _differ(sample):
        made = between(where, sample, ends, confidence, measure=measure)
        is_open = not made.why and made.hold_p > 1.0 - confidence
        return Asked(made, seeds_to_decide(sample, ends, confidence) if is_open else None, not_run)
    value = float(values[0])
    inside = ends.low < value < ends.high
    outside = value < ends.low + ends.slack or value > ends.high - ends.slack
    chance = 0.5**values.size
    made = Condition(
        where=where,
        shown=f"{number(value, 3)}{measure} in all {UNIT}s (sign test)",
        hold_p=chance if inside else 1.0,
        break_p=chance if outside and not inside else 1.0,
        n=values.size,
    )
    return Asked(made, not_run=not_run)


def seeds_to_decide(sample: Sample, ends: Ends, confidence: float) -> int | None:
    """Units with which the condition would be shown four times in five, were it as it looks.

    It takes the spread seen here for the true one. With two ends the true mean is taken to be in their
    middle, with one end to be the mean seen; None where that is outside, or for more than `MOST_SEEDS`.
    """
    values = sample.values
    if values.size < 2 or not _differ(sample):
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
    """Fewest units with that power of one one-sided test, or of two at once."""
    wanted = 1.0 - (1.0 - POWER) / 2.0 if both else POWER
    for count in range(LEAST_UNITS, MOST_SEEDS + 1):
        if power_of_t(effect, (count,), confidence=2.0 * confidence - 1.0) >= wanted:
            return count
    return None


def varies_less(where: str, first: Sample | str, second: Sample | str) -> Condition:
    """The first varies less over units than the second, by the test of Pitman and Morgan."""
    if isinstance(first, str) or isinstance(second, str):
        return untestable(where, first if isinstance(first, str) else str(second))
    pair = matched(first, second)
    if pair.first is None or pair.second is None:
        return untestable(where, f"no {UNIT} has both")
    x, y = pair.first.values, pair.second.values
    if x.size < LEAST_FOR_SPREAD:
        return untestable(
            where, f"two spreads need at least {LEAST_FOR_SPREAD} {UNIT}s, got {x.size}", x.size
        )
    if not (spreads(x + y) and spreads(x - y)):
        return untestable(where, "a sum or difference does not vary", x.size)
    hold_p, break_p = pitman_morgan(x, y)
    return Condition(
        where=where,
        shown=f"standard deviations {number(float(x.std(ddof=1)), 3)} and {number(float(y.std(ddof=1)), 3)}",
        hold_p=hold_p,
        break_p=break_p,
        n=x.size,
    )


Rule = Callable[[list[float], list[float]], tuple[float, float]]
"""From the p-values of several conditions, that they hold and that they do not, to those of one."""


def all_of(where: str, parts: Sequence[Asked]) -> Asked:
    """One condition that asks for several: shown where each is, broken where one is (Bonferroni)."""
    return _merged(where, parts, lambda hold, broken: (max(hold), min(1.0, len(broken) * min(broken))))


def any_of(where: str, parts: Sequence[Asked]) -> Asked:
    """One condition that asks for one of several: shown where one is (Bonferroni), broken where each is."""
    return _merged(where, parts, lambda hold, broken: (min(1.0, len(hold) * min(hold)), max(broken)))


def _merged(where: str, parts: Sequence[Asked], rule: Rule) -> Asked:
    here = [question for question in parts if not question.is_elsewhere]
    not_run = any(question.not_run for question in here)
    if not here:
        return Asked(untestable(where, NOT_HERE), not_run=not_run)
    lost = [question.condition for question in here if question.condition.why]
    if lost:
        return Asked(untestable(where, lost[0].why, lost[0].n), not_run=not_run)
    conditions = [question.condition for question in here]
    hold_p, break_p = rule(
        [condition.hold_p for condition in conditions], [condition.break_p for condition in conditions]
    )
    worst = max(conditions, key=lambda condition: condition.hold_p)
    made = Condition(
        where=where,
        shown=f"{worst.where}: {worst.shown}",
        hold_p=hold_p,
        break_p=break_p,
        n=min(condition.n for condition in conditions),
    )
    return Asked(made, not_run=not_run)
