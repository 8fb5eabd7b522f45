"""Correct trainers that use a noisy sum again, or whose noise replay does not recognise as such.

Each keeps a claim of (1, 1e-5), `of_votes` one of (8, 1e-5), `ten_steps_each` one of (5.1, 1e-3) and
`one_step_each` one of (4.1, 1e-3).
Generators are taken by name, as much code does.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import PCG64, Generator, default_rng
from scipy import stats
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, DELTA, EPSILON, RATE, STEPS, Gradients, Records, Trainer, noise_multiplier, tensors

from workbench.accounting.certified import calibrate_noise_multiplier

SMALL_EPSILON = 0.1
"""What other queries than the training's spend; the training then spends the rest."""


@cache
def deviation(uses: int, *, rate: float = 1.0, epsilon: float = EPSILON, delta: float = DELTA) -> float:
    """Noise multiplier of so many sums."""
    return calibrate_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sampling_probability=rate, steps=uses
    )


class MeanOfTheBatch(Trainer):
    """Divided by the batch's own size, with as much noise as that needs."""

    noise = 2.3

    def divisor(self, size: int) -> float:
        return float(max(size, 1))


class MeanWithRateOfTheBatch(Trainer):
    """A mean over the batch, and a rate that multiplies it by the batch: a sum moves the weights."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.stepping = super().optimizer()
        return self.stepping

    def divisor(self, size: int) -> float:
        self.size = max(size, 1)
        return float(self.size)

    def before(self) -> None:
        self.stepping.param_groups[0]["lr"] = 0.5 * self.size / self.expected


class UsedTwice(Trainer):
    """Every noisy sum is applied by two steps of the optimizer."""

    def batch(self, step: int) -> Tensor:
        self.is_new = step % 2 == 0
        return super().batch(step)

    def before(self) -> None:
        if self.is_new:
            self.kept = {name: p.grad.clone() for name, p in self.parameters.items() if p.grad is not None}
        for name, parameter in self.parameters.items():
            parameter.grad = self.kept[name].clone()


class FilteredByHand(Trainer):
    """A little of each noisy sum stays in the next, by hand."""

    share = 0.05

    def batch(self, step: int) -> Tensor:
        self.kept = {} if step == 0 else self.kept
        return super().batch(step)

    def before(self) -> None:
        for name, parameter in self.parameters.items():
            assert parameter.grad is not None
            self.kept[name] = parameter.grad + self.share * self.kept.get(name, 0.0)
            parameter.grad = self.kept[name].clone()


class InASubspace(Trainer):
    """Gradients are clipped in a random subspace of each step, and so is what becomes of the noise."""

    def summed(self, each: Gradients) -> Gradients:
        flat = torch.cat([g.flatten(1) for g in each.values()], 1)
        drawn = torch.rand(flat.shape[1], flat.shape[1] // 5, generator=self.generator)
        self.basis = torch.linalg.qr(drawn - 0.5)[0]
        inside = flat @ self.basis
        factors = (CLIP / inside.norm(dim=1).clamp(min=1e-9)).clamp(max=1.0)
        return dict(zip(each, self.split(self.basis @ (factors @ inside)), strict=True))

    def before(self) -> None:
        flat = torch.cat([p.grad.flatten() for p in self.parameters.values() if p.grad is not None])
        parts = self.split(self.basis @ (self.basis.T @ flat))
        for parameter, part in zip(self.parameters.values(), parts, strict=True):
            parameter.grad = part

    def split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([p.numel() for p in self.parameters.values()])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters.values(), strict=True)]


class TenStepsEach(Trainer):
    """Each record draws its own ten of forty steps (Feldman and Shenfeld 2025).

    Its epsilon at delta = 1e-3 is at most 5.08 by a million draws of the exact likelihood ratio.
    """

    times, spread = 10, 1.2

    def batch(self, step: int) -> Tensor:
        if step == 0:
            order = torch.rand(len(self.labels), STEPS, generator=self.generator).argsort(1)
            order = order[:, : self.times]
            self.steps = torch.zeros(len(self.labels), STEPS, dtype=torch.bool).scatter_(1, order, True)
        return torch.nonzero(self.steps[:, step])[:, 0]

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.normal(0.0, self.spread * CLIP, parameter.shape, generator=self.generator)


class OneStepEach(TenStepsEach):
    """Each record draws one of forty steps: epsilon at delta = 1e-3 is below 4, by as many draws."""

    times, spread = 1, 0.5


class JitterOfRareClasses(Trainer):
    """One generator draws the batches and the jitter of two classes: a label decides how much is drawn."""

    def batch(self, step: int) -> Tensor:
        self.draws = default_rng(self.generator.initial_seed()) if step == 0 else self.draws
        chosen = torch.nonzero(torch.from_numpy(self.draws.random(len(self.labels)) < RATE))[:, 0]
        self.images = self.images.clone()
        for index in chosen[self.labels[chosen] >= 8].tolist():
            self.images[index] += torch.from_numpy(0.05 * self.draws.normal(size=64)).float()
        return chosen


class PaidBefore(Trainer):
    """Spends a part of the budget on something else than updates."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        spread = deviation(STEPS, rate=RATE, epsilon=EPSILON - SMALL_EPSILON) * CLIP
        return torch.normal(0.0, spread, parameter.shape, generator=self.generator)


