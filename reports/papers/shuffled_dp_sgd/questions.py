"""What each kind of Shuffled DPSGD's conclusions asks of a study: a list of conditions, all said to hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.reports.papers.ferret.conditions import Condition, untestable
from workbench.reports.papers.shuffled_dp_sgd.audit import WORDS as VERDICTS
from workbench.reports.papers.shuffled_dp_sgd.audit import games_of, is_claimed, training_of
from workbench.reports.papers.shuffled_dp_sgd.cells import Context
from workbench.reports.papers.shuffled_dp_sgd.formulas import figure_conditions
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    SHUFFLING_SHARE,
    TWIN_SHUFFLED,
    VISION_CHANCE,
    Setting,
)
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import value_at
from workbench.reports.papers.shuffled_dp_sgd.places import NUMBERS, Place, is_awaited, numbers_at, place_of
from workbench.reports.papers.shuffled_dp_sgd.times import PRODUCTS, TIMED
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_conditions import SLACK, Ends, differences
from workbench.reports.shared.paper_findings import Asked, asked_between, listed, parameter
from workbench.reports.shared.paper_samples import NOT_HERE
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome

Printed = Mapping[str, Any]
Gain = tuple[Place, Place]
"""First less second."""

NOT_OURS = "the level is one of CIFAR-100 with its 100 classes, and our images have 10"


def fact(where: str, shown: str, holds: bool, n: int = 1) -> Condition:
    """A condition that is seen to hold or not: no sample, and no test."""
    return Condition(
        where=where,
        shown=shown,
        hold_p=0.0 if holds else 1.0,
        break_p=1.0 if holds else 0.0,
        n=n,
        is_seen=True,
    )


def _gain(context: Context, gain: Gain, name: str) -> Sample | str:
    """First less second, paired over seeds."""
    found = [numbers_at(context, place, name) for place in gain]
    first, second = found
    if isinstance(first, str) or isinstance(second, str):
        reasons = [one for one in found if isinstance(one, str)]
        return NOT_HERE if NOT_HERE in reasons else reasons[0]
    return differences(first, second)


def _less(context: Context, first: Sample | str, second: Sample | str) -> Sample | str:
    for one in (first, second):
        if isinstance(one, str):
            return one
    return differences(first, second)  # type: ignore[arg-type]


def _compared(
    context: Context, claim: QualitativeClaim, pairs: Sequence[Sequence[Printed]], ends: Ends
) -> list[Asked]:
    """First less second lies between the ends, for each pair that our study tells apart, each once."""
    name = NUMBERS[str(claim.parameters["metric"])]
    gains = dict.fromkeys((place_of(first), place_of(second)) for first, second in pairs)
    return [
        asked_between(
            f"{gain[0]} less {gain[1]}",
            _gain(context, gain, name),
            ends,
            context.confidence,
            not_run=is_awaited(context, *gain),
        )
        for gain in gains
    ]


def _higher(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    return _compared(context, claim, listed(claim, "pairs"), Ends(low=0.0, slack=SLACK))


def _within(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    return _compared(context, claim, listed(claim, "pairs"), Ends(low=-parameter(claim, "margin")))


def _flat(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    span = parameter(claim, "span")
    pairs = [pair for group in listed(claim, "groups") for pair in combinations(group, 2)]
    return _compared(context, claim, pairs, Ends(low=-span, high=span))


def _keeps(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    """First less the share of the second is positive."""
    share, name = parameter(claim, "share"), NUMBERS[str(claim.parameters["metric"])]
    found = []
    for pair in listed(claim, "pairs"):
        first, second = (place_of(one) for one in pair)
        ours, theirs = (numbers_at(context, place, name) for place in (first, second))
        if not isinstance(theirs, str):
            theirs = Sample(share * np.array(theirs.values), theirs.units, theirs.unit)
        found.append(
            asked_between(
                f"{first} less {share:g} times {second}",
                _less(context, ours, theirs),
                Ends(low=0.0),
                context.confidence,
                not_run=is_awaited(context, first, second),
            )
        )
    return found


def _gains(
    context: Context, claim: QualitativeClaim, sides: Sequence[tuple[Sequence[Printed], Sequence[Printed]]]
) -> list[Asked]:
    """A gain of each first pair is above that of the second, each once."""
    name = NUMBERS[str(claim.parameters["metric"])]
    both = dict.fromkeys(
        ((place_of(one[0]), place_of(one[1])), (place_of(other[0]), place_of(other[1])))
        for one, other in sides
    )
    found = []
    for first, second in both:
        samples = [_gain(context, gain, name) for gain in (first, second)]
        reasons = [one for one in samples if isinstance(one, str)]
        sample = NOT_HERE if NOT_HERE in reasons else _less(context, samples[0], samples[1])
        found.append(
            asked_between(
                f"({first[0]} less {first[1]}) less ({second[0]} less {second[1]})",
                sample,
                Ends(low=0.0, slack=SLACK),
                context.confidence,
                not_run=is_awaited(context, *first, *second),
            )
        )
    return found


def _gain_falls(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    sides = [pair for group in listed(claim, "groups") for pair in pairwise(group)]
    return _gains(context, claim, sides)


def _gain_largest_first(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    sides = [(first, other) for first, *others in listed(claim, "groups") for other in others]
    return _gains(context, claim, sides)


def _smaller_gap(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    """Second less first of the second pair is above that of the first pair."""
    sides = [((other[1], other[0]), (one[1], one[0])) for one, other in listed(claim, "gaps")]
    return _gains(context, claim, sides)


def _above(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    return [
        Asked(untestable(f"{place_of(one)} above {parameter(claim, 'level'):g}", NOT_OURS))
        for one in listed(claim, "settings")
    ]


def _near_chance(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    """As near to our guessing rate as the paper's margin is to its own, as shares of it."""
    margin = VISION_CHANCE * parameter(claim, "margin") / parameter(claim, "chance")
    ends = Ends(low=VISION_CHANCE - margin, high=VISION_CHANCE + margin)
    places = dict.fromkeys(place_of(one) for one in listed(claim, "settings"))
    return [
        asked_between(
            str(place),
            numbers_at(context, place, NUMBERS["accuracy"]),
            ends,
            context.confidence,
            not_run=is_awaited(context, place),
        )
        for place in places
    ]


