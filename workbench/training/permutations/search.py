"""Finds the weights of a module that can be permuted, in known architectures and plain sequences.

A unit is a set of indices that are permuted together wherever they occur (Theorems 3 and 4; see the
package). Transformers are recognised by the exact class of their blocks, for a subclass may compute something
else. Otherwise hidden layers are found in plain `nn.Sequential`s only, where it is known what runs between
two linear layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from torch import nn

CONV1D = "transformers.pytorch_utils.Conv1D"
"""A linear layer with a transposed weight: rows are inputs."""


@dataclass(frozen=True)
class Slot:
    """A range of a parameter's axis whose indices a unit permutes: the unit's `size` indices from `start`."""

    parameter: str
    axis: int
    start: int


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Indices that are permuted together in all their slots; independent of every other unit.

    The kind is `"mlp"` (P_1 of Theorem 3), `"query-key"` (P_1i of Theorem 4) or `"value"` (P_2 of it). The
    name is unique within a group.
    """

    name: str
    kind: str
    size: int
    slots: tuple[Slot, ...]


@dataclass
class SearchResult:
    """The units of a module, and reasons why other parameters that were considered are in none."""

    units: list[Unit] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Projection:
    """A linear layer: numbers of inputs and outputs, and the weight's axes of inputs and of outputs."""

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
        """The slots of inputs from `start` on."""
        return [Slot(f"{self.name}.weight", self.weight_axes[0], start)]

    def out_of(self, start: int) -> list[Slot]:
        """The slots of outputs from `start` on, with the bias."""
        slots = [Slot(f"{self.name}.weight", self.weight_axes[1], start)]
        return slots + ([Slot(f"{self.name}.bias", 0, start)] if self.has_bias else [])


@dataclass(frozen=True)
class Heads:
    """A projection, and where each head's outputs start."""

    projection: Projection
    starts: Sequence[int]


def qualified(thing: object) -> str:
    """Module and name of an object's class."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def hidden_unit(name: str, first: Projection, second: Projection, gate: Projection | None = None) -> Unit:
    """P_1 of Theorem 3: the units between two layers, and those of the gate that multiplies them."""
    slots = [*first.out_of(0), *(gate.out_of(0) if gate is not None else []), *second.into(0)]
    return Unit(name=name, kind="mlp", size=first.outputs, slots=tuple(slots))


def query_key_units(name: str, query: Heads, key: Heads, size: int) -> list[Unit]:
    """P_1i of Theorem 4: one unit per head."""
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

    A head of the values feeds as many consecutive heads of the output's inputs as heads of queries share it.
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
"""Layers that act on each number separately and alike (dropout in distribution)."""
NORMALISATIONS = ("LayerNorm", "RMSNorm", "BatchNorm", "GroupNorm", "InstanceNorm")
TRANSFORMERS_ACTIVATIONS = ("transformers.activations", "transformers.models.bloom.modeling_bloom")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Permutations beyond the theorems as printed; none by default.

    Attributes:
        value_per_head: One P_2 for each head, where Eq. 15 has one for all.
        gated: Hidden layers whose units a second layer multiplies: gate and unit move together.
        grouped: Values that several heads of queries share.
    """

    value_per_head: bool = False
    gated: bool = False
    grouped: bool = False


def search(module: nn.Module, reach: Reach) -> SearchResult:
    """Find all units of a module that may be permuted, and why other parameters may not."""
    result = SearchResult()
    for name, part in module.named_modules():
        block = Block(name, part, result, reach)
        if type(part) is nn.Sequential:
            _sequence(block)
        elif (known := FAMILIES.get(qualified(part))) is not None:
            known(block)
    return result


def is_normalisation(part: object) -> bool:
    """Whether a layer normalises, by the name of its class."""
    return any(word in type(part).__name__ for word in NORMALISATIONS)


