"""The checks that every estimator makes of its scores, labels and error probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.core.arguments import number
from workbench.core.errors import InputError
from workbench.interfaces import BoolArray, FloatArray


def check_game(scores: Any, members: Any, *, constant_allowed: bool = False) -> tuple[FloatArray, BoolArray]:
    """Refuse scores and labels that no membership game can have produced.

    Args:
        scores: Shape `(n,)`, finite numbers, not all equal; higher means member.
        members: Shape `(n,)`, booleans; both classes present.
        constant_allowed: All scores may be equal: for what has a value then too.

    Returns:
        The same as float64 and bool arrays.

    Raises:
        InputError: one line that names the argument and what is wrong with it.
    """
    values = np.asarray(scores, dtype=np.float64)
    labels = np.asarray(members)
    if values.ndim != 1:
        raise InputError(f"scores must have shape (n,), got {values.shape}")
    if labels.dtype != np.bool_:
        raise InputError(f"members must be boolean, got dtype {labels.dtype}")
    if labels.shape != values.shape:
        raise InputError(f"members must have the shape of scores {values.shape}, got {labels.shape}")
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(f"scores must be finite, got {values[where]} at index {where}")
    if labels.all() or not labels.any():
        raise InputError(f"members must hold both classes, got {int(labels.sum())} members of {labels.size}")
    if not constant_allowed and values.min() == values.max():
        raise InputError(f"scores must not be constant, got {values[0]:g} {values.size} times")
    return values, labels


def check_probability(name: str, value: float, *, zero_allowed: bool = False) -> float:
    """Refuse a value outside (0, 1), or outside [0, 1) where zero is allowed.

    Raises:
        InputError: names the argument and its value.
    """
    if zero_allowed:
        return number(name, value, least=0, below=1)
    return number(name, value, above=0, below=1)


def check_epsilon_game(
    scores: Any, members: Any, *, delta: float, confidence: float, constant_allowed: bool = False
) -> tuple[FloatArray, BoolArray]:
    """`check_game`; refuses a delta outside [0, 1) or a confidence outside (0, 1), too."""
    values, labels = check_game(scores, members, constant_allowed=constant_allowed)
    check_probability("delta", delta, zero_allowed=True)
    check_probability("confidence", confidence)
    return values, labels


def split_classes(scores: FloatArray, members: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Scores of the members and of the non-members, each sorted ascending."""
    return np.sort(scores[members]), np.sort(scores[~members])
