"""One condition of a conclusion, held to samples by one-sided t tests over units.

Every conclusion of FERRET is a list of conditions that are all said to hold. A condition has two p-values:
of "it does not hold", which is small where it is shown to hold, and of "it holds, by a margin at least",
which is small where it is shown not to. Perplexities and times are compared by ratios of each unit. AUCs of
all models of a seed share the luck of one draw of members, whose error is added to that over units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.interfaces import FloatArray
from workbench.reports.papers.ferret.draws import draw_error
from workbench.reports.papers.ferret.layout import POSITIVE, SECONDS
from workbench.reports.shared.beside import LEAST_UNITS, too_few
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import Sample, matched
from workbench.reports.shared.statistics.sample import spreads

MARGIN_SHARE = 0.05
"""A perplexity or time counts as not lower where the difference is shown to be below this share."""

MARGIN_AREA = 0.01
"""Likewise an AUC or advantage."""

LEAST_FOR_SPREAD = 4
"""Fewer units say nothing of two variances."""

FAR_SIDES = {SECONDS: ("faster than claimed", "slower than claimed")}
"""How a metric lies below and above what is claimed, where it has words of its own."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition and what the samples say of it.

    Attributes:
        where: What is compared, in words.
        shown: The estimate with its interval, in words; empty where there is none.
        hold_p: p-value of "it does not hold"; 1 where it cannot be tested.
        break_p: p-value of "it holds (by the margin at least)"; 1 where it cannot be tested.
        n: Units behind it.
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
        """One clause."""
        if self.why:
            return f"{self.where}: not testable, {self.why}"
        if self.is_seen:
            return f"{self.where}: {self.shown}"
        return (
            f"{self.where}: {self.shown}, p = {number(self.hold_p, 2)} (against: {number(self.break_p, 2)}), "
            f"n = {self.n}"
        )


def untestable(where: str, why: str, n: int = 0) -> Condition:
    """A condition that nothing decides."""
    return Condition(where=where, why=why, n=n)


def lower(where: str, metric: str, pair: tuple[Sample, Sample], confidence: float) -> Condition:
    """The first is lower than the second.

    Args:
        where: In words.
        metric: Compared by ratios if it is one of `POSITIVE`.
        pair: Both sides; matched by unit and cell.
        confidence: Of the interval in words.
    """
    sides = _paired(where, pair)
    if isinstance(sides, Condition):
        return sides
    first, second, unit = sides
    logs = metric in POSITIVE
    if logs and min(first.min(), second.min()) <= 0.0:
        return untestable(where, "a value is not positive", first.size)
    differences = np.log(first) - np.log(second) if logs else first - second
    luck = draw_error([(pair[0], 1.0), (pair[1], -1.0)])
    return below(where, differences, Scale(logs=logs), unit=unit, confidence=confidence, luck=luck)


@dataclass(frozen=True)
class Scale:
    """Whether differences are of logarithms, and how they read."""

    logs: bool

    @property
    def margin(self) -> float:
        return math.log1p(MARGIN_SHARE) if self.logs else MARGIN_AREA

    def words(self, mean: float, ends: tuple[float, float], unit: str) -> str:
        if self.logs:
            values = [number(math.exp(min(max(one, -700.0), 700.0)), 3) for one in (mean, *ends)]
            return f"ratio {values[0]} [{values[1]}, {values[2]}]"
        values = [number(one, 3) for one in (mean, *ends)]
        return f"difference {values[0]} [{values[1]}, {values[2]}]"


def below(
    where: str, differences: FloatArray, scale: Scale, *, unit: str, confidence: float, luck: float = 0.0
) -> Condition:
    """The mean of differences is below zero; it is shown not to be where it is above minus the margin.

    Args:
        where: In words.
        differences: Of each unit.
        scale: Of the differences.
        unit: Name of a unit.
        confidence: Of the interval in words.
        luck: Standard error of the mean from what all units share.
    """
    if differences.size < LEAST_UNITS:
        return untestable(where, too_few(differences.size, unit), differences.size)
    if not spreads(differences, max(float(np.max(np.abs(differences))), 1.0)):
        return untestable(
            where, f"all {unit}s differ by the same {number(float(differences[0]))}", differences.size
        )
    mean, ends = _interval(differences, confidence, luck)
    return Condition(
        where=where,
        shown=scale.words(mean, ends, unit),
        hold_p=_below_p(differences, luck),
        break_p=_below_p(-differences - scale.margin, luck),
        n=differences.size,
    )


