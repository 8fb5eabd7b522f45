"""The candidate-subset game of an audit: one part of it in a worker, and all parts as evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from workbench.accounting import MutualInformation
from workbench.core.cost import cost_since
from workbench.core.errors import InputError
from workbench.core.keys import JSON, plain
from workbench.core.streams import stream, stream_seed
from workbench.estimation.information import plug_in_information
from workbench.estimation.judged import game_from
from workbench.estimation.subset_trials import SubsetBelief, SubsetEvidence
from workbench.execution.engine import Job
from workbench.execution.tasks import StepProgress
from workbench.interfaces import Attack, FloatArray, Mechanism, Plan, References, Secret, SubsetObservations
from workbench.training import setup as workers
from workbench.training.setup import TrainingSetup

WORLD_SUBSETS, WORLD_STEPS = 4, 6
"""Candidates and releases of the world in which bits are counted: 256 cells."""

MOST_COUNTED = 250
"""Trainings of one job of it."""

CURVES = ("entropy", "budget", "unanimity")
"""Means over trials after each release that an audit's page draws."""


class BelievingAttack(Attack, Protocol):
    """An attack on candidate subsets that says what it thinks of every candidate."""

    view: str

    def beliefs(self, observations: SubsetObservations) -> tuple[SubsetBelief, ...]:
        """What the adversary makes of each training."""


def play_part(
    setup: TrainingSetup,
    plan: Plan,
    attack: str,
    parameters: Mapping[str, Any],
    *,
    trials: int,
    own: Sequence[int],
) -> dict[str, Any]:
    """Play some trials of a game; pure in its arguments.

    Args:
        setup: Of the subject.
        plan: Its records are the universe.
        attack, parameters: Registry name and parameters of the attack; see
        `workbench.training.setup.create_attack`. trials: Of this part. own: What tells this part's random
        streams from others'.

    Returns:
        `scores`, `members`, `game`, `details`, `series` and `curves` (see
        `workbench.games.subset.series`), `cost`.

    Raises:
        InputError: the game cannot be played with this plan.
        UnsupportedError: the mechanism has no candidate subsets.
    """
    from workbench.games.subset.play import beyond_subset, play_subsets, subset_game
    from workbench.games.subset.series import step_curves, trial_series

    started = time.perf_counter()
    mechanism = workers.create_mechanism(setup)
    attacker = cast(BelievingAttack, workers.create_attack(setup, attack, parameters))
    played = play_subsets(mechanism, plan, trials=trials, seed=stream_seed(setup.seed, "attack", *own))
    generator = stream(setup.seed, "releases", *own)
    scores = attacker.score(played.subject, played.observations, References(), generator)
    beliefs = attacker.beliefs(played.observations)
    return {
        "scores": scores.values,
        "members": played.included,
        "game": subset_game(view=attacker.view, beyond=beyond_subset(mechanism, attacker.view)),
        "details": {"information_bits": scores.details["information_bits"]},
        "series": trial_series(played, beliefs),
        "curves": step_curves(played, beliefs),
        "candidates": played.shape[0],
        "cost": cost_since(started),
    }


def pooled_subsets(
    name: str, parts: Sequence[Mapping[str, JSON]], *, seed: int, confidence: float, cost: Mapping[str, float]
) -> SubsetEvidence:
    """All parts of a game as one piece of evidence.

    Args:
        name: Of the game.
        parts: What `play_part` returned, read back from the store, in their order.
        seed: Of the audit, for the report.
        confidence: Of the intervals among the details.
        cost: Of all parts.
    """
    from workbench.games.subset.series import series_details

    series = {one: _joined([part["series"][one] for part in parts]) for one in parts[0]["series"]}
    count = int(parts[0]["candidates"])
    sizes = np.array([len(part["scores"]) for part in parts], dtype=np.float64)
    bits = [float(part["details"]["information_bits"]) for part in parts]
    details = series_details(series, candidates=count, confidence=confidence)
    return SubsetEvidence(
        scores=_joined([part["scores"] for part in parts]),
        members=np.concatenate([np.array(part["members"], dtype=bool) for part in parts]),
        game=game_from(parts[0]["game"]),
        attack=name,
        seeds={"audit": seed},
        cost=cost,
        details={**details, "information_bits": float(np.average(bits, weights=sizes))},
        candidates=count,
        record_success=series["record_success"],
        log_scores=series["log_score"],
    )


def pooled_curves(parts: Sequence[Mapping[str, JSON]]) -> dict[str, list[float]]:
    """Means over all trials after each release, for the page.

    Args:
        parts: As in `pooled_subsets`.
    """
    sizes = np.array([len(part["scores"]) for part in parts], dtype=np.float64)
    return {
        name: np.average(np.stack([_numbers(part["curves"][name]) for part in parts]), axis=0, weights=sizes)
        .round(6)
        .tolist()
        for name in CURVES
    }


@dataclass(frozen=True, kw_only=True)
class WorldJob:
    """Some trainings in a world small enough to be counted.

    Attributes:
        setup: Of the subject, made small; see `small_world`.
        included: Which candidates the universe holds.
        trials: Of this part.
        part: Index from 0.
    """

    setup: TrainingSetup
    included: tuple[bool, ...]
    trials: int
    part: int


