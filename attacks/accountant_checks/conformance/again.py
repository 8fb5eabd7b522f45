"""Checks an accountant's memory: the same questions, asked again after many calls and in another order."""

from __future__ import annotations

import math
from dataclasses import replace

from workbench.attacks.accountant_checks.conformance.judging import (
    Context,
    Counter,
    Shortfalls,
    below_truth,
    counterexample_of,
    result,
)
from workbench.attacks.accountant_checks.conformance.questions import AnswerKind, Question
from workbench.attacks.accountant_checks.conformance.results import Check, CheckResult
from workbench.attacks.accountant_checks.conformance.truth import ROUNDING

CALLS = 1000
"""Calls after which an accountant is taken to have shown what it remembers."""

AGAIN = 12
"""Questions that are asked again, round after round."""


def asked_again(context: Context, check: Check) -> CheckResult:
    """Check that answers do not fall below the truth with the number and the order of calls before."""
    asker = context.asker
    known = asker.numbers("epsilon")
    first = dict(known[:: max(1, len(known) // AGAIN)][:AGAIN])
    counter, shortfalls = Counter(planned=len(first)), Shortfalls()
    repeated, changed, lost = set[Question](), set[Question](), dict[Question, str]()
    while first and not (asker.out_of_time or shortfalls.reports or lost):
        for question in reversed(first):
            answer = asker.ask_again(question)
            if answer.kind is AnswerKind.OUT_OF_TIME:
                break
            repeated.add(question)
            if not answer.is_number:
                lost[question] = answer.message
                continue
            report = below_truth(context, question, answer)
            if report is not None and below_truth(context, question, first[question]) is None:
                # A single question asked anew would be answered as at first.
                shortfalls.reports.append((question, replace(report, reproduction="")))
            if not math.isclose(answer.value, first[question].value, rel_tol=ROUNDING):
                changed.add(question)
        if asker.total.calls >= CALLS:
            break
    counter.judged, counter.out_of_time = len(repeated), len(first) - len(repeated)
    notes = (f"{len(changed)} of {len(repeated)} answers changed when asked again",) if changed else ()
    when = f"by the {asker.total.calls:,}th call"
    standing = context.settle(shortfalls, None)
    if standing:
        worst = standing[0]
        message = f"{len(standing)} of {len(repeated)} answers fell below the certified lower bound {when}"
        return result(
            context,
            check,
            counter,
            message=f"{message}; they were above it before",
            failed=True,
            under_reports=standing,
            worst=worst.describe(),
            counterexample=counterexample_of(worst, {}),
            notes=notes,
        )
    if lost:
        question, said = next(iter(lost.items()))
        message = f"{len(lost)} of {len(repeated)} questions had a number first and none {when}"
        return result(
            context,
            check,
            counter,
            message=f"{message}: {question.describe()}: {said}",
            failed=True,
            worst=question.describe(),
            counterexample={"event": question.event.describe(), "found": said},
            notes=notes,
        )
    message = f"{len(repeated)} questions asked again, none below {when}"
    return result(context, check, counter, message=message, notes=notes)
