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
finds to meet the plan's budget under add-remove adjacency: by default `workbench.accounting.certified`, else
the registered accountant that is named, as a paper's baseline may need (`dp_accounting_rdp` for Renyi DP).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.interfaces import Capabilities, Claim, Family, Plan, Signals
from workbench.mechanisms.shared.gaussian_sums import (
    CERTIFIED,
    calibrated,
    flat_factors,
    noisy_sum,
    noisy_sum_claim,
    require_calibrator,
    require_positive,
    settled_noise,
)
from workbench.training.loop import GradientMechanism, WeightedRelease

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
        accountant: Who finds sigma, or the epsilon of a given one: a registered accountant that calibrates.

    Raises:
        InputError: a parameter is out of range, or the accountant is unknown or finds no noise for a budget.
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"accountant": CERTIFIED}
    """See `workbench.training.content.settled`."""

    l2_clip_norm: float = 1.0
    clipping: str = "flat"
    stability: float = 0.01
    noise_multiplier: float | None = None
    accountant: str = CERTIFIED

    @property
    def capabilities(self) -> Capabilities:
        """Noised sums, with Gaussian noise."""
        return Capabilities(family=Family.GAUSSIAN)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clipping not in CLIPPINGS:
            raise unknown_name("clipping", self.clipping, CLIPPINGS)
        require_positive(
            l2_clip_norm=self.l2_clip_norm, stability=self.stability, noise_multiplier=self.noise_multiplier
        )
        require_calibrator(self.accountant)

    def clip_factors(self, norms: Tensor) -> Tensor:
        """Factors on each record's gradient, shape `(n,)`; factor times norm is at most C."""
        if self.clipping == "automatic":
            return self.l2_clip_norm / (norms + self.stability)
        return flat_factors(norms, self.l2_clip_norm)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Clipped sum plus Gaussian noise of standard deviation sigma * C; shape of the weighted sum.

        Raises `InputError`: the noise multiplier is neither given nor calibrated (`for_plan`).
        """
        noise = settled_noise(self.noise_multiplier) * self.l2_clip_norm
        return noisy_sum(signals, self.clip_factors(signals.norms()), noise, generator)

    def weighted_release(self) -> WeightedRelease:
        """The clip factors, and noise of standard deviation sigma * C."""
        sigma = math.nan if self.noise_multiplier is None else self.noise_multiplier
        return WeightedRelease(factors=self.clip_factors, noise_scale=sigma * self.l2_clip_norm)

    def for_plan(self, plan: Plan) -> Self:
        """The mechanism with its noise calibrated to the plan's budget, unless a noise was given.

        Raises as `calibrated`.
        """
        if self.noise_multiplier is not None:
            return self
        return replace(self, noise_multiplier=calibrated(plan, "dp_sgd", self.accountant))

    def settings(self) -> Mapping[str, float]:
        """`noise_multiplier` and `l2_clip_norm`."""
        noise = math.nan if self.noise_multiplier is None else self.noise_multiplier
        return {"noise_multiplier": noise, "l2_clip_norm": self.l2_clip_norm}

    def claim(self, plan: Plan) -> Claim:
        """The plan's budget; with a noise multiplier of the user's, what the accountant finds for it.

        Raises as `noisy_sum_claim`.
        """
        return noisy_sum_claim(
            plan,
            self.noise_multiplier,
            mechanism="dp_sgd",
            source="Abadi et al. 2016, algorithm 1",
            releases="releases, each of sensitivity C and noise sigma C",
            accountant=self.accountant,
        )
