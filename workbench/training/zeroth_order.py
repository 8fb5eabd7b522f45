"""Zeroth-order training: two forward passes per direction, no gradient, and weights restored exactly.

    for each direction z, drawn from a public seed:
        g_i = (loss_i(theta + mu z) - loss_i(theta - mu z)) / (2 mu)        for each record i of the sample
    theta <- (1 - eta lambda) theta - eta (1 / K) sum of c_k z_k

The mechanism computes c_k from the scalars of direction k. Directions are never stored, but drawn again from
their seed when needed (Malladi et al. 2023, "Fine-tuning language models with just forward passes").

Adding and subtracting the same float does not in general restore a weight. Here it does, to the bit and
without a copy (`workbench.training.lattice`). Records are encoded once and batched by length, since every
step uses them again. The best weights by dev records are kept on disk, for a copy would double the memory of
such a training.
"""

from __future__ import annotations

import math
import tempfile
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BufferedRandom
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.arguments import require_count
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError, unknown_name
from workbench.interfaces import (
    Capabilities,
    FloatArray,
    IntArray,
    Model,
    Plan,
    Record,
    Signals,
    TaskModel,
    Workload,
)
from workbench.training.fine_tuning import Seeds, evaluating, seed_number, trainable
from workbench.training.lattice import LARGEST_SCALE, Directions, Lattice
from workbench.training.loop import GradientMechanism
from workbench.training.precision import checked_precision, reduced
from workbench.training.steps import Steps, diverged

KEPT = 2
"""Samples whose batches are cached: the training records, and the dev records."""
LIKE = 0.8
"""The shortest record of a batch has at least this share of the longest's tokens."""
LEAST_TOKENS = 2048
"""Smaller batches are not worth a separate forward pass."""

Batch = tuple[IntArray, dict[str, Tensor]]
"""Indices of the records in the sample, and their tensors."""


class Batches:
    """A model's batches of at most `most` records, in an order that depends on the records only."""

    def __init__(self, model: Model, most: int) -> None:
        self._model, self._most = model, most
        # By identity, which is unique as long as the records are stored too.
        self._lengths: dict[int, tuple[Record, int]] = {}
        self._samples: OrderedDict[tuple[int, ...], tuple[Sequence[Record], list[Batch]]] = OrderedDict()

    def of(self, records: Sequence[Record]) -> list[Batch]:
        """The batches of a sample, possibly empty; read-only."""
        key = tuple(map(id, records))
        if key in self._samples:
            self._samples.move_to_end(key)
            return self._samples[key][1]
        batches = [
            (places, self._model.encode([records[i] for i in places])) for places in self._places(records)
        ]
        self._samples[key] = (list(records), batches)
        if len(self._samples) > KEPT:
            self._samples.popitem(last=False)
        return batches

    def _places(self, records: Sequence[Record]) -> Iterator[IntArray]:
        """The indices of each batch's records, the longest records first."""
        lengths = self._lengths_of(records)
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = int(lengths[order[start]])
            end = start + 1
            while (
                end < len(order)
                and end - start < self._most
                and (lengths[order[end]] >= LIKE * longest or (end - start) * longest < LEAST_TOKENS)
            ):
                end += 1
            yield order[start:end]
            start = end

    def _lengths_of(self, records: Sequence[Record]) -> IntArray:
        """Tokens of each record; zero for a model whose batches have no mask."""
        unknown = [record for record in records if id(record) not in self._lengths]
        for start in range(0, len(unknown), self._most):
            part = unknown[start : start + self._most]
            mask = self._model.encode(part).get("attention_mask")
            counts = [0] * len(part) if mask is None else mask.flatten(1).sum(1).tolist()
            for record, count in zip(part, counts, strict=True):
                self._lengths[id(record)] = (record, int(count))
        return np.array([self._lengths[id(record)][1] for record in records], dtype=np.int64)


