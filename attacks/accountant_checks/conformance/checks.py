"""The checks: answers against certified values, and answers of one accountant against each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from workbench.accounting.deciding import ROUNDING
from workbench.attacks.accountant_checks.conformance.cells import (
    calibration_cells,
    cells_between,
    delta_cells,
    edge_cells,
    families,
    tpr_cells,
)
from workbench.attacks.accountant_checks.conformance.counterexamples import (
    Parameters,
    calibrate_line,
    expression,
    smallest_counterexample,
)
from workbench.attacks.accountant_checks.conformance.judging import (
    Context,
    Counter,
    Shortfalls,
    below_truth,
    counterexample_of,
    decide,
    decide_those_within,
    result,
    under_report,
)
from workbench.attacks.accountant_checks.conformance.questions import (
    Answer,
    AnswerKind,
    CalibrationQuestion,
    Question,
)
from workbench.attacks.accountant_checks.conformance.results import (
    Check,
    CheckResult,
    CheckStatus,
    UnderReport,
    plain_number,
)
from workbench.attacks.accountant_checks.conformance.shapes import Cell
from workbench.attacks.accountant_checks.conformance.truth import (
    by_rounding_only,
    question_at,
    smallest_noise,
)
from workbench.core.keys import JSON


def _judge(context: Context, counter: Counter, question: Question) -> UnderReport | None:
    """Ask, count, and compare with the truth."""
    answer = context.asker.ask(question)
    report = below_truth(context, question, answer)
    if report is not None:
        counter.judged += 1
        return report
    if not counter.usable(answer, question.describe):
        return None
    bounds = context.truths.of(question)
    if bounds is None:
        counter.no_truth(context.truths, question)
        return None
    counter.judged += 1
    counter.compare_upper(answer.value, bounds.upper)
    counter.rounding += answer.value < bounds.lower
    return None


def _smallest(context: Context, cell: Cell) -> tuple[Parameters, Question, UnderReport]:
    """The simplest parameters of this cell's shape at which the accountant is below the truth."""

    def report_at(parameters: Parameters) -> UnderReport | None:
        question = cell.shape.build(**parameters)
        return below_truth(context, question, context.asker.ask(question))

    with context.asker.more_time(context.shrink_seconds):
        parameters = smallest_counterexample(
            cell.parameters,
            cell.shape.simple,
            lambda tried: report_at(tried) is not None,
            seed=context.seed,
            seconds=context.shrink_seconds,
        )
        report = report_at(parameters)
    if report is None:
        raise RuntimeError(f"{cell.question.describe()} failed once and not again")
    return parameters, cell.shape.build(**parameters), report


def never_below(context: Context, check: Check, cells: Sequence[Cell]) -> CheckResult:
    """No answer of these cells is below the certified lower bound."""
    counter, shortfalls, failing = Counter(planned=len(cells)), Shortfalls(), list[Cell]()
    quantity = cells[0].question.quantity
    if not context.asker.answers_for(quantity):
        counter.refused = len(cells)
        return result(context, check, counter)
    for cell in cells:
        question = cell.question
        report = _judge(context, counter, question)
        if report is not None:
            shortfalls.reports.append((question, report))
            failing.append(cell)
    decide_those_within(context, counter, cells, shortfalls, failing)
    return _report_of(context, check, counter, shortfalls, failing)


