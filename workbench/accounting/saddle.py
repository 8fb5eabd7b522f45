"""Where to look: the tilt, the grid and the window of a composition, by a saddle-point approximation.

Nothing here decides whether a bound is valid, only how narrow it is. The cumulant generating function K
of the sum of losses comes from a quadrature of each step; at a tilt theta the sum concentrates at
K'(theta), and

    delta(K'(theta)) ~ exp(K(theta) - theta K'(theta)) / (theta (1 + theta) sqrt(2 pi K''(theta)))

(the leading term of the tail expansion, with the transform of (1 - exp(-x))_+; cf. Alghamdi et al.
2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from workbench.accounting.tilted import Window
from workbench.interfaces import FloatArray

_SHARES = (0.01, 0.03, 0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.4, 2.0, 4.0)
"""Chernoff parameters that are tried, in units of what a Gaussian sum would want."""


@dataclass(frozen=True, kw_only=True)
class Saddle:
    """A tilt and what the sum of losses looks like there.

    Attributes:
        theta: The tilt.
        mean, deviation: Of the tilted sum.
        step_deviation: Root of the mean tilted variance of a step.
    """

    theta: float
    mean: float
    deviation: float
    step_deviation: float


class Cumulants:
    """Cumulants of the sum of losses under P, or of the mirrored pair.

    Args:
        steps: For each kind of step its losses, their weights, and the count.
    """

    def __init__(self, steps: Sequence[tuple[FloatArray, FloatArray, int]]) -> None:
        self._steps = [
            (losses[weights > 0], np.log(weights[weights > 0]), count) for losses, weights, count in steps
        ]
        self._count = sum(count for _, _, count in steps)

    def value(self, theta: float) -> float:
        """K(theta)."""
        return sum(count * _log_sum(theta * g + w) for g, w, count in self._steps)

    def saddle(self, theta: float) -> Saddle:
        """The tilted mean and deviation."""
        mean = variance = 0.0
        for losses, log_weights, count in self._steps:
            exponent = theta * losses + log_weights
            weights = np.exp(exponent - np.max(exponent))
            weights /= weights.sum()
            centre = float(weights @ losses)
            mean += count * centre
            variance += count * float(weights @ (losses - centre) ** 2)
        # A sum that is all but constant: its variance is rounding.
        deviation = max(math.sqrt(variance), 1e-9 * abs(mean), 1e-150)
        return Saddle(
            theta=theta,
            mean=mean,
            deviation=deviation,
            step_deviation=deviation / math.sqrt(self._count),
        )

    def log_delta(self, theta: float) -> float:
        """Log of delta at epsilon = K'(theta), approximately; theta > 0."""
        at = self.saddle(theta)
        # For small theta * deviation the Gaussian correction keeps the formula finite.
        spread = 1 + theta * at.deviation * math.sqrt(2 * math.pi)
        return self.value(theta) - theta * at.mean - math.log(spread) - math.log1p(theta)

    def at_delta(self, delta: float) -> Saddle:
        """The tilt at which the saddle-point delta is this one, with a mean of at least 0 if there is one."""
        target = math.log(delta)
        if self.log_delta(0.0) <= target:
            return self.at_epsilon(0.0)
        unit = 1.0 / max(self.saddle(0.0).deviation, 1e-150)
        low, high = 0.0, unit
        while self.log_delta(high) > target and high < 1e12 * unit:
            low, high = high, high * 2
        if self.log_delta(high) > target:
            return self.saddle(high)
        theta = float(brentq(lambda t: self.log_delta(t) - target, low, high, rtol=1e-3, disp=False))
        found = self.saddle(theta)
        return found if found.mean > 0 else self.at_epsilon(0.0)

    def at_epsilon(self, epsilon: float) -> Saddle:
        """The tilt at which the mean is this epsilon: 0 where the untilted mean is larger already."""
        if self.saddle(0.0).mean >= epsilon:
            return self.saddle(0.0)
        unit = 1.0 / max(self.saddle(0.0).deviation, 1e-150)
        low, high = 0.0, unit
        while self.saddle(high).mean < epsilon and high < 1e9 * unit:
            low, high = high, high * 2
        if self.saddle(high).mean < epsilon:
            return self.saddle(high)
        theta = float(brentq(lambda t: self.saddle(t).mean - epsilon, low, high, rtol=1e-3, disp=False))
        return self.saddle(theta)

    def at_fpr(self, fpr: float) -> Saddle:
        """The tilt at whose mean a likelihood-ratio test has about this false-positive rate; at least 0."""
        target = math.log(fpr)

        def log_fpr(theta: float) -> float:
            at = self.saddle(theta)
            spread = 1 + (1 + theta) * at.deviation * math.sqrt(2 * math.pi)
            return self.value(theta) - (1 + theta) * at.mean - math.log(spread)

        if log_fpr(0.0) <= target:
            return self.saddle(0.0)
        unit = 1.0 / max(self.saddle(0.0).deviation, 1e-150)
        low, high = 0.0, unit
        while log_fpr(high) > target and high < 1e9 * unit:
            low, high = high, high * 2
        if log_fpr(high) > target:
            return self.saddle(high)
        return self.saddle(float(brentq(lambda t: log_fpr(t) - target, low, high, rtol=1e-3, disp=False)))

    def window(self, at: Saddle) -> Window:
        """The Chernoff parameters that give the narrowest window."""
        base = self.value(at.theta)
        window = Window(theta=at.theta, centre=at.mean, lambda_low=-math.inf, lambda_high=math.inf)
        unit = math.sqrt(2 * window.log_odds) / at.deviation
        below = [-unit * share for share in _SHARES] + [-at.theta * share for share in (0.1, 0.3, 0.6, 1.0)]
        above = [unit * share for share in _SHARES]

        def edge(tilt: float) -> float:
            return (self.value(at.theta + tilt) - base + window.log_odds) / tilt

        lambda_low = max((tilt for tilt in below if tilt < 0), key=edge)
        return replace(window, lambda_low=lambda_low, lambda_high=min(above, key=edge))


def _log_sum(exponent: FloatArray) -> float:
    shift = float(np.max(exponent))
    return shift + math.log(float(np.sum(np.exp(exponent - shift))))
