"""Looks up attributes of transformers' and peft's modules by name, for they share no base class with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def _config(module: nn.Module) -> Any:
    return getattr(module, "config", None)


def positions_of(module: nn.Module) -> int | None:
    """Largest number of tokens in a row; None where the module sets no limit."""
    config = _config(module)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and getattr(config, "model_type", "") == "roberta":
        positions -= config.pad_token_id + 1  # RoBERTa counts them from beyond its padding's index.
    return None if positions is None else int(positions)


def window_of(module: nn.Module) -> int | None:
    """How many tokens back a token attends; None for all."""
    window = getattr(_config(module), "sliding_window", None)
    return None if window is None else int(window)


def has_segments(module: nn.Module) -> bool:
    """Whether the module tells the two texts of a pair apart by segments."""
    return bool(getattr(_config(module), "type_vocab_size", 2) > 1)


def switch_cache_off(module: nn.Module) -> None:
    """Switch the module's key-value cache off, in place, for calls that do not ask for it."""
    config = _config(module)
    if config is not None:
        config.use_cache = False


def is_checkpointing(module: nn.Module) -> bool:
    """Whether parts of the module's forward pass are run again in the backward pass."""
    return getattr(module, "gradient_checkpointing", False) is True


def logits_of(output: Any) -> Tensor:
    """The logits in what a module returned: bare, or as `.logits`."""
    logits: Tensor = getattr(output, "logits", output)
    return logits


@contextmanager
def eager_attention(module: nn.Module) -> Iterator[None]:
    """Run transformers' plain attention, because building the masks of "sdpa" branches on values."""
    changed = []
    for part in module.modules():
        switch = getattr(part, "set_attn_implementation", None)
        if callable(switch) and getattr(_config(part), "_attn_implementation", None) == "sdpa":
            switch("eager")
            changed.append(switch)
    try:
        yield
    finally:
        for switch in changed:
            switch("sdpa")


def backbone_and_output(module: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Backbone and output layer of a language model, also inside a peft model that adapts layers only."""
    core: Any = module
    if hasattr(core, "peft_config"):
        if any(config.is_prompt_learning for config in core.peft_config.values()):
            return None
        # A model into which adapters were put in place has their configurations, and is its own base model.
        core = core.get_base_model() if hasattr(core, "get_base_model") else core
    if not hasattr(core, "get_output_embeddings") or not getattr(core, "base_model_prefix", ""):
        return None
    backbone, output = getattr(core, core.base_model_prefix, None), core.get_output_embeddings()
    if not isinstance(backbone, nn.Module) or not isinstance(output, nn.Module):
        return None
    return backbone, output
