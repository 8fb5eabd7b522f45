"""Records that are put in the place of one: far from it, of another label, and louder and louder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CRAFTS = 8
"""Crafts of one record; the more directions they have, the more they show of what one record can add."""

LOUD, LOUDER = 8.0, (1e3, 1e5)
"""Multiples of the images' scale: of all crafts, and of two more of the first, which any clipping holds."""

FITTED = (1.0, 3.0)
"""Multiples of the mean image of a label: the louder it is, the smaller is its gradient once it is fitted."""

SURE, MOST_LABELS = 30.0, 4
"""A multiple of a label's mean image that leaves hardly a gradient once it is fitted, and of how many."""

VARIANTS, LABELS_EACH = 8, 2
"""Of a craft, to see whether each has a coin of its own."""

BEYOND = 1e39
"""Multiple at which float32 numbers are infinite."""


@dataclass(frozen=True)
class Craft:
    """A record, and by how much it is louder than the crafts without a number, if it is one of `LOUDER`."""

    record: Mapping[str, Any]
    loudness: float = 0.0


def crafted(records: Sequence[Mapping[str, Any]], place: int, generator: np.random.Generator) -> list[Craft]:
    """What stands in the place of a record, one after another.

    Images are loud in a part of their pixels each, so that their gradients point in different directions, and
    take the labels in turn; the second is the first with another label, one is bright all over, one is dark,
    and two more are the first one, louder. Texts repeat a word of their own each, but for two, which are the
    longest and the shortest text of other records.

    Args:
        records: As the user's function gets them.
        place: Of the record.
        generator: Of the crafts' numbers.

    Returns:
        `CRAFTS`, and for images one for each of `LOUDER`.
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
            crafts.append({**record, "label": label, "image": image})
        # One image with two labels: whatever a model says of it, one of the two is far from that.
        crafts[1]["image"] = crafts[0]["image"]
        made = [Craft({**craft, "image": (LOUD * craft["image"]).tolist()}) for craft in crafts]
        # One of no contrast moves all weights of a pixel's neighbours alike; a dark image the biases alone.
        made[-2] = Craft({**crafts[-2], "image": np.full(len(pixels), scale).tolist()})
        made[-1] = Craft({**crafts[-1], "image": np.zeros(len(pixels)).tolist()})
        first = crafts[0]["image"]
        return made + [Craft({**crafts[0], "image": (by * first).tolist()}, by) for by in LOUDER]
    words = sorted({word for r in records for word in str(r["text"]).split()}) or ["a"]
    chosen = generator.choice(len(words), size=CRAFTS, replace=len(words) < CRAFTS)
    count = max(len(str(record["text"]).split()), 1)
    texts = [" ".join([words[int(i)]] * count) for i in chosen]
    # What pads a batch to its longest text lets others' parts follow a text's length.
    texts[1:3] = ends_by_length([r for i, r in enumerate(records) if i != place] or records)
    return [Craft({**record, "label": label, "text": text}) for label, text in zip(turn, texts, strict=True)]


def ends_by_length(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The longest and the shortest text."""
    texts = sorted((str(r["text"]) for r in records), key=lambda text: len(text.split()))
    return [texts[-1], texts[0]]


