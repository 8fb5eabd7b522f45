"""Microsoft's PRV accountant, by the paper's own authors: the upper end of its enclosure.

Library: prv-accountant 0.2.0, `PRVAccountant`; heterogeneous compositions in one accountant.
Adjacency: add-remove for the Poisson-subsampled Gaussian (the library computes the direction in which the
record is removed); the Gaussian and Laplace laws take the sensitivity as a parameter, so replace-one gets 2;
randomised response enters as the pure-DP mechanism of its epsilon, which for two categories it is.
Promise: lower end, estimate and upper end (Gopi, Lee and Wutschitz 2021, theorem 5.5), up to rounding in its
FFT. The errors in epsilon and delta are inputs, and are added to the upper end.

What a user should know, and what this adapter leaves as it is: the grid of a composition is sized by Renyi
divergences, and for the pure-DP mechanism the library puts these at (alpha - 1) epsilon / alpha, too small
near order 1. Many or strong randomised responses then wrap around the grid: answers too low, or negative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workbench.accounting.events import Event, Gaussian, Laplace, RandomisedResponse, SubsampledGaussian
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.optional import library, quiet
from workbench.mechanisms.accountants.shared.questions import (
    require_adjacency,
    require_delta,
    require_epsilon,
    require_target,
)


@register("accountant", "prv_accountant")
@dataclass(frozen=True, kw_only=True)
class PRVAccountant:
    """Microsoft's privacy-random-variable accountant (Gopi, Lee and Wutschitz 2021), its upper end.

    Attributes:
        epsilon_error: Error in epsilon that is allowed, > 0; 0.1 is what the library calls typical.
        delta_error: Error in delta that is allowed, > 0; None for a thousandth of delta, which the library
            calls typical, and for 1e-10 where delta is asked for.

    Raises:
        InputError: an error is not positive.
    """

    epsilon_error: float = 0.1
    delta_error: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("epsilon_error", self.epsilon_error), ("delta_error", self.delta_error)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be finite and > 0, got {value!r}")

    @property
    def name(self) -> str:
        """`prv_accountant`."""
        return "prv_accountant"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Upper end for epsilon.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: the library has no such event under this adjacency, or is not installed.
        """
        require_delta(delta)
        error = delta / 1000 if self.delta_error is None else self.delta_error
        with quiet():
            accountant, counts = self._composed(event, adjacency, error)
            _, _, upper = accountant.compute_epsilon(delta=delta, num_self_compositions=counts)
        return float(upper)

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Upper end for delta.

        Raises:
            InputError: epsilon is negative or not finite.
            UnsupportedError: the library has no such event under this adjacency, or is not installed.
        """
        require_epsilon(epsilon)
        error = 1e-10 if self.delta_error is None else self.delta_error
        with quiet():
            accountant, counts = self._composed(event, adjacency, error)
            _, _, upper = accountant.compute_delta(epsilon=epsilon, num_self_compositions=counts)
        return float(upper)

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """What `dpsgd.find_noise_multiplier` finds, with this error in epsilon.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: another adjacency, or the library is not installed.
        """
        require_target(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
        )
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        dpsgd = library("prv_accountant.dpsgd", distribution="prv-accountant")
        with quiet():
            return float(
                dpsgd.find_noise_multiplier(
                    sampling_probability=sampling_probability,
                    num_steps=steps,
                    target_epsilon=target_epsilon,
                    target_delta=delta,
                    eps_error=self.epsilon_error,
                )
            )

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
        add_remove, replace_one = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
        sensitivity = 2.0 if adjacency is replace_one else 1.0
        if isinstance(part, Gaussian):
            require_adjacency(self.name, adjacency, add_remove, replace_one, of="Gaussian")
            return prv.GaussianMechanism(part.noise_multiplier, l2_sensitivity=sensitivity)
        if isinstance(part, Laplace):
            require_adjacency(self.name, adjacency, add_remove, replace_one, of="Laplace")
            return prv.LaplaceMechanism(mu=sensitivity / part.scale)
        if isinstance(part, SubsampledGaussian):
            require_adjacency(self.name, adjacency, add_remove, of="subsampled Gaussian")
            return prv.PoissonSubsampledGaussianMechanism(
                sampling_probability=part.sampling_probability, noise_multiplier=part.noise_multiplier
            )
        if isinstance(part, RandomisedResponse):
            require_adjacency(self.name, adjacency, replace_one, of="randomised response")
            truth, other = part.pair().p[:2]
            return prv.PureDPMechanism(math.log(truth / other))
        raise UnsupportedError(f"{self.name} has no privacy random variable for {part.describe()}")
