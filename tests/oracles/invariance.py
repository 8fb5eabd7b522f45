"""Whether shuffled training is the unshuffled one (Shuffled DPSGD, Table II): losses, predictions, weights.

The same plan is trained twice, once as it is and once with all permutable weights permuted after each step,
the optimiser's state moving along. In exact arithmetic the second run is the first one seen through the
permutations so far: equal losses and predictions, weights that differ by a permutation.

With noise this is so only if the noise moves, too. A generator with the same seed gives coordinate i the same
noise in both runs, but after a permutation coordinate i is another weight: the two runs are then alike in
distribution and no more. So the noise is drawn in the coordinates of the start, and moved
(`Noise.MOVES`); `Noise.STAYS` is the fixed seed by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import UnsupportedError
from workbench.interfaces import Claim, FloatArray, Groups, Model, Plan, Record, Signals
from workbench.training.fine_tuning import (
    Seeds,
    build_model,
    learning_rate,
    record_log_likelihoods,
    record_losses,
    trainable,
)
from workbench.training.loop import GradientMechanism
from workbench.training.permutations import Permutation, PermutationGroup, Reach, permute_state_
from workbench.training.samples import step_samples
from workbench.training.steps import PlainSums, PrivatisedSums, Steps


class Noise(StrEnum):
    """What becomes of the mechanism's noise where the weights are permuted."""

    MOVES = "moves"
    """It is that of the unshuffled run, permuted like the weights."""

    STAYS = "stays"
    """It is drawn from the same seed, whatever the weights' places: the same distribution, other numbers."""


@dataclass(frozen=True, kw_only=True)
class Invariance:
    """What two trainings by the same plan have in common, one of them shuffled.

    Attributes:
        test_loss: Mean negative log-likelihood of the held-out records' tokens or labels, nats; unshuffled.
        test_loss_shuffled: Of the shuffled run.
        test_accuracy: Share of held-out records whose label, of all that occur, is predicted; NaN for a
            language model.
        test_accuracy_shuffled: Of the shuffled run.
        step_loss_difference: Largest difference of the mean losses of a step's sample, nats.
        prediction_difference: Largest difference of a held-out token's log-likelihood, or of any label's,
            nats.
        same_predictions: Share of held-out records with the same predicted label; NaN for a language model.
        distance: Euclidean distance between the two runs' trained weights, as they lie.
        distance_undone: After the permutations are undone.
        norm: Euclidean norm of the unshuffled run's weights.
        shuffled_share: Share of the trainable numbers that permutations move.
        log_permutations: Natural logarithm of the number of permutations.
    """

    test_loss: float
    test_loss_shuffled: float
    test_accuracy: float
    test_accuracy_shuffled: float
    step_loss_difference: float
    prediction_difference: float
    same_predictions: float
    distance: float
    distance_undone: float
    norm: float
    shuffled_share: float
    log_permutations: float

    def to_json(self) -> dict[str, float]:
        """All numbers by name."""
        return dict(asdict(self))


def invariance(
    plan: Plan,
    mechanism: GradientMechanism,
    *,
    make_model: Callable[[Plan], Model] = build_model,
    reach: Reach | None = None,
    noise: Noise = Noise.MOVES,
) -> Invariance:
    """Train a plan twice, shuffled and not, and compare.

    Args:
        plan: Its seed also draws the permutations, in a stream of their own.
        mechanism: What privatises the steps, or does not; one that trains on (privatised) sums of gradients.
        make_model: The plan's model before training, the same at every call.
        reach: How far the permutations go.
        noise: What becomes of the noise.

    Raises:
        InputError: the mechanism or the model refuses the plan.
        UnsupportedError: the mechanism has steps of its own.
        InconclusiveError: training left the finite numbers.
    """
    mechanism.check(plan)
    settled = mechanism.for_plan(plan)
    plain = _trained(plan, settled, make_model(plan), None)
    model = make_model(plan)
    group = PermutationGroup.of(model.module, reach)
    journey = _Journey(group, np.random.default_rng(Seeds.of(plan).noise.spawn(1)[0]), noise)
    shuffled = _trained(plan, settled, model, journey)
    here, there = (torch.cat([w.reshape(-1) for w in run.weights.values()]) for run in (plain, shuffled))
    undone = {name: tensor.clone() for name, tensor in shuffled.weights.items()}
    journey.so_far.inverse().apply_(undone)
    back = torch.cat([w.reshape(-1) for w in undone.values()])
    return Invariance(
        test_loss=plain.test_loss,
        test_loss_shuffled=shuffled.test_loss,
        test_accuracy=plain.accuracy,
        test_accuracy_shuffled=shuffled.accuracy,
        step_loss_difference=_largest(plain.losses, shuffled.losses),
        prediction_difference=_largest(plain.answers, shuffled.answers),
        same_predictions=_same(plain.predicted, shuffled.predicted),
        distance=_distance(here, there),
        distance_undone=_distance(here, back),
        norm=_distance(here, torch.zeros_like(here)),
        shuffled_share=group.shuffled_share,
        log_permutations=group.log_size,
    )


