"""The page's plots: each takes numbers and returns an SVG drawing with its legend and caption.

Colours and dashes come from the page's style sheet by class name; every curve has its own dash as well as
its own colour, so that no plot needs colour vision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import BoolArray, FloatArray
from workbench.reports.shared.drawing.roc import roc_band
from workbench.reports.shared.drawing.svg import Chart, Scale, decades, nice_ticks, thin
from workbench.reports.shared.numbers import number, percent
from workbench.reports.shared.pages.currencies import Allowed
from workbench.studies.report import FigureKey

BAND_CONFIDENCE = 0.95
_LONGEST_LABEL = 40
"""Characters of a label that fit the width of a drawing."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing with its legend and caption, all plain text but `svg`, which is markup."""

    svg: str
    legend: tuple[FigureKey, ...]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Lower:
    """One row of the bounds plot: `label`'s lower bound and point estimate of epsilon."""

    label: str
    lower: float
    estimate: float
    decides: bool


def _checked(scores: FloatArray, members: BoolArray) -> tuple[FloatArray, BoolArray]:
    scores, members = np.asarray(scores, dtype=np.float64), np.asarray(members, dtype=bool)
    if scores.ndim != 1 or scores.shape != members.shape:
        raise InputError(f"members must have the shape of scores {scores.shape}, got {members.shape}")
    if not np.all(np.isfinite(scores)):
        raise InputError("scores must be finite")
    return scores, members


def roc_plot(
    identifier: str, name: str, scores: FloatArray, members: BoolArray, allowed: Sequence[Allowed]
) -> Plot | None:
    """The empirical ROC on log-log axes against the region that the claim allows.

    Args:
        name: Of the attack, for the accessible name.
        scores: Shape `(n,)`, finite, higher = member.
        allowed: The claim first, then references.

    Returns:
        The plot, or None where one class is empty or all scores are equal.

    Raises:
        InputError: shapes differ, or a score is not finite.
    """
    scores, members = _checked(scores, members)
    counts = int(np.sum(members)), int(np.sum(~members))
    if min(counts) == 0 or scores.min() == scores.max():
        return None
    curve = roc_curve(scores, members)
    summary = _roc_summary(curve.fpr, curve.tpr, counts, allowed)
    floor = 10.0 ** -min(max(math.ceil(math.log10(min(counts))), 2), 5)
    chart = Chart(
        identifier=identifier,
        title=f"ROC of the {name} attack",
        description=summary,
        height=412.0,
    )
    x, y = chart.horizontal(floor, 1.0, log=True), chart.vertical(floor, 1.0, log=True)
    ticks = decades(floor, 1.0)
    labels = [percent(tick) for tick in ticks]
    chart.x_axis(x, ticks, labels, "False-positive rate (non-members called members)")
    chart.y_axis(y, ticks, labels, "True-positive rate")
    _draw_allowed(chart, x, y, allowed, floor)
    _draw_empirical(chart, (x, y), curve.fpr, curve.tpr, counts)
    legend = (
        FigureKey(css="empirical", label="measured by this attack"),
        FigureKey(
            css="band",
            label=f"{percent(BAND_CONFIDENCE)} band, pointwise, as if scores were independent",
            shape="area",
        ),
        FigureKey(css="region", label="allowed by the claim", shape="area"),
        *(FigureKey(css=guarantee.key, label=_name(guarantee)) for guarantee in allowed),
        FigureKey(css="chance", label="guessing"),
    )
    return Plot(svg=chart.svg(), legend=legend, caption=summary)


def _name(allowed: Allowed) -> str:
    return f"{'the claim: ' if allowed.key == 'claim' else ''}{allowed.guarantee.describe()}"


def _roc_summary(
    fpr: FloatArray, tpr: FloatArray, counts: tuple[int, int], allowed: Sequence[Allowed]
) -> str:
    rates = [rate for rate in (0.001, 0.01, 0.1) if rate * counts[1] >= 1.0] or [0.1]
    most = allowed[0].max_tpr(np.array(rates))
    parts = []
    for rate, limit in zip(rates, most, strict=True):
        measured = tpr[np.searchsorted(fpr, rate, side="right") - 1]
        parts.append(f"at FPR {percent(rate)} measured TPR {percent(measured)}, allowed {percent(limit)}")
    return f"{counts[0]} members, {counts[1]} non-members; {'; '.join(parts)}."


