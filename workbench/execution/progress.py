"""How far a job on a pool is: its worker writes a small file into the scratch folder, the parent reads it.

What is told is for the eye alone: nothing depends on it, and the file is gone before the job ends.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Told = Callable[[str, int, int], None]
"""Called with a part's name, what of it is done, and what there is in all."""

FILE = "progress.json"
LEAST_SECONDS = 0.5
"""Between two tellings."""


def unheard(part: str, done: int, total: int) -> None:
    """Nobody listens."""


@contextmanager
def told_in(folder: Path | None, subject: str) -> Iterator[Told]:
    """A way to tell, for the length of the context.

    Args:
        folder: The job's scratch folder; None where nobody listens.
        subject: Who is at work, set before each part's name.
    """
    if folder is None:
        yield unheard
        return
    place, last = folder / FILE, 0.0

    def tell(part: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LEAST_SECONDS and done < total:
            return
        last = now
        fresh = place.with_suffix(".new")
        fresh.write_text(json.dumps([f"{subject}, {part}", done, total]), encoding="utf-8")
        os.replace(fresh, place)

    try:
        yield tell
    finally:
        place.unlink(missing_ok=True)


def heard_in(folder: Path) -> tuple[str, int, int] | None:
    """What a job told last; None where it tells nothing."""
    try:
        part, done, total = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(part), int(done), int(total)
