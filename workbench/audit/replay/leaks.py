"""What differs between two runs with equal updates: it has left the training past the noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from workbench.audit.replay.measured import SCORES, Leak
from workbench.audit.replay.recording import Layout, Recording

OTHERS = "the steps of another optimizer"
"""The part of a leak that those show which are to follow from what is released."""

Kept: TypeAlias = Sequence[tuple[str, Tensor]]
"""Tensors that a run leaves, with their names."""


def leaks_of(b: Recording, c: Recording) -> list[Leak]:
    """What a replaced record changes although updates and random draws are equal.

    The first difference in the training; where there is none, all in what it leaves.
    """
    same = 0
    while same < min(b.steps, c.steps) and b.draws[same] == c.draws[same]:
        same += 1
    if (found := difference(b, c, gradients=False, steps=same)) is not None:
        return [found]
    if same < min(b.steps, c.steps):
        return []  # From here on other numbers are drawn, and what differs may come from them.
    if b.steps != c.steps:
        return [Leak(f"the number of steps ({b.steps} and {c.steps})")]
    if b.draws[-1] != c.draws[-1]:
        return []
    return [Leak(_words(name), part=name) for name in different(b, c) if name not in b.unlike]


def different(first: Recording, second: Recording) -> list[str]:
    """The parts of what two runs leave (`parts_of`) that differ, or are of one alone."""
    ours, theirs = parts_of(first), parts_of(second)
    return [name for name in {**ours, **theirs} if not same_tensor(ours.get(name), theirs.get(name))]


def _words(part: str) -> str:
    if part == SCORES:
        return "the scores that the finished model gives"
    if part == OTHERS:
        return part
    return f"what the finished model keeps in {part.partition(': ')[2]}"


def parts_of(run: Recording) -> dict[str, Tensor]:
    """What a run leaves beside its weights, by `Leak.part`; buffers by their places, as names may repeat."""
    scores = {} if run.result is None else {SCORES: torch.as_tensor(np.asarray(run.result))}
    if run.others:
        scores[OTHERS] = torch.tensor(run.others)
    return {**scores, **{f"{place}: {name}": kept for place, (name, kept) in enumerate(run.buffers)}}


def same_tensor(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both are there and equal, NaN to NaN."""
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if one.is_sparse or other.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    return bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=one.is_floating_point()).all())


def other_state(b: Recording, c: Recording) -> str | None:
    """What the optimizers keep otherwise where a record is replaced, by its name; None where nothing differs.

    To be asked where `leaks_of` finds none: then all updates were the same.
    """
    if b.draws != c.draws or not b.states:
        return None
    return other_tensor(b.states, c.states)


def other_tensor(first: Kept, second: Kept) -> str | None:
    """The name of the first tensor in which two runs' differ; None where none does."""
    for (name, one), (other_name, other) in zip(first, second, strict=False):
        if name != other_name or not same_tensor(one, other):
            return name
    return "other parts" if len(first) != len(second) else None


def difference(
    first: Recording, second: Recording, *, gradients: bool = True, steps: int | None = None
) -> Leak | None:
    """The first thing in which two runs differ, of the first steps if not of all; None where none does."""
    for step, (one, other) in enumerate(zip(first.weights[:steps], second.weights[:steps], strict=False)):
        if not torch.equal(one, other):
            tensor = _tensor(first.layouts[first.optimizers[step]], one, other)
            return Leak(f"weights before step {step + 1} ({tensor})", tensor=tensor)
        if gradients and not torch.equal(first.gradients[step], second.gradients[step]):
            tensor = _tensor(
                first.layouts[first.optimizers[step]], first.gradients[step], second.gradients[step]
            )
            return Leak(f"the gradient of step {step + 1} ({tensor})", tensor=tensor)
    if steps is None and first.steps != second.steps:
        return Leak(f"the number of steps ({first.steps} and {second.steps})")
    return None


def _tensor(layout: Layout, one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return "another number of parameters"
    for name, place in layout.slices():
        if not torch.equal(one[place], other[place]):
            return name
    return "?"
