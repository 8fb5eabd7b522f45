"""dp-accounting's two accountants: our events as its events, composed one by one.

Library: dp-accounting 0.6.0 (Google). It defines `GaussianDpEvent` and `LaplaceDpEvent` by the noise over the
bound C on one record's contribution, as our events do, so nothing is converted. Its two accountants do not
read that definition alike under replace-one adjacency.

`dp_accounting_pld`: `pld.PLDAccountant`, privacy loss distributions, with its default grid of 1e-4.
Adjacency: add-remove, replace-one (Gaussians and randomised response) and zero-out (`REPLACE_SPECIAL` there),
as far as the library names them for an event; it honours the definition of its events, so that under
replace-one a Gaussian sum moves by twice a record's bound. Promise: an upper bound, up to rounding in its FFT
and a dropped tail mass of exp(-50) a step. What a user should know, and what this adapter leaves as it is:
`compose(event, count)` of a randomised response uses the event once, whatever the count.

`dp_accounting_rdp`: `rdp.RdpAccountant` with its default orders. Adjacency: add-remove and zero-out;
replace-one for plain Gaussians, Laplace and randomised response only. Promise: an upper bound (Mironov et al.
2019 for the sampled Gaussian; Canonne et al. 2020 for the way back). What a user should know, and what this
adapter leaves as it is: a replaced record moves the sum by up to 2 C, but this accountant (unlike the other)
takes the ratio as if the sum moved by C; the library's issue 378 is open. Under replace-one its Gaussian and
Laplace answers are therefore below the truth.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.accounting.integers import DiscreteLaplace
from workbench.accounting.samples import SubsampledLaplace
from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import Calibrator, DeltaAdapter, EpsilonAdapter, library
from workbench.mechanisms.accountants.shared.questions import Target, require_adjacency, require_positive

DISTRIBUTION = "dp-accounting"
_RELATIONS = {
    Adjacency.ADD_REMOVE: "ADD_OR_REMOVE_ONE",
    Adjacency.REPLACE_ONE: "REPLACE_ONE",
    Adjacency.ZERO_OUT: "REPLACE_SPECIAL",
}


class DPAccountingAccountant(EpsilonAdapter, DeltaAdapter, Calibrator):
    """Base class of dp-accounting's accountants: their questions, and the noise for a budget.

    The noise is what `calibrate_dp_mechanism` finds: within 1e-6 of the smallest, on the private side.
    """

    calibrates_under = tuple(Adjacency)

    @abstractmethod
    def _fresh(self, relation: Any) -> Any:
        """The library's accountant under a neighbouring relation, nothing composed yet."""

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        return float(self._composed(event, adjacency).get_epsilon(delta))

    def _delta(self, event: Event, epsilon: float, adjacency: Adjacency) -> float:
        return float(self._composed(event, adjacency).get_delta(epsilon))

    def _composed(self, event: Event, adjacency: Adjacency) -> Any:
        """The library's accountant after the event, each part with its count.

        Raises `UnsupportedError`: the library has no such event, or its accountant refuses it.
        """
        accountant = self._fresh(_relation(event, adjacency))
        dp = library("dp_accounting", distribution=DISTRIBUTION)
        parts = event.events if isinstance(event, Composed) else ((event, 1),)
        try:
            for part, count in parts:
                accountant.compose(_dp_event(dp, part), count)
        except dp.UnsupportedEventError as error:
            raise UnsupportedError(f"dp-accounting refuses {event.describe()}: {error}") from error
        return accountant

    def _noise_multiplier(self, target: Target, adjacency: Adjacency) -> float:
        dp = library("dp_accounting", distribution=DISTRIBUTION)

        def fresh() -> Any:
            return self._fresh(_relation(Gaussian(noise_multiplier=1.0), adjacency))

        def run(noise_multiplier: float) -> Any:
            step = dp.GaussianDpEvent(noise_multiplier)
            if target.sampling_probability < 1:
                step = dp.PoissonSampledDpEvent(target.sampling_probability, step)
            return dp.SelfComposedDpEvent(step, target.steps)

        try:
            return float(dp.calibrate_dp_mechanism(fresh, run, target.epsilon, target.delta))
        except dp.UnsupportedEventError as error:
            raise UnsupportedError(f"dp-accounting refuses this run: {error}") from error


