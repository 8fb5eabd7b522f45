"""Whether Shuffled DPSGD's printed cells bear out its own conclusions, each by its stated test.

A cell counts against a conclusion only beyond its rounding. Conclusions that stand on a figure alone
(test `figure`) have no cells, and nothing that is printed can contradict them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import centre, check, setting_named, value_at
from workbench.reports.shared.published_checks import SLACK, Check, Interval

SHOWN = 4
"""Most contradicting places that a sentence lists."""

Setting = Mapping[str, Any]


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    """Where the paper's own cells contradict a conclusion beyond their rounding; empty where they do not.

    Args:
        paper: Shuffled DPSGD's printed numbers.
        claim: One of its claims.

    Raises:
        InputError: the claim's test is not one of those at the head of
            `data/published/shuffled_dp_sgd.toml`.
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
    claims = [claim for claim in paper.claims if claim.test != "figure"]
    failed = []
    for claim in claims:
        text = contradictions(paper, claim)
        if text:
            failed.append(f"{claim.place}: {claim.statement.rstrip('.')} ({text.partition(': ')[0]})")
    start = (
        f"{len(failed)} of {len(claims)} conclusions are contradicted by cells that the paper prints (the "
        "cells stand with each conclusion): "
    )
    return check("conclusions", len(claims), failed, start=start)


def _equal(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for one, other in parameters["pairs"]:
        first, second = _pair(paper, (one, other))
        overlap = min(first.upper, second.upper) - max(first.lower, second.lower)
        yield "" if overlap > SLACK else _versus(one, first, other, second)


def _higher(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for one, other in parameters["pairs"]:
        first, second = _pair(paper, (one, other))
        yield _versus(one, first, other, second) if first.upper < second.lower - SLACK else ""


def _mostly_higher(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    """The pairs that are against it, if they are too many."""
    texts = list(_higher(paper, parameters))
    against = sum(bool(text) for text in texts)
    too_many = against > (1.0 - parameters["share"]) * len(texts) + SLACK
    yield from texts if too_many else [""] * len(texts)


def _at_most(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for one, other in parameters["pairs"]:
        first, second = _pair(paper, (one, other))
        yield _versus(one, first, other, second) if first.lower > second.upper + SLACK else ""


def _within(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    allowed = _largest(parameters["margin"])
    for one, other in parameters["pairs"]:
        first, second = _pair(paper, (one, other))
        yield _versus(one, first, other, second) if (second - first).lower > allowed else ""


def _keeps(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for one, other in parameters["pairs"]:
        first, second = _pair(paper, (one, other))
        wanted = parameters["share"] * second.lower
        yield _versus(one, first, other, second) if first.upper < wanted - SLACK else ""


def _above(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for setting in parameters["settings"]:
        one = value_at(paper, setting["cell"])
        yield f"{setting_named(setting)}: {centre(one):g}" if one.upper < parameters["level"] else ""


def _near_chance(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    chance, margin = parameters["chance"], parameters["margin"]
    for setting in parameters["settings"]:
        one = value_at(paper, setting["cell"])
        apart = max(one.lower - chance, chance - one.upper)
        yield f"{setting_named(setting)}: {centre(one):g}" if apart > margin + SLACK else ""


def _flat(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for group in parameters["groups"]:
        values = [value_at(paper, setting["cell"]) for setting in group]
        span = max(one.lower for one in values) - min(one.upper for one in values)
        middles = [centre(one) for one in values]
        text = f"{setting_named(group[0])} on: spans {max(middles) - min(middles):.3g}"
        yield text if span > parameters["span"] + SLACK else ""


def _gain_falls(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for group in parameters["groups"]:
        for one, other in pairwise(group):
            first, second = _gain(paper, one), _gain(paper, other)
            text = f"{setting_named(one[0])}: {centre(first):+.4g}, then {centre(second):+.4g}"
            yield text if second.lower > first.upper + SLACK else ""


def _gain_largest_first(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for first_pair, *others in parameters["groups"]:
        first = _gain(paper, first_pair)
        for other in others:
            second = _gain(paper, other)
            text = f"{setting_named(first_pair[0])}: {centre(first):+.4g}, but {centre(second):+.4g} at "
            yield text + setting_named(other[0]) if second.lower > first.upper + SLACK else ""


def _smaller_gap(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    for one, other in parameters["gaps"]:
        first, second = _gain(paper, (one[1], one[0])), _gain(paper, (other[1], other[0]))
        text = f"{setting_named(one[0])}: {centre(first):.4g} against {centre(second):.4g}"
        yield text if first.lower > second.upper + SLACK else ""


def _share(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    allowed = _largest(parameters["percent"])
    for one, other in parameters["pairs"]:
        first, second = _pair(paper, (one, other))
        percent = 100.0 * first.lower / second.upper
        yield f"{setting_named(one)}: {percent:.3g} %" if percent > allowed else ""


def _overhead(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    allowed = _largest(parameters["percent"])
    for one, other in parameters["pairs"]:
        first, second = _pair(paper, (one, other))
        least = 100.0 * (1.0 - second.upper / first.lower)
        middle = 100.0 * (1.0 - centre(second) / centre(first))
        yield f"{setting_named(one)}: {middle:.2g} %" if least > allowed else ""


def _figure(paper: PublishedPaper, parameters: Setting) -> Iterator[str]:
    yield from [""] * len(parameters["settings"])


TESTS: dict[str, Callable[[PublishedPaper, Setting], Iterator[str]]] = {
    "equal": _equal,
    "higher": _higher,
    "mostly higher": _mostly_higher,
    "at most": _at_most,
    "within": _within,
    "keeps": _keeps,
    "above": _above,
    "near chance": _near_chance,
    "flat": _flat,
    "gain falls": _gain_falls,
    "gain largest first": _gain_largest_first,
    "smaller gap": _smaller_gap,
    "share": _share,
    "overhead": _overhead,
    "figure": _figure,
}
"""By the names at the head of the file of printed numbers; each gives a text a place, else empty."""


def _pair(paper: PublishedPaper, pair: Sequence[Setting]) -> tuple[Interval, Interval]:
    one, other = pair
    return value_at(paper, one["cell"]), value_at(paper, other["cell"])


def _gain(paper: PublishedPaper, pair: Sequence[Setting]) -> Interval:
    """First less second."""
    first, second = _pair(paper, pair)
    return first - second


def _largest(stated: float) -> float:
    """The largest number that prints as a stated one, with the slack of our arithmetic."""
    digits = len(f"{stated}".partition(".")[2])
    return float(stated) + 0.5 * 10.0**-digits + SLACK


def _versus(one: Setting, first: Interval, other: Setting, second: Interval) -> str:
    return (
        f"{setting_named(one)}: {centre(first):g} against {centre(second):g} of {setting_named(other)} "
        f"({centre(first) - centre(second):+.4g})"
    )
