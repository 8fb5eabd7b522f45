"""A second, independent method for privacy curves: inversion of the losses' moment generating function.

For independent privacy losses with sum L, and K(s) = log E[exp(s L)] under the first neighbour,

    delta(epsilon) = (1 / 2 pi) * integral over u of exp(K(s) - s epsilon) / (s (s + 1)),  s = theta + i u,

for any theta > 0 (the Laplace transform of (1 - exp(-y))_+ is 1 / (s (s + 1))). K is a closed form for
Gaussians, Laplace noise and finite pairs, and a quadrature in the output for subsampled Gaussians; theta is
chosen near the saddle point, where nothing cancels, so that tiny deltas come out as accurate as large ones.
No grid of losses is laid, no FFT taken: it shares no code and no idea with `workbench.accounting.certified`.
Its error is estimated (by doubling both resolutions, and from what is left out), not bounded. One or two
releases of a mixture of Gaussians need no inversion: there the positive part of P - exp(epsilon) Q is
integrated. Randomised response alone is counted.

Source: the inversion formula, Bromwich; the saddle point for privacy curves, Alghamdi et al. 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from workbench.accounting.events import Event
from workbench.attacks.accountant_checks.conformance.losses import (
    ComplexArray,
    Estimate,
    Losses,
    OutputLosses,
    losses_of,
)
from workbench.core.errors import InconclusiveError
from workbench.interfaces import Adjacency

METHOD = "inversion of the moment generating function"

_NEGLIGIBLE = 40.0
"""exp(-40) of the peak is left out of integrals."""

_ROUNDING = 1e-11
"""Relative error that is granted to sums of floats."""

_TAIL = 1e-6
"""An inversion integral ends where what is left out is estimated to be below this share of it."""

_LARGEST_TAIL = 0.02
"""At its largest count, it ends where what is left out is below this share, and says so in its error."""

_LARGEST_COUNT = 65_536
"""Most points of an inversion integral."""

_BLOCK = 512

_NO_DELTA = -46.0
"""A delta whose Chernoff bound is below exp(-46), 1e-20, counts as 0, with that bound as its error."""

Parts: TypeAlias = Sequence[tuple[Losses, int]]
"""Losses of elementary events in one order of the neighbours, with their counts."""


def _sum_of(parts: Parts, s: ComplexArray, resolution: int) -> ComplexArray:
    """K(s) of the composition."""
    total: ComplexArray = np.zeros(s.shape, dtype=np.complex128)
    for losses, count in parts:
        total += count * losses.cumulant(s, resolution)
    return total


class Curve:
    """delta(epsilon) of a composition.

    Attributes:
        method: How the last answer was computed.

    Raises:
        UnsupportedError: an event has no second method under this adjacency.
    """

    def __init__(self, event: Event, adjacency: Adjacency) -> None:
        parts = [(losses_of(part, adjacency), count) for part, count in event.parts()]
        self.method = METHOD
        orders = (0,) if all(losses[0] is losses[1] for losses, _ in parts) else (0, 1)
        self._orders = [[(losses[order], count) for losses, count in parts] for order in orders]

    def delta(self, epsilon: float) -> Estimate:
        """The larger over both orders of the neighbours.

        Raises:
            InconclusiveError: an integral did not settle.
        """
        found = [self._one_order(parts, epsilon) for parts in self._orders]
        return max(found, key=lambda estimate: estimate.value)

    def epsilon(self, delta: float, low: float, high: float) -> float:
        """The epsilon in [low, high] at which delta is reached; an end where it is outside."""

        def gap(epsilon: float) -> float:
            return math.log(max(self.delta(epsilon).value, 1e-320) / delta)

        if gap(low) <= 0:
            return low
        if gap(high) >= 0:
            return high
        return float(brentq(gap, low, high, rtol=1e-8, xtol=1e-12))

    def _one_order(self, parts: Parts, epsilon: float) -> Estimate:
        first, count = parts[0]
        direct = first.direct(epsilon, count) if len(parts) == 1 else None
        if direct is not None:
            self.method = first.direct_method
            return direct
        theta, spread = self._saddle(parts, epsilon)
        chernoff = self._log_size(parts, epsilon, theta) + math.log(theta) + math.log1p(theta)
        if chernoff < _NO_DELTA:
            return Estimate(value=0.0, error=math.exp(max(chernoff, -700.0)))
        coarse, fine = (self._integral(parts, epsilon, theta, spread, k) for k in (1, 2))
        error = abs(fine.value - coarse.value) + fine.error + _ROUNDING * abs(fine.value)
        return Estimate(value=fine.value, error=error)

    def _log_size(self, parts: Parts, epsilon: float, theta: float) -> float:
        """Logarithm of the integrand at u = 0."""
        at = np.array([theta + 0j])
        total = float(_sum_of(parts, at, 1)[0].real)
        return total - theta * epsilon - math.log(theta) - math.log1p(theta)

    def _saddle(self, parts: Parts, epsilon: float) -> tuple[float, float]:
        """theta near the saddle point, and the standard deviation of the loss that is tilted by it."""
        found = minimize_scalar(
            lambda log_theta: self._log_size(parts, epsilon, math.exp(log_theta)),
            bounds=(math.log(1e-2), math.log(3e3)),
            method="bounded",
            options={"xatol": 1e-2},
        )
        theta = math.exp(float(found.x))
        step = 1e-3 * theta
        sizes = [self._log_size(parts, epsilon, theta + k * step) for k in (-1, 0, 1)]
        curvature = (sizes[0] - 2 * sizes[1] + sizes[2]) / step**2
        return theta, math.sqrt(max(curvature, 0.0))

    def _integral(
        self,
        parts: Parts,
        epsilon: float,
        theta: float,
        spread: float,
        resolution: int,
    ) -> Estimate:
        """The inversion integral by the trapezoidal rule; the error is that of the part left out."""
        period = resolution * (30 * spread + _NEGLIGIBLE / theta)
        width = 2 * math.pi / period
        sampled = any(isinstance(losses, OutputLosses) for losses, _ in parts)
        block = _BLOCK if sampled else 16 * _BLOCK
        total, start, peak = 0.0, 0, -math.inf
        while start < _LARGEST_COUNT:
            s = np.asarray(theta + 1j * width * np.arange(start, start + block), dtype=np.complex128)
            log_terms = _sum_of(parts, s, resolution) - s * epsilon - np.log(s) - np.log(s + 1)
            if start == 0:
                peak = float(log_terms[0].real)
            terms = np.exp(log_terms - peak).real
            total += float(terms.sum()) - (0.5 * float(terms[0]) if start == 0 else 0.0)
            start += block
            # Terms fall like 1 / u^2 at least, so the rest is at most the last of them, times u.
            rest = math.exp(float(log_terms.real.max()) - peak) * start
            last = start >= _LARGEST_COUNT
            if rest < (_LARGEST_TAIL if last else _TAIL) * abs(total):
                scale = width / math.pi * math.exp(peak)
                return Estimate(value=total * scale, error=rest * scale)
        raise InconclusiveError(f"the inversion at epsilon = {epsilon:g} did not settle")
