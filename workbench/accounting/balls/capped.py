"""How often a Poisson sample is over its cap, and how often a record is in the batch that is kept of it.

With N further records, each drawn with probability q, and a cap of B: a record that is drawn along with k
others is kept if k < B, else with probability B / (k + 1). As C(N, k) / (k + 1) = C(N + 1, k + 1) / (N + 1),

    E[q B / (k + 1); k >= B] = B / (N + 1) * P(Bin(N + 1, q) > B).

**Neighbours that show the cap.** Let the record contribute 1, and all others -1, along one line. Where k < B
others are drawn the noised sum is N(-k), or N(1 - k) with the record; where more are, it is N(-B) without the
record and N(2 - B) with it, as it stands in for another. Which interval the sum falls in is a post-processing
of the release, so that the two laws of that are a finite pair below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, ctx
from scipy.special import ndtr

from workbench.accounting.balls.ball import ends, settle
from workbench.accounting.balls.finite_bounds import pair_below
from workbench.accounting.events import FinitePair
from workbench.interfaces import FloatArray

_ACCURACY = 60

_BITS = 128

_REACH = 11.0
"""Deviations beyond both means to which intervals go."""

_FAR = 24.0
"""Deviations beyond which a mean is too far from the intervals to count."""

_MOST_INTERVALS = 1500

_SLACK = 1e-11
"""Relative error granted to sums of products with SciPy's ndtr, whose own is below (64 + 8 t^2) 2^-53."""

_LEAST = 1e-36
"""At least what means that are too far put into an interval, and what floats lose."""


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


def opposed_pair(noise_multiplier: float, q: float, others: int, cap: int, *, replaced: bool) -> FinitePair:
    """A finite pair below the release on two data sets: the record among others that point away from it.

    Args:
        noise_multiplier: Of the sum.
        q: Sampling probability in (0, 0.99].
        others: At least as many as the cap.
        cap: Of the batch.
        replaced: Whether the record points as the others do in the other data set; else it is absent there.
    """
    shares = Capped.of(q, others, cap)
    full, kept = shares.full[0], shares.kept_when_full[0]
    first = max(cap - math.ceil(2 + _FAR * noise_multiplier), 0)
    room = _masses(q, others, first, cap)
    means = cap - np.arange(float(first), float(cap))  # Above -cap.
    with_record = [(room * (1 - q), means), (room * q, means + 1)]
    without = [(room * (1 - q), means), (room * q, means - 1)] if replaced else [(room, means)]
    with_record.append((full * np.array([1 - kept, kept]), np.array([0.0, 2.0])))
    without.append((np.array([full]), np.array([0.0])))
    span = 2 + 2 * _REACH * noise_multiplier
    pace = max(span / _MOST_INTERVALS, min(noise_multiplier / 30, 0.015 * noise_multiplier**2))
    edges = np.arange(-_REACH * noise_multiplier, span - _REACH * noise_multiplier, pace)
    with ctx.workprec(_BITS):
        sides = [_intervals(parts, edges, noise_multiplier) for parts in (with_record, without)]
        return pair_below(list(zip(*sides, strict=True)))


def _masses(q: float, others: int, first: int, cap: int) -> FloatArray:
    """P(Bin(others, q) = k) for first <= k < cap."""
    with ctx.workprec(_BITS):
        rate, start = arb(q), arb(first)
        log = (arb(others) + 1).lgamma() - (start + 1).lgamma() - (arb(others) - start + 1).lgamma()
        mass = (log + start * rate.log() + (others - start) * (1 - rate).log()).exp()
        found = []
        for k in range(first, cap):
            found.append(max(float(mass.mid()), 0.0))
            mass *= rate / (1 - rate) * (others - k) / (k + 1)
    return np.array(found)


def _intervals(
    parts: list[tuple[FloatArray, FloatArray]], edges: FloatArray, noise_multiplier: float
) -> list[arb]:
    """The masses of the intervals between edges under Gaussians of these weights and means; the rest last."""
    weights, means = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    places = (edges[None, :] - means[:, None]) / noise_multiplier
    low, high = places[:, :-1], places[:, 1:]
    # The difference of the smaller tails, on whichever side of the mean.
    is_above = low > 0
    nearer, farther = np.where(is_above, -low, high), np.where(is_above, -high, low)
    tails = ndtr(nearer)
    found = weights @ (tails - ndtr(farther))
    errors = _SLACK * (weights @ tails) + _LEAST
    inside = [arb(float(mass), float(error)) for mass, error in zip(found, errors, strict=True)]
    return [*inside, 1 - sum(inside, arb(0))]


def _at_least(q: float, count: int, least: int) -> arb:
    """P(Bin(count, q) >= least) for 1 <= least <= count."""
    tail: arb = arb(q).beta_lower(arb(least), arb(count - least + 1), 1)
    return tail
