"""Records encoded once and batched by length, for passes that see the same records again and again.

A batch is padded to its longest record, so records of like length go together; and the batches of a sample
are kept, for the other passes of a step and, where the sample is the whole universe, of all steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from workbench.interfaces import IntArray, Model, Record

KEPT = 2
"""Samples whose batches are kept: the universe, and the dev records."""
LIKE = 0.8
"""The shortest record of a batch has this share of the longest's tokens, at least."""
LEAST_TOKENS = 1024
"""Batches of fewer are not worth a forward pass of their own."""

Batch = tuple[IntArray, dict[str, Tensor]]
"""Places of the records in the sample, and their tensors."""


class Batches:
    """A model's batches of some records, in an order that depends on the records only."""

    def __init__(self, model: Model, most: int) -> None:
        """Bind a model.

        Args:
            model: Encodes the records.
            most: Records in one batch at most, >= 1.
        """
        self._model, self._most = model, most
        # By identity, which the records that are held keep to themselves.
        self._lengths: dict[int, tuple[Record, int]] = {}
        self._samples: OrderedDict[tuple[int, ...], tuple[Sequence[Record], list[Batch]]] = OrderedDict()

    def of(self, records: Sequence[Record]) -> list[Batch]:
        """The batches of a sample; not to be changed.

        Args:
            records: The sample, in its order; may be empty.
        """
        key = tuple(map(id, records))
        if key in self._samples:
            self._samples.move_to_end(key)
            return self._samples[key][1]
        batches = [
            (places, self._model.encode([records[i] for i in places])) for places in self._places(records)
        ]
        self._samples[key] = (list(records), batches)
        if len(self._samples) > KEPT:
            self._samples.popitem(last=False)
        return batches

    def _places(self, records: Sequence[Record]) -> Iterator[IntArray]:
        """Which records go together, the longest first."""
        lengths = self._lengths_of(records)
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = int(lengths[order[start]])
            end = start + 1
            while (
                end < len(order)
                and end - start < self._most
                and (lengths[order[end]] >= LIKE * longest or (end - start) * longest < LEAST_TOKENS)
            ):
                end += 1
            yield order[start:end]
            start = end

    def _lengths_of(self, records: Sequence[Record]) -> IntArray:
        """Tokens of each record; zero for those of a model whose batches have no mask."""
        unknown = [record for record in records if id(record) not in self._lengths]
        for start in range(0, len(unknown), self._most):
            part = unknown[start : start + self._most]
            mask = self._model.encode(part).get("attention_mask")
            counts = [0] * len(part) if mask is None else mask.flatten(1).sum(1).tolist()
            for record, count in zip(part, counts, strict=True):
                self._lengths[id(record)] = (record, int(count))
        return np.array([self._lengths[id(record)][1] for record in records], dtype=np.int64)
