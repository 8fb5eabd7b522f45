"""The bench's own certified bounds, as an accountant: their upper ends.

Library: `workbench.accounting.certified`, imported when a question comes.
Adjacency: all that the bounds are proven for.
Promise: an upper bound with every error carried in it.
"""

from __future__ import annotations

from workbench.accounting.events import Event
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.questions import (
    Target,
    require_delta,
    require_epsilon,
    require_fpr,
)


@register("accountant", "certified")
class Certified:
    """The bench's certified bounds, their upper ends.

    Every question raises `InputError` for an argument out of range, and `UnsupportedError` where there is no
    bound for the event under the adjacency.
    """

    name = "certified"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Upper end of the certified bounds on epsilon."""
        from workbench.accounting import certified

        require_delta(delta)
        return certified.epsilon_bounds(event, delta, adjacency=adjacency).upper

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Upper end of the certified bounds on delta."""
        from workbench.accounting import certified

        require_epsilon(epsilon)
        return certified.delta_bounds(event, epsilon, adjacency=adjacency).upper

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        """Upper end of the certified bounds on the true-positive rate at `fpr`."""
        from workbench.accounting import certified

        require_fpr(fpr)
        return certified.tpr_bounds(event, fpr, adjacency=adjacency).upper

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """The smallest noise multiplier that is found whose upper end meets the target."""
        from workbench.accounting import certified

        Target(target_epsilon, delta, sampling_probability, steps).require_possible()
        return certified.calibrate_noise_multiplier(
            target_epsilon=target_epsilon,
            target_delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
            adjacency=adjacency,
        )
