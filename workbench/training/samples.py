"""Samples of a step, Poisson or shuffled, and their per-record signals, whatever the size of the sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import IntArray, Model, Plan, Record, Sampling
from workbench.training._flat import FlatLayout
from workbench.training.fine_tuning import shuffled_batch_size
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


def shuffled_batches(records: int, batch_size: int, generator: np.random.Generator) -> Iterator[IntArray]:
    """The batches of one epoch: all records once, in a fresh order; the last batch may be smaller.

    Args:
        records: Number of records N, >= 1.
        batch_size: B, >= 1.
        generator: Source of the order, which stays secret.

    Yields:
        `ceil(N / B)` arrays of indices, each increasing: within a batch the order means nothing.
    """
    order = generator.permutation(records).astype(np.int64)
    for start in range(0, records, batch_size):
        yield np.sort(order[start : start + batch_size])


def step_samples(plan: Plan, generator: np.random.Generator) -> Iterator[IntArray]:
    """The samples of the plan's steps, one after the other, without end; indices into `plan.records`.

    Raises:
        InputError: the plan shuffles, and q times its public size is no whole number of records.
    """
    records = len(plan.records)
    if plan.sampling is Sampling.SHUFFLED:
        batch_size = shuffled_batch_size(plan)
        while True:
            yield from shuffled_batches(records, batch_size, generator)
    while True:
        yield poisson_sample(records, plan.sampling_probability, generator)


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
