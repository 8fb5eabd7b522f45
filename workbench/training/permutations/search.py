"""Which weights of a module can be permuted: units of indices, in known architectures and plain sequences.

A unit is a set of indices that are permuted together wherever they occur (Theorems 3 and 4; see the
package). A transformer is known by the exact class of its blocks: a subclass may compute something else, and
is left alone. Beyond those, hidden layers are found in plain `nn.Sequential`s only, where the code between
two linear layers is in sight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        """All numbers that move with each index, its slots side by side, shape `(size, m)`.

        Row i goes wherever index i goes. A number whose two axes are permuted by two units occurs in both
        units' features. `tensors` has every slot's parameter by name.
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

    Each head of the values serves as many of the output's inputs as there are heads of queries to it, one
    after the other.
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
            Unit(name=f"{name}.head_{head}.value", kind="value", size=size, slots=tuple(head_slots))
            for head, head_slots in enumerate(slots)
        ]
    together = tuple(slot for head_slots in slots for slot in head_slots)
    return [Unit(name=f"{name}.value", kind="value", size=size, slots=together)]


ROTARY = "rotary embeddings"
GROUPED = "grouped queries"
GATED = "gated layer"
NORMALISED = "normalisation follows"
CROSS = "cross-attention"
ADAPTED = "adapter"
NOT_ELEMENTWISE = "no elementwise activation follows"
SECOND_BIAS = "added after the permuted sum"

ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Hardtanh,
    nn.Hardsigmoid, nn.Hardswish, nn.Threshold, nn.Identity, nn.Dropout,
)  # fmt: skip
"""Layers that treat every number alike and by itself (dropout in distribution)."""
NORMALISATIONS = ("LayerNorm", "RMSNorm", "BatchNorm", "GroupNorm", "InstanceNorm")
TRANSFORMERS_ACTIVATIONS = ("transformers.activations", "transformers.models.bloom.modeling_bloom")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far the permutations go; by default as far as the theorems as printed.

    Attributes:
        value_per_head: One P_2 for each head, where Eq. 15 has one for all.
        gated: Hidden layers whose units a second layer multiplies: gate and unit move together.
        grouped: Values that several heads of queries share.
    """

    value_per_head: bool = False
    gated: bool = False
    grouped: bool = False


def search(module: nn.Module, reach: Reach) -> Found:
    """All units of a module, and reasons for the parameters that were looked at and found uncovered."""
    units_and_reasons = Found()
    for name, part in module.named_modules():
        block = Block(name, part, units_and_reasons, reach)
        if type(part) is nn.Sequential:
            _sequence(block)
        elif (known := FAMILIES.get(qualified(part))) is not None:
            known(block)
    return units_and_reasons


def is_normalisation(part: object) -> bool:
    """Whether a layer normalises, by the name of its class."""
    return any(word in type(part).__name__ for word in NORMALISATIONS)


def is_elementwise(part: object) -> bool:
    """Whether a layer treats every number alike and by itself, or permutes with the last axis."""
    if type(part) in ELEMENTWISE or qualified(part).rpartition(".")[0] in TRANSFORMERS_ACTIVATIONS:
        return True
    if isinstance(part, nn.PReLU):
        return part.num_parameters == 1
    # Not elementwise, though the theorem says so; but it permutes with its axis.
    return type(part) is nn.Softmax and part.dim == -1


@dataclass(frozen=True)
class Block:
    """A module on its place in the search."""

    name: str
    part: nn.Module
    found: Found
    reach: Reach

    def projection(self, path: str) -> Projection | None:
        """The linear layer at an attribute path of the block; None, noted, where it is not a plain one."""
        name = f"{self.name}.{path}" if self.name else path
        layer: Any = self.part.get_submodule(path)
        projection = Projection.of(name, layer)
        if projection is None:
            self.refuse(name, layer, ADAPTED)
        return projection

    def projections(self, *paths: str) -> tuple[Projection, ...] | None:
        """The linear layers at some paths; None where one is not plain, the others noted with it."""
        layers = [self.projection(path) for path in paths]
        plain = tuple(projection for projection in layers if projection is not None)
        if len(plain) == len(layers):
            return plain
        self.leave(ADAPTED, *plain)
        return None

    def leave(self, reason: str, *layers: Projection) -> None:
        """Note why layers are in no unit."""
        for layer in layers:
            self.found.reasons.update(dict.fromkeys(layer.parameters, reason))

    def refuse(self, name: str, layer: nn.Module, reason: str) -> None:
        """Note why the parameters inside a layer are in no unit."""
        self.found.reasons.update({f"{name}.{inner}": reason for inner, _ in layer.named_parameters()})

    def behind(self, layer: Projection) -> None:
        """Note the bias that is added behind the sum over permuted indices (b_{t+1} in Eq. 13)."""
        if layer.has_bias:
            self.found.reasons.setdefault(f"{layer.name}.bias", SECOND_BIAS)


def _sequence(block: Block) -> None:
    """Hidden layers of a plain sequence: linear, elementwise, linear."""
    first: Projection | None = None
    reason = ""
    for index, layer in block.part._modules.items():  # `named_children` leaves out a layer's second place.
        name = f"{block.name}.{index}" if block.name else index
        projection = Projection.of(name, layer)
        if projection is None:
            reason = reason or _obstacle(layer)
            continue
        if first is not None and not reason and first.outputs == projection.inputs:
            block.found.units.append(hidden_unit(f"{first.name}.hidden", first, projection))
            block.behind(projection)
        elif first is not None:
            block.leave(reason or NOT_ELEMENTWISE, first)
        first, reason = projection, ""


def _obstacle(layer: object) -> str:
    """Why hidden units may not be permuted across a layer; empty where they may."""
    if is_elementwise(layer):
        return ""
    return NORMALISED if is_normalisation(layer) else NOT_ELEMENTWISE


def _hidden(first: str, second: str, activation: str) -> Callable[[Block], None]:
    """The two-layer perceptron of a block (Def. 3)."""

    def add(block: Block) -> None:
        layers = block.projections(first, second)
        if layers is None:
            return
        owner, _, attribute = activation.rpartition(".")
        between = getattr(block.part.get_submodule(owner), attribute) if attribute else nn.Identity()
        if not is_elementwise(between):
            block.leave(NOT_ELEMENTWISE, *layers)
            return
        block.found.units.append(hidden_unit(f"{layers[0].name}.hidden", *layers))
        block.behind(layers[1])

    return add


def _gated(block: Block) -> None:
    """down(act(gate(x)) * up(x)): the theorem has no product of layers, yet one permutation may pass."""
    layers = block.projections("gate_proj", "up_proj", "down_proj")
    if layers is None:
        return
    gate, up, down = layers
    if not block.reach.gated or not is_elementwise(block.part.act_fn):
        block.leave(GATED, *layers)
        return
    block.found.units.append(hidden_unit(f"{up.name}.hidden", up, down, gate))
    block.behind(down)


def _attention(block: Block, query: Heads, key: Heads, value: Heads, output: Projection) -> None:
    """Queries, keys and values of an attention without rotary embeddings or shared heads (Def. 4)."""
    size = output.inputs // len(query.starts)
    block.found.units += query_key_units(block.name, query, key, size)
    per_head = block.reach.value_per_head
    block.found.units += value_units(block.name, value, output, size, one_per_head=per_head)
    block.behind(output)


def _apart(block: Block, paths: tuple[str, str, str, str], heads: int) -> None:
    """Attention with a layer each for queries, keys, values and output."""
    layers = block.projections(*paths)
    if layers is None:
        return
    query, key, value, output = layers
    starts = range(0, output.inputs, output.inputs // heads)
    _attention(block, Heads(query, starts), Heads(key, starts), Heads(value, starts), output)


def _fused(block: Block, paths: tuple[str, str], heads: int, *, interleaved: bool) -> None:
    """Attention whose queries, keys and values are one layer's outputs: part by part, or head by head."""
    layers = block.projections(*paths)
    if layers is None:
        return
    together, output = layers
    size = output.inputs // heads
    starts = [
        [
            (head * 3 + part) * size if interleaved else part * output.inputs + head * size
            for head in range(heads)
        ]
        for part in range(3)
    ]
    query, key, value = (Heads(together, heads_starts) for heads_starts in starts)
    _attention(block, query, key, value, output)


