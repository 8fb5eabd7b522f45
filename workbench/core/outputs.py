"""Output files: unwritable places are refused before any work starts, and files are written whole."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from workbench.core.errors import ArgumentError, InputError

UMASK = os.umask(0o022)
"""The process's file mode mask: temporary files ignore it, and files that are kept must not."""
os.umask(UMASK)  # It can be read only by setting it.

_REASONS = {
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "read-only file system",
    errno.ENOENT: "no file can be made there",  # What /proc answers of every new name.
}
"""Words for why no file can be made, by the system's error."""


def require_file_place(flag: str, path: Path) -> None:
    """Raises `InputError` where no regular file can be written; a missing folder will be made.

    `flag` is the option that named the place, for the message.
    """
    require_no_circle(flag, path)
    if path.is_dir():
        raise ArgumentError(flag, f"must be a file, got the folder {str(path)!r}")
    require_reachable(flag, path)
    if path.exists() and not path.is_file():
        raise ArgumentError(flag, f"must be a regular file, got {str(path)!r}")


def require_folder_place(flag: str, path: Path) -> None:
    """Raises `InputError` where no folder can be made, or written to."""
    require_no_circle(flag, path)
    if path.exists() and not path.is_dir():
        raise ArgumentError(flag, f"must be a folder, got the file {str(path)!r}")
    require_reachable(flag, path)


def require_reachable(flag: str, path: Path) -> None:
    """Raises `InputError` for a place below something other than a folder, or in which no file can be made.

    A missing folder is not made: the nearest one that exists is tried, and nothing is left there.
    """
    require_no_circle(flag, path)
    place = path.absolute()
    ancestor = next(parent for parent in (place, *place.parents) if parent.exists())
    if ancestor != place and not ancestor.is_dir():
        raise ArgumentError(flag, f"{str(path)!r} lies below {str(ancestor)!r}, which is not a folder")
    # A link's file is written where the link leads.
    target = Path(os.path.realpath(place))
    start = target if target.is_dir() else target.parent
    nearest = next(parent for parent in (start, *start.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, str(error.strerror or error))
        raise ArgumentError(flag, f"{str(path)!r} cannot be written: {reason}") from error


def require_no_circle(flag: str, path: Path) -> None:
    """Raises `InputError` where symbolic links lead in a circle, or the name is longer than the system's."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise ArgumentError(flag, f"{str(path)!r} cannot be opened: {error.strerror}") from error


def require_distinct(places: Mapping[str, Path | None]) -> None:
    """Raises `InputError` where an output would overwrite an input or another output.

    `places` maps options to their files; None where an option named none.
    """
    seen: dict[Path, str] = {}
    for flag, path in places.items():
        if path is None:
            continue
        require_no_circle(flag, path)
        first = seen.setdefault(Path(os.path.realpath(path)), flag)
        if first != flag:
            raise ArgumentError(flag, f"and {first} are the same file {str(path)!r}")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, so that a reader sees the old content or the new, never a part.

    Raises `InputError`: the place cannot be written (no space, no permission, a file where a folder should
    be).
    """
    write_together({path: content})


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """Writes files as `write_atomically` does; where there is no room for one, none is changed."""
    made: list[tuple[Path, Path]] = []
    try:
        for place, content in contents.items():
            path = Path(os.path.realpath(place))  # A link stays a link, to a file with new content.
            with _writing(path):
                # A name of the longest length that files may have leaves no room for more.
                handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
                made.append((Path(name), path))
                with os.fdopen(handle, "wb") as file:
                    file.write(content.encode() if isinstance(content, str) else content)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(name, 0o666 & ~UMASK)
        for temporary, path in made:
            with _writing(path):
                os.replace(temporary, path)
    finally:
        for temporary, _ in made:
            temporary.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Makes the file's folder, and an error of the system an `InputError` that names the file."""
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is not a regular file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
