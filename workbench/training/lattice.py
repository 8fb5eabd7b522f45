"""Perturbs weights along random directions and restores them to the bit, without a copy.

A perturbation is rounded to its tensor's grid, multiples of G = 2^g. A weight w lies on a lattice: multiples
of v(w), the distance of neighbouring floats at |w| + C, where C is a power of two that no perturbation
exceeds. With v(w) <= G, w plus or minus a perturbation is a multiple of v(w) and at most 2^24 v(w) in size,
so it is a float32, and IEEE addition is exact in both directions. Only moves round:
w <- (w + C sign w) - C sign w puts a weight on its lattice again.

A small weight keeps nearly all its float32 bits (for mu = 1e-3 and w = 0.1 all of them), so that small moves
are not lost on it. The grid is about mu / 1000, or as fine as the tensor's largest weight allows.

A direction over d weights is Gaussian, has a seed and an index, and is drawn each time it is needed, in small
parts. It consists of blocks of 2^18 numbers, each with a separate stream, so that threads can share the work
and no number depends on how many there are. Each number is one of 2^16 equally likely values: the means of as
many slices of the standard normal distribution, scaled to variance one. It costs 16 random bits and a table
look-up, an eighth of the time of an exact normal; its distribution is within 2^-16 of the normal one in
Kolmogorov's distance, and its fourth moment is 2.9998 instead of 3, far finer than the rounding above.
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

from workbench.core.errors import InputError, UnsupportedError

LEVELS = 1 << 16
"""Number of values in a direction."""
BLOCK = 1 << 18
"""Numbers of one stream."""
PART = 1 << 17
"""Numbers drawn at once on a CPU: few enough for its cache, enough that threads seldom wait."""
_PER_WORD = 4
_LEAST_BLOCKS = 4
"""Fewest blocks for a second thread."""


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
"""Bound on the values' size."""


@dataclass(frozen=True)
class Piece:
    """The overlap of a part of a direction with a tensor: its place in the flat tensor and in the part."""

    number: int
    place: slice
    within: slice


Indices = NDArray[np.int64]
"""Indices of levels; int64, because numpy would copy others."""

Use = Callable[[Piece, Indices], None]
"""Takes a piece and the indices of its levels."""


