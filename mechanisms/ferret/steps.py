"""FERRET's run: lines 5 to 14 of its Algorithm 1, with the gradients of fired groups alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import FiredStep, FloatArray, IntArray, Model, Plan, Record, ReleasedSigns
from workbench.mechanisms.accountants.ferret import ceiling_nats
from workbench.mechanisms.ferret.public import Direction, firing_mask, grouped
from workbench.training.fine_tuning import Seeds, torch_generator, trainable
from workbench.training.flat_adamw import FlatAdamW
from workbench.training.steps import Steps, diverged
from workbench.training.sums import SumGradients

if TYPE_CHECKING:
    from workbench.mechanisms.ferret import FERRET

Watch = Callable[[FiredStep], None]


class MaskedSigns(Steps):
    """The state of one FERRET run."""

    def __init__(self, mechanism: FERRET, plan: Plan, model: Model, watch: Watch | None = None) -> None:
        """Draw the whole mask.

        Args:
            mechanism: Settled for the plan: its firing probability and public seed are numbers.
            plan: The plan.
            model: Its model; trained in place.
            watch: Called in every step in which a group fired, before the update.

        Raises:
            InputError: the mechanism is not settled.
            UnsupportedError: the plan has a gradient canary that is no record.
        """
        super().__init__(plan, model, fused=True)
        canary = plan.insertions.gradient_canary
        if canary is not None and canary.record is None:
            raise UnsupportedError(
                "ferret releases signs, in which a gradient canary beside the records cannot be read; "
                "give the canary a record's place, and play the game of attack sign_transcript"
            )
        if mechanism.firing_probability is None or mechanism.public_seed is None:
            raise InputError("firing_probability is not settled yet: call for_plan first")
        self._mechanism, self._plan, self._watch = mechanism, plan, watch
        self._public_seed: int = mechanism.public_seed
        self._probability: float = mechanism.firing_probability
        self._sums = SumGradients(model, plan, mechanism.micro_batch_size)
        self._parameters: Mapping[str, Tensor] = self._sums.parameters
        self._groups = grouped(list(self._parameters), mechanism.granularity)
        mask = firing_mask(self._public_seed, self._groups, plan.steps, self._probability)
        self._due = {int(step): np.flatnonzero(mask[step]).tolist() for step in np.flatnonzero(mask.any(1))}
        seeds = Seeds.of(plan)
        self._coins = np.random.default_rng(seeds.noise)
        self._dither = torch_generator(seeds.noise, next(iter(self._parameters.values())).device)
        self._written: list[Tensor] = []
        self._zeros: dict[str, Tensor] = {}
        self._flat: FlatAdamW | None = None
        parameters = list(trainable(model.module).values())
        if mechanism.silent_groups == "zero" and plan.optimizer == "adamw" and FlatAdamW.fits(parameters):
            self._flat = FlatAdamW(parameters, plan.weight_decay)
        elif mechanism.silent_groups == "zero" and (plan.optimizer == "adamw" or plan.weight_decay > 0):
            # To SGD without decay a zero gradient is none: it needs no zeros.
            self._zeros = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._step = -1
        self._fired: list[tuple[int, int]] = []
        self._signs: list[int] = []

    def update(self, sample: IntArray) -> float:
        """One step: the fired groups' signs, and Delta of every group as its gradient."""
        self._step += 1
        fired = self._due.get(self._step, [])
        loss = self._sign(fired, sample) if fired else self._silent(sample)
        if self._mechanism.dither_standard_deviation > 0:
            self._add_dither()
        return loss

    def descend(self, learning_rate: float) -> None:
        """The optimizer's step along Delta, that of silent groups included; see `silent_groups`."""
        if self._flat is not None:
            self._flat.step(learning_rate)
            for target in self._written:
                target.zero_()
        elif self._written or self._zeros:
            for name, zero in self._zeros.items():
                if self._parameters[name].grad is None:
                    self._parameters[name].grad = zero
            super().descend(learning_rate)
        self._written = []

    def close(self) -> None:
        """Give the parameters memory of their own."""
        super().close()
        if self._flat is not None:
            self._flat.close()

    def _delta(self, name: str) -> Tensor:
        """Where the update of a parameter is written: its gradient, which is zero but where Delta is."""
        parameter = self._parameters[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
        self._written.append(parameter.grad)
        return parameter.grad

    def _silent(self, sample: IntArray) -> float:
        """A step in which no group fires looks at no record, or at losses alone."""
        if self._mechanism.silent_steps == "skip":
            return math.nan
        return self._checked(self._sums.mean_loss(self._records(sample)))

    def _records(self, sample: IntArray) -> list[Record]:
        return [self._plan.records[i] for i in sample]

    def _checked(self, loss: float | None) -> float:
        """A mean loss, finite; NaN where there is none."""
        if loss is not None and not math.isfinite(loss):
            raise diverged(self._step + 1, self._plan)
        return math.nan if loss is None else loss

    def _sign(self, fired: Sequence[int], sample: IntArray) -> float:
        """Lines 9 to 13: signs of the fired groups, and their updates in the place of their gradients."""
        asked = _Asked(self._sums, self._step, self._public_seed, [self._groups[g] for g in fired])
        inner, loss = asked.inner(self._records(sample))
        signs = [self._released_sign(value) for value in inner]
        if self._watch is not None:
            self._watch(
                FiredStep(
                    step=self._step,
                    sample=sample,
                    groups=tuple(fired),
                    signs=tuple(signs),
                    of_sum=asked.of_sum,
                    of_each=asked.of_each,
                )
            )
        self._fired.extend((self._step, group) for group in fired)
        self._signs.extend(signs)
        for group, direction, sign in zip(fired, asked.directions, signs, strict=True):
            if sign:
                targets = [self._delta(name) for name in self._groups[group]]
                direction.write(sign * self._mechanism.clip_norm, targets)
        asked.close()
        return self._checked(loss)

    def _released_sign(self, inner: float) -> int:
        if not math.isfinite(inner):
            raise diverged(self._step + 1, self._plan)
        if inner == 0:
            return 0 if self._mechanism.zero_gradient == "silent" else 1 - 2 * int(self._coins.integers(2))
        return 1 if inner > 0 else -1

    def _add_dither(self) -> None:
        """Appendix B: Gaussian noise on fired and silent updates alike."""
        deviation = self._mechanism.dither_standard_deviation
        for name, parameter in self._parameters.items():
            noise = torch.empty(parameter.shape, dtype=parameter.dtype, device=self._dither.device)
            self._delta(name).add_(noise.normal_(0.0, deviation, generator=self._dither))

    def released(self) -> Mapping[str, Any]:
        """The signs; with a dither none, for then only the noisy updates are given away."""
        if self._mechanism.dither_standard_deviation > 0:
            return {}
        signs = ReleasedSigns(
            public_seed=self._public_seed,
            groups=self._groups,
            steps=self._plan.steps,
            fired=np.array(self._fired, dtype=np.int64).reshape(-1, 2),
            signs=np.array(self._signs, dtype=np.int64),
        )
        return {"released_signs": signs}

    def metrics(self) -> Mapping[str, float]:
        """p, G, G T s ln 2; how many times a group fired, and in how many steps none did."""
        return {
            "firing_probability": self._probability,
            "groups": float(len(self._groups)),
            "ceiling_nats": ceiling_nats(
                groups=len(self._groups),
                steps=self._plan.steps,
                sampling_probability=self._plan.sampling_probability,
            ),
            "fired": float(len(self._fired)),
            "silent_steps": float(self._plan.steps - len(self._due)),
        }


class _Asked:
    """The fired groups' directions of one step, and inner products with them until it is closed."""

    def __init__(
        self, sums: SumGradients, step: int, public_seed: int, groups: Sequence[tuple[str, ...]]
    ) -> None:
        self._sums = sums
        self._step = step
        ends = np.cumsum([0, *(len(names) for names in groups)]).tolist()
        self._places = [slice(start, stop) for start, stop in pairwise(ends)]
        self._names = [name for names in groups for name in names]
        self._open = True
        self.directions = [
            Direction(public_seed, step, names, [sums.parameters[name] for name in names]) for names in groups
        ]

    def close(self) -> None:
        """The model moves on: questions would be answered for another state."""
        self._open = False

    def inner(self, records: Sequence[Record]) -> tuple[list[float], float | None]:
        """Inner products of the records' summed gradient, and their mean loss; None without records."""
        flat, loss = self._sums.gradient(records, self._names)
        return [
            direction.inner(flat[own]) for direction, own in zip(self.directions, self._places, strict=True)
        ], loss

    def of_sum(self, records: Sequence[Record]) -> FloatArray:
        """See `FiredStep`."""
        self._require_open()
        return np.array(self.inner(records)[0], dtype=np.float64)

    def of_each(self, records: Sequence[Record]) -> FloatArray:
        """See `FiredStep`."""
        self._require_open()

        def along(direction: Direction, own: slice) -> Callable[[Sequence[Tensor]], Tensor]:
            return lambda flat: direction.differentiable_inner(flat[own])

        asked = [along(d, own) for d, own in zip(self.directions, self._places, strict=True)]
        return self._sums.along(records, self._names, asked)

    def _require_open(self) -> None:
        if not self._open:
            raise InputError(f"step {self._step} is over: ask while the watcher runs")
