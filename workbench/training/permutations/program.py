"""What all permutations of a group have in common, worked out once, for it is done in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import IntArray
from workbench.training.permutations.units import Unit


@dataclass(frozen=True)
class Program:
    """What every permutation of a group does, worked out once: it is done in every step of a training.

    The indices of all units lie one after the other in one vector, a 0 behind them. Many axes are permuted
    alike (those of a weight and its bias), so an axis refers to a pattern: the indices of a whole axis. All
    patterns lie one after the other in one vector, too.

    Attributes:
        bounds: Where each unit begins and ends in the units' vector.
        still: The units' vector of the permutation that moves nothing.
        begins: Where the unit of each index begins, shape `(indices,)`.
        moves: Parameter, its shape, and each permuted axis (counted from the end) with its pattern.
        lengths: Of each pattern.
        sources: Where in the units' vector each entry of the patterns comes from: the 0 for what stays.
        starts: What is added to it.
    """

    bounds: tuple[tuple[int, int], ...]
    still: IntArray
    begins: IntArray
    moves: tuple[tuple[str, torch.Size, tuple[tuple[int, int], ...]], ...]
    lengths: tuple[int, ...]
    sources: Tensor
    starts: Tensor

    @classmethod
    def of(cls, units: Sequence[Unit], shapes: Mapping[str, torch.Size]) -> Program:
        """The program of a group."""
        parts: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for number, unit in enumerate(units):
            for slot in unit.slots:
                parts.setdefault((slot.parameter, slot.axis), []).append((number, slot.start))
        patterns: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        moves: dict[str, list[tuple[int, int]]] = {}
        for (name, axis), own in parts.items():
            pattern = patterns.setdefault((shapes[name][axis], tuple(own)), len(patterns))
            moves.setdefault(name, []).append((axis - len(shapes[name]), pattern))
        ends = [0, *accumulate(unit.size for unit in units)]
        sources, starts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for length, own_parts in patterns:
            source, start_of = np.full(length, ends[-1]), np.arange(length)
            for number, start in own_parts:
                place = slice(start, start + units[number].size)
                source[place] = np.arange(ends[number], ends[number + 1])
                start_of[place] = start
            sources.append(source)
            starts.append(start_of)
        sizes = [unit.size for unit in units]
        return cls(
            bounds=tuple(pairwise(ends)),
            still=frozen(np.concatenate([*(np.arange(size) for size in sizes), np.zeros(1, np.int64)])),
            begins=np.repeat(np.array(ends[:-1], dtype=np.int64), sizes),
            moves=tuple((name, shapes[name], tuple(axes)) for name, axes in moves.items()),
            lengths=tuple(length for length, _ in patterns),
            sources=torch.from_numpy(np.concatenate(sources)),
            starts=torch.from_numpy(np.concatenate(starts)),
        )

    def drawn(self, rng: np.random.Generator, count: int) -> IntArray:
        """Units' vectors of uniform permutations, one a row; the same rows, however many at once.

        Args:
            rng: Shuffles one unit after the other.
            count: Of rows.
        """
        orders = np.repeat(self.still[None], count, axis=0)
        for order in orders:
            for start, end in self.bounds:
                rng.shuffle(order[start:end])
        return frozen(orders)

    def patterns(self, orders: IntArray) -> Tensor:
        """All patterns, one row for each of the units' vectors that are given as rows."""
        return torch.tensor(orders).index_select(1, self.sources).add_(self.starts)

    def split(self, patterns: Tensor) -> tuple[Tensor, ...]:
        """One row of `patterns`, pattern by pattern."""
        return torch.split(patterns, list(self.lengths))


def frozen(order: IntArray) -> IntArray:
    """The array itself, read-only from now on."""
    order.flags.writeable = False
    return order
