"""From conditions to a finding: what our results say of a paper's conclusion.

A conclusion is a list of conditions that it says to hold, all of them. It is replicated where every one is
shown (each by tests at the level; an intersection needs no correction), not replicated where one is shown not
to hold (Holm's correction over all of its conditions) without being shown to hold. Else it is not run where
runs that it asks for are missing, and not testable at our scale where none is. A conclusion that is said of
most settings is decided by partial conjunctions (Benjamini and Heller 2008).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from workbench.checks.published import QualitativeClaim
from workbench.core.errors import InputError
from workbench.reports.shared.conditions import Asked, Condition, untestable
from workbench.reports.shared.outcomes import UNIT
from workbench.reports.shared.statistics.many import holm
from workbench.studies.report import Replication, ReplicationFinding

MOST_SHOWN = 6
"""Conditions of a finding that are printed in full."""

MOST_REASONS = 3
"""Reasons why others cannot be tested that are printed."""

Decide = Callable[[Sequence[Condition], float], tuple[Replication, str]]
"""What conditions say together at a confidence, and why."""


def decided(conditions: Sequence[Condition], confidence: float) -> tuple[Replication, str]:
    """The joint outcome of a conclusion's conditions, and why; see the module.

    Args:
        conditions: All of a conclusion, at least one.
    """
    level = 1.0 - confidence
    total = len(conditions)
    are_shown = [not condition.why and condition.hold_p <= level for condition in conditions]
    adjusted = holm([condition.break_p for condition in conditions])
    broken = [
        condition
        for condition, p_value, holds in zip(conditions, adjusted, are_shown, strict=True)
        if not holds and not condition.why and p_value <= level
    ]
    if broken:
        words = _counted(len(broken), total, "shown not to hold")
        return Replication.NOT_REPLICATED, words + _sides([condition.otherwise for condition in broken])
    if all(are_shown):
        return Replication.REPLICATED, "every condition is shown" if total > 1 else "it is shown"
    lost = sum(bool(condition.why) for condition in conditions)
    if lost == total:
        return Replication.NOT_TESTABLE, "nothing of it can be tested"
    rest = f"; {lost} cannot be tested" if lost else ""
    if total == 1:
        return Replication.NOT_TESTABLE, "it is neither shown nor shown not to hold"
    words = _counted(sum(are_shown), total, "shown")
    return Replication.NOT_TESTABLE, f"{words}, and none is shown not to hold{rest}"


def _counted(count: int, total: int, what: str) -> str:
    if total == 1:
        return f"it is {what}"
    return f"{count} of {total} conditions {'is' if count == 1 else 'are'} {what}"


def _sides(sides: Sequence[str]) -> str:
    """On which side of what is claimed conditions lie: `": faster than claimed"`, or how many on each."""
    counts = Counter(side for side in sides if side)
    if len(counts) == 1 and counts.total() == len(sides):
        return f": {'all ' if len(sides) > 1 else ''}{next(iter(counts))}"
    return f": {', '.join(f'{count} {side}' for side, count in counts.items())}" if counts else ""


def mostly(share: float, conditions: Sequence[Condition], confidence: float) -> tuple[Replication, str]:
    """Whether at least a share of the conditions hold, by partial conjunction tests."""
    level, total = 1.0 - confidence, len(conditions)
    needed = max(1, math.ceil(share * total - 1e-9))
    excess = total - needed + 1
    holding = sorted(condition.hold_p for condition in conditions)
    broken = sorted(condition.break_p for condition in conditions)
    singly = f"{sum(p <= level for p in holding)} of {total} comparisons are shown by themselves"
    if excess * holding[needed - 1] <= level:
        return Replication.REPLICATED, f"at least {needed} of {total} are shown to hold together; {singly}"
    if needed * broken[excess - 1] <= level:
        return (
            Replication.NOT_REPLICATED,
            f"at least {excess} of {total} are shown together not to hold; {singly}",
        )
    return Replication.NOT_TESTABLE, f"{needed} of {total} would have to hold; {singly}"


def finding(
    claim: QualitativeClaim,
    questions: Sequence[Asked],
    *,
    confidence: float,
    test: Callable[[int], str],
    against: str,
    nothing: str,
    decide: Decide = decided,
) -> ReplicationFinding:
    """The finding on a conclusion, from its conditions.

    Conditions about settings that a profile does not have are left out, and counted.

    Args:
        test: The test in words, given the number of conditions.
        against: How the paper's own numbers contradict the conclusion; empty where they do not.
        nothing: Why there is no condition, where there is none.
        decide: What conditions say together.
    """
    here = [question for question in questions if not question.is_elsewhere] or list(questions)
    conditions = [question.condition for question in here] or [untestable("the claim", nothing)]
    outcome, why = decide(conditions, confidence)
    if outcome is Replication.NOT_TESTABLE and any(question.not_run for question in here):
        outcome = Replication.NOT_RUN
    is_open = outcome in (Replication.NOT_TESTABLE, Replication.NOT_RUN)
    left = ""
    if len(here) < len(questions):
        left = f"{len(questions) - len(here)} of {len(questions)} of the paper's settings"
    needed = _needed(here) if is_open else None
    made = finding_of(
        claim,
        outcome,
        [
            f"{why[0].upper()}{why[1:]}",
            *described(conditions, MOST_SHOWN)[:2],
            _power(needed),
            f"Left out: {left} are not part of this profile" if left else "",
        ],
        test=test(len(conditions)),
        against=against,
    )
    # A condition without a single unit, and one that is seen without a test, stays what it is.
    moves = any(not condition.is_seen and (condition.n > 0 or not condition.why) for condition in conditions)
    return replace(made, needed=needed, units_decide=moves)


def finding_of(
    claim: QualitativeClaim, outcome: Replication, sentences: Sequence[str], *, test: str, against: str
) -> ReplicationFinding:
    """A finding whose figures are these sentences, without their full stops; empty ones are left out."""
    return ReplicationFinding(
        id=claim.id,
        place=claim.place,
        statement=claim.statement,
        tables=claim.tables,
        outcome=outcome,
        test=test,
        figures=". ".join(sentence for sentence in sentences if sentence) + ".",
        paper_contradicts=against,
    )


def described(
    conditions: Sequence[Condition], most: int, reason: Callable[[str], str] = str
) -> tuple[str, str, int]:
    """Conditions in words: the first `most` that are tested, and why others cannot be; empty where none.

    A reason, as `reason` cuts it short, stands with the first of its conditions; the last number is how many
    reasons are left out.
    """
    tested = sorted(
        (condition for condition in conditions if not condition.why),
        key=lambda condition: (condition.break_p, -condition.hold_p),
    )
    more = f"; and {len(tested) - most} more" if len(tested) > most else ""
    by_reason: dict[str, list[Condition]] = {}
    for condition in conditions:
        if condition.why:
            by_reason.setdefault(reason(condition.why), []).append(condition)
    words = [
        f"{some[0].describe()}{f' (and {len(some) - 1} more)' if len(some) > 1 else ''}"
        for some in list(by_reason.values())[:MOST_REASONS]
    ]
    return (
        "; ".join(condition.describe() for condition in tested[:most]) + more,
        "; ".join(words),
        len(by_reason) - len(words),
    )


def _needed(questions: Sequence[Asked]) -> int | None:
    """How many units would show what is not shown; None where that is not known."""
    counts = [
        question.seeds for question in questions if question.seeds is not None and not question.condition.why
    ]
    return max(counts, default=None)


def _power(needed: int | None) -> str:
    if needed is None:
        return ""
    return (
        f"With the spread seen here, about {needed} {UNIT}s would show "
        "all that looks as claimed (four times in five)"
    )


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
