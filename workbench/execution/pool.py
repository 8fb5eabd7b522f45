"""Tasks on a pool of processes of this machine.

Each worker is a process with a pipe of its own, and has one task at a time: when a process dies, no task is
lost, or blamed, for another's crash.

No library's pool keeps what `Backend` promises. An executor of `concurrent.futures`, or of loky, gives up all
its tasks when one process dies. pebble (5.2.3) replaces the process, but a task that leaves with exit code 0
never ends there, an idle process that is killed breaks the pool, all processes share one pipe and one lock,
nobody hears of steps, and a process may take three seconds to stop.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from workbench.core.errors import InconclusiveError
from workbench.core.one_line import one_line
from workbench.execution.base import Attempt, Backend
from workbench.execution.processes import start_worker, starting
from workbench.execution.tasks import (
    Event,
    Listener,
    Outcome,
    Task,
    failure_of,
    pack,
    perform_packed,
    remove_folder,
)

ATTENTIVE_SECONDS = 0.5
"""A Ctrl-C that the system hands to another thread is seen when the main thread wakes: so often it does."""

DEATHS_AT_START = 3
"""So many workers in a row that die before they take a task end the run: no task is to blame."""

PIPE_BYTES = 2**15
"""A task of so many bytes at most goes into the pipe of a process that still starts; a larger one would fill
it, and the parent would wait."""

READY, BEGUN = "ready", "begun"
"""What a worker says when it has started, and when it has got a task."""

_Message = str | tuple[int, int, str] | Outcome


def serve(channel: Connection, modules: Sequence[str] = ()) -> None:
    """A worker's life: tasks in; steps and outcomes out; until the parent closes the pipe.

    Args:
        channel: The pipe.
        modules: What tasks will import, imported while there are none yet, where it is installed.
    """
    start_worker()
    for module in modules:
        with suppress(Exception):  # The task that needs it says why it cannot.
            import_module(module)
    try:
        channel.send(READY)
        while True:
            packed, inputs, scratch = channel.recv()
            channel.send(BEGUN)
            channel.send(perform_packed(packed, inputs, scratch, lambda *steps: channel.send(steps)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


@dataclass(kw_only=True)
class _Attempt(Attempt):
    """A task that a worker has, or gets as soon as its process has started."""

    packed: bytes
    folder: Path


@dataclass
class _Worker:
    """A worker under its stable name; its process starts when there is work, and again after a death."""

    name: str
    environment: Mapping[str, str]
    attempt: _Attempt | None = None
    _process: SpawnProcess | None = field(default=None, init=False)
    _channel: Connection | None = field(default=None, init=False)
    _is_ready: bool = field(default=False, init=False)
    _is_sent: bool = field(default=False, init=False)

    @property
    def is_started(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def begin(self, attempt: _Attempt) -> None:
        """Give the process its next task. Raises `OSError`: no process can be started."""
        if self._process is None or not self._process.is_alive():  # killed while it was idle: nobody's fault
            self.end()
            self.start()
        self.attempt = attempt
        self._is_sent = False
        if self._is_ready or len(attempt.packed) <= PIPE_BYTES:
            self._send()

    def start(self, modules: Sequence[str] = ()) -> None:
        """Start the process, which imports these. Raises `OSError`: no process can be started."""
        context = get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, modules), name=self.name)
        with theirs, starting(self.environment):
            self._process.start()

    def _send(self) -> None:
        if self.attempt is None or self._channel is None or self._is_sent:
            return
        self._is_sent = True
        try:
            self._channel.send((self.attempt.packed, dict(self.attempt.task.inputs), self.attempt.folder))
        except OSError:
            return  # it has died just now, which is noticed elsewhere

    def sources(self) -> list[Connection | int]:
        """What becomes ready when the process says something, or dies."""
        if self._process is None or self._channel is None:
            return []
        return [self._channel, self._process.sentinel]

    def messages(self) -> Iterator[_Message | None]:
        """What the process has said; None at last where it is dead."""
        if self._process is None or self._channel is None:
            return
        is_dead = not self._process.is_alive()
        try:
            while self._channel.poll():
                message = self._channel.recv()
                if message == READY:
                    self._is_ready = True
                    self._send()
                else:
                    yield message
        except Exception:  # the pipe is closed, or holds what no worker sends
            is_dead = True
        if is_dead:
            yield None

    def end(self) -> str:
        """Kill the process, if it lives, and forget it. Returns how it died, in words."""
        process, channel = self._process, self._channel
        self._process, self._channel, self._is_ready = None, None, False
        if channel is not None:
            channel.close()
        if process is None or process.pid is None:
            return "not started"
        process.kill()
        process.join()
        code = process.exitcode
        process.close()
        if code is None or code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"killed by {name}{', out of memory perhaps' if name == 'SIGKILL' else ''}"

    def ask_to_end(self) -> float:
        """Close the pipe, so that the task's next report of a step raises, or kill the process.

        Returns for how many seconds the task may keep its state.
        """
        grace = self.attempt.task.grace_seconds if self.attempt is not None else 0.0
        if self._channel is not None and grace > 0:
            self._channel.close()
        elif self._process is not None and self._process.pid is not None:
            self._process.kill()
        return grace

    def join(self, seconds: float) -> None:
        """Wait for the end of a process that was asked to end."""
        if self._process is not None and self._process.pid is not None:
            self._process.join(seconds)


class PoolBackend(Backend):
    """A `Backend` on processes of this machine, each with one torch thread.

    Args:
        size: Number of processes, at least 1.
        scratch: Makes a new empty folder.
        listener: See `Backend`.
        environment: Variables that the processes start with, besides this process's.
    """

    def __init__(
        self,
        size: int,
        scratch: Callable[[], Path],
        listener: Listener | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(scratch, listener)
        self._workers = tuple(_Worker(f"worker {number}", environment or {}) for number in range(1, size + 1))
        self._deaths_at_start = 0

    @property
    def capacity(self) -> int:
        """How many tasks can run at once: the number of processes."""
        return len(self._workers)

    def warm(self, modules: Sequence[str]) -> None:
        """Start the first process, whose imports then go on beside this process's."""
        if not self._workers[0].is_started:
            with suppress(OSError):  # It is started again when there is work, and then this is told.
                self._workers[0].start(modules)

    def wait(self, timeout: float) -> list[Event]:
        """The events since the last call, or an empty list after the timeout.

        Raises `InconclusiveError`: three workers in a row died before they took a task.
        """
        deadline = time.monotonic() + timeout
        while busy := [worker for worker in self._workers if worker.attempt is not None]:
            left = 0.0 if self._kept else max(0.0, deadline - time.monotonic())
            sources: dict[Any, _Worker] = {source: worker for worker in busy for source in worker.sources()}
            ready = connection.wait(list(sources), min(left, ATTENTIVE_SECONDS))
            for worker in {id(sources[source]): sources[source] for source in ready}.values():
                self._hear(worker)
            for worker in busy:
                if worker.attempt is not None and worker.attempt.has_overrun:
                    self._stop(worker, worker.attempt)
            self._feed()
            if not ready and left <= ATTENTIVE_SECONDS:
                break
        return self._take_kept()

    def _hear(self, worker: _Worker) -> None:
        for message in worker.messages():
            attempt = worker.attempt
            if attempt is None:
                return
            if message is None:
                self._died(worker, attempt)
                return
            self._begun(attempt)
            if isinstance(message, Outcome):
                self._deaths_at_start = 0
                worker.attempt = None
                self._end(attempt, message, attempt.folder)
            elif isinstance(message, tuple):
                self._stepped(attempt, message)

    def _died(self, worker: _Worker, attempt: _Attempt) -> None:
        """Try a dead worker's task again, or give it up."""
        how = worker.end()
        worker.attempt = None
        remove_folder(attempt.folder)
        if attempt.begun is not None:
            self._deaths_at_start = 0
            self._worker_died(attempt, f" ({how})")
            return
        self._deaths_at_start += 1
        if self._deaths_at_start >= DEATHS_AT_START:
            raise InconclusiveError(
                f"{DEATHS_AT_START} worker processes in a row died while they started ({how})"
            )
        self._tasks.put_back(attempt.task)

    def _stop(self, worker: _Worker, attempt: _Attempt) -> None:
        """Kill the worker of a task that took too long."""
        worker.end()
        worker.attempt = None
        remove_folder(attempt.folder)
        self._overran(attempt)

    def _feed(self) -> None:
        """Give tasks to idle workers."""
        for worker in self._workers:
            while worker.attempt is None:
                running = [other.attempt.alone for other in self._workers if other.attempt is not None]
                taken = self._tasks.take(running)
                if taken is None:
                    return
                self._begin(worker, *taken)

    def _begin(self, worker: _Worker, task: Task, alone: bool) -> None:
        try:
            packed = pack(task)
            folder = self._scratch()
        except Exception as error:
            self._end(Attempt(task=task, worker=worker.name), failure_of(error), None)
            return
        try:
            worker.begin(_Attempt(task=task, worker=worker.name, alone=alone, packed=packed, folder=folder))
        except OSError as error:
            remove_folder(folder)
            raise InconclusiveError(f"cannot start a worker process: {one_line(str(error))}") from error

    def close(self) -> None:
        """End the processes, and remove the folders of what was under way."""
        self._tasks.clear()
        try:
            deadline = time.monotonic() + max([0.0, *(worker.ask_to_end() for worker in self._workers)])
            for worker in self._workers:
                worker.join(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in self._workers:
                worker.end()
                if worker.attempt is not None:
                    remove_folder(worker.attempt.folder)
                    worker.attempt = None
