"""The model `prompted`: a registered language model with a task around it, by MeZO's prompts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench import registry
from workbench.data._parts import checked_count
from workbench.errors import InputError, unknown_name
from workbench.registry import register
from workbench.tasks import check_records

if TYPE_CHECKING:
    from workbench.interfaces import Record
    from workbench.training.prompts import PromptedModel


def _base_parameters(base: str, path: str | None) -> dict[str, Any]:
    """What the base takes besides seed and length.

    Raises:
        InputError: there is no such model, or it takes no path.
    """
    known = registry.entries("model")
    if base not in known or base == "prompted":
        raise unknown_name("base", base, [name for name in known if name != "prompted"])
    own = inspect.signature(known[base].factory).parameters.get("path")
    if path is None:
        if own is not None and own.default is inspect.Parameter.empty:
            raise InputError(f"base_path must be given for base {base!r}")
        return {}
    if own is None:
        raise InputError(
            f"base_path must not be given for base {base!r}, which reads no folder, got {path!r}"
        )
    return {"path": path}


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
    from workbench.errors import UnsupportedError
    from workbench.training.models import LanguageModel
    from workbench.training.prompts import PromptedModel

    given = _base_parameters(base, base_path)
    checked_count("max_length", max_length, minimum=2)
    if "max_length" not in inspect.signature(registry.entries("model")[base].factory).parameters:
        raise UnsupportedError(f"base must be a language model for a task by prompt, got {base!r}")
    found = registry.create("model", base, seed=seed, max_length=max_length, **given)
    if not isinstance(found, LanguageModel):
        raise UnsupportedError(f"base must be a language model for a task by prompt, got {base!r}")
    return PromptedModel(found, task=task, loss=loss)


def _fingerprint(*, base: str, base_path: str | None = None, **_: object) -> str:
    """Hash of the base's files, with its name."""
    given = _base_parameters(base, base_path)
    fingerprint = getattr(registry.entries("model")[base].factory, "fingerprint", None)
    return f"{base} {'' if fingerprint is None else fingerprint(**given)}"


def _check_records(records: Sequence[Record], *, task: str = "sentiment", **_: object) -> None:
    """Refuse records that the task cannot be done on; see `workbench.tasks.check_records`."""
    check_records(task, records)


prompted.check_records = _check_records  # type: ignore[attr-defined]  # says, too, that there is a task
prompted.fingerprint = _fingerprint  # type: ignore[attr-defined]  # for the keys of results
prompted.stands_on = ("base", "base_path")  # type: ignore[attr-defined]  # which parameters name the base
