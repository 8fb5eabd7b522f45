"""What DP-Weights' printed numbers must satisfy among themselves, each known to its rounding.

With x and y the two models' values over the n = 28 epsilons, s the sample standard deviation and r Pearson's
correlation: MSE = (mean x - mean y)^2 + (s_x^2 + s_y^2 - 2 r s_x s_y) (n - 1) / n; R^2 = 1 - MSE over s_x^2
(n - 1) / n (the first model is taken for the truth); RMSE^2 = MSE; MAE <= RMSE. The fine-tuned model has no
epsilon: s_y = 0. A side of each t-test of sections 4.3 and 4.4 has 4 settings times 28 epsilons = 112 values;
means and deviations of the settings give its mean and variance. The fine-tuned side is 4 numbers, each
repeated 28 times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from workbench.checks.published import PublishedPaper, PublishedTable
from workbench.reports.papers.dp_weights.group_sizes import group_size_check
from workbench.reports.papers.dp_weights.runs import (
    COMPARISONS,
    DP_SGD,
    DP_WEIGHTS,
    EPSILONS,
    FINE_TUNED,
    GRIDS,
    INTERVAL,
    LEVEL,
    METRICS,
    MODELS,
    STATISTIC,
    WORDS,
    Grid,
    detail_tables,
)
from workbench.reports.shared.printed import (
    Interval,
    cell,
    exactly,
    printed,
    repeated_rows,
    repeated_tables,
    short,
)
from workbench.reports.shared.statements import Found
from workbench.reports.shared.statistics.student import t_quantile, two_sided_p, welch_degrees

POPULATION = (EPSILONS - 1) / EPSILONS
"""Population variance over sample variance."""


def moments(means: PublishedTable, setting: str, model: str, metric: str) -> tuple[Interval, Interval]:
    """Mean and standard deviation of a cell of Tables 1 or 2; the fine-tuned model's deviation is 0."""
    mean, spread = printed(means, (setting, MODELS[model]), metric)
    return Interval.of(mean), exactly(0.0) if model == FINE_TUNED else Interval.of(spread, floor=0.0)


# Tables 1 to 10


def rmse_check(paper: PublishedPaper) -> Found:
    """RMSE^2 = MSE and MAE <= RMSE in Tables 3 to 10."""
    failed, checked = [], 0
    for table, metric, column in _places(paper):
        rmse, mse, mae = (
            Interval.of(printed(table, (measure, metric), column)[0], floor=0.0)
            for measure in ("RMSE", "MSE", "MAE")
        )
        checked += 2
        if not rmse.squared.meets(mse):
            failed.append(f"{short(table)}, {metric}, {column}: RMSE squared is not MSE")
        if mae.lower > rmse.upper:
            failed.append(f"{short(table)}, {metric}, {column}: MAE is above RMSE")
    return Found(checked, failed)


def moment_check(paper: PublishedPaper) -> Found:
    """MSE and R^2 of Tables 3 to 10 and the coefficients of variation against Tables 1 and 2."""
    tables, good, failed, checked = [], [], [], 0
    for table, means, setting in detail_tables(paper):
        results = list(_moment_identities(table, means, setting))
        wrong = [text for text in results if text]
        checked += len(results)
        failed += [f"{short(table)}, {text}" for text in wrong]
        if not wrong:
            good.append(short(table))
            continue
        place = {"detail": short(table), "means": short(means), "header": means.row_headers[0]}
        tables.append({**place, "setting": setting, "wrong": wrong, "identities": len(results)})
    return Found(checked, failed, {"tables": tables, "good": good})


def variation_columns(paper: PublishedPaper) -> Found:
    """Whether the coefficients of variation are of single models though the columns name pairs."""
    fits = [
        _variation_fits(table, means, setting, (column, model, metric))
        for table, means, setting in detail_tables(paper)
        for column, model in zip(COMPARISONS, (DP_SGD, DP_WEIGHTS, FINE_TUNED), strict=True)
        for metric in METRICS
    ]
    return Found(len(fits), facts={"single": sum(fits)})


def wilcoxon_check(paper: PublishedPaper) -> Found:
    """Whether each printed p-value is possible for its Wilcoxon statistic with at most 28 differences.

    Allowed are the exact p-value and the normal approximation with any number of zero differences and any
    ties: what scipy computes.
    """
    failed, checked = [], 0
    for table, metric, column in _places(paper):
        statistic, p_value = printed(table, ("Wilcoxon test", metric), column)
        checked += 1
        if not wilcoxon_counts(statistic.value, Interval.of(p_value, floor=0.0)):
            where = f"{short(table)}, {metric}, {column}"
            failed.append(f"{where}: {statistic.value:g} with p = {p_value.value:g}")
    return Found(checked, failed)


