"""The weights game: which trainings held the canary record, by the weights that they released in the end?

Half of many independent trainings hold the canary record, in random order; the adversary sees the released
weights, and has its own references. `workbench.games.weights.play` trains.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.core.registry import register
from workbench.core.streams import stream
from workbench.games.base import Game, Match, Played, Round, Scale
from workbench.interfaces import (
    Adjacency,
    Attack,
    BoolArray,
    FloatArray,
    GameTerms,
    Plan,
    Released,
    Sampling,
    Secret,
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

    Attributes:
        trials: Number of independent trainings.
        references: Number of the adversary's own trainings with the canary, and again without.
    """

    game = "weights"
    trials: int
    references: int

    @abstractmethod
    def insert(self, plan: Plan, generator: np.random.Generator) -> tuple[Plan, str]:
        """Returns the plan with the canary in the place of its last record, and that record's id."""


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
        from workbench.games.weights.play import play_weights

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
