"""Estimators: from attack scores to bounds, intervals and tests with a stated confidence.

Epsilon lower bounds share one signature in `ESTIMATORS`; metrics with intervals are in `metrics`, tests in
other currencies in `success`.

| estimator | family | trials | labels |
|---|---|---|---|
| `clopper_pearson_split` | any | independent | any |
| `clopper_pearson_all` | any | independent | any |
| `one_run` | any | any dependence | independent coins, prior known |
| `gaussian_location` | Gaussian release, scores as released | independent | any |
| `gaussian_rank` | Gaussian trade-off curve, any increasing score | independent | any |

>>> import numpy as np
>>> generator = np.random.default_rng(1)
>>> members = generator.random(1000) < 0.5
>>> scores = generator.normal(size=1000) + members
>>> bound = ESTIMATORS["one_run"](scores, members, delta=1e-5, confidence=0.95, generator=generator)
>>> bound.quantity, bool(1.0 < bound.lower < 4.38)
('epsilon', True)
"""

from __future__ import annotations

from workbench.estimation.all_thresholds import clopper_pearson_all
from workbench.estimation.clopper_pearson import clopper_pearson, clopper_pearson_split
from workbench.estimation.estimators import ESTIMATORS, Estimator, perfect_attack_bound, trials_needed
from workbench.estimation.gaussian_family import gaussian_location, gaussian_rank
from workbench.estimation.inputs import check_game
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
from workbench.estimation.one_run import one_run
from workbench.estimation.success import TradeoffTest, success_lower, tradeoff_violation

__all__ = [
    "ESTIMATORS",
    "Estimator",
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
    "midpoint_threshold_metrics",
    "one_run",
    "perfect_attack_bound",
    "records_below_half",
    "roc_curve",
    "runs_below_half",
    "success_lower",
    "tpr_at_fpr",
    "tradeoff_violation",
    "trials_needed",
]
