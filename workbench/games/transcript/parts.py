"""An audit's games of whole trainings: cut into jobs of some trials each, played in workers, put together.

Trials are independent, so a game of a thousand trainings is a dozen jobs that two workers share, and a killed
audit loses the jobs under way only. There are transcript games, about one record of signs (an attack may be
asked for several canaries, separated by commas: each is a game of its own), and candidate-subset games.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core import registry
from workbench.core.cost import cost_since
from workbench.core.errors import InputError, UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream, stream_seed
from workbench.estimation.judged import game_from
from workbench.estimation.low_fpr import low_fpr_details
from workbench.execution.engine import Job
from workbench.execution.tasks import StepProgress
from workbench.games.subset.parts import check_subsets, play_part, pooled_subsets
from workbench.interfaces import AccessLevel, Attack, Evidence, Mechanism, Plan, References, WatchedMechanism
from workbench.training import setup as workers
from workbench.training.setup import TrainingSetup

MOST_TRIALS = 100
"""Trials of one job: a matter of seconds, so that workers share a game and its progress shows."""

MOST_SUBSET_TRIALS = 20
"""The same of a candidate-subset game, whose trials are whole trainings of a few hundred milliseconds."""

PLAYED = (AccessLevel.TRANSCRIPT, AccessLevel.SUBSET)
"""Access levels of the attacks whose games train for themselves, many times."""

WORST_OTHERS = {"opposed": "copies"}
"""The data set beside a canary, where the user names none: that in which an opposed one does most harm."""

_SUMMED = ("certain",)
"""Details of a part that count trials; all others are means over trials."""


@dataclass(frozen=True, kw_only=True)
class TranscriptJob:
    """Some trials of one game.

    Attributes:
        setup: Of the subject; its mechanism, its records and its plan are the game's.
        included: Which candidates the plan holds.
        attack, parameters: Registry name and parameters of the attack, for one canary if it has canaries.
        trials: Of this part.
        part: Index from 0.
    """

    setup: TrainingSetup
    included: tuple[bool, ...]
    attack: str
    parameters: Mapping[str, Any]
    trials: int
    part: int


@dataclass(frozen=True, kw_only=True)
class TranscriptGame:
    """One game: an attack, with one canary if it has canaries.

    Attributes:
        name: In the report: `sign_transcript (opposed)`, `subset_posterior (values)`.
        attack, parameters: Registry name and parameters of the attack, for one canary.
        trials: Number of independent trainings; even in a transcript game.
        access: `AccessLevel.TRANSCRIPT` or `AccessLevel.SUBSET`.
    """

    name: str
    attack: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    trials: int
    access: AccessLevel = AccessLevel.TRANSCRIPT

    def jobs(self, setup: TrainingSetup, included: Sequence[bool]) -> list[Job]:
        """The game's parts, none of more trials than a job holds, each with an even number of them."""
        pairs = self.trials // 2
        most = MOST_TRIALS if self.access is AccessLevel.TRANSCRIPT else MOST_SUBSET_TRIALS
        parts = -(-pairs // (most // 2))
        jobs = []
        for part in range(parts):
            own = pairs * (part + 1) // parts - pairs * part // parts
            payload = TranscriptJob(
                setup=setup,
                included=tuple(bool(one) for one in included),
                attack=self.attack,
                parameters=self.parameters,
                trials=2 * own,
                part=part,
            )
            content = workers.content_digest(setup)
            kind = "transcript" if self.access is AccessLevel.TRANSCRIPT else "subset"
            identity = {"kind": kind, "job": plain(payload), "content": content}
            jobs.append(Job(identity=identity, payload=payload, label=setup.mechanism, content=content))
        return jobs


def games_of(attack: str, given: Mapping[str, Any]) -> list[TranscriptGame]:
    """The games that an attack's parameters ask for, one a canary if it has canaries.

    Args:
        attack: Registry name, of an attack whose game trains for itself.
        given: Parameters of the attack; `canary` may name several, separated by commas.

    Raises:
        InputError: a parameter is unknown or out of range, or a canary is named twice.
    """
    if getattr(registry.entries("attack")[attack].factory, "access", None) is AccessLevel.SUBSET:
        return [_subset_game(attack, given)]
    named = [part.strip() for part in str(given["canary"]).split(",")] if "canary" in given else [None]
    if len(set(named)) < len(named):
        raise InputError(f"{attack}'s canary must not name one twice, got {given['canary']!r}")
    games = []
    for canary in named:
        own = dict(given)
        if canary is not None:
            own["canary"] = canary
        if "others" not in own and own.get("canary", "opposed") in WORST_OTHERS:
            own["others"] = WORST_OTHERS[own.get("canary", "opposed")]
        attacker: Any = registry.create("attack", attack, **own)
        name = f"{attack} ({attacker.canary})"
        trials = int(own.pop("trials", attacker.trials))
        games.append(TranscriptGame(name=name, attack=attack, parameters=own, trials=trials))
    return games


def _subset_game(attack: str, given: Mapping[str, Any]) -> TranscriptGame:
    """The one game of an attack on candidate subsets."""
    own = dict(given)
    attacker: Any = registry.create("attack", attack, **own)
    trials = int(own.pop("trials", attacker.trials))
    name = f"{attack} ({attacker.view})"
    return TranscriptGame(name=name, attack=attack, parameters=own, trials=trials, access=AccessLevel.SUBSET)


def play(
    job: TranscriptJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Play some trials of a game; pure in its job, without inputs and files.

    Returns:
        `scores`, `members`, `game`, `details`, `cost`; of a candidate-subset game also `series`, `curves` and
        `candidates`.
    """
    from workbench.games.transcript.play import play_transcripts, transcript_game

    started = time.perf_counter()
    setup = job.setup
    attacker: Attack = registry.create("attack", job.attack, **dict(job.parameters))
    plan = workers.make_plan(setup, np.array(job.included, dtype=bool), 0)
    if attacker.access is AccessLevel.SUBSET:
        own = (job.part + 1, *job.attack.encode())
        return play_part(setup, plan, job.attack, job.parameters, trials=job.trials, own=own)
    asked = {name: getattr(attacker, name) for name in ("canary", "others", "knowledge")}
    own = (job.part + 1, *asked["canary"].encode())
    played = play_transcripts(
        workers.create_mechanism(setup),
        plan,
        **asked,
        trials=job.trials,
        seed=stream_seed(setup.seed, "attack", *own),
    )
    generator = stream(setup.seed, "releases", *own)
    scores = attacker.score(played.subject, played.observations, References(), generator)
    return {
        "scores": scores.values,
        "members": played.included,
        "game": transcript_game(plan, **asked, zero_gradient=played.observations.zero_gradient),
        "details": dict(scores.details),
        "cost": cost_since(started),
    }


def check_readable(mechanism: Mechanism) -> None:
    """Refuse a mechanism with whose transcripts no game can be played.

    Args:
        mechanism: With its parameters.

    Raises:
        InputError: its public seed is fixed: all trials would share one mask, and a claim is about all masks.
        UnsupportedError: it releases no masked signs.
    """
    if not isinstance(mechanism, WatchedMechanism):
        raise UnsupportedError(
            "attack 'sign_transcript' reads released signs, and the mechanism releases none"
        )
    seed = getattr(mechanism, "public_seed", None)
    if seed is not None:
        raise InputError(f"public_seed must be left open in a transcript game, got {seed}")


def check_game(game: TranscriptGame, mechanism: Mechanism, plan: Plan) -> None:
    """Refuse a mechanism or a plan that a game cannot be played with, before anything is trained.

    Raises:
        InputError: a fixed public seed, too few records, or too many for what the adversary is to know.
        UnsupportedError: the mechanism releases nothing that the game is about, or samples are not Poisson.
    """
    from workbench.games.transcript.play import check_records

    if game.access is AccessLevel.SUBSET:
        check_subsets(mechanism, plan)
        return
    check_readable(mechanism)
    attacker: Any = registry.create("attack", game.attack, **game.parameters)
    check_records(plan, attacker.knowledge)


def pooled(
    game: TranscriptGame, parts: Sequence[Mapping[str, JSON]], *, seed: int, confidence: float
) -> Evidence:
    """All parts of a game as one piece of evidence.

    Args:
        game: Whose parts they are.
        parts: What `play` returned, read back from the store.
        seed: Of the audit, for the report.
        confidence: Of the intervals among the details.
    """
    cost = {
        "seconds": _costs(parts, "seconds", sum),
        "peak_memory_mb": _costs(parts, "peak_memory_mb", max),
    }
    if game.access is AccessLevel.SUBSET:
        return pooled_subsets(game.name, parts, seed=seed, confidence=confidence, cost=cost)
    scores = np.concatenate([np.array([float(x) for x in part["scores"]]) for part in parts])
    members = np.concatenate([np.array(part["members"], dtype=bool) for part in parts])
    sizes = np.array([len(part["scores"]) for part in parts], dtype=np.float64)
    details = {}
    for name in parts[0]["details"]:
        values = np.array([float(part["details"][name]) for part in parts])
        details[name] = float(values.sum() if name in _SUMMED else np.average(values, weights=sizes))
    return Evidence(
        scores=scores,
        members=members,
        game=game_from(parts[0]["game"]),
        attack=game.name,
        seeds={"audit": seed},
        cost=cost,
        details={**details, **low_fpr_details(scores, members, confidence=confidence)},
    )


def _costs(parts: Iterable[Mapping[str, JSON]], name: str, of: Any) -> float:
    return float(of(float(part["cost"][name]) for part in parts))
