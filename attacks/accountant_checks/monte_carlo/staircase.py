"""A density that is constant on each of many cells, drawn in constant time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from workbench.interfaces import FloatArray


@dataclass(frozen=True, kw_only=True)
class Staircase:
    """A density that is constant on each cell, drawn by the alias method.

    Attributes:
        lefts: Left ends of the cells.
        width: Of each cell.
        log_tops: Logarithm of each cell's unnormalised density.
    """

    lefts: FloatArray
    width: float
    log_tops: FloatArray

    @property
    def log_area(self) -> float:
        """Logarithm of the area under the tops."""
        return float(logsumexp(self.log_tops)) + math.log(self.width)

    @cached_property
    def _alias(self) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """Walker's table: probability of keeping each cell, and the cell taken otherwise."""
        weights = np.exp(self.log_tops - self.log_tops.max())
        keep = weights / weights.mean()
        other = np.arange(len(keep))
        small, large = list(np.flatnonzero(keep < 1)), list(np.flatnonzero(keep >= 1))
        while small and large:
            poor, rich = small.pop(), large[-1]
            other[poor] = rich
            keep[rich] -= 1 - keep[poor]
            if keep[rich] < 1:
                small.append(large.pop())
        return keep, other

    def draw(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Draws and the log-tops of their cells."""
        keep, other = self._alias
        cells = rng.integers(len(keep), size=n)
        cells = np.where(rng.random(n) < keep[cells], cells, other[cells])
        return self.lefts[cells] + self.width * rng.random(n), self.log_tops[cells]
