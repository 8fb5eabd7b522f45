"""The games that an attack plays against a trained target, inside a worker: one function an access level.

Each returns plain evidence records, one a game; `workbench.games.plays.play_attack` adds costs and seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.cost import cost_since
from workbench.core.errors import InputError
from workbench.core.streams import stream, stream_seed
from workbench.estimation.low_fpr import low_fpr_details
from workbench.execution.tasks import StepProgress, silent
from workbench.interfaces import (
    AccessLevel,
    Adjacency,
    Attack,
    Family,
    Game,
    Observations,
    Plan,
    References,
    Released,
    Scores,
    Subject,
    Trials,
)
from workbench.training.neighbours import neighbours_of
from workbench.training.setup import (
    TrainingSetup,
    create_attack,
    create_mechanism,
    load_corpus,
    make_plan,
    prepare,
)

if TYPE_CHECKING:
    from workbench.games.transcript.play import TranscriptTrials


Inputs = Mapping[str, Path]
"""Folders of trained subjects: the target's as `"0"`, those of its shadows as `"1"`, `"2"`, ..."""


def _membership(
    job: AttackJob, attacker: Attack, target: Subject, inputs: Inputs, _progress: StepProgress = silent
) -> list[dict[str, Any]]:
    """Score every candidate once against the target; the labels are the coins that built its training set.

    Under replace-one each coin has chosen between two candidates, half the pool apart
    (`workbench.audit.subjects.coins_of`): the score is the one's less the other's.
    """
    candidates, _ = prepare(job.setup)
    shadows = tuple(
        load(job, inputs[str(run)], included, run)
        for run, included in enumerate(job.shadow_included, start=1)
    )
    references = References(subjects=shadows, included=np.array(job.shadow_included, dtype=bool))
    scores = attacker.score(target, candidates, references, stream(job.setup.seed, "attack"))
    shadow_text = f", has {len(shadows)} shadow models of its own" if shadows else ""
    adjacency = neighbours_of(job.setup.mechanism, job.setup.mechanism_parameters)
    values, coins, whom = scores.values, list(job.target_included), "includes each candidate"
    if adjacency is Adjacency.REPLACE_ONE:
        half, whom = len(candidates) // 2, "includes one of each pair of candidates"
        values, coins = values[:half] - values[half : 2 * half], coins[:half]
    game = Game(
        description=(
            f"the auditor {whom} by an independent fair coin and trains once; the adversary "
            f"asks the trained model for its likelihoods{shadow_text}, knows every candidate, and scores each"
        ),
        trials=Trials.ONE_RUN,
        released=released_to(attacker),
        adjacency=adjacency,
    )
    texts = tuple(record.text for record in candidates[: len(coins)]) if candidates[0].text else ()
    return [
        {
            "attack": job.attack,
            "scores": values,
            "members": coins,
            "game": game,
            "details": dict(scores.details),
            "blind_texts": texts,
        }
    ]


def _releases(
    job: AttackJob, attacker: Attack, target: Subject, inputs: Inputs, _progress: StepProgress = silent
) -> list[dict[str, Any]]:
    """Two games of a gradient canary: many releases at the trained state, and one observation a step.

    The second is played by the attack whose canary the run watched. A sum to which a record adds nothing is
    also that of a record whose gradient is zero, so both games are games of replacement as well. Where noise
    changes in a run, releases at one state stand for the steps whose noise is theirs, and for no others.
    """
    own = attacker.prepare(load_corpus(job.setup), stream(job.setup.seed, "insertions"))
    canary = own.gradient_canary
    if canary is None:
        raise InputError(f"attack {job.attack!r} inserted no gradient canary")
    generator = stream(job.setup.seed, "releases")
    coins = generator.random(int(getattr(attacker, "releases", 1000))) < 0.5
    played = {
        "one state": (target.release_canary(canary, coins, generator), coins),
        "every step": (target.transcript.canary_observations, target.transcript.canary_included),
    }
    if canary != target.plan.insertions.gradient_canary:
        del played["every step"]
    mechanism = create_mechanism(job.setup)
    adjacency = neighbours_of(job.setup.mechanism, job.setup.mechanism_parameters)
    alike = getattr(mechanism, "steps_at_first_noise", lambda plan: plan.steps)(target.plan)
    absent = ", and a record of gradient zero otherwise" if adjacency is Adjacency.REPLACE_ONE else ""
    descriptions = {
        "one state": "the trained state is released afresh in each trial",
        "every step": "each training step is one trial",
    }
    family = Family(getattr(target, "release_family", Family.ANY))
    results = []
    for where, (values, included) in played.items():
        if not 2 <= np.sum(included) <= included.size - 2:
            continue  # A handful of steps may have tossed (nearly) one side only, which is no game.
        observations = Observations(values=values, where=where)
        scores = attacker.score(target, observations, References(), stream(job.setup.seed, "attack"))
        game = Game(
            description=(
                f"{descriptions[where]}: the auditor puts the gradient canary in by a fair coin{absent}; the "
                "adversary sees the released update and knows every other record of the step"
            ),
            trials=Trials.INDEPENDENT,
            released=released_to(attacker),
            adjacency=adjacency,
            family=family,
            steps=alike if where == "one state" else target.plan.steps,
            sampling_probability=target.plan.sampling_probability,
        )
        results.append(
            {
                "attack": f"{job.attack} ({where})",
                "scores": scores.values,
                "members": included,
                "game": game,
                "details": dict(scores.details),
                "blind_texts": (),
            }
        )
    return results


