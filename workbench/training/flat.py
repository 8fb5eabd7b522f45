"""The flat vector of trainable parameters, and the shapes that every engine checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.errors import InputError

_BLOCK = 1024
"""Entries that are summed in float32 before float64 takes over."""


@dataclass(frozen=True, kw_only=True)
class FlatLayout:
    """Where each trainable parameter lies in the flat vector.

    Attributes:
        names: Names in the order of `named_parameters()`, tied parameters once.
        parameters: The parameters of those names.
        places: Slice into the flat vector and shape, by name.
        dimension: Length d of the flat vector.
        dtype: Its type: that of the parameters, float32 at least.
        device: Where the parameters live.
    """

    names: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    places: Mapping[str, tuple[slice, torch.Size]]
    dimension: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, module: torch.nn.Module) -> FlatLayout:
        """The layout of the module's parameters with `requires_grad`.

        Raises:
            InputError: the module has no trainable parameter, or they lie on several devices.
        """
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise InputError("module must have a trainable parameter, got none with requires_grad")
        if len({p.device for _, p in named}) > 1:
            raise InputError("the trainable parameters must lie on one device")
        places: dict[str, tuple[slice, torch.Size]] = {}
        dtype, start = torch.float32, 0
        for name, parameter in named:
            places[name] = (slice(start, start + parameter.numel()), parameter.shape)
            start += parameter.numel()
            dtype = torch.promote_types(dtype, parameter.dtype)
        return cls(
            names=tuple(places),
            parameters=tuple(p for _, p in named),
            places=places,
            dimension=start,
            dtype=dtype,
            device=named[0][1].device,
        )

    def zeros(self) -> Tensor:
        """A flat vector of zeros, shape `(d,)`."""
        return torch.zeros(self.dimension, dtype=self.dtype, device=self.device)

    def flatten(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """One flat vector of the parameters' gradients; None counts as zero."""
        flat = self.zeros()
        for (place, _), gradient in zip(self.places.values(), gradients, strict=True):
            if gradient is not None:
                flat[place] = gradient.reshape(-1)
        return flat

    def check_weights(self, weights: Tensor, n: int) -> None:
        """Refuse weights that are not one number a record.

        Raises:
            InputError: `weights` is not of shape `(n,)`.
        """
        if weights.shape != (n,):
            raise InputError(f"weights must have shape ({n},), got {tuple(weights.shape)}")


def squared_norms(rows: Tensor) -> Tensor:
    """Squared Euclidean norm of each row of a matrix, float64.

    By blocks: over a million float32 entries torch's own norm is off by 3e-5, and its float64 one is slow.
    """
    if rows.shape[1] <= _BLOCK:
        return _norms(rows).square()
    blocks = rows.shape[1] // _BLOCK
    whole = rows[:, : blocks * _BLOCK].view(len(rows), blocks, _BLOCK)
    return _norms(whole).square().sum(1) + _norms(rows[:, blocks * _BLOCK :]).square()


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return norms.double()


def batch_size(batch: Mapping[str, Tensor]) -> int:
    """Number n of records in a batch.

    Raises:
        InputError: the batch is empty of tensors, or their first dimensions differ.
    """
    sizes = {name: tensor.shape[0] if tensor.ndim else None for name, tensor in batch.items()}
    found = set(sizes.values())
    if len(found) != 1 or None in found:
        raise InputError(f"batch must hold tensors of one first dimension, got {sizes}")
    (n,) = found
    assert n is not None
    return n
