"""Whether more than the gradients that its steps are given moves the weights of an optimizer.

Code may add its noise within the step of an optimizer of its own, in a hook of the step, or to the weights
after it. Whoever reads the gradient before the step does not see that noise then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from workbench.training.devices import wide_dtype


class Beyond:
    """Compares, around each step, what should not have changed.

    Attributes:
        seen: What moves the weights beside the gradients, in words; empty where nothing is seen.
    """

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        is_torchs = type(optimizer).__module__.startswith("torch.optim.")
        self._parameters = parameters
        self._given: list[float] | None = None
        self._left: list[float] | None = None
        self.seen = ""
        if not is_torchs or isinstance(optimizer, torch.optim.LBFGS):
            self.seen = f"the optimizer {type(optimizer).__name__} may do so within its step"

    def before(self, *, looks: bool = True) -> None:
        """Called before a step; `looks`: whether to compare around this one."""
        if not self.seen and self._left is not None and self._left != _sums(self._parameters):
            self.seen = "the weights change between two steps"
        looks = looks and not self.seen
        self._left = None
        self._given = _sums([p.grad for p in self._parameters]) if looks else None

    def after(self) -> None:
        """Called after the step."""
        if self._given is None:
            return
        if self._given != _sums([p.grad for p in self._parameters]):
            self.seen = self.seen or "the gradient changes within a step"
        self._left = _sums(self._parameters)

    def end(self) -> str:
        """What is seen, after the training."""
        self.before(looks=False)
        return self.seen


@torch.no_grad()
def _sums(tensors: Sequence[Tensor | None]) -> list[float]:
    """A number of each tensor, by which a change shows."""
    return [
        math.nan if tensor is None else float(tensor.detach().sum(dtype=wide_dtype(tensor.device)))
        for tensor in tensors
    ]
