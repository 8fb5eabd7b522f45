"""The transcript game: which trainings held the canary record, by the signs that they released?

Half of many independent trainings of masked signs hold the canary record, in random order; each has its own
mask and directions, Poisson batches, and initial weights where the model draws them. The adversary sees the
whole transcript (mask, directions, signs), hence the weights of every step, and knows every other record, the
plan and the mechanism. It may also know:

- "batches": which *other* records took part in each step. Only the canary's membership and its own
  participation are secret. No transcript shows that, so this adversary sees more than what is released: a
  bound that is proven step by step given everybody else's participation (as Eq. 8 can be) has to hold here
  too, but one that is said of the transcript alone is refuted by this game only where that knowledge is worth
  nothing. It is worth nothing among copies, whose sum points the same way whoever takes part.
- "records": not even that. It sums over every batch that there may have been, at most `MOST_UNKNOWN` others.

Canaries, none of which a mechanism without per-record clipping can bound:

- "opposed": a record whose gradient is minus `magnitude` times the sum of all other records' gradients. When
  it takes part it turns around every sum that points where all the others point.
- "outlier": a real record of the corpus' kind: an image scaled a thousandfold with a wrong label, or a text
  that repeats one rare word.
- "average": an ordinary record of the corpus, drawn afresh for each trial, so that rates are averages over
  records.

Other records: those of the corpus, or copies of one of them under other names ("copies"). The sum of copies
has the same direction whichever take part: the worst data set, in which an opposed canary turns every sign.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.estimation.low_fpr import low_fpr_details
from workbench.execution.engine import Job
from workbench.execution.tasks import silent
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
)
from workbench.games.currencies import currency_views
from workbench.games.words import Judged
from workbench.interfaces import (
    Adjacency,
    Attack,
    BoolArray,
    Evidence,
    FloatArray,
    GameTerms,
    GradientCanary,
    Insertions,
    IntArray,
    Mechanism,
    Plan,
    Record,
    Release,
    Released,
    Sampling,
    Secret,
    Subject,
    Trials,
)
from workbench.interfaces.evidence import terms_from
from workbench.training.crafts import RARE_WORD
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

    `canary`, `others`, `knowledge`: one of `CANARIES`, `OTHERS` and `KNOWLEDGE`; see the module. `trials`:
    number of independent trainings, even.
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


CANARIES = ("opposed", "outlier", "average")
OTHERS = ("corpus", "copies")
KNOWLEDGE = ("batches", "records")

MOST_UNKNOWN = 16
"""Most other records of an adversary who knows no batch: 65,536 batches a step."""

MAGNITUDE = 1000.0
"""How much longer the opposed canary's gradient is than the sum of all others'; nothing bounds it."""

SCALE = 1000.0
"""What the outlier's image is multiplied by."""


@dataclass(frozen=True, kw_only=True)
class TranscriptTrials:
    """The trials that were played.

    Attributes:
        observations: What the adversary sees of each trial.
        included: Which trials held the canary, half of them; the attack never sees it.
        subject: One more training, by the adversary, with the canary.
        canary: Id of the canary record; empty where each trial drew its own.
    """

    observations: SignObservations
    included: BoolArray
    subject: Subject
    canary: str = ""


