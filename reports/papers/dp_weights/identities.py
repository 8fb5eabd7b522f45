"""Identities that the printed numbers of DP-Weights must satisfy, each with its rounding.

With x and y the two models' values over the n = 28 epsilons, s the sample standard deviation and r Pearson's
correlation: MSE = (mean x - mean y)^2 + (s_x^2 + s_y^2 - 2 r s_x s_y) (n - 1) / n; R^2 = 1 - MSE over
s_x^2 (n - 1) / n (the first model is taken for the truth); RMSE^2 = MSE; MAE <= RMSE. The fine-tuned
model has no epsilon: s_y = 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from workbench.checks.published import PublishedPaper, PublishedTable
from workbench.reports.papers.dp_weights.layout import (
    COMPARISONS,
    DP_SGD,
    DP_WEIGHTS,
    EPSILONS,
    FINE_TUNED,
    METRICS,
    MODELS,
    detail_tables,
)
from workbench.reports.shared.published_checks import Check, Interval, printed, short

POPULATION = (EPSILONS - 1) / EPSILONS
"""Population variance over sample variance."""


def moments(means: PublishedTable, setting: str, model: str, metric: str) -> tuple[Interval, Interval]:
    """Mean and standard deviation of a cell of Tables 1 or 2; the fine-tuned model's deviation is 0."""
    mean, spread = printed(means, (setting, MODELS[model]), metric)
    return Interval.of(mean), Interval(0.0, 0.0) if model == FINE_TUNED else Interval.of(spread, floor=0.0)


def rmse_checks(paper: PublishedPaper) -> Check:
    """RMSE^2 = MSE and MAE <= RMSE in Tables 3 to 10."""
    failed: list[str] = []
    checked = 0
    for table, metric, column in _places(paper):
        rmse = Interval.of(printed(table, ("RMSE", metric), column)[0], floor=0.0)
        mse = Interval.of(printed(table, ("MSE", metric), column)[0], floor=0.0)
        mae = Interval.of(printed(table, ("MAE", metric), column)[0], floor=0.0)
        checked += 2
        if not rmse.squared.meets(mse):
            failed.append(f"{short(table)}, {metric}, {column}: RMSE squared is not MSE")
        if mae.lower > rmse.upper:
            failed.append(f"{short(table)}, {metric}, {column}: MAE is above RMSE")
    return _check("RMSE", checked, failed, "RMSE, MSE and MAE do not fit each other")


def moment_checks(paper: PublishedPaper) -> Check:
    """MSE and R^2 of Tables 3 to 10 and the coefficients of variation against Tables 1 and 2."""
    lines: list[str] = []
    good: list[str] = []
    failed: list[str] = []
    checked = 0
    for table, means, setting in detail_tables(paper):
        results = list(_moment_identities(table, means, setting))
        wrong = [text for text in results if text]
        checked += len(results)
        failed.extend(f"{short(table)}, {text}" for text in wrong)
        if wrong:
            lines.append(
                f"{short(table)} cannot be about the models of {short(means)}, {means.row_headers[0]} "
                f"{setting}: {len(wrong)} of {len(results)} identities between means, standard deviations, "
                f"MSE, R² and coefficients of variation fail beyond rounding, e.g. {wrong[0]}"
            )
        else:
            good.append(short(table))
    if lines and good:
        lines.append(f"all of these identities hold in {', '.join(good)}")
    return Check(
        name="moments",
        checked=checked,
        failed=tuple(failed),
        finding="; ".join(lines),
        contradiction=bool(failed),
    )


def variation_columns(paper: PublishedPaper) -> Check:
    """Whether the coefficients of variation are of single models though the columns name pairs."""
    single = 0
    total = 0
    for table, means, setting in detail_tables(paper):
        for column, model in zip(COMPARISONS, (DP_SGD, DP_WEIGHTS, FINE_TUNED), strict=True):
            for metric in METRICS:
                total += 1
                single += _variation_fits(table, means, setting, (column, model, metric))
    most = single > total / 2
    return Check(
        name="columns of the coefficients of variation",
        checked=total,
        finding=(
            f"Tables 3 to 10 head the coefficients of variation with pairs of models, but {single} of "
            f"{total} are the standard deviation over the mean of one model: DP-SGD, DP-Weights and "
            "fine-tuned in this order"
        )
        if most
        else "",
        contradiction=most,
    )


def wilcoxon_checks(paper: PublishedPaper) -> Check:
    """Whether each printed p-value is possible for its Wilcoxon statistic with at most 28 differences.

    Allowed are the exact p-value and the normal approximation with any number of zero differences and any
    ties: what scipy computes.
    """
    failed: list[str] = []
    checked = 0
    for table, metric, column in _places(paper):
        statistic, p_value = printed(table, ("Wilcoxon test", metric), column)
        checked += 1
        if not wilcoxon_counts(statistic.value, Interval.of(p_value, floor=0.0)):
            failed.append(
                f"{short(table)}, {metric}, {column}: {statistic.value:g} with p = {p_value.value:g}"
            )
    return _check(
        "Wilcoxon", checked, failed, "No 28 differences give these Wilcoxon statistics their p-values"
    )


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
        if Interval(*ends).meets(p_values) or (exact is not None and Interval(exact, exact).meets(p_values)):
            counts.append(n)
    return counts


@cache
def _exact_p(statistic: float, n: int) -> float | None:
    """Two-sided p-value of a whole rank sum without ties: 2 P(W <= statistic), at most 1."""
    if statistic != int(statistic):
        return None
    ways = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return min(1.0, float(2.0 * sum(ways[: int(statistic) + 1]) / 2.0**n))


def _moment_identities(table: PublishedTable, means: PublishedTable, setting: str) -> Iterator[str]:
    """One text an identity: empty where it holds within rounding."""
    for metric in METRICS:
        for column, (first, second) in COMPARISONS.items():
            where = f"{metric}, {column}"
            mean, spread = moments(means, setting, first, metric)
            other_mean, other_spread = moments(means, setting, second, metric)
            correlation = printed(table, ("Pearson correlation", metric), column)[0]
            r = Interval(0.0, 0.0) if math.isnan(correlation.value) else Interval.of(correlation)
            noise = _variance_of_difference(spread, other_spread, r).times(POPULATION)
            expected = (mean - other_mean).squared + noise
            shown = printed(table, ("MSE", metric), column)[0]
            mse = Interval.of(shown, floor=0.0)
            text = f"{where}: MSE {shown.value:g} printed, {_show(expected)} from the means and deviations"
            yield "" if expected.meets(mse) else text
            variance = spread.squared.times(POPULATION)
            from_mse = Interval(
                1.0 - (mse.upper / variance.lower if variance.lower > 0 else math.inf),
                1.0 - mse.lower / variance.upper,
            )
            shown = printed(table, ("R² score", metric), column)[0]
            text = f"{where}: R² {shown.value:g} printed, {_show(from_mse)} from the MSE"
            yield "" if from_mse.meets(Interval.of(shown)) else text
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


def _check(name: str, checked: int, failed: list[str], finding: str) -> Check:
    return Check(
        name=name,
        checked=checked,
        failed=tuple(failed),
        finding=f"{finding}: {'; '.join(failed)}" if failed else "",
        contradiction=bool(failed),
    )


def _show(interval: Interval) -> str:
    return f"{interval.lower:.4g} to {interval.upper:.4g}"
