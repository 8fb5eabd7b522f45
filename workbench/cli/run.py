"""`workbench run`: does what a study's store does not have yet, and says before what that costs.

Exit code: 0 every chosen experiment is done, 1 some failed (recorded), 2 bad input, or a store that cannot be
written, 3 the workers are gone, 130 interrupted (what is done is kept). Everything that can be told to be
wrong is told before any work starts or a folder is made.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from workbench.cli import terminal
from workbench.cli.display import Display, RunProgress, duration, plural, run_display
from workbench.cli.parameters import check_scheduler, require_scheduler
from workbench.cli.run_plan import Plan, check_fits, expected_jobs, make_plan, print_cost, print_plan
from workbench.cli.starting_points import (
    build_bases,
    fetch_corpora,
    missing_bases,
    print_to_build,
    stand_ins,
    with_stand_ins,
)
from workbench.core.errors import InputError, InterruptedRunError, WorkbenchError
from workbench.core.keys import JSON, plain
from workbench.core.outputs import require_distinct, require_file_place, require_reachable, write_atomically
from workbench.execution.store import Store

if TYPE_CHECKING:
    from workbench.studies.experiments import Study
    from workbench.studies.run import RunEvent, RunSummary

SCHEMA = 1
"""Of the JSON file; raised whenever the meaning of a field changes."""

MOST_WORKERS = 1024
"""More processes than that are a slip of the pen on any machine."""

MOST_FAILURES = 10
"""Failures that are printed; of more it says how many."""


MOST_TRYING = 86_400.0
"""Seconds that a dry run may try."""


@dataclass(frozen=True, kw_only=True)
class RunCommandOptions:
    """What a user may say to `workbench run`; None where they said nothing."""

    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A shipped study (`workbench list studies`), or a file.")
    ]
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One of the study's profiles.", show_default="the file's first"),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the store and run.json go; a second run there does what is left.",
            show_default="studies/STUDY",
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Only experiments with this field (`seed=0`), group or variant; may be repeated: "
            "values of one field are alternatives, different fields must all fit.",
        ),
    ] = None
    base: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="This local Hugging Face folder stands in for a base model (`workbench models list`) in "
            "every experiment that starts from it; may be repeated.",
        ),
    ] = None
    limit: Annotated[int | None, typer.Option(help="Only the first so many experiments of these.")] = None
    workers: Annotated[
        int | None,
        typer.Option(help="Worker processes; 0: this one.", show_default="2, or the cores if fewer"),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="tcp://HOST:PORT", help="Run on the workers of this Dask scheduler instead."),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Say what would run and what it costs, and stop. Without earlier records a few steps of each"
            " kind are tried to tell the cost.",
        ),
    ] = False
    try_for: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long `--dry-run` tries at most; large models need minutes.",
            show_default="20",
        ),
    ] = None
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do experiments again that failed before.")
    ] = False
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write what was planned and done here, also where a run is stopped."
        ),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="Print failures only.")] = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An experiment that is recorded as failed, and its error in one line."""

    experiment: str
    error: str


def run(options: RunCommandOptions) -> int:
    """Run the experiments of a study that its store does not have yet.

    Shows first what will run, by group and variant, and what it will cost; then the workers at work. Whatever
    ends a run, what is done is kept, and the same command goes on with the rest. An experiment that raises or
    diverges is recorded as failed, and the others go on. Base models that the study needs and that are not
    built are built first, once; corpora that are not shipped are fetched (also for `--dry-run`).

    Exit code: 0 every chosen experiment is done, 1 some failed, 2 bad input, or the store cannot be written,
    3 the workers or their scheduler are gone, 130 interrupted.
    """
    _check(options)
    from workbench.studies.study import load_study, select

    study = load_study(options.study, profile=options.profile)
    try:
        study = select(study, only=options.only or (), limit=options.limit)
    except InputError as error:
        raise InputError(f"--only: {error}") from error
    study = with_stand_ins(study, stand_ins(options.base or ()))
    out = options.out or Path("studies") / study.name
    _check_places(options, out)
    if not options.dry_run:
        require_scheduler(options.scheduler)
    fetch_corpora(study, quiet=options.quiet)
    check_fits(study)
    lacking = missing_bases(study)
    if not options.dry_run:
        _build(options, lacking)
        if lacking:
            check_fits(study)  # Again: what a base reads is known once it is built.
    plan = make_plan(study, out, retry_failed=options.retry_failed, probe_seconds=_probe_seconds(options))
    console = terminal.output_console()
    if not options.quiet:
        if options.dry_run:
            print_to_build(console, lacking)
        print_plan(console, study, plan)
        print_cost(console, plan, workers=_worker_count(options), is_detailed=options.dry_run)
    outcome = None
    if not options.dry_run:
        began = time.monotonic()
        try:
            summary = _execute(options, study, out, plan)
        except WorkbenchError as error:
            _write_stopped(options, study, out, plan, (str(error), time.monotonic() - began))
            raise
        outcome = (summary, _failures(study, out))
        _print_outcome(console, options, plan, *outcome)
    if options.json is not None:
        _write_json(options.json, run_json(options, study, plan, outcome))
    return 1 if outcome is not None and outcome[1] else 0


