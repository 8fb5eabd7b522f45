"""A language model that tells records as texts: data to text, as GPT-2 is tuned on E2E and DART.

It reads a record and a mark, and is trained on the tokens of the first reference and the end of the text,
never on those of the record. Texts are generated greedily, with a key-value cache. Scores are those of
`workbench.training.tasks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray, Record
from workbench.training.models import LanguageModel
from workbench.training.prompt_rows import PromptModel
from workbench.training.tasks import TEXT_MARK, bleu, check_references, meteor

SCORED = 64
"""Records that are told for the scores at most, of each part of a corpus."""


class DataToTextModel(PromptModel):
    """A language model that writes records as texts; implements `workbench.interfaces.TaskModel`.

    Attributes:
        name: Registry name.
        scored: How many records `task_metrics` looks at, from the first on; generating takes its time.
    """

    def __init__(self, base: LanguageModel, *, scored: int = SCORED) -> None:
        """Put the task around a language model, whose `max_length` is that of record and text together."""
        super().__init__(base)
        self.name = "data_to_text"
        self.scored = scored

    def encode(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Tokens of the records and their first references (`Record.answers`), padded on the right.

        Returns:
            `input_ids` and `attention_mask`, int64, shape `(n, length)`; and `targets`: what each position is
            to predict, or -100. A reference that is too long for `max_length` loses its end.

        Raises:
            InputError: a record has no text or reference, or leaves no room for a token of it.
        """
        rows = []
        for record in records:
            prompt, answer = self._told(record)
            room = self.max_length - len(prompt) + 1  # The last token of a text is predicted, never read.
            rows.append((prompt, answer[:room]))
        return self._padded(rows)

    def losses(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean negative log-likelihood of each record's reference, its end included; shape `(n,)`, nats."""
        return self._mean_target_losses(batch)

    def token_log_likelihoods(self, batch: Mapping[str, Tensor]) -> list[FloatArray]:
        """Log-likelihoods of the tokens of each record's reference, nats; no gradient is recorded."""
        return self._target_log_likelihoods(batch)

    def task_metrics(self, records: Sequence[Record]) -> dict[str, float]:
        """`bleu`, in [0, 100], and `meteor`, in [0, 1], of the first `scored` records as they are told.

        Over all references, see `workbench.training.tasks`; METEOR matches equal words and equal
        stems only. Empty without records.
        """
        if not records:
            return {}
        chosen = records[: self.scored]
        texts, references = self.generate(chosen), [record.answers for record in chosen]
        return {"bleu": bleu(texts, references), "meteor": meteor(texts, references)}

    def generate(self, records: Sequence[Record]) -> list[str]:
        """A line of text for each record: the most likely tokens up to the end of the text or a newline.

        A text ends, too, where record and text have `max_length` tokens.
        """
        prompts = [self._told(record)[0] for record in records]
        with torch.no_grad():
            answers = self._greedy(self.max_length, is_caching=True).after(prompts)
        return [self._decoded(tokens) for tokens in answers]

    def _told(self, record: Record) -> tuple[list[int], list[int]]:
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
