"""`workbench run`: runs what a study's store does not have yet, and says before what that costs.

Exit code: 0 every chosen experiment is done, 1 some failed (recorded), 2 bad input, or a store that cannot be
written, 3 the workers are gone, 130 interrupted (what is done is kept). Whatever can be refused is refused
before any work starts or a folder is made.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
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
from workbench.cli.starting_points import (
    build_bases,
    fetch_corpora,
    missing_bases,
    placed,
    print_to_build,
    stand_ins,
    with_stand_ins,
)
from workbench.core.errors import InputError, InterruptedRunError, WorkbenchError
from workbench.core.keys import JSON, plain
from workbench.core.outputs import require_distinct, require_file_place, require_reachable, write_atomically
from workbench.execution.store import Store

if TYPE_CHECKING:
    from workbench.studies.costs import CostEstimate
    from workbench.studies.experiments import Study
    from workbench.studies.results import Pending
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
    retry_failed: Annotated[
        bool, Option("--retry-failed", help="Do experiments again that failed before.")
    ] = False
    json: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Also write what was planned and done here, also where a run is stopped."
        ),
    ] = None
    quiet: Annotated[bool, Option("--quiet", help="Print failures only.")] = False


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
    study = placed(with_stand_ins(study, stand_ins(options.base or ())), options.device)
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
    """How long a dry run may try small jobs; None for a run."""
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
    """Number of worker processes, 0 for this one; None for a cluster's."""
    if options.scheduler is not None:
        return None
    return min(2, os.cpu_count() or 1) if options.workers is None else options.workers


def _execute(options: RunCommandOptions, study: Study, out: Path, plan: Plan) -> RunSummary:
    """Run the study under the display; InterruptedRunError where the user stopped it."""
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
        device=study.experiments[0].device if options.device else "",
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
    """Write the JSON file of a run that stopped for a reason after some seconds: what the store has of it."""
    from workbench.studies.results import is_trained, pending
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
        names += ("limit", "workers", "scheduler", "device")
    words = ["workbench", command, options.study]
    for name in names:
        value = getattr(options, name)
        for item in value if isinstance(value, list) else [value]:
            words += [] if item is None else [f"--{name}", str(item)]
    return shlex.join(words)


def _failures(study: Study, out: Path) -> list[Failure]:
    """The chosen experiments that are recorded as failed, each once."""
    from workbench.studies.experiments import Status
    from workbench.studies.jobs import jobs_of
    from workbench.studies.results import Known

    failures: dict[str, Failure] = {}
    with closing(Store(out / "store")) as store:
        known = Known(store)
        for experiment in study.experiments:
            job = jobs_of(experiment).measuring
            status, error = known.status(job)
            if status is Status.FAILED:
                failures.setdefault(job.key, Failure(experiment=experiment.name, error=error))
    return list(failures.values())


def _print_outcome(
    console: Console, options: RunCommandOptions, plan: Plan, summary: RunSummary, failures: Sequence[Failure]
) -> None:
    """Print what was done, what failed and how, and how to go on."""
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


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One group and variant, with the number of its jobs to do and of its experiments by status.

    A training that two rows share is counted in both, but once in the totals.
    """

    group: str
    variant: str
    trainings: int
    measurings: int
    done: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run: rows for the table, jobs, and what they cost."""

    rows: tuple[PlanRow, ...]
    pending: Pending
    cost: CostEstimate


def check_fits(study: Study) -> None:
    """Refuse models, corpora and mechanisms of a study that do not go together, one seed for all.

    Raises:
        InputError: of which group and variant, and why (`workbench.training.setup.check_fit`).
    """
    from workbench.core.keys import canonical
    from workbench.studies.file import place
    from workbench.studies.jobs import setup_of
    from workbench.training import setup as workers

    seen: set[str] = set()
    for experiment in study.experiments:
        combination = canonical([getattr(experiment, name) for name in _DECIDE_FIT])
        if combination in seen:
            continue
        seen.add(combination)
        with place(f"group {experiment.group!r}, variant {experiment.variant!r}"):
            workers.check_fit(setup_of(experiment))


_DECIDE_FIT = tuple(
    f"{name}{suffix}" for name in ("mechanism", "attack", "corpus", "model") for suffix in ("", "_parameters")
)


def make_plan(study: Study, out: Path, *, retry_failed: bool, probe_seconds: float | None) -> Plan:
    """Read the store in a folder, which may be missing, and estimate the cost; writes nothing.

    Args:
        retry_failed: Failures count as not done.
        probe_seconds: Try a few steps of what no record tells the cost of, for so long; None for not at all.
    """
    from workbench.studies import costs
    from workbench.studies.results import pending

    with _store(out) as store:
        waiting = pending(study, store, retry_failed=retry_failed)
        rows = _rows(study, store, waiting)
        cost = costs.estimate(store, waiting)
        if probe_seconds is not None and cost.unknown:
            cost = costs.probe(store, waiting, seconds=probe_seconds)
    return Plan(rows=rows, pending=waiting, cost=cost)


def _rows(study: Study, store: Store, waiting: Pending) -> tuple[PlanRow, ...]:
    """A row for each group and variant, in the order of the study."""
    from workbench.studies.experiments import Status
    from workbench.studies.jobs import StudyJob, jobs_of
    from workbench.studies.results import Known

    known = Known(store)
    to_train = {job.key for job in waiting.trainings}
    to_measure = {job.key for job in waiting.measurings}
    parts: dict[tuple[str, str], dict[str, StudyJob]] = {}
    for experiment in study.experiments:
        job = jobs_of(experiment).measuring
        parts.setdefault((experiment.group, experiment.variant), {})[job.key] = job
    rows = []
    for (group, variant), jobs in parts.items():
        left = [job for key, job in jobs.items() if key in to_measure]
        over = [known.status(job)[0] for key, job in jobs.items() if key not in to_measure]
        row = PlanRow(
            group=group,
            variant=variant,
            trainings=len({key for job in left for key in job.needs} & to_train),
            measurings=len(left),
            done=over.count(Status.DONE),
            failed=over.count(Status.FAILED),
        )
        rows.append(row)
    return tuple(rows)


@contextmanager
def _store(out: Path) -> Iterator[Store]:
    """The store of a folder; where there is none, an empty one elsewhere, so that looking makes no folder."""
    with tempfile.TemporaryDirectory() as empty:
        store = Store(out / "store" if (out / "store").is_dir() else Path(empty))
        try:
            yield store
        finally:
            store.close()


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
