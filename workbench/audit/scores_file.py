"""Reads attack scores from a CSV (also gzipped), NPZ or Parquet file, and checks those that a program holds.

Columns: `score` (a finite number), `member` (0 or 1; in CSV also true and false), and optionally `id`
(unique) and `text` (what was scored, for the check that members and non-members cannot be told apart
without a model). Other columns are ignored. Nothing in the file is ever executed: NPZ arrays of Python
objects are refused. Errors name the file, the column and the data row, counted from 1 without the header.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.core.arguments import plain_float
from workbench.core.errors import ArgumentError, InputError, unknown_name
from workbench.core.one_line import one_line
from workbench.interfaces import BoolArray, FloatArray

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIRED = ("score", "member")
OPTIONAL = ("id", "text")
_MEMBERS = {"0": False, "1": True, "false": False, "true": True, "0.0": False, "1.0": True}


@dataclass(frozen=True, kw_only=True)
class ScoresFile:
    """The checked content of a scores file.

    Attributes:
        scores: Finite, not all equal, shape `(n,)`; the user says whether high means member.
        members: True where the record was trained on, shape `(n,)`; both values occur.
        ids, texts: One a row (ids unique), or empty where the file has none.
    """

    scores: FloatArray
    members: BoolArray
    ids: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def read_scores(path: str | Path) -> ScoresFile:
    """Read and check a scores file, by its ending: `.csv`, `.csv.gz`, `.npz` or `.parquet`.

    Raises `InputError`: the file is missing, unreadable, of another type, or holds no usable membership game.
    """
    path = Path(path)
    ending = "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:])
    reader = _READERS.get(ending.lower())
    if reader is None:
        known = ", ".join(_READERS)
        raise ArgumentError("scores", f"must end in one of {known}, got {str(path)!r}")
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise ArgumentError("scores", f": file {str(path)!r} {problem}")
    return checked_columns(path, reader(path))


Column = Sequence[Any] | npt.NDArray[Any]

Source = Path | Mapping[str, str]
"""A file, or the names of the arguments that hold the columns."""


def checked_columns(source: Source, columns: Mapping[str, Column]) -> ScoresFile:
    """Check columns of scores, by their names in a file.

    `source`: what held them, for errors. Raises `InputError`: they hold no usable
    membership game.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        where = str(source) if isinstance(source, Path) else " and ".join(source[name] for name in lengths)
        raise InputError(one_line(f"{where}: columns must have one length, got {lengths}"))
    scores = _scores(source, columns["score"])
    members = _members(source, columns["member"])
    ids = _ids(source, columns["id"]) if "id" in columns else ()
    texts = tuple(_text(value) for value in columns["text"]) if "text" in columns else ()
    return ScoresFile(scores=scores, members=members, ids=ids, texts=texts)


def _problem(path: Path, message: str) -> InputError:
    return InputError(one_line(f"{path}: {message}"))


def _in_column(source: Source, name: str, message: str, *, row: int | None = None) -> InputError:
    """A problem with a column, or with one of its rows, counted from 1."""
    if isinstance(source, Path):
        place = f"{source}: column {name!r}" + (f", row {row}" if row else "")
    else:
        place = source[name] + (f"[{row - 1}]" if row else "")
    return InputError(one_line(f"{place}{message}"))


