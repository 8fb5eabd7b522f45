"""Queries near a record: images moved by a pixel, and with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import Record

MOVES = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
"""Rows down and columns to the right; the first leaves the image where it is."""


def shifted(records: Sequence[Record], count: int, name: str) -> list[tuple[Record, ...]]:
    """Images moved by the first `count` of the `MOVES`; what moves in is 0.

    Flips are left out: a mirrored digit or letter is another one.

    Args:
        records: Images; square ones (of one channel, or three after each other) where they move.
        count: From 1 to 9.
        name: Of the parameter that asks for them, for the error.

    Returns:
        One tuple of all records a move.

    Raises:
        InputError: an image to be moved is not square, or a record has none.
    """
    return [tuple(_moved(record, *move, name) for record in records) for move in MOVES[:count]]


def _moved(record: Record, down: int, right: int, name: str) -> Record:
    if (down, right) == (0, 0):
        return record
    if record.image is None:
        raise InputError(f"{name} must be 1 for records without an image, such as {record.id!r}")
    size = len(record.image)
    channels = next((c for c in (1, 3) if size % c == 0 and math.isqrt(size // c) ** 2 == size // c), 0)
    if not channels:
        raise InputError(
            f"{name} must be 1 for images that are not square, and {record.id!r} has {size} values"
        )
    side = math.isqrt(size // channels)
    padded = np.pad(np.array(record.image).reshape(channels, side, side), ((0, 0), (1, 1), (1, 1)))
    rows, columns = slice(1 - down, 1 - down + side), slice(1 - right, 1 - right + side)
    return replace(record, image=tuple(padded[:, rows, columns].ravel().tolist()))


def noisy(
    records: Sequence[Record], count: int, deviation: float, generator: np.random.Generator
) -> list[tuple[Record, ...]]:
    """Images with Gaussian noise in every value, `count` times; the noise of a copy is the same for all.

    `deviation` is that of the noise, in the images' unit. All images have one size.
    """
    size = len(records[0].image or ())
    copies = []
    for _ in range(count):
        noise = deviation * generator.standard_normal(size)
        copies.append(
            tuple(
                replace(record, image=tuple((np.array(record.image) + noise).tolist())) for record in records
            )
        )
    return copies
