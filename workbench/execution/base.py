"""What every backend does: its queue of tasks, the attempts under way, and the events of their ends.

A worker has one task at a time, so a death is the death of one task alone. Yet it may be the machine's fault,
above all that of a full memory, and not the task's. Hence a task is tried again beside the others, then with
no other task beside it, and it has failed only when its worker died even then.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

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
        """Remove all tasks from the queue."""
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
        """Number of tasks wanted in flight; changes as workers come and go, and is at least 1."""

    @abstractmethod
    def wait(self, timeout: float) -> list[Event]:
        """The events since the last call; waits for the first one.

        `timeout`: seconds after which an empty list is returned. In this process it has no effect: one task
        is run to its end. With nothing under way the call returns at once. Raises `InconclusiveError`: the
        backend cannot go on (its workers cannot start, its scheduler is gone).
        """

    def warm(self, modules: Sequence[str]) -> None:
        """Tasks that import these are to come: get ready for them, where that saves time."""
        return

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
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
