"""Plays canaries with a user's training, by the scores of what was trained and by the updates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.audit.neighbours import coins_of, flipped, in_place, require_played, trials_of
from workbench.audit.user_training import SOURCE, Fitted, UserJob, UserTraining, as_dicts
from workbench.core.cost import cost_since
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON
from workbench.core.streams import stream, stream_seed
from workbench.execution.engine import Engine
from workbench.execution.tasks import StepProgress
from workbench.interfaces import Adjacency, Claim, Evidence, FloatArray, GameTerms, Record, Released, Trials
from workbench.training.crafts import CanaryKind, canaries
from workbench.training.setup import TrainingSetup, content_digest, prepare

if TYPE_CHECKING:
    from workbench.audit.canaries.record import Transcript

NAME, NAME_OF_SCORES = "white-box canaries", "canaries' scores"

MOST = 400
"""Canaries at most, if the user names no number; half of them are in the training data."""

FORM = 3
"""Of what is kept of a training with canaries; grows when the same training would be kept otherwise."""

LEAST_NATURAL = 0.125
"""Of the members of the first training, the share that stays among the canaries whatever their number."""

_CRAFTS, _COINS, _ORDER, _TRAINING, _NATURAL = 1, 2, 3, 4, 5
"""Streams within that of the canaries; none is 0, since a seed sequence takes no notice of zeros at its end.
"""

_CRAFTED = {
    CanaryKind.LOUD: "crafted loud records (images beyond the data's range, texts of random words)",
    CanaryKind.MISLABELLED: "gave natural records wrong labels",
    CanaryKind.SECRET: "crafted records of a few random words and a secret of ten random characters",
}


def terms_of(kind: CanaryKind, released: Released, adjacency: Adjacency) -> GameTerms:
    """The game's terms, for an adversary who sees every update or the finished model's scores alone."""
    seen = "the scores that the trained model gives to all of them"
    if released is Released.EVERY_UPDATE:
        seen = "every update of the training, its weights, and the scorer that the function returned"
    return GameTerms(
        description=(
            f"The bench {_CRAFTED[kind]}, {coins_of(adjacency)}, and trained the user's function on those"
            f" with heads, among records that the adversary knows; the adversary saw {seen}."
        ),
        trials=Trials.ONE_RUN,
        prior=0.5,
        adjacency=adjacency,
        released=released,
    )


def held_against(claim: Claim, game: GameTerms) -> GameTerms:
    """A game of every update as it is held against a claim: where that is about less, it refutes nothing."""
    if claim.released is Released.EVERY_UPDATE:
        return game
    return replace(game, released=claim.released, beyond="every update of the training")


@dataclass(frozen=True, kw_only=True)
class CanaryJob:
    """Payload: train on natural records and canaries, score each canary, and look for it in the updates.

    `included`: the natural records among the candidates that are trained on; `coins`: of each canary.
    """

    setup: TrainingSetup
    spec: str
    included: tuple[bool, ...]
    coins: tuple[bool, ...]
    run: int
    kind: CanaryKind = CanaryKind.LOUD
    adjacency: Adjacency = Adjacency.ADD_REMOVE


@dataclass(frozen=True, kw_only=True)
class Found:
    """A game as it was played: its evidence, or the reason why it could not be."""

    attack: str
    evidence: Evidence | None = None
    reason: str = ""
    seconds: float = 0.0


def usual_count(candidates: int) -> int:
    """Canaries for so many candidates, if the user names no number."""
    return min(MOST, candidates)


def train_with_canaries(
    job: CanaryJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Run a user's training function once; on another machine that of the file's copy in `inputs[SOURCE]`.

    Returns:
        `answers`, the finished model's scores of all canaries, or `unanswered`, why there are none; `scores`
        of all canaries by the updates, or the `reason` why there are none; `details`, and `cost`.
    """
    started = time.perf_counter()
    candidates, _ = prepare(job.setup)
    spec = job.spec
    if SOURCE in inputs:
        path, _, function = spec.rpartition(":")
        spec = f"{inputs[SOURCE] / Path(path).name}:{function}"
    # A wrong label is not next to the right one: records that are not trained on come first.
    base = sorted(zip(job.included, candidates, strict=True), key=lambda pair: pair[0])
    crafted = canaries(
        [record for _, record in base],
        len(job.coins),
        stream(job.setup.seed, "canaries", _CRAFTS),
        CanaryKind(job.kind),
    )
    everybody, inside = [*candidates, *crafted], [*job.included, *job.coins]
    # The places are drawn for all, so that they say nothing of the coins.
    order = stream(job.setup.seed, "canaries", _ORDER, job.run).permutation(len(everybody))
    order = in_place(order, len(candidates), Adjacency(job.adjacency))
    records = as_dicts([everybody[i] for i in order if inside[i]])
    seed = stream_seed(job.setup.seed, "canaries", _TRAINING, job.run)
    found = _trained(UserTraining(spec, job.setup.device), records, crafted, seed, progress)
    return {**found, "cost": cost_since(started)}


def _trained(
    training: UserTraining,
    records: list[dict[str, Any]],
    crafted: Sequence[Record],
    seed: int,
    progress: StepProgress,
) -> dict[str, Any]:
    """What one training shows of the canaries, or why it shows nothing."""
    from workbench.audit.canaries.record import watched

    try:
        fitted, kept = watched(lambda: training.fitted(records, seed), seed=seed, canaries=len(crafted))
    except (InputError, UnsupportedError) as error:
        return {"unanswered": str(error), "reason": str(error)}
    found: dict[str, Any] = {}
    try:
        found["answers"] = finite(training.answers(fitted, crafted))
    except InputError as error:
        found["unanswered"] = str(error)
    try:
        return found | _looked_for(fitted, kept, crafted, progress)
    except (InputError, UnsupportedError) as error:
        return found | {"reason": str(error)}