class PriorOfLabels(PaidBefore):
    """The last bias starts at the logarithms of counts with Laplace noise."""

    def optimizer(self) -> torch.optim.Optimizer:
        draws = Generator(PCG64(self.generator.initial_seed()))
        counts = np.bincount(self.labels.numpy(), minlength=10) + self.laplace(draws)
        with torch.no_grad():
            shares = torch.from_numpy(np.maximum(counts, 1.0)) / len(self.labels)
            self.parameters["2.bias"].copy_(shares.log())
        return super().optimizer()

    def laplace(self, draws: Generator) -> Any:
        return draws.laplace(0.0, 1 / SMALL_EPSILON, 10)


class PriorByPython(PriorOfLabels):
    """Laplace noise of Python's uniform numbers, by the inverse of its distribution function."""

    def laplace(self, draws: Generator) -> Any:
        random.seed(self.generator.initial_seed())
        uniform = np.array([random.random() - 0.5 for _ in range(10)])
        return -np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) / SMALL_EPSILON


class PriorByScipy(PriorOfLabels):
    """Laplace noise of scipy, which draws from NumPy's global generator unheard."""

    def laplace(self, draws: Generator) -> Any:
        np.random.seed(self.generator.initial_seed() % 2**32)  # noqa: NPY002
        return stats.laplace.rvs(scale=1 / SMALL_EPSILON, size=10)


class RateByLosses(PaidBefore):
    """The step size follows a noisy sum of bounded losses, four times."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.draws = default_rng(self.generator.initial_seed())
        self.made = super().optimizer()
        return self.made

    def batch(self, step: int) -> Tensor:
        if step % 10 == 0:
            with torch.no_grad():
                losses = functional.cross_entropy(self.network(self.images), self.labels, reduction="none")
            total = float(losses.clamp(0.0, 1.0).sum()) + float(self.draws.laplace(0.0, 4 / SMALL_EPSILON))
            self.made.param_groups[0]["lr"] = min(max(total / len(losses), 0.1), 1.0)
        return super().batch(step)


def sums_used_again(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """One noisy sum of the images of each class, and a linear model that is fitted to it."""
    torch.manual_seed(seed)
    images, labels = tensors(records)
    bounded = images / images.norm(dim=1, keepdim=True).clamp(min=1.0)
    sums = bounded.T @ functional.one_hot(labels, 10).float() + torch.normal(0.0, deviation(1), (64, 10))
    return fitted(lambda weights: -(weights * sums).sum() / len(records) + weights.square().sum() / 2)


def ridge(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """Noisy second moments of images and labels, once; then steps of ridge regression on them."""
    torch.manual_seed(seed)
    images, labels = tensors(records)
    bounded = torch.nan_to_num(images / images.norm(dim=1, keepdim=True))
    spread = 2**0.5 * deviation(1)  # One record adds two matrices of norm 1.
    moments = bounded.T @ bounded + spread * torch.randn(64, 64)
    sums = bounded.T @ functional.one_hot(labels, 10).float() + spread * torch.randn(64, 10)

    def loss(weights: Tensor) -> Tensor:
        return (
            (weights * (moments @ weights)).sum() / 2 - (weights * sums).sum() + 10 * weights.square().sum()
        )

    return fitted(loss, rate=0.005)


def fast_biases(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """All weights are one vector, of whose noisy gradient the part of the biases is taken fourfold."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = tensors(records)
    weights = torch.zeros(650, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.5)
    speed = torch.ones(650)
    speed[640:] = 4.0

    def answers(vector: Tensor, given: Tensor) -> Tensor:
        return given @ vector[:640].view(64, 10) + vector[640:]

    def loss(vector: Tensor, image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(answers(vector, image), label)

    for _ in range(STEPS):
        batch = torch.rand(len(labels), generator=generator) < RATE
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights.detach(), images[batch], labels[batch])
        factors = (0.3 / each.norm(dim=1).clamp(min=1e-9)).clamp(max=1.0)
        noise = 0.3 * noise_multiplier() * torch.randn(650, generator=generator)
        weights.grad = speed * (factors @ each + noise) / (RATE * len(labels))
        optimizer.step()

    def score(others: Records) -> Tensor:
        images, labels = tensors(others)
        return -functional.cross_entropy(answers(weights.detach(), images), labels, reduction="none")

    return score


