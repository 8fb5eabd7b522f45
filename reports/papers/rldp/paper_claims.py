"""Whether RLDP's printed cells bear out its own conclusions, each by its stated test.

A cell counts against a conclusion only beyond its rounding. Conclusions about figures, schedules, ablations
and times have no cells, and nothing that is printed can contradict them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.rldp.paper_cells import (
    METHODS,
    MODELS,
    centre,
    check,
    drops,
    joined,
    mean,
    membership,
    said,
    shares,
    similarity,
    stands_for,
    valid,
)
from workbench.reports.shared.published_checks import SLACK, Check, Interval

WITHOUT_CELLS = (
    "varies less",
    "noise rises",
    "noise falls",
    "radii widen",
    "ledger",
    "every configuration",
    "short interval",
    "not measured",
)
"""Tests of conclusions that no printed cell is about."""

Places = Iterator[str]


def contradictions(paper: PublishedPaper, claim: QualitativeClaim) -> str:
    """Where the paper's own cells contradict a conclusion beyond their rounding; empty where they do not.

    Args:
        paper: RLDP's printed numbers.
        claim: One of its claims.

    Raises:
        InputError: the claim's test is not one of those at the head of `data/published/rldp.toml`.
    """
    if claim.test in WITHOUT_CELLS:
        return ""
    if claim.test not in TESTS:
        raise unknown_name(f"test of claim {claim.id!r}:", claim.test, [*TESTS, *WITHOUT_CELLS])
    texts = list(TESTS[claim.test](paper, claim))
    found = [text for text in texts if text]
    return f"{len(found)} of {len(texts)} printed: {joined(found)}" if found else ""


def claim_check(paper: PublishedPaper) -> Check:
    """Which conclusions the paper's own cells contradict."""
    claims = [claim for claim in paper.claims if claim.test not in WITHOUT_CELLS]
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


def _settings(claim: QualitativeClaim) -> Iterator[tuple[str, str]]:
    for model in claim.parameters["models"]:
        for budget in claim.parameters["budgets"]:
            yield model, f"{budget:g}"


def _drop(paper: PublishedPaper, model: str, budget: str) -> Interval:
    return drops(paper, model)[["0.5", "2", "4", "5", "8"].index(budget)]


