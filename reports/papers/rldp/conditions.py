"""Conditions of RLDP's conclusions that are not one t test: no spread, variances, lowest and largest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from workbench.reports.papers.ferret.conditions import LEAST_FOR_SPREAD, Condition, untestable
from workbench.reports.shared.beside import LEAST_UNITS
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_conditions import Ends, between, seeds_to_decide
from workbench.reports.shared.paper_findings import Asked
from workbench.reports.shared.paper_samples import NOT_HERE, UNIT
from workbench.reports.shared.statistics import Sample, matched
from workbench.reports.shared.statistics.sample import spreads

Rule = Callable[[list[float], list[float]], tuple[float, float]]
"""From the p-values of several conditions, that they hold and that they do not, to those of one."""


def seen(where: str, shown: str, holds: bool, n: int) -> Condition:
    """A condition that is seen to hold or not: no sample, and no test."""
    return Condition(
        where=where,
        shown=shown,
        hold_p=0.0 if holds else 1.0,
        break_p=1.0 if holds else 0.0,
        n=n,
        is_seen=True,
    )


def asked(
    where: str, sample: Sample | str, ends: Ends, confidence: float, *, not_run: bool, measure: str
) -> Asked:
    """That a mean over seeds lies between two ends; where all seeds give one number, by a sign test.

    A t test knows nothing of values without a spread. That all n lie on one side of an end has a chance of
    2^-n where the median is at it, whatever the distribution.
    """
    if isinstance(sample, str):
        return Asked(untestable(where, sample), not_run=not_run and sample != NOT_HERE)
    values = sample.values
    if values.size < LEAST_UNITS or spreads(values, max(float(np.max(np.abs(values))), 1.0)):
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


def less(first: Sample | str, second: Sample | str) -> Sample | str:
    """First less second, paired over seeds; the reason where there is none."""
    reasons = [one for one in (first, second) if isinstance(one, str)]
    if reasons:
        return NOT_HERE if NOT_HERE in reasons else reasons[0]
    pair = matched(first, second)  # type: ignore[arg-type]
    if pair.first is None or pair.second is None:
        return f"no {UNIT} has both"
    return Sample(pair.first.values - pair.second.values, pair.first.units, UNIT)


def varies_less(where: str, first: Sample | str, second: Sample | str) -> Condition:
    """The first varies less over seeds than the second, by the test of Pitman (1939) and Morgan (1939).

    Of paired normal samples the variances are equal exactly where sum and difference are uncorrelated.
    """
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
    from scipy import stats

    sums, gaps = x + y, x - y
    if not (spreads(sums) and spreads(gaps)):
        return untestable(where, "a sum or difference does not vary", x.size)
    correlation = float(np.clip(np.corrcoef(sums, gaps)[0, 1], -1 + 1e-12, 1 - 1e-12))
    statistic = correlation * math.sqrt((x.size - 2) / (1.0 - correlation**2))
    return Condition(
        where=where,
        shown=f"standard deviations {number(float(x.std(ddof=1)), 3)} and {number(float(y.std(ddof=1)), 3)}",
        hold_p=float(stats.t.cdf(statistic, x.size - 2)),
        break_p=float(stats.t.sf(statistic, x.size - 2)),
        n=x.size,
    )


def all_of(where: str, found: Sequence[Asked]) -> Asked:
    """One condition that asks for several: shown where each is, broken where one is (Bonferroni)."""
    return _merged(where, found, _of_all)


def any_of(where: str, found: Sequence[Asked]) -> Asked:
    """One condition that asks for one of several: shown where one is (Bonferroni), broken where each is."""
    return _merged(where, found, _of_any)


def _of_all(hold: list[float], broken: list[float]) -> tuple[float, float]:
    return max(hold), min(1.0, len(broken) * min(broken))


def _of_any(hold: list[float], broken: list[float]) -> tuple[float, float]:
    return min(1.0, len(hold) * min(hold)), max(broken)


def _merged(where: str, found: Sequence[Asked], rule: Rule) -> Asked:
    here = [one for one in found if not one.is_elsewhere]
    not_run = any(one.not_run for one in here)
    if not here:
        return Asked(untestable(where, NOT_HERE), not_run=not_run)
    lost = [one.condition for one in here if one.condition.why]
    if lost:
        return Asked(untestable(where, lost[0].why, lost[0].n), not_run=not_run)
    conditions = [one.condition for one in here]
    hold, broken = [one.hold_p for one in conditions], [one.break_p for one in conditions]
    hold_p, break_p = rule(hold, broken)
    worst = max(conditions, key=lambda one: one.hold_p)
    made = Condition(
        where=where,
        shown=f"{worst.where}: {worst.shown}",
        hold_p=hold_p,
        break_p=break_p,
        n=min(one.n for one in conditions),
    )
    return Asked(made, not_run=not_run)
