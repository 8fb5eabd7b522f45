"""What `workbench accountants check` says: the table of checks, the failures in full, and the JUnit document.

| check of the accountant | JUnit |
|---|---|
| passed | passes |
| failed, and fails the build | `failure` |
| failed, and does not | `skipped`, with the finding (`--strict` makes it a `failure`) |
| the accountant crashed, nothing broken was seen | `error` |
| refused, or left out | `skipped` |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from workbench.checks.conformance import breaks, is_unsettled
from workbench.cli.junit import clean, junit_case, junit_document
from workbench.cli.terminal import verdict_text

_NARROW = 132
"""Columns below which checks are printed one below the other, and not as a table."""

_STYLES = {"passed": "green", "failed": "bold red", "error": "bold magenta"}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The report of one accountant, and how strictly it is read.

    Attributes:
        report: A `ConformanceReport`.
        strict: Whether every broken promise counts.
        has_budget: Whether the user set a looseness budget.
    """

    report: Any
    strict: bool
    has_budget: bool

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
        return 3 if unsettled or not self.report.judged else 0

    @property
    def verdict(self) -> str:
        """The exit code in a word."""
        return {0: "NOT_REFUTED", 1: "REFUTED", 3: "INCONCLUSIVE"}[self.exit_code]

    def sentence(self) -> str:
        """What a reader may take from the report."""
        count, judged = len(self.report.under_reports), self.report.judged
        other = [one.name for one in self.report.failed if not self.breaks(one)]
        crashed = [one.name for one in self.report.results if one.status == "error"]
        text = {
            0: f"no answer below the certified truth in {judged} judged cells",
            1: f"{count} under-reports" if count else "a promise is broken",
            3: f"crashed in {', '.join(crashed)}" if crashed else "every question was refused",
        }[self.exit_code]
        late = sum(one.cells.out_of_time for one in self.report.results)
        if late:
            text += f"; {late} cells were left out for want of time"
        if other:
            text += f"; also failed, but without an under-report (--strict counts these): {', '.join(other)}"
        return text


def print_judged(console: Console, judged: Judged) -> None:
    """Print one accountant's table, its failures, and its verdict."""
    report = judged.report
    if console.width >= _NARROW:
        console.print(_table(report))
    else:
        _print_rows(console, report)
    for result in report.results:
        if result.status in ("failed", "error"):
            console.print(Text(result.describe()), soft_wrap=True)
    kind = judged.verdict
    console.print(
        Text.assemble(verdict_text(kind), f" {report.accountant}: {judged.sentence()}"), soft_wrap=True
    )


def conformance_junit(judged: list[Judged]) -> str:
    """The reports as one JUnit document: a case a check, in class `workbench.checks.accountants.NAME`."""
    return junit_document("workbench accountants check", _cases(judged))


def _cases(judged: list[Judged]) -> Iterator[ElementTree.Element]:
    for one in judged:
        for result in one.report.results:
            case = junit_case(
                f"workbench.checks.accountants.{one.report.accountant}", result.name, _seconds(result)
            )
            text = clean(result.describe())
            outcome = _outcome(one, result)
            if outcome is None:
                ElementTree.SubElement(case, "system-out").text = text
            else:
                message = clean(result.message)
                ElementTree.SubElement(case, outcome, type=str(result.status), message=message).text = text
            yield case


def _outcome(judged: Judged, result: Any) -> str | None:
    if judged.breaks(result):
        return "failure"
    if result.status == "error":
        return "error"
    return None if result.status == "passed" else "skipped"


def _seconds(result: Any) -> float:
    """Time of a check's calls of the accountant, as far as it is known."""
    per_call = result.milliseconds_per_call
    return 0.0 if per_call is None else per_call * result.cells.judged / 1000


def _table(report: Any) -> Table:
    per_call = _number(report.milliseconds_per_call, "{:.3g}")
    title = f"{report.accountant}, {report.grid} grid, {report.calls} calls of {per_call} ms"
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status")
    for heading in ("cells", "under-reports", "looseness", "worst", "ms a call"):
        table.add_column(heading, justify="right")
    table.add_column("worst case")
    for result in report.results:
        table.add_row(*_cells(result), Text(result.worst or "-"))
    return table


def _cells(result: Any) -> tuple[Text, ...]:
    """The cells of a check's row, without its worst case."""
    texts = (
        f"{result.cells.judged}/{result.cells.planned}",
        str(len(result.under_reports)),
        _number(result.looseness_median, "{:.4g}"),
        _number(result.looseness_worst, "{:.4g}"),
        _number(result.milliseconds_per_call, "{:.3g}"),
    )
    status = Text(str(result.status), style=_STYLES.get(str(result.status), ""))
    return (Text(result.name), status, *map(Text, texts))


def _print_rows(console: Console, report: Any) -> None:
    """The table as paragraphs, for a narrow terminal."""
    console.print(Text(f"{report.accountant}, {report.grid} grid", style="bold"))
    for result in report.results:
        name, status, cells, below, median, worst, milliseconds = _cells(result)
        console.print(Text.assemble(name, " ", status))
        line = f"cells {cells}, under-reports {below}, looseness {median} (worst {worst}), ms {milliseconds}"
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
        if result.worst:
            console.print(Padding(Text(result.worst), (0, 0, 0, 2), expand=False))


def _number(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return form.format(value) if math.isfinite(value) else str(value)