def _weights(
    job: AttackJob, attacker: Attack, target: Subject, inputs: Inputs, _progress: StepProgress = silent
) -> list[dict[str, Any]]:
    """Train many times with and without a canary in the target's data; a game of its own trainings."""
    from workbench.games.weights.play import play_weights, weight_game

    insert, trials, references = (getattr(attacker, name) for name in ("insert", "trials", "references"))
    plan, canary = insert(target.plan, stream(job.setup.seed, "insertions"))
    mechanism, seed = create_mechanism(job.setup), stream_seed(job.setup.seed, "attack")
    played = play_weights(mechanism, plan, canary=canary, trials=trials, references=references, seed=seed)
    scores = attacker.score(
        played.subject, played.observations, played.references, stream(job.setup.seed, "attack")
    )
    return [
        {
            "attack": job.attack,
            "scores": scores.values,
            "members": played.included,
            "game": weight_game(plan, canary=canary, references=references),
            "details": dict(scores.details),
            "blind_texts": (),
        }
    ]


def _transcripts(
    job: AttackJob, attacker: Attack, target: Subject, inputs: Inputs, progress: StepProgress = silent
) -> list[dict[str, Any]]:
    """Train many times with and without a canary in the target's data, and read the released signs."""
    from workbench.games.transcript.play import transcript_game

    played, scores = transcripts(job.setup, job.attack, target.plan, partial(progress, part="trials"))
    cast = {part: getattr(attacker, part) for part in ("canary", "others", "knowledge")}
    return [
        {
            "attack": job.attack,
            "scores": scores.values,
            "members": played.included,
            "game": transcript_game(target.plan, **cast, zero_gradient=played.observations.zero_gradient),
            "details": {**scores.details, **low_fpr_details(scores.values, played.included)},
            "blind_texts": (),
        }
    ]


def _subsets(
    job: AttackJob, attacker: Attack, target: Subject, inputs: Inputs, progress: StepProgress = silent
) -> list[dict[str, Any]]:
    """Train many times on the target's records as the universe, each time on a secret candidate subset."""
    from workbench.games.subset.play import beyond_subset, play_subsets, subset_game
    from workbench.games.subset.series import game_details

    believing: Any = attacker
    mechanism, seed = create_mechanism(job.setup), stream_seed(job.setup.seed, "attack")
    played = play_subsets(
        mechanism, target.plan, trials=believing.trials, seed=seed, progress=partial(progress, part="trials")
    )
    scores = attacker.score(
        played.subject, played.observations, References(), stream(job.setup.seed, "attack")
    )
    details = game_details(played, believing.beliefs(played.observations))
    return [
        {
            "attack": job.attack,
            "scores": scores.values,
            "members": played.included,
            "game": subset_game(view=believing.view, beyond=beyond_subset(mechanism, believing.view)),
            "details": {**scores.details, **details},
            "blind_texts": (),
        }
    ]


