"""The vocabulary of weight permutations: units, the slots that they permute, and layers with two sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

CONV1D = "transformers.pytorch_utils.Conv1D"
"""A linear layer whose weight lies the other way: rows are inputs."""


@dataclass(frozen=True)
class Slot:
    """A stretch of a parameter's axis whose indices a unit permutes.

    Attributes:
        parameter: The parameter's name, as in `named_parameters`.
        axis: Of the parameter, from 0.
        start: First index on the axis; the unit's `size` indices from there are permuted among themselves.
    """

    parameter: str
    axis: int
    start: int


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Indices that are permuted together wherever they occur; independent of every other unit.

    Attributes:
        name: Unique within a group.
        kind: `"mlp"` (P_1 of Theorem 3), `"query-key"` (P_1i of Theorem 4) or `"value"` (P_2 of it).
        size: How many indices are permuted.
        slots: Where they occur.
    """

    name: str
    kind: str
    size: int
    slots: tuple[Slot, ...]

    def features(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """All numbers that move with each index, its slots side by side.

        Args:
            tensors: By parameter name; each of its parameter's shape. All slots must be there.

        Returns:
            Shape `(size, m)`: row i goes wherever index i goes. A number whose two axes are permuted by two
            units occurs in both units' features.
        """
        blocks = [
            tensors[slot.parameter]
            .narrow(slot.axis, slot.start, self.size)
            .movedim(slot.axis, 0)
            .reshape(self.size, -1)
            for slot in self.slots
        ]
        return torch.cat(blocks, dim=1)


@dataclass
class Found:
    """What a search through a module has come upon.

    Attributes:
        units: Units whose permutation leaves the module's function as it is.
        reasons: Why a parameter that was looked at is in no unit.
    """

    units: list[Unit] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Projection:
    """A linear layer by its sides.

    Attributes:
        name: Of the layer.
        inputs: Their number.
        outputs: Their number.
        weight_axes: Axis of the inputs and axis of the outputs in the weight.
        has_bias: Whether a bias is added to the outputs.
    """

    name: str
    inputs: int
    outputs: int
    weight_axes: tuple[int, int]
    has_bias: bool

    @classmethod
    def of(cls, name: str, layer: object) -> Projection | None:
        """A plain linear layer; None for anything else, such as a layer with an adapter."""
        if type(layer) is not nn.Linear and qualified(layer) != CONV1D:
            return None
        assert isinstance(layer, nn.Module)
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if weight is None:
            return None
        axes = (1, 0) if type(layer) is nn.Linear else (0, 1)
        return cls(name, weight.shape[axes[0]], weight.shape[axes[1]], axes, bias is not None)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of weight and bias."""
        return (f"{self.name}.weight", *([f"{self.name}.bias"] if self.has_bias else []))

    def into(self, start: int) -> list[Slot]:
        """What moves where inputs from `start` on are permuted."""
        return [Slot(f"{self.name}.weight", self.weight_axes[0], start)]

    def out_of(self, start: int) -> list[Slot]:
        """What moves where outputs from `start` on are permuted, the bias among it."""
        slots = [Slot(f"{self.name}.weight", self.weight_axes[1], start)]
        return slots + ([Slot(f"{self.name}.bias", 0, start)] if self.has_bias else [])


@dataclass(frozen=True)
class Heads:
    """Where each head's outputs start in a projection."""

    projection: Projection
    starts: Sequence[int]


def qualified(thing: object) -> str:
    """Module and name of a thing's own class."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def hidden_unit(name: str, first: Projection, second: Projection, gate: Projection | None = None) -> Unit:
    """P_1 of Theorem 3: the units between two layers, and those of the gate that multiplies them."""
    slots = [*first.out_of(0), *(gate.out_of(0) if gate is not None else []), *second.into(0)]
    return Unit(name=name, kind="mlp", size=first.outputs, slots=tuple(slots))


def query_key_units(name: str, query: Heads, key: Heads, size: int) -> list[Unit]:
    """P_1i of Theorem 4: one unit a head."""
    return [
        Unit(
            name=f"{name}.head_{head}.query_key",
            kind="query-key",
            size=size,
            slots=(*query.projection.out_of(starts[0]), *key.projection.out_of(starts[1])),
        )
        for head, starts in enumerate(zip(query.starts, key.starts, strict=True))
    ]


def value_units(name: str, value: Heads, output: Projection, size: int, *, one_per_head: bool) -> list[Unit]:
    """P_2 and P_3 of Theorem 4: one unit for all heads (Eq. 15), or one for each head of the values.

    Args:
        name: Of the attention block.
        value: The heads of the values; each serves as many of the output's inputs as there are heads of
            queries to it, one after the other.
        output: The projection behind the heads.
        size: Of a head.
        one_per_head: Whether each head has a permutation of its own.
    """
    shared = output.inputs // (size * len(value.starts))
    slots = [
        [
            *value.projection.out_of(start),
            *(slot for i in range(shared) for slot in output.into((head * shared + i) * size)),
        ]
        for head, start in enumerate(value.starts)
    ]
    if one_per_head:
        return [
            Unit(name=f"{name}.head_{head}.value", kind="value", size=size, slots=tuple(own))
            for head, own in enumerate(slots)
        ]
    together = tuple(slot for own in slots for slot in own)
    return [Unit(name=f"{name}.value", kind="value", size=size, slots=together)]
