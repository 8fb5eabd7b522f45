"""riskcal: attack risk instead of epsilon: trade-off curves of DP-SGD, and noise for a target risk.

Library: riskcal 1.5.1 (Kulynych et al.), `accountants.CTDAccountant` and `calibration`; its privacy loss
distributions are dp-accounting's ("Connect the Dots").
Adjacency: add-remove (Poisson sampling); the curve is symmetrised over both directions.
Promise: epsilon is an upper bound, up to rounding in the FFT. Its calibrators stop within 1e-3 of the target,
by their own account on the private side.

What a user should know, and what this adapter leaves as it is: the library gives the TPR as that of the
discretised law, without an upper bound. For one Gaussian at noise multiplier 0.5 and FPR 1e-6 it is 2.6 %
below the truth, 0.00287 for 0.00295. And noise for a target TPR is searched from the side where the attack
does better than the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.accounting.events import Event
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.adapters import (
    Calibrator,
    EpsilonAdapter,
    TradeoffAdapter,
    library,
    quiet,
)
from workbench.mechanisms.accountants.shared.questions import (
    Target,
    gaussian_runs,
    require_adjacency,
    require_positive,
    require_run,
)


@register("accountant", "riskcal")
@dataclass(frozen=True, kw_only=True)
class RiskCal(EpsilonAdapter, TradeoffAdapter, Calibrator):
    """riskcal's trade-off curves and calibration to attack risk (Kulynych et al. 2024).

    Its calibrators search between 0.05 and 100 for a target epsilon, between 0.1 and 50 for a target risk.

    Attributes:
        grid_step: Width of the grid of privacy losses; the library's default.

    Raises `InputError`: the step is not finite and positive.
    """

    name: ClassVar[str] = "riskcal"

    grid_step: float = 1e-4

    def __post_init__(self) -> None:
        require_positive("grid_step", self.grid_step)

    def _epsilon(self, event: Event, delta: float, adjacency: Adjacency) -> float:
        return float(self._stepped(event, adjacency).get_epsilon(delta=delta, grid_step=self.grid_step))

    def _false_negative_rate(self, event: Event, fpr: float, adjacency: Adjacency) -> float:
        return float(self._stepped(event, adjacency).get_beta(alpha=fpr, grid_step=self.grid_step))

    def advantage(self, event: Event, *, adjacency: Adjacency) -> float:
        """Upper bound on the largest TPR - FPR of a test.

        Raises `UnsupportedError`: another event or adjacency, or the library is not installed.
        """
        with quiet():
            return float(self._stepped(event, adjacency).get_advantage(grid_step=self.grid_step))

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

    def noise_multiplier_for_advantage(
        self, *, advantage: float, sampling_probability: float, steps: int, adjacency: Adjacency
    ) -> float:
        """The noise at which no test's TPR - FPR is larger than `advantage`, in (0, 1), add-remove.

        Raises `InputError`: an argument is out of range. `UnsupportedError`: another adjacency, or the
        library is not installed.
        """
        if not 0 < advantage < 1:
            raise InputError(f"advantage must be in (0, 1), got {advantage!r}")
        return self._calibrated("advantage", sampling_probability, steps, adjacency, advantage=advantage)

    def noise_multiplier_for_tpr(
        self, *, tpr: float, fpr: float, sampling_probability: float, steps: int, adjacency: Adjacency
    ) -> float:
        """The noise at which no test has a larger TPR than `tpr` at `fpr`, 0 < fpr < tpr < 1, add-remove.

        Raises `InputError`: an argument is out of range. `UnsupportedError`: another adjacency, or the
        library is not installed.
        """
        if not 0 < fpr < tpr < 1:
            raise InputError(f"tpr must be above fpr ({fpr!r}) and below 1, got {tpr!r}")
        rates = {"alpha": fpr, "beta": 1.0 - tpr}
        return self._calibrated("err_rates", sampling_probability, steps, adjacency, **rates)

    def _calibrated(
        self, risk: str, sampling_probability: float, steps: int, adjacency: Adjacency, **risk_levels: float
    ) -> float:
        """What the library's `find_noise_multiplier_for_RISK` finds."""
        require_run(sampling_probability=sampling_probability, steps=steps)
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        with quiet():
            find = getattr(_part("calibration.dpsgd"), f"find_noise_multiplier_for_{risk}")
            sigma = find(
                **risk_levels, sample_rate=sampling_probability, num_steps=steps, grid_step=self.grid_step
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
