"""torch's functions that clip gradients, as a replayed training finds them.

Code may clip a gradient that is private already, for stability: by default, Hugging Face's Trainer does. What
is released is then taken to be the gradient before, which the clipped one follows from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

_NAMES = ("clip_grad_norm_", "clip_grad_value_")


@dataclass(frozen=True)
class Clip:
    """A call that clipped gradients; `before` are their copies, None where there was none.

    `clips` is the same call on other parameters.
    """

    parameters: Sequence[Tensor]
    before: Sequence[Tensor | None]
    clips: Callable[[Sequence[Tensor]], Any]

    def explains(self) -> bool:
        """Whether the gradients are now what the call made of those before it, to the bit."""
        copies = []
        for parameter, gradient in zip(self.parameters, self.before, strict=True):
            copies.append(torch.empty_like(parameter))
            copies[-1].grad = None if gradient is None else gradient.clone()
        self.clips(copies)
        pairs = [(p.grad, copy.grad) for p, copy in zip(self.parameters, copies, strict=True)]
        return all(
            one is other if one is None or other is None else torch.equal(one, other) for one, other in pairs
        )


class Clips:
    """The last call that clipped each parameter's gradient."""

    def __init__(self) -> None:
        self._kept: list[Clip] = []

    def add(self, clip: Clip) -> None:
        """Another call."""
        given = set(map(id, clip.parameters))
        self._kept = [other for other in self._kept if given.isdisjoint(map(id, other.parameters))]
        self._kept.append(clip)

    def clear(self) -> None:
        """Forget the calls."""
        self._kept.clear()

    def before(self, parameters: Sequence[Tensor]) -> list[Tensor] | None:
        """Gradients as they were before the calls that explain them; None where none does."""
        kept = {
            id(p): gradient
            for clip in self._kept
            if clip.explains()
            for p, gradient in zip(clip.parameters, clip.before, strict=True)
        }
        own = [kept.get(id(p), p.grad) for p in parameters]
        if not kept:
            return None
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, own, strict=True)]


_listeners: list[Callable[[Clip], None]] = []


@contextmanager
def clips_told_to(listener: Callable[[Clip], None]) -> Iterator[None]:
    """Tell of each call, before it clips."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def own_clipping() -> Iterator[Any]:
    """Patches of torch's functions by ours, which clip as theirs do, and tell."""
    for name in _NAMES:
        theirs = getattr(torch.nn.utils, name)
        ours = _telling(theirs)
        yield patch.object(torch.nn.utils, name, ours)
        yield patch.object(torch.nn.utils.clip_grad, name, ours)


def _telling(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not _listeners:
            return theirs(parameters, *args, **kwargs)
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        if any(p.grad is not None and p.grad.layout is not torch.strided for p in given):
            return theirs(given, *args, **kwargs)
        before = [None if p.grad is None else p.grad.detach().clone() for p in given]
        _listeners[-1](Clip(given, before, lambda others: theirs(others, *args, **kwargs)))
        return theirs(given, *args, **kwargs)

    return clip
