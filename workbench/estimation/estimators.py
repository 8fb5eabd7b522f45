"""The epsilon estimators by name, under one signature: what the judge runs and the coverage tests sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from workbench.estimation.all_thresholds import clopper_pearson_all
from workbench.estimation.clopper_pearson import clopper_pearson_split
from workbench.estimation.gaussian_family import gaussian_location, gaussian_rank
from workbench.estimation.one_run import one_run
from workbench.interfaces import BoolArray, Bound, FloatArray


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
        """Bound that exceeds the true epsilon at `delta` with probability at most 1 - confidence.

        Raises:
            InputError: unusable input.
            UnsupportedError: the scores are visibly outside the estimator's family.
        """


def _location(
    scores: FloatArray, members: BoolArray, *, delta: float, confidence: float, generator: np.random.Generator
) -> Bound:
    """`gaussian_location` in epsilon; draws nothing from the generator."""
    return gaussian_location(scores, members, delta=delta, confidence=confidence)


def _rank(
    scores: FloatArray, members: BoolArray, *, delta: float, confidence: float, generator: np.random.Generator
) -> Bound:
    """`gaussian_rank` in epsilon; draws nothing from the generator."""
    return gaussian_rank(scores, members, delta=delta, confidence=confidence)


ESTIMATORS: Mapping[str, Estimator] = {
    "clopper_pearson_split": clopper_pearson_split,
    "clopper_pearson_all": clopper_pearson_all,
    "one_run": one_run,
    "gaussian_location": _location,
    "gaussian_rank": _rank,
}
"""Epsilon estimators by name."""
