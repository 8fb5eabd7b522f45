"""Independent random streams of a seed, one for each purpose, so that no draw changes another."""

from __future__ import annotations

import numpy as np

STREAMS = (
    *("corpus", "coins", "insertions", "training", "shadows", "attack", "releases", "judge", "split"),
    *("replay", "canaries", "retraining", "watching", "order"),
)
"""Every random stream of an audit; a new one is added at the end, since the place seeds the stream."""


def stream(seed: int, name: str, *more: int) -> np.random.Generator:
    """Returns the random stream of a seed for a purpose; independent of every other name and index."""
    return np.random.default_rng(np.random.SeedSequence([seed, STREAMS.index(name), *more]))


def stream_seed(seed: int, name: str, *more: int) -> int:
    """Returns a 31-bit seed drawn from the named stream."""
    return int(stream(seed, name, *more).integers(2**31))