class ScratchWeights:
    """One copy of weights on disk, in an unnamed temporary file that disappears with the process."""

    def __init__(self) -> None:
        self._file: BufferedRandom | None = None

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Store the weights, replacing those stored before."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="workbench-")  # noqa: SIM115 - lives on
            weakref.finalize(self, self._file.close)
        self._file.seek(0)
        for weight in weights:
            self._file.write(_bytes_of(weight.detach().to("cpu").contiguous()))
        self._file.flush()

    def restore(self, weights: Sequence[Tensor]) -> bool:
        """Read the stored weights back, in place and in the same order; False where none were stored."""
        if self._file is None:
            return False
        self._file.seek(0)
        for weight in weights:
            held = weight.detach()
            direct = held.device.type == "cpu" and held.is_contiguous()
            read = held if direct else torch.empty(weight.shape, dtype=weight.dtype)
            buffer = _bytes_of(read)
            if self._file.readinto(buffer) != buffer.nbytes:
                raise OSError("the file of the stored weights is too short")
            if not direct:
                held.copy_(read)
        return True

    def close(self) -> None:
        """Delete the copy of the weights and its file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not copied."""
    flat = tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
    return flat.numpy().data


__all__ = ["Directions", "ZerothOrder", "ZerothOrderMechanism", "ZerothOrderSteps"]

DEV_METRICS = ("loss", "score")

MOST_DIRECTIONS = 4_096
"""Limit of `directions`, each of which takes two forward passes a step; the papers' largest is 64."""


class ZerothOrder:
    """A model's weights under zeroth-order training: differences of losses along directions, and moves.

    After `differences` the weights stay perturbed until the next call or `settle`: a move along the same
    direction then takes one pass over the weights instead of two.
    """

    def __init__(
        self, model: Model, *, scale: float, seed: int, micro_batch_size: int = 64, precision: str = "float32"
    ) -> None:
        """Round a model's trainable weights to their lattices, in place; the model is in evaluation mode.

        `scale` is mu > 0, `seed` that of the directions. Raises `UnsupportedError`: a trainable parameter is
        not float32, or not on the device of the others. `InputError`: no weight, or one that is not finite or
        too large for the scale; unknown precision.
        """
        self._model, self._scale, self._precision = model, scale, checked_precision(precision)
        parameters = list(trainable(model.module).values())
        self._lattice = Lattice(parameters, scale, seed)
        self._device = parameters[0].device
        self._batches = Batches(model, micro_batch_size)
        self._displaced: tuple[int, int] | None = None  # direction, and multiple of mu z

    def differences(self, records: Sequence[Record], direction: int) -> tuple[FloatArray, float]:
        """Per-record differences g_i along a direction, shape `(n,)`, and the mean loss of both points.

        The mean loss, nats, is NaN for an empty sample.
        """
        self.settle()
        if not records:
            return np.zeros(0), math.nan
        self._lattice.perturb(direction, 1)
        self._displaced = direction, 1
        above = self._losses(records)
        self._lattice.perturb(direction, -2)
        self._displaced = direction, -1
        below = self._losses(records)
        return (above - below) / (2.0 * self._scale), float((above.mean() + below.mean()) / 2.0)

    def losses(self, records: Sequence[Record]) -> FloatArray:
        """Losses of records at the unperturbed weights, shape `(n,)`, nats."""
        self.settle()
        return self._losses(records)

    def move(self, moves: Sequence[tuple[int, float]], *, decay: float = 0.0) -> None:
        """theta <- (1 - decay) theta + sum of amount * z_direction, over moves (direction, amount).

        Raises `InputError`: decay is not in [0, 1); an amount, or a weight after the move, is not finite.
        """
        if not 0.0 <= decay < 1.0:
            raise InputError(f"decay must be in [0, 1), got {decay!r}")
        if not all(math.isfinite(amount) for _, amount in moves):
            raise InputError(f"amounts must be finite, got {[amount for _, amount in moves]}")
        # The last first, because the weights are still displaced along it.
        for direction, amount in reversed(moves):
            if amount == 0.0:
                continue
            back = 0
            if self._displaced is not None and self._displaced[0] == direction and self._lattice.fits(amount):
                back, self._displaced = -self._displaced[1], None
            self.settle()
            self._lattice.move(direction, amount / (1.0 - decay), back=back)
        self.settle()
        if decay > 0.0:
            self._lattice.shrink(decay)
        self._lattice.check()

    def settle(self) -> None:
        """Restore the weights to those before the differences, exactly."""
        if self._displaced is not None:
            (direction, times), self._displaced = self._displaced, None
            self._lattice.perturb(direction, -times)

    def _losses(self, records: Sequence[Record]) -> FloatArray:
        losses = np.zeros(len(records))
        with evaluating(self._model), reduced(self._precision, self._device):
            for places, batch in self._batches.of(records):
                losses[places] = self._model.losses(batch).cpu().double().numpy()
        return losses


