"""What an ensemble needs of R models of one architecture: losses, and weighted sums of records' gradients.

`workbench.training.ensemble.network` has those of linear layers with ReLU between them, and
`workbench.training.ensemble.adapters` LoRA adapters over one frozen language model. Weights of a model are a
row of a matrix, in the order of the flat vector of its trainable parameters.

    >>> flat_of(torch.nn.Linear(2, 3)).shape
    torch.Size([9])
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from workbench.interfaces import FloatArray, IntArray, Model, Record
from workbench.training.fine_tuning import trainable

Factors = Callable[[Tensor], Tensor]
"""From norms of gradients to factors on them, elementwise, for tensors of any shape."""


class Stacked(Protocol):
    """R models and a pool of encoded records; the models' weights are read at every call, and may change."""

    def add_sums(
        self, indices: IntArray, sizes: IntArray, factors: Factors | None, total: Tensor
    ) -> FloatArray:
        """Add each model's sum over its sample of factor times gradient to its row of `total`, in place.

        Args:
            indices: Into the pool, shape `(R, n)`, of which the first `sizes[r]` count in row r.
            sizes: Of the samples, shape `(R,)`; may be 0.
            factors: None for factors of one.
            total: Shape `(R, d)`.

        Returns each sample's summed losses, nats, shape `(R,)`.
        """

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """Loss of each record under each model, nats, shape `(R, n)`; the records need not be in the pool."""


def flat_of(module: nn.Module) -> Tensor:
    """The trainable parameters of a module as a flat vector, shape `(d,)`."""
    return torch.cat([p.detach().reshape(-1) for p in trainable(module).values()])


def write_flat(module: nn.Module, flat: Tensor) -> None:
    """Write a flat vector, shape `(d,)`, to the trainable parameters of a module."""
    start = 0
    with torch.no_grad():
        for parameter in trainable(module).values():
            parameter.copy_(flat[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()


def twin_of(model: Model, *, shares_all: bool = False) -> Model:
    """A copy of a model that shares its frozen parameters, or all, and has others of its own."""
    shared = {id(p): p for p in model.module.parameters() if shares_all or not p.requires_grad}
    twin = copy.copy(model)
    twin.module = _twin_of_layers(model.module, shared)
    return twin


def _twin_of_layers(module: nn.Module, shared: dict[int, nn.Parameter]) -> nn.Module:
    """`copy.deepcopy` with parameters that are shared, which takes ten times as long for simple layers."""
    parts = list(module) if type(module) is nn.Sequential else [module]
    parameters = [p for part in parts for p in part._parameters.values() if p is not None]
    is_tied = len({*map(id, parts)}) < len(parts) or len({*map(id, parameters)}) < len(parameters)
    if is_tied or any(type(part) not in (nn.Linear, nn.ReLU) for part in parts):
        return copy.deepcopy(module, dict(shared))
    twin = copy.copy(module)
    vars(twin).update(
        {name: copy.copy(held) for name, held in vars(module).items() if isinstance(held, dict)}
    )
    for name, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in shared:
            twin._parameters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    for name, part in module._modules.items():
        twin._modules[name] = part and _twin_of_layers(part, shared)
    return twin