class Directions:
    """Gaussian directions over a module's trainable parameters, each drawn from (seed, index) when needed."""

    def __init__(self, parameters: Sequence[nn.Parameter], seed: int) -> None:
        """Bind parameters, all on one device, and the public seed, >= 0."""
        self._seed = seed
        self._sizes = [parameter.numel() for parameter in parameters]
        self._total = sum(self._sizes)
        self._device = parameters[0].device if parameters else torch.device("cpu")
        self._part = PART if self._device.type == "cpu" else BLOCK
        self._pieces = list(self._cut())

    def parts(self, index: int) -> Iterator[tuple[int, slice, Tensor]]:
        """The direction in parts: number of the tensor, place in its flat form, and that part of z."""
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
        """Process every piece of a direction, as indices into `levels()`, by several threads.

        `begin` is called once per thread, and the function that it returns once per piece, in any order; the
        indices are valid during that call only.
        """
        blocks = self._blocks()
        threads = min(torch.get_num_threads(), blocks) if self._device.type == "cpu" else 1
        threads = threads if blocks >= _LEAST_BLOCKS else 1

        def run(first: int) -> None:
            use, room = begin(), np.empty(self._part, dtype=np.int64)
            for block in range(first, blocks, threads):
                for pieces, drawn in self._drawn(index, block, room):
                    for piece in pieces:
                        use(piece, drawn[piece.within])

        if threads == 1:
            run(0)
            return
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(run, range(threads)):
                pass

    def _blocks(self) -> int:
        return -(-self._total // BLOCK)

    def _drawn(self, index: int, block: int, room: Indices) -> Iterator[tuple[list[Piece], Indices]]:
        """The parts of a block: their pieces, and the indices of their levels, stored in `room`."""
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


MANTISSA_BITS = 24
"""Whole numbers up to 2^24 are exact in float32."""
FINEST = 2.0**-11
"""The finest grid, in units of the scale."""
LARGEST_SCALE = 2.0**64
"""Larger scales overflow float32 in intermediate results."""
HEADROOM = 4.0
"""Factor by which a tensor may grow before its grid is too fine for it."""


def power_above(value: float) -> float:
    """The smallest power of two that is not below a positive number."""
    return 2.0 ** math.ceil(math.log2(value))


class Lattice:
    """The trainable parameters of a run, moved along directions; perturbations are exact both ways."""

    def __init__(self, parameters: Sequence[nn.Parameter], scale: float, seed: int) -> None:
        """Round float32 parameters to their lattices, in place, for perturbations of scale mu.

        Raises `UnsupportedError`: a parameter is not float32, or they lie on several devices. `InputError`:
        there is none, one is not finite, or too large for the scale.
        """
        if not parameters:
            raise InputError("zeroth-order training needs a trainable parameter, got none")
        for parameter in parameters:
            if parameter.dtype != torch.float32:
                raise UnsupportedError(f"zeroth-order training needs float32 weights, got {parameter.dtype}")
            if parameter.device != parameters[0].device:
                raise UnsupportedError("zeroth-order training needs all weights on one device")
            parameter.data = parameter.data.contiguous()
        self._scale = scale
        self._directions = Directions(parameters, seed)
        self._flat = [parameter.data.view(-1) for parameter in parameters]
        self._farthest = power_above((FARTHEST + 0.5) * scale)
        self._levels = levels().to(parameters[0].device)
        self._centre = torch.tensor(self._farthest, device=parameters[0].device)
        self._perturbations: dict[float, Tensor] = {}
        self._grid = [0.0] * len(self._flat)
        self._reach = [0.0] * len(self._flat)
        for number, flat in enumerate(self._flat):
            self._snap(flat)
            self._lay(number)

    def perturb(self, direction: int, times: int) -> None:
        """Add `times` perturbations mu z, each rounded to the grid; exact."""
        self._shift(direction, {grid: times * self._perturbation(grid) for grid in set(self._grid)})

    def fits(self, amount: float) -> bool:
        """Whether `move` by this amount gives the same bits with perturbations `back`."""
        return self._unit(amount) <= min(self._grid)

    def move(self, direction: int, amount: float, *, back: int = 0) -> None:
        """Add `amount * z` and `back` perturbations, not 0 only where `fits(amount)`."""
        # Multiples of a unit so fine that the sum with the perturbation is exact: only the addition rounds.
        unit = self._unit(amount)
        moved = torch.round(self._levels * (amount / unit)) * unit
        tables = {grid: moved + back * self._perturbation(grid) for grid in set(self._grid)}
        self._shift(direction, tables, snap=True)
        gained = abs(amount) * FARTHEST
        self._reach = [reach + gained + grid for reach, grid in zip(self._reach, self._grid, strict=True)]

    def shrink(self, share: float) -> None:
        """Shrink every weight by a share in [0, 1)."""
        for flat in self._flat:
            flat.mul_(1.0 - share)
            self._snap(flat)

    def check(self) -> None:
        """Coarsen the grids of tensors that have outgrown theirs; between moves.

        Raises `InputError`: a weight is not finite, or too large for the scale.
        """
        for number, reach in enumerate(self._reach):
            if not reach + self._farthest <= self._limit(number):
                self._lay(number)

    def _perturbation(self, grid: float) -> Tensor:
        """mu z at each level, rounded to a grid."""
        if grid not in self._perturbations:
            self._perturbations[grid] = torch.round(self._levels * (self._scale / grid)) * grid
        return self._perturbations[grid]

    def _unit(self, amount: float) -> float:
        return power_above(self._farthest + abs(amount) * FARTHEST) * 2.0 ** (1 - MANTISSA_BITS)

    def _shift(self, direction: int, tables: dict[float, Tensor], *, snap: bool = False) -> None:
        """Add to each weight its tensor's table entry at the weight's level in the direction."""
        if self._centre.device.type == "cpu":
            self._directions.visit(direction, lambda: self._adder(tables, snap=snap))
            return

        def add(piece: Piece, drawn: Indices) -> None:
            weights = self._flat[piece.number][piece.place]
            places = torch.from_numpy(drawn).to(weights.device)
            weights.add_(torch.index_select(tables[self._grid[piece.number]], 0, places))
            if snap:
                self._snap(weights)

        self._directions.visit(direction, lambda: add)

    def _adder(self, tables: dict[float, Tensor], *, snap: bool) -> Use:
        """The function that shifts pieces in one thread; in numpy, which starts no threads itself."""
        arrays = [flat.numpy() for flat in self._flat]
        table_of = [tables[grid].numpy() for grid in self._grid]
        room, centre = np.empty(PART, dtype=np.float32), np.float32(self._farthest)

        def add(piece: Piece, drawn: Indices) -> None:
            """Shift a piece of the weights by the table's entries at the drawn indices, in place."""
            weights, steps = arrays[piece.number][piece.place], room[: len(drawn)]
            # Indices are below the table's length; "clip" writes without a copy.
            np.take(table_of[piece.number], drawn, out=steps, mode="clip")
            with np.errstate(over="ignore", invalid="ignore"):  # `check` finds what is not finite
                np.add(weights, steps, out=weights)
                if snap:
                    np.copysign(centre, weights, out=steps)
                    np.add(weights, steps, out=weights)
                    np.subtract(weights, steps, out=weights)

        return add

    def _snap(self, weights: Tensor) -> None:
        """Round weights to their lattices, in place."""
        for part in torch.split(weights, BLOCK):
            centre = torch.copysign(self._centre, part)
            part.add_(centre).sub_(centre)

    def _limit(self, number: int) -> float:
        return self._grid[number] * 2.0**MANTISSA_BITS

    def _lay(self, number: int) -> None:
        """Choose a grid for a tensor's largest weight, unless the current one still suits."""
        flat = self._flat[number]
        least, most = (float(end) for end in flat.aminmax()) if flat.numel() else (0.0, 0.0)
        largest = max(-least, most)
        if not (math.isfinite(least) and math.isfinite(most)):
            raise InputError("weights must be finite, got one that is not")
        self._reach[number] = largest
        if largest + self._farthest <= self._limit(number):
            return
        needed = power_above(HEADROOM * (largest + self._farthest)) * 2.0**-MANTISSA_BITS
        if needed > self._scale:
            raise InputError(
                f"scale must be at least {needed:g} for weights as large "
                f"as {largest:g} in float32, got {self._scale:g}"
            )
        # No finer than needed, so that most tensors share one grid and one table.
        self._grid[number] = max(needed, power_above(self._scale * FINEST))
