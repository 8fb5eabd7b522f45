"""The epsilon estimators by name, and the most that each can show in an experiment of a given size.

That most is the bound of a perfect attack, which separates members from non-members completely, with no noise
in its scores; it decides whether an experiment was UNDERPOWERED.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np

from workbench.core.errors import InconclusiveError, InputError, UnsupportedError
from workbench.estimation.all_thresholds import clopper_pearson_all, coin_sample_size, perfect_guesses_bound
from workbench.estimation.clopper_pearson import clopper_pearson_split, ratio_lower
from workbench.estimation.gaussian_family import gaussian_location, gaussian_rank
from workbench.estimation.inputs import check_probability
from workbench.estimation.one_run import one_run
from workbench.estimation.searching import smallest_count
from workbench.interfaces import BoolArray, Bound, FloatArray

_LARGEST = 2**19


class Estimator(Protocol):
    """An epsilon lower bound from scores and labels."""

    def __call__(
        self,
        scores: FloatArray,
        members: BoolArray,
        *,
        delta: float,
        confidence: float,
        generator: np.random.Generator,
    ) -> Bound:
        """Returns a bound that exceeds the true epsilon at `delta` with probability at most 1 - confidence.

        Raises `InputError`: unusable input. `UnsupportedError`: the scores are visibly outside the family.
        """


def _without_draws(estimator: Callable[..., Bound]) -> Estimator:
    """An estimator that draws nothing, with a generator among its arguments."""

    def bound(
        scores: FloatArray,
        members: BoolArray,
        *,
        delta: float,
        confidence: float,
        generator: np.random.Generator,
    ) -> Bound:
        return estimator(scores, members, delta=delta, confidence=confidence)

    return bound


ESTIMATORS: Mapping[str, Estimator] = {
    "clopper_pearson_split": clopper_pearson_split,
    "clopper_pearson_all": clopper_pearson_all,
    "one_run": one_run,
    "gaussian_location": _without_draws(gaussian_location),
    "gaussian_rank": _without_draws(gaussian_rank),
}
"""Epsilon estimators by name."""


@lru_cache(maxsize=4096)
def perfect_attack_bound(
    n_members: int, n_nonmembers: int, *, delta: float, confidence: float, estimator: str
) -> float:
    """Returns the epsilon bound that an estimator gives a perfect attack.

    Infinite for the Gaussian family, where scores without noise have no finite epsilon. `estimator` is a key
    of `ESTIMATORS`, or `"clopper_pearson"`. Raises `InputError`: an argument is unusable, or the estimator
    unknown.
    """
    if n_members < 1 or n_nonmembers < 1:
        raise InputError(f"n_members and n_nonmembers must be at least 1, got {n_members} and {n_nonmembers}")
    check_probability("delta", delta, zero_allowed=True)
    check_probability("confidence", confidence)
    significance = 1.0 - confidence
    if estimator == "clopper_pearson":
        pairs = ((n_members, n_nonmembers), (n_nonmembers, n_members))
        share = significance / 2
        return max(ratio_lower(up, up, 0, down, delta=delta, significance=share) for up, down in pairs)
    if estimator == "clopper_pearson_split":
        up, down = n_members - n_members // 2, n_nonmembers - n_nonmembers // 2
        pairs = ((up, down), (down, up))
        return max(ratio_lower(a, a, 0, b, delta=delta, significance=significance) for a, b in pairs)
    if estimator not in ESTIMATORS:
        raise InputError(
            f"unknown estimator {estimator!r}; known: {', '.join(sorted([*ESTIMATORS, 'clopper_pearson']))}"
        )
    if min(n_members, n_nonmembers) < 2:
        return 0.0
    if estimator == "clopper_pearson_all":
        # Its coins fall at random; a balanced fall is the one that serves a perfect attack best.
        size, prior = coin_sample_size(n_members, n_nonmembers)
        return perfect_guesses_bound(size, prior, delta, significance)
    members = np.arange(n_members + n_nonmembers) < n_members
    try:
        return ESTIMATORS[estimator](
            members.astype(np.float64),
            members,
            delta=delta,
            confidence=confidence,
            generator=np.random.default_rng(0),
        ).lower
    except UnsupportedError:
        return math.inf


@lru_cache(maxsize=1024)
def trials_needed(epsilon: float, delta: float, confidence: float, estimator: str) -> int:
    """Number of trials, half of them members, with which a perfect attack's bound exceeds epsilon.

    An even number, at most a sixty-fourth above the smallest. `epsilon` is the claim, finite and >= 0; the
    other arguments are those of `perfect_attack_bound`.

    Raises `InputError`: an argument is unusable, or the estimator unknown. `InconclusiveError`: no number up
    to 2^20 would do.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InputError(f"epsilon must be finite and at least 0, got {epsilon!r}")

    def reaches(half: int) -> bool:
        bound = perfect_attack_bound(half, half, delta=delta, confidence=confidence, estimator=estimator)
        return bound > epsilon

    half = smallest_count(reaches, start=2, most=_LARGEST, coarseness=64)
    if half is None:
        raise InconclusiveError(
            f"no {estimator} experiment of up to {2 * _LARGEST} trials reaches epsilon {epsilon:g}"
        )
    return 2 * half
