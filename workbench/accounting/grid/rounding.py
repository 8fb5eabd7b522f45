"""One step's privacy loss on a grid, rounded outwards: a dominating law and a dominated one.

A law is known by its hockey-stick curve H(u) = sum_x (P(x) - u Q(x))_+, u = exp(epsilon) > 0: convex,
falling, and for a law with masses p_j at the likelihood ratios r_j equal to sum_j p_j (1 - u / r_j)_+.
Composition is monotone in it: the curve of a product is a P-mean of H(u / r) over the other factor, so
where one step's curve lies below another's, so do those of all compositions. That holds for any masses
p_j >= 0, whatever they sum to.

Dominating ("connect the dots", Doroshenko et al. 2022): the mass of each cell (g_i, g_{i+1}] of the loss
is split between its two ends so that its masses under P and under Q stay what they are. The curve is the
chord of H over the grid u_i = exp(g_i), and lies above H.

Dominated: the chord lowered by a piecewise linear curve c that is at least the chord's excess over H.
The excess in a cell is bounded from the masses of its two halves: moving each half to its mean
likelihood ratio lowers H, and the chord's excess over that is largest at one of the two ratios. The
kinks of "chord minus c" are masses at the grid points; where one is negative (c is rough there), a chord
over the point replaces it.

Both errors are of second order in the width of a cell. Where masses are known up to rounding only, they
are moved by their error bounds to the safe side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from workbench.accounting.grid.laws import CellMasses
from workbench.interfaces import FloatArray

_SLACK = 1e-13
"""Relative allowance for the few float operations between masses and grid masses."""

_ENTRY = 64
"""Most cells over which the lowering curve is fitted cell by cell."""


@dataclass(frozen=True, kw_only=True)
class GridLaw:
    """Masses under P of the losses offset + (first + i) * h; the total may differ from 1, on the safe side.

    Attributes:
        offset: Where the grid's zero lies.
        first: Index of the lowest grid point.
        mass: Shape `(n,)`, >= 0.
        infinite: Mass of the loss +infinity.
    """

    offset: float
    first: int
    mass: FloatArray
    infinite: float


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """Masses of whole cells, what splitting them moves to the upper ends, and bounds on the errors."""

    losses: FloatArray
    """At the lower ends."""
    ratio: FloatArray
    p: FloatArray
    p_error: FloatArray
    excess: FloatArray
    """p - exp(g_i) q: what the cell adds to the curve at its lower end."""
    excess_error: FloatArray


def _whole_cells(cells: CellMasses, h: float) -> _Cells:
    p, q = cells.p[0::2] + cells.p[1::2], cells.q[0::2] + cells.q[1::2]
    p_error = cells.p_error[0::2] + cells.p_error[1::2]
    q_error = cells.q_error[0::2] + cells.q_error[1::2]
    losses = cells.offset + (cells.first // 2 + np.arange(len(p), dtype=np.float64)) * h
    ratio = np.exp(losses)
    scaled, moved = ratio * q, math.expm1(2 * cells.eta)
    excess, error = p - scaled, p_error + ratio * q_error + (_SLACK + moved) * scaled
    if cells.difference is not None and cells.difference_error is not None:
        # (p - q) - (ratio - 1) q is all but free of rounding where p and q are alike.
        growth, difference = np.expm1(losses), cells.difference[0::2] + cells.difference[1::2]
        sizes = np.abs(cells.difference[0::2]) + np.abs(cells.difference[1::2])
        rounded = np.abs(growth) + (np.abs(losses) + 2 * abs(cells.offset)) * ratio
        precise = cells.difference_error[0::2] + cells.difference_error[1::2]
        precise = precise + np.abs(growth) * q_error + moved * scaled + _SLACK * (sizes + rounded * q)
        excess = np.where(precise < error, difference - growth * q, excess)
        error = np.minimum(precise, error)
    return _Cells(losses=losses, ratio=ratio, p=p, p_error=p_error, excess=excess, excess_error=error)


def dominating(cells: CellMasses, h: float) -> GridLaw:
    """The law on the grid that is at least as informative; losses above all cells become infinite."""
    whole = _whole_cells(cells, h)
    up = whole.p + whole.p_error
    share = (1 + _SLACK) / -math.expm1(-h)
    high = np.clip((whole.excess + whole.excess_error) * share, 0.0, up)
    mass = np.append(up - high, 0.0)
    mass[1:] += high
    mass[0] += cells.below[0] + cells.below[2]
    infinite = cells.above[0] + cells.above[2] + cells.infinite[0] * (1 + _SLACK)
    return GridLaw(offset=cells.offset, first=cells.first // 2, mass=mass * (1 + _SLACK), infinite=infinite)


def dominated(cells: CellMasses, h: float) -> GridLaw:
    """The law on the grid that is at most as informative; losses below all cells are dropped."""
    whole = _whole_cells(cells, h)
    span = -math.expm1(-h)
    low = np.maximum(whole.p - whole.p_error, 0.0)
    high = np.clip((whole.excess - whole.excess_error) * ((1 - _SLACK) / span), 0.0, low)
    # All of the cell's excess at its lower end is the most that the chord can be too high in it.
    all_of_it = np.clip(whole.excess + whole.excess_error, 0.0, (whole.p + whole.p_error) * span)
    halves = _halves(cells, whole, h)
    gap = np.minimum(halves.gap.max(axis=1), all_of_it) * (1 + _SLACK)
    rounded_down = np.append(low, max(cells.above[0] - cells.above[2], 0.0))
    top, above = len(low), max(cells.above[0] - cells.above[2], 0.0)
    while top > 1:
        drop = max(gap[top - 2], all_of_it[top - 1])
        if high[top - 1] + above - drop * (1 + _SLACK) / span >= 0:
            break
        # Nothing can stand at the topmost point: the topmost cell is rounded down to its lower end.
        top -= 1
        above += low[top]
    low, high, gap, drop = low[:top], high[:top], gap[:top], max(gap[top - 2], all_of_it[top - 1])
    mass = np.append(low - high, above)
    mass[1:] += high
    lowering = np.zeros(top + 1)
    lowering[:top] = np.maximum(gap, np.append(0.0, gap[:-1]))
    _enter_gently(lowering, gap, halves, whole.p[:top] + whole.p_error[:top] - high, h)
    lowering[top - 1] = max(drop, lowering[top - 1])
    rise = np.diff(lowering, prepend=lowering[0], append=0.0)
    kinks = (rise[1:] - math.exp(h) * rise[:-1]) / math.expm1(h)
    mass -= kinks + _SLACK * (np.abs(rise[1:]) + np.abs(rise[:-1])) / span
    mass = _without_negative(mass, h)
    if not mass.any():
        mass = rounded_down
    return GridLaw(
        offset=cells.offset,
        first=cells.first // 2,
        mass=mass * (1 - _SLACK),
        infinite=cells.infinite[0] * (1 - _SLACK),
    )


def _enter_gently(
    lowering: FloatArray, gap: FloatArray, halves: _Halves, kink_at_low: FloatArray, h: float
) -> None:
    """Start the lowering curve at 0, and let it rise no faster than each cell needs while gaps leap.

    A curve that is below 1 - u already where the law has hardly begun would cost all of the law's mean.
    In a cell the line from c_i to c_{i+1} must be at least the gap at both ratios; or it may reach, at
    the upper end, the tangent of the curve at the lower end, which lies `kink_at_low` (exp(h) - 1) below
    the chord. Once the gaps grow slowly, the larger of the neighbouring gaps takes over.
    """
    current = 0.0
    for i in range(min(_ENTRY, len(gap) - 2)):
        lowering[i] = current
        tangent = float(kink_at_low[i]) * math.expm1(h) * (1 + _SLACK)
        at = halves.place[i] + halves.place_error[i] * np.array([[-1.0], [1.0]])
        if np.all((at > 1e-3) & (at < 1)):
            # Monotone in the place, so its two ends decide.
            wanted = float(np.max((halves.gap[i] - current * (1 - at)) / at)) * (1 + 1e-9)
            needed = min(max(wanted, 0.0), tangent)
        else:
            needed = tangent
        leaps = gap[i + 1] >= 2 * gap[i]
        if not leaps or i == min(_ENTRY, len(gap) - 2) - 1:
            lowering[i + 1] = max(lowering[i + 1], needed)
            return
        current = needed


@dataclass(frozen=True, kw_only=True)
class _Halves:
    """How far the chord lies above the curve of the halves' mean ratios, and where; both of shape `(n, 2)`.

    Attributes:
        gap: Upper bound on the excess of the chord at each half's mean ratio; 0 for an empty half.
        place: Where that ratio lies between the ends of the cell, in (0, 1); 1/2 for an empty half.
        place_error: By how much `place` may be off, shape `(n,)`.
    """

    gap: FloatArray
    place: FloatArray
    place_error: FloatArray


def _halves(cells: CellMasses, whole: _Cells, h: float) -> _Halves:
    """Compare the chord with the law that moves each half-cell to its mean ratio, or drops it."""
    high = np.clip(
        (whole.excess + whole.excess_error) * ((1 + _SLACK) / -math.expm1(-h)), 0.0, whole.p + whole.p_error
    )
    p = np.stack([cells.p[0::2], cells.p[1::2]], axis=1)
    q = np.stack([cells.q[0::2], cells.q[1::2]], axis=1)
    p_error = np.stack([cells.p_error[0::2], cells.p_error[1::2]], axis=1)
    q_error = np.stack([cells.q_error[0::2], cells.q_error[1::2]], axis=1)
    # A half that is empty, or hardly known, is dropped: that lowers the curve too.
    known = (p > 8 * p_error) & (q > 8 * q_error)
    below, following = whole.ratio[:, None], (whole.ratio * math.exp(h))[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(known, p / q, 1.0)
        errors = np.where(known, p_error / p + q_error / q + _SLACK, 0.0)
    short, beyond, other = 1 - ratio / following, ratio / below - 1, p[:, 1] - ratio[:, 0] * q[:, 1]
    if cells.difference is not None and cells.difference_error is not None:
        # The same from ratios less 1, which are all but free of rounding where p and q are alike.
        difference = np.stack([cells.difference[0::2], cells.difference[1::2]], axis=1)
        error = np.stack([cells.difference_error[0::2], cells.difference_error[1::2]], axis=1)
        losses = whole.losses[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            growth = np.where(known, difference / q, 0.0)
            rounded = np.abs(growth) + np.abs(losses) + h + 2 * abs(cells.offset)
            # Ratios are above 1/2, so that errors of them are at most doubled relative to them.
            precise = 2 * np.where(known, error / q + np.abs(growth) * q_error / q + _SLACK * rounded, 0.0)
        near = known & (np.abs(growth) < 0.4) & (np.abs(losses) < 0.4) & (precise < errors)
        short = np.where(near, (np.expm1(losses + h) - growth) / following, short)
        beyond = np.where(near, (growth - np.expm1(losses)) / below, beyond)
        other = np.where(near.all(axis=1), difference[:, 1] - growth[:, 0] * q[:, 1], other)
        errors = np.where(near, precise, errors)
    total = 2 * np.sum(errors, axis=1) + math.expm1(4 * cells.eta)
    gap = high[:, None] * short
    gap[:, 0] -= np.where(known[:, 1], other, 0.0)
    gap = np.where(known, np.maximum(gap, 0.0) + (total * 4 * (whole.p + whole.p_error))[:, None], 0.0)
    gap[~known.any(axis=1)] = np.inf
    place = np.where(known, beyond / math.expm1(h), 0.5)
    return _Halves(gap=gap, place=place, place_error=2 * total * (1 + 1 / math.expm1(h)))


def _without_negative(mass: FloatArray, h: float) -> FloatArray:
    """Replace negative kinks by chords over them, which lowers the curve, until none is left.

    A negative mass is shared between the nearest points that still have a kink, so that its shares under
    P and under Q stay the same; the point is then done with. Zeros where a negative mass would be left
    at the topmost point.
    """
    negative = [int(i) for i in np.flatnonzero(mass < 0)]
    if not negative:
        return mass
    # Lists: one number at a time, an array takes several times as long.
    kept = mass.tolist()
    last = len(kept) - 1
    below, above = list(range(-1, last)), list(range(1, last + 2))
    while negative:
        i = negative.pop()
        if kept[i] >= 0 or i == last:
            continue
        left, right = below[i], above[i]
        # A little more than is owed: the shares are rounded.
        owed, kept[i] = kept[i] * (1 + _SLACK), 0.0
        if left >= 0:
            whole = math.expm1(-h * (right - left))
            to_left = math.exp(-h * (i - left)) * math.expm1(-h * (right - i)) / whole
            to_right = math.expm1(-h * (i - left)) / whole
            kept[left] += owed * to_left
            above[left] = right
            if kept[left] < 0:
                negative.append(left)
        else:
            to_right = 1.0
        kept[right] += owed * to_right
        below[right] = left
        if kept[right] < 0:
            negative.append(right)
    return np.array(kept) if kept[last] >= 0 else np.zeros_like(mass)
