"""Classification of texts and of pairs of texts: the tasks, and how a record holds a pair. No torch.

The four tasks stand in the places of four of GLUE's (Wang et al. 2019): SST-2, QQP, MNLI and QNLI. A record
of a pair has both texts in its `text`, with `PAIR_MARK` between them; a text classifier reads them as the two
segments of its tokenizer.

    >>> text_parts(pair_text("He is old.", "How old is he?"))
    ('He is old.', 'How old is he?')
    >>> text_parts("He is old.")
    ('He is old.',)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import Record

TEXT_TASKS: Mapping[str, tuple[str, ...]] = {
    "outcome": ("treatment lowered", "treatment raised"),
    "pairs": ("another encounter", "the same encounter"),
    "inference": ("entailed", "not said", "contradicted"),
    "answers": ("not answered", "answered"),
}
"""Names of each task's labels, from 0; in the places of SST-2, QQP, MNLI and QNLI."""

PAIR_MARK = "\n|||\n"
"""Between the two texts of a record; neither may hold it."""


def pair_text(first: str, second: str) -> str:
    """Two texts as one record's text."""
    return f"{first}{PAIR_MARK}{second}"


def text_parts(text: str) -> tuple[str, ...]:
    """The text, or the two texts, of a record's text."""
    return tuple(text.split(PAIR_MARK, maxsplit=1))


def classes_of(task: str) -> int:
    """Number of a task's labels.

    Raises:
        InputError: there is no such task.
    """
    if task not in TEXT_TASKS:
        raise unknown_name("task", task, TEXT_TASKS)
    return len(TEXT_TASKS[task])


def check_labels(classes: int, records: Sequence[Record]) -> None:
    """Refuse records that no classifier of texts into so many classes can read.

    Args:
        classes: Number of labels.
        records: All that would be trained on or asked.

    Raises:
        InputError: a record has no text, no label, or a label that is none of the classes.
    """
    for record in records:
        if not record.text:
            raise InputError(f"record {record.id!r} has no text: a text classifier needs one")
        if record.label is None or not 0 <= record.label < classes:
            raise InputError(
                f"record {record.id!r} needs a label from 0 to {classes - 1} for a text classifier of "
                f"{classes} classes, got {record.label!r}"
            )
