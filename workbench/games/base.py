"""The protocol of a game: who it can be played with, how its trials are played, and what evidence they are.

A game is one file (or folder) that registers a `Game`, an attack that names it, and a template of its words.
The audits and the studies of the workbench know games by this protocol alone.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.core import registry
from workbench.core.cost import cost_since
from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream, stream_seed
from workbench.core.templates import Words
from workbench.execution.engine import Job
from workbench.execution.tasks import StepProgress, silent
from workbench.games.words import Judged, view_words
from workbench.interfaces import (
    Adjacency,
    Attack,
    BoolArray,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Mechanism,
    Plan,
    Record,
    Release,
    Released,
    Secret,
    Subject,
)
from workbench.interfaces.evidence import evidence_from
from workbench.training.setup import (
    TrainingSetup,
    content_digest,
    create_attack,
    create_mechanism,
    make_plan,
    prepare,
)

AttackT = TypeVar("AttackT", bound="Attack[Any]")
T = TypeVar("T")


AUDIT_PARAMETERS = ("trials", "counted")
"""Parameters of an attack that say how much is played, and are no part of what a single part is."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some trials of a game: the payload of a task.

    Attributes:
        setup: Of the subject: mechanism, data, plan, and the parameters of the attacks that insert canaries.
        attack: Registry name of the attack.
        parameters: Of the attack; None for those in the setup.
        included: Which candidates the plan, or the target, holds.
        shadows: The same of each shadow model.
        trials: Number of trials; 0 for as many as the attack wants.
        index: Which part of the game, from 0; None for the whole game in one part.
        by_coin: Each candidate was included by a coin of an audit; False for the split of a study.
        kind: Tells parts of a game that are played in different ways apart.
    """

    setup: TrainingSetup
    attack: str
    included: tuple[bool, ...]
    parameters: Mapping[str, Any] | None = None
    shadows: tuple[tuple[bool, ...], ...] = ()
    trials: int = 0
    index: int | None = None
    by_coin: bool = True
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Match(Generic[AttackT]):
    """A part of a game about to be played, with everything that it is played with.

    Attributes:
        part: What is to be played.
        attack: With its parameters.
        mechanism: Of the subject, with its parameters.
        plan: Of the target, or of the trainings of the game itself.
        target: The trained subject, for games that are played against one.
        references: The shadow models, in the order of `part.shadows`.
        progress: Told of trials done, their number, and the name of what is at work.
    """

    part: Part
    attack: AttackT
    mechanism: Mechanism
    plan: Plan
    target: Subject | None = None
    references: tuple[Subject, ...] = ()
    progress: StepProgress

    def required_target(self) -> Subject:
        """The target.

        Raises:
            InputError: there is none.
        """
        if self.target is None:
            raise InputError(f"attack {self.part.attack!r} needs a trained subject, got none")
        return self.target

    def candidates(self) -> tuple[Record, ...]:
        """All candidates, with the canaries of the setup's attacks in place."""
        return prepare(self.part.setup)[0]

    def require(self, release: Release, what: str) -> None:
        """Refuse a mechanism whose transcript does not hold what the attack reads.

        Raises:
            UnsupportedError: it does not.
        """
        if release not in self.mechanism.capabilities.releases:
            raise UnsupportedError(
                f"attack {self.part.attack!r} reads {what}, and {self.part.setup.mechanism} releases none: "
                "leave it out"
            )

    def seed(self, salt: str = "") -> int:
        """Seed of the game's trials; a part of a game has its own, which the salt tells from other games'."""
        return stream_seed(self.part.setup.seed, "attack", *self._own(salt))

    def generator(self, salt: str = "") -> np.random.Generator:
        """Random numbers for the scores."""
        name = "attack" if self.part.index is None else "releases"
        return stream(self.part.setup.seed, name, *self._own(salt))

    def steps(self, name: str) -> Callable[[int, int], None]:
        """Progress of one kind of trials."""
        return lambda done, total: self.progress(done, total, name)

    def _own(self, salt: str) -> tuple[int, ...]:
        return () if self.part.index is None else (self.part.index + 1, *salt.encode())