def _report_of(
    context: Context, check: Check, counter: Counter, shortfalls: Shortfalls, failing: Sequence[Cell]
) -> CheckResult:
    """The result of a check that may have found under-reports in cells."""
    if not failing:
        message = f"{counter.judged} answers, none below the certified lower bound"
        return result(context, check, counter, message=message)
    parameters, question, smallest = _smallest(context, _simplest(failing))
    standing = context.settle(shortfalls, (question, smallest))
    notes = tuple(f"disputed: {text}" for text in shortfalls.disputed)
    if not standing:
        message = "answers are below our bounds, but a second method does not confirm these: a fault of ours"
        return result(context, check, counter, message=message, notes=notes, disputed=True)
    worst = max(standing, key=lambda report: report.relative_shortfall)
    below = min(len(shortfalls.reports), len(standing))
    first = standing[0]
    return result(
        context,
        check,
        counter,
        message=f"{below} of {counter.judged} answers are below the certified lower bound, the worst by "
        f"{100 * worst.relative_shortfall:.3g} %",
        failed=True,
        under_reports=standing,
        worst=worst.describe(),
        counterexample=counterexample_of(first, parameters),
        reproduction=first.reproduction,
        notes=notes,
    )


def _simplest(cells: Sequence[Cell]) -> Cell:
    """The cell whose parameters are simplest, so that the search starts close to its end."""

    def rank(cell: Cell) -> tuple[int, ...]:
        """How far each parameter lies from its simplest value."""
        places = []
        for name, values in cell.shape.simple.items():
            known = list(values)
            value = cell.parameters[name]
            places.append(known.index(value) if value in known else len(known))
        return tuple(places)

    return min(cells, key=rank)


def never_below_between(context: Context, check: Check) -> CheckResult:
    """Check that epsilon is never below its certified lower bound, at places drawn by the seed."""
    return never_below(context, check, cells_between(context.grid, context.seed))


def never_below_delta(context: Context, check: Check) -> CheckResult:
    """Check that delta at an epsilon is never below its certified lower bound."""
    return never_below(context, check, delta_cells(context.grid, context.seed))


def never_below_tpr(context: Context, check: Check) -> CheckResult:
    """Check that the true-positive rate at an FPR is never below its certified lower bound."""
    return never_below(context, check, tpr_cells(context.grid, context.seed))


def edge_cases(context: Context, check: Check) -> CheckResult:
    """Corners, and whatever else was asked, give a number, infinity, or a clear error."""
    named = edge_cells()
    counter, shortfalls, failing = Counter(planned=len(named)), Shortfalls(), list[Cell]()
    broken = list[Fault]()
    for name, cell in named:
        question = cell.question
        report = _judge(context, counter, question)
        answer = context.asker.ask(question)
        if answer.kind is AnswerKind.FAULT:
            broken.append((name, cell, question, answer))
        elif answer.is_number and context.truths.of(question) is None:
            counter.judged += 1  # a number is what was asked for
            counter.without_truth -= 1
        if report is not None:
            shortfalls.reports.append((question, report))
            failing.append(cell)
    decide_those_within(context, counter, [cell for _, cell in named], shortfalls, failing)
    corners = {question for _, _, question, _ in broken}
    elsewhere = context.asker.total.faults.items()
    broken += [_fault(question, answer) for question, answer in elsewhere if question not in corners]
    return with_faults(context, _report_of(context, check, counter, shortfalls, failing), broken)


def faults_met(context: Context) -> list[Fault]:
    """The answers of the present check that came, and are no number."""
    met = context.asker.here.faults.items()
    return [_fault(question, answer) for question, answer in met if answer.came]


def _fault(question: Question, answer: Answer) -> Fault:
    return question.describe(), None, question, answer


def with_faults(context: Context, first: CheckResult, broken: Sequence[Fault]) -> CheckResult:
    """A check's result, with the answers that were neither numbers nor clear errors."""
    if not broken:
        return first
    described = "; ".join(f"{name}: {answer.message}" for name, _, _, answer in broken[:3])
    more = f"; {len(broken) - 3} more" if len(broken) > 3 else ""
    message = f"{len(broken)} answers were no number, no infinity and no clear error ({described}{more})"
    hidden, raised = _above_zero(context, broken)
    count, partly = len(hidden), bool(hidden) and context.asker.out_of_time
    if hidden:
        message += f"; in {count} or more of these cells the truth is above 0"
    if first.status is CheckStatus.FAILED:
        notes = (*first.notes, message)
        return replace(first, notes=notes, hidden=count, hidden_partly=partly, raised=raised)
    counterexample, line = _smallest_fault(context, *(hidden or broken)[0][1:])
    return replace(
        first,
        status=CheckStatus.FAILED,
        message=message,
        counterexample=counterexample,
        reproduction=line,
        hidden=count,
        hidden_partly=partly,
        raised=raised,
    )


