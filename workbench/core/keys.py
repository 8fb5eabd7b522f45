"""Plain forms of values, their one canonical text, and the keys that are hashes of it.

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
"""Metadata of a dataclass field that was added later and whose default means what was done before: plain
forms leave it out at its default, so that older stores stay valid."""


class HasPlainForm(ABC):
    """A record whose plain form is not that of its fields."""

    @abstractmethod
    def to_json(self) -> dict[str, JSON]:
        """The plain form."""


def plain(value: Any) -> JSON:
    """Plain JSON form of numbers, arrays, enums, paths, and frozen records.

    Non-finite floats become the strings "inf", "-inf" and "nan", which `float` reads back. Fields of records
    that are marked `LATER` are left out at their default.

    Raises:
        TypeError: a value has no plain form.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, HasPlainForm):
        return plain(value.to_json())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
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
    """The one text of a plain form: sorted names, no spaces, shortest round-trip floats."""
    return json.dumps(plain(form), sort_keys=True, separators=(",", ":"), allow_nan=False)


def key_of(form: Any) -> str:
    """Hash of a canonical form and of the schema version, 32 hexadecimal digits."""
    return hashlib.sha256(f"{SCHEMA}:{canonical(form)}".encode()).hexdigest()[:32]
