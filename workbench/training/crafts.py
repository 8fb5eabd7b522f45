"""Records that pull the weights hard, and each another way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import Record

LOUD = 3.0
"""The size of a canary's pixels, as a multiple of the largest of the images."""

LIT = 0.125
"""Share of an image's pixels that a canary lights. Where all are, more trainings without clipping diverge."""

FEWEST_WORDS, MOST_WORDS = 4, 16
"""Words of a text; in a short one each has a large part in the gradient."""


class CanaryKind(StrEnum):
    """How canaries are crafted."""

    LOUD = "loud"
    """Images with an eighth of their pixels lit beyond the data's range, with random signs; texts of random
    words (high-temperature canaries); labels drawn from the records'."""
    MISLABELLED = "mislabelled"
    """Natural records with another label than their own."""


def require_labels(records: Sequence[Record], kind: CanaryKind, argument: str) -> None:
    """Raises `InputError` for mislabelled canaries of records without two labels; it names the argument."""
    labels = _labels(records)
    if kind is CanaryKind.MISLABELLED and len(labels) < 2:
        raise InputError(
            f"{argument} {kind} needs a corpus whose records have two labels or more, got {len(labels)}"
        )


def canaries(
    records: Sequence[Record], count: int, generator: np.random.Generator, kind: CanaryKind = CanaryKind.LOUD
) -> list[Record]:
    """Crafted records with ids of their own, which no coin has a part in.

    Args:
        records: At least one; they say what images, words and labels there are. Mislabelled canaries are made
            of them in their order, and again from the first.
        count: Number of canaries.
        generator: Of the canaries' numbers.
        kind: How they are crafted.

    Raises:
        InputError: mislabelled canaries of records without two labels.
    """
    require_labels(records, kind, "kind")
    labels = _labels(records)
    words = sorted({word for record in records for word in record.text.split()}) or ["a"]
    scale = max((max(map(abs, record.image)) for record in records if record.image), default=1.0) or 1.0
    made = []
    for number in range(count):
        record = records[number % len(records)]
        others = [label for label in labels if kind is CanaryKind.LOUD or label != record.label]
        changes: dict[str, object] = {"id": f"canary-{number}"}
        if others:
            changes["label"] = others[int(generator.integers(len(others)))]
        if kind is CanaryKind.LOUD and record.image is not None:
            size = len(record.image)
            lit = generator.choice(size, size=max(1, round(LIT * size)), replace=False)
            image = np.zeros(size)
            image[lit] = LOUD * scale * generator.choice([-1.0, 1.0], size=lit.size)
            changes["image"] = tuple(image.tolist())
        elif kind is CanaryKind.LOUD:
            drawn = generator.choice(
                len(words), size=min(max(len(record.text.split()), FEWEST_WORDS), MOST_WORDS)
            )
            changes["text"] = " ".join(words[int(i)] for i in drawn)
        made.append(replace(record, **changes))  # type: ignore[arg-type]
    return made


def _labels(records: Sequence[Record]) -> list[int]:
    return sorted({record.label for record in records if record.label is not None})
