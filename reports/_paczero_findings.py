"""PACZero's conclusions, held to a study's results by stated tests over seeds.

A conclusion is a list of conditions that it says to hold, all of them. It is replicated where every one is
shown (each by tests at the level; an intersection needs no correction), not replicated where one is shown not
to hold (Holm's correction over all of its conditions) without being shown to hold. Else it is not run where
runs that it asks for are missing, and not testable at our scale where none is. Settings of the paper that a
profile does not have are left out, and counted. What each kind of conclusion claims stands in
`data/published/paczero.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

from workbench.errors import InputError, unknown_name
from workbench.experiments import Status
from workbench.published import PublishedPaper, QualitativeClaim
from workbench.reports._ferret_conditions import Condition, untestable
from workbench.reports._ferret_findings import decided
from workbench.reports._numbers import number
from workbench.reports._paczero_cells import Context
from workbench.reports._paczero_conditions import (
    CHANCE_MARGIN,
    SLACK,
    Ends,
    between,
    differences,
    seeds_to_decide,
)
from workbench.reports._paczero_layout import DEV, NOT_HERE, SCORE, UNANIMITY, UNIT
from workbench.reports._paczero_places import OTHER_MODEL, Place, place_of
from workbench.reports.statistics import Sample
from workbench.study_report import Replication, ReplicationFinding

METRICS = {
    "accuracy": SCORE,
    "f1": SCORE,
    "accuracy or f1": SCORE,
    "dev accuracy": DEV,
    "unanimity": UNANIMITY,
    "nats_used": "nats_used",
}

MOST_SHOWN = 6
"""Conditions of a finding that are printed in full."""

EXACT = 1e-9
"""Relative rounding error that a sum of charges may have."""


@dataclass(frozen=True)
class _Asked:
    """A condition, how many seeds would show it, and whether a run that it asks for is not made yet."""

    condition: Condition
    seeds: int | None = None
    not_run: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether it asks for a setting that this profile does not have."""
        return self.condition.why == NOT_HERE


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
        asked = _ASKED[claim.test](context, claim, METRICS[metric])
        here = [one for one in asked if not one.is_elsewhere] or asked
        made = _finding(context, claim, here, against(paper, claim))
        if len(here) < len(asked):
            left = f"{len(asked) - len(here)} of {len(asked)} of the paper's settings"
            made = replace(made, figures=f"{made.figures} Left out: {left} are not part of this profile.")
        found.append(made)
    return found


def _finding(
    context: Context, claim: QualitativeClaim, asked: Sequence[_Asked], against: str
) -> ReplicationFinding:
    conditions = [one.condition for one in asked]
    if not conditions:
        conditions = [untestable("the claim", _nothing(claim))]
    outcome, why = decided(conditions, context.confidence)
    if outcome is Replication.NOT_TESTABLE and any(one.not_run for one in asked):
        outcome = Replication.NOT_RUN
    tested = sorted((one for one in conditions if not one.why), key=lambda one: (one.break_p, -one.hold_p))
    more = f"; and {len(tested) - MOST_SHOWN} more" if len(tested) > MOST_SHOWN else ""
    parts = [
        f"{why[0].upper()}{why[1:]}",
        "; ".join(one.describe() for one in tested[:MOST_SHOWN]) + more,
        _reasons([one for one in conditions if one.why]),
        _power(asked) if outcome in (Replication.NOT_TESTABLE, Replication.NOT_RUN) else "",
    ]
    level = f"{1.0 - context.confidence:.2g}"
    return ReplicationFinding(
        id=claim.id,
        place=claim.place,
        statement=claim.statement,
        tables=claim.tables,
        outcome=outcome,
        test=WORDS[claim.test].format(
            unit=UNIT,
            margin=number(float(claim.parameters.get("margin", claim.parameters.get("span", 0.0)))),
            slack=f"{SLACK:g}",
            chance=f"{CHANCE_MARGIN:g}",
            rest=_REST.format(level=level, count=len(conditions)),
        ),
        figures=". ".join(part for part in parts if part) + ".",
        paper_contradicts=against,
    )


def _nothing(claim: QualitativeClaim) -> str:
    """Why a conclusion has no condition."""
    return "all of our settings ran the same steps" if claim.test == "flat" else OTHER_MODEL


def _reasons(conditions: Sequence[Condition]) -> str:
    """Why conditions cannot be tested, each reason with the first of its conditions; empty where none."""
    found: dict[str, list[Condition]] = {}
    for one in conditions:
        found.setdefault(one.why, []).append(one)
    words = [
        f"{some[0].describe()}{f' (and {len(some) - 1} more)' if len(some) > 1 else ''}"
        for some in list(found.values())[:3]
    ]
    return "; ".join(words)


def _power(asked: Sequence[_Asked]) -> str:
    """How many seeds would show what is not shown; empty where that is not known."""
    counts = [one.seeds for one in asked if one.seeds is not None and not one.condition.why]
    if not counts:
        return ""
    return (
        f"With the spread seen here, about {max(counts)} {UNIT}s would show all that looks as claimed (four "
        "times in five)"
    )


