"""Trainers with the bugs of `reported`: `dp_sgd.Trainer` with one thing wrong each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, DELTA, EPSILON, RATE, STEPS, Gradients, Records, Trainer, noise_multiplier

from workbench.accounting.certified import calibrate_noise_multiplier

EPOCH = round(1 / RATE)
"""Steps in which batches that share no record see all of them."""


@cache
def noise_for(rate: float, steps: int) -> float:
    """sigma for the claim at another rate or number of steps."""
    return calibrate_noise_multiplier(
        target_epsilon=EPSILON, target_delta=DELTA, sampling_probability=rate, steps=steps
    )


def plus(first: Gradients, second: Gradients, factor: float = 1.0) -> Gradients:
    """The first, and some of the second."""
    return {name: value + factor * second[name] for name, value in first.items()}


def raw_sum(each: Gradients) -> Gradients:
    """Nothing clipped."""
    return {name: g.sum(0) for name, g in each.items()}


def norm_of(gradients: Mapping[str, Tensor]) -> Tensor:
    """Of all tensors together."""
    return torch.stack([g.norm() for g in gradients.values()]).norm()


class ClippedAt(Trainer):
    """To a clipping norm of its own, with noise for it."""

    clip = 1.0

    def norms(self, each: Gradients) -> Tensor:
        return torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)

    def summed(self, each: Gradients) -> Gradients:
        factors = (self.clip / self.norms(each).clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("n,n...->...", factors, g) for name, g in each.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.clip * super().drawn(name, parameter)


class FlooredDivisor(Trainer):
    """The expected batch size is the number of records times the rate, rounded down."""

    def divisor(self, size: int) -> float:
        return float(int(RATE * len(self.labels)))


class TokenWise(torch.nn.Module):
    """One linear layer on each of eight tokens of eight pixels; the logits are their mean."""

    tokens = 8

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.unflatten(1, (self.tokens, 8))).mean(1)  # type: ignore[no-any-return]


class GhostNormOfBias(ClippedAt):
    """The norm of a bias's gradient is from the squares of the tokens' products, not from these."""

    clip = 0.1

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(self.network, TokenWise):
            self.network = TokenWise()  # type: ignore[assignment]
        return images, labels

    def norms(self, each: Gradients) -> Tensor:
        weight, bias = each["layer.weight"], each["layer.bias"]
        of_tokens = (bias / TokenWise.tokens)[:, None].expand(-1, TokenWise.tokens, -1)
        products = of_tokens @ of_tokens.transpose(1, 2)
        return torch.sqrt(weight.flatten(1).square().sum(1) + products.flatten(1).square().sum(1))


class NormOfTheLibrary(Trainer):
    """Clips to the library's default of 1 and adds noise for the user's norm of 0.3."""

    noise = 0.3


class Untied(torch.nn.Module):
    """Two square layers and a head; `Tied` uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images).relu()).relu())  # type: ignore[no-any-return]


class Tied(Untied):
    def __init__(self) -> None:
        super().__init__()
        self.second = self.first


