"""The losses of a Gaussian sum over a batch of fixed size, replace-one: a pair that dominates both orders.

A batch holds the replaced place with probability q = batch / data set. Couple a batch without it with one
where it stands in for a uniformly drawn member j: given the others, the outputs under two neighbours are
averages over j of (1 - q) N(0) + q N(u_j) and (1 - q) N(0) + q N(v_j) up to a common shift, u_j = x - x_j and
v_j = x' - x_j: |u|, |v| and |u - v| are at most 2. Averages are joint convexity. For alpha >= 1, as in
`balls.mixture`,

    P(E) - alpha Q(E) <= q p - (alpha - 1 + q) Phi(Phi^-1(p) - 2 / s),   p = N(u)(E),

which half-lines attain for u = 2, v = 0: the pair M = (1 - q) N(0) + q N(2) against N = N(0), of records with
contributions 1 and -1 among others of -1. For alpha < 1, H_alpha(P || Q) = 1 - alpha + alpha
H_{1 / alpha}(Q || P), and the family is symmetric: the supremum is that of the same pair in reverse order. So

    H(alpha) = max of H_alpha(M || N) and H_alpha(N || M)

bounds every pair; it is a supremum of hockey-stick curves, hence one itself, of the pair whose losses above 0
are those of M against N, below 0 mirrored, with the rest of the mass at 0. Composed, it dominates (Zhu, Dong
and Wang 2022). That one order alone does not is shown by Lebeda, Regehr, Kamath and Steinke (2024).
"""

from __future__ import annotations

import numpy as np

from workbench.accounting.grid.laws import ROUND_OFF, CellMasses, LossLaw, SubsampledLaw
from workbench.interfaces import FloatArray


class FixedBatchLaw(LossLaw):
    """The law above.

    Args:
        sigma: Standard deviation of the noise over the largest contribution.
        q: Probability of the record to be in the batch, rounded up.
    """

    def __init__(self, sigma: float, q: float) -> None:
        self._inner = SubsampledLaw(sigma / 2, q)

    def span(self, tail: float) -> tuple[float, float]:
        """The largest loss of M against N that counts, on both sides."""
        high = self._inner.span(tail)[1]
        return -high, high

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The inner law's nodes above 0, the atom, and both mirrored."""
        losses, p, q = (row[self._inner.nodes()[0] > 0] for row in self._inner.nodes())
        rest = [max(1.0 - float(p.sum()) - float(q.sum()), 0.0)]
        return (
            np.concatenate((-losses[::-1], [0.0], losses)),
            np.concatenate((q[::-1], rest, p)),
            np.concatenate((p[::-1], rest, q)),
        )

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """The cells above 0, mirrored below it, and the atom at 0 in the cell that ends there."""
        most = max(first + count, -first, 1)
        inner = self._inner.cells(h, 0, most)
        above_p, above_q, p_error, q_error = (
            np.append(row, outside)
            for row, outside in zip(
                (inner.p, inner.q, inner.p_error, inner.q_error), inner.above, strict=True
            )
        )
        # P(loss <= 0) - Q(loss > 0): what is left for the atom.
        atom = max(inner.below[0] - float(above_q.sum()), 0.0)
        atom_error = inner.below[2] + float(q_error.sum()) + (4 + most) * ROUND_OFF
        p = np.concatenate((above_q[::-1], above_p))
        q = np.concatenate((above_p[::-1], above_q))
        p_off = np.concatenate((q_error[::-1], p_error))
        q_off = np.concatenate((p_error[::-1], q_error))
        for row, value in ((p, atom), (q, atom), (p_off, atom_error), (q_off, atom_error)):
            row[most] += value
        whole = tuple(_gathered(row, first + most, count) for row in (p, q, p_off, q_off))
        slack = 4 * (len(p) + 4) * ROUND_OFF
        whole = (whole[0], whole[1], whole[2] + slack * whole[0], whole[3] + slack * whole[1])
        return CellMasses.of(whole, first=first, eta=inner.eta)


def _gathered(row: FloatArray, start: int, count: int) -> FloatArray:
    """The entries of `count` half-cells, with what lies below and above them summed at the ends.

    `row` starts with what lies below its own lowest half-cell.
    """
    inside = row[start + 1 : start + 1 + count]
    return np.concatenate(([row[: start + 1].sum()], inside, [row[start + 1 + count :].sum()]))
