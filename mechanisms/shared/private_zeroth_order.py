"""Zeroth-order training with Gaussian noise on the scalars: what DPZero and DP-AggZO share.

A record's vector has K entries, its two-point differences along the step's K public directions. Clip, sum and
noise are those of DP-SGD (`gaussian_sums`), on vectors of dimension K in the place of gradients; a gradient
canary of an audit lives in that space too. Directions are drawn without looking at data, so what a step gives
away is the noisy sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import (
    Capabilities,
    Claim,
    Family,
    FloatArray,
    IntArray,
    Model,
    Plan,
    Record,
    Release,
    Signals,
)
from workbench.mechanisms.shared.gaussian_sums import (
    calibrated,
    flat_factors,
    noisy_sum,
    noisy_sum_claim,
    require_positive,
    settled_noise,
)
from workbench.training.fine_tuning import Seeds, averaging_size, torch_generator, trainable
from workbench.training.flat import FlatLayout
from workbench.training.per_record import MatrixSignals
from workbench.training.steps import WatchedReleases, diverged
from workbench.training.zeroth_order import ZerothOrder, ZerothOrderMechanism, ZerothOrderSteps

CPU = torch.device("cpu")


def scalar_signals(differences: FloatArray) -> MatrixSignals:
    """Signals of dimension K: the rows of `differences`, shape `(n, K)`, in float64.

    The per-record losses that go with them are not known.
    """
    directions = differences.shape[1]
    layout = FlatLayout(
        names=("directions",),
        parameters=(),
        places={"directions": (slice(0, directions), torch.Size([directions]))},
        dimension=directions,
        dtype=torch.float64,
        device=CPU,
    )
    losses = torch.full((len(differences),), math.nan, dtype=torch.float64)
    return MatrixSignals(layout, torch.tensor(differences, dtype=torch.float64), losses)


@dataclass(frozen=True, kw_only=True)
class PrivateZerothOrder(ZerothOrderMechanism):
    """Per-record vectors of K scalars: clipped in the Euclidean norm, summed, noised.

    `l2_clip_norm`: c, in units of the differences; 25 in the PACZero paper's Table 3. `noise_multiplier`:
    sigma, the noise's standard deviation over what a record may add; None to calibrate it to the budget.
    Raises `InputError`: a parameter is out of range.
    """

    registered: ClassVar[str]
    """Registry name."""
    source: ClassVar[str]
    """Whose algorithm it is."""

    l2_clip_norm: float = 25.0
    noise_multiplier: float | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Noised sums of scalars along directions."""
        return replace(super().capabilities, releases=frozenset({Release.SUMS}), family=Family.GAUSSIAN)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(l2_clip_norm=self.l2_clip_norm, noise_multiplier=self.noise_multiplier)

    @property
    def sensitivity(self) -> float:
        """The most that a record adds to the sum, in the Euclidean norm."""
        return self.l2_clip_norm

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Clipped sum plus Gaussian noise, shape `(..., K)`.

        Raises `InputError`: the noise multiplier is neither given nor calibrated (`for_plan`).
        """
        noise = settled_noise(self.noise_multiplier) * self.sensitivity
        return noisy_sum(signals, flat_factors(signals.norms(), self.sensitivity), noise, generator)

    def sample_signals(self, model: Model, plan: Plan, records: Sequence[Record], *, step: int) -> Signals:
        """Differences of a sample along the K directions of a step, at the model's present state."""
        kept = [parameter.detach().clone() for parameter in trainable(model.module).values()]
        engine = ZerothOrder(
            model,
            scale=self.scale,
            seed=self.seed_of(plan),
            micro_batch_size=self.micro_batch_size,
            precision=self.precision,
        )
        names = range(step * self.directions, (step + 1) * self.directions)
        columns = [engine.differences(records, name)[0] for name in names]
        engine.settle()
        # The engine rounds weights to a grid; a finished model may lie between its points.
        for parameter, value in zip(trainable(model.module).values(), kept, strict=True):
            parameter.data.copy_(value)
        return scalar_signals(np.stack(columns, axis=1))

    def for_plan(self, plan: Plan) -> Self:
        """The mechanism with its noise calibrated to the plan's budget, unless a noise was given.

        Raises as `calibrated`.
        """
        if self.noise_multiplier is not None:
            return self
        return replace(self, noise_multiplier=calibrated(plan, self.registered))

    def settings(self) -> Mapping[str, float]:
        """`noise_multiplier` and `l2_clip_norm`."""
        noise = math.nan if self.noise_multiplier is None else self.noise_multiplier
        return {"noise_multiplier": noise, "l2_clip_norm": self.l2_clip_norm}

    def steps(self, plan: Plan, model: Model) -> ZerothOrderSteps:
        """Privatised sums of the scalars."""
        return _PrivateSteps(self, plan, model)

    def claim(self, plan: Plan) -> Claim:
        """The plan's budget; with a noise multiplier of the user's, what the accountant finds for it.

        Raises as `noisy_sum_claim`.
        """
        what = "a noisy scalar" if self.directions == 1 else f"a noisy vector of {self.directions} scalars"
        most = "c" if self.sensitivity == self.l2_clip_norm else "K c"
        claim = noisy_sum_claim(
            plan,
            self.noise_multiplier,
            mechanism=self.registered,
            source=self.source,
            releases=(
                f"releases, each {what}, of sensitivity {most} and noise sigma {most}; directions are public"
            ),
        )
        return replace(claim, assumptions=(*claim.assumptions, *self._notes()))

    def _notes(self) -> list[str]:
        """Assumptions that only some settings make."""
        notes = []
        if self.dev_every:
            notes.append("the dev records, by which a checkpoint is chosen, are public")
        if self.precision != "float32":
            notes.append(
                f"a record's scalars are its own: in {self.precision} passes, rounding lets them depend on "
                "the records that share its batch, which the sensitivity leaves out"
            )
        return notes


class _PrivateSteps(ZerothOrderSteps):
    """One run: the scalars go through the mechanism's privatise step."""

    def __init__(self, mechanism: PrivateZerothOrder, plan: Plan, model: Model) -> None:
        super().__init__(mechanism, plan, model)
        self._private = mechanism
        noise = torch_generator(Seeds.of(plan).noise)
        self._releases = WatchedReleases(mechanism.privatise, plan, noise)

    def coefficients(self, differences: FloatArray, sample: IntArray) -> FloatArray:
        """Privatised sum over q N."""
        plan, canary = self.plan, self._releases.record
        real = np.array([plan.records[i].id != canary for i in sample], dtype=np.bool_)
        released = self._releases.release(
            scalar_signals(differences[real]), with_record=not real.all(), others=self._sum_of_others
        )
        if not bool(torch.isfinite(released).all()):
            raise diverged(self.done, plan)
        return (released / (plan.sampling_probability * averaging_size(plan))).numpy()

    def _sum_of_others(self) -> Tensor:
        """The sum of the vectors of all of the plan's records but the canary's, shape `(K,)`."""
        others = [record for record in self.plan.records if record.id != self._releases.record]
        first = (self.done - 1) * self._private.directions
        names = range(first, first + self._private.directions)
        sums = [float(self.engine.differences(others, name)[0].sum()) for name in names]
        return torch.tensor(sums, dtype=torch.float64)

    def released(self) -> Mapping[str, object]:
        """The traces, the canary's released values, and the auditor's coins."""
        return {**super().released(), **self._releases.released()}
