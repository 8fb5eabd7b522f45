"""What a stranger asks of an event: its epsilon, delta and true-positive rate, from both sides.

>>> from workbench.accounting import epsilon, gaussian_run
>>> run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
>>> found = epsilon(run, [1e-5, 1e-6])
>>> found.lower.round(1), found.upper.round(1)
(array([1.8, 2.1]), array([1.8, 2.1]))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from workbench.accounting.bounds import Bounds, BoundsArray
from workbench.accounting.certified import RELATIVE_WIDTH, bounds_at
from workbench.accounting.dp_events import event_of
from workbench.core.errors import InputError
from workbench.core.one_line import object_line
from workbench.interfaces import Adjacency, Direction

__all__ = ["delta", "epsilon", "tpr"]


@overload
def epsilon(
    event: object,
    delta: float,
    *,
    adjacency: Adjacency | str = ...,
    direction: Direction | str = ...,
    relative_width: float = ...,
) -> Bounds: ...
@overload
def epsilon(
    event: object,
    delta: npt.ArrayLike,
    *,
    adjacency: Adjacency | str = ...,
    direction: Direction | str = ...,
    relative_width: float = ...,
) -> Bounds | BoundsArray: ...
def epsilon(
    event: object,
    delta: npt.ArrayLike,
    *,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    direction: Direction | str = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> Bounds | BoundsArray:
    """Bounds on the smallest epsilon >= 0 at which an event is (epsilon, delta)-DP.

    Args:
        event: One of `workbench.accounting`, or dp-accounting's (`event_of`).
        delta: In (0, 1); or an array of such.
        adjacency: `"add-remove"`, `"replace-one"` or `"zero-out"`.
        direction: `"both"`; or `"remove"` or `"add"` alone: the output with the record against that without,
            or the reverse. `"remove"` has the true-positive rates of a test that calls a record a member.
        relative_width: At which bounds are no longer refined.

    Returns:
        `Bounds` of a number; of an array, a `BoundsArray` of its shape.

    Raises:
        InputError: an argument is out of range, or of the wrong kind.
        UnsupportedError: the event has no certified bounds under this adjacency.
    """
    known = event_of(event, adjacency=adjacency)
    ask = partial(bounds_at, "epsilon", known, **_options(adjacency, direction, relative_width))
    return _each(ask, "delta", delta)


def delta(
    event: object,
    epsilon: npt.ArrayLike,
    *,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    direction: Direction | str = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> Bounds | BoundsArray:
    """Bounds on the smallest delta at which an event is (epsilon, delta)-DP.

    `epsilon`: finite, >= 0; or an array of such. Otherwise as the function `epsilon`.
    """
    known = event_of(event, adjacency=adjacency)
    ask = partial(bounds_at, "delta", known, **_options(adjacency, direction, relative_width))
    return _each(ask, "epsilon", epsilon)


def tpr(
    event: object,
    fpr: npt.ArrayLike,
    *,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    direction: Direction | str = Direction.BOTH,
    relative_width: float = RELATIVE_WIDTH,
) -> Bounds | BoundsArray:
    """Bounds on the largest true-positive rate of any membership test at a false-positive rate.

    `fpr`: in (0, 1); or an array of such. Otherwise as the function `epsilon`.
    """
    known = event_of(event, adjacency=adjacency)
    ask = partial(bounds_at, "tpr", known, **_options(adjacency, direction, relative_width))
    return _each(ask, "fpr", fpr)


def _options(adjacency: Adjacency | str, direction: Direction | str, relative_width: float) -> dict[str, Any]:
    """What all three questions take, which they check."""
    return {"adjacency": adjacency, "direction": direction, "relative_width": relative_width}


def _each(ask: Callable[..., list[Bounds]], name: str, values: npt.ArrayLike) -> Bounds | BoundsArray:
    """The bounds at a number, or at each of an array.

    Raises:
        InputError: the values are no numbers; or as `ask`.
    """
    if not isinstance(values, list | tuple | np.ndarray) or getattr(values, "ndim", 1) == 0:
        return ask([values])[0]
    try:
        array = np.asarray(values)
    except ValueError:  # Rows of several lengths.
        array = np.array(None)
    if array.dtype.kind not in "iuf" or not array.size or isinstance(values, np.ma.MaskedArray):
        raise InputError(f"{name} must be a number or an array of numbers, got {object_line(values)}")
    return BoundsArray.of(ask(array.astype(float).ravel().tolist()), array.shape)
