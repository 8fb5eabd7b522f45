"""Zeroth-order training: two forward passes a direction, no gradient, and weights that come back exactly.

    for each direction z, drawn from a public seed:
        g_i = (loss_i(theta + mu z) - loss_i(theta - mu z)) / (2 mu)        for each record i of the sample
    theta <- (1 - eta lambda) theta - eta (1 / K) sum of c_k z_k

`c_k` is what the mechanism makes of the scalars of direction k. Directions are never stored: they are drawn
anew from their seed, in place, each time they are needed (Malladi et al. 2023, "Fine-tuning language models
with just forward passes").

Adding and subtracting the same float does not in general restore a weight. Here it does, to the bit, whatever
the number of steps and without a copy: `workbench.training.lattice` says how.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import InconclusiveError, InputError, UnsupportedError, unknown_name
from workbench.interfaces import FloatArray, IntArray, Model, Plan, Record, Signals, TaskModel
from workbench.training.batches import Batches
from workbench.training.directions import Directions
from workbench.training.fine_tuning import Seeds, evaluating, seed_number, trainable
from workbench.training.lattice import LARGEST_SCALE, Lattice
from workbench.training.loop import GradientMechanism
from workbench.training.precision import checked_precision, reduced
from workbench.training.scratch import ScratchWeights
from workbench.training.steps import Steps, diverged

__all__ = ["Directions", "ZerothOrder", "ZerothOrderMechanism", "ZerothOrderSteps"]

DEV_METRICS = ("loss", "score")


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
        """Per-record two-point differences along a direction.

        Args:
            records: The sample; may be empty.
            direction: Index of the direction.

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
        """Losses of records at the weights as they are, shape `(n,)`, nats.

        Args:
            records: Any.
        """
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
        found = np.zeros(len(records))
        with evaluating(self._model), reduced(self._precision, self._device):
            for places, batch in self._batches.of(records):
                found[places] = self._model.losses(batch).double().cpu().numpy()
        return found


@dataclass(frozen=True, kw_only=True)
class ZerothOrderMechanism(GradientMechanism):
    """A mechanism that sees no gradient, only per-record scalars along public directions.

    Attributes:
        scale: mu, the length of a perturbation in standard deviations of each weight.
        directions: K, how many directions a step takes; its update is their mean.
        public_seed: Of the directions, >= 0; None to spawn it from the plan's.
        dev_every: The model of the lowest dev loss (or highest score) at every so many steps, and at the
            last, is the one that is kept, of several the first; 0 keeps the last.
        dev_metric: `"loss"`, or `"score"`: the first metric of the model's task.
        precision: Of the matrix products in the engine's forward passes: `"float32"`, or `"bfloat16"`, which
            is faster on large models; the differences are noisier for it.

    Raises:
        InputError: a parameter is out of range.
    """

    optimizer: ClassVar[str] = "sgd"
    """The only one that plans may name; audits take it where the user says none."""

    releases_sums: ClassVar[bool] = False

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
        for name, least in (("directions", 1), ("dev_every", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number >= {least}, got {value!r}")
        seed = self.public_seed
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise InputError(f"public_seed must be a whole number >= 0, got {seed!r}")
        if self.dev_metric not in DEV_METRICS:
            raise unknown_name("dev_metric", self.dev_metric, DEV_METRICS)
        checked_precision(self.precision)

    @property
    def needs_task(self) -> str:
        """The parameter that wants a model with a task, as text; empty where none does."""
        return "dev_metric='score'" if self.dev_every and self.dev_metric == "score" else ""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that no run can follow.

        Raises:
            InputError: the plan wants another optimizer than plain SGD (the update is along the directions
                themselves), or a dev metric that it has no records for; its weights would decay by more than
                there is of them; or a field is out of range.
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
        """Never, unless a mechanism says otherwise: no gradient is released.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"{type(self).__name__} releases scalars along directions, no privatised sum of gradients"
        )

    @abstractmethod
    def steps(self, plan: Plan, model: Model) -> ZerothOrderSteps:
        """What makes coefficients of the scalars, for one run."""


class ZerothOrderSteps(Steps):
    """One run of a zeroth-order mechanism: scalars along K directions, coefficients, and a move."""

    def __init__(self, mechanism: ZerothOrderMechanism, plan: Plan, model: Model) -> None:
        """Begin a run.

        Args:
            mechanism: Settled for the plan.
            plan: One that the mechanism's `check` passes.
            model: Its model, in evaluation mode; trained in place.

        Raises:
            InputError: the mechanism cannot follow the plan, or wants a dev metric that the model lacks.
        """
        mechanism.check(plan)
        if mechanism.needs_task and not isinstance(model, TaskModel):
            raise InputError(f"{mechanism.needs_task} needs a model with a task, got {plan.model!r}")
        seed = mechanism.public_seed
        if seed is None:
            seed = seed_number(Seeds.of(plan).public)
        self.mechanism, self.plan, self.model = mechanism, plan, model
        self.engine = ZerothOrder(
            model,
            scale=mechanism.scale,
            seed=seed,
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
        """Scalars of the sample along this step's directions, and what the mechanism makes of them."""
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
        """Move, and look at the dev records where it is time to.

        Raises:
            InconclusiveError: training left the finite numbers, or those that the scale suits.
        """
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
        """Note a number of the present step for the plots; the last one counts."""
        series = self._series.setdefault(name, [math.nan] * self.plan.steps)
        series[self.done - 1] = value

    def close(self) -> None:
        """Settle the weights; go back to the best ones, where dev records chose."""
        self.engine.settle()
        self._kept.restore(list(trainable(self.model.module).values()))
        self._kept.close()

    def released(self) -> Mapping[str, Any]:
        """The traces."""
        return {"traces": {name: np.array(series) for name, series in self._series.items()}}

    def metrics(self) -> Mapping[str, float]:
        """`best_step`, counted from 1, where dev records chose."""
        return {"best_step": float(self._best_step)} if self.mechanism.dev_every else {}
