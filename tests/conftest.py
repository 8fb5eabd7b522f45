"""For all tests: the folder of helpers that several files share, torch on one thread, and a limit of time."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test files are no packages (`--import-mode=importlib`), so a helper next to one could not be imported;
# `oracles` holds slow exact twins, which benchmarks use too.
sys.path[:0] = [str(Path(__file__).with_name("helpers")), str(Path(__file__).parent)]

STARTED = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave every third case of a `thinned` test in the default run; the others are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("thinned"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % 3:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip slow tests that would begin later than `WORKBENCH_SLOW_SECONDS` after the start; CI sets it."""
    limit = float(os.environ.get("WORKBENCH_SLOW_SECONDS", "inf"))
    if item.get_closest_marker("slow") and time.monotonic() - STARTED > limit:
        pytest.skip(f"the {limit:g} s for slow tests are over")


@pytest.fixture(params=["cuda", "mps", pytest.param("accelerator", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device to compare with the CPU: stood in for, and, where there is one, this machine's accelerator."""
    import torch
    from stand_in_device import stand_in

    from workbench.training.devices import CPU, devices_here

    if request.param != "accelerator":
        with stand_in(request.param):
            yield request.param
        return
    if devices_here()[0] == CPU:
        pytest.skip("this machine has no accelerator")
    yield devices_here()[0]
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from threads, and lose where cores are shared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
