"""Keeps the gradients that a training applies, and the weights before each of its steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from workbench.audit.beyond import Beyond

MOST_STEPS = 256
"""Steps that are kept; of a longer training every second, fourth, ... step."""

MOST_WORK, FEWEST_STEPS = 1_000_000_000, 4
"""Entries of the gradients of all canaries at all steps that are kept; but as many steps at least."""

MOST_NUMBERS = 250_000_000
"""Gradient entries and weights that are kept, one gigabyte; beyond it fewer steps are."""

T = TypeVar("T")


@dataclass(frozen=True)
class Update:
    """A step of an optimizer: its number, gradient and weights as flat vectors of float32 on the CPU.

    `gradient` is what the optimizer was about to follow downwards: noise and clipping are in it.
    """

    optimizer: int
    gradient: Tensor
    weights: Tensor


@dataclass
class Transcript:
    """The updates of a training.

    Attributes:
        parameters: Of each optimizer, in the order of their first steps; the objects that were trained.
        updates: Those that are kept, in their order: all, or every `stride`-th.
        steps: How many there were.
        is_hidden: Whether more than the gradients moved the weights (`Beyond`). There may be noise in that.
    """

    parameters: list[list[Tensor]] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    steps: int = 0
    stride: int = 1
    is_hidden: bool = False

    def changes(self) -> list[Update]:
        """The updates with what the weights lost until the optimizer's next one, or the end, as gradients."""
        found: list[Update] = []
        for place, parameters in enumerate(self.parameters):
            own = [update for update in self.updates if update.optimizer == place]
            after = [*(update.weights for update in own[1:]), _flat(parameters)]
            found += [
                replace(update, gradient=update.weights - weights)
                for update, weights in zip(own, after, strict=len(own) > 0)
            ]
        return found

    def released(self) -> list[Update]:
        """What the weights between steps show: the gradients, or the changes where these hold more."""
        return self.changes() if self.is_hidden else self.updates


def watched(function: Callable[[], T], *, seed: int, canaries: int) -> tuple[T, Transcript]:
    """Call a training function, and keep its updates.

    Args:
        function: Trains; called without arguments.
        seed: Of the generators of Python, NumPy and torch, for code that does not seed its own.
        canaries: How many gradients are to be taken at each step that is kept.

    Returns:
        What the function returned, and the transcript.
    """
    kept = Transcript()
    known: dict[int, int] = {}
    held: list[Optimizer] = []  # An optimizer that is let go could leave its id to another.
    beyond: list[Beyond] = []

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in known:
            known[id(optimizer)] = len(held)
            held.append(optimizer)
            kept.parameters.append(_trained(optimizer))
            beyond.append(Beyond(optimizer, kept.parameters[-1]))
        place = known[id(optimizer)]
        parameters = kept.parameters[place]
        beyond[place].before()
        if kept.steps % kept.stride == 0:
            downwards = -1.0 if any(group.get("maximize") for group in optimizer.param_groups) else 1.0
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
            with torch.no_grad():
                update = Update(place, downwards * _flat(gradients), _flat(parameters))
            kept.updates.append(update)
            _thin(kept, canaries)
        kept.steps += 1

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        beyond[known[id(optimizer)]].after()

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the user's code may draw from it
    torch.manual_seed(seed)
    handles = [register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)]
    try:
        returned = function()
    finally:
        for handle in handles:
            handle.remove()
    kept.is_hidden = any(own.end() for own in beyond)
    return returned, kept


def _trained(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _thin(kept: Transcript, canaries: int) -> None:
    """Let every second update go where there are too many."""
    size = sum(update.gradient.numel() for update in kept.updates)
    most = min(MOST_STEPS, max(FEWEST_STEPS, len(kept.updates) * MOST_WORK // (canaries * size)))
    if len(kept.updates) > 1 and (len(kept.updates) > most or 2 * size > MOST_NUMBERS):
        kept.updates[:] = kept.updates[::2]
        kept.stride *= 2


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).to("cpu", torch.float32) for tensor in tensors])