def _draw_allowed(chart: Chart, x: Scale, y: Scale, allowed: Sequence[Allowed], floor: float) -> None:
    fpr = np.logspace(math.log10(floor), 0.0, 161)
    fpr[-1] = 1.0
    across = x(fpr)
    claim = y(allowed[0].max_tpr(fpr))
    base = np.array([y.start, y.start])
    chart.area(np.append(across, [x.end, x.start]), np.append(claim, base), "region")
    chart.line(across, y(fpr), "curve chance")
    for guarantee in reversed(allowed):
        chart.line(across, y(guarantee.max_tpr(fpr)), f"curve {guarantee.key}")


def _draw_empirical(
    chart: Chart, scales: tuple[Scale, Scale], fpr: FloatArray, tpr: FloatArray, counts: tuple[int, int]
) -> None:
    x, y = scales
    kept = thin(x(fpr), y(tpr))
    # The box of the first vertex (no positives at all) is the corner of the axes, and would hide the rest.
    inner = kept[1:]
    band = roc_band(
        fpr[inner], tpr[inner], members=counts[0], nonmembers=counts[1], confidence=BAND_CONFIDENCE
    )
    # Left of the first vertex's box the band reaches down to the corner of the axes.
    first = x(band.fpr_upper[:1])
    chart.area(
        np.concatenate([x(band.fpr_lower), x(band.fpr_upper)[::-1], first, [x.start, x.start]]),
        np.concatenate(
            [y(band.tpr_upper), y(band.tpr_lower)[::-1], [y.start, y.start], y(band.tpr_upper[:1])]
        ),
        "band",
    )
    chart.line(x(fpr[kept]), y(tpr[kept]), "curve empirical")


def histogram_plot(identifier: str, name: str, scores: FloatArray, members: BoolArray) -> Plot:
    """Scores of members and of non-members, as shares of each class.

    Outliers beyond the central 99.8 % are counted in the outermost bins, and the caption says so.

    Raises:
        InputError: shapes differ, or a score is not finite.
    """
    scores, members = _checked(scores, members)
    groups = {"members": scores[members], "non-members": scores[~members]}
    lower, upper = _central_range(scores)
    smaller = max(min(group.size for group in groups.values()), 1)
    edges = np.linspace(lower, upper, int(np.clip(1.5 * math.sqrt(smaller), 8, 40)) + 1)
    shares = {
        label: np.histogram(np.clip(group, lower, upper), edges)[0] / max(group.size, 1)
        for label, group in groups.items()
    }
    means = "; ".join(
        f"{group.size} {label} with mean score {number(float(np.mean(group)))}"
        if group.size
        else f"no {label}"
        for label, group in groups.items()
    )
    outside = int(np.sum((scores < lower) | (scores > upper)))
    note = f" {outside} scores beyond the axis are counted in the outermost bins." if outside else ""
    chart = Chart(
        identifier=identifier,
        title=f"Scores of the {name} attack",
        description=f"{means}.{note}",
        height=270.0,
    )
    x = chart.horizontal(lower, upper)
    top = max(float(share.max()) for share in shares.values()) * 1.08 or 1.0
    y = chart.vertical(0.0, top)
    x_ticks, y_ticks = nice_ticks(lower, upper), nice_ticks(0.0, top, 4)
    chart.x_axis(x, x_ticks, [number(tick) for tick in x_ticks], "Score (higher: more likely a member)")
    chart.y_axis(y, y_ticks, [percent(tick) for tick in y_ticks], "Share of the class")
    steps = np.repeat(x(edges), 2)
    for css, label in (("nonmember", "non-members"), ("member", "members")):
        outline = np.concatenate([[y.start], np.repeat(y(shares[label]), 2), [y.start]])
        chart.area(steps, outline, f"fill {css}")
        chart.line(steps, outline, f"curve {css}")
    legend = (
        FigureKey(css="member", label="members", shape="area"),
        FigureKey(css="nonmember", label="non-members", shape="area"),
    )
    return Plot(svg=chart.svg(), legend=legend, caption=f"{means}.{note}")


def _central_range(scores: FloatArray) -> tuple[float, float]:
    """An axis that holds the central 99.8 % of the scores, of positive length even where all are equal."""
    if scores.size == 0:
        return 0.0, 1.0
    lower, upper = (float(q) for q in np.quantile(scores, [0.001, 0.999]))
    least = max(abs(lower), abs(upper), 1e-300) * 1e-9
    if upper - lower <= least:
        half = max(abs(lower) * 0.05, 0.5)
        return lower - half, upper + half
    return lower, upper


