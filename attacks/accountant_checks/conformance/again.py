"""Checks an accountant's memory: the same questions after many calls, and in another order and process.

First come chains of questions, each directly after an easier one that differs in one parameter alone: what an
accountant keeps until other parameters change, it then answers where it is too little. Each answer is held
against its own bounds, so that no sound accountant is blamed. An answer that depends on what was asked before
breaks the promise too, but a build stops only at one that is below the truth.
"""

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
from workbench.attacks.accountant_checks.conformance.cells import Chain, hardening_chains
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
from workbench.attacks.accountant_checks.conformance.results import Check, CheckResult, UnderReport
from workbench.checks.accountants import load_accountant

CALLS = 1000
"""Calls after which an accountant is taken to have shown what it remembers."""

AGAIN = 12
"""Questions that are asked again, round after round."""

EQUAL = 1e-3
"""Relative difference up to which two accounts of one thing count as equal (grids are laid differently)."""

_MOST_REPEATS = 3
"""Answers that changed of which it is tried whether they depend on what was asked before."""

_START = 10.0
"""Seconds of the wall that another process has at least: to start, and to import the accountant."""


@dataclass(kw_only=True)
class _Second:
    """What second answers showed, beside the first ones.

    Attributes:
        chained: Answers that were given directly after that to an easier question, and judged.
        chains_unfinished: Questions of the chains that there was no time for.
        depends: An answer that depends on what was asked before, in words; empty without one.
    """

    first: dict[Question, Answer]
    repeated: set[Question] = field(default_factory=set)
    changed: set[Question] = field(default_factory=set)
    lost: dict[Question, str] = field(default_factory=dict)
    shortfalls: Shortfalls = field(default_factory=Shortfalls)
    chained: int = 0
    chains_unfinished: int = 0
    depends: str = ""

    def is_enough(self) -> bool:
        """Whether an answer fell, was lost, or depends on what was asked before."""
        return bool(self.shortfalls.reports or self.lost or self.depends)

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
    _ask_chains(context, second)
    if second.is_enough():
        return _result_of(context, check, second, "directly after an easier question", ())
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


def asked_in_a_row(asker: Asker, *questions: Question) -> Answer:
    """The answer to the last question, where each is asked anew directly after the one before."""
    return [asker.ask_again(question) for question in questions][-1]


def _ask_chains(context: Context, second: _Second) -> None:
    """Ask every chain from its easiest question to its hardest, within half of the time that is left."""
    asker, changed = context.asker, list[tuple[Question, Question, Question]]()
    end = now() + (asker.deadline - now()) / 2
    for chain in hardening_chains(context.grid):
        if _is_refused(asker, chain):
            continue
        if chain.unlike is not None and now() < end:
            asker.ask_again(chain.unlike)
        for easier, question in zip((None, *chain.questions), chain.questions, strict=False):
            if now() > end:
                second.chains_unfinished += 1
                continue
            answer = asker.ask_again(question)
            if answer.kind in (AnswerKind.REFUSED, AnswerKind.OUT_OF_TIME):
                continue
            second.chained += 1
            report = _below_by_memory(context, chain.unlike, easier, question, answer)
            if report is not None:
                second.shortfalls.reports.append((question, report))
            elif easier and chain.unlike and _has_changed(asker.remembered(question), answer):
                changed.append((chain.unlike, easier, question))
    if not second.shortfalls.reports:
        second.depends = next(filter(None, (_dependence(asker, *row) for row in changed[:_MOST_REPEATS])), "")


def _is_refused(asker: Asker, chain: Chain) -> bool:
    """Whether the accountant refused every question of a chain before."""
    first = [asker.remembered(question) for question in chain.questions]
    return all(answer is not None and answer.kind is AnswerKind.REFUSED for answer in first)


def _below_by_memory(
    context: Context, unlike: Question | None, easier: Question | None, question: Question, answer: Answer
) -> UnderReport | None:
    """The under-report that an answer after an easier question is.

    None where the answer was below at first too, and is so without the easier question: no memory's fault.
    """
    report, first = below_truth(context, question, answer), context.asker.remembered(question)
    if report is None:
        return None
    if first is not None and below_truth(context, question, first) is not None:
        alone = first if unlike is None else asked_in_a_row(context.asker, unlike, question)
        if below_truth(context, question, alone) is not None:
            return None
    return replace(report, reproduction=context.line(*filter(None, (easier, question))))


def _has_changed(first: Answer | None, answer: Answer) -> bool:
    """Whether two answers are numbers that differ."""
    if first is None or not (first.is_number and answer.is_number):
        return False
    return not math.isclose(answer.value, first.value, rel_tol=EQUAL)


def _dependence(asker: Asker, unlike: Question, easier: Question, question: Question) -> str:
    """That an answer depends on the question before it, in words; empty where it does not, or is random."""
    with_easier, without = (unlike, easier, question), (unlike, question)
    rows = (with_easier, without, with_easier, without)
    after, alone, after_again, alone_again = (asked_in_a_row(asker, *row) for row in rows)
    if not all(answer.is_number for answer in (after, alone, after_again, alone_again)):
        return ""
    is_repeatable = after.value == after_again.value and alone.value == alone_again.value
    if not is_repeatable or math.isclose(after.value, alone.value, rel_tol=EQUAL):
        return ""
    return (
        f"{question.describe()}: answered {after.value:.9g} directly after {easier.describe()}, "
        f"and {alone.value:.9g} without"
    )


def _result_of(
    context: Context, check: Check, second: _Second, when: str, notes: tuple[str, ...]
) -> CheckResult:
    repeated, lost = len(second.repeated), second.lost
    left_out = 0 if second.is_enough() else len(second.first) - repeated + second.chains_unfinished
    counter = Counter(judged=repeated + second.chained, out_of_time=left_out)
    counter.planned = counter.judged + left_out
    if second.changed:
        notes = (f"{len(second.changed)} of {repeated} answers changed when asked again", *notes)
    standing = context.settle(second.shortfalls, None)
    if standing:
        worst = standing[0]
        message = f"{len(standing)} of {counter.judged} answers fell below the certified lower bound {when}"
        return result(
            context,
            check,
            counter,
            message=f"{message}; they were above it before" if repeated else message,
            failed=True,
            under_reports=standing,
            worst=worst.describe(),
            counterexample=counterexample_of(worst, {}),
            reproduction=worst.reproduction,
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
    if second.depends:
        return result(
            context,
            check,
            counter,
            message=f"an answer depends on what was asked before: {second.depends}",
            failed=True,
            worst=second.depends,
            counterexample={"found": second.depends},
            notes=notes,
        )
    message = f"{repeated} questions asked again, none below {when}"
    if second.chained:
        message += f"; nor {second.chained} directly after easier ones"
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
