"""`workbench accountants`: compares accountants with certified bounds, over a grid or for one question.

Exit code of `check`: 0 no answer was below the certified truth; 1 one was (with `--strict`: any promise was
broken; with a looseness budget: it was overstepped); 2 bad input; 3 the accountant refused everything, or
crashed, so that nothing can be said. Of `ask`: the same, for its one question, where an accountant that
crashes or answers no number is bad input. Nothing is written before all work is done.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from numbers import Complex, Real
from typing import Annotated, Any
from xml.etree import ElementTree

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from workbench.accounting.bounds import Bounds
from workbench.accounting.deciding import (
    ROUNDING,
    ROUNDING_OF_EPSILON,
    is_undecided,
    narrowed_until_decided,
)
from workbench.accounting.event_forms import event_from_json
from workbench.accounting.events import Event, gaussian_run
from workbench.checks.accountants import Accountant, is_interruption, is_refusal, load_accountant
from workbench.checks.api.accountant import AccountantResult, Grid, check_accountant
from workbench.cli import terminal
from workbench.cli.junit import clean, junit_case, junit_document, write_document
from workbench.cli.parameters import JunitFile, NoProgress, ReportFile
from workbench.cli.terminal import verdict_text
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.one_line import error_line, object_line, one_line
from workbench.core.outputs import require_distinct, require_file_place, write_atomically
from workbench.interfaces import Adjacency, Direction

SCHEMA = 1
"""Of the JSON file; raised whenever the meaning of a field changes."""

PACKAGES = (
    *("numpy", "scipy", "python-flint", "hypothesis", "dp-accounting"),
    *("opacus", "prv-accountant", "autodp", "riskcal", "dp-accelerator", "fourier-accountant", "gdpnum"),
)
"""Those that decide an answer, or a bound that it is held to."""


_TARGETS = (
    "A registered accountant (see `workbench accountants list`), or your own as module:function or "
    "FILE.py:function."
)

_EVENT = (
    'Instead of a run: an event as JSON, such as {"event": "Laplace", "scale": 2, "count": 100}, '
    "or a list of events."
)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of `workbench accountants check`."""

    targets: Annotated[list[str], Argument(metavar="TARGET...", help=_TARGETS)]
    grid: Annotated[Grid, Option(help="How many questions are asked.")] = Grid.QUICK
    looseness_budget: Annotated[
        float | None,
        Option(metavar="RATIO", help="Fail where an answer is above this multiple of the upper bound."),
    ] = None
    only: Annotated[
        list[str] | None,
        Option(metavar="CHECK", help="Only this check; may be repeated. Without [...]: all its kinds."),
    ] = None
    strict: Annotated[
        bool, Option("--strict", help="Fail on every broken promise, not only on under-reports.")
    ] = False
    seconds: Annotated[
        float | None,
        Option(
            help="Processor time for each accountant.", show_default="25 on the quick grid, 900 on the full"
        ),
    ] = None
    seed: Annotated[
        int, Option(help="Seed of runs drawn between round values, and of the search for counterexamples.")
    ] = 0
    json: ReportFile = None
    junit: JunitFile = None
    quiet: NoProgress = False


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """The options of `workbench accountants ask`."""

    targets: Annotated[list[str], Argument(metavar="TARGET...", help=_TARGETS)]
    delta: Annotated[float, Option(help="Delta at which epsilon is computed, in (0, 1).")]
    noise_multiplier: Annotated[
        float | None, Option(help="Of a DP-SGD run: noise, in units of the clipping norm.")
    ] = None
    steps: Annotated[int | None, Option(help="Of a DP-SGD run: number of releases.")] = None
    sampling_probability: Annotated[
        float, Option(help="Of a DP-SGD run: probability of each record to be in a step, in (0, 1].")
    ] = 1.0
    event: Annotated[
        str | None,
        Option(metavar="JSON", help=_EVENT),
    ] = None
    adjacency: Annotated[Adjacency, Option(help="How neighbours differ.")] = Adjacency.ADD_REMOVE
    direction: Annotated[
        Direction,
        Option(help="Certified bounds of adding or removing a record alone; accountants answer for both."),
    ] = Direction.BOTH


