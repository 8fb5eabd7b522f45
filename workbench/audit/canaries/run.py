"""Plays white-box canaries with a user's training, each training in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit.canaries.crafts import canaries
from workbench.audit.user_training import SOURCE, UserJob, UserTraining, as_dicts
from workbench.core.cost import cost_since
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream, stream_seed
from workbench.execution.engine import Engine, Job
from workbench.execution.tasks import StepProgress
from workbench.interfaces import Adjacency, Claim, Evidence, GameTerms, Record, Released, Trials
from workbench.training.setup import TrainingSetup, content_digest, prepare

NAME = "white-box canaries"

SHARE, MOST = 0.75, 400
"""Canaries for each candidate, and at most; half of them are in the training data."""

LEAST_NATURAL = 0.125
"""Of the members of the first training, the share that stays among the canaries whatever their number."""

_CRAFTS, _COINS, _ORDER, _TRAINING, _NATURAL = 1, 2, 3, 4, 5
"""Streams within that of the canaries; none is 0, since a seed sequence takes no notice of zeros at its end.
"""

GAME = GameTerms(
    description=(
        "The bench crafted records, flipped a fair coin for each, and trained the user's function on those"
        " with heads, among records that the adversary knows; the adversary saw every update of the training,"
        " its weights, and the scorer that the function returned."
    ),
    trials=Trials.ONE_RUN,
    prior=0.5,
    adjacency=Adjacency.ADD_REMOVE,
    released=Released.EVERY_UPDATE,
)


@dataclass(frozen=True, kw_only=True)
class CanaryJob:
    """Payload: train on natural records and canaries, and look for each canary in the updates.

    `included`: the natural records among the candidates that are trained on; `coins`: of each canary.
    """

    setup: TrainingSetup
    spec: str
    included: tuple[bool, ...]
    coins: tuple[bool, ...]
    run: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """The game as it was played: its evidence, or the reason why it could not be."""

    evidence: Evidence | None
    reason: str = ""
    seconds: float = 0.0


def usual_count(candidates: int) -> int:
    """Canaries for so many candidates, if the user names no number."""
    return min(MOST, int(SHARE * candidates))


def train_with_canaries(
    job: CanaryJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Run a user's training function once; on another machine that of the file's copy in `inputs[SOURCE]`.

    Returns:
        `scores` of all canaries, or the `reason` why there are none; `details`, and `cost`.
    """
    started = time.perf_counter()
    candidates, _ = prepare(job.setup)
    spec = job.spec
    if SOURCE in inputs:
        path, _, function = spec.rpartition(":")
        spec = f"{inputs[SOURCE] / Path(path).name}:{function}"
    crafted = canaries(candidates, len(job.coins), stream(job.setup.seed, "canaries", _CRAFTS))
    everybody, inside = [*candidates, *crafted], [*job.included, *job.coins]
    # The places are drawn for all, so that they say nothing of the coins.
    order = stream(job.setup.seed, "canaries", _ORDER, job.run).permutation(len(everybody))
    records = as_dicts([everybody[i] for i in order if inside[i]])
    seed = stream_seed(job.setup.seed, "canaries", _TRAINING, job.run)
    try:
        found = _looked_for(UserTraining(spec), records, crafted, seed, progress)
    except (InputError, UnsupportedError) as error:
        return {"reason": str(error), "cost": cost_since(started)}
    return {**found, "cost": cost_since(started)}


def _looked_for(
    training: UserTraining,
    records: list[dict[str, Any]],
    crafted: Sequence[Record],
    seed: int,
    progress: StepProgress,
) -> dict[str, Any]:
    """Scores and details of one training."""
    from workbench.audit.canaries.directions import directions_of
    from workbench.audit.canaries.record import watched
    from workbench.audit.canaries.scoring import moves, scores_of

    fitted, kept = watched(lambda: training.fitted(records, seed), seed=seed, canaries=len(crafted))
    if not kept.updates:
        raise UnsupportedError("no torch optimizer took a step")
    directions = directions_of(fitted.ask, crafted, kept.parameters)
    moved = []
    for number, update in enumerate(kept.updates):
        gradient = update.gradient[directions.columns[update.optimizer]]
        moved.append(moves(directions.at(update), gradient))
        progress(number + 1, len(kept.updates), "updates")
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
    count: int,
    runs: int,
    inputs: Mapping[str, Path],
) -> Found:
    """Train with canaries, as often as there are runs, each with coins of its own.

    The training data have about as many records as there are members: canaries take the places of some.

    Args:
        claim: That it is played for; where that is about less than every update, it refutes nothing.
        first: The first training of the membership game.
        count: Number of canaries, at least 2.
    """
    setup, places = first.setup, np.flatnonzero(first.included)
    kept = max(places.size - count // 2, round(LEAST_NATURAL * places.size), 1)
    natural = np.zeros(len(first.included), dtype=bool)
    natural[stream(setup.seed, "canaries", _NATURAL).permutation(places)[:kept]] = True
    content, jobs = content_digest(setup), []
    for run in range(runs):
        coins = stream(setup.seed, "canaries", _COINS, run).random(count) < 0.5
        payload = CanaryJob(
            setup=setup,
            spec=training.spec,
            included=tuple(natural.tolist()),
            coins=tuple(coins.tolist()),
            run=run,
        )
        identity = {
            "kind": "canaries",
            "source": training.source_sha256,
            "job": plain(payload),
            "content": content,
        }
        jobs.append(
            Job(identity=identity, payload=payload, inputs=inputs, label=training.spec, content=content)
        )
    records = engine.run("canaries", jobs, train_with_canaries, keeps_folder=False)
    return _found(claim, [job.payload for job in jobs], records)


def _found(claim: Claim, jobs: Sequence[CanaryJob], records: Sequence[Mapping[str, JSON]]) -> Found:
    from workbench.audit.canaries.scoring import paired

    seconds = sum(float(record["cost"]["seconds"]) for record in records)
    reasons = [str(record["reason"]) for record in records if "reason" in record]
    if reasons:
        return Found(evidence=None, reason=reasons[0], seconds=seconds)
    game = GAME
    if claim.released is not Released.EVERY_UPDATE:
        game = replace(game, released=claim.released, beyond="every update of the training")
    scores = paired(np.array([record["scores"] for record in records], dtype=np.float64))
    evidence = Evidence(
        scores=scores.ravel(),
        members=np.concatenate([np.array(job.coins, dtype=bool) for job in jobs]),
        game=game,
        attack=NAME,
        seeds={"audit": jobs[0].setup.seed},
        cost={"seconds": seconds},
        details={"runs": float(len(jobs)), "canaries": float(len(jobs[0].coins)), **records[0]["details"]},
    )
    return Found(evidence=evidence, seconds=seconds)
