"""Sections 4.3 and 4.4 of DP-Weights against its Tables 1 and 2, and its words against its p-values.

A side of each t-test has 4 settings times 28 epsilons = 112 values; means and deviations of the settings give
its mean and variance. The fine-tuned side is 4 numbers, each repeated 28 times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.dp_weights.identities import moments
from workbench.reports.papers.dp_weights.layout import COMPARISONS, EPSILONS, GRIDS, METRICS, Grid
from workbench.reports.shared.published_checks import Check, Interval, printed

STATISTIC, INTERVAL, WORDS = "t-statistic, p-value", "95% confidence interval", "interpretation"
LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """What Tables 1 or 2 say of one t-test, as intervals.

    Attributes:
        difference: Of the means, first less second.
        standard_error: Of the difference.
        variances: Of the two sides over their number of values.
        values: Number of values on a side.
    """

    difference: Interval
    standard_error: Interval
    variances: tuple[Interval, Interval]
    values: int


def pooled_sides(paper: PublishedPaper, grid: Grid, metric: str, column: str) -> Pooled:
    """The two sides of a t-test from the table of means."""
    table = paper.table(grid.means)
    means, variances = [], []
    for model in COMPARISONS[column]:
        sides = [moments(table, str(value), model, metric) for value in grid.details]
        count = EPSILONS * len(sides)
        total = Interval(0.0, 0.0)
        for mean, _ in sides:
            total = total + mean
        grand = total.times(1.0 / len(sides))
        squares = Interval(0.0, 0.0)
        for mean, spread in sides:
            squares = squares + spread.squared.times(EPSILONS - 1) + (mean - grand).squared.times(EPSILONS)
        means.append(grand)
        variances.append(squares.times(1.0 / ((count - 1) * count)))
    both = variances[0] + variances[1]
    return Pooled(
        difference=means[0] - means[1],
        standard_error=Interval(math.sqrt(both.lower), math.sqrt(both.upper)),
        variances=(variances[0], variances[1]),
        values=EPSILONS * len(grid.details),
    )


def t_test_checks(paper: PublishedPaper) -> list[Check]:
    """Statistics, p-values and intervals of sections 4.3 and 4.4, recomputed."""
    statistics: list[str] = []
    p_values: list[str] = []
    middles: list[str] = []
    fits = {"Student": 0, "Welch": 0}
    checked = 0
    for grid, metric, column in _places():
        place = f"{paper.table(grid.tests).place}, {metric}, {column}"
        section = paper.table(grid.tests)
        sides = pooled_sides(paper, grid, metric, column)
        t, p = printed(section, (metric, column), STATISTIC)
        low, high = (Interval.of(end) for end in printed(section, (metric, column), INTERVAL))
        checked += 1
        if not _ratio(sides.difference, sides.standard_error).meets(Interval.of(t)):
            statistics.append(f"{place}: t = {t.value:g}")
        if not _p_interval(Interval.of(t), 2 * sides.values - 2).meets(Interval.of(p, floor=0.0)):
            p_values.append(f"{place}: t = {t.value:g} with p = {p.value:g}")
        if not (low + high).times(0.5).meets(sides.difference):
            middles.append(f"{place}: ({low.lower:g}, {high.upper:g})")
        for name, degrees in (("Student", 2.0 * sides.values - 2.0), ("Welch", _welch_degrees(sides))):
            ends = _ends(sides, degrees)
            fits[name] += ends[0].meets(low) and ends[1].meets(high)
    return [
        _failures("t statistics", checked, statistics, "t statistics do not follow from Tables 1 and 2"),
        _failures("p-values", checked, p_values, "p-values do not follow from the t statistics"),
        _failures(
            "middles", checked, middles, "confidence intervals are not around the difference of the means"
        ),
        _intervals(checked, fits),
        _replicates(checked, len(statistics)),
    ]


def _intervals(checked: int, fits: dict[str, int]) -> Check:
    """Which kind of interval stands beside Student's p-values."""
    mixed = fits["Welch"] > fits["Student"]
    return Check(
        name="kind of confidence interval",
        checked=checked,
        finding=(
            "The p-values of sections 4.3 and 4.4 are Student's with pooled variance, the confidence "
            f"intervals beside them Welch's: {fits['Welch']} of {checked} intervals fit Welch's degrees of "
            f"freedom, {fits['Student']} Student's"
        )
        if mixed
        else "",
        contradiction=mixed,
    )


def _replicates(checked: int, failed: int) -> Check:
    """What the t-tests count as independent."""
    return Check(
        name="replicates",
        checked=checked,
        finding=(
            f"{checked - failed} of the {checked} t statistics of sections 4.3 and 4.4 follow from Tables 1 "
            f"and 2 with 4 settings x {EPSILONS} epsilons = {4 * EPSILONS} values a side taken for "
            f"independent; the fine-tuned side is 4 numbers, each counted {EPSILONS} times"
        ),
    )