def world_jobs(setup: TrainingSetup, included: Sequence[bool], trials: int) -> list[Job]:
    """The parts of a counted world.

    Args:
        setup: Of the subject.
        included: Which candidates the universe holds.
        trials: Number of trainings; 0 for none.
    """
    small, parts = small_world(setup), -(-trials // MOST_COUNTED)
    jobs = []
    for part in range(parts):
        own = trials * (part + 1) // parts - trials * part // parts
        payload = WorldJob(setup=small, included=tuple(bool(x) for x in included), trials=own, part=part)
        content = workers.content_digest(small)
        identity = {"kind": "subset world", "job": plain(payload), "content": content}
        jobs.append(Job(identity=identity, payload=payload, label=small.mechanism, content=content))
    return jobs


def small_world(setup: TrainingSetup) -> TrainingSetup:
    """The setup with few candidates and few steps, all else the same."""
    given = {**setup.mechanism_parameters, "subset_count": WORLD_SUBSETS}
    steps = max(1, WORLD_STEPS // int(given.get("directions", 1)))
    if "mi_steps" in given:
        given["mi_steps"] = min(int(given["mi_steps"]), steps)
    return replace(setup, mechanism_parameters=given, steps=steps)


def play_counted(
    job: WorldJob, inputs: Mapping[str, Path], scratch: Path, progress: StepProgress
) -> dict[str, Any]:
    """Train in the counted world; pure in its job, without inputs and files.

    Returns:
        `secrets`, `codes`, `charged` (see `workbench.games.subset.play.CountedWorld`), `releases`, `cost`.
    """
    from workbench.games.subset.play import play_world

    started = time.perf_counter()
    plan = workers.make_plan(job.setup, np.array(job.included, dtype=bool), 0)
    played = play_world(
        workers.create_mechanism(job.setup),
        plan,
        trials=job.trials,
        world=stream_seed(job.setup.seed, "attack", *b"world"),
        seed=stream_seed(job.setup.seed, "attack", *b"world", job.part + 1),
    )
    return {
        "secrets": played.secrets,
        "codes": played.codes,
        "charged": played.charged,
        "releases": job.setup.steps * int(job.setup.mechanism_parameters.get("directions", 1)),
        "cost": cost_since(started),
    }


def counted(parts: Sequence[Mapping[str, JSON]], *, confidence: float) -> dict[str, float]:
    """What the joint counts of secret and bits say; empty for no parts.

    Args:
        parts: What `play_counted` returned, read back from the store.
        confidence: Of the interval.

    Returns:
        `plug_in`, `corrected`, `lower`, `upper` in nats, `n`, `candidates`, `releases`, `charged`, with
        `excess_lower` and `excess_upper` the interval of the information less the expected charge, and
        `sparse`, by which both intervals are to be judged (`workbench.estimation.information.PlugIn`).
    """
    if not parts:
        return {}
    secrets, codes, charged = (
        _joined([part[name] for part in parts]) for name in ("secrets", "codes", "charged")
    )
    pairs = secrets.astype(np.int64), codes.astype(np.int64)
    found = plug_in_information(*pairs, confidence=confidence)
    excess = plug_in_information(*pairs, confidence=confidence, charged=charged)
    return {
        "plug_in": found.plug_in,
        "corrected": found.corrected,
        "lower": found.lower,
        "upper": found.upper,
        "n": float(found.n),
        "candidates": float(WORLD_SUBSETS),
        "releases": float(parts[0]["releases"]),
        "charged": float(charged.mean()),
        "excess_lower": excess.lower,
        "excess_upper": excess.upper,
        "sparse": found.sparse,
    }


def check_subsets(mechanism: Mechanism, plan: Plan) -> None:
    """Refuse a mechanism or a plan that the game cannot be played with, before anything is trained.

    Args:
        mechanism: With its parameters.
        plan: Of one training.

    Raises:
        InputError: a public seed is fixed, or the universe is too small.
        UnsupportedError: the mechanism has no candidate subsets.
    """
    from workbench.games.subset.play import checked_mechanism

    checked_mechanism(mechanism, is_small=False)
    if len(plan.records) < 2:
        raise InputError(f"records must be two or more, got {len(plan.records)}")


def _numbers(values: Sequence[JSON]) -> FloatArray:
    return np.array([float(value) for value in values], dtype=np.float64)


def _joined(parts: Sequence[Sequence[JSON]]) -> FloatArray:
    found: FloatArray = np.concatenate([_numbers(part) for part in parts])
    return found


def comparable_epsilon(nats: float) -> float:
    """The pure-DP epsilon that allows as many right guesses as these nats at prior 1/2 (PACZero, section 2).

    A reference point for readers, no conversion; infinite from ln 2.

    Args:
        nats: >= 0.
    """
    success = MutualInformation(nats=nats, secret=Secret.SUBSET).max_success()
    return math.inf if success >= 1.0 else math.log(success / (1.0 - success))