class TiedWeightsAsTwoRecords(Trainer):
    """The two gradients of a layer that is used twice are clipped as if they were of two records."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(self.network, Tied):
            self.network = Tied()  # type: ignore[assignment]
            self.untied = Untied()
        return images, labels

    def per_record(self, batch: Tensor) -> Gradients:
        held = {name: p.detach() for name, p in self.parameters.items()}
        held |= {name.replace("first", "second"): p for name, p in held.items() if "first" in name}

        def loss(parameters: Gradients, image: Tensor, label: Tensor) -> Tensor:
            return functional.cross_entropy(
                functional_call(self.untied, parameters, (image[None],)), label[None]
            )

        return vmap(grad(loss), in_dims=(None, 0, 0))(held, self.images[batch], self.labels[batch])  # type: ignore[no-any-return]

    def summed(self, each: Gradients) -> Gradients:
        once = super().summed({name: g for name, g in each.items() if "first" in name})
        rest = super().summed({name: g for name, g in each.items() if "first" not in name})
        again = {name.replace("second", "first"): g for name, g in rest.items() if "second" in name}
        return {**{name: g for name, g in rest.items() if "head" in name}, **plus(once, again)}


class AccumulatedInPlace(Trainer):
    """The sum over two parts of the batch is the tensor that the second part is written to."""

    def summed(self, each: Gradients) -> Gradients:
        gradient = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        total: Gradients = {}
        for part in range(2):
            found = super().summed({name: g.tensor_split(2)[part] for name, g in each.items()})
            for name, value in found.items():
                gradient[name].copy_(value)
                if part:
                    total[name] += gradient[name]
                else:
                    total[name] = gradient[name]
        return total


class SameDataOnAllWorkers(Trainer):
    """Two workers draw the same batch; their sums are added, and the noise is of one."""

    def summed(self, each: Gradients) -> Gradients:
        total = super().summed(each)
        return plus(total, total)

    def divisor(self, size: int) -> float:
        return 2 * self.expected


class ShuffledEpochs(Trainer):
    """Each epoch goes through all records once, with noise for independent batches."""

    def batch(self, step: int) -> Tensor:
        if step % EPOCH == 0:
            self.order = torch.randperm(len(self.labels), generator=self.generator)
        return self.order.tensor_split(EPOCH)[step % EPOCH]


class FixedOrder(Trainer):
    """The records as they come, in place of the sampler that the accountant counts on."""

    def batch(self, step: int) -> Tensor:
        return torch.arange(len(self.labels)).tensor_split(EPOCH)[step % EPOCH]


class RateOfTheLoader(Trainer):
    """Noise for the rate of one over the number of batches, which a weighted sampler makes few."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter) * (noise_for(0.5, STEPS) / noise_multiplier())


class ClippedAfterAveraging(Trainer):
    """Gradients of the mean loss are clipped to C, with noise for C over the batch."""

    def summed(self, each: Gradients) -> Gradients:
        return super().summed({name: g / self.expected for name, g in each.items()})

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter) / self.expected

    def divisor(self, size: int) -> float:
        return 1.0


class Microbatches(Trainer):
    """The mean of each four records is clipped to C: leaving one out turns it by up to 2 C."""

    def summed(self, each: Gradients) -> Gradients:
        parts = {name: [part.mean(0) for part in g.split(4)] for name, g in each.items() if len(g)}
        if not parts:
            return super().summed(each)
        return super().summed({name: torch.stack(means) for name, means in parts.items()})

    def divisor(self, size: int) -> float:
        return self.expected / 4


class NoiseInEveryMicrostep(Trainer):
    """Noise before the four parts of a batch are added up, in each of them."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return sum(
            (super(NoiseInEveryMicrostep, self).drawn(name, parameter) for _ in range(4)), torch.tensor(0.0)
        )


class NoiseOfTheSumOnTheMean(Trainer):
    """The sum is divided before the noise comes, which is for the sum."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.expected * super().drawn(name, parameter)


class ClippedByTheTensor(Trainer):
    """Each tensor to C, under noise for C altogether."""

    def summed(self, each: Gradients) -> Gradients:
        return {name: Trainer.summed(self, {name: g})[name] for name, g in each.items()}


class NoiseTwice(Trainer):
    """Noise by the worker and again by the server."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter) + super().drawn(name, parameter)


class ClippedByTheModule(Trainer):
    """Each layer's weight and bias to C, under noise for C altogether."""

    def summed(self, each: Gradients) -> Gradients:
        layers = {name.rpartition(".")[0] for name in each}
        parts = [{n: g for n, g in each.items() if n.startswith(layer)} for layer in sorted(layers)]
        return {name: g for part in parts for name, g in Trainer.summed(self, part).items()}


class RawGradientBesides(Trainer):
    """The backward pass leaves the batch's mean in the gradient, and the private sum is added to it."""

    def summed(self, each: Gradients) -> Gradients:
        return plus(super().summed(each), raw_sum(each))


