"""Does the jobs that the store does not have, on any backend, and writes their records.

The work function is pure in its job and the same everywhere; only the parent writes records, one atomic file
a job, so a killed run loses the jobs under way and nothing else.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from workbench.core.errors import ContentError
from workbench.core.keys import JSON, key_of
from workbench.core.version import __version__
from workbench.execution.backend import make_backend, run_tasks
from workbench.execution.base import Backend
from workbench.execution.store import Store, StoreError
from workbench.execution.tasks import (
    DISK_FULL,
    OTHER_FILES,
    Event,
    Failed,
    Finished,
    Notice,
    Stepped,
    StepProgress,
    Task,
    Work,
    remove_folder,
)

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the jobs done, and the jobs in all; 0 of 0 is a line about workers."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work, whose result is kept in the store.

    Attributes:
        identity: Plain data that decide the result; its hash is the record's key.
        payload: What the work function gets.
        inputs: Folders that it reads, by name.
        label: Its subject, for the progress display and for errors.
        content: `workbench.training.setup.content_digest` of `payload.setup`: a remote worker whose data or
            model files are others refuses the job. Empty for no check.
    """

    identity: Mapping[str, Any]
    payload: Any
    inputs: Mapping[str, Path] = field(default_factory=dict)
    label: str = ""
    content: str = ""

    @property
    def key(self) -> str:
        """Hash of the identity and of the code's schema version."""
        return key_of(self.identity)


PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "transformers", "peft", "dp-accounting")
"""Those that decide an audit's numbers."""


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of the workbench, of Python, and of the packages that decide numbers."""
    known = {"lm-privacy-workbench": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            known[package] = "not installed"
    return known


def hardware() -> dict[str, JSON]:
    """The processor's model, the cores, and the memory, of the machine that this runs on."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": model, "cores": os.cpu_count() or 1, "memory_gb": round(memory, 1)}


def raise_if_all_would_fail(failure: Failed, store: Store, *, is_remote: bool) -> None:
    """End a run whose task met a full disk, or other data files than the run was started with.

    Raises `StoreError`: the disk is full. `ContentError`: the worker has other files.
    """
    if failure.kind == DISK_FULL:
        reason = re.sub(r"^\[Errno \d+\] ", "", failure.message)
        own_disk = f", or on the disk of worker {failure.worker}" if is_remote else ""
        raise StoreError(f"cannot write to store {store.folder}{own_disk}: {reason}")
    if failure.kind == OTHER_FILES:
        raise ContentError(f"{failure.worker}: {failure.message}")


