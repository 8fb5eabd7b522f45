"""Zeroth-order training: two forward passes a direction, no gradient, and weights that come back exactly.

    for each direction z, drawn from a public seed:
        g_i = (loss_i(theta + mu z) - loss_i(theta - mu z)) / (2 mu)        for each record i of the sample
    theta <- (1 - eta lambda) theta - eta (1 / K) sum of c_k z_k

`c_k` is what the mechanism makes of the scalars of direction k. Directions are never stored: they are drawn
anew from their seed, in place, each time they are needed (Malladi et al. 2023, "Fine-tuning language models
with just forward passes").

Adding and subtracting the same float does not in general restore a weight. Here it does, to the bit,
whatever the number of steps and without a copy: `workbench.training.lattice` says how. Records are encoded
once and batched by length, for every step sees them again; and where dev records choose the weights that are
kept, these are put aside on disk, for a copy in memory would double what such a training holds.
"""

from __future__ import annotations

import math
import tempfile
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedRandom
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.arguments import require_count
from workbench.core.errors import InconclusiveError, InputError, UnsupportedError, unknown_name
from workbench.interfaces import Capabilities, FloatArray, IntArray, Model, Plan, Record, Signals, TaskModel
from workbench.training.fine_tuning import Seeds, evaluating, seed_number, trainable
from workbench.training.lattice import LARGEST_SCALE, Directions, Lattice
from workbench.training.loop import GradientMechanism
from workbench.training.precision import checked_precision, reduced
from workbench.training.steps import Steps, diverged

KEPT = 2
"""Samples whose batches are kept: the universe, and the dev records."""
LIKE = 0.8
"""The shortest record of a batch has this share of the longest's tokens, at least."""
LEAST_TOKENS = 1024
"""Batches of fewer are not worth a forward pass of their own."""

Batch = tuple[IntArray, dict[str, Tensor]]
"""Places of the records in the sample, and their tensors."""


class Batches:
    """A model's batches of some records, in an order that depends on the records only."""

    def __init__(self, model: Model, most: int) -> None:
        """Bind the model that encodes the records; `most` records in a batch at most."""
        self._model, self._most = model, most
        # By identity, which the records that are held keep to themselves.
        self._lengths: dict[int, tuple[Record, int]] = {}
        self._samples: OrderedDict[tuple[int, ...], tuple[Sequence[Record], list[Batch]]] = OrderedDict()

    def of(self, records: Sequence[Record]) -> list[Batch]:
        """The batches of a sample, possibly empty; not to be changed."""
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
        """Which records go together, the longest first."""
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
        """Tokens of each record; zero for those of a model whose batches have no mask."""
        unknown = [record for record in records if id(record) not in self._lengths]
        for start in range(0, len(unknown), self._most):
            part = unknown[start : start + self._most]
            mask = self._model.encode(part).get("attention_mask")
            counts = [0] * len(part) if mask is None else mask.flatten(1).sum(1).tolist()
            for record, count in zip(part, counts, strict=True):
                self._lengths[id(record)] = (record, int(count))
        return np.array([self._lengths[id(record)][1] for record in records], dtype=np.int64)


class ScratchWeights:
    """One copy of weights on disk, empty at first, in a file without a name that is gone with the process."""

    def __init__(self) -> None:
        self._file: BufferedRandom | None = None

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Write the weights in the place of those that were kept before."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="workbench-")  # noqa: SIM115 - lives on
            weakref.finalize(self, self._file.close)
        self._file.seek(0)
        for weight in weights:
            self._file.write(_bytes_of(weight.detach().to("cpu").contiguous()))
        self._file.flush()

    def restore(self, weights: Sequence[Tensor]) -> bool:
        """Read the kept weights back, in place and in the same order; False where none were kept."""
        if self._file is None:
            return False
        self._file.seek(0)
        for weight in weights:
            held = weight.detach()
            direct = held.device.type == "cpu" and held.is_contiguous()
            read = held if direct else torch.empty(weight.shape, dtype=weight.dtype)
            buffer = _bytes_of(read)
            if self._file.readinto(buffer) != buffer.nbytes:
                raise OSError("the kept weights are cut short")
            if not direct:
                held.copy_(read)
        return True

    def close(self) -> None:
        """Delete the copy."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in memory, not copied."""
    flat = tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
    return flat.numpy().data


