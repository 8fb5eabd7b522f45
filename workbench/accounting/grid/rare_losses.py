"""Bounds on many steps of which few have large losses: the small ones on a fine grid, large ones apart.

Where a record is seldom sampled and the noise is low, nearly all losses are about as small as the sampling
probability, and a few are millions of times as large: no grid of one width serves both. A step's outputs are
therefore split by a loss r into those below (the core) and those above (jumps). With m the law of the
jumps' losses, and H_n the curve epsilon -> sum (P - exp(epsilon) Q)_+ of n steps that all stay in the core,

    delta(epsilon) = sum over k of C(T, k) int H_{T-k}(epsilon - l_1 - ... - l_k) m(dl_1) ... m(dl_k).

r is chosen so that three jumps are rarer than delta: their terms are bounded by their probability, or by 0.
The core's curve is bounded on a grid as that of any other law (`rounding`, `tilted`). Each cell of jumps is
replaced by one that is at least as informative (its mass split between its ends so that P and Q keep theirs),
or at most (moved to the mean likelihood ratio), as often as there are jumps and not T times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workbench.accounting.grid.composition import Cumulants, Saddle
from workbench.accounting.grid.laws import ROUND_OFF, CellMasses, MonotoneLaw
from workbench.accounting.grid.rounding import GridLaw, dominated, dominating
from workbench.accounting.grid.tilted import FINEST_GRID, TiltedSum, Window
from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray

METHOD = "dominating and dominated grids for small losses, rare large ones apart"

FEWEST = 3
"""Steps from which on there are three terms."""

_LEFT = 2e-5
"""Share of delta that three jumps or more may have, about."""

_POINTS = 2**18
"""Fewest points of a window."""

_ERROR = 3e-5
"""Relative error of epsilon that rounding the core may make, about, where the finest grid allows it."""

_ODDS = 38.0
"""Log of the odds against a sum outside its window."""

_CELLS = (2000, 250)
"""Cells of the first jump, and of each of two."""

_MIRRORED = 1e-4
"""The same for the mirrored order, which seldom counts."""

_TRIES = 4
"""Times that bounds are looked for, each time where the last ones lie."""

_NEAR = 1e-7
"""Relative distance of two neighbouring places of a search."""

_LARGEST = 600.0
"""epsilon that is looked for, at most."""

_STEEPEST = 2.0
"""Largest tilt over a cell."""

_NUDGE = 1e-4
"""Cells by which rounding may have moved a place in a table, at most."""

_SLACK = 1e-12
"""Relative allowance for the few float operations of this module on a number."""


@dataclass(frozen=True)
class _Jumps:
    """Losses of jumps and masses under P that are at least as informative as they, or at most.

    Attributes:
        beyond: Mass of still larger losses.
    """

    losses: FloatArray
    masses: FloatArray
    beyond: float

    def twice(self) -> _Jumps:
        """Two jumps that are both finite."""
        return _Jumps(
            np.add.outer(self.losses, self.losses).ravel(),
            np.multiply.outer(self.masses, self.masses).ravel(),
            0.0,
        )


def _jumps(cells: CellMasses, ends: FloatArray, *, upper: bool) -> _Jumps:
    """The jumps in cells with these ends; see the module."""
    if not upper:
        p, q = cells.p - cells.p_error, cells.q + cells.q_error
        known = p > 0
        ratios = np.log(p[known] / q[known])
        return _Jumps(ratios - 4 * ROUND_OFF * (1 + np.abs(ratios)), p[known] * (1 - _SLACK), 0.0)
    p, q = (cells.p + cells.p_error) * (1 + _SLACK), np.maximum(cells.q - cells.q_error, 0.0) * (1 - _SLACK)
    # Rounding may have moved the ends by eta.
    low, high = ends[:-1] - cells.eta - 1e-15 * ends[:-1], ends[1:] + cells.eta + 1e-15 * ends[1:]
    to_high = np.clip((p - np.exp(low) * q * (1 - _SLACK)) / -np.expm1(low - high) * (1 + _SLACK), 0.0, p)
    beyond = (cells.above[0] + cells.above[2]) * (1 + _SLACK)
    return _Jumps(np.concatenate((low, high)), np.concatenate((p - to_high, to_high)), beyond)


class _Curve:
    """Bounds on the core's curve of some steps, from sums tilted in several ways.

    Args:
        law: A step's core on the grid.
        count: Steps.
        shift: How far rounding may have moved the sum of their losses.
    """

    def __init__(
        self,
        law: GridLaw,
        count: int,
        width: float,
        windows: list[tuple[Window, bool]],
        shift: float,
        *,
        upper: bool,
    ) -> None:
        self._upper, self._h, self._shift = upper, width, shift
        self._tables = [
            TiltedSum([(law, count)], width, window, upper=upper, precise=precise).deltas()
            for window, precise in windows
        ]
        losses = law.offset + (law.first + np.arange(len(law.mass))) * width
        # exp(-loss) of the rounded losses, and the power, are off by this.
        slack = count * ROUND_OFF * (64 + 8 * float(np.max(np.abs(losses)))) + _SLACK
        side = 1 if upper else -1
        self._all = math.fsum(law.mass.tolist()) ** count * (1 + side * slack)
        self._all_of_q = math.fsum((law.mass * np.exp(-losses)).tolist()) ** count * (1 - side * slack)

    def __call__(self, epsilon: FloatArray) -> FloatArray:
        """At each of these, which may be negative."""
        epsilon = epsilon - self._shift if self._upper else epsilon + self._shift
        with np.errstate(over="ignore"):
            ratio = np.exp(epsilon)
        if not self._upper:
            found = [np.maximum(self._all - ratio * self._all_of_q * (1 + _SLACK) - _SLACK * self._all, 0.0)]
        else:
            found = [np.full_like(epsilon, self._all)]
        for lowest, table in self._tables:
            # Between grid points the curve of a law on the grid is linear in exp(epsilon).
            places = (epsilon - lowest) / self._h + (-_NUDGE if self._upper else _NUDGE)
            at = np.clip(np.floor(places), 0, len(table) - 2).astype(np.int64)
            share = np.expm1(np.clip(places - at, 0.0, 1.0) * self._h) / math.expm1(self._h)
            share = share * (1 - _SLACK) if self._upper else np.minimum(share * (1 + _SLACK), 1.0)
            between = table[at] + share * (table[at + 1] - table[at])
            if self._upper:
                # The curve is convex in exp(epsilon): below the window it is below the chord from 0 on.
                share = np.exp(np.minimum(epsilon - lowest, 0.0))
                chord = self._all + share * (1 - _SLACK) * (table[0] - self._all) + _SLACK
                found.append(np.where(places >= 0, between, np.maximum(chord, table[0])))
            else:
                found.append(np.where(places <= len(table) - 1, between, 0.0))
        reduce = np.minimum if self._upper else np.maximum
        best: FloatArray = reduce.reduce(found)
        return best


class RareLosses:
    """Bounds on one order of a pair whose steps are all of one law.

    Args:
        law: Of a step.
        count: Steps, at least `FEWEST`.
        delta: About where the curve is looked at.
        epsilon: About where.

    Raises:
        UnsupportedError: no loss splits the steps so that jumps are rare, or no grid holds the core.
    """

    def __init__(self, law: MonotoneLaw, count: int, delta: float, epsilon: float) -> None:
        losses, p, _ = law.nodes()
        lowest, highest = law.span(delta * 1e-7 / count)
        split = _split(law, count, delta)
        r = float(losses[split])
        core = Cumulants([(losses[: split + 1], p[: split + 1], count)])
        flat, steep = (_window(core, at) for at in (core.saddle(0.0), core.at_epsilon(epsilon)))
        widest = max(_extent(core, window) for window in (flat, steep))
        drift = math.sqrt(12 * _ERROR * max(epsilon, 1e-300) / (count * (1 + steep.theta)))
        h = min(max(drift, widest / (FINEST_GRID / 2)), widest / _POINTS)
        h = max(h, (r - lowest) / (FINEST_GRID / 4))
        if steep.theta * h > _STEEPEST:  # As where the core does not reach epsilon.
            steep = _window(core, core.saddle(_STEEPEST / h))
        # The dominated law loses least where the lowest loss lies just above a grid point.
        offset = lowest - 0.1 * h if h < -lowest / 4 else law.offset(h)
        first, last = math.floor((lowest - offset) / h - 1e-6), math.ceil((r - offset) / h)
        cells = law.cells(h, 2 * first, 2 * (last - first), offset)
        if cells.eta > h / 16 or h < 1e-11 * highest:
            raise UnsupportedError("rounding moves losses by as much as a cell")
        nothing = (0.0, 0.0, 0.0, 0.0)
        cells = replace(cells, above=nothing)
        self._count, self._delta = count, delta
        shift = count * (cells.eta * (1 + 1e-9) + 64 * ROUND_OFF * (abs(offset) + h))
        shift += 64 * ROUND_OFF * max(abs(flat.centre), abs(steep.centre))
        self._terms: dict[bool, list[tuple[float, _Jumps | None, _Curve]]] = {}
        self._rest = 0.0
        for upper in (False, True):
            on_grid = (dominating if upper else dominated)(cells, h)
            # Half a cell twice, or never, so that no rounding of r leaves a gap, or an overlap.
            start = offset + last * h + (-h / 2 if upper else h / 2)
            jumps = [_between(law, start, highest, count, upper=upper) for count in _CELLS]

            curves = [
                _Curve(on_grid, count - k, h, windows, shift, upper=upper)
                for k, windows in enumerate(
                    ([(flat, True), (steep, True)], [(flat, False), (steep, False)], [(flat, False)])
                )
            ]
            self._terms[upper] = [
                (1.0, None, curves[0]),
                (float(count), jumps[0], curves[1]),
                (count * (count - 1) / 2, jumps[1].twice(), curves[2]),
            ]
            if upper:
                # What has an infinite jump, or three.
                beyond = max(jump.beyond for jump in jumps)
                mass = float(jumps[1].masses.sum()) + beyond
                most = max(1.0, math.fsum(on_grid.mass.tolist())) ** count * (1 + _SLACK)
                several = (count * mass) ** 3 / 6 * math.exp(count * mass)
                self._rest = (several + count * beyond * math.exp(count * mass)) * most * (1 + 1e-9)

    def delta(self, epsilon: float, *, upper: bool) -> float:
        """A number that delta at this epsilon is not above, or not below."""
        total = self._rest if upper else 0.0
        for times, jumps, curve in self._terms[upper]:
            if jumps is None:
                total += float(curve(np.array([epsilon]))[0])
                continue
            # Jumps are no more than some ten thousand numbers.
            total += times * float(jumps.masses @ curve(epsilon - jumps.losses))
        return total * (1 + 1e-10 if upper else 1 - 1e-10)

    def delta_ends(self, epsilon: float) -> tuple[float, float]:
        """Bounds on delta at this epsilon."""
        return self.delta(epsilon, upper=False), min(self.delta(epsilon, upper=True), 1.0)

    def epsilon_ends(self, delta: float, guess: float) -> tuple[float, float]:
        """Bounds on epsilon at this delta, perhaps near the guess; 0 and infinity where none is found."""
        low = _crossing(lambda epsilon: self.delta(epsilon, upper=False), delta, guess)[0]
        return low, _crossing(lambda epsilon: self.delta(epsilon, upper=True), delta, max(low, guess / 2))[1]


def _crossing(curve: Callable[[float], float], target: float, guess: float) -> tuple[float, float]:
    """Two neighbouring places: where the curve is above the target (or 0), and where it is not above it."""
    low, high, step = 0.0, guess, 1.001
    if curve(guess) > target:
        while curve(high) > target:
            low, high, step = high, high * step, step * step
            if high > _LARGEST:
                return low, math.inf
    else:
        low = guess
        while curve(low) <= target:
            low, high, step = low / step, low, step * step
            if step > 1e100:
                return (0.0, 0.0) if curve(0.0) <= target else (0.0, high)
    while high - low > _NEAR * high:
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > target else (low, middle)
    return low, high


def epsilon_ends(law: MonotoneLaw, count: int, delta: float) -> tuple[float, float]:
    """Bounds on epsilon at this delta, of the forward order of the pair; else as `RareLosses`."""
    low, high = 0.0, _by_one_loss(law, count, delta)
    for _ in range(_TRIES):
        guess = high
        low, high = RareLosses(law, count, delta, guess).epsilon_ends(delta, guess)
        if not guess / 1.3 < high < guess * 1.3 and 0 < high < math.inf:
            continue
        break
    return low, high


def delta_ends(law: MonotoneLaw, count: int, epsilon: float) -> tuple[float, float]:
    """Bounds on delta at this epsilon, likewise."""
    losses, p, _ = law.nodes()
    low, high = 0.0, count * float(p @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
    for _ in range(_TRIES):
        guess = min(max(high, 1e-250), 0.5)
        low, high = RareLosses(law, count, guess, epsilon).delta_ends(epsilon)
        if guess / 3 < high < guess * 3:
            break
    return low, high


def _by_one_loss(law: MonotoneLaw, count: int, delta: float) -> float:
    """epsilon if no two steps' losses mattered together: about right, or a start."""
    losses, p, _ = law.nodes()
    at = np.unique(losses[losses > 0])[::4]
    deltas = np.array(
        [count * float(p @ np.maximum(-np.expm1(np.minimum(e - losses, 0.0)), 0.0)) for e in at]
    )
    return float(at[min(int(np.searchsorted(-deltas, -delta)), len(at) - 1)])


