"""Samples of a step, Poisson or shuffled, and their per-record signals, whatever the size of the sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import Groups, IntArray, Model, Plan, Record, Sampling
from workbench.training.fine_tuning import shuffled_batch_size
from workbench.training.flat import FlatLayout, PerRecordSignals
from workbench.training.per_record import EmptySignals, per_record_signals


def poisson_sample(records: int, probability: float, generator: np.random.Generator) -> IntArray:
    """Increasing indices of a step's sample: each of so many records takes part with this probability."""
    chosen: IntArray = np.flatnonzero(generator.random(records) < probability).astype(np.int64)
    return chosen


def shuffled_batches(records: int, batch_size: int, generator: np.random.Generator) -> Iterator[IntArray]:
    """The batches of one epoch: all records once, in a fresh order; the last batch may be smaller.

    Yields:
        `ceil(N / B)` arrays of indices, each increasing: within a batch the order means nothing.
    """
    order = generator.permutation(records).astype(np.int64)
    for start in range(0, records, batch_size):
        yield np.sort(order[start : start + batch_size])


def step_samples(plan: Plan, generator: np.random.Generator) -> Iterator[IntArray]:
    """The samples of the plan's steps, one after the other, without end; indices into `plan.records`."""
    records = len(plan.records)
    if plan.sampling is Sampling.SHUFFLED:
        batch_size = shuffled_batch_size(plan)
        while True:
            yield from shuffled_batches(records, batch_size, generator)
    while True:
        yield poisson_sample(records, plan.sampling_probability, generator)


def sample_signals(model: Model, records: Sequence[Record], micro_batch_size: int) -> PerRecordSignals:
    """The signals of a sample, possibly empty; a sample beyond a micro-batch is computed part by part.

    The model's parameters must not change while the signals are in use.
    """
    if not records:
        return EmptySignals(FlatLayout.of(model.module))
    if len(records) <= micro_batch_size:
        return per_record_signals(model, model.encode(records))
    return MicroBatchedSignals(model, records, micro_batch_size)


class MicroBatchedSignals(PerRecordSignals):
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
        losses, norms, squares = [], [], []
        for part in self._parts:
            signals = per_record_signals(model, model.encode(part))
            losses.append(signals.losses)
            norms.append(signals.norms())
            squares.append(signals.group_norms([[name] for name in signals.layout]).double().square())
        layout = FlatLayout.of(model.module)
        super().__init__(layout, torch.cat(losses), torch.cat(norms), torch.cat(squares))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over records of `weights[i] * gradient_i`, shape `(d,)`; weights of shape `(n,)`."""
        return self._summed(weights, lambda signals, share: signals.weighted_sum(share))

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`."""
        return torch.cat([signals.gradients() for signals in self._again()])

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """Sum over records, each group's part weighted by its own column, shape `(d,)`."""
        self._groups_of_parameters(groups, weights)
        return self._summed(weights, lambda signals, share: signals.group_sum(share, groups))

    def _again(self) -> Iterator[PerRecordSignals]:
        for part in self._parts:
            yield per_record_signals(self._model, self._model.encode(part))

    def _summed(self, weights: Tensor, ask: Callable[[PerRecordSignals, Tensor], Tensor]) -> Tensor:
        """The sum of what `ask` computes from each part's signals and its rows of the weights."""
        total: Tensor | None = None
        shares = torch.split(weights, [len(part) for part in self._parts])
        for signals, share in zip(self._again(), shares, strict=True):
            part = ask(signals, share)
            total = part if total is None else total + part
        assert total is not None
        return total
