"""What all backends share: the task, the events, the protocol, and how one task is done where it runs.

`perform` never raises for what a task does wrong: it turns it into an `Outcome`, so that a task that fails,
exits or returns nonsense is a recorded failure and takes neither its worker nor the parent along.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from workbench.core.errors import ContentError, WorkbenchError
from workbench.core.keys import JSON, plain
from workbench.core.one_line import one_line

StepProgress = Callable[[int, int], None]
"""Called with the steps done and the steps in all."""

Work = Callable[[Any, Mapping[str, Path], Path, StepProgress], dict[str, Any]]
"""`work(payload, inputs, scratch, progress)`; at the top level of a module that workers can import."""

WORKER_DIED = "worker died"
"""Kind of a `Failed` whose task took its worker with it, again and again."""

DISK_FULL = "disk full"
"""Kind of a `Failed` that met a full disk, or a used-up quota."""

OTHER_FILES = "other files"
"""Kind of a `Failed` that met a `ContentError`."""

TRACEBACK_CHARACTERS = 8000
"""Of a failure's traceback, the last ones are kept."""

MESSAGES_A_SECOND = 4.0
"""How often a worker tells of its steps at most."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One piece of work.

    Attributes:
        id: Unique among the tasks of a backend.
        work: See `Work`; pure in what it is given.
        payload: Plain data or frozen records for `work`; pickled on its way to another process.
        inputs: Folders that `work` reads, by name; not changed while the backend lives. Where a worker has no
            shared disk they travel as bytes.
        label: What displays call it.
    """

    id: str
    work: Work
    payload: Any
    inputs: Mapping[str, Path] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Started:
    """A worker began with a task. A task whose worker died is started again."""

    task: Task
    worker: str


@dataclass(frozen=True)
class Stepped:
    """A task has done `done` of `total` steps."""

    task: Task
    worker: str
    done: int
    total: int


@dataclass(frozen=True)
class Finished:
    """A task is done.

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
        kind: `DISK_FULL`, `WORKER_DIED`, `OTHER_FILES`, or the exception's class.
        message: One line.
        traceback: Where a task raised what nobody raises on purpose; empty for any other failure.
    """

    task: Task
    worker: str
    kind: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Notice:
    """One line for the user about the backend itself: no worker is left, workers came back."""

    message: str


Event = Started | Stepped | Finished | Failed | Notice

Listener = Callable[[Event], None]
"""Told of `Started`, `Stepped` and `Notice` at once, in the thread that calls the backend."""


@runtime_checkable
class Backend(Protocol):
    """Does tasks somewhere; a context manager that `close`s at its end.

    Every submitted task ends in exactly one `Finished` or `Failed`, unless the backend is closed first. With
    a listener, `Started`, `Stepped` and `Notice` go to it and `wait` returns `Finished` and `Failed` alone;
    without one, `wait` returns them all, in their order.
    """

    @property
    def capacity(self) -> int:
        """How many tasks are wanted in flight; changes as workers come and go, and is at least 1."""
        ...

    def submit(self, task: Task) -> None:
        """Take a task; returns soon. More than `capacity` may be submitted; they wait."""
        ...

    def wait(self, timeout: float) -> list[Event]:
        """What happened since the last call; waits for the first event.

        Args:
            timeout: Seconds after which an empty list is returned. In this process it has no effect: one task
                is run to its end. With nothing under way the call returns at once.

        Raises:
            InconclusiveError: the backend cannot go on (its workers cannot start, its scheduler is gone).
        """
        ...

    def close(self) -> None:
        """Give up what is under way; leave no process and no scratch folder. May be called twice."""
        ...

    def __enter__(self) -> Self:
        """The backend itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended where it ran: with a result, or with the kind and message of its failure.

    Attributes:
        result: Plain form, or None where it failed.
        kind: Empty where it succeeded.
        message: One line.
        traceback: See `Failed`.
        seconds: Wall time.
        files: The scratch folder's files as bytes, where the parent has no access to that disk.
        steps: The last step that was told, which may come later than the outcome, or never.
    """

    result: dict[str, JSON] | None = None
    kind: str = ""
    message: str = ""
    traceback: str = ""
    seconds: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)
    steps: tuple[int, int] | None = None


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

    Args:
        work, payload, inputs, scratch, progress: See `Work`.
        here: The work runs in the user's own process, where a `KeyboardInterrupt` is the user's own.
    """
    started = time.perf_counter()
    try:
        found = work(payload, inputs, scratch, progress)
        if not isinstance(found, dict):
            raise TypeError(f"a task must return a dict, got {type(found).__name__}")
        form = {str(name): plain(value) for name, value in found.items()}
    except BaseException as error:
        if here and isinstance(error, KeyboardInterrupt):
            raise
        # Nothing else is let through: sys.exit() in a user's code is a failure of that task alone.
        kind, message = describe(error)
        return Outcome(
            kind=kind,
            message=message,
            traceback=_traceback(error),
            seconds=time.perf_counter() - started,
        )
    return Outcome(result=form, seconds=time.perf_counter() - started)


def pack(task: Task) -> bytes:
    """The task's call, for another process.

    Raises:
        Exception: it cannot be pickled; of which kind depends on what it holds.
    """
    return pickle.dumps((task.work, task.payload))


def perform_packed(
    packed: bytes, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> Outcome:
    """As `perform`, in a worker; a call that cannot be unpacked there is the task's failure."""
    try:
        work, payload = pickle.loads(packed)  # noqa: S301 - from the parent's memory, never from a disk
    except Exception as error:
        kind, message = describe(error)
        return Outcome(kind=kind, message=message)
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told[:] = [(done, total)]
        progress(done, total)

    outcome = perform(work, payload, inputs, scratch, throttled(tell))
    return replace(outcome, steps=told[0]) if told else outcome


def describe(error: BaseException) -> tuple[str, str]:
    """The kind and the one-line message of a failure; a full disk is told apart wherever it hides."""
    try:
        text = one_line(str(error), 500)
    except Exception:
        text = ""
    text = text or type(error).__name__
    if isinstance(error, ContentError):
        return OTHER_FILES, text
    return (DISK_FULL if _is_disk_full(error) else type(error).__name__), text


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
    """Pass on a few steps a second, and the last one always."""
    last = -1.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = clock()
        if done < total and last >= 0 and now - last < 1 / MESSAGES_A_SECOND:
            return
        last = now
        report(int(done), int(total))

    return progress


class Delivery:
    """Hands events out as `Backend` promises: live ones to the listener, the rest to `wait`'s caller."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener = listener
        self._kept: list[Event] = []

    def add(self, event: Event) -> None:
        """Deliver, or keep for `take`."""
        if self._listener is not None and isinstance(event, Started | Stepped | Notice):
            self._listener(event)
        else:
            self._kept.append(event)

    def take(self) -> list[Event]:
        """What was kept."""
        kept, self._kept = self._kept, []
        return kept

    def __bool__(self) -> bool:
        """True where something is kept."""
        return bool(self._kept)


def remove_folder(folder: Path | None) -> None:
    """Remove a scratch folder that nobody wants any more; what cannot be removed is swept later."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def conclude(task: Task, worker: str, outcome: Outcome, folder: Path) -> Finished | Failed:
    """The last event of a task; a failed task's folder is removed."""
    if outcome.result is None:
        remove_folder(folder)
        return Failed(task, worker, outcome.kind, outcome.message, outcome.traceback)
    return Finished(task, worker, outcome.result, folder, outcome.seconds)
