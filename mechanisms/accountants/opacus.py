"""Opacus's accountants, asked as its training loop asks them: one `step` a step, then `get_epsilon`.

Library: opacus 1.6.0 (Meta); it imports torch, so nothing of it is imported before a question comes.
Adjacency: add-remove (Poisson sampling).

`opacus_rdp`: `accountants.RDPAccountant` with its default orders, the `PrivacyEngine`'s `accountant="rdp"`.
Promise: an upper bound (Mironov et al. 2019 for the sampled Gaussian).

`opacus_prv`: `accountants.PRVAccountant`, the `PrivacyEngine`'s default, with its default errors: 0.01 in
epsilon and delta / 1000 in delta, both added to the answer. The library computes the direction in which the
record is removed. Promise: an upper bound (Gopi, Lee and Wutschitz 2021), up to rounding in its FFT.

`opacus_gdp`: `accountants.GaussianAccountant`. Promise: an approximation, mu = q sqrt(T (exp(1 / sigma^2) -
1)) (Bu, Dong, Long and Su 2020), and no bound: the library itself warns that it can lie below the truth. Only
one kind of step is accounted: noise and sampling must stay as they are.
"""

from __future__ import annotations

from typing import ClassVar

from workbench.accounting.events import Event
from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import Calibrator, EpsilonAdapter, library
from workbench.mechanisms.accountants.shared.questions import Target, gaussian_runs, require_adjacency


class OpacusAccountant(EpsilonAdapter, Calibrator):
    """Base class of Opacus's accountants: their questions, and the noise for a budget.

    The noise is what `get_noise_multiplier` finds with its default tolerance: this accountant's epsilon is at
    most 0.01 below the target. `mechanism`: Opacus's own name of it.
    """

    mechanism: ClassVar[str]

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        runs = gaussian_runs(self.name, event)
        accountants = library("opacus.accountants", distribution="opacus")
        accountant = accountants.create_accountant(mechanism=self.mechanism)
        for run in runs:
            for _ in range(run.steps):
                accountant.step(noise_multiplier=run.noise_multiplier, sample_rate=run.sampling_probability)
        return float(accountant.get_epsilon(delta=delta))

    def _noise_multiplier(self, target: Target, adjacency: Adjacency) -> float:
        utils = library("opacus.accountants.utils", distribution="opacus")
        sigma = utils.get_noise_multiplier(
            target_epsilon=target.epsilon,
            target_delta=target.delta,
            sample_rate=target.sampling_probability,
            steps=target.steps,
            accountant=self.mechanism,
        )
        return float(sigma)


@register("accountant", "opacus_rdp")
class OpacusRDP(OpacusAccountant):
    """Opacus's Renyi differential privacy accountant, with its default orders."""

    name = "opacus_rdp"
    mechanism = "rdp"


@register("accountant", "opacus_prv")
class OpacusPRV(OpacusAccountant):
    """Opacus's PRV accountant (Gopi, Lee and Wutschitz 2021), its upper end."""

    name = "opacus_prv"
    mechanism = "prv"


@register("accountant", "opacus_gdp")
class OpacusGDP(OpacusAccountant):
    """Opacus's central-limit accountant (Bu, Dong, Long and Su 2020); no bound."""

    name = "opacus_gdp"
    mechanism = "gdp"

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        kinds = {(run.noise_multiplier, run.sampling_probability) for run in gaussian_runs(self.name, event)}
        if len(kinds) > 1:
            raise UnsupportedError(f"{self.name} answers for one step repeated, not {event.describe()}")
        return super()._epsilon(event, delta, adjacency)
