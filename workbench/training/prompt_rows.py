"""What models that answer a prompt share: tokens of prompts and options, target losses, greedy answers.

Row i depends on record i alone: rows are padded on the right, where a causal model never looks. For greedy
answers, of a module that is a backbone with an output layer (`logits.two_parts`) the keys and values of what
was read are kept; by any other, all is read again for every token. Either way what follows a prompt depends
on that prompt alone, up to the order of floating-point sums.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.interfaces import FloatArray
from workbench.training.logits import IGNORED, logits_at, target_losses, two_parts
from workbench.training.models import (
    LanguageModel,
    common_length,
    padded,
    padded_inputs,
    token_ids,
)
from workbench.training.precision import exact

BATCH = 64
"""Prompts in one forward pass."""


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Settings of greedy decoding.

    Attributes:
        module: A causal language model (see `workbench.training.models.LanguageModel`).
        most: Tokens after a prompt at most.
        longest: Tokens of a prompt and what follows it at most; prompts are shorter.
        is_last: Whether nothing follows a token.
        padding: Token in places that are not read.
        is_caching: Keep keys and values where the module can.
    """

    module: nn.Module
    most: int
    longest: int
    is_last: Callable[[int], bool]
    padding: int
    is_caching: bool = True

    def after(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The most likely tokens after each prompt of at least one token, the last one included."""
        answers: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        with torch.no_grad():
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                part = self._after([list(prompts[i]) for i in chosen])
                for i, tokens in zip(chosen, part, strict=True):
                    answers[i] = tokens
        return answers

    def _after(self, prompts: list[list[int]]) -> list[list[int]]:
        batch = self.padded(prompts)
        parts = two_parts(self.module, batch) if self.is_caching else None
        return self._reading_again(prompts) if parts is None else self._caching(prompts, batch, *parts)

    def _rooms(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """How many tokens may follow each prompt."""
        return [min(self.most, self.longest - len(prompt)) for prompt in prompts]

    def padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` of rows of tokens, int64, on the module's device."""
        return padded_inputs(rows, self.padding, next(self.module.parameters()).device)

    def _reading_again(self, prompts: list[list[int]]) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        rooms = self._rooms(prompts)
        left = [i for i, room in enumerate(rooms) if room > 0]
        while left:
            batch = self.padded([prompts[i] + answers[i] for i in left])
            last = batch["attention_mask"].sum(1) - 1
            place = torch.arange(batch["input_ids"].shape[1], device=last.device) == last[:, None]
            following = logits_at(self.module, batch, place).argmax(1).tolist()
            for i, token in zip(left, following, strict=True):
                answers[i].append(token)
            left = [i for i in left if len(answers[i]) < rooms[i] and not self.is_last(answers[i][-1])]
        return answers

    def _caching(
        self, prompts: list[list[int]], batch: dict[str, Tensor], backbone: nn.Module, output: nn.Module
    ) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        rooms = self._rooms(prompts)
        left = [i for i, room in enumerate(rooms) if room > 0]
        mask = batch["attention_mask"]
        lengths = mask.sum(1)
        takes_places = "position_ids" in inspect.signature(backbone.forward).parameters
        read: Any = backbone(**batch, use_cache=True)
        hidden = read.last_hidden_state[torch.arange(len(prompts), device=mask.device), lengths - 1]
        while left:
            with exact(hidden.device):
                following = output(hidden.float()).argmax(1)
            for i, token in enumerate(following.tolist()):
                answers[i].append(token)  # Rows that have ended go on; what they say is cut off below.
            left = [i for i in left if len(answers[i]) < rooms[i] and not self.is_last(answers[i][-1])]
            if not left:
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            places = (lengths + len(answers[0]) - 1).clamp(max=self.longest - 1)
            read = backbone(
                input_ids=following[:, None],
                attention_mask=mask,
                past_key_values=read.past_key_values,
                use_cache=True,
                **({"position_ids": places[:, None]} if takes_places else {}),
            )
            hidden = read.last_hidden_state[:, 0]
        return [self._cut(tokens, room) for tokens, room in zip(answers, rooms, strict=True)]

    def _cut(self, tokens: list[int], room: int) -> list[int]:
        """The tokens up to the first last one, and no more than there is room for."""
        ends = (i + 1 for i, token in enumerate(tokens) if self.is_last(token))
        return tokens[: min(next(ends, room), max(room, 0))]


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
        """Put prompts around a language model, whose `max_length` is that of prompt and answer together."""
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
        values = (-losses).double().cpu().numpy()
        chosen = (batch["targets"] != IGNORED).cpu().numpy()
        return [np.asarray(row[keep], dtype=np.float64) for row, keep in zip(values, chosen, strict=True)]

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
        prompted = self._ids(prompt(text))
        whole = [self._ids(prompt(text) + option) for option in options]
        shared = len(prompted)
        for ids in whole:
            shared = min(shared, common_length(prompted, ids))
        return prompted[:shared], [ids[shared:] for ids in whole]

    def _ids(self, text: str) -> list[int]:
        return token_ids(self.tokenizer, text)

    def _padded(self, rows: Sequence[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
        """Ids, mask and targets of prompts with what is to be said after them; the last token is not read."""
        read = [[*prompt, *answer[:-1]] for prompt, answer in rows]
        targets = [
            [*[IGNORED] * (len(prompt) - 1), *answer] if answer else [IGNORED] * len(prompt)
            for prompt, answer in rows
        ]
        device = next(self.module.parameters()).device
        inputs = padded_inputs(read, self.base._padding_id(), device)
        return {**inputs, "targets": padded(targets, IGNORED, device)}