def check(options: CheckOptions) -> int:
    """Compare accountants with certified bounds, and fail where one reports too small an epsilon.

    Exit code: 0 no under-report was found, 1 one was, 2 bad input, 3 nothing could be judged.
    """
    for flag, path in (("--json", options.json), ("--junit", options.junit)):
        if path is not None:
            require_file_place(flag, path)
    require_distinct({"--json": options.json, "--junit": options.junit})
    targets = _different(options.targets)
    for target in targets:
        _load(target)
    judged = []
    with terminal.progress_display(options.quiet) as progress:
        for target in targets:
            judged.append(
                check_accountant(
                    target,
                    grid=options.grid,
                    looseness_budget=options.looseness_budget,
                    only=options.only or None,
                    strict=options.strict,
                    seconds=options.seconds,
                    seed=options.seed,
                    progress=progress,
                )
            )
    codes = [judgement.exit_code for judgement in judged]
    code = 1 if 1 in codes else max(codes)
    with terminal.json_place(options.json) as place:
        if place is not None:
            write_atomically(place, _json_text(options, judged, code))
        if options.junit is not None:
            write_document(conformance_junit(judged), options.junit)
        console = terminal.output_console()
        for judgement in judged:
            print_judged(console, judgement)
    return code


def ask(options: AskOptions) -> int:
    """Ask accountants for the epsilon of a run or another event, and print the certified bounds beside it.

    Exit code: 0 no answer is below the truth, 1 one is, 2 bad input, 3 refused or not to be had.
    """
    if not 0.0 < options.delta < 1.0:
        raise InputError(f"--delta must be in (0, 1), got {options.delta:g}")
    event = _event(options)
    if options.direction is not Direction.BOTH and options.adjacency is Adjacency.REPLACE_ONE:
        raise InputError(f"--direction must be both under replace-one, got {options.direction}")
    accountants = [(target, _load(target)) for target in _different(options.targets)]
    answers = [(target, _epsilon(target, accountant, event, options)) for target, accountant in accountants]
    bounds = _certified(event, options)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("accountant", "epsilon", "beside the certified bounds"):
        table.add_column(heading, overflow="fold")
    codes = []
    for target, answer in answers:
        bounds = _decided(answer, bounds, event, options)
        words, code = _compared(answer, bounds)
        codes.append(code)
        cell = f"{answer:.9g}" if isinstance(answer, float) else "-"
        table.add_row(Text(target), Text(cell), Text(words))
    console = terminal.output_console()
    alone = "" if options.direction is Direction.BOTH else f", {options.direction} alone"
    console.print(Text(f"{event.describe()} at delta = {options.delta:g}, {options.adjacency}{alone}"))
    console.print(table)
    if isinstance(bounds, Bounds):
        ends = f"[{bounds.lower:.9g}, {bounds.upper:.9g}]"
        how = "rigorous" if bounds.rigorous else "numerically tight"
        text = f"certified: {ends}, width {bounds.width:.3g} ({how}; {bounds.method})"
        console.print(Text("; ".join([text, *bounds.assumptions])))
    else:
        console.print(Text(f"certified: {bounds}"))
    return 1 if 1 in codes else max(codes)


