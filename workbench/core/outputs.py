"""Output files: places that cannot be written are refused before any work, and files are written whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from workbench.core.errors import InputError

UMASK = os.umask(0o022)
"""The process's own: temporary files ignore it, and files that are kept must not."""
os.umask(UMASK)  # It can be read only by setting it.


def require_file_place(flag: str, path: Path) -> None:
    """Refuse a place where no file can be written; a missing folder will be made.

    Args:
        flag: The option that named the place, for the message.
        path: Where a regular file is to be written, or replaced.

    Raises:
        InputError: there is a folder, a device or another special file; or it cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{flag} must be a file, got the folder {str(path)!r}")
    require_reachable(flag, path)
    if path.exists() and not path.is_file():
        raise InputError(f"{flag} must be a regular file, got {str(path)!r}")


def require_reachable(flag: str, path: Path) -> None:
    """Refuse a place below something that is no folder, or in a folder without permission to write.

    Raises:
        InputError: it is such a place.
    """
    place = path.absolute()
    ancestor = next(parent for parent in (place, *place.parents) if parent.exists())
    if ancestor != place and not ancestor.is_dir():
        raise InputError(f"{flag} {str(path)!r} lies below {str(ancestor)!r}, which is not a folder")
    if not os.access(ancestor if ancestor.is_dir() else ancestor.parent, os.W_OK):
        raise InputError(f"{flag} {str(path)!r} cannot be written: no permission")


def require_distinct(places: Mapping[str, Path | None]) -> None:
    """Refuse an output that would overwrite an input, or another output.

    Args:
        places: Files by the option that named them; None where it named none.

    Raises:
        InputError: two of them are the same file.
    """
    seen: dict[Path, str] = {}
    for flag, path in places.items():
        if path is None:
            continue
        first = seen.setdefault(path.resolve(), flag)
        if first != flag:
            raise InputError(f"{flag} and {first} are the same file {str(path)!r}")


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
            os.chmod(name, 0o666 & ~UMASK)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