@register("accountant", "dp_accounting_pld")
@dataclass(frozen=True, kw_only=True)
class DPAccountingPLD(DPAccountingAccountant):
    """dp-accounting's PLD accountant, pessimistic (Doroshenko et al. 2022, "Connect the Dots").

    `interval`: width of the grid of privacy losses; the library's default. Raises `InputError`: the interval
    is not finite and positive.
    """

    name: ClassVar[str] = "dp_accounting_pld"

    interval: float = 1e-4

    def __post_init__(self) -> None:
        require_positive("interval", self.interval)

    def _fresh(self, relation: Any) -> Any:
        return library("dp_accounting.pld", distribution=DISTRIBUTION).PLDAccountant(relation, self.interval)


@register("accountant", "dp_accounting_rdp")
class DPAccountingRDP(DPAccountingAccountant):
    """dp-accounting's Renyi differential privacy accountant, with its default orders."""

    name = "dp_accounting_rdp"

    def _fresh(self, relation: Any) -> Any:
        rdp = library("dp_accounting.rdp", distribution=DISTRIBUTION)
        return rdp.RdpAccountant(neighboring_relation=relation)


def _relation(event: Event, adjacency: Adjacency) -> Any:
    """The library's neighbouring relation for a question.

    A pair of mixtures is the whole statement, whatever the adjacency: alone, it is asked about under
    add-or-remove, which takes both orders of the pair. Raises `UnsupportedError`: the library is missing, or
    our event has another meaning under this adjacency.
    """
    parts = [part for part, _ in event.parts()]
    if all(isinstance(part, GaussianMixturePair) for part in parts):
        adjacency = Adjacency.ADD_REMOVE
    if any(isinstance(part, RandomisedResponse) for part in parts):
        # REPLACE_SPECIAL there means: the special record answers uniformly. Our event has no such record.
        require_adjacency(DISTRIBUTION, adjacency, Adjacency.REPLACE_ONE, of="randomised response")
    return library("dp_accounting", distribution=DISTRIBUTION).NeighboringRelation[_RELATIONS[adjacency]]


def _dp_event(dp: Any, event: Event) -> Any:
    """One of our events as the library's."""
    if isinstance(event, Gaussian):
        return dp.GaussianDpEvent(event.noise_multiplier)
    if isinstance(event, SubsampledGaussian):
        return dp.PoissonSampledDpEvent(
            event.sampling_probability, dp.GaussianDpEvent(event.noise_multiplier)
        )
    if isinstance(event, Laplace):
        return dp.LaplaceDpEvent(event.scale)
    if isinstance(event, SubsampledLaplace):
        return dp.PoissonSampledDpEvent(event.sampling_probability, dp.LaplaceDpEvent(event.scale))
    if isinstance(event, DiscreteLaplace):
        return dp.dp_event.DiscreteLaplaceDpEvent(event.noise_parameter, event.largest_contribution)
    if isinstance(event, RandomisedResponse):
        return dp.RandomizedResponseDpEvent(event.noise_parameter, event.categories)
    if isinstance(event, GaussianMixturePair):
        return _mixture(dp, event)
    if isinstance(event, Composed):
        return dp.ComposedDpEvent(
            [dp.SelfComposedDpEvent(_dp_event(dp, part), count) for part, count in event.events]
        )
    raise UnsupportedError(f"dp-accounting has no event for {event.describe()}")


def _mixture(dp: Any, event: GaussianMixturePair) -> Any:
    """A mixture against one Gaussian, all shifts to the same side: what the library's event can say."""
    sides = ((event.p_means, event.p_weights, event.q_means), (event.q_means, event.q_weights, event.p_means))
    for means, weights, other in sides:
        if len(other) == 1:
            shifts = [mean - other[0] for mean in means]
            if min(shifts) >= 0 or max(shifts) <= 0:
                sensitivities = [abs(shift) for shift in shifts]
                return dp.dp_event.MixtureOfGaussiansDpEvent(
                    event.standard_deviation, sensitivities, list(weights)
                )
    raise UnsupportedError(
        f"dp-accounting answers for a mixture of Gaussians against one Gaussian to the side of all of its "
        f"components, not for this {event.describe()}"
    )