def trend(
    where: str,
    metric: str,
    line: tuple[Sequence[Sample], Sequence[float]],
    *,
    direction: str,
    confidence: float,
) -> Condition:
    """A metric rises (or falls) along x: the least-squares change of each unit over the range of log x.

    Args:
        where: In words.
        metric: On a logarithmic scale if it is one of `POSITIVE`.
        line: Samples with the same units, and the x of each: positive, ascending.
        direction: `"rises"` or `"falls"`.
        confidence: Of the interval in words.
    """
    samples, x = line
    means = [sample.by_unit() for sample in samples]
    shared = [name for name in means[0].unit_names if all(name in one.unit_names for one in means)]
    unit = samples[0].unit
    table = np.array([[_of(one, name) for one in means] for name in shared])
    logs = metric in POSITIVE
    if not shared or (logs and table.min() <= 0.0):
        return untestable(where, f"no {unit} has all values" if not shared else "a value is not positive")
    spots = np.log(np.array(x)) - np.mean(np.log(np.array(x)))
    values = np.log(table) if logs else table
    weights = spots / float(spots @ spots) * float(np.ptp(spots))
    changes = values @ weights
    luck = draw_error(list(zip(samples, map(float, weights), strict=True)))
    found = below(
        where,
        -changes if direction == "rises" else changes,
        Scale(logs=logs),
        unit=unit,
        confidence=confidence,
        luck=luck,
    )
    if found.why:
        return found
    mean, ends = _interval(changes, confidence, luck)
    return Condition(
        where=where,
        shown=f"change over the range: {Scale(logs=logs).words(mean, ends, unit)}",
        hold_p=found.hold_p,
        break_p=found.break_p,
        n=found.n,
    )


def _of(sample: Sample, name: str | int) -> float:
    return float(sample.values[sample.units.index(name)])


def ratio(
    where: str,
    pair: tuple[Sample, Sample],
    between: tuple[float, float],
    confidence: float,
    *,
    metric: str = "",
) -> Condition:
    """The ratio of the means over units, first over second, lies in an interval (Fieller's method).

    Mean(first) / mean(second) > r exactly where the mean of first - r second is positive, which a paired t
    test decides.

    Args:
        where: In words.
        pair: Both sides, positive.
        between: Ends of the interval; a lower end of zero or less is no condition.
        confidence: Unused in the tests; kept for words.
        metric: Of the samples, for words.
    """
    sides = _paired(where, pair)
    if isinstance(sides, Condition):
        return sides
    first, second, unit = sides
    low, high = between
    luck = [draw_error([(pair[0], 1.0), (pair[1], -end)]) for end in between]
    return _inside(
        where,
        [(first - low * second, luck[0])] if low > 0.0 else [],
        [(first - high * second, luck[1])],
        shown=f"ratio of means {number(float(first.mean() / second.mean()), 3)} "
        f"(claimed {_ends(low, high)}; of each {unit} {_range(first / second)})",
        unit=unit,
        far=_far_sides(metric),
    )


def inside(
    where: str, sample: Sample, between: tuple[float, float], confidence: float, *, metric: str = ""
) -> Condition:
    """The mean over units lies in an interval: equivalence, by two one-sided t tests."""
    values = sample.by_unit().values
    if values.size < LEAST_UNITS:
        return untestable(where, too_few(values.size, sample.unit), values.size)
    low, high = between
    luck = draw_error([(sample, 1.0)])
    mean, ends = _interval(values, confidence, luck)
    found = f"mean {number(mean, 4)} [{number(ends[0], 4)}, {number(ends[1], 4)}]"
    shown = f"{found} (claimed {number(low)} to {number(high)})"
    above, under = [(values - low, luck)], [(values - high, luck)]
    return _inside(where, above, under, shown=shown, unit=sample.unit, far=_far_sides(metric))


Side = tuple[FloatArray, float]
"""Values of each unit, and the standard error of their mean from what all units share."""


def _far_sides(metric: str) -> tuple[str, str]:
    return FAR_SIDES.get(metric, ("below what is claimed", "above what is claimed"))


def _inside(
    where: str,
    above: Sequence[Side],
    under: Sequence[Side],
    *,
    shown: str,
    unit: str,
    far: tuple[str, str],
) -> Condition:
    """Every mean of `above` is positive and every mean of `under` negative; `far`: words where one is not."""
    sides = [*((-values, luck) for values, luck in above), *under]
    size = sides[0][0].size
    if size < LEAST_UNITS:
        return untestable(where, too_few(size, unit), size)
    if not all(spreads(values, max(float(np.max(np.abs(values))), 1e-300)) for values, _ in sides):
        return untestable(where, f"all {unit}s gave the same value", size)
    broken = [_below_p(-values, luck) for values, luck in sides]
    return Condition(
        where=where,
        shown=shown,
        hold_p=max(_below_p(values, luck) for values, luck in sides),
        break_p=min(1.0, len(sides) * min(broken)),
        n=size,
        otherwise=far[0] if broken.index(min(broken)) < len(above) else far[1],
    )


