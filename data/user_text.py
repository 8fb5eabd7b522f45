"""The user's own text: JSONL, CSV, Parquet or plain text by path, and folders of Hugging Face datasets.

The user's file is one sample of unknown order, so candidates, held-out and public records are split from it
by one random permutation; exact repetitions are dropped first. Datasets are read with pyarrow alone:
`Dataset.save_to_disk` writes `state.json`, which lists Arrow stream files, `DatasetDict.save_to_disk` writes
`dataset_dict.json` and one such folder for each split, and exported datasets are plain Parquet files.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.core.errors import InputError, unknown_name
from workbench.core.inputs import parsed_json, read_text
from workbench.core.one_line import one_line
from workbench.core.registry import register
from workbench.data.shared.parts import Sizes, checked_seed, given_path, part_sizes, split, without_duplicates
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
                fields = parsed_json(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
            except ValueError as error:
                raise InputError(f"{where} is not JSON: {error}") from error
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


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise InputError(one_line(f"path {str(path)!r} cannot be read: {error}")) from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number} of {str(path)!r}", row


READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".txt": _plain_rows,
    ".parquet": _parquet_rows,
}
"""How a file is read, by its ending."""


def read_file(path: str | Path) -> list[Row]:
    """All rows of a JSONL, CSV, TSV, Parquet or plain text file (one record a line)."""
    file = Path(path)
    if file.suffix not in READERS:
        raise InputError(f"path must end in {', '.join(READERS)}, got {str(file)!r}")
    if not file.is_file():
        raise InputError(f"path must be an existing file, got {str(file)!r}")
    try:
        return list(READERS[file.suffix](file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(one_line(f"path {str(file)!r} cannot be read: {error}")) from error


# Folders of Hugging Face datasets


def _json(path: Path) -> dict[str, Any]:
    try:
        content = parsed_json(read_text(path))
    except (OSError, ValueError) as error:
        raise InputError(f"path holds an unreadable {path.name}: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"path holds a {path.name} that is not a JSON object")
    return content


def _chosen_folder(folder: Path, part: str | None) -> Path:
    """The folder of the wanted split of a dataset dict, or the folder itself."""
    if not folder.is_dir():
        raise InputError(f"path must be an existing folder, got {str(folder)!r}")
    listing = folder / "dataset_dict.json"
    if not listing.is_file():
        if part is not None:
            raise InputError(f"part {part!r} was given, but {str(folder)!r} is no dataset dict")
        return folder
    splits = [str(name) for name in _json(listing).get("splits", [])]
    if part is None and len(splits) == 1:
        part = splits[0]
    if part is None:
        raise InputError(f"part must be one of {', '.join(splits)} for the dataset dict {str(folder)!r}")
    if part not in splits:
        raise unknown_name("part", part, splits)
    return folder / part


def _data_files(folder: Path) -> list[Path]:
    """The Arrow or Parquet files of one dataset, in their order."""
    state = folder / "state.json"
    if state.is_file():
        content = _json(state)
        if content.get("_indices_data_files"):
            raise InputError(
                f"path {str(folder)!r} has an indices mapping: call flatten_indices() before saving"
            )
        names = [str(entry["filename"]) for entry in content.get("_data_files") or []]
        if any(Path(name).name != name for name in names):
            raise InputError(f"path {str(folder)!r} names data files outside its folder")
        return [folder / name for name in names]
    for pattern in ("*.parquet", "*.arrow"):
        files = sorted(folder.glob(pattern)) or sorted(folder.glob(f"data/{pattern}"))
        if files:
            return files
    raise InputError(f"path must hold state.json, Parquet or Arrow files, got {str(folder)!r}")


def _table(path: Path) -> Any:
    """One file as a pyarrow table; an Arrow file may be a stream or a random-access file."""
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        try:
            with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
                return reader.read_all()
        except pa.ArrowInvalid:
            with pa.OSFile(str(path), "rb") as source, pa.ipc.open_file(source) as reader:
                return reader.read_all()
    except (OSError, pa.ArrowException) as error:
        raise InputError(one_line(f"data file {str(path)!r} cannot be read: {error}")) from error


def dataset_rows(
    folder: Path, part: str | None, columns: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Rows of a dataset, a dataset dict, or a folder of Parquet or Arrow files.

    `folder`: where they lie. `part`: the split, for a dataset dict. `columns`: columns to read. Of a file
    that lacks one, all are yielded, so that the message can say which there are. Raises `InputError`: the
    folder or a file of it is unusable.
    """
    for path in _data_files(_chosen_folder(folder, part)):
        table = _table(path)
        if set(columns) <= set(table.column_names):
            table = table.select(list(dict.fromkeys(columns)))
        for number, fields in enumerate(table.to_pylist(), start=1):
            yield f"row {number} of {str(path)!r}", fields


# Corpora


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


@register("records", "file")
def records_of_file(*, path: str, prefix: str, text_field: str = PLAIN_FIELD) -> list[Record]:
    """All records of a text file, in its order, repetitions too; their ids begin with `prefix`.

    Raises `InputError`: the file or one of its rows is unusable.
    """
    return to_records(read_file(path), prefix, text_field, None)


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
    """Your own text: a JSONL, CSV, TSV, Parquet or plain text file (a record a line), given by path=.

    Args:
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        path: The file; its ending (.jsonl, .ndjson, .csv, .tsv, .txt, .parquet) says how it is read.
        text_field: Field or column of the text.
        label_field: Field or column of the label; None for records without labels.

    Raises `InputError`: a parameter, the file or one of its rows is unusable; the message names the row.
    """
    sizes = part_sizes(size, held_out, public)
    records = to_records(read_file(given_path(path, "text_file")), "text_file", text_field, label_field)
    return _corpus("text_file", records, sizes, seed, str(path))


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
        size, seed, held_out, public: See `workbench.data.shared.parts.part_sizes`.
        path: The folder. It is read with pyarrow; the `datasets` package is not needed.
        part: Which split of a dataset dict ("train", ...); needed where the folder holds several.
        text_field, label_field: See `text_file`.

    Raises `InputError`: a parameter, the folder or one of its rows is unusable.
    """
    sizes = part_sizes(size, held_out, public)
    folder = given_path(path, "huggingface_dataset")
    columns = [text_field] if label_field is None else [text_field, label_field]
    records = to_records(dataset_rows(Path(folder), part, columns), "dataset", text_field, label_field)
    return _corpus("huggingface_dataset", records, sizes, seed, folder)
