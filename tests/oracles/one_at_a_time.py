"""The naive twin of per-record gradients: one forward and one backward pass a record."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from workbench.interfaces import Model
from workbench.training.flat import FlatLayout, batch_size
from workbench.training.per_record import MatrixSignals


def one_at_a_time(model: Model, batch: Mapping[str, Tensor]) -> MatrixSignals:
    """Signals of at least one record; they hold the `(n, d)` gradients."""
    layout = FlatLayout.of(model.module)
    rows, losses = [], []
    for i in range(batch_size(batch)):
        with torch.enable_grad():
            loss = model.losses({name: tensor[i : i + 1] for name, tensor in batch.items()}).sum()
        gradients = torch.autograd.grad(loss, layout.parameters, allow_unused=True)
        rows.append(layout.flatten(gradients))
        losses.append(loss.detach())
    return MatrixSignals(layout, torch.stack(rows), torch.stack(losses))
