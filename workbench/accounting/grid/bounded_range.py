"""The losses of the pair that dominates all mechanisms of one bounded range, as the exponential mechanism.

Where all losses of a pair lie between t - r and t, the pair is a post-processing of two outputs with these
two losses: its hockey-stick curve is convex, 1 - u up to exp(t - r) and 0 from exp(t) on, so it lies below
the chord. With u = exp(l), the largest of these chords over t in [0, r] has t = (r + l) / 2:

    H(u) = (exp(r / 2) - exp(l / 2))^2 / (exp(r) - 1),   -r <= l <= r

(Dong, Durfee and Rogers 2020, lemma 3.3 in other letters). As a supremum of such curves it is convex, so it
is the curve of a pair, which dominates (Zhu, Dong and Wang 2022). The losses of that pair have densities:

    P(loss <= l) = (exp((r + l) / 2) - 1) / (exp(r) - 1)
    Q(loss > l) = (exp((r - l) / 2) - 1) / (exp(r) - 1)

and the pair in reverse order has the same law.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from workbench.accounting.grid.laws import ROUND_OFF, CellMasses, LossLaw
from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray

_LARGEST = 300.0
"""Of the ranges whose masses float64 holds."""


class BoundedRangeLaw(LossLaw):
    """The law above.

    Args:
        range_: The range r, > 0.

    Raises:
        UnsupportedError: the range is too large.
    """

    def __init__(self, range_: Fraction) -> None:
        self._range = float(range_)
        if not 1e-100 < self._range < _LARGEST:
            raise UnsupportedError(f"a range of losses of {self._range:g} is out of the grid's reach")

    def span(self, tail: float) -> tuple[float, float]:
        """The least and the largest loss."""
        return -self._range, self._range

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Midpoints of 400 cells."""
        edges = np.linspace(-self._range, self._range, 401)
        p = self._masses(edges)
        return (edges[:-1] + edges[1:]) / 2, p, p[::-1].copy()

    def _masses(self, edges: FloatArray) -> FloatArray:
        """Mass under P between neighbouring edges, all within the range."""
        grown = np.exp((edges[:-1] - self._range) / 2) * np.expm1(np.diff(edges) / 2)
        # (exp((r + a) / 2) (exp((b - a) / 2) - 1)) / (exp(r) - 1), divided by exp(r) on both sides.
        masses: FloatArray = grown / -math.expm1(-self._range)
        return masses

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """Masses between the edges as rounded, each off by a dozen roundings of numbers up to the range."""
        edges = offset + (first + np.arange(count + 1, dtype=np.float64)) * (h / 2)
        # Rounding must not push an edge that means an end below it.
        slack = 1e-12 * self._range
        edges = np.where(edges >= self._range - slack, self._range, np.maximum(edges, -self._range))
        p = np.concatenate(([0.0], self._masses(edges), [0.0]))
        q = np.concatenate(([0.0], self._masses(-edges[::-1])[::-1], [0.0]))
        relative = 64 * ROUND_OFF * (1 + self._range)
        return CellMasses.of(
            (p, q, relative * p, relative * q), first=first, eta=2 * slack + 1e-300, offset=offset
        )
