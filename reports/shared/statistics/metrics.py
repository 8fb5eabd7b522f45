"""Spread within the units of a sample, and how far one model's numbers are from another's.

The measures are sklearn's and scipy's, by their conventions; the first model takes the place of the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.reports.shared.statistics.results import Interval, counted
from workbench.reports.shared.statistics.sample import Sample, matched, spreads
from workbench.reports.shared.statistics.tests import mean_interval

MEASURES = ("rmse", "pearson", "mae", "r2", "mse", "medae", "cv_first", "cv_second", "mape")
"""Root mean squared error, correlation, mean absolute error and so on, as in DP-Weights, Tables 3 to 10."""


def _sd(values: FloatArray) -> float | None:
    """Standard deviation with ddof = 1; exactly 0 where values differ by rounding alone; None from one."""
    if values.size < 2:
        return None
    return float(np.std(values, ddof=1)) if spreads(values) else 0.0


def spread_within_units(sample: Sample) -> Sample | None:
    """Each unit's SD over its own measurements (ddof = 1), as a sample over units; None where a unit has one.

    What a paper prints as the SD over one training's 28 epsilons is one value of this sample.
    """
    if any(values.size < 2 for values in sample.groups().values()):
        return None
    return sample.per_unit(lambda values: _sd(values) or 0.0)


def coefficient_of_variation(values: FloatArray) -> float:
    """SD (ddof = 1) over the mean; NaN from one value or at mean zero.

    In DP-Weights, Tables 3 to 10, the three columns are no pairs here: the first is the DP model's, the
    second the DP-Weights model's, the third the fine-tuned model's (Table 3, member perplexity: 0.488, 0.487,
    0.0; Table 2 has 15.91 / 32.62 and 20.20 / 41.46). Printed values near 1e-16 are rounding errors of zero,
    and are exactly 0 here.
    """
    checked = Sample(values, tuple(range(len(values)))).values
    sd, mean = _sd(checked), float(np.mean(checked))
    if sd is None or abs(mean) <= 1e-300 or abs(mean) < 1e-12 * float(np.max(np.abs(checked))):
        return math.nan
    return sd / mean


def comparison(first: FloatArray, second: FloatArray) -> tuple[dict[str, float], dict[str, str]]:
    """All measures of DP-Weights, Tables 3 to 10, of two models over the same conditions.

    The conventions are those that the printed numbers fit: R² is sklearn's with the first model as the truth
    (Table 3, member perplexity: 1 - 156.363 / (15.91² · 27 / 28) = 0.359, as printed), negative where the
    first's mean predicts it better; the coefficient of variation, of each side, has ddof = 1; MAPE is a
    fraction.

    Args:
        first: Shape `(n,)`, n >= 1: the model in the place of the truth, at n epsilons of one training.
        second: Shape `(n,)`: the other, at the same epsilons in the same order.

    Returns:
        By name of `MEASURES`: the number, NaN where it is not defined, and for each NaN the reason.
    """
    if len(first) != len(second):
        raise InputError(f"first and second must be of one length, got {len(first)} and {len(second)}")
    x, y = (Sample(side, tuple(range(len(side))), "measurement").values for side in (first, second))
    distances = np.abs(x - y)
    mse = float(np.mean(distances**2))
    r2, r2_why = _r2(x, y)
    pearson, pearson_why = _pearson(x, y)
    mape, mape_why = _mape(x, y)
    each = (
        math.sqrt(mse),
        pearson,
        float(np.mean(distances)),
        r2,
        mse,
        float(np.median(distances)),
        coefficient_of_variation(x),
        coefficient_of_variation(y),
        mape,
    )
    values = dict(zip(MEASURES, each, strict=True))
    reasons = {"r2": r2_why, "pearson": pearson_why, "mape": mape_why}
    missing = [name for name in MEASURES if math.isnan(values[name])]
    return values, {name: reasons.get(name, "mean zero or one value") for name in missing}


def _r2(x: FloatArray, y: FloatArray) -> tuple[float, str]:
    """R² with x as the truth, and why it is NaN."""
    if x.size < 2 or not spreads(x):
        return math.nan, "the first model's values are constant"
    return 1.0 - float(np.sum((x - y) ** 2) / np.sum((x - np.mean(x)) ** 2)), ""


def _pearson(x: FloatArray, y: FloatArray) -> tuple[float, str]:
    """The correlation, and why it is NaN."""
    for side, values in (("first", x), ("second", y)):
        if values.size < 2 or not spreads(values):
            return math.nan, f"the {side} model's values are constant"
    # Relative spreads near rounding would make scipy warn of a correlation that rounding decides.
    if min(float(np.ptp(v)) / float(np.max(np.abs(v))) for v in (x, y)) < 1e-12:
        return math.nan, "a model's values are constant up to rounding"
    directions = [(v - np.mean(v)) / np.linalg.norm(v - np.mean(v)) for v in (x, y)]
    return min(max(float(directions[0] @ directions[1]), -1.0), 1.0), ""


def _mape(x: FloatArray, y: FloatArray) -> tuple[float, str]:
    """Mean absolute percentage error as a fraction of x, and why it is NaN."""
    if float(np.min(np.abs(x))) <= 1e-150:
        return math.nan, "the first model has a value of zero"
    return float(np.mean(np.abs(x - y) / np.abs(x))), ""


def comparison_by_unit(first: Sample, second: Sample, *, confidence: float = 0.95) -> dict[str, Interval]:
    """Each measure of `comparison`, computed within each unit, as mean over units with a t interval.

    A paper with one training prints one unit's value. Units whose value is not defined are left out, and the
    interval's `why` says so.

    Returns:
        By name of `MEASURES`; the estimate is NaN where no unit has a value. Empty where nothing matches.
    """
    pairs = matched(first, second)
    if pairs.first is None or pairs.second is None:
        return {}
    sides = pairs.first.groups(), pairs.second.groups()
    each = {name: comparison(sides[0][name], sides[1][name]) for name in sides[0]}
    by_measure = {}
    for measure in MEASURES:
        reasons = [why[measure] for _, why in each.values() if measure in why]
        kept = {name: values[measure] for name, (values, why) in each.items() if measure not in why}
        by_measure[measure] = _over_units(kept, reasons, pairs.first, confidence)
    return by_measure


def _over_units(
    kept: Mapping[str | int, float], reasons: list[str], sample: Sample, confidence: float
) -> Interval:
    """Mean over the units that have a value, with the reasons of those that have none."""
    dropped = f"{counted(len(reasons), sample.unit)} left out: {reasons[0]}" if reasons else ""
    if not kept:
        return Interval(
            name="mean, t interval",
            estimate=math.nan,
            lower=None,
            upper=None,
            confidence=confidence,
            n_units=0,
            unit=sample.unit,
            assumption="",
            why=reasons[0],
        )
    values = Sample(np.array(list(kept.values())), tuple(kept), sample.unit)
    result = mean_interval(values, confidence=confidence)
    return replace(result, why="; ".join(part for part in (result.why, dropped) if part))
