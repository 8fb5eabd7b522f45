"""Weights that are perturbed and come back to the bit, in float32 and without a copy of them.

A perturbation is rounded to the grid of its tensor, steps of G = 2^g. A weight w lies on a lattice of its
own: multiples of v(w), the distance of neighbouring floats at |w| + C, where C is a power of two that no
perturbation exceeds. With v(w) <= G, w plus or minus a perturbation is a multiple of v(w) and at most
2^24 v(w) in size, so it is a float, and IEEE addition gives it exactly; hence so does the way back. Only
moves round: w <- (w + C sign w) - C sign w puts a weight on its lattice again.

A small weight keeps nearly all bits that it would have in float32 (for mu = 1e-3 and w = 0.1 all of them),
so that small moves are not lost on it. The grid is about mu / 1000, or as fine as the largest weight of the
tensor allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core.errors import InputError, UnsupportedError
from workbench.training.directions import (
    BLOCK,
    FARTHEST,
    PART,
    Directions,
    Indices,
    Piece,
    Use,
    levels,
)

MANTISSA_BITS = 24
"""Whole numbers up to 2^24 are exact in float32."""
FINEST = 2.0**-11
"""The finest grid, in units of the scale: a perturbation is not rounded to less, on average."""
LARGEST_SCALE = 2.0**64
"""Beyond it the numbers on the way leave float32."""
HEADROOM = 4.0
"""A tensor may grow by this factor before its grid is too fine for it."""


def power_above(value: float) -> float:
    """The smallest power of two that is not below a positive number."""
    return 2.0 ** math.ceil(math.log2(value))


class Lattice:
    """The trainable parameters of a run, moved along directions; perturbations are exact both ways."""

    def __init__(self, parameters: Sequence[nn.Parameter], scale: float, seed: int) -> None:
        """Lay the parameters on their lattices, in place.

        Args:
            parameters: float32, finite.
            scale: mu, in (0, `LARGEST_SCALE`].
            seed: Public seed of the directions.

        Raises:
            UnsupportedError: a parameter is not float32, or they lie on several devices.
            InputError: there is none, one is not finite, or so large that the scale is lost on it.
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
        """Add so many perturbations mu z, each rounded to the grid; exact."""
        self._shift(direction, {grid: times * self._perturbation(grid) for grid in set(self._grid)})

    def fits(self, amount: float) -> bool:
        """Whether a move by `amount * z` gives the same bits with a perturbation taken back on the way."""
        return self._unit(amount) <= min(self._grid)

    def move(self, direction: int, amount: float, *, back: int = 0) -> None:
        """Add `amount * z`, after so many perturbations along the same direction that are taken back.

        Args:
            direction: Index of the direction.
            amount: How far; finite.
            back: Perturbations to add on the way; only where `fits(amount)`.
        """
        # Steps of a unit so fine that its sum with the perturbation is exact: one rounding, in the addition.
        unit = self._unit(amount)
        moved = torch.round(self._levels * (amount / unit)) * unit
        tables = {grid: moved + back * self._perturbation(grid) for grid in set(self._grid)}
        self._shift(direction, tables, snap=True)
        gained = abs(amount) * FARTHEST
        self._reach = [reach + gained + grid for reach, grid in zip(self._reach, self._grid, strict=True)]

    def shrink(self, share: float) -> None:
        """Take a share in [0, 1) off every weight."""
        for flat in self._flat:
            flat.mul_(1.0 - share)
            self._snap(flat)

    def check(self) -> None:
        """Give the tensors that have outgrown their grids coarser ones; between moves.

        Raises:
            InputError: a weight is not finite, or so large that the scale is lost on it.
        """
        for number, reach in enumerate(self._reach):
            if not reach + self._farthest <= self._limit(number):
                self._lay(number)

    def _perturbation(self, grid: float) -> Tensor:
        """mu z at each level, in whole steps of a grid."""
        if grid not in self._perturbations:
            self._perturbations[grid] = torch.round(self._levels * (self._scale / grid)) * grid
        return self._perturbations[grid]

    def _unit(self, amount: float) -> float:
        return power_above(self._farthest + abs(amount) * FARTHEST) * 2.0 ** (1 - MANTISSA_BITS)

    def _shift(self, direction: int, tables: dict[float, Tensor], *, snap: bool = False) -> None:
        """Add to each weight what its tensor's table has at its number of the direction."""
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
        """What adds to a piece's weights, for one thread; numpy, whose operations keep to the thread."""
        arrays = [flat.numpy() for flat in self._flat]
        table_of = [tables[grid].numpy() for grid in self._grid]
        room, centre = np.empty(PART, dtype=np.float32), np.float32(self._farthest)

        def add(piece: Piece, drawn: Indices) -> None:
            weights, found = arrays[piece.number][piece.place], room[: len(drawn)]
            # Indices are below the table's length; "clip" writes without a copy.
            np.take(table_of[piece.number], drawn, out=found, mode="clip")
            with np.errstate(over="ignore", invalid="ignore"):  # `check` looks for what is not finite
                np.add(weights, found, out=weights)
                if snap:
                    np.copysign(centre, weights, out=found)
                    np.add(weights, found, out=weights)
                    np.subtract(weights, found, out=weights)

        return add

    def _snap(self, weights: Tensor) -> None:
        """Round weights to their lattices, in place."""
        for part in torch.split(weights, BLOCK):
            centre = torch.copysign(self._centre, part)
            part.add_(centre).sub_(centre)

    def _limit(self, number: int) -> float:
        return self._grid[number] * 2.0**MANTISSA_BITS

    def _lay(self, number: int) -> None:
        """Choose the grid that suits a tensor's largest weight, unless it is on one that still does."""
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
                f"scale must be at least {needed:g} for weights as large as {largest:g} in float32, "
                f"got {self._scale:g}"
            )
        # No finer than it must be, so that most tensors share one grid and one table.
        self._grid[number] = max(needed, power_above(self._scale * FINEST))
