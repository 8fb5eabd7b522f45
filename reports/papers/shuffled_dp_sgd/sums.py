"""Shuffled DPSGD's Fig. 2, drawn anew: approximations of a sum of lognormals beside draws of it.

At the paper's own number of terms, 1e8, drawn by counts
(`workbench.reports.papers.shuffled_dp_sgd.lognormal_sums`) when a report is made, in a few seconds, with a
fixed seed. A second panel has the spread c / sigma at which Theorem 6 uses the approximation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd.cells import Context
from workbench.reports.papers.shuffled_dp_sgd.lognormal_sums import (
    METHODS,
    Comparison,
    CountedSum,
    LognormalSum,
    SumSample,
    approximate,
    compare,
)
from workbench.reports.papers.shuffled_dp_sgd.noise import theorem_6_spread
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import said
from workbench.reports.shared.drawing import SeriesChart, ticks_of
from workbench.reports.shared.figures import FigureText, Panel, make_figure
from workbench.reports.shared.marks import series_css
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_cells import Row
from workbench.studies.report import Cell, Figure, FigureKey, Table, Value

DRAWS = 3000
"""The paper took 1,000."""

TAIL = 1000
"""Of `CountedSum`: terms that are drawn one by one."""

SEED = 2407

_BY_AUTHORS = ("fenton_wilkinson", "schwartz_yeh")


def _name(method: str) -> str:
    """A method as tables call it: authors with their capitals and a dash."""
    words = method.replace("_", " ")
    return words.title().replace(" ", "-") if method in _BY_AUTHORS else words


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What is summed.

    Attributes:
        terms: d.
        spread: Standard deviation of each normal.
        where: Whose spread it is, in words.
    """

    terms: int
    spread: float
    where: str


def sums_of(paper: PublishedPaper) -> tuple[Sums, Sums]:
    """Fig. 2's sum, and the one of Theorem 6 at the paper's ViT and epsilon 1."""
    terms = round(said(paper, "figure 2", "dimension").value)
    return (
        Sums(terms=terms, spread=said(paper, "figure 2", "sigma of the normals").value, where="Fig. 2"),
        Sums(terms=terms, spread=theorem_6_spread(paper), where="Theorem 6, ViT at epsilon 1"),
    )


@lru_cache(maxsize=8)
def compared(sums: Sums, confidence: float, draws: int, tail: int) -> Comparison:
    """All approximations against draws.

    Args:
        sums: What is summed.
        confidence: Of band and intervals.
        draws: How many.
        tail: See `CountedSum`.
    """
    law = LognormalSum.identical(sums.terms, sums.spread)
    source = CountedSum(law=law, tail=tail)
    return compare(law, seed=SEED, repeats=draws, draws=source, confidence=confidence)


def found_sums(context: Context) -> list[tuple[Sums, Comparison]]:
    """Both sums compared; empty without the printed numbers."""
    if context.paper is None:
        return []
    return [(one, compared(one, context.confidence, DRAWS, TAIL)) for one in sums_of(context.paper)]


def sums_table(context: Context) -> Table | None:
    """Errors of the approximations, with their intervals."""
    found = found_sums(context)
    if not found:
        return None
    columns = tuple(map(_name, METHODS))
    rows: list[Row] = []
    for sums, comparison in found:
        errors = comparison.errors
        cells = tuple(
            Cell(
                ours=Value(estimate=errors[name].estimate, lower=errors[name].lower, upper=errors[name].upper)
            )
            for name in METHODS
        )
        rows.append(((sums.where, f"{sums.spread:.3g}", f"{sums.terms:g}"), cells))
    return Table(
        id="lognormal-sums",
        title="Largest error of an approximation's distribution function",
        row_headers=("sum of", "standard deviation of the normals", "terms"),
        columns=columns,
        rows=tuple(rows),
        place="Fig. 2 (section VI-C)",
        notes=(
            f"Against {DRAWS} draws (the paper: 1,000), seed {SEED}: brackets are {context.percent} "
            "intervals of Dvoretzky, Kiefer, Wolfowitz and Massart, all at once, which hold at every number "
            "of draws. Least squares and kernel density have draws of their own. An error is the largest "
            "distance to the draws' own distribution function, which is too large on average. Our "
            "Schwartz-Yeh adds the first thousand terms one by one, and doubles from there on.",
            "Terms are taken for independent, as in the paper; in Theorem 6 they share one normal. `python "
            "benchmarks/lognormal_sums.py` has all methods over d and the spread.",
        ),
        decimals=dict.fromkeys(columns, 3),
    )