def wilcoxon_counts(statistic: float, p_values: Interval, most: int = EPSILONS) -> list[int]:
    """Numbers of non-zero differences for which a signed-rank statistic may have such a p-value.

    Args:
        statistic: The smaller of the two rank sums.
        p_values: Two-sided.
        most: Largest number of differences.
    """
    from scipy.stats import norm

    counts = []
    for n in range(1, most + 1):
        mean, most_variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
        if statistic > mean:
            continue
        least_variance = most_variance - (n**3 - n) / 48  # All differences tied.
        ends = [
            2.0 * float(norm.sf((mean - statistic) / math.sqrt(v))) for v in (least_variance, most_variance)
        ]
        exact = _exact_p(statistic, n)
        if Interval(*ends).meets(p_values) or (exact is not None and exactly(exact).meets(p_values)):
            counts.append(n)
    return counts


@cache
def _exact_p(statistic: float, n: int) -> float | None:
    """Two-sided p-value of a whole rank sum without ties: 2 P(W <= statistic), at most 1."""
    if statistic != int(statistic):
        return None
    return min(1.0, float(2.0 * sum(_rank_sums(n)[: int(statistic) + 1]) / 2.0**n))


@cache
def _rank_sums(n: int) -> list[int]:
    """How many subsets of the ranks 1 to n have each sum."""
    if n == 0:
        return [1]
    without = [*_rank_sums(n - 1), *[0] * n]
    return [count + (without[total - n] if total >= n else 0) for total, count in enumerate(without)]


def _moment_identities(table: PublishedTable, means: PublishedTable, setting: str) -> Iterator[str]:
    """One text an identity: empty where it holds within rounding."""
    for metric in METRICS:
        for column, (first, second) in COMPARISONS.items():
            where = f"{metric}, {column}"
            mean, spread = moments(means, setting, first, metric)
            other_mean, other_spread = moments(means, setting, second, metric)
            correlation = printed(table, ("Pearson correlation", metric), column)[0]
            r = exactly(0.0) if math.isnan(correlation.value) else Interval.of(correlation)
            noise = _variance_of_difference(spread, other_spread, r).times(POPULATION)
            expected = (mean - other_mean).squared + noise
            number = printed(table, ("MSE", metric), column)[0]
            mse = Interval.of(number, floor=0.0)
            text = f"{where}: MSE {number.value:g} printed, {_show(expected)} from the means and deviations"
            yield "" if expected.meets(mse) else text
            variance = spread.squared.times(POPULATION)
            most = mse.upper / variance.lower if variance.lower > 0 else math.inf
            from_mse = Interval(1.0 - most, 1.0 - mse.lower / variance.upper)
            number = printed(table, ("R² score", metric), column)[0]
            text = f"{where}: R² {number.value:g} printed, {_show(from_mse)} from the MSE"
            yield "" if from_mse.meets(Interval.of(number)) else text
        for column, model in zip(COMPARISONS, (DP_SGD, DP_WEIGHTS), strict=False):
            fits = _variation_fits(table, means, setting, (column, model, metric))
            yield "" if fits else f"{metric}: coefficient of variation of {model}"


def _variance_of_difference(s: Interval, t: Interval, r: Interval) -> Interval:
    """Range of s^2 + t^2 - 2 r s t over the box (s, t >= 0): linear in r, convex in s and t for |r| <= 1."""
    values = []
    for rho in (r.lower, r.upper):
        corners = [(a, b) for a in (s.lower, s.upper) for b in (t.lower, t.upper)]
        corners += [(a, min(max(rho * a, t.lower), t.upper)) for a in (s.lower, s.upper)]
        corners += [(min(max(rho * b, s.lower), s.upper), b) for b in (t.lower, t.upper)]
        values += [a * a + b * b - 2.0 * rho * a * b for a, b in corners]
    return Interval(min(values), max(values))


def _variation_fits(
    table: PublishedTable, means: PublishedTable, setting: str, place: tuple[str, str, str]
) -> bool:
    """Whether a coefficient of variation is one model's deviation over its mean."""
    column, model, metric = place
    mean, spread = moments(means, setting, model, metric)
    coefficient = printed(table, ("Coefficient of Variation", metric), column)[0]
    if model == FINE_TUNED:
        return abs(coefficient.value) < 1e-12
    return Interval(spread.lower / mean.upper, spread.upper / mean.lower).meets(Interval.of(coefficient))


