"""Trains R models at once: one architecture; records, coins, noise and generators of each model's own.

What is computed is what `GradientMechanism.train` computes for each plan, up to rounding: the same samples
and the same noise are drawn from the same seeds. A model's numbers depend on R and on the other models only
as far as the rounding of matrix products does. `Stacked` has the two kinds of models: classifiers of linear
layers, and LoRA adapters over one frozen language model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import FunctionType

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import (
    FloatArray,
    Mechanism,
    Model,
    Plan,
    Record,
    TrainingSpec,
    Transcript,
)
from workbench.training.content import model_facets
from workbench.training.ensemble.adapters import StackedAdapters
from workbench.training.ensemble.draws import Pool
from workbench.training.ensemble.network import StackedClassifiers
from workbench.training.ensemble.stacked import Stacked, flat_of, twin_of, write_flat
from workbench.training.fine_tuning import (
    Seeds,
    adapt,
    averaging_size,
    build_base,
    build_model,
    learning_rate,
    optimizer_of,
    torch_generator,
)
from workbench.training.loop import GradientMechanism, WeightedRelease, require_readable
from workbench.training.precision import checked_precision
from workbench.training.steps import diverged
from workbench.training.subject import TrainedSubject

OVERRIDDEN_FREELY = frozenset(
    {"audit_defaults", "capabilities", "check", "claim", "for_plan", "settings", "views"}
)
"""Methods of a mechanism that decide nothing in a step, or that an ensemble calls as the loop does."""

WEIGHTS_AT_ONCE = 1 << 18
"""Weights of all models that `train_together` trains at once: a megabyte, and as much for the sums."""


def release_of(mechanism: Mechanism) -> WeightedRelease | None:
    """The `weighted_release` of a mechanism, if it describes what the mechanism does.

    None where a subclass of the class that describes it overrides or adds any other method than those of
    `OVERRIDDEN_FREELY`: the description might then be that of another mechanism.
    """
    if not isinstance(mechanism, GradientMechanism):
        return None
    for owner in type(mechanism).__mro__:
        if "weighted_release" in vars(owner):
            return mechanism.weighted_release()
        if any(_is_method(name, value) for name, value in vars(owner).items()):
            return None
    return None


def _is_method(name: str, value: object) -> bool:
    """Whether a class's attribute may change what a step does: a method or property that is not special."""
    kinds = (FunctionType, property, cached_property, classmethod, staticmethod)
    is_special = name in OVERRIDDEN_FREELY or name.startswith("__")
    return isinstance(value, kinds) and not is_special


def refusal(mechanism: Mechanism, spec: TrainingSpec) -> str:
    """Why an ensemble cannot train such models with a mechanism; empty where it can.

    Decided by what mechanism and model declare: nothing is built.
    """
    if release_of(mechanism) is None:
        return f"{type(mechanism).__name__} does not release weighted sums of gradients with Gaussian noise"
    facets = model_facets(spec.model)
    if spec.adapter == "lora":
        if facets.has_one_base is None or not facets.has_one_base(**spec.model_parameters):
            return (
                "an ensemble trains LoRA adapters of language models whose weights the seed does not change, "
                f"and model {spec.model!r} is not known to be such"
            )
        return ""
    if not facets.stacks:
        return (
            f"an ensemble trains linear layers with ReLU between them, and model {spec.model!r} is not such"
        )
    return ""


