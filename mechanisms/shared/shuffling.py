"""Weights and optimizer state that are permuted after every step of a run, and how far apart that puts them.

Shuffled DPSGD does it, and so does ordinary training that is to show that nothing but the order changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import Model, Plan
from workbench.training.devices import widened
from workbench.training.fine_tuning import Seeds, trainable
from workbench.training.permutations import Permutation, PermutationGroup, permute_state_
from workbench.training.steps import PlainSums

Layout = Mapping[str, tuple[slice, torch.Size]]


class Shuffler:
    """Draws a permutation a step, moves weights and optimizer state by it, and remembers where all lie now.

    `group`: what is drawn from. `carried`: all permutations so far, as one.
    """

    def __init__(self, group: PermutationGroup, plan: Plan, *, shuffles: bool = True) -> None:
        self.group = group
        self.carried = group.identity()
        self.carried.apply_({})  # What all permutations have in common is worked out here, and in no step.
        self._shuffles = shuffles
        self._draws = group.draws(np.random.default_rng(Seeds.of(plan).noise.spawn(1)[0]))
        self._drawn, self._seconds = 0, 0.0

    def shuffle(self, parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> Permutation:
        """Permute the trainable weights and the optimizer's state, in place; the identity if not `shuffles`.

        Raises `UnsupportedError`: the optimizer keeps something that cannot be moved along.
        """
        if not self._shuffles:
            return self.group.identity()
        started = time.perf_counter()
        permutation = next(self._draws)
        permutation.apply_(parameters)
        permute_state_(permutation, optimizer, parameters)
        self._drawn += 1
        self._seconds += time.perf_counter() - started
        self.carried = self.carried.then(permutation)
        return permutation

    def metrics(self, parameters: Mapping[str, Tensor]) -> dict[str, float]:
        """How much is shuffled, by how many permutations, how long that took, and how far it moved.

        `parameters`: the weights as they lie now. Returns `shuffled_share` of the weights, `log_permutations`
        (natural logarithm of the number of permutations that are drawn from), `permutations_drawn`,
        `shuffling_seconds`, and `shuffle_distance`, see `distance_undone`.
        """
        return {
            "shuffled_share": self.group.shuffled_share if self._shuffles else 0.0,
            "log_permutations": self.group.log_size if self._shuffles else 0.0,
            "permutations_drawn": float(self._drawn),
            "shuffling_seconds": self._seconds,
            "shuffle_distance": distance_undone(self.carried, parameters) if self._drawn else 0.0,
        }


def distance_undone(carried: Permutation, parameters: Mapping[str, Tensor]) -> float:
    """L2 distance between weights, by name, and the same weights with their permutation undone."""
    undo = carried.inverse()
    squares = []
    for name, parameter in parameters.items():
        weights = parameter.detach()
        back = weights.clone()
        undo.apply_({name: back})
        squares.append(float((widened(weights) - widened(back)).square().sum()))
    return math.sqrt(math.fsum(squares))


class ShuffledPlainSums(PlainSums):
    """Ordinary training whose weights are permuted after every step: the same function, in another order."""

    def __init__(self, plan: Plan, model: Model, micro_batch_size: int) -> None:
        super().__init__(plan, model, micro_batch_size)
        self._weights = trainable(model.module)
        self._shuffler = Shuffler(PermutationGroup.of(model.module), plan)

    def descend(self, learning_rate: float) -> None:
        """The optimizer's step, then the permutation."""
        super().descend(learning_rate)
        self._shuffler.shuffle(self._weights, self._optimizer)

    def metrics(self) -> Mapping[str, float]:
        """Numbers of the shuffling for the run's record, as `Shuffler.metrics` defines them."""
        return self._shuffler.metrics(self._weights)


def released_weights(
    before: Tensor, step: Tensor, group: PermutationGroup, rng: np.random.Generator, *, layout: Layout
) -> Tensor:
    """What is released of a step: W_{t+1} = P[W_t - step], with a fresh uniform P, shape `(..., d)`.

    Args:
        before: W_t, shape `(..., d)`.
        step: eta_t times the mean gradient, noise included; shape `(..., d)`.
        group: The permutations of the model.
        rng: Draws P, one for all leading axes: `group.draw` of an equal generator tells which.
        layout: Place and shape of each parameter, as of `Signals.layout`.
    """
    return group.draw(rng).applied(before - step, layout)