def _event(options: AskOptions) -> Event:
    """The event of `--event`, or the run that the other options describe."""
    run = {
        "--noise-multiplier": options.noise_multiplier,
        "--steps": options.steps,
        "--sampling-probability": None if options.sampling_probability == 1 else options.sampling_probability,
    }
    if options.event is not None:
        for flag, value in run.items():
            if value is not None:
                raise InputError(f"--event and {flag} exclude each other, got {flag} {value:g}")
        try:
            form = json.loads(options.event, object_pairs_hook=_without_repeats)
            return event_from_json(form)
        except InputError as error:
            raise InputError(f"--event: {error}") from error
        except RecursionError:
            raise InputError("--event must be nested less deep") from None
        except ValueError:
            raise InputError(f"--event must be JSON, got {object_line(options.event)}") from None
    if options.noise_multiplier is None or options.steps is None:
        raise InputError("--noise-multiplier and --steps must be given where --event is not")
    if options.steps < 1:
        raise InputError(f"--steps must be at least 1, got {options.steps}")
    return gaussian_run(
        noise_multiplier=options.noise_multiplier,
        sampling_probability=options.sampling_probability,
        steps=options.steps,
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which no key may be given twice."""
    given: dict[str, Any] = {}
    for key, value in pairs:
        if key in given:
            raise InputError(f"{key!r} is given twice")
        given[key] = value
    return given


def _load(target: str) -> Accountant:
    """The accountant; what its module prints as it is imported does not reach the output stream."""
    with redirect_stdout(sys.stderr):
        return load_accountant(target)


def _different(targets: list[str]) -> list[str]:
    return list(dict.fromkeys(targets))


def _json_text(options: CheckOptions, judged: list[AccountantResult], code: int) -> str:
    """The reports as JSON: `schema`, `versions`, `settings`, `exit_code`, `accountants`."""
    from workbench.execution.engine import versions

    form: dict[str, JSON] = plain(
        {
            "schema": SCHEMA,
            "versions": versions(PACKAGES),
            "settings": {
                "grid": str(options.grid),
                "looseness_budget": options.looseness_budget,
                "only": options.only or [],
                "seconds": options.seconds,
                "strict": options.strict,
                "seed": options.seed,
            },
            "exit_code": code,
            "accountants": [dict(each.record) for each in judged],
        }
    )
    return json.dumps(form, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _epsilon(target: str, accountant: Accountant, event: Event, options: AskOptions) -> float | str:
    """The accountant's answer, a number >= 0; a sentence where it refuses. InputError where it fails."""
    try:
        with redirect_stdout(sys.stderr):
            answer: Any = accountant.epsilon(event, delta=options.delta, adjacency=options.adjacency)
    except BaseException as error:
        if is_interruption(error):
            raise
        if is_refusal(error):
            return "refused: " + error_line(error).removeprefix(f"{type(error).__name__}: ")
        raise InputError(f"accountant {target!r} failed: {error_line(error)}") from error
    is_real = hasattr(type(answer), "__float__") and isinstance(answer, Real) >= isinstance(answer, Complex)
    try:
        number = float(answer) if is_real else math.nan
    except Exception:  # The number's own code: a tensor of two elements has its own error.
        number = math.nan
    if not number >= 0:
        raise InputError(f"accountant {target!r} must answer a number >= 0, got {object_line(answer)}")
    return number


def _bounds(event: Event, options: AskOptions, **how: float) -> Bounds:
    from workbench.accounting.certified import epsilon_bounds

    return epsilon_bounds(
        event, options.delta, adjacency=options.adjacency, direction=options.direction, **how
    )


def _certified(event: Event, options: AskOptions) -> Bounds | str:
    """The certified bounds; a sentence where there are none."""
    try:
        return _bounds(event, options)
    except (UnsupportedError, InconclusiveError) as error:
        return f"no bounds: {one_line(str(error))}"


def _decided(answer: float | str, bounds: Bounds | str, event: Event, options: AskOptions) -> Bounds | str:
    """The certified bounds, narrowed until they decide about an answer."""
    if isinstance(answer, str) or isinstance(bounds, str):
        return bounds

    def ask(width: float) -> Bounds:
        return _bounds(event, options, relative_width=width)

    try:
        return narrowed_until_decided(bounds, answer, ask)
    except InconclusiveError as error:
        return f"no bounds: {one_line(str(error))}"


def _compared(answer: float | str, bounds: Bounds | str) -> tuple[str, int]:
    """An answer compared with the bounds, in words, and the exit code that follows."""
    if isinstance(answer, str):
        return answer, 3
    if isinstance(bounds, str):
        return "not judged", 3
    if is_undecided(bounds, answer):
        return f"within: undecided at a relative width of {bounds.relative_width:.1g}", 0
    if answer in bounds:
        return "equal to the upper one up to rounding", 0
    if answer > bounds.upper:
        ratio = f"{answer / bounds.upper:.7g} times the upper one" if bounds.upper > 0 else "above"
        return ratio, 0
    if bounds.lower - answer <= max(ROUNDING * bounds.lower, ROUNDING_OF_EPSILON):
        return "equal up to rounding", 0
    words = f"{100 * (1 - answer / bounds.lower):.3g} % below the lower one"
    return (f"UNDER-REPORT: {words}", 1) if bounds.rigorous else (f"{words}, which is not rigorous", 3)


_NARROW = 132
"""Columns below which checks are printed one below the other, and not as a table."""

_STYLES = {"passed": "green", "failed": "bold red", "error": "bold magenta"}


def print_judged(console: Console, judged: AccountantResult) -> None:
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
        Text.assemble(verdict_text(kind), f" {report.accountant}: {judged.sentence}"), soft_wrap=True
    )


def conformance_junit(judged: list[AccountantResult]) -> str:
    """The reports as one JUnit document: a case a check, in class `workbench.checks.accountants.NAME`.

    | check of the accountant | JUnit |
    |---|---|
    | passed | passes |
    | failed, and fails the build | `failure` |
    | failed, and does not | `skipped`, with the finding (`--strict` makes it a `failure`) |
    | the accountant crashed, nothing broken was seen | `error` |
    | refused, or left out | `skipped` |
    """
    return junit_document("workbench accountants check", _cases(judged))


def _cases(judged: list[AccountantResult]) -> Iterator[ElementTree.Element]:
    for accountant in judged:
        for result in accountant.report.results:
            case = junit_case(
                f"workbench.checks.accountants.{accountant.report.accountant}", result.name, _seconds(result)
            )
            text = clean(result.describe())
            outcome = _outcome(accountant, result)
            if outcome is None:
                ElementTree.SubElement(case, "system-out").text = text
            else:
                message = clean(result.message)
                ElementTree.SubElement(case, outcome, type=str(result.status), message=message).text = text
            yield case


def _outcome(judged: AccountantResult, result: Any) -> str | None:
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
