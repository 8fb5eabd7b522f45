"""Finding texts that nearly repeat an earlier one: MinHash bands propose pairs, exact Jaccard decides.

Broder 1997 (resemblance of shingle sets); banding as in Leskovec, Rajaraman and Ullman, "Mining of Massive
Datasets", section 3.4. A pair of Jaccard similarity s is proposed with probability 1 - (1 - s^r)^b, for r
rows in each of b bands: 0.998 at s = 0.3 and 1 - 1e-8 at s = 0.5 with the defaults, so hardly any is missed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SHINGLE_WORDS = 3
BANDS = 64
ROWS = 2

HashArray = npt.NDArray[np.uint64]

WORD = re.compile(r"\w+")


def shingles(text: str) -> HashArray:
    """Hashes of the text's distinct runs of three words, case levelled; of all its words if it has fewer."""
    words = WORD.findall(text.casefold())
    if len(words) <= SHINGLE_WORDS:
        runs = [" ".join(words)]
    else:
        runs = [" ".join(words[i : i + SHINGLE_WORDS]) for i in range(len(words) - SHINGLE_WORDS + 1)]
    return np.unique(np.array([zlib.crc32(run.encode()) for run in runs], dtype=np.uint64))


def jaccard(first: HashArray, second: HashArray) -> float:
    """Size of the intersection over size of the union of two sorted sets of hashes."""
    common = int(np.intersect1d(first, second, assume_unique=True).size)
    return common / (first.size + second.size - common)


def signatures(sets: Sequence[HashArray]) -> HashArray:
    """MinHash signatures, shape `(n, BANDS * ROWS)`.

    The hash functions are fixed, pairwise independent multiply-shift ones: the upper half of `a x + b`
    modulo 2^64, for 32-bit x (Dietzfelbinger 1996).
    """
    generator = np.random.default_rng(0)
    factors, offsets = generator.integers(0, 1 << 64, size=(2, BANDS * ROWS), dtype=np.uint64)
    result = np.empty((len(sets), BANDS * ROWS), dtype=np.uint64)
    for i, hashes in enumerate(sets):
        mixed = (hashes[:, None] * factors + offsets) >> np.uint64(32)
        result[i] = mixed.min(axis=0)
    return result


def near_duplicates(texts: Sequence[str], threshold: float) -> list[bool]:
    """Which texts nearly repeat an earlier one that is kept; of two similar ones the first is kept.

    Returns:
        One flag a text; True where its shingles' Jaccard similarity with a kept text reaches the threshold.
    """
    sets = [shingles(text) for text in texts]
    marks = signatures(sets).reshape(len(texts), BANDS, ROWS)
    buckets: dict[tuple[int, bytes], list[int]] = {}
    flags = []
    for i, hashes in enumerate(sets):
        keys = [(band, marks[i, band].tobytes()) for band in range(BANDS)]
        rivals = sorted({j for key in keys for j in buckets.get(key, ())})
        repeated = any(jaccard(hashes, sets[j]) >= threshold for j in rivals)
        flags.append(repeated)
        if not repeated:
            for key in keys:
                buckets.setdefault(key, []).append(i)
    return flags