def _probe_seconds(options: RunCommandOptions) -> float | None:
    """How long a dry run may try; None for a run."""
    if not options.dry_run:
        return None
    from workbench.studies.costs import PROBE_SECONDS

    return PROBE_SECONDS if options.try_for is None else options.try_for


def _check(options: RunCommandOptions) -> None:
    """Refuse options that do not belong together, and values out of range, before a file is read."""
    check_scheduler(options.scheduler, options.workers)
    if options.workers is not None and not 0 <= options.workers <= MOST_WORKERS:
        raise InputError(f"--workers must be in [0, {MOST_WORKERS}], got {options.workers}")
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit must be at least 1, got {options.limit}")
    if options.try_for is not None and not options.dry_run:
        raise InputError("--try-for is said of --dry-run, which is missing")
    if options.try_for is not None and not 0 <= options.try_for <= MOST_TRYING:
        raise InputError(f"--try-for must be in [0, {MOST_TRYING:g}], got {options.try_for:g}")


def _check_places(options: RunCommandOptions, out: Path) -> None:
    """Refuse places that cannot be written to."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, got the file {str(out)!r}")
    if not options.dry_run:
        require_reachable("--out", out)
    if options.json is not None:
        require_file_place("--json", options.json)
        study_file = Path(options.study) if Path(options.study).is_file() else None
        require_distinct({"STUDY": study_file, "--out's run.json": out / "run.json", "--json": options.json})


def _worker_count(options: RunCommandOptions) -> int | None:
    """Processes that are used, 0 for this one; None for a cluster's."""
    if options.scheduler is not None:
        return None
    return min(2, os.cpu_count() or 1) if options.workers is None else options.workers


def _execute(options: RunCommandOptions, study: Study, out: Path, plan: Plan) -> RunSummary:
    """Do the work under the display.

    Raises:
        InterruptedRunError: the user stopped it.
    """
    from workbench.studies.run import RunOptions, run_study

    workers = _worker_count(options)
    progress = RunProgress(jobs=expected_jobs(plan), workers=workers)
    title = f"{study.name} ({study.profile})" if study.profile else study.name
    how = RunOptions(
        workers=workers or 0,
        scheduler=options.scheduler,
        retry_failed=options.retry_failed,
        source=options.study,
        command=command_line(options),
        bases=stand_ins(options.base or ()),
    )
    try:
        with run_display(title, progress, quiet=options.quiet) as display:
            return run_study(study, out=out, options=how, listener=_listener(progress, display))
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"interrupted: {progress.ended} of {len(progress.jobs)} jobs are done and kept; "
            f"to go on with the rest: {command_line(options)}"
        ) from None


def _write_stopped(
    options: RunCommandOptions, study: Study, out: Path, plan: Plan, end: tuple[str, float]
) -> None:
    """Write the JSON file of a run that did not come to its end: what the store has of it.

    Args:
        options, study, out, plan: Of the run.
        end: Why it stopped, and after how many seconds.
    """
    from workbench.studies.jobs import is_trained, pending
    from workbench.studies.run import RunSummary

    if options.json is None or not (out / "store").is_dir():
        return
    reason, seconds = end
    # The store's place may be full, or gone: then the reason for the stop is what the user must see.
    with suppress(OSError, InputError), closing(Store(out / "store")) as store:
        waiting = pending(study, store)
        summary = RunSummary(
            done=waiting.done - plan.pending.done,
            failed=waiting.failed,
            skipped=plan.pending.done,
            trained=sum(is_trained(store, job.key) for job in plan.pending.trainings),
            seconds=seconds,
        )
        outcome = (summary, _failures(study, out))
        _write_json(options.json, run_json(options, study, plan, outcome, stopped=reason))