@dataclass(frozen=True, kw_only=True)
class ZerothOrderMechanism(GradientMechanism):
    """A mechanism that uses no gradients, only per-record scalars along public directions.

    Attributes:
        scale: mu, the standard deviation of each weight's perturbation.
        directions: K, the number of directions per step, 1 to 4,096; the update is their mean.
        public_seed: Of the directions, >= 0; None to spawn it from the plan's.
        dev_every: Number of steps between evaluations on dev records, besides the last step. The weights of
            lowest loss (or highest score) are kept, the first of several; 0 keeps the last weights.
        dev_metric: `"loss"`, or `"score"`: the first metric of the model's task.
        precision: Of the matrix products in forward passes: `"float32"`, or `"bfloat16"`, which is faster on
            large models, with noisier differences.
    """

    scale: float = 1e-3
    directions: int = 1
    public_seed: int | None = None
    dev_every: int = 0
    dev_metric: str = "loss"
    precision: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale < math.inf:
            raise InputError(f"scale must be finite and > 0, got {self.scale!r}")
        if self.scale > LARGEST_SCALE:
            raise InputError(f"scale must be at most {LARGEST_SCALE:g} in float32, got {self.scale!r}")
        require_count("directions", self.directions, least=1, most=MOST_DIRECTIONS)
        require_count("dev_every", self.dev_every, least=0)
        seed = self.public_seed
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise InputError(f"public_seed must be a whole number >= 0, got {seed!r}")
        if self.dev_metric not in DEV_METRICS:
            raise unknown_name("dev_metric", self.dev_metric, DEV_METRICS)
        checked_precision(self.precision)

    @property
    def capabilities(self) -> Capabilities:
        """No noised release; updates are along the directions, so plain SGD."""
        needs_task = "dev_metric='score'" if self.dev_every and self.dev_metric == "score" else ""
        return Capabilities(
            releases=frozenset(), optimizer="sgd", needs_task=needs_task, is_zeroth_order=True
        )

    def workload(self, *, steps: int, sampling_probability: float, budget: float) -> Workload:
        """See the base class; a step passes its records once for each direction."""
        shares = super().workload(steps=steps, sampling_probability=sampling_probability, budget=budget)
        return replace(shares, passes=self.directions)

    def seed_of(self, plan: Plan) -> int:
        """The public seed: the given one, or one spawned from the plan's."""
        return seed_number(Seeds.of(plan).public) if self.public_seed is None else self.public_seed

    def check(self, plan: Plan) -> None:
        """Refuse a plan that no run can follow, with an `InputError`."""
        super().check(plan)
        if plan.optimizer != "sgd":
            raise InputError(
                "optimizer must be 'sgd' for a zeroth-order mechanism, whose update is along its directions, "
                f"got {plan.optimizer!r}"
            )
        if self.dev_every and not plan.dev:
            raise InputError(f"dev_every must be 0 for a plan without dev records, got {self.dev_every}")
        if plan.learning_rate * plan.weight_decay >= 1.0:
            raise InputError(
                "learning_rate times weight_decay must be below 1, "
                f"got {plan.learning_rate:g} * {plan.weight_decay:g}"
            )

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """Raises an `UnsupportedError` unless a mechanism overrides it: no gradient is released."""
        raise UnsupportedError(
            f"{type(self).__name__} releases scalars along directions, no privatised sum of gradients"
        )

    @abstractmethod
    def steps(self, plan: Plan, model: Model) -> ZerothOrderSteps:
        """The steps of one training run."""


