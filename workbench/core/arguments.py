"""Checks of what attacks are given."""

from __future__ import annotations

import math

from workbench.core.errors import InputError

LARGEST = 10**9
"""Whole numbers beyond it can only be mistakes."""


def whole_number(name: str, value: float, *, least: int, even: bool = False) -> int:
    """The value as a whole number.

    Args:
        name: Of the parameter, for the error.
        value: What was given; 20.0 is 20.
        least: Smallest that is allowed.
        even: Whether odd ones are refused.

    Raises:
        InputError: it is none, too small, too large, or odd.
    """
    is_whole = math.isfinite(value) and value == int(value)
    if not is_whole or value < least or (even and value % 2):
        kind = "an even whole number" if even else "a whole number"
        raise InputError(f"{name} must be {kind} >= {least}, got {value!r}")
    if value > LARGEST:
        raise InputError(f"{name} must be at most {LARGEST}, got {value!r}")
    return int(value)
