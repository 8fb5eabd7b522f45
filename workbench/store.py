"""One atomic record per key: what was done is found again, and a killed run leaves nothing half-written.

A record is a JSON file that carries its own checksum, written beside its place and renamed into it. A file
that was cut short or edited fails its checksum and counts as absent, so the work is done again. Weights lie
in a folder per key, renamed into place as a whole.

>>> key_of({"mechanism": "dp_sgd", "seed": 0}) == key_of({"seed": 0, "mechanism": "dp_sgd"})
True
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import InputError
from workbench.interfaces import JSON, Guarantee

SCHEMA = 1
"""Raised whenever the meaning of a record changes; part of every key."""

STALE_SECONDS = 24 * 3600.0

_UMASK = os.umask(0o022)
os.umask(_UMASK)  # It can be read only by setting it; temporary files ignore it, written ones must not.


def plain(value: Any) -> JSON:
    """Plain JSON form of numbers, arrays, enums, paths, guarantees and frozen records.

    Non-finite floats become the strings "inf", "-inf" and "nan", which `float` reads back.

    Raises:
        TypeError: a value has no plain form.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, Guarantee):
        return plain(value.to_json())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"no plain form for {type(value).__name__}")


def canonical(form: Any) -> str:
    """The one text of a plain form: sorted names, no spaces, shortest round-trip floats."""
    return json.dumps(plain(form), sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(form: Any) -> str:
    """Hash of a canonical form and of the schema version, 32 hexadecimal digits."""
    return hashlib.sha256(f"{SCHEMA}:{canonical(form)}".encode()).hexdigest()[:32]


def write_atomically(path: Path, content: str) -> None:
    """Write a text file so that a reader sees the old content, or the new, and nothing between.

    Raises:
        InputError: the place cannot be written (no space, no permission, a file where a folder should be).
    """
    path = Path(os.path.realpath(path))  # A link stays a link, to a file with new content.
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is not a regular file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_UMASK)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


class Store:
    """A folder of records and trained subjects.

    Args:
        folder: Made if it is missing.

    Raises:
        InputError: the folder cannot be made, or is a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records = folder / "records"
        self._subjects = folder / "subjects"
        self._scratch = folder / "scratch"
        try:
            for path in (self._records, self._subjects, self._scratch):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot use {folder} as a store: {error.strerror or error}") from error

    def read(self, key: str) -> dict[str, JSON] | None:
        """The record of a key, or None where it is missing or damaged."""
        try:
            wrapped = json.loads((self._records / f"{key}.json").read_text(encoding="utf-8"))
            content = wrapped["content"]
            intact = wrapped["sha256"] == hashlib.sha256(canonical(content).encode()).hexdigest()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return content if intact and isinstance(content, dict) else None

    def has(self, key: str) -> bool:
        """True where the key has an undamaged record."""
        return self.read(key) is not None

    def append(self, key: str, record: Mapping[str, Any]) -> dict[str, JSON]:
        """Write the record of a key and return its plain form.

        Raises:
            InputError: the store cannot be written.
        """
        content = plain(record)
        digest = hashlib.sha256(canonical(content).encode()).hexdigest()
        wrapped = json.dumps({"sha256": digest, "content": content}, allow_nan=False)
        write_atomically(self._records / f"{key}.json", wrapped)
        return dict(content)

    def records(self) -> Iterator[tuple[str, dict[str, JSON]]]:
        """All undamaged records, by key, sorted."""
        for path in sorted(self._records.glob("*.json")):
            content = self.read(path.stem)
            if content is not None:
                yield path.stem, content

    def subject_folder(self, key: str) -> Path | None:
        """Where the weights of a key lie, or None."""
        path = self._subjects / key
        return path if path.is_dir() else None

    def scratch_folder(self) -> Path:
        """A new empty folder on the store's disk, for a worker to fill."""
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def adopt_subject(self, key: str, filled: Path) -> Path:
        """Move a filled scratch folder to its key's place; a folder that is there already stays."""
        place = self._subjects / key
        if place.is_dir():
            shutil.rmtree(filled, ignore_errors=True)
        else:
            os.replace(filled, place)
        return place

    def sweep(self) -> None:
        """Remove what killed workers left in the scratch folder over a day ago (another parent may live)."""
        for path in self._scratch.iterdir():
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
