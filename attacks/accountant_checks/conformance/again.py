"""Checks an accountant's memory: the same questions after many calls, and in another order and process."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field, replace

from workbench.accounting.deciding import ROUNDING
from workbench.attacks.accountant_checks.conformance.judging import (
    Context,
    Counter,
    Shortfalls,
    below_truth,
    counterexample_of,
    result,
)
from workbench.attacks.accountant_checks.conformance.questions import (
    WAITS,
    Answer,
    AnswerKind,
    Asker,
    Question,
    now,
)
from workbench.attacks.accountant_checks.conformance.results import Check, CheckResult
from workbench.checks.accountants import load_accountant

CALLS = 1000
"""Calls after which an accountant is taken to have shown what it remembers."""

AGAIN = 12
"""Questions that are asked again, round after round."""

_START = 10.0
"""Seconds of the wall that another process has at least: to start, and to import the accountant."""


@dataclass(kw_only=True)
class _Second:
    """What second answers showed, beside the first ones."""

    first: dict[Question, Answer]
    repeated: set[Question] = field(default_factory=set)
    changed: set[Question] = field(default_factory=set)
    lost: dict[Question, str] = field(default_factory=dict)
    shortfalls: Shortfalls = field(default_factory=Shortfalls)

    def is_enough(self) -> bool:
        """Whether an answer fell, or was lost."""
        return bool(self.shortfalls.reports or self.lost)

    def compare(self, context: Context, question: Question, answer: Answer) -> None:
        """Hold a second answer against the truth and the first one."""
        self.repeated.add(question)
        first = self.first[question]
        report = below_truth(context, question, answer)
        if report is not None and below_truth(context, question, first) is None:
            # A single question asked anew would be answered as at first.
            self.shortfalls.reports.append((question, replace(report, reproduction="")))
        elif not answer.is_number:
            self.lost[question] = answer.message
        elif not math.isclose(answer.value, first.value, rel_tol=ROUNDING):
            self.changed.add(question)


def asked_again(context: Context, check: Check) -> CheckResult:
    """Check that answers do not fall below the truth with the calls before, or in another process."""
    asker = context.asker
    known = asker.numbers("epsilon")
    second = _Second(first=dict(known[:: max(1, len(known) // AGAIN)][:AGAIN]))
    while second.first and not (asker.out_of_time or second.is_enough() or asker.total.calls >= CALLS):
        for question in reversed(second.first):
            answer = asker.ask_again(question)
            if answer.kind is AnswerKind.OUT_OF_TIME:
                break
            second.compare(context, question, answer)
    when, notes = f"by the {asker.total.calls:,}th call", tuple[str, ...]()
    if second.first and not second.is_enough():
        note = _in_another_process(context, second)
        notes += (note,) if note else ()
        when += "" if note else " and in another process"
        if second.is_enough():
            when = "in another process"
    return _result_of(context, check, second, when, notes)


def _result_of(
    context: Context, check: Check, second: _Second, when: str, notes: tuple[str, ...]
) -> CheckResult:
    repeated, lost = len(second.repeated), second.lost
    counter = Counter(planned=len(second.first), judged=repeated)
    counter.out_of_time = counter.planned - repeated
    if second.changed:
        notes = (f"{len(second.changed)} of {repeated} answers changed when asked again", *notes)
    standing = context.settle(second.shortfalls, None)
    if standing:
        worst = standing[0]
        message = f"{len(standing)} of {repeated} answers fell below the certified lower bound {when}"
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
        message = f"{len(lost)} of {repeated} questions had a number first and none {when}"
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
    message = f"{repeated} questions asked again, none below {when}"
    return result(context, check, counter, message=message, notes=notes)


def _in_another_process(context: Context, second: _Second) -> str:
    """Ask the questions once more in a fresh interpreter; why that was not possible, or nothing."""
    if not context.target:
        return "not asked in another process, because no name loads this accountant there"
    questions = tuple(reversed(second.first))
    seconds = _START + WAITS * max(context.asker.deadline - now(), 0.0)
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        child = subprocess.run(
            [sys.executable, "-P", "-c", f"from {__name__} import answer_the_parent as answer; answer()"],
            input=pickle.dumps((sys.path, context.target, questions)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=min(seconds, 1e6),
            check=True,
        )
        for question, form in zip(questions, json.loads(child.stdout), strict=True):
            second.compare(context, question, Answer(**{**form, "kind": AnswerKind(form["kind"])}))
        return ""
    return "not asked in another process: it ended, or did not answer in time"


def answer_the_parent() -> None:
    """Read a target and questions from the standard input, and write the answers to the standard output."""
    output = os.dup(1)
    os.dup2(2, 1)  # Whatever the accountant prints goes elsewhere.
    packed = sys.stdin.buffer.read()
    sys.path[:], target, questions = pickle.loads(packed)  # noqa: S301 - from the parent's memory
    asker = Asker(accountant=load_accountant(target))
    answers = [vars(asker.ask(question)) for question in questions]
    with os.fdopen(output, "w", encoding="utf-8") as stream:
        json.dump(answers, stream)