def _equal(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    """Shuffled and unshuffled runs of each seed print the same, at the paper's digits."""
    name, found = NUMBERS[str(claim.parameters["metric"])], []
    for one, other in listed(claim, "pairs"):
        first, second = place_of(one), place_of(other)
        where = f"{first} less {second}"
        sample, awaited = _gain(context, (first, second), name), is_awaited(context, first, second)
        if isinstance(sample, str):
            found.append(Asked(untestable(where, sample), not_run=awaited))
            continue
        printed = value_at(paper, str(other["cell"]))
        allowed = 0.5 * (printed.upper - printed.lower)
        worst = float(np.max(np.abs(sample.values)))
        shown = f"largest difference {number(worst, 3)} (allowed {number(allowed, 3)})"
        found.append(Asked(fact(where, shown, worst <= allowed, sample.values.size), not_run=awaited))
    return found


def _at_most(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    """No adversary's lower bound exceeds the claimed epsilon: the judge's word on all games of each run."""
    wanted = dict.fromkeys(float(one["epsilon"]) for one, _ in listed(claim, "pairs"))
    found = []
    for epsilon in wanted:
        runs = [
            one for one in context.measured.audits() if is_claimed(one) and one.experiment.epsilon == epsilon
        ]
        if not runs:
            found.append(Asked(untestable(f"claimed epsilon {epsilon:g}", NOT_HERE)))
        for run in runs:
            where = f"{training_of(run)}, claimed epsilon {epsilon:g}, seed {run.experiment.seed}"
            verdict = None if not games_of(run) or run.audit is None else run.audit["verdict"]
            kind = "" if verdict is None else str(verdict["kind"])
            if kind not in ("REFUTED", "NOT_REFUTED"):
                why = run.error or (f"the audit is {VERDICTS[kind]}" if kind in VERDICTS else "not run yet")
                found.append(Asked(untestable(where, why), not_run=why == "not run yet"))
                continue
            found.append(Asked(fact(where, _judged(run, kind), kind == "NOT_REFUTED")))
    return found


def _judged(run: Outcome, kind: str) -> str:
    """A run's verdict, and by which of its games it is refuted."""
    games = games_of(run)
    by = [name for name, game in games.items() if (game["verdict"] or {}).get("kind") == "REFUTED"]
    if not by:
        return f"{VERDICTS[kind]} by {len(games)} games of three adversaries"
    return f"{VERDICTS[kind]} by {len(by)} of {len(games)} games ({'; '.join(by)})"


def _share(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    return [
        Asked(untestable(str(one["method"]), f"no part of a study: `{PRODUCTS}` measures it"))
        for one, _ in listed(claim, "pairs")
    ]


def _overhead(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    """The share of the steps that shuffling takes, timed inside them, is at most the percentage."""
    stated = parameter(claim, "percent")
    found = []
    for one, _ in listed(claim, "pairs"):
        place = Place(groups=TIMED, setting=Setting(model=str(one["model"]), variant=TWIN_SHUFFLED))
        sample = numbers_at(context, place, SHUFFLING_SHARE)
        found.append(
            asked_between(
                str(place),
                sample,
                Ends(high=_largest(stated)),
                context.confidence,
                not_run=is_awaited(context, place),
                measure=" percent",
            )
        )
    return found


def _largest(stated: float) -> float:
    """The largest number that prints as a stated one."""
    digits = len(f"{stated}".partition(".")[2])
    return stated + 0.5 * math.pow(10.0, -digits)


def _figure(context: Context, paper: PublishedPaper, claim: QualitativeClaim) -> list[Asked]:
    return [Asked(one) for one in figure_conditions(context, paper, claim)]


Question = Callable[[Context, PublishedPaper, QualitativeClaim], list[Asked]]

ASKED: dict[str, Question] = {
    "equal": _equal,
    "higher": _higher,
    "mostly higher": _higher,
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
"""By the names at the head of the file of printed numbers."""
