"""Where tasks run: in this process (`here`), on a pool of processes (`pool`), or on a Dask cluster (`dask`).

The same pure work function runs everywhere and its result is the same everywhere; only the caller writes to a
store. A task that raises, exits, returns nonsense, takes too long or kills its worker ends in a `Failed`; the
others go on.

A worker has one task at a time, so a death is the death of one task alone. Yet it may be the machine's fault,
above all that of a full memory, and not the task's. Hence a task is tried again beside the others, then with
no other task beside it, and it has failed only when its worker died even then.

>>> import tempfile
>>> def twice(payload, inputs, scratch, progress):
...     return {"number": 2 * payload}
>>> with tempfile.TemporaryDirectory() as place:
...     scratch = lambda: Path(tempfile.mkdtemp(dir=place))
...     with make_backend(workers=0, scheduler=None, scratch=scratch) as backend:
...         backend.submit(Task(id="first", work=twice, payload=21))
...         backend.wait(1.0)[-1].result
{'number': 42}
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from workbench.core.errors import InputError
from workbench.execution.tasks import (
    OVERRAN,
    WORKER_DIED,
    Event,
    Failed,
    Finished,
    Listener,
    Notice,
    Outcome,
    Started,
    Stepped,
    Task,
    remove_folder,
)

WAIT_SECONDS = 1.0
"""How long `run_tasks` waits for an event before it looks at the backend's capacity again."""


class TaskQueue:
    """Tasks that wait for a worker.

    >>> tasks = TaskQueue()
    >>> tasks.add(Task(id="first", work=lambda *_: {}, payload=None))
    >>> task, alone = tasks.take([])
    >>> tasks.died(task, alone=alone)
    False
    >>> tasks.take([False]) is None  # now it waits for the others' end
    True
    >>> task, alone = tasks.take([])
    >>> alone, tasks.died(task, alone=alone)
    (True, True)
    """

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._suspects: deque[Task] = deque()
        self._deaths: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """True where a task waits."""
        return bool(self._waiting or self._suspects)

    def add(self, task: Task) -> None:
        """Put a new task behind the others."""
        self._waiting.append(task)

    def put_back(self, task: Task) -> None:
        """Put a task that was not begun, or whose inputs were lost, before the others."""
        self._waiting.appendleft(task)

    def take(self, running: Collection[bool]) -> tuple[Task, bool] | None:
        """The next task that may begin now, and whether it is to run alone.

        A suspect comes first: nothing begins before the others have ended and it has had its turn.

        `running`: of each task under way, whether it runs alone.
        """
        if any(running) or (self._suspects and running):
            return None
        if self._suspects:
            return self._suspects.popleft(), True
        return (self._waiting.popleft(), False) if self._waiting else None

    def died(self, task: Task, *, alone: bool) -> bool:
        """Put a task whose worker died back, to be tried once more alone; or return True: it has failed."""
        self._deaths[task.id] += 1
        if alone:
            return True
        self._suspects.append(task)
        return False

    def deaths(self, task: Task) -> int:
        """How many workers died with the task."""
        return self._deaths[task.id]

    def clear(self) -> None:
        """Forget the tasks."""
        self._waiting.clear()
        self._suspects.clear()


@dataclass(kw_only=True)
class Attempt:
    """A task under way on a worker.

    Attributes:
        task: Which.
        worker: The worker's name in events.
        alone: Whether no other task may run meanwhile.
        begun: When the worker said that it began, by `time.monotonic`; None before.
        steps: The last ones reported.
    """

    task: Task
    worker: str
    alone: bool = False
    begun: float | None = None
    steps: tuple[int, int, str] | None = None

    @property
    def has_overrun(self) -> bool:
        """True where it takes longer than the task may."""
        limit = self.task.limit_seconds
        return limit is not None and self.begun is not None and time.monotonic() - self.begun > limit


