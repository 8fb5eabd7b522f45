"""Undo a permutation of hidden units: match the rows that were released to the rows that were expected.

A unit of a network is a set of m interchangeable indices (hidden neurons, the columns of a head). Index i
owns k weights, its incoming and outgoing ones and its bias, and a permutation moves them together: the
released weights of index i are the expected ones of index `indices[i]`, plus noise. If the noise is alike in
all weights, the likeliest permutation is the one with the least sum of squared distances: a linear
assignment.

Units that share a matrix (two hidden layers in a row) are matched in turns, each against the expected weights
with what is known of the other, until nothing changes; no turn makes the fit worse. The first turn reads of a
shared matrix only the sorted entries of each row, which the other unit's permutation leaves as they are.

    >>> import numpy as np
    >>> rows = np.array([[0, 1], [2, 3], [4, 5]])
    >>> expected = np.array([0.0, 0.1, 1.0, 1.1, 2.0, 2.1])
    >>> released = permuted(expected, [rows], [np.array([2, 0, 1])])
    >>> released.tolist()
    [2.0, 2.1, 0.0, 0.1, 1.0, 1.1]
    >>> found = match(expected, released, [rows])
    >>> found[0].tolist()
    [2, 0, 1]
    >>> bool((restored(released, [rows], found) == expected).all())
    True

The search by turns is that of Ainsworth, Hayase and Srinivasa 2023, "Git Re-Basin" (weight matching).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, IntArray

MOST_TURNS = 100
"""Turns over all units that share a matrix; a handful is usual, and the fit can only improve."""


def permuted(weights: FloatArray, units: Sequence[IntArray], indices: Sequence[IntArray]) -> FloatArray:
    """The weights with each unit permuted: `new[unit[i]] = old[unit[indices[i]]]`.

    Args:
        weights: Shape `(d,)`; left as they are.
        units: Places in the vector of the weights that each index owns, shape `(m, k)` each.
        indices: Permutation of each unit, shape `(m,)` each.
    """
    moved = weights.copy()
    for unit, order in zip(units, indices, strict=True):
        moved[unit] = moved[unit[order]]
    return moved


def restored(released: FloatArray, units: Sequence[IntArray], indices: Sequence[IntArray]) -> FloatArray:
    """What `permuted` was given, from what it returned.

    Args:
        released: Shape `(d,)`.
        units, indices: As in `permuted`.
    """
    return permuted(released, units, [np.argsort(order) for order in indices])


def match(expected: FloatArray, released: FloatArray, units: Sequence[IntArray]) -> tuple[IntArray, ...]:
    """The likeliest permutation of each unit.

    Args:
        expected: Weights before they were permuted, as far as they are known, shape `(d,)`.
        released: Permuted weights, shape `(d,)`.
        units: Places in the vector of the weights that each index owns, shape `(m, k)` each.

    Returns:
        For each unit `indices` such that released index i was expected as index `indices[i]`, shape `(m,)`.

    Raises:
        InputError: the vectors are not of one length.
    """
    if expected.shape != released.shape or expected.ndim != 1:
        raise InputError(f"released must have the shape {expected.shape} of expected, got {released.shape}")
    owners = np.zeros(expected.size, dtype=np.int64)
    for unit in units:
        owners[unit] += 1
    shared = [owners[unit] > 1 for unit in units]
    found = [
        _assigned(_signature(expected, unit, common), _signature(released, unit, common))
        for unit, common in zip(units, shared, strict=True)
    ]
    turning = [place for place, common in enumerate(shared) if common.any()]
    for _ in range(MOST_TURNS):
        changed = False
        for place in turning:
            others = [order if other != place else np.arange(order.size) for other, order in enumerate(found)]
            known = permuted(expected, units, others)
            better = _assigned(known[units[place]], released[units[place]])
            changed |= not np.array_equal(better, found[place])
            found[place] = better
        if not changed:
            break
    return tuple(found)


def match_weights(
    expected: Mapping[str, FloatArray], released: Mapping[str, FloatArray], units: Mapping[str, IntArray]
) -> dict[str, IntArray]:
    """`match` of named weights.

    Args:
        expected, released: Weights by name, of the same names and shapes.
        units: By name, the places of each index's weights in the vector of all weights in the order of
            `expected`, shape `(m, k)` each.

    Returns:
        `indices` by the name of the unit.

    Raises:
        InputError: names or shapes differ.
    """
    shapes = [{name: array.shape for name, array in weights.items()} for weights in (expected, released)]
    if shapes[0] != shapes[1]:
        raise InputError(f"released must have the names and shapes of expected, got {shapes[1]}")
    flat = [
        np.concatenate([np.asarray(weights[name], dtype=np.float64).ravel() for name in expected])
        for weights in (expected, released)
    ]
    return dict(zip(units, match(flat[0], flat[1], tuple(units.values())), strict=True))


def _signature(weights: FloatArray, unit: IntArray, shared: np.ndarray) -> FloatArray:
    """Of each index the weights that no other unit moves, and the others sorted, shape `(m, k)`."""
    own = weights[unit]
    if not shared.any():
        return own
    # Whether a weight is shared depends on its matrix, so on all indices alike: a column is or is not.
    columns = shared.any(axis=0)
    joined: FloatArray = np.concatenate([own[:, ~columns], np.sort(own[:, columns], axis=1)], axis=1)
    return joined


def _assigned(expected: FloatArray, released: FloatArray) -> IntArray:
    """The assignment with the least sum of squared distances; norms are the same for all."""
    rows, columns = linear_sum_assignment(released @ expected.T, maximize=True)
    order = np.empty(rows.size, dtype=np.int64)
    order[rows] = columns
    return order
