"""Opacus's Gaussian-differential-privacy accountant: the central limit theorem's value.

Library: opacus 1.6.0 (Meta), `accountants.GaussianAccountant` for Poisson sampling.
Adjacency: add-remove.
Promise: an approximation, mu = q sqrt(T (exp(1 / sigma^2) - 1)) (Bu, Dong, Long and Su 2020), and no bound:
the library itself warns that it can lie below the truth.

Only one kind of step is accounted: noise and sampling must stay as they are.
"""

from __future__ import annotations

from workbench.accounting.events import Event
from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.opacus import OpacusAccountant
from workbench.mechanisms.accountants.shared.questions import gaussian_runs


@register("accountant", "opacus_gdp")
class OpacusGDP(OpacusAccountant):
    """Opacus's central-limit accountant (Bu, Dong, Long and Su 2020); no bound."""

    name = "opacus_gdp"
    mechanism = "gdp"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Epsilon of the mu-GDP mechanism that the run tends to.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: another event or adjacency, or opacus is not installed.
        """
        kinds = {(run.noise_multiplier, run.sampling_probability) for run in gaussian_runs(self.name, event)}
        if len(kinds) > 1:
            raise UnsupportedError(f"{self.name} answers for one step repeated, not {event.describe()}")
        return super().epsilon(event, delta=delta, adjacency=adjacency)
