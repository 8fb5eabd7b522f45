"""Language models that do a task by prompt: sentiment as the choice of a word, questions by writing on.

A `PromptedModel` is a language model with a task around it. What it learns from a record is the right option
or the answer alone, never the text of the prompt, and logits are computed only where they are needed. Prompts
and scores are those of `workbench.training.tasks`.

Row i depends on record i alone: rows are padded on the right, where a causal model never looks. A record that
is too long loses words on the left of its text or context, never of the question, the prompt or the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray, Record
from workbench.training.hugging_face import logits_of
from workbench.training.logits import logits_at, target_losses
from workbench.training.models import LanguageModel
from workbench.training.prompt_rows import PromptModel, Row
from workbench.training.tasks import (
    SENTIMENT_OPTIONS,
    SENTIMENT_PROMPT,
    TASKS,
    asked_parts,
    exact_match,
    f1_score,
    sentiment_label,
)

LOSSES = ("options", "tokens")

ANSWER_TOKENS = 16
"""Tokens of an answer at most, its newline included, in training and in generation."""

BATCH = 64
"""Records in one forward pass of `task_metrics`."""

RECORDS_KEPT = 1 << 15
"""Records whose tokens are remembered: zeroth-order training asks for the same ones in every step."""


class PromptedModel(PromptModel):
    """A language model with a task; implements `workbench.interfaces.TaskModel`.

    Attributes:
        kind: `"language"`.
        name: Registry name.
        base: The language model whose weights are trained.
        task: `"sentiment"` (records with label 0 or 1) or `"question"` (records with answers, their text as
            `workbench.training.tasks.question_text` makes it).
        loss: Of sentiment: `"options"` is the cross entropy over the options' summed log-likelihoods,
            `"tokens"` the mean negative log-likelihood of the right option's tokens, over the whole
            vocabulary. Of questions it is `"tokens"`, of the first answer.
    """

    def __init__(self, base: LanguageModel, *, task: str, loss: str | None = None) -> None:
        """Put a task around a language model.

        Args:
            base: The model; its `max_length` is that of prompt and answer together.
            task: One of `TASKS`.
            loss: One of `LOSSES`; None for `"options"` of sentiment and `"tokens"` of questions.
        """
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        chosen = ("tokens" if task == "question" else "options") if loss is None else loss
        if chosen not in LOSSES:
            raise unknown_name("loss", chosen, LOSSES)
        if task == "question" and chosen != "tokens":
            raise InputError(f"loss must be 'tokens' for task 'question', which has no options, got {loss!r}")
        super().__init__(base)
        self.task, self.loss = task, chosen
        self.name = "prompted"
        self._rows: dict[tuple[object, ...], Row] = {}
        self._option_ids: tuple[int, ...] | None = None

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Tokens of the records' prompts and answers, padded on the right; all share their first dimension.

        Returns:
            `input_ids` and `attention_mask`, int64, shape `(n, length)`. Where each option is one token and
            the loss is over options, `positions` and `labels`, shape `(n,)`: where the option is predicted,
            and which is right. Otherwise `targets`, shape `(n, length)`: what each position is to predict,
            or -100; where options have several tokens all are then of shape `(n, options, length)`, with
            `labels`.

        Raises:
            InputError: a record has no label (or no answer), is not of the task's form, or leaves no room
                for its text.
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
        return self._mean_target_losses(batch)

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihoods of what each record is trained on, nats; their mean is minus the record's loss.

        The log-probability of the right option among the options, shape `(1,)`, or those of the right
        option's or answer's tokens.
        """
        if self.loss == "tokens":
            return self._target_log_likelihoods(batch)
        with torch.no_grad():
            values = (-self.losses(batch)).double().cpu().numpy()
        return [np.asarray([value], dtype=np.float64) for value in values]

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
        """Log-likelihood of each option (terrible, great) after a record's text, up to a constant.

        Returns:
            Shape `(n, 2)`, nats; the records' labels do not matter.
        """
        if self.task != "sentiment":
            raise InputError(f"task must be 'sentiment' for the scores of options, got {self.task!r}")
        asking = self if self.loss == "options" else PromptedModel(self.base, task=self.task)
        parts = [np.zeros((0, len(SENTIMENT_OPTIONS)))]
        with torch.no_grad():
            for start in range(0, len(records), BATCH):
                batch = asking.encode(records[start : start + BATCH])
                parts.append(asking._option_scores(batch).double().cpu().numpy())
        return np.concatenate(parts)

    def generate(self, records: Sequence[Record]) -> list[str]:
        """A line after each record's prompt: the most likely tokens, `ANSWER_TOKENS` at most."""
        prompts = [self._row(record)[0] for record in records]
        answers = self._greedy(ANSWER_TOKENS, is_caching=False).after(prompts)
        return [self._decoded(tokens) for tokens in answers]

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
        """The options' tokens where each is one, after any text; None where one is longer."""
        if self._option_ids is None:
            options = self._split("It was", lambda text: text, SENTIMENT_OPTIONS)[1]
            are_single = all(len(option) == 1 for option in options)
            self._option_ids = tuple(option[0] for option in options) if are_single else ()
        return self._option_ids or None

    def _row(self, record: Record) -> Row:
        """Tokens of a record's prompt and options; remembered."""
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
        before, context, after = asked_parts(record)
        options = (f" {record.answers[0].strip()}\n",)
        room = self.max_length - ANSWER_TOKENS
        prompt, answers = self._fitting(record, context, lambda kept: before + kept + after, options, room)
        return prompt, [answer[:ANSWER_TOKENS] for answer in answers]

    def _fitting(
        self,
        record: Record,
        text: str,
        prompt: Callable[[str], str],
        options: Sequence[str],
        room: int,
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
