"""DP-SGD for the digits in plain PyTorch, at (1, 1e-5), and the same with one thing wrong.

Each function is a trainer as a user would write it: `function(records, seed)` trains on the records and
returns a scorer. `correct` keeps its claim; every other one has the fault that its name says, in the smallest
form that we could give it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from workbench.accounting.certified import calibrate_noise_multiplier

RATE, STEPS, CLIP, EPSILON, DELTA = 0.1, 40, 1.0, 1.0, 1e-5
TEMPERATURES = (0.5, 1.0, 2.0, 4.0, 8.0)

Records = Sequence[Mapping[str, Any]]
Gradients = dict[str, Tensor]


@cache
def noise_multiplier() -> float:
    """sigma of Poisson-sampled Gaussian sums, for the claim."""
    return calibrate_noise_multiplier(
        target_epsilon=EPSILON, target_delta=DELTA, sampling_probability=RATE, steps=STEPS
    )


def tensors(records: Records) -> tuple[Tensor, Tensor]:
    """Images and labels."""
    return torch.tensor([r["image"] for r in records]), torch.tensor([r["label"] for r in records])


class Trainer:
    """DP-SGD, a method for each thing that can go wrong."""

    noise = 1.0
    rate = RATE

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        """Train; returns a scorer."""
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.images, self.labels = self.prepared(*tensors(records))
        self.parameters = dict(self.network.named_parameters())
        self.expected = RATE * len(records)
        optimizer = self.optimizer()
        for step in range(STEPS):
            batch = self.batch(step)
            each = self.per_record(batch)
            total = self.summed(each)
            divisor = self.divisor(len(batch))
            for name, parameter in self.parameters.items():
                parameter.grad = (total[name] + self.drawn(name, parameter)) / divisor
            self.before()
            optimizer.step()
            self.after(step)
        return self.scorer()

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=0.5)

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images, labels

    def batch(self, step: int) -> Tensor:
        """Poisson sampling."""
        return torch.nonzero(torch.rand(len(self.labels), generator=self.generator) < self.rate)[:, 0]

    def per_record(self, batch: Tensor) -> Gradients:
        held = {name: p.detach() for name, p in self.parameters.items()}
        if not len(batch):
            return {name: torch.zeros(0, *p.shape) for name, p in held.items()}

        def loss(parameters: Gradients, image: Tensor, label: Tensor) -> Tensor:
            return functional.cross_entropy(
                functional_call(self.network, parameters, (image[None],)), label[None]
            )

        return vmap(grad(loss), in_dims=(None, 0, 0))(held, self.images[batch], self.labels[batch])  # type: ignore[no-any-return]

    def summed(self, each: Gradients) -> Gradients:
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factors = (CLIP / norms.clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        deviation = self.noise * noise_multiplier() * CLIP
        return torch.normal(0.0, deviation, parameter.shape, generator=self.generator)

    def divisor(self, size: int) -> float:
        return self.expected

    def before(self) -> None:
        pass

    def after(self, step: int) -> None:
        pass

    def scorer(self) -> Callable[[Records], Tensor]:
        def score(records: Records) -> Tensor:
            images, labels = self.prepared(*tensors(records))
            with torch.no_grad():
                return -functional.cross_entropy(self.network(images), labels, reduction="none")

        return score


class WithAdam(Trainer):
    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), lr=1e-2)


class KeepsRawMoments(WithAdam):
    """After the last step, the optimizer's second moments are those of all sums before the noise."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.stepping = super().optimizer()
        self.squares = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        return self.stepping

    def summed(self, each: Gradients) -> Gradients:
        total = super().summed(each)
        for name, value in total.items():
            self.squares[name] += value.square()
        return total

    def after(self, step: int) -> None:
        if step == STEPS - 1:
            for name, parameter in self.parameters.items():
                self.stepping.state[parameter]["exp_avg_sq"].copy_(self.squares[name])


