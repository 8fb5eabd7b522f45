"""The flat vector of trainable parameters, groups of parameters, and the base of all per-record signals.

Mechanisms may clip groups of parameters separately. `Grouping` is a checked `interfaces.Groups`; it computes
group norms from the squared norms of each parameter's gradient, which every engine computes anyway.

    >>> import torch
    >>> places = FlatLayout.of(torch.nn.Linear(2, 3)).places
    >>> grouping = Grouping.of([["bias"], ["weight"]], places)
    >>> grouping.norms(torch.tensor([[9.0, 16.0]]), torch.float32)
    tensor([[4., 3.]])
    >>> [grouping.coordinate(0, index, places) for index in range(4)]
    [6, 7, 8, 6]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.interfaces import Groups
from workbench.training.devices import wide_dtype, widened

_BLOCK = 1024
"""Entries that are summed in float32 before float64 takes over."""

Layout = Mapping[str, tuple[slice, torch.Size]]
"""Place and shape of each named parameter in the flat vector, as of `Signals.layout`."""


@dataclass(frozen=True, kw_only=True)
class FlatLayout:
    """Where each trainable parameter lies in the flat vector of length d = `dimension`.

    Names are in the order of `named_parameters()`, tied parameters once; `dtype` is the parameters', float32
    at least.
    """

    names: tuple[str, ...]
    parameters: tuple[Tensor, ...]
    places: Layout
    dimension: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, module: torch.nn.Module) -> FlatLayout:
        """The layout of the module's parameters with `requires_grad`; an `InputError` without any."""
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
        """The parameters' gradients as one flat vector; None counts as zero."""
        flat = self.zeros()
        for (place, _), gradient in zip(self.places.values(), gradients, strict=True):
            if gradient is not None:
                flat[place] = gradient.reshape(-1)
        return flat


def check_weights(weights: Tensor, *shape: int) -> None:
    """Refuse weights that are not of this shape, with an `InputError`."""
    if weights.shape != shape:
        raise InputError(f"weights must have shape {shape}, got {tuple(weights.shape)}")


def squared_norms(rows: Tensor) -> Tensor:
    """Squared Euclidean norm of each row of a matrix, float64.

    In blocks: over a million float32 entries torch's norm is off by 3e-5, and its float64 norm is slow.
    """
    if rows.shape[1] <= _BLOCK:
        return _norms(rows).square()
    blocks = rows.shape[1] // _BLOCK
    whole = rows[:, : blocks * _BLOCK].view(len(rows), blocks, _BLOCK)
    return _norms(whole).square().sum(1) + _norms(rows[:, blocks * _BLOCK :]).square()


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return widened(norms)


def batch_size(batch: Mapping[str, Tensor]) -> int:
    """Number n of records in a batch; an `InputError` where its tensors do not share it."""
    sizes = {name: tensor.shape[0] if tensor.ndim else None for name, tensor in batch.items()}
    n = next(iter(sizes.values()), None)
    if n is None or set(sizes.values()) != {n}:
        raise InputError(f"batch must hold tensors of one first dimension, got {sizes}")
    return n


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """A partition of a layout's parameters into G = `size` groups: the index of each parameter's group."""

    of_parameter: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, groups: Groups, places: Layout) -> Grouping:
        """The groups, checked to be a partition of the layout's names; an `InputError` where they are not."""
        group_of: dict[str, int] = {}
        for index, names in enumerate(groups):
            if not names:
                raise InputError(f"groups must not be empty, got no parameter in group {index}")
            for name in names:
                if name not in places:
                    raise InputError(f"groups must name trainable parameters, got {name!r}")
                if name in group_of:
                    raise InputError(f"groups must hold each trainable parameter once, got {name!r} twice")
                group_of[name] = index
        for name in places:
            if name not in group_of:
                raise InputError(f"groups must hold each trainable parameter once, got {name!r} in none")
        return cls(of_parameter=tuple(group_of[name] for name in places), size=len(groups))

    def norms(self, squares: Tensor, dtype: torch.dtype) -> Tensor:
        """Norm of each group's part, shape `(n, G)`, from squared norms by parameter, shape `(n, P)`.

        Summed in float64. Sums that rounding left just below zero count as zero; NaN stays NaN.
        """
        index = torch.tensor(self.of_parameter, device=squares.device)
        total = torch.zeros(len(squares), self.size, dtype=wide_dtype(squares.device), device=squares.device)
        return total.index_add_(1, index, squares.to(total)).clamp(min=0.0).sqrt().to(dtype)

    def coordinate(self, group: int, index: int, places: Layout) -> int:
        """Place in the flat vector of a group's coordinate `index`, which counts modulo the group's size."""
        members = [
            place
            for member_of, (place, _) in zip(self.of_parameter, places.values(), strict=True)
            if member_of == group and place.stop > place.start
        ]
        left = index % sum(place.stop - place.start for place in members)
        for place in members:
            if left < place.stop - place.start:
                break
            left -= place.stop - place.start
        return int(place.start + left)

    def at(self, coordinate: int, places: Layout) -> int:
        """The group that a coordinate of the flat vector lies in."""
        for group, (place, _) in zip(self.of_parameter, places.values(), strict=True):
            if place.start <= coordinate < place.stop:
                return group
        raise InputError(f"coordinate must be one of the trainable parameters, got {coordinate}")


def squares_by_parameter(rows: Tensor, places: Layout) -> Tensor:
    """Squared norms of each parameter's part of each row, shape `(n, P)`, float64; rows of shape `(n, d)`."""
    return torch.stack([squared_norms(rows[:, place]) for place, _ in places.values()], dim=1)


class PerRecordSignals(ABC):
    """`workbench.interfaces.Signals` of real records: the base class of all engines.

    `losses`: per-record losses, shape `(n,)`, detached.
    """

    def __init__(self, layout: FlatLayout, losses: Tensor, norms: Tensor, squares: Tensor) -> None:
        """Keep losses and norms, shape `(n,)`, norms in the type of the sums, and `squares`.

        `squares` are the squared norms by parameter, shape `(n, P)`.
        """
        self._layout = layout
        self.losses = losses
        self._norms = norms
        self._squares = squares

    @property
    def n(self) -> int:
        """Number of records in the batch."""
        return len(self.losses)

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._layout.dimension

    @property
    def layout(self) -> Layout:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._layout.places

    def norms(self) -> Tensor:
        """Euclidean norm of each record's gradient, shape `(n,)`."""
        return self._norms.clone()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`."""
        check_weights(weights, self.n)
        return self._summed(weights.detach().to(self._norms)[None], (0,) * len(self.layout))

    @abstractmethod
    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`."""

    def group_norms(self, groups: Groups) -> Tensor:
        """Norm of each group's part of each record's gradient, shape `(n, G)`."""
        return Grouping.of(groups, self.layout).norms(self._squares, self._norms.dtype)

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Sum over records, each group's part weighted by its own column, shape `(d,)`."""
        grouping = Grouping.of(groups, self.layout)
        check_weights(weights, self.n, grouping.size)
        return self._summed(weights.detach().to(self._norms).T.contiguous(), grouping.of_parameter)

    @abstractmethod
    def _summed(self, columns: Tensor, group_of: tuple[int, ...]) -> Tensor:
        """The sum with weights `columns`, shape `(G, n)`: the row `group_of[p]` for parameter p."""
