"""`workbench accountants`: holds accountants to certified bounds, or asks them one question.

Exit code of `check`: 0 no answer was below the certified truth; 1 one was (with `--strict`: any promise was
broken; with a looseness budget: it was overstepped); 2 bad input; 3 the accountant refused everything, or
crashed, so that nothing can be said. Of `ask`: the same, for its one question, where an accountant that
crashes or answers no number is bad input. Nothing is written before all work is done.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Complex, Real
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from workbench.accounting.bounds import Bounds
from workbench.accounting.events import Event, gaussian_run
from workbench.checks.accountants import Accountant, is_interruption, is_refusal, load_accountant
from workbench.checks.conformance import suite
from workbench.cli import terminal
from workbench.cli.accountants_report import Judged, conformance_junit, print_judged
from workbench.cli.junit import write_document
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.one_line import error_line, object_line, one_line
from workbench.core.outputs import require_distinct, require_file_place, write_atomically
from workbench.interfaces import Adjacency

SCHEMA = 1
"""Of the JSON file; raised whenever the meaning of a field changes."""

PACKAGES = (
    *("numpy", "scipy", "python-flint", "hypothesis", "dp-accounting"),
    *("opacus", "prv-accountant", "autodp", "riskcal"),
)
"""Those that decide an answer, or a bound that it is held to."""

ROUNDING = 1e-9
"""A relative shortfall up to this is floating-point rounding, and no under-report."""

_TARGETS = "A registered accountant (see `workbench accountants list`), or your own as module:function."


class Grid(StrEnum):
    """How many questions are asked."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What a user may say to `workbench accountants check`."""

    targets: Annotated[list[str], typer.Argument(metavar="TARGET...", help=_TARGETS)]
    grid: Annotated[Grid, typer.Option(help="How many questions are asked.")] = Grid.QUICK
    looseness_budget: Annotated[
        float | None,
        typer.Option(metavar="RATIO", help="Fail where an answer is above this many certified upper bounds."),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="Only this check; may be repeated. Without [...]: all its kinds."),
    ] = None
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail on every broken promise, not only on under-reports.")
    ] = False
    seconds: Annotated[
        float | None,
        typer.Option(help="Time for each accountant.", show_default="18 on the quick grid, 900 on the full"),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of the search for small counterexamples.")] = 0
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report here.")] = None
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML here.")] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """What a user may say to `workbench accountants ask`."""

    targets: Annotated[list[str], typer.Argument(metavar="TARGET...", help=_TARGETS)]
    noise_multiplier: Annotated[float, typer.Option(help="Noise, in units of the clipping norm.")]
    steps: Annotated[int, typer.Option(help="Number of releases.")]
    delta: Annotated[float, typer.Option(help="Of the epsilon that is asked for, in (0, 1).")]
    sampling_probability: Annotated[float, typer.Option(help="Of a Poisson sample, in (0, 1].")] = 1.0
    adjacency: Annotated[Adjacency, typer.Option(help="How neighbours differ.")] = Adjacency.ADD_REMOVE


def check(options: CheckOptions) -> int:
    """Hold accountants to certified bounds, and fail where one reports too small an epsilon.

    Exit code: 0 no under-report was found, 1 one was, 2 bad input, 3 nothing could be judged.
    """
    if options.seed < 0:
        raise InputError(f"--seed must be at least 0, got {options.seed}")
    budget = options.looseness_budget
    if budget is not None and not budget >= 1:
        raise InputError(f"--looseness-budget must be at least 1, got {budget:g}")
    if options.seconds is not None and not options.seconds > 0:
        raise InputError(f"--seconds must be > 0, got {options.seconds:g}")
    for flag, path in (("--json", options.json), ("--junit", options.junit)):
        if path is not None:
            require_file_place(flag, path)
    require_distinct({"--json": options.json, "--junit": options.junit})
    accountants = [(target, _load(target)) for target in _different(options.targets)]
    judged = []
    with terminal.progress_display(options.quiet) as progress:
        for target, accountant in accountants:
            with redirect_stdout(sys.stderr):
                report = suite().run_checks(
                    accountant,
                    grid=str(options.grid),
                    looseness_budget=budget,
                    seed=options.seed,
                    only=options.only or None,
                    seconds=options.seconds,
                    progress=lambda _, done, total, target=target: progress(target, done, total),
                )
            named = replace(report, accountant=target)
            judged.append(Judged(report=named, strict=options.strict, has_budget=budget is not None))
    codes = [one.exit_code for one in judged]
    code = 1 if 1 in codes else max(codes)
    if options.json is not None:
        write_atomically(options.json, _json_text(options, judged, code))
    if options.junit is not None:
        write_document(conformance_junit(judged), options.junit)
    console = terminal.output_console()
    for one in judged:
        print_judged(console, one)
    return code


def ask(options: AskOptions) -> int:
    """Ask accountants for the epsilon of one DP-SGD run, and print the certified bounds beside it.

    Exit code: 0 no answer is below the truth, 1 one is, 2 bad input, 3 refused or not to be had.
    """
    if not 0.0 < options.delta < 1.0:
        raise InputError(f"--delta must be in (0, 1), got {options.delta:g}")
    if options.steps < 1:
        raise InputError(f"--steps must be at least 1, got {options.steps}")
    event = gaussian_run(
        noise_multiplier=options.noise_multiplier,
        sampling_probability=options.sampling_probability,
        steps=options.steps,
    )
    accountants = [(target, _load(target)) for target in _different(options.targets)]
    answers = [(target, _epsilon(target, one, event, options)) for target, one in accountants]
    bounds = _certified(event, options)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("accountant", "epsilon", "beside the certified bounds"):
        table.add_column(heading, overflow="fold")
    codes = []
    for target, answer in answers:
        words, code = _compared(answer, bounds)
        codes.append(code)
        shown = f"{answer:.9g}" if isinstance(answer, float) else "-"
        table.add_row(Text(target), Text(shown), Text(words))
    console = terminal.output_console()
    console.print(Text(f"{event.describe()} at delta = {options.delta:g}, {options.adjacency}"))
    console.print(table)
    if isinstance(bounds, Bounds):
        ends = f"[{bounds.lower:.9g}, {bounds.upper:.9g}]"
        how = "rigorous" if bounds.rigorous else "numerically tight"
        text = f"certified: {ends}, width {bounds.width:.3g} ({how}; {bounds.method})"
        console.print(Text("; ".join([text, *bounds.assumptions])))
    else:
        console.print(Text(f"certified: {bounds}"))
    return 1 if 1 in codes else max(codes)


def _load(target: str) -> Accountant:
    """The accountant; what its module prints as it is imported does not reach the output stream."""
    with redirect_stdout(sys.stderr):
        return load_accountant(target)


def _different(targets: list[str]) -> list[str]:
    return list(dict.fromkeys(targets))


def _json_text(options: CheckOptions, judged: list[Judged], code: int) -> str:
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
            "accountants": [
                {**one.report.to_json(), "verdict": one.verdict, "sentence": one.sentence()} for one in judged
            ],
        }
    )
    return json.dumps(form, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _epsilon(target: str, accountant: Accountant, event: Event, options: AskOptions) -> float | str:
    """The accountant's answer; a sentence where it refuses.

    Raises:
        InputError: it fails, or answers no number >= 0.
    """
    try:
        with redirect_stdout(sys.stderr):
            found: Any = accountant.epsilon(event, delta=options.delta, adjacency=options.adjacency)
    except BaseException as error:
        if is_interruption(error):
            raise
        if is_refusal(error):
            return "refused: " + error_line(error).removeprefix(f"{type(error).__name__}: ")
        raise InputError(f"accountant {target!r} failed: {error_line(error)}") from error
    is_real = hasattr(type(found), "__float__") and isinstance(found, Real) >= isinstance(found, Complex)
    try:
        number = float(found) if is_real else math.nan
    except Exception:  # The number's own code: a tensor of two elements has its own error.
        number = math.nan
    if not number >= 0:
        raise InputError(f"accountant {target!r} must answer a number >= 0, got {object_line(found)}")
    return number


def _certified(event: Event, options: AskOptions) -> Bounds | str:
    """The certified bounds; a sentence where there are none."""
    from workbench.accounting.certified import epsilon_bounds

    try:
        return epsilon_bounds(event, options.delta, adjacency=options.adjacency)
    except (UnsupportedError, InconclusiveError) as error:
        return f"no bounds: {one_line(str(error))}"


def _compared(answer: float | str, bounds: Bounds | str) -> tuple[str, int]:
    """An answer beside the bounds, in words, and the exit code that it earns."""
    if isinstance(answer, str):
        return answer, 3
    if isinstance(bounds, str):
        return "not judged", 3
    if answer in bounds:
        return "within", 0
    if answer > bounds.upper:
        ratio = f"{answer / bounds.upper:.7g} times the upper one" if bounds.upper > 0 else "above"
        return ratio, 0
    if bounds.lower - answer <= ROUNDING * bounds.lower:
        return "equal up to rounding", 0
    words = f"{100 * (1 - answer / bounds.lower):.3g} % below the lower one"
    return (f"UNDER-REPORT: {words}", 1) if bounds.rigorous else (f"{words}, which is not rigorous", 3)
