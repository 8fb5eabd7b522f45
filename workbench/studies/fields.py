"""Types, ranges and normal forms of an experiment's fields as a study file gives them.

>>> checked("epsilon", 4)
4.0
>>> checked("members", True)
Traceback (most recent call last):
workbench.core.errors.InputError: members must be a whole number, got True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any

from workbench.core.errors import InputError, unknown_name
from workbench.core.one_line import object_line
from workbench.interfaces import Currency, Sampling, Schedule
from workbench.studies.experiments import FIELD_ORDER, Experiment
from workbench.training.devices import device_name

DELTAS_OF_MEMBERS: Mapping[str, Callable[[int], float]] = {
    "1/N^2": lambda members: 1.0 / members**2,
    "1/(2N)": lambda members: 1.0 / (2 * members),
}
"""Deltas that follow from the number of members, by how a study writes them."""

NAMED = {"mechanism": "mechanism", "attack": "attack", "corpus": "corpus", "model": "model"}
"""Fields that hold a registry name, with the kind."""

PARAMETERS = tuple(f"{name}_parameters" for name in NAMED)

STAND_IN = "path"
"""Parameter of a base model: a local folder in its place."""

NAMES = ("group", "variant", "tags")
"""Fields that say what a report calls an experiment; the file gives them in places of their own."""

FIELDS = tuple(name for name in FIELD_ORDER if name not in NAMES)
"""What a study file can set, in the order in which experiments are sorted."""

REQUIRED = tuple(
    field.name
    for field in fields(Experiment)
    if field.name in FIELDS and field.default is MISSING and field.default_factory is MISSING
)

LARGEST = 10**9
"""Whole numbers beyond it can only be mistakes."""

LARGEST_SEED = 2**63 - 1

MOST_DEPTH = 20
"""Levels of tables and lists in a parameter; canonical forms, hashes and pickles are made by recursion."""


def checked(name: str, value: Any) -> Any:
    """The value of a field in its normal form.

    Args:
        name: A member of `FIELDS`.
        value: As TOML gives it.

    Returns:
        Whole numbers as int, other numbers as float, a `Sampling`, `Schedule` or `Currency`, texts, or plain
        tables; for `delta` also a text of `DELTAS_OF_MEMBERS`.

    Raises:
        InputError: an unknown field, a wrong type, or a value out of range.
    """
    if name in ("group", "variant"):
        raise InputError(f"{name} is the name of a table of the file, and no field to set")
    if name == "tags":
        raise InputError("tags stand in a group or a variant, and are no field to set")
    if name not in FIELDS:
        raise unknown_name("field", name, FIELDS)
    return _CHECKS[name](name, value)


def checked_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a table in its normal form; see `checked`."""
    return {name: checked(name, value) for name, value in table.items()}


def value_text(value: Any) -> str:
    """A value in a message: numbers without noise digits, texts in quotes."""
    if isinstance(value, float):
        return f"{value:g}"
    return object_line(str(value) if isinstance(value, str) else value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{name} must be a text on one line, got {object_line(value)}")
    return value


def _device(name: str, value: Any) -> str:
    return device_name(_text(name, value))


def _whole(least: int, most: int = LARGEST) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{name} must be a whole number, got {object_line(value)}")
        if not least <= value <= most:
            raise InputError(f"{name} must be in [{least}, {most}], got {object_line(value)}")
        return value

    return check


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} must be a number, got {object_line(value)}")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} must be finite, got {object_line(value)}") from None


def _epochs(name: str, value: Any) -> float:
    if isinstance(value, float) and not value.is_integer():
        return _positive(name, value)
    return _whole(1)(name, int(value) if isinstance(value, float) else value)


def _delta(name: str, value: Any) -> float | str:
    if isinstance(value, str) and value in DELTAS_OF_MEMBERS:
        return value
    if isinstance(value, str):
        known = " or ".join(f'"{rule}"' for rule in DELTAS_OF_MEMBERS)
        raise InputError(f"{name} must be a number or {known}, got {object_line(value)}")
    return _probability(name, value)


def _one_of(names: type[StrEnum]) -> Callable[[str, Any], StrEnum]:
    choices = [str(choice) for choice in names]

    def check(name: str, value: Any) -> StrEnum:
        if _text(name, value) not in choices:
            raise unknown_name(name, value, choices)
        return names(value)

    return check


def _in_range(words: str, is_in: Callable[[float], bool]) -> Callable[[str, Any], float]:
    """A check that a value is a number in a range, which messages call by these words."""

    def check(name: str, value: Any) -> float:
        number = _number(name, value)
        if not is_in(number):
            raise InputError(f"{name} must be {words}, got {object_line(value)}")
        return number

    return check


_positive = _in_range("finite and > 0", lambda number: 0.0 < number < math.inf)
_not_negative = _in_range("finite and >= 0", lambda number: 0.0 <= number < math.inf)
_share = _in_range("in [0, 1)", lambda number: 0.0 <= number < 1.0)
_probability = _in_range("in (0, 1)", lambda number: 0.0 < number < 1.0)


def _parameters(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name} must be a table, got {object_line(value)}")
    # Whether a parameter may be infinite, its factory says: `workbench.studies.study`.
    _require_plain(name, {key: item for key, item in value.items() if item != math.inf}, MOST_DEPTH)
    return value


def _require_plain(name: str, value: Any, depth: int) -> None:
    """Refuse dates and times, numbers that no record can hold, and what lies too deep."""
    if depth == 0:
        raise InputError(f"{name} must not be nested deeper than {MOST_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            _require_plain(f"{name}.{key}", item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _require_plain(name, item, depth - 1)
    elif not isinstance(value, str | bool | int | float):
        raise InputError(f"{name} must be a number, text, list or table, got {object_line(value)}")
    elif isinstance(value, float) and math.isnan(value):
        raise InputError(f"{name} must be a number, got nan")
    elif isinstance(value, float) and math.isinf(value):
        raise InputError(f"{name} must be finite, got {value}")


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys((*NAMED, "optimizer", "adapter", "lora_targets"), _text),
    **dict.fromkeys(PARAMETERS, _parameters),
    "device": _device,
    "members": _whole(2),
    "scored_members": _whole(2),
    "epochs": _epochs,
    "batch_size": _whole(1),
    "seed": _whole(0, LARGEST_SEED),
    "lora_rank": _whole(1),
    "lora_alpha": _positive,
    "learning_rate": _positive,
    "epsilon": _positive,
    "delta": _delta,
    "sampling": _one_of(Sampling),
    "weight_decay": _not_negative,
    "schedule": _one_of(Schedule),
    "warmup": _share,
    "currency": _one_of(Currency),
}
