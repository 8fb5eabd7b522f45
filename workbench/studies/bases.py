"""The small base models that studies start from: lists them, and builds those that are missing.

A base is an entry of the registry's kind `"base"`, and under the same name a model of the kind `"model"`. One
that is not shipped is pretrained once, on the user's machine, by `workbench models build` or by whoever calls
`ensure`, and lies in the user's cache from then on. Architectures and texts are in the data room
(`data/bases/catalogue.py`); here a build is a task of the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from workbench.core import registry
from workbench.core.errors import InconclusiveError, unknown_name
from workbench.execution.backend import make_backend, run_tasks
from workbench.execution.processes import temporary_scratch
from workbench.execution.tasks import (
    Event,
    Failed,
    Finished,
    Notice,
    Stepped,
    StepProgress,
    Task,
    remove_folder,
)
from workbench.training.content import model_facets

KIND = "base"
FOLDER = "path"
"""The parameter of a base that names a folder in its place."""

_GRACE_SECONDS = 10.0
"""A build that is stopped ends its step and keeps its state; after so long its process is killed."""


class BuildStage(Enum):
    """Stage of the build of a base model."""

    WAITING = "waiting for another build"
    TEXT = "reading the text"
    TRAINING = "training"
    JUDGING = "judging"


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    """Progress of the build of a base model.

    Attributes:
        done, total: Steps of the training.
        loss: Of the last step, nats a token; None before the first.
    """

    name: str
    stage: BuildStage
    done: int = 0
    total: int = 0
    loss: float | None = None

    def part(self) -> str:
        """Stage and loss, as a task reports them with its steps."""
        return self.stage.name if self.loss is None else f"{self.stage.name} {self.loss!r}"

    @classmethod
    def of(cls, event: Stepped) -> BuildStep:
        """The progress that the task that builds the base `task.id` has reported."""
        stage, _, loss = event.part.partition(" ")
        return cls(
            name=event.task.id,
            stage=BuildStage[stage],
            done=event.done,
            total=event.total,
            loss=float(loss) if loss else None,
        )


BuildProgress: TypeAlias = Callable[[BuildStep], None]


@dataclass(frozen=True, kw_only=True)
class BaseCard:
    """Facts about a base model that are known without loading it.

    Attributes:
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
    """A base model as the registry gives it; it can be sent to another process."""

    def is_built(self) -> bool:
        """True where its files are there, and have the hashes that its recipe names."""

    def build(self, progress: BuildProgress) -> Path:
        """Build it, or go on with a build that was stopped; returns the folder.

        What `progress` raises stops the build, after its state is kept.
        """

    def card(self) -> BaseCard:
        """The base's size, quality and place, for lists and reports."""


def names() -> tuple[str, ...]:
    """The names of the registered base models, sorted."""
    return tuple(registry.entries(KIND))


def find(name: str) -> Base:
    """The base of this name; InputError where there is none."""
    if name not in (known := names()):
        raise unknown_name(KIND, name, known)
    base: Base = registry.create(KIND, name)
    return base


def is_built(name: str) -> bool:
    """Whether a base can be used now."""
    return find(name).is_built()


def starts_from(model: str, parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Whose weights a model has before training, and which parameter names a folder in their place.

    A model that puts something around another (a task, for instance) says which two of its parameters hold
    the other's name and folder (`ModelFacets.stands_on`).

    Returns:
        The model's own name and `"path"`; or the other's name, and that of the parameter for its folder.
    """
    names = model_facets(model).stands_on
    if names is None:
        return model, FOLDER
    return str(parameters.get(names[0], model)), names[1]


def missing(models: Iterable[str]) -> tuple[str, ...]:
    """The bases among these models that are not built, each once; other models are passed over."""
    known = names()
    return tuple(name for name in dict.fromkeys(models) if name in known and not is_built(name))


def ensure(
    wanted: Iterable[str],
    progress: BuildProgress | None = None,
    *,
    workers: int = 2,
    scheduler: str | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[str, ...]:
    """Build those of these bases that are not built, each as a task with one torch thread.

    Args:
        wanted: Names of bases.
        progress: Called in this process, from this thread.
        workers: Processes at a time; 0 builds in this process.
        scheduler: Address of a Dask scheduler, which then has the workers; their cache must be on a disk that
            this machine shares. None for none.
        say: Called with a line about these workers.

    Returns:
        The names of those that were built, in the given order.

    Raises:
        InputError: a name is unknown, or a build refuses; the others are built first.
        InconclusiveError: a build killed its worker, again and again, and what it had done is kept; or it was
            done on a disk that this machine does not share.
        TaskError: a build failed by a bug.
    """
    bases = {name: find(name) for name in wanted}
    todo = {name: base for name, base in bases.items() if not base.is_built()}
    waiting = iter(todo.items())
    failures: list[Failed] = []

    def take() -> Task | None:
        name, base = next(waiting, ("", None))
        if base is None:
            return None
        return Task(id=name, work=build_task, payload=base, label=name, grace_seconds=_GRACE_SECONDS)

    def listen(event: Event) -> None:
        if isinstance(event, Stepped) and progress is not None:
            progress(BuildStep.of(event))
        elif isinstance(event, Notice) and say is not None:
            say(event.message)

    def conclude(event: Finished | Failed) -> None:
        if isinstance(event, Failed):
            failures.append(event)
        else:
            remove_folder(event.folder)

    if todo:
        with (
            temporary_scratch() as scratch,
            make_backend(workers=workers, scheduler=scheduler, scratch=scratch, listener=listen) as backend,
        ):
            run_tasks(backend, take, conclude)
    for failure in failures:
        raise failure.error(f"base {failure.task.id!r}", always=True)
    if scheduler is not None and (elsewhere := missing(todo)):
        built = ", ".join(elsewhere)
        raise InconclusiveError(f"{scheduler} built {built} in a cache that this machine does not share")
    return tuple(todo)


def build_task(
    base: Base, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Build a base in the user's cache; what `progress` raises stops the build, after its state is kept."""
    base.build(lambda step: progress(step.done, step.total, step.part()))
    return {}
