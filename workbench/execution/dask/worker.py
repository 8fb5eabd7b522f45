"""The worker's side of the Dask backend, and folders as bytes, which both sides need.

A worker may have no disk in common with the parent: inputs come as bytes, and what the task left in its
scratch folder goes back as bytes. A worker of several threads still does one task at a time, because torch's
number of threads and its global generator, which building a model draws from, belong to the whole process.
"""

from __future__ import annotations

import platform
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from workbench import __version__
from workbench.core.keys import SCHEMA
from workbench.execution.tasks import Outcome, failure_of, perform_packed

FolderBytes = dict[str, bytes]
"""A folder's files, by relative path with forward slashes; empty folders and file modes are not kept."""

OTHER_VERSION = "other version"
"""Kind of an outcome that says: this worker runs another workbench."""

_one_at_a_time = threading.Lock()


def about() -> dict[str, str]:
    """What a worker runs: the workbench and its schema must be the parent's, the rest should be."""
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
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