def training_plot(identifier: str, name: str, losses: FloatArray) -> Plot | None:
    """Mean loss of each step's sample, and its running mean; None where there is no finite loss.

    Args:
        name: Of the subject.
        losses: Shape `(T,)`, nats; NaN (an empty sample) leaves a gap.
    """
    losses = np.asarray(losses, dtype=np.float64)
    known = losses[np.isfinite(losses)]
    if known.size == 0:
        return None
    window = max(1, losses.size // 10)
    smooth = _running_mean(losses, window)
    about = (
        f"Loss per step over {losses.size} steps: first {number(float(known[0]))}, last "
        f"{number(float(known[-1]))} nats."
    )
    chart = Chart(identifier=identifier, title=f"Training of {name}", description=about, height=270.0)
    margin = 0.06 * float(np.ptp(known)) or 0.05 * abs(float(known[0])) or 0.5
    x = chart.horizontal(0.5, losses.size + 0.5)
    y = chart.vertical(float(known.min()) - margin, float(known.max()) + margin)
    x_ticks = [tick for tick in nice_ticks(1, losses.size + 0.5) if tick >= 1 and tick == int(tick)]
    y_ticks = nice_ticks(y.lower, y.upper)
    chart.x_axis(x, x_ticks, [number(tick) for tick in x_ticks], "Step")
    chart.y_axis(y, y_ticks, [number(tick) for tick in y_ticks], "Loss, nats")
    across = x(np.arange(1, losses.size + 1, dtype=np.float64))
    chart.line(across, y(losses), "curve loss")
    chart.line(across, y(smooth), "curve smooth")
    if losses.size == 1:
        chart.dot(across[0], y.at(float(known[0])), "mark")
    legend = (
        FigureKey(css="loss", label="each step"),
        FigureKey(css="smooth", label=f"running mean of {window} steps"),
    )
    gaps = losses.size - known.size
    note = f" {gaps} of the steps drew an empty sample." if gaps else ""
    return Plot(svg=chart.svg(), legend=legend, caption=about + note)


def _running_mean(values: FloatArray, window: int) -> FloatArray:
    """Mean of the finite values among the last `window`; NaN where there is none."""
    finite = np.isfinite(values)
    sums = np.cumsum(np.where(finite, values, 0.0))
    counts = np.cumsum(finite)
    sums[window:] = sums[window:] - sums[:-window].copy()
    counts[window:] = counts[window:] - counts[:-window].copy()
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def bounds_plot(identifier: str, rows: Sequence[Lower], claimed: float) -> Plot | None:
    """Every epsilon lower bound as a ray to the right, against the claimed epsilon.

    Args:
        claimed: The claimed epsilon; NaN where the claim has none.

    Returns:
        The plot, or None without rows.
    """
    if not rows:
        return None
    finite = [value for row in rows for value in (row.lower,) if math.isfinite(value)]
    estimates = [row.estimate for row in rows if math.isfinite(row.estimate)]
    largest = max([0.0, *finite, *([claimed] if math.isfinite(claimed) else [])])
    # An estimate may exceed its bound tenfold; it must not squeeze the bounds into a corner.
    upper = 1.15 * (max(largest, min(max(estimates, default=0.0), 3.0 * largest)) or 1.0)
    height = 34.0 * len(rows) + 62.0
    about = "; ".join(f"{row.label}: epsilon at least {number(max(row.lower, 0.0))}" for row in rows) + "."
    chart = Chart(
        identifier=identifier,
        title="Lower bounds on epsilon against the claim",
        description=about,
        height=height,
        left=14.0,
    )
    x = chart.horizontal(0.0, upper)
    ticks = nice_ticks(0.0, upper)
    chart.x_axis(x, ticks, [number(tick) for tick in ticks], "epsilon")
    base = height - chart.bottom
    if math.isfinite(claimed):
        edge = x.at(claimed)
        chart.area(
            np.array([edge, x.end, x.end, edge]), np.array([chart.top, chart.top, base, base]), "beyond"
        )
        chart.line(np.array([edge, edge]), np.array([chart.top, base]), "curve claim")
    for index, row in enumerate(rows):
        _draw_lower(chart, x, row, chart.top + 34.0 * index + 24.0)
    words = {True: ("decides", "bound that decides its game"), False: ("shown", "shown beside it")}
    kinds = sorted({row.decides for row in rows}, reverse=True)
    legend = [FigureKey(css=words[kind][0], label=words[kind][1]) for kind in kinds]
    if estimates:
        legend.append(FigureKey(css="estimate", label="point estimate", shape="dot"))
    if math.isfinite(claimed):
        legend += [
            FigureKey(css="claim", label=f"claimed epsilon = {number(claimed)}"),
            FigureKey(css="beyond", label="a bound in here contradicts the claim", shape="area"),
        ]
    return Plot(
        svg=chart.svg(), legend=tuple(legend), caption="The data say: epsilon is at least the left end."
    )


def _draw_lower(chart: Chart, x: Scale, row: Lower, y: float) -> None:
    css = "decides" if row.decides else "shown"
    endless = math.isinf(row.lower) and row.lower > 0
    start = x.end - 16.0 if endless else x.at(max(row.lower, 0.0) if math.isfinite(row.lower) else 0.0)
    tip = min(start + 46.0, x.end - 2.0)
    chart.line(np.array([start, start]), np.array([y - 6, y + 6]), f"curve {css}")
    chart.line(np.array([start, tip]), np.array([y, y]), f"curve {css}")
    chart.line(np.array([tip - 5, tip, tip - 5]), np.array([y - 4, y, y + 4]), f"curve {css}")
    if math.isfinite(row.estimate) and x.lower <= row.estimate <= x.upper:
        chart.dot(x.at(row.estimate), y, "estimate")
    name = row.label if len(row.label) <= _LONGEST_LABEL else f"{row.label[: _LONGEST_LABEL - 1]}…"
    text = f"{name} ≥ {number(max(row.lower, 0.0))}"
    chart.label(chart.left + 6, y - 11, text, "row strong" if row.decides else "row")


# What a mechanism of candidate subsets did over its releases: means over many trainings, a small plot each

_CURVES = (
    ("entropy", "Posterior entropy", "Entropy, nats", "entropy of the exact posterior over the candidates"),
    ("budget", "Budget used", "Nats charged", "nats that the ledger has charged so far"),
    ("unanimity", "Unanimity", "Share of trainings", "share of trainings in which the candidates agree"),
)
_FLAT = 1e-6
"""Share of its size by which a curve may move and still counts as flat: the record rounds to a millionth."""


def step_plots(curves: Mapping[str, Sequence[JSON]]) -> tuple[Plot, ...]:
    """A plot for each curve that there is.

    Args:
        curves: `entropy`, `budget` and `unanimity`, one number a release each.
    """
    return tuple(
        _plot(f"steps-{name}", title, unit, says, np.array([float(value) for value in curves[name]]))
        for name, title, unit, says in _CURVES
        if len(curves.get(name, ())) > 0
    )


def _plot(identifier: str, title: str, unit: str, says: str, values: FloatArray) -> Plot:
    first, last = float(values[0]), float(values[-1])
    spread, size = float(np.ptp(values)), max(float(np.abs(values).max()), 1.0)
    moved = f"{number(first)} after the first, {number(last)} after the last"
    if spread <= _FLAT * size:
        moved = f"{number(last)} after each of them"
    about = f"{title} over {values.size} releases, mean over trainings: {says}; {moved}."
    chart = Chart(identifier=identifier, title=title, description=about, height=220.0)
    margin = 0.06 * spread if spread > _FLAT * size else 0.05 * size
    x = chart.horizontal(0.5, values.size + 0.5)
    lower = float(values.min()) - margin
    y = chart.vertical(
        min(lower, 0.0) if identifier != "steps-entropy" else lower, float(values.max()) + margin
    )
    x_ticks = [tick for tick in nice_ticks(1, values.size + 0.5) if tick >= 1 and tick == int(tick)]
    y_ticks = nice_ticks(y.lower, y.upper, 4)
    chart.x_axis(x, x_ticks, [number(tick) for tick in x_ticks], "Release")
    chart.y_axis(y, y_ticks, [number(tick) for tick in y_ticks], unit)
    across = x(np.arange(1, values.size + 1, dtype=np.float64))
    chart.line(across, y(values), "curve smooth")
    if values.size == 1:
        chart.dot(float(across[0]), y.at(last), "mark")
    return Plot(svg=chart.svg(), legend=(), caption=about)
