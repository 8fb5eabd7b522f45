"""Trainers of the digits for `white_box_canaries.py` and `retraining.py`: those of the zoo, and others."""

import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "tests" / "zoo"))
from dp_sgd import (  # noqa: F401 - the benchmark's rows
    CLIP,
    DELTA,
    RATE,
    STEPS,
    Trainer,
    clipped_by_the_batch,
    correct,
    half_of_the_noise,
    no_clipping,
    no_noise,
    not_seeded,
    raw_gradient_mixed_in,
    tenth_of_the_noise,
    triple_rate,
)

from workbench.accounting.certified import calibrate_noise_multiplier


@cache
def multiplier(epsilon: float) -> float:
    """sigma of Poisson-sampled Gaussian sums at this epsilon."""
    return calibrate_noise_multiplier(
        target_epsilon=epsilon, target_delta=DELTA, sampling_probability=RATE, steps=STEPS
    )


class At(Trainer):
    """Correct, with the noise for another epsilon."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def drawn(self, name: str, parameter: Tensor) -> Tensor:
        deviation = multiplier(self.epsilon) * CLIP
        return torch.normal(0.0, deviation, parameter.shape, generator=self.generator)


class ThirdOfTheNoise(Trainer):
    noise = 1 / 3


third_of_the_noise = ThirdOfTheNoise()
correct_at_4 = At(4.0)
correct_at_8 = At(8.0)
