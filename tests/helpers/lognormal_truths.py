"""Comparisons of draws of log S with each other and with a computed distribution function."""

from __future__ import annotations

import numpy as np
from oracles.lognormal_reference import reference_cdf

from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import LognormalSum, SumSample

RARE = 1e-6
"""False-alarm rate of each statistical comparison."""


def distance(one: SumSample, other: SumSample) -> float:
    """Two-sample Kolmogorov distance."""
    both = np.concatenate([one.log_sums, other.log_sums])
    return float(np.max(np.abs(one.cdf(both) - other.cdf(both))))


def far_apart(one: SumSample, other: SumSample) -> bool:
    """Whether two samples differ by more than one time in a million, with their biases."""
    return distance(one, other) > one.half_width(1 - RARE / 2) + other.half_width(1 - RARE / 2)


def off_reference(law: LognormalSum, sample: SumSample) -> bool:
    """Whether draws leave the band around the characteristic function's answer (in 1e-6 of the cases)."""
    at = np.quantile(sample.log_sums, np.linspace(0.02, 0.98, 49))
    apart = np.max(np.abs(sample.cdf(at) - reference_cdf(law, at)))
    return bool(apart > sample.half_width(1 - RARE))