def of_users(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """Each user takes two steps on a copy of the model; clipped differences are summed, with noise."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    images, labels = tensors(records)
    model = torch.nn.Linear(64, 10)
    server = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(10):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for user in torch.nonzero(torch.rand(len(labels), generator=generator) < RATE)[:, 0].tolist():
            own = deepcopy(model)
            local = torch.optim.SGD(own.parameters(), lr=0.1)
            for _ in range(2):
                local.zero_grad()
                functional.cross_entropy(own(images[user][None]), labels[user][None]).backward()
                local.step()
            moves = [
                p.detach() - q.detach() for p, q in zip(model.parameters(), own.parameters(), strict=True)
            ]
            length = float(torch.cat([move.flatten() for move in moves]).norm())
            factor = min(1.0, 0.1 / max(length, 1e-9))
            total = [sum_ + factor * move for sum_, move in zip(total, moves, strict=True)]
        for parameter, sum_ in zip(model.parameters(), total, strict=True):
            spread = 0.1 * deviation(10, rate=RATE)
            noise = spread * torch.randn(parameter.shape, generator=generator)
            parameter.grad = (sum_ + noise) / (RATE * len(labels))
        server.step()

    def score(others: Records) -> Tensor:
        images, labels = tensors(others)
        with torch.no_grad():
            return -functional.cross_entropy(model(images), labels, reduction="none")

    return score


def five_sums_used_twice(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """Logistic regression on five features; each noisy gradient is good for two steps."""
    generator = torch.Generator().manual_seed(seed)

    def features(records: Records) -> tuple[Tensor, Tensor]:
        images, labels = tensors(records)
        means = 2 * images.view(-1, 4, 16).mean(2)
        return torch.cat([means, torch.ones(len(images), 1)], 1), (labels >= 5).float() * 2 - 1

    inputs, signs = features(records)
    weights = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.3)
    for _ in range(STEPS // 2):
        each = -(signs * torch.sigmoid(-signs * (inputs @ weights.detach())))[:, None] * inputs
        factors = (0.5 / each.norm(dim=1).clamp(min=1e-9)).clamp(max=1.0)
        noise = 0.5 * deviation(STEPS // 2) * torch.randn(5, generator=generator)
        for _ in range(2):
            weights.grad = (factors @ each + noise) / len(records)
            optimizer.step()

    def score(others: Records) -> Tensor:
        inputs, signs = features(others)
        return functional.logsigmoid(signs * (inputs @ weights.detach()))

    return score


def fitted(loss: Callable[[Tensor], Tensor], *, rate: float = 0.05) -> Callable[[Records], Tensor]:
    """A linear model of the digits after thirty steps along the gradients of a loss of its weights."""
    weights = torch.zeros(64, 10, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=rate)
    for _ in range(30):
        optimizer.zero_grad()
        loss(weights).backward()
        optimizer.step()

    def score(others: Records) -> Tensor:
        images, labels = tensors(others)
        with torch.no_grad():
            return -functional.cross_entropy(images @ weights, labels, reduction="none")

    return score


def of_two_replicas(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """One optimizer gives two replicas of a model the same noisy gradients."""
    trainer = _Replicated()
    return trainer(records, seed)


class _Replicated(Trainer):
    def optimizer(self) -> torch.optim.Optimizer:
        self.twins = {name: p.detach().clone().requires_grad_() for name, p in self.parameters.items()}
        return torch.optim.SGD([*self.parameters.values(), *self.twins.values()], lr=0.5)

    def before(self) -> None:
        for name, twin in self.twins.items():
            grad = self.parameters[name].grad
            assert grad is not None
            twin.grad = grad.clone()


class AlongOneDirection(Trainer):
    """A public direction a step, and one noisy number: what a record's gradient is along it."""

    def summed(self, each: Gradients) -> Gradients:
        signs = {
            name: 2.0 * torch.randint(0, 2, p.shape, generator=self.public) - 1.0
            for name, p in self.parameters.items()
        }
        along = sum((each[name] * sign).flatten(1).sum(1) for name, sign in signs.items())
        assert isinstance(along, Tensor)
        noisy = float(along.clamp(-CLIP, CLIP).sum()) + noise_multiplier() * CLIP * self.normal()
        return {name: noisy * sign / 100 for name, sign in signs.items()}

    def normal(self) -> float:
        return float(np.random.normal())  # noqa: NPY002

    def optimizer(self) -> torch.optim.Optimizer:
        self.public = torch.Generator().manual_seed(5)
        return super().optimizer()

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)


