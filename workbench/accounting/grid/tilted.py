"""Bounds on the sum of many losses on a grid, by an exponentially tilted FFT whose errors are all carried.

To answer delta(epsilon) = E[(1 - exp(epsilon - S))_+] for a sum S of losses one needs the far tail of
its law, which a plain FFT drowns in round-off. Tilting helps: with t_i = m_i exp(theta g_i) / M(theta),
the law of the sum is r_j M^T exp(-theta g_j), r the T-fold convolution of t, and theta can be chosen so
that the bulk of r lies where epsilon does. Any theta gives a valid bound; a good one gives a narrow
bound.

Errors carried: what wraps around (Chernoff bounds of both ends of the window), what the FFTs round (the
normwise bound of the fast Fourier transform, Higham 2002, theorem 24.2, with a constant of 16 to cover
mixed radices), the power of the spectrum (first-order, summed by Cauchy-Schwarz), the frequencies left
out, the exponentials and the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft

from workbench.accounting.grid.laws import ROUND_OFF
from workbench.accounting.grid.rounding import GridLaw
from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray

_LARGEST_EXPONENT = 500.0
"""Weights above exp of this are not kept."""

_NEGLIGIBLE = 60.0
"""Frequencies whose power is below exp(-60) are left out, and their bound added to the error."""


FINEST_GRID = 2**21
"""Most points of a grid or a window."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The range of a sum: wide enough that the tilted sum lies outside with a small probability.

    Attributes:
        theta: The tilt, >= 0.
        centre: About the mean of the tilted sum.
        lambda_low, lambda_high: Chernoff parameters for the mass below and above: < 0, > 0.
        log_odds: The probability on each side is at most exp(-log_odds).
    """

    theta: float
    centre: float
    lambda_low: float
    lambda_high: float
    log_odds: float = 26.0


@dataclass(frozen=True, kw_only=True)
class _Tilted:
    """Tilted masses of all laws, and what they say about their sum.

    Attributes:
        masses: Each law's tilted masses with its count.
        log_scale: Sum of count log M(theta).
        size_of_logs: Sum of the sizes of its terms.
        relative_error: Of a product of tilted masses, against one that the rounded log M normalise.
        above, below: Log moment generating function of the tilted sum at the window's parameters.
        start, points: Grid index of the lowest sum, and how many more there are.
        offset: Where the grid's zero lies for the sum.
        lowest, highest: Ends of the sum.
    """

    masses: list[tuple[FloatArray, int]]
    log_scale: float
    size_of_logs: float
    relative_error: float
    above: float
    below: float
    start: int
    points: int
    offset: float
    lowest: float
    highest: float


def _tilt(laws: Sequence[tuple[GridLaw, int]], h: float, window: Window) -> _Tilted:
    """Tilt all laws by the window's theta."""
    theta = window.theta
    log_scale = size_of_logs = relative = above = below = offset = 0.0
    start = points = 0
    masses: list[tuple[FloatArray, int]] = []
    for law, count in laws:
        losses = law.offset + (law.first + np.arange(len(law.mass), dtype=np.float64)) * h
        log_m = _log_moment(law.mass, losses, theta)
        # In two factors: a mass near the smallest float64 may be met by an exponential that overflows.
        root = np.exp(np.minimum((theta * losses - log_m) / 2, 700.0))
        masses.append((law.mass * root * root, count))
        log_scale += count * log_m
        size_of_logs += count * abs(log_m)
        largest = theta * float(np.max(np.abs(losses[[0, -1]]))) + abs(log_m)
        relative += count * ROUND_OFF * 16 * (1 + largest)
        above += count * (_log_moment(law.mass, losses, theta + window.lambda_high) - log_m)
        below += count * (_log_moment(law.mass, losses, theta + window.lambda_low) - log_m)
        start += count * law.first
        offset += count * law.offset
        points += count * (len(law.mass) - 1)
    return _Tilted(
        masses=masses,
        log_scale=log_scale,
        size_of_logs=size_of_logs,
        relative_error=relative,
        above=above,
        below=below,
        start=start,
        points=points,
        offset=offset,
        lowest=offset + start * h,
        highest=offset + (start + points) * h,
    )


