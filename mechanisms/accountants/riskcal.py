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

import math
from dataclasses import dataclass
from typing import Any

from workbench.accounting.events import Event
from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants.shared.optional import library, quiet
from workbench.mechanisms.accountants.shared.questions import (
    gaussian_runs,
    require_adjacency,
    require_delta,
    require_fpr,
    require_run,
    require_target,
)


@register("accountant", "riskcal")
@dataclass(frozen=True, kw_only=True)
class RiskCal:
    """riskcal's trade-off curves and calibration to attack risk (Kulynych et al. 2024).

    Attributes:
        grid_step: Width of the grid of privacy losses; the library's default.

    Raises:
        InputError: the step is not finite and positive.
    """

    grid_step: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 < self.grid_step < math.inf:
            raise InputError(f"grid_step must be finite and > 0, got {self.grid_step!r}")

    @property
    def name(self) -> str:
        """`riskcal`."""
        return "riskcal"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """Upper bound on epsilon.

        Raises:
            InputError: delta is outside (0, 1).
            UnsupportedError: another event or adjacency, or the library is not installed.
        """
        require_delta(delta)
        accountant = self._stepped(event, adjacency)
        with quiet():
            return float(accountant.get_epsilon(delta=delta, grid_step=self.grid_step))

    def tpr(self, event: Event, *, fpr: float, adjacency: Adjacency) -> float:
        """The TPR of the discretised law: 1 less the library's beta.

        Raises:
            InputError: fpr is outside [0, 1].
            UnsupportedError: another event or adjacency, or the library is not installed.
        """
        require_fpr(fpr)
        accountant = self._stepped(event, adjacency)
        with quiet():
            return 1.0 - float(accountant.get_beta(alpha=fpr, grid_step=self.grid_step))

    def advantage(self, event: Event, *, adjacency: Adjacency) -> float:
        """Upper bound on the largest TPR - FPR of a test.

        Raises:
            UnsupportedError: another event or adjacency, or the library is not installed.
        """
        accountant = self._stepped(event, adjacency)
        with quiet():
            return float(accountant.get_advantage(grid_step=self.grid_step))

    def noise_multiplier(
        self,
        *,
        target_epsilon: float,
        delta: float,
        sampling_probability: float,
        steps: int,
        adjacency: Adjacency,
    ) -> float:
        """What `blackbox.find_noise_multiplier_for_epsilon_delta` finds between 0.05 and 100.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: another adjacency, or the library is not installed.
        """
        require_target(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=sampling_probability,
            steps=steps,
        )
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        blackbox = _part("calibration.blackbox")
        with quiet():
            return float(
                blackbox.find_noise_multiplier_for_epsilon_delta(
                    accountant=_part("accountants").CTDAccountant,
                    sample_rate=sampling_probability,
                    num_steps=steps,
                    epsilon=target_epsilon,
                    delta=delta,
                    grid_step=self.grid_step,
                )
            )

    def noise_multiplier_for_advantage(
        self, *, advantage: float, sampling_probability: float, steps: int, adjacency: Adjacency
    ) -> float:
        """What `dpsgd.find_noise_multiplier_for_advantage` finds between 0.1 and 50.

        Args:
            advantage: Largest TPR - FPR to be allowed, in (0, 1).
            sampling_probability: In (0, 1].
            steps: >= 1.
            adjacency: Add-remove.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: another adjacency, or the library is not installed.
        """
        if not 0 < advantage < 1:
            raise InputError(f"advantage must be in (0, 1), got {advantage!r}")
        require_run(sampling_probability=sampling_probability, steps=steps)
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        with quiet():
            return float(
                _part("calibration.dpsgd").find_noise_multiplier_for_advantage(
                    advantage=advantage,
                    sample_rate=sampling_probability,
                    num_steps=steps,
                    grid_step=self.grid_step,
                )
            )

    def noise_multiplier_for_tpr(
        self, *, tpr: float, fpr: float, sampling_probability: float, steps: int, adjacency: Adjacency
    ) -> float:
        """What `dpsgd.find_noise_multiplier_for_err_rates` finds between 0.1 and 50.

        Args:
            tpr: Largest TPR to be allowed at `fpr`; above it, below 1.
            fpr: In (0, 1).
            sampling_probability: In (0, 1].
            steps: >= 1.
            adjacency: Add-remove.

        Raises:
            InputError: an argument is out of range.
            UnsupportedError: another adjacency, or the library is not installed.
        """
        if not 0 < fpr < tpr < 1:
            raise InputError(f"tpr must be above fpr ({fpr!r}) and below 1, got {tpr!r}")
        require_run(sampling_probability=sampling_probability, steps=steps)
        require_adjacency(self.name, adjacency, Adjacency.ADD_REMOVE)
        with quiet():
            return float(
                _part("calibration.dpsgd").find_noise_multiplier_for_err_rates(
                    alpha=fpr,
                    beta=1.0 - tpr,
                    sample_rate=sampling_probability,
                    num_steps=steps,
                    grid_step=self.grid_step,
                )
            )

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
