"""Continuations of a prompt by a language model: samples, and likelihoods of given texts.

The prompt is read once, and its keys and values are kept. Continuations are read packed: all rows form one
sequence after the prompt, under a mask that shows each token only its own row, so that the prompt is neither
read nor copied again, and a beginning that several rows share is read once. A module that keeps no keys, or
gives other logits that way (this is tested), reads prompt and row again for every token. Either way a row
depends on itself and on the prompt alone, up to the order of floating-point sums.

Uniform numbers are drawn for all rows in advance, so the number of rows read at once changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import FloatArray, Model
from workbench.training.devices import wide_dtype, widened
from workbench.training.fine_tuning import evaluating
from workbench.training.hugging_face import positions_of, window_of
from workbench.training.logits import logits_at, two_parts
from workbench.training.models import common_length, padded_inputs, token_ids
from workbench.training.precision import exact

PACKED = 128
"""Tokens of given texts read at once after a prompt, packed."""

DRAWN = 256
"""Rows drawn at once."""

WHOLE = 32
"""Rows read at once with their prompt."""

SAME_LOGITS = 1e-3
"""Largest difference, relative to the logits' size, between packed and plain reading."""

SHORTEST_PROMPT = 2
"""Fewest tokens of a prompt."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How continuations are sampled: by temperature, top-k and top-p in this order, as in `transformers`.

    Attributes:
        temperature: Divides the logits; > 0.
        top_k: Number of most likely tokens that are kept; >= 1.
        top_p: Of these, the fewest most likely ones with this share of the probability are kept; in (0, 1].
        tokens: Length of a continuation, which may end earlier at an end-of-text token; >= 1.
    """

    temperature: float = 0.7
    top_k: int = 50
    top_p: float = 0.95
    tokens: int = 10

    def __post_init__(self) -> None:
        if not 0.0 < self.temperature < float("inf"):
            raise InputError(f"temperature must be finite and > 0, got {self.temperature:g}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must be in (0, 1], got {self.top_p:g}")
        for name in ("top_k", "tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")

    def choose(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Token ids, shape `(n,)`, by inverting the distribution, most likely tokens first.

        Logits are of shape `(n, vocabulary)`, uniform numbers in [0, 1), float64, of shape `(n,)`.
        """
        # The largest is zero, so that a small temperature makes it certain and no logit infinite.
        scaled = (widened(logits) - widened(logits.amax(1, keepdim=True))) / self.temperature
        best, tokens = scaled.topk(min(self.top_k, scaled.shape[1]), dim=1)
        shares = best.softmax(1)
        before = shares.cumsum(1) - shares
        shares = shares * (before < self.top_p)
        sums = shares.cumsum(1)
        place = (sums <= uniform[:, None] * sums[:, -1:]).sum(1, keepdim=True)
        last = (shares > 0).sum(1, keepdim=True) - 1  # A product may round up to 1.
        return tokens.gather(1, torch.minimum(place, last))[:, 0]


@runtime_checkable
class TextModel(Model, Protocol):
    """A language model with a tokenizer."""

    tokenizer: Any
    max_length: int


def language_model(subject: Any) -> TextModel:
    """The language model of a subject, or the model itself; an `UnsupportedError` for a classifier."""
    model: Model = subject if isinstance(subject, Model) else subject.model
    if not isinstance(model, TextModel) or model.kind != "language":
        raise UnsupportedError(f"model {model.name!r} continues no text: continuations need a language model")
    return model


class Prompt:
    """A prompt that a language model has read, whose weights must not change meanwhile.

    `length`: number of tokens that are read. `dropped`: number of tokens cut from the beginning, for lack of
    positions.
    """

    def __init__(self, subject: object, text: str, *, room: int = 16) -> None:
        """Tokenise a prompt for a model, or a subject's model; `room` tokens may follow it.

        Raises `InputError`: the text has fewer than two tokens, or the model has no room for it.
        `UnsupportedError`: there is no language model.
        """
        self._model = language_model(subject)
        self._text, self._room = text, room
        ids = self._ids(text)
        # What a model is trained on may be shorter than its positions.
        longest = positions_of(self._model.module) or self._model.max_length
        if len(ids) < SHORTEST_PROMPT or longest - room < SHORTEST_PROMPT:
            raise InputError(
                f"a prompt needs {SHORTEST_PROMPT} tokens and room for {room} more, got {len(ids)} tokens "
                f"and {longest} positions"
            )
        self.dropped = max(0, len(ids) - (longest - room))
        self._prompt = ids[self.dropped :]
        self.length = len(self._prompt)
        self._read: _Packed | _Whole | None = None

    def sample(self, count: int, decoding: Decoding, generator: torch.Generator) -> list[str]:
        """Independent continuations, up to the end of the text, without special tokens.

        Draws `count` times `decoding.tokens` uniform numbers from the generator, which is on the CPU.
        """
        if decoding.tokens > self._room:
            raise InputError(f"tokens must be at most the prompt's room {self._room}, got {decoding.tokens}")
        uniform = torch.rand((count, decoding.tokens), generator=generator, dtype=torch.float64)
        end = self._model.tokenizer.eos_token_id
        rows: list[list[int]] = [[] for _ in range(count)]
        with evaluating(self._model):
            reader = self._reader()
            uniform = uniform.to(reader.device, wide_dtype(reader.device))
            for part in _alike(reader, decoding, uniform):
                drawn = _drawn(reader, decoding, uniform[part], end)
                for place, row in zip(part.tolist(), drawn, strict=True):
                    rows[place] = row
        texts: list[str] = self._model.tokenizer.batch_decode(
            rows, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts

    def log_likelihoods(self, continuations: Sequence[str]) -> FloatArray:
        """Log-likelihood of each text after the prompt: the sum over its tokens, nats, shape `(n,)`, float64.

        Prompt and text are tokenised together. If a token of any text overlaps the prompt, the prompt of all
        texts ends before it. Raises `InputError`: a text has no token, or more than the prompt's room.
        """
        whole = self._continued(continuations)
        shared = min([len(self._prompt), *(common_length(self._prompt, row) for row in whole)])
        rows = [row[shared:] for row in whole]
        for text, row in zip(continuations, rows, strict=True):
            if not row or len(row) > self._room + len(self._prompt) - shared:
                raise InputError(
                    f"a continuation must have 1 to {self._room} tokens, got {len(row)}: {text[:40]!r}"
                )
        with evaluating(self._model):
            is_whole = shared == len(self._prompt)
            reader = self._reader() if is_whole else _reader(self._model, self._prompt[:shared])
            return reader.log_likelihoods(rows)

    def _reader(self) -> _Packed | _Whole:
        if self._read is None:
            self._read = _reader(self._model, self._prompt)
        return self._read

    def _continued(self, continuations: Sequence[str]) -> list[list[int]]:
        """Tokens of the prompt with each continuation, without the dropped ones.

        Of a long prompt only the last 80 characters are tokenised again, if that gives the same tokens.
        """
        start = self._text.rfind(" ", 0, max(0, len(self._text) - 80))
        tail = self._ids(self._text[start:]) if start > 0 else []
        if 0 < len(tail) < self.length and self._prompt[-len(tail) :] == tail:
            head = self._prompt[: -len(tail)]
            return [[*head, *self._ids(self._text[start:] + text)] for text in continuations]
        return [self._ids(self._text + text)[self.dropped :] for text in continuations]

    def _ids(self, text: str) -> list[int]:
        return token_ids(self._model.tokenizer, text)


def _alike(reader: _Packed | _Whole, decoding: Decoding, uniform: Tensor) -> Sequence[Tensor]:
    """Places of the rows, in parts whose rows begin alike: by first token, and by what draws the second."""
    following = reader.begin(1)
    parts = torch.split(uniform[:, 0], DRAWN)
    first = torch.cat([decoding.choose(following.expand(len(part), -1), part) for part in parts])
    by_second = uniform[:, min(1, uniform.shape[1] - 1)].argsort(stable=True)
    return torch.split(by_second[first[by_second].argsort(stable=True)], DRAWN)


def _drawn(reader: _Packed | _Whole, decoding: Decoding, uniform: Tensor, end: int | None) -> list[list[int]]:
    """Sampled tokens of some rows, each up to the token `end`, which is left out."""
    rows: list[list[int]] = [[] for _ in uniform]
    going = list(range(len(rows)))
    following = reader.begin(len(rows))
    for step in range(decoding.tokens):
        chosen = decoding.choose(following, uniform[going, step]).tolist()
        going = [place for place, token in zip(going, chosen, strict=True) if token != end]
        for place, token in zip(going, (token for token in chosen if token != end), strict=True):
            rows[place].append(token)
        if not going or step + 1 == decoding.tokens:
            break
        following = reader.follow([rows[place] for place in going])
    return rows


def _reader(model: Any, prompt: list[int]) -> _Packed | _Whole:
    """The packed reader if it gives the same logits as the plain one, else the plain one."""
    whole = _Whole(model.module, prompt)
    parts = two_parts(model.module, whole.batch([[]]))
    if parts is None:
        return whole
    packed = _Packed(*parts, prompt, whole.device)
    tried = [prompt[-1:], prompt[:1]]
    first, second = packed.begin(2), packed.follow(tried)
    plain = (whole.begin(2), whole.follow(tried))
    scale = float(plain[0].abs().max())
    same = all(
        torch.allclose(ours, theirs, rtol=0.0, atol=SAME_LOGITS * (1.0 + scale))
        for ours, theirs in zip((first, second), plain, strict=True)
    )
    return packed if same else whole


class _Whole:
    """Reads prompt and rows again for every token."""

    def __init__(self, module: nn.Module, prompt: list[int]) -> None:
        self._module, self._prompt = module, prompt
        self.device = next(module.parameters()).device

    def batch(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Prompt and rows, padded on the right."""
        return padded_inputs([[*self._prompt, *row] for row in rows], self._prompt[0], self.device)

    def begin(self, rows: int) -> Tensor:
        """Logits of each row's first token, shape `(rows, vocabulary)`."""
        return self._last([[]]).expand(rows, -1)

    def follow(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logits of the token after each row, all of one length; equal rows are read once."""
        places, each = _different(rows)
        different = list(places)
        parts = [self._last(different[start : start + WHOLE]) for start in range(0, len(different), WHOLE)]
        return torch.cat(parts)[torch.tensor(each, device=self.device)]

    def _last(self, rows: Sequence[Sequence[int]]) -> Tensor:
        batch = self.batch(rows)
        chosen = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
        chosen[:, -1] = True
        return logits_at(self._module, batch, chosen)

    def log_likelihoods(self, rows: Sequence[Sequence[int]]) -> FloatArray:
        """Sum of each row's token log-likelihoods, nats, shape `(n,)`."""
        sums = np.zeros(len(rows))
        for start in range(0, len(rows), WHOLE):
            part = rows[start : start + WHOLE]
            batch = self.batch(part)
            chosen = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
            for i, row in enumerate(part):
                chosen[i, len(self._prompt) - 1 : len(self._prompt) + len(row) - 1] = True
            logits = logits_at(self._module, batch, chosen)
            sums[start : start + len(part)] = _sums(logits, part)
        return sums


class _Packed:
    """Reads rows in one sequence after the cached keys and values of the prompt."""

    def __init__(
        self, backbone: nn.Module, output: nn.Module, prompt: list[int], device: torch.device
    ) -> None:
        from transformers import DynamicCache

        self._backbone, self._output, self._length = backbone, output, len(prompt)
        self.device = device
        self._window = window_of(backbone)
        ids = torch.tensor([prompt], device=device)
        read: Any = backbone(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            # A module's own cache for a sliding window would drop the prompt's beginning, which the first
            # tokens of a row still see.
            past_key_values=DynamicCache(),
            use_cache=True,
        )
        self._kept = read.past_key_values
        self._first = self._logits(read.last_hidden_state[0, -1:])
        self._running: Any = None
        self._places: list[int] = []
        # The different rows that were read last, and the tokens that each of them sees.
        self._latest: dict[tuple[int, ...], int] = {}
        self._seen = torch.zeros((0, 0), dtype=torch.bool, device=device)

    def _logits(self, hidden: Tensor) -> Tensor:
        with exact(hidden.device):
            logits: Tensor = self._output(hidden.float())
        return logits.float()

    def begin(self, rows: int) -> Tensor:
        """Logits of each row's first token, shape `(rows, vocabulary)`."""
        self._running, self._places, self._latest = copy.deepcopy(self._kept), [], {(): 0}
        self._seen = torch.zeros((1, 0), dtype=torch.bool, device=self.device)
        return self._first.expand(rows, -1)

    def follow(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logits of the token after each row, all of one length; equal rows are read once.

        Only last tokens are read: the rows without them were followed before.
        """
        places, each = _different(rows)
        before = [self._latest[row[:-1]] for row in places]
        itself = torch.eye(len(places), dtype=torch.bool, device=self.device)
        self._seen = torch.cat([self._seen[before], itself], dim=1)
        self._places += [len(row) - 1 for row in places]
        self._latest = places
        last = [row[-1] for row in places]
        logits = self._logits(self._hidden(self._running, last, self._places, self._seen))
        return logits[torch.tensor(each, device=self.device)]

    def log_likelihoods(self, rows: Sequence[Sequence[int]]) -> FloatArray:
        """Sum of each row's token log-likelihoods, nats, shape `(n,)`."""
        sums = np.zeros(len(rows))
        longest = max(map(len, rows), default=1)
        at_once = max(1, PACKED // longest)
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            owner = np.repeat(np.arange(len(part)), [len(row) for row in part])
            places = np.concatenate([np.arange(len(row)) for row in part])
            seen = (owner[:, None] == owner[None, :]) & (places[None, :] <= places[:, None])
            hidden = self._hidden(
                copy.deepcopy(self._kept),
                [token for row in part for token in row],
                places.tolist(),
                torch.from_numpy(seen).to(self.device),
            )
            logits = self._logits(hidden)
            # A row's first token is predicted by the prompt, the others by the token before each.
            before = torch.from_numpy(np.arange(len(owner)) - 1).to(self.device).clamp(min=0)
            shifted = logits[before]
            shifted[torch.from_numpy(places == 0).to(self.device)] = self._first
            sums[start : start + len(part)] = _sums(shifted, part)
        return sums

    def _hidden(self, kept: Any, tokens: list[int], places: list[int], seen: Tensor) -> Tensor:
        """Hidden states of n tokens after the prompt, shape `(n, width)`.

        Args:
            kept: Keys and values of the prompt and the tokens read after it; these are added.
            tokens: The tokens to read.
            places: Place in its row, from 0, of each token after the prompt: of those read before, then of
                these.
            seen: Which tokens after the prompt each one attends to, shape `(n, len(places))`.
        """
        prompt = torch.ones((len(tokens), self._length), dtype=torch.bool, device=self.device)
        visible = torch.cat([prompt, seen], dim=1)
        behind = torch.tensor(places, device=self.device) + self._length
        positions = behind[len(places) - len(tokens) :]
        if self._window is not None:
            keys = torch.cat([torch.arange(self._length, device=self.device), behind])
            visible &= positions[:, None] - keys[None, :] < self._window
        mask = torch.zeros(visible.shape, dtype=torch.float32, device=self.device)
        mask.masked_fill_(~visible, torch.finfo(torch.float32).min)
        read: Any = self._backbone(
            input_ids=torch.tensor([tokens], device=self.device),
            attention_mask=mask[None, None],
            position_ids=positions[None],
            past_key_values=kept,
            use_cache=True,
        )
        hidden: Tensor = read.last_hidden_state[0]
        return hidden


def _different(rows: Sequence[Sequence[int]]) -> tuple[dict[tuple[int, ...], int], list[int]]:
    """The different rows with their places, in order, and the place of each row's."""
    places: dict[tuple[int, ...], int] = {}
    each = [places.setdefault(tuple(row), len(places)) for row in rows]
    return places, each


def _sums(logits: Tensor, rows: Sequence[Sequence[int]]) -> FloatArray:
    """Each row's summed token log-likelihoods, from the logits that predict them, row after row."""
    targets = torch.tensor([token for row in rows for token in row], device=logits.device)
    values = -functional.cross_entropy(widened(logits), targets, reduction="none")
    ends = np.cumsum([len(row) for row in rows])
    return np.add.reduceat(values.cpu().numpy(), np.concatenate([[0], ends[:-1]]))
