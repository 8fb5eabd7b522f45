"""The most likely next tokens, one by one, for many prompts at a time; with a key-value cache where it goes.

Prompts are padded on the right. Of a module that is a backbone with an output layer (`_logits.two_parts`) the
keys and values of what was read are kept; of any other, all is read again for every token. Either way what
follows a prompt depends on that prompt alone, up to the order of floating-point sums.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.training.logits import logits_at, two_parts
from workbench.training.precision import exact

BATCH = 64
"""Prompts in one forward pass."""


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """How prompts are gone on with.

    Attributes:
        module: A causal language model (see `workbench.training.models.LanguageModel`).
        most: Tokens after a prompt at most.
        longest: Tokens of a prompt and what follows it at most; prompts are shorter.
        is_last: Whether nothing follows a token.
        padding: Token of the places that nobody reads.
        is_caching: Keep keys and values where the module can.
    """

    module: nn.Module
    most: int
    longest: int
    is_last: Callable[[int], bool]
    padding: int
    is_caching: bool = True

    def after(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What follows each prompt, its last token included; no gradient is recorded.

        Args:
            prompts: Tokens, at least one each.
        """
        said: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        with torch.no_grad():
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                found = self._after([list(prompts[i]) for i in chosen])
                for i, tokens in zip(chosen, found, strict=True):
                    said[i] = tokens
        return said

    def _after(self, prompts: list[list[int]]) -> list[list[int]]:
        batch = self.padded(prompts)
        parts = two_parts(self.module, batch) if self.is_caching else None
        return self._reading_again(prompts) if parts is None else self._caching(prompts, batch, *parts)

    def _rooms(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """How many tokens may follow each prompt."""
        return [min(self.most, self.longest - len(prompt)) for prompt in prompts]

    def padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` of rows of tokens, int64, on the module's device."""
        length = max(map(len, rows))
        device = next(self.module.parameters()).device
        ids = torch.tensor([[*row, *[self.padding] * (length - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
        return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}

    def _reading_again(self, prompts: list[list[int]]) -> list[list[int]]:
        said: list[list[int]] = [[] for _ in prompts]
        rooms = self._rooms(prompts)
        left = [i for i, room in enumerate(rooms) if room > 0]
        while left:
            batch = self.padded([prompts[i] + said[i] for i in left])
            last = batch["attention_mask"].sum(1) - 1
            place = torch.arange(batch["input_ids"].shape[1], device=last.device) == last[:, None]
            following = logits_at(self.module, batch, place).argmax(1).tolist()
            for i, token in zip(left, following, strict=True):
                said[i].append(token)
            left = [i for i in left if len(said[i]) < rooms[i] and not self.is_last(said[i][-1])]
        return said

    def _caching(
        self, prompts: list[list[int]], batch: dict[str, Tensor], backbone: nn.Module, output: nn.Module
    ) -> list[list[int]]:
        said: list[list[int]] = [[] for _ in prompts]
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
                said[i].append(token)  # Rows that have ended go on; what they say is cut off below.
            left = [i for i in left if len(said[i]) < rooms[i] and not self.is_last(said[i][-1])]
            if not left:
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            places = (lengths + len(said[0]) - 1).clamp(max=self.longest - 1)
            read = backbone(
                input_ids=following[:, None],
                attention_mask=mask,
                past_key_values=read.past_key_values,
                use_cache=True,
                **({"position_ids": places[:, None]} if takes_places else {}),
            )
            hidden = read.last_hidden_state[:, 0]
        return [self._cut(tokens, room) for tokens, room in zip(said, rooms, strict=True)]

    def _cut(self, tokens: list[int], room: int) -> list[int]:
        """The tokens up to the first last one, and no more than there is room for."""
        ends = (i + 1 for i, token in enumerate(tokens) if self.is_last(token))
        return tokens[: min(next(ends, room), max(room, 0))]
