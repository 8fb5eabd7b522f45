"""An audit's report on disk: `report.json`, with the scores of large games in a file beside it, and the page.

A game of more than `MOST_INLINE` scores keeps them out of the JSON: its `scores` and `members` are then
`{"file": "report.scores.npz", "array": "0.1.scores", "count": 200000, "sha256": "..."}`, where the file lies
beside the JSON, 0 is the place of the subject and 1 that of its attack. `read_report` puts them back.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.core.inputs import parsed_json, read_bytes, read_text
from workbench.core.keys import JSON, plain
from workbench.core.one_line import one_line
from workbench.core.outputs import write_together

MOST_INLINE = 10_000
"""Scores of one game that a report's JSON holds itself."""

_ARRAYS: Mapping[str, type] = {"scores": np.float64, "members": np.bool_}


def scores_beside(path: Path) -> Path:
    """Returns where the scores of a report's large games go: `report.json` has `report.scores.npz`."""
    return path.with_name(f"{path.name.removesuffix('.json')}.scores.npz")


def write_report(report: Mapping[str, JSON], *, out: Path | None, json_file: Path | None) -> None:
    """Writes `report.json` and `report.html` to a folder, and the record to a file.

    Raises `InputError`: a place cannot be written; where there is no room, none of the files is changed.
    """
    text = registry.create("report", "html", report=report) if out is not None else ""
    record = plain(report)
    written: dict[Path, str | bytes] = {}
    if out is not None:
        written = {**_files_of(record, out / "report.json"), out / "report.html": text}
    if json_file is not None:
        written |= _files_of(record, json_file)
    write_together(written)


def read_report(path: Path) -> dict[str, JSON]:
    """Reads a report's JSON, with the scores of large games where they were.

    Raises `InputError`: a file is missing, unreadable, or not the one that was written with the report.
    """
    try:
        report: dict[str, JSON] = parsed_json(read_text(path))
        if not isinstance(report, dict):
            raise TypeError("it is no object")
        for *_, attack in _attacks(report):
            for name in _ARRAYS:
                if isinstance(attack[name], dict):
                    attack[name] = plain(_read_array(path.parent, attack[name]))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(one_line(f"{path} is no report of an audit: {reason}")) from error
    return report


def _files_of(record: Mapping[str, JSON], path: Path) -> dict[Path, str | bytes]:
    """The JSON file, after the file of its large games' scores where there are some."""
    files: dict[Path, str | bytes] = {}
    arrays: dict[str, Any] = {
        f"{subject}.{place}.{name}": np.array(attack[name], dtype=kind)
        for subject, place, attack in _attacks(record)
        if len(attack["scores"]) > MOST_INLINE
        for name, kind in _ARRAYS.items()
    }
    if arrays:
        buffer, beside = io.BytesIO(), scores_beside(path)
        np.savez_compressed(buffer, allow_pickle=False, **arrays)
        files[beside] = buffer.getvalue()
        record = _referring(record, beside.name, hashlib.sha256(buffer.getvalue()).hexdigest())
    return {**files, path: json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False) + "\n"}


def _referring(record: Mapping[str, JSON], file: str, digest: str) -> dict[str, JSON]:
    """The record, with a reference in place of each large game's scores and labels."""

    def held(place: str, attack: Mapping[str, JSON]) -> dict[str, JSON]:
        count = len(attack["scores"])
        if count <= MOST_INLINE:
            return dict(attack)
        refers = {"file": file, "count": count, "sha256": digest}
        return {**attack, **{name: {**refers, "array": f"{place}.{name}"} for name in _ARRAYS}}

    subjects = [
        {**subject, "attacks": [held(f"{at}.{place}", form) for place, form in enumerate(subject["attacks"])]}
        for at, subject in enumerate(record["subjects"])
    ]
    return {**record, "subjects": subjects}


def _attacks(record: Mapping[str, JSON]) -> list[tuple[int, int, dict[str, Any]]]:
    """Every attack of a report, with the places of its subject and itself."""
    return [
        (subject, place, attack)
        for subject, form in enumerate(record["subjects"])
        for place, attack in enumerate(form["attacks"])
    ]


def _read_array(folder: Path, refers: Mapping[str, JSON]) -> Any:
    """The array that a reference names; refuses a file that was not written with the report."""
    name = Path(refers["file"]).name
    content = read_bytes(folder / name)
    if hashlib.sha256(content).hexdigest() != refers["sha256"]:
        raise ValueError(f"{name} was not written with it")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return arrays[refers["array"]]
