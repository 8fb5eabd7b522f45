"""Microsoft's PRV accountant, by the paper's own authors: the two ends of its enclosure, and its estimate.

Library: prv-accountant 0.2.0, `PRVAccountant`; heterogeneous compositions in one accountant.
Adjacency: add-remove for the Poisson-subsampled Gaussian (the library computes the direction in which the
record is removed); the Gaussian and Laplace laws take the sensitivity as a parameter, so replace-one gets 2;
randomised response enters as the pure-DP mechanism of its epsilon, which for two categories it is.
Promise: lower end, estimate and upper end (Gopi, Lee and Wutschitz 2021, theorem 5.5), up to rounding in its
FFT. The errors in epsilon and delta are inputs, and are added to the upper end. Of the three only the upper
end, `prv_accountant`, is an upper bound; `prv_accountant_lower` and `prv_accountant_estimate` say how much of
what it answers is error allowed for.

What a user should know, and what this adapter leaves as it is: the grid of a composition is sized by Renyi
divergences, and for the pure-DP mechanism the library puts these at (alpha - 1) epsilon / alpha, too small
near order 1. Many or strong randomised responses then wrap around the grid: answers too low, or negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.accounting.events import Event, RandomisedResponse
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import (
    Calibrator,
    DeltaAdapter,
    EpsilonAdapter,
    elementary,
    library,
)
from workbench.mechanisms.accountants.shared.questions import Target, require_positive


@register("accountant", "prv_accountant")
@dataclass(frozen=True, kw_only=True)
class PRVAccountant(EpsilonAdapter, DeltaAdapter, Calibrator):
    """Microsoft's privacy-random-variable accountant (Gopi, Lee and Wutschitz 2021), its upper end.

    Attributes:
        epsilon_error: Error in epsilon that is allowed, > 0; 0.1 is what the library calls typical.
        delta_error: Error in delta that is allowed, > 0; None for a thousandth of delta, which the library
            calls typical, and for 1e-10 where delta is asked for.

    Raises `InputError`: an error is not positive.
    """

    name: ClassVar[str] = "prv_accountant"
    answer: ClassVar[int] = 2
    """Place of the answer in what the library returns: lower end, estimate, upper end."""

    epsilon_error: float = 0.1
    delta_error: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("epsilon_error", self.epsilon_error), ("delta_error", self.delta_error)):
            if value is not None:
                require_positive(name, value)

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        error = delta / 1000 if self.delta_error is None else self.delta_error
        accountant, counts = self._composed(event, adjacency, error)
        return float(accountant.compute_epsilon(delta=delta, num_self_compositions=counts)[self.answer])

    def _delta(self, event: Event, epsilon: float, adjacency: Adjacency) -> float:
        error = 1e-10 if self.delta_error is None else self.delta_error
        accountant, counts = self._composed(event, adjacency, error)
        return float(accountant.compute_delta(epsilon=epsilon, num_self_compositions=counts)[self.answer])

    def _noise_multiplier(self, target: Target, adjacency: Adjacency) -> float:
        dpsgd = library("prv_accountant.dpsgd", distribution="prv-accountant")
        sigma = dpsgd.find_noise_multiplier(
            sampling_probability=target.sampling_probability,
            num_steps=target.steps,
            target_epsilon=target.epsilon,
            target_delta=target.delta,
            eps_error=self.epsilon_error,
        )
        return float(sigma)

    def _composed(self, event: Event, adjacency: Adjacency, delta_error: float) -> tuple[Any, list[int]]:
        """The library's accountant for the event's parts, and their counts."""
        prv = library("prv_accountant", distribution="prv-accountant")
        parts = list(event.parts())
        counts = [count for _, count in parts]
        accountant = prv.PRVAccountant(
            prvs=[self._loss(prv, part, adjacency) for part, _ in parts],
            max_self_compositions=counts,
            eps_error=self.epsilon_error,
            delta_error=delta_error,
        )
        return accountant, counts

    def _loss(self, prv: Any, part: Event, adjacency: Adjacency) -> Any:
        """The library's privacy random variable of an elementary event."""

        def response(event: RandomisedResponse) -> Any:
            truth, other = event.pair().p[:2]
            return prv.PureDPMechanism(math.log(truth / other))

        return elementary(
            self.name,
            part,
            adjacency,
            gaussian=lambda noise, sensitivity: prv.GaussianMechanism(noise, l2_sensitivity=sensitivity),
            laplace=lambda scale, sensitivity: prv.LaplaceMechanism(mu=sensitivity / scale),
            subsampled=lambda noise, q: prv.PoissonSubsampledGaussianMechanism(
                sampling_probability=q, noise_multiplier=noise
            ),
            response=response,
            noun="privacy random variable",
            most_categories=math.inf,
        )


@register("accountant", "prv_accountant_estimate")
@dataclass(frozen=True, kw_only=True)
class PRVEstimate(PRVAccountant):
    """Microsoft's privacy-random-variable accountant, its estimate, which is no bound."""

    name: ClassVar[str] = "prv_accountant_estimate"
    answer: ClassVar[int] = 1


@register("accountant", "prv_accountant_lower")
@dataclass(frozen=True, kw_only=True)
class PRVLower(PRVAccountant):
    """Microsoft's privacy-random-variable accountant, its lower end, which is no upper bound."""

    name: ClassVar[str] = "prv_accountant_lower"
    answer: ClassVar[int] = 0
