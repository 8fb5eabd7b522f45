"""`workbench.check_accountant`: compares an accountant with certified bounds over a grid of questions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from enum import StrEnum
from typing import Any

from workbench.checks.accountants import Accountant, accountant_of, load_accountant
from workbench.checks.conformance import breaks, is_unsettled, suite
from workbench.core.arguments import names_of, number, one_of, whole_number, yes_or_no
from workbench.core.errors import ArgumentError
from workbench.core.one_line import object_line
from workbench.core.results import Result
from workbench.execution.engine import Progress


class Grid(StrEnum):
    """How many questions the suite asks an accountant."""

    QUICK = "quick"
    FULL = "full"


class AccountantResult(Result):
    """What the suite found of one accountant.

    Attributes:
        report: The `ConformanceReport`.
        strict: Whether every broken promise counts.
        has_budget: Whether a looseness budget was set.
    """

    def __init__(self, report: Any, *, strict: bool, has_budget: bool) -> None:
        self.report = report
        self.strict = strict
        self.has_budget = has_budget
        verdict = {"verdict": self.verdict, "sentence": self.sentence}
        super().__init__({**report.to_json(), **verdict})

    def breaks(self, result: Any) -> bool:
        """Whether this result of the report fails the build."""
        return breaks(result, strict=self.strict, has_budget=self.has_budget)

    @property
    def exit_code(self) -> int:
        """1: a check fails the build; 3: nothing was settled, or the accountant crashed; else 0."""
        results = self.report.results
        if any(map(self.breaks, results)):
            return 1
        unsettled = any(is_unsettled(result, strict=self.strict) for result in results)
        return 3 if unsettled or not self.report.is_informative else 0

    @property
    def verdict(self) -> str:
        """What the exit code stands for: an accountant is refuted by under-reports alone."""
        broken = "REFUTED" if self.report.under_reports else "FAILED"
        return {0: "NOT_REFUTED", 1: broken, 3: "INCONCLUSIVE"}[self.exit_code]

    @property
    def sentence(self) -> str:
        """The report in a sentence, which says no more than was shown."""
        count, judged = len(self.report.under_reports), self.report.judged
        other = [result.name for result in self.report.failed if not self.breaks(result)]
        nothing = "every answer was infinite" if self.report.judged else "every question was refused"
        text = {
            0: f"no answer below the certified lower end in {judged} judged cells",
            1: f"{count} under-reports" if count else self._broken(),
            3: self._crashed() or nothing,
        }[self.exit_code]
        late = sum(result.cells.out_of_time for result in self.report.results)
        if late:
            text += f"; {late} cells were left out for want of time"
        within = sum(result.undecided for result in self.report.results)
        if within:
            text += f"; {within} answers lie within the bounds, and may be below the truth or not"
        if other:
            text += f"; also failed, but without an under-report (--strict counts these): {', '.join(other)}"
        return text

    def _broken(self) -> str:
        """What fails the build without an under-report."""
        hidden = sum(result.hidden for result in self.report.results)
        if not hidden:
            return "a promise is broken"
        start = "at least " if any(result.hidden_partly for result in self.report.results) else ""
        answers = "answer is" if hidden == 1 else "answers are"
        return f"{start}{hidden} {answers} no number where the truth is above 0"

    def _crashed(self) -> str:
        """Where the accountant crashed: in whole checks, and at single questions; empty if nowhere."""
        results = self.report.results
        checks = [result.name for result in results if result.status == "error" and not result.raised]
        questions = [result.raised for result in results if result.raised]
        places = [f"in {', '.join(checks)}"] if checks else []
        places += [f"at {', '.join(questions)}"] if questions else []
        return f"crashed {' and '.join(places)}" if places else ""

    @property
    def bounds(self) -> tuple[Any, ...]:
        """The under-reports, each with the answer, and the certified bounds that it lies below."""
        return tuple(self.report.under_reports)

    def rows(self) -> list[dict[str, Any]]:
        """A row a check: cells that were judged, answers that were too small, how loose the others are."""
        return [
            {
                "check": result.name,
                "status": str(result.status),
                "judged": result.cells.judged,
                "planned": result.cells.planned,
                "under_reports": len(result.under_reports),
                "looseness_median": result.looseness_median,
                "looseness_worst": result.looseness_worst,
                "milliseconds_per_call": result.milliseconds_per_call,
                "worst_case": result.worst or None,
            }
            for result in self.report.results
        ]


def check_accountant(
    accountant: str | Callable[..., Any] | Accountant,
    *,
    grid: Grid | str = Grid.QUICK,
    looseness_budget: float | None = None,
    only: str | Sequence[str] | None = None,
    strict: bool = False,
    seconds: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> AccountantResult:
    """Ask an accountant several hundred questions, and compare each answer with certified bounds.

    Args:
        accountant: A registered name, `"module:function"`, `"FILE.py:function"`, a function that takes the
            keywords `noise_multiplier`, `sampling_probability`, `steps` and `delta` and returns epsilon, or
            an object as `workbench.checks.accountants` describes.
        grid: `"quick"` or `"full"`.
        looseness_budget: Also refuse answers above this multiple of the upper bound; at least 1.
        only: Names of checks; None for all.
        strict: Count every broken promise, not only under-reports.
        seconds: Processor time; None for 25 on the quick grid and 900 on the full one.
        seed: Of runs drawn between round values, and of the search for counterexamples.
        progress: Called with the accountant's name, the checks done, and the checks in all.

    Raises `InputError`: an argument is unusable, or the accountant is none.
    """
    budget = None if looseness_budget is None else number("looseness_budget", looseness_budget, least=1)
    limit = None if seconds is None else number("seconds", seconds, above=0)
    seed = whole_number("seed", seed, least=0, most=2**63 - 1)
    grid, strict = one_of(Grid, "grid", grid), yes_or_no("strict", strict)
    names = None if only is None else names_of("only", only)
    # What a module prints as it is imported, or an accountant as it is asked, is no output of ours.
    with redirect_stdout(sys.stderr):
        made, name = _loaded(accountant)
        report = suite().run_checks(
            made,
            grid=str(grid),
            looseness_budget=budget,
            seed=seed,
            only=list(names) if names else None,
            seconds=limit,
            progress=lambda _, done, total: progress(name, done, total) if progress else None,
        )
    return AccountantResult(replace(report, accountant=name), strict=strict, has_budget=budget is not None)


def _loaded(accountant: Any) -> tuple[Accountant, str]:
    """The accountant, and what it is called."""
    if isinstance(accountant, str):
        return load_accountant(accountant), accountant
    if not callable(accountant) and not hasattr(accountant, "epsilon"):
        reason = f"must be a name, a function or an accountant, got {object_line(accountant)}"
        raise ArgumentError("accountant", reason)
    name = getattr(accountant, "name", None) or getattr(accountant, "__name__", type(accountant).__name__)
    return accountant_of(accountant, str(name)), str(name)
