"""Per-record gradients of any module: the gradient of one record, mapped over the batch by `torch.func`.

Costs 1.5 to 2.6 times a plain step, and memory for one gradient a record of a block. A batch whose
gradients fit into one block is computed once; a larger one again for the weighted sum, block by block,
with the same random numbers (dropout), so that what is summed is what was measured and clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.core.errors import UnsupportedError
from workbench.interfaces import Groups
from workbench.training.flat import FlatLayout, squared_norms
from workbench.training.groups import Grouping
from workbench.training.replay import random_state, with_random_state
from workbench.training.verify import verify_once

if TYPE_CHECKING:
    from workbench.interfaces import Model

_BLOCK_ELEMENTS = 2**26
"""Largest number of gradient entries held at once: 256 MiB of float32."""


@contextmanager
def _mappable_attention(module: torch.nn.Module) -> Iterator[None]:
    """Attention that can be mapped: torch's by its plain formula, transformers' by its "eager" code.

    The fused kernels have no batching rule, and the masks of "sdpa" branch on values.
    """
    changed = []
    for part in module.modules():
        switch = getattr(part, "set_attn_implementation", None)
        config = getattr(part, "config", None)
        if callable(switch) and getattr(config, "_attn_implementation", None) == "sdpa":
            switch("eager")
            changed.append(switch)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for switch in changed:
            switch("sdpa")


class _Losses(torch.nn.Module):
    """The model's losses as a module's forward, so that `functional_call` can swap the parameters."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.inner = model.module
        self._model = [model]  # in a list: a model that is itself a module must not be registered twice

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._model[0].losses(batch)


class VmapSignals:
    """Signals whose gradients are computed in blocks of records; see the module's docstring."""

    def __init__(self, model: Model, batch: Mapping[str, Tensor], layout: FlatLayout, n: int) -> None:
        """Runs forward and backward of all records once, for their norms and losses.

        Raises:
            UnsupportedError: the module cannot be mapped over records.
        """
        self._layout = layout
        self._batch = batch
        self._wrapped = _Losses(model)
        self._n = n
        self._block = max(1, min(n, _BLOCK_ELEMENTS // layout.dimension))
        self._random = random_state(layout.device)
        self._versions = [p._version for p in layout.parameters]
        self._kept: tuple[Tensor, ...] | None = None
        norms, losses, kept = [], [], []
        for _, gradients, values in self._blocks():
            squares = torch.stack([squared_norms(g.flatten(1).to(layout.dtype)) for g in gradients])
            norms.append(squares.sum(0).sqrt().to(layout.dtype))
            kept.append(squares.T)
            losses.append(values)
            if self._block == n:
                self._kept = gradients
        self._norms = torch.cat(norms)
        self._squares = torch.cat(kept)
        self.losses = torch.cat(losses)

    @property
    def n(self) -> int:
        """Number of records."""
        return self._n

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._layout.dimension

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._layout.places

    def norms(self) -> Tensor:
        """Euclidean norm of each record's gradient, shape `(n,)`."""
        return self._norms.clone()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`.

        Raises:
            UnsupportedError: the batch took several blocks, and the parameters were updated since.
        """
        self._layout.check_weights(weights, self._n)
        total = self._layout.zeros()
        weights = weights.to(total)
        for rows, gradients in self._again():
            for (place, _), gradient in zip(self._layout.places.values(), gradients, strict=True):
                total[place] += weights[rows] @ gradient.flatten(1).to(total)
        return total

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`.

        Raises:
            UnsupportedError: as `weighted_sum`.
        """
        found = torch.zeros(self._n, self.dimension, dtype=self._layout.dtype, device=self._layout.device)
        for rows, gradients in self._again():
            for (place, _), gradient in zip(self._layout.places.values(), gradients, strict=True):
                found[rows, place] = gradient.flatten(1).to(found)
        return found

    def group_norms(self, groups: Groups) -> Tensor:
        """Norm of each group's part of each record's gradient, shape `(n, G)`."""
        return Grouping.of(groups, self._layout.places).norms(self._squares, self._layout.dtype)

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Sum over records, each group's part weighted by its own column, shape `(d,)`.

        Raises:
            UnsupportedError: as `weighted_sum`.
        """
        grouping = Grouping.of(groups, self._layout.places)
        grouping.check_weights(weights, self._n)
        total = self._layout.zeros()
        columns = weights.to(total).T.contiguous()
        places = [place for place, _ in self._layout.places.values()]
        for rows, gradients in self._again():
            for place, gradient, group in zip(places, gradients, grouping.of_parameter, strict=True):
                total[place] += columns[group, rows] @ gradient.flatten(1).to(total)
        return total

    def _again(self) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
        """The gradients of each block once more: those that were kept, or the same computed again."""
        if self._kept is not None:
            yield slice(0, self._n), self._kept
            return
        if self._versions != [p._version for p in self._layout.parameters]:
            raise UnsupportedError("method 'vmap' cannot sum gradients after the parameters were updated")
        with with_random_state(self._random, self._layout.device):
            for rows, gradients, _ in self._blocks():
                yield rows, gradients

    def _blocks(self) -> Iterator[tuple[slice, tuple[Tensor, ...], Tensor]]:
        """Rows, gradients by parameter of shape `(rows, *shape)`, and losses, block by block."""
        names = self._layout.names
        values = {f"inner.{name}": p.detach() for name, p in zip(names, self._layout.parameters, strict=True)}

        def loss(parameters: dict[str, Tensor], record: dict[str, Tensor]) -> Tensor:
            batch_of_one = {name: tensor.unsqueeze(0) for name, tensor in record.items()}
            return cast("Tensor", functional_call(self._wrapped, parameters, (batch_of_one,)).sum())

        mapped = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different")
        for start in range(0, self._n, self._block):
            rows = slice(start, min(self._n, start + self._block))
            try:
                with _mappable_attention(self._wrapped.inner):
                    gradients, losses = mapped(values, {k: v[rows] for k, v in self._batch.items()})
            except RuntimeError as error:
                name = type(self._wrapped.inner).__name__
                raise UnsupportedError(
                    f"method 'vmap' cannot treat module {name}: {_first_words(error)}"
                ) from error
            yield rows, tuple(gradients[f"inner.{name}"].detach() for name in names), losses.detach()


def _first_words(error: Exception) -> str:
    """A message's beginning: torch's run over many lines."""
    line = str(error).split("\n", maxsplit=1)[0]
    return line if len(line) <= 160 else line[:160] + "..."


def vmap_signals(model: Model, batch: Mapping[str, Tensor], layout: FlatLayout, n: int) -> VmapSignals:
    """Signals of a batch of n > 0 records by `torch.func.vmap`; see `VmapSignals`.

    Raises:
        UnsupportedError: the module cannot be mapped, or its records depend on each other.
    """
    signals = VmapSignals(model, batch, layout, n)
    # No state: mapped dropout draws other masks than a plain pass.
    verify_once(model, batch, signals, layout, pattern=("vmap", model.module.training), state=None)
    return signals