def _rotary(block: Block) -> None:
    """Rotary embeddings turn pairs of query and key entries by angles of their own: those stay."""
    layers = block.projections("q_proj", "k_proj", "v_proj", "o_proj")
    if layers is None:
        return
    query, key, value, output = layers
    block.leave(ROTARY, query, key)
    size = int(block.part.head_dim)  # type: ignore[arg-type]  # a number on every class of the table
    heads = value.outputs // size
    if heads != output.inputs // size and not block.reach.grouped:
        block.leave(GROUPED, value, output)
        return
    starts = Heads(value, range(0, value.outputs, size))
    per_head = block.reach.value_per_head
    block.found.units += value_units(block.name, starts, output, size, one_per_head=per_head)
    block.behind(output)


def _bert_attention(block: Block) -> None:
    """Attention of BERT and RoBERTa, its layers in two parts."""
    inner: Any = block.part.get_submodule("self")
    if "Cross" in type(inner).__name__:
        block.refuse(block.name, block.part, CROSS)
        return
    paths = ("self.query", "self.key", "self.value", "output.dense")
    _apart(block, paths, int(inner.num_attention_heads))


def _gpt2_attention(block: Block) -> None:
    part: Any = block.part
    if part.is_cross_attention:
        block.refuse(block.name, block.part, CROSS)
        return
    _fused(block, ("c_attn", "c_proj"), int(part.num_heads), interleaved=False)


