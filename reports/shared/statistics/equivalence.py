"""Equivalence within a stated margin: "no significant difference" is not "similar"."""

from __future__ import annotations

import math

import numpy as np

from workbench.core.errors import InputError
from workbench.reports.shared.statistics.results import Equivalence, NotTestable
from workbench.reports.shared.statistics.sample import Sample
from workbench.reports.shared.statistics.tests import (
    INDEPENDENT,
    PAIRED,
    checked_confidence,
    independent_units,
    paired_units,
)


def _checked_margin(margin: float) -> float:
    if not (math.isfinite(margin) and margin > 0.0):
        raise InputError(f"margin must be a finite number above 0, got {margin}")
    return margin


def tost_paired(
    first: Sample, second: Sample, *, margin: float, confidence: float = 0.95
) -> Equivalence | NotTestable:
    """Paired TOST of the units' means (statsmodels ttost_paired): |first - second| < margin?

    Declares equivalence wrongly with probability at most 1 - confidence, for normal differences.

    Raises:
        InputError: a margin that is not above 0; see `matched`; or the confidence is not in (0.5, 1).
    """
    checked_confidence(confidence)
    _checked_margin(margin)
    sides = paired_units("TOST, paired", first, second)
    if isinstance(sides, NotTestable):
        return sides
    from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

    a, b = sides
    p_value, below, above = ttost_paired(a.values, b.values, -margin, margin)
    lower, upper = DescrStatsW(a.values - b.values).tconfint_mean(alpha=2.0 * (1.0 - confidence))
    return Equivalence(
        name="TOST, paired",
        margin=margin,
        p_value=float(p_value),
        p_below=float(below[1]),
        p_above=float(above[1]),
        estimate=float(np.mean(a.values - b.values)),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        counts=(a.n_units,),
        unit=a.unit,
        assumption=PAIRED,
        label=a.label,
    )


def tost_welch(
    first: Sample, second: Sample, *, margin: float, confidence: float = 0.95
) -> Equivalence | NotTestable:
    """TOST of independent units' means with unequal variances (statsmodels ttost_ind).

    Raises:
        InputError: a margin that is not above 0; as `welch_t`.
    """
    checked_confidence(confidence)
    _checked_margin(margin)
    sides = independent_units("TOST, Welch", first, second)
    if isinstance(sides, NotTestable):
        return sides
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttost_ind

    a, b = sides
    p_value, below, above = ttost_ind(a.values, b.values, -margin, margin, usevar="unequal")
    compare = CompareMeans(DescrStatsW(a.values), DescrStatsW(b.values))
    lower, upper = compare.tconfint_diff(alpha=2.0 * (1.0 - confidence), usevar="unequal")
    return Equivalence(
        name="TOST, Welch",
        margin=margin,
        p_value=float(p_value),
        p_below=float(below[1]),
        p_above=float(above[1]),
        estimate=float(np.mean(a.values) - np.mean(b.values)),
        lower=float(lower),
        upper=float(upper),
        confidence=confidence,
        counts=(a.n_units, b.n_units),
        unit=a.unit,
        assumption=INDEPENDENT,
        label=a.label,
    )
