"""Classifiers of texts and of pairs of texts: transformers encoders of BERT's kind with a head on top.

A record's text, or the two texts of a pair (`workbench.training.tasks`), become the segments of the
tokenizer; what is learned is the record's label. Row i depends on record i alone: rows are padded on the
right, and no token attends to padding. A text is as long as it is, so rows are padded to the longest of their
batch, as a language model's are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, IntArray, Record
from workbench.training.hugging_face import has_segments, positions_of
from workbench.training.models import padded, padded_inputs, remove_dropout
from workbench.training.tasks import check_labels, text_parts

BATCH = 64
"""Records in one forward pass of `label_scores`."""

RECORDS_KEPT = 1 << 15
"""Texts whose tokens are remembered: training asks for the same ones again and again."""

Row = tuple[list[int], list[int]]
"""Tokens, and the segment of each."""


class TextClassifier:
    """A classifier of the records' texts; implements `workbench.interfaces.TaskModel`.

    Attributes:
        module: Called with `input_ids`, `attention_mask` and `token_type_ids`, shape `(n, length)`; returns
            `.logits` of shape `(n, classes)`.
        kind: `"language"`: it reads texts, of any length.
        name: Registry name.
        tokenizer: A `transformers` tokenizer that can encode a pair.
        classes: Number of labels.
        max_length: Longest row in tokens, its marks included; the longer text of a pair is cut first.
    """

    kind = "language"

    def __init__(
        self, module: nn.Module, tokenizer: Any, *, classes: int, max_length: int, name: str
    ) -> None:
        """Wrap a module; its dropout is switched off, in place.

        Args:
            module: The transformer with its head.
            tokenizer: Its tokenizer.
            classes: Number of labels, at least 2.
            max_length: At least 8, at most the module's positions.
            name: Registry name.
        """
        positions = positions_of(module)
        if classes < 2:
            raise InputError(f"classes must be at least 2, got {classes}")
        if max_length < 8:
            raise InputError(f"max_length must be at least 8 tokens, got {max_length}")
        if positions is not None and max_length > positions:
            raise InputError(
                f"max_length must be at most {positions}, the positions of {name}, got {max_length}"
            )
        remove_dropout(module)
        self.module = module
        self.tokenizer = tokenizer
        self.classes = classes
        self.max_length = max_length
        self.name = name
        self._has_segments = has_segments(module)
        self._rows: dict[str, Row] = {}

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Tokens, mask, segments and labels of the records, padded on the right to the longest of them.

        Returns:
            `input_ids`, `attention_mask` (1 for tokens) and `token_type_ids` (1 in the second text, where the
            module knows segments), int64, shape `(n, length)`, and `labels`, shape `(n,)`, on the module's
            device.

        Raises:
            InputError: a record has no text, or no label of the classes.
        """
        check_labels(self.classes, records)
        rows = [self._row(record.text) for record in records]
        device = next(self.module.parameters()).device
        labels = torch.tensor([record.label for record in records], dtype=torch.int64)
        return {
            **padded_inputs([tokens for tokens, _ in rows], self._padding_id(), device),
            "token_type_ids": padded([types for _, types in rows], 0, device),
            "labels": labels.to(device),
        }

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy of each record's label, shape `(n,)`, nats; differentiable."""
        return functional.cross_entropy(self._logits(batch), batch["labels"], reduction="none")

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihood of each record's label: one float64 array of shape `(1,)` a record, nats."""
        with torch.no_grad():
            values = (-self.losses(batch)).double().cpu().numpy()
        return [np.asarray([value], dtype=np.float64) for value in values]

    def label_scores(self, records: Sequence[Record]) -> FloatArray:
        """Log-likelihood of every label, shape `(n, classes)`, nats; no gradient is recorded."""
        parts = [np.zeros((0, self.classes))]
        with torch.no_grad():
            for batch in self._batches(records):
                parts.append(self._logits(batch).log_softmax(-1).double().cpu().numpy())
        return np.concatenate(parts)

    def predicted(self, records: Sequence[Record]) -> IntArray:
        """The most likely label of each record, shape `(n,)`."""
        best: IntArray = self.label_scores(records).argmax(axis=1).astype(np.int64)
        return best

    def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """`accuracy`: share of records whose label is the most likely one; empty without records."""
        if not records:
            return {}
        labels = np.array([record.label for record in records])
        return {"accuracy": float(np.mean(self.predicted(records) == labels))}

    def _logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Shape `(n, classes)`, float32 at least."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        logits: Tensor = self.module(**{name: batch[name] for name in names}).logits
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def _batches(self, records: Sequence[Record]) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(records), BATCH):
            yield self.encode(records[start : start + BATCH])

    def _row(self, text: str) -> Row:
        """Tokens and segments of a text or a pair, cut to `max_length`."""
        known = self._rows.get(text)
        if known is None:
            encoded = self.tokenizer(
                *text_parts(text),
                truncation=True,
                max_length=self.max_length,
                return_token_type_ids=True,  # left out by default where a folder does not ask for them
            )
            tokens = [int(token) for token in encoded["input_ids"]]
            types = encoded["token_type_ids"] if self._has_segments else [0] * len(tokens)
            known = (tokens, [int(segment) for segment in types])
            if len(self._rows) < RECORDS_KEPT:
                self._rows[text] = known
        return known

    def _padding_id(self) -> int:
        padding = self.tokenizer.pad_token_id
        return 0 if padding is None else int(padding)
