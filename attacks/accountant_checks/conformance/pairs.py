"""The checks that compare an accountant's answers with each other: order, counts, adjacencies, monotonicity.

Where a step goes in the wrong direction, both questions are asked once more, the easier one first: an
accountant that answers the harder one out of its memory of the easier one is then below the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from workbench.attacks.accountant_checks.conformance.again import EQUAL, asked_in_a_row
from workbench.attacks.accountant_checks.conformance.cells import (
    PairCell,
    adjacency_pairs,
    families,
    n_fold_pairs,
    neighbours_in,
    order_pairs,
)
from workbench.attacks.accountant_checks.conformance.counterexamples import (
    Parameters,
    expression,
    smallest_counterexample,
)
from workbench.attacks.accountant_checks.conformance.judging import (
    Context,
    Counter,
    Shortfalls,
    below_truth,
    result,
    shortfall,
)
from workbench.attacks.accountant_checks.conformance.questions import Answer, AnswerKind, Question
from workbench.attacks.accountant_checks.conformance.results import (
    Check,
    CheckResult,
    UnderReport,
    plain_number,
)
from workbench.attacks.accountant_checks.conformance.truth import Truths
from workbench.core.keys import JSON

MONOTONE = 1e-6
"""Relative step in the wrong direction up to which answers count as monotone."""

_ABSOLUTE = 1e-9

_MOST_AGAIN = 8
"""Pairs whose questions are asked once more, the easier one first."""

Broken = Callable[[tuple[Question, Question], float, float], str]
"""What is wrong with two answers, in words; empty where nothing is."""


@dataclass(frozen=True, kw_only=True)
class _Breach:
    """A pair that broke the promise."""

    cell: PairCell
    parameters: Parameters
    words: str


def _answers(context: Context, pair: tuple[Question, Question]) -> tuple[Answer, Answer]:
    first = context.asker.ask(pair[0])
    if first.kind in (AnswerKind.REFUSED, AnswerKind.OUT_OF_TIME):
        return first, first
    return first, context.asker.ask(pair[1])


def _compare(
    context: Context,
    check: Check,
    cells: Sequence[PairCell],
    broken: Broken,
    *,
    easier: int | None = None,
) -> CheckResult:
    """Ask both questions of each pair, and say what is wrong with the answers.

    Args:
        context, check, cells, broken: The accountant under test, the promise, the pairs, and what breaks it.
        easier: Which of both is the easier question, so that they are asked once more in that order; None
            where neither is.
    """
    counter, breaches = Counter(planned=len(cells)), list[_Breach]()
    for cell in cells:
        pair = cell.shape.build(**cell.parameters)
        answers = _answers(context, pair)
        bad = next((answer for answer in answers if not answer.is_number), None)
        if bad is not None:
            counter.usable(bad, pair[0].describe)
            continue
        counter.judged += 1
        words = broken(pair, answers[0].value, answers[1].value)
        if words:
            breaches.append(_Breach(cell=cell, parameters=cell.parameters, words=words))
    if not breaches:
        message = f"{counter.judged} pairs of answers, all as promised"
        return result(context, check, counter, message=message)
    return _breach_result(context, check, counter, breaches, broken, easier=easier)


def _breach_result(
    context: Context,
    check: Check,
    counter: Counter,
    breaches: Sequence[_Breach],
    broken: Broken,
    *,
    easier: int | None,
) -> CheckResult:
    smallest = _smallest_breach(context, breaches[0], broken)
    pair = smallest.cell.shape.build(**smallest.parameters)
    shortfalls, first = Shortfalls(), None
    for breach in (smallest, *breaches):
        for question in breach.cell.shape.build(**breach.parameters):
            report = below_truth(context, question, context.asker.ask(question))
            if report is not None:
                shortfalls.reports.append((question, report))
                first = first or ((question, report) if breach is smallest else None)
    if easier is not None:
        shortfalls.reports += _below_after_the_easier(context, (smallest, *breaches), easier)
    standing = context.settle(shortfalls, first)
    values = [context.asker.ask(question).value for question in pair]
    shape = smallest.cell.shape
    example: dict[str, JSON] = {
        name: plain_number(value) for name, value in smallest.parameters.items() if name not in shape.places
    }
    example |= {
        "events": [expression(question.event) for question in pair],
        "adjacencies": [str(question.adjacency) for question in pair],
        "delta": [question.argument for question in pair],
        "answers": [plain_number(value) for value in values],
        "found": smallest.words,
    }
    if standing:
        example["under_report"] = standing[0].describe()
    return result(
        context,
        check,
        counter,
        message=f"{len(breaches)} of {counter.judged} pairs break the promise: {smallest.words}",
        failed=True,
        under_reports=standing,
        worst=breaches[0].words,
        counterexample=example,
        reproduction=context.line(*pair),
        notes=tuple(f"disputed: {text}" for text in shortfalls.disputed),
    )


def _below_after_the_easier(
    context: Context, breaches: Sequence[_Breach], easier: int
) -> list[tuple[Question, UnderReport]]:
    """Ask pairs once more, the easier question first; where the harder one's answer is below the truth."""
    unlike = families(context.grid)["gaussian"][0].question
    found = list[tuple[Question, UnderReport]]()
    with context.asker.more_time(context.confirm_seconds):
        for breach in breaches[:_MOST_AGAIN]:
            pair = breach.cell.shape.build(**breach.parameters)
            row = (pair[easier], pair[1 - easier])
            report = below_truth(context, row[1], asked_in_a_row(context.asker, unlike, *row))
            if report is not None:
                found.append((row[1], replace(report, reproduction=context.line(*row))))
    return found


