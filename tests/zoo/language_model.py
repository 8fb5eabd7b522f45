"""DP-SGD of adapters on the bench's small GPT-2, at (1, 1e-5) for a tenth of the records in 20 steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from made_differently import CLIP, RATE, Records

from workbench.accounting.certified import calibrate_noise_multiplier
from workbench.core import registry

STEPS, LENGTH = 20, 32


def lora(records: Records, seed: int) -> tuple[Any, Any]:
    """Adapters by peft on the attention; a backward pass for each record."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    base = registry.create("model", "tiny_gpt2", seed=0)
    module, tokenizer = base.module, base.tokenizer
    config = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    network = get_peft_model(module, config).train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    sigma = calibrate_noise_multiplier(
        target_epsilon=1.0, target_delta=1e-5, sampling_probability=RATE, steps=STEPS
    )
    texts = [torch.tensor([tokenizer(record["text"])["input_ids"][:LENGTH] or [0]]) for record in records]
    for _ in range(STEPS):
        total = [torch.zeros_like(p) for p in parameters]
        for i in torch.nonzero(torch.rand(len(texts)) < RATE)[:, 0].tolist():
            logits = network(input_ids=texts[i]).logits[0]
            loss = functional.cross_entropy(logits[:-1], texts[i][0, 1:], reduction="sum")
            own = torch.autograd.grad(loss, parameters)
            factor = min(1.0, CLIP / max(float(torch.stack([g.norm() for g in own]).norm()), 1e-9))
            for kept, g in zip(total, own, strict=True):
                kept.add_(factor * g)
        for parameter, part in zip(parameters, total, strict=True):
            parameter.grad = (part + torch.normal(0.0, sigma * CLIP, part.shape)) / (RATE * len(texts))
        optimizer.step()
    return module.eval(), tokenizer
