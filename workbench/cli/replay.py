"""`workbench replay`: what a training function releases of one record, measured in its own runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import workbench
from workbench.audit.api.training import REPLAYED_CANDIDATES
from workbench.audit.claims import EXAMPLE
from workbench.audit.report_file import write_report
from workbench.cli import junit, terminal
from workbench.cli.parameters import Device, ReportFile, StatedNumbers, parameters
from workbench.core.errors import ArgumentError
from workbench.core.outputs import (
    require_distinct,
    require_file_place,
    require_folder_place,
    write_atomically,
)

_TEST = '''"""Fails until the training keeps its claim; written by `workbench replay`."""

import subprocess
import sys
from pathlib import Path

TRAINER = Path(__file__).parent / {trainer!r}
FUNCTION = {function!r}
OPTIONS = {options!r}


def test_forced_replay_does_not_refute_the_claim(tmp_path):
    function = f"{{TRAINER.resolve()}}:{{FUNCTION}}"
    # A folder of its own: kept results do not know of a changed package or of changed data.
    command = [sys.executable, "-m", "workbench.cli", "replay", function, *OPTIONS, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
'''


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """What a user may say to `workbench replay`; None where they said nothing."""

    function: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="The training function (docs/user_training.md).")
    ]
    claim: Annotated[
        str | None,
        typer.Option(help="The guarantee to test: epsilon, delta, adjacency.", show_default=EXAMPLE),
    ] = None
    corpus: Annotated[str, typer.Option(help="Where the records come from.")] = "digits"
    corpus_parameter: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A parameter of the corpus.")
    ] = None
    stated: StatedNumbers = None
    candidates: Annotated[int, typer.Option(metavar="N", help="How many records it trains on.")] = (
        REPLAYED_CANDIDATES
    )
    seed: Annotated[int, typer.Option(help="Of the records, the crafts, and the function.")] = 0
    confidence: Annotated[float, typer.Option(help="Of the verdict.")] = 0.95
    device: Device = None
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="For report.html, report.json and the store.")
    ] = Path("replay")
    json: ReportFile = None
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML.")] = None
    emit_test: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Write a pytest that fails until the claim is kept."),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict alone.")] = False


def replay(options: ReplayOptions) -> int:
    """Measure what a training function releases of one record, by replaying it with another one.

    The function is called some seventy times, with one seed or another: as it is; without its noise and with
    each gradient replaced by that of the first run; and so again with one record replaced. What differs is
    the noise, what a record moves, and what leaves the training past the noise. Works for training that steps
    a torch optimizer and repeats itself to the bit under one seed.

    Exit code: 0 not refuted, 1 refuted, 2 bad input, 3 underpowered, undecided, or invalid: it cannot be
    replayed.
    """
    _check_outputs(options)
    given = {"claim": options.claim, "device": options.device}
    with terminal.progress_display(options.quiet) as progress:
        result = workbench.replay(
            options.function,
            corpus=options.corpus,
            corpus_parameters=parameters("--corpus-parameter", options.corpus_parameter or []),
            stated=parameters("--stated", options.stated or []),
            candidates=options.candidates,
            confidence=options.confidence,
            seed=options.seed,
            out=options.out,
            progress=progress,
            command=command_line(options),
            **{name: value for name, value in given.items() if value is not None},
        )
    with terminal.json_place(options.json) as json_file:
        _write(options, result.record, json_file)
        terminal.print_report(result.record, quiet=options.quiet)
        if not options.quiet:
            typer.echo(f"Report: {options.out / 'report.html'}")
    return result.exit_code


def _check_outputs(options: ReplayOptions) -> None:
    """Refuse places that cannot be written to."""
    require_folder_place("--out", options.out)
    outputs = {"--json": options.json, "--junit": options.junit, "--emit-test": options.emit_test}
    for flag, path in outputs.items():
        if path is not None:
            require_file_place(flag, path)
    if options.emit_test is not None and options.emit_test.suffix != ".py":
        raise ArgumentError("--emit-test", f"must end in .py, got {str(options.emit_test)!r}")
    source = options.function.rpartition(":")[0]
    require_distinct(
        {
            "FUNCTION": Path(source) if source else None,
            "--out's report.json": options.out / "report.json",
            "--out's report.html": options.out / "report.html",
        }
        | outputs
    )


def command_line(options: ReplayOptions) -> str:
    """The shell command that gives these options; those left at their default are left out."""
    return shlex.join(["workbench", *_words(options)])


def _words(options: ReplayOptions) -> list[str]:
    words = ["replay", options.function]
    for option in fields(options)[1:]:
        value, flag = getattr(options, option.name), f"--{option.name.replace('_', '-')}"
        if value == option.default or value is None:
            continue
        words += [flag] if value is True else [word for item in _listed(value) for word in (flag, str(item))]
    return words


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _write(options: ReplayOptions, report: Mapping[str, Any], json_file: Path | None) -> None:
    write_report(report, out=options.out, json_file=json_file)
    if options.junit is not None:
        junit.write_junit(report, options.junit)
    if options.emit_test is not None:
        source, _, function = options.function.rpartition(":")
        asked = replace(options, out=Path("replay"), json=None, junit=None, emit_test=None, quiet=True)
        trainer = Path(os.path.relpath(Path(source).resolve(), options.emit_test.resolve().parent)).as_posix()
        written = _TEST.format(trainer=trainer, function=function, options=_words(asked)[2:])
        write_atomically(options.emit_test, written)
