"""What every corpus shares: the exchangeable split into parts, checks of sizes, and the user's cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import platformdirs

from workbench.core.errors import InputError
from workbench.interfaces import Record

SMALLEST_PART = 64
"""Default floor of `held_out` and `public`; above it they hold a quarter of the candidates each."""

CACHE_VARIABLE = "WORKBENCH_CACHE"

MOST_CANDIDATES = 10_000_000
"""More records than that do not fit into a machine's memory, where a generator would make as many."""


class Sizes(NamedTuple):
    """Numbers of records of the three parts of a corpus."""

    candidates: int
    held_out: int
    public: int

    @property
    def total(self) -> int:
        """Records needed in all."""
        return sum(self)


def checked_count(name: str, value: int, minimum: int = 1) -> int:
    """An integer that is at least `minimum`.

    Raises:
        InputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return value


def part_sizes(size: int, held_out: int | None, public: int | None) -> Sizes:
    """Sizes of the parts, with a quarter of `size`, at least 64, where none is given.

    Raises:
        InputError: a size is not an integer, or too small.
    """
    candidates = checked_count("size", size)
    if candidates > MOST_CANDIDATES:
        raise InputError(f"size must be at most {MOST_CANDIDATES}, got {candidates}")
    default = max(SMALLEST_PART, candidates // 4)
    return Sizes(
        candidates=candidates,
        held_out=default if held_out is None else checked_count("held_out", held_out, minimum=0),
        public=default if public is None else checked_count("public", public, minimum=0),
    )


def checked_seed(seed: int) -> np.random.Generator:
    """The generator that all draws of a corpus come from.

    Raises:
        InputError: the seed is not a non-negative integer.
    """
    return np.random.default_rng(checked_count("seed", seed, minimum=0))


def require(sizes: Sizes, available: int, what: str) -> None:
    """Check that a finite corpus is large enough.

    Raises:
        InputError: it is not; the message says how many records there are.
    """
    if sizes.total > available:
        raise InputError(
            f"size must leave room for held_out and public: {sizes.candidates} + {sizes.held_out} + "
            f"{sizes.public} records wanted, {what} has {available}"
        )


class Parts(NamedTuple):
    """The three disjoint parts of a corpus."""

    records: tuple[Record, ...]
    held_out: tuple[Record, ...]
    public: tuple[Record, ...]


def split(records: Sequence[Record], sizes: Sizes, generator: np.random.Generator, what: str) -> Parts:
    """Split by one uniform permutation, so that every record is as likely in each part as any other.

    Raises:
        InputError: there are too few records.
    """
    require(sizes, len(records), what)
    order = generator.permutation(len(records))[: sizes.total]
    chosen = [records[i] for i in order]
    first, second = sizes.candidates, sizes.candidates + sizes.held_out
    return Parts(tuple(chosen[:first]), tuple(chosen[first:second]), tuple(chosen[second:]))


def normal_form(text: str) -> str:
    """The text with case and white space levelled: what counts as the same text."""
    return " ".join(text.split()).casefold()


def without_duplicates(records: Iterable[Record]) -> list[Record]:
    """The records whose text (or image) did not occur before, in order."""
    seen: set[str | tuple[float, ...] | None] = set()
    kept: list[Record] = []
    for record in records:
        key = normal_form(record.text) if record.image is None else record.image
        if key not in seen:
            seen.add(key)
            kept.append(record)
    return kept


def cache_folder() -> Path:
    """The folder for downloads and derived data: `WORKBENCH_CACHE`, or the user's cache; created."""
    given = os.environ.get(CACHE_VARIABLE)
    folder = Path(given) if given else Path(platformdirs.user_cache_dir("lm-privacy-workbench"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{CACHE_VARIABLE} must be a writable folder, got {folder}: {error.strerror}"
        ) from error
    return folder


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the place and rename, so that a killed run leaves no half-written file."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