def _places(paper: PublishedPaper) -> Iterator[tuple[PublishedTable, str, str]]:
    for table, _, _ in detail_tables(paper):
        for metric in METRICS:
            for column in COMPARISONS:
                yield table, metric, column


def _show(interval: Interval) -> str:
    return f"{interval.lower:.4g} to {interval.upper:.4g}"


# Sections 4.3 and 4.4


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The numbers of a t-test that follow from Tables 1 or 2, as intervals.

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


def sides_of(paper: PublishedPaper, grid: Grid, metric: str, column: str) -> Sides:
    """The two sides of a t-test from the table of means."""
    means, variances = [], []
    count = EPSILONS * len(grid.details)
    for model in COMPARISONS[column]:
        settings = [moments(paper.table(grid.means), str(value), model, metric) for value in grid.details]
        total, squares = exactly(0.0), exactly(0.0)
        for mean, _ in settings:
            total = total + mean
        grand = total.times(1.0 / len(settings))
        for mean, spread in settings:
            squares = squares + spread.squared.times(EPSILONS - 1) + (mean - grand).squared.times(EPSILONS)
        means.append(grand)
        variances.append(squares.times(1.0 / ((count - 1) * count)))
    both = variances[0] + variances[1]
    return Sides(
        difference=means[0] - means[1],
        standard_error=Interval(math.sqrt(both.lower), math.sqrt(both.upper)),
        variances=(variances[0], variances[1]),
        values=count,
    )


def t_test_checks(paper: PublishedPaper) -> dict[str, Found]:
    """Statistics, p-values and intervals of sections 4.3 and 4.4, recomputed."""
    failed: dict[str, list[str]] = {"t statistics": [], "p-values": [], "middles": []}
    fits = {"Student": 0, "Welch": 0}
    tests = list(_tests(paper))
    for grid, metric, column, place in tests:
        sides, row = sides_of(paper, grid, metric, column), (metric, column)
        t, p = printed(paper.table(grid.tests), row, STATISTIC)
        low, high = (Interval.of(end) for end in printed(paper.table(grid.tests), row, INTERVAL))
        student = 2.0 * sides.values - 2.0
        if not _ratio(sides.difference, sides.standard_error).meets(Interval.of(t)):
            failed["t statistics"].append(f"{place}: t = {t.value:g}")
        if not _p_interval(Interval.of(t), student).meets(Interval.of(p, floor=0.0)):
            failed["p-values"].append(f"{place}: t = {t.value:g} with p = {p.value:g}")
        if not (low + high).times(0.5).meets(sides.difference):
            failed["middles"].append(f"{place}: ({low.lower:g}, {high.upper:g})")
        first, second = (0.5 * (side.lower + side.upper) for side in sides.variances)
        for name, degrees in (("Student", student), ("Welch", welch_degrees(first, second, sides.values))):
            reach = sides.standard_error.times(t_quantile(1.0 - LEVEL / 2.0, degrees))
            fits[name] += (sides.difference - reach).meets(low) and (sides.difference + reach).meets(high)
    follow = len(tests) - len(failed["t statistics"])
    return {
        **{name: Found(len(tests), some) for name, some in failed.items()},
        "kind of confidence interval": Found(len(tests), facts=fits),
        "replicates": Found(len(tests), facts={"follow": follow}),
    }


def word_checks(paper: PublishedPaper) -> dict[str, Found]:
    """The interpretations against the p-values and signs, and the summaries against the interpretations."""
    failed: dict[str, list[str]] = {"words": [], "intervals and p-values": [], "summaries": []}
    tests = list(_tests(paper))
    for grid, metric, column, place in tests:
        section, summary = paper.table(grid.tests), paper.table(grid.summary)
        t, p = printed(section, (metric, column), STATISTIC)
        low, high = printed(section, (metric, column), INTERVAL)
        interpretation = cell(paper, grid.tests, (metric, column), WORDS).printed
        if interpretation.startswith("not") == (p.value < LEVEL):
            failed["words"].append(f"{place}: {interpretation} with p = {p.value:g}")
        elif interpretation.endswith(("higher", "lower")) and interpretation.endswith("higher") != (
            t.value > 0
        ):
            failed["words"].append(f"{place}: {interpretation} with t = {t.value:g}")
        excludes = low.value - low.half_unit > 0 or high.value + high.half_unit < 0
        contains = low.value + low.half_unit < 0 < high.value - high.half_unit
        if (excludes and p.value >= LEVEL) or (contains and p.value < LEVEL):
            text = f"{place}: ({low.value:g}, {high.value:g}) with p = {p.value:g}"
            failed["intervals and p-values"].append(text)
        summed, facts = cell(paper, grid.summary, (metric,), column).printed, failed["summaries"]
        if summed.startswith("not") != interpretation.startswith("not"):
            facts.append(
                f"{summary.place} says of {metric}, {column}: {summed}; {section.place} say: "
                f"{interpretation}, p = {p.value:g}"
            )
        if summed.endswith("first worse") and (t.value < 0) == metric.startswith("perplexity"):
            first, second = COMPARISONS[column]
            facts.append(
                f"{summary.place} says that {first} is worse in {metric} than {second}; {section.place} find "
                f"it better (t = {t.value:g})"
            )
    return {name: Found(len(tests), some) for name, some in failed.items()}


