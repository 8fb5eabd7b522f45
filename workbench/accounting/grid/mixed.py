"""The losses of a step that is one of two, at random, where the output tells which.

Its hockey-stick curve is the mean of both curves, so it dominates each step whose divergences are at most
these means.
"""

from __future__ import annotations

import numpy as np

from workbench.accounting.grid.laws import ROUND_OFF, CellMasses, LossLaw
from workbench.interfaces import FloatArray

_LEAST = 1e-300


class MixedLaw(LossLaw):
    """The law above.

    Args:
        parts: Both laws with their probabilities, whose relative errors are at most 8 u.
    """

    def __init__(self, parts: tuple[tuple[float, LossLaw], tuple[float, LossLaw]]) -> None:
        self._parts = parts

    def span(self, tail: float) -> tuple[float, float]:
        """The wider one; of a part with less mass than the tail nothing is needed."""
        spans = [law.span(min(tail / weight, 0.5)) for weight, law in self._parts if weight > tail]
        return min(low for low, _ in spans), max(high for _, high in spans)

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Those of both."""
        rows = [
            (losses, weight * p, weight * q) for weight, law in self._parts for losses, p, q in [law.nodes()]
        ]
        losses, p, q = (np.concatenate([row[place] for row in rows]) for place in range(3))
        order = np.argsort(losses)
        return losses[order], p[order], q[order]

    def offset(self, h: float) -> float:
        """That of the likelier one."""
        return max(self._parts, key=lambda part: part[0])[1].offset(h)

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """The means of both laws' masses."""
        total: list[FloatArray] = [np.zeros(count + 2) for _ in range(4)]
        eta = 0.0
        for weight, law in self._parts:
            cells = law.cells(h, first, count, offset)
            eta = max(eta, cells.eta)
            masses = [
                np.concatenate(([low], inside, [high]))
                for low, inside, high in zip(
                    cells.below,
                    (cells.p, cells.q, cells.p_error, cells.q_error),
                    cells.above,
                    strict=True,
                )
            ]
            for place, row in enumerate(masses):
                total[place] += weight * row
            for place in (0, 1):
                total[place + 2] += 16 * ROUND_OFF * weight * masses[place] + _LEAST
        return CellMasses.of(tuple(total), first=first, eta=eta, offset=offset)
