"""Contestants of `ensembles.py` that train LoRA adapters over `tiny_gpt2`: Opacus' hooks, and vmap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.interfaces import Plan
from workbench.training.fine_tuning import Seeds, build_model, make_optimizer, torch_generator, trainable
from workbench.training.hugging_face import eager_attention
from workbench.training.samples import step_samples

Batch = dict[str, Tensor]


def plans_of(models: int, steps: int, max_length: int) -> list[Plan]:
    """One a model, each on its own half of 128 notes: the audit's own corpus, model and sampling."""
    records = registry.create("corpus", "clinical", size=128, seed=0, attributes="short").records
    rng = np.random.default_rng(0)
    common = Plan(
        records=(),
        held_out=(),
        model="tiny_gpt2",
        model_parameters={"max_length": max_length},
        adapter="lora",
        steps=steps,
        sampling_probability=0.08,
        learning_rate=3e-4,
        budget=ApproximateDP(epsilon=8.0, delta=1e-5),
        public_size=64,
    )
    halves = [rng.random(len(records)) < 0.5 for _ in range(models)]
    return [
        replace(common, records=tuple(r for r, used in zip(records, half, strict=True) if used), seed=seed)
        for seed, half in enumerate(halves)
    ]


def batches_of(plan: Plan, model: Any) -> list[Batch]:
    """Tokens and masks of each step's sample; a sample may be empty."""
    samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
    batch = model.encode(plan.records)
    drawn = [torch.from_numpy(next(samples)) for _ in range(plan.steps)]
    return [{name: rows[chosen] for name, rows in batch.items()} for chosen in drawn]


def opacus_loop(plans: list[Plan], noise: float, clip: float) -> None:
    """DP-SGD by Opacus' hooks on the layers A and B, and its optimizer."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    for plan in plans:
        model = build_model(plan)
        module: Any = GradSampleModule(model.module.train(), loss_reduction="sum")
        optimizer: Any = DPOptimizer(
            make_optimizer(plan, model.module),
            noise_multiplier=noise,
            max_grad_norm=clip,
            expected_batch_size=5,
            generator=torch_generator(Seeds.of(plan).noise),
        )
        batches = batches_of(plan, model)
        model.module = module
        for batch in batches:
            if len(batch["input_ids"]):
                optimizer.zero_grad(set_to_none=True)
                model.losses(batch).sum().backward()
                optimizer.step()


def vmap_ensemble(plans: list[Plan], noise: float, clip: float) -> None:
    """All adapters and their records mapped by `torch.func` over one base; samples padded to one size."""
    models = [build_model(plan) for plan in plans]
    names = list(trainable(models[0].module))
    values = [
        torch.stack([trainable(m.module)[name].detach() for m in models]).requires_grad_() for name in names
    ]
    optimizer = torch.optim.AdamW(values, lr=plans[0].learning_rate, weight_decay=0.0)
    model, generator = models[0], torch.Generator().manual_seed(0)
    module = model.module

    def record_loss(own: dict[str, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        made = functional_call(module, own, (), {"input_ids": ids[None], "attention_mask": mask[None]})
        log_p = made.logits[0, :-1].log_softmax(-1)
        picked = log_p.gather(1, ids[1:, None])[:, 0]
        return -(picked * mask[1:]).sum() / mask[1:].sum()

    per_record = vmap(vmap(grad(record_loss), in_dims=(None, 0, 0)))
    drawn = [batches_of(plan, one) for plan, one in zip(plans, models, strict=True)]
    for batches in zip(*drawn, strict=True):
        most = max(len(batch["input_ids"]) for batch in batches)
        filled = [
            # A row that counts for nothing still needs a token to predict.
            (torch.nn.functional.pad(b["input_ids"], (0, 0, 0, most - len(b["input_ids"]))),
             torch.nn.functional.pad(b["attention_mask"], (0, 0, 0, most - len(b["input_ids"])), value=1))
            for b in batches
        ]  # fmt: skip
        ids, masks = (torch.stack(parts) for parts in zip(*filled, strict=True))
        counts = torch.arange(most) < torch.tensor([len(b["input_ids"]) for b in batches])[:, None]
        own = {name: value.detach() for name, value in zip(names, values, strict=True)}
        with eager_attention(module), sdpa_kernel(SDPBackend.MATH):
            gradients = per_record(own, ids, masks)
        norms = sum(g.flatten(2).square().sum(2) for g in gradients.values()).sqrt()
        factors = (clip / norms).clamp(max=1.0) * counts
        for name, value in zip(names, values, strict=True):
            total = torch.einsum("rn,rn...->r...", factors, gradients[name])
            value.grad = (
                total.add_(torch.empty_like(total).normal_(0.0, noise * clip, generator=generator)) / 5
            )
        optimizer.step()
