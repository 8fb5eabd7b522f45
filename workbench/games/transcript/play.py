"""Plays the transcript game: trainings of masked signs, with or without one record, and what they release.

Half of the trainings hold the canary record, in an order drawn at random. Every training is one independent
trial: its own mask and directions, Poisson batches, and initial weights where the model draws them. The
adversary sees the whole transcript (mask, directions, signs), hence the weights of every step, and knows
every other record, the plan and the mechanism. It may also know:

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
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from workbench.core.errors import InputError, UnsupportedError, unknown_name
from workbench.execution.tasks import silent
from workbench.games.base import drawn_seed, half_included, quickened
from workbench.games.transcript import FiredStep, SignObservations, SignReading, watchable
from workbench.interfaces import (
    BoolArray,
    FloatArray,
    GradientCanary,
    Insertions,
    IntArray,
    Mechanism,
    Plan,
    Record,
    Sampling,
    Subject,
)

CANARIES = ("opposed", "outlier", "average")
OTHERS = ("corpus", "copies")
KNOWLEDGE = ("batches", "records")

MOST_UNKNOWN = 16
"""Most other records of an adversary who knows no batch: 65,536 batches a step."""

MAGNITUDE = 1000.0
"""How much longer the opposed canary's gradient is than the sum of all others'; nothing bounds it."""

SCALE = 1000.0
"""What the outlier's image is multiplied by."""

RARE_WORD = "zyzzyva "


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
    readings: list[SignReading] = []
    names: set[str] = set()
    for index in range(trials):
        world = _world(plan, canary, others, draw)
        names.add(world.canary.id)
        inside = replace(world.plan(inside=bool(included[index])), seed=drawn_seed(trial_seeds))
        reader = _Reader(inside, world, knowledge)
        watched.train_watched(inside, reader)
        readings.append(reader.reading())
        progress(index + 1, trials)
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
