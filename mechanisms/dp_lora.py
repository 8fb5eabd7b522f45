"""DP-LoRA: the gradients of the LoRA matrices A and of the matrices B are clipped and noised, each by itself.

    for t in 1..T:
        take a Poisson sample L_t
        for each record i in L_t, for each group h of the G groups of LoRA matrices:
            g_ih <- g_ih * min(1, C / |g_ih|)
        noise:   g_h <- sum of g_ih + N(0, (s C)^2 I)
        descend: hand g / (q N) to the optimizer

Sensitivity. A record may fill the bound of every group, so that it moves the whole sum by as much as
sqrt(G) C, not C. `accounting` says what is made of that:

- "joint": s = sigma sqrt(G), where sigma is what the accountant finds for the budget. The whole step is one
  Gaussian release with the multiplier sigma, and the claim holds for it;
- "per-group": s = sigma, noise sigma C in each group as though each were the only one. A record's effect is
  then accounted sqrt(G) times too small, and the claim's assumptions say so.

Source: Liu, Zhu, Zha, Gao, Zhong, White and Qiu 2025 (arXiv 2312.17493, 2023), "Differentially private low-
rank adaptation of large language model using federated learning", as public restatements and
reconstructions tell it. Theirs is federated: K = 5 clients each clip (C = 10) and noise (multiplier 2) the
gradient of a minibatch of 8, at rank 512, and a server averages their A and B after each of 50 rounds. This
is the same in the bench's one loop, as RLDP must have run it (section 3.1: Opacus, per-sample gradients,
Poisson samples, radius 1.0): one party, each record's gradient clipped, and the noise drawn once. Uncertain
or ours:

- the groups. The paper writes of one A and one B, each clipped by itself: `grouping = "factors"`, all A in
  one group and all B in another. With several layers that may also mean each matrix ("matrices"); RLDP's
  own method takes the A and B of a layer together ("pairs");
- RLDP speaks of DP-LoRA's "uniform C". If it means one C for all together, "flat", then with LoRA in every
  run its DP-LoRA is its static DP-SGD, number for number; its Tables 4 to 9 have both, with different
  numbers;
- their accounting is that of the moments accountant, without its constants; whether it counts A and B
  jointly is not to be found out from restatements, so the sound reading is the default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.core.errors import InputError, unknown_name
from workbench.core.registry import register
from workbench.interfaces import Groups, Model, Plan, Signals
from workbench.mechanisms.shared.adaptive_sums import AdaptiveSteps, AdaptiveSums
from workbench.mechanisms.shared.gaussian_sums import flat_factors
from workbench.training.flat import Layout
from workbench.training.loop import gaussian_noise
from workbench.training.lora import lora_pairs
from workbench.training.steps import Steps

GROUPINGS = ("factors", "matrices", "pairs", "flat")
ACCOUNTINGS = ("joint", "per-group")


@register("mechanism", "dp_lora")
@dataclass(frozen=True, kw_only=True)
class DPLoRA(AdaptiveSums):
    """DP-SGD that clips and noises LoRA's A and B by themselves (Liu et al. 2025).

    Attributes:
        l2_clip_norm: C of each group.
        grouping: `"factors"`, `"matrices"`, `"pairs"` or `"flat"`.
        accounting: `"joint"` or `"per-group"`.
    """

    mechanism: ClassVar[str] = "dp_lora"
    paper: ClassVar[str] = "Liu et al. 2025, DP-LoRA"
    releases: ClassVar[str] = "releases of groups of LoRA matrices, each of sensitivity C"

    grouping: str = "factors"
    accounting: str = "joint"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("grouping", GROUPINGS), ("accounting", ACCOUNTINGS)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that does not train LoRA adapters.

        Raises `InputError`: a field is out of range, or `adapter` is not `"lora"`.
        """
        super().check(plan)
        if plan.adapter != "lora":
            raise InputError(f"adapter must be 'lora' for dp_lora, got {plan.adapter!r}")

    def further_assumptions(self) -> tuple[str, ...]:
        """The assumption that the claim needs on a record's sum over all groups."""
        if self.accounting == "joint" or self.grouping == "flat":
            return ("the noise is scaled to all groups together: a record may add C to each",)
        return (
            "each group is accounted as though it were the only one: A RECORD MAY ADD C TO EACH OF THEM, and "
            "nothing is paid for that",
        )

    def clipping_groups(self, layout: Layout) -> Groups:
        """The groups of LoRA matrices that are clipped by themselves.

        Raises `InputError`: a trainable parameter is no LoRA matrix.
        """
        pairs = lora_pairs(layout)
        if self.grouping == "pairs":
            return pairs
        if self.grouping == "matrices":
            return [[name] for name in layout]
        if self.grouping == "flat":
            return [list(layout)]
        return [list(factors) for factors in zip(*pairs, strict=True)]

    def group_noise_multiplier(self, groups: int) -> float:
        """s: standard deviation of each group's noise over C, for G groups."""
        joint = self.sum_noise_multiplier()
        return joint * math.sqrt(groups) if self.accounting == "joint" else joint

    def clip_factors(self, group_norms: Tensor) -> Tensor:
        """Factors that each group's part of each record's gradient is multiplied by, shape `(n, G)`."""
        return flat_factors(group_norms, self.l2_clip_norm)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Sum of the clipped parts plus Gaussian noise of standard deviation s * C; shape of the sum.

        Raises `InputError`: a trainable parameter is no LoRA matrix.
        """
        groups = self.clipping_groups(signals.layout)
        total = signals.group_sum(self.clip_factors(signals.group_norms(groups)), groups)
        noise = self.group_noise_multiplier(len(groups)) * self.l2_clip_norm
        return gaussian_noise(total, noise, generator).add_(total)

    def steps(self, plan: Plan, model: Model) -> Steps:
        """The steps of a run that records clipping norm C and scale s."""
        return DPLoRASteps(self, plan, model)


class DPLoRASteps(AdaptiveSteps[DPLoRA]):
    """One run of DP-LoRA; the trace `noise_multiplier` is s, that of one group."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The settled mechanism's privatise step."""
        groups = self.mechanism.clipping_groups(signals.layout)
        self.trace(self.mechanism.l2_clip_norm, self.mechanism.group_noise_multiplier(len(groups)))
        return self.mechanism.privatise(signals, generator)