def _samples(
    context: Context, claim: QualitativeClaim, setting: Mapping[str, Any], metric: str
) -> tuple[Place, Sample | str]:
    """Where a printed setting stands in our study, and its numbers or the reason why there are none."""
    place = place_of(context.measured, setting)
    if place.why:
        return place, place.why
    runs = context.measured.runs(place.groups, place.setting)
    lost = [one for one in runs if one.status is not Status.DONE]
    if lost and len(lost) < len(runs):  # What is left would be the seeds that went well.
        first = next((one.error for one in lost if one.error), "not run yet")
        return place, f"{len(lost)} of {len(runs)} runs are lost ({first})"
    sample = context.measured.sample(place.groups, place.setting, metric)
    return place, context.measured.missing(place.groups, place.setting) if sample is None else sample


def _not_run(context: Context, place: Place) -> bool:
    """Whether a run of a place is not made yet."""
    runs = context.measured.runs(place.groups, place.setting)
    return not place.why and any(one.status is Status.MISSING for one in runs)


def _pairs(claim: QualitativeClaim) -> Sequence[Sequence[Mapping[str, Any]]]:
    found: Sequence[Sequence[Mapping[str, Any]]] = _listed(claim, "pairs")
    return found


def _listed(claim: QualitativeClaim, name: str) -> Any:
    if not claim.parameters.get(name):
        raise InputError(f"claim {claim.id!r}: parameter {name} is missing or empty")
    return claim.parameters[name]


def _compared(
    context: Context,
    claim: QualitativeClaim,
    metric: str,
    sides: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    ends: Ends,
) -> list[_Asked]:
    """First less second lies between the ends, for each pair that our study tells apart, each once."""
    found: dict[tuple[Place, Place], _Asked] = {}
    for first, second in sides:
        here, ours = _samples(context, claim, first, metric)
        there, theirs = _samples(context, claim, second, metric)
        if OTHER_MODEL in (here.why, there.why) or (here, there) in found:
            continue
        where = f"{here} less {there}"
        lost = next((one for one in (ours, theirs) if isinstance(one, str)), "")
        if isinstance(ours, str) or isinstance(theirs, str):
            not_run = _not_run(context, here) or _not_run(context, there)
            found[here, there] = _Asked(untestable(where, lost), not_run=not_run)
            continue
        found[here, there] = _asked(where, differences(ours, theirs), ends, context.confidence)
    return list(found.values())


def _asked(where: str, sample: Sample | str, ends: Ends, confidence: float) -> _Asked:
    if isinstance(sample, str):
        return _Asked(untestable(where, sample))
    return _Asked(between(where, sample, ends, confidence), seeds_to_decide(sample, ends, confidence))


def _higher(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    sides = [(pair[0], pair[1]) for pair in _pairs(claim)]
    return _compared(context, claim, metric, sides, Ends(low=0.0, slack=SLACK))


def _within(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    sides = [(pair[0], pair[1]) for pair in _pairs(claim)]
    return _compared(context, claim, metric, sides, Ends(low=-_number(claim, "margin")))


def _like(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    margin = _number(claim, "margin")
    sides = [(pair[0], pair[1]) for pair in _pairs(claim)]
    return _compared(context, claim, metric, sides, Ends(low=-margin, high=margin))


def _flat(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    """All pairs; of settings that ran the same steps in every seed one stands for all.

    At small budgets the noise drowns the sign, and every released bit is the same noise's: such runs are one
    run, whose difference to itself tests nothing.
    """
    span = _number(claim, "span")
    distinct: list[Mapping[str, Any]] = []
    for setting in _present(context, _listed(claim, "settings")):
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


def _falls(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    sides = list(pairwise(_present(context, _listed(claim, "settings"))))
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
) -> list[_Asked]:
    chance = _number(claim, "chance")
    found: dict[Place, _Asked] = {}
    for setting in _listed(claim, "settings"):
        place, ours = _samples(context, claim, setting, metric)
        if place.why == OTHER_MODEL:
            continue
        made = _asked(str(place), ours, ends(chance), context.confidence)
        found[place] = replace(made, not_run=_not_run(context, place))
    return list(found.values())


def _at_chance(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    return _levels(
        context,
        claim,
        metric,
        lambda chance: Ends(low=chance - CHANCE_MARGIN, high=chance + CHANCE_MARGIN),
    )


def _above_chance(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    return _levels(context, claim, metric, lambda chance: Ends(low=chance, slack=SLACK))


def _budget_kept(context: Context, claim: QualitativeClaim, metric: str) -> list[_Asked]:
    """Of every run with a budget in nats: a fact of each realisation, which needs no test."""
    runs = [
        one
        for one in context.measured.outcomes
        if one.status is Status.DONE and one.experiment.epsilon is not None and metric in one.metrics
    ]
    if not runs:
        return [_Asked(untestable("nats used", "no finished run with a budget tells what it used"))]
    shares = [one.metrics[metric] / float(one.experiment.epsilon or math.nan) for one in runs]
    worst = max(shares)
    holds = worst <= 1.0 + EXACT
    return [
        _Asked(
            Condition(
                where=f"nats used over the budget in the worst of {len(runs)} runs",
                shown=number(worst, 6),
                hold_p=0.0 if holds else 1.0,
                break_p=1.0 if holds else 0.0,
                n=len(runs),
            )
        )
    ]


def _number(claim: QualitativeClaim, name: str) -> float:
    value = claim.parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"claim {claim.id!r}: parameter {name} must be a number, got {value!r}")
    return float(value)


_ASKED: dict[str, Callable[[Context, QualitativeClaim, str], list[_Asked]]] = {
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
