"""`workbench run`: runs what a study's store does not have yet, and says before what that costs.

Exit code: 0 every chosen experiment is done, 1 some failed (recorded), 2 bad input, or a store that cannot be
written, 3 the workers are gone, 130 interrupted (what is done is kept). Whatever can be refused is refused
before any work starts or a folder is made.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option

from workbench.cli import terminal
from workbench.cli.display import Display, Expected, RunProgress, duration, plural, run_display
from workbench.cli.parameters import Device, Scheduler, StudyName, check_scheduler, require_scheduler
from workbench.cli.starting_points import build_bases, fetch, folders_of, print_to_build
from workbench.core.errors import InterruptedRunError, WorkbenchError
from workbench.core.keys import JSON
from workbench.core.outputs import require_distinct, require_file_place, write_atomically
from workbench.studies.plan import Plan
from workbench.studies.rounds import NextLooks, Rounds
from workbench.studies.running import PreparedRun, RunResult, prepare_run, probe_seconds, run_rounds

if TYPE_CHECKING:
    from workbench.studies.experiments import Study
    from workbench.studies.run import RunEvent

MOST_FAILURES = 10
"""Failures that are printed; of more it says how many."""


@dataclass(frozen=True, kw_only=True)
class RunCommandOptions:
    """The options of `workbench run`; None where the user gave none."""

    study: StudyName
    profile: Annotated[
        str | None,
        Option(metavar="NAME", help="One of the study's profiles.", show_default="the file's first"),
    ] = None
    out: Annotated[
        Path | None,
        Option(
            metavar="FOLDER",
            help="Where the store and run.json go; a second run there does what is left.",
            show_default="studies/STUDY",
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        Option(
            metavar="FIELD=VALUE",
            help="Only experiments with this field (`seed=0`), group or variant; may be repeated: "
            "values of one field are alternatives, different fields must all fit.",
        ),
    ] = None
    base: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=FOLDER",
            help="This local Hugging Face folder stands in for a base model (`workbench models list`) in "
            "every experiment that starts from it; may be repeated.",
        ),
    ] = None
    limit: Annotated[int | None, Option(help="Only the first experiments, up to this number.")] = None
    workers: Annotated[
        int | None, Option(help="Worker processes; 0: this one.", show_default="2, or the cores if fewer")
    ] = None
    scheduler: Scheduler = None
    device: Device = None
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Say what would run and what it costs, and stop. Without earlier records a few steps of each"
            " kind are tried to tell the cost.",
        ),
    ] = False
    try_for: Annotated[
        float | None,
        Option(
            metavar="SECONDS",
            help="Most time for which `--dry-run` tries steps; large models need minutes.",
            show_default="20",
        ),
    ] = None
    until_decided: Annotated[
        bool,
        Option(
            "--until-decided",
            help="Then add seeds in rounds to the paper's conclusions that are still open, by tests that pay"
            " for each look; say how each stands and what its next look costs.",
        ),
    ] = False
    conclusions: Annotated[
        list[str] | None,
        Option(
            metavar="ID",
            help="With `--until-decided`: only this conclusion; may be repeated.",
            show_default="all",
        ),
    ] = None
    budget: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="With `--until-decided`: begin no round that would end later than this after the start"
            " (3h, 45m).",
            show_default="any",
        ),
    ] = None
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Do experiments again that failed before.")
    ] = False
    json: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Also write what was planned and done here, also where a run is stopped."
        ),
    ] = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print failures only.")] = False


def run(options: RunCommandOptions) -> int:
    """Run the experiments of a study that its store does not have yet.

    Shows first what will run, by group and variant, and what it will cost; then the workers at work. Whatever
    ends a run, what is done is kept, and the same command goes on with the rest. An experiment that raises or
    diverges is recorded as failed, and the others go on. Base models that the study needs and that are not
    built are built first, once; corpora that are not shipped are fetched (also for `--dry-run`).

    Exit code: 0 every chosen experiment is done, 1 some failed, 2 bad input, or the store cannot be written,
    3 the workers or their scheduler are gone, 130 interrupted.
    """
    check_scheduler(options.scheduler, options.workers)
    _check_places(options)
    console = terminal.output_console()
    prepared = prepare_run(
        options.study,
        profile=options.profile,
        out=options.out,
        only=options.only or (),
        base=folders_of(options.base or ()),
        limit=options.limit,
        workers=options.workers,
        scheduler=options.scheduler,
        device=options.device,
        dry_run=options.dry_run,
        try_for=options.try_for,
        retry_failed=options.retry_failed,
        until_decided=options.until_decided,
        conclusions=options.conclusions or (),
        budget=options.budget,
        command=command_line(options),
        fetch=partial(fetch, quiet=options.quiet),
        build=partial(_build, options),
    )
    if not options.quiet:
        if options.dry_run:
            print_to_build(console, prepared.lacking)
        print_plan(console, prepared.study, prepared.plan)
        print_cost(console, prepared.plan, workers=prepared.workers, is_detailed=options.dry_run)
    if options.dry_run:
        result = RunResult(prepared)
        if prepared.rounds is not None and not options.quiet:
            print_standings(
                console, prepared.rounds, prepared.rounds.next_looks(probe_seconds(options.try_for))
            )
    else:
        result = run_rounds(
            prepared, partial(_round, options, console, prepared), partial(_looked, options, console)
        )
    _print_outcome(console, options, result)
    if options.json is not None:
        _write_json(options.json, result.record)
    return result.exit_code


def _check_places(options: RunCommandOptions) -> None:
    """Refuse places that cannot be written to."""
    if options.json is not None:
        require_file_place("--json", options.json)
        study_file = Path(options.study) if Path(options.study).is_file() else None
        run_file = None if options.out is None else options.out / "run.json"
        require_distinct({"STUDY": study_file, "--out's run.json": run_file, "--json": options.json})
    if not options.dry_run:
        require_scheduler(options.scheduler)


def _round(
    options: RunCommandOptions, console: Console, first: PreparedRun, prepared: PreparedRun
) -> RunResult:
    """Execute one round; each but the first shows its plan before."""
    if prepared is not first and not options.quiet:
        print_plan(console, prepared.study, prepared.plan)
        print_cost(console, prepared.plan, workers=prepared.workers, is_detailed=False)
    return _executed(options, prepared)


def _looked(options: RunCommandOptions, console: Console, rounds: Rounds, looks: NextLooks) -> None:
    if not options.quiet:
        print_standings(console, rounds, looks)


def print_standings(console: Console, rounds: Rounds, looks: NextLooks) -> None:
    """Print how each conclusion stands, and what its next look would cost."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("conclusion", overflow="fold")
    table.add_column("outcome", overflow="fold")
    for name in ("looks", "seeds", "needed, about", "next look"):
        table.add_column(name, justify="right")
    standings = rounds.decisions.standings()
    decided = 0
    for claim in rounds.decisions.looks:
        standing = standings[claim]
        needed = standing.finding.needed
        decided += standing.finding.is_decided
        table.add_row(
            Text(claim),
            str(standing.finding.outcome),
            str(standing.looks),
            str(standing.units),
            "" if needed is None else f"{needed} seeds",
            _cost_of(looks, claim) if claim in looks.jobs else "" if standing.finding.is_decided else "none",
        )
    console.print(table)
    words = (
        f"{decided} of {plural(len(rounds.decisions.looks), 'conclusion')} decided, {len(looks.jobs)} open"
    )
    console.print(Text(words), soft_wrap=True)


