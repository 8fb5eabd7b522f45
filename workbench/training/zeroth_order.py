"""Zeroth-order training: two forward passes a direction, no gradient, and weights that come back exactly.

    for each direction z, drawn from a public seed:
        g_i = (loss_i(theta + mu z) - loss_i(theta - mu z)) / (2 mu)        for each record i of the sample
    theta <- (1 - eta lambda) theta - eta (1 / K) sum of c_k z_k

`c_k` is what the mechanism makes of the scalars of direction k. Directions are never stored: they are drawn
anew from their seed, in place, each time they are needed (Malladi et al. 2023, "Fine-tuning language models
with just forward passes").

Adding and subtracting the same float does not in general restore a weight. Here it does: every trainable
tensor lies on a grid of its own, of steps 2^-k fine enough to lose nothing but the last bits of its smallest
weights, and perturbations and updates are rounded to that grid. Sums of multiples of the grid are exact in
float32 as long as they stay below 2^24 steps, so weights return to the bit, whatever the number of steps, and
no copy of them is kept. A tensor that outgrows its grid is moved to a coarser one, between steps.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from workbench.errors import InputError, UnsupportedError, unknown_name
from workbench.interfaces import FloatArray, IntArray, Model, Plan, Record, Signals, TaskModel
from workbench.training.fine_tuning import Seeds, evaluating, record_losses, seed_number, trainable
from workbench.training.loop import GradientMechanism
from workbench.training.steps import Steps, diverged

GRID_BITS = 24
"""Whole numbers up to 2^24 are exact in float32."""
HEADROOM_BITS = 2
"""A tensor may grow fourfold before its grid is too fine for it."""
LEAST_REACH = 64.0
"""A tensor of zeros is laid on a grid for weights of so many perturbation scales."""
FARTHEST = 8.0
"""No draw of a standard normal is taken to be farther out: one in 1e15 is."""
CHUNK = 1 << 18
"""Numbers that are drawn at once."""
DEV_METRICS = ("loss", "score")


class Directions:
    """Gaussian directions over a module's trainable parameters, each drawn from (seed, index) when needed."""

    def __init__(self, parameters: Sequence[nn.Parameter], seed: int) -> None:
        """Name what the directions span, and the public seed.

        Args:
            parameters: In their order.
            seed: Public, >= 0.
        """
        self._parameters = list(parameters)
        self._seed = seed

    def parts(self, index: int) -> Iterator[tuple[int, slice, Tensor]]:
        """The direction, part by part: number of the tensor, place in its flat form, and that part of z.

        A part is only valid until the next one is asked for.
        """
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence([self._seed, index])))
        buffer = np.empty(CHUNK, dtype=np.float32)
        for number, parameter in enumerate(self._parameters):
            for start in range(0, parameter.numel(), CHUNK):
                end = min(start + CHUNK, parameter.numel())
                part = buffer[: end - start]
                generator.standard_normal(dtype=np.float32, out=part)
                yield number, slice(start, end), torch.from_numpy(part).to(parameter.device)