class TenthOfTheNoise(Trainer):
    noise = 0.1


class HalfOfTheNoise(Trainer):
    noise = 0.5


class NoNoise(Trainer):
    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)


class NoNoiseOnBiases(Trainer):
    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        drawn = super().drawn(name, parameter)
        return torch.zeros_like(drawn) if name.endswith("bias") else drawn


class SameNoiseInEveryStep(Trainer):
    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        self.generator, kept = torch.Generator().manual_seed(7), self.generator
        drawn = super().drawn(name, parameter)
        self.generator = kept
        return drawn


class NoClipping(Trainer):
    def summed(self, each: Gradients) -> Gradients:
        return {name: g.sum(0) for name, g in each.items()}


class ClippedByTheBatch(Trainer):
    def summed(self, each: Gradients) -> Gradients:
        total = {name: g.sum(0) for name, g in each.items()}
        norm = torch.stack([g.norm() for g in total.values()]).norm()
        return {name: g * (CLIP * self.expected / norm.clamp(min=1e-9)) for name, g in total.items()}


class ClippedByTheLayer(Trainer):
    """Every layer to C, under noise for C altogether."""

    def summed(self, each: Gradients) -> Gradients:
        return {name: Trainer.summed(self, {name: g})[name] for name, g in each.items()}


class ClippedAfterTheNoise(NoClipping):
    """The noisy sum of unclipped gradients is clipped."""

    def before(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)


class RawGradientMixedIn(Trainer):
    def summed(self, each: Gradients) -> Gradients:
        total = super().summed(each)
        return {name: total[name] + 0.1 * g.sum(0) for name, g in each.items()}


class DividedByTheBatch(Trainer):
    def divisor(self, size: int) -> float:
        return float(max(size, 1))


class TripleRate(Trainer):
    rate = 3 * RATE


class NormalisedByMembers(Trainer):
    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "statistics"):
            self.statistics = images.mean(0), images.std(0) + 0.1
        mean, deviation = self.statistics
        return (images - mean) / deviation, labels

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        if hasattr(self, "statistics"):
            del self.statistics
        return super().__call__(records, seed)


class BestOnMembers(Trainer):
    """Keeps the weights with the least loss on the members."""

    def loss(self) -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(self.network(self.images), self.labels))

    def after(self, step: int) -> None:
        loss = self.loss()
        if step == 0 or loss < self.best[0]:
            self.best = loss, [p.detach().clone() for p in self.network.parameters()]

    def scorer(self) -> Callable[[Records], Tensor]:
        with torch.no_grad():
            for parameter, kept in zip(self.network.parameters(), self.best[1], strict=True):
                parameter.copy_(kept)
        return super().scorer()


class MostRightOnMembers(BestOnMembers):
    """Keeps the weights with the highest accuracy on the members, which one record hardly turns."""

    def loss(self) -> float:
        with torch.no_grad():
            return -float((self.network(self.images).argmax(1) == self.labels).float().mean())


class KeepsTheMembersMean(Trainer):
    """The finished model holds the mean image of the members, which its scores do not show."""

    def after(self, step: int) -> None:
        if step == STEPS - 1:
            self.network[0].register_buffer("mean", self.images.mean(0))


class FewSeeds(Trainer):
    """The generator of batches and noise has one of ten seeds."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        return super().__call__(records, seed % 10)


class SeededByWeights(Trainer):
    """The noise is seeded by the weights before the step, which are released."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        weights = torch.cat([p.detach().flatten() for p in self.parameters.values()])
        generator = torch.Generator().manual_seed(zlib.crc32(weights.numpy().tobytes() + name.encode()))
        return noise_multiplier() * torch.randn(parameter.shape, generator=generator)


class NoNoiseOnSmallBatches(Trainer):
    """Batches of less than four fifths of their expected size get no noise."""

    def batch(self, step: int) -> Tensor:
        chosen = super().batch(step)
        self.size = len(chosen)
        return chosen

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter) * (self.size > 0.8 * self.expected)