__all__ = ["Directions", "ZerothOrder", "ZerothOrderMechanism", "ZerothOrderSteps"]

DEV_METRICS = ("loss", "score")

MOST_DIRECTIONS = 4_096
"""Each takes two forward passes a step; the papers' largest number is 64."""


class ZerothOrder:
    """A model's weights under zeroth-order training: differences along directions, and moves along them.

    After `differences` the weights are still perturbed, until the next call or `settle` puts them back: a
    move along the same direction then takes one pass over the weights in the place of two.
    """

    def __init__(
        self,
        model: Model,
        *,
        scale: float,
        seed: int,
        micro_batch_size: int = 64,
        precision: str = "float32",
    ) -> None:
        """Bind a model; its trainable weights are put on their lattices (last bits change), in place.

        Args:
            model: In evaluation mode; trained in place.
            scale: mu, > 0.
            seed: Public seed of the directions, >= 0.
            micro_batch_size: Most records in one forward pass.
            precision: Of matrix products in forward passes (`workbench.training.precision.PRECISIONS`).

        Raises:
            UnsupportedError: a trainable parameter is not float32, or not on the device of the others.
            InputError: a weight is not finite, or so large that the scale is lost on it; there is none; the
                precision is unknown.
        """
        self._model, self._scale, self._precision = model, scale, checked_precision(precision)
        parameters = list(trainable(model.module).values())
        self._lattice = Lattice(parameters, scale, seed)
        self._device = parameters[0].device
        self._batches = Batches(model, micro_batch_size)
        self._displaced: tuple[int, int] | None = None  # direction, and how many times mu z

    def differences(self, records: Sequence[Record], direction: int) -> tuple[FloatArray, float]:
        """Per-record two-point differences along a direction, by its index.

        Returns:
            g_i of each record, shape `(n,)`, and the mean loss of the sample (of the two points), nats; NaN
            for an empty one.
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
        """Losses of records at the weights as they are, shape `(n,)`, nats."""
        self.settle()
        return self._losses(records)

    def move(self, moves: Sequence[tuple[int, float]], *, decay: float = 0.0) -> None:
        """theta <- (1 - decay) theta + sum of amount * z_direction.

        Args:
            moves: Direction and amount of each.
            decay: Share of the weights that is taken off, in [0, 1).

        Raises:
            InputError: decay is out of range; an amount, or a weight after the move, is not finite.
        """
        if not 0.0 <= decay < 1.0:
            raise InputError(f"decay must be in [0, 1), got {decay!r}")
        if not all(math.isfinite(amount) for _, amount in moves):
            raise InputError(f"amounts must be finite, got {[amount for _, amount in moves]}")
        # The last first: along it the weights are still displaced.
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
        """Put the weights back where they were before the differences; exact."""
        if self._displaced is not None:
            (direction, times), self._displaced = self._displaced, None
            self._lattice.perturb(direction, -times)

    def _losses(self, records: Sequence[Record]) -> FloatArray:
        losses = np.zeros(len(records))
        with evaluating(self._model), reduced(self._precision, self._device):
            for places, batch in self._batches.of(records):
                losses[places] = self._model.losses(batch).double().cpu().numpy()
        return losses


@dataclass(frozen=True, kw_only=True)
class ZerothOrderMechanism(GradientMechanism):
    """A mechanism that sees no gradient, only per-record scalars along public directions.

    Attributes:
        scale: mu, the length of a perturbation in standard deviations of each weight.
        directions: K, how many directions a step takes, 1 to 4,096; its update is their mean.
        public_seed: Of the directions, >= 0; None to spawn it from the plan's.
        dev_every: The model of the lowest dev loss (or highest score) at every so many steps, and at the
            last, is the one that is kept, of several the first; 0 keeps the last.
        dev_metric: `"loss"`, or `"score"`: the first metric of the model's task.
        precision: Of the matrix products in the engine's forward passes: `"float32"`, or `"bfloat16"`, which
            is faster on large models; the differences are noisier for it.

    Raises:
        InputError: a parameter is out of range.
    """

    scale: float = 1e-3
    directions: int = 1
    public_seed: int | None = None
    dev_every: int = 0
    dev_metric: str = "loss"
    precision: str = "float32"

    def __post_init__(self) -> None:
        """Refuse parameters that are out of range."""
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
        """Nothing noised is shown; updates are along the directions, so plain SGD."""
        needs_task = "dev_metric='score'" if self.dev_every and self.dev_metric == "score" else ""
        return Capabilities(
            releases=frozenset(), optimizer="sgd", needs_task=needs_task, is_zeroth_order=True
        )

    def seed_of(self, plan: Plan) -> int:
        """The public seed: the one that is given, or spawned from the plan's."""
        return seed_number(Seeds.of(plan).public) if self.public_seed is None else self.public_seed

    def check(self, plan: Plan) -> None:
        """Refuse a plan that no run can follow, with an `InputError`.

        The optimizer must be plain SGD (the update is along the directions themselves), a dev metric needs
        dev records, and weights cannot decay by more than there is of them.
        """
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
        """Never, unless a mechanism says otherwise: no gradient is released."""
        raise UnsupportedError(
            f"{type(self).__name__} releases scalars along directions, no privatised sum of gradients"
        )

    @abstractmethod
    def steps(self, plan: Plan, model: Model) -> ZerothOrderSteps:
        """The state of one run, which turns scalars into coefficients."""


