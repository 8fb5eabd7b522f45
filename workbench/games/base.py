"""The protocol of a game: who it can be played with, how its trials are played, and the resulting evidence.

A game is one file (or folder) that registers a `Game`, an attack that names it, and a template of its words.
Audits and studies know games by this protocol alone.
"""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

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
MechanismT = TypeVar("MechanismT", bound=Mechanism)

AT_ONCE = 1024
"""Images in one forward pass of a game's trainings, which need the losses of all of them."""

AUDIT_PARAMETERS = ("trials", "counted")
"""Parameters of an attack that say how much is played, and do not change what a single part is."""


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
        kind: Distinguishes parts of a game that are played in different ways.
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
    """A part of a game with everything that it is played with.

    Attributes:
        attack: With its parameters.
        mechanism: Of the subject, with its parameters.
        plan: Of the target, or of the trainings of the game itself.
        target: The trained subject, for games that are played against one.
        references: The shadow models, in the order of `part.shadows`.
        progress: Called with trials done, their number, and the name of what is at work.
    """

    part: Part
    attack: AttackT
    mechanism: Mechanism
    plan: Plan
    target: Subject | None = None
    references: tuple[Subject, ...] = ()
    progress: StepProgress

    def required_target(self) -> Subject:
        """Returns the target; raises `InputError` where there is none."""
        if self.target is None:
            raise InputError(f"attack {self.part.attack!r} needs a trained subject, got none")
        return self.target

    def candidates(self) -> tuple[Record, ...]:
        """Returns all candidates, with the canaries of the setup's attacks in place."""
        return prepare(self.part.setup)[0]

    def scored(self) -> npt.NDArray[np.int64]:
        """Returns the places of the candidates that are scored, in their order."""
        included, count = np.array(self.part.included, dtype=bool), self.part.setup.scored_members
        sides = [np.flatnonzero(included == is_member)[:count] for is_member in (True, False)]
        return np.sort(np.concatenate(sides))

    def require(self, release: Release, what: str) -> None:
        """Raises `UnsupportedError` for a mechanism whose transcript does not hold what the attack reads."""
        if release not in self.mechanism.capabilities.releases:
            raise UnsupportedError(
                f"attack {self.part.attack!r} reads {what}, "
                f"and {self.part.setup.mechanism} releases none: leave it out"
            )

    def seed(self, salt: str = "") -> int:
        """Returns the seed of the game's trials; each part has its own, and the salt separates games."""
        return stream_seed(self.part.setup.seed, "attack", *self._own(salt))

    def generator(self, salt: str = "") -> np.random.Generator:
        """Returns random numbers for the scores."""
        name = "attack" if self.part.index is None else "releases"
        return stream(self.part.setup.seed, name, *self._own(salt))

    def steps(self, name: str) -> Callable[[int, int], None]:
        """Returns a progress callback for one kind of trials."""
        return lambda done, total: self.progress(done, total, name)

    def _own(self, salt: str) -> tuple[int, ...]:
        return () if self.part.index is None else (self.part.index + 1, *salt.encode())


def require_scores(attack: str, scores: Any, count: int) -> None:
    """Refuse an attack that does not give so many scores, with an `InputError` that names it."""
    shape = np.shape(scores)
    if shape != (count,):
        raise InputError(
            f"attack {attack!r} must give one score for each of {count}, shape ({count},), got shape {shape}"
        )


@dataclass(frozen=True, kw_only=True)
class Round:
    """The scored trials of one game.

    Attributes:
        name: In reports: the attack's, and what distinguishes several rounds of one attack.
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

    def __post_init__(self) -> None:
        """Refuse another number of scores than labels: an attack of a plug-in may give any."""
        require_scores(self.name, self.scores, len(self.members))

    def evidence(self) -> Evidence:
        """Returns the round as evidence, without its cost."""
        return Evidence(
            scores=self.scores,
            members=self.members,
            game=self.terms,
            attack=self.name,
            blind_texts=self.texts,
            details=self.details,
        )

    def record(self) -> dict[str, Any]:
        """Returns what a store's record keeps of the round."""
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
    """The result of playing a part.

    Attributes:
        rounds: Scored trials; several where one attack's trials are scored in several ways.
        subject: A trained subject, whose claim and metrics a study records; None where none was trained.
        extra: Further fields of the part's record.
        trials: What only the game itself reads further, and no record keeps.
    """

    rounds: tuple[Round, ...]
    subject: Subject | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    trials: Any = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a game as a study records it.

    `scores`, `members`: of the round that stands for the experiment. `extra`: further fields of the record.
    """

    scores: FloatArray
    members: BoolArray
    metrics: Mapping[str, float]
    extra: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A parameter of an attack that a game's time is linear in, for cost estimates.

    `count`: its value in the game. `few`, `more`: values at which a small game is tried; with 0 for `few`
    time is proportional to the value.
    """

    parameter: str
    count: int
    few: int
    more: int


