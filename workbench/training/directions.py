"""Gaussian directions that are drawn anew each time, in small parts, and stored nowhere.

A direction over d weights has a seed and an index. It is made of blocks of 2^18 numbers with a stream of
their own each, so that several threads can draw it together and no number depends on how many they are.

Each number is one of 2^16 that are equally likely: the means of as many slices of the standard normal
distribution, scaled to variance one. So drawn, a number costs 16 random bits and a look into a table, an
eighth of the time of an exact normal; it lies within 2^-16 of the normal distribution everywhere (in
Kolmogorov's distance), and its fourth moment is 2.9998 in the place of 3. Perturbations are rounded far more
coarsely than that anyway (`workbench.training.lattice`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

LEVELS = 1 << 16
"""Values that a number of a direction can have."""
BLOCK = 1 << 18
"""Numbers of one stream."""
PART = 1 << 17
"""Numbers that are drawn at once on a processor: few enough for its cache, and so many that threads seldom
wait for each other."""
_PER_WORD = 4
_LEAST_BLOCKS = 4
"""Fewer are not worth a second thread."""


@functools.cache
def levels() -> Tensor:
    """The values, ascending, float32, shape `(LEVELS,)`: odd about zero, of variance one."""
    half = LEVELS // 2
    edges = torch.special.ndtri(torch.arange(half + 1, dtype=torch.float64) / LEVELS)
    density = torch.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
    below = -(density.diff() * LEVELS)
    means = torch.cat([below, -below.flip(0)])
    return (means / means.square().mean().sqrt()).float()


FARTHEST = 4.5
"""No value is farther from zero."""


@dataclass(frozen=True)
class Piece:
    """A stretch of one tensor that one part of a direction covers.

    Attributes:
        number: Of the tensor.
        place: In its flat form.
        within: In the part.
    """

    number: int
    place: slice
    within: slice


Indices = NDArray[np.int64]
"""Of levels; int64, because numpy takes no other without a copy."""

Use = Callable[[Piece, Indices], None]
"""What is done with a piece and the indices of its levels."""


class Directions:
    """Gaussian directions over a module's trainable parameters, each drawn from (seed, index) when needed."""

    def __init__(self, parameters: Sequence[nn.Parameter], seed: int) -> None:
        """Name what the directions span, and the public seed.

        Args:
            parameters: In their order; all on one device.
            seed: Public, >= 0.
        """
        self._seed = seed
        self._sizes = [parameter.numel() for parameter in parameters]
        self._total = sum(self._sizes)
        self._device = parameters[0].device if parameters else torch.device("cpu")
        self._part = PART if self._device.type == "cpu" else BLOCK
        self._pieces = list(self._cut())

    def parts(self, index: int) -> Iterator[tuple[int, slice, Tensor]]:
        """The direction, part by part: number of the tensor, place in its flat form, and that part of z."""
        table, room = levels().to(self._device), np.empty(self._part, dtype=np.int64)
        for block in range(self._blocks()):
            for pieces, drawn in self._drawn(index, block, room):
                for piece in pieces:
                    yield (
                        piece.number,
                        piece.place,
                        table[torch.from_numpy(drawn[piece.within]).to(table.device)],
                    )

    def visit(self, index: int, begin: Callable[[], Use]) -> None:
        """Give every piece of a direction, as indices into `levels()`, to a function; by several threads.

        Args:
            index: Of the direction.
            begin: Called once a thread; what it returns takes a piece and its indices, valid until it
                returns, and is called once a piece, in any order.
        """
        blocks = self._blocks()
        threads = min(torch.get_num_threads(), blocks) if self._device.type == "cpu" else 1
        threads = threads if blocks >= _LEAST_BLOCKS else 1

        def every(first: int) -> None:
            use, room = begin(), np.empty(self._part, dtype=np.int64)
            for block in range(first, blocks, threads):
                for pieces, drawn in self._drawn(index, block, room):
                    for piece in pieces:
                        use(piece, drawn[piece.within])

        if threads == 1:
            every(0)
            return
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(every, range(threads)):
                pass

    def _blocks(self) -> int:
        return -(-self._total // BLOCK)

    def _drawn(self, index: int, block: int, room: Indices) -> Iterator[tuple[list[Piece], Indices]]:
        """Part by part of a block: its pieces, and the indices of their levels, held in `room`."""
        bits = np.random.SFC64(np.random.SeedSequence(self._seed, spawn_key=(index, block)))
        each = BLOCK // self._part
        for pieces in self._pieces[block * each : (block + 1) * each]:
            count = pieces[-1].within.stop
            words = np.asarray(bits.random_raw(-(-count // _PER_WORD)), dtype="<u8")
            room[:count] = words.view("<u2")[:count]
            yield pieces, room[:count]

    def _cut(self) -> Iterator[list[Piece]]:
        """The pieces of every part."""
        pieces: list[Piece] = []
        filled = 0
        for number, size in enumerate(self._sizes):
            start = 0
            while start < size:
                taken = min(size - start, self._part - filled)
                place, within = slice(start, start + taken), slice(filled, filled + taken)
                pieces.append(Piece(number, place, within))
                start, filled = start + taken, filled + taken
                if filled == self._part:
                    yield pieces
                    pieces, filled = [], 0
        if pieces:
            yield pieces
