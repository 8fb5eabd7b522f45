"""Starts the worker of a user's training early, so that it imports while this process does and checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.execution.engine import Engine, Progress

if TYPE_CHECKING:
    from workbench.audit.settings import AuditSettings

IMPORTS = ("workbench.audit.replay.measure", "torch._dynamo")
"""What trainings and their replay import, in some seconds; an optimizer's first step imports the second."""


@contextmanager
def started(
    function_spec: str, settings: AuditSettings, folder: Path, progress: Progress | None = None
) -> Iterator[Engine]:
    """The engine of an audit of `path/to/file.py:function`, its store in a folder.

    A worker of it imports already where the file names torch. Never does this process train: the user's code
    may end it, and an exit code of ours is a verdict.
    """
    workers = max(1, settings.workers)
    with Engine(folder / "store", workers=workers, scheduler=settings.scheduler, progress=progress) as engine:
        path = Path(function_spec.rpartition(":")[0])
        with suppress(OSError):  # What cannot be read is told of when it is loaded.
            if path.is_file() and b"torch" in path.read_bytes():
                engine.warm(*IMPORTS)
        yield engine
