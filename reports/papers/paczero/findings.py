"""PACZero's conclusions, held to a study's results by stated tests over seeds.

What conditions say together is told in `_paper_findings`. Settings of the paper that a profile does not have
are left out, and counted. What each kind of conclusion claims stands in
`data/published/paczero.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import Any

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.ferret.conditions import Condition, untestable
from workbench.reports.papers.paczero.cells import Context
from workbench.reports.papers.paczero.layout import DEV, SCORE, UNANIMITY, UNIT
from workbench.reports.papers.paczero.places import OTHER_MODEL, Place, place_of
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_conditions import SLACK, Ends, differences
from workbench.reports.shared.paper_findings import Asked, asked_between, finding, listed, parameter
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Status
from workbench.studies.report import ReplicationFinding

METRICS = {
    "accuracy": SCORE,
    "f1": SCORE,
    "accuracy or f1": SCORE,
    "dev accuracy": DEV,
    "unanimity": UNANIMITY,
    "nats_used": "nats_used",
}

CHANCE_MARGIN = 5.0
"""Points from guessing within which an accuracy is at chance; the paper calls 53.1 % so."""

EXACT = 1e-9
"""Relative rounding error that a sum of charges may have."""


def findings(
    context: Context, paper: PublishedPaper, against: Callable[[PublishedPaper, QualitativeClaim], str]
) -> list[ReplicationFinding]:
    """What our results say of each of the paper's conclusions, in its order.

    Args:
        context: Of the report.
        paper: The conclusions and the printed numbers.
        against: How the paper's own numbers contradict a conclusion; empty where they do not.

    Raises:
        InputError: a conclusion names an unknown test or metric, or lacks a parameter.
    """
    found = []
    for claim in paper.claims:
        if claim.test not in _ASKED:
            raise unknown_name(f"test of claim {claim.id!r}:", claim.test, _ASKED)
        metric = str(claim.parameters.get("metric", ""))
        if metric not in METRICS:
            raise unknown_name(f"metric of claim {claim.id!r}:", metric, METRICS)
        found.append(
            finding(
                claim,
                _ASKED[claim.test](context, claim, METRICS[metric]),
                confidence=context.confidence,
                test=partial(_words, context, claim),
                against=against(paper, claim),
                nothing="all of our settings ran the same steps" if claim.test == "flat" else OTHER_MODEL,
            )
        )
    return found


def _words(context: Context, claim: QualitativeClaim, count: int) -> str:
    """The test of a conclusion in words."""
    return WORDS[claim.test].format(
        unit=UNIT,
        margin=number(float(claim.parameters.get("margin", claim.parameters.get("span", 0.0)))),
        slack=f"{SLACK:g}",
        chance=f"{CHANCE_MARGIN:g}",
        rest=_REST.format(level=context.level, count=count),
    )


def _samples(
    context: Context, claim: QualitativeClaim, setting: Mapping[str, Any], metric: str
) -> tuple[Place, Sample | str]:
    """Where a printed setting stands in our study, and its numbers or the reason why there are none."""
    place = place_of(context.measured, setting)
    if place.why:
        return place, place.why
    return place, context.measured.complete(place.groups, place.setting, metric)


def _not_run(context: Context, place: Place) -> bool:
    """Whether a run of a place is not made yet."""
    return not place.why and context.measured.is_awaited(place.groups, place.setting)


def _pairs(claim: QualitativeClaim) -> Sequence[Sequence[Mapping[str, Any]]]:
    found: Sequence[Sequence[Mapping[str, Any]]] = listed(claim, "pairs")
    return found


def _compared(
    context: Context,
    claim: QualitativeClaim,
    metric: str,
    sides: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    ends: Ends,
) -> list[Asked]:
    """First less second lies between the ends, for each pair that our study tells apart, each once."""
    found: dict[tuple[Place, Place], Asked] = {}
    for first, second in sides:
        here, ours = _samples(context, claim, first, metric)
        there, theirs = _samples(context, claim, second, metric)
        if OTHER_MODEL in (here.why, there.why) or (here, there) in found:
            continue
        where = f"{here} less {there}"
        lost = next((one for one in (ours, theirs) if isinstance(one, str)), "")
        if isinstance(ours, str) or isinstance(theirs, str):
            not_run = _not_run(context, here) or _not_run(context, there)
            found[here, there] = Asked(untestable(where, lost), not_run=not_run)
            continue
        found[here, there] = asked_between(where, differences(ours, theirs), ends, context.confidence)
    return list(found.values())


def _higher(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    sides = [(pair[0], pair[1]) for pair in _pairs(claim)]
    return _compared(context, claim, metric, sides, Ends(low=0.0, slack=SLACK))


def _within(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    sides = [(pair[0], pair[1]) for pair in _pairs(claim)]
    return _compared(context, claim, metric, sides, Ends(low=-parameter(claim, "margin")))


def _like(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    margin = parameter(claim, "margin")
    sides = [(pair[0], pair[1]) for pair in _pairs(claim)]
    return _compared(context, claim, metric, sides, Ends(low=-margin, high=margin))


def _flat(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    """All pairs; of settings that ran the same steps in every seed one stands for all.

    At small budgets the noise drowns the sign, and every released bit is the same noise's: such runs are one
    run, whose difference to itself tests nothing.
    """
    span = parameter(claim, "span")
    distinct: list[Mapping[str, Any]] = []
    for setting in _present(context, listed(claim, "settings")):
        if not any(_same_steps(context, setting, other) for other in distinct):
            distinct.append(setting)
    sides = list(combinations(distinct, 2))
    return _compared(context, claim, metric, sides, Ends(low=-span, high=span))


def _same_steps(context: Context, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two settings have the same losses in every step of every seed."""
    found = []
    for setting in (first, second):
        place = place_of(context.measured, setting)
        runs = [] if place.why else context.measured.runs(place.groups, place.setting)
        found.append({one.experiment.seed: one.training_losses for one in runs})
    return found[0] == found[1] and all(found[0].values()) and bool(found[0])


