"""Records that are put in the place of one: far from it, louder and louder, and of another label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CRAFTS = 8
"""Crafts of one record; the more directions they have, the more they show of what one record can add."""

LOUD, LOUDER = 8.0, 128.0
"""Multiples of the images' scale; where the louder record moves an update further, nothing clips it."""


def crafted(records: Sequence[Mapping[str, Any]], place: int, generator: np.random.Generator) -> list[Any]:
    """What stands in the place of a record, one after another; the last is the first, but louder.

    Images are loud in a part of their pixels each, so that their gradients point in different directions, and
    take the labels in turn; texts repeat a word of their own each.

    Args:
        records: As the user's function gets them.
        place: Of the record.
        generator: Of the crafts' numbers.

    Returns:
        Records of the same form, `CRAFTS` and one.
    """
    record = dict(records[place])
    labels = sorted({r["label"] for r in records if r["label"] is not None}) or [record["label"]]
    shift = int(generator.integers(len(labels)))
    turn = [labels[(i + shift) % len(labels)] for i in range(CRAFTS)]
    if record["image"] is not None:
        scale = float(np.max(np.abs([r["image"] for r in records]))) or 1.0
        pixels = generator.permutation(len(record["image"]))
        crafts = []
        for label, part in zip(turn, np.array_split(pixels, CRAFTS), strict=True):
            image = np.zeros(len(pixels))
            image[part] = scale * generator.choice([-1.0, 1.0], size=part.size)
            crafts.append((label, image))
        loud = [{**record, "label": label, "image": (LOUD * image).tolist()} for label, image in crafts]
        return [*loud, {**loud[0], "image": (LOUDER * crafts[0][1]).tolist()}]
    words = sorted({word for r in records for word in str(r["text"]).split()}) or ["a"]
    chosen = [
        words[int(i)] for i in generator.choice(len(words), size=CRAFTS + 1, replace=len(words) <= CRAFTS)
    ]
    count = max(len(str(record["text"]).split()), 1)
    return [
        {**record, "label": label, "text": " ".join([word] * count)}
        for label, word in zip([*turn, turn[0]], chosen, strict=True)
    ]
