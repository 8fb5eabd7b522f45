"""Checks per-record signals against autograd, once for each way that a module is treated.

For random weights w, sum_i w_i G_i must equal the gradient of sum_i w_i loss_i. Both sides are linear in w,
so they agree only where every G_i is the gradient of its own loss_i: a gradient ascribed to the wrong record,
or records that depend on each other, fail. The check costs one plain step, with the dropout masks of the
first pass: torch's random stream is saved and replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from workbench.core.errors import UnsupportedError
from workbench.interfaces import Signals
from workbench.training.flat import FlatLayout

if TYPE_CHECKING:
    from workbench.interfaces import Model

RandomState: TypeAlias = tuple[Tensor, Tensor | None]
"""State of the CPU's generator and, for a CUDA device, of that device's."""


def random_state(device: torch.device) -> RandomState:
    """The current state of the random streams that computations on `device` draw from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def with_random_state(state: RandomState, device: torch.device) -> Iterator[None]:
    """Run a block from a saved random state, and restore the streams afterwards."""
    cpu, cuda = state
    with torch.random.fork_rng(devices=[device] if cuda is not None else []):
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
        yield


def _is_same(a: RandomState, b: RandomState) -> bool:
    same_cuda = a[1] is b[1] if a[1] is None or b[1] is None else torch.equal(a[1], b[1])
    return torch.equal(a[0], b[0]) and same_cuda


_verified: WeakKeyDictionary[torch.nn.Module, set[object]] = WeakKeyDictionary()
"""Patterns that were compared with autograd, by module."""


def verify_once(
    model: Model,
    batch: Mapping[str, Tensor],
    signals: Signals,
    layout: FlatLayout,
    *,
    pattern: tuple[object, ...],
    state: RandomState | None,
) -> None:
    """Compare a random weighted sum with autograd's, unless this pattern of the module has passed before.

    A batch of a single record shows nothing, and is skipped. `pattern` is all that the treatment of the
    module depends on; its first entry names the method. `state` is the random state from which a plain pass
    draws the same dropout masks as the signals did; None if none does: modules that draw any are skipped.
    Raises `UnsupportedError`: they disagree on a parameter, which the message names.
    """
    pattern = (*pattern, layout.names)
    if signals.n < 2 or pattern in _verified.get(model.module, ()):
        return
    generator = torch.Generator().manual_seed(signals.n)  # the caller's streams stay untouched
    weights = torch.randn(signals.n, generator=generator, dtype=torch.float64).to(layout.zeros())
    start = state or random_state(layout.device)
    with torch.enable_grad(), with_random_state(start, layout.device):
        total = (weights * model.losses(batch)).sum()
        expected = layout.flatten(torch.autograd.grad(total, layout.parameters, allow_unused=True))
        drew = not _is_same(start, random_state(layout.device))
    if drew and state is None:
        _verified.setdefault(model.module, set()).add(pattern)
        return
    if not bool(expected.isfinite().all()):
        return  # the next finite batch is compared
    summed = signals.weighted_sum(weights)
    # Float32 at best: many modules normalise and take softmax in float32 whatever their parameters are.
    # A CUDA device may multiply in TF32, with ten bits of mantissa.
    coarsest = torch.finfo(torch.float32).eps if layout.device.type != "cuda" else 2.0**-10
    tolerance = max(coarsest, *(torch.finfo(p.dtype).eps for p in layout.parameters)) ** 0.5
    floor = 0.01 * expected.norm()  # rounding: some gradients are zero in theory (the bias of keys)
    for name, (place, _) in layout.places.items():
        difference = (summed[place] - expected[place]).norm()
        if not difference <= tolerance * (expected[place].norm() + floor):
            owner = model.module.get_submodule(name.rpartition(".")[0])
            raise UnsupportedError(
                f"method {pattern[0]!r} disagrees with autograd on parameter {name!r} of module "
                f"{type(owner).__name__}: are records mixed, or not along the first dimension?"
            )
    _verified.setdefault(model.module, set()).add(pattern)
