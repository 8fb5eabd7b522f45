"""Summaries of a candidate-subset game: series over its trials, curves over its releases, means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from workbench.estimation.bounded_mean import mean_bounds
from workbench.estimation.subset_trials import FLOOR, SubsetBelief, index_success, log_score, record_success
from workbench.games.subset.play import SubsetTrials
from workbench.interfaces import FloatArray

CONFIDENCE = 0.95
"""Of the intervals among a game's details, by default."""


def trial_series(played: SubsetTrials, beliefs: Sequence[SubsetBelief]) -> dict[str, FloatArray]:
    """Returns one number a trial, shape `(n,)` each, from the adversary's belief after each trial.

    Returns:
        `record_success`, `log_score` and `index_success` of what the adversary guesses by (see
        `workbench.estimation.subset_trials`); `bits_success`, as `record_success`, of the posterior from the
        released bits alone; `entropy` of the exact posterior under the stated law at the end, and `charged`,
        the ledger's sum, in nats; `unanimity`, the share of releases without noise.
    """
    secrets = [int(trial) for trial in played.secrets]
    guesses = [belief.guess for belief in beliefs]
    most = math.log(played.shape[0])
    return {
        "record_success": _right(played, guesses),
        "bits_success": _right(played, [belief.from_bits for belief in beliefs]),
        "log_score": np.array([log_score(g, j) for g, j in zip(guesses, secrets, strict=True)]),
        "index_success": np.array([index_success(g, j) for g, j in zip(guesses, secrets, strict=True)]),
        "entropy": np.array([float(b.entropies[-1]) if b.entropies.size else most for b in beliefs]),
        "charged": played.budgets.sum(axis=1),
        "unanimity": np.array([float(np.mean(trial.noise == 0.0)) for trial in played.observations.trials]),
    }


def _right(played: SubsetTrials, guesses: Sequence[FloatArray]) -> FloatArray:
    """Share of right guesses about records in each trial, shape `(n,)`."""
    return np.array(
        [
            record_success(guess, played.candidates(trial), int(played.secrets[trial]))
            for trial, guess in enumerate(guesses)
        ]
    )


def step_curves(played: SubsetTrials, beliefs: Sequence[SubsetBelief]) -> dict[str, FloatArray]:
    """Returns means over trials after each release, shape `(D,)` each.

    Returns:
        `entropy` of the exact posterior and `budget`, the ledger's sum so far, in nats; `unanimity`, the
        share of trials without noise there.
    """
    noise = np.stack([trial.noise for trial in played.observations.trials])
    return {
        "entropy": np.mean([belief.entropies for belief in beliefs], axis=0),
        "budget": np.cumsum(played.budgets, axis=1).mean(axis=0),
        "unanimity": np.mean(noise == 0.0, axis=0),
    }


def series_details(
    series: Mapping[str, FloatArray], *, candidates: int, confidence: float
) -> dict[str, float]:
    """Returns means of the series, with intervals that hold at every number of trials.

    Args:
        series: Of `trial_series`; all parts of a game, in their order.
        candidates: M.
        confidence: Of each interval separately, two-sided.

    Returns:
        `success` (right guesses about records), `bits_success` (the same from the released bits alone),
        `information` (ln M less the exact posterior's entropy, nats) and `log_score` (nats that the guesses
        show), each with `_lower` and `_upper`; `mean_entropy`, `charged_nats`, `index_success`,
        `unanimity_rate`, `candidates`.
    """
    most = math.log(candidates)
    gained = np.clip(most - series["entropy"], 0.0, most)
    ranges = {
        "success": (series["record_success"], 0.0, 1.0),
        "bits_success": (series["bits_success"], 0.0, 1.0),
        "information": (gained, 0.0, most),
        "log_score": (series["log_score"], math.log(FLOOR), most),
    }
    details: dict[str, float] = {}
    for name, (values, low, high) in ranges.items():
        lower, upper = mean_bounds(values, confidence=confidence, low=low, high=high)
        details |= {name: float(values.mean()), f"{name}_lower": lower, f"{name}_upper": upper}
    return details | {
        "mean_entropy": float(series["entropy"].mean()),
        "charged_nats": float(series["charged"].mean()),
        "index_success": float(series["index_success"].mean()),
        "unanimity_rate": float(series["unanimity"].mean()),
        "candidates": float(candidates),
    }


def game_details(
    played: SubsetTrials, beliefs: Sequence[SubsetBelief], *, confidence: float = CONFIDENCE
) -> dict[str, float]:
    """Returns `series_details` of a whole game, for a record."""
    return series_details(trial_series(played, beliefs), candidates=played.shape[0], confidence=confidence)
