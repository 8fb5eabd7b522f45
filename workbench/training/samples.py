"""Poisson samples, and the per-record signals of a sample that may be empty or larger than memory allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import IntArray, Model, Record
from workbench.training._flat import FlatLayout
from workbench.training.per_record import EmptySignals, PerRecordSignals, per_record_signals


def poisson_sample(records: int, probability: float, generator: np.random.Generator) -> IntArray:
    """Indices of the records in one step's sample: each takes part independently with the probability.

    Args:
        records: Number of records to draw from.
        probability: In (0, 1].
        generator: Source of the coins.

    Returns:
        Increasing indices; empty is legal.
    """
    chosen: IntArray = np.flatnonzero(generator.random(records) < probability).astype(np.int64)
    return chosen


def sample_signals(model: Model, records: Sequence[Record], micro_batch_size: int) -> PerRecordSignals:
    """The signals of a sample; samples larger than a micro-batch are computed part by part.

    Args:
        model: Its parameters must not change while the signals are in use.
        records: The sample, possibly empty.
        micro_batch_size: Most records in one forward pass, >= 1.
    """
    if not records:
        return EmptySignals(FlatLayout.of(model.module))
    if len(records) <= micro_batch_size:
        return per_record_signals(model, model.encode(records))
    return MicroBatchedSignals(model, records, micro_batch_size)


class MicroBatchedSignals:
    """Signals of a large sample, in the memory of one micro-batch.

    The norms cost one pass over the parts, and each weighted sum another, for what a part's pass stores is
    dropped before the next one's begins.
    """

    def __init__(self, model: Model, records: Sequence[Record], micro_batch_size: int) -> None:
        """Compute losses and norms of at least one record."""
        self._model = model
        self._parts = [
            records[start : start + micro_batch_size] for start in range(0, len(records), micro_batch_size)
        ]
        losses, norms = [], []
        for part in self._parts:
            signals = per_record_signals(model, model.encode(part))
            losses.append(signals.losses)
            norms.append(signals.norms())
            self._layout = signals.layout
        self.losses = torch.cat(losses)
        self._norms = torch.cat(norms)

    @property
    def n(self) -> int:
        """Number of records."""
        return len(self.losses)

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return sum(shape.numel() for _, shape in self._layout.values())

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._layout

    def norms(self) -> Tensor:
        """Euclidean norm of each record's gradient, shape `(n,)`."""
        return self._norms.clone()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`."""
        total: Tensor | None = None
        sizes = [len(part) for part in self._parts]
        for part, share in zip(self._parts, torch.split(weights, sizes), strict=True):
            found = per_record_signals(self._model, self._model.encode(part)).weighted_sum(share)
            total = found if total is None else total + found
        assert total is not None
        return total
