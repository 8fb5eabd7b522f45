"""The candidate-subset game of an audit: one part of it in a worker, and all parts as evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from workbench import workers
from workbench._runner_subjects import game_from
from workbench.accounting import MutualInformation
from workbench.errors import InputError
from workbench.estimation.subset_trials import SubsetBelief, SubsetEvidence
from workbench.interfaces import (
    JSON,
    Attack,
    FloatArray,
    Mechanism,
    Plan,
    References,
    Secret,
    SubsetObservations,
)
from workbench.workers import TrainingSetup, stream, stream_seed

CURVES = ("entropy", "budget", "unanimity")
"""Means over trials after each release that an audit's page draws."""


class BelievingAttack(Attack, Protocol):
    """An attack on candidate subsets that says what it thinks of every candidate."""

    view: str

    def beliefs(self, observations: SubsetObservations) -> tuple[SubsetBelief, ...]:
        """What the adversary makes of each training."""


def play_part(
    setup: TrainingSetup, plan: Plan, attacker: BelievingAttack, *, trials: int, own: Sequence[int]
) -> dict[str, Any]:
    """Play some trials of a game; pure in its arguments.

    Args:
        setup: Of the subject.
        plan: Its records are the universe.
        attacker: The attack.
        trials: Of this part.
        own: What tells this part's random streams from others'.

    Returns:
        `scores`, `members`, `game`, `details`, `series` and `curves` (see
        `workbench.training.subset_series`), `cost`.

    Raises:
        InputError: the game cannot be played with this plan.
        UnsupportedError: the mechanism has no candidate subsets.
    """
    from workbench.training.subset_game import beyond_subset, play_subsets, subset_game
    from workbench.training.subset_series import step_curves, trial_series

    started = time.perf_counter()
    mechanism = workers.create_mechanism(setup)
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
        "cost": workers.cost_since(started),
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
    from workbench.training.subset_series import series_details

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


def check_subsets(mechanism: Mechanism, plan: Plan) -> None:
    """Refuse a mechanism or a plan that the game cannot be played with, before anything is trained.

    Args:
        mechanism: With its parameters.
        plan: Of one training.

    Raises:
        InputError: a public seed is fixed, or the universe is too small.
        UnsupportedError: the mechanism has no candidate subsets.
    """
    from workbench.training.subset_game import checked_mechanism

    checked_mechanism(mechanism, is_small=False)
    if len(plan.records) < 2:
        raise InputError(f"records must be two or more, got {len(plan.records)}")


def believing(attacker: Attack) -> BelievingAttack:
    """The attack as one of this game.

    Raises:
        InputError: it says nothing of candidates.
    """
    if not callable(getattr(attacker, "beliefs", None)):
        raise InputError(f"attack {type(attacker).__name__} plays the candidate-subset game without beliefs")
    return cast(BelievingAttack, attacker)


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