class ZerothOrderSteps(Steps):
    """One run of a zeroth-order mechanism: scalars along K directions, coefficients, and a move."""

    def __init__(self, mechanism: ZerothOrderMechanism, plan: Plan, model: Model) -> None:
        mechanism.check(plan)
        needs_task = mechanism.capabilities.needs_task
        if needs_task and not isinstance(model, TaskModel):
            raise InputError(f"{needs_task} needs a model with a task, got {plan.model!r}")
        self.mechanism, self.plan, self.model = mechanism, plan, model
        self.engine = ZerothOrder(
            model,
            scale=mechanism.scale,
            seed=mechanism.seed_of(plan),
            micro_batch_size=mechanism.micro_batch_size,
            precision=mechanism.precision,
        )
        self.done = 0
        self._moves: list[tuple[int, float]] = []
        self._series: dict[str, list[float]] = {}
        self._best = math.inf
        self._best_step = 0
        self._kept = ScratchWeights()

    @abstractmethod
    def coefficients(self, differences: FloatArray, sample: IntArray) -> FloatArray:
        """c_k of each direction, shape `(K,)`, from the sample's scalars, shape `(n, K)`."""

    def update(self, sample: IntArray) -> float:
        """Compute the sample's scalars along this step's directions, and their coefficients."""
        records = [self.plan.records[i] for i in sample]
        first = self.done * self.mechanism.directions
        directions = range(first, first + self.mechanism.directions)
        columns, losses = [], []
        for direction in directions:
            scalars, loss = self.engine.differences(records, direction)
            columns.append(scalars)
            losses.append(loss)
        self.done += 1
        differences = np.stack(columns, axis=1)
        if not np.isfinite(differences).all():
            raise diverged(self.done, self.plan)
        coefficients = self.coefficients(differences, sample)
        if not np.isfinite(coefficients).all():
            raise diverged(self.done, self.plan)
        self._moves = [(direction, float(c)) for direction, c in zip(directions, coefficients, strict=True)]
        return float(np.mean(losses))

    def descend(self, learning_rate: float) -> None:
        """Move the weights, and evaluate the dev records if it is due."""
        share = -learning_rate / len(self._moves)
        moves = [(direction, share * coefficient) for direction, coefficient in self._moves]
        try:
            self.engine.move(moves, decay=learning_rate * self.plan.weight_decay)
        except InputError as error:
            raise InconclusiveError(
                f"step {self.done}: {error}; try a learning_rate below {self.plan.learning_rate:g}"
            ) from error
        interval = self.mechanism.dev_every
        if interval and (self.done % interval == 0 or self.done == self.plan.steps):
            self._evaluate()

    def _evaluate(self) -> None:
        """Keep the weights if they are the best so far on the dev records."""
        value = float(self.engine.losses(self.plan.dev).mean())
        self.trace("dev_loss", value)
        if isinstance(self.model, TaskModel):
            with evaluating(self.model):
                score = next(iter(self.model.task_metrics(self.plan.dev).values()))
            self.trace("dev_score", score)
            if self.mechanism.dev_metric == "score":
                value = -score
        if value < self._best:
            self._best, self._best_step = value, self.done
            self._kept.keep(list(trainable(self.model.module).values()))

    def trace(self, name: str, value: float) -> None:
        """Record a number of the current step for the plots, replacing an earlier one."""
        series = self._series.setdefault(name, [math.nan] * self.plan.steps)
        series[self.done - 1] = value

    def close(self) -> None:
        """Settle the weights, or restore the best ones by dev records."""
        self.engine.settle()
        self._kept.restore(list(trainable(self.model.module).values()))
        self._kept.close()

    def released(self) -> Mapping[str, Any]:
        """The traces, as a field of the `Transcript`."""
        return {"traces": {name: np.array(series) for name, series in self._series.items()}}

    def metrics(self) -> Mapping[str, float]:
        """`best_step`, counted from 1, if dev records choose the weights."""
        return {"best_step": float(self._best_step)} if self.mechanism.dev_every else {}
