"""Trains R models at once: one architecture; records, coins, noise and generators of each model's own.

What is computed is what `GradientMechanism.train` computes for each plan, up to rounding: the same samples
and the same noise are drawn from the same seeds. A model's numbers depend on R and on the other models only
as far as a batched matrix product does; on the processors where this was tried, not in a single bit. Samples
are cut into passes of one width, which depends on the plans' public numbers, so that the products' shapes do
not depend on who takes part.
"""

from __future__ import annotations

import copy
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
    IntArray,
    Mechanism,
    Model,
    Plan,
    Record,
    Sampling,
    TrainingSpec,
    Transcript,
)
from workbench.training.content import model_facets
from workbench.training.ensemble.network import StackedNetwork, layers_of
from workbench.training.fine_tuning import (
    Seeds,
    averaging_size,
    build_model,
    learning_rate,
    optimizer_of,
    torch_generator,
    trainable,
)
from workbench.training.loop import GradientMechanism, WeightedRelease, require_readable
from workbench.training.samples import step_samples
from workbench.training.steps import diverged
from workbench.training.subject import TrainedSubject

OVERRIDDEN_FREELY = frozenset(
    {"audit_defaults", "capabilities", "check", "claim", "for_plan", "settings", "views"}
)
"""Methods of a mechanism that decide nothing in a step, or that an ensemble calls as the loop does."""

WIDEST_PASS = 512
"""Most records of one model in one pass."""

DRAWN_AT_ONCE = 1 << 14
"""Coins of one model that are drawn at once."""

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
    if spec.adapter != "full":
        return f"an ensemble trains all weights of a model, got adapter {spec.adapter!r}"
    if not model_facets(spec.model).stacks:
        return (
            f"an ensemble trains linear layers with ReLU between them, and model {spec.model!r} is not such"
        )
    return ""


