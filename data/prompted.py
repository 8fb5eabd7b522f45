"""The model `prompted`: a registered language model with a task around it, by MeZO's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.core.registry import register
from workbench.data.shared.task_models import STANDS_ON, base_fingerprint, language_base
from workbench.training.prompt_tasks import check_records

if TYPE_CHECKING:
    from workbench.interfaces import Record
    from workbench.training.prompts import PromptedModel


@register("model", "prompted")
def prompted(
    *,
    seed: int,
    base: str,
    task: str = "sentiment",
    loss: str | None = None,
    max_length: int = 256,
    base_path: str | None = None,
) -> PromptedModel:
    """A language model that does a task by prompt: sentiment (SST-2's) or questions (SQuAD's), as in MeZO.

    Args:
        seed: Of the base.
        base: A registered language model, for instance "smollm2_135m", or "huggingface" with `base_path`.
        task: "sentiment" (records with label 0 or 1) or "question" (records with answers).
        loss: "options" (cross entropy over the options' log-likelihoods) or "tokens" (negative
            log-likelihood of the right option's tokens); None for what suits the task.
        max_length: Longest prompt with its answer, in tokens, at least 2; longer texts lose their beginning.
        base_path: The base's own parameter `path`: a local Hugging Face folder.

    Raises:
        InputError: a parameter is unusable, or the base cannot be had.
        UnsupportedError: the base is no language model.
    """
    from workbench.training.prompts import PromptedModel

    found = language_base(
        base, seed=seed, max_length=max_length, base_path=base_path, purpose="a task by prompt"
    )
    return PromptedModel(found, task=task, loss=loss)


def _check_records(records: Sequence[Record], *, task: str = "sentiment", **_: object) -> None:
    """Refuse records that the task cannot be done on; see `workbench.training.prompt_tasks.check_records`."""
    check_records(task, records)


prompted.check_records = _check_records  # type: ignore[attr-defined]  # says, too, that there is a task
prompted.fingerprint = base_fingerprint  # type: ignore[attr-defined]  # for the keys of results
prompted.stands_on = STANDS_ON  # type: ignore[attr-defined]  # which parameters name the base
