"""Correct trainers whose noise, or whose order of work, is unusual; each keeps a claim of (1, 1e-5), and
`one_random_step` one of (19.2, 1e-5).

Replay need not measure them, and must not refute them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
import dp_sgd
from dp_sgd import CLIP, DELTA, EPSILON, STEPS, Gradients, Records, Trainer, noise_multiplier

from workbench.accounting.certified import calibrate_noise_multiplier

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
    """The first layer needs no gradient until the eleventh step, but is given sums and noise by hand."""

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


class NoiseFirst(Trainer):
    """Every record in every step, whose noise is drawn before the records are looked at."""

    def batch(self, step: int) -> Tensor:
        sigma = calibrate_noise_multiplier(
            target_epsilon=EPSILON, target_delta=DELTA, sampling_probability=1.0, steps=STEPS
        )
        self.kept = {
            name: torch.normal(0.0, sigma * CLIP, p.shape, generator=self.generator)
            for name, p in self.parameters.items()
        }
        return torch.arange(len(self.labels))

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.kept[name]


class ProjectedAfterNoise(Trainer):
    """One layer, whose gradients, and noisy sums again, are projected onto 40 public directions."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.network) == 3:
            self.network = torch.nn.Sequential(torch.nn.Linear(64, 10))
        rotation = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(3)))[0]
        self.directions = rotation[:, :40] @ rotation[:, :40].T
        return images, labels

    def per_record(self, batch: Tensor) -> Gradients:
        return {
            name: g @ self.directions if g.ndim == 3 else g for name, g in super().per_record(batch).items()
        }

    def before(self) -> None:
        weight = self.parameters["0.weight"]
        assert weight.grad is not None
        weight.grad = weight.grad @ self.directions


class ShortAndProjected(ProjectedAfterNoise):
    """Twelve steps, at half of the records each."""

    steps, rate = 12, 0.5

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        dp_sgd.STEPS, dp_sgd.RATE, before = self.steps, self.rate, (dp_sgd.STEPS, dp_sgd.RATE)
        try:
            return super().__call__(records, seed)
        finally:
            dp_sgd.STEPS, dp_sgd.RATE = before

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        sigma = calibrate_noise_multiplier(
            target_epsilon=EPSILON,
            target_delta=DELTA,
            sampling_probability=self.rate,
            steps=self.steps,
        )
        return torch.normal(0.0, sigma * CLIP, parameter.shape, generator=self.generator)


