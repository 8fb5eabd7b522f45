"""How often a Poisson sample is over its cap, and how often a record is in the batch that is kept of it.

With N further records, each drawn with probability q, and a cap of B: a record that is drawn along with k
others is kept if k < B, else with probability B / (k + 1). As C(N, k) / (k + 1) = C(N + 1, k + 1) / (N + 1),

    E[q B / (k + 1); k >= B] = B / (N + 1) * P(Bin(N + 1, q) > B).
"""

from __future__ import annotations

from dataclasses import dataclass

from flint import arb

from workbench.accounting.balls.ball import ends, settle

_ACCURACY = 60


@dataclass(frozen=True, kw_only=True)
class Capped:
    """Probabilities about one record and the others, each by its ends.

    Attributes:
        room: That fewer others than the cap are drawn.
        full: That at least as many are.
        kept_when_full: That the record is in the batch, given that.
        kept: That it is in the batch at all.
    """

    room: tuple[float, float]
    full: tuple[float, float]
    kept_when_full: tuple[float, float]
    kept: tuple[float, float]

    @classmethod
    def of(cls, q: float, others: int, cap: int) -> Capped:
        """With sampling probability q in (0, 1) and at least as many others as the cap."""

        def rest() -> arb:
            return _at_least(q, others + 1, cap + 1) * cap / (others + 1)

        def room() -> arb:
            # P(Bin(N, q) < B) = P(Bin(N, 1 - q) > N - B)
            return (1 - arb(q)).beta_lower(arb(others - cap + 1), arb(cap), 1)

        def full() -> arb:
            return _at_least(q, others, cap)

        found = [
            ends(settle(value, accuracy=_ACCURACY))
            for value in (room, full, lambda: rest() / full(), lambda: arb(q) * room() + rest())
        ]
        whole = [(max(low, 0.0), min(high, 1.0)) for low, high in found]
        return cls(room=whole[0], full=whole[1], kept_when_full=whole[2], kept=whole[3])


def _at_least(q: float, count: int, least: int) -> arb:
    """P(Bin(count, q) >= least) for 1 <= least <= count."""
    tail: arb = arb(q).beta_lower(arb(least), arb(count - least + 1), 1)
    return tail