def _smallest_breach(context: Context, breach: _Breach, broken: Broken) -> _Breach:
    """The simplest parameters of this shape of pair that break the promise."""
    shape = breach.cell.shape

    def words_at(parameters: Parameters) -> str:
        pair = shape.build(**parameters)
        answers = _answers(context, pair)
        if not all(answer.is_number for answer in answers):
            return ""
        return broken(pair, answers[0].value, answers[1].value)

    with context.asker.more_time(context.shrink_seconds):
        parameters = smallest_counterexample(
            breach.parameters,
            shape.simple,
            lambda tried: bool(words_at(tried)),
            seed=context.seed,
            seconds=context.shrink_seconds,
        )
        words = words_at(parameters)
    return _Breach(cell=breach.cell, parameters=parameters, words=words or breach.words)


def _differ(first: float, second: float, tolerance: float) -> bool:
    if math.isinf(first) or math.isinf(second):
        return first != second
    return abs(first - second) > tolerance * max(first, second) + _ABSOLUTE


def monotone(parameter: str, *, rising: bool) -> Callable[[Context, Check], CheckResult]:
    """The check that epsilon rises (or falls) in a parameter of a DP-SGD run.

    Args:
        rising: True where epsilon must not fall as the parameter grows.
    """
    verb = "falls" if rising else "rises"
    label = parameter.replace("_", " ")

    def broken(pair: tuple[Question, Question], smaller: float, larger: float) -> str:
        wrong = larger < smaller if rising else larger > smaller
        if not wrong or not _differ(smaller, larger, MONOTONE):
            return ""
        return f"epsilon {verb} from {smaller:.9g} to {larger:.9g} as the {label} grows"

    def run(context: Context, check: Check) -> CheckResult:
        pairs = neighbours_in(parameter, context.grid)
        return _compare(context, check, pairs, broken, easier=0 if rising else 1)

    return run


def _unequal(pair: tuple[Question, Question], first: float, second: float) -> str:
    if not _differ(first, second, EQUAL):
        return ""
    return f"{first:.9g} for {pair[0].event.describe()}, but {second:.9g} for {pair[1].event.describe()}"


def n_fold(context: Context, check: Check) -> CheckResult:
    """An event with a count is accounted as that many single ones."""
    return _compare(context, check, n_fold_pairs(context.grid), _unequal)


def order(context: Context, check: Check) -> CheckResult:
    """The order of a composition does not matter."""
    return _compare(context, check, order_pairs(context.grid), _unequal)


def _one_for_both(truths: Truths, pair: tuple[Question, Question], first: float, second: float) -> str:
    """Add-remove first, replace-one second."""
    add_remove, replace_one = truths.of(pair[0]), truths.of(pair[1])
    if replace_one is None:
        return ""
    if shortfall(truths, pair[1], second) is not None:
        return (
            f"{second:.9g} under replace-one, where the truth is at least {replace_one.lower:.9g} "
            f"(under add-remove it says {first:.9g})"
        )
    if add_remove is None or add_remove.upper >= replace_one.lower or _differ(first, second, _ABSOLUTE):
        return ""
    return (
        f"{first:.9g} under add-remove and under replace-one alike, where the truths differ: at most "
        f"{add_remove.upper:.9g}, and at least {replace_one.lower:.9g}"
    )


def adjacency(context: Context, check: Check) -> CheckResult:
    """Replace-one is answered for replace-one, or refused."""
    return _compare(context, check, adjacency_pairs(context.grid), partial(_one_for_both, context.truths))
