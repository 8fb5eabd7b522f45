"""Our events as dp-accounting's, and the walk that hands them to one of its accountants.

The library defines `GaussianDpEvent` and `LaplaceDpEvent` by the noise over the bound C on one record's
contribution, as our events do, so nothing is converted. Its two accountants do not read that definition
alike under replace-one adjacency: see `dp_accounting_rdp`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.optional import library, quiet
from workbench.mechanisms.accountants.shared.questions import (
    require_adjacency,
    require_delta,
    require_epsilon,
    require_target,
)

DISTRIBUTION = "dp-accounting"
_RELATIONS = {
    Adjacency.ADD_REMOVE: "ADD_OR_REMOVE_ONE",
    Adjacency.REPLACE_ONE: "REPLACE_ONE",
    Adjacency.ZERO_OUT: "REPLACE_SPECIAL",
}


def relation(event: Event, adjacency: Adjacency) -> Any:
    """The library's neighbouring relation for a question.

    A pair of mixtures is the whole statement, whatever the adjacency: alone, it is asked about under
    add-or-remove, which takes both orders of the pair.

    Raises:
        UnsupportedError: the library is missing, or our event has another meaning under this adjacency.
    """
    parts = [part for part, _ in event.parts()]
    if all(isinstance(part, GaussianMixturePair) for part in parts):
        adjacency = Adjacency.ADD_REMOVE
    if any(isinstance(part, RandomisedResponse) for part in parts):
        # REPLACE_SPECIAL there means: the special record answers uniformly. Our event has no such record.
        require_adjacency(DISTRIBUTION, adjacency, Adjacency.REPLACE_ONE, of="randomised response")
    return library("dp_accounting", distribution=DISTRIBUTION).NeighboringRelation[_RELATIONS[adjacency]]


def account(accountant: Any, event: Event) -> Any:
    """Compose the event into one of the library's accountants, each part with its count.

    Raises:
        UnsupportedError: the library has no such event, or its accountant refuses it.
    """
    dp = library("dp_accounting", distribution=DISTRIBUTION)
    parts = event.events if isinstance(event, Composed) else ((event, 1),)
    try:
        for part, count in parts:
            accountant.compose(_dp_event(dp, part), count)
    except dp.UnsupportedEventError as error:
        raise UnsupportedError(f"dp-accounting refuses {event.describe()}: {error}") from error
    return accountant


def calibrate(
    fresh: Callable[[], Any], *, target_epsilon: float, delta: float, sampling_probability: float, steps: int
) -> float:
    """The noise multiplier that `calibrate_dp_mechanism` finds for a DP-SGD run, with its defaults.

    Args:
        fresh: Makes an accountant without history, for the adjacency of the question.
        target_epsilon: > 0.
        delta: In (0, 1).
        sampling_probability: In (0, 1].
        steps: >= 1.

    Raises:
        InputError: an argument is out of range.
        UnsupportedError: the library is missing, or refuses subsampling under this adjacency.
    """
    require_target(
        target_epsilon=target_epsilon, delta=delta, sampling_probability=sampling_probability, steps=steps
    )
    dp = library("dp_accounting", distribution=DISTRIBUTION)

    def run(noise_multiplier: float) -> Any:
        step = dp.GaussianDpEvent(noise_multiplier)
        if sampling_probability < 1:
            step = dp.PoissonSampledDpEvent(sampling_probability, step)
        return dp.SelfComposedDpEvent(step, steps)

    try:
        with quiet():
            return float(dp.calibrate_dp_mechanism(fresh, run, target_epsilon, delta))
    except dp.UnsupportedEventError as error:
        raise UnsupportedError(f"dp-accounting refuses this run: {error}") from error


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
    sides = (
        (event.p_means, event.p_weights, event.q_means),
        (event.q_means, event.q_weights, event.p_means),
    )
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


class DPAccountingAccountant(ABC):
    """What dp-accounting's accountants have in common: the questions, and the noise for a budget."""

    @abstractmethod
    def fresh(self, event: Event, adjacency: Adjacency) -> Any:
        """The library's accountant, nothing composed yet.

        Raises:
            UnsupportedError: the library has no such adjacency for the event, or is not installed.
        """

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Upper bound on epsilon.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: the library has no such event under this adjacency.
        """
        require_delta(delta)
        accountant = self.fresh(event, adjacency)
        with quiet():
            return float(account(accountant, event).get_epsilon(delta))

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Upper bound on delta.

        Raises:
            InputError: epsilon is negative or not finite.
            UnsupportedError: the library has no such event under this adjacency.
        """
        require_epsilon(epsilon)
        accountant = self.fresh(event, adjacency)
        with quiet():
            return float(account(accountant, event).get_delta(epsilon))

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """What `calibrate_dp_mechanism` finds: within 1e-6 of the smallest, on the private side.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: the library is missing, or refuses subsampling under this adjacency.
        """
        return calibrate(
            lambda: self.fresh(Gaussian(noise_multiplier=1.0), adjacency),
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
        )
