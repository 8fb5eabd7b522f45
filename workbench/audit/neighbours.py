"""Who takes part in a training: a coin for each record, or for each pair of which one replaces the other.

Under a claim about adding or removing a record, every record has a coin of its own. Under one about replacing
a record, two that follow each other share a coin: one of them takes part, in the other one's place, so that
the training data always have one size. A trial then is a pair, scored by the difference of its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, BoolArray, FloatArray, Secret


def require_played(claimed: Adjacency | Secret) -> Adjacency:
    """What a claim is about, if games with the user's training can tell its neighbours apart.

    Raises:
        UnsupportedError: they cannot.
    """
    if claimed is Adjacency.ADD_REMOVE or claimed is Adjacency.REPLACE_ONE:
        return claimed
    hint = ""
    if claimed is Adjacency.ZERO_OUT:
        hint = ": `workbench replay` measures records that leave an empty place"
    raise UnsupportedError(
        f"claim is about {claimed}, and the games with a training function add, remove or replace records"
        f"{hint}"
    )


def coins_of(adjacency: Adjacency) -> str:
    """The coins in a game's description."""
    if adjacency is Adjacency.ADD_REMOVE:
        return "flipped a fair coin for each"
    return "made pairs of them, flipped a fair coin for each pair which of the two comes up heads"


def flipped(generator: np.random.Generator, count: int, adjacency: Adjacency) -> BoolArray:
    """Which of so many records take part, shape `(count,)`; one that is left without a pair does not."""
    if adjacency is Adjacency.ADD_REMOVE:
        return np.asarray(generator.random(count) < 0.5)
    heads = generator.random(count // 2) < 0.5
    inside = np.zeros(count, dtype=bool)
    inside[: 2 * heads.size] = np.stack([heads, ~heads], axis=1).ravel()
    return inside


def in_place(order: npt.NDArray[np.int64], first: int, adjacency: Adjacency) -> npt.NDArray[np.int64]:
    """An order of records in which the pairs among them, from place `first` on, stand in one place each."""
    if adjacency is Adjacency.ADD_REMOVE:
        return order
    rank = np.argsort(order)
    pairs = (len(order) - first) // 2
    rank[first + 1 : first + 2 * pairs : 2] = rank[first : first + 2 * pairs : 2]
    return np.argsort(rank, kind="stable")


def trials_of(
    scores: Sequence[Any], inside: Sequence[Any], adjacency: Adjacency
) -> tuple[FloatArray, BoolArray]:
    """The trials' scores and coins, both of shape `(runs, trials)`.

    Args:
        scores: Of all records in each run, shape `(runs, count)`.
        inside: Which of them took part, likewise.
    """
    found, coins = np.array(scores, dtype=np.float64), np.array(inside, dtype=bool)
    if adjacency is Adjacency.ADD_REMOVE:
        return found, coins
    end = 2 * (coins.shape[1] // 2)
    # Halves, so that no difference of finite scores is beyond all numbers.
    return found[:, 0:end:2] / 2 - found[:, 1:end:2] / 2, coins[:, 0:end:2]
