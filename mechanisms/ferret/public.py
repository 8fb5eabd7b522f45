"""What FERRET draws in public: its groups, its mask, and its directions, all from one seed.

Each draw is a function of the seed, the step, and the names of the group's tensors, by SHA-256. So neither
the number of the other groups nor their order changes anything, and whoever has the seed draws the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import BoolArray, FloatArray, Record
from workbench.training.devices import wide_dtype, widened
from workbench.training.sums import SumGradients

GRANULARITIES = {"max": 1, "half": 2, "quarter": 4, "eighth": 8, "2": 0}
"""Consecutive tensors in a group; 0 for two groups of half the tensors each."""

BLOCK = 1 << 18
"""Coordinates of a direction that are held at once."""


def grouped(names: Sequence[str], granularity: str) -> tuple[tuple[str, ...], ...]:
    """The parameter groups: buckets of consecutive tensors, in their order.

    The last bucket may be smaller; of two halves the first has the odd tensor, and a single tensor is one
    group. Raises `InputError`: unknown granularity.
    """
    if granularity not in GRANULARITIES:
        raise unknown_name("granularity", granularity, GRANULARITIES)
    size = GRANULARITIES[granularity] or max(1, math.ceil(len(names) / 2))
    return tuple(tuple(names[start : start + size]) for start in range(0, len(names), size))


def firing_mask(
    public_seed: int, groups: Sequence[Sequence[str]], steps: int, probability: float
) -> BoolArray:
    """The coins Z of a run, one Bernoulli(p) for each step and group, shape `(T, G)`.

    A group's coins are one stream of Philox, keyed by the seed and its names, whose t-th number is step t's:
    the first steps of a longer run have the same coins.
    """
    mask = np.zeros((steps, len(groups)), dtype=np.bool_)
    for column, names in enumerate(groups):
        key = _digest("mask", public_seed, names)
        stream = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
        mask[:, column] = stream.random(steps) < probability
    return mask


def _digest(what: str, public_seed: int, names: Sequence[str], step: int | None = None) -> bytes:
    parts = ["ferret", what, str(public_seed), "" if step is None else str(step), *names]
    return hashlib.sha256("\0".join(parts).encode()).digest()


class Direction:
    """A group's direction in a step: uniform on the unit sphere, drawn block by block and never stored whole.

    A vector of independent standard normal numbers, divided by its norm. It is drawn on the CPU, whatever the
    parameters' device, since the generator is part of what the seed means. Torch's starts from one of 2^32
    states: of F firings some F^2 / 2^33 pairs share their numbers (less than one pair up to some 90,000).
    """

    def __init__(
        self, public_seed: int, step: int, names: Sequence[str], parameters: Sequence[Tensor]
    ) -> None:
        """The direction of the group of `names`, whose tensors are `parameters`."""
        digest = _digest("direction", public_seed, names, step)
        self._seed = int.from_bytes(digest[:8], "little") >> 1
        self._parameters = parameters
        self._norm = math.nan  # of the normal vector, once it has been asked for an inner product
        self._kept: list[tuple[int, slice, Tensor]] | None = None
        if sum(p.numel() for p in parameters) <= BLOCK:
            self._kept = list(self._drawn())

    def _drawn(self) -> Iterator[tuple[int, slice, Tensor]]:
        """Normal numbers, float64: index of the tensor, place in it, values."""
        device = self._parameters[0].device
        generator = torch.Generator().manual_seed(self._seed)
        for index, parameter in enumerate(self._parameters):
            for start in range(0, parameter.numel(), BLOCK):
                place = slice(start, min(start + BLOCK, parameter.numel()))
                block = torch.empty(place.stop - start).normal_(generator=generator)
                yield index, place, widened(block.to(device))

    def _blocks(self) -> Iterator[tuple[int, slice, Tensor]]:
        return self._drawn() if self._kept is None else iter(self._kept)

    def inner(self, gradients: Sequence[Tensor]) -> float:
        """Inner product with a gradient, given by tensor; summed in float64."""
        with torch.no_grad():
            return float(self.differentiable_inner(gradients))

    def differentiable_inner(self, gradients: Sequence[Tensor]) -> Tensor:
        """The inner product with the gradients as a tensor that keeps its graph."""
        flat = [gradient.reshape(-1) for gradient in gradients]
        total = square = torch.zeros((), dtype=wide_dtype(flat[0].device), device=flat[0].device)
        for index, place, block in self._blocks():
            total = total + widened(flat[index][place]).dot(block)
            if math.isnan(self._norm):
                square = square + block.dot(block)
        if math.isnan(self._norm):
            self._norm = math.sqrt(float(square))
        return total / self._norm

    def write(self, length: float, targets: Sequence[Tensor]) -> None:
        """Fill the group's tensors with `length` times the direction.

        Only after an inner product, which measures the norm. `length`: of the vector. `targets`: contiguous,
        one a tensor of the group.
        """
        factor = length / self._norm
        for index, place, block in self._blocks():
            targets[index].view(-1)[place] = block * factor


class FiredGroups:
    """The fired groups' directions of one step, and inner products with them until it is closed."""

    def __init__(
        self, sums: SumGradients, step: int, public_seed: int, groups: Sequence[tuple[str, ...]]
    ) -> None:
        self._sums = sums
        self._step = step
        ends = np.cumsum([0, *(len(names) for names in groups)]).tolist()
        self._places = [slice(start, stop) for start, stop in pairwise(ends)]
        self._names = [name for names in groups for name in names]
        self._open = True
        self.directions = [
            Direction(public_seed, step, names, [sums.parameters[name] for name in names]) for names in groups
        ]

    def close(self) -> None:
        """The model moves on: questions would be answered for another state."""
        self._open = False

    def inner(self, records: Sequence[Record]) -> tuple[list[float], float | None]:
        """Inner products of the records' summed gradient, and their mean loss; None without records."""
        flat, loss = self._sums.gradient(records, self._names)
        placed = zip(self.directions, self._places, strict=True)
        return [direction.inner(flat[place]) for direction, place in placed], loss

    def of_sum(self, records: Sequence[Record]) -> FloatArray:
        """Directional derivative of the records' summed loss per group, as `FiredStep` defines it."""
        self._require_open()
        return np.array(self.inner(records)[0], dtype=np.float64)

    def of_each(self, records: Sequence[Record]) -> FloatArray:
        """Directional derivative of each record's loss per group, as `FiredStep` defines it."""
        self._require_open()

        def along(direction: Direction, place: slice) -> Callable[[Sequence[Tensor]], Tensor]:
            return lambda flat: direction.differentiable_inner(flat[place])

        inner = [along(d, place) for d, place in zip(self.directions, self._places, strict=True)]
        return self._sums.along(records, self._names, inner)

    def _require_open(self) -> None:
        if not self._open:
            raise InputError(f"step {self._step} is over: ask while the watcher runs")
