"""The small base models that studies start from: which there are, and building those that are missing.

A base is an entry of the registry's kind `"base"`, and under the same name a model of the kind `"model"`. One
that is not shipped is pretrained once, on the user's machine, by `workbench models build` or by whoever calls
`ensure`, and lies in the user's cache from then on. This module knows no architecture and no text: those are
the room's (`data/bases/catalogue.py`); here are the processes that build, and what they tell.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

from workbench.core import registry
from workbench.core.errors import InconclusiveError, InputError, WorkbenchError, unknown_name
from workbench.execution.processes import interrupt_blocked

KIND = "base"
FOLDER = "path"
"""The parameter of a base that names a folder in its place."""

_PATIENCE_SECONDS = 10.0
"""A process that is told to stop ends its step and keeps its state; after so long it is killed."""


class BuildStage(Enum):
    """What a build does at the moment."""

    WAITING = "waiting for another build"
    TEXT = "reading the text"
    TRAINING = "training"
    JUDGING = "judging"


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    """How far a build is.

    Attributes:
        name: The base.
        stage: What it does.
        done: Steps of the training that are done.
        total: Steps of the training in all.
        loss: Of the last step, nats a token; None before the first.
    """

    name: str
    stage: BuildStage
    done: int = 0
    total: int = 0
    loss: float | None = None


BuildProgress: TypeAlias = Callable[[BuildStep], None]


@dataclass(frozen=True, kw_only=True)
class BaseCard:
    """What is known of a base without loading it.

    Attributes:
        name: As users type it.
        family: Kind of architecture.
        stands_for: The model of the paper whose place it takes.
        parameters: Number of trainable numbers, embeddings included; of all its tensors.
        is_built: False also where its files are not what its recipe says.
        place: Folder of its files; where they will be, if they are not there.
        size_bytes: Of its weights; None if not built.
        perplexity: Per token, of the docstrings that no base was trained on; None if not built, or where the
            base has the vocabulary of a task.
        bits_per_byte: Of the same text.
    """

    name: str
    family: str
    stands_for: str
    parameters: int
    is_built: bool
    place: Path
    size_bytes: int | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None


class Base(Protocol):
    """What the registry gives for a base; it can be sent to another process."""

    def is_built(self) -> bool:
        """True where its files are there, and have the hashes that its recipe names."""

    def build(self, progress: BuildProgress) -> Path:
        """Build it, or go on with a build that was stopped; returns the folder.

        What `progress` raises stops the build, after its state is kept.
        """

    def card(self) -> BaseCard:
        """What is known of it."""


def names() -> tuple[str, ...]:
    """The bases' names, sorted."""
    return tuple(registry.entries(KIND))


def find(name: str) -> Base:
    """The base of this name.

    Raises:
        InputError: there is none.
    """
    known = names()
    if name not in known:
        raise unknown_name(KIND, name, known)
    base: Base = registry.create(KIND, name)
    return base


def card(name: str) -> BaseCard:
    """What is known of a base.

    Raises:
        InputError: there is none of this name.
    """
    return find(name).card()


def is_built(name: str) -> bool:
    """Whether a base can be used now.

    Raises:
        InputError: there is none of this name.
    """
    return find(name).is_built()


