"""The transcript game in one picture: measured points against what both readings of the claim allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.interfaces import FloatArray
from workbench.reports.papers.ferret.layout import CANARIES, GRANULARITIES
from workbench.reports.papers.ferret.transcript import TranscriptCell
from workbench.reports.shared.drawing import SeriesChart
from workbench.reports.shared.figures import FigureText, Panel, make_figure
from workbench.reports.shared.marks import MARKERS, marker, series_css
from workbench.reports.shared.numbers import percent
from workbench.reports.shared.svg import Scale
from workbench.studies.report import Figure, FigureKey

MOST_VARIANTS = len(MARKERS)
MOST_RECORDS = 4
_ROOM = 0.09
"""Room left of zero for one record's points without a false alarm, which would hide each other."""

_FIRST, _SLOT = 6.0, 4.6
"""Pixels from zero to the first of them, and from one to the next."""

_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def regions_figure(cells: Sequence[TranscriptCell], *, confidence: float) -> Figure | None:
    """Panels by epsilon: (FPR, TPR) of each grouping (marker) and record (colour); None where there is none.

    Args:
        cells: Of the transcript game.
        confidence: Of each arm of a cross.
    """
    variants = _known([cell.variant for cell in cells], GRANULARITIES)[:MOST_VARIANTS]
    usual = [f"{name} record" for name in CANARIES]
    records = _known([cell.record for cell in cells], usual)[:MOST_RECORDS]
    drawn = [cell for cell in cells if cell.variant in variants and cell.record in records]
    if not drawn:
        return None
    epsilons = sorted({cell.epsilon for cell in drawn})
    panels = []
    for place, epsilon in enumerate(epsilons):
        here = [cell for cell in drawn if cell.epsilon == epsilon]
        panels.append(_panel(f"both-regions-{place}", epsilon, here, variants, records))
    legend = [
        *(
            FigureKey(css="series-6", label=name, shape=f"only {MARKERS[i]}")
            for i, name in enumerate(variants)
        ),
        *(FigureKey(css=series_css(i), label=name, shape="whisker") for i, name in enumerate(records)),
        FigureKey(
            css="margin", label="allowed by (epsilon, delta)-DP of the same number", shape="plain area"
        ),
        FigureKey(css="zero", label="most that the claimed nats allow on average"),
        FigureKey(css="chance", label="guessing"),
    ]
    delta = drawn[0].reading.delta
    text = FigureText(
        identifier="both-regions",
        title="The transcript game against both readings of the claim",
        caption=(
            "Each point is the rule “member where the log-likelihood ratio is above 0” over independent "
            f"trainings ({_counts(drawn)} trials a point). Crosses: {100.0 * confidence:g} % "
            "Clopper-Pearson interval of each rate by itself. Points without a false alarm, whose FPR is 0, "
            "stand side by side left of zero. Line: TPR = FPR + 2 max_success − 1, where "
            "max_success is the highest chance of a right guess that the claimed nats allow at prior 1/2; "
            "a point above it is more than the claim allows on average. At ln 2 = 0.693 nats and more "
            "every point is allowed. Shaded: what (epsilon, delta)-DP with epsilon = the claimed number "
            f"and delta = {delta:g} allows; a reading, not the authors' claim.{_knows_more(drawn)}"
        ),
    )
    return make_figure(text, panels, legend)


def _knows_more(cells: Sequence[TranscriptCell]) -> str:
    """Which points are of an adversary who knows what no claim about the transcript grants."""
    found = dict.fromkeys((cell.game_words, cell.evidence.game.beyond) for cell in cells)
    words = [f"{name} ({beyond})" for name, beyond in found if beyond]
    if not words:
        return ""
    return (
        " Points whose adversary knows more than the transcript shows, so that they refute nothing wherever "
        f"they lie: {'; '.join(words)}."
    )


def _known(names: Sequence[str], order: Sequence[str]) -> list[str]:
    found = dict.fromkeys(names)
    return [*(name for name in order if name in found), *(name for name in found if name not in order)]


def _counts(cells: Sequence[TranscriptCell]) -> str:
    counts = sorted({cell.trials for cell in cells})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _panel(
    identifier: str,
    epsilon: float,
    cells: Sequence[TranscriptCell],
    variants: Sequence[str],
    records: Sequence[str],
) -> Panel:
    about = "; ".join(
        f"{cell.variant}, {cell.game_words}: FPR {percent(cell.fpr.estimate)}, TPR "
        f"{percent(cell.tpr.estimate)}"
        for cell in cells
    )
    chart = SeriesChart(
        identifier=identifier,
        title=f"Measured rates at epsilon {epsilon:g}",
        description=f"{about}.",
        height=430.0,
    )
    sure = any(cell.fpr.estimate == 0.0 for cell in cells)
    x, y = chart.horizontal(-_ROOM * len(records) if sure else -0.03, 1.03), chart.vertical(-0.03, 1.03)
    labels = [percent(tick) for tick in _TICKS]
    chart.x_axis(x, _TICKS, labels, "False-positive rate")
    chart.y_axis(y, _TICKS, labels, "True-positive rate")
    _allowed(chart, (x, y), cells[0])
    for cell in cells:
        shape, colour = variants.index(cell.variant), records.index(cell.record)
        _cross(chart, (x, y), cell, (shape, colour, colour * len(variants) + shape))
    return Panel(svg=chart.svg(), width=chart.width, height=chart.height, heading=f"epsilon {epsilon:g}")


def _allowed(chart: SeriesChart, scales: tuple[Scale, Scale], cell: TranscriptCell) -> None:
    """The DP region, both sides of the diagonal, and the line of the nats."""
    x, y = scales
    fpr = np.linspace(0.0, 1.0, 201)
    top: FloatArray = np.asarray(cell.reading.max_tpr(fpr), dtype=np.float64)
    # A test that is always wrong tells as much: the region is symmetric about the centre.
    low = 1.0 - np.asarray(cell.reading.max_tpr(1.0 - fpr), dtype=np.float64)
    across = x(fpr)
    chart.area(np.concatenate([across, across[::-1]]), np.concatenate([y(top), y(low)[::-1]]), "margin")
    ends = np.array([0.0, 1.0])
    chart.line(x(ends), y(ends), "trace chance")
    gain = 2.0 * cell.claim.max_success(0.5) - 1.0
    line = np.array([0.0, 1.0 - gain])
    chart.line(x(line), y(line + gain), "trace zero")
    if gain >= 1.0:
        chart.label(x.at(1.0), y.at(0.02), "the claimed nats allow every point", "row", "end")


def _cross(
    chart: SeriesChart, scales: tuple[Scale, Scale], cell: TranscriptCell, style: tuple[int, int, int]
) -> None:
    """A marker with its arms; without a false alarm it stands left of zero, in a place of its own."""
    x, y = scales
    shape, colour, slot = style
    alarms = cell.fpr.estimate > 0.0
    across = x.at(cell.fpr.estimate) if alarms else x.at(0.0) - _FIRST - _SLOT * slot
    up = y.at(cell.tpr.estimate)
    chart.whisker((x.at(cell.fpr.lower), up), (x.at(cell.fpr.upper), up), colour)
    chart.whisker((across, y.at(cell.tpr.lower)), (across, y.at(cell.tpr.upper)), colour)
    chart.put(marker(MARKERS[shape], across, up, series_css(colour), 3.6))
