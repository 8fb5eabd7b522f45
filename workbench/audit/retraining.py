"""The retraining game with a user's training: which of many trainings held one crafted record?

Half of the trainings, in random order, hold the canary; the others lack it and are alike otherwise. Each has
a seed of its own. A training is a trial, scored by what the trained model answers about the canary, and,
where the code steps a torch optimizer, by how far its weights moved against the canary's gradient.

Trials must be independent. Code that trains alike under two seeds is recognised (`repeated`), and not judged.

Sources: Jagielski, Ullman and Oprea 2020, "Auditing differentially private machine learning: how private is
private SGD?" (many trainings with and without crafted data); Nasr et al. 2023, "Tight auditing of
differentially private machine learning" (inner products of updates with a canary's gradient).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.audit.canaries.run import Found, held_against, in_range
from workbench.audit.neighbours import require_played
from workbench.audit.user_training import SOURCE, Fitted, UserJob, UserTraining, as_dicts
from workbench.core.cost import cost_since
from workbench.core.errors import ArgumentError, InputError, UnsupportedError
from workbench.core.keys import JSON
from workbench.core.streams import stream, stream_seed
from workbench.execution.engine import Engine
from workbench.execution.tasks import StepProgress
from workbench.games.base import half_included
from workbench.interfaces import (
    Adjacency,
    BoolArray,
    Claim,
    Evidence,
    FloatArray,
    GameTerms,
    Record,
    Released,
    Trials,
)
from workbench.training.crafts import LOUD, odd_one
from workbench.training.setup import TrainingSetup, content_digest, prepare

if TYPE_CHECKING:
    from workbench.audit.canaries.record import Transcript

NAME, NAME_OF_SCORES = "white-box retraining", "retraining"

FEWEST_RECORDS = 3
"""Records of a training with the canary, at least."""

CANARY = "canary"
"""The canary's id."""

PROBES = 64
"""Numbers by which two trainings are compared."""

ALIKE = 1e-4
"""Trainings are the same whose numbers differ by less than this part of their spread; rounding may differ."""

_COINS, _PLACE, _TRAINING = 1, 2, 3
"""Streams within that of the game; none is 0, since a seed sequence takes no notice of zeros at its end."""


def terms_of(
    trainings: int, released: Released, *, most: int = 0, adjacency: Adjacency = Adjacency.ADD_REMOVE
) -> GameTerms:
    """The game's terms, for an adversary who sees every update or the finished model's scores alone.

    `most`: the number of trainings that were planned, where a sequential test may end them; 0 for none.
    """
    seen = "the score that each trained model gives to it"
    if released is Released.EVERY_UPDATE:
        seen = "every update of each training, its weights, and the scorer that the function returned"
    times = f"{trainings} times; half of the trainings"
    if most:
        times = f"{trainings} of at most {most} times, until the claim is refuted; half of the {most}"
    instead = "one record fewer" if adjacency is Adjacency.ADD_REMOVE else "a natural record in its place"
    return GameTerms(
        description=(
            f"The bench trained the user's function {times}, in random order, held one crafted record (a loud"
            f" image, or a text that repeats a rare word), and the others had {instead}. The adversary"
            f" knows all other records and saw {seen}."
        ),
        trials=Trials.INDEPENDENT,
        adjacency=adjacency,
        released=released,
        sequential=most > 0,
    )


@dataclass(frozen=True, kw_only=True)
class RetrainingJob:
    """Payload: train on natural records, with the canary or without, and look for it.

    `included`: the candidates among which the natural records are.
    """

    setup: TrainingSetup
    spec: str
    included: tuple[bool, ...]
    takes_part: bool
    run: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE


def usual_size(most: int) -> int:
    """The largest number of records up to `most` that, like the number before it, 4 and 5 do not divide.

    Batches of a usual size (a multiple of 4 or 5) are then as many with the canary as without it. Whoever
    derives them from the number of records is not refuted for that.
    """
    return next(n for n in range(most, 0, -1) if n % 4 > 1 and n % 5 > 1)


