"""The file of a watched run: JSON lines, a header, one line a step, and a last line where the run ended.

Lines are appended whole. A process that is killed loses the lines of its last second at most; the file then
has no last line, and is read as far as it goes. Reading executes nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from workbench.core.errors import ArgumentError, InputError
from workbench.core.inputs import require_regular
from workbench.core.keys import JSON
from workbench.core.one_line import one_line

ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
SCHEMA = 1
LONGEST_LINE = 100_000
MOST_STEPS = 10_000_000

PER_RECORD, FORWARD = "per-record gradients", "forward passes"
"""How records of a batch are counted: by Opacus' gradients of each, or by what the model is called with."""

FIRST_READ, READ_EVERY = 256, 32
"""Steps whose gradient's norm is read, which is a pass over all of it, and the draws of noise before it: the
first, then one in so many."""


def is_read(step: int) -> bool:
    """Whether the norm of the gradient of this step, counted from 1, and the draws before it are read."""
    return step <= FIRST_READ or step % READ_EVERY == 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step; None stands for what was not seen.

    Attributes:
        step: Its number, from 1.
        batch: Records in it, over all forward passes that were accumulated.
        counted: How those were counted: `PER_RECORD`, `FORWARD`, or empty where they were not.
        norm: Euclidean norm of the gradient as it is applied, noise included; see `is_read`.
        values: Number of values in that gradient; of one that is not read, in the last that is.
        lr: Learning rate of the first parameter group.
        draws: Normal draws of a parameter's shape, or flat of all, since the step before; see `is_read`.
        std: Their standard deviation as called: the root of the mean square over the gradient's values.
        noise_multiplier, clip, divisor: As the DP optimizer's own settings say; `divisor` is what the sum of
            clipped gradients and noise is divided by.
        beyond: What moves the weights beside the gradients, as far as it is seen; there may be noise in that.
    """

    step: int
    batch: int | None = None
    counted: str = ""
    norm: float | None = None
    values: int = 0
    lr: float | None = None
    draws: int | None = None
    std: float | None = None
    noise_multiplier: float | None = None
    clip: float | None = None
    divisor: float | None = None
    beyond: str = ""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What holds for the whole run.

    Attributes:
        optimizer: Class of the optimizer, with its module.
        parameters: Number of trained values.
        records: Number N of records that it trains on; None where nobody said.
        clip, divisor, noise_multiplier: As the user states them; None where not.
        processes: Of a distributed training.
        started: UTC.
        versions: Of the libraries.
    """

    optimizer: str
    parameters: int
    records: int | None = None
    clip: float | None = None
    divisor: float | None = None
    noise_multiplier: float | None = None
    processes: int = 1
    started: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WatchedRun:
    """A run as far as its file goes.

    Attributes:
        end: `"finished"`, the name of the exception that ended it, or empty where the file just stops.
    """

    header: Header
    steps: Sequence[Step]
    end: str = ""


class RunWriter:
    """Appends lines to a new file.

    Raises:
        InputError: the file cannot be written, or is there already and is not a run of ours.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        try:
            if path.exists() and path.stat().st_size and not _is_ours(path):
                raise InputError(
                    f"file must not be there, or be a watched run; {str(path)!r} is something else"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise InputError(f"file cannot be written: {str(path)!r}: {error.strerror}") from error
        self.append([{"watched_run": SCHEMA, **asdict(header)}])

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write lines in one piece."""
        text = "".join(f"{ENCODER.encode(line)}\n" for line in lines)
        self._file.write(text.encode())

    def close(self, end: str) -> None:
        """Write the last line."""
        self.append([{"end": end}])
        self._file.close()


def step_line(seen: Mapping[str, JSON]) -> dict[str, JSON]:
    """The fields of a step without what was not seen."""
    return {name: value for name, value in seen.items() if value is not None and value != ""}


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15).startswith(b'{"watched_run":')


def read_run(path: Path) -> WatchedRun:
    """Read the file of a watched run.

    Raises:
        InputError: the file cannot be read, is damaged, or its last line is cut off; one line says where.
    """
    try:
        return _read_run(path)
    except OSError as error:
        raise ArgumentError("run", f"{str(path)!r} cannot be read: {error.strerror}") from error
    except InputError as error:
        raise ArgumentError("run", str(error)) from error


