"""The trajectory game: what do clip radii and noise multipliers alone reveal of one record?

Half of many independent trainings hold the canary record, in random order; the adversary sees which radii and
noise multipliers each step used, and no update. `workbench.games.trajectory.play` trains.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.registry import register
from workbench.games.base import Game, Match, Played, Round, Scale
from workbench.interfaces import (
    Adjacency,
    Attack,
    FloatArray,
    GameTerms,
    Plan,
    Release,
    Released,
    Secret,
    Trials,
)


@dataclass(frozen=True, kw_only=True)
class TrajectoryObservations:
    """What the adversary of a trajectory game sees of n trainings over k steps, without the coins.

    Attributes:
        radii: Clip radius of each clipping group that the mechanism traced, in each step, shape `(n, k, G)`;
            G is 1 for one that has a single radius, or traced their mean alone.
        noise_multipliers: Of each step, shape `(n, k)`.
        canary_norms: Norm of the canary's gradient in each of these groups, in every step, shape `(G,)`.
    """

    radii: FloatArray
    noise_multipliers: FloatArray
    canary_norms: FloatArray


class TrajectoryAttack(Attack[TrajectoryObservations]):
    """An attack that scores each training by its radii and noise multipliers.

    Attributes:
        canary: See `workbench.games.trajectory.play`.
        trials: Number of independent trainings.
        steps: Watched steps of each, from the first on; 0 for all.
    """

    game = "trajectory"
    canary: str
    trials: int
    steps: int

    def world(self, plan: Plan) -> Plan:
        """Plan of the trainings: the audited one, or an equal one on other data and another model.

        A mechanism's claim is about any data and model, so either may refute it.
        """
        return plan


@register("game", "trajectory")
class TrajectoryGame(Game[TrajectoryAttack]):
    """Half of many trainings hold the canary record; each is scored by its radii and noise multipliers."""

    name = "trajectory"
    title = "trajectory"
    attack_type = TrajectoryAttack
    adjacencies = frozenset({Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE})
    released = Released.EVERY_UPDATE
    secrets = frozenset({Secret.RECORD})
    plays_elsewhere = True

    def check(self, match: Match[TrajectoryAttack]) -> None:
        """Refuses a mechanism that clips no gradients, and a plan with too few records."""
        from workbench.games.trajectory.play import check_playable

        match.require(Release.SUMS, "the clip radii of noised sums")
        attack, adjacency = match.attack, match.mechanism.capabilities.adjacency
        check_playable(match.mechanism, match.plan, attack.canary, attack.trials, adjacency)

    def cost(self, attack: TrajectoryAttack) -> tuple[Scale, ...]:
        """Time grows with the number of trainings."""
        return (Scale(parameter="trials", count=attack.trials, few=0, more=20),)

    def play(self, match: Match[TrajectoryAttack]) -> Played:
        """Trains with and without the canary record, and scores radii and noise multipliers."""
        from workbench.games.trajectory.play import play_trajectories

        attack, adjacency = match.attack, match.mechanism.capabilities.adjacency
        plan = attack.world(match.plan)
        played = play_trajectories(
            match.mechanism,
            plan,
            canary=attack.canary,
            trials=attack.trials,
            steps=attack.steps,
            adjacency=adjacency,
            seed=match.seed(),
            progress=match.steps("trajectories"),
        )
        scores = attack.score(played.observations, match.generator())
        terms = self.terms(plan, canary=attack.canary, steps=attack.steps, adjacency=adjacency)
        scored = Round(
            name=match.part.attack,
            scores=scores.values,
            members=played.included,
            terms=terms,
            details=scores.details,
        )
        return Played(rounds=(scored,))

    def terms(self, plan: Plan, *, canary: str, steps: int, adjacency: Adjacency) -> GameTerms:
        """Returns what is played, for the judge; `canary` and `steps` are the attack's."""
        watched = f"the first {steps} of {plan.steps} steps" if 0 < steps < plan.steps else "every step"
        is_replaced = adjacency is Adjacency.REPLACE_ONE
        words = self.words().text(
            "terms", model=plan.model, canary=canary, watched=watched, is_replaced=is_replaced
        )
        return GameTerms(
            description=words, trials=Trials.INDEPENDENT, released=self.released, adjacency=adjacency
        )
