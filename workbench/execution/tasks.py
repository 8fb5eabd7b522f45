"""Tasks, the events of their lives, and how one task is done where it runs.

`perform` never raises for what a task does wrong: it turns it into an `Outcome`, so that a task that fails,
exits or returns nonsense is a recorded failure and takes neither its worker nor the parent along.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from workbench.core.errors import (
    ArgumentError,
    ContentError,
    InconclusiveError,
    InputError,
    UnsupportedError,
    WorkbenchError,
)
from workbench.core.keys import JSON, plain
from workbench.core.one_line import one_line

WORKER_DIED = "worker died"
"""Kind of a `Failed` whose task took its worker with it, again and again."""

DISK_FULL = "disk full"
"""Kind of a `Failed` that met a full disk, or a used-up quota."""

OTHER_FILES = "other files"
"""Kind of a `Failed` that met a `ContentError`."""

OVERRAN = "overran"
"""Kind of a `Failed` that took longer than its `Task.limit_seconds`."""

TRACEBACK_CHARACTERS = 8000
"""Of a failure's traceback, the last ones are kept."""

MESSAGES_A_SECOND = 4.0
"""How often a worker reports its steps at most, while it stays in one part."""


class StepProgress(Protocol):
    """The function by which a task reports its steps: `progress(done, total, part)`."""

    def __call__(self, done: int, total: int, part: str = "") -> None:
        """Report.

        `done`: steps that are done, of the part if there are parts. `total`: steps in all, of the part
        likewise. `part`: which part of a long task this is; empty where there are none.
        """


def silent(done: int, total: int, part: str = "") -> None:
    """A `StepProgress` that nobody listens to."""


Work = Callable[[Any, Mapping[str, Path], Path, StepProgress], dict[str, Any]]
"""`work(payload, inputs, scratch, progress)`; at the top level of a module that workers can import."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One piece of work for a backend.

    Attributes:
        id: Unique among the tasks of a backend.
        work: See `Work`; pure in what it is given.
        payload: Plain data or frozen records for `work`; pickled on its way to another process.
        inputs: Folders that `work` reads, by name; not changed while the backend lives. Where a worker has no
            shared disk they travel as bytes.
        label: What displays call it.
        limit_seconds: A task that takes longer fails as `OVERRAN`; None for no limit. In this process there
            is none. The pool kills the worker; a Dask worker gets no further task until it is done.
        grace_seconds: Where the pool is closed, a task of more than 0 has so long to keep its state: its next
            call of `progress` raises. Others are killed at once.
    """

    id: str
    work: Work
    payload: Any
    inputs: Mapping[str, Path] = field(default_factory=dict)
    label: str = ""
    limit_seconds: float | None = None
    grace_seconds: float = 0.0


@dataclass(frozen=True)
class Started:
    """A worker began with a task. A task whose worker died is started again."""

    task: Task
    worker: str


@dataclass(frozen=True)
class Stepped:
    """A task has done `done` of `total` steps, of its part `part` if it has parts."""

    task: Task
    worker: str
    done: int
    total: int
    part: str = ""


@dataclass(frozen=True)
class Finished:
    """The event that a task is done, with its result.

    Attributes:
        task: Which.
        worker: Who did it.
        result: Its plain form (`workbench.core.keys.plain`), the same from every backend.
        folder: The filled scratch folder, on this machine; the caller's to move or remove.
        seconds: Wall time of the work itself.
    """

    task: Task
    worker: str
    result: dict[str, JSON]
    folder: Path
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A task ended without a result; nothing of its scratch folder is left.

    Attributes:
        task: Which.
        worker: Who tried.
        kind: `DISK_FULL`, `WORKER_DIED`, `OTHER_FILES`, `OVERRAN`, or the exception's class.
        message: One line.
        traceback: Where a task raised what nobody raises on purpose; empty for any other failure.
        raised: The class of an error that says all in its line: raised on purpose, or the file system's.
    """

    task: Task
    worker: str
    kind: str
    message: str
    traceback: str = ""
    raised: type[WorkbenchError] | None = None

    def error(self, what: str, *, always: bool = False) -> Exception:
        """The exception to raise in the parent where this failure ends the run.

        `what`: what the task is called in the message of an error that was not raised on purpose. `always`:
        whether it is so called in the message of every error.
        """
        if self.raised is not None:
            message = re.sub(r"^\[Errno \d+\] ", "", self.message)
            return self.raised(f"{what}: {message}" if always else message)
        if self.kind in (WORKER_DIED, OVERRAN):
            return InconclusiveError(f"{what}: {self.message}; run the same command again to go on")
        return TaskError(f"{what}: {self.kind}: {self.message}", self.traceback)


@dataclass(frozen=True)
class Notice:
    """One line for the user about the backend itself: no worker is left, workers came back."""

    message: str


Event = Started | Stepped | Finished | Failed | Notice

Listener = Callable[[Event], None]
"""Gets `Started`, `Stepped` and `Notice` at once, in the thread that calls the backend."""


class TaskError(RuntimeError):
    """A task failed by a bug; the worker's traceback is its cause."""

    def __init__(self, message: str, worker_traceback: str) -> None:
        super().__init__(message)
        if worker_traceback:
            self.__cause__ = RuntimeError(f"in the worker\n\n{worker_traceback}")