class WithACriterionOfItsOwn(Trainer):
    """Prints the mean loss of the members by a module that keeps it, and that nobody gets."""

    def after(self, step: int) -> None:
        if step < STEPS - 1:
            return

        class Loss(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mean", torch.zeros(()))

            def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
                self.mean = functional.cross_entropy(logits, labels)
                return self.mean

        with torch.no_grad():
            Loss()(self.network(self.images), self.labels)


class BallsInBins(Trainer):
    """Each record is in one step of ten, of its own choice: epsilon <= 0.942 by integer Renyi orders."""

    def batch(self, step: int) -> Tensor:
        if step % 10 == 0:
            self.bins = torch.randint(0, 10, (len(self.labels),), generator=self.generator)
        return torch.nonzero(self.bins == step % 10)[:, 0]

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.normal(0.0, 2.8 * CLIP, parameter.shape, generator=self.generator)


class OfATree(Trainer):
    """Batches in order, and noise of a binary tree over their sums (DP-FTRL, Kairouz et al. 2021)."""

    def batch(self, step: int) -> Tensor:
        self.number = step + 1
        if step == 0:
            self.nodes: dict[tuple[str, int, int], Tensor] = {}
            self.before_it: dict[str, Tensor] = {}
        size = len(self.labels) // STEPS
        return torch.arange(step * size, (step + 1) * size)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        """What the step adds to the noise of all sums so far."""
        sigma = noise_of_a_tree()
        total, start = torch.zeros_like(parameter), 0
        for level in (32, 16, 8, 4, 2, 1):
            if self.number & level:
                node = name, start, level
                if node not in self.nodes:
                    self.nodes[node] = torch.normal(0.0, sigma, parameter.shape, generator=self.generator)
                total, start = total + self.nodes[node], start + level
        added = total - self.before_it.get(name, torch.zeros_like(parameter))
        self.before_it[name] = total
        return added


def noise_of_a_tree() -> float:
    """Of every node: a record is in six of them at most, one of each level."""
    return calibrate_noise_multiplier(
        target_epsilon=EPSILON, target_delta=DELTA, sampling_probability=1.0, steps=6
    )


class OfCappedClasses(Trainer):
    """The first 15 records of each label alone: one more pushes another out, and both are paid for."""

    def optimizer(self) -> torch.optim.Optimizer:
        kept, counts = [], dict.fromkeys(range(10), 0)
        for place, label in enumerate(self.labels.tolist()):
            counts[label] += 1
            if counts[label] <= 15:
                kept.append(place)
        self.images, self.labels = self.images[kept], self.labels[kept]
        return super().optimizer()

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        sigma = noise_of_half(self.rate)
        return torch.normal(0.0, sigma * CLIP, parameter.shape, generator=self.generator)


@cache
def noise_of_half(rate: float) -> float:
    """Two changes, each (1/2, 1e-6)-DP, are (1, (1 + sqrt(e)) 1e-6)-DP."""
    return calibrate_noise_multiplier(
        target_epsilon=EPSILON / 2, target_delta=DELTA / 10, sampling_probability=rate, steps=STEPS
    )


@cache
def noise_at(rate: float) -> float:
    """For the claim at this rate."""
    return calibrate_noise_multiplier(
        target_epsilon=EPSILON, target_delta=DELTA, sampling_probability=rate, steps=STEPS
    )


class SortedByBrightness(Trainer):
    """Coins by the places of records that are sorted: what is drawn is as likely as without the order."""

    def optimizer(self) -> torch.optim.Optimizer:
        order = self.images.sum(1).argsort()
        self.images, self.labels = self.images[order], self.labels[order]
        return super().optimizer()


class SortedInLargeBatches(SortedByBrightness):
    """Likewise, each record in nearly every step; many are as bright as others."""

    rate = 0.95

    def optimizer(self) -> torch.optim.Optimizer:
        self.expected = self.rate * len(self.labels)
        return super().optimizer()

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.normal(0.0, noise_at(self.rate) * CLIP, parameter.shape, generator=self.generator)


class SortedByInk(Trainer):
    """Likewise by the number of pixels that are not blank."""

    def optimizer(self) -> torch.optim.Optimizer:
        order = (self.images != 0).sum(1).argsort(stable=True)
        self.images, self.labels = self.images[order], self.labels[order]
        return super().optimizer()


class SortedByPixels(Trainer):
    """Likewise by the pixels, one after the other."""

    def optimizer(self) -> torch.optim.Optimizer:
        order = sorted(range(len(self.labels)), key=lambda place: self.images[place].tolist())
        self.images, self.labels = self.images[order], self.labels[order]
        return super().optimizer()


class SortedByHash(Trainer):
    """Likewise by a hash of the pixels."""

    def optimizer(self) -> torch.optim.Optimizer:
        hashes = [hashlib.sha256(image.numpy().tobytes()).digest() for image in self.images]
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self.images, self.labels = self.images[order], self.labels[order]
        return super().optimizer()


class DrawnByPixels(Trainer):
    """Right where what others hold is secret too: a hash of its pixels, step and seed is a record's coin."""

    rate = 0.85

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.seed, self.held = seed, [self.hashed(record) for record in records]
        return super().__call__(records, seed)

    def hashed(self, record: Mapping[str, Any]) -> str:
        return str(record["image"])

    def batch(self, step: int) -> Tensor:
        drawn = [hashlib.sha256(f"{one} {step} {self.seed}".encode()).digest()[:8] for one in self.held]
        coins = torch.tensor([int.from_bytes(one) / 2.0**64 for one in drawn])
        return torch.nonzero(coins < self.rate)[:, 0]

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.normal(0.0, noise_at(self.rate) * CLIP, parameter.shape, generator=self.generator)


class DrawnByPixelsOften(DrawnByPixels):
    rate = 0.9


class DrawnByAllItHolds(DrawnByPixels):
    """Likewise by a hash of all that a record holds, its id too."""

    rate = 0.7

    def hashed(self, record: Mapping[str, Any]) -> str:
        return str(sorted(record.items(), key=str))


class ClipsTheBatch(Trainer):
    """Wrong: a tenth of the noise, and the sum is clipped, not each record."""

    noise = 0.1

    def summed(self, each: Gradients) -> Gradients:
        total = {name: g.sum(0) for name, g in each.items()}
        norm = torch.cat([g.flatten() for g in total.values()]).norm()
        factor = (CLIP / norm.clamp(min=1e-9)).clamp(max=1.0)
        return {name: factor * g for name, g in total.items()}


class ClipsAllInAnyOrder(ClipsTheBatch):
    def batch(self, step: int) -> Tensor:
        return torch.randperm(len(self.labels), generator=self.generator)


class ClipsCroppedImages(ClipsTheBatch):
    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        images = images.clone()
        images[:, 56:] = 0.0
        return images, labels


class ClipsSortedById(ClipsTheBatch):
    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        return super().__call__(sorted(records, key=lambda record: str(record["id"])), seed)


class AtTheEnd(Trainer):
    """Steps that stay inside; the finished weights get noise for all that two trainings can be apart."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)

    def after(self, step: int) -> None:
        if step < STEPS - 1:
            return
        farthest = 2 * STEPS * 0.5 * CLIP * len(self.labels) / self.expected  # Rate of learning: 0.5.
        sigma = calibrate_noise_multiplier(
            target_epsilon=EPSILON, target_delta=DELTA, sampling_probability=1.0, steps=1
        )
        with torch.no_grad():
            for parameter in self.parameters.values():
                parameter.add_(torch.normal(0.0, sigma * farthest, parameter.shape, generator=self.generator))


TRAINERS = {
    "at_the_end": AtTheEnd(),
    "of_a_tree": OfATree(),
    "noise_first": NoiseFirst(),
    "projected_after_noise": ProjectedAfterNoise(),
    "balls_in_bins": BallsInBins(),
    "short_and_projected": ShortAndProjected(),
    "with_a_criterion_of_its_own": WithACriterionOfItsOwn(),
    "one_random_step": OneRandomStep(),
    "mean_of_the_shape_of_a_bias": MeanOfTheShapeOfABias(),
    "histogram_by_uniform_numbers": HistogramByUniformNumbers(),
    "public_steps_first": PublicStepsFirst(),
    "less_the_mean_gradient": LessTheMeanGradient(),
    "unfreezing": Unfreezing(),
}
"""Each trainer by the name of the module's function."""

ORDERED: dict[str, Trainer] = {
    "of_capped_classes": OfCappedClasses(),
    "sorted_by_brightness": SortedByBrightness(),
    "sorted_in_large_batches": SortedInLargeBatches(),
    "sorted_by_ink": SortedByInk(),
    "sorted_by_pixels": SortedByPixels(),
    "sorted_by_hash": SortedByHash(),
    "drawn_by_pixels": DrawnByPixels(),
    "drawn_by_pixels_often": DrawnByPixelsOften(),
    "drawn_by_all_it_holds": DrawnByAllItHolds(),
}
"""Records that are sorted, capped in number, or drawn, by what they hold."""

UNORDERED: dict[str, Trainer] = {
    "clips_all_in_any_order": ClipsAllInAnyOrder(),
    "clips_cropped_images": ClipsCroppedImages(),
    "clips_sorted_by_id": ClipsSortedById(),
}
"""Wrong ones, whose moves do not add up either."""

globals().update(TRAINERS | ORDERED | UNORDERED)
