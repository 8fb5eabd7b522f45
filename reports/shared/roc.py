"""A pointwise confidence band around an empirical ROC curve, for plots (verdicts rest on the bounds)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.interfaces import FloatArray


class Band(NamedTuple):
    """Ends of the interval of each rate at each vertex, each of shape `(k,)`."""

    fpr_lower: FloatArray
    fpr_upper: FloatArray
    tpr_lower: FloatArray
    tpr_upper: FloatArray


def roc_band(fpr: FloatArray, tpr: FloatArray, *, nonmembers: int, members: int, confidence: float) -> Band:
    """Clopper-Pearson intervals of both rates at each vertex.

    The error is split over the four ends, so a vertex's box holds the true point with probability at least
    `confidence`, where scores are independent and the threshold was fixed before they were seen.

    Args:
        fpr: Empirical false-positive rates, shape `(k,)`.
        tpr: Empirical true-positive rates, shape `(k,)`.
        nonmembers: Number of scores behind `fpr`.
        members: Number of scores behind `tpr`.
        confidence: Of each vertex, in (0, 1).
    """
    error = (1.0 - confidence) / 4.0

    def ends(limit: Callable[[int, int, float], float], rates: FloatArray, n: int) -> FloatArray:
        return np.array([limit(int(hits), n, error) for hits in np.rint(rates * n)], dtype=np.float64)

    return Band(
        fpr_lower=ends(binomial_lower, fpr, nonmembers),
        fpr_upper=ends(binomial_upper, fpr, nonmembers),
        tpr_lower=ends(binomial_lower, tpr, members),
        tpr_upper=ends(binomial_upper, tpr, members),
    )
