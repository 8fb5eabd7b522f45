"""The devices that models are trained and asked on, and the one place that moves a model to its device.

A model is built on the CPU and moved once; batches, gradients and sums lie where its parameters lie, so
nothing else names a device. The bench draws random numbers on the CPU and moves them: a run's samples, noise
and directions are the same numbers on every device, and results differ by rounding alone.

    >>> device_name("cuda:1")
    'cuda:1'
    >>> device_name("gpu")
    Traceback (most recent call last):
    workbench.core.errors.ArgumentError: device must be cpu, cuda, cuda:N or mps, got 'gpu'
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from workbench.core.errors import ArgumentError

if TYPE_CHECKING:
    import torch
    from torch import nn

CPU = "cpu"
AUTO = "auto"
"""On the command line: this machine's accelerator, or the CPU where it has none."""

_NAME = re.compile(r"cpu|cuda(:\d{1,3})?|mps")


def device_name(name: str) -> str:
    """The name of a device, here or elsewhere; an `InputError` for any other text."""
    if not _NAME.fullmatch(name):
        raise ArgumentError("device", f"must be cpu, cuda, cuda:N or mps, got {name!r}")
    return name


def devices_here() -> tuple[str, ...]:
    """The devices of this machine, the accelerators first."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = ("cuda", *(f"cuda:{index}" for index in range(count))) if count else ()
    return (*cuda, *(("mps",) if torch.backends.mps.is_available() else ()), CPU)


def require_device(name: str, flag: str = "device") -> str:
    """The name of a device of this machine, that of the first for `AUTO`.

    `flag`: what the error calls the argument. Raises `InputError`: no device, or none of this machine.
    """
    if name == CPU:
        return CPU
    here = devices_here()
    if name != AUTO and name not in here:
        known = "" if _NAME.fullmatch(name) else f", {AUTO}"
        raise ArgumentError(
            flag, f"must be a device of this machine ({', '.join(here)}{known}), got {name!r}"
        )
    return here[0] if name == AUTO else name


def place(module: nn.Module, device: str) -> nn.Module:
    """Move a module to a device of this machine, in place.

    On CUDA, torch is told to use algorithms that repeat themselves, for the rest of the process; it warns of
    an operation that has none. Raises `InputError`: the device is not here.
    """
    if require_device(device) == CPU:
        return module
    import torch

    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return module.to(torch.device(device))


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device: float64, but for Apple's, which have none."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the widest floating-point type of its device."""
    return tensor.to(wide_dtype(tensor.device))


def random_states() -> tuple[torch.Tensor, ...]:
    """States of torch's own generators: the CPU's, and those of accelerators that are in use."""
    import torch

    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if in_use else ()
    mps = (torch.mps.get_rng_state(),) if torch.backends.mps.is_available() else ()
    return (torch.get_rng_state(), *cuda, *mps)
