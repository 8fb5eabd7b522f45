"""The model `text_classifier`: an encoder of BERT's kind with a fresh head for a task of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.core import registry
from workbench.core.errors import UnsupportedError, unknown_name
from workbench.core.registry import register
from workbench.data.shared.parts import checked_count
from workbench.training.text_tasks import check_labels, classes_of

if TYPE_CHECKING:
    from workbench.interfaces import Record
    from workbench.training.text_classifier import TextClassifier

BASES = ("bert_base", "roberta_base")
"""What a classifier may stand on."""


def _checked(base: str) -> str:
    if base not in BASES:
        raise unknown_name("base", base, BASES)
    return base


def _classes(task: str, classes: int | None) -> int:
    """The number of labels: given, or the task's."""
    return classes_of(task) if classes is None else checked_count("classes", classes, minimum=2)


@register("model", "text_classifier")
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

    Raises:
        InputError: a parameter is unusable, or the base is not built.
        UnsupportedError: the folder holds a model of another family.
    """
    from workbench.training.text_classifier import TextClassifier

    given: dict[str, Any] = {} if base_path is None else {"path": base_path}
    labels = _classes(task, classes)
    checked_count("max_length", max_length, minimum=8)
    found = registry.create(
        "model", _checked(base), seed=seed, classes=labels, max_length=max_length, **given
    )
    if not isinstance(found, TextClassifier):
        raise UnsupportedError(f"base must be an encoder for a text classifier, got {base!r}")
    found.name = "text_classifier"
    return found


def _fingerprint(*, base: str, base_path: str | None = None, **_: object) -> str:
    """Hash of the base's files, with its name."""
    fingerprint: Any = registry.entries("model")[_checked(base)].factory
    given = {} if base_path is None else {"path": base_path}
    return f"{base} {fingerprint.fingerprint(**given)}"


def _check_records(
    records: Sequence[Record], *, task: str = "outcome", classes: int | None = None, **_: object
) -> None:
    """Refuse records that have no text, or no label of the classes."""
    check_labels(_classes(task, classes), records)


text_classifier.check_records = _check_records  # type: ignore[attr-defined]  # says, too, that there is a task
text_classifier.fingerprint = _fingerprint  # type: ignore[attr-defined]  # for the keys of results
text_classifier.stands_on = ("base", "base_path")  # type: ignore[attr-defined]  # which parameters name the base
