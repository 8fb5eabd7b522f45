"""Bootstrap over units of replication, through scipy.stats.bootstrap: seeds are resampled, never epsilons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray, IntArray
from workbench.reports.shared.statistics.results import Interval, NotTestable
from workbench.reports.shared.statistics.sample import Sample, matched, spreads
from workbench.reports.shared.statistics.tests import checked_confidence, too_few

LEAST_UNITS = {"percentile": 10, "BCa": 10}
"""With fewer units a method is refused: at 5 normal units both cover the mean 80 % of the time, not 95 %."""


def bootstrap(
    sample: Sample,
    rng: np.random.Generator,
    *,
    statistic: Callable[[FloatArray], float] | None = None,
    method: str = "BCa",
    confidence: float = 0.95,
    resamples: int = 4999,
) -> Interval | NotTestable:
    """Bootstrap interval of a statistic, resampling whole units with all of their measurements.

    Args:
        sample: n units.
        rng: Source of the resampling.
        statistic: Of all measurements of the resampled units, shape `(m,)`; None: the mean of unit means.
        method: A key of `LEAST_UNITS`.
        confidence: See `Interval`.
        resamples: Number of resamples, >= 99.

    Returns:
        The interval, or `NotTestable` where the units are too few for the method or have no spread.

    Raises:
        InputError: the method is unknown, too few resamples, or the confidence is not in (0.5, 1).
    """
    checked_confidence(confidence)
    if method not in LEAST_UNITS:
        raise unknown_name("bootstrap method", method, LEAST_UNITS)
    if resamples < 99:
        raise InputError(f"resamples must be at least 99, got {resamples}")
    name = f"{'mean' if statistic is None else 'statistic'}, {method} bootstrap"
    if sample.n_units < LEAST_UNITS[method]:
        return too_few(name, sample, LEAST_UNITS[method])
    groups = list(sample.groups().values())
    means = sample.by_unit().values

    def of(places: IntArray) -> float:
        if statistic is None:
            return float(np.mean(means[places]))
        return statistic(np.concatenate([groups[place] for place in places]))

    places = np.arange(len(groups))
    estimate = of(places)
    left_out = np.array([of(np.delete(places, place)) for place in places])
    if not spreads(left_out):
        return NotTestable(
            name=name,
            why="leaving any one unit out changes nothing, so no spread is known",
            n_units=len(groups),
            unit=sample.unit,
            label=sample.label,
        )
    from scipy import stats

    result = stats.bootstrap(
        (means if statistic is None else places,),
        np.mean if statistic is None else of,
        vectorized=statistic is None,
        n_resamples=resamples,
        confidence_level=confidence,
        method=method,
        rng=rng,
    )
    return Interval(
        name=name,
        estimate=estimate,
        lower=float(result.confidence_interval.low),
        upper=float(result.confidence_interval.high),
        confidence=confidence,
        n_units=len(groups),
        unit=sample.unit,
        assumption=f"{sample.unit}s are independent draws; approximate, and too narrow with few of them",
        spread=float(np.std(means, ddof=1)),
        label=sample.label,
    )


def bootstrap_difference(
    first: Sample,
    second: Sample,
    rng: np.random.Generator,
    *,
    method: str = "BCa",
    confidence: float = 0.95,
    resamples: int = 4999,
) -> Interval | NotTestable:
    """Bootstrap interval of the mean paired difference of unit means, first less second.

    Raises:
        InputError: see `matched` and `bootstrap`.
    """
    pairs = matched(first, second)
    name = f"mean difference, {method} bootstrap"
    if pairs.first is None or pairs.second is None:
        why = f"no {first.unit} has a matching measurement on both sides"
        return NotTestable(name=name, why=why, n_units=0, unit=first.unit, label=first.label)
    a, b = pairs.first.by_unit(), pairs.second.by_unit()
    differences = Sample(a.values - b.values, a.units, a.unit, label=a.label)
    return bootstrap(differences, rng, method=method, confidence=confidence, resamples=resamples)
