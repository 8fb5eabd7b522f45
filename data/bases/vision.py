"""The modules of the digits models: plain layers, so that every per-record method can treat them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

SIDE = 8
"""Height and width of a digit."""
CLASSES = 10


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module with its initial weights drawn from `seed`; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


def logistic() -> nn.Module:
    """Multinomial logistic regression, 650 parameters."""
    return nn.Linear(SIDE * SIDE, CLASSES)


def mlp(hidden: int, hidden_layers: int = 1) -> nn.Module:
    """Hidden layers with ReLU; 4,810 parameters with one of 64 units, two tensors a layer."""
    widths = [SIDE * SIDE, *(hidden for _ in range(hidden_layers))]
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


class _Block(nn.Module):
    """A pre-norm transformer encoder block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape `(n, patches, width)`, in and out."""
        n, patches, width = tokens.shape
        mixed = self.query_key_value(self.norm_attention(tokens))
        query, key, value = mixed.view(n, patches, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        # Written out: the fused kernels have no rule for vmap, and sixteen tokens gain nothing by them.
        weights = (query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        attended = (weights @ value).transpose(1, 2).reshape(n, patches, width)
        tokens = tokens + self.projection(attended)
        result: Tensor = tokens + self.mlp(self.norm_mlp(tokens))
        return result


class VisionTransformer(nn.Module):
    """A vision transformer for 8 x 8 images (Dosovitskiy et al. 2021), pooled by the mean of its patches.

    Patches and positions are embedded by `Linear` and `Embedding` layers, not by bare parameters, so that
    per-record norms by book-keeping cover every parameter.
    """

    def __init__(self, *, patch: int, width: int, layers: int, heads: int, classes: int = CLASSES) -> None:
        """A model of `layers` blocks over patches of `patch` x `patch` pixels."""
        super().__init__()
        self.patch = patch
        self.embedding = nn.Linear(patch * patch, width)
        self.positions = nn.Embedding((SIDE // patch) ** 2, width)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape `(n, classes)` from flat images of shape `(n, 64)`."""
        n, across = images.shape[0], SIDE // self.patch
        patches = images.view(n, across, self.patch, across, self.patch).transpose(2, 3)
        tokens = self.embedding(patches.reshape(n, across * across, self.patch * self.patch))
        places = torch.arange(across * across, device=images.device).expand(n, -1)
        tokens = self.blocks(tokens + self.positions(places))
        logits: Tensor = self.head(self.norm(tokens).mean(1))
        return logits