def _trajectories(
    job: AttackJob, attacker: Attack, target: Subject, inputs: Inputs, progress: StepProgress = silent
) -> list[dict[str, Any]]:
    """Train many times with and without a canary record, and look at radii and noise multipliers only."""
    from workbench.games.trajectory.play import on_digits, play_trajectories, trajectory_game

    asked: Any = attacker
    plan = on_digits(target.plan) if asked.data == "digits" else target.plan
    adjacency = neighbours_of(job.setup.mechanism, job.setup.mechanism_parameters)
    played = play_trajectories(
        create_mechanism(job.setup),
        plan,
        canary=asked.canary,
        trials=asked.trials,
        steps=asked.steps,
        adjacency=adjacency,
        seed=stream_seed(job.setup.seed, "attack"),
        progress=partial(progress, part="trajectories"),
    )
    scores = attacker.score(target, played.observations, References(), stream(job.setup.seed, "attack"))
    return [
        {
            "attack": job.attack,
            "scores": scores.values,
            "members": played.included,
            "game": trajectory_game(plan, canary=asked.canary, steps=asked.steps, adjacency=adjacency),
            "details": dict(scores.details),
            "blind_texts": (),
        }
    ]


def _consecutive(
    job: AttackJob, attacker: Attack, target: Subject, inputs: Inputs, progress: StepProgress = silent
) -> list[dict[str, Any]]:
    """Permuted steps from the target's state, and whole trainings; each read by every adversary."""
    from workbench.games.consecutive.study import play_consecutive, read_by_all

    played = play_consecutive(job.setup, job.attack, target, progress)
    return read_by_all(job.setup, job.attack, played, float(getattr(target.plan.budget, "delta", 0.0)))


PLAYS: Mapping[
    AccessLevel, Callable[[AttackJob, Attack, Subject, Inputs, StepProgress], list[dict[str, Any]]]
] = {
    AccessLevel.MEMBERSHIP: _membership,
    AccessLevel.RELEASE: _releases,
    AccessLevel.WEIGHTS: _weights,
    AccessLevel.TRANSCRIPT: _transcripts,
    AccessLevel.SUBSET: _subsets,
    AccessLevel.CONSECUTIVE: _consecutive,
    AccessLevel.TRAJECTORY: _trajectories,
}
"""What is played at each access level; long games report how far they are."""


def released_to(attack: Attack) -> Released:
    """What an attack gets to see: a membership attack asks for likelihoods only."""
    if attack.access is AccessLevel.WEIGHTS:
        return Released.FINAL_WEIGHTS
    return Released.SCORES if attack.access is AccessLevel.MEMBERSHIP else Released.EVERY_UPDATE


@dataclass(frozen=True, kw_only=True)
class AttackJob:
    """Play one attack against a trained target, whose folder and its shadows' are the task's inputs."""

    setup: TrainingSetup
    attack: str
    target_included: tuple[bool, ...]
    shadow_included: tuple[tuple[bool, ...], ...] = ()


def load(job: AttackJob, folder: Path, included: tuple[bool, ...], run: int) -> Subject:
    """The subject of one run of the job's setup, from its folder."""
    from workbench.training.subject import load_subject

    plan = make_plan(job.setup, np.array(included, dtype=bool), run)
    subject: Subject = load_subject(folder, create_mechanism(job.setup), plan)
    return subject


def play_attack(job: AttackJob, inputs: Inputs, scratch: Path, progress: StepProgress) -> dict[str, Any]:
    """Play the attack's games against the target; nothing is written to the scratch folder.

    Returns:
        `evidence`: a list of plain evidence records, one a game (a release attack plays two).
    """
    started = time.perf_counter()
    attacker = create_attack(job.setup, job.attack)
    target = load(job, inputs["0"], job.target_included, 0)
    games = PLAYS[attacker.access](job, attacker, target, inputs, progress)
    cost = cost_since(started)
    seeds = {"audit": job.setup.seed, "training": target.plan.seed}
    return {"evidence": [{**game, "cost": cost, "seeds": seeds} for game in games]}


def transcripts(
    setup: TrainingSetup, name: str, plan: Plan, progress: Callable[[int, int], None] | None = None
) -> tuple[TranscriptTrials, Scores]:
    """Play the transcript game of an attack and score it.

    Args:
        setup: Mechanism, attack and seed.
        name: Of the attack, whose access level is `TRANSCRIPT`.
        plan: The data with the canary, and how they are trained on.
        progress: Told of each trial.

    Raises:
        InputError: the attack's game cannot be played with this plan.
        UnsupportedError: the mechanism releases no masked signs.
    """
    from workbench.games.transcript.play import play_transcripts

    attacker = create_attack(setup, name)
    cast = {part: getattr(attacker, part) for part in ("canary", "others", "knowledge", "trials")}
    seed = stream_seed(setup.seed, "attack")
    played = play_transcripts(create_mechanism(setup), plan, **cast, seed=seed, progress=progress)
    scored = stream(setup.seed, "attack")
    return played, attacker.score(played.subject, played.observations, References(), scored)