def _cost_of(looks: NextLooks, claim: str) -> str:
    if not looks.jobs[claim]:
        return "nothing to run"
    return duration(looks.seconds([claim])) if looks.is_known(claim) else "not known yet"


def _executed(options: RunCommandOptions, prepared: PreparedRun) -> RunResult:
    """Run the study under the display; InterruptedRunError where the user stopped it."""
    began, study = time.monotonic(), prepared.study
    progress = RunProgress(jobs=expected_jobs(prepared.plan), workers=prepared.workers)
    title = f"{study.name} ({study.profile})" if study.profile else study.name
    try:
        try:
            with run_display(title, progress, quiet=options.quiet) as display:
                return prepared.execute(_listener(progress, display))
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted: {progress.ended} of {len(progress.jobs)} jobs are done and kept; "
                f"to go on with the rest: {command_line(options)}"
            ) from None
    except WorkbenchError as error:
        if options.json is not None:
            result = prepared.stopped(str(error), time.monotonic() - began)
            if result is not None:
                _write_json(options.json, result.record)
        raise


def _write_json(path: Path, form: Mapping[str, JSON]) -> None:
    write_atomically(path, json.dumps(form, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _listener(progress: RunProgress, display: Display) -> Callable[[RunEvent], None]:
    """Passes a run's events on to the display."""
    from workbench.execution.tasks import Failed, Finished, Notice, Started, Stepped
    from workbench.studies.run import Skipped

    def listen(event: RunEvent) -> None:
        """Show an event of the engine in the progress display."""
        match event:
            case Started(task=task, worker=worker):
                progress.started(task.id, worker)
            case Stepped(task=task, worker=worker, done=done, total=total):
                progress.stepped(task.id, worker, done, total)
            case Finished(task=task, seconds=seconds):
                progress.finished(task.id, seconds)
            case Failed(task=task):
                progress.failed(task.id)
            case Skipped(task=task):
                progress.skipped(task.id)
            case Notice(message=message):
                display.say(message)
        display.changed()

    return listen


def _build(options: RunCommandOptions, names: Sequence[str]) -> None:
    """Build missing bases on this machine, also for a cluster, whose workers must share its cache."""
    try:
        build_bases(names, workers=min(2, os.cpu_count() or 1), quiet=options.quiet)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            "interrupted: what was built of the base models is kept; to go on with the rest: "
            f"{command_line(options)}"
        ) from None


def command_line(options: RunCommandOptions, command: str = "run") -> str:
    """The shell command that goes on with these options; or that reports on their run (`"report"`)."""
    names: tuple[str, ...] = ("profile", "out", "only", "base")
    if command == "run":
        names += ("limit", "workers", "scheduler", "device", "conclusions", "budget")
    words = ["workbench", command, options.study]
    words += ["--until-decided"] if command == "run" and options.until_decided else []
    for name in names:
        value = getattr(options, name)
        for item in value if isinstance(value, list) else [value]:
            words += [] if item is None else [f"--{name}", str(item)]
    return shlex.join(words)


def _print_outcome(console: Console, options: RunCommandOptions, result: RunResult) -> None:
    """Print what was done, what failed and how, and how to go on; nothing after a dry run."""
    if result.summary is None:
        return
    plan, summary, failures = result.plan, result.summary, result.failures
    for failure in failures[:MOST_FAILURES]:
        console.print(
            Text.assemble(("failed", "bold red"), f": {failure.experiment}: {failure.error}"), soft_wrap=True
        )
    if len(failures) > MOST_FAILURES:
        console.print(Text(f"... and {len(failures) - MOST_FAILURES} more failed"), soft_wrap=True)
    if options.quiet:
        return
    if not plan.pending.measurings:
        words = "No work to do"
    else:
        words = f"Done: {plural(summary.done, 'experiment')}, {plural(summary.trained, 'training')}"
        words += f", in {duration(summary.seconds)}"
    if failures:
        words += f"; {len(failures)} failed"
        words += "" if options.retry_failed else " (--retry-failed does them again)"
    if summary.skipped:
        words += f"; {summary.skipped} {'was' if summary.skipped == 1 else 'were'} done before"
    console.print(Text(words), soft_wrap=True)
    if summary.done or summary.skipped:
        console.print(Text(f"To go on: {command_line(options, 'report')}"), soft_wrap=True)


def print_plan(console: Console, study: Study, plan: Plan) -> None:
    """Print what will run: a row for each group and variant, and the totals."""
    waiting = plan.pending
    profile = f" ({study.profile})" if study.profile else ""
    console.print(Text(f"{study.name}{profile}: {study.title}"), soft_wrap=True)
    table = Table(box=box.SIMPLE, pad_edge=False, show_footer=len(plan.rows) > 1)
    table.add_column("group", footer="in all", overflow="fold")
    table.add_column("variant", overflow="fold")
    totals = (len(waiting.trainings), len(waiting.measurings), waiting.done, waiting.failed)
    names = ("to train", "to measure", "done", "failed before")
    for name, total in zip(names, totals, strict=True):
        table.add_column(name, footer=str(total), justify="right", overflow="fold")
    for row in plan.rows:
        numbers = (row.trainings, row.measurings, row.done, row.failed)
        table.add_row(Text(row.group), Text(row.variant), *map(str, numbers))
    console.print(table)
    trainings = sum(row.trainings for row in plan.rows)
    experiments = sum(row.measurings + row.done + row.failed for row in plan.rows)
    if trainings > totals[0] or experiments > sum(totals[1:]):
        console.print(Text("What rows share is counted once in all."), soft_wrap=True)


def print_cost(console: Console, plan: Plan, *, workers: int | None, is_detailed: bool) -> None:
    """Print what the run will cost, as far as it is known, and from what it is known.

    Args:
        workers: At work at a time, 0 for this process; None where that is not known (a cluster).
        is_detailed: Say what is not counted, and why, also where nothing is.
    """
    cost = plan.cost
    if not plan.pending.measurings:
        return
    words = "not known yet"
    if cost.core_seconds > 0:
        words = f"{duration(cost.core_seconds)} of one core"
        if workers is not None:
            count = max(1, workers)
            words += f", about {duration(cost.wall_seconds(count))} with {plural(count, 'worker')}"
        sources = [f"from {plural(cost.measured_from, 'earlier record')}"] if cost.measured_from else []
        sources += ["by trying a few steps"] if cost.is_probed else []
        words += f" (measured {' and '.join(sources)})"
    console.print(Text(f"Cost: {words}"), soft_wrap=True)
    borrowed = dict.fromkeys(kind.counted_as for kind in cost.per_kind if kind.counted_as)
    if borrowed:
        console.print(Text(f"  counted: {', '.join(borrowed)}"), soft_wrap=True)
    for line in cost.unknown if cost.core_seconds > 0 or is_detailed else ():
        console.print(Text(f"  not counted: {line}"), soft_wrap=True)


def expected_jobs(plan: Plan) -> list[Expected]:
    """The jobs of the run, each with what it is expected to cost."""
    seconds = plan.cost.job_seconds
    return [
        Expected(id=job.key, kind=str(job.kind), label=job.label, seconds=seconds.get(job.key))
        for job in (*plan.pending.trainings, *plan.pending.measurings)
    ]
