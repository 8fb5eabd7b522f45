"""The transcript game: which trainings held the canary record, by the signs that they released?

Half of many independent trainings hold the canary record, in random order; the adversary sees mask,
directions and signs of every step. `workbench.games.transcript.play` trains, and says what the adversary
knows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.estimation.low_fpr import low_fpr_details
from workbench.execution.engine import Job
from workbench.games.base import Game, Match, Played, Round, Scale, flat_record, pooled, pooled_cost
from workbench.interfaces import (
    Adjacency,
    Attack,
    Evidence,
    FloatArray,
    GameTerms,
    IntArray,
    Mechanism,
    Plan,
    Record,
    Release,
    Released,
    Secret,
    Subject,
    Trials,
)
from workbench.interfaces.evidence import terms_from
from workbench.training.setup import TrainingSetup, create_attack


@dataclass(frozen=True, kw_only=True)
class FiredStep:
    """A step of a masked-sign mechanism in which groups fired, for a watcher who knows all records.

    Valid only while the watcher runs: the functions read the model before the step's update.

    Attributes:
        step: Index from 0.
        sample: Indices into `plan.records` of the records that took part.
        groups: Indices of the groups that fired, increasing, k of them.
        signs: What was released for each.
        of_sum: For some records of any plan, the inner product of the sum of their gradients with each fired
            group's direction, shape `(k,)`, in the mechanism's own arithmetic: for the records of the sample
            in their order, the very numbers whose signs were released. A record that stands for a gradient
            canary counts with the canary's gradient. An empty sequence gives zeros.
        of_each: The same of each record separately, shape `(k, n)`.
    """

    step: int
    sample: IntArray
    groups: tuple[int, ...]
    signs: tuple[int, ...]
    of_sum: Callable[[Sequence[Record]], FloatArray]
    of_each: Callable[[Sequence[Record]], FloatArray]


@dataclass(frozen=True, kw_only=True)
class SignReading:
    """One training's released signs, and what an adversary who knows every record but one computes.

    Attributes:
        step: Step of each firing, shape `(F,)`, non-decreasing.
        sign: Released sign of each firing, shape `(F,)`: -1, 1, or 0 for a zero gradient kept silent.
        canary: Inner product of the canary's gradient with the firing's direction, shape `(F,)`.
        without: Inner product of the sum of the other records that took part, shape `(F,)`, for an adversary
            who knows which ones did; else None.
        others: Inner product of each other record's gradient, shape `(F, N)`, for an adversary who does not
            know which of them took part; else None.
    """

    step: IntArray
    sign: IntArray
    canary: FloatArray
    without: FloatArray | None = None
    others: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class SignObservations:
    """What the adversary of a transcript game sees, without the coins.

    Attributes:
        trials: One reading a training.
        sampling_probability: s, with which each record takes part in a step, independently.
        zero_gradient: What a firing of inner product zero releases: `"silent"` (0) or `"coin"`, a fair sign.
    """

    trials: tuple[SignReading, ...]
    sampling_probability: float
    zero_gradient: str


class WatchedMechanism(Mechanism):
    """A mechanism of masked signs whose fired steps can be watched.

    Attributes:
        public_seed: Seed of mask and directions; None to draw one for each training.
        zero_gradient: See `SignObservations`.
        dither_standard_deviation: Of the noise that is added before a sign is taken; 0 for none.
    """

    public_seed: int | None
    zero_gradient: str
    dither_standard_deviation: float

    @abstractmethod
    def train_watched(
        self,
        plan: Plan,
        watch: Callable[[FiredStep], None],
        progress: Callable[[int, int], None] | None = None,
    ) -> Subject:
        """As `train`, calling `watch` in every step in which a group fired; watching changes no number."""


class TranscriptAttack(Attack[SignObservations]):
    """An attack that scores each training by its released signs.

    Attributes:
        canary, others, knowledge: See `workbench.games.transcript.play`.
        trials: Number of independent trainings, even.
    """

    game = "transcript"
    canary: str
    others: str
    knowledge: str
    trials: int


WORST_OTHERS = {"opposed": "copies"}
"""The data set around a canary in an audit by default: the one in which it does most harm."""

_SUMMED = ("certain",)
"""Details of a part that count trials; all others are means over trials."""


def beyond_transcript(canary: str, others: str, knowledge: str) -> str:
    """Returns what an adversary of the game knows that no released transcript shows; empty for nothing.

    A claim about a transcript is about its law over the mechanism's secret coins, the batches among them.
    Among copies of one record an opposed canary turns every sum around, whoever else takes part, so that
    knowing the batches changes no guess there.
    """
    if knowledge != "batches" or (canary, others) == ("opposed", "copies"):
        return ""
    return "in which steps the other records took part"


@register("game", "transcript")
class TranscriptGame(Game[TranscriptAttack]):
    """Half of many trainings hold the canary record; each is scored by the signs that it released."""

    name = "transcript"
    title = "transcript"
    attack_type = TranscriptAttack
    released = Released.EVERY_UPDATE
    secrets = frozenset({Secret.RECORD})
    most_trials = 100
    stage = "playing transcripts"

    def check(self, match: Match[TranscriptAttack]) -> None:
        """Refuses a mechanism without signs or with a fixed public seed, and a plan with unusable records."""
        from workbench.games.transcript.play import check_records

        match.require(Release.SIGNS, "released signs")
        watchable(match.mechanism)
        check_records(match.plan, match.attack.knowledge)

    def variants(self, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns one game a canary; several may be named, separated by commas.

        Raises `InputError`: a canary is named twice.
        """
        named = (
            [part.strip() for part in str(parameters["canary"]).split(",")] if "canary" in parameters else []
        )
        if len(set(named)) < len(named):
            raise InputError(f"canary must not name one twice, got {parameters['canary']!r}")
        games = [{**parameters, "canary": canary} for canary in named] or [dict(parameters)]
        for game in games:
            others = WORST_OTHERS.get(game.get("canary", "opposed"))
            if others is not None:
                game.setdefault("others", others)
        return games

    def name_of(self, name: str, attack: TranscriptAttack) -> str:
        """Adds the canary."""
        return f"{name} ({attack.canary})"

    def jobs(
        self, setup: TrainingSetup, included: Sequence[bool], name: str, given: Mapping[str, Any]
    ) -> list[Job]:
        """Parts of at most `most_trials` trainings."""
        attack = self.adopt(name, create_attack(setup, name, given))
        return self.cut(setup, included, name, given, trials=attack.trials)

    def cost(self, attack: TranscriptAttack) -> tuple[Scale, ...]:
        """Time grows with the number of trainings."""
        return (Scale(parameter="trials", count=attack.trials, few=0, more=20),)

    def play(self, match: Match[TranscriptAttack]) -> Played:
        """Trains with and without the canary record, and scores the released signs."""
        from workbench.games.transcript.play import play_transcripts

        attack = match.attack
        names = {"canary": attack.canary, "others": attack.others, "knowledge": attack.knowledge}
        played = play_transcripts(
            match.mechanism,
            match.plan,
            **names,
            trials=match.part.trials or attack.trials,
            seed=match.seed(attack.canary),
            progress=match.steps("trials"),
        )
        scores = attack.score(played.observations, match.generator(attack.canary))
        scored = Round(
            name=match.part.attack,
            scores=scores.values,
            members=played.included,
            terms=self.terms(match.plan, **names, zero_gradient=played.observations.zero_gradient),
            details=scores.details,
        )
        return Played(rounds=(scored,), subject=played.subject)

    def terms(
        self, plan: Plan, *, canary: str, others: str, knowledge: str, zero_gradient: str = "silent"
    ) -> GameTerms:
        """What is played, for the judge; `zero_gradient` is the mechanism's rule (`SignObservations`).

        Raises `InputError`: an unknown name.
        """
        from workbench.games.transcript.play import chance_of_nobody, check_names

        check_names(canary, others, knowledge)
        beyond = beyond_transcript(canary, others, knowledge)
        if knowledge == "batches" and zero_gradient == "coin" and chance_of_nobody(plan) > NOBODY:
            # A coin may turn a sign as the canary does, but in a batch without anybody: to know those is
            # worth something, even among copies. Where a zero is silent the ratio is the same either way.
            beyond = beyond or "in which steps no other record took part"
        return GameTerms(
            description=self.words().text(
                "terms", canary=canary, others=others, knowledge=knowledge, steps=plan.steps
            ),
            trials=Trials.INDEPENDENT,
            released=self.released,
            adjacency=Adjacency.ADD_REMOVE,
            beyond=beyond,
        )

    def record(self, match: Match[TranscriptAttack], played: Played) -> dict[str, Any]:
        """Returns the trials of a part."""
        return flat_record(played)

    def evidence(
        self, name: str, records: Sequence[Mapping[str, JSON]], *, seed: int, confidence: float
    ) -> tuple[Evidence, ...]:
        """Reads all parts as one piece of evidence."""
        scores, members = pooled(records)
        sizes = np.array([len(record["scores"]) for record in records], dtype=np.float64)
        details = {}
        for detail in records[0]["details"]:
            values = np.array([float(record["details"][detail]) for record in records])
            details[detail] = float(values.sum() if detail in _SUMMED else np.average(values, weights=sizes))
        evidence = Evidence(
            scores=scores,
            members=members,
            game=terms_from(records[0]["game"]),
            attack=name,
            seeds={"audit": seed},
            cost=pooled_cost(records),
            details={**details, **low_fpr_details(scores, members, confidence=confidence)},
        )
        return (evidence,)


NOBODY = 1e-8
"""A chance of a training with an empty batch below which no number of trials meets one."""


def watchable(mechanism: Mechanism) -> WatchedMechanism:
    """Returns the mechanism as one whose transcripts can be read.

    Raises `InputError`: its public seed is fixed: all trials would share one mask, and a claim is about all
    masks. `UnsupportedError`: it releases no masked signs, or dithers them.
    """
    if not isinstance(mechanism, WatchedMechanism):
        raise UnsupportedError(
            f"mechanism {type(mechanism).__name__} releases no masked signs, so it has no transcript to read"
        )
    if mechanism.public_seed is not None:
        raise InputError(
            "public_seed must be None in a transcript game, whose trials draw their own masks, got "
            f"{mechanism.public_seed}"
        )
    if mechanism.dither_standard_deviation > 0.0:
        raise UnsupportedError(
            "a transcript game reads signs of sums, not of dithered ones "
            f"(dither_standard_deviation {mechanism.dither_standard_deviation:g})"
        )
    return mechanism