class Game(ABC, Generic[AttackT]):
    """A game; registered under its name, and made without parameters.

    Attributes:
        title: What messages call it.
        attack_type: The subclass of `Attack` that its attacks must be.
        adjacencies: The pairs of data sets that its coin can decide between.
        released: What its adversary sees.
        secrets: What the claims of nats that it tests are about.
        uses_target: It is played against a trained subject, which several attacks share.
        trains_once: Its trials are all of one training: the candidates of the target, or records of its own.
        unit: What one of its trials is, in the plural.
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
    unit: ClassVar[str] = "trainings"
    most_trials: int = 0
    plays_elsewhere: ClassVar[bool] = False
    stage: ClassVar[str] = "attacking"

    @abstractmethod
    def check(self, match: Match[AttackT]) -> None:
        """Refuses, before anything is trained, what the game cannot be played with; there is no target yet.

        Raises `InputError`: a parameter or the data do not fit. `UnsupportedError`: the mechanism has nothing
        that the game is about.
        """

    @abstractmethod
    def play(self, match: Match[AttackT]) -> Played:
        """Plays a part; pure in the part and the subjects."""

    def record(self, match: Match[AttackT], played: Played) -> dict[str, Any]:
        """Returns what the store keeps of a part; `evidence` reads it."""
        seeds = {"audit": match.part.setup.seed, "training": match.plan.seed}
        return {"evidence": [{**scored.record(), "seeds": seeds} for scored in played.rounds], **played.extra}

    def variants(self, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the parameters of each game that an attack's parameters ask for; one, unless overridden."""
        return [dict(parameters)]

    def name_of(self, name: str, attack: AttackT) -> str:
        """Returns what reports call the game of an attack with this registry name."""
        return name

    def jobs(
        self, setup: TrainingSetup, included: Sequence[bool], name: str, given: Mapping[str, Any]
    ) -> list[Job]:
        """Parts of a game of its own trainings, as jobs of an audit of at most `most_trials` each."""
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
        """Returns independent trainings as jobs of at most `most_trials` trials each, an even number.

        Workers share the jobs of a game of a thousand trainings, and a killed audit loses only the running
        ones.
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
        """Reads the parts of a game back from the store as evidence.

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
        """Returns what a study records: the first round, unless overridden."""
        main, *_ = played.rounds
        metrics = {f"attack_{name}": float(value) for name, value in main.details.items()}
        return Outcome(scores=main.scores, members=main.members, metrics=metrics)

    def cost(self, attack: AttackT) -> tuple[Scale, ...]:
        """What the time of a game of its own trainings grows with; empty for a game that trains once."""
        return ()

    def adopt(self, name: str, attack: Attack[Any]) -> AttackT:
        """Returns the attack, if it is of this game's `attack_type`; raises `InputError` otherwise."""
        if not isinstance(attack, self.attack_type):
            wanted = f"{self.attack_type.__module__}.{self.attack_type.__qualname__}"
            raise InputError(f"attack {name!r} plays a {self.title} game, so it must be a {wanted}")
        return attack  # type: ignore[return-value]

    def members_claim(self, claim: Claim, delta: float) -> tuple[str, Claim]:
        """Returns a view's key and the claim that ordinary members' scores test there.

        For claims in nats, which say nothing of ordinary members; `delta` is that of readings as (epsilon,
        delta)-DP.
        """
        return read_as_dp(claim, delta)

    def views(self, judged: Judged) -> dict[str, JSON] | None:
        """Words an audit whose claim was judged by this game alone; None where the game has no words for it.

        Returns:
            `in_short` (one sentence on all verdicts), `notes`, the `heading` of the comparison, and `of`: the
                views (`workbench.games.words.view_form`).
        """
        return None

    def words(self) -> Words:
        """Returns the game's template: the file next to its own that is named after it."""
        return view_words(Path(inspect.getfile(type(self))).with_name(f"{self.name}.j2"))


def flat_record(played: Played) -> dict[str, Any]:
    """Returns the record of a part where all parts are one round: the trials themselves."""
    (scored,) = played.rounds
    kept = {name: value for name, value in scored.record().items() if name not in ("attack", "blind_texts")}
    return {**kept, **played.extra}


def pooled(records: Sequence[Mapping[str, JSON]]) -> tuple[FloatArray, BoolArray]:
    """Returns scores and labels of all parts, in their order."""
    scores = np.concatenate([np.array([float(score) for score in record["scores"]]) for record in records])
    return scores, np.concatenate([np.array(record["members"], dtype=bool) for record in records])


