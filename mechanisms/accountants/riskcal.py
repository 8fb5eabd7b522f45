"""riskcal: attack risk instead of epsilon: trade-off curves of DP-SGD.

Library: riskcal 1.5.1 (Kulynych et al.), `accountants.CTDAccountant` and `calibration`; its privacy loss
distributions are dp-accounting's ("Connect the Dots").
Adjacency: add-remove (Poisson sampling); the curve is symmetrised over both directions.
Promise: epsilon is an upper bound, up to rounding in the FFT. Its calibrator stops within 1e-3 of the target,
by its own account on the private side.

What a user should know, and what this adapter leaves as it is: the library gives the TPR as that of the
discretised law, without an upper bound. For one Gaussian at noise multiplier 0.5 and FPR 1e-6 it is 2.6 %
below the truth, 0.00287 for 0.00295.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.accounting.events import Event
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import (
    Calibrator,
    EpsilonAdapter,
    TradeoffAdapter,
    library,
)
from workbench.mechanisms.accountants.shared.questions import (
    Target,
    gaussian_runs,
    require_adjacency,
    require_positive,
)


@register("accountant", "riskcal")
@dataclass(frozen=True, kw_only=True)
class RiskCal(EpsilonAdapter, TradeoffAdapter, Calibrator):
    """riskcal's trade-off curves (Kulynych et al. 2024).

    Its calibrator searches between 0.05 and 100. `grid_step`: width of the grid of privacy losses; the
    library's default. Raises `InputError`: the step is not finite and positive.
    """

    name: ClassVar[str] = "riskcal"

    grid_step: float = 1e-4

    def __post_init__(self) -> None:
        require_positive("grid_step", self.grid_step)

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        return float(self._stepped(event, adjacency).get_epsilon(delta=delta, grid_step=self.grid_step))

    def _false_negative_rate(self, event: Event, fpr: float, adjacency: Adjacency) -> float:
        return float(self._stepped(event, adjacency).get_beta(alpha=fpr, grid_step=self.grid_step))

    def _noise_multiplier(self, target: Target, adjacency: Adjacency) -> float:
        sigma = _part("calibration.blackbox").find_noise_multiplier_for_epsilon_delta(
            accountant=_part("accountants").CTDAccountant,
            sample_rate=target.sampling_probability,
            num_steps=target.steps,
            epsilon=target.epsilon,
            delta=target.delta,
            grid_step=self.grid_step,
        )
        return float(sigma)

    def _stepped(self, event: Event, adjacency: Adjacency) -> Any:
        """The library's accountant after the event's steps."""
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        runs = gaussian_runs(self.name, event)
        accountant = _part("accountants").CTDAccountant()
        for run in runs:
            for _ in range(run.steps):
                accountant.step(noise_multiplier=run.noise_multiplier, sample_rate=run.sampling_probability)
        return accountant


def _part(module: str) -> Any:
    return library(f"riskcal.{module}", distribution="riskcal")