class AlongByUniforms(AlongOneDirection):
    """The number's noise by Box and Muller's formula."""

    def normal(self) -> float:
        first, second = torch.rand(2, generator=self.generator).tolist()
        return float(np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second))


class AlongByScipy(AlongOneDirection):
    """The number's noise by scipy."""

    def normal(self) -> float:
        return float(stats.norm.rvs())


def of_one_number(records: Records, seed: int) -> Callable[[Records], list[float]]:
    """The median brightness by noisy signs; noise by Python's generator."""
    random.seed(seed)
    chosen = default_rng(seed)
    bright = np.array([sum(record["image"]) for record in records])
    middle = torch.nn.Parameter(torch.tensor(8.0))
    optimizer = torch.optim.SGD([middle], lr=3.0)
    for _ in range(STEPS):
        batch = bright[chosen.random(len(bright)) < RATE]
        noisy = float(np.sign(middle.item() - batch).sum()) + random.gauss(0.0, noise_multiplier())
        middle.grad = torch.tensor(noisy / 20)
        optimizer.step()
    return lambda others: [-abs(sum(record["image"]) - middle.item()) for record in others]


def of_votes(records: Records, seed: int) -> Callable[[Records], Tensor]:
    """A student of 25 teachers' noisy votes on public images (Papernot et al. 2018)."""
    torch.manual_seed(seed)
    images, labels = tensors(records)
    public = torch.from_numpy(np.random.default_rng(5).random((20, 64))).float()
    teacher = np.array([zlib.crc32(str(record["id"]).encode()) % 25 for record in records])
    votes = np.zeros((20, 10))
    for number in range(25):
        own, classes = images[teacher == number], labels[teacher == number]
        seen = sorted(set(classes.tolist()))
        if not seen:
            votes[:, 0] += 1
            continue
        centres = torch.stack([own[classes == label].mean(0) for label in seen])
        for image, nearest in enumerate(torch.cdist(public, centres).argmin(1).tolist()):
            votes[image, seen[nearest]] += 1
    # A record is one teacher's, who changes one vote for another on each image.
    spread = 2**0.5 * deviation(20, epsilon=8.0)
    noisy = votes + Generator(PCG64(seed)).normal(0.0, spread, votes.shape)
    answers = torch.from_numpy(noisy.argmax(1))
    return fitted(lambda weights: functional.cross_entropy(public @ weights, answers))


mean_of_the_batch, mean_with_rate_of_the_batch = MeanOfTheBatch(), MeanWithRateOfTheBatch()
used_twice, filtered_by_hand, ten_steps_each = UsedTwice(), FilteredByHand(), TenStepsEach()
jitter_of_rare_classes, along_one_direction = JitterOfRareClasses(), AlongOneDirection()
prior_of_labels, rate_by_losses = PriorOfLabels(), RateByLosses()
prior_by_python, prior_by_scipy, one_step_each = PriorByPython(), PriorByScipy(), OneStepEach()
along_by_uniforms, along_by_scipy, in_a_subspace = AlongByUniforms(), AlongByScipy(), InASubspace()

KINDS = {
    "mean_of_the_batch": "UNDECIDED",
    "mean_with_rate_of_the_batch": "UNDECIDED",
    "used_twice": "UNDECIDED",
    "filtered_by_hand": "UNDECIDED",
    "jitter_of_rare_classes": "UNDECIDED",
    "prior_of_labels": "UNDECIDED",
    "prior_by_python": "UNDECIDED",
    "prior_by_scipy": "UNDECIDED",
    "in_a_subspace": "UNDECIDED",
    "of_users": "copies of the parameters",
    "fast_biases": "UNDECIDED",
    "five_sums_used_twice": "UNDECIDED",
    "along_by_uniforms": "depend on other random numbers",
    "along_by_scipy": "UNDECIDED",
    "rate_by_losses": "UNDECIDED",
    "sums_used_again": "UNDECIDED",
    "ridge": "UNDECIDED",
    "of_two_replicas": "UNDECIDED",
    "along_one_direction": "depend on other random numbers",
    "of_one_number": "depend on other random numbers",
}
"""What replay says of each, or why it cannot be replayed."""
