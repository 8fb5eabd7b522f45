"""Which task is next, and which one is to blame for dead workers; the same rule on a pool and on a cluster.

A worker has one task at a time, so a death is the death of one task alone. Yet it may be the machine's fault,
above all that of a full memory, and not the task's. Hence a task is tried again beside the others, then with
no other task beside it, and it has failed only when it took its worker along even so.

>>> from workbench.execution.tasks import Task
>>> tasks = TaskQueue()
>>> tasks.add(Task(id="one", work=lambda *_: {}, payload=None))
>>> task, alone = tasks.take([])
>>> tasks.died(task, alone=alone), tasks.died(task, alone=alone)
(False, False)
>>> tasks.take([False]) is None  # now it waits for the others' end
True
>>> task, alone = tasks.take([])
>>> alone, tasks.died(task, alone=alone)
(True, True)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection

from workbench.execution.tasks import Task

DEATHS_BESIDE_OTHERS = 2
"""A task with which so many workers died runs alone the next time."""


class TaskQueue:
    """Tasks that wait for a worker."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._suspects: deque[Task] = deque()
        self._deaths: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """True where a task waits."""
        return bool(self._waiting or self._suspects)

    def add(self, task: Task) -> None:
        """A new task, behind the others."""
        self._waiting.append(task)

    def put_back(self, task: Task) -> None:
        """A task whose run came to nothing through nobody's fault, before the others."""
        self._waiting.appendleft(task)

    def take(self, running: Collection[bool]) -> tuple[Task, bool] | None:
        """The next task that may begin now, and whether it is to run alone.

        A suspect comes first: nothing begins before the others have ended and it has had its turn.

        Args:
            running: Of each task under way, whether it runs alone.
        """
        if any(running) or (self._suspects and running):
            return None
        if self._suspects:
            return self._suspects.popleft(), True
        return (self._waiting.popleft(), False) if self._waiting else None

    def died(self, task: Task, *, alone: bool) -> bool:
        """A task's worker died: it waits again, or (True) it has failed."""
        self._deaths[task.id] += 1
        if alone:
            return True
        if self._deaths[task.id] >= DEATHS_BESIDE_OTHERS:
            self._suspects.append(task)
        else:
            self._waiting.appendleft(task)
        return False

    def deaths(self, task: Task) -> int:
        """How many workers died with the task."""
        return self._deaths[task.id]

    def clear(self) -> None:
        """Forget the tasks."""
        self._waiting.clear()
        self._suspects.clear()