def mirrored_epsilon_upper(law: MonotoneLaw, count: int, delta: float) -> float:
    """A number that epsilon of the mirrored order is not above at delta.

    Raises:
        UnsupportedError: as `RareLosses`.
    """
    core, split = _mirrored_core(law, count, delta)
    at = core.at_delta(delta)
    total, shift = _mirrored(law, count, core, split, at)
    return max(0.0, total.epsilon(delta, at.mean, -shift) + shift)


def mirrored_delta_upper(law: MonotoneLaw, count: int, epsilon: float) -> float:
    """A number that delta of the mirrored order is not above at epsilon; likewise."""
    core, split = _mirrored_core(law, count, 1e-9)
    total, shift = _mirrored(law, count, core, split, core.at_epsilon(epsilon))
    return total.delta(epsilon - shift)


def _mirrored_core(law: MonotoneLaw, count: int, delta: float) -> tuple[Cumulants, int]:
    """The mirrored order's losses without those below -r, and where r is."""
    split = _split(law, count, delta)
    losses, _, q = law.nodes()
    return Cumulants([(-losses[split::-1], q[split::-1], count)]), split


def _mirrored(
    law: MonotoneLaw, count: int, core: Cumulants, split: int, at: Saddle
) -> tuple[TiltedSum, float]:
    """The mirrored order's sum from above, losses below -r rounded up to it; how far rounding moved it."""
    window, r, lowest = _window(core, at), float(law.nodes()[0][split]), law.span(1e-30)[0]
    drift = math.sqrt(12 * _MIRRORED * max(at.mean, 1e-300) / (count * (1 + at.theta)))
    extent = _extent(core, window)
    h = max(min(drift, extent / 2**14), extent / (FINEST_GRID / 8), (r - lowest) / (FINEST_GRID / 4))
    offset = lowest - 0.1 * h if h < -lowest / 4 else law.offset(h)
    first, last = math.floor((lowest - offset) / h - 1e-6), math.ceil((r - offset) / h)
    cells = law.cells(h, 2 * first, 2 * (last - first), offset)
    shift = count * (cells.eta * (1 + 1e-9) + 64 * ROUND_OFF * (abs(offset) + h))
    shift += 64 * ROUND_OFF * abs(window.centre)
    on_grid = dominating(cells.mirrored(), h)
    return TiltedSum([(on_grid, count)], h, window, upper=True, precise=True), shift


