"""Tasks on the workers of a Dask scheduler, which the user started.

Each worker process gets one task at a time, and a task is tied to its worker until that worker is lost; then
it moves on. Left to itself Dask queues tasks behind each other, and one that kills its worker takes the
finished results and the good name of its neighbours along (`allowed-failures` counts every task there).

A worker may have no disk in common with the parent: inputs come as bytes, and what the task left in its
scratch folder goes back as bytes. A worker of several threads still does one task at a time, because torch's
number of threads and its global generator, which building a model draws from, belong to the whole process.

Dask pickles what it sends between processes that the user started; nothing is ever unpickled from a disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import platform
import queue
import socket
import tempfile
import threading
import time
import uuid
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from workbench.core.errors import InconclusiveError, InputError
from workbench.core.keys import SCHEMA
from workbench.core.one_line import one_line
from workbench.core.version import __version__
from workbench.execution.base import Attempt, Backend
from workbench.execution.processes import has_torch
from workbench.execution.tasks import Event, Listener, Notice, Outcome, Task, failure_of, pack, perform_packed

REFRESH_SECONDS = 1.0
"""How often the list of workers is read."""

INPUT_BYTES = 2**30
"""So many bytes of input folders are kept on the cluster for tasks to come."""

LOST_INPUTS = 10
"""A task whose inputs were lost with their worker so often ends the run."""


CONNECT_SECONDS = 10.0
"""How long to wait for a scheduler's answer."""


_MOST_FRAMES = 1000
"""A greeting is a small dictionary: a frame or two."""


FolderBytes = dict[str, bytes]
"""A folder's files, by relative path with forward slashes; empty folders and file modes are not kept."""

OTHER_VERSION = "other version"
"""Kind of an outcome that says: this worker runs another workbench."""

_one_at_a_time = threading.Lock()


def about() -> dict[str, str]:
    """A worker's versions: the workbench and its schema must be the parent's, the rest should be."""
    versions = {"workbench": f"{__version__} (schema {SCHEMA})", "Python": platform.python_version()}
    for package in ("numpy", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


def read_folder(folder: Path) -> FolderBytes:
    """The folder's files. Raises `OSError`: it cannot be read."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_folder(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder, made if it is missing.

    Raises `OSError`: the folder cannot be written. `ValueError`: a name leads out of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"file name {name!r} leads out of its folder")
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def run_on_worker(
    attempt: int, topic: str, expected: str, packed: bytes, names: Sequence[str], *folders: FolderBytes
) -> tuple[str, Outcome]:
    """Do one task in a Dask worker.

    Args:
        attempt: Number that the parent knows this attempt by.
        topic: Where steps are reported; at first without any, which says that the task has begun.
        expected: The parent's `about()["workbench"]`.
        packed: The work function and its payload.
        names: Names of the input folders.
        folders: Their files.

    Returns the worker's address and the outcome.
    """
    from distributed import get_worker

    worker = get_worker()
    if about()["workbench"] != expected:
        return worker.address, Outcome(kind=OTHER_VERSION, message=about()["workbench"])
    last: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, part: str = "") -> None:
        last[:] = [(done, total, part)]
        worker.log_event(topic, (attempt, last[0]))

    with _one_at_a_time:
        worker.log_event(topic, (attempt, None))
        _one_torch_thread()
        try:
            with tempfile.TemporaryDirectory(dir=worker.local_directory, ignore_cleanup_errors=True) as place:
                inputs = {name: Path(place, "inputs", str(number)) for number, name in enumerate(names)}
                for folder, files in zip(inputs.values(), folders, strict=True):
                    write_folder(files, folder)
                scratch = Path(place, "scratch")
                scratch.mkdir()
                outcome = perform_packed(packed, inputs, scratch, progress)
                if outcome.result is not None:
                    outcome = replace(outcome, files=read_folder(scratch))
        except Exception as error:  # the worker's own disk
            outcome = failure_of(error)
    return worker.address, replace(outcome, steps=last[0] if last else None)


def _one_torch_thread() -> None:
    """For good: another thread of this process may not set it back."""
    if not has_torch():
        return
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def import_distributed(scheduler: str) -> Any:
    """The package, which is an optional extra. Raises `InputError`: it is not installed."""
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            f"scheduler {scheduler} needs Dask: pip install 'lm-privacy-workbench[dask]'"
        ) from error
    return distributed


def scheduler_place(address: str) -> tuple[str, int]:
    """Host and port of a scheduler's address. Raises `InputError`: it is malformed."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("tcp", "tls") or not host or not port or parts.path.strip("/"):
        raise InputError(
            f"scheduler must be an address such as tcp://127.0.0.1:8786, got {one_line(address)!r}"
        )
    return host, port


class Quiet:
    """Keeps the loggers of Dask from writing to the terminal; what matters comes as events and errors."""

    def __init__(self) -> None:
        names = [
            name
            for name in logging.root.manager.loggerDict
            if name.split(".")[0] in ("distributed", "tornado")
        ]
        self._levels = {name: logging.getLogger(name).level for name in {*names, "distributed", "asyncio"}}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)

    def restore(self) -> None:
        """Restore the loggers' levels."""
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)


