"""A good accountant, for the zoo of bad ones to differ from.

It composes Renyi divergences at integer orders: of the Poisson-subsampled Gaussian (Mironov, Talwar
and Zhang 2019, section 3.3), the Laplace mechanism (Mironov 2017, table II) and finite pairs, and converts
them by Canonne, Kamath and Steinke 2020, proposition 12. Each animal of the zoo changes one thing in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp

from workbench.accounting.events import (
    Event,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, FloatArray

ORDERS: FloatArray = np.array([*range(2, 65), 80, 96, 128, 192, 256, 512], dtype=float)
ADD_REMOVE = Adjacency.ADD_REMOVE
REPLACE_ONE = Adjacency.REPLACE_ONE


def _log_moment(order: int, q: float, noise: float) -> float:
    """log E[(density ratio)^order] of a Poisson-subsampled Gaussian."""
    k = np.arange(order + 1)
    log_choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = log_choose + (order - k) * math.log1p(-q) + k * math.log(q) + (k * k - k) / (2 * noise * noise)
    return float(logsumexp(terms))


class Good:
    """Renyi accounting without a known fault."""

    name = "good"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Upper bound on epsilon."""
        return self.convert(self.total(event, adjacency), delta)

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Upper bound on delta."""
        log_delta = (ORDERS - 1) * (self.total(event, adjacency) - epsilon + np.log1p(-1 / ORDERS))
        return float(min(1.0, np.exp(np.min(log_delta - np.log(ORDERS)))))

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        """Upper bound on the TPR: that of the (epsilon, delta) promises."""
        deltas = np.logspace(-9, -1, 17)
        total = self.total(event, adjacency)
        return min(min(1.0, math.exp(min(self.convert(total, d), 700)) * fpr + d) for d in deltas)

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """The noise at the private end of a bisection."""
        low, high = self.bracket(
            lambda noise: (
                self.epsilon(
                    gaussian_run(
                        noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps
                    ),
                    delta=delta,
                    adjacency=adjacency,
                )
                <= target_epsilon
            )
        )
        return self.chosen(low, high)

    def bracket(self, enough: Callable[[float], bool]) -> tuple[float, float]:
        """Too little and enough noise, one percent apart."""
        low, high = 0.01, 0.02
        while not enough(high):
            low, high = high, 2 * high
        while high > 1.01 * low:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if enough(middle) else (middle, high)
        return low, high

    def chosen(self, low: float, high: float) -> float:
        """The private end."""
        return high

    def total(self, event: Event, adjacency: Adjacency) -> FloatArray:
        """Renyi divergences of the whole composition, at all orders."""
        parts = [count * self.renyi(part, adjacency) for part, count in event.parts()]
        return np.sum(parts, axis=0)

    def renyi(self, part: Event, adjacency: Adjacency) -> FloatArray:
        """Renyi divergences of one elementary event."""
        moved = 2.0 if adjacency is REPLACE_ONE else 1.0
        if isinstance(part, Gaussian):
            return self.gaussian(part.noise_multiplier / moved)
        if isinstance(part, Laplace):
            return self.laplace(part.scale / moved)
        if isinstance(part, SubsampledGaussian) and adjacency is not REPLACE_ONE:
            return self.subsampled(part.noise_multiplier, part.sampling_probability)
        if isinstance(part, RandomisedResponse) and adjacency is REPLACE_ONE:
            return self.response(part)
        raise UnsupportedError(f"{self.name} does not account {part.describe()} under {adjacency}")

    def gaussian(self, noise: float) -> FloatArray:
        """Of a Gaussian whose noise is given in units of the sensitivity."""
        return ORDERS / (2 * noise * noise)

    def laplace(self, scale: float) -> FloatArray:
        """Of Laplace noise whose scale is given in units of the sensitivity."""
        up = np.log(ORDERS / (2 * ORDERS - 1)) + (ORDERS - 1) / scale
        down = np.log((ORDERS - 1) / (2 * ORDERS - 1)) - ORDERS / scale
        return np.logaddexp(up, down) / (ORDERS - 1)

    def subsampled(self, noise: float, q: float) -> FloatArray:
        """Of a Poisson-subsampled Gaussian, in the worse direction."""
        if q == 1:
            return self.gaussian(noise)
        return np.array([_log_moment(int(order), q, noise) for order in ORDERS]) / (ORDERS - 1)

    def response(self, part: RandomisedResponse) -> FloatArray:
        """Of randomised response."""
        pair = part.pair()
        p, q = (np.log(np.array([float(value) for value in row])) for row in (pair.p, pair.q))
        return np.asarray(logsumexp(np.outer(ORDERS, p) + np.outer(1 - ORDERS, q), axis=1)) / (ORDERS - 1)

    def convert(self, total: FloatArray, delta: float) -> float:
        """Epsilon at delta."""
        found = total + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
        return max(float(np.min(found)), 0.0)
