"""DP-SGD for the digits with what training code is made of elsewhere; each keeps its claim of (1, 1e-5).

LoRA by peft, Accelerate, loaders with workers, autocast, activation checkpointing, accumulation with and
without a gradient scaler, tied weights, schedulers, and an optimizer that makes its gradient private itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

sys.path.append(str(Path(__file__).parent))
from dp_sgd import CLIP, RATE, STEPS, Records, noise_multiplier, tensors

Scorer = Callable[[Records], Tensor]


def small_network(seed: int) -> nn.Sequential:
    """Two layers; seeds torch for what follows."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def trained_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Those that have a gradient, by name."""
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def clipped_sum(network: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """The sum of the records' gradients, each clipped to C, a tensor a parameter."""
    held = {name: p.detach() for name, p in trained_parameters(network).items()}
    if not len(labels):
        return [torch.zeros_like(p) for p in held.values()]

    def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(network, parameters, (image[None],)), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(held, images, labels)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    factors = (CLIP / norms.clamp(min=1e-9)).clamp(max=1.0)
    return [torch.einsum("n,n...->...", factors, g) for g in each.values()]


def make_private(network: nn.Module, total: Sequence[Tensor], expected: float) -> None:
    """Set the gradients to the noisy sum over the expected size of a batch."""
    for parameter, part in zip(trained_parameters(network).values(), total, strict=True):
        noise = torch.normal(0.0, noise_multiplier() * CLIP, parameter.shape)
        parameter.grad = (part + noise) / expected


def poisson(count: int, seed: int) -> list[list[int]]:
    """The batches of all steps."""
    drawn = torch.rand(STEPS, count, generator=torch.Generator().manual_seed(seed)) < RATE
    return [row.nonzero()[:, 0].tolist() for row in drawn]


def batches(records: Records, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels of each step."""
    images, labels = tensors(records)
    for batch in poisson(len(records), seed):
        yield images[batch], labels[batch]


def scorer(network: nn.Module) -> Scorer:
    """Minus the loss."""

    def score(records: Records) -> Tensor:
        images, labels = tensors(records)
        with torch.no_grad():
            return -functional.cross_entropy(network(images), labels, reduction="none")

    return score


def fitted(
    network: nn.Module, records: Records, seed: int, *, optimizer: torch.optim.Optimizer | None = None
) -> Scorer:
    """The ordinary loop."""
    chosen = optimizer or torch.optim.SGD(trained_parameters(network).values(), lr=0.5)
    for images, labels in batches(records, seed):
        make_private(network, clipped_sum(network, images, labels), RATE * len(records))
        chosen.step()
    return scorer(network)


def lora(records: Records, seed: int) -> Scorer:
    """Low-rank adapters by peft on both layers; the rest is frozen."""
    from peft import LoraConfig, get_peft_model

    network = get_peft_model(small_network(seed), LoraConfig(r=4, target_modules=["0", "2"]))
    return fitted(network, records, seed)


def by_accelerate(records: Records, seed: int) -> Scorer:
    """Model, optimizer, loader and scheduler prepared by Accelerate."""
    from accelerate import Accelerator

    network = small_network(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    loader: DataLoader[Any] = DataLoader(
        TensorDataset(*tensors(records)), batch_sampler=poisson(len(records), seed)
    )
    accelerator = Accelerator(cpu=True)
    prepared, stepped, loaded, scheduled = accelerator.prepare(network, optimizer, loader, scheduler)
    for images, labels in loaded:
        stepped.zero_grad()
        make_private(prepared, clipped_sum(prepared, images, labels), RATE * len(records))
        stepped.step()
        scheduled.step()
    return scorer(network)


def loaded_by_workers(records: Records, seed: int) -> Scorer:
    """Batches from two processes."""
    network = small_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    loader: DataLoader[Any] = DataLoader(
        TensorDataset(*tensors(records)), batch_sampler=poisson(len(records), seed), num_workers=2
    )
    for images, labels in loader:
        make_private(network, clipped_sum(network, images, labels), RATE * len(records))
        optimizer.step()
    return scorer(network)


class Autocast(nn.Module):
    """Runs a module in bfloat16 where that is safe."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(images).float()  # type: ignore[no-any-return]


def in_autocast(records: Records, seed: int) -> Scorer:
    """Forward passes in bfloat16, weights and noise in float32."""
    return fitted(Autocast(small_network(seed)), records, seed)


def one_by_one(network: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """As `clipped_sum`, by a backward pass of each record."""
    parameters = list(trained_parameters(network).values())
    total = [torch.zeros_like(p) for p in parameters]
    for image, label in zip(images, labels, strict=True):
        loss = functional.cross_entropy(network(image[None]), label[None])
        own = torch.autograd.grad(loss, parameters)
        factor = min(1.0, CLIP / max(float(torch.stack([g.norm() for g in own]).norm()), 1e-9))
        for kept, g in zip(total, own, strict=True):
            kept.add_(factor * g)
    return total


class Checkpointed(nn.Module):
    """Computes the first layers again in the backward pass."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        hidden = checkpoint(self.inner[:2], images, use_reentrant=False)
        return self.inner[2](hidden)  # type: ignore[no-any-return]


def with_checkpointing(records: Records, seed: int) -> Scorer:
    """Activation checkpointing."""
    network = Checkpointed(small_network(seed))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for images, labels in batches(records, seed):
        make_private(network, one_by_one(network, images, labels), RATE * len(records))
        optimizer.step()
    return scorer(network)


def compiled(records: Records, seed: int) -> Scorer:
    """A compiled module, which is asked for a loss to log, and at the end for the scores."""
    network = small_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    fast: Any = torch.compile(network, backend="aot_eager")
    for images, labels in batches(records, seed):
        functional.cross_entropy(fast(images), labels).item()
        make_private(network, clipped_sum(network, images, labels), RATE * len(records))
        optimizer.step()
    return scorer(fast)


def accumulated_sum(network: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """As `clipped_sum`, over parts of at most eight records."""
    parts = zip(images.split(8), labels.split(8), strict=True)
    sums = [clipped_sum(network, *part) for part in parts]
    return [torch.stack(part).sum(0) for part in zip(*sums, strict=True)]


def with_accumulation(records: Records, seed: int) -> Scorer:
    """Gradients accumulate over parts of a batch; noise and step come once."""
    network = small_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for images, labels in batches(records, seed):
        make_private(network, accumulated_sum(network, images, labels), RATE * len(records))
        optimizer.step()
    return scorer(network)


def with_a_scaler(records: Records, seed: int) -> Scorer:
    """Accumulation, and a gradient scaler that unscales before the step."""
    network = small_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    for images, labels in batches(records, seed):
        make_private(network, accumulated_sum(network, images, labels), RATE * len(records))
        for parameter in network.parameters():
            assert parameter.grad is not None
            parameter.grad *= scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
    return scorer(network)


def with_tied_weights(records: Records, seed: int) -> Scorer:
    """Two layers have one weight."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    network[2].weight = network[0].weight
    return fitted(network, records, seed)


def with_a_scheduler(records: Records, seed: int) -> Scorer:
    """Adam, and a cosine of the rate."""
    network = small_network(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for images, labels in batches(records, seed):
        make_private(network, clipped_sum(network, images, labels), RATE * len(records))
        optimizer.step()
        scheduler.step()
    return scorer(network)


def by_a_closure(records: Records, seed: int) -> Scorer:
    """The optimizer calls what makes the gradient, as in PyTorch Lightning."""
    network = small_network(seed)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for images, labels in batches(records, seed):

        def loss(images: Tensor = images, labels: Tensor = labels) -> float:
            optimizer.zero_grad()
            make_private(network, clipped_sum(network, images, labels), RATE * len(records))
            return 0.0

        optimizer.step(loss)
    return scorer(network)


class PrivateSGD(torch.optim.SGD):
    """Adds the noise within its step, to a sum of clipped gradients."""

    def __init__(self, parameters: Any, expected: float, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.expected = expected

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = (p.grad + noise_multiplier() * CLIP * torch.randn_like(p)) / self.expected
        return super().step(closure)


def noise_in_the_step(records: Records, seed: int) -> Scorer:
    """An optimizer whose step makes the gradient private."""
    network = small_network(seed)
    optimizer = PrivateSGD(network.parameters(), RATE * len(records), lr=0.5)
    for images, labels in batches(records, seed):
        total = clipped_sum(network, images, labels)
        for parameter, part in zip(network.parameters(), total, strict=True):
            parameter.grad = part
        optimizer.step()
    return scorer(network)


TRAINERS = {
    "lora": lora,
    "by_accelerate": by_accelerate,
    "loaded_by_workers": loaded_by_workers,
    "in_autocast": in_autocast,
    "with_checkpointing": with_checkpointing,
    "compiled": compiled,
    "with_accumulation": with_accumulation,
    "with_a_scaler": with_a_scaler,
    "with_tied_weights": with_tied_weights,
    "with_a_scheduler": with_a_scheduler,
    "by_a_closure": by_a_closure,
    "noise_in_the_step": noise_in_the_step,
}
"""Each trainer by the name of its function."""
