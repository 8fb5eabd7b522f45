"""What the conformance suite hands back: checks, their results, and a report of one accountant.

Plain frozen records, each with `to_json()`: infinite and undefined numbers become the strings `"inf"`
and so on, which JSON has no numbers for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from workbench.core.keys import JSON


class CheckStatus(StrEnum):
    """Whether a check of an accountant passed, failed or could not be made."""

    PASSED = "passed"
    """At least one cell was judged, and none broke the promise."""
    FAILED = "failed"
    """A cell broke the promise; the result carries a counterexample."""
    REFUSED = "refused"
    """The accountant refused every cell: nothing is shown, and nothing is wrong."""
    ERROR = "error"
    """Nothing was judged: the accountant crashed, or gave no usable number, wherever it did not refuse."""
    LEFT_OUT = "left out"
    """No cell was judged: the time was over, or no certified value was to be had."""


def plain_number(value: float) -> JSON:
    """The number itself, or its name where JSON has no such number."""
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else str(float(value))


@dataclass(frozen=True, kw_only=True)
class Check:
    """A promise that accountants are checked for.

    Attributes:
        name: Stable, usable as a test's id: `never_below_certified_lower[laplace]`.
        fails_ci: True where the check compares with certified lower bounds: a build should stop at an
            under-report that it finds.
    """

    name: str
    summary: str
    fails_ci: bool

    def to_json(self) -> dict[str, JSON]:
        """The check as a JSON object."""
        return {"name": self.name, "summary": self.summary, "fails_ci": self.fails_ci}


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Counts of a check's cells by outcome (a cell is one question, or one comparison of several).

    Attributes:
        refused: Refused by the accountant with a clear error.
        crashed: Ended in another exception, or in an answer that is no number or negative.
        out_of_time: Not asked, because the time for this check was over.
        without_truth: Not judged, because no certified value was to be had.
    """

    planned: int = 0
    judged: int = 0
    refused: int = 0
    crashed: int = 0
    out_of_time: int = 0
    without_truth: int = 0

    def describe(self) -> str:
        """`12 of 20 judged, 5 refused, 3 left out for time`."""
        text = f"{self.judged} of {self.planned} judged"
        for count, words in (
            (self.refused, "refused"),
            (self.crashed, "without a usable answer"),
            (self.out_of_time, "left out for time"),
            (self.without_truth, "without a certified value"),
        ):
            text += f", {count} {words}" if count else ""
        return text

    def to_json(self) -> dict[str, JSON]:
        """The counts as a JSON object."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class UnderReport:
    """An answer below what is certainly true.

    Attributes:
        quantity: `"epsilon"`, `"delta"`, `"tpr"`, or `"noise_multiplier"` (of a calibration: `answer` is the
            noise, and the certified epsilon at that noise is above the target).
        expression: The same as a Python expression (of names from `workbench.accounting`).
        argument: The question's other number by name: `{"delta": 1e-05}`.
        certified_lower, certified_upper: Enclosure of the truth: of epsilon at the returned noise, for a
            calibration.
        claimed: What the certified values are compared with: the answer, or a calibration's target epsilon.
        rigorous: Whether the enclosure carries every error.
        confirmed_by: The independent second method that found the same, with its value; empty where this
            under-report was not computed a second time.
        confirmed_value: The independent method's value (a lower end where it does not settle); None without.
    """

    quantity: str
    event: str
    expression: str
    adjacency: str
    argument: Mapping[str, float]
    answer: float
    claimed: float
    certified_lower: float
    certified_upper: float
    rigorous: bool
    method: str
    reproduction: str
    confirmed_by: str = ""
    confirmed_value: float | None = None

    @property
    def relative_shortfall(self) -> float:
        """How far the claim is below the certified lower bound, as a share of the latter, in (0, inf)."""
        if math.isinf(self.certified_lower):
            return 1.0
        return (self.certified_lower - self.claimed) / self.certified_lower

    def describe(self) -> str:
        """One sentence with all numbers."""
        argument = ", ".join(f"{name} = {value:g}" for name, value in self.argument.items())
        confirmed = f"; confirmed by {self.confirmed_by}" if self.confirmed_by else ""
        what = f"{self.quantity} = {self.answer:.9g}"
        truth = f"the truth is in [{self.certified_lower:.9g}, {self.certified_upper:.9g}]"
        if self.quantity == "noise_multiplier":
            truth = f"epsilon there is in [{self.certified_lower:.9g}, {self.certified_upper:.9g}]"
        return f"{self.event} at {argument}, {self.adjacency}: answered {what}, but {truth}{confirmed}"

    def to_json(self) -> dict[str, JSON]:
        """The answer that is too small, as a JSON object."""
        return {
            "quantity": self.quantity,
            "event": self.event,
            "expression": self.expression,
            "adjacency": self.adjacency,
            "argument": {name: plain_number(value) for name, value in self.argument.items()},
            "answer": plain_number(self.answer),
            "claimed": plain_number(self.claimed),
            "certified_lower": plain_number(self.certified_lower),
            "certified_upper": plain_number(self.certified_upper),
            "relative_shortfall": plain_number(self.relative_shortfall),
            "rigorous": self.rigorous,
            "method": self.method,
            "confirmed_by": self.confirmed_by,
            "confirmed_value": None if self.confirmed_value is None else plain_number(self.confirmed_value),
            "reproduction": self.reproduction,
        }


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check of an accountant.

    Attributes:
        under_reports: Every answer below a certified lower bound, worst first.
        rounding: Answers that are below one by rounding only (see the package's text): no failure.
        undecided: Answers within certified bounds that no finer grid narrowed enough, or that there was no
            time to narrow: not below the lower end, and perhaps below the truth.
        hidden: How many answers are no number (NaN), where the certified truth is above 0.
        hidden_partly: Whether time ran out before all such answers were looked at, so that there may be more.
        raised: Where the accountant crashed though the certified truth is above 0; empty if nowhere.
        finite: Calls of this check, not answered from memory, whose answer was a finite number.
        worst: The worst cell in words (largest shortfall, looseness or difference); empty without one.
        looseness_median, looseness_worst: Answer over the certified upper bound, over the judged cells; None
            where the check compares with no certified value.
        milliseconds_per_call: Mean time of this check's calls of the accountant that were not answered from
            memory; None without such calls.
        counterexample: The smallest failing case that was found: parameters and what was found there.
        reproduction: One line for a shell that prints the accountant's answer there; empty without a failure.
    """

    check: Check
    status: CheckStatus
    cells: Cells
    message: str
    under_reports: tuple[UnderReport, ...] = ()
    rounding: int = 0
    undecided: int = 0
    hidden: int = 0
    hidden_partly: bool = False
    raised: str = ""
    finite: int = 0
    worst: str = ""
    looseness_median: float | None = None
    looseness_worst: float | None = None
    milliseconds_per_call: float | None = None
    counterexample: Mapping[str, JSON] = field(default_factory=dict)
    reproduction: str = ""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The check's name."""
        return self.check.name

    @property
    def fails_ci(self) -> bool:
        """True where a build should stop: at an under-report, or at no number where the truth is above 0."""
        return self.check.fails_ci and bool(self.under_reports or self.hidden)

    def describe(self) -> str:
        """What a failing test prints: message, counterexample, reproduction."""
        lines = [f"{self.name}: {self.status}: {self.message}"]
        if self.counterexample:
            example = ", ".join(f"{key} = {value}" for key, value in self.counterexample.items())
            lines.append(f"  smallest counterexample: {example}")
        if self.reproduction:
            lines.append(f"  reproduce: {self.reproduction}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def to_json(self) -> dict[str, JSON]:
        """The result as a JSON object."""
        numbers = {
            "looseness_median": self.looseness_median,
            "looseness_worst": self.looseness_worst,
            "milliseconds_per_call": self.milliseconds_per_call,
        }
        return {
            **self.check.to_json(),
            "status": str(self.status),
            "cells": self.cells.to_json(),
            "message": self.message,
            "under_reports": [report.to_json() for report in self.under_reports],
            "rounding": self.rounding,
            "undecided": self.undecided,
            "hidden": self.hidden,
            "hidden_partly": self.hidden_partly,
            "raised": self.raised,
            "finite": self.finite,
            "worst": self.worst,
            **{name: None if value is None else plain_number(value) for name, value in numbers.items()},
            "counterexample": dict(self.counterexample),
            "reproduction": self.reproduction,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class ConformanceReport:
    """All checks of one accountant.

    Attributes:
        results: One for each check, in the suite's order.
        milliseconds_per_call: Mean over them; None without a call.
    """

    accountant: str
    grid: str
    seed: int
    results: tuple[CheckResult, ...]
    calls: int
    milliseconds_per_call: float | None
    seconds: float

    @property
    def under_reports(self) -> tuple[UnderReport, ...]:
        """Under-reports of all checks, each question once, worst first."""
        reports = {
            (u.quantity, u.expression, u.adjacency, *u.argument.items()): u
            for result in self.results
            for u in result.under_reports
        }
        return tuple(sorted(reports.values(), key=lambda u: -u.relative_shortfall))

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that the accountant failed."""
        return tuple(result for result in self.results if result.status is CheckStatus.FAILED)

    @property
    def fails_ci(self) -> bool:
        """True where a build should stop: some result says so."""
        return any(result.fails_ci for result in self.results)

    @property
    def judged(self) -> int:
        """Cells that were judged, over all checks; 0 means that nothing is shown at all."""
        return sum(result.cells.judged for result in self.results)

    @property
    def is_informative(self) -> bool:
        """Whether some cell was judged, and some answer a finite number: infinity is never wrong."""
        return bool(self.judged) and any(result.finite for result in self.results)

    def result(self, name: str) -> CheckResult:
        """The result of the check of this name.

        Raises:
            KeyError: there is none.
        """
        return {result.name: result for result in self.results}[name]

    def to_json(self) -> dict[str, JSON]:
        """The whole report as a JSON object."""
        milliseconds = self.milliseconds_per_call
        return {
            "accountant": self.accountant,
            "grid": self.grid,
            "seed": self.seed,
            "fails_ci": self.fails_ci,
            "calls": self.calls,
            "milliseconds_per_call": None if milliseconds is None else plain_number(milliseconds),
            "seconds": self.seconds,
            "results": [result.to_json() for result in self.results],
        }
