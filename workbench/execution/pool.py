"""Tasks on a pool of processes of this machine.

Each worker is a `ProcessPoolExecutor` of one process: when a process dies, its executor breaks with the one
task that it had, and no task is lost, or blamed, for another's crash.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Self

from workbench.core.errors import InconclusiveError
from workbench.core.one_line import one_line
from workbench.execution.processes import interrupt_blocked, start_worker
from workbench.execution.queue import TaskQueue
from workbench.execution.tasks import (
    WORKER_DIED,
    Delivery,
    Event,
    Failed,
    Listener,
    Outcome,
    Started,
    Stepped,
    Task,
    conclude,
    describe,
    pack,
    perform_packed,
    remove_folder,
)

ATTENTIVE_SECONDS = 0.5
"""A Ctrl-C that the system hands to another thread is seen when the main thread wakes: so often it does."""
DEATHS_AT_START = 3
"""So many workers in a row that die before they take a task end the run: no task is to blame."""

_ANNOUNCED = -1
_channels: list[Connection] = []  # in a worker: the one end that it writes to


# In the worker


def start(channel: Connection) -> None:
    """Set a worker up. Ctrl-C reaches all processes of a terminal, and is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_worker()
    os.set_blocking(channel.fileno(), False)
    _channels.append(channel)


def _tell(attempt: int, done: int, total: int) -> None:
    """A step to the parent; messages are shorter than a pipe's atomic write, and dropped where it is full."""
    try:
        _channels[0].send((attempt, done, total))
    except (BlockingIOError, BrokenPipeError):
        return


def run(attempt: int, packed: bytes, inputs: Mapping[str, Path], scratch: Path) -> Outcome:
    """Do one task in a worker; it comes packed, for a call that cannot be unpacked breaks an executor."""
    _tell(attempt, _ANNOUNCED, _ANNOUNCED)
    return perform_packed(packed, inputs, scratch, lambda done, total: _tell(attempt, done, total))


# In the parent


class _Context(SpawnContext):
    """A spawn context that remembers its process: an executor has no public way to kill its workers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.process: SpawnProcess | None = None

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """The process, under the worker's name."""
        self.process = SpawnProcess(*args, **{**kwargs, "name": self._name})
        return self.process


_Message = tuple[int, int, int] | tuple[int, Future[Outcome]]


class _Worker:
    """One worker under its stable name; its process starts when there is work, and again after a death."""

    def __init__(self, name: str, inbox: queue.SimpleQueue[_Message]) -> None:
        self.name = name
        self.announced = 0  # the last attempt that the process began
        self._inbox = inbox
        self._executor: ProcessPoolExecutor | None = None
        self._context = _Context(name)
        self._reader: threading.Thread | None = None

    def submit(
        self, attempt: int, packed: bytes, inputs: Mapping[str, Path], scratch: Path
    ) -> Future[Outcome]:
        """Give the process its next task."""
        if self._executor is not None:
            try:
                return self._executor.submit(run, attempt, packed, inputs, scratch)
            except BrokenProcessPool:  # killed while it was idle: nobody's fault
                self.discard()
        reading, writing = get_context("spawn").Pipe(duplex=False)
        self._context = _Context(self.name)
        self._executor = ProcessPoolExecutor(
            1, mp_context=self._context, initializer=start, initargs=(writing,)
        )
        with interrupt_blocked():
            future = self._executor.submit(run, attempt, packed, inputs, scratch)
        writing.close()  # the process has its own; so its death is the reader's end of file
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()
        return future

    def _read(self, reading: Connection) -> None:
        with reading:
            while True:
                try:
                    message = reading.recv()
                except (EOFError, OSError):
                    return
                self.announced = max(self.announced, message[0])
                self._inbox.put(message)

    def discard(self) -> str:
        """Kill the process, if it lives, and forget it.

        Returns:
            How it died, in words.
        """
        process = self._context.process
        if process is not None:
            process.kill()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
        if self._reader is not None:
            self._reader.join(timeout=5.0)  # a grandchild may hold the pipe open
            self._reader = None
        code = process.exitcode if process is not None else None
        if code is None:
            return "without an exit code"
        if code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"killed by {name}{', out of memory perhaps' if name == 'SIGKILL' else ''}"


@dataclass
class _Run:
    task: Task
    worker: _Worker
    folder: Path
    alone: bool
    started: bool = False
    steps: tuple[int, int] | None = None


