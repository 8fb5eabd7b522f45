"""Tasks in this process, one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Self

from workbench.execution.processes import one_thread
from workbench.execution.tasks import (
    Delivery,
    Event,
    Failed,
    Finished,
    Listener,
    Started,
    Stepped,
    Task,
    conclude,
    describe,
    perform,
    remove_folder,
    throttled,
)

WORKER = "this process"


class HereBackend:
    """A `Backend` whose `wait` runs the next task to its end.

    `Started` and `Stepped` reach a listener while the task runs; without a listener they come with its end.

    Args:
        scratch: Makes a new empty folder.
        listener: See `Backend`.
    """

    capacity = 1

    def __init__(self, scratch: Callable[[], Path], listener: Listener | None = None) -> None:
        self._scratch = scratch
        self._delivery = Delivery(listener)
        self._waiting: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        """Take a task."""
        self._waiting.append(task)

    def wait(self, timeout: float) -> list[Event]:
        """Run the next task to its end; the timeout has no effect. A `KeyboardInterrupt` is passed on."""
        if self._waiting:
            self._delivery.add(self._run(self._waiting.popleft()))
        return self._delivery.take()

    def _run(self, task: Task) -> Finished | Failed:
        try:
            folder = self._scratch()
        except OSError as error:
            return Failed(task, WORKER, *describe(error))

        broken: list[Exception] = []

        def stepped(done: int, total: int) -> None:
            try:
                self._delivery.add(Stepped(task, WORKER, done, total))
            except Exception as error:  # The listener's fault is not the task's.
                broken.append(error)

        self._delivery.add(Started(task, WORKER))
        try:
            with one_thread():
                outcome = perform(task.work, task.payload, task.inputs, folder, throttled(stepped), here=True)
        except KeyboardInterrupt:
            remove_folder(folder)
            raise
        if broken:
            remove_folder(folder)
            raise broken[0]
        return conclude(task, WORKER, outcome, folder)

    def close(self) -> None:
        """Forget what was not begun."""
        self._waiting.clear()

    def __enter__(self) -> Self:
        """The backend itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
