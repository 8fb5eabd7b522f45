"""Whether DP-Weights' printed numbers bear out its own conclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.dp_weights.comparisons import Comparison, Place
from workbench.reports.papers.dp_weights.layout import GRIDS, METRIC_WORDS, MODELS
from workbench.reports.papers.dp_weights.t_tests import LEVEL, STATISTIC
from workbench.reports.shared.published_checks import printed, short


def contradictions(
    paper: PublishedPaper, alike: bool, parameters: Mapping[str, Any], comparisons: Sequence[Comparison]
) -> str:
    """Where the printed numbers contradict a conclusion, by the paper's own criterion; else empty.

    Args:
        paper: The printed numbers.
        alike: Whether the conclusion is that nothing differs.
        parameters: Of the conclusion: `direction`.
        comparisons: What it compares.
    """
    direction = str(parameters.get("direction", ""))
    texts = [_contradiction(paper, alike, direction, one.place) for one in comparisons]
    return "; ".join(text for text in texts if text)


def _contradiction(paper: PublishedPaper, alike: bool, direction: str, place: Place) -> str:
    table, statistic, p_value, difference = printed_comparison(paper, place)
    setting = "" if place.value is None else f", {place.group} {place.value}"
    where = f"{table} print" if table.startswith("Sections") else f"{table} prints"
    where = (
        f"{where} {statistic}, p = {p_value:g} for {METRIC_WORDS[place.metric]}{setting}, {place.first} less "
        f"{place.second}"
    )
    if alike:
        return f"{where}: significant" if p_value < LEVEL else ""
    if p_value >= LEVEL:
        return f"{where}: not significant"
    if direction and difference != 0.0 and (difference > 0.0) != (direction == "higher"):
        return f"{where}: the first is {'higher' if difference > 0 else 'lower'}, not {direction}"
    return ""


def printed_comparison(paper: PublishedPaper, place: Place) -> tuple[str, str, float, float]:
    """Where a comparison is printed, its statistic in words, its p-value, and first less second.

    One setting's is the Wilcoxon test of its table, with the difference of means of Tables 1 or 2; all
    settings together are the t-test of section 4.3 or 4.4.
    """
    grid = GRIDS[place.group]
    if place.value is None:
        section = paper.table(grid.tests)
        t, p = printed(section, (place.metric, place.column), STATISTIC)
        return section.place, f"t = {t.value:g}", p.value, t.value
    table, means = paper.table(grid.details[place.value]), paper.table(grid.means)
    w, p = printed(table, ("Wilcoxon test", place.metric), place.column)
    one, other = (
        printed(means, (str(place.value), MODELS[model]), place.metric)[0]
        for model in (place.first, place.second)
    )
    return short(table), f"W = {w.value:g}", p.value, one.value - other.value