def less_spread(where: str, metric: str, pair: tuple[Sample, Sample], confidence: float) -> Condition:
    """The units differ less on the first side than on the second (Pitman and Morgan's test, 1939).

    The variances of two paired normal samples differ exactly where their sum and difference are correlated.

    Args:
        where: In words.
        metric: On a logarithmic scale if it is one of `POSITIVE`.
        pair: Both sides.
        confidence: Unused in the test; kept for words.
    """
    from scipy.stats import t

    sides = _paired(where, pair)
    if isinstance(sides, Condition):
        return sides
    first, second, unit = sides
    if first.size < LEAST_FOR_SPREAD:
        return untestable(
            where, f"two variances need at least {LEAST_FOR_SPREAD} {unit}s, got {first.size}", first.size
        )
    if metric in POSITIVE:
        if min(first.min(), second.min()) <= 0.0:
            return untestable(where, "a value is not positive", first.size)
        first, second = np.log(first), np.log(second)
    total, difference = first + second, first - second
    if not (spreads(total) and spreads(difference)):
        return untestable(where, f"the {unit}s do not differ", first.size)
    r = min(max(float(np.corrcoef(total, difference)[0, 1]), -1.0 + 1e-12), 1.0 - 1e-12)
    statistic = r * math.sqrt((first.size - 2) / (1.0 - r * r))
    wider = " of the logarithm" if metric in POSITIVE else ""
    widths = [number(float(side.std(ddof=1)), 3) for side in (first, second)]
    shown = f"SD{wider} over {unit}s {widths[0]} against {widths[1]}"
    return Condition(
        where=where,
        shown=shown,
        hold_p=float(t.cdf(statistic, first.size - 2)),
        break_p=float(t.sf(statistic, first.size - 2)),
        n=first.size,
    )


def not_monotone(
    where: str, metric: str, samples: Sequence[Sample], x: Sequence[float], confidence: float
) -> Condition:
    """Along x there is a rise and a fall; shown by one of each, Bonferroni over all pairs of places.

    It is shown not to be so where every neighbouring step is shown to rise, or every one to fall.
    """
    places = [(i, j) for i in range(len(samples)) for j in range(i + 1, len(samples))]
    steps = {
        (i, j): [lower("", metric, (samples[a], samples[b]), confidence) for a, b in ((i, j), (j, i))]
        for i, j in places
    }
    broken = next((one for pair in steps.values() for one in pair if one.why), None)
    if broken is not None:
        return untestable(where, broken.why, broken.n)
    rises = min(1.0, len(places) * min(pair[0].hold_p for pair in steps.values()))
    falls = min(1.0, len(places) * min(pair[1].hold_p for pair in steps.values()))
    neighbours = [(i, i + 1) for i in range(len(samples) - 1)]
    only_rises, only_falls = (max(steps[place][side].hold_p for place in neighbours) for side in (0, 1))
    up = min(steps, key=lambda place: steps[place][0].hold_p)
    down = min(steps, key=lambda place: steps[place][1].hold_p)
    return Condition(
        where=where,
        shown=(
            f"strongest rise {number(x[up[0]])} to {number(x[up[1]])} (p = {number(rises, 2)}), strongest "
            f"fall {number(x[down[0]])} to {number(x[down[1]])} (p = {number(falls, 2)})"
        ),
        hold_p=max(rises, falls),
        break_p=min(1.0, 2.0 * min(only_rises, only_falls)),
        n=min(pair[0].n for pair in steps.values()),
    )


def _paired(where: str, pair: tuple[Sample, Sample]) -> tuple[FloatArray, FloatArray, str] | Condition:
    """Both sides' unit means of the units that they share, and the unit's name."""
    found = matched(*pair)
    unit = pair[0].unit
    if found.first is None or found.second is None:
        return untestable(where, f"no {unit} has both sides")
    first, second = found.first.by_unit().values, found.second.by_unit().values
    if first.size < LEAST_UNITS:
        return untestable(where, too_few(first.size, unit), first.size)
    return first, second, unit


def _below_p(values: FloatArray, luck: float = 0.0) -> float:
    """p-value of "the mean is at least zero": one-sided t test."""
    from scipy.stats import t

    error, freedom = _error(values, luck)
    mean = float(values.mean())
    return float(t.cdf(mean / error, freedom)) if error > 0.0 else float(mean >= 0.0)


def _interval(values: FloatArray, confidence: float, luck: float = 0.0) -> tuple[float, tuple[float, float]]:
    from scipy.stats import t

    error, freedom = _error(values, luck)
    half = float(t.ppf(0.5 + confidence / 2.0, freedom)) * error
    mean = float(values.mean())
    return mean, (mean - half, mean + half)


def _error(values: FloatArray, luck: float) -> tuple[float, float]:
    """Standard error of a mean over units with a shared error added, and its degrees of freedom.

    Those of Satterthwaite; the shared error comes from hundreds of records and counts as known.
    """
    units = float(values.var(ddof=1)) / values.size
    both = units + luck**2
    return math.sqrt(both), (values.size - 1) * (both / units) ** 2 if units > 0.0 else math.inf


def _range(values: FloatArray) -> str:
    return f"{number(float(values.min()), 3)} to {number(float(values.max()), 3)}"


def _ends(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}" if low > 0.0 else f"at most {number(high)}"
