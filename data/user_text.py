"""Text that the user brings: JSONL, CSV or plain text by path, and folders of Hugging Face datasets.

The user's file is one sample of unknown order, so candidates, held-out and public records are split from it
by one random permutation; exact repetitions are dropped first.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.data.shared.arrow import dataset_rows
from workbench.data.shared.parts import Sizes, checked_seed, part_sizes, split, without_duplicates
from workbench.interfaces import Corpus, Record

Row = tuple[str, Mapping[str, Any]]
"""Where a row stands ("line 3 of 'x.csv'"), and its fields."""

LONGEST_CELL = 2**27
"""Characters of a CSV cell; Python's own limit of 131,072 would refuse long documents."""

PLAIN_FIELD = "text"
"""The one field of plain text: each line that is not blank is a record."""


def _field(row: Row, name: str, argument: str) -> Any:
    """A row's field, with "did you mean" where it is missing."""
    where, fields = row
    if name in fields:
        return fields[name]
    close = get_close_matches(name, list(fields), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, fields)) or 'no field'}"
    raise InputError(f"{argument} {name!r} is not a field of {where}; {hint}")


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"line {number} of {str(path)!r}"
            try:
                fields = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
            if not isinstance(fields, dict):
                raise InputError(f"{where} must be a JSON object, got {type(fields).__name__}")
            yield where, fields


def _csv_rows(path: Path) -> Iterator[Row]:
    previous = csv.field_size_limit(LONGEST_CELL)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.reader(stream, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
            header = next(rows, [])
            for row in rows:
                where = f"line {rows.line_num} of {str(path)!r}"
                if row and len(row) != len(header):
                    raise InputError(f"{where} has {len(row)} cells, the header {len(header)}")
                if row:
                    yield where, dict(zip(header, row, strict=True))
    finally:
        csv.field_size_limit(previous)


def _plain_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield f"line {number} of {str(path)!r}", {PLAIN_FIELD: line}


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".txt": _plain_rows,
}
"""How a file is read, by its ending."""


def read_file(path: str | Path) -> list[Row]:
    """All rows of a JSONL, CSV, TSV or plain text file (one record a line).

    Raises:
        InputError: the file is missing, unreadable, of an unknown kind, or has a bad row.
    """
    file = Path(path)
    if file.suffix not in READERS:
        raise InputError(f"path must end in {', '.join(READERS)}, got {str(file)!r}")
    if not file.is_file():
        raise InputError(f"path must be an existing file, got {str(file)!r}")
    try:
        return list(READERS[file.suffix](file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"path {str(file)!r} cannot be read: {error}") from error


def _label(value: Any, where: str) -> str:
    """A label in its written form."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if not isinstance(value, str | int) or not str(value).strip():
        raise InputError(f"label_field of {where} must hold an integer or a name, got {value!r}")
    return str(value).strip()


def _numbered(labels: Sequence[str]) -> list[int]:
    """Labels as 0 .. k-1: in the order of their values if all are integers, else of their names."""
    distinct = set(labels)
    try:
        order = sorted(distinct, key=int)
    except ValueError:
        order = sorted(distinct)
    numbers = {label: i for i, label in enumerate(order)}
    return [numbers[label] for label in labels]


def to_records(rows: Iterable[Row], prefix: str, text_field: str, label_field: str | None) -> list[Record]:
    """Records of the rows, their ids numbered from 1 in the order of the file.

    Distinct labels become 0 .. k-1, in the order of their values (integers) or of their names.

    Raises:
        InputError: a field is missing, a text is empty or not a string, or a label is unusable.
    """
    texts: list[str] = []
    written: list[str] = []
    for row in rows:
        text = _field(row, text_field, "text_field")
        if not isinstance(text, str):
            raise InputError(f"text_field {text_field!r} of {row[0]} must hold text, got {text!r}")
        if not text.strip():
            raise InputError(f"text_field {text_field!r} of {row[0]} is empty")
        texts.append(text.strip())
        if label_field is not None:
            written.append(_label(_field(row, label_field, "label_field"), row[0]))
    labels: Sequence[int | None] = [None] * len(texts) if label_field is None else _numbered(written)
    return [
        Record(id=f"{prefix}-{i:06d}", text=text, label=label)
        for i, (text, label) in enumerate(zip(texts, labels, strict=True), start=1)
    ]


def _corpus(name: str, records: Sequence[Record], sizes: Sizes, seed: int, path: str) -> Corpus:
    distinct = without_duplicates(records)
    parts = split(distinct, sizes, checked_seed(seed), f"{path!r} (repeated texts dropped)")
    labels = {record.label for record in records if record.label is not None}
    origin = f"the user's {Path(path).name}, {len(records)} records, {len(distinct)} distinct"
    return Corpus(name=name, kind="text", classes=len(labels), origin=origin, **parts._asdict())


@register("corpus", "text_file")
def text_file(
    *,
    size: int,
    seed: int,
    path: str | None = None,
    text_field: str = PLAIN_FIELD,
    label_field: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """Your own text: a JSONL, CSV, TSV or plain text file (a record a line), given by path=.

    Args:
        size: Number of candidate records.
        seed: Seed of the split.
        path: The file; its ending (.jsonl, .ndjson, .csv, .tsv, .txt) says how it is read.
        text_field: Field or column of the text.
        label_field: Field or column of the label; None for records without labels.
        held_out: Number of held-out records; a quarter of `size`, at least 64, if None.
        public: Number of public records, likewise. They are taken from the same file, so the attacks
            treat them as known to anyone.

    Raises:
        InputError: a parameter, the file or one of its rows is unusable; the message names the row.
    """
    sizes = part_sizes(size, held_out, public)
    if path is None:
        raise InputError("path must be given for corpus 'text_file'")
    records = to_records(read_file(path), "text_file", text_field, label_field)
    return _corpus("text_file", records, sizes, seed, path)


@register("corpus", "huggingface_dataset")
def huggingface_dataset(
    *,
    size: int,
    seed: int,
    path: str | None = None,
    part: str | None = None,
    text_field: str = PLAIN_FIELD,
    label_field: str | None = None,
    held_out: int | None = None,
    public: int | None = None,
) -> Corpus:
    """A local Hugging Face dataset: a folder from save_to_disk, or of Parquet or Arrow files, by path=.

    Args:
        size: Number of candidate records.
        seed: Seed of the split.
        path: The folder. It is read with pyarrow; the `datasets` package is not needed.
        part: Which split of a dataset dict ("train", ...); needed where the folder holds several.
        text_field: Column of the text.
        label_field: Column of the label; None for records without labels.
        held_out: Number of held-out records; a quarter of `size`, at least 64, if None.
        public: Number of public records, likewise.

    Raises:
        InputError: a parameter, the folder or one of its rows is unusable.
    """
    sizes = part_sizes(size, held_out, public)
    if path is None:
        raise InputError("path must be given for corpus 'huggingface_dataset'")
    columns = [text_field] if label_field is None else [text_field, label_field]
    rows = dataset_rows(Path(path), part, columns)
    return _corpus(
        "huggingface_dataset", to_records(rows, "dataset", text_field, label_field), sizes, seed, path
    )
