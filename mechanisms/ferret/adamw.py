"""AdamW on parameters that lie in one vector, for updates that touch few of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim.adamw import adamw


class FlatAdamW:
    """torch's AdamW with its default moments (0.9, 0.999, 1e-8), and decay of all parameters alike.

    The parameters' `grad` are zero and stay in place: write into them, step, and zero what was written.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], weight_decay: float) -> None:
        """Move the parameters into one vector, until `close`.

        `parameters`: of one type and device; see `fits`. `weight_decay`: see `Plan`.
        """
        self._parameters = list(parameters)
        self._weight_decay = weight_decay
        with torch.no_grad():
            self._weights = torch.cat([p.reshape(-1) for p in self._parameters])
        self.gradient = torch.zeros_like(self._weights)
        self._first, self._second = torch.zeros_like(self._weights), torch.zeros_like(self._weights)
        self._done = torch.zeros((), dtype=torch.float32, device=self._weights.device)
        start = 0
        for parameter in self._parameters:
            place = slice(start, start + parameter.numel())
            parameter.data = self._weights[place].view(parameter.shape)
            parameter.grad = self.gradient[place].view(parameter.shape)
            start = place.stop

    @staticmethod
    def fits(parameters: Sequence[nn.Parameter]) -> bool:
        """Whether the parameters can be one vector."""
        return len({(p.dtype, p.device) for p in parameters}) == 1

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step of AdamW along the gradients."""
        adamw(
            [self._weights],
            [self.gradient],
            [self._first],
            [self._second],
            [],
            [self._done],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def close(self) -> None:
        """Give each parameter memory of its own again, and no gradient."""
        for parameter in self._parameters:
            parameter.grad = None
            parameter.data = parameter.data.clone()