def _tests(paper: PublishedPaper) -> Iterator[tuple[Grid, str, str, str]]:
    """Grid, metric, pair and place of each t-test."""
    for grid in GRIDS.values():
        for metric in METRICS:
            for column in COMPARISONS:
                yield grid, metric, column, f"{paper.table(grid.tests).place}, {metric}, {column}"


def _ratio(top: Interval, bottom: Interval) -> Interval:
    """Range of a quotient with a positive divisor."""
    values = [a / b for a in (top.lower, top.upper) for b in (bottom.lower, bottom.upper)]
    return Interval(min(values), max(values))


def _p_interval(t: Interval, degrees: float) -> Interval:
    """Two-sided p-values of all t in an interval."""
    least = 0.0 if t.lower <= 0.0 <= t.upper else min(abs(t.lower), abs(t.upper))
    most = max(abs(t.lower), abs(t.upper))
    return Interval(two_sided_p(most, degrees), two_sided_p(least, degrees))


# Sections 4.2 and 5.1.3


def repeated_setting(paper: PublishedPaper) -> Found:
    """Rows that Tables 1 and 2 share although the one grid holds fixed what the other varies."""
    first, second = (paper.table(grid.means) for grid in GRIDS.values())
    repeated = repeated_rows(first, second)
    fixed = first.settings["epochs"]
    shared = [
        cell.row[0]
        for cell in second.cells
        if any(f"epochs {cell.row[0]}," in text for text in repeated.failed)
    ]
    facts = {"fixed": fixed, "one": short(first), "other": short(second)}
    return Found(repeated.checked, () if fixed in shared else repeated.failed, facts)


def composition_check(paper: PublishedPaper) -> Found:
    """The delta of section 4.2 against delta = 1 / N^2 (section 3.1) with the N of section 3.2."""
    section = paper.table("section-4.2")
    times, epsilon, delta = (
        printed(section, (row,), "value")[0] for row in ("compositions", "composed epsilon", "composed delta")
    )
    single = float(section.settings["epsilon"])
    from_delta = Interval.of(delta).times(1.0 / (times.value + 1.0))
    from_epsilon = math.exp(-((epsilon.value / single) ** 2) / (2.0 * times.value))
    records = int(paper.table("table-1").settings["members"])
    facts = {
        "wrong": not exactly(records**-2.0).meets(from_delta),
        "place": section.place,
        "from_epsilon": from_epsilon,
        "agree": exactly(from_epsilon).meets(from_delta),
        "from_delta": delta.value / (times.value + 1.0),
        "times": times.value,
        "stated": records**-2.0,
        "records": records,
    }
    return Found(2, facts=facts)


def _named(
    checks: Callable[[PublishedPaper], Mapping[str, Found]], name: str, paper: PublishedPaper
) -> Found:
    return checks(paper)[name]


T_TESTS = ("t statistics", "p-values", "middles", "kind of confidence interval", "replicates")

CHECKS: Mapping[str, Callable[[PublishedPaper], Any]] = {
    "repeated tables": repeated_tables,
    "moments": moment_check,
    "repeated setting": repeated_setting,
    "RMSE": rmse_check,
    "Wilcoxon": wilcoxon_check,
    **{name: partial(_named, t_test_checks, name) for name in T_TESTS},
    **{name: partial(_named, word_checks, name) for name in ("words", "intervals and p-values", "summaries")},
    "columns of the coefficients of variation": variation_columns,
    "group sizes": group_size_check,
    "delta of the composition": composition_check,
}
