"""Whether PACZero's printed cells bear out its own conclusions, each by its stated test.

A cell counts against a conclusion only beyond its rounding; "at chance" by an exact binomial test over the
1/872 of SST-2's test records, at 0.05 over the number of settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.paczero.paper_cells import (
    TEST_RECORDS,
    at,
    centre,
    check,
    count_of,
    setting_named,
    stands_for,
)
from workbench.reports.shared.published_checks import SLACK, Check, Interval

SHOWN = 4
"""Most contradicting places that a sentence lists."""

LEVEL = 0.05


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    """Where the paper's own cells contradict a conclusion beyond their rounding; empty where they do not.

    Args:
        paper: PACZero's printed numbers.
        claim: One of its claims.

    Raises:
        InputError: the claim's test is not one of those at the head of `data/published/paczero.toml`.
        KeyError: a setting's `cell` is not printed.
    """
    if claim.test not in TESTS:
        raise unknown_name(f"test of claim {claim.id!r}:", claim.test, TESTS)
    texts = list(TESTS[claim.test](paper, claim.parameters))
    found = [text for text in texts if text]
    if not found:
        return ""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{len(found)} of {len(texts)} printed: {'; '.join(found[:SHOWN])}{more}"


def claim_check(paper: PublishedPaper) -> Check:
    """Which conclusions the paper's own cells contradict."""
    failed = []
    for claim in paper.claims:
        text = contradictions(paper, claim)
        if text:
            failed.append(f"{claim.place}: {claim.statement.rstrip('.')} ({text.partition(': ')[0]})")
    start = (
        f"{len(failed)} of {len(paper.claims)} conclusions are contradicted by cells that the paper prints "
        "(the cells stand with each conclusion): "
    )
    return check("conclusions", len(paper.claims), failed, start=start)


def _higher(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    for one, other in parameters["pairs"]:
        first, second = (stands_for(at(paper, setting["cell"])) for setting in (one, other))
        yield _versus(one, first, other, second) if first.upper < second.lower - SLACK else ""


def _within(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    allowed = _allowed(parameters["margin"])
    for one, other in parameters["pairs"]:
        first, second = (stands_for(at(paper, setting["cell"])) for setting in (one, other))
        yield _versus(one, first, other, second) if (second - first).lower > allowed else ""


def _like(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    allowed = _allowed(parameters["margin"])
    for one, other in parameters["pairs"]:
        first, second = (stands_for(at(paper, setting["cell"])) for setting in (one, other))
        apart = max((second - first).lower, (first - second).lower)
        yield _versus(one, first, other, second) if apart > allowed else ""


def _flat(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    values = [stands_for(at(paper, setting["cell"])) for setting in parameters["settings"]]
    span = max(one.lower for one in values) - min(one.upper for one in values)
    text = f"spans {max(map(centre, values)) - min(map(centre, values)):.2f} points"
    yield text if span > _allowed(parameters["span"]) else ""


def _falls(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    for one, other in pairwise(parameters["settings"]):
        first, second = (stands_for(at(paper, setting["cell"])) for setting in (one, other))
        text = f"{setting_named(one)}: {centre(first):g}, then {centre(second):g}"
        yield text if second.lower > first.upper + SLACK else ""


def _at_chance(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    settings, chance = parameters["settings"], parameters["chance"] / 100.0
    for setting in settings:
        one = at(paper, setting["cell"])
        p_value = chance_p(one.value, chance)
        text = f"{setting_named(setting)}: {one.value:g} %, p = {p_value:.2g}"
        yield text if p_value * len(settings) < LEVEL else ""


def _above_chance(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    for setting in parameters["settings"]:
        one = stands_for(at(paper, setting["cell"]))
        yield f"{setting_named(setting)}: {centre(one):g} %" if one.upper < parameters["chance"] else ""


def _budget_kept(paper: PublishedPaper, parameters: Mapping[str, Any]) -> Iterator[str]:
    for setting in parameters["settings"]:
        one = stands_for(at(paper, setting["cell"]))
        text = f"{setting_named(setting)}: {centre(one):g} nats"
        yield text if one.lower > setting["nats"] * (1.0 + SLACK) else ""


TESTS: dict[str, Callable[[PublishedPaper, Mapping[str, Any]], Iterator[str]]] = {
    "higher": _higher,
    "within": _within,
    "like": _like,
    "flat": _flat,
    "falls": _falls,
    "at chance": _at_chance,
    "above chance": _above_chance,
    "budget kept": _budget_kept,
}
"""By the names at the head of `data/published/paczero.toml`; each gives a text a place, else empty."""


def chance_p(percent: float, chance: float = 0.5, records: int = TEST_RECORDS) -> float:
    """Two-sided exact p-value of "the accuracy is `chance`".

    Args:
        percent: Printed accuracy.
        chance: In (0, 1).
        records: It is a share of.
    """
    from scipy import stats

    return float(stats.binomtest(count_of(percent, records), records, chance).pvalue)


def _allowed(margin: float) -> float:
    """The largest number that prints as the margin, with the slack of our arithmetic."""
    digits = -int(Decimal(str(margin)).as_tuple().exponent)
    return float(margin) + 0.5 * 10.0**-digits + SLACK


def _versus(one: Mapping[str, Any], first: Interval, other: Mapping[str, Any], second: Interval) -> str:
    gap = centre(first) - centre(second)
    return (
        f"{setting_named(one)}: {centre(first):g} against {centre(second):g} of {setting_named(other)} "
        f"({gap:+.2f})"
    )
