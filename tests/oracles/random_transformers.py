"""Small transformers of well-known families, with random weights: for what holds whatever the weights are.

Invariance under permutations and the time of a step do not depend on pretraining, and so need no download.
Texts are read byte by byte.

    >>> model = random_transformer("bert", seed=0)
    >>> type(model.module).__name__, model.kind
    ('BertForSequenceClassification', 'classification')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray, Model, Record
from workbench.training.models import Classifier, LanguageModel, remove_dropout

FAMILIES = ("vit", "bert", "roberta", "gpt2", "bloom", "llama", "qwen2")
VOCABULARY = 259
"""All bytes, a padding, a beginning and an end."""
PADDING, BEGINNING, END = 256, 257, 258


def random_transformer(
    family: str,
    *,
    seed: int,
    width: int = 32,
    layers: int = 2,
    heads: int = 4,
    value_heads: int | None = None,
    classes: int = 10,
    positions: int = 64,
) -> Model:
    """A transformer with the weights that its family starts from.

    Args:
        family: One of `FAMILIES`: "vit" classifies 8 x 8 images, "bert" and "roberta" texts, the others
            predict their next byte.
        seed: Of the weights.
        width: Of the residual stream, a multiple of `heads`; hidden layers have 4 times as many units (Bloom)
            or 3 times.
        layers: Number of blocks.
        heads: Of queries.
        value_heads: Of keys and values, where the family can share them; None for `heads`.
        classes: Of a classifier.
        positions: Longest text in bytes, at least 3.

    Raises:
        InputError: unknown family, a number that is too small, a width that is no multiple of the heads, or
            heads that are none of the value_heads.
    """
    if family not in FAMILIES:
        raise unknown_name("family", family, FAMILIES)
    value_heads = heads if value_heads is None else value_heads
    least = {"width": 1, "layers": 1, "heads": 1, "value_heads": 1, "classes": 1, "positions": 3}
    given = (width, layers, heads, value_heads, classes, positions)
    for (name, smallest), value in zip(least.items(), given, strict=True):
        if value < smallest:
            raise InputError(f"{name} must be at least {smallest}, got {value}")
    if width % heads:
        raise InputError(f"width must be a multiple of heads, got {width} and {heads}")
    if heads % value_heads:
        raise InputError(f"heads must be a multiple of value_heads, got {heads} and {value_heads}")
    sizes = _Sizes(
        width=width,
        layers=layers,
        heads=heads,
        value_heads=value_heads,
        classes=classes,
        positions=positions,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = _module(family, sizes)
    module.eval()
    name = f"random_{family}"
    if family == "vit":
        return Classifier(_FlatImages(module), name)
    if family in ("bert", "roberta"):
        return TextClassifier(module, positions, name)
    return LanguageModel(module, Bytes(), positions, name)


class Bytes:
    """A tokenizer of bytes, as far as `LanguageModel` asks one."""

    eos_token_id = END
    pad_token_id = PADDING

    def __call__(self, text: str, *, verbose: bool = True) -> Mapping[str, list[int]]:
        """The bytes of a text as `input_ids`."""
        del verbose
        return {"input_ids": list(text.encode())}


class TextClassifier:
    """A classifier of the records' texts, byte by byte; implements `workbench.interfaces.Model`.

    Attributes:
        module: A transformer for the classification of sequences.
        kind: `"classification"`.
        name: For messages.
    """

    kind = "classification"

    def __init__(self, module: nn.Module, max_length: int, name: str) -> None:
        """Wrap a module; its dropout is switched off, in place.

        Args:
            module: Called with `input_ids` and `attention_mask`; returns `.logits`.
            max_length: Longest text in bytes, a beginning and an end included.
            name: For messages.
        """
        remove_dropout(module)
        self.module = module
        self.max_length = max_length
        self.name = name

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Bytes of the records' texts, padded on the right to `max_length`, with mask and labels.

        Every row is the same whatever else is in the batch: classifiers' rows are kept.

        Raises:
            InputError: a record has no text, or no label.
        """
        for record in records:
            if not record.text or record.label is None:
                missing = "label" if record.text else "text"
                raise InputError(f"record {record.id!r} has no {missing}: model {self.name!r} needs one")
        rows = [[BEGINNING, *record.text.encode()[: self.max_length - 2], END] for record in records]
        ids = torch.full((len(rows), self.max_length), PADDING)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        labels = torch.tensor([record.label for record in records], dtype=torch.int64)
        return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": labels}

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Cross entropy of each record's label, shape `(n,)`, nats; differentiable."""
        logits = self.module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return functional.cross_entropy(logits, batch["labels"], reduction="none")

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihood of each record's label: one float64 array of shape `(1,)` a record, nats."""
        with torch.no_grad():
            values = (-self.losses(batch)).double().numpy()
        return [np.asarray([value], dtype=np.float64) for value in values]


class _FlatImages(nn.Module):
    """Hands a vision transformer its images as squares."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor) -> Tensor:
        """Logits of flat 8 x 8 images."""
        logits: Tensor = self.inner(pixel_values=images.view(-1, 1, 8, 8)).logits
        return logits


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Of a transformer; see `random_transformer`."""

    width: int
    layers: int
    heads: int
    value_heads: int
    classes: int
    positions: int


def _module(family: str, sizes: _Sizes) -> nn.Module:
    """The module of a family; no configuration is read from anywhere."""
    import transformers

    makers: Any = transformers
    given = {
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": 3 * sizes.width,
    }
    words = {"vocab_size": VOCABULARY, "bos_token_id": BEGINNING, "eos_token_id": END}
    if family == "vit":
        images = {"image_size": 8, "patch_size": 2, "num_channels": 1}
        config = makers.ViTConfig(**given, **images, num_labels=sizes.classes)
    elif family == "bert":
        words.update(num_labels=sizes.classes, pad_token_id=PADDING, max_position_embeddings=sizes.positions)
        config = makers.BertConfig(**given, **words)
    elif family == "roberta":
        # Its positions are counted from beyond the padding's index.
        last = sizes.positions + PADDING + 1
        words.update(num_labels=sizes.classes, pad_token_id=PADDING, max_position_embeddings=last)
        config = makers.RobertaConfig(**given, **words)
    elif family == "gpt2":
        own = {"n_embd": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads}
        config = makers.GPT2Config(**words, **own, n_inner=3 * sizes.width, n_positions=sizes.positions)
    elif family == "bloom":
        own = {"hidden_size": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads}
        config = makers.BloomConfig(**words, **own)
    else:
        kind = {"llama": makers.LlamaConfig, "qwen2": makers.Qwen2Config}[family]
        words.update(num_key_value_heads=sizes.value_heads, max_position_embeddings=sizes.positions)
        config = kind(**given, **words)
    config._attn_implementation = "eager"
    config.use_cache = False
    module: nn.Module = getattr(makers, _CLASSES[family])(config)
    return module


_CLASSES = {
    "vit": "ViTForImageClassification",
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "gpt2": "GPT2LMHeadModel",
    "bloom": "BloomForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}