def pooled_cost(records: Sequence[Mapping[str, JSON]]) -> dict[str, float]:
    """Returns the seconds of all parts, and the largest memory of one."""
    costs = [{name: float(value) for name, value in record["cost"].items()} for record in records]
    return {
        "seconds": sum(cost["seconds"] for cost in costs),
        "peak_memory_mb": max(cost["peak_memory_mb"] for cost in costs),
    }


def read_as_dp(claim: Claim, delta: float) -> tuple[str, Claim]:
    """Reads a claim as (epsilon, delta)-DP for ordinary members: itself, or the same number of nats."""
    if not isinstance(claim.guarantee, MutualInformation):
        return "members", claim
    return "members", Claim(
        guarantee=ApproximateDP(epsilon=claim.guarantee.nats, delta=delta),
        about=Adjacency.ADD_REMOVE,
        released=claim.released,
        source="a reading of the same number, not the authors' claim",
    )


def game_of(attack: Attack[Any] | type[Attack[Any]]) -> Game[Any]:
    """Game that an attack plays; raises `InputError` where it is not registered, or not a game."""
    game = registry.create("game", attack.game)
    if not isinstance(game, Game):
        raise InputError(f"game {attack.game!r} must be a subclass of workbench.games.base.Game")
    return game


def game_named(attack: str) -> Game[Any]:
    """Returns the game of a registered attack, whatever its parameters.

    Raises `InputError`: the name is not registered, it is not an attack, or its game is not a game.
    """
    entries = registry.entries("attack")
    if attack not in entries:
        raise unknown_name("attack", attack, entries)
    factory: object = entries[attack].factory
    if not (isinstance(factory, type) and issubclass(factory, Attack)):
        raise InputError(f"attack {attack!r} must be a subclass of workbench.interfaces.Attack")
    return game_of(factory)


def many_trainings(
    included: BoolArray, train: Callable[[bool], T], progress: Callable[[int, int], None] | None
) -> list[T]:
    """Trains once a trial, in order: with the canary where the label is True, shape `(n,)`.

    `train` gets whether the canary takes part; `progress` is called with the trials done and their number.
    """
    results = []
    for index, inside in enumerate(included.tolist(), start=1):
        results.append(train(bool(inside)))
        if progress is not None:
            progress(index, included.size)
    return results


def quickened(mechanism: MechanismT, plan: Plan) -> MechanismT:
    """Returns the mechanism without measurements that release nothing, and with larger batches of images."""
    from workbench.training.loop import GradientMechanism

    settled = mechanism.without_quality()
    if plan.records[0].image is not None and isinstance(settled, GradientMechanism):
        settled = replace(settled, micro_batch_size=max(AT_ONCE, settled.micro_batch_size))
    return settled


def drawn_seed(generator: np.random.Generator) -> int:
    """Returns the seed of one training, below 2^62."""
    return int(generator.integers(2**62))


def two_worlds(plan: Plan, *, without: str, start: int) -> dict[bool, Plan]:
    """Returns the plan with all its records (True) and without one; the number of records stays public.

    Both start from one initial seed: the plan's own, or else `start`.
    """
    size = len(plan.records) if plan.public_size is None else plan.public_size
    initial = start if plan.initial_seed is None else plan.initial_seed
    inside = replace(plan, held_out=(), public_size=size, initial_seed=initial)
    rest = tuple(record for record in plan.records if record.id != without)
    return {True: inside, False: replace(inside, records=rest)}


def half_included(trials: int, generator: np.random.Generator) -> BoolArray:
    """Returns labels of which half are True, in random order."""
    labels: BoolArray = generator.permutation(np.arange(trials) < trials // 2)
    return labels


def play_part(
    part: Part, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Plays a part of a game: the work of a task.

    Args:
        part: What is to be played.
        inputs: Folders of the target (`"0"`) and of its shadow models (`"1"`, ...), where there are some.
        scratch: Left empty.
        progress: Called with trials done.

    Returns what the game's `record` keeps, and `cost`.
    """
    started = time.perf_counter()
    match = match_of(part, inputs, progress)
    played = game_of(match.attack).record(match, game_of(match.attack).play(match))
    return {**played, "cost": cost_since(started)}


def match_of(part: Part, inputs: Mapping[str, Path], progress: StepProgress = silent) -> Match[Any]:
    """Returns everything that a part is played with."""
    setup = part.setup
    attack = create_attack(setup, part.attack, part.parameters)
    mechanism = create_mechanism(setup)
    rows = (part.included, *part.shadows) if "0" in inputs else (part.included,)
    plans = [make_plan(setup, np.array(row, dtype=bool), run) for run, row in enumerate(rows)]
    subjects: list[Subject] = []
    if "0" in inputs:
        from workbench.training.loop import load_subject

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
