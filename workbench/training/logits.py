"""Computes a causal language model's logits only at the positions that predict something.

With a vocabulary of 50,000 tokens, logits are many times larger than all else in a forward pass. Without
gradients, the output layer is therefore applied to the hidden states of the needed positions only, some at a
time; row i still depends on the tokens of row i alone, up to the order of floating-point sums. With
gradients, and for modules that are not a backbone with an output layer on top, all logits are computed.

    >>> module = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    >>> class Bare(nn.Module):
    ...     def forward(self, input_ids, attention_mask):
    ...         return module(input_ids)
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> targets = torch.tensor([[2, 3, IGNORED]])
    >>> target_losses(Bare(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, targets).shape
    torch.Size([1, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.training.hugging_face import backbone_and_output, logits_of
from workbench.training.precision import exact, is_reduced

IGNORED = -100
"""Target of a position that predicts nothing; its loss is zero."""

AT_ONCE = 1 << 24
"""Most logits in memory at once: 64 MiB."""

_ROWS = 16
"""Rows of bfloat16 logits that are converted to float32 at once."""

_PROBE = 4
"""Tokens on which a module's two parts are compared with the whole."""

Inputs = Mapping[str, Tensor]
"""`input_ids` and `attention_mask`, both `(n, length)`; other entries are ignored."""


@dataclass(frozen=True)
class _Parts:
    """A causal language model in two parts: tokens to hidden states, and these to logits."""

    hidden: Callable[[Tensor, Tensor], Tensor]
    output: nn.Module
    vocabulary: int


_known: WeakKeyDictionary[nn.Module, _Parts | None] = WeakKeyDictionary()


def target_losses(module: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
    """Negative log-likelihood of each position's target, shape `(n, length)`, float32, nats; differentiable.

    `targets` are the tokens to predict, or `IGNORED`, whose loss is zero; int64, shape `(n, length)`. The
    module returns logits `(n, length, vocabulary)`, bare or as `.logits`.
    """
    parts = None if torch.is_grad_enabled() else _parts(module, inputs)
    if parts is None:
        logits = _whole(module, inputs)
        flat = functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]).float(),
            targets.reshape(-1),
            reduction="none",
            ignore_index=IGNORED,
        )
        return flat.view(targets.shape)
    chosen = targets != IGNORED
    hidden = parts.hidden(inputs["input_ids"], inputs["attention_mask"])[chosen]
    losses = torch.zeros(targets.shape, dtype=torch.float32, device=targets.device)
    losses[chosen] = _chosen_losses(parts, hidden, targets[chosen])
    return losses


def _chosen_losses(parts: _Parts, hidden: Tensor, wanted: Tensor) -> Tensor:
    """Losses of hidden states `(m, width)` at their targets `(m,)`."""
    output = parts.output
    if (
        is_reduced(hidden.device)
        and type(output) is nn.Linear
        and "bias" not in dict(output.named_parameters())
    ):
        return _reduced_losses(output.weight, hidden, wanted)
    losses = torch.empty(len(wanted), dtype=torch.float32, device=wanted.device)
    rows = max(1, AT_ONCE // parts.vocabulary)
    for start in range(0, len(wanted), rows):
        part = slice(start, start + rows)
        losses[part] = functional.cross_entropy(_output(parts, hidden[part]), wanted[part], reduction="none")
    return losses


def _reduced_losses(weight: Tensor, hidden: Tensor, wanted: Tensor) -> Tensor:
    """Losses by products in bfloat16, minus each target's logit before rounding.

    Rounded values are then small where probabilities are large, and a certain target has loss zero.
    """
    with exact(hidden.device):
        half = hidden.bfloat16()
        target = (half.float() * weight[wanted].bfloat16().float()).sum(1)
        shift = target.bfloat16()
        total = torch.full_like(target, -torch.inf)
        for part in torch.split(weight, max(1, AT_ONCE // max(1, len(wanted)))):
            logits = torch.addmm(-shift[:, None], half, part.bfloat16().t())
            for chunk, sums in zip(torch.split(logits, _ROWS), torch.split(total, _ROWS), strict=True):
                torch.logaddexp(sums, chunk.float().logsumexp(1), out=sums)
        return (total + (shift.float() - target)).clamp_(min=0.0)


def logits_at(module: nn.Module, inputs: Inputs, chosen: Tensor) -> Tensor:
    """Logits at the positions of a mask `(n, length)`, row by row; shape `(m, vocabulary)`, float32."""
    parts = None if torch.is_grad_enabled() else _parts(module, inputs)
    if parts is None:
        return _whole(module, inputs)[chosen].float()
    hidden = parts.hidden(inputs["input_ids"], inputs["attention_mask"])
    return _output(parts, hidden[chosen])


def two_parts(module: nn.Module, inputs: Inputs) -> tuple[nn.Module, nn.Module] | None:
    """Backbone and output layer of a module, checked once on a few tokens; None if they do not suit."""
    return None if _parts(module, inputs) is None else backbone_and_output(module)


def _output(parts: _Parts, hidden: Tensor) -> Tensor:
    with exact(hidden.device):
        logits: Tensor = parts.output(hidden.float())
    return logits.float()


def _whole(module: nn.Module, inputs: Inputs) -> Tensor:
    return logits_of(module(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]))


def _parts(module: nn.Module, inputs: Inputs) -> _Parts | None:
    """The module's two parts, checked once; None if it has no such parts."""
    if module not in _known and inputs["input_ids"].numel():
        _known[module] = _checked_parts(module, inputs)
    return _known.get(module)


def _checked_parts(module: nn.Module, inputs: Inputs) -> _Parts | None:
    """The two parts, if they give the logits of the whole on the first tokens of the batch."""
    split = backbone_and_output(module)
    if split is None:
        return None
    backbone, output = split

    def hidden(ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = backbone(input_ids=ids, attention_mask=mask, use_cache=False)[0]
        return states

    few = {name: inputs[name][:1, :_PROBE] for name in ("input_ids", "attention_mask")}
    with exact(few["input_ids"].device):
        whole = _whole(module, few)
        ours = output(hidden(few["input_ids"], few["attention_mask"]))
    parts = _Parts(hidden, output, whole.shape[-1])
    same = ours.shape == whole.shape and torch.allclose(ours, whole, rtol=1e-3, atol=1e-3)
    return parts if same else None
