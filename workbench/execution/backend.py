"""Where tasks run: in this process, on a pool of processes (`pool`), or on a Dask cluster (`dask`).

The same pure work function runs everywhere and its result is the same everywhere; only the caller writes to a
store. A task that raises, exits, returns nonsense, takes too long or kills its worker ends in a `Failed`; the
others go on.

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

from collections.abc import Callable, Mapping
from pathlib import Path

from workbench.core.errors import InputError
from workbench.execution.base import Attempt, Backend
from workbench.execution.dask import DaskBackend
from workbench.execution.pool import PoolBackend
from workbench.execution.processes import one_thread
from workbench.execution.tasks import (
    Event,
    Failed,
    Finished,
    Listener,
    Task,
    failure_of,
    perform,
    remove_folder,
)

WAIT_SECONDS = 1.0
"""How long `run_tasks` waits for an event before it looks at the backend's capacity again."""

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
        """Drop the tasks that have not begun."""
        self._tasks.clear()


def make_backend(
    *,
    workers: int,
    scheduler: str | None,
    scratch: Callable[[], Path],
    listener: Listener | None = None,
    environment: Mapping[str, str] | None = None,
) -> Backend:
    """The backend that a user asked for; nothing is started in the pool before there is work, but for `warm`.

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
        return DaskBackend(scheduler, scratch, listener)
    if workers < 0:
        raise InputError(f"workers must be 0 or more, got {workers}")
    if workers == 0:
        return HereBackend(scratch, listener)
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
