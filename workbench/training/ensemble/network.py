"""R networks of linear layers with ReLU between them, their losses and per-record gradients.

The weights of a network are a row of a matrix, in the order of the flat vector of one model. The gradient of
record i in a linear layer is the outer product of the error e_i and the input a_i, so its squared norm is
|e_i|^2 |a_i|^2, and |e_i|^2 for the bias: no per-record gradient is formed (Goodfellow 2015, "Efficient
per-example gradient computations"). Errors are written out, without autograd.

**bfloat16.** Weights, inputs and errors may be rounded to bfloat16, in which the products of the forward and
the backward pass are then taken. Record i's gradient is then by definition the outer product of the rounded
e_i and a_i, which depend on the weights and on record i alone; its norm is that of these very numbers, so no
rounding to bfloat16 comes between the two. What is left is float32's rounding, u = 2^-24 an operation. A sum
of k squares, taken in whatever order, is too small by a factor of (1 - u)^k at most, and by 2^-126 a term
that underflows. `safe_norms` adds that for every term and divides by (1 - u)^q, where q counts a layer's
operations and those of the factor and of the weighted error, so factor times norm stays at most C for the
numbers that are summed. The sums over records are products in float32: in bfloat16 the rounding would be
that of all records' sum, which one record may change by more than it adds.

    >>> from workbench.training.ensemble.stacked import flat_of
    >>> module = torch.nn.Linear(2, 3)
    >>> weights = flat_of(module).repeat(4, 1)
    >>> network = StackedNetwork(layers_of(module), weights)
    >>> signals = network.signals(torch.ones(4, 5, 2), torch.zeros(4, 5, dtype=torch.int64))
    >>> signals.losses.shape, signals.norms().shape
    (torch.Size([4, 5]), torch.Size([4, 5]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core.errors import UnsupportedError
from workbench.interfaces import FloatArray, IntArray, Model, Plan, Record
from workbench.training.ensemble.stacked import Factors
from workbench.training.fine_tuning import averaging_size
from workbench.training.precision import require_fast

_UNIT, _TINY = 2.0**-24, 2.0**-126
"""Rounding of one operation in float32, relative, and the smallest normal number."""

WIDEST_PASS = 512
"""Most records of one model in one pass."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A linear layer: the places of its weight and bias in the flat vector, and its width.

    `bias` is None for a layer without one.
    """

    weight: slice
    bias: slice | None
    inputs: int
    outputs: int


def layers_of(module: nn.Module) -> tuple[Layer, ...]:
    """The linear layers of a network.

    Raises `UnsupportedError`: the module is no `Linear` and no `Sequential` of `Linear`s with a `ReLU`
    between each two, or it has a parameter that is not trained, or not in float32.
    """
    parts = list(module) if type(module) is nn.Sequential else [module]
    kinds = [nn.ReLU if place % 2 else nn.Linear for place in range(len(parts))]
    if len(parts) % 2 == 0 or any(type(p) is not k for p, k in zip(parts, kinds, strict=True)):
        raise UnsupportedError(
            f"an ensemble trains linear layers with ReLU between them, got module {type(module).__name__}"
        )
    if any(not p.requires_grad or p.dtype != torch.float32 for p in module.parameters()):
        raise UnsupportedError("an ensemble trains all parameters of a module, in float32")
    layers, start = [], 0
    for part in parts[::2]:
        assert isinstance(part, nn.Linear)
        weight = slice(start, start + part.weight.numel())
        bias = None if part.bias is None else slice(weight.stop, weight.stop + part.out_features)
        start = (weight if bias is None else bias).stop
        layers.append(Layer(weight=weight, bias=bias, inputs=part.in_features, outputs=part.out_features))
    return tuple(layers)


class StackedNetwork:
    """R networks of the same layers; `weights` of shape `(R, d)` are read at every call, and may change.

    Within, records are the last axis: products and sums over few classes are several times faster so.
    """

    def __init__(self, layers: Sequence[Layer], weights: Tensor, precision: str = "float32") -> None:
        """Networks with these weights, one a row; `precision` of the products, see the module."""
        self._layers, self._is_reduced = tuple(layers), precision == "bfloat16"
        self._weights = _matrices(self._layers, weights)

    def losses(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of each record under each network, nats, shape `(R, n)`.

        `images`: shape `(R, n, features)`. `labels`: shape `(R, n)`.
        """
        *_, last = self._forward(images, self._weights)
        return -last.log_softmax(1).gather(1, labels[:, None])[:, 0]

    def signals(self, images: Tensor, labels: Tensor) -> StackedSignals:
        """Losses and gradients of each record under its own network; arguments as of `losses`."""
        weights = self._rounded()
        *inputs, logits = self._forward(images, weights)
        logits, chosen = logits.float(), labels[:, None]
        losses = -logits.log_softmax(1).gather(1, chosen)[:, 0]
        error = logits.softmax(1)
        error.scatter_add_(1, chosen, error.new_full((), -1.0).expand(chosen.shape))
        error = error.to(inputs[0].dtype)
        errors = [error]
        for (weight, _), layer_input in zip(weights[:0:-1], inputs[:0:-1], strict=True):
            error = torch.bmm(weight.transpose(1, 2), error)
            error = torch.ops.aten.threshold_backward(error, layer_input, 0)  # Zero where ReLU is.
            errors.append(error)
        return StackedSignals(self._layers, losses, inputs, errors[::-1])

    def _rounded(self) -> list[tuple[Tensor, Tensor | None]]:
        """The weights as the products of a step take them."""
        if not self._is_reduced:
            return self._weights
        return [(w.bfloat16(), None if b is None else b.bfloat16()) for w, b in self._weights]

    def _forward(self, images: Tensor, weights: list[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
        """The input of each layer, and the logits, each of shape `(R, features, n)`, in the weights' type."""
        values = [images.transpose(1, 2).to(weights[0][0].dtype)]
        for place, (weight, bias) in enumerate(weights):
            if place:
                values[-1].relu_()
            if bias is None:
                values.append(torch.bmm(weight, values[-1]))
            else:
                values.append(torch.baddbmm(bias[..., None], weight, values[-1]))
        return values


class StackedSignals:
    """The gradients of R batches of n records, each batch under its own network.

    `losses`: cross entropy, nats, shape `(R, n)`.
    """

    def __init__(
        self, layers: Sequence[Layer], losses: Tensor, inputs: list[Tensor], errors: list[Tensor]
    ) -> None:
        """Keep each layer's inputs and errors, shapes `(R, inputs, n)` and `(R, outputs, n)`."""
        self.losses = losses
        self._layers, self._inputs, self._errors = layers, inputs, errors

    def norms(self) -> Tensor:
        """Norm of each record's gradient, shape `(R, n)`."""
        return self._norms(0.0)

    def safe_norms(self) -> Tensor:
        """No less than the norms of what `add_sums` adds up; see the module on bfloat16. Shape `(R, n)`."""
        return self._norms(_TINY).mul_(1.0 + norm_margin(self._layers))

    def _norms(self, least: float) -> Tensor:
        """The norms, with each term of a sum of squares larger by `least`."""
        squares = torch.zeros_like(self.losses)
        for layer, values, error in zip(self._layers, self._inputs, self._errors, strict=True):
            of_input = values.float().square().sum(1)
            if layer.bias is not None:
                of_input += 1.0
            if least:
                of_input += least * layer.inputs
            of_error = error.float().square().sum(1)
            squares.addcmul_(of_error.add_(least * layer.outputs) if least else of_error, of_input)
        return squares.sqrt_()

    def add_sums(self, weights: Tensor, total: Tensor) -> None:
        """Add each batch's sum over its records of `weights[r, i] * gradient_i` to `total[r]`, in place.

        `weights`: shape `(R, n)`. `total`: shape `(R, d)`.
        """
        matrices = _matrices(self._layers, total)
        for values, error, (weight_sum, bias_sum) in zip(self._inputs, self._errors, matrices, strict=True):
            weighted = error * weights[:, None]  # In float32, as the weights are.
            # Not `baddbmm_`, which is slow on a part of a larger matrix.
            weight_sum.add_(torch.bmm(weighted, values.to(weighted.dtype).transpose(1, 2)))
            if bias_sum is not None:
                bias_sum.add_(weighted.sum(2))


def norm_margin(layers: Sequence[Layer]) -> float:
    """By how much, relative, a norm is enlarged so that factor times norm is at most C; see the module."""
    # A layer's two sums, their product and its sum; root, margin, factor, and the weighted error's rounding.
    operations = max(layer.inputs + layer.outputs for layer in layers) + 2 * len(layers) + 10
    return operations * _UNIT / (1.0 - operations * _UNIT)


def _matrices(layers: Sequence[Layer], flat: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    """Views of the weights `(R, outputs, inputs)` and biases `(R, outputs)` of each layer."""
    return [
        (
            flat[:, layer.weight].view(-1, layer.outputs, layer.inputs),
            None if layer.bias is None else flat[:, layer.bias],
        )
        for layer in layers
    ]


class StackedClassifiers:
    """R classifiers of linear layers, and a pool of encoded images; implements `Stacked`.

    Samples are cut into passes of one width, which depends on the plans' public numbers, so that the
    products' shapes do not depend on who takes part.
    """

    def __init__(
        self,
        model: Model,
        weights: Tensor,
        records: Sequence[Record],
        plans: Sequence[Plan],
        precision: str = "float32",
    ) -> None:
        """Encode the pool `records`.

        `weights`: shape `(R, d)`; read at every call. `precision`: of a step's products. Raises as
        `layers_of`, and as `workbench.training.precision.require_fast`.
        """
        self._model, self._layers, self._weights = model, layers_of(model.module), weights
        self._precision = precision
        self._network = StackedNetwork(self._layers, weights, precision)
        batch = model.encode(records)
        self._images, self._labels = batch["images"], batch["labels"]
        self._width = _width(plans)
        if precision == "bfloat16":
            largest = max(self._layers, key=lambda layer: layer.inputs * layer.outputs)
            left = (len(weights), largest.outputs, largest.inputs)
            require_fast(left, (len(weights), largest.inputs, self._width), weights.device)

    def add_sums(
        self, indices: IntArray, sizes: IntArray, factors: Factors | None, total: Tensor
    ) -> FloatArray:
        """See `Stacked`."""
        summed = np.zeros(len(sizes))
        for start in range(0, max(int(sizes.max()), 1), self._width):
            part = indices[:, start : start + self._width]
            if start == 0:
                summed += self._pass(self._network, part, sizes, factors, total)
                continue
            more = np.flatnonzero(sizes > start)
            chosen = torch.from_numpy(more).to(total.device)
            sums = torch.zeros_like(total[chosen])
            rest = StackedNetwork(self._layers, self._weights[chosen], self._precision)
            summed[more] += self._pass(rest, part[more], sizes[more] - start, factors, sums)
            total.index_add_(0, chosen, sums)
        return summed

    def _pass(
        self,
        network: StackedNetwork,
        indices: IntArray,
        sizes: IntArray,
        factors: Factors | None,
        total: Tensor,
    ) -> FloatArray:
        images, labels = self._rows(indices)
        signals = network.signals(images, labels)
        counts = torch.from_numpy(np.arange(images.shape[1]) < sizes[:, None]).to(images.device)
        weights = counts.to(signals.losses)
        if factors is not None:
            norms = signals.norms() if self._precision == "float32" else signals.safe_norms()
            weights = factors(norms).masked_fill_(~counts, 0.0)
        signals.add_sums(weights, total)
        summed: FloatArray = signals.losses.masked_fill(~counts, 0.0).cpu().double().sum(1).numpy()
        return summed

    def _rows(self, indices: IntArray) -> tuple[Tensor, Tensor]:
        """Images `(R, width, features)` and labels `(R, width)` at indices `(R, n)`, n at most the width.

        Filled up with the first record.
        """
        filled = np.zeros((len(indices), self._width), dtype=np.int64)
        filled[:, : indices.shape[1]] = indices
        flat = torch.from_numpy(filled).to(self._images.device)
        images = self._images.index_select(0, flat.view(-1))
        return images.view(*flat.shape, -1), self._labels[flat]

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """See `Stacked`."""
        batch, count = self._model.encode(records), len(self._weights)
        images, labels = batch["images"].expand(count, -1, -1), batch["labels"].expand(count, -1)
        losses: FloatArray = self._network.losses(images, labels).cpu().double().numpy()
        return losses


def _width(plans: Sequence[Plan]) -> int:
    """Records of one model in a pass: more than most samples have."""
    q = plans[0].sampling_probability
    expected = q * max(averaging_size(plan) for plan in plans)
    wide = math.ceil((expected + 3 * math.sqrt(expected * (1 - q))) / 8) * 8
    return min(wide, WIDEST_PASS)
