"""gdpnum: the smallest mu for which a DP-SGD run is mu-Gaussian DP, found numerically.

Library: gdpnum 0.1.2 (Gomez et al. 2026), `dpsgd.CTDAccountant.get_mu_and_regret`; its privacy loss
distributions are dp-accounting's ("Connect the Dots"), with its default grid of 1e-4.
Adjacency: add-remove (Poisson sampling); the curve is symmetrised over both directions.
Promise: a mu for which the whole run is Gaussian DP, from points of its curve whose rates are above 1e-10.
Epsilon, delta and the TPR are those of a Gaussian mechanism with this mu. What a user should know, and what
this adapter leaves as it is: for noise multiplier 1, sampling probability 0.01 and 1000 steps mu is 0.4394,
whose epsilon at delta 1e-5 is 1.7257, where the truth is at least 1.8278.
"""

from __future__ import annotations

from scipy.special import ndtr, ndtri

from workbench.accounting.events import Event
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import (
    DeltaAdapter,
    EpsilonAdapter,
    TradeoffAdapter,
    library,
)
from workbench.mechanisms.accountants.shared.questions import gaussian_runs, require_adjacency


@register("accountant", "gdpnum")
class GDPNum(EpsilonAdapter, DeltaAdapter, TradeoffAdapter):
    """Epsilon, delta and the TPR of gdpnum's mu (Gomez et al. 2026)."""

    name = "gdpnum"

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        return epsilon_of_delta(self._mu(event, adjacency), delta)

    def _delta(self, event: Event, epsilon: float, adjacency: Adjacency) -> float:
        return delta_of_epsilon(self._mu(event, adjacency), epsilon)

    def _false_negative_rate(self, event: Event, fpr: float, adjacency: Adjacency) -> float:
        return float(ndtr(-ndtri(fpr) - self._mu(event, adjacency)))

    def _mu(self, event: Event, adjacency: Adjacency) -> float:
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        runs = gaussian_runs(self.name, event)
        accountant = library("gdpnum.dpsgd", distribution="gdpnum").CTDAccountant()
        accountant.history = [(run.noise_multiplier, run.sampling_probability, run.steps) for run in runs]
        mu, _ = accountant.get_mu_and_regret()
        return float(mu)
