"""The output of commands: progress on the error stream, tables and verdicts on the output stream."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO, TypeAlias, cast

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Called with the stage, the steps done, and the steps in all."""

_LOG_WIDTH = 160
"""Most columns of the table in a file or a pipe, which says nothing of its width."""

_NARROW = 120
"""Columns below which a table of attacks has two lines a row."""

_STYLES = {
    "REFUTED": "bold red",
    "NOT_REFUTED": "bold green",
    "UNDERPOWERED": "bold yellow",
    "INVALID": "bold magenta",
    "PROVEN": "bold green",
    "HOLDS_UNDER": "bold cyan",
    "UNDECIDED": "bold yellow",
    "MEMORISED": "bold red",
    "NOT SHOWN": "bold yellow",
    "FAILED": "bold magenta",
}


_ROLES = {"control": " (control)", "reading": " (reading)"}
"""What is said of a subject whose verdict is not the audit's."""


@contextmanager
def progress_display(quiet: bool) -> Iterator[ProgressCallback]:
    """A progress callback for the length of the context.

    On a terminal each stage is a bar; elsewhere (a log file) each stage gets a line for every tenth.
    """
    console = error_console()
    if quiet:
        yield lambda stage, done, total: None
    elif console.is_terminal:
        named = TextColumn("{task.description}", markup=False)
        with progress_bars(console, named, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bars:
            yield bars
    else:
        yield _lines(console)


@contextmanager
def progress_bars(
    console: Console, *columns: ProgressColumn, speed_estimate_period: float = 30.0
) -> Iterator[Callable[..., None]]:
    """Bars on a terminal; the callback takes a bar's name, steps done, steps in all, and a note."""
    with Progress(*columns, console=console, speed_estimate_period=speed_estimate_period) as display:
        tasks: dict[str, TaskID] = {}

        def callback(name: str, done: int, total: int, note: str = "") -> None:
            if name not in tasks:
                tasks[name] = display.add_task(name, total=total, note=note)
            display.update(tasks[name], completed=done, total=total, note=note)

        yield callback


def _lines(console: Console) -> ProgressCallback:
    printed: dict[str, int] = {}

    def callback(stage: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if done == 0 and printed.get(stage) == 10:  # The stage begins again.
            del printed[stage]
        if tenth > printed.get(stage, -1):  # Two workers may be in one stage; the farther one speaks.
            line = f"{stage}: {done}/{total}" if total else stage
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            printed[stage] = tenth

    return callback


class _Forgiving:
    """An error stream that may have no reader any more: then what is written is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def error_console() -> Console:
    """The error stream; a closed pipe or a full disk there raises nothing."""
    if sys.stderr is None:
        return Console(stderr=True)
    return Console(file=cast(TextIO, _Forgiving(sys.stderr)))


def output_console() -> Console:
    """The output stream; as wide as its terminal, or wide enough for a table where it is a file or a pipe."""
    console = Console(file=sys.stdout)
    return console if console.is_terminal else Console(file=sys.stdout, width=_LOG_WIDTH)


@contextmanager
def json_place(file: Path | None) -> Iterator[Path | None]:
    """Where to write what `--json` asks for: its file.

    For `-`, a file that is printed at the end, alone: what is printed meanwhile goes to the error stream.
    """
    if file != Path("-"):
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "report.json"
        with redirect_stdout(sys.stderr):
            yield place
        sys.stdout.write(place.read_text(encoding="utf-8"))


def print_report(report: Mapping[str, Any], *, quiet: bool) -> None:
    """Print the table of subjects and attacks, and the verdict with its sentence; if quiet, that alone."""
    console = output_console()
    if not quiet:
        if any(subject["attacks"] for subject in report["subjects"]):
            console.print(_table(report, is_narrow=console.width < _NARROW))
        if "views" in report:
            _print_views(console, report["views"])
        for key, terms in report.get("asides", {}).items():
            for form in report[key]:
                _print_aside(console, form, terms)
        for key, title in (("replay", "Forced replay"), ("run", "Watched run")):
            if key in report:
                _print_run(console, title, report[key], whole=str(report["verdict"]["sentence"]))
        for game in report.get("unplayed", ()):
            console.print(Text(f"Not played: {game['attack']}: {game['reason']}.\n"), soft_wrap=True)
    verdict = report["verdict"]
    kind, sentence = verdict["kind"].replace("_", " "), verdict["sentence"]
    line = Text(sentence if sentence.startswith(kind) else f"{kind}: {sentence}")
    line.stylize(_STYLES.get(verdict["kind"], "bold"), 0, len(kind))
    console.print(line, soft_wrap=True)
    for reason in verdict.get("reasons") or ():
        if reason not in sentence:
            console.print(Text(f"  - {reason}"), soft_wrap=True)


def _print_views(console: Console, views: Mapping[str, Any]) -> None:
    """Print the sentences of each view, the comparison of all, and the notes."""
    for view in views["of"]:
        head = Text.assemble(view["title"], f" ({view['label']}): ", verdict_text(view["verdict"]))
        console.print(head, soft_wrap=True)
        for sentence in view["says"]:
            console.print(Text(f"  {sentence}"), soft_wrap=True)
    heading = views.get("heading") or "One number, read in each currency"
    table = Table(title=Text(heading), title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("view", "currency", "claimed", "allows", "measured", "verdict"):
        table.add_column(heading)
    for view in views["of"]:
        row = view["row"]
        cells = [Text(str(row[name])) for name in ("view", "currency", "claimed", "allows", "measured")]
        table.add_row(*cells, verdict_text(row["verdict"]))
    console.print(table)
    for note in views["notes"]:
        console.print(Text(f"- {note}"), soft_wrap=True)
    console.print(Text(f"In short: {views['in_short']}"), soft_wrap=True)
    console.print()


def _print_aside(console: Console, form: Mapping[str, Any], terms: Mapping[str, str]) -> None:
    """Print what an attack adds of one subject beside the claim, its chance level, and what that says."""
    subject = f"{form['subject']}{_ROLES.get(form['role'], '')}"
    title = Text.assemble(f"{terms['heading']} from {subject}: ", verdict_text(form["verdict"]))
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "measured", terms.get("chance", "by chance"), "p-value"):
        table.add_column(heading)
    for row in form["rows"]:
        table.add_row(*(Text(str(row[name])) for name in ("name", "measured", "chance", "p_value")))
    console.print(table)
    for sentence in form["says"]:
        console.print(Text(f"  {sentence}"), soft_wrap=True)
    console.print()


def _print_run(console: Console, heading: str, form: Mapping[str, Any], *, whole: str) -> None:
    """Print a training run as it was measured, and its sentence if the `whole` has another."""
    title = Text.assemble(f"{heading}: ", verdict_text(form["verdict"]["kind"]))
    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE_HEAD, pad_edge=False)
    for name, value in form["rows"]:
        table.add_row(Text(name), Text(value, style="bold red" if name.startswith("fault") else ""))
    console.print(table if form["rows"] else title)
    if not whole.startswith(form["verdict"]["sentence"]):
        console.print(Text(f"  {form['verdict']['sentence']}"), soft_wrap=True)
    console.print()


def verdict_text(kind: str) -> Text:
    """A verdict in its colour; `FAILED` is a check that gave none."""
    return Text(kind, style=_STYLES.get(kind, "bold"))


def _table(report: Mapping[str, Any], *, is_narrow: bool) -> Table:
    """One row for each subject and attack; of two lines, in half of the columns, where it is narrow."""
    title = Text(f"Claim: {report['claim']['text']}")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    headings = ("subject", "attack", "verdict", "bound", "confidence", "estimator", "AUC")
    for heading in _folded(headings) if is_narrow else headings:
        table.add_column(heading)
    for subject in report["subjects"]:
        role = _ROLES.get(subject["role"], "")
        for attack in subject["attacks"]:
            verdict = attack["verdict"]
            kind = verdict_text(verdict["kind"])
            named = (f"{subject['name']}{role}", attack["attack"])
            cells = (*named, kind, *_bound(verdict), _auc(verdict))
            row = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
            table.add_row(*(_folded(row) if is_narrow else row))
    return table


def _folded(cells: Sequence[str | Text]) -> list[Text]:
    """The cells of a wide row in three: names, verdict and AUC, bound with confidence and estimator."""
    subject, attack, verdict, bound, confidence, estimator, auc = (
        cell if isinstance(cell, Text) else Text(cell) for cell in cells
    )
    newline = Text("\n")
    return [
        Text.assemble(subject, newline, "  ", attack),
        Text.assemble(verdict, newline, auc),
        Text.assemble(bound, newline, confidence, ", ", estimator),
    ]


def _bound(verdict: Mapping[str, Any]) -> tuple[str, str, str]:
    """The deciding bound, or the first one that there is: its statement, confidence and estimator."""
    bound = verdict["bound"] or next(iter(verdict["bounds"]), None)
    if bound is None:
        return "-", "-", "-"
    order = "" if bound.get("alpha") is None else f"(alpha = {float(bound['alpha']):g})"
    statement = f"{bound['quantity']}{order} >= {_shown(bound['lower'])}"
    return statement, f"{100.0 * float(bound['confidence']):.4g} %", str(bound["name"])


def _auc(verdict: Mapping[str, Any]) -> str:
    """The area under the ROC curve with its confidence interval."""
    for interval in verdict["intervals"]:
        if interval["name"] == "auc":
            lower, upper = _shown(interval["lower"]), _shown(interval["upper"])
            below = " < 1/2" if float(interval["upper"]) < 0.5 else ""
            return f"{_shown(interval['estimate'])} [{lower}, {upper}]{below}"
    return "-"


def _shown(value: Any) -> str:
    """Three decimals; the record keeps numbers that are not finite as text."""
    number = float(value)
    return f"{number:.3f}" if math.isfinite(number) else str(number)
