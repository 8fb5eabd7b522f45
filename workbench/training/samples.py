"""Draws each step's sample, Poisson or shuffled, and computes its per-record signals in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import IntArray, Model, Plan, Record, Sampling
from workbench.training.devices import widened
from workbench.training.fine_tuning import shuffled_batch_size
from workbench.training.flat import FlatLayout, PerRecordSignals
from workbench.training.per_record import EmptySignals, per_record_signals


def poisson_sample(records: int, probability: float, generator: np.random.Generator) -> IntArray:
    """Indices, increasing, of a Poisson sample: each of the records takes part with this probability."""
    chosen: IntArray = np.flatnonzero(generator.random(records) < probability).astype(np.int64)
    return chosen


def shuffled_batches(records: int, batch_size: int, generator: np.random.Generator) -> Iterator[IntArray]:
    """The `ceil(N / B)` batches of one epoch, in a fresh random order; the last may be smaller.

    Each is an increasing array of indices: within a batch the order means nothing.
    """
    order = generator.permutation(records).astype(np.int64)
    for start in range(0, records, batch_size):
        yield np.sort(order[start : start + batch_size])


def step_samples(plan: Plan, generator: np.random.Generator) -> Iterator[IntArray]:
    """The samples of the plan's steps, without end, as indices into `plan.records`."""
    records = len(plan.records)
    if plan.sampling is Sampling.SHUFFLED:
        batch_size = shuffled_batch_size(plan)
        while True:
            yield from shuffled_batches(records, batch_size, generator)
    while True:
        yield poisson_sample(records, plan.sampling_probability, generator)


def micro_batches(records: Sequence[Record], size: int) -> list[Sequence[Record]]:
    """Cuts records, in their order, into parts of as many as `size` of the longest texts are worth.

    Short texts that are followed by long ones have parts of their own, which are not padded to these.
    """
    short, most = _much_shorter([len(record.text) for record in records]), size * _longest(records)
    return [
        alike[start : start + count]
        for alike in (records[:short], records[short:])
        for count in [most // _longest(alike)]
        for start in range(0, len(alike), count)
    ]


def sample_signals(model: Model, records: Sequence[Record], micro_batch_size: int) -> PerRecordSignals:
    """The signals of a sample, possibly empty; one of several `micro_batches` is computed in these parts.

    The model's parameters must not change while the signals are in use.
    """
    if not records:
        return EmptySignals(FlatLayout.of(model.module))
    parts = micro_batches(records, micro_batch_size)
    if len(parts) == 1:
        return per_record_signals(model, model.encode(records))
    return MicroBatchedSignals(model, parts, most=micro_batch_size * _longest(records))


def _much_shorter(lengths: Sequence[int]) -> int:
    """Number of texts at the start that are so much shorter that to pad them would be half of the work."""
    sizes = np.array(lengths)
    places = np.arange(1, sizes.size)
    padded = places * np.maximum.accumulate(sizes)[:-1]
    padded += (sizes.size - places) * np.maximum.accumulate(sizes[::-1])[::-1][1:]
    if sizes.size < 2 or not sizes.max() or 2 * padded.min() > sizes.size * sizes.max():
        return 0
    return int(places[padded.argmin()])


def _longest(records: Sequence[Record]) -> int:
    """Characters of the longest text; 1 where there is none."""
    return max((len(record.text) for record in records), default=1) or 1


class MicroBatchedSignals(PerRecordSignals):
    """Signals of a large sample in the memory of a micro-batch; the norms take one pass, each sum another.

    Where all parts together are no more than a micro-batch of the longest texts, they are kept.
    """

    def __init__(self, model: Model, parts: Sequence[Sequence[Record]], *, most: int) -> None:
        """Compute losses and norms of the parts, which hold at least one record.

        `most`: characters of a micro-batch.
        """
        self._model, self._parts = model, parts
        self._kept: list[PerRecordSignals] = []
        keeps = sum(len(part) * _longest(part) for part in parts) <= most
        losses, norms, squares = [], [], []
        for part in self._parts:
            signals = per_record_signals(model, model.encode(part))
            losses.append(signals.losses)
            norms.append(signals.norms())
            squares.append(widened(signals.group_norms([[name] for name in signals.layout])).square())
            if keeps:
                self._kept.append(signals)
        layout = FlatLayout.of(model.module)
        super().__init__(layout, torch.cat(losses), torch.cat(norms), torch.cat(squares))

    def gradients(self) -> Tensor:
        """The records' gradients, shape `(n, d)`."""
        return torch.cat([signals.gradients() for signals in self._again()])

    def _again(self) -> Iterator[PerRecordSignals]:
        if self._kept:
            yield from self._kept
            return
        for part in self._parts:
            yield per_record_signals(self._model, self._model.encode(part))

    def _summed(self, columns: Tensor, group_of: tuple[int, ...]) -> Tensor:
        shares = torch.split(columns, [len(part) for part in self._parts], dim=1)
        sums = (
            signals._summed(share, group_of) for signals, share in zip(self._again(), shares, strict=True)
        )
        return reduce(torch.add, sums)