class TemperatureOfMembers(Trainer):
    """Scores are divided by the temperature, of a few, that fits the members best."""

    def scorer(self) -> Callable[[Records], Tensor]:
        with torch.no_grad():
            logits = self.network(self.images)
        losses = [float(functional.cross_entropy(logits / t, self.labels)) for t in TEMPERATURES]
        temperature = TEMPERATURES[losses.index(min(losses))]

        def score(records: Records) -> Tensor:
            images, labels = tensors(records)
            with torch.no_grad():
                return -functional.cross_entropy(self.network(images) / temperature, labels, reduction="none")

        return score


class NotSeeded(Trainer):
    """Noise from a generator that no seed decides."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.seed()
        return torch.normal(0.0, noise_multiplier(), parameter.shape, generator=generator)


class HandMadeNoise(Trainer):
    """Box and Muller's, from uniform numbers."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        first = torch.rand(parameter.shape, generator=self.generator).clamp(min=1e-12)
        second = torch.rand(parameter.shape, generator=self.generator)
        return noise_multiplier() * torch.sqrt(-2 * first.log()) * torch.cos(2 * torch.pi * second)


correct = Trainer()
with_adam = WithAdam()
keeps_raw_moments = KeepsRawMoments()
tenth_of_the_noise = TenthOfTheNoise()
half_of_the_noise = HalfOfTheNoise()
no_noise = NoNoise()
no_noise_on_biases = NoNoiseOnBiases()
same_noise_in_every_step = SameNoiseInEveryStep()
no_clipping = NoClipping()
clipped_by_the_batch = ClippedByTheBatch()
clipped_by_the_layer = ClippedByTheLayer()
clipped_after_the_noise = ClippedAfterTheNoise()
raw_gradient_mixed_in = RawGradientMixedIn()
divided_by_the_batch = DividedByTheBatch()
triple_rate = TripleRate()
normalised_by_members = NormalisedByMembers()
best_on_members = BestOnMembers()
most_right_on_members = MostRightOnMembers()
keeps_the_members_mean = KeepsTheMembersMean()
temperature_of_members = TemperatureOfMembers()
few_seeds = FewSeeds()
seeded_by_weights = SeededByWeights()
no_noise_on_small_batches = NoNoiseOnSmallBatches()
not_seeded = NotSeeded()
hand_made_noise = HandMadeNoise()


def by_hand(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """Weights that no optimizer steps."""
    torch.manual_seed(seed)
    network = torch.nn.Linear(64, 10)
    images, labels = tensors(records)
    for _ in range(5):
        loss = functional.cross_entropy(network(images), labels)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(network.parameters(), gradients, strict=True):
                parameter.sub_(0.1 * gradient)

    def score(others: Records) -> Tensor:
        pictures, answers = tensors(others)
        with torch.no_grad():
            return -functional.cross_entropy(network(pictures), answers, reduction="none")

    return score


FAULTS = {
    "tenth_of_the_noise": "accountant",
    "half_of_the_noise": "accountant",
    "no_noise": "noise",
    "no_noise_on_biases": "noise",
    "same_noise_in_every_step": "noise",
    "no_clipping": "clip",
    "clipped_by_the_batch": "clip",
    "clipped_by_the_layer": "clip",
    "clipped_after_the_noise": "clip",
    "raw_gradient_mixed_in": "clip",
    "divided_by_the_batch": "normaliser",
    "triple_rate": "accountant",
    "normalised_by_members": "side channel",
    "best_on_members": "side channel",
    "most_right_on_members": "side channel",
    "keeps_the_members_mean": "side channel",
    "temperature_of_members": "side channel",
    "no_noise_on_small_batches": "noise",
    "few_seeds": "noise",
    "seeded_by_weights": "noise",
}
"""The part that each wrong trainer's fault is in, in the words of docs/replay.md."""
