"""What all checks share: counting cells, holding answers against the truth, and writing a result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from workbench.accounting.bounds import Bounds
from workbench.accounting.deciding import is_undecided
from workbench.attacks.accountant_checks.conformance.counterexamples import ask_line, expression, target_of
from workbench.attacks.accountant_checks.conformance.questions import Answer, AnswerKind, Asker, Question, now
from workbench.attacks.accountant_checks.conformance.results import (
    Cells,
    Check,
    CheckResult,
    CheckStatus,
    UnderReport,
    plain_number,
)
from workbench.attacks.accountant_checks.conformance.shapes import Cell
from workbench.attacks.accountant_checks.conformance.truth import (
    Truths,
    by_rounding_only,
    confirmed,
)
from workbench.core.keys import JSON

CONFIRMED_AT_MOST = 1
"""So many under-reports of a check are computed a second time, the worst first, besides the smallest."""


@dataclass(kw_only=True)
class Context:
    """One accountant under test, and how it is tested; see `accountant_checks`.

    Attributes:
        shrink_seconds: Time of one search for a small counterexample.
        confirm_seconds: Time of one check's second computations.
        truths: What the answers are held against.
    """

    asker: Asker
    grid: str
    looseness_budget: float | None
    seed: int
    shrink_seconds: float
    confirm_seconds: float
    truths: Truths = field(default_factory=Truths)
    _target: str | None = None

    @property
    def target(self) -> str:
        """The text that loads the accountant again; empty where nothing does."""
        if self._target is None:
            self._target = target_of(self.asker.accountant)
        return self._target

    def settle(
        self, shortfalls: Shortfalls, smallest: tuple[Question, UnderReport] | None
    ) -> tuple[UnderReport, ...]:
        """The under-reports that remain after a second opinion, which has time of its own."""
        with self.asker.more_time(self.confirm_seconds):
            return shortfalls.settle(smallest, self.confirm_seconds)

    def line(self, *questions: Question) -> str:
        """A shell line that prints the accountant's answers."""
        return ask_line(self.asker.accountant, self.target, *questions)


@dataclass(kw_only=True)
class Counter:
    """Cells of a check as they are judged (see `Cells`), ratios to certified upper bounds, and crashes.

    Attributes:
        undecided: Relative widths of the bounds within which an answer lies for good.
    """

    planned: int = 0
    judged: int = 0
    refused: int = 0
    crashed: int = 0
    out_of_time: int = 0
    without_truth: int = 0
    rounding: int = 0
    ratios: list[float] = field(default_factory=list)
    undecided: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    faults_of_ours: list[str] = field(default_factory=list)

    def no_truth(self, truths: Truths, question: Question) -> None:
        """Count an answer for which there is no certified value."""
        self.without_truth += 1
        fault = truths.fault_of_ours(question)
        if fault:
            self.faults_of_ours.append(f"{question.describe()}: {fault}")

    def usable(self, answer: Answer, where: Callable[[], str]) -> bool:
        """Whether the answer is a number; what is not, is counted."""
        if answer.kind is AnswerKind.REFUSED:
            self.refused += 1
        elif answer.kind is AnswerKind.OUT_OF_TIME:
            self.out_of_time += 1
        elif answer.kind is AnswerKind.FAULT:
            self.crashed += 1
            self.faults.append(f"{where()}: {answer.message}")
        return answer.is_number

    def compare_upper(self, value: float, upper: float) -> None:
        """Keep the ratio to a certified upper bound, where it has a meaning."""
        if 0 < upper < math.inf:
            self.ratios.append(value / upper)

    def cells(self) -> Cells:
        """How many cells were planned, judged, refused, crashed, out of time or without a certified value."""
        names = ("planned", "judged", "refused", "crashed", "out_of_time", "without_truth")
        return Cells(**{name: getattr(self, name) for name in names})

    def status(self, failed: bool) -> CheckStatus:
        """The status of a check, from its counts and whether an answer `failed` it."""
        if failed:
            return CheckStatus.FAILED
        if self.judged:
            return CheckStatus.PASSED
        if self.crashed:
            return CheckStatus.ERROR
        if self.refused and not self.out_of_time and not self.without_truth:
            return CheckStatus.REFUSED
        return CheckStatus.LEFT_OUT if self.planned else CheckStatus.REFUSED

    def notes(self) -> tuple[str, ...]:
        """Rounding, crashes and what was left out."""
        notes = []
        if self.rounding:
            notes.append(
                f"{self.rounding} answers are below the certified lower bound by floating-point rounding "
                "only (less than 1e-9 of it), which is no failure"
            )
        if self.undecided:
            notes.append(
                f"{len(self.undecided)} answers lie within the certified bounds: undecided at a relative "
                f"width of {max(self.undecided):.1g}"
            )
        if self.faults:
            notes.append(f"no usable answer in {len(self.faults)} cells, for example {self.faults[0]}")
        if self.faults_of_ours:
            notes.append(
                f"a fault of ours: no certified value in {len(self.faults_of_ours)} cells, for example "
                f"{self.faults_of_ours[0]}"
            )
        if self.out_of_time:
            notes.append(f"{self.out_of_time} cells were left out, because the time for this check was over")
        return tuple(notes)


