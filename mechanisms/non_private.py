"""Ordinary training: the sum of the gradients, neither clipped nor noised. The control of every audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.core.errors import UnsupportedError
from workbench.core.registry import register
from workbench.games.consecutive import PermutingMechanism
from workbench.interfaces import Capabilities, Claim, Model, Plan, Signals
from workbench.mechanisms.shared.gaussian_sums import no_claim
from workbench.mechanisms.shared.shuffling import ShuffledPlainSums, released_weights
from workbench.training.loop import GradientMechanism, WeightedRelease
from workbench.training.steps import PlainSums, Steps


@register("mechanism", "non_private")
@dataclass(frozen=True, kw_only=True)
class NonPrivate(GradientMechanism, PermutingMechanism):
    """Ordinary training, without clipping or noise; promises nothing.

    `shuffle`: permute weights and optimizer state after each step as `shuffled_dp_sgd` does, by all
    permutations that leave the function as it is: the losses stay the same but for rounding.
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"shuffle": False}
    """See `workbench.training.content.settled`."""

    shuffle: bool = False

    @property
    def capabilities(self) -> Capabilities:
        """Ordinary training is not private: nothing protects the records."""
        return Capabilities(is_private=False)

    @property
    def is_shuffling(self) -> bool:
        """Whether the weights that are released are permuted."""
        return self.shuffle

    def reach(self) -> None:
        """No limit: all permutations that leave the model's function as it is."""

    released_weights = staticmethod(released_weights)
    """One step for an auditor, where `is_shuffling`."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The plain sum of the gradients; draws nothing from the generator."""
        return signals.weighted_sum(torch.ones_like(signals.norms()))

    def weighted_release(self) -> WeightedRelease | None:
        """Factors of one, and no noise; None where the weights are permuted."""
        return None if self.shuffle else WeightedRelease(factors=None, noise_scale=0.0)

    def steps(self, plan: Plan, model: Model) -> Steps:
        """Plain backward passes; with a gradient canary in the plan, the per-record signals that it joins.

        Raises `UnsupportedError`: the plan has a gradient canary, and the weights are to be permuted.
        """
        if plan.insertions.gradient_canary is None:
            made = ShuffledPlainSums if self.shuffle else PlainSums
            return made(plan, model, self.micro_batch_size)
        if self.shuffle:
            raise UnsupportedError("non_private with shuffle = true takes no gradient canary")
        return super().steps(plan, model)

    def claim(self, plan: Plan) -> Claim:
        """No privacy claim: ordinary training guarantees nothing."""
        return no_claim("nobody's: ordinary training makes no claim")
