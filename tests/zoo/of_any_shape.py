"""Trainers for the digits whose noise has no parameter's shape, or whose other draws have one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, Gradients, Records, Trainer, noise_multiplier
from uncommon import NoisyViews


class RowByRow(Trainer):
    """The noise of each output is drawn by itself."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        width = parameter[0].numel()
        rows = [torch.randn(width, generator=self.generator) for _ in parameter]
        return noise_multiplier() * CLIP * torch.stack(rows).view_as(parameter)


class OfTwelveUniforms(Trainer):
    """The sum of twelve uniform numbers, which is nearly normal."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        twelve = torch.rand(12, *parameter.shape, generator=self.generator)
        return noise_multiplier() * CLIP * (twelve.sum(dim=0) - 6)


class OnAGrid(Trainer):
    """Sums and noise are multiples of 1/256, as where sums are of whole numbers."""

    def summed(self, each: Gradients) -> Gradients:
        return {name: (256 * total).round() / 256 for name, total in super().summed(each).items()}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return (256 * super().drawn(name, parameter)).round() / 256


class Latent(Trainer):
    """A bottleneck with noise as large as its bias, drawn again for each record."""

    def __call__(self, records: Records, seed: int) -> Callable[[Records], Tensor]:
        torch.manual_seed(seed)
        return super().__call__(records, seed)

    def per_record(self, batch: Tensor) -> Gradients:
        found: dict[str, list[Tensor]] = {name: [] for name in self.parameters}
        for place in batch.tolist():
            hidden = functional.relu(self.network[0](self.images[place]))
            hidden = hidden * torch.exp(0.1 * torch.randn(32, generator=self.generator))
            loss = functional.cross_entropy(self.network[2](hidden)[None], self.labels[place][None])
            grads = torch.autograd.grad(loss, list(self.parameters.values()))
            for name, gradient in zip(self.parameters, grads, strict=True):
                found[name].append(gradient)
        return {
            name: torch.stack(own) if own else torch.zeros(0, *self.parameters[name].shape)
            for name, own in found.items()
        }


class AsManyClassesAsLabels(Trainer):
    """The model has an output for each label up to the largest of the records."""

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.network[2].out_features == 10:
            self.network[2] = torch.nn.Linear(32, int(labels.max()) + 1)
        return images, labels


class InParts(NoisyViews):
    """Batches come in parts of 20 at most, and so does the noise, its variance shared among them."""

    def per_record(self, batch: Tensor) -> Gradients:
        parts = batch.split(20)
        self.drawn_so_far = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        found = []
        for part in parts:
            found.append(super().per_record(part))
            for name, parameter in self.parameters.items():
                self.drawn_so_far[name] += super().drawn(name, parameter) / len(parts) ** 0.5
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        return self.drawn_so_far[name]


class MostlyBefore(NoisyViews):
    """Four fifths of the noise's variance are drawn before the gradients; data of one class are refused."""

    early: Sequence[str] = ("0.weight", "0.bias", "2.weight", "2.bias")

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if len(labels.unique()) < 2:
            raise ValueError("one class")
        return images, labels

    def per_record(self, batch: Tensor) -> Gradients:
        self.before_gradients = {
            name: 0.8**0.5 * super(MostlyBefore, self).drawn(name, self.parameters[name])
            for name in self.early
        }
        return super().per_record(batch)

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        if name not in self.early:
            return super().drawn(name, parameter)
        return self.before_gradients[name] + 0.2**0.5 * super().drawn(name, parameter)


class BiasesMostlyBefore(MostlyBefore):
    """That of the biases alone, in data of any class."""

    early = ("0.bias", "2.bias")

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images, labels


class RowByRowWithoutBlanks(RowByRow):
    """Records that are not finite are skipped, and there is a gradient for each five records."""

    def per_record(self, batch: Tensor) -> Gradients:
        kept = batch[self.images[batch].isfinite().all(dim=1)]
        each = [super(RowByRowWithoutBlanks, self).per_record(part) for part in kept.split(5)]
        return {name: torch.cat([one[name] for one in each]) for name in each[0]}


class OneNumberForAll(Trainer):
    """One number of noise for a whole tensor."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        number = torch.normal(0.0, noise_multiplier() * CLIP, (1,), generator=self.generator)
        return number.expand_as(parameter)


class OneRowForAll(Trainer):
    """One row of noise for all outputs."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        row = torch.normal(0.0, noise_multiplier() * CLIP, parameter[:1].shape, generator=self.generator)
        return row.expand_as(parameter)


class Uniform(Trainer):
    """Uniform numbers in the place of normal ones."""

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        drawn = torch.rand(parameter.shape, generator=self.generator)
        return noise_multiplier() * CLIP * (2 * drawn - 1)


CORRECT: dict[str, Trainer] = {
    "row_by_row": RowByRow(),
    "of_twelve_uniforms": OfTwelveUniforms(),
    "on_a_grid": OnAGrid(),
    "latent": Latent(),
    "row_by_row_without_blanks": RowByRowWithoutBlanks(),
    "as_many_classes_as_labels": AsManyClassesAsLabels(),
}

NOT_TOLD: dict[str, Trainer] = {
    "in_parts": InParts(),
    "mostly_before": MostlyBefore(),
    "biases_mostly_before": BiasesMostlyBefore(),
}
"""Correct; that some of their draws are noise is not told, nor that it is missing."""

WRONG: dict[str, Trainer] = {
    "one_number_for_all": OneNumberForAll(),
    "one_row_for_all": OneRowForAll(),
    "uniform": Uniform(),
}
"""Their part at fault is the noise."""

globals().update(CORRECT | NOT_TOLD | WRONG)