def finite(scores: FloatArray) -> FloatArray:
    """The scores, with those that are not finite beyond all others.

    A loud record's loss may be beyond all numbers: infinity is the highest score, all else the lowest. No
    coin has a part in that.

    Raises:
        InputError: the scores are all alike then.
    """
    usable = scores[np.isfinite(scores)]
    if usable.size == 0 or (usable.size == scores.size and usable.min() == usable.max()):
        raise InputError("the trained model gives all canaries the same score, or none that is finite")
    return in_range(scores)


def in_range(scores: FloatArray) -> FloatArray:
    """The scores, with infinity as the highest of them and what else is not finite as the lowest."""
    usable = scores[np.isfinite(scores)]
    least, most = (usable.min(), usable.max()) if usable.size else (0.0, 0.0)
    beyond = np.where(scores == np.inf, most + 1.0, least - 1.0)
    return np.where(np.isfinite(scores), scores, beyond)


def _looked_for(
    fitted: Fitted, kept: Transcript, crafted: Sequence[Record], progress: StepProgress
) -> dict[str, Any]:
    """Scores and details of one training's updates."""
    from workbench.audit.canaries.directions import directions_of
    from workbench.audit.canaries.scoring import moves, scores_of

    if not kept.updates:
        raise UnsupportedError("no torch optimizer took a step")
    directions = directions_of(fitted.ask, crafted, kept.parameters)
    moved = []
    updates = kept.released()
    for number, update in enumerate(updates):
        gradient = update.gradient[directions.columns[update.optimizer]]
        moved.append(moves(directions.at(update), gradient))
        progress(number + 1, len(updates), "updates")
    if not np.any(moved):
        raise UnsupportedError("no update or gradient of a canary is finite and other than 0")
    sizes = [sum(p.numel() for p in own) for own in kept.parameters]
    details = {
        "steps": float(kept.steps),
        "steps_looked_at": float(len(kept.updates)),
        "parameters": float(sum(sizes)),
        "parameters_looked_at": float(sum(len(own) for own in directions.columns)),
    }
    return {"scores": scores_of(np.array(moved)), "details": details}


def play(
    engine: Engine,
    claim: Claim,
    first: UserJob,
    *,
    training: UserTraining,
    crafts: tuple[int, CanaryKind],
    runs: int,
    inputs: Mapping[str, Path],
) -> tuple[Found, Found]:
    """Train with canaries, as often as there are runs, each with coins of its own.

    The training data have about as many records as there are members: canaries take the places of some.

    Args:
        claim: That the updates are held against; where that is about less than every update, they refute
            nothing.
        first: The first training of the membership game.
        crafts: Number of canaries, at least 2, and their kind.

    Returns:
        The game of the finished model's scores, and that of the updates.
    """
    count, kind = crafts
    setup, places, adjacency = first.setup, np.flatnonzero(first.included), require_played(claim.about)
    kept = max(places.size - count // 2, round(LEAST_NATURAL * places.size), 1)
    natural = np.zeros(len(first.included), dtype=bool)
    natural[stream(setup.seed, "canaries", _NATURAL).permutation(places)[:kept]] = True
    content, jobs = content_digest(setup), []
    for run in range(runs):
        coins = flipped(stream(setup.seed, "canaries", _COINS, run), count, adjacency)
        payload = CanaryJob(
            setup=setup,
            spec=training.spec,
            included=tuple(natural.tolist()),
            coins=tuple(coins.tolist()),
            run=run,
            kind=kind,
            adjacency=adjacency,
        )
        jobs.append(training.job("canaries", payload, inputs=inputs, content=content, form=FORM))
    records = engine.run("canaries", jobs, train_with_canaries, keeps_folder=False)
    payloads = [job.payload for job in jobs]
    updates = held_against(claim, terms_of(kind, Released.EVERY_UPDATE, adjacency))
    return (
        _found(
            terms_of(kind, Released.SCORES, adjacency),
            payloads,
            records,
            ("answers", "unanswered", NAME_OF_SCORES),
        ),
        _found(updates, payloads, records, ("scores", "reason", NAME)),
    )


def _found(
    game: GameTerms,
    jobs: Sequence[CanaryJob],
    records: Sequence[Mapping[str, JSON]],
    names: tuple[str, str, str],
) -> Found:
    """A game's evidence; `names`: the fields of its scores and of the reason why not, and its own name."""
    from workbench.audit.canaries.scoring import paired

    field, why, attack = names
    seconds = sum(float(record["cost"]["seconds"]) for record in records)
    reasons = [str(record[why]) for record in records if why in record]
    if reasons:
        return Found(attack=attack, reason=reasons[0], seconds=seconds)
    adjacency = Adjacency(jobs[0].adjacency)
    scores, coins = trials_of([record[field] for record in records], [job.coins for job in jobs], adjacency)
    details = records[0].get("details", {}) if attack == NAME else {}
    evidence = Evidence(
        scores=paired(scores).ravel(),
        members=coins.ravel(),
        game=game,
        attack=attack,
        seeds={"audit": jobs[0].setup.seed},
        cost={"seconds": seconds},
        details={"runs": float(len(jobs)), "canaries": float(len(jobs[0].coins)), **details},
    )
    return Found(attack=attack, evidence=evidence, seconds=seconds)


def unplayed(subject: str, games: Sequence[Found]) -> dict[str, JSON]:
    """`unplayed`: games that could not be played with a subject, and why."""
    left = [
        {"subject": subject, "attack": game.attack, "reason": game.reason, "seconds": game.seconds}
        for game in games
        if game.evidence is None
    ]
    return {"unplayed": left} if left else {}
