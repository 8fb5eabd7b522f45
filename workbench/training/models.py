"""Turns records into tensors and losses: the bench's `Model` for language models and classifiers.

Row i of the losses depends on record i alone: language models are padded on the right, which a causal model
never sees, and padded targets are masked. Dropout is switched off, so that per-record gradients can be
checked against those of single records, and compared models differ in their training data only.

    >>> import torch
    >>> from workbench.interfaces import Record
    >>> model = Classifier(torch.nn.Linear(2, 3), "tiny")
    >>> batch = model.encode([Record(id="a", image=(0.0, 1.0), label=2)])
    >>> model.losses(batch).shape
    torch.Size([1])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.core.errors import InputError
from workbench.interfaces import BoolArray, FloatArray, IntArray, Model, Record
from workbench.training.devices import widened
from workbench.training.hugging_face import positions_of, switch_cache_off
from workbench.training.logits import IGNORED, logits_at, target_losses

BATCH = 64
"""Records in one forward pass of `label_scores`."""

TEXTS_KEPT = 200_000
"""Texts whose tokens are kept; reading them anew for every batch takes as long as the steps."""

TOKENIZERS_KEPT = 4
"""Tokenizers, with a length, whose texts are kept for all models."""

_READ: dict[object, dict[str, list[int]]] = {}
"""Tokens of texts, by all that decides them."""

_DROPOUT_WORDS = ("dropout", "layerdrop", "drop_prob", "drop_path", "pdrop")


def remove_dropout(module: nn.Module) -> None:
    """Set every dropout probability of a module to zero, in place: of layers, and float attributes.

    The latter, such as `attention_dropout`, are what attention layers pass to `scaled_dot_product_attention`.
    """
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in vars(part).items():
            if isinstance(value, float) and any(word in name for word in _DROPOUT_WORDS):
                setattr(part, name, 0.0)


def _kept(settings: object) -> dict[str, list[int]]:
    """The tokens of texts that models with these settings share; those of the oldest settings go."""
    if settings not in _READ:
        for oldest in list(_READ)[: max(0, len(_READ) + 1 - TOKENIZERS_KEPT)]:
            del _READ[oldest]
    return _READ.setdefault(settings, {})


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text, without a trailing end-of-text token."""
    ids = [int(token) for token in tokenizer(text, verbose=False)["input_ids"]]
    end = tokenizer.eos_token_id
    return ids[:-1] if len(ids) > 1 and end is not None and ids[-1] == end else ids


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix of two rows of tokens."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def padded(rows: Sequence[Sequence[int]], value: int, device: torch.device) -> Tensor:
    """Rows padded on the right with a value to the longest; int64, shape `(n, length)`, length >= 1."""
    length = max((len(row) for row in rows), default=1)
    filled = [[*row, *[value] * (length - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int64).reshape(len(rows), length).to(device)


def padded_inputs(rows: Sequence[Sequence[int]], padding: int, device: torch.device) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` (1 for tokens) of rows of tokens."""
    mask = padded([[1] * len(row) for row in rows], 0, device)
    return {"input_ids": padded(rows, padding, device), "attention_mask": mask}


def check_max_length(module: nn.Module, max_length: int, name: str, *, least: int) -> None:
    """Refuse a longest row below `least` tokens or above the module's positions, with an `InputError`."""
    positions = positions_of(module)
    if max_length < least:
        raise InputError(f"max_length must be at least {least} tokens, got {max_length}")
    if positions is not None and max_length > positions:
        raise InputError(f"max_length must be at most {positions}, the positions of {name}, got {max_length}")


def negated_rows(losses: Tensor, chosen: Tensor) -> list[FloatArray]:
    """Minus the chosen losses of each row, one float64 array a row; both tensors of shape `(n, length)`."""
    values, mask = (-losses.detach()).cpu().double().numpy(), chosen.cpu().numpy()
    return [np.asarray(row[keep], dtype=np.float64) for row, keep in zip(values, mask, strict=True)]


class LabelModel(ABC):
    """A model whose record has one prediction, of its label: one log-likelihood a record."""

    module: nn.Module
    kind: str
    name: str

    @abstractmethod
    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Tensors of the records, one row each."""

    @abstractmethod
    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Loss of each record's label, shape `(n,)`, nats; differentiable."""

    @abstractmethod
    def label_scores(self, records: Sequence[Record]) -> FloatArray:
        """Log-likelihood of every label, shape `(n, classes)`, nats; no gradient is recorded."""

    def predicted(self, scores: FloatArray, labels: IntArray) -> IntArray:
        """The likeliest label of each record, shape `(n,)`.

        `scores`: as of `label_scores`. `labels`: the records' own, shape `(n,)`.
        """
        chosen: IntArray = scores.argmax(axis=1)
        return chosen

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihood of each record's label: a float64 array of shape `(1,)` a record, nats."""
        with torch.no_grad():
            losses = self.losses(batch)[:, None]
        return negated_rows(losses, torch.ones_like(losses, dtype=torch.bool))


class LanguageModel:
    """A causal language model over the records' texts; implements `workbench.interfaces.Model`.

    Attributes:
        module: Called with `input_ids` and `attention_mask`, shape `(n, length)`; returns logits of shape
            `(n, length, vocabulary)`, bare or as `.logits`. Row i, position t may depend on tokens 0..t of
            row i alone.
        name: Registry name.
        tokenizer: A `transformers` tokenizer; if it has an end-of-text token, every record ends with it.
        max_length: Longest record in tokens, the end-of-text token included; longer texts are cut.
        last: Tokens after which a record ends without an end-of-text token.
    """

    kind = "language"
    last: frozenset[int] = frozenset()

    def __init__(
        self, module: nn.Module, tokenizer: Any, max_length: int, name: str, *, is_shared: bool = False
    ) -> None:
        """Wrap a causal language model; its dropout and its key-value cache are switched off, in place.

        `is_shared`: whether a text is read once for all such models whose (fast) tokenizers are equal.
        """
        check_max_length(module, max_length, name, least=2)
        remove_dropout(module)
        switch_cache_off(module)
        self.module = module
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.name = name
        self._is_shared = is_shared
        self._read: tuple[object, dict[str, list[int]]] = (None, {})

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` of the records' texts, padded on the right to the longest.

        An `InputError` where a record has fewer than two tokens, so that nothing is predicted.
        """
        rows = [self._token_ids(record) for record in records]
        return padded_inputs(rows, self.padding_id(), _device(self.module))

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean negative log-likelihood of each record's tokens but the first, nats, shape `(n,)`."""
        losses, predicted = self._token_losses(batch)
        return losses.sum(1) / predicted.sum(1)

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihoods of each record's tokens but the first, nats; no gradient is recorded."""
        with torch.no_grad():
            return negated_rows(*self._token_losses(batch))

    def token_z_scores(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Each token's log-likelihood less its mean under the predicted distribution, over its deviation.

        Of each record's tokens but the first; no gradient is recorded.
        """
        ids, mask = batch["input_ids"], batch["attention_mask"]
        with torch.no_grad():
            found = self.module(input_ids=ids, attention_mask=mask)
            logits = found if isinstance(found, Tensor) else found.logits
            rows = []
            for row, (target, length) in enumerate(zip(ids, mask.sum(1).tolist(), strict=True)):
                log_p = torch.log_softmax(widened(logits[row, : length - 1]), dim=1)
                p = log_p.exp()
                mean = (p * log_p).sum(1)
                deviation = ((p * log_p.square()).sum(1) - mean.square()).clamp(min=1e-12).sqrt()
                chosen = log_p.gather(1, target[1:length, None])[:, 0]
                rows.append(((chosen - mean) / deviation).cpu().numpy())
        return rows

    def token_hits(self, batch: Mapping[str, Tensor]) -> list[BoolArray]:
        """Whether each of a record's tokens but the first is the most likely one; no gradient is recorded."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        chosen = mask.bool() & torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1).bool()
        with torch.no_grad():
            guesses = logits_at(self.module, batch, chosen).argmax(1)
        hits = (guesses == torch.cat([ids[:, 1:], ids[:, :1]], dim=1)[chosen]).cpu().numpy()
        return np.split(hits, np.cumsum(chosen.sum(1).cpu().numpy())[:-1])

    def _token_losses(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Losses, zero where nothing is predicted, and the mask of predictions; both `(n, length)`."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        predicted = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1).bool()
        # The targets are shifted, not the logits: a slice of the logits would be copied whole.
        shifted = torch.cat([ids[:, 1:], ids[:, :1]], dim=1)
        targets = torch.where(predicted, shifted, IGNORED)
        return target_losses(self.module, batch, targets), predicted

    def _token_ids(self, record: Record) -> list[int]:
        """A record's tokens; a text is read once as long as the tokenizer and `max_length` stay the same."""
        tokenizer, is_shared = self.tokenizer, self._is_shared
        # Tokens may be added to it, and another may end a text.
        own = (len(tokenizer), tokenizer.eos_token_id) if is_shared else ()
        settings = (tokenizer, own, self.max_length, self.last)
        if self._read[0] != settings:
            known = _kept((tokenizer.backend_tokenizer.to_str(), *settings[1:])) if is_shared else {}
            self._read = settings, known
        known = self._read[1]
        ids = known.get(record.text)
        if ids is None:
            ids = self._new_token_ids(record)
            if len(known) >= TEXTS_KEPT:
                known.clear()
            known[record.text] = ids
        return ids

    def _new_token_ids(self, record: Record) -> list[int]:
        ids = [int(token) for token in self.tokenizer(record.text, verbose=False)["input_ids"]]
        end = self.tokenizer.eos_token_id
        if ids and end is not None and (len(ids) == 1 or ids[-1] not in {end, *self.last}):
            ids.append(int(end))
        if len(ids) < 2 or not record.text:
            raise InputError(f"record {record.id!r} has no token to predict: text is {record.text[:40]!r}")
        return ids[: self.max_length]

    def padding_id(self) -> int:
        """The token that fills rows: padding, end of text, or 0."""
        for candidate in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if candidate is not None:
                return int(candidate)
        return 0


def require_read_whole(model: Model, records: Sequence[Record]) -> None:
    """Refuse records that a `LanguageModel` would cut, with an `InputError`; planted ones lose their secret.

    The end-of-text token may be cut.
    """
    if not isinstance(model, LanguageModel):
        return
    for record in records:
        length = len(model.tokenizer(record.text, verbose=False)["input_ids"])
        if length > model.max_length:
            raise InputError(
                f"max_length must hold every planted record, got {model.max_length}; "
                f"record {record.id!r} has {length} tokens"
            )


class Classifier(LabelModel):
    """A classifier of the records' images; implements `workbench.interfaces.Model`.

    The module takes images of shape `(n, features)` and returns logits `(n, classes)`, row i from image i
    alone. `name` is the registry name.
    """

    kind = "classification"

    def __init__(self, module: nn.Module, name: str) -> None:
        """Wrap a module; its dropout is switched off, in place."""
        remove_dropout(module)
        self.module = module
        self.name = name

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """`images`, float32, shape `(n, features)`, and `labels`, int64, shape `(n,)`, on its device.

        An `InputError` where a record has no image or no label, or images differ in size.
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
        return {"images": stacked.to(device), "labels": torch.tensor(labels, dtype=torch.int64).to(device)}

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy of each record's label, shape `(n,)`, nats; differentiable."""
        return functional.cross_entropy(self.module(batch["images"]), batch["labels"], reduction="none")

    def label_scores(self, records: Sequence[Record]) -> FloatArray:
        """See `LabelModel`."""
        parts = []
        with torch.no_grad():
            for start in range(0, len(records), BATCH):
                images = self.encode(records[start : start + BATCH])["images"]
                parts.append(self.module(images).log_softmax(-1).cpu().double().numpy())
        return np.concatenate(parts)

    def predicted(self, scores: FloatArray, labels: IntArray) -> IntArray:
        """See `LabelModel`; among the labels that the records have."""
        known = np.unique(labels)
        chosen: IntArray = known[scores[:, known].argmax(axis=1)]
        return chosen


def _device(module: nn.Module) -> torch.device:
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
