"""Loss laws with atoms: finite mechanisms, and Laplace noise (see `_loss_laws`)."""

from __future__ import annotations

import numpy as np

from workbench.accounting.loss_laws import ROUND_OFF, CellMasses, LossLaw
from workbench.interfaces import FloatArray


class AtomicLaw(LossLaw):
    """Finitely many losses (randomised response, finite mechanisms), given with their masses.

    Args:
        losses: Finite losses, increasing.
        p, q: Their masses, relative errors at most 8 u.
        p_infinite: Mass under P of outputs that Q never gives.
        q_infinite: Mass under Q of outputs that P never gives.
        lattice: See `LossLaw.lattice`.
    """

    def __init__(
        self,
        losses: FloatArray,
        p: FloatArray,
        q: FloatArray,
        *,
        p_infinite: float = 0.0,
        q_infinite: float = 0.0,
        lattice: float | None = None,
    ) -> None:
        self._losses, self._p, self._q = losses, p, q
        self._infinite = (p_infinite, q_infinite)
        self.lattice = lattice

    def span(self, tail: float) -> tuple[float, float]:
        """The lowest and the highest finite loss."""
        return float(self._losses[0]), float(self._losses[-1])

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The atoms themselves."""
        return self._losses, self._p, self._q

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """Each atom in the half-cell that its loss falls into, within rounding."""
        place = np.ceil((self._losses - offset) / (h / 2) - 1e-9).astype(np.int64) - first
        # Slot 0 is below all cells, slot k is (b_{k-1}, b_k], slot count + 1 is above.
        slot = np.clip(place, 0, count + 1)
        p: FloatArray = np.bincount(slot, self._p, minlength=count + 2).astype(np.float64)
        q: FloatArray = np.bincount(slot, self._q, minlength=count + 2).astype(np.float64)
        slack = (16 + len(self._losses)) * ROUND_OFF
        # The smallest float64 covers masses that are below it.
        p_error, q_error = (slack * mass + np.where(mass > 0, 1e-300, 0.0) for mass in (p, q))
        return CellMasses(
            first=first,
            p=p[1:-1],
            q=q[1:-1],
            p_error=p_error[1:-1],
            q_error=q_error[1:-1],
            below=(float(p[0]), float(q[0]), float(p_error[0]), float(q_error[0])),
            above=(float(p[-1]), float(q[-1]), float(p_error[-1]), float(q_error[-1])),
            # An atom that the ceiling's slack put one half-cell lower leaves it by 1e-9 of a half-cell.
            eta=1e-9 * h + 16 * ROUND_OFF * float(np.max(np.abs(self._losses))),
            infinite=self._infinite,
            offset=offset,
        )


class LaplaceLaw(LossLaw):
    """Laplace noise: half of P at loss c, half of Q at loss -c, and a ramp between; c = sensitivity / scale.

    P is centred at 0 and Q at the sensitivity; the loss at x in between is c (1 - 2 x). The pair in
    reverse order has the same law.
    """

    def __init__(self, c: float) -> None:
        self._c = c
        self.lattice = c

    def span(self, tail: float) -> tuple[float, float]:
        """-c and c."""
        return -self._c, self._c

    def nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Both atoms, and midpoints of 400 cells of the ramp."""
        edges = np.linspace(-self._c, self._c, 401)
        below = 0.5 * np.exp((edges - self._c) / 2)
        p = np.concatenate(([below[0]], np.diff(below), [0.5]))
        losses = np.concatenate(([-self._c], (edges[:-1] + edges[1:]) / 2, [self._c]))
        return losses, p, p[::-1].copy()

    def cells(self, h: float, first: int, count: int, offset: float = 0.0) -> CellMasses:
        """P(L <= l) = exp((l - c) / 2) / 2 for -c <= l < c, Q(L <= l) = 1 - exp(-(l + c) / 2) / 2."""
        edges = offset + (first + np.arange(count + 1, dtype=np.float64)) * (h / 2)
        inside = np.clip(edges, -self._c, self._c)
        # Rounding must not push an edge that means c below it: within 1e-12 it is c.
        reached = edges >= self._c * (1 - 1e-12)
        started = edges >= -self._c * (1 + 1e-12)
        p_below = np.where(reached, 1.0, np.where(started, 0.5 * np.exp((inside - self._c) / 2), 0.0))
        q_above = np.where(reached, 0.0, np.where(started, 0.5 * np.exp(-(inside + self._c) / 2), 1.0))
        p = np.diff(p_below, prepend=0.0, append=1.0)
        q = -np.diff(q_above, prepend=1.0, append=0.0)
        # 0 and 1 are exact.
        slack = np.where(started & ~reached, 32 * ROUND_OFF * (1 + self._c), 0.0)
        p_slack, q_slack = slack * p_below, slack * q_above
        p_error = np.append(p_slack, 0.0) + np.append(0.0, p_slack) + ROUND_OFF * p
        q_error = np.append(q_slack, 0.0) + np.append(0.0, q_slack) + ROUND_OFF * q
        return CellMasses(
            first=first,
            p=p[1:-1],
            q=q[1:-1],
            p_error=p_error[1:-1],
            q_error=q_error[1:-1],
            below=(float(p[0]), float(q[0]), float(p_error[0]), float(q_error[0])),
            above=(float(p[-1]), float(q[-1]), float(p_error[-1]), float(q_error[-1])),
            eta=4e-12 * self._c,
            offset=offset,
        )
