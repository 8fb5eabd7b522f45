"""What DP-SGD's adaptive relatives share: parameters, calibration, claim, and the traces of a run.

Each releases, in every step, a sum to which one record adds at most the step's clipping norm C_t, with
Gaussian noise of standard deviation sigma_t C_t, over a Poisson sample. C_t (or the transform that a record
is clipped in) may depend on all that was released before: composition is adaptive, so it costs nothing.
What else a step releases of its sample, a noised count or histogram, is a side query and is paid for in the
same step.

The price. Divide each query by its noise: the step is one Gaussian query of unit noise, to which a record
adds at most sqrt(1 / sigma_sum^2 + sum of 1 / sigma_k^2), where sigma_k is a side query's noise over its
sensitivity. It is accounted as one release with the multiplier `noise_multiplier` if

    1 / noise_multiplier^2 = 1 / sigma_sum^2 + sum over k of 1 / sigma_k^2

(theorem 1 of Andrew et al. 2021, "Differentially private learning with adaptive clipping", for one count).
`remaining_noise_multiplier` solves it for sigma_sum.

    >>> round(remaining_noise_multiplier(1.0, [2.0]), 6)
    1.154701
    >>> remaining_noise_multiplier(1.0, [])
    1.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.interfaces import Capabilities, Claim, Family, Model, Plan, Signals
from workbench.mechanisms.shared.gaussian_sums import (
    CERTIFIED,
    calibrated,
    noisy_sum_claim,
    require_calibrator,
    require_positive,
    require_scale,
    settled_noise,
)
from workbench.training.fine_tuning import averaging_size
from workbench.training.loop import GradientMechanism
from workbench.training.steps import PrivatisedSums, Steps

LIMITS = ("rldp_gdp", "opacus_gdp")
"""Accountants by the Gaussian-DP central limit, by which RLDP (section 3.1) runs its baselines: not the
default, for it is no bound, and canaries do refute claims that rest on it."""
LIMIT_ASSUMPTION = (
    "the run is as private as the central limit of many steps: the accountant's mu is an approximation "
    "that can lie below the truth, and no bound"
)


def remaining_noise_multiplier(joint: float, side_queries: Sequence[float]) -> float:
    """The sum's noise multiplier, where side queries take their part of a step's joint one.

    `joint`: the noise multiplier that the whole step is accounted by; > 0. `side_queries`: of each side
    query, its noise's standard deviation over its sensitivity; > 0. Returns sigma_sum >= `joint`, such that 1
    / joint^2 = 1 / sigma_sum^2 + the sum of 1 / side^2. Raises `InputError`: the side queries alone cost as
    much as the step, or more.
    """
    left = joint**-2 - math.fsum(side**-2 for side in side_queries)
    if left <= 0:
        raise InputError(
            "side queries must leave something of the step's noise_multiplier to the sum, got "
            f"{', '.join(f'{side:g}' for side in side_queries)} of {joint:g}"
        )
    return left**-0.5 if side_queries else joint


@dataclass(frozen=True, kw_only=True)
class AdaptiveSums(GradientMechanism):
    """A gradient mechanism whose clipping may change from step to step; see the module's docstring.

    A subclass names itself and its paper, releases in `privatise` what the first step would release (its
    state before anything was released), and brings a subclass of `AdaptiveSteps` where the state moves on.
    What needs the noise multiplier raises `InputError` until it is settled (`for_plan`).

    Attributes:
        l2_clip_norm: C, the most that one record adds to the sum; in the first step, where it changes.
        noise_multiplier: What one step is accounted by, side queries included; None to calibrate it.
        accountant: Who finds it, or the epsilon of a given one: `"certified"`, or a registered accountant
            that calibrates.

    Raises:
        InputError: a parameter is out of range, or the accountant is unknown or finds no noise for a budget.
    """

    mechanism: ClassVar[str]
    """Its name in the registry, for messages."""
    paper: ClassVar[str]
    """Whose algorithm it is, for the claim's source."""
    releases: ClassVar[str] = "releases, each of sensitivity C_t and noise sigma C_t"
    """What each step releases, for the claim's assumptions."""

    l2_clip_norm: float = 1.0
    noise_multiplier: float | None = None
    accountant: str = CERTIFIED

    @property
    def capabilities(self) -> Capabilities:
        """Noised sums, with Gaussian noise."""
        return Capabilities(family=Family.GAUSSIAN)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale(l2_clip_norm=self.l2_clip_norm)
        require_positive(noise_multiplier=self.noise_multiplier)
        require_calibrator(self.accountant)

    def side_queries(self) -> Sequence[float]:
        """Noise multiplier of each side query of a step, of the settled mechanism."""
        return ()

    def further_assumptions(self) -> tuple[str, ...]:
        """Assumptions of the claim beyond DP-SGD's: above all, what is not paid for."""
        return ()

    def settled_noise_multiplier(self) -> float:
        """`noise_multiplier`, once it is settled."""
        return settled_noise(self.noise_multiplier)

    def sum_noise_multiplier(self) -> float:
        """sigma_sum: the standard deviation of the sum's noise over the clipping norm.

        Raises `InputError`: the side queries leave nothing of the step's noise multiplier.
        """
        return remaining_noise_multiplier(self.settled_noise_multiplier(), self.side_queries())

    def for_plan(self, plan: Plan) -> Self:
        """The mechanism with its noise calibrated to the plan's budget, unless a noise was given.

        Raises as `calibrated`.
        """
        if self.noise_multiplier is not None:
            return self
        return replace(self, noise_multiplier=calibrated(plan, self.mechanism, self.accountant))

    def settings(self) -> Mapping[str, float]:
        """`noise_multiplier`, `sum_noise_multiplier` and `l2_clip_norm`."""
        settled = self.noise_multiplier is not None
        return {
            "noise_multiplier": self.settled_noise_multiplier() if settled else math.nan,
            "sum_noise_multiplier": self.sum_noise_multiplier() if settled else math.nan,
            "l2_clip_norm": self.l2_clip_norm,
        }

    def claim(self, plan: Plan) -> Claim:
        """The plan's budget; with a noise multiplier of the user's, what the accountant finds for it.

        Raises as `noisy_sum_claim`.
        """
        claim = noisy_sum_claim(
            plan,
            self.noise_multiplier,
            mechanism=self.mechanism,
            source=self.paper,
            releases=self.releases,
            accountant=self.accountant,
        )
        limit = (LIMIT_ASSUMPTION,) if self.accountant in LIMITS else ()
        return replace(claim, assumptions=(*claim.assumptions, *limit, *self.further_assumptions()))

    def steps(self, plan: Plan, model: Model) -> Steps:
        """A run that traces C and sigma."""
        return AdaptiveSteps(self, plan, model)


