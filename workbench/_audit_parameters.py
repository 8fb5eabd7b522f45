"""Parameters as a user types them: `key=value` pairs, and what a registered factory takes them for."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from workbench import registry
from workbench.errors import InputError


def parameters(flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` pairs; a value that is a JSON number or boolean becomes one, else it stays text.

    Raises:
        InputError: a pair has no key or no equals sign, or a key is given twice.
    """
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"{flag} must be key=value, got {pair!r}")
        if key in given:
            raise InputError(f"{flag} {key!r} is given twice")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        is_plain = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
        given[key] = value if is_plain else text
    return given


def as_declared(kind: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with whole numbers as text where the factory declares text: a name may look like one.

    Args:
        kind: Of registry.
        name: Registered.
        given: What `parameters` read.
    """
    if not given:
        return {}
    declared = inspect.signature(registry.entries(kind)[name].factory).parameters
    texts = {key for key, one in declared.items() if one.annotation in ("str", str)}
    return {key: str(value) if key in texts and type(value) is int else value for key, value in given.items()}
