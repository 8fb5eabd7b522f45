"""DP-SGD beside another optimizer, which reads the members (wrong) or follows what is released."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from correct import HeadAfterPublicPretraining
from dp_sgd import CLIP, Records, Trainer, noise_multiplier


class HeadAfterPretrainingOnMembers(HeadAfterPublicPretraining):
    def public(self) -> tuple[Tensor, Tensor]:
        return self.images, self.labels


class HeadAfterPretrainingOnFirsts(HeadAfterPublicPretraining):
    """On the first member of each label."""

    def public(self) -> tuple[Tensor, Tensor]:
        firsts = [int((self.labels == label).nonzero()[0]) for label in self.labels.unique()]
        return self.images[firsts], self.labels[firsts]


class _ByHand(torch.optim.SGD):
    """Steps by gradients that it is given."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for parameter, gradient in zip(self.param_groups[0]["params"], closure, strict=True):
                parameter.sub_(1e-2 * gradient)


class HeadAfterStepsByHand(HeadAfterPretrainingOnMembers):
    """By an optimizer whose gradients are not where those of others are."""

    def pretrained(self, images: Tensor, labels: Tensor) -> None:
        parameters = list(self.network.parameters())
        public = _ByHand(parameters)
        for _ in range(5):
            loss = functional.cross_entropy(self.network(images), labels)
            public.step(torch.autograd.grad(loss, parameters))


class WithGenerator(Trainer):
    """A private model beside a generator, which learns from that model what looks like label 3."""

    def optimizer(self) -> torch.optim.Optimizer:
        self.generating = torch.nn.Sequential(
            torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, 64)
        )
        self.of_generator = torch.optim.Adam(self.generating.parameters(), lr=2e-3)
        return super().optimizer()

    def generated(self) -> Tensor:
        made: Tensor = self.generating(2 * torch.rand(20, 6, generator=self.generator) - 1)
        return made

    def after(self, step: int) -> None:
        self.of_generator.zero_grad()
        self.loss_of_generator(self.generated()).backward()
        self.of_generator.step()

    def loss_of_generator(self, made: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(made), torch.full((20,), 3))


class WithGeneratorAndHalfOfTheNoise(WithGenerator):
    noise = 0.5


class WithGeneratorOfMembers(WithGenerator):
    """The generator also sees the mean of all members."""

    def loss_of_generator(self, made: Tensor) -> Tensor:
        return super().loss_of_generator(made) + (made.mean(0) - self.images.mean(0)).square().mean()


class WithStudent(Trainer):
    """A student learns from the finished private model's answers, and is what is released."""

    def asked(self) -> Tensor:
        return torch.rand(100, 64, generator=self.generator)

    def scorer(self) -> Callable[[Records], Tensor]:
        images, student = self.asked(), torch.nn.Linear(64, 10)
        optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
        answers = self.network(images).detach().softmax(1)
        for _ in range(10):
            optimizer.zero_grad()
            functional.cross_entropy(student(images), answers).backward()
            optimizer.step()
        self.network = student
        return super().scorer()


class WithStudentOfMembers(WithStudent):
    """The student is asked about the members themselves."""

    def asked(self) -> Tensor:
        return self.images


class _Both:
    """Steps of two optimizers."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()


class OfTwoPrivateLayers(Trainer):
    """An optimizer for each layer, clipped together; the last one's noise is made of uniform numbers."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        torch.manual_seed(seed)
        return super().__call__(records, seed)

    def optimizer(self) -> Any:
        self.network[0], self.network[2] = torch.nn.Linear(64, 20), torch.nn.Linear(20, 10, bias=False)
        self.parameters = dict(self.network.named_parameters())
        return _Both(*(torch.optim.SGD(self.network[place].parameters(), lr=0.5) for place in (0, 2)))

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        if name != "2.weight":
            return super().drawn(name, parameter)
        one, two = (torch.rand(parameter.shape, generator=self.generator).clamp(min=1e-12) for _ in "12")
        normal = (-2 * one.log()).sqrt() * (2 * torch.pi * two).cos()
        return noise_multiplier() * CLIP * normal


of_two_private_layers = OfTwoPrivateLayers()
with_generator = WithGenerator()
with_generator_and_half_of_the_noise = WithGeneratorAndHalfOfTheNoise()
with_generator_of_members = WithGeneratorOfMembers()
with_student = WithStudent()
with_student_of_members = WithStudentOfMembers()
head_after_pretraining_on_members = HeadAfterPretrainingOnMembers()
head_after_pretraining_on_firsts = HeadAfterPretrainingOnFirsts()
head_after_steps_by_hand = HeadAfterStepsByHand()
