"""The loop on which all gradient mechanisms stand: sample, per-record signal, privatise, apply.

A mechanism of this family is a privatise step and a claim. Everything else is here, once: sampling (Poisson,
or shuffled epochs), the optimizer and its learning rate, the transcript of what was released; and in
`workbench.training.steps` the per-record signals and the gradient canary of an audit. The canary goes through
the very call that trains, so an audit sees the mechanism that the subject was trained with. A mechanism that
needs no per-record signals replaces that middle part (`GradientMechanism.steps`) and keeps the rest.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from workbench.core.arguments import require_count
from workbench.core.errors import InputError
from workbench.interfaces import (
    Claim,
    FloatArray,
    Groups,
    Mechanism,
    Model,
    Plan,
    Record,
    Signals,
    Transcript,
)
from workbench.training.canary import Layout, SignalsWithCanary
from workbench.training.fine_tuning import (
    Seeds,
    build_model,
    check_plan,
    learning_rate,
    perplexity,
    quality,
)
from workbench.training.models import require_read_whole
from workbench.training.samples import sample_signals, step_samples
from workbench.training.steps import PrivatisedSums, Steps
from workbench.training.subject import TrainedSubject

MOST_IN_A_PASS = 1_000_000
"""Records of one forward pass that no memory holds, nor any more."""


class Evaluations:
    """The perplexities of one run's held-out records, before it, in it and after it."""

    def __init__(self, model: Model, records: Sequence[Record], interval: int) -> None:
        """Begin a run that measures every `interval` steps; never where that is 0, or there is no record."""
        self._model, self._records = model, records
        self._interval = interval if records else 0
        self._found: dict[int, float] = {}

    def after(self, step: int, *, last: bool = False) -> None:
        """Measure after this many steps, if it is time to, or these were all."""
        if self._interval and (last or step % self._interval == 0):
            self._found[step] = perplexity(self._model, self._records)

    def traces(self) -> Mapping[str, FloatArray]:
        """`evaluation_steps` (from 0, before the first) and `evaluation_perplexity`; empty if off."""
        if not self._interval:
            return {}
        return {
            "evaluation_steps": np.array(list(self._found), dtype=np.float64),
            "evaluation_perplexity": np.array(list(self._found.values()), dtype=np.float64),
        }


def gaussian_noise(like: Tensor, standard_deviation: float, generator: torch.Generator) -> Tensor:
    """Fresh Gaussian noise in the shape, type and place of `like`."""
    noise = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
    return noise.normal_(0.0, standard_deviation, generator=generator).to(like.device)


