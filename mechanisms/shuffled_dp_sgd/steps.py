"""Shuffled DPSGD's run: after every step of the optimizer, weights and optimizer state are permuted alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import UnsupportedError
from workbench.interfaces import IntArray, Model, Plan, Signals
from workbench.mechanisms.shared.shuffling import Shuffler
from workbench.mechanisms.shuffled_dp_sgd.coverage import Coverage
from workbench.training.flat import FlatLayout
from workbench.training.permutations import Permutation, PermutationGroup
from workbench.training.steps import PrivatisedSums

if TYPE_CHECKING:
    from workbench.mechanisms.shuffled_dp_sgd import ShuffledDPSGD


@dataclass(frozen=True, kw_only=True)
class WeightRelease:
    """One step of a run, as an auditor sees it: what was released before and after, and what nobody is told.

    Attributes:
        step: Index t from 0.
        sample: Indices into `plan.records` of the records that took part; secret.
        learning_rate: eta_t.
        before: W_t, the trainable weights as one vector, shape `(d,)`.
        after: W_{t+1}, as it was released, shape `(d,)`.
        permutation: What the updated weights were permuted by; secret.
        layout: Place and shape of each parameter in the vectors.
    """

    step: int
    sample: IntArray
    learning_rate: float
    before: Tensor
    after: Tensor
    permutation: Permutation
    layout: Mapping[str, tuple[slice, torch.Size]]


Watch = Callable[[WeightRelease], None]


class ShuffledSteps(PrivatisedSums):
    """The state of one run: the noisy sums of DP-SGD, and a fresh permutation after each update."""

    def __init__(
        self, mechanism: ShuffledDPSGD, plan: Plan, model: Model, watch: Watch | None = None
    ) -> None:
        """Begin a run.

        Args:
            mechanism: Settled for the plan.
            plan: The plan; permutations are drawn from the stream of its secret noise.
            model: Its model, in evaluation mode; trained in place.
            watch: Called after every step; watching changes no number.

        Raises:
            UnsupportedError: the plan has a gradient canary that is no record.
        """
        canary = plan.insertions.gradient_canary
        if canary is not None and canary.record is None:
            raise UnsupportedError(
                "shuffled_dp_sgd releases permuted weights, in which the coordinate of a gradient canary "
                "beside the records cannot be read; play the games of attack weight_tidying"
            )
        super().__init__(mechanism, plan, model)
        self._settled = mechanism
        group = PermutationGroup.of(model.module, mechanism.reach())
        self._shuffler = Shuffler(group, plan, shuffles=mechanism.is_shuffling)
        self._layout = FlatLayout.of(model.module)
        self._watch = watch
        self._before: Tensor | None = None
        self._sample: IntArray = np.zeros(0, dtype=np.int64)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The mechanism's, its noise carried along where it is to be."""
        if not self._settled.carry_noise:
            return super().privatise(signals, generator)
        return self._settled.noisy(
            signals, generator, carry=lambda noise: self._shuffler.carried.applied(noise, signals.layout)
        )

    def update(self, sample: IntArray) -> float:
        """The noisy mean gradient, in the place of the parameters' `grad`."""
        self._sample = sample
        if self._watch is not None:
            self._before = self._weights()
        return super().update(sample)

    def descend(self, learning_rate: float) -> None:
        """The optimizer's step, then the permutation (Algorithm 1, line 14)."""
        super().descend(learning_rate)
        permutation = self._shuffler.shuffle(self._parameters, self._optimizer)
        if self._watch is not None and self._before is not None:
            self._watch(
                WeightRelease(
                    step=self._done - 1,
                    sample=self._sample,
                    learning_rate=learning_rate,
                    before=self._before,
                    after=self._weights(),
                    permutation=permutation,
                    layout=self._layout.places,
                )
            )

    def _weights(self) -> Tensor:
        """A copy of the trainable weights, shape `(d,)`."""
        return self._layout.flatten([p.detach() for p in self._parameters.values()])

    def metrics(self) -> Mapping[str, float]:
        """Those of the `Shuffler`, and `least_noise_multiplier`: the smallest noise that some weight got."""
        noises = self._settled.noises(Coverage.of(self._shuffler.group))
        return {
            **self._shuffler.metrics(self._parameters),
            "least_noise_multiplier": min(noises.values()),
        }
