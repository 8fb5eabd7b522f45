"""DP-SGD for the digits whose noise falls from step to step, below what the claim needs and above it."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor

sys.path.append(str(Path(__file__).parent))
from dp_sgd import STEPS, Trainer


class FallingNoise(Trainer):
    """The noise falls by a constant factor a step, from `first` to `last` times what the claim needs."""

    def __init__(self, first: float, last: float) -> None:
        self.first, self.last = first, last

    def prepared(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.noise = self.first
        return images, labels

    def after(self, step: int) -> None:
        self.noise = self.first * (self.last / self.first) ** ((step + 1) / (STEPS - 1))


decaying_noise = FallingNoise(1.0, 0.65)
enough_noise = FallingNoise(1.8, 1.0)