@contextmanager
def _unreadable(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a parser raises on a corrupt file into one line.

    Parsers promise no closed list of exceptions for damaged input (zlib, zipfile, struct, tokenizer and
    memory errors all occur), hence `Exception`.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        detail = one_line(str(error), longest=200)
        raise _problem(path, f"is not a readable {kind} file ({type(error).__name__}: {detail})") from error


def _wanted(path: Path, names: Sequence[str]) -> list[str]:
    """The columns to read; refuses names that repeat or are missing."""
    for name in (*REQUIRED, *OPTIONAL):
        if names.count(name) > 1:
            raise _problem(path, f"column {name!r} occurs {names.count(name)} times")
    for name in REQUIRED:
        if name not in names:
            is_named = any(given.strip() for given in names)
            known = str(unknown_name("column", name, names)).partition(";")[2]
            hint = known if is_named else " it has no columns"
            raise _problem(path, f"column {name!r} is missing;{hint}")
    return [name for name in (*REQUIRED, *OPTIONAL) if name in names]


def _read_csv(path: Path) -> dict[str, Column]:
    """Comma-separated text in UTF-8 with a header; a byte-order mark and quoted fields are fine."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with _unreadable(path, "CSV"), opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = (row for row in csv.reader(file, strict=True) if row)
        header = [name.strip() for name in next(rows, [])]
        if len(header) == 1 and {";", "\t"} & set(header[0]):
            raise _problem(path, f"its columns must have commas between them, got {header[0]!r}")
        places = {name: header.index(name) for name in _wanted(path, header)}
        columns: dict[str, list[str]] = {name: [] for name in places}
        for number, row in enumerate(rows, start=1):
            if len(row) != len(header):
                raise _problem(path, f"row {number} has {len(row)} fields, the header has {len(header)}")
            for name, place in places.items():
                columns[name].append(row[place])
    return dict(columns)


def _read_npz(path: Path) -> dict[str, Column]:
    """Arrays named like the columns, each of shape `(n,)`; never unpickled."""
    columns: dict[str, Any] = {}
    # The open file is ours: numpy leaves a file that it opened itself open where the archive is damaged.
    with _unreadable(path, "NPZ"), path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # Anything else numpy would take for a pickle.
            raise _problem(path, "is not a readable NPZ file (it is no archive of arrays)")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            for name in _wanted(path, archive.files):
                columns[name] = _array(path, name, archive)
    for name, column in columns.items():
        if not isinstance(column, np.ndarray):
            raise _problem(path, f"column {name!r} is not an array")
        if column.ndim != 1:
            raise _problem(path, f"column {name!r} must have one dimension, got shape {column.shape}")
        allowed = "biuf" if name in REQUIRED else "biufU"
        if column.dtype.kind not in allowed:
            raise _problem(path, f"column {name!r} has unusable type {column.dtype}")
    return dict(columns)


def _array(path: Path, name: str, archive: Any) -> Any:
    """One array of an archive, whose refusal of Python objects numpy words as advice to unpickle them."""
    try:
        return archive[name]
    except ValueError as error:
        reason = f"column {name!r} is damaged, or of Python objects, which are never loaded"
        raise _problem(path, f"is not a readable NPZ file ({reason})") from error


def _read_parquet(path: Path) -> dict[str, Column]:
    """Columns of a Parquet file; one file, no partitions guessed from folder names."""
    from pyarrow import parquet

    with _unreadable(path, "Parquet"), parquet.ParquetFile(path) as file:
        names = _wanted(path, file.schema_arrow.names)
        table = file.read(columns=names)
        return {name: table.column(name).to_pylist() for name in names}


_READERS: Mapping[str, Callable[[Path], dict[str, Column]]] = {
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".npz": _read_npz,
    ".parquet": _read_parquet,
}


def _scores(source: Source, column: Column) -> FloatArray:
    """The scores as float64, finite and not constant."""
    if isinstance(column, np.ndarray):
        scores = column.astype(np.float64)
    else:
        scores = np.array(
            [_score(source, row, value) for row, value in enumerate(column, 1)], dtype=np.float64
        )
    if scores.size == 0:
        raise _in_column(source, "score", " has no rows")
    for row in np.flatnonzero(~np.isfinite(scores)):
        raise _in_column(source, "score", row=int(row) + 1, message=f": must be finite, got {scores[row]}")
    if np.all(scores == scores[0]):
        differ = any(type(value) is not str and value != column[0] for value in column)
        reason = "has values that floats do not tell apart" if differ else "is constant"
        raise _in_column(source, "score", f" {reason} ({scores[0]:g} in all {scores.size} rows)")
    return scores


def _score(source: Source, row: int, value: Any) -> float:
    try:
        return plain_float(value)
    except (TypeError, ValueError, OverflowError) as error:
        kind = "finite" if isinstance(error, OverflowError) else "a number"
        message = f": must be {kind}, got {_shown(value)}"
        raise _in_column(source, "score", message, row=row) from None


def _members(source: Source, column: Column) -> BoolArray:
    """The labels; both kinds must occur."""
    members = np.empty(len(column), dtype=np.bool_)
    for row, value in enumerate(column, 1):
        # str() maps the labels of every file type onto the few spellings that mean zero or one.
        label = _MEMBERS.get(str(value).strip().lower())
        if label is None:
            message = f": must be 0 or 1, or false or true, got {_shown(value)}"
            raise _in_column(source, "member", message, row=row)
        members[row - 1] = label
    if members.size and (members.all() or not members.any()):
        only = "members" if members[0] else "non-members"
        raise _in_column(source, "member", f": all {members.size} rows are {only}; both are needed")
    return members


def _ids(source: Source, column: Iterable[Any]) -> tuple[str, ...]:
    """The ids as text, each once."""
    first: dict[str, int] = {}
    for row, value in enumerate(column, 1):
        name = _text(value)
        if name in first:
            message = f": {_shown(name)} occurs in row {first[name]} already"
            raise _in_column(source, "id", message, row=row)
        first[name] = row
    return tuple(first)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _shown(value: Any) -> str:
    """A value in a message: on one line, and short."""
    return one_line(repr(value.item() if isinstance(value, np.generic) else value), longest=60)
