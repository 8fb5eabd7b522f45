"""Does the jobs that the store does not have, in this process or on a pool, and writes their records.

The worker's function is pure in its job and the same everywhere; only the parent writes records, one atomic
file a job, so a killed run loses the jobs under way and nothing else.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from workbench import __version__
from workbench.core.errors import InconclusiveError
from workbench.core.keys import JSON, key_of
from workbench.execution.processes import one_thread, start_worker
from workbench.execution.progress import heard_in
from workbench.execution.store import Store

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the jobs done, and the jobs in all."""

POLL_SECONDS = 1.0
"""Between two looks at how far the jobs on the pool are."""

Work = Callable[[Any, Path], dict[str, Any]]
"""Takes a job and an empty scratch folder; returns what the record is to hold."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work.

    Attributes:
        identity: Plain data that decide the result; its hash is the record's key.
        payload: What the worker's function gets (may name places on this machine).
    """

    identity: Mapping[str, Any]
    payload: Any

    @property
    def key(self) -> str:
        """Hash of the identity and of the code's schema version."""
        return key_of(self.identity)


PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "transformers", "peft", "dp-accounting")
"""Those that decide an audit's numbers."""


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of the workbench, of Python, and of the packages that decide numbers."""
    found = {"lm-privacy-workbench": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


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


class Engine:
    """Runs jobs against a store; a context manager, because its pool outlives a stage.

    Args:
        store: Where records and weights lie.
        processes: Size of the pool; 0 runs in this process.
        progress: Told of each finished job, and of the parts that a job on the pool tells of.
    """

    def __init__(self, store: Store, processes: int, progress: Progress | None = None) -> None:
        self.store = store
        self.processes = processes
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        """Nothing is started before there is work."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the pool, without waiting for jobs that nobody wants any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def run(self, stage: str, jobs: list[Job], work: Work, *, keeps_folder: bool) -> list[dict[str, JSON]]:
        """Records of the jobs, in their order; those that the store lacks are done first.

        Args:
            stage: Name for the progress display.
            jobs: What is wanted.
            work: The worker's function; at the top level of a module, so that a process can import it.
            keeps_folder: The filled scratch folder is a result too, and becomes the key's subject folder.

        Raises:
            InconclusiveError: a worker process died.
        """
        records = {job.key: record for job in jobs if (record := self._known(job.key, keeps_folder))}
        missing = list({job.key: job for job in jobs if job.key not in records}.values())
        total = len({job.key for job in jobs})
        self._report(stage, len(records), total)
        for job, result, scratch in self._results(missing, work):
            if keeps_folder:
                self.store.adopt_subject(job.key, scratch)
            else:
                scratch.rmdir()
            described = {"job": job.identity, "versions": versions(), "hardware": hardware()}
            records[job.key] = self.store.append(job.key, {**result, **described})
            self._report(stage, len(records), total)
        return [records[job.key] for job in jobs]

    def _known(self, key: str, keeps_folder: bool) -> dict[str, JSON] | None:
        if keeps_folder and self.store.subject_folder(key) is None:
            return None
        return self.store.read(key)

    def _report(self, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(stage, done, total)

    def _results(self, jobs: list[Job], work: Work) -> Iterator[tuple[Job, dict[str, Any], Path]]:
        """Yield each job with its result and scratch folder as it ends."""
        if self.processes == 0 or not jobs:
            for job in jobs:
                scratch = self.store.scratch_folder()
                with one_thread():
                    result = work(job.payload, scratch)
                yield job, result, scratch
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.processes, mp_context=get_context("spawn"), initializer=start_worker
            )
        pending: dict[Future[dict[str, Any]], tuple[Job, Path]] = {}
        try:
            for job in jobs:
                scratch = self.store.scratch_folder()
                pending[self._pool.submit(work, job.payload, scratch)] = (job, scratch)
            while pending:
                finished, _ = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for _, scratch in pending.values():
                    told = heard_in(scratch)
                    if told is not None:
                        self._report(*told)
                for future in finished:
                    job, scratch = pending.pop(future)
                    yield job, future.result(), scratch
        except BrokenProcessPool as error:
            raise InconclusiveError(
                "a worker process died (out of memory, or killed); run the same command again to go on"
            ) from error
