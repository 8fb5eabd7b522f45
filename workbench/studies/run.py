"""Runs the jobs of a study that its store does not have yet.

One job a task, but for trainings that differ in their seed alone, which an ensemble may train together. A
training is done once for all experiments that share it, and an experiment is measured as soon as its training
is there. Only this process writes records, one atomic file a job, so a killed run loses
the tasks under way and nothing else, and a further run goes on where it stopped. A job that raises, diverges
or kills its worker is recorded as failed and the rest goes on; a store that cannot be written ends the run.
`run.json` remembers the study and the command, for the report and for the next run.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError
from workbench.core.inputs import parsed_json, read_text
from workbench.core.keys import JSON, plain
from workbench.core.outputs import write_atomically
from workbench.core.version import __version__
from workbench.execution.backend import make_backend, run_tasks
from workbench.execution.engine import hardware, raise_if_all_would_fail, versions
from workbench.execution.store import Store, StoreError
from workbench.execution.tasks import Event, Failed, Finished, Task, Work, remove_folder
from workbench.studies.experiments import Status, Study
from workbench.studies.jobs import ExperimentJobs, JobKind, StudyJob, Training, jobs_of
from workbench.studies.results import Pending, is_trained, pending, read_record
from workbench.training import setup as workers

RUN_FILE = "run.json"
RUN_SCHEMA = 1


def write_run(
    study: Study,
    out: Path,
    *,
    source: str,
    command: str,
    bases: Mapping[str, str] | None = None,
    device: str = "",
    looks: Mapping[str, Sequence[int]] | None = None,
    only: Sequence[str] = (),
) -> None:
    """Write `run.json`: what is run in a folder.

    Args:
        source: Name or path by which the user called the study; empty for its name.
        bases: Folders that stand in for base models, by their names.
        device: That all experiments ran on, whatever the file says; empty for what the file says.
        looks: At conclusions (`workbench.studies.deciding`); None for those of an earlier run of the same.
        only: What `--only` and `--limit` chose for these looks; empty for everything.

    Raises:
        InputError: the folder cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    form = {
        "looks": dict(looks_of(study, out) if looks is None else looks),
        "only": list(selection_of(study, out) if looks is None else only),
        "schema": RUN_SCHEMA,
        "study": source or study.name,
        "name": study.name,
        "profile": study.profile,
        "source_sha256": study.source_sha256,
        "created": now,
        "command": command,
        "bases": dict(bases or {}),
        "device": device,
        "workbench_version": __version__,
    }
    write_atomically(out / RUN_FILE, json.dumps(form, indent=2) + "\n")


def looks_of(study: Study, out: Path) -> Mapping[str, Sequence[int]]:
    """The looks at conclusions that `out/run.json` remembers of this study and profile; empty for none."""
    ran = _run_of(study, out)
    return {claim: tuple(counts) for claim, counts in ran["looks"].items()} if ran else {}


def selection_of(study: Study, out: Path) -> tuple[str, ...]:
    """What `--only` and `--limit` chose where these looks were made; empty for everything."""
    ran = _run_of(study, out)
    return tuple(ran["only"]) if ran else ()


def _run_of(study: Study, out: Path) -> dict[str, Any]:
    """The content of `out/run.json`, if that is of this study and profile; else empty."""
    try:
        ran = read_run(out)
    except InputError:
        return {}
    same = ran["source_sha256"] == study.source_sha256 and ran["profile"] == study.profile
    return dict(ran) if same else {}


def read_run(out: Path) -> dict[str, JSON]:
    """The content of `out/run.json`.

    Returns:
        `study` (name or path), `name`, `profile`, `source_sha256`, `created`, `command`, `bases` (folders
        that stood in for base models), `device` (empty for the file's), `looks` (numbers of units by
        conclusion, empty where no seeds were added), `only` (what was chosen then).

    Raises:
        InputError: nothing was run there, or the file is damaged.
    """
    path = out / RUN_FILE
    try:
        form = parsed_json(read_text(path))
        if form["schema"] != RUN_SCHEMA:
            raise InputError(f"{path} has schema {form['schema']!r}, this workbench reads {RUN_SCHEMA}")
        form = {"bases": {}, "device": "", "looks": {}, "only": [], **form}
        if not isinstance(form["looks"], dict) or not isinstance(form["only"], list):
            raise TypeError
    except FileNotFoundError as error:
        raise InputError(f"no study was run in {out}: {RUN_FILE} is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path}: it is damaged; run the study again") from error
    return form