def _split(law: MonotoneLaw, count: int, delta: float) -> int:
    """The least of the law's nodes beyond which jumps are rare against delta.

    Raises:
        UnsupportedError: there is none that all losses of weight are not below.
    """
    losses, p, _ = law.nodes()
    above = count * (np.cumsum(p[::-1])[::-1] - p)
    split = int(np.argmax(above <= (6 * _LEFT * delta) ** (1 / 3)))
    lowest, highest = law.span(delta * 1e-7 / count)
    if not lowest < 0 < losses[split] < highest:
        raise UnsupportedError("no loss splits the steps so that jumps are rare")
    return split


def _between(law: MonotoneLaw, start: float, highest: float, count: int, *, upper: bool) -> _Jumps:
    """The jumps from a loss on, in cells about equal in the output."""
    x, _ = law.thresholds(np.array([start, highest]))
    ends = law.loss(np.linspace(x[0], x[1], count + 1))
    ends[0] = start
    ends = np.maximum.accumulate(ends)
    return _jumps(law.cells_between(ends), ends, upper=upper)


def _window(cumulants: Cumulants, at: Saddle) -> Window:
    """The narrowest at these odds."""
    return replace(cumulants.window(at), log_odds=_ODDS)


def _extent(cumulants: Cumulants, window: Window) -> float:
    """About how wide the window is."""
    base, ends = cumulants.value(window.theta), []
    for tilt in (window.lambda_low, window.lambda_high):
        ends.append((cumulants.value(window.theta + tilt) - base + window.log_odds) / tilt)
    return ends[1] - ends[0]


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Bounds on one quantity of steps of a law, as functions of law, steps and place.

    Attributes:
        forward: Of the forward order.
        mirrored_upper: Of the mirrored order, above.
    """

    forward: Callable[[MonotoneLaw, int, float], tuple[float, float]]
    mirrored_upper: Callable[[MonotoneLaw, int, float], float]


EPSILON = Ends(forward=epsilon_ends, mirrored_upper=mirrored_epsilon_upper)
"""epsilon at a delta."""

DELTA = Ends(forward=delta_ends, mirrored_upper=mirrored_delta_upper)
"""delta at an epsilon."""