def sums_figure(context: Context) -> Figure | None:
    """Fig. 2 in two panels."""
    found = found_sums(context)
    if not found:
        return None
    panels = [_panel(place, sums, comparison) for place, (sums, comparison) in enumerate(found)]
    names = [_name(name) for name in METHODS]
    legend = [FigureKey(css=series_css(index), label=name) for index, name in enumerate(names)]
    draws = len(names)
    legend.append(FigureKey(css=series_css(draws), label=f"{DRAWS} draws"))
    band = f"{context.percent} band of the draws, everywhere at once"
    legend.append(FigureKey(css=series_css(draws), label=band, shape="area"))
    worst = "; ".join(
        f"standard deviation {sums.spread:.3g}: "
        + ", ".join(f"{_name(name)} {number(comparison.errors[name].estimate, 2)}" for name in METHODS)
        for sums, comparison in found
    )
    text = FigureText(
        identifier="figure-2",
        title="Distribution function of a sum of lognormals, and its approximations",
        caption=(
            f"S has {found[0][0].terms:g} terms exp(Y), Y normal of mean 0; on the axis is log S less its "
            "median, in standard deviations of log S. Largest distance to the draws "
            f'(table "lognormal-sums" has the intervals): {worst}. Theorem 6 uses the approximation at the '
            "second spread."
        ),
        place="Fig. 2",
    )
    return make_figure(text, panels, legend)


def _panel(place: int, sums: Sums, comparison: Comparison) -> Panel:
    """One sum: curves over log S, standardised by the draws."""
    logs = comparison.sample.log_sums
    centre, scale = float(np.median(logs)), float(np.std(logs))
    across = (comparison.log_sums - centre) / scale
    about = "; ".join(
        f"{_name(name)}: largest error {number(comparison.errors[name].estimate, 3)}" for name in METHODS
    )
    chart = SeriesChart(
        identifier=f"figure-2-{place + 1}",
        title=f"{sums.where}: standard deviation {sums.spread:.3g}",
        description=f"{about}.",
    )
    low, high = max(float(across[0]), -4.0), min(float(across[-1]), 6.0)
    x, y = chart.horizontal(low, high), chart.vertical(0.0, 1.0)
    chart.x_axis(x, *ticks_of(x), "log S, standardised")
    chart.y_axis(y, *ticks_of(y), "distribution function")
    kept = (across >= low) & (across <= high)
    shown = x(across[kept])
    draws = len(METHODS)
    lower, upper = comparison.band
    chart.band(shown, y(lower[kept]), y(upper[kept]), draws)
    chart.trace(shown, y(comparison.monte_carlo[kept]), draws)
    for index, name in enumerate(METHODS):
        chart.trace(shown, y(comparison.curves[name][kept]), index)
    heading = f"{sums.where}: standard deviation {sums.spread:.3g}"
    return Panel(svg=chart.svg(), width=chart.width, height=chart.height, heading=heading)


def error_at_low_values(comparison: Comparison, name: str) -> float:
    """Largest distance of an approximation to the draws' distribution function up to their median."""
    logs = comparison.sample.log_sums
    fit = approximate(name, comparison.law, sample=comparison.sample)
    low = logs[: (logs.size + 1) // 2]
    values, below = fit.cdf(low), np.arange(low.size) / logs.size
    return float(np.max(np.maximum(np.abs(values - below), np.abs(values - below - 1.0 / logs.size))))


def far_p(error: float, bound: float, sample: SumSample) -> tuple[float, float]:
    """p-values of "the error is above the bound" and of "it is at most the bound" (small: shown not so).

    The draws' distribution function is within x of that which was drawn from but for a probability of
    2 exp(-2 n x^2), at every n (Massart 1990), which is within the sample's bias of the sum's; an
    approximation's distances, over any values, differ by no more.

    Args:
        error: Largest distance of an approximation to the draws' distribution function.
        bound: That it is held to.
        sample: The draws.
    """
    apart = max(abs(error - bound) - sample.bias, 0.0)
    tail = min(1.0, 2.0 * math.exp(-2.0 * sample.log_sums.size * apart**2))
    return (tail, 1.0) if error < bound else (1.0, tail)
