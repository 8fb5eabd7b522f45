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
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar
from scipy.special import gammaln, logsumexp

from workbench.accounting.events import (
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.core.errors import InconclusiveError, UnsupportedError
from workbench.interfaces import Adjacency, FloatArray

ComplexArray: TypeAlias = npt.NDArray[np.complex128]

_NEGLIGIBLE = 40.0
"""exp(-40) of the peak is left out of integrals."""

_OUTPUTS, _OUTPUTS_OF_TWO = 100_001, 2_401
"""Points of an integral over the output of one release, and of each of two."""

_ROUNDING = 1e-11
"""Relative error that is granted to sums of floats."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with an estimate of its error."""

    value: float
    error: float


class Losses(ABC):
    """The privacy loss of one release, for one order of the neighbours."""

    direct_method: ClassVar[str] = ""
    """How `direct` computes."""

    @abstractmethod
    def cumulant(self, s: ComplexArray, resolution: int) -> ComplexArray:
        """K(s) at equally spaced points of one real part > 0, at a resolution of 1, 2, ..."""

    def direct(self, epsilon: float, count: int) -> Estimate | None:
        """delta(epsilon) of so many releases without an inversion; None where there is no such way."""
        return None


@dataclass(frozen=True, kw_only=True)
class GaussianLosses(Losses):
    """Privacy losses of a Gaussian mechanism: N(mu, 1) against N(0, 1)."""

    mu: float

    def cumulant(self, s: ComplexArray, resolution: int) -> ComplexArray:
        """The cumulant function mu^2 (s^2 + s) / 2; exact at every resolution."""
        return np.asarray(self.mu * self.mu / 2 * (s * s + s))


@dataclass(frozen=True, kw_only=True)
class LaplaceLosses(Losses):
    """Laplace noise of scale 1 on a value that moves by `largest`, the largest loss."""

    largest: float
    direct_method: ClassVar[str] = "closed form in floats"

    def cumulant(self, s: ComplexArray, resolution: int) -> ComplexArray:
        """Two atoms, and an exponential density between them."""
        middle = -np.expm1(-(1 + 2 * s) * self.largest) / (1 + 2 * s)
        return np.asarray(s * self.largest + np.log((1 + np.exp(-(2 * s + 1) * self.largest) + middle) / 2))

    def direct(self, epsilon: float, count: int) -> Estimate | None:
        """1 - exp((epsilon - largest) / 2), for one release."""
        if count > 1:
            return None
        value = max(0.0, -math.expm1((epsilon - self.largest) / 2))
        return Estimate(value=value, error=_ROUNDING * value)


@dataclass(frozen=True, kw_only=True)
class AnswerLosses(Losses):
    """Randomised response: probabilities of the truth, of the neighbour's, and of any third category."""

    truth: float
    other: float
    third: float
    direct_method: ClassVar[str] = "counting in floats"

    def cumulant(self, s: ComplexArray, resolution: int) -> ComplexArray:
        """The cumulant function of the three atoms of randomised response."""
        loss = math.log(self.truth / self.other)
        # The largest part is taken out, as s has a real part above 0.
        rest = self.other * np.exp(-2 * s * loss) + self.third * np.exp(-s * loss)
        return np.asarray(s * loss + np.log(self.truth + rest))

    def direct(self, epsilon: float, count: int) -> Estimate | None:
        """A sum over how often the truth and the other were told."""
        i, j = np.meshgrid(np.arange(count + 1), np.arange(count + 1), indexing="ij")
        k = count - i - j
        possible = k >= 0 if self.third > 0 else k == 0
        i, j, k = i[possible], j[possible], k[possible]
        log_mass = gammaln(count + 1) - gammaln(i + 1) - gammaln(j + 1) - gammaln(k + 1)
        log_mass = log_mass + i * math.log(self.truth) + j * math.log(self.other)
        if self.third > 0:
            log_mass = log_mass + k * math.log(self.third)
        losses = (i - j) * math.log(self.truth / self.other)
        value = float(np.sum(np.exp(log_mass) * -np.expm1(np.minimum(epsilon - losses, 0.0))))
        return Estimate(value=value, error=1e-10 * value)


@dataclass(frozen=True, kw_only=True)
class OutputLosses(Losses):
    """Two mixtures of N(shift, noise^2), by log-weights and shifts."""

    noise: float
    p: tuple[tuple[float, float], ...]
    q: tuple[tuple[float, float], ...]
    direct_method: ClassVar[str] = "integration over the output"

    def densities(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """log P and log Q, up to the same constant."""
        logs = [
            logsumexp(
                [log_weight - (x - shift) ** 2 / (2 * self.noise**2) for log_weight, shift in side], axis=0
            )
            for side in (self.p, self.q)
        ]
        return np.asarray(logs[0]), np.asarray(logs[1])

    def cumulant(self, s: ComplexArray, resolution: int) -> ComplexArray:
        """K(s) at equally spaced points of one real part."""
        width = float(s[1].imag - s[0].imag) if len(s) > 1 else 0.0
        losses, weights, phases, log_scale = _quadrature(self, float(s[0].real), width, len(s), resolution)
        first = weights * np.exp(1j * float(s[0].imag) * losses)
        return np.asarray(np.log(phases @ first) + log_scale)

    def direct(self, epsilon: float, count: int) -> Estimate | None:
        """The integral of (P - exp(epsilon) Q)_+, for one release; for two, the mean of it over the first."""
        if count > 2:
            return None
        most = _OUTPUTS if count == 1 else _OUTPUTS_OF_TWO
        coarse, fine = (self._delta(epsilon, count, points) for points in (most // 2, most))
        return Estimate(value=fine, error=abs(fine - coarse) + _ROUNDING * fine)

    def _delta(self, epsilon: float, count: int, points: int) -> float:
        """The integral at so many points for each release."""
        losses, masses = self._nodes(points)
        if count == 1:
            return float(masses @ -np.expm1(np.minimum(epsilon - losses, 0.0)))
        gains = [float(masses @ -np.expm1(np.minimum(epsilon - loss - losses, 0.0))) for loss in losses]
        return float(masses @ np.array(gains))

    def _nodes(self, count: int) -> tuple[FloatArray, FloatArray]:
        """Losses, and masses of the first neighbour."""
        shifts = [shift for _, shift in self.p]
        reach = 12 * self.noise
        x, step = np.linspace(min(shifts) - reach, max(shifts) + reach, count, retstep=True)
        log_p, log_q = self.densities(x)
        scale = float(step) / (self.noise * math.sqrt(2 * math.pi))
        return log_p - log_q, np.exp(log_p) * scale


@lru_cache(maxsize=8)
def _quadrature(
    outputs: OutputLosses, theta: float, width: float, count: int, resolution: int
) -> tuple[FloatArray, FloatArray, ComplexArray, float]:
    """Nodes of E[exp((theta + i u) loss)]: losses, weights, exp(i k width loss), the weights' log-scale."""
    reach = 2 + theta + 14 * outputs.noise
    coarse = np.linspace(-reach, reach, 4001)
    log_p, log_q = outputs.densities(coarse)
    size = log_p + theta * (log_p - log_q)
    kept = coarse[size > size.max() - _NEGLIGIBLE]
    margin, step = coarse[1] - coarse[0], outputs.noise / (20 * resolution)
    log_p, log_q = outputs.densities(np.arange(kept[0] - margin, kept[-1] + margin, step))
    losses = log_p - log_q
    size = log_p + theta * losses
    log_scale = float(size.max()) + math.log(step) - math.log(outputs.noise * math.sqrt(2 * math.pi))
    phases = np.exp(1j * np.outer(width * np.arange(count), losses))
    return losses, np.exp(size - size.max()), phases, log_scale


def losses_of(event: Event, adjacency: Adjacency) -> tuple[Losses, Losses]:
    """The losses of an elementary event, for both orders of the neighbours.

    Raises:
        UnsupportedError: the event has none here.
    """
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    if isinstance(event, Gaussian) or (
        isinstance(event, SubsampledGaussian) and event.sampling_probability == 1
    ):
        both = GaussianLosses(mu=moved / event.noise_multiplier)
        return both, both
    if isinstance(event, Laplace):
        noisy = LaplaceLosses(largest=moved / event.scale)
        return noisy, noisy
    if isinstance(event, RandomisedResponse) and adjacency is Adjacency.REPLACE_ONE:
        truth, other, *rest = map(float, event.pair().p)
        answers = AnswerLosses(truth=truth, other=other, third=math.fsum(rest))
        return answers, answers
    if isinstance(event, GaussianMixturePair):
        sides = [
            tuple((math.log(weight), mean) for weight, mean in zip(weights, means, strict=True))
            for weights, means in ((event.p_weights, event.p_means), (event.q_weights, event.q_means))
        ]
        deviation = event.standard_deviation
        return OutputLosses(noise=deviation, p=sides[0], q=sides[1]), OutputLosses(
            noise=deviation, p=sides[1], q=sides[0]
        )
    if isinstance(event, SubsampledGaussian):
        rate, noise = event.sampling_probability, event.noise_multiplier
        absent, present = math.log1p(-rate), math.log(rate)
        sampled = ((absent, 0.0), (present, 1.0))
        without = ((absent, 0.0), (present, -1.0)) if moved == 2 else ((0.0, 0.0),)
        return OutputLosses(noise=noise, p=sampled, q=without), OutputLosses(
            noise=noise, p=without, q=sampled
        )
    raise UnsupportedError(f"{event.describe()} has no second method under {adjacency}")


METHOD = "inversion of the moment generating function"

_TAIL = 1e-6
"""An inversion integral ends where what is left out is estimated to be below this share of it."""

_LARGEST_TAIL = 0.02
"""At its largest count, it ends where what is left out is below this share, and says so in its error."""

_LARGEST_COUNT = 65_536
"""Most points of an inversion integral."""

_LARGEST_PEAK = 600.0
"""Log of an integrand whose sum cannot cancel to a delta below 1: the mean loss is far above epsilon."""

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
        estimates = [self._one_order(parts, epsilon) for parts in self._orders]
        return max(estimates, key=lambda estimate: estimate.value)

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
        minimum = minimize_scalar(
            lambda log_theta: self._log_size(parts, epsilon, math.exp(log_theta)),
            bounds=(math.log(1e-2), math.log(3e3)),
            method="bounded",
            options={"xatol": 1e-2},
        )
        theta = math.exp(float(minimum.x))
        step = 1e-3 * theta
        sizes = [self._log_size(parts, epsilon, theta + k * step) for k in (-1, 0, 1)]
        curvature = (sizes[0] - 2 * sizes[1] + sizes[2]) / step**2
        return theta, math.sqrt(max(curvature, 0.0))

    def _integral(
        self, parts: Parts, epsilon: float, theta: float, spread: float, resolution: int
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
                if peak > _LARGEST_PEAK:
                    break
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