def _write_json(path: Path, form: Mapping[str, JSON]) -> None:
    write_atomically(path, json.dumps(form, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _listener(progress: RunProgress, display: Display) -> Callable[[RunEvent], None]:
    """Passes a run's events on to the display."""
    from workbench.execution.tasks import Failed, Finished, Notice, Started, Stepped
    from workbench.studies.run import Skipped

    def listen(event: RunEvent) -> None:
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
    """Build missing bases on this machine, also for a cluster, whose workers share its cache or fail clearly.

    Raises:
        InterruptedRunError: the user stopped it.
    """
    try:
        build_bases(names, workers=min(2, os.cpu_count() or 1), quiet=options.quiet)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            "interrupted: what was built of the base models is kept; to go on with the rest: "
            f"{command_line(options)}"
        ) from None


def command_line(options: RunCommandOptions, command: str = "run") -> str:
    """The shell command that goes on with these options (or reports on their run).

    Args:
        options: What was asked for.
        command: `"run"` or `"report"`, which knows fewer options.
    """
    names: tuple[str, ...] = ("profile", "out", "only", "base")
    if command == "run":
        names += ("limit", "workers", "scheduler")
    words = ["workbench", command, options.study]
    for name in names:
        value = getattr(options, name)
        for item in value if isinstance(value, list) else [value]:
            words += [] if item is None else [f"--{name}", str(item)]
    return shlex.join(words)


def _failures(study: Study, out: Path) -> list[Failure]:
    """The chosen experiments that are recorded as failed, each once."""
    from workbench.studies.experiments import Status
    from workbench.studies.jobs import Known, jobs_of
    from workbench.studies.records import error_of, read_record

    found: dict[str, Failure] = {}
    with closing(Store(out / "store")) as store:
        known = Known(store)
        for experiment in study.experiments:
            job = jobs_of(experiment).measuring
            if job.key in found or known.status(job) is not Status.FAILED:
                continue
            error = error_of(read_record(store, job.key))
            if not error:
                error = next(filter(None, map(known.training_error, job.needs)), "")
                error = f"its training failed: {error}"
            found[job.key] = Failure(experiment=experiment.name, error=error)
    return list(found.values())


def _print_outcome(
    console: Console,
    options: RunCommandOptions,
    plan: Plan,
    summary: RunSummary,
    failures: Sequence[Failure],
) -> None:
    """What was done, what failed and how, and how to go on."""
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


def run_json(
    options: RunCommandOptions,
    study: Study,
    plan: Plan,
    outcome: tuple[RunSummary, Sequence[Failure]] | None,
    *,
    stopped: str = "",
) -> dict[str, JSON]:
    """What was planned and done, as plain data.

    Returns:
        `schema`, `study` (name, profile, source_sha256, experiments), `command`, `versions`, `rows` of the
        plan, `totals`, `cost`, and `outcome` (null after a dry run): done, failed, skipped, trained, seconds,
        failures, and `stopped`: why the run did not come to its end, or null.
    """
    from workbench.execution.engine import versions

    waiting, cost, workers = plan.pending, plan.cost, _worker_count(options)
    done = None
    if outcome is not None:
        summary, failures = outcome
        done = {**plain(summary), "failures": plain(list(failures)), "stopped": stopped or None}
    form: dict[str, JSON] = plain(
        {
            "schema": SCHEMA,
            "study": {
                "name": study.name,
                "profile": study.profile,
                "source_sha256": study.source_sha256,
                "experiments": len(study.experiments),
            },
            "command": command_line(options),
            "versions": versions(),
            "rows": plan.rows,
            "totals": {
                "trainings": len(waiting.trainings),
                "measurings": len(waiting.measurings),
                "done": waiting.done,
                "failed": waiting.failed,
            },
            "cost": {
                "core_seconds": cost.core_seconds,
                "wall_seconds": None if workers is None else cost.wall_seconds(workers),
                "per_kind": cost.per_kind,
                "unknown": cost.unknown,
                "measured_from": cost.measured_from,
                "is_probed": cost.is_probed,
            },
            "outcome": done,
        }
    )
    return form
