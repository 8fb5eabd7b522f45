"""DP-SGD without a torch optimizer that is given all: weights moved by hand, by two, or noised after a step.

`CORRECT` and `REFUSED` keep a claim of (1, 1e-5); `FAULTY` have the part at fault that stands beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
import dp_sgd
from correct import InBrainFloat
from dp_sgd import STEPS, Gradients, Records, Trainer

LEARNING_RATE = 0.5


class ByHand(Trainer):
    """Weights are moved in place, without an optimizer."""

    def optimizer(self) -> Any:
        return self

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.sub_(LEARNING_RATE * parameter.grad)


class OfNewData(ByHand):
    """Each parameter is given a new tensor."""

    def step(self) -> None:
        for parameter in self.network.parameters():
            parameter.data = parameter.data - LEARNING_RATE * parameter.grad


class RecordByRecord(ByHand):
    """The loop of a first lesson: one record, its gradient, clip, add."""

    def per_record(self, batch: Tensor) -> Gradients:
        found: dict[str, list[Tensor]] = {name: [] for name in self.parameters}
        for place in batch:
            loss = functional.cross_entropy(self.network(self.images[place][None]), self.labels[place][None])
            for name, own in zip(self.parameters, grad(loss, tuple(self.parameters.values())), strict=True):
                found[name].append(own)
        return {
            name: torch.stack(own) if own else torch.zeros(0, *self.parameters[name].shape)
            for name, own in found.items()
        }


class OfTwoOptimizers(Trainer):
    """One for each layer, both given parts of one noisy sum."""

    def optimizer(self) -> Any:
        halves = [self.network[0].parameters(), self.network[2].parameters()]
        self.both = [torch.optim.SGD(half, lr=LEARNING_RATE) for half in halves]
        return self

    def step(self) -> None:
        for own in self.both:
            own.step()


class WithMomentum(ByHand):
    """Momentum of noisy gradients, by hand: post-processing."""

    def step(self) -> None:
        with torch.no_grad():
            if self.sums[0] is not self.generator:
                self.sums = self.generator, {}
            for name, parameter in self.parameters.items():
                kept = self.sums[1].get(name, torch.zeros_like(parameter))
                self.sums[1][name] = 0.9 * kept + parameter.grad
                parameter.sub_(0.1 * self.sums[1][name])

    sums: tuple[Any, dict[str, Tensor]] = (None, {})


class OutputPerturbed(ByHand):
    """Steps without noise that stay inside; the noise comes to the weights at the end."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)

    def after(self, step: int) -> None:
        if step == STEPS - 1:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.add_(40.0 * Trainer.drawn(self, name, parameter))


class OfLocalSteps(ByHand):
    """Five steps without noise inside for each with noise."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)

    def after(self, step: int) -> None:
        if step % 5 == 4:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.add_(20.0 * Trainer.drawn(self, name, parameter))


class OnCopies(ByHand):
    """Gradients at clones of the weights, which are made before the model is called."""

    def per_record(self, batch: Tensor) -> Gradients:
        own, self.parameters = self.parameters, {n: p.detach().clone() for n, p in self.parameters.items()}
        found = super().per_record(batch)
        self.parameters = own
        return found


class InClosedForm(ByHand):
    """A linear model whose gradient is written out, asked now and then."""

    def per_record(self, batch: Tensor) -> Gradients:
        x, layers = self.images[batch], [self.network[0], self.network[2]]
        with torch.no_grad():
            hidden = functional.linear(x, layers[0].weight, layers[0].bias).clamp(min=0)
            scores = functional.linear(hidden, layers[1].weight, layers[1].bias)
            error = scores.softmax(dim=1) - functional.one_hot(self.labels[batch], 10)
            back = (error @ layers[1].weight) * (hidden > 0)
            return {
                "0.weight": torch.einsum("no,ni->noi", back, x),
                "0.bias": back,
                "2.weight": torch.einsum("no,ni->noi", error, hidden),
                "2.bias": error,
            }

    def after(self, step: int) -> None:
        if step % 8 == 7:
            self.network(self.images[:2])


class OfTensors(ByHand):
    """Tensors of its own are trained, and given to the model for a look now and then, and at the end."""

    def optimizer(self) -> Any:
        self.own = {name: p.detach().clone() for name, p in self.parameters.items()}
        return self

    def per_record(self, batch: Tensor) -> Gradients:
        kept, self.parameters = self.parameters, self.own
        found = super().per_record(batch)
        self.parameters = kept
        return found

    def step(self) -> None:
        self.own = {name: w - LEARNING_RATE * self.parameters[name].grad for name, w in self.own.items()}

    def after(self, step: int) -> None:
        if step % 8 == 7:
            self.network.load_state_dict(self.own)
            self.network(self.images[:2])


class InBrainFloatByHand(InBrainFloat, ByHand):
    """Weights of 16 bits, whose rounding is no part of a record's."""


class InOneStep(ByHand):
    """A training of one step."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        dp_sgd.noise_multiplier()  # Of all steps.
        dp_sgd.STEPS, kept = 1, dp_sgd.STEPS
        try:
            return super().__call__(records, seed)
        finally:
            dp_sgd.STEPS = kept


class OfTensorsToTheEnd(OfTensors):
    """The model is given the tensors at the end alone."""

    def after(self, step: int) -> None:
        if step == STEPS - 1:
            self.network.load_state_dict(self.own)


CORRECT: dict[str, Trainer] = {
    "by_hand": ByHand(),
    "of_new_data": OfNewData(),
    "record_by_record": RecordByRecord(),
    "of_two_optimizers": OfTwoOptimizers(),
}
"""Measured."""

REFUSED: dict[str, Trainer] = {
    "with_momentum": WithMomentum(),
    "output_perturbed": OutputPerturbed(),
    "of_local_steps": OfLocalSteps(),
    "on_copies": OnCopies(),
    "of_tensors": OfTensors(),
    "of_tensors_to_the_end": OfTensorsToTheEnd(),
    "in_brain_float_by_hand": InBrainFloatByHand(),
    "in_closed_form": InClosedForm(),
}
"""What has no steps that weights show: not refuted, whatever they do."""


class NoNoise(ByHand):
    noise = 0.0


class TenthOfTheNoise(RecordByRecord):
    noise = 0.1


class NoClipping(ByHand):
    def summed(self, each: Gradients) -> Gradients:
        return {name: g.sum(dim=0) for name, g in each.items()}


class TwiceTheRate(OfTwoOptimizers):
    rate = 0.2


class HalfNoiseAfter(Trainer):
    """Half of the noise, put on the weights after the optimizer's step."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter)

    def after(self, step: int) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.sub_(0.5 * LEARNING_RATE * super().drawn(name, parameter) / self.expected)


in_one_step = InOneStep()

FAULTY: dict[str, tuple[Trainer, str]] = {
    "by_hand_without_noise": (NoNoise(), "noise"),
    "by_hand_a_tenth": (TenthOfTheNoise(), "accountant"),
    "by_hand_without_clipping": (NoClipping(), "clip"),
    "twice_the_rate": (TwiceTheRate(), "accountant"),
    "half_noise_after": (HalfNoiseAfter(), "accountant"),
}


globals().update({**CORRECT, **REFUSED, **{name: trainer for name, (trainer, _) in FAULTY.items()}})
