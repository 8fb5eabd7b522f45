"""What every corpus shares: the exchangeable split into parts, checks of sizes, and the user's cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import platformdirs

from workbench.core.errors import InputError, RoomError
from workbench.interfaces import Record

T = TypeVar("T")

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
        """How many records all parts take together."""
        return sum(self)


def checked_count(name: str, value: int, minimum: int = 1) -> int:
    """The value; an `InputError` unless it is an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return value


def part_sizes(size: int, held_out: int | None, public: int | None) -> Sizes:
    """Sizes of a corpus's parts, from the parameters that all corpora share.

    `size`: number of candidate records. `held_out`: number of held-out records; None for a quarter of `size`,
    at least 64. `public`: number of public records, which attacks treat as known to anyone; None likewise.
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
    """The generator that all draws of a corpus come from."""
    return np.random.default_rng(checked_count("seed", seed, minimum=0))


def pick(options: Sequence[T], generator: np.random.Generator) -> T:
    """One of the options, each as likely."""
    return options[int(generator.integers(len(options)))]


def given_path(path: str | None, corpus: str) -> str:
    """The path that a corpus cannot do without."""
    if path is None:
        raise InputError(f"path must be given for corpus {corpus!r}")
    return path


def majority(positive: float, records: str) -> str:
    """The share of the more frequent of two labels, in words."""
    share, name = (positive, "positive") if positive >= 0.5 else (1 - positive, "negative")
    return f"{100 * share:.1f} % of {records} {name}"


def require(sizes: Sizes, available: int, what: str) -> None:
    """Refuse a finite corpus that is too small; the message says how many records there are."""
    if sizes.total > available:
        raise RoomError("size", sizes, f"{what} has {available}")


class Parts(NamedTuple):
    """The three disjoint parts of a corpus."""

    records: tuple[Record, ...]
    held_out: tuple[Record, ...]
    public: tuple[Record, ...]


def split(records: Sequence[Record], sizes: Sizes, generator: np.random.Generator, what: str) -> Parts:
    """Split by one uniform permutation, so that every record is as likely in each part as any other."""
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


def cached_json(name: str, key: object, collect: Callable[[], Any], is_whole: Callable[[Any], bool]) -> Any:
    """Return what `collect` gave for this key before, from the user's cache, or else collect it.

    Args:
        name: Beginning of the file's name.
        key: Plain data that decides the content.
        collect: Makes the content, plain data.
        is_whole: False for content that is to be collected anew.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    place = cache_folder() / f"{name}-{digest}.json.gz"
    try:
        content = json.loads(gzip.decompress(place.read_bytes()))
    except (OSError, EOFError, ValueError):
        content = None  # not there, or damaged
    if content is not None and is_whole(content):
        return content
    content = collect()
    write_atomically(place, gzip.compress(json.dumps(content).encode(), mtime=0))
    return content


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
