"""How an optimizer turns a noisy mean gradient g into weights, and what an adversary knows of that.

Plain descent is linear: W - eta (g + lambda W). AdamW divides a running mean m of g by the root of a running
mean v of its squares, both of which move along with the permuted weights, and neither of which is released:

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    W <- W - eta lambda W - eta (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + e)

The adversary takes v for its mean, the noise's variance and the square of what is known, which is near where
noise outweighs the rest, and reads m off the weights: a release that is tidied up shows the update. So the
step is linear in g for it, with its own gain for each weight. That is an approximation (in the first step
AdamW shows only signs), which costs power: bounds hold for any scores. Blind and invariant adversaries are
given the same m, which the tidying one finds, so with AdamW they know more than their names say.

Source of the update: Loshchilov and Hutter 2019, "Decoupled weight decay regularization", with torch's
settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from workbench.interfaces import IntArray, Plan

BETA_1, BETA_2, LEAST_ROOT = 0.9, 0.999, 1e-8
"""torch's, which `workbench.training.fine_tuning.make_optimizer` leaves as they are."""


@dataclass(frozen=True, kw_only=True)
class Linearised:
    """A step as its adversary sees it: `before - drift - gain * g`.

    `drift`: what moves the weights whatever g is, shape `(d,)`. `gain`: of each entry of g, shape `(d,)`.
    """

    drift: Tensor
    gain: Tensor


@dataclass(kw_only=True)
class PlainDescent:
    """Plain SGD, which keeps no state between steps."""

    decay: float

    def ahead(self, before: Tensor, known: Tensor, spread: Tensor, rate: float) -> Linearised:
        """Returns the step as the adversary sees it.

        `before` are the weights, `known` the known part of g, `spread` each entry's noise deviation; shape
        `(d,)` each.
        """
        return Linearised(drift=rate * self.decay * before, gain=torch.full_like(spread, rate))

    def plain(self, before: Tensor, gradient: Tensor, rate: float) -> Tensor:
        """Returns the weights before they are permuted."""
        return before - rate * (gradient + self.decay * before)

    def follow(self, plain: Tensor, released: Tensor, units: Sequence[IntArray]) -> None:
        """Moves the true state along with the weights."""

    def learn(self, restored: Tensor, units: Sequence[IntArray], indices: Sequence[IntArray]) -> None:
        """Lets the adversary learn from the weights that it has put back, and follows the permutation."""


@dataclass(kw_only=True)
class AdamDescent(PlainDescent):
    """AdamW: its true state, and the adversary's estimate of it."""

    dimension: int
    done: int = 0
    _mean: Tensor = field(init=False)
    _square: Tensor = field(init=False)
    _guessed: Tensor = field(init=False)
    _guessed_square: Tensor = field(init=False)
    _expected: tuple[Tensor, Tensor, Tensor, float] = field(init=False)

    def __post_init__(self) -> None:
        self._mean, self._square, self._guessed, self._guessed_square = torch.zeros(
            4, self.dimension, dtype=torch.float64
        )

    def ahead(self, before: Tensor, known: Tensor, spread: Tensor, rate: float) -> Linearised:
        """Returns the step as the adversary sees it; `known` and `spread` are of the mean gradient."""
        time, known = self.done + 1, known.double()
        second = spread.double().square() + known.square()
        self._guessed_square = BETA_2 * self._guessed_square + (1.0 - BETA_2) * second
        root = (self._guessed_square / (1.0 - BETA_2**time)).sqrt() + LEAST_ROOT
        per_mean = rate / (1.0 - BETA_1**time) / root
        self._expected = (before.double(), known, per_mean, rate)
        return Linearised(
            drift=rate * self.decay * before.double() + per_mean * BETA_1 * self._guessed,
            gain=per_mean * (1.0 - BETA_1),
        )

    def plain(self, before: Tensor, gradient: Tensor, rate: float) -> Tensor:
        """Returns the weights before they are permuted; also steps Adam's true state."""
        self.done += 1
        gradient = gradient.double()
        self._mean = BETA_1 * self._mean + (1.0 - BETA_1) * gradient
        self._square = BETA_2 * self._square + (1.0 - BETA_2) * gradient.square()
        root = (self._square / (1.0 - BETA_2**self.done)).sqrt() + LEAST_ROOT
        step = rate * self._mean / (1.0 - BETA_1**self.done) / root
        return (before.double() * (1.0 - rate * self.decay) - step).to(before.dtype)

    def follow(self, plain: Tensor, released: Tensor, units: Sequence[IntArray]) -> None:
        """Permutes both of Adam's running means as the release permuted the weights."""
        orders = [_moved(plain.numpy()[unit], released.numpy()[unit]) for unit in units]
        self._mean, self._square = (_permuted(part, units, orders) for part in (self._mean, self._square))

    def learn(self, restored: Tensor, units: Sequence[IntArray], indices: Sequence[IntArray]) -> None:
        """Reads the running mean off the step."""
        before, known, per_mean, rate = self._expected
        if rate > 0.0:
            self._guessed = (before * (1.0 - rate * self.decay) - restored.double()) / per_mean
        else:
            self._guessed = BETA_1 * self._guessed + (1.0 - BETA_1) * known
        self._guessed, self._guessed_square = (
            _permuted(part, units, indices) for part in (self._guessed, self._guessed_square)
        )


def descent_of(plan: Plan, dimension: int) -> PlainDescent:
    """Returns the plan's optimizer at the beginning of a run."""
    if plan.optimizer == "adamw":
        return AdamDescent(decay=plan.weight_decay, dimension=dimension)
    return PlainDescent(decay=plan.weight_decay)


def put_back(released: Tensor, units: Sequence[IntArray], indices: Sequence[IntArray]) -> Tensor:
    """Returns released weights with a permutation undone."""
    return _permuted(released, units, [np.argsort(order) for order in indices])


def _permuted(values: Tensor, units: Sequence[IntArray], orders: Sequence[IntArray]) -> Tensor:
    moved = values.clone()
    for unit, order in zip(units, orders, strict=True):
        moved[torch.from_numpy(unit)] = moved[torch.from_numpy(unit[order])]
    return moved


def _moved(plain: np.ndarray, released: np.ndarray) -> IntArray:
    """Where each index came from; other units' permutations leave an index's sorted weights alone."""
    were, are = (np.sort(rows.astype(np.float64), axis=1) for rows in (plain, released))
    apart = np.sum(were**2, axis=1)[None, :] - 2.0 * are @ were.T
    order: IntArray = np.argmin(apart, axis=1)
    return order
