"""Tasks in this process, one at a time."""

from __future__ import annotations

from workbench.execution.backend import Attempt, Backend
from workbench.execution.processes import one_thread
from workbench.execution.tasks import Event, Task, failure_of, perform, remove_folder

WORKER = "this process"


class HereBackend(Backend):
    """A `Backend` whose `wait` runs the next task to its end.

    `Started` and `Stepped` reach a listener while the task runs; without a listener they come with its end.
    """

    capacity = 1

    def _feed(self) -> None:
        """Nothing begins before `wait` is called."""

    def wait(self, timeout: float) -> list[Event]:
        """Run the next task to its end; the timeout has no effect. A `KeyboardInterrupt` is passed on."""
        taken = self._tasks.take([])
        if taken is not None:
            self._run(taken[0])
        return self._take_kept()

    def _run(self, task: Task) -> None:
        attempt = Attempt(task=task, worker=WORKER)
        try:
            folder = self._scratch()
        except OSError as error:
            self._end(attempt, failure_of(error), None)
            return
        broken: list[Exception] = []

        def stepped(done: int, total: int, part: str = "") -> None:
            try:
                self._stepped(attempt, (done, total, part))
            except Exception as error:  # The listener's fault is not the task's.
                broken.append(error)
                raise

        try:
            self._begun(attempt)
            with one_thread():
                outcome = perform(task.work, task.payload, task.inputs, folder, stepped, here=True)
            if broken:
                raise broken[0]
        except BaseException:
            remove_folder(folder)
            raise
        self._end(attempt, outcome, folder)

    def close(self) -> None:
        """Forget what was not begun."""
        self._tasks.clear()