def connect(address: str, seconds: float) -> Any:
    """A client of the scheduler. Raises `InputError`: nobody answers in time, or it is no Dask scheduler."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection(scheduler_place(address), timeout=seconds) as line:
                _require_greeting(address, line)
            break
        except OSError as error:
            if time.monotonic() >= deadline:
                why = error.strerror or one_line(str(error))
                raise InputError(f"scheduler {address} did not answer in {seconds:g} s: {why}") from error
            time.sleep(min(0.2, seconds))
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about versions, which `compare` judges
        threading.Thread(target=lambda: found.put(_client(address, seconds)), daemon=True).start()
        try:
            client = found.get(timeout=seconds)
        except queue.Empty:
            client = None
    if client is None or isinstance(client, Exception):
        raise _no_scheduler(address) from client
    return client


def _no_scheduler(address: str) -> InputError:
    return InputError(f"scheduler {address} does not answer as a Dask scheduler does")


def _require_greeting(address: str, line: socket.socket) -> None:
    """Refuse a server of another kind before a client is made, which would wait on it past our end.

    Who listens for Dask speaks first: the number of frames of its greeting, eight bytes. Under TLS the client
    speaks first, so nothing is asked there. Raises `InputError`: it says nothing, or something else.
    """
    if not address.startswith("tcp"):
        return
    try:
        greeting = line.recv(8, socket.MSG_WAITALL)
    except TimeoutError:
        greeting = b""
    if len(greeting) < 8 or int.from_bytes(greeting, "little") > _MOST_FRAMES:
        raise _no_scheduler(address)


def _client(address: str, seconds: float) -> Any:
    """A client, or why there is none; it waits for ever for a server that never greets."""
    from distributed import Client

    try:
        return Client(address, timeout=max(1.0, seconds), set_as_default=False, name="workbench")
    except Exception as error:
        return error


def is_gone(answer: object) -> bool:
    """True where a worker gave no answer because it left."""
    return isinstance(answer, OSError)


def compare(worker: str, answer: Any) -> str | None:
    """One line on how a worker's Python and packages differ from ours, or None.

    `worker`: its address. `answer`: its `about()`, or what it raised instead. Raises `InputError`: the worker
    runs another workbench, or none.
    """
    own = about()
    if isinstance(answer, BaseException):
        raise InputError(
            f"worker {worker} cannot run the workbench ({one_line(str(answer), 200)}); "
            f"install version {own['workbench']} there"
        ) from answer
    if answer["workbench"] != own["workbench"]:
        raise other_version(worker, answer["workbench"])
    different = [
        f"{name} {answer.get(name, 'missing')} (here {here})"
        for name, here in own.items()
        if answer.get(name) != here
    ]
    if not different:
        return None
    return f"worker {worker} has {', '.join(different)}: numbers may differ in their last digits"


def other_version(worker: str, version: str) -> InputError:
    """The error for a worker that runs another workbench."""
    return InputError(
        f"worker {worker} runs workbench {version}, this is {about()['workbench']}: "
        "install the same version there"
    )


@dataclass(kw_only=True)
class _Attempt(Attempt):
    address: str
    future: Any


_Message = tuple[int, Any]
"""An attempt's number, and its steps (None where it has just begun) or its end, in an `_Ended`."""


