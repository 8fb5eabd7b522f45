"""Replaying torch's random stream, so that a second pass draws the dropout masks of the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

RandomState: TypeAlias = tuple[Tensor, Tensor | None]
"""State of the CPU's generator and, beside a CUDA device, of that device's."""


def random_state(device: torch.device) -> RandomState:
    """The present state of the streams that work on `device` draws from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def with_random_state(state: RandomState, device: torch.device) -> Iterator[None]:
    """Run a block from a saved state, and leave the streams as they were before it."""
    cpu, cuda = state
    with torch.random.fork_rng(devices=[device] if cuda is not None else []):
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
        yield


def same_random_state(a: RandomState, b: RandomState) -> bool:
    """True where both would go on with the same numbers."""
    same_cuda = a[1] is b[1] if a[1] is None or b[1] is None else torch.equal(a[1], b[1])
    return torch.equal(a[0], b[0]) and same_cuda