Adaptive = TypeVar("Adaptive", bound=AdaptiveSums)


class AdaptiveSteps(PrivatisedSums, Generic[Adaptive]):
    """The state of one run, with the traces `l2_clip_norm` and `noise_multiplier`, one number a step each.

    This one clips as the settled mechanism does, alike in every step; a subclass overrides `privatise`, and
    calls `trace` once in it. `mechanism`: settled for the plan. `batch_size`: B = q N, by which sums are
    divided; public.
    """

    def __init__(self, mechanism: Adaptive, plan: Plan, model: Model) -> None:
        super().__init__(mechanism, plan, model)
        self.mechanism = mechanism
        self.batch_size = plan.sampling_probability * averaging_size(plan)
        self._traces: dict[str, list[float]] = {}

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The settled mechanism's privatise step."""
        self.trace(self.mechanism.l2_clip_norm, self.mechanism.sum_noise_multiplier())
        return self.mechanism.privatise(signals, generator)

    def trace(self, l2_clip_norm: float, noise_multiplier: float, **further: float) -> None:
        """Note what a step used: once a step, and always the same names.

        Args:
            l2_clip_norm: C_t; where records are clipped by groups, the mean over the groups.
            noise_multiplier: Standard deviation of the sum's noise over C_t.
            further: Series of the mechanism's own.
        """
        step = {"l2_clip_norm": l2_clip_norm, "noise_multiplier": noise_multiplier, **further}
        for name, value in step.items():
            self._traces.setdefault(name, []).append(float(value))

    def released(self) -> Mapping[str, Any]:
        """The traces, the canary's released values, and the auditor's coins."""
        traces = {name: np.array(series, dtype=np.float64) for name, series in self._traces.items()}
        return {**super().released(), "traces": traces}
