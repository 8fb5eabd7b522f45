"""ROC curves of attacks: a chart of several subjects, and the pointwise confidence band of a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workbench.core.errors import InputError
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import FloatArray
from workbench.reports.shared.drawing.figures import (
    FigureText,
    Panel,
    checked_identifier,
    checked_series_count,
    make_figure,
    series_css,
    series_key,
)
from workbench.reports.shared.drawing.svg import Scale, SeriesChart, decades, thin
from workbench.reports.shared.numbers import number, percent
from workbench.studies.report import Figure, FigureKey

_STEP = 2.0
"""Pixels that a curve's vertices are apart at least: a page holds many curves of thousands of scores."""

_BANDS_TO = 3
_ROC_CONFIDENCE = 0.95


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


@dataclass(frozen=True, kw_only=True)
class RocSubject:
    """The scores of an attack on one subject, higher = member, and who was one."""

    label: str
    scores: tuple[float, ...]
    included: tuple[bool, ...]


def roc_chart(
    identifier: str, title: str, subjects: Sequence[RocSubject], *, note: str = "", place: str = ""
) -> Figure:
    """ROC curves of several subjects on one pair of logarithmic axes.

    Up to 3 curves have pointwise 95 % bands, by Clopper-Pearson, as if the scores were independent.

    Args:
        subjects: 1 to 8, each with members and non-members.

    Raises:
        InputError: too many subjects, scores that are not finite, or a class without scores.
    """
    checked_identifier(identifier)
    checked_series_count(len(subjects))
    curves = [_curve(subject) for subject in subjects]
    least = min(min(curve.counts) for curve in curves)
    floor = 10.0 ** -min(max(math.ceil(math.log10(least)), 2), 5)
    words = "; ".join(map(_curve_words, curves))
    chart = SeriesChart(identifier=identifier, title=title, description=f"{words}.", height=420.0, left=78.0)
    x, y = chart.horizontal(floor, 1.0, log=True), chart.vertical(floor, 1.0, log=True)
    ticks = decades(floor, 1.0)
    labels = [percent(tick) for tick in ticks]
    chart.x_axis(x, ticks, labels, "False-positive rate (log scale)")
    chart.y_axis(y, ticks, labels, "True-positive rate (log scale)")
    chance = np.logspace(math.log10(floor), 0.0, 2)
    chart.line(x(chance), y(chance), "trace chance")
    with_bands = len(curves) <= _BANDS_TO
    for index, curve in enumerate(curves):
        if with_bands:
            _draw_band(chart, (x, y), curve, index)
    for index, curve in enumerate(curves):
        across, heights = x(curve.fpr), y(curve.tpr)
        kept = thin(across, heights, _STEP)
        chart.trace(across[kept], heights[kept], index)
        _mark_decades(chart, (x, y), curve, index)
    legend = [series_key(index, subject.label) for index, subject in enumerate(subjects)]
    if with_bands:
        legend.append(FigureKey(css="series-6", label="95 % band, pointwise", shape="area"))
    legend.append(FigureKey(css="chance", label="guessing"))
    parts = [note] if note else []
    parts.append(f"{words}.")
    parts.append(
        "Bands: Clopper-Pearson at each point, as if scores were independent."
        if with_bands
        else f"No bands, for more than {_BANDS_TO} would hide each other."
    )
    text = FigureText(identifier=identifier, title=title, caption=" ".join(parts), place=place)
    return make_figure(text, [Panel(svg=chart.svg(), width=chart.width, height=chart.height)], legend)


@dataclass(frozen=True, kw_only=True)
class _Curve:
    label: str
    fpr: FloatArray
    tpr: FloatArray
    counts: tuple[int, int]


def _curve(subject: RocSubject) -> _Curve:
    scores, members = np.array(subject.scores, dtype=np.float64), np.array(subject.included, dtype=bool)
    if scores.shape != members.shape:
        raise InputError(f"included of {subject.label!r} must have {scores.size} entries, got {members.size}")
    if not np.all(np.isfinite(scores)):
        raise InputError(f"scores of {subject.label!r} must be finite")
    counts = int(members.sum()), int((~members).sum())
    if min(counts) == 0:
        raise InputError(f"{subject.label!r} must have members and non-members, got {counts}")
    curve = roc_curve(scores, members)
    return _Curve(label=subject.label, fpr=curve.fpr, tpr=curve.tpr, counts=counts)


def _curve_words(curve: _Curve) -> str:
    area = float(np.sum(np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]))) / 2.0
    rate = next((rate for rate in (0.001, 0.01, 0.1) if rate * curve.counts[1] >= 1.0), 0.1)
    tpr = curve.tpr[np.searchsorted(curve.fpr, rate, side="right") - 1]
    return (
        f"{curve.label}: {curve.counts[0]} members, {curve.counts[1]} non-members, AUC {number(area, 3)}, "
        f"TPR {percent(float(tpr))} at FPR {percent(rate)}"
    )


def _draw_band(chart: SeriesChart, scales: tuple[Scale, Scale], curve: _Curve, index: int) -> None:
    x, y = scales
    inner = thin(x(curve.fpr), y(curve.tpr), _STEP)[1:]
    members, nonmembers = curve.counts
    band = roc_band(
        curve.fpr[inner],
        curve.tpr[inner],
        members=members,
        nonmembers=nonmembers,
        confidence=_ROC_CONFIDENCE,
    )
    across = np.concatenate([x(band.fpr_lower), x(band.fpr_upper)[::-1], x(band.fpr_upper[:1])])
    heights = np.concatenate([y(band.tpr_upper), y(band.tpr_lower)[::-1], [y.start]])
    corner = np.array([x.start, x.start]), np.array([y.start, y.at(float(band.tpr_upper[0]))])
    chart.area(np.append(across, corner[0]), np.append(heights, corner[1]), f"cloud {series_css(index)}")


def _mark_decades(chart: SeriesChart, scales: tuple[Scale, Scale], curve: _Curve, index: int) -> None:
    """A few markers on the curve, so that it is told apart without colour; none on the axes themselves."""
    x, y = scales
    for rate in (0.003, 0.03, 0.2):
        tpr = float(curve.tpr[np.searchsorted(curve.fpr, rate * 1.25**index, side="right") - 1])
        if rate > x.lower and tpr > y.lower:
            chart.mark(x.at(rate * 1.25**index), y.at(tpr), index, 3.6)
