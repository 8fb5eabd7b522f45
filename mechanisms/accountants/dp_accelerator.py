"""DP Accelerator: Renyi accounting of DP-SGD in compiled code.

Library: dp-accelerator 0.1.0, `compute_epsilon_batch` with the orders of its `DPSGDAccountant`.
Adjacency: add-remove (Poisson sampling).
Promise: an upper bound (Renyi divergences of the sampled Gaussian). It accounts one kind of step, repeated.
"""

from __future__ import annotations

from workbench.accounting.events import Event
from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import EpsilonAdapter, library
from workbench.mechanisms.accountants.shared.questions import gaussian_runs, require_adjacency


@register("accountant", "dp_accelerator")
class DPAccelerator(EpsilonAdapter):
    """DP Accelerator's Renyi accountant, with its default orders."""

    name = "dp_accelerator"

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        runs = gaussian_runs(self.name, event)
        if len(runs) > 1:
            raise UnsupportedError(f"{self.name} answers for one step repeated, not {event.describe()}")
        (run,) = runs
        theirs = library("dp_accelerator", distribution="dp-accelerator")
        orders = theirs.DPSGDAccountant(run.noise_multiplier, batch_size=1, dataset_size=1).orders
        (epsilon,) = theirs.compute_epsilon_batch(
            run.sampling_probability, run.noise_multiplier, [run.steps], orders, delta
        )
        return float(epsilon)
