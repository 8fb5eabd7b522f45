"""For all tests: the folder of helpers that several files share, and torch on one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test files are no packages (`--import-mode=importlib`), so a helper next to one could not be imported;
# `oracles` holds slow exact twins, which benchmarks use too.
sys.path[:0] = [str(Path(__file__).with_name("helpers")), str(Path(__file__).parent)]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose where cores are shared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