class ZerothOrder:
    """A model's weights under zeroth-order training: differences along directions, and moves along them.

    After `differences` the weights are still perturbed, until the next call or `settle` puts them back: a
    move along the same direction then takes one pass over the weights in the place of two.
    """

    def __init__(self, model: Model, *, scale: float, seed: int, micro_batch_size: int = 64) -> None:
        """Bind a model; its trainable weights are rounded to their grids, in place.

        Args:
            model: In evaluation mode; trained in place.
            scale: mu, > 0.
            seed: Public seed of the directions, >= 0.
            micro_batch_size: Most records in one forward pass.

        Raises:
            UnsupportedError: a trainable parameter is not float32.
            InputError: a weight is not finite.
        """
        parameters = list(trainable(model.module).values())
        for parameter in parameters:
            if parameter.dtype != torch.float32:
                raise UnsupportedError(f"zeroth-order training needs float32 weights, got {parameter.dtype}")
        self._model, self._scale, self._micro = model, scale, micro_batch_size
        self._directions = Directions(parameters, seed)
        self._flat = [parameter.data.view(-1) for parameter in parameters]
        self._grid = [0.0] * len(self._flat)
        self._reach = [0.0] * len(self._flat)
        self._perturbed: int | None = None  # by which direction the weights are still displaced, by -mu z
        for number in range(len(self._flat)):
            self._lay(number)

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
        self._shift(direction, 1)
        above = self._losses(records)
        self._shift(direction, -2)
        below = self._losses(records)
        self._perturbed = direction
        return (above - below) / (2.0 * self._scale), float((above.mean() + below.mean()) / 2.0)

    def move(self, moves: Sequence[tuple[int, float]], *, decay: float = 0.0) -> None:
        """theta <- (1 - decay) theta + sum of amount * z_direction.

        Args:
            moves: Direction and amount of each.
            decay: Share of the weights that is taken off, in [0, 1).

        Raises:
            InputError: a weight is no longer finite.
        """
        if decay > 0.0:
            self.settle()
            for flat, grid in zip(self._flat, self._grid, strict=True):
                flat.mul_((1.0 - decay) / grid).round_().mul_(grid)
        for direction, amount in moves:
            back = 1 if direction == self._perturbed else 0
            if back:
                self._perturbed = None
            self._shift(direction, back, amount)
        self.settle()
        for number, reach in enumerate(self._reach):
            if reach > self._limit(number):
                self._lay(number)

    def settle(self) -> None:
        """Put the weights back where they were before the differences; exact."""
        if self._perturbed is not None:
            direction, self._perturbed = self._perturbed, None
            self._shift(direction, 1)

    def _shift(self, direction: int, perturbations: int, amount: float = 0.0) -> None:
        """Add so many perturbations mu z, each rounded to the grid, and `amount * z`, rounded likewise."""
        for number, place, z in self._directions.parts(direction):
            grid = self._grid[number]
            steps = torch.zeros_like(z)
            if perturbations:
                steps.add_(torch.round(z * (self._scale / grid)), alpha=perturbations)
            if amount:
                steps.add_(torch.round(z * (amount / grid)))
            self._flat[number][place].add_(steps, alpha=grid)
        if amount:
            self._reach = [reach + abs(amount) * FARTHEST for reach in self._reach]

    def _losses(self, records: Sequence[Record]) -> FloatArray:
        parts = []
        with evaluating(self._model):
            for start in range(0, len(records), self._micro):
                batch = self._model.encode(records[start : start + self._micro])
                parts.append(self._model.losses(batch).double().cpu().numpy())
        return np.concatenate(parts)

    def _limit(self, number: int) -> float:
        """How far a weight may be from zero, so that it is exact when perturbed, too."""
        return self._grid[number] * 2.0**GRID_BITS - FARTHEST * self._scale

    def _lay(self, number: int) -> None:
        """Round a tensor to the grid that suits its largest weight, unless it is on one that still does."""
        flat = self._flat[number]
        largest = float(flat.abs().max()) if flat.numel() else 0.0
        if not math.isfinite(largest):
            raise InputError("weights must be finite, got one that is not")
        self._reach[number] = largest
        if 2.0 * largest <= self._limit(number):
            return
        exponent = math.ceil(math.log2(max(largest, LEAST_REACH * self._scale)))
        grid = 2.0 ** (exponent + HEADROOM_BITS - GRID_BITS)
        self._grid[number] = grid
        flat.div_(grid).round_().mul_(grid)