class TiltedSum:
    """Bounds on delta(epsilon) of a composition of grid laws.

    Args:
        laws: Grid laws with their counts, all on the grid of width `h`.
        h: Width of a cell.
        window: See `Window`.
        upper: True for upper bounds on delta, False for lower ones.
        precise: Transform in extended precision: some five times slower, a thousandth of the round-off.

    Raises:
        UnsupportedError: the window would hold more than `FINEST_GRID` points.
    """

    def __init__(
        self,
        laws: Sequence[tuple[GridLaw, int]],
        h: float,
        window: Window,
        *,
        upper: bool,
        precise: bool = False,
    ) -> None:
        self._h, self._window, self.upper = h, window, upper
        theta, tilted = window.theta, _tilt(laws, h, window)
        low = max(tilted.lowest, (tilted.below + window.log_odds) / window.lambda_low)
        high = min(tilted.highest, (tilted.above + window.log_odds) / window.lambda_high)
        spread = max(high - low, 0.0)
        if not spread <= FINEST_GRID * h:
            raise UnsupportedError("the losses are spread too wide for the finest grid")
        size = int(fft.next_fast_len(int(spread / h) + 3, real=True))
        bottom = math.floor((low - tilted.offset) / h)
        sums, errors = _convolve(tilted.masses, size, precise=precise)
        sums = np.roll(sums, -((bottom - tilted.start) % size))
        losses = tilted.offset + (bottom + np.arange(size, dtype=np.float64)) * h
        top = float(losses[-1])
        self._highest = tilted.highest + 1e-12 * (abs(tilted.highest) + h)
        # The weights may be centred anywhere; inside, the fewest of them overflow.
        self._centre = min(max(window.centre, float(losses[0])), top)
        # exp(0.01) covers the rounding of the moments; beyond the ends of the sum there is nothing.
        self._above = math.exp(min(tilted.above - window.lambda_high * top + 0.01, 0.0))
        self._below = math.exp(min(tilted.below - window.lambda_low * float(losses[0]) + 0.01, 0.0))
        if bottom <= tilted.start:
            self._below = 0.0
        if bottom + size - 1 >= tilted.start + tilted.points:
            self._above = 0.0
        self._log_scale = tilted.log_scale - theta * self._centre
        folds = sum(count * (len(mass) // size) for mass, count in tilted.masses)
        size_of_logs = tilted.size_of_logs + abs(theta * self._centre)
        self.relative_error = tilted.relative_error + ROUND_OFF * (folds + 8 * size + 64 * (1 + size_of_logs))
        # Far below the centre the weights overflow; delta is answered from the first loss that does not.
        cut = int(np.searchsorted(losses, self._centre - _LARGEST_EXPONENT / theta)) if theta > 0 else 0
        self._losses = losses[cut:]
        # The true sums are not negative, so clipping brings the computed ones no further from them.
        self._weights = np.maximum(sums[cut:], 0.0) * np.exp(-theta * (self._losses - self._centre))
        # By the largest error times the sum of the weights above a loss, relative to that loss's weight,
        # or by the norm of the errors times the norm of those weights.
        largest_error, norm_of_errors = errors
        steep = theta * h > 1e-12
        total = min(size, 1 / -math.expm1(-theta * h) if steep else size)
        squares = min(size, 1 / -math.expm1(-2 * theta * h) if steep else size)
        self._rounding = min(largest_error * total, norm_of_errors * math.sqrt(squares))
        if upper:  # what underflows
            self._weights += 1e-300
        self._tails = np.cumsum(self._weights[::-1])[::-1]
        self.infinite = _ever(laws)

    @property
    def width(self) -> float:
        """Of a cell."""
        return self._h

    @property
    def losses(self) -> FloatArray:
        """The grid points of the window."""
        return self._losses

    def _outside(self, epsilon: float) -> float:
        """What delta may gain (upper) or owe (lower) by wrap-around and round-off; unscaled."""
        if self.upper:
            return self._missed(epsilon)
        theta = self._window.theta
        here = math.exp(min(-theta * (epsilon - self._centre), 700.0))
        # The largest weight exp(-theta g) (1 - exp(epsilon - g)) that a wrapped sum can have met.
        peak = math.pow(theta / (1 + theta), theta) / (1 + theta)
        return ((self._above + self._below) * peak + self._rounding) * here

    def _missed(self, epsilon: float) -> float:
        """By how much more than computed delta may be: beyond the window, by round-off, by underflow."""
        theta = self._window.theta
        here = math.exp(min(-theta * (epsilon - self._centre), 700.0))
        beyond = math.exp(-theta * (float(self._losses[-1]) - self._centre))
        underflow = 0.0 if self.upper else 1e-300 * len(self._losses)  # upper weights have it already
        return self._above * beyond + self._rounding * here + underflow

    def _at(self, epsilon: float) -> tuple[float, float]:
        """Unscaled sums over losses above epsilon: of w (1 - exp(epsilon - g)), and of w."""
        k = int(np.searchsorted(self._losses, epsilon, side="right"))
        if k >= len(self._losses):
            return 0.0, 0.0
        gains = -np.expm1(epsilon - self._losses[k:])
        return float(self._weights[k:] @ gains), float(self._tails[k])

    def delta(self, epsilon: float) -> float:
        """Bound on delta at this epsilon (which must lie in the window or above its low end), in [0, 1]."""
        if epsilon < self._losses[0]:
            if self.upper:
                return 1.0
            epsilon = float(self._losses[0])
        if epsilon >= self._highest:
            return min(self.infinite * (1 + 1e-12 if self.upper else 1 - 1e-12), 1.0)
        inner = self._at(epsilon)[0]
        value = inner + (1 if self.upper else -1) * self._outside(epsilon)
        error = self.relative_error
        delta = self._scaled(value) * (1 + error if self.upper else 1 - error)
        total = delta + self.infinite * (1 + 1e-12 if self.upper else 1 - 1e-12)
        # What is below the smallest float64 is not nothing.
        return min(max(total, math.ulp(0.0) if self.upper else 0.0), 1.0)

    def _scaled(self, value: float) -> float:
        """The value times the scale, of which either may be out of the range of float64; at most e."""
        return math.exp(min(self._log_scale + math.log(value), 1.0)) if value > 0 else 0.0

    def deltas(self) -> tuple[float, FloatArray]:
        """The lowest loss of the window, and bounds on delta at it and at each further grid point.

        Raises:
            UnsupportedError: the window is so wide that exp of its losses leaves the range of float64.
        """
        away = self._losses - self._centre
        if float(np.max(np.abs(away))) > _LARGEST_EXPONENT:
            raise UnsupportedError("the losses are spread too wide for a table of their curve")
        q_tails = np.cumsum((self._weights * np.exp(-away))[::-1])[::-1]
        under_q = np.exp(away) * q_tails
        here = np.exp(np.minimum(-self._window.theta * away, 700.0))
        # Sums of so many numbers >= 0, one after the other; exponentials; and losses, which are rounded.
        rounded = ROUND_OFF * (len(away) + 64 + 8 * np.abs(away) + 4 * np.abs(self._losses))
        errors = rounded * (self._tails + under_q) + self._rounding * here
        theta = self._window.theta
        if self.upper:
            values = self._tails - under_q + errors + self._above * here[-1]
        else:
            peak = math.pow(theta / (1 + theta), theta) / (1 + theta)
            values = self._tails - under_q - errors - (self._above + self._below) * peak * here
        side = 1 if self.upper else -1
        logs = np.log(np.maximum(values, 1e-320)) + self._log_scale
        # log_scale is the sum of as large numbers; its error is in relative_error.
        bounds = np.exp(np.minimum(logs, 1.0)) * (1 + side * (self.relative_error + 64 * ROUND_OFF))
        bounds = np.where(values > 0, np.maximum(bounds, 0.0), 0.0) + self.infinite * (1 + side * 1e-12)
        return float(self._losses[0]), np.clip(bounds, math.ulp(0.0) if self.upper else 0.0, 1.0)

    def epsilon(self, delta: float, start: float, floor: float = 0.0) -> float:
        """Bound on epsilon at this delta, at least `floor`; inf (upper) where the window does not show it.

        Infinite losses of more mass than delta make epsilon infinite.

        Newton's method in exp(epsilon), in which delta is convex and piecewise linear, and then a step
        to the safe side until the bound on delta itself confirms it.
        """
        if not self.upper and self.infinite * (1 - 1e-12) > delta:
            return math.inf
        guess = max(start, floor)
        scale = math.exp(min(self._log_scale, 700.0))
        if scale == 0.0:
            if not self.upper:
                return floor
            return max(self._highest, floor) if self.infinite * (1 + 1e-12) <= delta else math.inf
        side, settled = 1 if self.upper else -1, False
        for _ in range(60):
            inner, mass = self._at(guess)
            wanted = (delta - self.infinite) / scale - side * self._outside(guess)
            slope = mass - inner
            if slope <= 0 or not math.isfinite(wanted):
                break
            gain = (inner - wanted * (1 - side * self.relative_error)) / slope
            moved = max(guess + math.log1p(max(gain, -0.999999)), floor)
            settled = abs(moved - guess) <= 1e-13 * max(abs(moved), self._h)
            guess = moved
            if settled:
                break
        found = self._confirmed(delta, guess, floor)
        if (not settled or guess <= floor) and self._without_errors(floor) > delta:
            # From above an atom Newton's method leaps below it, where the errors are all there is.
            other = self._confirmed(delta, self._crossing(delta, floor), floor)
            found = min(found, other) if self.upper else max(found, other)
        if self.upper and self.infinite * (1 + 1e-12) <= delta:
            # Above the largest possible sum nothing but the infinite losses is left.
            return min(found, max(self._highest, floor))
        return found

    def _crossing(self, delta: float, floor: float) -> float:
        """Where delta as computed, which is above this one at the floor, comes down to it; by bisection."""
        low, high = floor, max(self._highest, floor)
        while high - low > 1e-12 * max(abs(low), abs(high), self._h):
            middle = (low + high) / 2
            low, high = (middle, high) if self._without_errors(middle) > delta else (low, middle)
        return (low + high) / 2

    def _confirmed(self, delta: float, guess: float, floor: float) -> float:
        """The guess, moved to the safe side until `delta` confirms it."""
        step = max(1e-13 * abs(guess), 1e-9 * self._h)
        for _ in range(80):
            bound = self.delta(guess)
            if self.upper and bound <= delta:
                return guess
            if not self.upper and (guess <= floor or bound >= delta):
                return max(guess, floor)
            guess = guess + step if self.upper else max(guess - step, floor)
            step *= 2
        return math.inf if self.upper else floor

    def tpr(self, fpr: float) -> float:
        """Bound on the largest true-positive rate of a test at this false-positive rate.

        It is the least of exp(epsilon) fpr + delta(epsilon) over all real epsilon: convex and piecewise
        linear in exp(epsilon), so least at the grid point where the mass under Q above it crosses fpr. Any
        point gives a valid upper bound. For the lower one all epsilon count, see `_tpr_lower`.
        """
        with np.errstate(over="ignore", under="ignore"):  # the extended range reaches where a lower one must
            masses = self._weights * np.exp((self._log_scale - self._losses).astype(np.longdouble))
        q_tails = np.cumsum(masses[::-1])[::-1]
        k = int(np.searchsorted(-q_tails, -fpr))
        places = sorted({min(max(k + step, 0), len(self._losses) - 1) for step in range(-3, 4)})
        losses = [float(loss) for loss in self._losses[places]]
        if self.upper:
            bounds = [math.exp(loss) * fpr + self.delta(loss) for loss in losses if loss < 700]
            return min(1.0, *bounds) * (1 + 1e-12) if bounds else 1.0
        return self._tpr_lower(fpr, places, k)

    def _tpr_lower(self, fpr: float, places: Sequence[int], k: int) -> float:
        """Lower bound on that rate; the computed sum is least at one of these grid points, all near k.

        Above a grid point the errors are at most what they are there. Below it there are two arguments, of
        which the better counts: the sum is at least delta there; and the exact sum, which is convex in
        exp(epsilon), is larger further down where it is certainly larger than at some point further up.
        """

        def computed(loss: float) -> float:
            # exp of a smaller loss is smaller, and so is the bound.
            return math.exp(min(loss, 700.0)) * fpr + self._without_errors(loss)

        slack = self.relative_error + 1e-9
        values = {place: computed(float(self._losses[place])) for place in places}
        lowest = min(values, key=values.__getitem__)
        least = min(1.0, values[lowest])

        def at_and_above(turn: float) -> float:
            return least - self._scaled(self._outside(turn)) - self.relative_error * least

        low, high = 0, k
        while high - low > 1:
            middle = (low + high) // 2
            enough = self._without_errors(float(self._losses[middle])) >= least
            low, high = (middle, high) if enough else (low, middle)
        turn = float(self._losses[low])
        found = min(at_and_above(turn), self.delta(turn))
        at_lowest = float(self._losses[lowest])
        most = math.inf
        if at_lowest < 700:
            most = (values[lowest] + self._scaled(self._missed(at_lowest))) * (1 + slack)
        step = 1
        while step <= lowest:
            turn = float(self._losses[lowest - step])
            if computed(turn) * (1 - slack) - self._scaled(self._outside(turn)) >= most:
                found = max(found, at_and_above(turn))
                break
            step *= 2
        return max(found * (1 - 1e-9), fpr)

    def _without_errors(self, epsilon: float) -> float:
        """delta as computed."""
        return self._scaled(self._at(epsilon)[0]) + self.infinite


def _ever(laws: Sequence[tuple[GridLaw, int]]) -> float:
    """Probability that one of the losses is infinite."""
    return -math.expm1(sum(count * math.log1p(-min(law.infinite, 1 - 1e-16)) for law, count in laws))


def _log_moment(mass: FloatArray, losses: FloatArray, at: float) -> float:
    """log of sum m exp(at * g), shifted against overflow."""
    exponent = np.where(mass > 0, at * losses, -np.inf)
    shift = float(np.max(exponent))
    return shift + math.log(float(mass @ np.exp(exponent - shift)))


def _convolve(
    tilted: Sequence[tuple[FloatArray, int]], size: int, *, precise: bool
) -> tuple[FloatArray, tuple[float, float]]:
    """Circular convolution power of all laws; bounds on its largest error and on the norm of its errors."""
    real = np.longdouble if precise else np.float64
    unit = float(np.finfo(real).eps) / 2
    spectra, norms, errors = [], [], []
    for mass, _ in tilted:
        folded: Any = mass.astype(real)
        if len(mass) > size:
            folded = np.add.reduce(np.pad(folded, (0, -len(mass) % size)).reshape(-1, size), axis=0)
        spectrum = fft.rfft(folded, size)
        spectra.append(spectrum)
        norms.append(np.abs(spectrum).astype(np.float64))
        # Normwise error of the transform: 16 u log2(N) times the norm of the result, sqrt(N) |t|_2.
        errors.append(16 * unit * math.log2(size) * math.sqrt(float(np.sum(folded * folded)) * size))
    with np.errstate(divide="ignore"):
        logs = sum(
            count * np.log(norm + error)
            for (_, count), norm, error in zip(tilted, norms, errors, strict=True)
        )
    kept = np.flatnonzero(logs > -_NEGLIGIBLE)
    product = np.ones(len(kept), spectra[0].dtype)
    for (_, count), spectrum in zip(tilted, spectra, strict=True):
        product *= spectrum[kept] ** count
    power = np.zeros(len(logs), product.dtype)
    power[kept] = product
    sums = fft.irfft(power, size).astype(np.float64)
    # Each frequency but the ends stands for two of the full transform. An entry is off by at most the mean of
    # the spectrum's errors (Cauchy-Schwarz), the norm by theirs over sqrt(N) (Parseval).
    magnitude = np.exp(logs[kept])
    total, norm_of_power = float(np.sum(magnitude)), math.sqrt(2 * float(magnitude @ magnitude))
    left_out = math.exp(-_NEGLIGIBLE)
    largest, norm = 2 * len(logs) * left_out, math.sqrt(2 * len(logs)) * left_out
    for (_, count), size_of, error in zip(tilted, norms, errors, strict=True):
        slope = magnitude / (size_of[kept] + error)
        largest += count * (error * math.sqrt(2 * float(slope @ slope)) + 64 * unit * total)
        norm += count * (error * float(np.max(slope)) + 32 * unit * norm_of_power)
    inverse = 16 * unit * math.log2(size) * norm_of_power
    return sums, (largest / size + inverse / math.sqrt(size), (norm + inverse) / math.sqrt(size))
