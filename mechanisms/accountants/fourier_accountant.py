"""The Fourier accountant: losses on a grid and an FFT, without bounds on its errors.

Library: fourier-accountant 0.12.11 (Koskela, Jälkö and Honkela 2020, "Computing tight differential privacy
guarantees using FFT"), with its default grid of a million points on [-20, 20].
Adjacency: add-remove, in the direction in which the record is removed; replace-one, where the two records
move the sum to either side.
Promise: an estimate, which the library calls tight and says can be inaccurate in corners. It needs sampling
probabilities below 1 (its grid begins at log(1 - q)), and an epsilon within its grid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.accounting.events import Event
from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import DeltaAdapter, EpsilonAdapter, library
from workbench.mechanisms.accountants.shared.questions import gaussian_runs, require_adjacency


@register("accountant", "fourier_accountant")
class FourierAccountant(EpsilonAdapter, DeltaAdapter):
    """Estimates of the Fourier accountant (Koskela, Jälkö and Honkela 2020)."""

    name = "fourier_accountant"

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        ask = self._function("epsilon", adjacency)
        return float(ask(target_delta=delta, **self._runs(event)))

    def _delta(self, event: Event, epsilon: float, adjacency: Adjacency) -> float:
        ask = self._function("delta", adjacency)
        return float(ask(target_eps=epsilon, **self._runs(event)))

    def _function(self, quantity: str, adjacency: Adjacency) -> Any:
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
        relation = "R" if adjacency is Adjacency.ADD_REMOVE else "S"
        module = library("fourier_accountant", distribution="fourier-accountant")
        return getattr(module, f"get_{quantity}_{relation}")

    def _runs(self, event: Event) -> dict[str, Any]:
        runs = gaussian_runs(self.name, event)
        if any(run.sampling_probability == 1 for run in runs):
            raise UnsupportedError(f"{self.name} answers for sampling probabilities below 1 only")
        return {
            "sigma": np.array([run.noise_multiplier for run in runs]),
            "q": np.array([run.sampling_probability for run in runs]),
            "ncomp": np.array([run.steps for run in runs]),
        }
