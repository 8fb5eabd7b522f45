"""Records that pull the weights hard, and each another way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np

from workbench.core.errors import ArgumentError
from workbench.interfaces import Record
from workbench.training.secrets import SECRET_MARKER, append_secret, secret_id

LOUD = 3.0
"""The size of a canary's pixels, as a multiple of the largest of the images."""

LIT = 0.125
"""Share of an image's pixels that a canary lights. Where all are, more trainings without clipping diverge."""

FEWEST_WORDS, MOST_WORDS = 4, 16
"""Words of a text; in a short one each has a large part in the gradient."""

RARE_WORD = "zyzzyva "

DARK = 0.05
"""A pixel whose mean over all other images is below this share of the brightest is dark in them."""


class CanaryKind(StrEnum):
    """How canaries are crafted."""

    LOUD = "loud"
    """Images with an eighth of their pixels lit beyond the data's range, with random signs; texts of random
    words (high-temperature canaries); labels drawn from the records'."""
    MISLABELLED = "mislabelled"
    """Natural records with another label than their own."""
    SECRET = "secret"
    """A few random words and a random secret of ten characters, on whose tokens alone a language model's loss
    is scored; labels drawn from the records'."""


def usual_kind(records: Sequence[Record]) -> CanaryKind:
    """Secrets for texts without labels, which language models are trained on; else loud records."""
    is_plain_text = all(record.text and record.label is None for record in records)
    return CanaryKind.SECRET if is_plain_text else CanaryKind.LOUD


def require_kind(records: Sequence[Record], kind: CanaryKind, argument: str) -> None:
    """Raises `InputError` for mislabelled canaries of records without two labels, and secrets of records that
    are no texts; it names the argument.
    """
    labels = _labels(records)
    if kind is CanaryKind.SECRET and any(not record.text for record in records):
        raise ArgumentError(argument, f"{kind} needs a corpus of texts")
    if kind is CanaryKind.MISLABELLED and len(labels) < 2:
        raise ArgumentError(
            argument, f"{kind} needs a corpus whose records have two labels or more, got {len(labels)}"
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
        InputError: mislabelled canaries of records without two labels, or secrets without texts.
    """
    require_kind(records, kind, "kind")
    labels = _labels(records)
    every = {word for record in records for word in record.text.split()}
    words = sorted(word for word in every if SECRET_MARKER not in word) or ["a"]
    scale = max((max(map(abs, record.image)) for record in records if record.image), default=1.0) or 1.0
    made = []
    for number in range(count):
        record = records[number % len(records)]
        is_natural = kind is CanaryKind.MISLABELLED
        others = [label for label in labels if not is_natural or label != record.label]
        changes: dict[str, object] = {"id": f"canary-{number}"}
        if others:
            changes["label"] = others[int(generator.integers(len(others)))]
        if kind is CanaryKind.LOUD and record.image is not None:
            size = len(record.image)
            lit = generator.choice(size, size=max(1, round(LIT * size)), replace=False)
            image = np.zeros(size)
            image[lit] = LOUD * scale * generator.choice([-1.0, 1.0], size=lit.size)
            changes["image"] = tuple(image.tolist())
        elif not is_natural:
            most = MOST_WORDS if kind is CanaryKind.LOUD else FEWEST_WORDS
            drawn = generator.choice(len(words), size=min(max(len(record.text.split()), FEWEST_WORDS), most))
            changes["text"] = " ".join(words[int(i)] for i in drawn)
        own = replace(record, **changes)  # type: ignore[arg-type]
        made.append(append_secret(own, secret_id(generator)) if kind is CanaryKind.SECRET else own)
    return made


def odd_one(record: Record, others: Sequence[Record], *, loudness: float = 1.0) -> Record:
    """The record made unlike all others; it keeps its id.

    An image is bright where the others' are dark, under the next label; a text repeats one rare word.

    Args:
        record: Where id, form and label come from.
        others: At least one.
        loudness: Size of the bright pixels, as a multiple of the others' brightest.
    """
    if record.image is None:
        return replace(record, text=RARE_WORD * max(8, len(record.text) // len(RARE_WORD)))
    images = np.array([other.image for other in others])
    brightest = max(float(images.max()), 1.0)
    mean = images.mean(0)
    dark = mean <= max(DARK * brightest, float(mean.min()))
    labels = {other.label for other in others if other.label is not None}
    label = None if record.label is None else (record.label + 1) % (max(labels) + 1)
    return replace(record, image=tuple(np.where(dark, loudness * brightest, 0.0).tolist()), label=label)


def _labels(records: Sequence[Record]) -> list[int]:
    return sorted({record.label for record in records if record.label is not None})
