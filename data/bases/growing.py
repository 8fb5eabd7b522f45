"""Growing a GPT-2: a wider and deeper module that computes what a smaller one does, until it is trained on.

After Chen, Goodfellow and Shlens 2016 ("Net2Net"), where a larger network starts as the function that a
smaller one has learned. New numbers of the residual stream begin at zero and nothing adds to them at first;
new heads, hidden units and blocks write zeros. What reads and what scores is drawn as GPT-2's weights are,
so that gradients reach all that is new.

Layer normalisation looks at the mean and the variance of the whole stream. What is written to the stream is
therefore centred first, which changes nothing (every reader subtracts the mean), so that the mean stays zero
beside zeros; and the variance over D numbers in the place of d is smaller by d / D, for which the gains make
up by the root of it, if the configuration's small constant is scaled by d / D, too.

The output layer is the embedding, and is centred with it, which does change something: how much depends on
the rows' means. The logits of the shipped `tiny_gpt2` are off by less than a hundredth of their range.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn


def grown(small: nn.Module, config: Any) -> nn.Module:
    """A GPT-2 of a larger configuration with the function of a smaller one.

    Args:
        small: A `GPT2LMHeadModel` with tied embeddings; left as it is.
        config: Of the grown one: the same vocabulary and positions, heads of the same size, no less width
            and depth, `layer_norm_epsilon` smaller as the width is larger. Fresh weights are drawn from
            torch's global generator.

    Returns:
        A new module. Old blocks are spread evenly, new ones follow them.
    """
    from transformers import AutoModelForCausalLM

    large: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    known: Any = copy.deepcopy(small)
    with torch.no_grad():
        _centre(known)
        gain = math.sqrt(known.config.n_embd / config.n_embd)
        body, old = large.transformer, known.transformer
        for name in ("wte", "wpe"):
            _put(getattr(body, name).weight, getattr(old, name).weight)
        _norm(body.ln_f, old.ln_f, gain)
        places = [i * config.n_layer // known.config.n_layer for i in range(known.config.n_layer)]
        for place, block in enumerate(body.h):
            for writer in (block.attn.c_proj, block.mlp.c_proj):
                writer.weight.zero_()
                writer.bias.zero_()
            if place in places:
                _block(block, old.h[places.index(place)], gain)
    large.tie_weights()
    found: nn.Module = large
    return found


def _centre(known: Any) -> None:
    """Subtract from all that is written to the residual stream its mean over the stream's numbers."""
    body = known.transformer
    written = [body.wte.weight, body.wpe.weight]
    for block in body.h:
        for writer in (block.attn.c_proj, block.mlp.c_proj):
            written += [writer.weight, writer.bias]
    for tensor in written:
        tensor.sub_(tensor.mean(-1, keepdim=True))


def _put(target: Tensor, values: Tensor) -> None:
    """Values in the first places of a target, zeros in the others."""
    target.zero_()
    target[tuple(slice(0, size) for size in values.shape)] = values


def _norm(target: nn.LayerNorm, known: nn.LayerNorm, gain: float) -> None:
    width = known.weight.shape[0]
    target.weight[:width] = known.weight * gain
    target.bias[:width] = known.bias


def _block(target: Any, known: Any, gain: float) -> None:
    """Put a block's weights into a larger one, whose writers are zero."""
    _norm(target.ln_1, known.ln_1, gain)
    _norm(target.ln_2, known.ln_2, gain)
    width, wide = known.attn.c_attn.weight.shape[0], target.attn.c_attn.weight.shape[0]
    for part in range(3):  # Queries, keys, values: each of the old heads first.
        here, there = slice(part * wide, part * wide + width), slice(part * width, (part + 1) * width)
        target.attn.c_attn.weight[:width, here] = known.attn.c_attn.weight[:, there]
        target.attn.c_attn.bias[here] = known.attn.c_attn.bias[there]
    inner = known.mlp.c_fc.weight.shape[1]
    target.mlp.c_fc.weight[:width, :inner] = known.mlp.c_fc.weight
    target.mlp.c_fc.bias[:inner] = known.mlp.c_fc.bias
    for writer, own in ((target.attn.c_proj, known.attn.c_proj), (target.mlp.c_proj, known.mlp.c_proj)):
        writer.weight[: own.weight.shape[0], :width] = own.weight
        writer.bias[:width] = own.bias
