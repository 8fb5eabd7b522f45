"""The retraining game: which of many trainings held the canary record, by its loss under each trained model?

Half of many independent trainings hold the canary, in random order; each has its own secret samples and its
own noise. The adversary asks each trained model for the canary's loss and sees nothing else, but chose the
canary, knows every other record, the plan, the mechanism and the initial weights. These are the plan's own,
or, where the game's name says so, chosen by the adversary too: fitted to records of the attack's choice, so
that the other records hardly move the model any more and the canary is what is left to learn (Annamalai and
De Cristofaro 2024, "Nearly tight black-box auditing of differentially private machine learning"). A claim of
differential privacy holds for all initial weights that do not depend on whether the canary takes part.

Models that an ensemble can train are trained many at once; others one after the other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.core.streams import stream
from workbench.execution.engine import Job
from workbench.games.base import (
    Game,
    Match,
    Played,
    Round,
    Scale,
    drawn_seed,
    flat_record,
    half_included,
    many_trainings,
    pooled,
    pooled_cost,
    quickened,
    two_worlds,
)
from workbench.interfaces import (
    Attack,
    Evidence,
    FloatArray,
    GameTerms,
    Mechanism,
    Plan,
    Record,
    Released,
    Sampling,
    Secret,
    Trials,
)
from workbench.interfaces.evidence import terms_from
from workbench.training.setup import TrainingSetup, create_attack

if TYPE_CHECKING:
    from torch import Tensor


class Initialisation(StrEnum):
    """Who chose the weights that all trainings start from."""

    PLAN = "plan"
    """Drawn as the plan draws them, once for all trainings, and public."""
    WORST_CASE = "worst-case"
    """The adversary, who fits them to records of its choice (`RetrainingAttack.fitted`)."""


@dataclass(frozen=True, kw_only=True)
class RetrainingSeen:
    """Losses of the canary record under each trained model, nats, shape `(trials,)`."""

    losses: FloatArray


class RetrainingAttack(Attack[RetrainingSeen]):
    """An attack that crafts a canary record, and scores each training by the canary's loss.

    `trials`: number of independent trainings. `initialisation`: who chose the initial weights.
    `precision`: of an ensemble's products.
    """

    game = "retraining"
    trials: int
    initialisation: Initialisation
    precision: str = "float32"

    @abstractmethod
    def insert(self, plan: Plan, generator: np.random.Generator) -> tuple[Plan, Record]:
        """Returns the plan with the canary in the place of its last record, and the canary."""

    def fitted(self, others: tuple[Record, ...], canary: Record) -> tuple[Record, ...]:
        """Returns the records that worst-case weights fit: all but the canary, unless overridden."""
        return others


@register("game", "retraining")
class RetrainingGame(Game[RetrainingAttack]):
    """Half of many trainings hold the canary record; each is scored by the canary's loss."""

    name = "retraining"
    title = "retraining"
    attack_type = RetrainingAttack
    released = Released.SCORES
    secrets = frozenset({Secret.RECORD})
    most_trials = 1000
    stage = "retraining"

    def check(self, match: Match[RetrainingAttack]) -> None:
        """Refuses a plan without another record, and worst-case weights where no ensemble takes them."""
        from workbench.training.ensemble.together import refusal

        if len(match.plan.records) < 2:
            raise InputError(f"records must be two or more, got {len(match.plan.records)}")
        wanted = [f"initialisation {match.attack.initialisation.value!r}"]
        if match.attack.initialisation is not Initialisation.WORST_CASE:
            wanted = []
        if match.attack.precision != "float32":
            wanted.append(f"precision {match.attack.precision!r}")
        reason = refusal(match.mechanism, match.plan) if wanted else ""
        if reason:
            raise UnsupportedError(f"{wanted[0]} needs an ensemble: {reason}")

    def name_of(self, name: str, attack: RetrainingAttack) -> str:
        """The attack's name, and the initialisation where the adversary chose it."""
        worst = attack.initialisation is Initialisation.WORST_CASE
        return f"{name} (worst-case initialisation)" if worst else name

    def jobs(
        self, setup: TrainingSetup, included: Sequence[bool], name: str, given: Mapping[str, Any]
    ) -> list[Job]:
        """Parts of at most `most_trials` trainings."""
        attack = self.adopt(name, create_attack(setup, name, given))
        return self.cut(setup, included, name, given, trials=attack.trials)

    def cost(self, attack: RetrainingAttack) -> tuple[Scale, ...]:
        """Time grows with the number of trainings."""
        return (Scale(parameter="trials", count=attack.trials, few=20, more=200),)

    def play(self, match: Match[RetrainingAttack]) -> Played:
        """Trains with and without the canary record, and asks each model for its loss."""
        attack, part = match.attack, match.part
        plan, canary = attack.insert(match.plan, stream(part.setup.seed, "insertions"))
        worlds = two_worlds(plan, without=canary.id, start=plan.seed)
        order, seeds = (np.random.default_rng(s) for s in np.random.SeedSequence(match.seed()).spawn(2))
        included = half_included(part.trials or attack.trials, order)
        plans = [replace(worlds[takes_part], seed=drawn_seed(seeds)) for takes_part in included.tolist()]
        initial = None
        if attack.initialisation is Initialisation.WORST_CASE:
            from workbench.training.ensemble.together import fitted_weights

            others = worlds[False]
            initial = fitted_weights(replace(others, records=attack.fitted(others.records, canary)))
        losses = canary_losses(
            quickened(match.mechanism, plan),
            plans,
            canary,
            initial=initial,
            precision=attack.precision,
            progress=match.steps("trainings"),
        )
        scores = attack.score(RetrainingSeen(losses=losses), match.generator())
        scored = Round(
            name=self.name_of(part.attack, attack),
            scores=scores.values,
            members=included,
            terms=self.terms(plan, canary, attack.initialisation),
            details=scores.details,
        )
        return Played(rounds=(scored,))

    def terms(self, plan: Plan, canary: Record, initialisation: Initialisation) -> GameTerms:
        """Returns what is played, for the judge."""
        return GameTerms(
            description=self.words().text(
                "terms",
                canary=canary.id,
                is_shuffled=plan.sampling is Sampling.SHUFFLED,
                is_worst=initialisation is Initialisation.WORST_CASE,
            ),
            trials=Trials.INDEPENDENT,
            released=self.released,
            adjacency=next(iter(self.adjacencies)),
        )

    def record(self, match: Match[RetrainingAttack], played: Played) -> dict[str, Any]:
        """Returns the trials of a part."""
        return flat_record(played)

    def evidence(
        self, name: str, records: Sequence[Mapping[str, JSON]], *, seed: int, confidence: float
    ) -> tuple[Evidence, ...]:
        """Reads all parts as one piece of evidence."""
        scores, members = pooled(records)
        evidence = Evidence(
            scores=scores,
            members=members,
            game=terms_from(records[0]["game"]),
            attack=name,
            seeds={"audit": seed},
            cost=pooled_cost(records),
            details={"mean_score_gap": float(scores[members].mean() - scores[~members].mean())},
        )
        return (evidence,)


def canary_losses(
    mechanism: Mechanism,
    plans: Sequence[Plan],
    canary: Record,
    *,
    initial: Tensor | None,
    precision: str,
    progress: Callable[[int, int], None] | None,
) -> FloatArray:
    """Losses of the canary under a model trained by each plan, nats, shape `(n,)`; as ensembles where it can.

    For an ensemble alone, `initial`: weights from which all start, None for the plans' own; `precision`: of
    its products.
    """
    from workbench.training.ensemble.together import refusal, trained_ensembles
    from workbench.training.loop import GradientMechanism

    if isinstance(mechanism, GradientMechanism) and not refusal(mechanism, plans[0]):
        given: Any = {"initial": initial, "precision": precision, "progress": progress}
        ensembles = trained_ensembles(mechanism, plans, **given)
        return np.concatenate([ensemble.losses([canary])[:, 0] for ensemble in ensembles])
    left = iter(plans)

    def loss(_: bool) -> float:
        return float(mechanism.train(next(left)).losses([canary])[0])

    return np.array(many_trainings(np.ones(len(plans), dtype=bool), loss, progress))
