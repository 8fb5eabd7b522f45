"""From a step's sample to the optimizer's update: the part of the training loop that mechanisms vary.

`Steps` is one run's state. `PrivatisedSums` is for mechanisms that release one privatised sum of per-record
gradients per step; mechanisms that need fewer gradients, or none in some steps, write their own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InconclusiveError
from workbench.interfaces import Groups, IntArray, Model, Plan, Record, Signals
from workbench.training.canary import SignalsWithCanary, SignalsWithCanaryRecord
from workbench.training.fine_tuning import Seeds, averaging_size, make_optimizer, torch_generator, trainable
from workbench.training.flat import Layout
from workbench.training.samples import sample_signals
from workbench.training.sums import SumGradients

if TYPE_CHECKING:
    from workbench.training.loop import GradientMechanism


class WatchedReleases:
    """The releases of one training run: its privatise step, with the plan's gradient canary if it has one.

    `record`: id of the record whose gradient is the canary; None where no record is.
    """

    def __init__(
        self,
        privatise: Callable[[Signals, torch.Generator], Tensor],
        plan: Plan,
        noise: torch.Generator,
        *,
        groups: Callable[[Layout], Groups] | None = None,
        observe: Callable[[SignalsWithCanary, Tensor], Tensor] | None = None,
    ) -> None:
        """Begin a run of a plan, whose seed also decides the auditor's coins.

        Args:
            privatise: The mechanism's privatise step.
            plan: Its canary is the one to insert.
            noise: Source of the mechanism's noise.
            groups: The clipping groups of a layout, computed before each release with a canary; None for one
                group of all parameters.
            observe: The auditor's statistic of a release, computed right after it; None for the sum over the
                canary's coordinates.
        """
        self._privatise, self._noise = privatise, noise
        self._groups = groups
        self._observe = SignalsWithCanary.observed if observe is None else observe
        self._canary = plan.insertions.gradient_canary
        self._coins = np.random.default_rng(Seeds.of(plan).canary_coins)
        self._observations: list[float] = []
        self._included: list[bool] = []
        self.record = None if self._canary is None else self._canary.record

    def release(self, signals: Signals, *, with_record: bool, others: Callable[[], Tensor]) -> Tensor:
        """A step's release; a canary that is no record takes part by the toss of a coin.

        Args:
            signals: Of the sample without the canary's record.
            with_record: Whether the sample contains that record.
            others: Computes the summed vectors of all the plan's other records, shape `(d,)`; called for an
                opposed canary only.
        """
        canary = self._canary
        if canary is not None and with_record:
            opposed = others() if canary.opposed else None
            return self._privatise(SignalsWithCanaryRecord(signals, canary, opposed), self._noise)
        if canary is None or canary.record is not None:
            return self._privatise(signals, self._noise)
        included = bool(self._coins.random() < 0.5)
        groups = None if self._groups is None else self._groups(signals.layout)
        watched = SignalsWithCanary(signals, canary, included, groups=groups)
        released = self._privatise(watched, self._noise)
        self._observations.append(float(self._observe(watched, released)))
        self._included.append(included)
        return released

    def released(self) -> Mapping[str, Any]:
        """Fields of the `Transcript`: the canary's released values, and the auditor's coins."""
        return {
            "canary_observations": np.array(self._observations, dtype=np.float64),
            "canary_included": np.array(self._included, dtype=np.bool_),
        }


class Steps(ABC):
    """One run's updates, in order: `update`, then `descend`, once a step, and `close` at the end."""

    def __init__(self, plan: Plan, model: Model, *, fused: bool = False) -> None:
        """Make the plan's optimizer; `fused` as in `make_optimizer`."""
        self._optimizer = make_optimizer(plan, model.module, fused=fused)
        self._planned_rate = plan.learning_rate

    @abstractmethod
    def update(self, sample: IntArray) -> float:
        """Compute this step's update from the sample, and store it in the parameters' `grad`.

        `sample`: indices into `plan.records` of the records that take part; may be empty. Returns the mean
        loss of the sample, nats; NaN where no loss was computed. Raises `InconclusiveError`: training left
        the finite numbers.
        """

    def descend(self, learning_rate: float) -> None:
        """Take the optimizer's step along the parameters' `grad`, and clear them."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        try:
            self._optimizer.step()
        except RuntimeError as error:
            # torch refuses factors that the weights' type cannot hold; other overflows give infinity.
            if "overflow" not in str(error):
                raise
            raise InconclusiveError(
                "a step is beyond the numbers that the weights can hold; try a learning_rate below "
                f"{self._planned_rate:g}"
            ) from error
        self._optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """End the run and clear the model's gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def released(self) -> Mapping[str, Any]:
        """Fields of the `Transcript` beyond losses, sizes and metrics, such as `traces`."""
        return {}

    def metrics(self) -> Mapping[str, float]:
        """Named numbers of the run, for the transcript."""
        return {}