def is_elementwise(part: object) -> bool:
    """Whether a layer acts on each number separately and alike, or permutes with the last axis."""
    if type(part) in ELEMENTWISE or qualified(part).rpartition(".")[0] in TRANSFORMERS_ACTIVATIONS:
        return True
    if isinstance(part, nn.PReLU):
        return part.num_parameters == 1
    # Not elementwise, though the theorem says so; but it permutes with its axis.
    return type(part) is nn.Softmax and part.dim == -1


@dataclass(frozen=True)
class Block:
    """A module and its name in the search."""

    name: str
    part: nn.Module
    result: SearchResult
    reach: Reach

    def projection(self, path: str) -> Projection | None:
        """The linear layer at an attribute path of the block; None, with a reason, if it is not plain."""
        name = f"{self.name}.{path}" if self.name else path
        layer: Any = self.part.get_submodule(path)
        projection = Projection.of(name, layer)
        if projection is None:
            self.refuse(name, layer, ADAPTED)
        return projection

    def projections(self, *paths: str) -> tuple[Projection, ...] | None:
        """The linear layers at some paths; None, with reasons for all, if one is not plain."""
        layers = [self.projection(path) for path in paths]
        plain = tuple(projection for projection in layers if projection is not None)
        if len(plain) == len(layers):
            return plain
        self.leave(ADAPTED, *plain)
        return None

    def leave(self, reason: str, *layers: Projection) -> None:
        """Record why layers are in no unit."""
        for layer in layers:
            self.result.reasons.update(dict.fromkeys(layer.parameters, reason))

    def refuse(self, name: str, layer: nn.Module, reason: str) -> None:
        """Record why the parameters inside a layer are in no unit."""
        self.result.reasons.update({f"{name}.{inner}": reason for inner, _ in layer.named_parameters()})

    def behind(self, layer: Projection) -> None:
        """Record the bias that is added after the sum over permuted indices (b_{t+1} in Eq. 13)."""
        if layer.has_bias:
            self.result.reasons.setdefault(f"{layer.name}.bias", SECOND_BIAS)


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
            block.result.units.append(hidden_unit(f"{first.name}.hidden", first, projection))
            block.behind(projection)
        elif first is not None:
            block.leave(reason or NOT_ELEMENTWISE, first)
        first, reason = projection, ""


def _obstacle(layer: object) -> str:
    """Why hidden units may not be permuted across a layer; empty if they may."""
    if is_elementwise(layer):
        return ""
    return NORMALISED if is_normalisation(layer) else NOT_ELEMENTWISE


def _hidden(first: str, second: str, activation: str) -> Callable[[Block], None]:
    """The two-layer perceptron of a block (Def. 3)."""

    def add(block: Block) -> None:
        """Add the hidden unit of the block's perceptron, or the reason why it is left alone."""
        layers = block.projections(first, second)
        if layers is None:
            return
        owner, _, attribute = activation.rpartition(".")
        between = getattr(block.part.get_submodule(owner), attribute) if attribute else nn.Identity()
        if not is_elementwise(between):
            block.leave(NOT_ELEMENTWISE, *layers)
            return
        block.result.units.append(hidden_unit(f"{layers[0].name}.hidden", *layers))
        block.behind(layers[1])

    return add


def _gated(block: Block) -> None:
    """down(act(gate(x)) * up(x)): beyond the theorem, which has no product of layers."""
    layers = block.projections("gate_proj", "up_proj", "down_proj")
    if layers is None:
        return
    gate, up, down = layers
    if not block.reach.gated or not is_elementwise(block.part.act_fn):
        block.leave(GATED, *layers)
        return
    block.result.units.append(hidden_unit(f"{up.name}.hidden", up, down, gate))
    block.behind(down)


