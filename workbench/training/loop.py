"""The training loop of all gradient mechanisms: sample, per-record signals, privatise, apply.

A mechanism of this family is a privatise step and a claim. The loop does the rest: sampling (Poisson, or
shuffled epochs), learning rate and transcript; `workbench.training.steps` has the per-record signals, the
optimizer and an audit's gradient canary, which goes through the same call that trains. A mechanism that needs
no per-record signals brings its own `GradientMechanism.steps`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from workbench.core.arguments import require_count
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import (
    Claim,
    Groups,
    Mechanism,
    Model,
    Plan,
    Record,
    Signals,
    Transcript,
    Workload,
)
from workbench.training.canary import SignalsWithCanary
from workbench.training.evaluations import Evaluations, qualities
from workbench.training.fine_tuning import Seeds, build_model, check_plan, learning_rate
from workbench.training.flat import Layout
from workbench.training.models import require_read_whole
from workbench.training.samples import sample_signals, step_samples
from workbench.training.steps import PrivatisedSums, Steps
from workbench.training.subject import TrainedSubject

MOST_IN_A_PASS = 1_000_000
"""Upper limit of `micro_batch_size`."""


def gaussian_noise(like: Tensor, standard_deviation: float, generator: torch.Generator) -> Tensor:
    """Fresh Gaussian noise with the shape, type and device of `like`."""
    noise = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
    return noise.normal_(0.0, standard_deviation, generator=generator).to(like.device)


@dataclass(frozen=True, kw_only=True)
class WeightedRelease:
    """A release that multiplies each record's gradient by a factor of its own norm, and adds Gaussian noise.

    Attributes:
        factors: From norms to factors, elementwise, for tensors of any shape; None for factors of one.
        noise_scale: Standard deviation of the noise in each coordinate; 0 for none, and no draws. NaN where
            the mechanism is not settled yet.
    """

    factors: Callable[[Tensor], Tensor] | None
    noise_scale: float


@dataclass(frozen=True, kw_only=True)
class GradientMechanism(Mechanism):
    """A mechanism that releases one privatised sum of gradients per step.

    Attributes:
        micro_batch_size: Most records in one forward pass, up to a million; larger samples take two passes.
        measures_quality: Whether to measure perplexities before and after, most of a small training's time.
        evaluation_interval: Steps between two evaluations of the held-out perplexity for the transcript's
            traces, besides those before the first step and after the last; 0 for none, as without
            `measures_quality`.
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"evaluation_interval": 0}

    micro_batch_size: int = 64
    measures_quality: bool = True
    evaluation_interval: int = 0

    def __post_init__(self) -> None:
        require_count("micro_batch_size", self.micro_batch_size, least=1, most=MOST_IN_A_PASS)
        require_count("evaluation_interval", self.evaluation_interval, least=0)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that this mechanism cannot follow, with an `InputError`, before any work."""
        check_plan(plan)

    def without_quality(self) -> Self:
        """The mechanism without the perplexities before and after, which cost time and release nothing."""
        return replace(self, measures_quality=False)

    def workload(self, *, steps: int, sampling_probability: float, budget: float) -> Workload:
        """See the base class; every `evaluation_interval` but the last is a look at the held-out records."""
        interval = self.evaluation_interval if self.measures_quality else 0
        return Workload(looks=-(-steps // interval) - 1 if interval else 0)

    @abstractmethod
    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The released sum of this step, not divided by the sample size; `signals` may be empty.

        Returns shape `(..., d)`, as of `signals.weighted_sum`: with leading trial axes each row is a separate
        release with its own noise. Further released numbers follow the d of the sum.
        """

    def weighted_release(self) -> WeightedRelease | None:
        """What `privatise` does to every sample, where it is a `WeightedRelease`; None where it is not.

        It lets many models be trained at once (`workbench.training.ensemble`). The settled mechanism must
        depend on the plan's spec and budget alone. A subclass that overrides other methods than claims and
        settings, and not this one, is never asked.
        """
        return None

    def clipping_groups(self, layout: Layout) -> Groups:
        """The groups of parameters that `privatise` clips separately; by default one of all.

        A record may fill the bound of each, so an audit's canary may be in every one
        (`GradientCanary.everywhere`).
        """
        return [list(layout)]

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """Standard deviation of each clipping group's noise, up to one common factor; finite, > 0.

        Runs whose noise changes from step to step override `PrivatisedSums.release_scales`.
        """
        return [1.0] * len(self.clipping_groups(layout))

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """The auditor's statistic of releases of `privatise`: the whitened sum over the canary's coordinates.

        A mechanism whose releases show the canary elsewhere too, or permuted, overrides it with another
        function of what is released and of the known records. `watched`: the signals that `privatise` was
        called with. `released`: its releases, shape `(..., d)`, or longer. Returns shape `(...)`, float64, on
        the CPU; larger with the canary.
        """
        return watched.observed(released, self.release_scales(watched.layout))

    def sample_signals(self, model: Model, plan: Plan, records: Sequence[Record], *, step: int) -> Signals:
        """The input of `privatise`: a vector of each record of the sample, here its gradient.

        The model must not change while the signals are in use; `step` counts from 0, and is T for one more
        after the last.
        """
        return sample_signals(model, records, self.micro_batch_size)

    def for_plan(self, plan: Plan) -> Self:
        """This mechanism with the settings that depend on the plan, such as its calibrated noise."""
        return self

    def settings(self) -> Mapping[str, float]:
        """Named numbers of the settled mechanism, for the transcript's metrics."""
        return {}

    def steps(self, plan: Plan, model: Model) -> Steps:
        """The updates of one run; called on the settled mechanism, once a run."""
        return PrivatisedSums(self, plan, model)

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> TrainedSubject:
        """Train; deterministic in the plan. `progress(done, total)` is called after each step.

        Raises `InputError`: a field of the plan is unusable. `UnsupportedError`: the mechanism cannot meet
        the plan's budget. `InconclusiveError`: training left the finite numbers.
        """
        self.check(plan)
        return self.trained(plan, self.claim(plan), progress)

    def trained(
        self,
        plan: Plan,
        claim: Claim,
        progress: Callable[[int, int], None] | None = None,
        make_steps: Callable[[Plan, Model], Steps] | None = None,
    ) -> TrainedSubject:
        """Train as `train` does, with another claim and other `steps`: to release after training."""
        self.check(plan)
        settled = self.for_plan(plan)
        started = time.perf_counter()
        model = build_model(plan)
        require_readable(model, plan)
        # Evaluation mode throughout: with dropout or batch statistics, a record's gradient would depend on
        # more than the record.
        model.module.eval()
        before = self.qualities(model, plan, "before")
        interval = self.evaluation_interval if self.measures_quality else 0
        evaluations = Evaluations(model, plan.held_out, interval)
        steps = (make_steps or settled.steps)(plan, model)
        samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
        losses, sizes, seconds = np.zeros(plan.steps), np.zeros(plan.steps, dtype=np.int64), 0.0
        for step in range(plan.steps):
            step_started = time.perf_counter()
            sample = next(samples)
            sizes[step] = len(sample)
            losses[step] = steps.update(sample)
            steps.descend(learning_rate(plan, step))
            seconds += time.perf_counter() - step_started
            if step + 1 < plan.steps:
                evaluations.after(step + 1)
            if progress is not None:
                progress(step + 1, plan.steps)
        steps.close()
        after = self.qualities(model, plan, "after")
        cost = {"training_seconds": seconds, "seconds": time.perf_counter() - started}
        released: dict[str, Any] = {
            "canary_observations": np.zeros(0),
            "canary_included": np.zeros(0, dtype=np.bool_),
            **steps.released(),
        }
        looks = evaluations.traces(plan.steps, {**before, **after})
        released["traces"] = {**released.get("traces", {}), **looks}
        transcript = Transcript(
            losses=losses,
            sample_sizes=sizes,
            metrics={**before, **after, **settled.settings(), **cost, **steps.metrics()},
            **released,
        )
        return TrainedSubject(mechanism=settled, model=model, plan=plan, claim=claim, transcript=transcript)

    def qualities(self, model: Model, plan: Plan, when: str) -> dict[str, float]:
        """Each metric of the training and the held-out records, named like `train_perplexity_before`."""
        return qualities(model, plan, when) if self.measures_quality else {}


def require_readable(model: Model, plan: Plan) -> None:
    """Refuse a language model for images, an image model for texts, and planted records that would be cut."""
    first = plan.records[0]
    if model.kind == "language" and not first.text:
        raise InputError(f"model {plan.model!r} cannot read images; see `workbench list models`")
    if model.kind == "classification" and first.image is None:
        raise InputError(f"model {plan.model!r} cannot read texts; see `workbench list models`")
    require_read_whole(model, plan.insertions.planted)


def load_subject(folder: Path, mechanism: Mechanism, plan: Plan) -> TrainedSubject:
    """The subject that `TrainedSubject.save` wrote to a folder, trained by this mechanism and plan.

    Raises `InputError`: a file is missing, or its parameters are not those of the plan's model.
    `UnsupportedError`: the mechanism is not a gradient mechanism.
    """
    if not isinstance(mechanism, GradientMechanism):
        raise UnsupportedError(f"mechanism {type(mechanism).__name__} is not a gradient mechanism")
    return TrainedSubject.load(folder, mechanism.for_plan(plan), plan)
