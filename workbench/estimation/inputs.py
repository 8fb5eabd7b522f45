"""Checks that estimators make of scores, labels and error probabilities, and the bound that most return."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.core.arguments import number
from workbench.core.errors import InputError
from workbench.interfaces import BoolArray, Bound, Family, FloatArray, Trials

INDEPENDENT_SCORES = "scores are independent, and identically distributed within each class"
"""What most estimators assume, as their bounds state it."""


def check_game(scores: Any, members: Any, *, constant_allowed: bool = False) -> tuple[FloatArray, BoolArray]:
    """Scores and labels as float64 and bool arrays; refuses those that no membership game can produce.

    Scores have shape `(n,)`, are finite, and not all equal unless `constant_allowed`; labels are booleans of
    the same shape, with both classes present. Raises `InputError`: names the argument and what is wrong with
    it.
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
    """Returns a value in (0, 1), or in [0, 1) where zero is allowed; raises `InputError` for any other."""
    if zero_allowed:
        return number(name, value, least=0, below=1)
    return number(name, value, above=0, below=1)


def check_epsilon_game(
    scores: Any, members: Any, *, delta: float, confidence: float, constant_allowed: bool = False
) -> tuple[FloatArray, BoolArray]:
    """Like `check_game`; also refuses a delta outside [0, 1) or a confidence outside (0, 1)."""
    values, labels = check_game(scores, members, constant_allowed=constant_allowed)
    check_probability("delta", delta, zero_allowed=True)
    check_probability("confidence", confidence)
    return values, labels


def bound_of_trials(
    name: str,
    quantity: str,
    lower_and_estimate: tuple[float, float],
    assumption: str,
    confidence: float,
    *,
    n: int,
    delta: float | None = None,
    family: Family = Family.ANY,
) -> Bound:
    """Returns a bound from n independent trials, for every family of mechanisms or for one."""
    lower, estimate = lower_and_estimate
    return Bound(
        name=name,
        quantity=quantity,
        lower=lower,
        estimate=estimate,
        confidence=confidence,
        family=family,
        trials=Trials.INDEPENDENT,
        assumption=assumption,
        n=n,
        delta=delta,
    )


def split_classes(scores: FloatArray, members: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Returns the scores of the members and of the non-members, each sorted ascending."""
    return np.sort(scores[members]), np.sort(scores[~members])
