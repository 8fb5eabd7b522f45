"""Correct trainers, at (1, 1e-5), that read noisy gradients in front of the step, and decide by them.

What follows a noisy sum is paid for with it. Replay cannot give such code the run's own gradients in time; it
lets the code read the same numbers on other records, and compares what comes of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import Gradients, Records, Trainer, tensors

STEPS, SIGMA = 10, 13.0
"""All records in every step: mu is the root of 10 over 13, and epsilon 0.9."""

UPHILL, SLANTED = 0.2, 0.3


class OnSignal:
    """Ten steps of logistic regression; does something once a noisy sum is longer than noise is."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.layer, self.temperature, longest = torch.nn.Linear(64, 1), 1.0, 0.0
        images, labels = tensors(records)
        self.stepping = torch.optim.SGD(self.layer.parameters(), lr=0.2)
        for step in range(STEPS):
            longest = max(longest, self.noisy_sum(images, (labels < 5).float()[:, None]))
            self.stepping.step()
            if self.ends(step, longest > 1.5 * SIGMA * 65**0.5):
                break

        def score(records: Records) -> Tensor:
            images, labels = tensors(records)
            with torch.no_grad():
                answers = self.layer(images) / self.temperature
            targets = (labels < 5).float()[:, None]
            return -functional.binary_cross_entropy_with_logits(answers, targets, reduction="none")[:, 0]

        return score

    def noisy_sum(self, images: Tensor, targets: Tensor) -> float:
        """Set the gradients; returns the length of the noisy sum."""
        with torch.no_grad():
            errors = torch.sigmoid(self.layer(images)) - targets
            each = torch.cat([errors * images, errors], dim=1)
            total = (each / each.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(dim=0)
        parts, noisy = (total[None, :64], total[64:]), []
        for parameter, part in zip(self.layer.parameters(), parts, strict=True):
            noisy.append(part + torch.normal(0.0, SIGMA, part.shape, generator=self.generator))
            parameter.grad = noisy[-1] / len(images)
        self.now = torch.cat([part.flatten() for part in noisy])
        return float(self.now.norm())

    def ends(self, step: int, has_signal: bool) -> bool:
        """Whether the training ends with this step."""
        return step == 4 and not has_signal


class SlowsDown(OnSignal):
    def ends(self, step: int, has_signal: bool) -> bool:
        self.stepping.param_groups[0]["lr"] = 0.1 if has_signal else 0.2
        return False


class Flattens(OnSignal):
    def ends(self, step: int, has_signal: bool) -> bool:
        self.temperature = 2.0 if has_signal else 1.0
        return False


class FollowsTheMean(OnSignal):
    """The mean of noise is small beside its length, however large it is; without noise it may not be."""

    def ends(self, step: int, has_signal: bool) -> bool:
        if float(self.now.sum()) < -SLANTED * 65**0.5 * float(self.now.norm()):
            self.temperature = 2.0
        return False


class AscendsBefore(Trainer):
    """Gradients are taken a step uphill, along the last noisy one (DP-SAT)."""

    last: Gradients | None = None

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.last = None
        return super().__call__(records, seed)

    def per_record(self, batch: Tensor) -> Gradients:
        if self.last is None:
            return super().per_record(batch)
        length = torch.cat([gradient.flatten() for gradient in self.last.values()]).norm()
        own = self.parameters
        self.parameters = {name: p.detach() + UPHILL * self.last[name] / length for name, p in own.items()}
        each = super().per_record(batch)
        self.parameters = own
        return each

    def before(self) -> None:
        self.last = {name: p.grad.clone() for name, p in self.parameters.items() if p.grad is not None}


gives_up, slows_down, flattens, ascends_before = OnSignal(), SlowsDown(), Flattens(), AscendsBefore()
follows_the_mean = FollowsTheMean()

SAYS = {
    "gives_up": "gradients that the code reads before the step",
    "slows_down": "",
    "flattens": "",
    "follows_the_mean": "",
    "ascends_before": "gradients that the code read before a step",
}
"""What replay says of each; empty where it sees that the gradients that were read make all that differs."""
