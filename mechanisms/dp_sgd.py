"""DP-SGD: clip each record's gradient, sum, add Gaussian noise (Abadi et al. 2016, algorithm 1).

    for t in 1..T:
        take a Poisson sample L_t: each of the N records with probability q
        for each record i in L_t: compute its gradient g_i
        clip:    g_i <- g_i * min(1, C / |g_i|)                  "flat"
             or  g_i <- g_i * C / (|g_i| + gamma)                "automatic"
        noise:   g <- sum of g_i + N(0, (sigma C)^2 I)
        descend: hand g / (q N) to the optimizer

The loop is `workbench.training.loop`; this file is clip and noise, and the claim. Automatic clipping is Bu et
al. 2023, "Automatic clipping: differentially private deep learning made easier and stronger". Either way a
record adds at most C to the sum, so the same accounting holds. sigma is the smallest that the accountant
(`workbench.accounting.certified`, add-remove adjacency) finds to meet the plan's budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from workbench.accounting import ApproximateDP, GaussianDP
from workbench.accounting.dp_sgd import calibrate_noise_multiplier, epsilon
from workbench.errors import InputError, UnsupportedError, unknown_name
from workbench.interfaces import (
    Adjacency,
    Claim,
    Family,
    Guarantee,
    Plan,
    Released,
    Sampling,
    Signals,
)
from workbench.registry import register
from workbench.training.loop import GradientMechanism, gaussian_noise

CLIPPINGS = ("flat", "automatic")


@register("mechanism", "dp_sgd")
@dataclass(frozen=True, kw_only=True)
class DPSGD(GradientMechanism):
    """DP-SGD with flat or automatic clipping and Poisson sampling (Abadi et al. 2016).

    Attributes:
        l2_clip_norm: C, the most that one record adds to the sum.
        clipping: `"flat"` or `"automatic"`.
        stability: gamma of automatic clipping.
        noise_multiplier: sigma, the noise's standard deviation over C; None to calibrate it to the budget.

    Raises:
        InputError: a parameter is out of range.
    """

    release_family: ClassVar[Family] = Family.GAUSSIAN

    l2_clip_norm: float = 1.0
    clipping: str = "flat"
    stability: float = 0.01
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        """Refuse parameters that are out of range."""
        super().__post_init__()
        if self.clipping not in CLIPPINGS:
            raise unknown_name("clipping", self.clipping, CLIPPINGS)
        positive = {"l2_clip_norm": self.l2_clip_norm, "stability": self.stability}
        if self.noise_multiplier is not None:
            positive["noise_multiplier"] = self.noise_multiplier
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise InputError(f"{name} must be finite and > 0, got {value!r}")

    def clip_factors(self, norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied by, shape `(n,)`; factor times norm is at most C."""
        if self.clipping == "automatic":
            return self.l2_clip_norm / (norms + self.stability)
        return (self.l2_clip_norm / norms).clamp(max=1.0)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Clipped sum plus Gaussian noise of standard deviation sigma * C; shape of the weighted sum.

        Raises:
            InputError: the noise multiplier is neither given nor calibrated (`for_plan`).
        """
        if self.noise_multiplier is None:
            raise InputError("noise_multiplier is not settled yet: call for_plan first")
        clipped_sum = signals.weighted_sum(self.clip_factors(signals.norms()))
        noise = gaussian_noise(clipped_sum, self.noise_multiplier * self.l2_clip_norm, generator)
        return noise.add_(clipped_sum)

    def for_plan(self, plan: Plan) -> Self:
        """With the noise multiplier calibrated to the plan's budget, unless one was given.

        Raises:
            InputError: the plan has no budget, and no noise multiplier was given.
            UnsupportedError: the budget is in a currency that DP-SGD is not calibrated to.
        """
        if self.noise_multiplier is not None:
            return self
        return replace(self, noise_multiplier=_calibrated(plan))

    def settings(self) -> Mapping[str, float]:
        """`noise_multiplier` and `l2_clip_norm`."""
        noise = math.nan if self.noise_multiplier is None else self.noise_multiplier
        return {"noise_multiplier": noise, "l2_clip_norm": self.l2_clip_norm}

    def claim(self, plan: Plan) -> Claim:
        """The plan's budget; with a noise multiplier of the user's, what the accountant finds for it.

        Raises:
            InputError: there is no budget to read delta from.
            UnsupportedError: the budget is in a currency that DP-SGD is not calibrated to, or the samples
                are not Poisson.
        """
        if plan.sampling is not Sampling.POISSON:
            raise UnsupportedError(
                f"dp_sgd is accounted for Poisson samples only, got sampling {str(plan.sampling)!r}"
            )
        if self.noise_multiplier is None:
            _calibrated(plan)  # refuses a budget that the noise cannot be calibrated to
            guarantee: Guarantee | None = plan.budget
        else:
            guarantee = _accounted(self.noise_multiplier, plan)
        if guarantee is None:
            raise InputError("budget must be given, got None")
        return Claim(
            guarantee=guarantee,
            about=Adjacency.ADD_REMOVE,
            released=Released.EVERY_UPDATE,
            source="Abadi et al. 2016, algorithm 1, accounted by workbench.accounting.certified (upper end)",
            assumptions=(
                f"each step's sample is Poisson with q = {plan.sampling_probability:g} and stays secret",
                f"T = {plan.steps} releases, each of sensitivity C and noise sigma C",
                "the noise is an ideal Gaussian: floating-point effects are not covered",
                (
                    "the number that the sum is divided by is public"
                    if plan.public_size is not None
                    else "the number of records, by which the sum is divided, is public"
                ),
            ),
        )


def _calibrated(plan: Plan) -> float:
    """The smallest noise multiplier that meets the plan's budget."""
    budget, q, steps = plan.budget, plan.sampling_probability, plan.steps
    if isinstance(budget, ApproximateDP):
        return calibrate_noise_multiplier(
            target_epsilon=budget.epsilon,
            target_delta=budget.delta,
            sampling_probability=q,
            steps=steps,
        )
    if isinstance(budget, GaussianDP) and q == 1:
        if budget.mu == 0:
            raise InputError("mu must be > 0 for a run that releases anything, got 0")
        return math.sqrt(steps) / budget.mu
    if budget is None:
        raise InputError("dp_sgd needs a budget or a noise_multiplier, got neither")
    raise UnsupportedError(
        f"dp_sgd is calibrated to (epsilon, delta)-DP, and at q = 1 to mu-GDP, "
        f"not to {budget.describe()} at q = {q:g}"
    )


def _accounted(noise_multiplier: float, plan: Plan) -> Guarantee:
    """What a given noise multiplier guarantees: (epsilon, the budget's delta)-DP, or mu-GDP at q = 1."""
    q, steps, budget = plan.sampling_probability, plan.steps, plan.budget
    if isinstance(budget, ApproximateDP):
        accounted = epsilon(
            noise_multiplier=noise_multiplier, sampling_probability=q, steps=steps, delta=budget.delta
        )
        return ApproximateDP(epsilon=accounted, delta=budget.delta)
    if q == 1:
        return GaussianDP(mu=math.sqrt(steps) / noise_multiplier)
    raise InputError("dp_sgd needs a budget of (epsilon, delta)-DP to read delta from, where q < 1")
