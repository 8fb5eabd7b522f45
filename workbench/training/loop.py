"""The loop on which all gradient mechanisms stand: sample, per-record signal, privatise, apply.

A mechanism of this family is a privatise step and a claim. Everything else is here, once: sampling (Poisson,
or shuffled epochs), per-record signals, the gradient canary of an audit, the optimizer, and the transcript of
what was released. The canary goes through the very call that trains, so an audit sees the mechanism that the
subject was trained with.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from workbench.errors import InconclusiveError, InputError
from workbench.interfaces import Claim, Family, Model, Plan, Released, Signals, Transcript
from workbench.training.canary import SignalsWithCanary, SignalsWithCanaryRecord
from workbench.training.fine_tuning import (
    Seeds,
    averaging_size,
    build_model,
    check_plan,
    make_optimizer,
    quality,
    torch_generator,
    trainable,
)
from workbench.training.samples import sample_signals, step_samples
from workbench.training.subject import TrainedSubject


def gaussian_noise(like: Tensor, standard_deviation: float, generator: torch.Generator) -> Tensor:
    """Fresh Gaussian noise in the shape, type and place of `like`."""
    noise = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
    return noise.normal_(0.0, standard_deviation, generator=generator).to(like.device)


@dataclass(frozen=True, kw_only=True)
class GradientMechanism(ABC):
    """A mechanism that releases one privatised sum of gradients a step; implements `Mechanism`.

    Attributes:
        micro_batch_size: Most records in one forward pass; larger samples take two passes over their parts.
        measures_quality: Whether the transcript has perplexities before and after; small trainings by the
            hundred spend most of their time on them.
    """

    release_family: ClassVar[Family] = Family.ANY
    """The family of one release's noise, for bounds that assume one."""

    released: ClassVar[Released] = Released.EVERY_UPDATE
    """What the mechanism gives away, and its claim covers."""

    micro_batch_size: int = 64
    measures_quality: bool = True

    def __post_init__(self) -> None:
        """Refuse parameters that are out of range.

        Raises:
            InputError: `micro_batch_size` is below 1.
        """
        if self.micro_batch_size < 1:
            raise InputError(f"micro_batch_size must be >= 1, got {self.micro_batch_size}")

    @abstractmethod
    def claim(self, plan: Plan) -> Claim:
        """What the mechanism's authors claim of a run with this plan."""

    @abstractmethod
    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The released sum of this step.

        Args:
            signals: The sample's gradients, a canary possibly among them; n = 0 is legal.
            generator: Source of the noise.

        Returns:
            Shape `(..., d)`: that of `signals.weighted_sum`. With leading trial axes each row is a release
            of its own, with its own noise. Not divided by the sample size.
        """

    def for_plan(self, plan: Plan) -> Self:
        """This mechanism with what the plan decides settled, for instance its noise calibrated."""
        return self

    def settings(self) -> Mapping[str, float]:
        """Named numbers of the settled mechanism, for the transcript."""
        return {}

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> TrainedSubject:
        """Train; deterministic in the plan. `progress(done, total)` is called after each step.

        Raises:
            InputError: a field of the plan is unusable.
            UnsupportedError: the mechanism cannot meet the plan's budget.
            InconclusiveError: training left the finite numbers.
        """
        check_plan(plan)
        return self.trained(plan, self.claim(plan), progress)

    def trained(
        self, plan: Plan, claim: Claim, progress: Callable[[int, int], None] | None = None
    ) -> TrainedSubject:
        """What `train` returns, under a claim that the caller states; for mechanisms that release later.

        Raises:
            As `train`.
        """
        check_plan(plan)
        settled = self.for_plan(plan)
        started = time.perf_counter()
        model = build_model(plan)
        _require_readable(model, plan)
        # Evaluation mode throughout: with dropout or batch statistics, a record's gradient would depend on
        # more than the record.
        model.module.eval()
        before = self.qualities(model, plan, "before")
        run = _Run(settled, plan, model)
        for step in range(plan.steps):
            run.step()
            if progress is not None:
                progress(step + 1, plan.steps)
        after = self.qualities(model, plan, "after")
        cost = {"training_seconds": run.seconds, "seconds": time.perf_counter() - started}
        transcript = run.transcript({**before, **after, **settled.settings(), **cost})
        return TrainedSubject(mechanism=settled, model=model, plan=plan, claim=claim, transcript=transcript)

    def qualities(self, model: Model, plan: Plan, when: str) -> dict[str, float]:
        """`train_perplexity_before` and its like: each metric of the training and of the held-out records."""
        if not self.measures_quality:
            return {}
        parts = {"train": plan.records, "test": plan.held_out}
        return {
            f"{part}_{metric}_{when}": value
            for part, records in parts.items()
            for metric, value in quality(model, records).items()
        }


def _require_readable(model: Model, plan: Plan) -> None:
    """Refuse a language model for images, and an image model for texts.

    Raises:
        InputError: the model cannot read these records.
    """
    first = plan.records[0]
    if model.kind == "language" and not first.text:
        raise InputError(f"model {plan.model!r} cannot read images; 'digits_mlp', for one, can")
    if model.kind == "classification" and first.image is None:
        raise InputError(f"model {plan.model!r} cannot read texts; 'tiny_gpt2', for one, can")


class _Run:
    """The state of one training run."""

    def __init__(self, mechanism: GradientMechanism, plan: Plan, model: Model) -> None:
        seeds = Seeds.of(plan)
        self._mechanism, self._plan, self._model = mechanism, plan, model
        self._parameters = trainable(model.module)
        self._optimizer = make_optimizer(plan, model.module)
        self._samples = step_samples(plan, np.random.default_rng(seeds.sampling))
        self._coins = np.random.default_rng(seeds.canary_coins)
        self._noise = torch_generator(seeds.noise, next(iter(self._parameters.values())).device)
        canary = plan.insertions.gradient_canary
        self._canary_record = None if canary is None else canary.record
        self._losses: list[float] = []
        self._sizes: list[int] = []
        self._observations: list[float] = []
        self._included: list[bool] = []
        self.seconds = 0.0

    def step(self) -> None:
        """Sample, per-record signal, privatise, apply."""
        started = time.perf_counter()
        plan = self._plan
        sample = [plan.records[i] for i in next(self._samples)]
        records = [record for record in sample if record.id != self._canary_record]
        signals = sample_signals(self._model, records, self._mechanism.micro_batch_size)
        self._sizes.append(len(sample))
        self._losses.append(float(signals.losses.double().mean()) if signals.n else math.nan)
        released = self._release(signals, with_record=len(records) < len(sample))
        if not bool(torch.isfinite(released).all()):
            raise InconclusiveError(
                f"step {len(self._sizes)} released a number that is not finite; "
                f"try a learning_rate below {plan.learning_rate:g}"
            )
        self._apply(released / (plan.sampling_probability * averaging_size(plan)), signals)
        self.seconds += time.perf_counter() - started

    def _release(self, signals: Signals, *, with_record: bool) -> Tensor:
        """The privatise step; with a gradient canary in the plan, with the canary by the toss of a coin.

        A canary that is a record of the plan takes part where the sample holds that record.
        """
        canary = self._plan.insertions.gradient_canary
        if canary is not None and with_record:
            return self._mechanism.privatise(SignalsWithCanaryRecord(signals, canary), self._noise)
        if canary is None or canary.record is not None:
            return self._mechanism.privatise(signals, self._noise)
        included = bool(self._coins.random() < 0.5)
        watched = SignalsWithCanary(signals, canary, included)
        released = self._mechanism.privatise(watched, self._noise)
        self._observations.append(float(released[watched.coordinate]) - watched.known_share)
        self._included.append(included)
        return released

    def _apply(self, mean: Tensor, signals: Signals) -> None:
        """Hand the released mean gradient to the optimizer."""
        for name, (place, shape) in signals.layout.items():
            parameter = self._parameters[name]
            parameter.grad = mean[place].view(shape).to(parameter.dtype)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def transcript(self, metrics: Mapping[str, float]) -> Transcript:
        """What was released, and the metrics beside it."""
        return Transcript(
            losses=np.array(self._losses, dtype=np.float64),
            sample_sizes=np.array(self._sizes, dtype=np.int64),
            canary_observations=np.array(self._observations, dtype=np.float64),
            canary_included=np.array(self._included, dtype=np.bool_),
            metrics=metrics,
        )