def _bloom_attention(block: Block) -> None:
    part: Any = block.part
    _fused(block, ("query_key_value", "dense"), int(part.num_heads), interleaved=True)


def _vit_attention(block: Block) -> None:
    part: Any = block.part
    _apart(block, ("q_proj", "k_proj", "v_proj", "o_proj"), int(part.num_attention_heads))


def _digits_attention(block: Block) -> None:
    part: Any = block.part
    _fused(block, ("query_key_value", "projection"), int(part.heads), interleaved=False)


def _head_transform(block: Block) -> None:
    """The layer in front of BERT's word predictions."""
    layer = block.projection("dense")
    if layer is not None:
        block.leave(NORMALISED, layer)


def _pooled(block: Block) -> None:
    """BERT's pooler and the classifier on top of it: two layers with tanh between."""
    _hidden("bert.pooler.dense", "classifier", "bert.pooler.activation")(block)


def _families() -> Iterator[tuple[str, Callable[[Block], None]]]:
    for family, prefix in (("bert", "Bert"), ("roberta", "Roberta")):
        home = f"transformers.models.{family}.modeling_{family}.{prefix}"
        yield f"{home}Attention", _bert_attention
        yield (
            f"{home}Layer",
            _hidden("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn"),
        )
    bert, roberta = (f"transformers.models.{family}.modeling_{family}." for family in ("bert", "roberta"))
    yield f"{bert}BertForSequenceClassification", _pooled
    yield f"{bert}BertPredictionHeadTransform", _head_transform
    yield f"{roberta}RobertaClassificationHead", _hidden("dense", "out_proj", "")
    yield f"{roberta}RobertaLMHead", _head_transform
    yield "transformers.models.vit.modeling_vit.ViTAttention", _vit_attention
    yield "transformers.models.vit.modeling_vit.ViTMLP", _hidden("fc1", "fc2", "activation_fn")
    yield "transformers.models.gpt2.modeling_gpt2.GPT2Attention", _gpt2_attention
    yield "transformers.models.gpt2.modeling_gpt2.GPT2MLP", _hidden("c_fc", "c_proj", "act")
    bloom = "transformers.models.bloom.modeling_bloom.Bloom"
    yield f"{bloom}Attention", _bloom_attention
    yield f"{bloom}MLP", _hidden("dense_h_to_4h", "dense_4h_to_h", "gelu_impl")
    for family, prefix in (("llama", "Llama"), ("qwen2", "Qwen2")):
        home = f"transformers.models.{family}.modeling_{family}.{prefix}"
        yield f"{home}Attention", _rotary
        yield f"{home}MLP", _gated
    yield "workbench.data.bases.vision._Block", _digits_attention


FAMILIES: Mapping[str, Callable[[Block], None]] = dict(_families())
"""By a block's class, module and name: what finds its units."""
