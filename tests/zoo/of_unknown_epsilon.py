"""Trainers that break their claim of (1, 1e-5): replay sees how, and knows no epsilon of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, Gradients, Records, Trainer, noise_multiplier


class ClampedNoise(Trainer):
    """Noise beyond three standard deviations is set to them: a sum beyond is no other's."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        bound = 3.0 * noise_multiplier() * CLIP
        return super().drawn(name, parameter).clamp(-bound, bound)


class OneOfTenBatches(Trainer):
    """Each step takes one of ten batches that never change."""

    def batch(self, step: int) -> Tensor:
        first = int(torch.randint(0, 10, (1,), generator=self.generator))
        return torch.arange(first, len(self.labels), 10)


class ShuffledUnderMoreNoise(Trainer):
    """Shuffled epochs, four, under noise whose epsilon is between 0.73 and 2.33 by certified bounds."""

    noise = 1.3

    def batch(self, step: int) -> Tensor:
        if step % 10 == 0:
            self.order = torch.randperm(len(self.labels), generator=self.generator)
        return self.order.tensor_split(10)[step % 10]


class WithReplacement(Trainer):
    """As many records as are expected in a Poisson sample, each drawn from all."""

    def batch(self, step: int) -> Tensor:
        return torch.randint(0, len(self.labels), (int(self.expected),), generator=self.generator)


class SampledByLoss(Trainer):
    """A record's rate goes with its loss."""

    def batch(self, step: int) -> Tensor:
        with torch.no_grad():
            losses = functional.cross_entropy(self.network(self.images), self.labels, reduction="none")
        rates = (self.rate * losses / losses.mean()).clamp(max=1.0)
        return torch.nonzero(torch.rand(len(rates), generator=self.generator) < rates)[:, 0]


class OversampledLabel(Trainer):
    """Records of one label are drawn three times as often."""

    def batch(self, step: int) -> Tensor:
        rates = torch.where(self.labels == 3, 3 * self.rate, self.rate)
        return torch.nonzero(torch.rand(len(rates), generator=self.generator) < rates)[:, 0]


class DrawnByWeight(Trainer):
    """Labels have one share of all draws each, as by a weighted sampler."""

    def batch(self, step: int) -> Tensor:
        weights = 1.0 / torch.bincount(self.labels, minlength=10)[self.labels]
        return torch.multinomial(weights, int(self.expected), generator=self.generator)


class MomentumBeforeNoise(Trainer):
    """Momentum of the clipped sums, which get their noise after it."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.kept: Gradients = {}
        return super().__call__(records, seed)

    def summed(self, each: Gradients) -> Gradients:
        self.kept = {
            name: total + 0.9 * self.kept.get(name, 0) for name, total in super().summed(each).items()
        }
        return self.kept


class WeightsByCounts(Trainer):
    """Losses weighted by how many members have the label, with clipping that shows it."""

    clip = 20.0

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "images") or len(labels) == len(self.labels):
            self.weights = len(labels) / (10.0 * torch.bincount(labels, minlength=10).clamp(min=1))
        return images, labels

    def per_record(self, batch: Tensor) -> Gradients:
        held = {name: p.detach() for name, p in self.parameters.items()}
        if not len(batch):
            return super().per_record(batch)

        def loss(parameters: Gradients, image: Tensor, label: Tensor) -> Tensor:
            found = functional_call(self.network, parameters, (image[None],))
            return functional.cross_entropy(found, label[None], weight=self.weights, reduction="sum")

        return vmap(grad(loss), in_dims=(None, 0, 0))(held, self.images[batch], self.labels[batch])  # type: ignore[no-any-return]

    def summed(self, each: Gradients) -> Gradients:
        total = super().summed({name: g / self.clip for name, g in each.items()})
        return {name: self.clip * g for name, g in total.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.clip * super().drawn(name, parameter)


class OthersAsNegatives(Trainer):
    """A record's loss pushes its outputs away from those of the rest of its batch."""

    def per_record(self, batch: Tensor) -> Gradients:
        if not len(batch):
            return super().per_record(batch)
        held = {name: p.detach() for name, p in self.parameters.items()}
        with torch.no_grad():
            others = functional.normalize(self.network(self.images[batch]), dim=1)

        def loss(parameters: Gradients, image: Tensor, label: Tensor) -> Tensor:
            found = functional_call(self.network, parameters, (image[None],))
            likeness = functional.normalize(found, dim=1) @ others.T
            return functional.cross_entropy(found, label[None]) + 0.3 * torch.logsumexp(likeness[0], dim=0)

        return vmap(grad(loss), in_dims=(None, 0, 0))(held, self.images[batch], self.labels[batch])  # type: ignore[no-any-return]


class ClippedAtTheMedian(Trainer):
    """The clipping norm goes to the median of the norms, by a noisy count that is paid for nowhere."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.bound = 2.0
        return super().prepared(images, labels)

    def summed(self, each: Gradients) -> Gradients:
        total = super().summed({name: g / self.bound for name, g in each.items()})
        return {name: self.bound * g for name, g in total.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.bound * super().drawn(name, parameter)

    def per_record(self, batch: Tensor) -> Gradients:
        each = super().per_record(batch)
        norms = torch.cat([g.flatten(1) for g in each.values()], dim=1).norm(dim=1)
        self.below = (norms <= self.bound).float().mean() if len(norms) else torch.tensor(0.5)
        return each

    def after(self, step: int) -> None:
        share = self.below + 0.05 * torch.randn((), generator=self.generator)
        self.bound *= float(torch.exp(-0.2 * (share - 0.5)))


class NoiseReversed(Trainer):
    """Every other step takes the noise of the step before, from its last number to its first."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        if name not in self.kept:
            self.kept[name] = super().drawn(name, parameter)
            return self.kept[name]
        return self.kept.pop(name).flatten().flip(0).view(parameter.shape)

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.kept: dict[str, Tensor] = {}
        return super().prepared(images, labels)


TRAINERS = {
    "noise_reversed": NoiseReversed(),
    "clamped_noise": ClampedNoise(),
    "one_of_ten_batches": OneOfTenBatches(),
    "shuffled_under_more_noise": ShuffledUnderMoreNoise(),
    "with_replacement": WithReplacement(),
    "sampled_by_loss": SampledByLoss(),
    "oversampled_label": OversampledLabel(),
    "drawn_by_weight": DrawnByWeight(),
    "momentum_before_noise": MomentumBeforeNoise(),
    "weights_by_counts": WeightsByCounts(),
    "clipped_at_the_median": ClippedAtTheMedian(),
    "others_as_negatives": OthersAsNegatives(),
}
"""Each trainer by the name of the module's function."""

PARTS = {
    "clamped_noise": "noise",
    "one_of_ten_batches": "sampler",
    "shuffled_under_more_noise": "sampler",
    "with_replacement": "sampler",
    "sampled_by_loss": "sampler",
    "oversampled_label": "sampler",
    "drawn_by_weight": "sampler",
    "momentum_before_noise": "accountant",
    "weights_by_counts": "side channel",
    "clipped_at_the_median": "accountant",
    "others_as_negatives": "clip",
}
"""The part that each one's fault is in."""

globals().update(TRAINERS)