MOST_TRIES = 3
"""How often one run trains a subject that was damaged, or gone, when it was wanted."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the run of a study: workers, scheduler and what is repeated.

    Attributes:
        workers: Processes; 0 runs in this process.
        scheduler: Address of a Dask scheduler, which then has the workers; None for none.
        retry_failed: Do again what an earlier run recorded as failed.
        source, command, bases, device, looks, only: For `run.json`; see `write_run`.
    """

    workers: int = 2
    scheduler: str | None = None
    retry_failed: bool = False
    source: str = ""
    command: str = ""
    bases: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    looks: Mapping[str, Sequence[int]] | None = None
    only: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Counts of what the run of a study did.

    Attributes:
        done: Experiments that this run measured.
        failed: Experiments of the study that are failed now, in this run or before.
        skipped: Experiments that the store had already, or got from another run meanwhile.
        trained: Subjects that this run trained, shadows included.
    """

    done: int
    failed: int
    skipped: int
    trained: int
    seconds: float


@dataclass(frozen=True)
class Skipped:
    """A pending job that needs nothing more: another run did it, or nothing waits for it any more."""

    task: Task


RunEvent = Event | Skipped
RunListener = Callable[[RunEvent], None]


def run_study(
    study: Study, *, out: Path, options: RunOptions, listener: RunListener | None = None
) -> RunSummary:
    """Run what the store in `out/store` lacks, and record it.

    Args:
        listener: Gets every event of the backend, an end after its record is written. Experiments
            whose training failed get a `Failed` of their own, and jobs that need nothing more a `Skipped`;
            the task's `id` is the job's key.

    Raises:
        StoreError: the store cannot be written (no space, no permission); what is done is kept.
        InputError: the place is unusable, or the backend's settings are; a worker has other data or model
            files than this run was started with.
        InconclusiveError: the backend cannot go on.
        KeyboardInterrupt: the user's; what is done is kept.
    """
    started = time.monotonic()
    workers.forget_corpora()
    with closing(Store(out / "store")) as store:
        store.sweep()
        said = {"source": options.source, "command": options.command, "device": options.device}
        write_run(study, out, bases=options.bases, looks=options.looks, only=options.only, **said)
        wanted = {jobs.measuring.key: jobs for jobs in map(jobs_of, study.experiments)}
        plan = pending(study, store, retry_failed=options.retry_failed)
        run = _Run(
            store,
            plan,
            wanted,
            listener,
            retry_failed=options.retry_failed,
            is_remote=options.scheduler is not None,
        )
        with make_backend(
            workers=options.workers,
            scheduler=options.scheduler,
            scratch=store.scratch_folder,
            listener=listener,
        ) as backend:
            run_tasks(backend, run.take, run.conclude)
        store.sweep()  # Workers of a killed parent, which may have been alive at the start, are gone now.
    return RunSummary(
        done=run.done,
        failed=run.failed + plan.failed,
        skipped=run.skipped + plan.done,
        trained=run.trained,
        seconds=time.monotonic() - started,
    )


class _Run:
    """The state of one run: what is ready, what waits for a training, and what is under way."""

    def __init__(
        self,
        store: Store,
        plan: Pending,
        wanted: Mapping[str, ExperimentJobs],
        listener: RunListener | None,
        *,
        retry_failed: bool,
        is_remote: bool,
    ) -> None:
        from workbench.studies import together, work

        self._work: dict[JobKind, Work] = {JobKind.TRAINING: work.train, JobKind.MEASURING: work.measure}
        self._ensembles = together
        self._store = store
        self._wanted = wanted
        self._listener = listener
        self._retry_failed = retry_failed
        self._is_remote = is_remote
        # Ready to be submitted; measurings are taken first, so that results come in from the start.
        self._ready: dict[JobKind, deque[StudyJob]] = {JobKind.MEASURING: deque(), JobKind.TRAINING: deque()}
        # By the task's id, the jobs that it does: one, or the trainings of an ensemble.
        self._under_way: dict[str, list[StudyJob]] = {}
        self._alone: set[str] = set()
        self._unmet: dict[str, set[str]] = {}
        self._waiting: dict[str, list[StudyJob]] = {}
        self._queued: set[str] = set()
        self._tried: Counter[str] = Counter()
        self.done = self.failed = self.skipped = self.trained = 0
        for job in plan.trainings:
            self._enqueue(job)
        for job in plan.measurings:
            self._enqueue(job)

    def take(self) -> Task | None:
        """The next task that needs a worker; None where none is ready."""
        while ready := self._ready[JobKind.MEASURING] or self._ready[JobKind.TRAINING]:
            job = ready.popleft()
            if self._needs_worker(job):
                jobs = self._under_way[job.key] = [job, *self._companions(job)]
                return self._ensemble(jobs) if self._group(job) else self._task(job)
        return None

    def _group(self, job: StudyJob) -> str:
        """What the trainings have in common that an ensemble trains with this one; empty for none."""
        if not isinstance(job.payload, Training) or job.key in self._alone:
            return ""
        return self._ensembles.group_of(job.payload)

    def _companions(self, job: StudyJob) -> list[StudyJob]:
        """Take the ready trainings that an ensemble trains with this one from the queue."""
        group, ready = self._group(job), self._ready[JobKind.TRAINING]
        alike = [other for other in ready if group and self._group(other) == group]
        chosen = alike[: self._ensembles.MOST_TOGETHER - 1]
        for other in chosen:
            ready.remove(other)
        return [other for other in chosen if self._needs_worker(other)]

    def _ensemble(self, jobs: Sequence[StudyJob]) -> Task:
        trainings = tuple(job.payload for job in jobs if isinstance(job.payload, Training))
        more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
        return Task(
            id=jobs[0].key,
            work=self._ensembles.train_together,
            payload=self._ensembles.Together(trainings=trainings),
            label=jobs[0].label + more,
        )

    def _enqueue(self, job: StudyJob) -> None:
        """Put a job into the queue, or, where its trainings are not all there, make it wait for them."""
        if job.kind is JobKind.TRAINING:
            self._queued.add(job.key)
            self._ready[job.kind].append(job)
            return
        unmet = {key for key in job.needs if key in self._queued or not is_trained(self._store, key)}
        if not unmet:
            self._ready[job.kind].append(job)
            return
        self._unmet[job.key] = unmet
        for key in unmet:
            self._waiting.setdefault(key, []).append(job)
            if key not in self._queued:  # It was there a moment ago, and is damaged or gone.
                self._enqueue(self._training(job, key))

    def _training(self, measuring: StudyJob, key: str) -> StudyJob:
        return next(job for job in self._wanted[measuring.key].trainings if job.key == key)

    def _needs_worker(self, job: StudyJob) -> bool:
        """False where another run was faster, the job was refused, or its trainings are not there."""
        if self._settled_elsewhere(job):
            return False
        if job.kind is JobKind.MEASURING:
            refusal = self._wanted[job.key].refusal
            if refusal is not None:
                self._fail(job, Failed(self._task(job), "", refusal.kind, refusal.message))
                return False
            if not all(is_trained(self._store, key) for key in job.needs):
                self._enqueue(job)
                return False
        self._tried[job.key] += 1
        if self._tried[job.key] > MOST_TRIES:
            raise StoreError(f"store {self._store.folder} loses what is put there: {job.kind} {job.key}")
        return True

    def _settled_elsewhere(self, job: StudyJob) -> bool:
        """Read the store again, and take over what another run has put there."""
        if job.kind is JobKind.TRAINING:
            if is_trained(self._store, job.key):
                self._tell(Skipped(self._task(job)))
                self._supply(job.key)
                return True
            if not any(waiting.key in self._unmet for waiting in self._waiting.get(job.key, ())):
                self._queued.discard(job.key)  # Whoever wants it later queues it again.
                self._tell(Skipped(self._task(job)))
                return True
        record = read_record(self._store, job.key)
        if record is None:
            return False
        if record["status"] == Status.FAILED and not self._retry_failed:
            self._after_failure(job, Failed(self._task(job), "", *_parts(record)))
            return True
        if record["status"] == Status.DONE and job.kind is JobKind.MEASURING:
            self.skipped += 1
            self._tell(Skipped(self._task(job)))
            return True
        return False

    def _succeeded_elsewhere(self, job: StudyJob) -> bool:
        """True where another run has done what failed here (its machine has more memory): that stays."""
        if job.kind is JobKind.TRAINING:
            return is_trained(self._store, job.key)
        record = read_record(self._store, job.key)
        return record is not None and record["status"] == Status.DONE

    def _task(self, job: StudyJob) -> Task:
        folders = {str(index): self._store.folder / "subjects" / key for index, key in enumerate(job.needs)}
        return Task(
            id=job.key, work=self._work[job.kind], payload=job.payload, inputs=folders, label=job.label
        )

    def conclude(self, event: Finished | Failed) -> None:
        """Record how a task ended, then report it."""
        jobs = self._under_way.pop(event.task.id)
        if not isinstance(event.task.payload, self._ensembles.Together):
            self._conclude(jobs[0], event)
        elif isinstance(event, Failed):
            # Each by itself: one that diverges, or too little memory for all, fails no other.
            raise_if_all_would_fail(event, self._store, is_remote=self._is_remote)
            self._alone.update(job.key for job in jobs)
            self._tried.subtract(job.key for job in jobs)
            self._ready[JobKind.TRAINING].extendleft(reversed(jobs))
        else:
            for place, (job, record) in enumerate(zip(jobs, event.result["trainings"], strict=True)):
                folder, seconds = event.folder / str(place), event.seconds / len(jobs)
                self._conclude(job, Finished(self._task(job), event.worker, record, folder, seconds))
            remove_folder(event.folder)

    def _conclude(self, job: StudyJob, event: Finished | Failed) -> None:
        """Record how a job ended, then report it."""
        if isinstance(event, Failed):
            raise_if_all_would_fail(event, self._store, is_remote=self._is_remote)
            if not (self._succeeded_elsewhere(job) and self._settled_elsewhere(job)):
                self._fail(job, event)
            return
        if job.kind is JobKind.TRAINING:
            self._store.adopt_subject(job.key, event.folder)
        else:
            remove_folder(event.folder)
        self._record(job, {"status": Status.DONE, **event.result})
        self._tell(event)
        if job.kind is JobKind.TRAINING:
            self.trained += 1
            self._supply(job.key)
        else:
            self.done += 1

    def _fail(self, job: StudyJob, event: Failed) -> None:
        error = {"kind": event.kind, "message": event.message}
        if event.traceback:
            error["traceback"] = event.traceback
        # What a cluster's worker had, its failure does not say.
        cluster, here = {"worker": event.worker}, {"versions": versions(), "hardware": hardware()}
        where = cluster if self._is_remote and event.worker else here
        self._record(job, {"status": Status.FAILED, "error": error, **where})
        self._after_failure(job, event)

    def _after_failure(self, job: StudyJob, event: Failed) -> None:
        """Report a failure; that of a training fails each experiment that waits for it."""
        self._tell(event)
        if job.kind is JobKind.MEASURING:
            self.failed += 1
            return
        self._queued.discard(job.key)
        for waiting in self._waiting.pop(job.key, []):
            if self._unmet.pop(waiting.key, None) is not None:
                self.failed += 1
                message = f"its training failed: {event.message}"
                self._tell(Failed(self._task(waiting), "", event.kind, message))

    def _supply(self, key: str) -> None:
        """Make those measurings ready that waited for this training alone."""
        self._queued.discard(key)
        for waiting in self._waiting.pop(key, []):
            unmet = self._unmet.get(waiting.key)
            if unmet is None:
                continue
            unmet.discard(key)
            if not unmet:
                del self._unmet[waiting.key]
                self._ready[waiting.kind].append(waiting)

    def _record(self, job: StudyJob, content: Mapping[str, Any]) -> None:
        experiment = plain(job.experiment)
        self._store.append(job.key, {**content, "job": job.identity, "experiment": experiment})

    def _tell(self, event: RunEvent) -> None:
        if self._listener is not None:
            self._listener(event)


def _parts(record: Mapping[str, JSON]) -> tuple[str, str]:
    return str(record["error"]["kind"]), str(record["error"]["message"])
