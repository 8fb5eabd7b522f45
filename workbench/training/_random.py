"""Replaying torch's random stream, so that a second pass draws the dropout masks of the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """State of the CPU's generator and, for a CUDA device, of that device's."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def with_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> Iterator[None]:
    """Run a block from a saved state, and leave the streams as they were before it."""
    cpu, cuda = state
    with torch.random.fork_rng(devices=[device] if cuda is not None else []):
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
        yield
