"""`run.json`: which study was run in a folder, and by which command, for the report and for the next run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from workbench import __version__
from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.core.outputs import write_atomically
from workbench.studies.experiments import Study

RUN_FILE = "run.json"
RUN_SCHEMA = 1


def write_run(
    study: Study, out: Path, *, source: str, command: str, bases: Mapping[str, str] | None = None
) -> None:
    """Remember what is run in a folder.

    Args:
        study: Its study.
        out: The folder.
        source: Name or path by which the user called the study; empty for its name.
        command: The command line.
        bases: Folders that stand in for base models, by their names.

    Raises:
        InputError: the folder cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    form = {
        "schema": RUN_SCHEMA,
        "study": source or study.name,
        "name": study.name,
        "profile": study.profile,
        "source_sha256": study.source_sha256,
        "created": now,
        "command": command,
        "bases": dict(bases or {}),
        "workbench_version": __version__,
    }
    write_atomically(out / RUN_FILE, json.dumps(form, indent=2) + "\n")


def read_run(out: Path) -> dict[str, JSON]:
    """What `out/run.json` remembers.

    Returns:
        `study` (name or path), `name`, `profile`, `source_sha256`, `created`, `command`, `bases` (folders
        that stood in for base models).

    Raises:
        InputError: nothing was run there, or the file is damaged.
    """
    path = out / RUN_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != RUN_SCHEMA:
            raise InputError(f"{path} has schema {found['schema']!r}, this workbench reads {RUN_SCHEMA}")
    except FileNotFoundError as error:
        raise InputError(f"no study was run in {out}: {RUN_FILE} is missing") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path}: it is damaged; run the study again") from error
    return {"bases": {}, **found}