class Ensemble:
    """R models in training, and after it; see the module."""

    def __init__(
        self, mechanism: GradientMechanism, plans: Sequence[Plan], *, initial: Tensor | None = None
    ) -> None:
        """Build the models.

        Args:
            mechanism: Its quality measurements are left out.
            plans: One a model. They differ in records and seeds, and in nothing else that training reads.
            initial: Weights from which all start, shape `(d,)`, in place of the plans' own.

        Raises `InputError`: no plans, or plans that differ otherwise. `UnsupportedError`: see `refusal`; the
        mechanism cannot meet the budget.
        """
        if not plans:
            raise InputError("plans must not be empty")
        first = plans[0]
        for plan in plans:
            if plan.spec() != first.spec() or plan.budget != first.budget:
                raise InputError("plans of an ensemble must have one spec and one budget")
            if plan.insertions.gradient_canary is not None:
                raise UnsupportedError("an ensemble takes no gradient canary")
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
        self._layers = layers_of(self._model.module)
        starts = _initial_weights(plans) if initial is None else [initial] * len(plans)
        self._weights = nn.Parameter(torch.stack(starts), requires_grad=False)
        self._pool = _Pool(self._model, plans)
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
        device = self._weights.device
        generators = [torch_generator(Seeds.of(p).noise, device) for p in self.plans]
        divisors = torch.tensor([[plan.sampling_probability * averaging_size(p)] for p in self.plans])
        divisors = divisors.to(self._weights)
        optimizer = optimizer_of(plan, [self._weights])
        released = torch.zeros_like(self._weights)
        rows = list(released)
        network = StackedNetwork(self._layers, self.weights)
        for step, (indices, sizes) in enumerate(self._pool.samples(plan.steps)):
            if self._release.noise_scale:
                for row, generator in zip(rows, generators, strict=True):
                    row.normal_(0.0, self._release.noise_scale, generator=generator)
            else:
                released.zero_()
            losses = self._add_clipped(network, indices, sizes, released)
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

    def _add_clipped(
        self, network: StackedNetwork, indices: IntArray, sizes: IntArray, released: Tensor
    ) -> FloatArray:
        """Add the weighted gradients of a step's samples to `released`; returns their summed losses, `(R,)`.

        `indices`: into the pool, shape `(R, n)`, of which the first `sizes[r]` count in row r.
        """
        width, total = self._pool.width, np.zeros(len(sizes))
        for start in range(0, max(int(sizes.max()), 1), width):
            part = indices[:, start : start + width]
            if start == 0:
                total += self._pass(network, part, sizes, released)
                continue
            more = np.flatnonzero(sizes > start)
            chosen = torch.from_numpy(more).to(released.device)
            sums = torch.zeros_like(released[chosen])
            rest = StackedNetwork(self._layers, self.weights[chosen])
            total[more] += self._pass(rest, part[more], sizes[more] - start, sums)
            released.index_add_(0, chosen, sums)
        return total

    def _pass(
        self, network: StackedNetwork, indices: IntArray, sizes: IntArray, released: Tensor
    ) -> FloatArray:
        images, labels = self._pool.rows(indices)
        signals = network.signals(images, labels)
        counts = torch.from_numpy(np.arange(images.shape[1]) < sizes[:, None]).to(images.device)
        weights = counts.to(signals.losses)
        if self._release.factors is not None:
            weights = self._release.factors(signals.norms()).masked_fill_(~counts, 0.0)
        signals.add_sums(weights, released)
        summed: FloatArray = signals.losses.masked_fill(~counts, 0.0).double().sum(1).cpu().numpy()
        return summed

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """Losses of records under each model, nats, shape `(R, n)`."""
        batch = self._model.encode(records)
        images = batch["images"].expand(len(self.plans), -1, -1)
        labels = batch["labels"].expand(len(self.plans), -1)
        losses: FloatArray = (
            StackedNetwork(self._layers, self.weights).losses(images, labels).double().cpu().numpy()
        )
        return losses

    def subjects(self) -> list[TrainedSubject]:
        """The models as subjects, in the order of the plans; without measurements of quality."""
        return [self._subject(index, plan) for index, plan in enumerate(self.plans)]

    def _subject(self, index: int, plan: Plan) -> TrainedSubject:
        model = copy.deepcopy(self._model)
        start = 0
        with torch.no_grad():
            for parameter in trainable(model.module).values():
                part = self._weights[index, start : start + parameter.numel()]
                parameter.copy_(part.view(parameter.shape))
                start += parameter.numel()
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


def _initial_weights(plans: Sequence[Plan]) -> list[Tensor]:
    """Weights of each plan's model before training, built once for all plans of one initial seed."""
    known: dict[int, Tensor] = {}
    weights = []
    for plan in plans:
        seed = plan.initial_seed
        flat = known.get(seed) if seed is not None else None
        if flat is None:
            flat = StackedNetwork.flat_of(build_model(plan).module)
            if seed is not None:
                known[seed] = flat
        weights.append(flat)
    return weights


