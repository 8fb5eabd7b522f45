"""How records become tensors and losses: the bench's `Model` for language models and classifiers.

Both compute row i of their losses from record i alone, whatever else is in the batch: language models are
padded on the right, where a causal model never looks, and the padded targets are masked. Dropout is
switched off: a per-record gradient that depends on a random mask has no one-record-at-a-time twin to be
checked against, and the attacks compare losses of models that should differ in their training data only.

    >>> import torch
    >>> from workbench.interfaces import Record
    >>> model = Classifier(torch.nn.Linear(2, 3), "tiny")
    >>> batch = model.encode([Record(id="a", image=(0.0, 1.0), label=2)])
    >>> model.losses(batch).shape
    torch.Size([1])
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
from workbench.training.logits import IGNORED, target_losses

_DROPOUT_WORDS = ("dropout", "layerdrop", "drop_prob", "drop_path", "pdrop")


def remove_dropout(module: nn.Module) -> None:
    """Set every dropout probability of a module to zero, in place.

    Covers dropout layers (also of adapters), and the bare probabilities that attention layers hand to
    `scaled_dot_product_attention` (plain float attributes such as `attention_dropout`).
    """
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in vars(part).items():
            if isinstance(value, float) and any(word in name for word in _DROPOUT_WORDS):
                setattr(part, name, 0.0)


class LanguageModel:
    """A causal language model over the records' texts; implements `workbench.interfaces.Model`.

    Attributes:
        module: Called with `input_ids` and `attention_mask`, shape `(n, length)`; returns logits of shape
            `(n, length, vocabulary)`, bare or as `.logits`. Row i, position t may depend on tokens 0..t of
            row i alone.
        kind: `"language"`.
        name: Registry name.
        tokenizer: A `transformers` tokenizer.
        max_length: Longest record in tokens, the end-of-text token included; longer texts are cut.
    """

    kind = "language"

    def __init__(self, module: nn.Module, tokenizer: Any, max_length: int, name: str) -> None:
        """Wrap a module; its dropout and its key-value cache are switched off, in place.

        Args:
            module: The causal language model.
            tokenizer: Its tokenizer; where it has an end-of-text token, every record ends with it.
            max_length: Longest record in tokens, at least 2.
            name: Registry name.

        Raises:
            InputError: `max_length` is below 2 or beyond the module's positions.
        """
        config: Any = getattr(module, "config", None)
        positions = getattr(config, "max_position_embeddings", None)
        if max_length < 2:
            raise InputError(f"max_length must be at least 2 tokens, got {max_length}")
        if positions is not None and max_length > positions:
            raise InputError(
                f"max_length must be at most {positions}, the positions of {name}, got {max_length}"
            )
        remove_dropout(module)
        if config is not None:
            config.use_cache = False
        self.module = module
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.name = name

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Token ids and mask of the records' texts, padded on the right to the longest of them.

        Args:
            records: Records with a text; may be empty.

        Returns:
            `input_ids` and `attention_mask` (1 for tokens, 0 for padding), int64, shape `(n, length)`,
            `length <= max_length`, on the module's device.

        Raises:
            InputError: a record has fewer than two tokens, so that nothing is predicted.
        """
        rows = [self._token_ids(record) for record in records]
        length = max((len(row) for row in rows), default=1)
        ids = torch.full((len(rows), length), self._padding_id(), dtype=torch.int64)
        mask = torch.zeros((len(rows), length), dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[i, : len(row)] = 1
        device = _device(self.module)
        return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean negative log-likelihood of each record's predicted tokens (all but the first).

        Args:
            batch: As returned by `encode`.

        Returns:
            Shape `(n,)`, nats; differentiable.
        """
        losses, predicted = self._token_losses(batch)
        return losses.sum(1) / predicted.sum(1)

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihoods of each record's predicted tokens; no gradient is recorded.

        Returns:
            One float64 array a record, nats; its mean is minus the record's loss.
        """
        with torch.no_grad():
            losses, predicted = self._token_losses(batch)
        values = (-losses).double().cpu().numpy()
        chosen = predicted.cpu().numpy()
        return [np.asarray(row[keep], dtype=np.float64) for row, keep in zip(values, chosen, strict=True)]

    def _token_losses(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Losses, zero where nothing is predicted, and the mask of what is: both `(n, length)`."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        predicted = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1).bool()
        # The targets are shifted, not the logits: a slice of the logits would be copied whole.
        shifted = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)
        targets = torch.where(predicted, shifted, IGNORED)
        return target_losses(self.module, batch, targets), predicted

    def _token_ids(self, record: Record) -> list[int]:
        ids = [int(token) for token in self.tokenizer(record.text, verbose=False)["input_ids"]]
        end = self.tokenizer.eos_token_id
        if ids and end is not None and (len(ids) == 1 or ids[-1] != end):
            ids.append(int(end))
        if len(ids) < 2 or not record.text:
            raise InputError(f"record {record.id!r} has no token to predict: text is {record.text[:40]!r}")
        return ids[: self.max_length]

    def _padding_id(self) -> int:
        for candidate in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if candidate is not None:
                return int(candidate)
        return 0


class Classifier:
    """A classifier of the records' images; implements `workbench.interfaces.Model`.

    Attributes:
        module: Takes images of shape `(n, features)`, returns logits `(n, classes)`; row i depends on
            image i alone.
        kind: `"classification"`.
        name: Registry name.
    """

    kind = "classification"

    def __init__(self, module: nn.Module, name: str) -> None:
        """Wrap a module; its dropout is switched off, in place."""
        remove_dropout(module)
        self.module = module
        self.name = name

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Images and labels of the records.

        Args:
            records: Records with an image and a label; may be empty.

        Returns:
            `images`, float32, shape `(n, features)`, and `labels`, int64, shape `(n,)`, on the module's
            device.

        Raises:
            InputError: a record has no image or no label, or images differ in size.
        """
        images: list[tuple[float, ...]] = []
        labels: list[int] = []
        for record in records:
            if record.image is None or record.label is None:
                missing = "image" if record.image is None else "label"
                raise InputError(f"record {record.id!r} has no {missing}: model {self.name!r} needs one")
            if images and len(record.image) != len(images[0]):
                sizes = f"{len(record.image)} values, others {len(images[0])}"
                raise InputError(f"record {record.id!r} has an image of {sizes}")
            images.append(record.image)
            labels.append(record.label)
        device = _device(self.module)
        stacked = torch.tensor(images, dtype=torch.float32) if images else torch.zeros((0, 0))
        return {
            "images": stacked.to(device),
            "labels": torch.tensor(labels, dtype=torch.int64).to(device),
        }

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy of each record's label, shape `(n,)`, nats; differentiable."""
        return functional.cross_entropy(self.module(batch["images"]), batch["labels"], reduction="none")

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihood of each record's label: one float64 array of shape `(1,)` a record, nats."""
        with torch.no_grad():
            values = (-self.losses(batch)).double().cpu().numpy()
        return [np.asarray([value], dtype=np.float64) for value in values]


def _device(module: nn.Module) -> torch.device:
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