def play_transcripts(
    mechanism: Mechanism,
    plan: Plan,
    *,
    canary: str,
    others: str,
    knowledge: str,
    trials: int,
    seed: int,
    progress: Callable[[int, int], None] = silent,
) -> TranscriptTrials:
    """Trains every trial and reads its transcript.

    Args:
        mechanism: One that can be watched.
        plan: That of the N records with the canary, whose place is the last record's; its own seed and its
            held-out records are not used. Without the canary the same plan holds, with one record less.
        canary, others, knowledge: One of `CANARIES`, `OTHERS` and `KNOWLEDGE`; see the module.
        trials: Number of trials, even, >= 4.
        seed: Of the trials' order, of canaries, and of every training.

    Raises `InputError`: a name or number is out of range, or the mechanism's public seed is fixed.
    `UnsupportedError`: the mechanism cannot be watched, dithers its signs, or the plan shuffles.
    """
    check_names(canary, others, knowledge)
    if trials < 4 or trials % 2:
        raise InputError(f"trials must be an even number >= 4, got {trials}")
    check_records(plan, knowledge)
    watched = quickened(watchable(mechanism), plan)
    order, cast, seeds, adversary = np.random.SeedSequence(seed).spawn(4)
    included = half_included(trials, np.random.default_rng(order))
    draw, trial_seeds = np.random.default_rng(cast), np.random.default_rng(seeds)
    extra_plan = _world(plan, canary, others, draw).plan(inside=True)
    subject = watched.train(replace(extra_plan, seed=drawn_seed(np.random.default_rng(adversary))))
    names: set[str] = set()

    def reading(inside: bool) -> SignReading:
        """What the adversary reads in one training with or without the canary."""
        world = _world(plan, canary, others, draw)
        names.add(world.canary.id)
        seeded = replace(world.plan(inside=inside), seed=drawn_seed(trial_seeds))
        reader = _Reader(seeded, world, knowledge)
        watched.train_watched(seeded, reader)
        return reader.reading()

    readings = many_trainings(included, reading, progress)
    return TranscriptTrials(
        observations=SignObservations(
            trials=tuple(readings),
            sampling_probability=plan.sampling_probability,
            zero_gradient=watched.zero_gradient,
        ),
        included=included,
        subject=subject,
        canary=names.pop() if len(names) == 1 else "",
    )


def chance_of_nobody(plan: Plan) -> float:
    """Upper bound on the chance of a training with a step in which at most the canary takes part."""
    return plan.steps * (1.0 - plan.sampling_probability) ** (len(plan.records) - 1)


def check_names(canary: str, others: str, knowledge: str) -> None:
    """Refuse a canary, kind of other records or knowledge that is unknown."""
    for name, value, known in (
        ("canary", canary, CANARIES),
        ("others", others, OTHERS),
        ("knowledge", knowledge, KNOWLEDGE),
    ):
        if value not in known:
            raise unknown_name(name, value, known)


def check_records(plan: Plan, knowledge: str) -> None:
    """Refuses a plan, without the canary, that this game cannot be played with at this knowledge.

    Raises `InputError`: too few records, or too many for this knowledge. `UnsupportedError`: the samples are
    not Poisson.
    """
    if plan.sampling is not Sampling.POISSON:
        raise UnsupportedError(
            "a transcript game needs Poisson samples: the likelihood of shuffled ones is another"
        )
    ids = {record.id for record in plan.records}
    if len(ids) < 2 or len(ids) < len(plan.records):
        raise InputError(f"records must be two or more with distinct ids, got {len(plan.records)}")
    if knowledge == "records" and len(ids) - 1 > MOST_UNKNOWN:
        raise InputError(
            f"knowledge 'records' sums over all batches of at most {MOST_UNKNOWN} other records, got "
            f"{len(ids) - 1}; knowledge 'batches' has no such limit"
        )


@dataclass(frozen=True, kw_only=True)
class _World:
    """The two data sets of one trial, and the stand-in for the canary's gradient."""

    template: Plan
    canary: Record
    others: tuple[Record, ...]
    place: int

    def plan(self, *, inside: bool) -> Plan:
        """The plan with the canary, or without it."""
        if not inside:
            return replace(self.template, records=self.others)
        return replace(
            self.template, records=(*self.others[: self.place], self.canary, *self.others[self.place :])
        )


