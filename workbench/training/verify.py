"""The check of per-record signals against autograd, once for each way that a module is treated.

With weights w drawn at random, sum_i w_i G_i must equal the gradient of sum_i w_i loss_i. Both sides are
linear in w, so that they agree for a random w only where every G_i is the gradient of its own loss_i in the
batch: a gradient ascribed to the wrong record, or records that depend on each other, do not pass. It costs
one plain step, which draws the dropout masks of the first pass: torch's random stream is saved and replayed.
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
"""State of the CPU's generator and, beside a CUDA device, of that device's."""


def random_state(device: torch.device) -> RandomState:
    """The present state of the random streams that work on `device` draws from."""
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


_verified: WeakKeyDictionary[torch.nn.Module, set[object]] = WeakKeyDictionary()
"""What was compared with autograd, by module: a memo, no result depends on it."""


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

    Args:
        model: The model.
        batch: The batch of the signals; a single record shows nothing, and is passed over.
        signals: What is checked.
        layout: The module's trainable parameters.
        pattern: Whatever the treatment of the module depends on; its first entry names the method.
        state: The random state from which a plain pass draws the same numbers (dropout) as the signals
            did; None where no state does, so that a module that draws any is passed over.

    Raises:
        UnsupportedError: they disagree on a parameter, which the message names.
    """
    pattern = (*pattern, layout.names)
    if signals.n < 2 or pattern in _verified.get(model.module, ()):
        return
    generator = torch.Generator().manual_seed(signals.n)  # its own: no stream of the caller moves
    weights = torch.randn(signals.n, generator=generator, dtype=torch.float64).to(layout.zeros())
    start = state or random_state(layout.device)
    with torch.enable_grad(), with_random_state(start, layout.device):
        total = (weights * model.losses(batch)).sum()
        expected = layout.flatten(torch.autograd.grad(total, layout.parameters, allow_unused=True))
        drew = not same_random_state(start, random_state(layout.device))
    if drew and state is None:
        _verified.setdefault(model.module, set()).add(pattern)
        return
    if not bool(expected.isfinite().all()):
        return  # nothing to compare with; the next finite batch is
    summed = signals.weighted_sum(weights)
    # float32 at best: many modules normalise and take softmax in float32 whatever their parameters are.
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