class _Journey:
    """Where the weights of a shuffled run are: the permutations since its start, one after the other."""

    def __init__(self, group: PermutationGroup, rng: np.random.Generator, noise: Noise) -> None:
        self.group, self.noise = group, noise
        self.so_far = group.identity()
        self._rng = rng

    def move(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
        """Permute weights and the optimiser's state by a fresh permutation."""
        permutation = self.group.draw(self._rng)
        permutation.apply_(parameters)
        permute_state_(permutation, optimizer, parameters)
        self.so_far = self.so_far.then(permutation)


class _ShuffledPlain(PlainSums):
    """Sums without noise, the weights permuted after each step."""

    journey: _Journey

    def descend(self, learning_rate: float) -> None:
        """Descend, then permute."""
        super().descend(learning_rate)
        self.journey.move(self._optimizer, self._sums.parameters)


class _ShuffledPrivatised(PrivatisedSums):
    """Privatised sums, the weights permuted after each step."""

    journey: _Journey

    def descend(self, learning_rate: float) -> None:
        """Descend, then permute."""
        super().descend(learning_rate)
        self.journey.move(self._optimizer, self._parameters)


@dataclass(frozen=True, kw_only=True)
class _FromTheStart(GradientMechanism):
    """A mechanism whose noise is drawn at the coordinates of the start, and moves with the weights."""

    inner: GradientMechanism
    journey: _Journey

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """The inner mechanism's release at the start's coordinates, permuted."""
        so_far = self.journey.so_far
        released = self.inner.privatise(_Undone(signals, so_far.inverse()), generator)
        return so_far.applied(released, signals.layout)

    def claim(self, plan: Plan) -> Claim:
        """The inner mechanism's."""
        return self.inner.claim(plan)


class _Undone:
    """Signals as they would be at the start's coordinates."""

    def __init__(self, signals: Signals, back: Permutation) -> None:
        self._signals, self._back = signals, back

    @property
    def n(self) -> int:
        """Number of records."""
        return self._signals.n

    @property
    def dimension(self) -> int:
        """Number d of trainable parameters."""
        return self._signals.dimension

    @property
    def layout(self) -> Mapping[str, tuple[slice, torch.Size]]:
        """Place and shape of each named trainable parameter in the flat vector."""
        return self._signals.layout

    def norms(self) -> Tensor:
        """Norms do not change under permutations."""
        return self._signals.norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum, moved back."""
        return self._back.applied(self._signals.weighted_sum(weights), self._signals.layout)

    def gradients(self) -> Tensor:
        """Each gradient, moved back."""
        return self._back.applied(self._signals.gradients(), self._signals.layout)

    def group_norms(self, groups: Groups) -> Tensor:
        """Norms of parameters do not change either: each is permuted within itself."""
        return self._signals.group_norms(groups)

    def group_sum(self, weights: Tensor, groups: Groups) -> Tensor:
        """The sum, moved back."""
        return self._back.applied(self._signals.group_sum(weights, groups), self._signals.layout)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One training's outcome; `predicted` is empty for a language model."""

    losses: FloatArray
    weights: Mapping[str, Tensor]
    answers: FloatArray
    predicted: FloatArray
    test_loss: float
    accuracy: float


def _trained(plan: Plan, mechanism: GradientMechanism, model: Model, journey: _Journey | None) -> _Run:
    """Train by the plan, shuffled where there is a journey."""
    model.module.eval()
    steps = _steps(plan, mechanism, model, journey)
    samples = step_samples(plan, np.random.default_rng(Seeds.of(plan).sampling))
    losses = []
    for step in range(plan.steps):
        losses.append(steps.update(next(samples)))
        steps.descend(learning_rate(plan, step))
    steps.close()
    weights = {name: p.detach().clone() for name, p in trainable(model.module).items()}
    tokens = record_log_likelihoods(model, plan.held_out)
    answers = np.concatenate([np.zeros(0), *tokens])
    test_loss = float(-answers.mean()) if len(answers) else math.nan
    predicted, accuracy = np.zeros(0), math.nan
    if model.kind == "classification" and plan.held_out:
        answers, predicted, accuracy = _classified(model, plan.held_out)
    return _Run(
        losses=np.array(losses),
        weights=weights,
        answers=answers,
        predicted=predicted,
        test_loss=test_loss,
        accuracy=accuracy,
    )


def _steps(plan: Plan, mechanism: GradientMechanism, model: Model, journey: _Journey | None) -> Steps:
    """The mechanism's steps, or their shuffled twin."""
    made = mechanism.steps(plan, model)
    if type(made) not in (PlainSums, PrivatisedSums):
        raise UnsupportedError(
            f"{type(mechanism).__name__} has steps of its own ({type(made).__name__}); "
            "their shuffled twin is not known"
        )
    if journey is None:
        return made
    if type(made) is PlainSums:
        plain = _ShuffledPlain(plan, model, mechanism.micro_batch_size)
        plain.journey = journey
        return plain
    if journey.noise is Noise.MOVES:
        size = mechanism.micro_batch_size
        mechanism = _FromTheStart(inner=mechanism, journey=journey, micro_batch_size=size)
    privatised = _ShuffledPrivatised(mechanism, plan, model)
    privatised.journey = journey
    return privatised


def _classified(model: Model, records: Sequence[Record]) -> tuple[FloatArray, FloatArray, float]:
    """Log-likelihoods of all labels that occur, flat; the predicted labels; the share that is right."""
    labels = sorted({record.label for record in records if record.label is not None})
    rows = [record_losses(model, [replace(record, label=label) for record in records]) for label in labels]
    predicted = np.array(labels, dtype=np.float64)[np.argmin(np.stack(rows), axis=0)]
    right = predicted == np.array([record.label for record in records])
    return -np.concatenate(rows), predicted, float(np.mean(right))


def _largest(here: FloatArray, there: FloatArray) -> float:
    """Largest absolute difference; steps without records have no loss in either run."""
    differences = np.abs(here - there)[~(np.isnan(here) & np.isnan(there))]
    return float(differences.max(initial=0.0))


def _same(here: FloatArray, there: FloatArray) -> float:
    return float(np.mean(here == there)) if len(here) else math.nan


def _distance(here: Tensor, there: Tensor) -> float:
    return float(torch.linalg.vector_norm((here - there).double()))
