"""Records that pull the weights hard, and each another way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.interfaces import Record

LOUD = 3.0
"""The size of a canary's pixels, as a multiple of the largest of the images."""

FEWEST_WORDS, MOST_WORDS = 4, 16
"""Words of a text; in a short one each has a large part in the gradient."""


def canaries(records: Sequence[Record], count: int, generator: np.random.Generator) -> list[Record]:
    """Crafted records with ids of their own.

    Images have loud pixels of random signs, texts are words of the records in random order, about as many as
    a record has; labels are drawn from the records'.

    Args:
        records: At least one; they say what images, words and labels there are.
        count: Number of canaries.
        generator: Of the canaries' numbers.
    """
    labels = sorted({record.label for record in records if record.label is not None})
    words = sorted({word for record in records for word in record.text.split()}) or ["a"]
    scale = max((max(map(abs, record.image)) for record in records if record.image), default=1.0) or 1.0
    made = []
    for number in range(count):
        record = records[number % len(records)]
        changes: dict[str, object] = {"id": f"canary-{number}"}
        if labels:
            changes["label"] = labels[int(generator.integers(len(labels)))]
        if record.image is not None:
            signs = generator.choice([-1.0, 1.0], size=len(record.image))
            changes["image"] = tuple((LOUD * scale * signs).tolist())
        else:
            drawn = generator.choice(
                len(words), size=min(max(len(record.text.split()), FEWEST_WORDS), MOST_WORDS)
            )
            changes["text"] = " ".join(words[int(i)] for i in drawn)
        made.append(replace(record, **changes))  # type: ignore[arg-type]
    return made