class ZerothOrderSteps(Steps):
    """One run of a zeroth-order mechanism: scalars along K directions, coefficients, and a move."""

    def __init__(self, mechanism: ZerothOrderMechanism, plan: Plan, model: Model) -> None:
        """Begin a run of a settled mechanism; the model, in evaluation mode, is trained in place."""
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
        """How far to go down each direction: the update is minus the learning rate times their mean.

        Args:
            differences: Per-record scalars, shape `(n, K)`.
            sample: Which records of the plan they are of, shape `(n,)`.

        Returns:
            Shape `(K,)`.
        """

    def update(self, sample: IntArray) -> float:
        """Compute the sample's scalars along this step's directions, and the coefficients that they give."""
        records = [self.plan.records[i] for i in sample]
        first = self.done * self.mechanism.directions
        names = range(first, first + self.mechanism.directions)
        columns, losses = [], []
        for name in names:
            scalars, loss = self.engine.differences(records, name)
            columns.append(scalars)
            losses.append(loss)
        self.done += 1
        differences = np.stack(columns, axis=1)
        if not np.isfinite(differences).all():
            raise diverged(self.done, self.plan)
        coefficients = self.coefficients(differences, sample)
        if not np.isfinite(coefficients).all():
            raise diverged(self.done, self.plan)
        self._moves = [(name, float(c)) for name, c in zip(names, coefficients, strict=True)]
        return float(np.mean(losses))

    def descend(self, learning_rate: float) -> None:
        """Move, and look at the dev records where it is time to."""
        share = -learning_rate / len(self._moves)
        moves = [(name, share * coefficient) for name, coefficient in self._moves]
        try:
            self.engine.move(moves, decay=learning_rate * self.plan.weight_decay)
        except InputError as error:
            raise InconclusiveError(
                f"step {self.done}: {error}; try a learning_rate below {self.plan.learning_rate:g}"
            ) from error
        every = self.mechanism.dev_every
        if every and (self.done % every == 0 or self.done == self.plan.steps):
            self._look()

    def _look(self) -> None:
        """Keep the weights if they are the best yet on the dev records."""
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
        """Record a number of the present step for the plots; the last one counts."""
        series = self._series.setdefault(name, [math.nan] * self.plan.steps)
        series[self.done - 1] = value

    def close(self) -> None:
        """Settle the weights, and go back to the best ones where dev records chose."""
        self.engine.settle()
        self._kept.restore(list(trainable(self.model.module).values()))
        self._kept.close()

    def released(self) -> Mapping[str, Any]:
        """The traces."""
        return {"traces": {name: np.array(series) for name, series in self._series.items()}}

    def metrics(self) -> Mapping[str, float]:
        """`best_step`, counted from 1, where dev records chose."""
        return {"best_step": float(self._best_step)} if self.mechanism.dev_every else {}
