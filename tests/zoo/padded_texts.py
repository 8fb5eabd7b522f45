"""DP-SGD of a bigram model of words at (1, 1e-5), each batch padded to its longest text."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))
from made_differently import CLIP, RATE, Records

from workbench.accounting.certified import calibrate_noise_multiplier

STEPS, LENGTH, WORDS = 20, 240, 64


class Bigram(nn.Module):
    """Which word follows a word."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.embedding, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next word, at each place."""
        known = functional.dropout(self.embedding(ids), self.dropout, self.training)
        logits: Tensor = self.head(known)
        return logits


def ids_of(records: Records) -> list[list[int]]:
    """Words as numbers from 1; 0 is padding."""
    return [[zlib.crc32(w.encode()) % (WORDS - 1) + 1 for w in r["text"].split()][:LENGTH] for r in records]


def padded(rows: list[list[int]]) -> Tensor:
    """Texts of a batch, as long as the longest."""
    longest = max(map(len, rows), default=2)
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows], dtype=torch.long).view(
        -1, longest
    )


def loss_of(logits: Tensor, ids: Tensor, *, is_masked: bool) -> Tensor:
    """Mean over the words of a text, or over all its places."""
    each = functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
    counts = (ids[1:] > 0) if is_masked else torch.ones_like(ids[1:])
    return (each * counts).sum() / counts.sum()


def trained(
    records: Records, seed: int, *, is_masked: bool, dropout: float = 0.0
) -> Callable[[Records], list[float]]:
    """A scorer of texts."""
    torch.manual_seed(seed)
    model, rows = Bigram(dropout), ids_of(records)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sigma = calibrate_noise_multiplier(
        target_epsilon=1.0, target_delta=1e-5, sampling_probability=RATE, steps=STEPS
    )

    def loss(parameters: dict[str, Tensor], ids: Tensor) -> Tensor:
        return loss_of(functional_call(model, parameters, (ids,)), ids, is_masked=is_masked)

    each = vmap(grad(loss), in_dims=(None, 0), randomness="different")
    for _ in range(STEPS):
        drawn = torch.nonzero(torch.rand(len(rows)) < RATE)[:, 0].tolist()
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        own = each(parameters, padded([rows[i] for i in drawn])) if drawn else {}
        norms = sum((g.flatten(1).square().sum(1) for g in own.values()), torch.zeros(len(drawn))).sqrt()
        factors = (CLIP / norms.clamp(min=1e-9)).clamp(max=1.0)
        for name, parameter in model.named_parameters():
            total = torch.einsum("n,n...->...", factors, own[name]) if drawn else torch.zeros(parameter.shape)
            parameter.grad = (total + sigma * CLIP * torch.randn(parameter.shape)) / (RATE * len(rows))
        optimizer.step()

    model.eval()

    def score(asked: Records) -> list[float]:
        with torch.no_grad():
            return [
                -float(loss_of(model(ids), ids, is_masked=True)) for ids in map(torch.tensor, ids_of(asked))
            ]

    return score


masked = partial(trained, is_masked=True)
"""Correct: padding counts for nothing."""

dropped = partial(trained, is_masked=True, dropout=0.1)
"""Correct: a longer batch draws more of the numbers that later batches are drawn from."""

unmasked = partial(trained, is_masked=False)
"""Wrong: a long text lengthens all others of its batch."""
