"""The weights game: which trainings held the canary record, by the weights that they released in the end?

Half of many independent trainings hold the canary record, in random order; each has its own batches, drawn in
secret, and its own noise. The adversary sees the released weights and the public initial ones (those of the
pre-trained model), knows every other record, the plan and the mechanism, and so may train its own references;
where the mechanism noises finished weights, the references are taken before that. References and trials share
no training and no noise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.core.streams import stream
from workbench.execution.tasks import silent
from workbench.games.base import (
    Game,
    Match,
    Played,
    Round,
    Scale,
    drawn_seed,
    half_included,
    many_trainings,
    two_worlds,
)
from workbench.interfaces import (
    Adjacency,
    Attack,
    BoolArray,
    FloatArray,
    GameTerms,
    Mechanism,
    Model,
    Plan,
    PostHocMechanism,
    Released,
    Sampling,
    Secret,
    Subject,
    Trials,
)


@dataclass(frozen=True, kw_only=True)
class WeightsSeen:
    """What the adversary sees of n trainings, without the labels.

    Attributes:
        values: Released weights of each less the public initial ones, shape `(n, d)`.
        references: Finished weights of the adversary's own trainings less initial ones, shape `(r, d)`; taken
            before the mechanism noises them.
        included: Which references held the canary, shape `(r,)`.
        noise_scale: Standard deviation of the noise that the mechanism is known to add to finished weights.
    """

    values: FloatArray
    references: FloatArray
    included: BoolArray
    noise_scale: float = 0.0


class WeightsAttack(Attack[WeightsSeen]):
    """An attack that puts a canary record into a plan and scores each training's released weights.

    `trials`: number of independent trainings. `references`: number of the adversary's own trainings with the
    canary, and again without.
    """

    game = "weights"
    trials: int
    references: int

    @abstractmethod
    def insert(self, plan: Plan, generator: np.random.Generator) -> tuple[Plan, str]:
        """Returns the plan with the canary in the place of its last record, and that record's id."""


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
    order, trial_seeds, reference_seeds, initial = (
        np.random.default_rng(world) for world in np.random.SeedSequence(seed).spawn(4)
    )
    worlds = two_worlds(plan, without=canary, start=drawn_seed(initial))
    included = half_included(trials, order)
    known = np.arange(2 * references) < references
    subjects: list[Subject] = []
    total = trials + 2 * references
    is_trial = iter(np.arange(total) >= 2 * references)

    def change(inside: bool) -> FloatArray:
        """The change of the weights in one training with or without the canary."""
        released = bool(next(is_trial))
        world = replace(worlds[inside], seed=drawn_seed(trial_seeds if released else reference_seeds))
        trained = _trained(mechanism, world, released=released)
        if not subjects:
            if isinstance(mechanism, PostHocMechanism):
                subjects.append(mechanism.release(trained, world))
            else:
                subjects.append(trained)
        return _change(trained, world, total)

    changes = np.stack(many_trainings(np.concatenate([known, included]), change, progress))
    (subject,), noise = subjects, 0.0
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
    from workbench.training.fine_tuning import build_model
    from workbench.training.subject import TrainedSubject

    if not isinstance(subject, TrainedSubject):
        raise InputError("a weights game needs subjects of gradient mechanisms")
    after, before = _flat(subject.model), _flat(build_model(plan))
    if rows * after.size > LARGEST:
        raise InputError(
            f"a weights game of {rows} trainings of {after.size} weights is too large: "
            "play fewer trials, or adapt a smaller model"
        )
    return after - before


def _flat(model: Model) -> FloatArray:
    from workbench.training.fine_tuning import trainable

    parts = [p.detach().cpu().double().numpy().ravel() for p in trainable(model.module).values()]
    return np.concatenate(parts)


@register("game", "weights")
class WeightsGame(Game[WeightsAttack]):
    """Half of many trainings hold the canary record; each is scored by the weights that it released."""

    name = "weights"
    title = "weights"
    attack_type = WeightsAttack
    released = Released.FINAL_WEIGHTS
    secrets = frozenset({Secret.RECORD})

    def check(self, match: Match[WeightsAttack]) -> None:
        """Refuses a plan without another record besides the canary."""
        if len(match.plan.records) < 2:
            raise InputError(f"records must be two or more, got {len(match.plan.records)}")

    def cost(self, attack: WeightsAttack) -> tuple[Scale, ...]:
        """Time grows with the number of trainings."""
        return (Scale(parameter="trials", count=attack.trials, few=0, more=20),)

    def play(self, match: Match[WeightsAttack]) -> Played:
        """Trains with and without the canary record, and scores the weights."""
        attack = match.attack
        plan, canary = attack.insert(match.plan, stream(match.part.setup.seed, "insertions"))
        played = play_weights(
            match.mechanism,
            plan,
            canary=canary,
            trials=attack.trials,
            references=attack.references,
            seed=match.seed(),
            progress=match.steps("trainings"),
        )
        scores = attack.score(played.observations, match.generator())
        scored = Round(
            name=match.part.attack,
            scores=scores.values,
            members=played.included,
            terms=self.terms(plan, canary=canary, references=attack.references),
            details=scores.details,
        )
        return Played(rounds=(scored,), subject=played.subject)

    def terms(self, plan: Plan, *, canary: str, references: int) -> GameTerms:
        """Returns what is played, for the judge; `references` is the number of references of either kind."""
        is_shuffled = plan.sampling is Sampling.SHUFFLED
        return GameTerms(
            description=self.words().text(
                "terms", is_shuffled=is_shuffled, canary=canary, references=references
            ),
            trials=Trials.INDEPENDENT,
            released=self.released,
            adjacency=Adjacency.ADD_REMOVE,
        )
