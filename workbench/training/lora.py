"""Low-rank adapters (LoRA, Hu et al. 2022): which layers get one, and which parameters are its A and B.

>>> import torch
>>> places = {"layer.lora_A.default.weight": (slice(0, 8), torch.Size([2, 4])),
...           "layer.lora_B.default.weight": (slice(8, 14), torch.Size([3, 2]))}
>>> lora_pairs(places)
(('layer.lora_A.default.weight', 'layer.lora_B.default.weight'),)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from torch import nn

from workbench.core.errors import ArgumentError, InputError, UnsupportedError, unknown_name
from workbench.interfaces import Groups, Plan

ALL_LINEAR = "all-linear"
ATTENTION = "attention"
QUERY_VALUE = "query-value"
LORA_TARGETS = (ALL_LINEAR, ATTENTION, QUERY_VALUE)
"""Values of `Plan.lora_targets`."""

_ATTENTION = frozenset({"attn", "attention", "self_attn", "self_attention"})
"""Names of a layer's attention in transformers' code."""

_QUERY_VALUE = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("q_lin", "v_lin"),
    ("c_attn",),
    ("query_key_value",),
    ("qkv_proj",),
)
"""Names of the projections to queries and values, or of the joint map to queries, keys and values."""

_MATRICES = ("lora_A", "lora_B")


def lora_pairs(layout: Mapping[str, tuple[slice, torch.Size]]) -> Groups:
    """The names of A and B of each adapted layer, in the layout's order; a partition of the names.

    Raises:
        InputError: a trainable parameter is no LoRA matrix (by peft's names), or one of a pair is missing.
    """
    layers: dict[str, dict[str, str]] = {}
    for name in layout:
        parts = name.split(".")
        which = [part for part in parts if part in _MATRICES]
        if len(which) != 1:
            raise InputError(f"the trainable parameters must be LoRA matrices (adapter 'lora'), got {name!r}")
        layer = ".".join("lora" if part in _MATRICES else part for part in parts)
        layers.setdefault(layer, {})[which[0]] = name
    for pair in layers.values():
        if len(pair) != 2:
            (alone,) = pair.values()
            raise InputError(f"each LoRA matrix must come with its partner, got {alone!r} alone")
    return tuple((pair[_MATRICES[0]], pair[_MATRICES[1]]) for pair in layers.values())


def check_lora(plan: Plan) -> None:
    """Refuse a rank, alpha or targets that no LoRA can have, with an `InputError`."""
    if plan.lora_rank < 1:
        raise ArgumentError("lora_rank", f"must be >= 1, got {plan.lora_rank}")
    if plan.lora_alpha is not None and not 0 < plan.lora_alpha < math.inf:
        raise ArgumentError("lora_alpha", f"must be finite and > 0, got {plan.lora_alpha!r}")
    if plan.lora_targets not in LORA_TARGETS:
        raise unknown_name("lora_targets", plan.lora_targets, LORA_TARGETS)


def with_lora(module: nn.Module, plan: Plan) -> nn.Module:
    """Freeze the module and add the plan's LoRA matrices to some of its linear layers.

    A layer's output gains alpha / r times B A x; A is drawn from the global generator, and B is zero. Where
    queries, keys and values are one map (GPT-2's `c_attn`), `"query-value"` adds one pair to it, whose update
    has rank r over all three: the closest that peft offers. Raises `UnsupportedError`: the module has no such
    layer.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    has_conv1d = any(isinstance(part, Conv1D) for part in module.modules())
    config = LoraConfig(
        r=plan.lora_rank,
        lora_alpha=2 * plan.lora_rank if plan.lora_alpha is None else plan.lora_alpha,
        lora_dropout=0.0,
        target_modules=_targets(module, plan.lora_targets),
        fan_in_fan_out=has_conv1d,
    )
    with warnings.catch_warnings():
        # A model with both kinds of layers gets the right setting for each, and a warning for one of them.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        # peft uses a name that transformers is about to drop.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        adapted: nn.Module = get_peft_model(module, config)
    return adapted


def _targets(module: nn.Module, targets: str) -> str | list[str]:
    """Names of the layers to adapt, or peft's word for all but the output layer."""
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D

    if targets == ALL_LINEAR and isinstance(module, PreTrainedModel):
        return "all-linear"
    kinds = (nn.Linear,) if targets == ALL_LINEAR else (nn.Linear, Conv1D)
    linear = [name for name, part in module.named_modules() if name and isinstance(part, kinds)]
    if targets == ATTENTION:
        linear = [name for name in linear if _ATTENTION & set(name.split("."))]
    if targets == QUERY_VALUE:
        last = {name: name.rpartition(".")[2] for name in linear}
        wanted = next((names for names in _QUERY_VALUE if set(names) <= set(last.values())), ())
        linear = [name for name in linear if last[name] in wanted]
    if not linear:
        which = "linear layer" if targets == ALL_LINEAR else f"linear layer for lora_targets {targets!r}"
        raise UnsupportedError(f"LoRA finds no {which} inside {type(module).__name__}")
    return linear