Fault = tuple[str, Cell | None, Question, Answer]
"""What was asked, in words and as a cell of the grid (None: not one of the corners), and the answer."""


def _above_zero(context: Context, broken: Sequence[Fault]) -> tuple[list[Fault], str]:
    """The answers that are no number where the truth is certified to be above 0, and the first crash there.

    They are looked for as long as there is time, but for the first of each.
    """
    hidden, raised = list[Fault](), ""
    for fault in broken:
        name, _, question, answer = fault
        crashed = not answer.came and math.isnan(answer.value)
        if (hidden and context.asker.out_of_time) if answer.came else (raised or not crashed):
            continue
        bounds = context.truths.of(question)
        if bounds is None or bounds.lower <= 0:
            continue
        if answer.came:
            hidden.append(fault)
        else:
            raised = f"{name}: {answer.message}"
    return hidden, raised


def _smallest_fault(
    context: Context, cell: Cell | None, question: Question, answer: Answer
) -> tuple[dict[str, JSON], str]:
    """The simplest parameters at which the accountant answers no number and gives no clear error."""
    example: dict[str, JSON] = {}
    if cell is not None:
        shape = cell.shape

        def fault_at(parameters: Parameters) -> bool:
            return context.asker.ask(shape.build(**parameters)).kind is AnswerKind.FAULT

        with context.asker.more_time(context.shrink_seconds):
            parameters = smallest_counterexample(
                cell.parameters, shape.simple, fault_at, seed=context.seed, seconds=context.shrink_seconds
            )
            question = shape.build(**parameters)
            answer = context.asker.ask(question)
        example |= {name: plain_number(value) for name, value in parameters.items()}
    example |= {
        "event": expression(question.event),
        question.argument_name: question.argument,
        "adjacency": str(question.adjacency),
        "found": answer.message,
    }
    return example, context.line(question)


def looseness(context: Context, check: Check) -> CheckResult:
    """Answers over certified upper bounds, for all families; held against the budget where there is one."""
    cells = [cell for family in families(context.grid).values() for cell in family]
    counter, worst, worst_question = Counter(planned=len(cells)), 0.0, None
    for cell in cells:
        question = cell.question
        before = len(counter.ratios)
        answer = context.asker.ask(question)
        if context.looseness_budget is not None and answer.is_number:
            decide(context, None, question, answer.value / context.looseness_budget)
        _judge(context, counter, question)
        if len(counter.ratios) > before and counter.ratios[-1] > worst:
            worst, worst_question = counter.ratios[-1], question
    if worst_question is None:
        return result(context, check, counter, message="no ratio to a certified upper bound")
    budget = context.looseness_budget
    over = budget is not None and worst > budget
    median = statistics.median(counter.ratios)
    message = f"median {median:.4g}, worst {worst:.4g} times the certified upper bound"
    bounds = context.truths.of(worst_question)
    described = f"{worst_question.describe()}: answered {context.asker.ask(worst_question).value:.6g}"
    described += f", certified upper bound {bounds.upper:.6g}" if bounds is not None else ""
    example = {"event": expression(worst_question.event), "ratio": plain_number(worst)}
    example |= {worst_question.argument_name: worst_question.argument}
    return result(
        context,
        check,
        counter,
        message=message + (f", above the budget of {budget:g}" if over else ""),
        failed=over,
        worst=described,
        counterexample=example if over else {},
        reproduction=context.line(worst_question) if over else "",
    )