def word_checks(paper: PublishedPaper) -> list[Check]:
    """The interpretations against the p-values and signs, and the summaries against the interpretations."""
    words: list[str] = []
    summaries: list[str] = []
    intervals: list[str] = []
    checked = 0
    for grid, metric, column in _places():
        section, summary = paper.table(grid.tests), paper.table(grid.summary)
        t, p = printed(section, (metric, column), STATISTIC)
        low, high = printed(section, (metric, column), INTERVAL)
        said = _text(paper, grid.tests, (metric, column), WORDS)
        place = f"{section.place}, {metric}, {column}"
        checked += 1
        if said.startswith("not") == (p.value < LEVEL):
            words.append(f"{place}: {said} with p = {p.value:g}")
        elif said.endswith(("higher", "lower")) and said.endswith("higher") != (t.value > 0):
            words.append(f"{place}: {said} with t = {t.value:g}")
        excludes = low.value - low.half_unit > 0 or high.value + high.half_unit < 0
        contains = low.value + low.half_unit < 0 < high.value - high.half_unit
        if (excludes and p.value >= LEVEL) or (contains and p.value < LEVEL):
            intervals.append(f"{place}: ({low.value:g}, {high.value:g}) with p = {p.value:g}")
        summed = _text(paper, grid.summary, (metric,), column)
        if summed.startswith("not") != said.startswith("not"):
            summaries.append(
                f"{summary.place} says of {metric}, {column}: {summed}; {section.place} say: {said}, p = "
                f"{p.value:g}"
            )
        if summed.endswith("first worse") and (t.value < 0) == metric.startswith("perplexity"):
            summaries.append(
                f"{summary.place} says that {COMPARISONS[column][0]} is worse in {metric} than "
                f"{COMPARISONS[column][1]}; {section.place} find it better (t = {t.value:g})"
            )
    return [
        _failures("words", checked, words, "interpretations do not fit their p-values"),
        _failures(
            "intervals and p-values", checked, intervals, "confidence intervals do not fit their p-values"
        ),
        _failures(
            "summaries",
            checked,
            summaries,
            "conclusions of the summaries contradict the items that they sum up",
        ),
    ]


def comparison_words(paper: PublishedPaper, group: str, metric: str, column: str) -> tuple[float, float]:
    """A printed t statistic and p-value of a group's pooled comparison."""
    t, p = printed(paper.table(GRIDS[group].tests), (metric, column), STATISTIC)
    return t.value, p.value


def _text(paper: PublishedPaper, table: str, row: tuple[str, ...], column: str) -> str:
    cell = paper.table(table).cell(row, column)
    return "" if cell is None else cell.printed


def _places() -> list[tuple[Grid, str, str]]:
    return [(grid, metric, column) for grid in GRIDS.values() for metric in METRICS for column in COMPARISONS]


def _ratio(top: Interval, bottom: Interval) -> Interval:
    """Range of a quotient with a positive divisor."""
    values = [a / b for a in (top.lower, top.upper) for b in (bottom.lower, bottom.upper)]
    return Interval(min(values), max(values))


def _p_interval(t: Interval, degrees: float) -> Interval:
    """Two-sided p-values of all t in an interval."""
    from scipy.stats import t as student

    least = 0.0 if t.lower <= 0.0 <= t.upper else min(abs(t.lower), abs(t.upper))
    most = max(abs(t.lower), abs(t.upper))
    return Interval(2.0 * float(student.sf(most, degrees)), 2.0 * float(student.sf(least, degrees)))


def _welch_degrees(sides: Pooled) -> float:
    """Welch's degrees of freedom at the middle of the intervals."""
    one, other = (0.5 * (side.lower + side.upper) for side in sides.variances)
    return (one + other) ** 2 / ((one**2 + other**2) / (sides.values - 1))


def _ends(sides: Pooled, degrees: float) -> tuple[Interval, Interval]:
    """Lower and upper end of the confidence interval of the difference."""
    from scipy.stats import t as student

    reach = sides.standard_error.times(float(student.ppf(1.0 - LEVEL / 2.0, degrees)))
    return sides.difference - reach, sides.difference + reach


def _failures(name: str, checked: int, failed: list[str], finding: str) -> Check:
    return Check(
        name=name,
        checked=checked,
        failed=tuple(failed),
        finding=f"{len(failed)} of {checked} {finding}: {'; '.join(failed)}" if failed else "",
        contradiction=bool(failed),
    )
