"""Ordinary training: the sum of the gradients, neither clipped nor noised. The control of every audit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.accounting import NoGuarantee
from workbench.interfaces import Adjacency, Claim, Model, Plan, Released, Signals
from workbench.registry import register
from workbench.training.loop import GradientMechanism
from workbench.training.steps import PlainSums, Steps


@register("mechanism", "non_private")
@dataclass(frozen=True, kw_only=True)
class NonPrivate(GradientMechanism):
    """Ordinary training, without clipping or noise; promises nothing."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The plain sum of the gradients; draws nothing from the generator."""
        return signals.weighted_sum(torch.ones_like(signals.norms()))

    def steps(self, plan: Plan, model: Model) -> Steps:
        """Plain backward passes; with a gradient canary in the plan, the per-record signals that it joins."""
        if plan.insertions.gradient_canary is None:
            return PlainSums(plan, model, self.micro_batch_size)
        return super().steps(plan, model)

    def claim(self, plan: Plan) -> Claim:
        """No guarantee."""
        return Claim(
            guarantee=NoGuarantee(),
            about=Adjacency.ADD_REMOVE,
            released=Released.EVERY_UPDATE,
            source="nobody's: ordinary training makes no claim",
        )