class _Pool:
    """The records of all plans, encoded once, and the samples of each step as indices into them."""

    def __init__(self, model: Model, plans: Sequence[Plan]) -> None:
        places: dict[int, int] = {}
        records: list[Record] = []
        self._plans = plans
        self._places: list[IntArray] = []
        for plan in plans:
            for record in plan.records:
                if id(record) not in places:
                    places[id(record)] = len(records)
                    records.append(record)
            self._places.append(np.array([places[id(record)] for record in plan.records], dtype=np.int64))
        batch = model.encode(records)
        self._images, self._labels = batch["images"], batch["labels"]
        q = plans[0].sampling_probability
        expected = q * max(averaging_size(plan) for plan in plans)
        wide = math.ceil((expected + 3 * math.sqrt(expected * (1 - q))) / 8) * 8
        self.width = min(wide, WIDEST_PASS)
        """Records of one model in a pass."""

    def rows(self, indices: IntArray) -> tuple[Tensor, Tensor]:
        """Images `(R, width, features)` and labels `(R, width)` at indices `(R, n)`, n at most the width.

        Filled up with the first record.
        """
        filled = np.zeros((len(indices), self.width), dtype=np.int64)
        filled[:, : indices.shape[1]] = indices
        flat = torch.from_numpy(filled).to(self._images.device)
        images = self._images.index_select(0, flat.view(-1))
        return images.view(*flat.shape, -1), self._labels[flat]

    def samples(self, steps: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Each step's samples: indices into the pool `(R, n)`, filled up with 0, and sizes `(R,)`."""
        generators = [np.random.default_rng(Seeds.of(plan).sampling) for plan in self._plans]
        draws = [_draws(plan, generator) for plan, generator in zip(self._plans, generators, strict=True)]
        largest = max(len(places) for places in self._places)
        block = max(1, min(steps, DRAWN_AT_ONCE // largest))
        for start in range(0, steps, block):
            count = min(block, steps - start)
            drawn = [draw(count) for draw in draws]
            sizes = np.stack([of_model[0] for of_model in drawn], axis=1)
            indices = np.zeros((count, len(drawn), max(int(sizes.max()), 1)), dtype=np.int64)
            for model, (own_sizes, chosen) in enumerate(drawn):
                step_of = np.repeat(np.arange(count), own_sizes)
                within = np.arange(len(chosen)) - np.repeat(np.cumsum(own_sizes) - own_sizes, own_sizes)
                indices[step_of, model, within] = self._places[model][chosen]
            yield from zip(indices, sizes, strict=True)


def _draws(plan: Plan, generator: np.random.Generator) -> Callable[[int], tuple[IntArray, IntArray]]:
    """Draws a plan's next samples, those of `step_samples`: their sizes, and their indices in one array."""
    if plan.sampling is Sampling.POISSON:

        def draw_coins(count: int) -> tuple[IntArray, IntArray]:
            taken = generator.random((count, len(plan.records))) < plan.sampling_probability
            return taken.sum(1), np.nonzero(taken)[1]

        return draw_coins
    samples = step_samples(plan, generator)

    def draw_batches(count: int) -> tuple[IntArray, IntArray]:
        drawn = [next(samples) for _ in range(count)]
        return np.array([len(sample) for sample in drawn], dtype=np.int64), np.concatenate(drawn)

    return draw_batches


def trained_ensembles(
    mechanism: GradientMechanism,
    plans: Sequence[Plan],
    *,
    initial: Tensor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Ensemble]:
    """Train one model a plan, as ensembles of a size that a processor's cache holds, in the plans' order.

    Arguments, and what is raised, as of `Ensemble`; `progress(done, total)` counts models.
    """
    if not plans:
        raise InputError("plans must not be empty")
    dimension = StackedNetwork.flat_of(build_model(plans[0]).module).numel()
    size = max(1, WEIGHTS_AT_ONCE // dimension)
    for start in range(0, len(plans), size):
        ensemble = Ensemble(mechanism, plans[start : start + size], initial=initial)
        ensemble.train()
        if progress is not None:
            progress(start + len(ensemble.plans), len(plans))
        yield ensemble


def train_together(
    mechanism: GradientMechanism, plans: Sequence[Plan], progress: Callable[[int, int], None] | None = None
) -> list[TrainedSubject]:
    """One subject a plan; see `trained_ensembles`."""
    ensembles = trained_ensembles(mechanism, plans, progress=progress)
    return [subject for ensemble in ensembles for subject in ensemble.subjects()]


def fitted_weights(plan: Plan, *, steps: int = 500, step_size: float = 0.01) -> Tensor:
    """Weights that fit the plan's records, by full batches of AdamW without privacy, shape `(d,)`.

    From the plan's own initial weights; deterministic.
    """
    model = build_model(plan)
    layers = layers_of(model.module)
    weights = nn.Parameter(StackedNetwork.flat_of(model.module)[None], requires_grad=False)
    batch, network = model.encode(plan.records), StackedNetwork(layers, weights.detach())
    optimizer = torch.optim.AdamW([weights], lr=step_size, weight_decay=0.0)
    share = torch.full((1, len(plan.records)), 1.0 / len(plan.records))
    for _ in range(steps):
        weights.grad = torch.zeros_like(weights)
        network.signals(batch["images"][None], batch["labels"][None]).add_sums(share, weights.grad)
        optimizer.step()
    return weights.detach()[0]