def two_for_many(
    records: Sequence[Mapping[str, Any]], craft: Craft
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Records for two quarters of the places, in turn until a training takes them.

    The craft twice; of texts first the longest and the shortest, the former twice over or as it is.
    """
    if craft.record["image"] is None:
        longest, shortest = ends_by_length(records)
        for text in (f"{longest} {longest}", longest):
            yield {**craft.record, "text": text}, {**craft.record, "text": shortest}
    yield dict(craft.record), dict(craft.record)


def twins(records: Sequence[Mapping[str, Any]], part: int) -> dict[int, dict[str, Any]]:
    """A quarter of the places, each with the record two places on, of the next label or with a word changed.

    What compares records, as a filter of duplicates or a vote of the nearest, sees these in its data.
    """
    labels = sorted({r["label"] for r in records if r["label"] is not None})
    after = dict(zip(labels, labels[1:] + labels[:1], strict=True))
    made = {}
    for place in range(part, len(records) - 2, 4):
        twin = dict(records[place + 2])
        twin["label"] = after.get(twin["label"])
        if twin["image"] is None:
            words = str(twin["text"]).split()
            twin["text"] = " ".join([*words[:-1], *words[:1]])
        made[place] = twin
    return made


def near_copies(records: Sequence[Mapping[str, Any]], place: int) -> list[dict[str, Any]]:
    """A record with two neighbouring pixels exchanged, or with another word as long as one of its own.

    What records are sorted, grouped or counted by (brightness, ink, label, length, their first numbers) is
    mostly as before.

    Returns:
        One that is changed near the end, and one near the middle; nothing where no change is found.
    """
    record = dict(records[place])
    if record["image"] is not None:
        pixels = np.asarray(record["image"], dtype=float)
        steps = np.abs(np.diff(pixels)) if pixels.ndim == 1 else np.zeros(0)
        if not np.isfinite(steps).all() or not steps.any():
            return []
        edges = np.flatnonzero(steps >= min(np.ptp(pixels) / 2, steps.max()))
        copies = []
        for at in (edges[-1], edges[np.abs(edges - len(pixels) / 2).argmin()]):
            image = pixels.tolist()
            image[at : at + 2] = image[at + 1], image[at]
            copies.append({**record, "image": image})
        return copies
    words = str(record["text"]).split()
    known = sorted({word for r in records for word in str(r["text"]).split()})
    twins = {
        at: next(w for w in known if len(w) == len(word) and w != word)
        for at, word in enumerate(words)
        if any(len(w) == len(word) and w != word for w in known)
    }
    if not twins:
        return []
    ends = max(twins), min(twins, key=lambda at: abs(at - len(words) / 2))
    return [{**record, "text": " ".join([*words[:at], twins[at], *words[at + 1 :]])} for at in ends]


def variants(records: Sequence[Mapping[str, Any]], craft: Craft) -> list[dict[str, Any]]:
    """The craft with a pixel or the first word changed, each with `LABELS_EACH` labels if there are as many.

    Returns:
        `VARIANTS` of one label, then as many of the next.
    """
    record = dict(craft.record)
    own = record["label"]
    others = sorted({r["label"] for r in records if r["label"] is not None} - {own})
    changed: list[dict[str, Any]] = []
    if record["image"] is not None:
        image = [float(value) for value in record["image"]]
        largest = max(map(abs, image)) or 1.0
        # What is lit, first: there a change turns the gradient.
        for at in sorted(range(len(image)), key=lambda at: image[at] == 0)[:VARIANTS]:
            pixel = 0.0 if image[at] else largest
            changed.append({**record, "image": [*image[:at], pixel, *image[at + 1 :]]})
    else:
        words = str(record["text"]).split()
        known = sorted({word for r in records for word in str(r["text"]).split()} - set(words[:1]))
        changed = [{**record, "text": " ".join([word, *words[1:]])} for word in known[:VARIANTS]]
    return [{**one, "label": label} for label in [own, *others][:LABELS_EACH] for one in changed]


def within_range(crafts: Sequence[Craft]) -> list[Craft]:
    """The usual crafts, with images as loud as the records' and nowhere negative; empty for texts."""
    made = []
    for number, craft in enumerate(crafts):
        if craft.record["image"] is not None and not craft.loudness:
            by = 1.0 if number >= CRAFTS - 2 else LOUD  # The last two are not loud.
            made.append(Craft({**craft.record, "image": (np.abs(craft.record["image"]) / by).tolist()}))
    return made


def faint(records: Sequence[Mapping[str, Any]], craft: Craft) -> list[dict[str, Any]]:
    """Records whose gradients are small, or in the biases: what clips by another norm lets these add more.

    A dark image, which moves the biases; and the mean image of a label, as it is and loud, which a model that
    learns anything comes to fit.

    Args:
        craft: Of a place; whose label the dark image has.

    Returns:
        None where records have no image.
    """
    if craft.record["image"] is None:
        return []
    label = records[0]["label"]
    mean = np.mean([r["image"] for r in records if r["label"] == label], axis=0)
    return [
        {**craft.record, "image": np.zeros_like(mean).tolist()},
        *({**craft.record, "label": label, "image": (by * mean).tolist()} for by in FITTED),
    ]


def fitted(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The loud mean images of the commonest labels: a model that learns any of them fits that one surely."""
    labels = Counter(record["label"] for record in records)
    if len(labels) < 2 or any(record["image"] is None for record in records):
        return []
    found = []
    for label, _ in labels.most_common(MOST_LABELS):
        own = [record for record in records if record["label"] == label]
        mean = np.mean([record["image"] for record in own], axis=0)
        found.append({**own[0], "image": (SURE * mean).tolist()})
    return found


def overflowing(craft: Craft) -> dict[str, Any] | None:
    """The craft's record so loud that it is not finite; None where records have no loudness."""
    image = craft.record["image"]
    return None if image is None else {**craft.record, "image": [BEYOND * value for value in image]}


def copies(records: Sequence[Mapping[str, Any]], kept: Collection[Any] = ()) -> list[dict[str, Any]]:
    """As many copies of the first record, each with its own id.

    Args:
        kept: Labels whose first records stay in their places.
    """
    missing, made = set(kept) - {records[0]["label"]}, []
    for record in records:
        stays = record["label"] in missing
        missing.discard(record["label"])
        made.append(dict(record) if stays else {**records[0], "id": record["id"]})
    return made
