"""Handwritten digits, 8 x 8 pixels, as shipped with scikit-learn."""

from __future__ import annotations

from functools import cache

import numpy as np

from workbench.core.registry import register
from workbench.data.shared.parts import checked_seed, part_sizes, split, without_duplicates
from workbench.interfaces import Corpus, Record

BRIGHTEST = 16.0
"""Largest pixel value of the data set; pixels are scaled by it to [0, 1]."""


@register("corpus", "digits")
def digits(*, size: int, seed: int, held_out: int | None = None, public: int | None = None) -> Corpus:
    """1,797 handwritten digits of 8 x 8 pixels (scikit-learn); images, ten classes.

    `size`, `seed`, `held_out`, `public`: see `workbench.data.shared.parts.part_sizes`. Raises `InputError`: a
    size is unusable, or more than 1,797 images are wanted.
    """
    sizes = part_sizes(size, held_out, public)
    parts = split(_records(), sizes, checked_seed(seed), "the digits data set")
    return Corpus(
        name="digits",
        kind="image",
        classes=10,
        origin="scikit-learn's load_digits: test set of the UCI optical recognition of handwritten digits",
        **parts._asdict(),
    )


@cache
def _records() -> tuple[Record, ...]:
    """All of them, each once; made once, as a study asks for them with every seed."""
    from sklearn.datasets import load_digits  # slow to import, and this module is imported by every listing

    data = load_digits()
    pixels = (np.asarray(data.data, dtype=np.float32) / np.float32(BRIGHTEST)).tolist()
    return tuple(
        without_duplicates(
            Record(id=f"digits-{i:04d}", image=tuple(row), label=int(label))
            for i, (row, label) in enumerate(zip(pixels, data.target, strict=True))
        )
    )
