"""Reading local Hugging Face datasets with pyarrow alone.

`Dataset.save_to_disk` writes `state.json`, which lists Arrow stream files; `DatasetDict.save_to_disk` writes
`dataset_dict.json` and one such folder for each split. Exported datasets are plain Parquet files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.core.errors import InputError, unknown_name


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
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
        found = sorted(folder.glob(pattern)) or sorted(folder.glob(f"data/{pattern}"))
        if found:
            return found
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
        raise InputError(f"data file {str(path)!r} cannot be read: {error}") from error


def dataset_rows(
    folder: Path, part: str | None, columns: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Rows of a dataset, each with its place for messages.

    Args:
        folder: A dataset, a dataset dict, or a folder of Parquet or Arrow files.
        part: The split, for a dataset dict.
        columns: The columns that are wanted; others are not turned into Python objects. Of a file that
            lacks one, all columns are yielded, so that the message can say which there are.

    Raises:
        InputError: the folder or a file of it is unusable.
    """
    for path in _data_files(_chosen_folder(folder, part)):
        table = _table(path)
        if set(columns) <= set(table.column_names):
            table = table.select(list(dict.fromkeys(columns)))
        for number, fields in enumerate(table.to_pylist(), start=1):
            yield f"row {number} of {str(path)!r}", fields
