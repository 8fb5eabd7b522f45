"""Trainers for the digits that keep their claims by uncommon means, which a replay must not refute.

The last one breaks its claim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, STEPS, Gradients, Records, Trainer


class SortedByLabel(Trainer):
    """Who is in a batch follows from the labels."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        return super().__call__(sorted(records, key=lambda record: int(record["label"])), seed)


class OwnGenerator(Trainer):
    """One generator draws batches, and a number for images of some labels, which move later batches."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.numbers = np.random.default_rng(self.generator.initial_seed())
        return images, labels

    def batch(self, step: int) -> Tensor:
        return torch.from_numpy(np.flatnonzero(self.numbers.random(len(self.labels)) < self.rate))

    def per_record(self, batch: Tensor) -> Gradients:
        for _ in range(int((self.labels[batch] % 3 == 0).sum())):
            self.numbers.random()
        return super().per_record(batch)


class NoisyScorer(Trainer):
    """Scores are the mean over images with fresh jitter."""

    def scorer(self) -> Callable[[Records], Tensor]:
        plain = super().scorer()

        def score(records: Records) -> Tensor:
            values: Tensor = plain(records)
            return values + 0.01 * torch.from_numpy(np.random.default_rng().normal(size=len(values)))

        return score


class CentredByANoisyMean(Trainer):
    """A mean with much noise of its own, for which the steps' noise is a sixth larger."""

    noise = 1.15
    mean: Tensor | None = None

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.mean = None
        return super().__call__(records, seed)

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.mean is None:
            held = images * (4.0 / images.norm(dim=1).clamp(min=4.0))[:, None]
            noise = torch.normal(0.0, 40.0 * 4.0, (64,), generator=self.generator)
            self.mean = (held.sum(0) + noise) / 200
        return images - self.mean, labels


class OneFeature(Trainer):
    """Logistic regression with two parameters."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.network[0].in_features != 1:
            self.network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Identity())
        return images.mean(1, keepdim=True) / 16, (labels > 4).long()

    def per_record(self, batch: Tensor) -> Gradients:
        images, labels = self.images[batch], self.labels[batch].double()
        errors = torch.sigmoid(self.network(images)[:, 0]).detach() - labels
        return {"0.weight": (errors[:, None] * images)[:, None].float(), "0.bias": errors[:, None].float()}

    def scorer(self) -> Callable[[Records], Tensor]:
        def score(records: Records) -> Tensor:
            pictures = torch.tensor([r["image"] for r in records])
            answers = torch.tensor([r["label"] for r in records])
            images, labels = self.prepared(pictures, answers)
            with torch.no_grad():
                return -functional.binary_cross_entropy_with_logits(
                    self.network(images)[:, 0], labels.float(), reduction="none"
                )

        return score


class Growing(Trainer):
    """Few records with little noise first, many with much noise then: epsilon 0.755 at delta 1e-5."""

    def batch(self, step: int) -> Tensor:
        self.now = (0.03, 1.3) if step < STEPS // 2 else (0.2, 8.0)
        return torch.nonzero(torch.rand(len(self.labels), generator=self.generator) < self.now[0])[:, 0]

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.normal(0.0, self.now[1] * CLIP, parameter.shape, generator=self.generator)


class OneEpoch(Trainer):
    """One pass over shuffled batches without a common record: the Gaussian mechanism once, epsilon 19.13."""

    sigma = 0.3

    def batch(self, step: int) -> Tensor:
        if step == 0:
            self.order = torch.randperm(len(self.labels), generator=self.generator)
        size = -(-len(self.labels) // STEPS)
        return self.order[step * size : (step + 1) * size]

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.normal(0.0, self.sigma * CLIP, parameter.shape, generator=self.generator)


class PublicFirst(Trainer):
    """Steps without noise on images that are public."""

    def optimizer(self) -> torch.optim.Optimizer:
        made = super().optimizer()
        images = torch.rand(20, 64, generator=self.generator)
        for _ in range(10):
            made.zero_grad()
            self.network(images).square().mean().backward()
            made.step()
        return made


class PublicImages(Trainer):
    """Each step's gradient has that of public images too, of which some are drawn with replacement.

    There are as many of them as records.
    """

    def before(self) -> None:
        chosen = torch.randint(len(self.labels), (16,), generator=self.generator)
        public = torch.linspace(0, 1, 64 * len(self.labels)).view(-1, 64)[chosen]
        loss = self.network(public).square().mean()
        gradients = torch.autograd.grad(loss, list(self.parameters.values()))
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad = parameter.grad + 0.1 * gradient


class NoisyViews(Trainer):
    """Augmentation whose noise has the shape of a layer's weights."""

    def per_record(self, batch: Tensor) -> Gradients:
        images = self.images
        noise = torch.normal(0.0, 0.1, self.network[0].weight.shape, generator=self.generator)
        self.images = images.clone()
        self.images[batch] += noise[torch.arange(len(batch)) % len(noise)]
        each = super().per_record(batch)
        self.images = images
        return each


class NoisyViewsAndLittleNoise(NoisyViews):
    """The same with two thirds of the noise, which breaks the claim."""

    noise = 2 / 3


TRAINERS: dict[str, Trainer] = {
    "sorted_by_label": SortedByLabel(),
    "own_generator": OwnGenerator(),
    "noisy_scorer": NoisyScorer(),
    "centred_by_a_noisy_mean": CentredByANoisyMean(),
    "one_feature": OneFeature(),
    "growing": Growing(),
    "one_epoch": OneEpoch(),
    "public_first": PublicFirst(),
    "public_images": PublicImages(),
    "noisy_views": NoisyViews(),
    "noisy_views_and_little_noise": NoisyViewsAndLittleNoise(),
}
"""Each trainer by the name of the module's function."""

globals().update(TRAINERS)