class PoolBackend:
    """A `Backend` on processes of this machine, each with one torch thread.

    Args:
        size: Number of processes, at least 1.
        scratch: Makes a new empty folder.
        listener: See `Backend`.
    """

    def __init__(self, size: int, scratch: Callable[[], Path], listener: Listener | None = None) -> None:
        self._scratch = scratch
        self._delivery = Delivery(listener)
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._idle = [_Worker(f"worker {number}", self._inbox) for number in range(size, 0, -1)]
        self._workers = tuple(self._idle)
        self._tasks = TaskQueue()
        self._runs: dict[int, _Run] = {}
        self._attempts = itertools.count(1)
        self._deaths_at_start = 0

    @property
    def capacity(self) -> int:
        """The number of processes."""
        return len(self._workers)

    def submit(self, task: Task) -> None:
        """Take a task; it begins as soon as a process is free."""
        self._tasks.add(task)
        self._feed()

    def wait(self, timeout: float) -> list[Event]:
        """What happened, or an empty list after the timeout.

        Raises:
            InconclusiveError: three workers in a row died before they took a task.
        """
        deadline = time.monotonic() + timeout
        while self._runs:
            left = 0.0 if self._delivery else max(0.0, deadline - time.monotonic())
            try:
                part = min(left, ATTENTIVE_SECONDS)
                message = self._inbox.get(timeout=part) if part else self._inbox.get_nowait()
            except queue.Empty:
                if left > ATTENTIVE_SECONDS:
                    continue
                break
            self._handle(message)
        return self._delivery.take()

    def _handle(self, message: _Message) -> None:
        run = self._runs.get(message[0])
        if run is None:
            return  # the last words of an attempt that is over
        if len(message) == 3:
            _, done, total = message
            self._begun(run)
            if done != _ANNOUNCED:
                self._stepped(run, (done, total))
            return
        attempt, future = message
        del self._runs[attempt]
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            self._died(attempt, run)
        elif error is not None:  # the outcome could not be sent
            self._begun(run)
            remove_folder(run.folder)
            self._delivery.add(Failed(run.task, run.worker.name, *describe(error)))
        else:
            self._deaths_at_start = 0
            outcome = future.result()
            self._begun(run)  # what it told may come later than its end
            self._stepped(run, outcome.steps)
            self._delivery.add(conclude(run.task, run.worker.name, outcome, run.folder))
        self._idle.append(run.worker)
        self._feed()

    def _begun(self, run: _Run) -> None:
        if not run.started:
            run.started = True
            self._delivery.add(Started(run.task, run.worker.name))

    def _stepped(self, run: _Run, steps: tuple[int, int] | None) -> None:
        if steps is not None and steps != run.steps:
            run.steps = steps
            self._delivery.add(Stepped(run.task, run.worker.name, *steps))

    def _died(self, attempt: int, run: _Run) -> None:
        """The worker of a task died: try again, or give the task up."""
        how = run.worker.discard()
        remove_folder(run.folder)
        if run.worker.announced < attempt:
            self._deaths_at_start += 1
            if self._deaths_at_start >= DEATHS_AT_START:
                raise InconclusiveError(
                    f"{DEATHS_AT_START} worker processes in a row died while they started ({how})"
                )
            self._tasks.put_back(run.task)
            return
        self._deaths_at_start = 0
        self._begun(run)
        if self._tasks.died(run.task, alone=run.alone):
            deaths = self._tasks.deaths(run.task)
            message = f"{deaths} workers died with it, the last one while it ran alone ({how})"
            self._delivery.add(Failed(run.task, run.worker.name, WORKER_DIED, message))

    def _feed(self) -> None:
        """Give tasks to idle workers."""
        while self._idle and (found := self._tasks.take([run.alone for run in self._runs.values()])):
            task, alone = found
            self._begin(task, alone=alone)

    def _begin(self, task: Task, *, alone: bool) -> None:
        worker = self._idle[-1]
        try:
            packed = pack(task)
            folder = self._scratch()
        except Exception as error:
            self._delivery.add(Failed(task, worker.name, *describe(error)))
            return
        attempt = next(self._attempts)
        try:
            future = worker.submit(attempt, packed, dict(task.inputs), folder)
        except OSError as error:
            remove_folder(folder)
            raise InconclusiveError(f"cannot start a worker process: {one_line(str(error))}") from error
        self._idle.pop()
        self._runs[attempt] = _Run(task, worker, folder, alone)
        future.add_done_callback(lambda ended: self._inbox.put((attempt, ended)))

    def close(self) -> None:
        """Kill the processes, wait for their end, and remove the folders of what was under way."""
        self._tasks.clear()
        runs, self._runs = self._runs, {}
        for worker in self._workers:
            worker.discard()
        for run in runs.values():
            remove_folder(run.folder)

    def __enter__(self) -> Self:
        """The backend itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
