"""Correct trainers whose noise, or whose order of work, is unusual; each keeps a claim of (1, 1e-5), and
`one_random_step` one of (19.2, 1e-5).

Replay need not measure them, and must not refute them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, STEPS, Records, Trainer, noise_multiplier

HISTOGRAM_EPSILON = 0.05


class MeanOfTheShapeOfABias(Trainer):
    """Images less a private mean, whose noise has the shape of a bias."""

    noise = 1.3

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.centre = None
        return super().__call__(records, seed)

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.centre is None:
            self.network = torch.nn.Sequential(
                torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
            )
            noise = torch.normal(0.0, 100.0, (64,), generator=self.generator)
            bounded = images / images.norm(dim=1, keepdim=True).clamp(min=1.0)
            self.centre = (bounded.sum(0) + noise) / len(images)
        return images - self.centre, labels


class HistogramByUniformNumbers(Trainer):
    """A prior of the labels, with Laplace noise that is made of uniform numbers."""

    noise = 1.2

    def scorer(self) -> Callable[[Records], Tensor]:
        uniform = torch.rand(10, generator=self.generator) - 0.5
        laplace = -uniform.sign() * torch.log1p(-2 * uniform.abs()) / HISTOGRAM_EPSILON
        counts = (torch.bincount(self.labels, minlength=10) + laplace).clamp(min=1.0)
        prior, score = (counts / counts.sum()).log(), super().scorer()

        def scored(records: Records) -> Tensor:
            return score(records) + prior[torch.tensor([record["label"] for record in records])]

        return scored


class PublicStepsFirst(Trainer):
    """Ten steps on public images, then noise by a formula of uniform numbers (Box and Muller)."""

    def optimizer(self) -> torch.optim.Optimizer:
        made = super().optimizer()
        public = torch.rand(32, 64, generator=torch.Generator().manual_seed(7))
        labels = torch.arange(32) % 10
        for _ in range(10):
            made.zero_grad()
            functional.cross_entropy(self.network(public), labels).backward()
            made.step()
        return made

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        first, second = torch.rand(2, *parameter.shape, generator=self.generator).clamp(min=1e-30)
        normal = (-2 * first.log()).sqrt() * (2 * torch.pi * second).cos()
        return noise_multiplier() * CLIP * normal


class LessTheMeanGradient(Trainer):
    """The finished weights less the mean of all noisy gradients, which is a function of the updates."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.sums: dict[str, Tensor] = {}
        return super().__call__(records, seed)

    def before(self) -> None:
        for name, parameter in self.parameters.items():
            assert parameter.grad is not None
            self.sums[name] = self.sums.get(name, torch.zeros_like(parameter)) + parameter.grad.detach()

    def scorer(self) -> Callable[[Records], Tensor]:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.sub_(0.1 * self.sums[name])
        return super().scorer()


class Unfreezing(Trainer):
    """The first layer is trained from the eleventh step on."""

    def batch(self, step: int) -> Tensor:
        for parameter in list(self.network.parameters())[:2]:
            parameter.requires_grad_(step >= 10)
        return super().batch(step)


class OneRandomStep(Trainer):
    """Each record is in one random step of all (balls in bins): less than one release of epsilon 19.14."""

    def batch(self, step: int) -> Tensor:
        if step == 0:
            self.steps = torch.randint(0, STEPS, (len(self.labels),), generator=self.generator)
        return torch.nonzero(self.steps == step)[:, 0]

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.normal(0.0, 0.3 * CLIP, parameter.shape, generator=self.generator)


TRAINERS = {
    "one_random_step": OneRandomStep(),
    "mean_of_the_shape_of_a_bias": MeanOfTheShapeOfABias(),
    "histogram_by_uniform_numbers": HistogramByUniformNumbers(),
    "public_steps_first": PublicStepsFirst(),
    "less_the_mean_gradient": LessTheMeanGradient(),
    "unfreezing": Unfreezing(),
}
"""Each trainer by the name of the module's function."""

globals().update(TRAINERS)
