"""Matrix products in bfloat16, for forward passes without gradients, and for the steps of stacked networks.

Weights and inputs are rounded within each product, so no second copy of the weights is stored; sums, norms,
residuals and losses stay float32. A finite difference divides the rounding error by the length of the
perturbation: on SmolLM2-135M (8 texts of 128 tokens, 5 directions of all weights), losses are off by 2e-3
nats in the mean, and per-record differences correlate 0.97 with those of float32 at mu = 1e-3, 0.999 at 4e-3.
A tiny model's differences are smaller, and are lost in the error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from workbench.core.errors import UnsupportedError, unknown_name

PRECISIONS = ("float32", "bfloat16")

LARGEST_SHARE = 0.6
"""Of float32's time that batched products in bfloat16 may take, where an ensemble is trained by them."""

_REPEATS = 7


def checked_precision(name: str) -> str:
    """The name of a precision; an `InputError` where it is none of `PRECISIONS`."""
    if name not in PRECISIONS:
        raise unknown_name("precision", name, PRECISIONS)
    return name


@contextmanager
def reduced(precision: str, device: torch.device) -> Iterator[None]:
    """Compute matrix products on a device in this precision; float32 changes nothing."""
    if precision == "float32":
        yield
        return
    # Its cache would hold a second, rounded copy of the weights.
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        yield


def is_reduced(device: torch.device) -> bool:
    """Whether products on the device are in bfloat16 now."""
    return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Compute products in float32 within a `reduced` block."""
    with torch.autocast(device.type, enabled=False):
        yield


@lru_cache(maxsize=64)
def product_share(left: tuple[int, ...], right: tuple[int, ...], device: torch.device) -> float:
    """Time of one batched product in bfloat16 over that in float32, as measured here; the least of some each.

    `left`, `right`: shapes `(R, m, k)` and `(R, k, n)`.
    """
    seconds: dict[torch.dtype, list[float]] = {torch.bfloat16: [], torch.float32: []}
    for _ in range(_REPEATS):
        for dtype, times in seconds.items():
            factors = [torch.ones(shape, dtype=dtype, device=device) for shape in (left, right)]
            torch.bmm(*factors)
            _wait_for(device)
            started = time.perf_counter()
            torch.bmm(*factors)
            _wait_for(device)
            times.append(time.perf_counter() - started)
    return min(seconds[torch.bfloat16]) / min(seconds[torch.float32])


def _wait_for(device: torch.device) -> None:
    """Wait until the device has done its work; the CPU never lags behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def require_fast(left: tuple[int, ...], right: tuple[int, ...], device: torch.device) -> None:
    """Refuse bfloat16 where products of these shapes are hardly faster in it.

    Raises `UnsupportedError`: with the measured share.
    """
    share = product_share(left, right, device)
    if share > LARGEST_SHARE:
        raise UnsupportedError(
            f"precision 'bfloat16' is slow on this machine's {device.type}: its products take {share:.2g} "
            f"times as long as float32's, where at most {LARGEST_SHARE:g} is of use: leave it out"
        )