def diverged(step: int, plan: Plan) -> InconclusiveError:
    """The error for a step, counted from 1, whose release is not finite."""
    return InconclusiveError(
        f"step {step} released a number that is not finite; try a learning_rate below {plan.learning_rate:g}"
    )


class PrivatisedSums(Steps):
    """Per-record signals, the mechanism's privatised sum of them, and its mean to the optimizer."""

    def __init__(self, mechanism: GradientMechanism, plan: Plan, model: Model) -> None:
        super().__init__(plan, model)
        self._mechanism, self._plan, self._model = mechanism, plan, model
        self._parameters = trainable(model.module)
        noise = torch_generator(Seeds.of(plan).noise)
        self._releases = WatchedReleases(
            self.privatise, plan, noise, groups=mechanism.clipping_groups, observe=self.observed
        )
        self._done = 0

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The mechanism's privatise step; a run that does more overrides this."""
        return self._mechanism.privatise(signals, generator)

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """Scale of each clipping group's noise in the release that `privatise` has just made.

        A run whose noise changes from step to step overrides this, with one common factor over all groups and
        steps, so that all observations have noise of the same size.
        """
        return self._mechanism.release_scales(layout)

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The auditor's statistic of the release that `privatise` has just made, shape `()`."""
        return watched.observed(released, self.release_scales(watched.layout))

    def update(self, sample: IntArray) -> float:
        """Set the parameters' `grad` to the privatised mean gradient."""
        self._done += 1
        plan = self._plan
        sampled = [plan.records[i] for i in sample]
        records = [record for record in sampled if record.id != self._releases.record]
        signals = sample_signals(self._model, records, self._mechanism.micro_batch_size)
        loss = float(signals.losses.cpu().double().mean()) if signals.n else math.nan
        released = self._releases.release(
            signals, with_record=len(records) < len(sampled), others=self._sum_of_others
        )
        if not bool(torch.isfinite(released).all()):
            raise diverged(self._done, plan)
        mean = released / (plan.sampling_probability * averaging_size(plan))
        for name, (place, shape) in signals.layout.items():
            parameter = self._parameters[name]
            parameter.grad = mean[place].view(shape).to(parameter.dtype)
        return loss

    def _sum_of_others(self) -> Tensor:
        """The sum of the gradients of all of the plan's records but the canary, shape `(d,)`."""
        others: list[Record] = [r for r in self._plan.records if r.id != self._releases.record]
        signals = sample_signals(self._model, others, self._mechanism.micro_batch_size)
        return signals.weighted_sum(torch.ones_like(signals.norms()))

    def released(self) -> Mapping[str, Any]:
        """The canary's released values, and the auditor's coins."""
        return self._releases.released()


class PlainSums(Steps):
    """Plain training: the mean gradient by backward passes, without per-record gradients."""

    def __init__(self, plan: Plan, model: Model, micro_batch_size: int) -> None:
        super().__init__(plan, model)
        self._plan = plan
        self._sums = SumGradients(model, plan, micro_batch_size)
        self._done = 0

    def update(self, sample: IntArray) -> float:
        """Set the parameters' `grad` to the mean gradient."""
        self._done += 1
        plan, parameters = self._plan, self._sums.parameters
        total, loss = self._sums.gradient([plan.records[i] for i in sample], list(parameters))
        size = plan.sampling_probability * averaging_size(plan)
        for parameter, gradient in zip(parameters.values(), total, strict=True):
            if not bool(torch.isfinite(gradient).all()):
                raise diverged(self._done, plan)
            parameter.grad = (gradient / size).to(parameter.dtype)
        return math.nan if loss is None else loss