class Ensemble:
    """R models in training, and after it; see the module."""

    def __init__(
        self,
        mechanism: GradientMechanism,
        plans: Sequence[Plan],
        *,
        initial: Tensor | None = None,
        precision: str = "float32",
    ) -> None:
        """Build the models.

        Args:
            mechanism: Its quality measurements are left out.
            plans: One a model. They differ in records and seeds, and in nothing else that training reads.
            initial: Weights from which all start, shape `(d,)`, in place of the plans' own.
            precision: Of a step's products, of `workbench.training.precision.PRECISIONS`.

        Raises `InputError`: no plans, plans that differ otherwise, or an unknown precision.
        `UnsupportedError`: see `refusal`; the mechanism cannot meet the budget; bfloat16 with adapters, or on
        a machine that is slow at it.
        """
        checked_precision(precision)
        if not plans:
            raise InputError("plans must not be empty")
        first = plans[0]
        for plan in plans:
            if plan.spec() != first.spec() or plan.budget != first.budget:
                raise InputError("plans of an ensemble must have one spec and one budget")
            if plan.insertions.gradient_canary is not None:
                raise UnsupportedError("an ensemble takes no gradient canary")
            if plan.insertions.new_tokens != first.insertions.new_tokens:
                raise InputError("plans of an ensemble must have the same new tokens")
            mechanism.check(plan)
        reason = refusal(mechanism, first)
        if reason:
            raise UnsupportedError(reason)
        self._given = mechanism
        self.mechanism = mechanism.without_quality().for_plan(first)
        release = release_of(self.mechanism)
        assert release is not None
        self._release, self.plans = release, tuple(plans)
        self._model = build_model(first)
        require_readable(self._model, first)
        self._model.module.eval()
        starts = _initial_weights(plans) if initial is None else [initial] * len(plans)
        device = next(self._model.module.parameters()).device
        self._weights = nn.Parameter(torch.stack(starts).to(device), requires_grad=False)
        self._pool = Pool(plans)
        self._stacked = _stacked(self._model, self.weights, self._pool, plans, precision)
        self._losses = np.full((len(plans), first.steps), math.nan)
        self._sizes = np.zeros((len(plans), first.steps), dtype=np.int64)
        self._seconds = 0.0

    @property
    def weights(self) -> Tensor:
        """The weights, one model a row, shape `(R, d)`; they change while the models are trained."""
        return self._weights.detach()

    def train(self) -> None:
        """Train, once.

        Raises `InconclusiveError`: a model left the finite numbers.
        """
        started = time.perf_counter()
        plan, count = self.plans[0], len(self.plans)
        generators = [torch_generator(Seeds.of(p).noise) for p in self.plans]
        divisors = torch.tensor([[plan.sampling_probability * averaging_size(p)] for p in self.plans])
        divisors = divisors.to(self._weights)
        optimizer = optimizer_of(plan, [self._weights])
        drawn = torch.zeros(self._weights.shape, dtype=self._weights.dtype)
        rows = list(drawn)
        for step, (indices, sizes) in enumerate(self._pool.samples(plan.steps)):
            if self._release.noise_scale:
                for row, generator in zip(rows, generators, strict=True):
                    row.normal_(0.0, self._release.noise_scale, generator=generator)
            else:
                drawn.zero_()
            released = drawn.to(self._weights.device)  # On the CPU it is the same tensor.
            losses = self._stacked.add_sums(indices, sizes, self._release.factors, released)
            lowest, highest = torch.aminmax(released)
            if not math.isfinite(lowest) or not math.isfinite(highest):
                raise diverged(step + 1, plan)
            self._weights.grad = released.div_(divisors)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(plan, step)
            optimizer.step()
            self._sizes[:, step] = sizes
            np.divide(losses, sizes, out=self._losses[:, step], where=sizes > 0)
        self._weights.grad = None
        self._seconds = (time.perf_counter() - started) / count

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """Losses of records under each model, nats, shape `(R, n)`."""
        return self._stacked.losses(records)

    def subjects(self) -> list[TrainedSubject]:
        """The models as subjects, in the order of the plans; without measurements of quality."""
        return [self._subject(index, plan) for index, plan in enumerate(self.plans)]

    def _subject(self, index: int, plan: Plan) -> TrainedSubject:
        model = twin_of(self._model)
        write_flat(model.module, self.weights[index])
        seconds = {"training_seconds": self._seconds, "seconds": self._seconds}
        transcript = Transcript(
            losses=self._losses[index],
            sample_sizes=self._sizes[index],
            canary_observations=np.zeros(0),
            canary_included=np.zeros(0, dtype=np.bool_),
            metrics={**self.mechanism.settings(), **seconds},
        )
        return TrainedSubject(
            mechanism=self.mechanism,
            model=model,
            plan=plan,
            claim=self._given.claim(plan),
            transcript=transcript,
        )


def _stacked(
    model: Model, weights: Tensor, pool: Pool, plans: Sequence[Plan], precision: str = "float32"
) -> Stacked:
    """The models of the plans, of the kind of `model`, with these weights."""
    if plans[0].adapter != "lora":
        return StackedClassifiers(model, weights, pool.records, plans, precision)
    if precision != "float32":
        raise UnsupportedError(f"precision {precision!r} is for stacked linear layers, not for LoRA adapters")
    return StackedAdapters(model, weights, pool.records)


def _initial_weights(plans: Sequence[Plan]) -> list[Tensor]:
    """Weights of each plan's model before training, built once for all plans of one initial seed.

    Adapters are put around one base.
    """
    base = build_base(plans[0]) if plans[0].adapter == "lora" else None
    known: dict[int, Tensor] = {}
    weights = []
    for plan in plans:
        seed = plan.initial_seed
        flat = known.get(seed) if seed is not None else None
        if flat is None:
            model = build_base(plan) if base is None else twin_of(base, shares_all=True)
            adapt(model, plan)
            flat = flat_of(model.module)
            if seed is not None:
                known[seed] = flat
        weights.append(flat)
    return weights


def trained_ensembles(
    mechanism: GradientMechanism,
    plans: Sequence[Plan],
    *,
    initial: Tensor | None = None,
    precision: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Ensemble]:
    """Train one model a plan, as ensembles of a size that a processor's cache holds, in the plans' order.

    Arguments, and what is raised, as of `Ensemble`; `progress(done, total)` counts models.
    """
    if not plans:
        raise InputError("plans must not be empty")
    dimension = flat_of(build_model(plans[0]).module).numel()
    size = max(1, WEIGHTS_AT_ONCE // dimension)
    for start in range(0, len(plans), size):
        chosen = plans[start : start + size]
        ensemble = Ensemble(mechanism, chosen, initial=initial, precision=precision)
        ensemble.train()
        if progress is not None:
            progress(start + len(ensemble.plans), len(plans))
        yield ensemble


def train_together(
    mechanism: GradientMechanism,
    plans: Sequence[Plan],
    progress: Callable[[int, int], None] | None = None,
    *,
    precision: str = "float32",
) -> list[TrainedSubject]:
    """One subject a plan; see `trained_ensembles`."""
    ensembles = trained_ensembles(mechanism, plans, precision=precision, progress=progress)
    return [subject for ensemble in ensembles for subject in ensemble.subjects()]


def fitted_weights(plan: Plan, *, steps: int = 500, step_size: float = 0.01) -> Tensor:
    """Weights that fit the plan's records, by full batches of AdamW without privacy, shape `(d,)`.

    From the plan's own initial weights; deterministic. Raises as `Ensemble`.
    """
    model = build_model(plan)
    weights = nn.Parameter(flat_of(model.module)[None], requires_grad=False)
    stacked = _stacked(model, weights.detach(), Pool([plan]), [plan])
    count = len(plan.records)
    everyone, sizes = np.arange(count)[None], np.array([count])
    optimizer = torch.optim.AdamW([weights], lr=step_size, weight_decay=0.0)
    for _ in range(steps):
        total = torch.zeros_like(weights)
        stacked.add_sums(everyone, sizes, None, total)
        weights.grad = total.div_(count)
        optimizer.step()
    return weights.detach()[0]
