"""Descriptive statistics of one sample, and how far one model's numbers are from another's.

The measures are sklearn's and scipy's, by their conventions; the first model takes the place of the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from workbench.core.errors import InputError
from workbench.interfaces import FloatArray
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics.results import AS_PRINTED, Answer, Interval, counted
from workbench.reports.shared.statistics.sample import Sample, matched, spreads
from workbench.reports.shared.statistics.tests import mean_interval, wilcoxon_as_printed

MEASURES = ("rmse", "pearson", "mae", "r2", "mse", "medae", "cv_first", "cv_second", "mape")
"""Names of the numbers of `PairMetrics`, in the order of DP-Weights, Tables 3 to 10."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean, spread and range.

    Attributes:
        mean, minimum, maximum: Over units, or over measurements where labelled as printed.
        sd: Standard deviation (ddof = 1); None from one value.
        n: Values that these are over.
        n_units: Independent units behind them.
        unit, label: See `StatisticalTest`.
    """

    mean: float
    sd: float | None
    minimum: float
    maximum: float
    n: int
    n_units: int
    unit: str
    label: str = ""

    def describe(self) -> str:
        """`"2.79 ± 0.96 [1.2, 4.6] over 5 seeds"`."""
        sd = "" if self.sd is None else f" ± {number(self.sd)}"
        label = f" [{self.label}]" if self.label else ""
        places = counted(self.n_units, self.unit)
        if self.n != self.n_units:
            places = f"{self.n} measurements of {places}"
        return (
            f"{number(self.mean)}{sd} [{number(self.minimum)}, {number(self.maximum)}] over {places}{label}"
        )


def _sd(values: FloatArray) -> float | None:
    """Standard deviation with ddof = 1; exactly 0 where values differ by rounding alone; None from one."""
    if values.size < 2:
        return None
    return float(np.std(values, ddof=1)) if spreads(values) else 0.0


def _summary(values: FloatArray, sample: Sample, label: str) -> Summary:
    return Summary(
        mean=float(np.mean(values)),
        sd=_sd(values),
        minimum=float(np.min(values)),
        maximum=float(np.max(values)),
        n=values.size,
        n_units=sample.n_units,
        unit=sample.unit,
        label=label,
    )


def summary(sample: Sample) -> Summary:
    """Mean, SD and range of the units' means.

    The range [min, max] of n units covers their median with probability 1 - 2^(1 - n), the mean of a skewed
    distribution less often: it describes, it is no confidence interval.
    """
    return _summary(sample.by_unit().values, sample, sample.label)


def summary_as_printed(sample: Sample) -> Summary:
    """Mean, SD and range of all measurements.

    DP-Weights, Tables 1 and 2: the SD is over the 28 epsilons of one training, so it measures how much the
    noise level matters, not how much trainings differ (the fine-tuned model's is 0.00).
    """
    return _summary(sample.values, sample, AS_PRINTED)


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

    Raises:
        InputError: see `Sample`.
    """
    checked = Sample(values, tuple(range(len(values)))).values
    sd, mean = _sd(checked), float(np.mean(checked))
    if sd is None or abs(mean) <= 1e-300 or abs(mean) < 1e-12 * float(np.max(np.abs(checked))):
        return math.nan
    return sd / mean


@dataclass(frozen=True, kw_only=True)
class PairMetrics:
    """How far a second model's values are from the first's: all of DP-Weights, Tables 3 to 10.

    Attributes:
        n: Matched values.
        rmse, mae, mse, medae: Root mean squared, mean absolute, mean squared, median absolute difference.
        pearson: Correlation; NaN where a side is constant.
        r2: 1 - MSE / (population variance of the first): negative where the first's mean predicts it better
            than the second does; NaN where the first is constant.
        cv_first, cv_second: Coefficient of variation of each side.
        mape: Mean of |first - second| / |first|, as a fraction; NaN where the first has a zero.
        wilcoxon: Signed rank test over the values, labelled as printed.
        why: For each NaN, its reason.
    """

    n: int
    rmse: float
    pearson: float
    mae: float
    r2: float
    mse: float
    medae: float
    cv_first: float
    cv_second: float
    mape: float
    wilcoxon: Answer
    why: Mapping[str, str]


def comparison(first: FloatArray, second: FloatArray) -> PairMetrics:
    """All measures of DP-Weights, Tables 3 to 10, of two models over the same conditions.

    The conventions are those that the printed numbers fit: R² is sklearn's with the first model as the truth
    (Table 3, member perplexity: 1 - 156.363 / (15.91² · 27 / 28) = 0.359, as printed), the coefficient of
    variation has ddof = 1, the Wilcoxon test drops zeros.

    Args:
        first: Shape `(n,)`, n >= 1: the model in the place of the truth, at n epsilons of one training.
        second: Shape `(n,)`: the other, at the same epsilons in the same order.

    Raises:
        InputError: different lengths; see also `Sample`.
    """
    from sklearn import metrics

    if len(first) != len(second):
        raise InputError(f"first and second must be of one length, got {len(first)} and {len(second)}")
    names = tuple(range(len(first)))
    a, b = Sample(first, names, "measurement"), Sample(second, names, "measurement")
    x, y = a.values, b.values
    mse = float(metrics.mean_squared_error(x, y))
    r2, r2_why = _r2(x, y)
    pearson, pearson_why = _pearson(x, y)
    mape, mape_why = _mape(x, y)
    numbers = {"cv_first": coefficient_of_variation(x), "cv_second": coefficient_of_variation(y)}
    cv_why = {name: "mean zero or one value" for name, value in numbers.items() if math.isnan(value)}
    reasons = {"r2": r2_why, "pearson": pearson_why, "mape": mape_why, **cv_why}
    return PairMetrics(
        n=x.size,
        rmse=math.sqrt(mse),
        pearson=pearson,
        mae=float(metrics.mean_absolute_error(x, y)),
        r2=r2,
        mse=mse,
        medae=float(metrics.median_absolute_error(x, y)),
        mape=mape,
        wilcoxon=wilcoxon_as_printed(a, b),
        why={name: why for name, why in reasons.items() if why},
        **numbers,
    )


def _r2(x: FloatArray, y: FloatArray) -> tuple[float, str]:
    """sklearn's R² with x as the truth, and why it is NaN."""
    from sklearn import metrics

    if x.size < 2 or not spreads(x):
        return math.nan, "the first model's values are constant"
    return float(metrics.r2_score(x, y)), ""


def _pearson(x: FloatArray, y: FloatArray) -> tuple[float, str]:
    """scipy's correlation, and why it is NaN."""
    from scipy import stats

    for side, values in (("first", x), ("second", y)):
        if values.size < 2 or not spreads(values):
            return math.nan, f"the {side} model's values are constant"
    # Relative spreads near rounding would make scipy warn of a correlation that rounding decides.
    if min(float(np.ptp(v)) / float(np.max(np.abs(v))) for v in (x, y)) < 1e-12:
        return math.nan, "a model's values are constant up to rounding"
    return float(stats.pearsonr(x, y).statistic), ""


def _mape(x: FloatArray, y: FloatArray) -> tuple[float, str]:
    """sklearn's mean absolute percentage error as a fraction, and why it is NaN."""
    from sklearn import metrics

    if float(np.min(np.abs(x))) <= 1e-150:
        return math.nan, "the first model has a value of zero"
    return float(metrics.mean_absolute_percentage_error(x, y)), ""


def comparison_by_unit(first: Sample, second: Sample, *, confidence: float = 0.95) -> dict[str, Interval]:
    """Each measure of `comparison`, computed within each unit, as mean over units with a t interval.

    A paper with one training prints one unit's value. Units whose value is not defined are left out, and the
    interval's `why` says so.

    Returns:
        By name of `MEASURES`; the estimate is NaN where no unit has a value. Empty where nothing matches.

    Raises:
        InputError: see `matched`; or the confidence is not in (0.5, 1).
    """
    pairs = matched(first, second)
    if pairs.first is None or pairs.second is None:
        return {}
    sides = pairs.first.groups(), pairs.second.groups()
    each = {name: comparison(sides[0][name], sides[1][name]) for name in sides[0]}
    found = {}
    for measure in MEASURES:
        values = {name: float(getattr(metrics, measure)) for name, metrics in each.items()}
        reasons = [metrics.why[measure] for metrics in each.values() if measure in metrics.why]
        kept = {name: value for name, value in values.items() if not math.isnan(value)}
        found[measure] = _over_units(kept, reasons, pairs.first, confidence)
    return found


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
            label=sample.label,
        )
    values = Sample(np.array(list(kept.values())), tuple(kept), sample.unit, label=sample.label)
    result = mean_interval(values, confidence=confidence)
    return replace(result, why="; ".join(part for part in (result.why, dropped) if part))
