"""What models that answer a prompt share: tokens of prompts and options, target losses, greedy answers.

Row i depends on record i alone: rows are padded on the right, where a causal model never looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.interfaces import FloatArray
from workbench.training.greedy import Greedy
from workbench.training.logits import IGNORED, target_losses
from workbench.training.models import LanguageModel

Row = tuple[list[int], list[list[int]]]
"""Tokens of a prompt, and of each of its options; of an answer, the only option."""


class PromptModel:
    """A language model that reads a prompt and is trained on what follows it.

    Attributes:
        kind: `"language"`.
        base: The language model whose weights are trained.
    """

    kind = "language"

    def __init__(self, base: LanguageModel) -> None:
        """Put prompts around a language model.

        Args:
            base: The model; its `max_length` is that of prompt and answer together.
        """
        self.base = base

    @property
    def module(self) -> nn.Module:
        """The base's module."""
        return self.base.module

    @module.setter
    def module(self, module: nn.Module) -> None:
        self.base.module = module

    @property
    def tokenizer(self) -> Any:
        """The base's tokenizer."""
        return self.base.tokenizer

    @property
    def max_length(self) -> int:
        """Longest prompt with its answer, in tokens."""
        return self.base.max_length

    def _mean_target_losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean negative log-likelihood of each row's targets, shape `(n,)`, nats."""
        losses = target_losses(self.module, batch, batch["targets"])
        return losses.sum(1) / (batch["targets"] != IGNORED).sum(1)

    def _target_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihoods of each row's targets, one float64 array a row, nats; no gradient is recorded."""
        with torch.no_grad():
            losses = target_losses(self.module, batch, batch["targets"])
        found = (-losses).double().cpu().numpy()
        chosen = (batch["targets"] != IGNORED).cpu().numpy()
        return [np.asarray(row[keep], dtype=np.float64) for row, keep in zip(found, chosen, strict=True)]

    def _greedy(self, most: int, *, is_caching: bool) -> Greedy:
        """What goes on with a prompt up to a newline or the end of the text."""
        end = self.tokenizer.eos_token_id
        return Greedy(
            module=self.module,
            most=most,
            longest=self.max_length,
            is_last=lambda token: token == end or "\n" in self.tokenizer.decode([token]),
            padding=self.base._padding_id(),
            is_caching=is_caching,
        )

    def _decoded(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip(" ").split("\n", maxsplit=1)[0].strip()

    def _split(self, text: str, prompt: Callable[[str], str], options: Sequence[str]) -> Row:
        """Tokens of the prompt, and what each option adds to them; where they merge, both are cut shorter."""
        asked = self._ids(prompt(text))
        whole = [self._ids(prompt(text) + option) for option in options]
        shared = len(asked)
        for ids in whole:
            shared = min(shared, _common(asked, ids))
        return asked[:shared], [ids[shared:] for ids in whole]

    def _ids(self, text: str) -> list[int]:
        """Tokens of a text, without an end-of-text token after it."""
        ids = [int(token) for token in self.tokenizer(text, verbose=False)["input_ids"]]
        end = self.tokenizer.eos_token_id
        return ids[:-1] if len(ids) > 1 and end is not None and ids[-1] == end else ids

    def _padded(self, rows: Sequence[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
        """Ids, mask and targets of prompts with what is to be said after them; the last token is not read."""
        length = max((len(prompt) + max(0, len(said) - 1) for prompt, said in rows), default=1)
        ids = np.full((len(rows), length), self.base._padding_id(), dtype=np.int64)
        mask = np.zeros((len(rows), length), dtype=np.int64)
        targets = np.full((len(rows), length), IGNORED, dtype=np.int64)
        for i, (prompt, said) in enumerate(rows):
            read = [*prompt, *said[:-1]]
            ids[i, : len(read)] = read
            mask[i, : len(read)] = 1
            if said:
                targets[i, len(prompt) - 1 : len(read)] = said
        device = next(self.module.parameters()).device
        named = {"input_ids": ids, "attention_mask": mask, "targets": targets}
        return {name: torch.from_numpy(array).to(device) for name, array in named.items()}


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length