class Backend(ABC):
    """Does tasks somewhere; a context manager that `close`s at its end.

    Every submitted task ends in exactly one `Finished` or `Failed`, unless the backend is closed first. With
    a listener, `Started`, `Stepped` and `Notice` go to it and `wait` returns `Finished` and `Failed` alone;
    without one, `wait` returns them all, in their order.

    Args:
        scratch: Makes a new empty folder.
        listener: See above.
    """

    def __init__(self, scratch: Callable[[], Path], listener: Listener | None) -> None:
        self._scratch = scratch
        self._listener = listener
        self._kept: list[Event] = []
        self._tasks = TaskQueue()

    @property
    @abstractmethod
    def capacity(self) -> int:
        """How many tasks are wanted in flight; changes as workers come and go, and is at least 1."""

    @abstractmethod
    def wait(self, timeout: float) -> list[Event]:
        """What happened since the last call; waits for the first event.

        `timeout`: seconds after which an empty list is returned. In this process it has no effect: one task
        is run to its end. With nothing under way the call returns at once. Raises `InconclusiveError`: the
        backend cannot go on (its workers cannot start, its scheduler is gone).
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what is under way; leave no process and no scratch folder. May be called twice."""

    def submit(self, task: Task) -> None:
        """Take a task; it begins as soon as a worker is free. More than `capacity` may be submitted."""
        self._tasks.add(task)
        self._feed()

    @abstractmethod
    def _feed(self) -> None:
        """Give waiting tasks to free workers."""

    def _tell(self, event: Event) -> None:
        """Pass an event to the listener, or keep it for `wait`'s caller."""
        if self._listener is not None and isinstance(event, Started | Stepped | Notice):
            self._listener(event)
        else:
            self._kept.append(event)

    def _take_kept(self) -> list[Event]:
        kept, self._kept = self._kept, []
        return kept

    def _begun(self, attempt: Attempt) -> None:
        if attempt.begun is None:
            attempt.begun = time.monotonic()
            self._tell(Started(attempt.task, attempt.worker))

    def _stepped(self, attempt: Attempt, steps: tuple[int, int, str] | None) -> None:
        if steps is not None and steps != attempt.steps:
            attempt.steps = steps
            self._tell(Stepped(attempt.task, attempt.worker, *steps))

    def _end(self, attempt: Attempt, outcome: Outcome, folder: Path | None) -> None:
        """The last event of a task; a failed task's folder is removed."""
        task, worker = attempt.task, attempt.worker
        if outcome.result is not None and folder is not None:
            self._tell(Finished(task, worker, outcome.result, folder, outcome.seconds))
            return
        remove_folder(folder)
        parts = (outcome.kind, outcome.message, outcome.traceback, outcome.raised)
        self._tell(Failed(task, worker, *parts))

    def _worker_died(self, attempt: Attempt, how: str = "") -> None:
        """Let a task whose worker died wait again, or give it up."""
        self._begun(attempt)
        if self._tasks.died(attempt.task, alone=attempt.alone):
            deaths = self._tasks.deaths(attempt.task)
            message = f"{deaths} workers died with it, the last one while it ran alone{how}"
            self._end(attempt, Outcome(kind=WORKER_DIED, message=message), None)

    def _overran(self, attempt: Attempt) -> None:
        message = f"it did not end within {attempt.task.limit_seconds:g} s"
        self._end(attempt, Outcome(kind=OVERRAN, message=message), None)

    def __enter__(self) -> Self:
        """The backend itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def make_backend(
    *,
    workers: int,
    scheduler: str | None,
    scratch: Callable[[], Path],
    listener: Listener | None = None,
    environment: Mapping[str, str] | None = None,
) -> Backend:
    """The backend that a user asked for; nothing is started in the pool before there is work.

    Args:
        workers: Processes of the pool; 0 runs in this process. Not looked at where there is a scheduler.
        scheduler: Address of a Dask scheduler (`"tcp://host:8786"`), or None.
        scratch: Makes a new empty folder on the disk where results are to lie.
        listener: Gets at once what `wait` would else return late; see `Backend`.
        environment: Variables that the pool's processes start with, besides this process's.

    Raises `InputError`: `workers` is negative; the address is malformed, nobody answers there, Dask is not
    installed, or a Dask worker runs another version of the workbench.
    """
    if scheduler is not None:
        from workbench.execution.dask.backend import DaskBackend

        return DaskBackend(scheduler, scratch, listener)
    if workers < 0:
        raise InputError(f"workers must be 0 or more, got {workers}")
    if workers == 0:
        from workbench.execution.here import HereBackend

        return HereBackend(scratch, listener)
    from workbench.execution.pool import PoolBackend

    return PoolBackend(workers, scratch, listener, environment)


def run_tasks(
    backend: Backend, take: Callable[[], Task | None], conclude: Callable[[Finished | Failed], None]
) -> None:
    """Submit tasks as workers become free, until none is ready and none under way.

    Args:
        backend: Where they run.
        take: The next task, or None where none is ready now; called again after each end.
        conclude: Gets how each task ended; of those that ended at the same time, the finished ones first.
            What it raises ends the run.
    """
    under_way = 0
    while True:
        while under_way < backend.capacity and (task := take()) is not None:
            backend.submit(task)
            under_way += 1
        if not under_way:
            return
        ends = [event for event in backend.wait(WAIT_SECONDS) if isinstance(event, Finished | Failed)]
        under_way -= len(ends)
        for event in sorted(ends, key=lambda event: isinstance(event, Failed)):
            conclude(event)
