"""The whole curve that a tilted sum bounds, so that many questions are answered at once.

The sum lies on a grid, so that delta(epsilon) is linear in exp(epsilon) between grid points. Bounds at two
neighbouring grid points therefore bound it between them too, by the chord, from above and from below.
"""

from __future__ import annotations

import math

import numpy as np

from workbench.accounting.grid.laws import ROUND_OFF
from workbench.accounting.grid.tilted import TiltedSum
from workbench.interfaces import FloatArray


class SumCurve:
    """Bounds on the curve of a sum, on the side on which the tilted sum has them.

    Raises:
        UnsupportedError: the window is too wide for a table.
    """

    def __init__(self, total: TiltedSum) -> None:
        self.upper, self._h = total.upper, total.width
        table = total.deltas()[1]
        # delta falls: what bounds it from above at a point does so further up, from below further down.
        if self.upper:
            self._deltas = np.minimum.accumulate(table)
        else:
            self._deltas = np.maximum.accumulate(table[::-1])[::-1]
        self._losses = total.losses

    def epsilons(self, deltas: FloatArray) -> FloatArray:
        """Bounds on epsilon at these deltas; infinite, of either sign, where the window does not show it."""
        last = len(self._losses) - 1
        # The first point at which delta is low enough (upper), or the last one where it is not (lower).
        place = np.searchsorted(-self._deltas, -deltas, side="left" if self.upper else "right")
        start = np.clip(place - 1, 0, last - 1)
        before, after = self._deltas[start], self._deltas[start + 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(before > after, (before - deltas) / (before - after), 0.0)
        inside = self._losses[start] + np.log1p(np.clip(share, 0.0, 1.0) * math.expm1(self._h))
        if self.upper:
            found = np.where(place > last, math.inf, np.where(place == 0, self._losses[0], inside))
            return found + self._margin(found)
        found = np.where(place > last, self._losses[last], np.where(place == 0, -math.inf, inside))
        return found - self._margin(found)

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Bounds on delta at these epsilons."""
        safe = epsilons + (-1 if self.upper else 1) * self._margin(epsilons)
        last = len(self._losses) - 1
        place = np.searchsorted(self._losses, safe, side="right")
        start = np.clip(place - 1, 0, last - 1)
        share = np.expm1(np.clip(safe - self._losses[start], 0.0, self._h)) / math.expm1(self._h)
        before, after = self._deltas[start], self._deltas[start + 1]
        inside = (before + (after - before) * share) * (1 + (1e-12 if self.upper else -1e-12))
        if self.upper:
            ends = np.where(place == 0, 1.0, self._deltas[last])
        else:
            ends = np.where(place == 0, self._deltas[0], 0.0)
        return np.minimum(np.where((place == 0) | (place > last), ends, inside), 1.0)

    def rates(self, false_positive_rates: FloatArray) -> FloatArray:
        """Bounds on the largest true-positive rate at these false-positive rates.

        It is the least of exp(epsilon) fpr + delta(epsilon), which is linear in exp(epsilon) between grid
        points: the least over them, for an upper bound; for a lower one, also what it is at least outside.
        """
        found = np.empty(len(false_positive_rates))
        growths = np.exp(np.minimum(self._losses, 700.0))
        for place, rate in enumerate(false_positive_rates):
            values = growths * rate + self._deltas
            if self.upper:
                found[place] = min(1.0, float(values[self._losses < 700].min(initial=1.0))) * (1 + 1e-10)
            else:
                outside = min(float(self._deltas[0]), float(growths[-1] * rate))
                found[place] = min(outside, float(values.min())) * (1 - 1e-10)
        return found

    def _margin(self, epsilons: FloatArray) -> FloatArray:
        """More than the rounding of an epsilon and of a share of a cell."""
        return 32 * ROUND_OFF * (np.abs(epsilons) + abs(float(self._losses[0])) + self._h) + 1e-12 * self._h