def _read_run(path: Path) -> WatchedRun:
    steps: list[Step] = []
    header, end = None, ""
    require_regular(path)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            place = f"{str(path)!r}, line {number}"
            if not line.endswith(b"\n"):
                alone = " is of no watched run, or" if header is None else ""
                raise InputError(f"{place}{alone} is cut off after {len(line):,} bytes")
            if end:
                raise InputError(f"{place} comes after the end of the run")
            form = _object(line, place)
            if header is None:
                header = _header(form, place)
            elif "end" in form:
                end = _text(form, "end", place) or "?"
            else:
                steps.append(_step(form, len(steps) + 1, place))
    if header is None:
        raise InputError(f"{str(path)!r} is empty")
    return WatchedRun(header=header, steps=steps, end=end)


def _object(line: bytes, place: str) -> dict[str, Any]:
    try:
        form = json.loads(line.decode("utf-8"), parse_constant=_refused)
    except (ValueError, RecursionError):
        shown = one_line(repr(line.decode("utf-8", "replace").strip()), longest=60)
        raise InputError(f"{place} is not JSON: {shown}") from None
    if not isinstance(form, dict):
        raise InputError(f"{place} must be an object, got {one_line(repr(form), longest=60)}")
    return form


def _refused(constant: str) -> NoReturn:
    raise ValueError(constant)


def _header(form: dict[str, Any], place: str) -> Header:
    if form.get("watched_run") != SCHEMA:
        shown = one_line(repr(form.get("watched_run")), longest=40)
        raise InputError(
            f"{place}: watched_run must be {SCHEMA}, got {shown}: not a watched run of this version"
        )
    _known(form, Header, place, {"watched_run"})
    whole = {name: _whole(form, name, place, least=1) for name in ("records", "processes") if name in form}
    versions = form.get("versions", {})
    if not isinstance(versions, dict):
        raise InputError(f"{place}: versions must be an object")
    return Header(
        optimizer=_text(form, "optimizer", place),
        parameters=_whole(form, "parameters", place, least=0) or 0,
        records=whole.get("records"),
        processes=whole.get("processes") or 1,
        started=_text(form, "started", place),
        versions={str(name): str(value) for name, value in versions.items()},
        **{name: _positive(form, name, place) for name in ("clip", "divisor", "noise_multiplier")},
    )


def _step(form: dict[str, Any], expected: int, place: str) -> Step:
    _known(form, Step, place)
    if expected > MOST_STEPS:
        raise InputError(f"{place}: a run has at most {MOST_STEPS:,} steps")
    if _whole(form, "step", place, least=1) != expected:
        raise InputError(f"{place}: step must be {expected}, got {form.get('step')!r}: steps are missing")
    return Step(
        step=expected,
        batch=_whole(form, "batch", place, least=0),
        counted=_text(form, "counted", place),
        beyond=_text(form, "beyond", place),
        values=_whole(form, "values", place, least=0) or 0,
        draws=_whole(form, "draws", place, least=0),
        **{name: _positive(form, name, place) for name in ("clip", "divisor")},
        **{
            name: _number(form, name, place, least=-math.inf if name == "lr" else 0.0)
            for name in ("norm", "lr", "std", "noise_multiplier")
        },
    )


def _known(form: Mapping[str, Any], kind: type[Any], place: str, more: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    unknown = set(form) - {one.name for one in fields(kind)} - more
    if unknown:
        raise InputError(f"{place} has the unknown field {one_line(repr(min(unknown)), longest=60)}")


def _text(form: Mapping[str, Any], name: str, place: str) -> str:
    value = form.get(name, "")
    if not isinstance(value, str):
        raise InputError(f"{place}: {name} must be a text, got {one_line(repr(value), longest=60)}")
    return one_line(value, longest=200)


def _whole(form: Mapping[str, Any], name: str, place: str, *, least: int) -> int | None:
    value = form.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value < 2**53:
        shown = one_line(repr(value), longest=60)
        raise InputError(f"{place}: {name} must be a whole number >= {least}, got {shown}")
    return value


def _number(form: Mapping[str, Any], name: str, place: str, *, least: float) -> float | None:
    value = form.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        shown = one_line(repr(value), longest=60)
        raise InputError(f"{place}: {name} must be a finite number >= {least:g}, got {shown}")
    return float(value)


def _positive(form: Mapping[str, Any], name: str, place: str) -> float | None:
    value = _number(form, name, place, least=0.0)
    if value == 0:
        raise InputError(f"{place}: {name} must be > 0, got 0")
    return value
