"""Estimators: from attack scores to bounds, intervals and tests with a stated confidence.

Epsilon lower bounds share one signature in `ESTIMATORS`; metrics with intervals are in `metrics`, bounds on
success probabilities and on mutual information in nats in `subset_trials`, bounds on a Rényi divergence in
`renyi`.

| estimator | family | trials | labels |
|---|---|---|---|
| `clopper_pearson_split` | any | independent | any |
| `clopper_pearson_all` | any | independent | any |
| `one_run` | any | any dependence | independent coins, prior known |
| `gdp_one_run` | any for mu; Gaussian trade-off curve for epsilon | any dependence | as `one_run` |
| `gaussian_location` | Gaussian release, scores as released | independent | any |
| `gaussian_rank` | Gaussian trade-off curve, any increasing score | independent | any |
| `renyi_lower` (a divergence) | any | independent | any |
| `renyi_one_run` (a divergence) | any | any dependence | as `one_run` |

`sequential` tests one claim while scores arrive, for either kind of trials, and may be stopped at any time.

>>> import numpy as np
>>> generator = np.random.default_rng(1)
>>> members = generator.random(1000) < 0.5
>>> scores = generator.normal(size=1000) + members
>>> bound = ESTIMATORS["one_run"](scores, members, delta=1e-5, confidence=0.95, generator=generator)
>>> bound.quantity, bool(1.0 < bound.lower < 4.38)
('epsilon', True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from workbench.estimation.betting import SequentialTest, sequential
from workbench.estimation.clopper_pearson import (
    binomial_lower,
    clopper_pearson,
    clopper_pearson_split,
    half_split,
)
from workbench.estimation.gaussian_family import gaussian_location, gaussian_rank
from workbench.estimation.gdp_one_run import gdp_one_run
from workbench.estimation.inputs import bound_of_trials, check_game, check_probability
from workbench.estimation.metrics import (
    accuracy,
    advantage,
    auc,
    auc_below_half,
    balanced_accuracy,
    midpoint_threshold_metrics,
    records_below_half,
    roc_curve,
    runs_below_half,
    tpr_at_fpr,
)
from workbench.estimation.one_run import clopper_pearson_all, one_run
from workbench.estimation.renyi import renyi_lower, renyi_one_run
from workbench.estimation.tradeoff import TradeoffTest, tradeoff_violation
from workbench.interfaces import BoolArray, Bound, FloatArray

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "SequentialTest",
    "TradeoffTest",
    "accuracy",
    "advantage",
    "auc",
    "auc_below_half",
    "balanced_accuracy",
    "check_game",
    "clopper_pearson",
    "clopper_pearson_all",
    "clopper_pearson_split",
    "gaussian_location",
    "gaussian_rank",
    "gdp_one_run",
    "midpoint_threshold_metrics",
    "one_run",
    "records_below_half",
    "renyi_lower",
    "renyi_one_run",
    "roc_curve",
    "runs_below_half",
    "sequential",
    "success_lower",
    "tpr_at_fpr",
    "tradeoff_violation",
]


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
        """The estimator's bound; the generator is not used."""
        return estimator(scores, members, delta=delta, confidence=confidence)

    return bound


ESTIMATORS: Mapping[str, Estimator] = {
    "clopper_pearson_split": clopper_pearson_split,
    "clopper_pearson_all": clopper_pearson_all,
    "one_run": one_run,
    "gaussian_location": _without_draws(gaussian_location),
    "gaussian_rank": _without_draws(gaussian_rank),
    "gdp_one_run": gdp_one_run,
}
"""Epsilon estimators by name."""


def success_lower(
    scores: FloatArray, members: BoolArray, *, confidence: float, generator: np.random.Generator
) -> Bound:
    """Returns a lower bound on the probability of guessing membership right, for `Guarantee.max_success`.

    It exceeds the truth with probability at most 1 - confidence. The threshold is chosen on a random half of
    each class, the right guesses of the other half give the bound. With labels of fixed number the count is a
    sum of two binomials, whose tail a binomial of the same mean dominates (Hoeffding 1956, theorem 4); with
    coin labels it is binomial. Trials are independent; the members' share is the prior of the game.

    Raises `InputError`: an argument is unusable, or a class has fewer than two scores.
    """
    values, labels = check_game(scores, members, constant_allowed=True)
    check_probability("confidence", confidence)
    first = half_split(labels, generator)
    order = np.argsort(values[first], kind="stable")
    ranked, sorted_labels = values[first][order], labels[first][order]
    # Right guesses if the i lowest are called non-members; a cut inside a tie is no threshold.
    right = np.concatenate([[0], np.cumsum(~sorted_labels)]) + sorted_labels.sum()
    right = right - np.concatenate([[0], np.cumsum(sorted_labels)])
    is_cut = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
    at = int(np.argmax(np.where(is_cut, right, -1)))
    if at in (0, ranked.size):
        threshold = -np.inf if at == 0 else np.inf
    else:
        threshold = (ranked[at - 1] + ranked[at]) / 2
    judged_labels = labels[~first]
    correct = int(np.sum((values[~first] >= threshold) == judged_labels))
    lower = binomial_lower(correct, judged_labels.size, 1.0 - confidence)
    estimate = correct / judged_labels.size
    why = "scores are independent; threshold chosen on a random half, judged on the other"
    return bound_of_trials("success_lower", "success", (lower, estimate), why, confidence, n=values.size)
