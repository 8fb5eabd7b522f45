"""Classifiers of texts and of pairs of texts: transformers encoders like BERT with a classification head.

The model learns a record's label from its text, or from the two texts of a pair (`workbench.training.tasks`).
Row i depends on record i alone: rows are padded on the right, and no token attends to padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, Record
from workbench.training.hugging_face import has_segments
from workbench.training.models import (
    BATCH,
    LabelModel,
    check_max_length,
    padded,
    padded_inputs,
    remove_dropout,
)
from workbench.training.tasks import check_labels, text_parts

RECORDS_KEPT = 1 << 15
"""Texts whose tokens are cached, for training encodes the same ones again and again."""

Row = tuple[list[int], list[int]]
"""Tokens, and the segment of each."""


class TextClassifier(LabelModel):
    """A classifier of the records' texts; implements `workbench.interfaces.TaskModel`.

    Attributes:
        module: Called with `input_ids`, `attention_mask` and `token_type_ids`, shape `(n, length)`; returns
            `.logits` of shape `(n, classes)`.
        kind: `"language"`: it reads texts.
        name: Registry name.
        tokenizer: A `transformers` tokenizer that can encode a pair.
        classes: Number of labels, at least 2.
        max_length: Longest row in tokens, special tokens included, at least 8; the longer text of a pair is
            cut first.
    """

    kind = "language"

    def __init__(
        self, module: nn.Module, tokenizer: Any, *, classes: int, max_length: int, name: str
    ) -> None:
        """Wrap a module; its dropout is switched off, in place."""
        if classes < 2:
            raise InputError(f"classes must be at least 2, got {classes}")
        check_max_length(module, max_length, name, least=8)
        remove_dropout(module)
        self.module = module
        self.tokenizer = tokenizer
        self.classes = classes
        self.max_length = max_length
        self.name = name
        self._has_segments = has_segments(module)
        self._rows: dict[str, Row] = {}

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `token_type_ids`, padded on the right, and `labels`.

        `token_type_ids` are 1 in the second text if the module has segments. An `InputError` where a record
        has no text, or no label of the classes.
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

    def label_scores(self, records: Sequence[Record]) -> FloatArray:
        """Log-likelihood of every label, shape `(n, classes)`, nats; no gradient is recorded."""
        parts = [np.zeros((0, self.classes))]
        with torch.no_grad():
            for start in range(0, len(records), BATCH):
                batch = self.encode(records[start : start + BATCH])
                parts.append(self._logits(batch).log_softmax(-1).cpu().double().numpy())
        return np.concatenate(parts)

    def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """`accuracy`: the share of records whose label is the most likely; empty without records."""
        if not records:
            return {}
        labels = np.array([record.label for record in records])
        chosen = self.predicted(self.label_scores(records), labels)
        return {"accuracy": float(np.mean(chosen == labels))}

    def _logits(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Shape `(n, classes)`, float32 at least."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        logits: Tensor = self.module(**{name: batch[name] for name in names}).logits
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

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