class Engine:
    """Runs jobs against a store; a context manager, because its workers outlive a stage.

    Args:
        store: Where records and weights lie; a folder becomes a store once it is needed.
        workers: Size of the pool; 0 runs in this process.
        scheduler: Address of a Dask scheduler, which then has the workers; None for none.
        progress: Called after each finished job, and with the parts that a running job reports.
    """

    def __init__(
        self,
        store: Store | Path,
        *,
        workers: int,
        scheduler: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._folder = store
        self._workers = workers
        self._scheduler = scheduler
        self._progress = progress
        self._backend: Backend | None = None

    def __enter__(self) -> Self:
        """Nothing is started before there is work, but for `warm`."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers, without waiting for jobs that nobody wants any more."""
        self.close()

    @cached_property
    def store(self) -> Store:
        """Where records and weights lie. Raises `StoreError`: nothing can be stored there."""
        return self._folder if isinstance(self._folder, Store) else Store(self._folder)

    def warm(self, *modules: str) -> None:
        """Have a worker of the pool import these, while this process checks what it is to do."""
        if self._scheduler is None:
            self._running_backend().warm(modules)

    def close(self) -> None:
        """End the workers; further jobs start others."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def run(
        self,
        stage: str,
        jobs: list[Job],
        work: Work,
        *,
        keeps_folder: bool,
        enough: Callable[[list[dict[str, JSON]]], bool] | None = None,
    ) -> list[dict[str, JSON]]:
        """Records of the jobs, in their order; those that the store lacks are done first.

        Args:
            stage: Name for the progress display.
            jobs: What is wanted.
            work: The work function; at the top level of a module, so that a process can import it.
            keeps_folder: The filled scratch folder is a result too, and becomes the key's subject folder.
            enough: Asked of the first records, one more each time, in the jobs' order: once it says so, those
                are the result, and no further job is begun. It depends on no order in which jobs end.

        Raises `StoreError`: the store cannot be written. `InputError, UnsupportedError, InconclusiveError`: a
        job raised it, or (inconclusive) killed its workers, again and again. What was finished before stays
        in the store. `TaskError`: a job failed by a bug.
        """
        wanted = {job.key: job for job in jobs}
        records = {key: record for key in wanted if (record := self._known(key, keeps_folder))}
        missing = iter([job for key, job in wanted.items() if key not in records])
        is_remote = self._scheduler is not None
        first = _First(jobs, records, enough)
        self._report(stage, len(records), len(wanted))

        def take() -> Task | None:
            """The task of the next job without a record; None when there are no more."""
            job = None if first.are_enough() else next(missing, None)
            if job is None:
                return None
            call = (work_elsewhere, (work, job.payload, job.content)) if is_remote else (work, job.payload)
            label = job.label or stage
            return Task(id=job.key, work=call[0], payload=call[1], inputs=job.inputs, label=label)

        def conclude(event: Finished | Failed) -> None:
            """Store the result of a finished task; raise for a failed one."""
            if isinstance(event, Failed):
                if first.are_enough():
                    return  # The result is known without it.
                raise_if_all_would_fail(event, self.store, is_remote=is_remote)
                raise event.error(f"{stage} {wanted[event.task.id].label}".rstrip())
            key = event.task.id
            if keeps_folder:
                self.store.adopt_subject(key, event.folder)
            else:
                remove_folder(event.folder)
            here = {} if is_remote else {"versions": versions(), "hardware": hardware()}
            records[key] = self.store.append(key, {**event.result, "job": wanted[key].identity, **here})
            self._report(stage, len(records), len(wanted))

        if len(records) < len(wanted) and not first.are_enough():
            try:
                run_tasks(self._running_backend(), take, conclude)
            except BaseException:
                self.close()
                raise
        return [records[job.key] for job in jobs[: first.count if first.are_enough() else None]]

    def _known(self, key: str, keeps_folder: bool) -> dict[str, JSON] | None:
        if keeps_folder and self.store.subject_folder(key) is None:
            return None
        return self.store.read(key)

    def _running_backend(self) -> Backend:
        if self._backend is None:
            self._backend = make_backend(
                workers=self._workers,
                scheduler=self._scheduler,
                scratch=self._scratch_folder,
                listener=self._listen,
            )
        return self._backend

    def _scratch_folder(self) -> Path:
        return self.store.scratch_folder()

    def _listen(self, event: Event) -> None:
        if isinstance(event, Notice):
            self._report(event.message, 0, 0)
        elif isinstance(event, Stepped) and event.part:
            self._report(f"{event.task.label}, {event.part}", event.done, event.total)

    def _report(self, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(stage, done, total)


class _First:
    """The first jobs, as many as are done without a gap, until they are enough."""

    def __init__(
        self,
        jobs: Sequence[Job],
        records: Mapping[str, dict[str, JSON]],
        enough: Callable[[list[dict[str, JSON]]], bool] | None,
    ) -> None:
        self.count = 0
        self._jobs, self._records, self._enough, self._ended = jobs, records, enough, False

    def are_enough(self) -> bool:
        """Whether they are; asked of each number of them once."""
        while self._enough is not None and not self._ended and self.count < len(self._jobs):
            if self._jobs[self.count].key not in self._records:
                break
            self.count += 1
            self._ended = self._enough([self._records[job.key] for job in self._jobs[: self.count]])
        return self._ended


def work_elsewhere(
    payload: tuple[Work, Any, str], inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """A job on a machine that need not be the parent's: check its files, and say what it computes with.

    Raises `ContentError`: the data or the model's files are others than where the run was started.
    """
    from workbench.training.setup import require_content

    work, job, content = payload
    if content:
        require_content(job.setup, content)
    return {**work(job, inputs, scratch, progress), "versions": versions(), "hardware": hardware()}
