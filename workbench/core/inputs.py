"""Input files: a device or a pipe, which may never end, is refused before it is opened.

>>> parsed_json("[" * 100_000)
Traceback (most recent call last):
    ...
ValueError: nested too deeply
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 1_000_000_000
"""A larger file of text is taken for a mistake."""


def require_regular(path: Path) -> None:
    """Raises `OSError`, as opening does where nothing or a folder is there, and for a device or a pipe."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a file of at most so many bytes. Raises `OSError`."""
    require_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)  # Some files of the system say that they hold nothing.
    if len(content) > most:
        raise OSError(errno.EFBIG, f"More than {most} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Returns the text of a file in UTF-8, without a byte-order mark, its lines ended alike.

    Raises `OSError`; `UnicodeDecodeError`.
    """
    return read_bytes(path, most).decode("utf-8-sig").replace("\r\n", "\n")


def parsed_json(text: str | bytes) -> Any:
    """Returns what a JSON text says. Raises `ValueError`, also where Python's own parser raises another."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