class AggregateClipped(Trainer):
    """The mean is scaled to norm 1 at most, and its noise is scaled by the same number."""

    def summed(self, each: Gradients) -> Gradients:
        mean = {name: g.sum(0) / self.expected for name, g in each.items()}
        self.scale = float((1.0 / norm_of(mean).clamp(min=1e-9)).clamp(max=1.0))
        return {name: self.scale * g for name, g in mean.items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.scale * super().drawn(name, parameter)

    def divisor(self, size: int) -> float:
        return 1.0


class AdaptiveClip(ClippedAt):
    """The clipping norm follows the median; its noisy count of norms below is paid by nobody."""

    count_noise = 1.5

    def optimizer(self) -> torch.optim.Optimizer:
        self.clip = CLIP
        return super().optimizer()

    def summed(self, each: Gradients) -> Gradients:
        below = float((self.norms(each) <= self.clip).sum())
        if self.count_noise:
            below += self.count_noise * float(torch.randn((), generator=self.generator))
        self.next_clip = self.clip * math.exp(-0.2 * (below / self.expected - 0.5))
        return super().summed(each)

    def after(self, step: int) -> None:
        self.clip = self.next_clip


class AdaptiveClipWithoutNoise(AdaptiveClip):
    """The same, the count as it is."""

    count_noise = 0.0


class OneKeyForAllTensors(Trainer):
    """The noise of each tensor is drawn from the same state of the generator."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        if name == next(iter(self.parameters)):
            self.state = self.generator.get_state()
        self.generator.set_state(self.state)
        return super().drawn(name, parameter)


class OneKeyForAnEpoch(Trainer):
    """The noise's key is folded with the epoch, and not with the step."""

    def batch(self, step: int) -> Tensor:
        self.step = step
        return super().batch(step)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        sampling = self.generator
        if name == next(iter(self.parameters)):
            seed = sampling.initial_seed() % 2**31 + self.step // EPOCH
            self.keyed = torch.Generator().manual_seed(seed)
        self.generator = self.keyed
        noise = super().drawn(name, parameter)
        self.generator = sampling
        return noise


class BatchNormalised(Trainer):
    """Images are normalised by their batch before each record's gradient is taken."""

    def per_record(self, batch: Tensor) -> Gradients:
        images = self.images
        if len(batch):
            there = images[batch]
            self.images = (images - there.mean(0)) / (there.std(0, correction=0) + 0.1)
        each = super().per_record(batch)
        self.images = images
        return each


class RunningStatistics(Trainer):
    """A running mean of the batches normalises the images and is released with the model."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.running = torch.zeros(64)
        return super().optimizer()

    def per_record(self, batch: Tensor) -> Gradients:
        images = self.images
        self.images = images - self.running
        each = super().per_record(batch)
        self.images = images
        if len(batch):
            self.running = 0.9 * self.running + 0.1 * images[batch].mean(0)
        return each

    def scorer(self) -> Callable[[Records], Tensor]:
        score = super().scorer()
        running = self.running

        def normalised(records: Records) -> Tensor:
            return score([{**r, "image": (torch.tensor(r["image"]) - running).tolist()} for r in records])

        return normalised


class WatchesTheMembers(Trainer):
    """Knows the loss on the members."""

    def loss(self) -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(self.network(self.images), self.labels))


class SelectedByTrainingLoss(WatchesTheMembers):
    """Keeps the weights of the epoch with the least loss on the members."""

    def after(self, step: int) -> None:
        if step % EPOCH == EPOCH - 1 and (step < EPOCH or self.loss() < self.best):
            self.best = self.loss()
            self.kept = [p.detach().clone() for p in self.network.parameters()]

    def scorer(self) -> Callable[[Records], Tensor]:
        with torch.no_grad():
            for parameter, kept in zip(self.network.parameters(), self.kept, strict=True):
                parameter.copy_(kept)
        return super().scorer()


class StopsByTrainingLoss(WatchesTheMembers):
    """Ends where the loss on the members has not fallen for five steps."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        try:
            return super().__call__(records, seed)
        except StopIteration:
            return self.scorer()

    def after(self, step: int) -> None:
        loss = self.loss()
        if step == 0 or loss < self.best[0]:
            self.best = loss, step
        if step - self.best[1] >= 5:
            raise StopIteration


class RateByTrainingLoss(WatchesTheMembers):
    """Halves the learning rate where the loss on the members has risen."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.stepping, self.last = super().optimizer(), math.inf
        return self.stepping

    def after(self, step: int) -> None:
        loss = self.loss()
        if loss > self.last:
            self.stepping.param_groups[0]["lr"] *= 0.5
        self.last = loss


class SkipsWhatIsNotFinite(Trainer):
    """A step whose gradient is not finite is left out."""

    def before(self) -> None:
        if not all(bool(p.grad.isfinite().all()) for p in self.parameters.values() if p.grad is not None):
            for parameter in self.parameters.values():
                parameter.grad = torch.zeros_like(parameter)


class AnotherBatchForAnEmptyOne(Trainer):
    """Draws again until there is a record; of 200, one is expected."""

    rate = 0.005

    def batch(self, step: int) -> Tensor:
        while True:
            batch = super().batch(step)
            if len(batch):
                return batch

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter) * (noise_for(self.rate, STEPS) / noise_multiplier())

    def divisor(self, size: int) -> float:
        return self.rate * len(self.labels)


class NoiseForTheSquare(ClippedAt):
    """sigma C^2 instead of sigma C, for C = 0.5."""

    clip = 0.5

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.clip * super().drawn(name, parameter)


class NoiseForFewerSteps(Trainer):
    """Noise for as many steps as are counted."""

    counted = STEPS

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return super().drawn(name, parameter) * (noise_for(RATE, self.counted) / noise_multiplier())


class PartialBatchesNotCounted(NoiseForFewerSteps):
    """Ten epochs of 3 1/3 batches, which are 4 steps each: 33 are counted, 40 are taken."""

    counted = 33


class OneEpochCounted(NoiseForFewerSteps):
    """Noise for the first epoch of four."""

    counted = EPOCH


class NeverCleared(Trainer):
    """Each step's sum is added to those of all steps before."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.carried = {name: torch.zeros_like(p) for name, p in self.network.named_parameters()}
        return super().optimizer()

    def summed(self, each: Gradients) -> Gradients:
        self.carried = plus(self.carried, super().summed(each))
        return self.carried


class NeverCalled(Trainer):
    """The framework does not call what clips and adds noise."""

    def summed(self, each: Gradients) -> Gradients:
        return raw_sum(each)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)