def _world(plan: Plan, canary: str, others: str, generator: np.random.Generator) -> _World:
    """Cast the canary and the others of one trial."""
    place = len(plan.records) - 1
    if canary == "average":
        place = int(generator.integers(len(plan.records)))
    chosen = plan.records[place]
    rest = (*plan.records[:place], *plan.records[place + 1 :])
    if others == "copies":
        rest = tuple(replace(rest[0], id=record.id) for record in rest)
    if canary == "outlier":
        chosen = _outlier(chosen, plan.records)
    insertions = Insertions()
    if canary == "opposed":
        insertions = Insertions(
            gradient_canary=GradientCanary(coordinate=0, magnitude=MAGNITUDE, record=chosen.id, opposed=True)
        )
    size = len(plan.records) if plan.public_size is None else plan.public_size
    template = replace(plan, held_out=(), public_size=size, insertions=insertions)
    return _World(template=template, canary=chosen, others=rest, place=place)


def _outlier(record: Record, records: tuple[Record, ...]) -> Record:
    """The record made unlike every other; it keeps its id."""
    if record.image is None:
        return replace(record, text=RARE_WORD * max(8, len(record.text) // len(RARE_WORD)))
    pixels = record.image if any(record.image) else (1.0,) * len(record.image)
    labels = {other.label for other in records if other.label is not None}
    label = None if record.label is None else (record.label + 1) % (max(labels) + 1)
    return replace(record, image=tuple(SCALE * pixel for pixel in pixels), label=label)


@dataclass
class _Reader:
    """Watches one training and keeps only what its transcript and public knowledge say.

    The same numbers are computed in the same way whether or not the canary is there: its own inner product
    separately, and that of the others who took part, which leaves it out.
    """

    plan: Plan
    world: _World
    knowledge: str
    _steps: list[IntArray] = field(default_factory=list)
    _signs: list[IntArray] = field(default_factory=list)
    _canary: list[FloatArray] = field(default_factory=list)
    _known: list[FloatArray] = field(default_factory=list)

    def __call__(self, fired: FiredStep) -> None:
        """Reads one step in which groups fired."""
        canary = self.world.canary
        self._steps.append(np.full(len(fired.groups), fired.step, dtype=np.int64))
        self._signs.append(np.asarray(fired.signs, dtype=np.int64))
        self._canary.append(fired.of_sum([canary]))  # One record: the same as `of_each`, and faster.
        if self.knowledge == "batches":
            present = [self.plan.records[i] for i in fired.sample]
            self._known.append(fired.of_sum([record for record in present if record.id != canary.id]))
        else:
            self._known.append(self._one_by_one(fired))

    def _one_by_one(self, fired: FiredStep) -> FloatArray:
        """Each other record's inner products, near enough to the mechanism's for signs of sums.

        All at once is faster for images. For texts it is slower, and its second derivatives round a hundred
        times as coarsely: enough to turn the sign of a sum of copies now and then.
        """
        others = self.world.others
        if others[0].image is not None:
            return fired.of_each(others)
        return np.stack([fired.of_sum([record]) for record in others], axis=1)

    def reading(self) -> SignReading:
        """Returns what was read of the whole training; raises `InputError` for an infinite inner product."""
        width = () if self.knowledge == "batches" else (len(self.world.others),)
        known = np.concatenate([np.zeros((0, *width)), *self._known]).astype(np.float64)
        canary = np.concatenate([np.zeros(0), *self._canary]).astype(np.float64)
        if not (np.isfinite(canary).all() and math.isfinite(float(np.abs(known).sum()))):
            raise InputError("an inner product of the transcript is not finite; try a smaller learning_rate")
        is_known = self.knowledge == "batches"
        return SignReading(
            step=np.concatenate([np.zeros(0, dtype=np.int64), *self._steps]),
            sign=np.concatenate([np.zeros(0, dtype=np.int64), *self._signs]),
            canary=canary,
            without=known if is_known else None,
            others=None if is_known else known,
        )


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
        """The attack's name with its canary in brackets."""
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
        """The game's terms for the judge; `zero_gradient` is the mechanism's rule (`SignObservations`).

        Raises `InputError`: an unknown name.
        """
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

    def views(self, judged: Judged) -> dict[str, JSON]:
        """Words one number in two currencies, and ordinary members."""
        return currency_views(judged)

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