def calibration(context: Context, check: Check) -> CheckResult:
    """The noise for a budget is enough for it, and the accountant itself agrees."""
    cells = calibration_cells(context.grid, context.seed)
    counter, shortfalls, disagreements = Counter(planned=len(cells)), Shortfalls(), []
    first: tuple[CalibrationQuestion, Question, UnderReport] | None = None
    if not context.asker.answers_for("noise_multiplier"):
        counter.refused = len(cells)
        return result(context, check, counter)
    for target in cells:
        noise = _calibrated(context, counter, target)
        if noise is None:
            continue
        question = question_at(noise, target)
        report = _too_little_noise(context, counter, target, question, noise)
        if report is not None:
            shortfalls.reports.append((question, report))
            first = first or (target, question, report)
        epsilon = context.asker.ask(question)
        if epsilon.is_number and epsilon.value > target.target_epsilon * (1 + ROUNDING):
            disagreements.append((target, noise, epsilon.value))
    notes = tuple(
        f"the accountant's own epsilon at its noise {noise:.6g} is {epsilon:.6g}, "
        f"above the target: {target.describe()}"
        for target, noise, epsilon in disagreements
    )
    standing = context.settle(shortfalls, None if first is None else first[1:])
    notes += tuple(f"disputed: {text}" for text in shortfalls.disputed)
    if standing and first is not None:
        worst = max(standing, key=lambda report: report.relative_shortfall)
        return result(
            context,
            check,
            counter,
            message=f"{len(standing)} of {counter.judged} noise multipliers are too small for their target, "
            f"the worst by {100 * worst.relative_shortfall:.3g} % of the true epsilon",
            failed=True,
            under_reports=standing,
            worst=worst.describe(),
            counterexample=counterexample_of(standing[0], _plain(first[0])),
            reproduction=standing[0].reproduction,
            notes=notes,
        )
    if disagreements:
        target, noise, reported = disagreements[0]
        example = {**_plain(target), "noise_multiplier": noise, "own_epsilon": plain_number(reported)}
        return result(
            context,
            check,
            counter,
            message=f"{len(disagreements)} of {counter.judged} noise multipliers miss the target by the "
            "accountant's own epsilon",
            failed=True,
            counterexample=example,
            reproduction=calibrate_line(context.target, target),
            notes=notes,
        )
    message = f"{counter.judged} noise multipliers, each enough for its target"
    return result(context, check, counter, message=message, notes=notes)


def _calibrated(context: Context, counter: Counter, target: CalibrationQuestion) -> float | None:
    """The noise for a target; None, and counted, where it is no positive number."""
    answer = context.asker.calibrate(target)
    if not counter.usable(answer, target.describe):
        return None
    if 0 < answer.value < math.inf:
        return answer.value
    counter.crashed += 1
    counter.faults.append(f"{target.describe()}: answered {answer.value:g}")
    return None


def _too_little_noise(
    context: Context, counter: Counter, calibration: CalibrationQuestion, question: Question, noise: float
) -> UnderReport | None:
    """The under-report that a calibration is; keeps the ratio to the smallest sufficient noise."""
    target = calibration.target_epsilon
    bounds = decide(context, counter, question, target)
    if bounds is None:
        counter.no_truth(context.truths, question)
        return None
    counter.judged += 1
    counter.compare_upper(noise, smallest_noise(calibration) or math.inf)
    if bounds.lower <= target:
        return None
    if by_rounding_only("epsilon", target, bounds.lower):
        counter.rounding += 1
        return None
    return replace(
        under_report(context, question, noise, bounds),
        quantity="noise_multiplier",
        argument={"target_epsilon": target, "delta": calibration.delta},
        claimed=target,
        reproduction=calibrate_line(context.target, calibration),
    )


def _plain(question: CalibrationQuestion) -> dict[str, float]:
    return {name: value for name, value in vars(question).items() if name != "adjacency"}
