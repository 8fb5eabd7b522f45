"""Tasks on the workers of a Dask scheduler, which the user started.

Each worker process gets one task at a time, and a task is tied to its worker until that worker is lost; then
it moves on. Left to itself Dask queues tasks behind each other, and one that kills its worker takes the
finished results and the good name of its neighbours along (`allowed-failures` counts every task there).

Dask pickles what it sends between processes that the user started; nothing is ever unpickled from a disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from workbench.core.errors import InconclusiveError
from workbench.execution.dask_client import (
    CONNECT_SECONDS,
    Quiet,
    compare,
    connect,
    import_distributed,
    is_gone,
    other_version,
    scheduler_place,
)
from workbench.execution.dask_worker import (
    ANNOUNCED,
    OTHER_VERSION,
    about,
    read_folder,
    run_on_worker,
    write_folder,
)
from workbench.execution.queue import TaskQueue
from workbench.execution.tasks import (
    WORKER_DIED,
    Delivery,
    Event,
    Failed,
    Listener,
    Notice,
    Outcome,
    Started,
    Stepped,
    Task,
    conclude,
    describe,
    pack,
    remove_folder,
)

REFRESH_SECONDS = 1.0
"""How often the list of workers is read."""

INPUT_BYTES = 2**30
"""So many bytes of input folders are kept on the cluster for tasks to come."""

LOST_INPUTS = 10
"""A task whose inputs were lost with their worker so often ends the run."""


@dataclass
class _Run:
    task: Task
    worker: str
    future: Any
    alone: bool
    started: bool = False
    steps: tuple[int, int] | None = None


_Message = tuple[int, str, int, int] | tuple[int, Any]


class DaskBackend:
    """A `Backend` on the workers of a Dask scheduler.

    Each worker process does one task at a time, so `dask worker --nworkers 4 --nthreads 1` is the way to use
    four cores. `close` cancels what waits on the cluster; a task that a worker has begun goes on there to its
    end, and its result is dropped.

    Args:
        scheduler: Its address, `"tcp://host:8786"`.
        scratch: Makes a new empty folder.
        listener: See `Backend`.
        connect_seconds: How long to wait for an answer.

    Raises:
        InputError: see `make_backend`.
    """

    def __init__(
        self,
        scheduler: str,
        scratch: Callable[[], Path],
        listener: Listener | None = None,
        *,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        scheduler_place(scheduler)
        distributed = import_distributed(scheduler)
        self._killed_worker: type[BaseException] = distributed.KilledWorker
        self._lost_errors = (asyncio.CancelledError, distributed.client.FutureCancelledError, OSError)
        self._address = scheduler
        self._scratch = scratch
        self._delivery = Delivery(listener)
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._tasks = TaskQueue()
        self._runs: dict[int, _Run] = {}
        self._attempts = itertools.count(1)
        self._losses: Counter[str] = Counter()
        self._inputs: OrderedDict[Path, tuple[Any, int]] = OrderedDict()
        self._workers: list[str] = []
        self._deserted = False
        self._refreshed = 0.0
        self._topic = f"workbench-{uuid.uuid4().hex}"
        self._quiet = Quiet()
        self._client: Any = None
        try:
            self._client = connect(scheduler, connect_seconds)
            self._client.subscribe_topic(self._topic, self._heard)
            self._refresh()
        except BaseException:
            self.close()
            raise

    def _heard(self, event: tuple[float, dict[str, Any]]) -> None:
        """In the client's thread: a worker told of a step."""
        told = event[1]
        self._inbox.put((told["run"], told["worker"], told["done"], told["total"]))

    @property
    def capacity(self) -> int:
        """The number of worker processes, and at least 1: a task waits here for the first worker."""
        return max(1, len(self._workers))

    def submit(self, task: Task) -> None:
        """Take a task; it is sent as soon as a worker is free."""
        self._tasks.add(task)
        self._feed()

    def wait(self, timeout: float) -> list[Event]:
        """What happened, or an empty list after the timeout.

        Raises:
            InconclusiveError: the scheduler is gone.
            InputError: a worker that joined runs another workbench.
        """
        deadline = time.monotonic() + timeout
        while self._runs or self._tasks or self._delivery:
            now = time.monotonic()
            if now - self._refreshed >= REFRESH_SECONDS:
                self._refresh()
                self._move_on()
                self._feed()
            left = 0.0 if self._delivery else max(0.0, min(deadline - now, REFRESH_SECONDS))
            try:
                self._handle(self._inbox.get(timeout=left) if left else self._inbox.get_nowait())
            except queue.Empty:
                if self._delivery or now >= deadline:
                    break
        return self._delivery.take()

    def _refresh(self) -> None:
        """Read the list of workers, and look at the new ones.

        Raises:
            InconclusiveError: the scheduler is gone.
            InputError: a worker runs another workbench, or none.
        """
        try:
            found = sorted(self._client.nthreads())
            new = [worker for worker in found if worker not in self._workers]
            answers = self._client.run(about, workers=new, on_error="return") if new else {}
        except Exception as error:
            raise self._scheduler_lost() from error
        for worker, answer in answers.items():
            if is_gone(answer):
                found.remove(worker)
            elif (difference := compare(worker, answer)) is not None:
                self._delivery.add(Notice(difference))
        self._workers = found
        self._refreshed = time.monotonic()
        if not found and not self._deserted:
            self._delivery.add(Notice(f"no worker at {self._address}: waiting for one"))
        elif found and self._deserted:
            self._delivery.add(Notice(f"{len(found)} worker(s) at {self._address}: going on"))
        self._deserted = not found

    def _scheduler_lost(self) -> InconclusiveError:
        return InconclusiveError(f"lost the scheduler {self._address}; run the same command again to go on")

    def _feed(self) -> None:
        """Send tasks to workers that have none."""
        while free := [worker for worker in self._workers if worker not in self._busy()]:
            found = self._tasks.take([run.alone for run in self._runs.values()])
            if found is None:
                return
            task, alone = found
            self._send(task, free[0], alone=alone)

    def _busy(self) -> set[str]:
        return {run.worker for run in self._runs.values()}

    def _send(self, task: Task, worker: str, *, alone: bool) -> None:
        try:
            packed = pack(task)
            contents = {path: read_folder(path) for path in self._unsent(task)}
        except Exception as error:  # no folder, or a call that cannot be pickled
            self._delivery.add(Failed(task, _label(worker), *describe(error)))
            return
        attempt = next(self._attempts)
        try:
            for path, content in contents.items():
                self._scatter(path, content, worker)
            future = self._client.submit(
                run_on_worker,
                attempt,
                self._topic,
                about()["workbench"],
                packed,
                tuple(task.inputs),
                *(self._inputs[path][0] for path in self._paths(task)),
                key=f"workbench-{uuid.uuid4().hex}",
                pure=False,
                workers=[worker],
            )
        except (OSError, TimeoutError):  # the worker left just now
            self._lost(task)
            self._refresh()
            return
        self._runs[attempt] = _Run(task, worker, future, alone)
        self._client.loop.add_callback(self._collect, attempt, future)
        self._trim()

    async def _collect(self, attempt: int, future: Any) -> None:
        """In the client's thread: wait for a task's end without holding up the others'."""
        try:
            ended = await self._client.gather(future, asynchronous=True)
        except (Exception, asyncio.CancelledError) as error:
            ended = error
        self._inbox.put((attempt, ended))

    def _paths(self, task: Task) -> list[Path]:
        return [path.resolve() for path in task.inputs.values()]

    def _unsent(self, task: Task) -> list[Path]:
        """Input folders that the cluster does not hold, or lost with a worker."""
        return [
            path
            for path in self._paths(task)
            if path not in self._inputs or self._inputs[path][0].status != "finished"
        ]

    def _scatter(self, path: Path, content: dict[str, bytes], worker: str) -> None:
        """Send a folder once; the workers fetch it from each other."""
        [future] = self._client.scatter([content], workers=[worker], hash=False)
        self._inputs[path] = (future, sum(map(len, content.values())))

    def _trim(self) -> None:
        """Let the oldest input folders go; the cluster keeps what a task under way needs."""
        while len(self._inputs) > 1 and sum(size for _, size in self._inputs.values()) > INPUT_BYTES:
            self._inputs.popitem(last=False)

    def _lost(self, task: Task) -> None:
        """Dask gave the task up because its inputs went with a worker: send it again."""
        self._losses[task.id] += 1
        if self._losses[task.id] >= LOST_INPUTS:
            raise InconclusiveError(
                f"the inputs of a task were lost with {LOST_INPUTS} workers at {self._address}"
            )
        self._tasks.put_back(task)

    def _handle(self, message: _Message) -> None:
        run = self._runs.get(message[0])
        if run is None:
            return  # the last words of a run that is over
        if len(message) == 4:
            _, _, done, total = message
            self._begun(run)
            if done != ANNOUNCED:
                self._stepped(run, (done, total))
            return
        attempt, ended = message
        del self._runs[attempt]
        run.future.release()
        if isinstance(ended, self._killed_worker):
            self._died(run)  # a worker that came back at its old address, again and again
        elif isinstance(ended, self._lost_errors):
            if self._client.status != "running":
                raise self._scheduler_lost()
            self._lost(run.task)
        elif isinstance(ended, BaseException):  # Dask itself failed, for want of memory perhaps
            self._delivery.add(Failed(run.task, _label(run.worker), *describe(ended)))
        else:
            worker, outcome = ended
            if outcome.kind == OTHER_VERSION:
                raise other_version(worker, outcome.message)
            self._begun(run)
            self._stepped(run, outcome.steps)
            self._conclude(run.task, worker, outcome)
        self._feed()

    def _begun(self, run: _Run) -> None:
        if not run.started:
            run.started = True
            self._delivery.add(Started(run.task, _label(run.worker)))

    def _stepped(self, run: _Run, steps: tuple[int, int] | None) -> None:
        if steps is not None and steps != run.steps:
            run.steps = steps
            self._delivery.add(Stepped(run.task, _label(run.worker), *steps))

    def _move_on(self) -> None:
        """Take the tasks of lost workers back."""
        while not self._inbox.empty():  # a task may have ended before its worker did
            self._handle(self._inbox.get())
        gone = [number for number, run in self._runs.items() if run.worker not in self._workers]
        for number in gone:
            run = self._runs.pop(number)
            run.future.release()
            self._died(run)

    def _died(self, run: _Run) -> None:
        self._begun(run)
        if self._tasks.died(run.task, alone=run.alone):
            deaths = self._tasks.deaths(run.task)
            message = f"{deaths} workers died with it, the last one while it ran alone"
            self._delivery.add(Failed(run.task, _label(run.worker), WORKER_DIED, message))

    def _conclude(self, task: Task, worker: str, outcome: Outcome) -> None:
        folder: Path | None = None
        try:
            folder = self._scratch()
            write_folder(outcome.files, folder)
        except (OSError, ValueError) as error:
            remove_folder(folder)
            self._delivery.add(Failed(task, _label(worker), *describe(error)))
        else:
            self._delivery.add(conclude(task, _label(worker), outcome, folder))

    def close(self) -> None:
        """Cancel what is under way and leave the scheduler; its workers are the user's, and stay."""
        self._tasks.clear()
        runs, self._runs = self._runs, {}
        client, self._client = self._client, None
        if client is None:
            self._quiet.restore()
            return
        try:
            if client.status == "running":
                client.cancel([run.future for run in runs.values()])
                client.unsubscribe_topic(self._topic)
        except Exception as error:  # the scheduler is gone: there is nothing to cancel
            logging.getLogger(__name__).debug("%s", error)
        finally:
            self._inputs.clear()
            client.close(timeout=5)
            self._quiet.restore()

    def __enter__(self) -> Self:
        """The backend itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _label(worker: str) -> str:
    """A worker's name in events: its host and port."""
    return worker.partition("://")[2] or worker