@dataclass(frozen=True, kw_only=True)
class GradientMechanism(Mechanism):
    """A mechanism that releases one privatised sum of gradients a step.

    Attributes:
        micro_batch_size: Most records in one forward pass, up to a million (more fit no memory); larger
            samples take two passes over their parts.
        measures_quality: Whether the transcript has perplexities before and after; small trainings by the
            hundred spend most of their time on them.
        evaluation_interval: Number of steps between two looks at the held-out perplexity, for the traces
            `evaluation_steps` and `evaluation_perplexity` of the transcript, which also have it before the
            first step and after the last; 0 for none. Read where `measures_quality`.
    """

    later_parameters: ClassVar[Mapping[str, object]] = {"evaluation_interval": 0}

    micro_batch_size: int = 64
    measures_quality: bool = True
    evaluation_interval: int = 0

    def __post_init__(self) -> None:
        """Refuse parameters that are out of range.

        Raises:
            InputError: `micro_batch_size` is no whole number in [1, 1,000,000], or `evaluation_interval` none
                in [0, 1,000,000,000].
        """
        require_count("micro_batch_size", self.micro_batch_size, least=1, most=MOST_IN_A_PASS)
        require_count("evaluation_interval", self.evaluation_interval, least=0)

    def check(self, plan: Plan) -> None:
        """Refuse, before any work, a plan that this mechanism cannot follow, with an `InputError`."""
        check_plan(plan)

    def without_quality(self) -> Self:
        """Without the perplexities before and after, which cost time and release nothing."""
        return replace(self, measures_quality=False)

    @abstractmethod
    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The released sum of this step.

        Args:
            signals: The sample's gradients, a canary possibly among them; n = 0 is legal.
            generator: Source of the noise.

        Returns:
            Shape `(..., d)`: that of `signals.weighted_sum`. With leading trial axes each row is a release
            of its own, with its own noise. Not divided by the sample size. A mechanism that releases
            further numbers of the sample appends them: the sum is the first d.
        """

    def clipping_groups(self, layout: Layout) -> Groups:
        """The groups of parameters that `privatise` clips by themselves: one of all, unless overridden.

        A record may fill the bound of each, so that an audit's canary stands in every one
        (`GradientCanary.everywhere`). The layout's order is that of the flat vector.
        """
        return [list(layout)]

    def release_scales(self, layout: Layout) -> Sequence[float]:
        """Standard deviation of the noise of each clipping group, up to one common factor; finite, > 0.

        A run whose noise changes from step to step says so itself (`PrivatisedSums.release_scales`), up to a
        factor that is common to its steps too.
        """
        return [1.0] * len(self.clipping_groups(layout))

    def observed(self, watched: SignalsWithCanary, released: Tensor) -> Tensor:
        """What an auditor reads off releases of `privatise`: the whitened sum over the canary's coordinates.

        A mechanism that shows the canary in more than these coordinates of the sum, or moves them about,
        reads more of it here; always a function of what is released and of the known records.

        Args:
            watched: The signals that `privatise` was called with.
            released: What it made of them, shape `(..., d)`, or longer.

        Returns:
            Shape `(...)`, float64, on the CPU; the canary makes it larger.
        """
        return watched.observed(released, self.release_scales(watched.layout))

    def sample_signals(self, model: Model, plan: Plan, records: Sequence[Record], *, step: int) -> Signals:
        """What `privatise` works on in a step: a vector of each record, here its gradient.

        Args:
            model: At its present state, which is left as it was, and must not change while the signals are
                in use.
            plan: The run's plan.
            records: The step's sample; may be empty.
            step: Index of the step from 0; T for one more after the last.
        """
        return sample_signals(model, records, self.micro_batch_size)

    def for_plan(self, plan: Plan) -> Self:
        """This mechanism with what the plan decides settled, for instance its noise calibrated."""
        return self

    def settings(self) -> Mapping[str, float]:
        """Named numbers of the settled mechanism, for the transcript."""
        return {}

    def steps(self, plan: Plan, model: Model) -> Steps:
        """What turns this run's samples into updates; called on the settled mechanism, once a run."""
        return PrivatisedSums(self, plan, model)

    def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> TrainedSubject:
        """Train; deterministic in the plan. `progress(done, total)` is called after each step.

        Raises:
            InputError: a field of the plan is unusable.
            UnsupportedError: the mechanism cannot meet the plan's budget.
            InconclusiveError: training left the finite numbers.
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
        """What `train` returns, under a claim that the caller states; for mechanisms that release later.

        `make_steps` takes the place of the settled mechanism's own `steps`.
        """
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
        looks = Evaluations(model, plan.held_out, interval)
        looks.after(0)
        run = _Run(plan, (make_steps or settled.steps)(plan, model))
        for step in range(1, plan.steps + 1):
            run.step()
            if step < plan.steps:
                looks.after(step)
            if progress is not None:
                progress(step, plan.steps)
        run.close()
        looks.after(plan.steps, last=True)
        after = self.qualities(model, plan, "after")
        cost = {"training_seconds": run.seconds, "seconds": time.perf_counter() - started}
        transcript = run.transcript({**before, **after, **settled.settings(), **cost}, looks.traces())
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


def require_readable(model: Model, plan: Plan) -> None:
    """Refuse a language model for images, an image model for texts, and planted records that would be cut."""
    first = plan.records[0]
    if model.kind == "language" and not first.text:
        raise InputError(f"model {plan.model!r} cannot read images; see `workbench list models`")
    if model.kind == "classification" and first.image is None:
        raise InputError(f"model {plan.model!r} cannot read texts; see `workbench list models`")
    require_read_whole(model, plan.insertions.planted)


class _Run:
    """The state of one training run."""

    def __init__(self, plan: Plan, steps: Steps) -> None:
        self._plan, self._steps = plan, steps
        self._samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
        self._losses: list[float] = []
        self._sizes: list[int] = []
        self.seconds = 0.0

    def step(self) -> None:
        """Sample, what the mechanism makes of the sample, apply."""
        started = time.perf_counter()
        sample = next(self._samples)
        rate = learning_rate(self._plan, len(self._sizes))
        self._sizes.append(len(sample))
        self._losses.append(self._steps.update(sample))
        self._steps.descend(rate)
        self.seconds += time.perf_counter() - started

    def close(self) -> None:
        """The last step is done."""
        self._steps.close()

    def transcript(self, metrics: Mapping[str, float], traces: Mapping[str, FloatArray]) -> Transcript:
        """What was released, and the metrics beside it; the traces join those of the steps."""
        fields: dict[str, Any] = {
            "canary_observations": np.zeros(0),
            "canary_included": np.zeros(0, dtype=np.bool_),
            **self._steps.released(),
        }
        fields["traces"] = {**fields.get("traces", {}), **traces}
        return Transcript(
            losses=np.array(self._losses, dtype=np.float64),
            sample_sizes=np.array(self._sizes, dtype=np.int64),
            metrics={**metrics, **self._steps.metrics()},
            **fields,
        )
