"""The named random streams of a seed: one for each thing that is drawn, so that none decides another."""

from __future__ import annotations

import numpy as np

STREAMS = ("corpus", "coins", "insertions", "training", "shadows", "attack", "releases", "judge", "split")
"""Every random stream of an audit has its place here; a new one is added at the end."""


def stream(seed: int, name: str, *more: int) -> np.random.Generator:
    """The named random stream of a seed; independent of every other name and index."""
    return np.random.default_rng(np.random.SeedSequence([seed, STREAMS.index(name), *more]))


def stream_seed(seed: int, name: str, *more: int) -> int:
    """A 31-bit seed from the named stream."""
    return int(stream(seed, name, *more).integers(2**31))
