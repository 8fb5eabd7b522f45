"""Models that put a task around another registered model: `prompted`, `data_to_text`, `text_classifier`.

The other model is named by parameter `base`, and `base_path` names a local folder in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.data.shared.parts import checked_count
from workbench.interfaces import ModelFacets
from workbench.training import tasks
from workbench.training.content import Given, model_facets, model_fingerprint

if TYPE_CHECKING:
    from workbench.interfaces import Record
    from workbench.training.models import LanguageModel
    from workbench.training.prompts import DataToTextModel, PromptedModel
    from workbench.training.text_classifier import TextClassifier

STANDS_ON = ("base", "base_path")
"""Which parameters of such a model name its base and the folder in its place."""

CLASSIFIER_BASES = ("bert_base", "roberta_base")
"""What a classifier may stand on."""


def _base_parameters(base: str, path: str | None) -> dict[str, Any]:
    """What a language model takes as a base, besides seed and length."""
    known = registry.entries("model")
    plain = [name for name in known if model_facets(name).stands_on is None]
    if base not in plain:
        raise unknown_name("base", base, plain)
    parameter = inspect.signature(known[base].factory).parameters.get("path")
    if path is None:
        if parameter is not None and parameter.default is inspect.Parameter.empty:
            raise InputError(f"base_path must be given for base {base!r}")
        return {}
    if parameter is None:
        raise InputError(
            f"base_path must not be given for base {base!r}, which reads no folder, got {path!r}"
        )
    return {"path": path}


def _language_base(
    base: str, base_path: str | None, *, seed: int, max_length: int, task: str
) -> LanguageModel:
    """The registered language model that a task is put around; `task` names the task in the error."""
    from workbench.training.models import LanguageModel

    given = _base_parameters(base, base_path)
    checked_count("max_length", max_length, minimum=2)
    refused = UnsupportedError(f"base must be a language model for {task}, got {base!r}")
    if "max_length" not in inspect.signature(registry.entries("model")[base].factory).parameters:
        raise refused
    model = registry.create("model", base, seed=seed, max_length=max_length, **given)
    if not isinstance(model, LanguageModel):
        raise refused
    return model


def base_fingerprint(*, base: str, base_path: str | None = None, **_: object) -> str:
    """Hash of a language model's files, with its name."""
    given = _base_parameters(base, base_path)
    return f"{base} {model_fingerprint(base, Given.of(given))}"


def _check_prompted(records: Sequence[Record], *, task: str = "sentiment", **_: object) -> None:
    """Refuse records that the task cannot be done on."""
    tasks.check_records(task, records)


@register(
    "model",
    "prompted",
    facets=ModelFacets(fingerprint=base_fingerprint, check_records=_check_prompted, stands_on=STANDS_ON),
)
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

    Raises `InputError`: a parameter is unusable, or the base cannot be had. `UnsupportedError`: the base is
    no language model.
    """
    from workbench.training.prompts import PromptedModel

    model = _language_base(base, base_path, seed=seed, max_length=max_length, task="a task by prompt")
    return PromptedModel(model, task=task, loss=loss)


def _check_data_to_text(records: Sequence[Record], **_: object) -> None:
    """Refuse records without a reference."""
    tasks.check_references(records)


@register(
    "model",
    "data_to_text",
    facets=ModelFacets(fingerprint=base_fingerprint, check_records=_check_data_to_text, stands_on=STANDS_ON),
)
def data_to_text(
    *, seed: int, base: str, max_length: int = 128, scored: int = 64, base_path: str | None = None
) -> DataToTextModel:
    """A language model that tells records as texts (as GPT-2 does E2E and DART); scored by BLEU and METEOR.

    BLEU is sacrebleu's, 0 to 100. METEOR, 0 to 1, matches equal words and equal stems only, no synonyms.

    Args:
        seed, base, base_path: See `prompted`.
        max_length: Longest record with its text, in tokens, at least 2; longer texts lose their end.
        scored: Number of records of each part of the corpus (members, held-out), from the first on, whose
            texts are generated for BLEU and METEOR; generating takes its time.

    Raises `InputError`: a parameter is unusable, or the base cannot be had. `UnsupportedError`: the base is
    no language model.
    """
    from workbench.training.prompts import DataToTextModel

    checked_count("scored", scored)
    model = _language_base(base, base_path, seed=seed, max_length=max_length, task="data to text")
    return DataToTextModel(model, scored=scored)


def _encoder(base: str) -> str:
    """The name of a base that a classifier may stand on."""
    if base not in CLASSIFIER_BASES:
        raise unknown_name("base", base, CLASSIFIER_BASES)
    return base


def _classes(task: str, classes: int | None) -> int:
    """The number of labels: given, or the task's."""
    return tasks.classes_of(task) if classes is None else checked_count("classes", classes, minimum=2)


def _check_texts(
    records: Sequence[Record], *, task: str = "outcome", classes: int | None = None, **_: object
) -> None:
    """Refuse records that have no text, or no label of the classes."""
    tasks.check_labels(_classes(task, classes), records)


def _encoder_fingerprint(*, base: str, base_path: str | None = None, **_: object) -> str:
    """Hash of an encoder's files, with its name."""
    given = {} if base_path is None else {"path": base_path}
    return f"{base} {model_fingerprint(_encoder(base), Given.of(given))}"


@register(
    "model",
    "text_classifier",
    facets=ModelFacets(fingerprint=_encoder_fingerprint, check_records=_check_texts, stands_on=STANDS_ON),
)
def text_classifier(
    *,
    seed: int,
    base: str,
    task: str = "outcome",
    classes: int | None = None,
    max_length: int = 64,
    base_path: str | None = None,
) -> TextClassifier:
    """BERT or RoBERTa with a fresh head that classifies texts or pairs of texts; all of it can be trained.

    Args:
        seed: Of the head.
        base: "bert_base" or "roberta_base".
        task: A task of corpus `clinical_tasks`, which says how many labels there are.
        classes: Number of labels of another task, in the place of the task's.
        max_length: Longest text, or pair, in tokens, at least 8.
        base_path: A local Hugging Face folder of a BERT or RoBERTa model, in the place of the base.

    Raises `InputError`: a parameter is unusable, or the base is not built. `UnsupportedError`: the folder
    holds a model of another family.
    """
    from workbench.training.text_classifier import TextClassifier

    given: dict[str, Any] = {} if base_path is None else {"path": base_path}
    labels = _classes(task, classes)
    checked_count("max_length", max_length, minimum=8)
    model = registry.create(
        "model", _encoder(base), seed=seed, classes=labels, max_length=max_length, **given
    )
    if not isinstance(model, TextClassifier):
        raise UnsupportedError(f"base must be an encoder for a text classifier, got {base!r}")
    model.name = "text_classifier"
    return model
