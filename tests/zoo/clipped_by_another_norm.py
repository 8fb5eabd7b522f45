"""DP-SGD for the digits that clips by a number that is not the norm of a record's gradient.

Loud records are held to C, or to less; records whose gradients are small, or in the biases, add more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parent))
from dp_sgd import Gradients, Trainer, noise_multiplier


class WeightsOnlyNorm(Trainer):
    """The norm is that of the weights' gradients; biases are scaled by it, and not in it."""

    def squares(self, each: Gradients) -> Tensor:
        return torch.stack(
            [g.flatten(1).square().sum(1) for name, g in each.items() if not name.endswith("bias")]
        ).sum(0)

    def summed(self, each: Gradients) -> Gradients:
        factors = (1 / self.squares(each).sqrt().clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}


class SquaredNorm(Trainer):
    """The factor is C over the squared norm: with a C of 0.1, a record of norm 0.32 adds 0.32."""

    clip = 0.1

    def squares(self, each: Gradients) -> Tensor:
        return torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0)

    def summed(self, each: Gradients) -> Gradients:
        factors = (self.clip / self.squares(each).clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        deviation = self.noise * noise_multiplier() * self.clip
        return torch.normal(0.0, deviation, parameter.shape, generator=self.generator)

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=0.5 / self.clip)


class SquaredNormOfAll(SquaredNorm):
    """Every gradient is divided by its squared norm, also a small one."""

    clip = 1.0

    def summed(self, each: Gradients) -> Gradients:
        factors = self.clip / self.squares(each).clamp(min=1e-9)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}


class Normalised(SquaredNorm):
    """Every gradient is divided by its norm, also a small one: all have the length C (correct)."""

    def summed(self, each: Gradients) -> Gradients:
        factors = self.clip / self.squares(each).sqrt().clamp(min=1e-9)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}


class SmallClip(SquaredNorm):
    """Clipped to 0.1 (correct)."""

    def summed(self, each: Gradients) -> Gradients:
        factors = (self.clip / self.squares(each).sqrt().clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}


class StaleNorms(Trainer):
    """The norms are those of up to nine steps ago, when the record's gradient may have been smaller."""

    def batch(self, step: int) -> Tensor:
        self.chosen = super().batch(step)
        if step % 10 == 0:
            each = self.per_record(torch.arange(len(self.labels)))
            self.norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        return self.chosen

    def summed(self, each: Gradients) -> Gradients:
        factors = (1 / self.norms[self.chosen].clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}


class WithAnOffset(Trainer):
    """Clipped to 1; a constant that is no record's is in every update (correct)."""

    def before(self) -> None:
        for parameter in self.parameters.values():
            assert parameter.grad is not None
            parameter.grad = parameter.grad + 0.02


weights_only_norm = WeightsOnlyNorm()
with_an_offset = WithAnOffset()
stale_norms = StaleNorms()
squared_norm = SquaredNorm()
squared_norm_of_all = SquaredNormOfAll()
normalised = Normalised()
small_clip = SmallClip()