# Where a task is done


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended where it ran: with a result, or with the kind and message of its failure.

    Attributes:
        result: Plain form, or None where it failed.
        kind, message, traceback, raised: See `Failed`; empty where it succeeded.
        seconds: Wall time.
        files: The scratch folder's files as bytes, where the parent has no access to that disk.
        steps: The last step that was reported, which may arrive later than the outcome, or never.
    """

    result: dict[str, JSON] | None = None
    kind: str = ""
    message: str = ""
    traceback: str = ""
    raised: type[WorkbenchError] | None = None
    seconds: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)
    steps: tuple[int, int, str] | None = None


def failure_of(error: BaseException, *, seconds: float = 0.0, traceback: str = "") -> Outcome:
    """The outcome of a task that met this exception."""
    kind, message = describe(error)
    raised: type[WorkbenchError] | None = InputError if isinstance(error, OSError) else None
    for purpose in (InputError, UnsupportedError, InconclusiveError):
        raised = purpose if isinstance(error, purpose) else raised
    return Outcome(kind=kind, message=message, traceback=traceback, raised=raised, seconds=seconds)


def perform(
    work: Work,
    payload: Any,
    inputs: Mapping[str, Path],
    scratch: Path,
    progress: StepProgress,
    *,
    here: bool = False,
) -> Outcome:
    """Do the work, and turn whatever it raises into an outcome.

    `work`, `payload`, `inputs`, `scratch`, `progress`: see `Work`; a few steps a second are reported. `here`:
    the work runs in the user's own process, where a `KeyboardInterrupt` is the user's own.
    """
    started = time.perf_counter()
    try:
        result = work(payload, inputs, scratch, throttled(progress))
        if not isinstance(result, dict):
            raise TypeError(f"a task must return a dict, got {type(result).__name__}")
        form = {str(name): plain(value) for name, value in result.items()}
    except BaseException as error:
        if here and isinstance(error, KeyboardInterrupt):
            raise
        # Nothing else is let through: sys.exit() in a user's code is a failure of that task alone.
        seconds = time.perf_counter() - started
        return failure_of(error, seconds=seconds, traceback=_traceback(error))
    return Outcome(result=form, seconds=time.perf_counter() - started)


def pack(task: Task) -> bytes:
    """The task's call, for another process.

    Raises `Exception`: it cannot be pickled; of which kind depends on what it holds.
    """
    return pickle.dumps((task.work, task.payload))


def perform_packed(
    packed: bytes, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> Outcome:
    """Perform a packed call in a worker; a call that cannot be unpacked there is the task's failure."""
    try:
        work, payload = pickle.loads(packed)  # noqa: S301 - from the parent's memory, never from a disk
    except Exception as error:
        return failure_of(error)
    return perform(work, payload, inputs, scratch, progress)


def describe(error: BaseException) -> tuple[str, str]:
    """The kind and the one-line message of a failure; a full disk is recognised wherever it hides."""
    try:
        text = one_line(str(error), 500)
    except Exception:
        text = ""
    text = text or type(error).__name__
    if isinstance(error, ContentError):
        return OTHER_FILES, text
    kind = InputError if isinstance(error, ArgumentError) else type(error)
    return (DISK_FULL if _is_disk_full(error) else kind.__name__), text


def _traceback(error: BaseException) -> str:
    """The end of a traceback, for whoever looks for a bug; what is raised on purpose says all in its line."""
    if isinstance(error, WorkbenchError):
        return ""
    try:
        return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]
    except Exception:  # An exception of a plug-in's own may not even be printable.
        return ""


def _is_disk_full(error: BaseException) -> bool:
    """True for ENOSPC and EDQUOT, in the error or in what it was raised from.

    Writers in compiled code (safetensors) keep the system's sentence and lose its number.
    """
    numbers = (errno.ENOSPC, errno.EDQUOT)
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and link.errno in numbers:
            return True
        if any(
            isinstance(part, str) and os.strerror(number) in part for part in link.args for number in numbers
        ):
            return True
        link = link.__cause__ or link.__context__
    return False


def throttled(report: StepProgress, clock: Callable[[], float] = time.monotonic) -> StepProgress:
    """Pass on a few steps a second, the first of each part, and the last one always."""
    last = 0.0
    last_part: str | None = None

    def progress(done: int, total: int, part: str = "") -> None:
        """Report the steps done, at most `MESSAGES_A_SECOND` times a second in one part."""
        nonlocal last, last_part
        now = clock()
        if done < total and part == last_part and now - last < 1 / MESSAGES_A_SECOND:
            return
        last, last_part = now, part
        report(int(done), int(total), part)

    return progress


def remove_folder(folder: Path | None) -> None:
    """Remove a scratch folder that nobody wants any more; what cannot be removed is swept later."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