def _lower(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    for model, budget in _settings(claim):
        low = _drop(paper, model, budget)
        yield f"{model}, epsilon {budget}: {centre(low):.3g} %" if low.upper < 0.0 else ""


def _mean_gain(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    found = mean([_drop(paper, *at) for at in _settings(claim)])
    yield f"{centre(found):.3g} %" if found.upper < 0.0 else ""


def _gain_in_range(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    low, high = _ends(claim.parameters["low"])[0], _ends(claim.parameters["high"])[1]
    for model, budget in _settings(claim):
        found = _drop(paper, model, budget)
        outside = found.upper < low or found.lower > high
        yield f"{model}, epsilon {budget}: {centre(found):.3g} %" if outside else ""


def _gain_larger(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    first, second = (f"{budget:g}" for budget in claim.parameters["budgets"])
    for model in claim.parameters["models"]:
        one, other = _drop(paper, model, first), _drop(paper, model, second)
        text = f"{model}: {centre(one):.3g} % at {first}, {centre(other):.3g} % at {second}"
        yield text if one.upper < other.lower else ""


def _steps_at_most(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    most = _ends(claim.parameters["percent"])[1]
    for model, budget in _settings(claim):
        found = shares(paper, (model,))[["0.5", "2", "4", "5", "8"].index(budget)]
        yield f"{model}, epsilon {budget}: {centre(found):g} % in Table 3" if found.lower > most else ""


def _mean_steps(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    found = mean(shares(paper, MODELS))
    yield f"{centre(found):.3g} %" if found.lower > _ends(claim.parameters["percent"])[1] else ""


def _area_at_most(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    for model, budget in _settings(claim):
        theirs = {
            name: stands_for(membership(paper, model, budget, name, "AUC"))
            for name in claim.parameters["others"]
        }
        lowest = min(theirs, key=lambda name: centre(theirs[name]))
        for name in claim.parameters["methods"]:
            own = stands_for(membership(paper, model, budget, name, "AUC"))
            text = (
                f"{model}, epsilon {budget}: {name} {centre(own):.3f}, {lowest} {centre(theirs[lowest]):.3f}"
            )
            yield text if own.lower > theirs[lowest].upper + SLACK else ""


def _area_nearer(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    for model, budget in _settings(claim):
        for name in claim.parameters["methods"]:
            own = abs(centre(stands_for(membership(paper, model, budget, name, "AUC"))) - 0.5)
            for other in claim.parameters["others"]:
                theirs = abs(centre(stands_for(membership(paper, model, budget, other, "AUC"))) - 0.5)
                text = f"{model}, epsilon {budget}: {name} is {own:.3f} from 1/2, {other} {theirs:.3f}"
                yield text if own > theirs + 0.001 + SLACK else ""


def _mostly_lowest(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    texts = []
    for model, budget in _settings(claim):
        for name in claim.parameters["methods"]:
            own = stands_for(similarity(paper, 1, model, budget, name))
            theirs = {
                other: stands_for(similarity(paper, 1, model, budget, other))
                for other in claim.parameters["others"]
            }
            least = min(theirs, key=lambda other: centre(theirs[other]))
            above = own.lower >= theirs[least].upper - SLACK
            text = f"{model}, epsilon {budget}: {centre(own):g}, {least} {centre(theirs[least]):g}"
            texts.append(text if above else "")
    against = sum(bool(text) for text in texts)
    too_many = against > (1.0 - claim.parameters["share"]) * len(texts) + SLACK
    yield from texts if too_many else [""] * len(texts)


def _similarity_below(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    for n in claim.parameters["n"]:
        factor = 1e-7 if n == 4 else 1.0
        for model, budget in _settings(claim):
            for name in METHODS:
                found = stands_for(similarity(paper, n, model, budget, name)).times(factor)
                text = f"Table {5 + n}, {model}, epsilon {budget}, {name}: {centre(found):g}"
                yield text if found.lower >= claim.parameters["level"] else ""


def _at_most_the_largest(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    for n in claim.parameters["n"]:
        for model, budget in _settings(claim):
            theirs = [similarity(paper, n, model, budget, name) for name in claim.parameters["others"]]
            largest = max(theirs, key=lambda found: found.value)
            for name in claim.parameters["methods"]:
                own = similarity(paper, n, model, budget, name)
                above = stands_for(own).lower >= stands_for(largest).upper - SLACK
                text = f"Table {5 + n}, {model}, epsilon {budget}: {name} {own.printed}, largest "
                f"{largest.printed}"
                yield text if above else ""


def _alike(paper: PublishedPaper, claim: QualitativeClaim) -> Places:
    allowed = claim.parameters["percent"] / 100.0 * said(paper, "section 3.3", "generations").value
    names = [*claim.parameters["methods"], *claim.parameters["others"]]
    for model, budget in _settings(claim):
        counts = [valid(paper, 1, model, budget, name).value for name in names]
        text = f"{model}, epsilon {budget}: {min(counts):g} to {max(counts):g}"
        yield text if max(counts) - min(counts) > allowed + 1.0 else ""


TESTS: dict[str, Callable[[PublishedPaper, QualitativeClaim], Places]] = {
    "lower": _lower,
    "mean gain": _mean_gain,
    "gain in range": _gain_in_range,
    "gain larger": _gain_larger,
    "steps at most": _steps_at_most,
    "mean steps at most": _mean_steps,
    "area at most": _area_at_most,
    "area nearer": _area_nearer,
    "mostly lowest": _mostly_lowest,
    "similarity below": _similarity_below,
    "at most the largest": _at_most_the_largest,
    "alike": _alike,
}
"""By the names at the head of the file of printed numbers; each gives a text a place, else empty."""


def _ends(stated: float) -> tuple[float, float]:
    """Ends of the numbers that print as a stated one."""
    digits = len(f"{stated:g}".partition(".")[2])
    return stated - 0.5 * 10.0**-digits - SLACK, stated + 0.5 * 10.0**-digits + SLACK
