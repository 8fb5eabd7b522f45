"""The bench's own certified bounds, as an accountant: their upper ends.

Library: `workbench.accounting.certified`.
Adjacency: all that the bounds are proven for.
Promise: an upper bound with every error carried in it.
"""

from __future__ import annotations

from workbench.accounting.events import Event
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.questions import (
    require_delta,
    require_epsilon,
    require_fpr,
    require_target,
)


@register("accountant", "certified")
class Certified:
    """The bench's certified bounds, their upper ends."""

    name = "certified"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Upper end for epsilon.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: there is no bound for the event under this adjacency.
        """
        from workbench.accounting import certified

        require_delta(delta)
        return certified.epsilon_bounds(event, delta, adjacency=adjacency).upper

    def delta(self, event: Event, *, epsilon: float, adjacency: Adjacency) -> float:
        """Upper end for delta.

        Raises:
            InputError: epsilon is negative or not finite.
            UnsupportedError: there is no bound for the event under this adjacency.
        """
        from workbench.accounting import certified

        require_epsilon(epsilon)
        return certified.delta_bounds(event, epsilon, adjacency=adjacency).upper

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        """Upper end for the TPR.

        Raises:
            InputError: fpr is outside [0, 1].
            UnsupportedError: there is no bound for the event under this adjacency.
        """
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
        """The smallest noise multiplier that is found whose upper end meets the target.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: there is no bound under this adjacency.
        """
        from workbench.accounting import certified

        require_target(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
        )
        return certified.calibrate_noise_multiplier(
            target_epsilon=target_epsilon,
            target_delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
            adjacency=adjacency,
        )
