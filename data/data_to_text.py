"""The model `data_to_text`: a registered language model that tells records as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.core.registry import register
from workbench.data.shared.parts import checked_count
from workbench.data.shared.task_models import STANDS_ON, base_fingerprint, language_base
from workbench.training.generation_scores import check_references

if TYPE_CHECKING:
    from workbench.interfaces import Record
    from workbench.training.text_generation import DataToTextModel


@register("model", "data_to_text")
def data_to_text(
    *, seed: int, base: str, max_length: int = 128, scored: int = 64, base_path: str | None = None
) -> DataToTextModel:
    """A language model that tells records as texts (as GPT-2 does E2E and DART); scored by BLEU and METEOR.

    BLEU is sacrebleu's, 0 to 100. METEOR, 0 to 1, matches equal words and equal stems only, no synonyms.

    Args:
        seed: Of the base.
        base: A registered language model, for instance "gpt2_base", or "huggingface" with `base_path`.
        max_length: Longest record with its text, in tokens, at least 2; longer texts lose their end.
        scored: Records of each part of the corpus (members, held-out) that are told for BLEU and METEOR, the
            first ones; generating takes its time.
        base_path: The base's own parameter `path`: a local Hugging Face folder.

    Raises:
        InputError: a parameter is unusable, or the base cannot be had.
        UnsupportedError: the base is no language model.
    """
    from workbench.training.text_generation import DataToTextModel

    checked_count("scored", scored)
    found = language_base(base, seed=seed, max_length=max_length, base_path=base_path, purpose="data to text")
    return DataToTextModel(found, scored=scored)


def _check_records(records: Sequence[Record], **_: object) -> None:
    """Refuse records without a reference; see `workbench.training.generation_scores.check_references`."""
    check_references(records)


data_to_text.check_records = _check_records  # type: ignore[attr-defined]  # says, too, that there is a task
data_to_text.fingerprint = base_fingerprint  # type: ignore[attr-defined]  # for the keys of results
data_to_text.stands_on = STANDS_ON  # type: ignore[attr-defined]  # which parameters name the base
