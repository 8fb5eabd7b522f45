"""The check of noise calibrators: the noise for a budget keeps the certified epsilon within it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from workbench.attacks.accountant_checks.conformance.asking import CalibrationQuestion, Question
from workbench.attacks.accountant_checks.conformance.judging import (
    Context,
    Counter,
    Found,
    Outcome,
    counterexample_of,
    result,
)
from workbench.attacks.accountant_checks.conformance.more_cells import calibration_cells
from workbench.attacks.accountant_checks.conformance.reproduction import calibrate_line, expression
from workbench.attacks.accountant_checks.conformance.results import (
    Check,
    CheckResult,
    UnderReport,
    plain_number,
)
from workbench.attacks.accountant_checks.conformance.truth import (
    ROUNDING,
    by_rounding_only,
    question_at,
    smallest_noise,
    truth,
)


@dataclass(kw_only=True)
class _Findings:
    """What a calibrator's answers showed.

    Attributes:
        reports: Noise that is too small, with the question for epsilon at that noise.
        smallest: The first of these.
        disagreements: Questions with the noise and the accountant's own epsilon, above the target.
    """

    reports: Found
    smallest: tuple[CalibrationQuestion, Question, UnderReport] | None = None
    disagreements: list[tuple[CalibrationQuestion, float, float]] = field(default_factory=list)


def calibration(context: Context, check: Check) -> CheckResult:
    """The noise for a budget is enough for it, and the accountant itself agrees."""
    cells = calibration_cells(context.grid)
    counter, findings = Counter(planned=len(cells)), _Findings(reports=Found())
    if not context.asker.answers_for("noise_multiplier"):
        counter.refused = len(cells)
        return result(context, check, counter, Outcome())
    for asked in cells:
        answer = context.asker.calibrate(asked)
        if not counter.usable(answer, asked.describe):
            continue
        if not 0 < answer.value < math.inf:
            counter.crashed += 1
            counter.faults.append(f"{asked.describe()}: answered {answer.value:g}")
            continue
        question = question_at(answer.value, asked)
        report = _calibration_report(context, counter, asked, question, answer.value)
        if report is not None:
            findings.reports.reports.append((question, report))
            findings.smallest = findings.smallest or (asked, question, report)
        own = context.asker.ask(question)
        if own.is_number and own.value > asked.target_epsilon * (1 + ROUNDING):
            findings.disagreements.append((asked, answer.value, own.value))
    return _calibration_result(context, check, counter, findings)


def _calibration_report(
    context: Context, counter: Counter, asked: CalibrationQuestion, question: Question, noise: float
) -> UnderReport | None:
    """The under-report that a calibration is; keeps the ratio to the smallest sufficient noise."""
    bounds = truth(question)
    if bounds is None:
        counter.no_truth(question)
        return None
    counter.judged += 1
    counter.compare_upper(noise, smallest_noise(asked) or math.inf)
    target = asked.target_epsilon
    if bounds.lower <= target:
        return None
    if by_rounding_only("epsilon", target, bounds.lower):
        counter.rounding += 1
        return None
    return UnderReport(
        quantity="noise_multiplier",
        event=question.event.describe(),
        expression=expression(question.event),
        adjacency=str(asked.adjacency),
        argument={"target_epsilon": target, "delta": asked.delta},
        answer=noise,
        claimed=target,
        certified_lower=bounds.lower,
        certified_upper=bounds.upper,
        rigorous=bounds.rigorous,
        method=bounds.method,
        reproduction=calibrate_line(context.target, asked),
    )


def _calibration_result(context: Context, check: Check, counter: Counter, findings: _Findings) -> CheckResult:
    found, smallest, disagreements = findings.reports, findings.smallest, findings.disagreements
    notes = tuple(
        f"the accountant's own epsilon at its noise {noise:.6g} is {own:.6g}, above the target: "
        f"{asked.describe()}"
        for asked, noise, own in disagreements
    )
    first = None if smallest is None else smallest[1:]
    standing = context.settle(found, first)
    notes += tuple(f"disputed: {text}" for text in found.disputed)
    if standing and smallest is not None:
        worst = max(standing, key=lambda report: report.relative_shortfall)
        return result(
            context,
            check,
            counter,
            Outcome(
                message=f"{len(standing)} of {counter.judged} noise multipliers are too small for their "
                f"target, the worst by {100 * worst.relative_shortfall:.3g} % of the true epsilon",
                failed=True,
                under_reports=standing,
                worst=worst.describe(),
                counterexample=counterexample_of(standing[0], _plain(smallest[0])),
                reproduction=standing[0].reproduction,
                notes=notes,
            ),
        )
    if disagreements:
        asked, noise, own = disagreements[0]
        return result(
            context,
            check,
            counter,
            Outcome(
                message=f"{len(disagreements)} of {counter.judged} noise multipliers miss the target by the "
                "accountant's own epsilon",
                failed=True,
                counterexample={**_plain(asked), "noise_multiplier": noise, "own_epsilon": plain_number(own)},
                reproduction=calibrate_line(context.target, asked),
                notes=notes,
            ),
        )
    message = f"{counter.judged} noise multipliers, each enough for its target"
    return result(context, check, counter, Outcome(message=message, notes=notes))


def _plain(asked: CalibrationQuestion) -> dict[str, float]:
    return {name: value for name, value in vars(asked).items() if name != "adjacency"}
