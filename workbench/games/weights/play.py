"""Plays the weights game: trainings with or without one record, and the weights that they release in the end.

Half of the trainings hold the canary record, in an order drawn at random. Every training is one independent
trial: its own batches, drawn in secret, and its own noise. The adversary sees the released weights and the
public initial ones (those of the pre-trained model), knows every other record, the plan and the mechanism,
and so may train its own references; where the mechanism noises finished weights, the references are taken
before that. References and trials share no training and no noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workbench.core.errors import InputError
from workbench.execution.tasks import silent
from workbench.games.base import drawn_seed, half_included
from workbench.games.weights import WeightsSeen
from workbench.interfaces import BoolArray, FloatArray, Mechanism, Model, Plan, PostHocMechanism, Subject
from workbench.training.fine_tuning import build_model, trainable
from workbench.training.subject import TrainedSubject

LARGEST = 200_000_000
"""Most numbers that a game keeps: 1.6 gigabytes."""


@dataclass(frozen=True, kw_only=True)
class WeightTrials:
    """The trials that were played.

    Attributes:
        observations: What the adversary sees, a row of weights a trial.
        included: Which trials held the canary, half of them; the attack never sees it.
        subject: The release of one more training by the adversary, with the canary.
    """

    observations: WeightsSeen
    included: BoolArray
    subject: Subject


def play_weights(
    mechanism: Mechanism,
    plan: Plan,
    *,
    canary: str,
    trials: int,
    references: int,
    seed: int,
    progress: Callable[[int, int], None] = silent,
) -> WeightTrials:
    """Trains every trial and reference.

    Args:
        mechanism: Of a gradient mechanism's kind.
        plan: That of the data with the canary; its own seed is not used. Without it the same plan holds, with
            one record less, and `public_size` (the number of records with it, where None) unchanged. Every
            training starts from the same initial weights.
        canary: Id of the record that comes and goes.
        trials: Number of trials, >= 4.
        references: Number of references with the canary, and again without, >= 2.
        seed: Of the trials' order and of every training.

    Raises `InputError`: a number is out of range, or the plan does not hold the canary once, among other
    records.
    """
    if trials < 4 or references < 2:
        raise InputError(f"a weights game needs 4 trials and 2 references, got {trials} and {references}")
    mechanism = mechanism.without_quality()
    if [record.id for record in plan.records].count(canary) != 1 or len(plan.records) < 2:
        raise InputError(f"records must hold {canary!r} once, beside others")
    size = len(plan.records) if plan.public_size is None else plan.public_size
    order, trial_seeds, reference_seeds, initial = (
        np.random.default_rng(world) for world in np.random.SeedSequence(seed).spawn(4)
    )
    start = drawn_seed(initial) if plan.initial_seed is None else plan.initial_seed
    with_canary = replace(plan, held_out=(), public_size=size, initial_seed=start)
    rest = tuple(record for record in plan.records if record.id != canary)
    worlds = {True: with_canary, False: replace(with_canary, records=rest)}
    included = half_included(trials, order)
    known = np.arange(2 * references) < references
    rows: list[FloatArray] = []
    subject: Subject | None = None
    total = trials + 2 * references
    for index in range(total):
        is_trial = index >= 2 * references
        inside = bool(included[index - 2 * references] if is_trial else known[index])
        seeds = trial_seeds if is_trial else reference_seeds
        world = replace(worlds[inside], seed=drawn_seed(seeds))
        trained = _trained(mechanism, world, released=is_trial)
        if subject is None:
            subject = (
                mechanism.release(trained, world) if isinstance(mechanism, PostHocMechanism) else trained
            )
        rows.append(_change(trained, world, total))
        progress(index + 1, total)
    assert subject is not None
    changes = np.stack(rows)
    noise = 0.0
    if isinstance(mechanism, PostHocMechanism):
        noise = subject.transcript.metrics.get("noise_scale", 0.0)
    return WeightTrials(
        observations=WeightsSeen(
            values=changes[2 * references :],
            references=changes[: 2 * references],
            included=known,
            noise_scale=float(noise),
        ),
        included=included,
        subject=subject,
    )


def paired_changes(
    mechanism: PostHocMechanism, plan: Plan, absent: Plan
) -> tuple[FloatArray, FloatArray, float]:
    """Returns unreleased weights of two plans of one seed, and the noise scale of the first one's release.

    For an analysis in which the order of the batches is public: given it, weights that are trained without
    noise are fixed, and a release of them is N(weights, scale^2 I). Both plans must draw the same batches.
    The weights are less the initial ones, with the canary and without, shape `(d,)` each.
    """
    trained = mechanism.train_unreleased(plan)
    scale = mechanism.release(trained, plan).transcript.metrics["noise_scale"]
    return _change(trained, plan, 2), _change(mechanism.train_unreleased(absent), absent, 2), float(scale)


def _trained(mechanism: Mechanism, plan: Plan, *, released: bool) -> Subject:
    if not released and isinstance(mechanism, PostHocMechanism):
        return mechanism.train_unreleased(plan)
    return mechanism.train(plan)


def _change(subject: Subject, plan: Plan, rows: int) -> FloatArray:
    """Trained weights less the initial ones of the plan, shape `(d,)`, float64."""
    if not isinstance(subject, TrainedSubject):
        raise InputError("a weights game needs subjects of gradient mechanisms")
    after, before = _flat(subject.model), _flat(build_model(plan))
    if rows * after.size > LARGEST:
        raise InputError(
            f"a weights game of {rows} trainings of {after.size} weights is too large: play fewer trials, or "
            "adapt a smaller model"
        )
    return after - before


def _flat(model: Model) -> FloatArray:
    parts = [p.detach().cpu().double().numpy().ravel() for p in trainable(model.module).values()]
    return np.concatenate(parts)