def records_of(setup: TrainingSetup, included: Sequence[bool]) -> tuple[list[Record], Record, Record]:
    """The natural records, the canary, and the natural record whose place it takes.

    Raises:
        InputError: too few candidates are included.
    """
    candidates, _ = prepare(setup)
    members = [record for record, inside in zip(candidates, included, strict=True) if inside]
    if len(members) < FEWEST_RECORDS:
        raise ArgumentError(
            "retrain",
            f"needs {FEWEST_RECORDS} records to train on, got {len(members)}: raise `candidates`",
        )
    *others, last = members[: usual_size(len(members))]
    return others, replace(odd_one(last, others, loudness=LOUD), id=CANARY), last


def train_once(
    job: RetrainingJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Run a user's training function once; on another machine that of the file's copy in `inputs[SOURCE]`.

    Returns:
        `answer`, the finished model's score of the canary, or `unanswered`, why there is none; `moved`, the
        score by the updates, or the `reason` why there is none; `probe`, see `repeated`; `details`, and
        `cost`.
    """
    started = time.perf_counter()
    others, canary, instead = records_of(job.setup, job.included)
    spec = job.spec
    if SOURCE in inputs:
        path, _, function = spec.rpartition(":")
        spec = f"{inputs[SOURCE] / Path(path).name}:{function}"
    # The order is the same in all trainings, so that code without a seed repeats itself.
    place = int(stream(job.setup.seed, "retraining", _PLACE).integers(len(others) + 1))
    is_replaced = Adjacency(job.adjacency) is Adjacency.REPLACE_ONE
    other = [instead] if is_replaced else []
    records = [*others[:place], *([canary] if job.takes_part else other), *others[place:]]
    seed = stream_seed(job.setup.seed, "retraining", _TRAINING, job.run)
    found = _trained(UserTraining(spec, job.setup.device), records, others, canary, seed)
    return {**found, "cost": cost_since(started)}


def _trained(
    training: UserTraining,
    records: Sequence[Record],
    others: Sequence[Record],
    canary: Record,
    seed: int,
) -> dict[str, Any]:
    """What one training shows of the canary."""
    from workbench.audit.canaries.record import watched

    try:
        fitted, kept = watched(lambda: training.fitted(as_dicts(records), seed), seed=seed, canaries=1)
    except (InputError, UnsupportedError) as error:
        return {"unanswered": str(error), "reason": str(error)}
    found: dict[str, Any] = {}
    try:
        found["answer"] = float(training.answers(fitted, [canary])[0])
        found["probe"] = _probe(training, fitted, kept, others)
    except InputError as error:
        found["unanswered"] = str(error)
    try:
        return found | _moved(fitted, kept, canary)
    except (InputError, UnsupportedError) as error:
        return found | {"reason": str(error)}


def _probe(training: UserTraining, fitted: Fitted, kept: Transcript, others: Sequence[Record]) -> FloatArray:
    """A few numbers that tell trainings apart: sums over parts of the last change, or else natural scores."""
    if kept.updates:
        last = kept.changes()[-1].gradient
        return np.array([float(part.double().sum()) for part in last.chunk(PROBES)])
    return training.answers(fitted, others[:PROBES])


def _moved(fitted: Fitted, kept: Transcript, canary: Record) -> dict[str, Any]:
    """The sum over steps of <change of the weights, unit gradient of the canary's loss at them>.

    The gradient that a step is given need not be what is released: code may add its noise within the step, or
    to the weights after it. The weights between the steps hold it in any case.
    """
    from workbench.audit.canaries.directions import directions_of

    if not kept.updates:
        raise UnsupportedError("no torch optimizer took a step")
    directions = directions_of(fitted.ask, [canary], kept.parameters)
    total = 0.0
    for update in kept.changes():
        (direction,) = directions.at(update).double()
        columns = directions.columns[update.optimizer]
        along = float(update.gradient[columns].double() @ direction / direction.norm())
        total += along if np.isfinite(along) else 0.0
    details = {"steps": float(kept.steps), "steps_looked_at": float(len(kept.updates))}
    return {"moved": total, "details": details}


def repeated(probes: FloatArray) -> int:
    """How many trainings repeat another one, up to rounding.

    Code that ignores its seed trains alike under each, so that its trials are one; so does code without any
    randomness, which cannot be told from it.

    Args:
        probes: Numbers of each training, of one world, shape `(trainings, numbers)`.
    """
    numbers = probes[np.isfinite(probes).all(axis=1)]  # What diverged is compared by no number.
    if len(numbers) < 2:
        return 0
    allowed = ALIKE * np.median(numbers.std(axis=1))
    alike = [
        bool((np.abs(np.delete(numbers, i, axis=0) - own).max(axis=1) <= allowed).any())
        for i, own in enumerate(numbers)
    ]
    return sum(alike)


def play(
    engine: Engine,
    claim: Claim,
    first: UserJob,
    *,
    training: UserTraining,
    trainings: int,
    inputs: Mapping[str, Path],
    stop: Callable[[Claim | None, Evidence], bool] | None = None,
) -> tuple[Found, Found]:
    """Train many times, half of them with the canary.

    Args:
        claim: That the updates are held against; where that is about less than every update, they refute
            nothing.
        first: The first training of the membership game, whose members the natural records are.
        trainings: Their number, at least 4; the largest, where `stop` is given.
        stop: Whether a game's evidence refutes what it is held against: `claim`, or None for the scores'
            own. It is asked after each training, whose games are sequential then, and ends them.

    Returns:
        The game of the finished models' scores, and that of the updates.

    Raises:
        InputError: too few candidates are included.
    """
    setup, adjacency = first.setup, require_played(claim.about)
    records_of(setup, first.included)
    included = half_included(trainings, stream(setup.seed, "retraining", _COINS))
    content, jobs = content_digest(setup), []
    for run, takes_part in enumerate(included.tolist()):
        payload = RetrainingJob(
            setup=setup,
            spec=training.spec,
            included=first.included,
            takes_part=takes_part,
            run=run,
            adjacency=adjacency,
        )
        jobs.append(training.job("retraining", payload, inputs=inputs, content=content))

    def games(records: Sequence[Mapping[str, JSON]]) -> tuple[Found, Found]:
        """What the first trainings show by their scores, and by their updates."""
        done, most = len(records), trainings if stop else 0
        terms = partial(terms_of, done, most=most, adjacency=adjacency)
        updates = held_against(claim, terms(Released.EVERY_UPDATE))
        return (
            _found(terms(Released.SCORES), included[:done], records, setup.seed),
            _found(updates, included[:done], records, setup.seed, of_updates=True),
        )

    def enough(records: list[dict[str, JSON]]) -> bool:
        """Whether one of the games has refuted its claim."""
        assert stop is not None
        found = zip((None, claim), games(records), strict=True)
        return any(game.evidence is not None and stop(held, game.evidence) for held, game in found)

    records = engine.run(
        "retraining", jobs, train_once, keeps_folder=False, enough=enough if stop is not None else None
    )
    return games(records)


def _found(
    game: GameTerms,
    included: BoolArray,
    records: Sequence[Mapping[str, JSON]],
    seed: int,
    *,
    of_updates: bool = False,
) -> Found:
    """A game's evidence, or why there is none."""
    attack, field, why = (NAME, "moved", "reason") if of_updates else (NAME_OF_SCORES, "answer", "unanswered")
    seconds = sum(float(record["cost"]["seconds"]) for record in records)
    reason = _reason(records, why, included)
    if reason:
        return Found(attack=attack, reason=reason, seconds=seconds)
    evidence = Evidence(
        scores=in_range(np.array([record[field] for record in records], dtype=np.float64)),
        members=included,
        game=game,
        attack=attack,
        seeds={"audit": seed},
        cost={"seconds": seconds},
        details={"trainings": float(included.size), **(records[0]["details"] if of_updates else {})},
    )
    return Found(attack=attack, evidence=evidence, seconds=seconds)


def _reason(records: Sequence[Mapping[str, JSON]], why: str, included: BoolArray) -> str:
    """Why the trainings cannot be judged; empty where they can."""
    for record in records:
        for name in (why, "unanswered"):
            if name in record:
                return str(record[name])
    if len({len(record["probe"]) for record in records}) > 1:
        return "some trainings step a torch optimizer, and others do not"
    probes = np.array([record["probe"] for record in records], dtype=np.float64)
    same = repeated(probes[included]) + repeated(probes[~included])
    if not same:
        return ""
    return (
        f"{same} of {included.size} trainings repeat another one that had the same records and another seed:"
        " the code ignores its seed, or has no randomness; trials that are not independent show nothing"
    )
