"""From conditions to a finding: what the conclusions of several papers' reports share.

A conclusion is a list of conditions that it says to hold, all of them. It is replicated where every one is
shown (each by tests at the level; an intersection needs no correction), not replicated where one is shown not
to hold (Holm's correction over all of its conditions) without being shown to hold. Else it is not run where
runs that it asks for are missing, and not testable at our scale where none is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.checks.published import QualitativeClaim
from workbench.core.errors import InputError
from workbench.reports.papers.ferret.conditions import Condition, untestable
from workbench.reports.papers.ferret.findings import decided
from workbench.reports.shared.paper_conditions import Ends, between, seeds_to_decide
from workbench.reports.shared.paper_samples import NOT_HERE, UNIT
from workbench.reports.shared.statistics import Sample
from workbench.studies.report import Replication, ReplicationFinding

MOST_SHOWN = 6
"""Conditions of a finding that are printed in full."""


@dataclass(frozen=True)
class Asked:
    """A condition, how many seeds would show it, and whether a run that it asks for is not made yet."""

    condition: Condition
    seeds: int | None = None
    not_run: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether it asks for a setting that this profile does not have."""
        return self.condition.why == NOT_HERE


Decide = Callable[[Sequence[Condition], float], tuple[Replication, str]]


def finding(
    claim: QualitativeClaim,
    asked: Sequence[Asked],
    *,
    confidence: float,
    test: Callable[[int], str],
    against: str,
    nothing: str,
    decide: Decide = decided,
) -> ReplicationFinding:
    """What our results say of a conclusion.

    Conditions about settings that a profile does not have are left out, and counted.

    Args:
        claim: The conclusion.
        asked: Its conditions.
        confidence: 1 - confidence is the level of each test.
        test: The test in words, given the number of conditions.
        against: How the paper's own numbers contradict the conclusion; empty where they do not.
        nothing: Why there is no condition, where there is none.
        decide: What conditions say together.
    """
    here = [one for one in asked if not one.is_elsewhere] or list(asked)
    conditions = [one.condition for one in here] or [untestable("the claim", nothing)]
    outcome, why = decide(conditions, confidence)
    if outcome is Replication.NOT_TESTABLE and any(one.not_run for one in here):
        outcome = Replication.NOT_RUN
    tested = sorted((one for one in conditions if not one.why), key=lambda one: (one.break_p, -one.hold_p))
    more = f"; and {len(tested) - MOST_SHOWN} more" if len(tested) > MOST_SHOWN else ""
    parts = [
        f"{why[0].upper()}{why[1:]}",
        "; ".join(one.describe() for one in tested[:MOST_SHOWN]) + more,
        _reasons([one for one in conditions if one.why]),
        _power(here) if outcome in (Replication.NOT_TESTABLE, Replication.NOT_RUN) else "",
    ]
    figures = ". ".join(part for part in parts if part) + "."
    if len(here) < len(asked):
        left = f"{len(asked) - len(here)} of {len(asked)} of the paper's settings"
        figures = f"{figures} Left out: {left} are not part of this profile."
    return ReplicationFinding(
        id=claim.id,
        place=claim.place,
        statement=claim.statement,
        tables=claim.tables,
        outcome=outcome,
        test=test(len(conditions)),
        figures=figures,
        paper_contradicts=against,
    )


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


def _power(asked: Sequence[Asked]) -> str:
    """How many seeds would show what is not shown; empty where that is not known."""
    counts = [one.seeds for one in asked if one.seeds is not None and not one.condition.why]
    if not counts:
        return ""
    return (
        f"With the spread seen here, about {max(counts)} {UNIT}s would show all that looks as claimed (four "
        "times in five)"
    )


def asked_between(
    where: str,
    sample: Sample | str,
    ends: Ends,
    confidence: float,
    *,
    not_run: bool = False,
    measure: str = " points",
) -> Asked:
    """That a mean over seeds lies between two ends.

    Args:
        where: What is compared, in words.
        sample: One value a seed, or the reason why there is none.
        ends: See `between`.
        confidence: See there.
        not_run: Whether a run of the sample is not made yet.
        measure: See `between`.
    """
    if isinstance(sample, str):
        return Asked(untestable(where, sample), not_run=not_run)
    made = between(where, sample, ends, confidence, measure=measure)
    return replace(Asked(made, seeds_to_decide(sample, ends, confidence)), not_run=not_run)


def listed(claim: QualitativeClaim, name: str) -> Any:
    """A parameter of a conclusion that is a list.

    Raises:
        InputError: it is missing or empty.
    """
    if not claim.parameters.get(name):
        raise InputError(f"claim {claim.id!r}: parameter {name} is missing or empty")
    return claim.parameters[name]


def parameter(claim: QualitativeClaim, name: str) -> float:
    """A parameter of a conclusion that is a number.

    Raises:
        InputError: it is none.
    """
    value = claim.parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"claim {claim.id!r}: parameter {name} must be a number, got {value!r}")
    return float(value)
