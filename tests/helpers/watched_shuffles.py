"""Runs of Shuffled DPSGD whose permutations are kept, and the weights before and after each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.interfaces import IntArray, Model, Plan
from workbench.mechanisms.shuffled_dp_sgd import ShuffledDPSGD, ShuffledSteps
from workbench.training.flat import FlatLayout
from workbench.training.permutations import Permutation
from workbench.training.subject import TrainedSubject


@dataclass(frozen=True, kw_only=True)
class WeightRelease:
    """One step of a run: what was released before and after, and what nobody is told.

    Attributes:
        step: Index t from 0.
        before: W_t, the trainable weights as one vector, shape `(d,)`.
        after: W_{t+1}, as it was released, shape `(d,)`.
        permutation: What the updated weights were permuted by; secret.
        layout: Place and shape of each parameter in the vectors.
    """

    step: int
    before: Tensor
    after: Tensor
    permutation: Permutation
    layout: Mapping[str, tuple[slice, torch.Size]]


def train_watched(mechanism: ShuffledDPSGD, plan: Plan) -> tuple[TrainedSubject, list[WeightRelease]]:
    """As `train`, with every step; watching changes no number."""
    steps: list[WeightRelease] = []
    settled = mechanism.for_plan(plan)

    class Watched(ShuffledSteps):
        def __init__(self, mechanism: ShuffledDPSGD, plan: Plan, model: Model) -> None:
            super().__init__(mechanism, plan, model)
            self._layout = FlatLayout.of(model.module)
            self._before = self._weights()
            self._drawn = self._shuffler.group.identity()
            shuffle = self._shuffler.shuffle

            def keep(parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> Permutation:
                self._drawn = shuffle(parameters, optimizer)
                return self._drawn

            self._shuffler.shuffle = keep  # type: ignore[method-assign]

        def _weights(self) -> Tensor:
            return self._layout.flatten([p.detach() for p in self._parameters.values()])

        def update(self, sample: IntArray) -> float:
            self._before = self._weights()
            return super().update(sample)

        def descend(self, learning_rate: float) -> None:
            super().descend(learning_rate)
            steps.append(
                WeightRelease(
                    step=self._done - 1,
                    before=self._before,
                    after=self._weights(),
                    permutation=self._drawn,
                    layout=self._layout.places,
                )
            )

    subject = settled.trained(
        plan, mechanism.claim(plan), make_steps=lambda plan, model: Watched(settled, plan, model)
    )
    return subject, steps