@dataclass(frozen=True)
class _Ended:
    """The worker's address and outcome, or what Dask raised instead."""

    value: Any


class DaskBackend(Backend):
    """A `Backend` on the workers of a Dask scheduler.

    Each worker process does one task at a time, so `dask worker --nworkers 4 --nthreads 1` is the way to use
    four cores. `close` cancels what waits on the cluster; a task that a worker has begun goes on there to its
    end, and its result is dropped.

    Args:
        scheduler: Its address, `"tcp://host:8786"`.
        scratch: Makes a new empty folder.
        listener: See `Backend`.
        connect_seconds: How long to wait for an answer.

    Raises `InputError`: see `make_backend`.
    """

    def __init__(
        self,
        scheduler: str,
        scratch: Callable[[], Path],
        listener: Listener | None = None,
        *,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        super().__init__(scratch, listener)
        scheduler_place(scheduler)
        distributed = import_distributed(scheduler)
        self._killed_worker: type[BaseException] = distributed.KilledWorker
        self._lost_errors = (asyncio.CancelledError, distributed.client.FutureCancelledError, OSError)
        self._address = scheduler
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._attempts: dict[int, _Attempt] = {}
        self._stuck: dict[int, _Attempt] = {}
        self._numbers = itertools.count(1)
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
            # Events come in the client's thread, each with its time.
            self._client.subscribe_topic(self._topic, lambda event: self._inbox.put(event[1]))
            self._refresh()
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> int:
        """The number of worker processes, and at least 1: a task waits here for the first worker."""
        return max(1, len(self._workers))

    def wait(self, timeout: float) -> list[Event]:
        """The events since the last call, or an empty list after the timeout.

        Raises `InconclusiveError`: the scheduler is gone, or every worker is at a task that took too long.
        `InputError`: a worker that joined runs another workbench.
        """
        deadline = time.monotonic() + timeout
        while self._attempts or self._tasks or self._kept:
            now = time.monotonic()
            if now - self._refreshed >= REFRESH_SECONDS:
                self._refresh()
                self._move_on()
                self._feed()
            left = 0.0 if self._kept else max(0.0, min(deadline - now, REFRESH_SECONDS))
            try:
                self._handle(*(self._inbox.get(timeout=left) if left else self._inbox.get_nowait()))
            except queue.Empty:
                if self._kept or now >= deadline:
                    break
        return self._take_kept()

    def _refresh(self) -> None:
        """Read the list of workers, and look at the new ones.

        Raises `InconclusiveError`: the scheduler is gone. `InputError`: a worker runs another workbench, or
        none.
        """
        try:
            workers = sorted(self._client.nthreads())
            new = [worker for worker in workers if worker not in self._workers]
            answers = self._client.run(about, workers=new, on_error="return") if new else {}
        except Exception as error:
            raise self._scheduler_lost() from error
        for worker, answer in answers.items():
            if is_gone(answer):
                workers.remove(worker)
            elif (difference := compare(worker, answer)) is not None:
                self._tell(Notice(difference))
        self._workers = workers
        self._refreshed = time.monotonic()
        if not workers and not self._deserted:
            self._tell(Notice(f"no worker at {self._address}: waiting for one"))
        elif workers and self._deserted:
            self._tell(Notice(f"{len(workers)} worker(s) at {self._address}: going on"))
        self._deserted = not workers

    def _scheduler_lost(self) -> InconclusiveError:
        return InconclusiveError(f"lost the scheduler {self._address}; run the same command again to go on")

    def _feed(self) -> None:
        """Send tasks to workers that have none."""
        while free := self._free():
            taken = self._tasks.take([attempt.alone for attempt in self._attempts.values()])
            if taken is None:
                return
            self._send(*taken, free[0])

    def _free(self) -> list[str]:
        busy = {attempt.address for attempt in (*self._attempts.values(), *self._stuck.values())}
        return [worker for worker in self._workers if worker not in busy]

    def _send(self, task: Task, alone: bool, worker: str) -> None:
        attempt = _Attempt(task=task, worker=_label(worker), alone=alone, address=worker, future=None)
        try:
            packed = pack(task)
            contents = {path: read_folder(path) for path in self._unsent(task)}
        except Exception as error:  # no folder, or a call that cannot be pickled
            self._end(attempt, failure_of(error), None)
            return
        number = next(self._numbers)
        try:
            for path, content in contents.items():
                self._scatter(path, content, worker)
            attempt.future = self._client.submit(
                run_on_worker,
                number,
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
        self._attempts[number] = attempt
        self._client.loop.add_callback(self._collect, number, attempt.future)
        self._trim()

    async def _collect(self, number: int, future: Any) -> None:
        """In the client's thread: wait for a task's end without holding up the others'."""
        try:
            value = await self._client.gather(future, asynchronous=True)
        except (Exception, asyncio.CancelledError) as error:
            value = error
        self._inbox.put((number, _Ended(value)))

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

    def _handle(self, number: int, message: Any) -> None:
        """A task has begun, made a step, or ended; the last words of an attempt that is over are ignored."""
        attempt = self._attempts.get(number)
        if not isinstance(message, _Ended):
            if attempt is not None:
                self._begun(attempt)
                self._stepped(attempt, message and tuple(message))
            return
        if self._stuck.pop(number, None) is None and attempt is not None:
            del self._attempts[number]
            attempt.future.release()
            self._handle_end(attempt, message.value)
        self._feed()

    def _handle_end(self, attempt: _Attempt, value: Any) -> None:
        if isinstance(value, self._killed_worker):
            self._worker_died(attempt)  # a worker that came back at its old address, again and again
        elif isinstance(value, self._lost_errors):
            if self._client.status != "running":
                raise self._scheduler_lost()
            self._lost(attempt.task)
        elif isinstance(value, BaseException):  # Dask itself failed, for want of memory perhaps
            self._end(attempt, failure_of(value), None)
        else:
            worker, outcome = value
            if outcome.kind == OTHER_VERSION:
                raise other_version(worker, outcome.message)
            self._begun(attempt)
            self._stepped(attempt, outcome.steps)
            self._conclude(attempt, outcome)

    def _move_on(self) -> None:
        """Take the tasks of lost workers back, and give those up that took too long."""
        while not self._inbox.empty():  # a task may have ended before its worker did
            self._handle(*self._inbox.get())
        self._stuck = {n: attempt for n, attempt in self._stuck.items() if attempt.address in self._workers}
        for number, attempt in list(self._attempts.items()):
            if attempt.address not in self._workers:
                del self._attempts[number]
                attempt.future.release()
                self._worker_died(attempt)
            elif attempt.has_overrun:
                # Dask cannot end a task that runs; until it ends by itself, its worker gets no other.
                self._stuck[number] = self._attempts.pop(number)
                self._tell(Notice(f"worker {attempt.worker} is still at {attempt.task.label or 'a task'}"))
                self._overran(attempt)
        if (
            self._tasks
            and self._workers
            and {one.address for one in self._stuck.values()} >= {*self._workers}
        ):
            raise InconclusiveError(f"all workers at {self._address} are at tasks that took too long")

    def _conclude(self, attempt: _Attempt, outcome: Outcome) -> None:
        folder: Path | None = None
        try:
            folder = self._scratch()
            write_folder(outcome.files, folder)
        except (OSError, ValueError) as error:
            outcome = failure_of(error)
        self._end(attempt, outcome, folder)

    def close(self) -> None:
        """Cancel what is under way and leave the scheduler; its workers are the user's, and stay."""
        self._tasks.clear()
        futures = [attempt.future for attempt in (*self._attempts.values(), *self._stuck.values())]
        self._attempts, self._stuck = {}, {}
        client, self._client = self._client, None
        if client is None:
            self._quiet.restore()
            return
        try:
            if client.status == "running":
                client.cancel(futures)
                client.unsubscribe_topic(self._topic)
        except Exception as error:  # the scheduler is gone: there is nothing to cancel
            logging.getLogger(__name__).debug("%s", error)
        finally:
            self._inputs.clear()
            client.close(timeout=5)
            self._quiet.restore()


def _label(worker: str) -> str:
    """A worker's name in events: its host and port."""
    return worker.partition("://")[2] or worker