def shortfall(truths: Truths, question: Question, value: float) -> Bounds | None:
    """The certified bounds where the value is below them by more than rounding; else None.

    A negative number where the truth may be 0 is a fault, and no under-report.
    """
    bounds = truths.of(question)
    if bounds is None or value >= bounds.lower or bounds.lower <= 0:
        return None
    return None if by_rounding_only(question.quantity, value, bounds.lower) else bounds


def decide(context: Context, counter: Counter | None, question: Question, claimed: float) -> Bounds | None:
    """The bounds, narrowed until they decide about a claim, or until the check's time is over.

    Args:
        counter: Counts an answer that they still hold as undecided; None where the claim is no answer.
    """
    bounds = context.truths.narrow(question, claimed, lambda: not context.asker.out_of_time)
    if counter is not None and bounds is not None and is_undecided(bounds, claimed):
        counter.undecided.append(bounds.relative_width)
    return bounds


def under_report(context: Context, question: Question, answer: float, bounds: Bounds) -> UnderReport:
    """An answer below its certified bounds, on record (not computed a second time yet)."""
    return UnderReport(
        quantity=question.quantity,
        event=question.event.describe(),
        expression=expression(question.event),
        adjacency=str(question.adjacency),
        argument={question.argument_name: question.argument},
        answer=answer,
        claimed=answer,
        certified_lower=bounds.lower,
        certified_upper=bounds.upper,
        rigorous=bounds.rigorous,
        method=bounds.method,
        reproduction=context.line(question),
    )


def below_truth(context: Context, question: Question, answer: Answer) -> UnderReport | None:
    """The under-report that an answer is; None where it is none. A negative number counts too."""
    if math.isnan(answer.value):
        return None
    bounds = shortfall(context.truths, question, answer.value)
    return None if bounds is None else under_report(context, question, answer.value, bounds)


@dataclass(kw_only=True)
class Shortfalls:
    """Answers below the truth, with the questions that show it.

    Attributes:
        reports: The under-reports with the question whose truth they miss.
        disputed: Those that the second method did not confirm, or that rest on bounds that are not rigorous
            and that no second method covers: never counted as failures.
    """

    reports: list[tuple[Question, UnderReport]] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)

    def settle(
        self, smallest: tuple[Question, UnderReport] | None, seconds: float
    ) -> tuple[UnderReport, ...]:
        """Compute the worst and the smallest a second time; what stands, the smallest first, then the worst.

        Args:
            smallest: The shrunk counterexample.
            seconds: After this time no other is computed again, unless its bounds are not rigorous.
        """
        deadline = now() + seconds
        first = [smallest] if smallest is not None else []
        known = {(report.expression, *report.argument.items()) for _, report in first}
        rest = sorted(self.reports, key=lambda pair: -pair[1].relative_shortfall)
        rest = [pair for pair in rest if (pair[1].expression, *pair[1].argument.items()) not in known]
        standing = []
        for index, (question, report) in enumerate(first + rest):
            wanted = index <= CONFIRMED_AT_MOST and now() < deadline
            kept = self._second_opinion(question, report, wanted=wanted or index == 0)
            standing += [kept] if kept is not None else []
        if self.disputed:  # then the bounds are in doubt, and only what was confirmed stands
            standing = [report for report in standing if report.confirmed_by]
        return tuple(standing)

    def _second_opinion(self, question: Question, report: UnderReport, *, wanted: bool) -> UnderReport | None:
        if report.rigorous and not wanted:
            return report
        second = confirmed(question, report.claimed)
        if second is None:
            if report.rigorous:
                return report
            self.disputed.append(
                f"{report.describe()}: the bounds are not rigorous, and no second method is known"
            )
            return None
        if not second.agrees:
            self.disputed.append(
                f"{report.describe()}: {second.method} does not confirm it ({second.value:.9g})"
            )
            return None
        return replace(report, confirmed_by=second.describe(), confirmed_value=second.value)