class BoundsFromData(Trainer):
    """Images are scaled by the largest value of the members."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        self.largest = float(max(max(r["image"]) for r in records))
        return super().__call__(records, seed)

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images / self.largest, labels


class WeightsClippedInstead(Trainer):
    """Noise on the gradient as it is; then the weights are clipped."""

    def summed(self, each: Gradients) -> Gradients:
        return raw_sum(each)

    def after(self, step: int) -> None:
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.clamp_(-1.0, 1.0)


class AveragedWithARawCopy(Trainer):
    """The released weights are the mean with a copy that is stepped without noise."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.copy = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        return super().optimizer()

    def summed(self, each: Gradients) -> Gradients:
        self.copy = plus(self.copy, raw_sum(each), -0.5 / self.expected)
        return super().summed(each)

    def scorer(self) -> Callable[[Records], Tensor]:
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.add_(self.copy[name]).mul_(0.5)
        return super().scorer()


class RawSecondMoments(Trainer):
    """Adam's second moments are of the gradients before clipping and noise."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.stepping = torch.optim.Adam(self.network.parameters(), lr=1e-2)
        self.moments = {name: torch.zeros_like(p) for name, p in self.network.named_parameters()}
        return self.stepping

    def summed(self, each: Gradients) -> Gradients:
        squares = {name: (g / self.expected).square() for name, g in raw_sum(each).items()}
        self.moments = {name: 0.999 * m + 0.001 * squares[name] for name, m in self.moments.items()}
        return super().summed(each)

    def after(self, step: int) -> None:
        for name, parameter in self.parameters.items():
            self.stepping.state[parameter]["exp_avg_sq"].copy_(self.moments[name])


class RawWarmUp(Trainer):
    """The first epoch of the same optimizer is without clipping and noise."""

    def batch(self, step: int) -> Tensor:
        self.warms_up = step < EPOCH
        return super().batch(step)

    def summed(self, each: Gradients) -> Gradients:
        return raw_sum(each) if self.warms_up else super().summed(each)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        noise = super().drawn(name, parameter)
        return torch.zeros_like(noise) if self.warms_up else noise


class Pretrained(Trainer):
    """An epoch on the members by an optimizer of its own, before the private one."""

    def optimizer(self) -> torch.optim.Optimizer:
        plain = torch.optim.SGD(self.network.parameters(), lr=0.1)
        for step in range(EPOCH):
            batch = self.batch(step)
            plain.zero_grad()
            functional.cross_entropy(self.network(self.images[batch]), self.labels[batch]).backward()
            plain.step()
        return super().optimizer()
