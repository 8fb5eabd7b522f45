"""Privacy losses by their moment generating functions, for the second method of the conformance suite.

Each class is the loss of one release for one order of the neighbours: K(s) = log E[exp(s L)], and where
nothing needs to be inverted, delta(epsilon) of a few releases directly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from workbench.accounting.events import (
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.core.errors import UnsupportedError
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
    """N(mu, 1) against N(0, 1)."""

    mu: float

    def cumulant(self, s: ComplexArray, resolution: int) -> ComplexArray:
        """mu^2 (s^2 + s) / 2."""
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
        """Three atoms."""
        loss = math.log(self.truth / self.other)
        return np.asarray(np.log(self.truth * np.exp(s * loss) + self.other * np.exp(-s * loss) + self.third))

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
        return self._delta_of_one(epsilon) if count == 1 else self._delta_of_two(epsilon)

    def _delta_of_one(self, epsilon: float) -> Estimate:
        values = []
        for count in (_OUTPUTS // 2, _OUTPUTS):
            losses, masses = self._nodes(count)
            values.append(float(masses @ -np.expm1(np.minimum(epsilon - losses, 0.0))))
        return Estimate(value=values[1], error=abs(values[1] - values[0]) + _ROUNDING * values[1])

    def _delta_of_two(self, epsilon: float) -> Estimate:
        values = []
        for count in (_OUTPUTS_OF_TWO // 2, _OUTPUTS_OF_TWO):
            losses, masses = self._nodes(count)
            gains = [float(masses @ -np.expm1(np.minimum(epsilon - loss - losses, 0.0))) for loss in losses]
            values.append(float(masses @ np.array(gains)))
        return Estimate(value=values[1], error=abs(values[1] - values[0]) + _ROUNDING * values[1])

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
