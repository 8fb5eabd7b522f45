"""Language models that do a task by prompt: sentiment, questions, and data to text.

`PromptedModel` classifies sentiment by the choice of a word, and answers questions. `DataToTextModel` writes
records as texts, as GPT-2 is tuned on E2E and DART. Both are trained on the tokens after the prompt only, and
logits are computed only where they are needed. Prompts and scores are those of `workbench.training.tasks`.

Row i depends on record i alone: rows are padded on the right, which a causal model never sees. Answers are
decoded greedily; what follows a prompt depends on that prompt alone, up to the order of floating-point sums.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray, Record
from workbench.training.hugging_face import logits_of
from workbench.training.logits import IGNORED, logits_at, target_losses, two_parts
from workbench.training.models import (
    LanguageModel,
    common_length,
    negated_rows,
    padded,
    padded_inputs,
    token_ids,
)
from workbench.training.precision import exact
from workbench.training.tasks import (
    SENTIMENT_OPTIONS,
    SENTIMENT_PROMPT,
    TASKS,
    TEXT_MARK,
    answered_question,
    bleu,
    check_references,
    exact_match,
    f1_score,
    meteor,
    sentiment_label,
)

BATCH = 64
"""Prompts or records in one forward pass."""

LOSSES = ("options", "tokens")

ANSWER_TOKENS = 16
"""Most tokens of an answer, its newline included, in training and in generation."""

RECORDS_KEPT = 1 << 15
"""Records whose tokens are cached: zeroth-order training encodes the same ones in every step."""

SCORED = 64
"""Most records of each part of a corpus for which texts are generated and scored."""


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Settings of greedy decoding from a language model.

    Attributes:
        module: A causal language model (see `workbench.training.models.LanguageModel`).
        most: Most tokens after a prompt.
        longest: Most tokens of a prompt and its answer; prompts are shorter.
        is_last: Whether a token ends the answer.
        padding: Token that fills rows.
        is_caching: Keep keys and values, if the module is a backbone with an output layer
            (`logits.two_parts`); otherwise rows are read again for every token.
    """

    module: nn.Module
    most: int
    longest: int
    is_last: Callable[[int], bool]
    padding: int
    is_caching: bool = True

    def after(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The most likely tokens after each prompt of at least one token, the last token included."""
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
        batch = self._padded(prompts)
        rooms = [min(self.most, self.longest - len(prompt)) for prompt in prompts]
        parts = two_parts(self.module, batch) if self.is_caching else None
        if parts is None:
            return self._reading_again(prompts, rooms)
        return self._caching(rooms, batch, *parts)

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        return padded_inputs(rows, self.padding, next(self.module.parameters()).device)

    def _unfinished(self, rows: list[int], answers: list[list[int]], rooms: list[int]) -> list[int]:
        return [i for i in rows if len(answers[i]) < rooms[i] and not self.is_last(answers[i][-1])]

    def _reading_again(self, prompts: list[list[int]], rooms: list[int]) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in prompts]
        unfinished = [i for i, room in enumerate(rooms) if room > 0]
        while unfinished:
            batch = self._padded([prompts[i] + answers[i] for i in unfinished])
            last = batch["attention_mask"].sum(1) - 1
            place = torch.arange(batch["input_ids"].shape[1], device=last.device) == last[:, None]
            following = logits_at(self.module, batch, place).argmax(1).tolist()
            for i, token in zip(unfinished, following, strict=True):
                answers[i].append(token)
            unfinished = self._unfinished(unfinished, answers, rooms)
        return answers

    def _caching(
        self, rooms: list[int], batch: dict[str, Tensor], backbone: nn.Module, output: nn.Module
    ) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in rooms]
        unfinished = [i for i, room in enumerate(rooms) if room > 0]
        mask = batch["attention_mask"]
        lengths = mask.sum(1)
        takes_places = "position_ids" in inspect.signature(backbone.forward).parameters
        read: Any = backbone(**batch, use_cache=True)
        hidden = read.last_hidden_state[torch.arange(len(rooms), device=mask.device), lengths - 1]
        while unfinished:
            with exact(hidden.device):
                following = output(hidden.float()).argmax(1)
            for i, token in enumerate(following.tolist()):
                answers[i].append(token)  # Finished rows continue; they are cut below.
            unfinished = self._unfinished(unfinished, answers, rooms)
            if not unfinished:
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
        """The tokens up to the first that ends the answer, at most `room`."""
        ends = (i + 1 for i, token in enumerate(tokens) if self.is_last(token))
        return tokens[: min(next(ends, room), max(room, 0))]


Row = tuple[list[int], list[list[int]]]
"""Tokens of a prompt, and of each of its options; an answer is the only option."""


class PromptModel(ABC):
    """A language model that reads a prompt and is trained on what follows it.

    `base`: the language model whose weights are trained; its `max_length` is that of prompt and answer
    together. `name`: registry name.
    """

    kind = "language"
    name: str

    def __init__(self, base: LanguageModel) -> None:
        self.base = base

    @property
    def module(self) -> nn.Module:
        """The base model's torch module."""
        return self.base.module

    @module.setter
    def module(self, module: nn.Module) -> None:
        self.base.module = module

    @property
    def tokenizer(self) -> Any:
        """The base model's tokenizer."""
        return self.base.tokenizer

    @property
    def max_length(self) -> int:
        """Longest prompt with its answer, in tokens."""
        return self.base.max_length

    @abstractmethod
    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Tokens of the records' prompts and answers, padded on the right."""

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean negative log-likelihood of each record's answer, shape `(n,)`, nats; differentiable."""
        losses = target_losses(self.module, batch, batch["targets"])
        return losses.sum(1) / (batch["targets"] != IGNORED).sum(1)

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihoods of the tokens of each record's answer, nats; no gradient is recorded."""
        with torch.no_grad():
            losses = target_losses(self.module, batch, batch["targets"])
        return negated_rows(losses, batch["targets"] != IGNORED)

    def _answers(self, prompts: Sequence[Sequence[int]], *, most: int, is_caching: bool = True) -> list[str]:
        """The most likely text after each prompt, up to a newline or the end of the text."""
        end = self.tokenizer.eos_token_id
        greedy = Greedy(
            module=self.module,
            most=most,
            longest=self.max_length,
            is_last=lambda token: token == end or "\n" in self.tokenizer.decode([token]),
            padding=self.base.padding_id(),
            is_caching=is_caching,
        )
        texts = [self.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in greedy.after(prompts)]
        return [text.strip(" ").split("\n", maxsplit=1)[0].strip() for text in texts]

    def _split(self, text: str, prompt: Callable[[str], str], options: Sequence[str]) -> Row:
        """Tokens of the prompt, and of each option after it; the prompt ends before a token they share."""
        prompted = self._ids(prompt(text))
        whole = [self._ids(prompt(text) + option) for option in options]
        shared = min([len(prompted), *(common_length(prompted, ids) for ids in whole)])
        return prompted[:shared], [ids[shared:] for ids in whole]

    def _ids(self, text: str) -> list[int]:
        return token_ids(self.tokenizer, text)

    def _padded(self, rows: Sequence[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
        """Ids, mask and targets of prompts with answers; an answer's last token is predicted, never read."""
        read = [[*prompt, *answer[:-1]] for prompt, answer in rows]
        targets = [
            [*[IGNORED] * (len(prompt) - 1), *answer] if answer else [IGNORED] * len(prompt)
            for prompt, answer in rows
        ]
        device = next(self.module.parameters()).device
        inputs = padded_inputs(read, self.base.padding_id(), device)
        return {**inputs, "targets": padded(targets, IGNORED, device)}


class PromptedModel(PromptModel):
    """A language model with a task; implements `workbench.interfaces.TaskModel`.

    A record that is too long loses the first words of its text or context, never of the question, the prompt
    or the answer.

    Attributes:
        task: `"sentiment"` (records with label 0 or 1) or `"question"` (records with answers, their text as
            `workbench.training.tasks.question_text` makes it).
        loss: `"options"`, the default of sentiment: the cross entropy over the options' summed
            log-likelihoods. `"tokens"`: the mean negative log-likelihood, over the whole vocabulary, of the
            right option's tokens, or of a question's first answer.
    """

    name = "prompted"

    def __init__(self, base: LanguageModel, *, task: str, loss: str | None = None) -> None:
        """Add a task (one of `TASKS`) to a language model; loss None is the task's default."""
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        chosen = ("tokens" if task == "question" else "options") if loss is None else loss
        if chosen not in LOSSES:
            raise unknown_name("loss", chosen, LOSSES)
        if task == "question" and chosen != "tokens":
            raise InputError(f"loss must be 'tokens' for task 'question', which has no options, got {loss!r}")
        super().__init__(base)
        self.task, self.loss = task, chosen
        self._rows: dict[tuple[object, ...], Row] = {}
        self._option_ids: tuple[int, ...] | None = None

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Tokens of the records' prompts and answers, padded on the right; all share their first dimension.

        Returns:
            `input_ids` and `attention_mask`, int64, shape `(n, length)`. If each option is one token and the
            loss is over options, `positions` and `labels`, shape `(n,)`: where the option is predicted, and
            the right one. Otherwise `targets`, shape `(n, length)`: the token that each position predicts,
            or -100; with options of several tokens all are of shape `(n, options, length)`, with `labels`.

        Raises `InputError`: a record has no label (or no answer), is not of the task's form, or leaves no
        room for its text.
        """
        rows = [self._row(record) for record in records]
        if self.loss == "tokens":
            labels = [sentiment_label(record) if self.task == "sentiment" else 0 for record in records]
            return self._padded(
                [(prompt, options[label]) for (prompt, options), label in zip(rows, labels, strict=True)]
            )
        labels = [sentiment_label(record) for record in records]
        if self._single_tokens() is not None:
            batch = self._padded([(prompt, []) for prompt, _ in rows])
            del batch["targets"]
            ends = [len(prompt) - 1 for prompt, _ in rows]
            batch["positions"] = torch.tensor(ends, dtype=torch.int64, device=batch["input_ids"].device)
        else:
            flat = self._padded([(prompt, option) for prompt, options in rows for option in options])
            count = len(SENTIMENT_OPTIONS)
            batch = {key: rows.view(len(records), count, rows.shape[1]) for key, rows in flat.items()}
        batch["labels"] = torch.tensor(labels, dtype=torch.int64, device=batch["input_ids"].device)
        return batch

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Loss of each record's option or answer, shape `(n,)`, nats; differentiable."""
        if self.loss == "options":
            return functional.cross_entropy(self._option_scores(batch), batch["labels"], reduction="none")
        return super().losses(batch)

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihoods whose mean is minus the record's loss, nats; no gradient is recorded.

        The log-probability of the right option among the options, shape `(1,)`, or those of the right
        option's or answer's tokens.
        """
        if self.loss == "tokens":
            return super().token_log_likelihoods(batch)
        with torch.no_grad():
            losses = self.losses(batch)[:, None]
        return negated_rows(losses, torch.ones_like(losses, dtype=torch.bool))

    def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """`accuracy` of sentiment; of questions `f1` and `exact_match` of greedily generated answers.

        Each in [0, 1], a mean over the records; see `workbench.training.tasks`. Empty without records.
        """
        if not records:
            return {}
        with torch.no_grad():
            if self.task == "sentiment":
                scores = self.option_scores(records)
                labels = np.array([sentiment_label(record) for record in records])
                return {"accuracy": float(np.mean(scores.argmax(axis=1) == labels))}
            answers = self.generate(records)
        pairs = [(text, record.answers) for text, record in zip(answers, records, strict=True)]
        return {
            name: float(np.mean([score(text, accepted) for text, accepted in pairs]))
            for name, score in _QUESTION_SCORES.items()
        }

    def option_scores(self, records: Sequence[Record]) -> FloatArray:
        """Log-likelihood, up to a constant, of each option (terrible, great) after each record's text.

        Shape `(n, 2)`, nats; the records' labels do not matter.
        """
        if self.task != "sentiment":
            raise InputError(f"task must be 'sentiment' for the scores of options, got {self.task!r}")
        scorer = self if self.loss == "options" else PromptedModel(self.base, task=self.task)
        parts = [np.zeros((0, len(SENTIMENT_OPTIONS)))]
        with torch.no_grad():
            for start in range(0, len(records), BATCH):
                batch = scorer.encode(records[start : start + BATCH])
                parts.append(scorer._option_scores(batch).cpu().double().numpy())
        return np.concatenate(parts)

    def generate(self, records: Sequence[Record]) -> list[str]:
        """The most likely line after each record's prompt, of `ANSWER_TOKENS` tokens at most."""
        prompts = [self._row(record)[0] for record in records]
        return self._answers(prompts, most=ANSWER_TOKENS, is_caching=False)

    def _option_scores(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Summed log-likelihood of each option, up to a constant of the record; shape `(n, options)`."""
        single = self._single_tokens()
        if single is None:
            flat = {name: rows.flatten(0, 1) for name, rows in batch.items() if name != "labels"}
            losses = target_losses(self.module, flat, flat["targets"]).sum(1)
            return -losses.view(-1, len(SENTIMENT_OPTIONS))
        positions = batch["positions"]
        if torch.is_grad_enabled():
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            logits = logits_of(self.module(**inputs))
            chosen = torch.take_along_dim(logits, positions.view(-1, 1, 1), dim=1)[:, 0].float()
        else:
            place = torch.arange(batch["input_ids"].shape[1], device=positions.device) == positions[:, None]
            chosen = logits_at(self.module, batch, place)
        return chosen[:, list(single)]

    def _single_tokens(self) -> tuple[int, ...] | None:
        """The options' tokens if each is one, after any text; None where one is longer."""
        if self._option_ids is None:
            options = self._split("It was", lambda text: text, SENTIMENT_OPTIONS)[1]
            are_single = all(len(option) == 1 for option in options)
            self._option_ids = tuple(option[0] for option in options) if are_single else ()
        return self._option_ids or None

    def _row(self, record: Record) -> Row:
        """Tokens of a record's prompt and options; cached."""
        key = (record.text, record.answers[:1])
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= RECORDS_KEPT:
                self._rows.clear()
            row = self._rows[key] = self._new_row(record)
        return row

    def _new_row(self, record: Record) -> Row:
        if not record.text.strip():
            raise InputError(f"record {record.id!r} has no text")
        if self.task == "sentiment":
            text = record.text.strip()
            room = self.max_length - max(len(self._ids(option)) for option in SENTIMENT_OPTIONS)
            return self._fitting(
                record, text, lambda kept: (kept + SENTIMENT_PROMPT).lstrip(), SENTIMENT_OPTIONS, room
            )
        before, context, after = answered_question(record)
        options = (f" {record.answers[0].strip()}\n",)
        room = self.max_length - ANSWER_TOKENS
        prompt, answers = self._fitting(record, context, lambda kept: before + kept + after, options, room)
        return prompt, [answer[:ANSWER_TOKENS] for answer in answers]

    def _fitting(
        self, record: Record, text: str, prompt: Callable[[str], str], options: Sequence[str], room: int
    ) -> Row:
        """The row with as many of the text's last words as fit into `room` tokens with the prompt."""
        row = self._split(text, prompt, options)
        if len(row[0]) <= room:
            return row
        words = text.split(" ")
        fewest, most = 0, len(words)  # words that fit, words that do not
        while most - fewest > 1:
            middle = (fewest + most) // 2
            if len(self._ids(prompt(" ".join(words[-middle:])))) <= room:
                fewest = middle
            else:
                most = middle
        row = self._split(" ".join(words[-fewest:]) if fewest else "", prompt, options)
        if len(row[0]) > room:
            raise InputError(
                f"max_length must leave room for the prompt of record {record.id!r}, which takes "
                f"{len(row[0])} tokens besides its text or context, got {self.max_length}"
            )
        return row


_QUESTION_SCORES: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "f1": f1_score,
    "exact_match": exact_match,
}


class DataToTextModel(PromptModel):
    """A language model that writes records as texts; implements `workbench.interfaces.TaskModel`.

    It is trained on a record's first reference (`Record.answers`) and the end of the text. `task_metrics`
    generates texts for the first `scored` records only, which takes its time.
    """

    name = "data_to_text"

    def __init__(self, base: LanguageModel, *, scored: int = SCORED) -> None:
        super().__init__(base)
        self.scored = scored

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Tokens of the records and their first references, padded on the right.

        Returns:
            `input_ids` and `attention_mask`, int64, shape `(n, length)`; and `targets`: the token that each
            position predicts, or -100. A reference that is too long for `max_length` loses its end.

        Raises `InputError`: a record has no text or reference, or leaves no room for a token of it.
        """
        rows = []
        for record in records:
            prompt, answer = self._row(record)
            room = self.max_length - len(prompt) + 1  # The last token of a text is predicted, never read.
            rows.append((prompt, answer[:room]))
        return self._padded(rows)

    def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """`bleu`, in [0, 100], and `meteor`, in [0, 1], of the first `scored` records' generated texts.

        Over all references; see `workbench.training.tasks`. Empty without records.
        """
        if not records:
            return {}
        chosen = records[: self.scored]
        texts, references = self.generate(chosen), [record.answers for record in chosen]
        return {"bleu": bleu(texts, references), "meteor": meteor(texts, references)}

    def generate(self, records: Sequence[Record]) -> list[str]:
        """The most likely line of text for each record; record and text have at most `max_length` tokens."""
        prompts = [self._row(record)[0] for record in records]
        return self._answers(prompts, most=self.max_length)

    def _row(self, record: Record) -> tuple[list[int], list[int]]:
        """Tokens of a record with the mark after it, and of its first reference."""
        check_references([record])
        end = self.tokenizer.eos_token_id
        reference = f" {record.answers[0].strip()}" + ("\n" if end is None else "")
        prompt, (answer,) = self._split(record.text.strip(), lambda text: text + TEXT_MARK, (reference,))
        if len(prompt) >= self.max_length:
            raise InputError(
                f"max_length must leave room for the text of record {record.id!r}, which takes {len(prompt)} "
                f"tokens itself, got {self.max_length}"
            )
        return prompt, answer if end is None else [*answer, int(end)]