def decide_those_within(
    context: Context, counter: Counter, cells: Sequence[Cell], shortfalls: Shortfalls, failing: list[Cell]
) -> None:
    """Narrow the bounds within which an answer lies, after all cells are judged; add what falls below.

    Once some answers are known to be below, there is nothing left to decide.
    """
    for cell in cells:
        answer = context.asker.remembered(cell.question)
        bounds = context.truths.of(cell.question) if answer is not None and answer.is_number else None
        if failing or answer is None or bounds is None or not is_undecided(bounds, answer.value):
            continue
        if decide(context, counter, cell.question, answer.value) is None:
            counter.judged -= 1
            counter.no_truth(context.truths, cell.question)
        report = below_truth(context, cell.question, answer)
        if report is not None:
            shortfalls.reports.append((cell.question, report))
            failing.append(cell)


def result(
    context: Context,
    check: Check,
    counter: Counter,
    *,
    message: str = "",
    failed: bool = False,
    under_reports: tuple[UnderReport, ...] = (),
    worst: str = "",
    counterexample: Mapping[str, JSON] = MappingProxyType({}),
    reproduction: str = "",
    notes: tuple[str, ...] = (),
    disputed: bool = False,
) -> CheckResult:
    """The result of a check from its counts and what it found, which is as of `CheckResult`.

    Args:
        context, check, counter: The accountant under test, the promise, and what became of the cells.
        failed: A cell broke the promise.
        disputed: Our own bounds are in doubt.
    """
    status = CheckStatus.ERROR if disputed else counter.status(failed)
    words = {
        CheckStatus.REFUSED: "the accountant does not answer this",
        CheckStatus.LEFT_OUT: "nothing was judged",
        CheckStatus.ERROR: f"no usable answer in {counter.crashed} cells, and none to judge",
    }
    return CheckResult(
        check=check,
        status=status,
        cells=counter.cells(),
        message=message if disputed else words.get(status, message),
        under_reports=under_reports,
        rounding=counter.rounding,
        undecided=len(counter.undecided),
        finite=max(context.asker.here.finite, sum(map(math.isfinite, counter.ratios))),
        worst=worst,
        looseness_median=statistics.median(counter.ratios) if counter.ratios else None,
        looseness_worst=max(counter.ratios, default=None),
        milliseconds_per_call=context.asker.here.milliseconds_per_call,
        counterexample=counterexample,
        reproduction=reproduction,
        notes=counter.notes() + notes,
    )


def counterexample_of(report: UnderReport, parameters: Mapping[str, float]) -> dict[str, JSON]:
    """A counterexample in plain form: the question, the answer and the truth."""
    example: dict[str, JSON] = {name: plain_number(value) for name, value in parameters.items()}
    example |= {"adjacency": report.adjacency, "event": report.expression}
    example[f"answered_{report.quantity}"] = plain_number(report.answer)
    example["certified_lower"] = plain_number(report.certified_lower)
    example["certified_upper"] = plain_number(report.certified_upper)
    if report.confirmed_by:
        example["confirmed_by"] = report.confirmed_by
    return example