@dataclass(frozen=True, kw_only=True)
class Round:
    """The scored trials of one game.

    Attributes:
        name: In reports: the attack's, and what tells several rounds of one attack apart.
        scores, members: Shape `(n,)` each.
        terms: What was played.
        details: Named scalars for the report.
        texts: Text of each candidate, for the classifier that must not tell members without the model.
    """

    name: str
    scores: FloatArray
    members: BoolArray
    terms: GameTerms
    details: Mapping[str, float] = field(default_factory=dict)
    texts: tuple[str, ...] = ()

    def evidence(self) -> Evidence:
        """The round as evidence, without what its cost was."""
        return Evidence(
            scores=self.scores,
            members=self.members,
            game=self.terms,
            attack=self.name,
            blind_texts=self.texts,
            details=self.details,
        )

    def record(self) -> dict[str, Any]:
        """What a store's record keeps of it."""
        return {
            "attack": self.name,
            "scores": self.scores,
            "members": self.members,
            "game": self.terms,
            "details": dict(self.details),
            "blind_texts": self.texts,
        }


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a part of a game leaves.

    Attributes:
        rounds: Scored trials; several where one attack's trials are scored in several ways.
        subject: A trained subject, whose claim and metrics a study records; None where none was trained.
        extra: What else the part's record keeps.
        trials: What only the game itself reads further, and no record keeps.
    """

    rounds: tuple[Round, ...]
    subject: Subject | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    trials: Any = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a study records of a game.

    Attributes:
        scores, members: Of the round that stands for the experiment.
        metrics: Named numbers.
        extra: Further fields of the record.
    """

    scores: FloatArray
    members: BoolArray
    metrics: Mapping[str, float]
    extra: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A parameter of an attack that a game's time is linear in, for estimates of costs.

    Attributes:
        parameter: Its name.
        count: Its value in the game.
        few, more: Values at which a small game is tried; with 0 for `few` time is proportional to the value.
    """

    parameter: str
    count: int
    few: int
    more: int


class Game(ABC, Generic[AttackT]):
    """A game; registered under its name, and made without parameters.

    Attributes:
        name: Registry name.
        title: What messages call it.
        attack_type: What its attacks are: a subclass of `Attack` with all that the game asks of them.
        adjacencies: The pairs of data sets that its coin can decide between.
        released: What its adversary sees.
        secrets: What claims of nats it tests, by what they are about.
        uses_target: It is played against a trained subject, which several attacks share.
        trains_once: Its labels are the candidates of that one training.
        most_trials: A game of its own trainings is cut into parts of so many trials; 0 for one part.
        plays_elsewhere: An attack may choose other data and another model than the audited plan's; a report's
            notes then say which.
        stage: What an audit says while its parts are played.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    attack_type: ClassVar[type[Attack[Any]]]
    adjacencies: ClassVar[frozenset[Adjacency]] = frozenset({Adjacency.ADD_REMOVE})
    released: ClassVar[Released] = Released.EVERY_UPDATE
    secrets: ClassVar[frozenset[Secret]] = frozenset()
    uses_target: ClassVar[bool] = False
    trains_once: ClassVar[bool] = False
    most_trials: ClassVar[int] = 0
    plays_elsewhere: ClassVar[bool] = False
    stage: ClassVar[str] = "attacking"

    @abstractmethod
    def check(self, match: Match[AttackT]) -> None:
        """Refuse, before anything is trained, what the game cannot be played with; there is no target yet.

        Raises:
            InputError: a parameter or the data do not fit.
            UnsupportedError: the mechanism has nothing that the game is about.
        """

    @abstractmethod
    def play(self, match: Match[AttackT]) -> Played:
        """Play a part; pure in the part and the subjects."""

    def record(self, match: Match[AttackT], played: Played) -> dict[str, Any]:
        """What the store keeps of a part; `evidence` reads it."""
        seeds = {"audit": match.part.setup.seed, "training": match.plan.seed}
        return {"evidence": [{**scored.record(), "seeds": seeds} for scored in played.rounds], **played.extra}

    def variants(self, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The parameters of each of the games that an attack's parameters ask for; one, unless overridden."""
        return [dict(parameters)]

    def name_of(self, name: str, attack: AttackT) -> str:
        """What reports call the game of an attack with this registry name."""
        return name

    def jobs(
        self, setup: TrainingSetup, included: Sequence[bool], name: str, given: Mapping[str, Any]
    ) -> list[Job]:
        """The parts of a game of its own trainings, as jobs of an audit; none of more than `most_trials`."""
        raise UnsupportedError(f"a {self.title} game is played in one part")

    def cut(
        self,
        setup: TrainingSetup,
        included: Sequence[bool],
        name: str,
        given: Mapping[str, Any],
        *,
        trials: int,
    ) -> list[Job]:
        """Independent trainings as jobs of at most `most_trials` trials each, an even number.

        A game of a thousand trainings is a dozen jobs that workers share, and a killed audit loses the jobs
        under way only.
        """
        pairs, content = trials // 2, content_digest(setup)
        parts = -(-pairs // (self.most_trials // 2))
        parameters = {key: value for key, value in given.items() if key not in AUDIT_PARAMETERS}
        jobs = []
        for index in range(parts):
            part = Part(
                setup=setup,
                attack=name,
                parameters=parameters,
                included=tuple(map(bool, included)),
                trials=2 * (pairs * (index + 1) // parts - pairs * index // parts),
                index=index,
            )
            job = {
                "setup": plain(setup),
                "included": list(part.included),
                "attack": name,
                "parameters": plain(parameters),
                "trials": part.trials,
                "part": index,
            }
            identity = {"kind": self.name, "job": job, "content": content}
            jobs.append(Job(identity=identity, payload=part, label=name, content=content))
        return jobs

    def evidence(
        self, name: str, records: Sequence[Mapping[str, JSON]], *, seed: int, confidence: float
    ) -> tuple[Evidence, ...]:
        """The parts of a game, read back from the store, as evidence.

        Args:
            name: Of the game, in the report.
            records: Of its parts, in their order.
            seed: Of the audit, for the report.
            confidence: Of intervals among the details.
        """
        forms = [
            {"cost": record.get("cost", {}), **form} for record in records for form in record["evidence"]
        ]
        return tuple(evidence_from(form) for form in forms)

    def facts(self, records: Sequence[Mapping[str, JSON]], *, confidence: float) -> dict[str, JSON]:
        """What a report says of the game's subject besides its evidence; nothing, unless overridden."""
        return {}

    def outcome(self, match: Match[AttackT], played: Played) -> Outcome:
        """What a study records: the first round, unless overridden."""
        main, *_ = played.rounds
        metrics = {f"attack_{name}": float(value) for name, value in main.details.items()}
        return Outcome(scores=main.scores, members=main.members, metrics=metrics)

    def cost(self, attack: AttackT) -> tuple[Scale, ...]:
        """What the time of a game of its own trainings grows with; nothing for a game that trains once."""
        return ()

    def adopt(self, name: str, attack: Attack[Any]) -> AttackT:
        """The attack as one of this game's.

        Raises:
            InputError: it lacks what the game asks of its attacks.
        """
        if not isinstance(attack, self.attack_type):
            wanted = f"{self.attack_type.__module__}.{self.attack_type.__qualname__}"
            raise InputError(f"attack {name!r} plays a {self.title} game, so it must be a {wanted}")
        return attack  # type: ignore[return-value]

    def beside(self, claim: Claim, delta: float) -> tuple[str, Claim]:
        """What scores of ordinary members are held against where the claim in nats says nothing of them.

        Args:
            claim: Under audit.
            delta: Of readings as (epsilon, delta)-DP.

        Returns:
            The key of the view in the report, and the claim that it judges.
        """
        return read_as_dp(claim, delta)

    def views(self, judged: Judged) -> dict[str, JSON] | None:
        """An audit in words whose claim was judged by this game alone; None for no words of the game's own.

        Returns:
            `in_short` (one sentence on all verdicts), `notes`, the `heading` of the comparison, and `of`: the
            views (`workbench.games.words.view_form`).
        """
        return None

    def words(self) -> Words:
        """The game's template: the file next to its own that is named after it."""
        return view_words(Path(inspect.getfile(type(self))).with_name(f"{self.name}.j2"))


def flat_record(played: Played) -> dict[str, Any]:
    """What the record of a part keeps where all parts are one round: the trials themselves."""
    (scored,) = played.rounds
    kept = {name: value for name, value in scored.record().items() if name not in ("attack", "blind_texts")}
    return {**kept, **played.extra}


def pooled(records: Sequence[Mapping[str, JSON]]) -> tuple[FloatArray, BoolArray]:
    """Scores and labels of all parts, in their order."""
    scores = np.concatenate([np.array([float(score) for score in record["scores"]]) for record in records])
    return scores, np.concatenate([np.array(record["members"], dtype=bool) for record in records])


def pooled_cost(records: Sequence[Mapping[str, JSON]]) -> dict[str, float]:
    """Seconds of all parts, and the largest memory of one."""
    costs = [{name: float(value) for name, value in record["cost"].items()} for record in records]
    return {
        "seconds": sum(cost["seconds"] for cost in costs),
        "peak_memory_mb": max(cost["peak_memory_mb"] for cost in costs),
    }


def read_as_dp(claim: Claim, delta: float) -> tuple[str, Claim]:
    """Ordinary members, held against the claim as (epsilon, delta)-DP: itself, or the same number of nats."""
    if not isinstance(claim.guarantee, MutualInformation):
        return "members", claim
    return "members", Claim(
        guarantee=ApproximateDP(epsilon=claim.guarantee.nats, delta=delta),
        about=Adjacency.ADD_REMOVE,
        released=claim.released,
        source="a reading of the same number, not the authors' claim",
    )


def game_of(attack: Attack[Any] | type[Attack[Any]]) -> Game[Any]:
    """The game that an attack plays.

    Raises:
        InputError: nothing is registered under the name of its game, or it is no game.
    """
    game = registry.create("game", attack.game)
    if not isinstance(game, Game):
        raise InputError(f"game {attack.game!r} must be a subclass of workbench.games.base.Game")
    return game


def game_named(attack: str) -> Game[Any]:
    """The game of a registered attack, whatever its parameters.

    Raises:
        InputError: nothing is registered under the name, it is no attack, or its game is none.
    """
    entries = registry.entries("attack")
    if attack not in entries:
        raise unknown_name("attack", attack, entries)
    factory: object = entries[attack].factory
    if not (isinstance(factory, type) and issubclass(factory, Attack)):
        raise InputError(f"attack {attack!r} must be a subclass of workbench.interfaces.Attack")
    return game_of(factory)


def many_trainings(
    included: BoolArray, train: Callable[[bool], T], told: Callable[[int, int], None] | None
) -> list[T]:
    """One training a trial, in order: with the canary where the label is True.

    Args:
        included: Labels of the trials, shape `(n,)`.
        train: Trains one trial, with the canary or without it.
        told: Called with the trials done and their number after each.
    """
    found = []
    for index, inside in enumerate(included.tolist(), start=1):
        found.append(train(bool(inside)))
        if told is not None:
            told(index, included.size)
    return found


def half_included(trials: int, generator: np.random.Generator) -> BoolArray:
    """Labels of which half are True, in random order."""
    labels: BoolArray = generator.permutation(np.arange(trials) < trials // 2)
    return labels


def play_part(
    part: Part, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """The work of a task: play a part of a game.

    Args:
        part: What is to be played.
        inputs: Folders of the target (`"0"`) and of its shadow models (`"1"`, ...), where there are some.
        scratch: Left empty.
        progress: Told of trials.

    Returns:
        What the game's `record` keeps, and `cost`.
    """
    started = time.perf_counter()
    match = match_of(part, inputs, progress)
    played = game_of(match.attack).record(match, game_of(match.attack).play(match))
    return {**played, "cost": cost_since(started)}


def match_of(part: Part, inputs: Mapping[str, Path], progress: StepProgress = silent) -> Match[Any]:
    """Everything that a part is played with."""
    setup = part.setup
    attack = create_attack(setup, part.attack, part.parameters)
    mechanism = create_mechanism(setup)
    rows = (part.included, *part.shadows) if "0" in inputs else (part.included,)
    plans = [make_plan(setup, np.array(row, dtype=bool), run) for run, row in enumerate(rows)]
    subjects: list[Subject] = []
    if "0" in inputs:
        from workbench.training.subject import load_subject

        subjects = [load_subject(inputs[str(run)], mechanism, plan) for run, plan in enumerate(plans)]
    return Match(
        part=part,
        attack=game_of(attack).adopt(part.attack, attack),
        mechanism=mechanism,
        plan=plans[0],
        target=subjects[0] if subjects else None,
        references=tuple(subjects[1:]),
        progress=progress,
    )