def starts_from(model: str, parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Whose weights a model has before training, and which parameter names a folder in their place.

    A model that puts something around another (a task, for instance) says by its factory's `stands_on` which
    two of its parameters hold the other's name and folder.

    Args:
        model: Name in the registry's kind `"model"`.
        parameters: What it is given.

    Returns:
        The model's own name and `"path"`; or the other's name, and that of the parameter for its folder.
    """
    known = registry.entries("model").get(model)
    names: tuple[str, str] | None = getattr(known.factory, "stands_on", None) if known else None
    if names is None:
        return model, FOLDER
    return str(parameters.get(names[0], model)), names[1]


def missing(models: Iterable[str]) -> tuple[str, ...]:
    """The bases among these models that are not built, each once; other models are passed over.

    Args:
        models: Names of the registry's kind `"model"`.
    """
    known = names()
    return tuple(name for name in dict.fromkeys(models) if name in known and not is_built(name))


def build(name: str, progress: BuildProgress | None = None) -> Path:
    """Build a base in this process, unless it is built; returns the folder of its files.

    Args:
        name: Of the base.
        progress: Called between steps; what it raises stops the build, after its state is kept.

    Raises:
        InputError: there is none of this name, or the cache cannot be written to.
    """
    return find(name).build(_silent if progress is None else progress)


def ensure(
    wanted: Iterable[str], progress: BuildProgress | None = None, *, workers: int = 2
) -> tuple[str, ...]:
    """Build those of these bases that are not built, each in a process of its own with one torch thread.

    Args:
        wanted: Names of bases.
        progress: Called in this process, from this thread.
        workers: Processes at a time; 0 builds in this process.

    Returns:
        The names of those that were built, in the given order.

    Raises:
        InputError: a name is unknown, or a build refuses; the others are built first.
        InconclusiveError: a process died; what it had done is kept.
    """
    bases = {name: find(name) for name in wanted}
    todo = {name: base for name, base in bases.items() if not base.is_built()}
    told = _silent if progress is None else progress
    if workers < 1:
        for base in todo.values():
            base.build(told)
    elif todo:
        with _Builders(told) as builders:
            builders.run(todo, workers)
    return tuple(todo)


def _silent(step: BuildStep) -> None:
    """Tell nobody."""


# In a building process


@dataclass(frozen=True)
class _Ended:
    """Last word of a process: why it failed, empty where it did not, and whether that is a user's matter."""

    error: str = ""
    is_input: bool = False


def _work(base: Base, channel: Connection) -> None:
    """Build in a process of its own. Ctrl-C reaches every process, and is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from workbench.execution.processes import start_worker

    start_worker()
    try:
        base.build(channel.send)
        end = _Ended()
    except BrokenPipeError:
        return  # nobody listens any more; the state is kept
    except WorkbenchError as error:
        end = _Ended(str(error), is_input=isinstance(error, InputError))
    except OSError as error:
        end = _Ended(f"{error.filename or 'file system'}: {error.strerror or error}", is_input=True)
    with suppress(BrokenPipeError):
        channel.send(end)


# In the parent


class _Builders:
    """The processes that build at the moment."""

    def __init__(self, progress: BuildProgress) -> None:
        self._progress = progress
        self._running: dict[Connection, tuple[str, BaseProcess]] = {}
        self._failures: list[tuple[str, _Ended]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        """Let the processes end their step and keep their state."""
        for channel in self._running:
            channel.close()
        for _, process in self._running.values():
            process.join(_PATIENCE_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()

    def run(self, bases: dict[str, Base], workers: int) -> None:
        """Build all of them, the first ones first."""
        waiting = list(bases.items())
        while waiting or self._running:
            while waiting and len(self._running) < workers:
                self._start(*waiting.pop(0))
            for channel in wait(list(self._running)):
                self._hear(channel)
        for name, end in self._failures:
            kind = InputError if end.is_input else InconclusiveError
            raise kind(f"base {name!r}: {end.error}")

    def _start(self, name: str, base: Base) -> None:
        context = get_context("spawn")
        reading, writing = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(base, writing), name=f"build {name}")
        with interrupt_blocked():
            process.start()
        writing.close()  # the process has its own; so its death is our end of file
        self._running[reading] = (name, process)

    def _hear(self, channel: object) -> None:
        if not isinstance(channel, Connection):
            return
        name, process = self._running[channel]
        try:
            message = channel.recv()
        except (EOFError, OSError):
            process.join()
            message = _Ended(f"its process died ({_death(process.exitcode)}); the next build goes on")
        if isinstance(message, BuildStep):
            self._progress(message)
            return
        if message.error:
            self._failures.append((name, message))
        del self._running[channel]
        channel.close()
        process.join()


def _death(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