@dataclass(frozen=True, kw_only=True)
class ZerothOrderMechanism(GradientMechanism):
    """A mechanism that sees no gradient, only per-record scalars along public directions.

    Attributes:
        scale: mu, the length of a perturbation in standard deviations of each weight.
        directions: K, how many directions a step takes; its update is their mean.
        public_seed: Of the directions, >= 0; None to spawn it from the plan's.
        dev_every: The model of the lowest dev loss (or highest score) at every so many steps, and at the
            last, is the one that is kept; 0 keeps the last.
        dev_metric: `"loss"`, or `"score"`: the first metric of the model's task.

    Raises:
        InputError: a parameter is out of range.
    """

    optimizer: ClassVar[str] = "sgd"
    """The only one that plans may name; audits take it where the user says none."""

    scale: float = 1e-3
    directions: int = 1
    public_seed: int | None = None
    dev_every: int = 0
    dev_metric: str = "loss"

    def __post_init__(self) -> None:
        """Refuse parameters that are out of range."""
        super().__post_init__()
        if not 0 < self.scale < math.inf:
            raise InputError(f"scale must be finite and > 0, got {self.scale!r}")
        for name, least in (("directions", 1), ("dev_every", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number >= {least}, got {value!r}")
        if self.public_seed is not None and self.public_seed < 0:
            raise InputError(f"public_seed must be >= 0, got {self.public_seed}")
        if self.dev_metric not in DEV_METRICS:
            raise unknown_name("dev_metric", self.dev_metric, DEV_METRICS)

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
            plan: With plain SGD: the update is along the directions themselves.
            model: Its model, in evaluation mode; trained in place.

        Raises:
            InputError: the plan wants another optimizer, or a dev metric that its records or model lack.
        """
        if plan.optimizer != "sgd":
            raise InputError(
                "optimizer must be 'sgd' for a zeroth-order mechanism, whose update is along its directions, "
                f"got {plan.optimizer!r}"
            )
        if mechanism.dev_every and not plan.dev:
            raise InputError(f"dev_every must be 0 for a plan without dev records, got {mechanism.dev_every}")
        if mechanism.dev_every and mechanism.dev_metric == "score" and not isinstance(model, TaskModel):
            raise InputError(f"dev_metric 'score' needs a model with a task, got {plan.model!r}")
        seed = mechanism.public_seed
        if seed is None:
            seed = seed_number(Seeds.of(plan).public)
        self.mechanism, self.plan, self.model = mechanism, plan, model
        self.engine = ZerothOrder(
            model, scale=mechanism.scale, seed=seed, micro_batch_size=mechanism.micro_batch_size
        )
        self.done = 0
        self._moves: list[tuple[int, float]] = []
        self._series: dict[str, list[float]] = {}
        self._best = math.inf
        self._best_step = 0
        self._kept: list[Tensor] = []

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
        self._moves = [(name, float(c)) for name, c in zip(names, coefficients, strict=True)]
        return float(np.mean(losses))

    def descend(self, learning_rate: float) -> None:
        """Move, and look at the dev records where it is time to."""
        share = -learning_rate / len(self._moves)
        moves = [(name, share * coefficient) for name, coefficient in self._moves]
        self.engine.move(moves, decay=learning_rate * self.plan.weight_decay)
        every = self.mechanism.dev_every
        if every and (self.done % every == 0 or self.done == self.plan.steps):
            self._look()

    def _look(self) -> None:
        """Keep the weights if they are the best yet on the dev records."""
        value = float(record_losses(self.model, self.plan.dev).mean())
        self.trace("dev_loss", value)
        if isinstance(self.model, TaskModel):
            with evaluating(self.model):
                score = next(iter(self.model.task_metrics(self.plan.dev).values()))
            self.trace("dev_score", score)
            if self.mechanism.dev_metric == "score":
                value = -score
        if value < self._best:
            self._best, self._best_step = value, self.done
            self._kept = [p.detach().clone() for p in trainable(self.model.module).values()]

    def trace(self, name: str, value: float) -> None:
        """Note a number of the present step for the plots; the last one counts."""
        series = self._series.setdefault(name, [math.nan] * self.plan.steps)
        series[self.done - 1] = value

    def close(self) -> None:
        """Settle the weights; go back to the best ones, where dev records chose."""
        self.engine.settle()
        for parameter, kept in zip(trainable(self.model.module).values(), self._kept, strict=False):
            parameter.data.copy_(kept)

    def released(self) -> Mapping[str, Any]:
        """The traces."""
        return {"traces": {name: np.array(series) for name, series in self._series.items()}}

    def metrics(self) -> Mapping[str, float]:
        """`best_step`, counted from 1, where dev records chose."""
        return {"best_step": float(self._best_step)} if self.mechanism.dev_every else {}
