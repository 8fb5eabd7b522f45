"""Modules whose weights can be permuted, perceptrons drawn at random, and what the tests ask of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from oracles.random_transformers import random_transformer
from torch import Tensor, nn

from workbench.core import registry
from workbench.interfaces import Model
from workbench.training.flat import Layout
from workbench.training.permutations import Permutation, PermutationGroup, Reach, Unit

LAWS = settings(max_examples=30, deadline=None)
EXACT = 1e-9
"""Largest difference that float64 leaves of two equal functions; a wrong permutation leaves 1e-3 and more."""
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, lambda: nn.Softmax(-1))


@st.composite
def perceptrons(draw: st.DrawFn) -> nn.Module:
    """Plain perceptrons of one to three hidden layers, with any biases and activations."""
    widths = draw(st.lists(st.integers(1, 6), min_size=3, max_size=5))
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=draw(st.booleans())), draw(st.sampled_from(ACTIVATIONS))()]
    return randomised(nn.Sequential(*layers[:-1]), draw(seeds))


seeds = st.integers(0, 2**32 - 1)


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module in float64 with all weights drawn anew, biases and norms among them; in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module.double().eval()


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def drawn(group: PermutationGroup, seed: int = 0) -> Permutation:
    return group.draw(np.random.default_rng(seed))


def covered(group: PermutationGroup, layout: Layout) -> Tensor:
    """Mask of the flat vector's entries that some unit moves, shape `(d,)`."""
    size = max((place.stop for place, _ in layout.values()), default=0)
    mask = torch.zeros(size, dtype=torch.bool)
    views = {name: mask[place].view(shape) for name, (place, shape) in layout.items()}
    for unit in group.units:
        for slot in unit.slots:
            if slot.parameter in views:
                views[slot.parameter].narrow(slot.axis, slot.start, unit.size).fill_(True)
    return mask


def features(unit: Unit, module: nn.Module) -> Tensor:
    """All weights that move with each index of a unit, shape `(size, m)`."""
    tensors = dict(module.named_parameters())
    blocks = [
        tensors[slot.parameter]
        .narrow(slot.axis, slot.start, unit.size)
        .movedim(slot.axis, 0)
        .reshape(unit.size, -1)
        for slot in unit.slots
    ]
    return torch.cat(blocks, dim=1)


def images(seed: int = 1) -> Tensor:
    return torch.rand((5, 64), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens() -> Tensor:
    return torch.randint(0, 256, (3, 7), generator=torch.Generator().manual_seed(1))


def digits(**given: int) -> tuple[nn.Module, Tensor]:
    model: Model = registry.create("model", "digits_mlp", seed=0, **given)
    return randomised(model.module), images()


def digits_vit() -> tuple[nn.Module, Tensor]:
    model: Model = registry.create("model", "digits_vit", seed=0)
    return randomised(model.module), images()


def transformer(family: str, **given: int) -> tuple[nn.Module, Tensor]:
    model = random_transformer(family, seed=0, width=12, layers=2, heads=3, **given)
    return randomised(model.module), images() if family == "vit" else tokens()


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "digits_mlp": digits,
    "digits_mlp, 3 layers": lambda: digits(hidden=5, hidden_layers=3),
    "digits_vit": digits_vit,
    **{
        family: lambda family=family: transformer(family)  # type: ignore[misc]
        for family in ("vit", "bert", "roberta", "gpt2", "bloom", "llama", "qwen2")
    },
    "qwen2, grouped": lambda: transformer("qwen2", value_heads=1),
}
WIDE = Reach(value_per_head=True, gated=True, grouped=True)


def outputs(module: nn.Module, inputs: Tensor) -> Tensor:
    found = module(inputs)
    return found if isinstance(found, Tensor) else found.logits


def loss(module: nn.Module, inputs: Tensor) -> Tensor:
    """A number that depends on every output."""
    found = outputs(module, inputs)
    factors = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(3))
    return (found * factors).sum() + found.square().sum()


def difference(here: Tensor, there: Tensor) -> float:
    return float(((here - there).abs().max() / (1 + here.abs().max())).detach())


def gradients(module: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    module.zero_grad(set_to_none=True)
    loss(module, inputs).backward()  # type: ignore[no-untyped-call]
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