def _attention(*paths: str, heads: str, interleaved: bool = False) -> Callable[[Block], None]:
    """Attention (Def. 4) without rotary embeddings or shared heads; `heads` names their number's attribute.

    The paths are those of the layers for queries, keys, values and output, or of one layer for the first
    three, part by part or interleaved head by head, and of the output.
    """

    def add(block: Block) -> None:
        """Add the units of the block's attention heads, or refuse cross-attention."""
        part: Any = block.part
        is_cross = getattr(part, "is_cross_attention", False)
        if is_cross or "Cross" in type(getattr(part, "self", part)).__name__:
            block.refuse(block.name, part, CROSS)
            return
        layers = block.projections(*paths)
        if layers is None:
            return
        output, count = layers[-1], int(attrgetter(heads)(part))
        size = output.inputs // count
        if len(layers) == 4:
            starts = range(0, output.inputs, size)
            query, key, value = (Heads(layer, starts) for layer in layers[:3])
        else:
            of_part, of_head = (size, 3 * size) if interleaved else (output.inputs, size)
            query, key, value = (
                Heads(layers[0], [index * of_part + head * of_head for head in range(count)])
                for index in range(3)
            )
        block.result.units += query_key_units(block.name, query, key, size)
        _values(block, value, output, size)

    return add


def _values(block: Block, value: Heads, output: Projection, size: int) -> None:
    per_head = block.reach.value_per_head
    block.result.units += value_units(block.name, value, output, size, one_per_head=per_head)
    block.behind(output)


def _rotary(block: Block) -> None:
    """Rotary embeddings turn pairs of query and key entries by different angles: those stay."""
    layers = block.projections("q_proj", "k_proj", "v_proj", "o_proj")
    if layers is None:
        return
    query, key, value, output = layers
    block.leave(ROTARY, query, key)
    size = int(block.part.head_dim)  # type: ignore[arg-type]  # a number on every class of the table
    if value.outputs != output.inputs and not block.reach.grouped:
        block.leave(GROUPED, value, output)
        return
    _values(block, Heads(value, range(0, value.outputs, size)), output, size)


def _head_transform(block: Block) -> None:
    """The layer before BERT's word predictions."""
    layer = block.projection("dense")
    if layer is not None:
        block.leave(NORMALISED, layer)


def _families() -> Iterator[tuple[str, Callable[[Block], None]]]:
    bert_attention = _attention(
        "self.query", "self.key", "self.value", "output.dense", heads="self.num_attention_heads"
    )
    bert_layer = _hidden("intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
    bert, roberta, vit, gpt2, bloom, llama, qwen2 = (
        f"transformers.models.{prefix.lower()}.modeling_{prefix.lower()}.{prefix}"
        for prefix in ("Bert", "Roberta", "ViT", "GPT2", "Bloom", "Llama", "Qwen2")
    )
    for family in (bert, roberta):
        yield f"{family}Attention", bert_attention
        yield f"{family}Layer", bert_layer
    # BERT's pooler and the classifier on top of it: two layers with tanh between.
    pooled = _hidden("bert.pooler.dense", "classifier", "bert.pooler.activation")
    yield f"{bert}ForSequenceClassification", pooled
    yield f"{bert}PredictionHeadTransform", _head_transform
    yield f"{roberta}ClassificationHead", _hidden("dense", "out_proj", "")
    yield f"{roberta}LMHead", _head_transform
    yield (f"{vit}Attention", _attention("q_proj", "k_proj", "v_proj", "o_proj", heads="num_attention_heads"))
    yield f"{vit}MLP", _hidden("fc1", "fc2", "activation_fn")
    yield f"{gpt2}Attention", _attention("c_attn", "c_proj", heads="num_heads")
    yield f"{gpt2}MLP", _hidden("c_fc", "c_proj", "act")
    yield (f"{bloom}Attention", _attention("query_key_value", "dense", heads="num_heads", interleaved=True))
    yield f"{bloom}MLP", _hidden("dense_h_to_4h", "dense_4h_to_h", "gelu_impl")
    for family in (llama, qwen2):
        yield f"{family}Attention", _rotary
        yield f"{family}MLP", _gated
    yield ("workbench.data.bases.vision._Block", _attention("query_key_value", "projection", heads="heads"))


FAMILIES: Mapping[str, Callable[[Block], None]] = dict(_families())
"""What finds a block's units, by the module and name of its class."""
