"""Charts of whole distributions: every value of a metric by variant, and ROC curves of several subjects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import FloatArray
from workbench.reports.shared.drawing import SeriesChart, ends, shortened, ticks_of
from workbench.reports.shared.figures import FigureText, Panel, checked_identifier, make_figure, text_width
from workbench.reports.shared.marks import checked_series_count, series_css, series_key
from workbench.reports.shared.numbers import number, percent
from workbench.reports.shared.roc import roc_band
from workbench.reports.shared.svg import Scale, decades, thin
from workbench.studies.report import Figure, FigureKey

VIOLIN_FROM = 20
"""A group of at least as many values has a density drawn; a smaller one has its points alone."""

_POINTS_TO = 80
_ROW, _HALF = 62.0, 16.0
_BANDS_TO = 3
_ROC_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Group:
    """All values of a metric under one variant; those that are not finite are counted in the caption."""

    label: str
    values: tuple[float, ...]


def strip_chart(
    identifier: str,
    title: str,
    groups: Sequence[Group],
    *,
    x_name: str,
    unit: str,
    log: bool = False,
    note: str = "",
    place: str = "",
) -> Figure:
    """Every value of a metric, a row for each variant: points where few, a violin where many.

    Args:
        identifier: File name without ending, unique on the page.
        title: Plain text.
        groups: 1 to 8, top to bottom.
        x_name: The metric.
        unit: What one point is: `"one seed at one epsilon"`; not necessarily a unit of replication.
        log: Logarithmic axis; values that are not positive are then left out and counted.
        note: What the caption opens with.
        place: Of the paper's figure.

    Raises:
        InputError: too many groups, or none has a value to draw.
    """
    checked_identifier(identifier)
    checked_series_count(len(groups))
    drawn = [
        np.array([v for v in group.values if math.isfinite(v) and (v > 0 or not log)]) for group in groups
    ]
    if not any(values.size for values in drawn):
        raise InputError(f"figure {identifier} has no finite value to draw")
    about = " ".join(map(_row_words, groups, drawn))
    chart = SeriesChart(
        identifier=identifier, title=title, description=about, height=_ROW * len(groups) + 66.0, left=14.0
    )
    x = chart.horizontal(*ends([float(v) for values in drawn for v in values], log=log), log=log)
    chart.x_axis(x, *ticks_of(x), f"{x_name} (log scale)" if log else x_name)
    for index, (group, values) in enumerate(zip(groups, drawn, strict=True)):
        _draw_group(chart, x, (group.label, values), index)
    text = FigureText(
        identifier=identifier, title=title, caption=_strip_caption(groups, drawn, unit, note), place=place
    )
    panel = Panel(svg=chart.svg(), width=chart.width, height=chart.height)
    return make_figure(text, [panel], _strip_legend(drawn))


def _row_words(group: Group, values: FloatArray) -> str:
    if not values.size:
        return f"{group.label}: no value."
    low, first, middle, third, high = (float(q) for q in np.quantile(values, [0, 0.25, 0.5, 0.75, 1]))
    return (
        f"{group.label}: {values.size} values, median {number(middle)}, quartiles {number(first)} and "
        f"{number(third)}, from {number(low)} to {number(high)}."
    )


def _strip_legend(drawn: Sequence[FloatArray]) -> list[FigureKey]:
    legend = []
    if any(0 < values.size <= _POINTS_TO for values in drawn):
        legend.append(FigureKey(css="series-6", label="one value", shape="small"))
    if any(values.size >= VIOLIN_FROM for values in drawn):
        legend.append(FigureKey(css="series-6", label="density", shape="area"))
    if any(values.size >= 4 for values in drawn):
        legend.append(FigureKey(css="series-6", label="quartiles", shape="whisker"))
    return [*legend, FigureKey(css="middle", label="median", shape="bar")]


def _strip_caption(groups: Sequence[Group], drawn: Sequence[FloatArray], unit: str, note: str) -> str:
    parts = [note] if note else []
    counts = "; ".join(f"{group.label} {values.size}" for group, values in zip(groups, drawn, strict=True))
    parts.append(f"Each point is {unit}; numbers of values: {counts}. Heights within a row mean nothing.")
    if any(values.size >= VIOLIN_FROM for values in drawn):
        parts.append(
            f"Densities from {VIOLIN_FROM} values on: Gaussian kernel, Silverman's bandwidth, cut at the "
            "least and the largest value, each of the same greatest height."
        )
    hidden = [group.label for group, values in zip(groups, drawn, strict=True) if values.size > _POINTS_TO]
    if hidden:
        parts.append(f"Points not drawn, for there are too many: {', '.join(hidden)}.")
    lost = [
        f"{len(group.values) - values.size} of {group.label}"
        for group, values in zip(groups, drawn, strict=True)
        if len(group.values) > values.size
    ]
    if lost:
        parts.append(f"Not drawn, for they are not finite or off a logarithmic axis: {'; '.join(lost)}.")
    return " ".join(parts)


def _draw_group(chart: SeriesChart, x: Scale, group: tuple[str, FloatArray], index: int) -> None:
    label, values = group
    y = chart.top + _ROW * index + 40.0
    count = f"n = {values.size}"
    room = chart.width - chart.left - chart.right - 24.0 - text_width(count, 14.0)
    chart.label(chart.left + 6, y - _HALF - 7, shortened(label, room), "row strong")
    chart.label(chart.width - chart.right - 6, y - _HALF - 7, count, "row", "end")
    if not values.size:
        return
    across = x(values)
    if values.size >= VIOLIN_FROM:
        grid, height = _density(across)
        outline = np.concatenate([y - _HALF * height, (y + _HALF * height)[::-1]])
        chart.area(np.concatenate([grid, grid[::-1]]), outline, f"cloud {series_css(index)}")
    if values.size <= _POINTS_TO:
        for place, spot in enumerate(np.sort(across)):
            # Multiples of the golden ratio spread neighbours apart, the same way every time.
            aside = ((place * 0.6180339887498949) % 1.0 - 0.5) * 1.5 * _HALF if values.size > 1 else 0.0
            chart.small(float(spot), y + aside, index)
    first, middle, third = (float(q) for q in np.quantile(across, [0.25, 0.5, 0.75]))
    if values.size >= 4:
        chart.whisker((first, y), (third, y), index)
    chart.line(np.array([middle, middle]), np.array([y - 10.0, y + 10.0]), "middle")


def _density(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A kernel density between the least and the largest value, in pixels, its greatest height 1."""
    low, high = float(values.min()), float(values.max())
    quartiles = np.quantile(values, [0.25, 0.75])
    scale = min(float(values.std(ddof=1)), float(quartiles[1] - quartiles[0]) / 1.34) or float(
        values.std(ddof=1)
    )
    width = max(0.9 * scale * values.size**-0.2, 0.5)
    grid = np.linspace(low, high, 81) if high > low else np.array([low - 1.0, low, low + 1.0])
    height = np.exp(-0.5 * ((grid[:, None] - values[None, :]) / width) ** 2).sum(axis=1)
    return grid, height / height.max()


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
        identifier: File name without ending, unique on the page.
        title: Plain text.
        subjects: 1 to 8, each with members and non-members.
        note: What the caption opens with.
        place: Of the paper's figure.

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
        kept = thin(across, heights)
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
    inner = thin(x(curve.fpr), y(curve.tpr))[1:]
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
