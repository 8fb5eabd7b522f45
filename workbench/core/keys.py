"""Turns values into plain JSON, one canonical text, and hash keys.

>>> key_of({"model": "large", "seed": 0}) == key_of({"seed": 0, "model": "large"})
True
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

JSON: TypeAlias = Any
"""What `json.dumps` takes: numbers, strings, booleans, None, lists and string-keyed dicts of them."""

SCHEMA = 1
"""Raised whenever the meaning of a record changes; part of every key."""

LATER: Mapping[str, bool] = {"later": True}
"""Marks a dataclass field added later, whose default means the earlier behaviour: plain forms leave it out
then.
"""


_PLAIN = frozenset({str, int, bool, type(None)})
"""Types whose values are their own plain form."""


class HasPlainForm(ABC):
    """A record that defines its own plain form instead of that of its fields."""

    @abstractmethod
    def to_json(self) -> dict[str, JSON]:
        """Returns the object as plain JSON data."""


def plain(value: Any) -> JSON:
    """Returns the plain JSON form of numbers, arrays, enums, paths and frozen records.

    Non-finite floats become the strings "inf", "-inf" and "nan", which `float` reads back. Record fields
    marked `LATER` are left out at their default. Raises `TypeError`: a value has no plain form.
    """
    kind = type(value)
    if kind in _PLAIN:  # Most values, and the tests below are slow.
        return value
    if kind is dict:
        return {name if type(name) is str else str(name): plain(item) for name, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    if isinstance(value, int):
        return value
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, HasPlainForm):
        return plain(value.to_json())
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not ("later" in field.metadata and getattr(value, field.name) == _default(field))
        }
    raise TypeError(f"no plain form for {type(value).__name__}")


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def canonical(form: Any) -> str:
    """Returns the canonical text of a plain form: sorted names, no spaces, shortest round-trip floats."""
    return json.dumps(plain(form), sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(form: Any) -> str:
    """Returns the hash of a canonical form and the schema version, 32 hexadecimal digits."""
    return hashlib.sha256(f"{SCHEMA}:{canonical(form)}".encode()).hexdigest()[:32]
