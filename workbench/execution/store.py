"""One atomic record per key: what was done is found again, and a killed run leaves nothing half-written.

A record is a JSON file that carries its own checksum, written beside its place and renamed into it. A file
that was cut short or edited fails its checksum and counts as absent, so the work is done again. Weights lie
in a folder per key with a manifest of their checksums, renamed into place as a whole; a folder that lost
something counts as absent too. Any number of parents may share a store: each fills a scratch folder of its
own, and what one of them has put in place, the others leave there.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError
from workbench.core.keys import JSON, plain
from workbench.core.outputs import UMASK

STALE_SECONDS = 24 * 3600.0
"""Age from which what nobody ever locked counts as left behind."""

MANIFEST_FILE = "manifest.json"
LOCK_FILE = "lock"

_HEAD, _MIDDLE, _TAIL = b'{"sha256": "', b'", "content": ', b"}"
_DIGEST_END = len(_HEAD) + 64


class StoreError(InputError):
    """The store's own place fails (no space, no permission): no fault of the job that met it."""


class _OwnScratch:
    """A locked folder in which one parent keeps its scratch folders.

    The lock dies with the process, however it dies, so that another parent knows what was left behind.
    """

    def __init__(self, scratch: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=scratch))
        locking = self.folder / f".{LOCK_FILE}"
        handle = _locked(locking)
        os.replace(locking, self.folder / LOCK_FILE)  # From here on, whoever sees the lock finds it held.
        self.close = weakref.finalize(self, _end_scratch, self.folder, handle, os.getpid())


def _locked(path: Path) -> int:
    """A handle that holds the lock on a file; where the disk knows no locks, one that holds none."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            os.close(handle)
            raise
    return handle


def _end_scratch(folder: Path, handle: int, owner: int) -> None:
    """Remove a parent's own scratch; a forked child that inherited the object leaves it alone."""
    if os.getpid() == owner:
        _remove_scratch(folder)
    os.close(handle)


def _remove_scratch(folder: Path) -> None:
    """Remove a parent's scratch, its lock last: while dying workers add to it, a later sweep has to do it."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name == LOCK_FILE:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            (folder / LOCK_FILE).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def _is_abandoned(folder: Path) -> bool:
    """True where the parent that locked this folder is dead, or where an unlocked one is old."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return _is_stale(folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _is_stale(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > STALE_SECONDS
    except OSError:
        return False  # Somebody else is sweeping too.


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    """The files of a subject, but its manifest, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST_FILE)


class Store:
    """A folder of records and trained subjects.

    `folder`: made if it is missing. Raises `StoreError`: the folder cannot be made, or is a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records = folder / "records"
        self._subjects = folder / "subjects"
        self._scratch = folder / "scratch"
        self._own_scratch: _OwnScratch | None = None
        self._intact: dict[str, list[tuple[str, int, int]]] = {}
        try:
            for path in (self._records, self._subjects, self._scratch):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot use {folder} as a store: {error.strerror or error}") from error

    def read(self, key: str) -> dict[str, JSON] | None:
        """The record of a key, or None where it is missing or damaged."""
        try:
            wrapped = (self._records / f"{key}.json").read_bytes()
        except OSError:
            return None
        text = wrapped[_DIGEST_END + len(_MIDDLE) : -len(_TAIL)]
        # The checksum is of the bytes as they lie there: a study reads thousands of records.
        if wrapped != b"".join((_HEAD, hashlib.sha256(text).hexdigest().encode(), _MIDDLE, text, _TAIL)):
            return None
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):  # The right checksum of what is no JSON.
            return None
        return content if isinstance(content, dict) else None

    def has(self, key: str) -> bool:
        """True where the key has an undamaged record."""
        return self.read(key) is not None

    def append(self, key: str, record: Mapping[str, Any]) -> dict[str, JSON]:
        """Write the record of a key and return its plain form.

        Raises `StoreError`: the store cannot be written.
        """
        content = plain(record)
        text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        wrapped = b"".join((_HEAD, hashlib.sha256(text).hexdigest().encode(), _MIDDLE, text, _TAIL))
        written: Path | None = None
        try:
            written = self._own() / f"{key}.json"
            with written.open("wb") as file:
                file.write(wrapped)
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, self._records / written.name)
        except OSError as error:
            if written is not None:
                written.unlink(missing_ok=True)
            raise self._failure(error) from error
        return dict(content)

    def records(self) -> Iterator[tuple[str, dict[str, JSON]]]:
        """All undamaged records, by key, sorted."""
        for path in sorted(self._records.glob("*.json")):
            content = self.read(path.stem)
            if content is not None:
                yield path.stem, content

    def subject_folder(self, key: str) -> Path | None:
        """The folder of a key's weights, or None where they are missing or damaged.

        Checksums are read once for each state of the files (names, sizes, times), so asking is cheap.
        """
        folder = self._subjects / key
        try:
            state = [
                (str(path.relative_to(folder)), (found := path.stat()).st_size, found.st_mtime_ns)
                for path in _files(folder)
            ]
            if self._intact.get(key) != state:
                manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
                files = {name: _checksum(folder / name) for name, _, _ in state}
                if manifest != {"key": key, "files": files}:
                    return None
                self._intact[key] = state
        except (OSError, ValueError):
            return None
        return folder

    def scratch_folder(self) -> Path:
        """A new empty folder on the store's disk, for a worker to fill; it goes when this object does.

        Raises `StoreError`: it cannot be made.
        """
        try:
            return Path(tempfile.mkdtemp(dir=self._own()))
        except OSError as error:
            raise self._failure(error) from error

    def adopt_subject(self, key: str, filled: Path) -> Path:
        """Move a filled scratch folder to its key's place, with a manifest of its files.

        An undamaged folder that is there already stays, also where another parent puts it there at the same
        moment; a damaged one makes room. Raises `StoreError`: the store cannot be written.
        """
        place = self._subjects / key
        try:
            files = {str(path.relative_to(filled)): _checksum(path) for path in _files(filled)}
            # The key stands in it, so that a folder under another's name counts as damaged.
            manifest = {"key": key, "files": files}
            (filled / MANIFEST_FILE).write_text(json.dumps(manifest), encoding="utf-8")
            os.chmod(filled, 0o777 & ~UMASK)
            handle = _locked(self.folder / LOCK_FILE)
            try:
                if self.subject_folder(key) is None:
                    if place.exists():
                        os.rename(place, self.scratch_folder() / "damaged")
                    os.rename(filled, place)
            finally:
                os.close(handle)
        except OSError as error:
            raise self._failure(error) from error
        shutil.rmtree(filled, ignore_errors=True)
        return place

    def sweep(self) -> None:
        """Remove what dead parents left behind; what living ones are filling stays."""
        for path in self._scratch.iterdir():
            if _is_abandoned(path):
                _remove_scratch(path)

    def close(self) -> None:
        """Remove this parent's own scratch; it comes back if it is needed again."""
        if self._own_scratch is not None:
            self._own_scratch.close()
            self._own_scratch = None

    def _own(self) -> Path:
        """The folder on the store's disk that this parent alone writes to, until it moves things on."""
        if self._own_scratch is None:
            self._own_scratch = _OwnScratch(self._scratch)
        return self._own_scratch.folder

    def _failure(self, error: BaseException) -> StoreError:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        return StoreError(f"cannot write to store {self.folder}: {reason}")
