"""The records of many plans in one pool, and the samples of each step as indices into it.

The samples are those that `workbench.training.samples.step_samples` draws for each plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from workbench.interfaces import IntArray, Plan, Record, Sampling
from workbench.training.fine_tuning import Seeds
from workbench.training.samples import step_samples

DRAWN_AT_ONCE = 1 << 14
"""Coins of one model that are drawn at once."""


class Pool:
    """The records of all plans, each once.

    `records`: those of the first plan, then those that others add.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        """Collect the records."""
        places: dict[int, int] = {}
        self.records: list[Record] = []
        self._plans = plans
        self._places: list[IntArray] = []
        for plan in plans:
            for record in plan.records:
                if id(record) not in places:
                    places[id(record)] = len(self.records)
                    self.records.append(record)
            self._places.append(np.array([places[id(record)] for record in plan.records], dtype=np.int64))

    def samples(self, steps: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Each step's samples: indices into the pool `(R, n)`, filled up with 0, and sizes `(R,)`."""
        generators = [np.random.default_rng(Seeds.of(plan).sampling) for plan in self._plans]
        draws = [_draws(plan, generator) for plan, generator in zip(self._plans, generators, strict=True)]
        largest = max(len(places) for places in self._places)
        block = max(1, min(steps, DRAWN_AT_ONCE // largest))
        for start in range(0, steps, block):
            count = min(block, steps - start)
            drawn = [draw(count) for draw in draws]
            sizes = np.stack([of_model[0] for of_model in drawn], axis=1)
            indices = np.zeros((count, len(drawn), max(int(sizes.max()), 1)), dtype=np.int64)
            for model, (own_sizes, chosen) in enumerate(drawn):
                step_of = np.repeat(np.arange(count), own_sizes)
                within = np.arange(len(chosen)) - np.repeat(np.cumsum(own_sizes) - own_sizes, own_sizes)
                indices[step_of, model, within] = self._places[model][chosen]
            yield from zip(indices, sizes, strict=True)


def _draws(plan: Plan, generator: np.random.Generator) -> Callable[[int], tuple[IntArray, IntArray]]:
    """Draws a plan's next samples, those of `step_samples`: their sizes, and their indices in one array."""
    if plan.sampling is Sampling.POISSON:

        def draw_coins(count: int) -> tuple[IntArray, IntArray]:
            taken = generator.random((count, len(plan.records))) < plan.sampling_probability
            return taken.sum(1), np.flatnonzero(taken) % len(plan.records)

        return draw_coins
    samples = step_samples(plan, generator)

    def draw_batches(count: int) -> tuple[IntArray, IntArray]:
        drawn = [next(samples) for _ in range(count)]
        return np.array([len(sample) for sample in drawn], dtype=np.int64), np.concatenate(drawn)

    return draw_batches