def _falls(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    sides = list(pairwise(_present(context, listed(claim, "settings"))))
    return _compared(context, claim, metric, sides, Ends(low=0.0, slack=SLACK))


def _present(context: Context, settings: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The settings that our study has runs of; all of them where those are fewer than two."""
    kept = []
    for one in settings:
        place = place_of(context.measured, one)
        if not place.why and context.measured.runs(place.groups, place.setting):
            kept.append(one)
    return kept if len(kept) > 1 else settings


def _levels(
    context: Context, claim: QualitativeClaim, metric: str, ends: Callable[[float], Ends]
) -> list[Asked]:
    chance = parameter(claim, "chance")
    found: dict[Place, Asked] = {}
    for setting in listed(claim, "settings"):
        place, ours = _samples(context, claim, setting, metric)
        if place.why == OTHER_MODEL:
            continue
        found[place] = asked_between(
            str(place), ours, ends(chance), context.confidence, not_run=_not_run(context, place)
        )
    return list(found.values())


def _at_chance(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    return _levels(
        context,
        claim,
        metric,
        lambda chance: Ends(low=chance - CHANCE_MARGIN, high=chance + CHANCE_MARGIN),
    )


def _above_chance(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    return _levels(context, claim, metric, lambda chance: Ends(low=chance, slack=SLACK))


def _budget_kept(context: Context, claim: QualitativeClaim, metric: str) -> list[Asked]:
    """Of every run with a budget in nats: a fact of each realisation, which needs no test."""
    runs = [
        one
        for one in context.measured.outcomes
        if one.status is Status.DONE and one.experiment.epsilon is not None and metric in one.metrics
    ]
    if not runs:
        return [Asked(untestable("nats used", "no finished run with a budget tells what it used"))]
    shares = [one.metrics[metric] / float(one.experiment.epsilon or math.nan) for one in runs]
    worst = max(shares)
    holds = worst <= 1.0 + EXACT
    return [
        Asked(
            Condition(
                where=f"nats used over the budget in the worst of {len(runs)} runs",
                shown=number(worst, 6),
                hold_p=0.0 if holds else 1.0,
                break_p=1.0 if holds else 0.0,
                n=len(runs),
            )
        )
    ]


_ASKED: dict[str, Callable[[Context, QualitativeClaim, str], list[Asked]]] = {
    "higher": _higher,
    "within": _within,
    "like": _like,
    "flat": _flat,
    "falls": _falls,
    "at chance": _at_chance,
    "above chance": _above_chance,
    "budget kept": _budget_kept,
}

_REST = (
    "Replicated where each of the {count} conditions is shown at level {level}; not replicated where one is "
    "shown not to hold (Holm over the {count}) and not shown to hold. Our one model stands in for the "
    "smaller of the paper's two; what is said of the larger is not tested."
)
WORDS = {
    "higher": (
        "One-sided paired t tests over {unit}s that the first is above the second; shown not to hold where a "
        "difference is shown to be below {slack} point. {rest}"
    ),
    "within": (
        "One-sided paired t tests over {unit}s that the first is less than {margin} points below the second "
        "(or shown to be more). {rest}"
    ),
    "like": (
        "Equivalence: two one-sided paired t tests over {unit}s that the two differ by less than {margin} "
        "points. {rest}"
    ),
    "flat": (
        "Equivalence: two one-sided paired t tests over {unit}s that any two of the settings differ by less "
        "than {margin} points, the paper's own span; settings whose runs are equal in every step count once. "
        "{rest}"
    ),
    "falls": (
        "One-sided paired t tests over {unit}s that each of our settings is above the next; shown not to "
        "hold where a fall is shown to be below {slack} point. {rest}"
    ),
    "at chance": (
        "Equivalence: two one-sided t tests over {unit}s that the accuracy is within {chance} points of "
        "guessing. {rest}"
    ),
    "above chance": (
        "One-sided t tests over {unit}s that the accuracy is above guessing; shown not to hold where it is "
        "shown to be less than {slack} point above. {rest}"
    ),
    "budget kept": "What every finished run says it used against its budget; no test. {rest}",
}
"""The test of each kind of conclusion in words."""
