"""FERRET's Figure 5: what micro-dither does to a toy regression, over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from workbench.checks.published import QualitativeClaim
from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray
from workbench.reports.papers.ferret import conditions
from workbench.reports.papers.ferret.cells import Context
from workbench.reports.papers.ferret.conditions import MARGIN_SHARE, Condition, untestable
from workbench.reports.papers.ferret.layout import TEST
from workbench.reports.papers.ferret.more_tables import ratio_of
from workbench.reports.papers.ferret.samples import logarithm
from workbench.reports.shared.charts import Line, Scales, line_chart
from workbench.reports.shared.statistics import Sample, matched
from workbench.studies.experiments import Outcome
from workbench.studies.report import Cell, Figure, Table, Value

POINTS = 24
"""Places along the steps at which medians are drawn."""

LAST = 0.1
"""Share of the steps whose mean is the final loss."""

EXPECTED = ("like", "lower", "higher")
MOST_LINES = 8


def known_losses(outcome: Outcome) -> FloatArray:
    """Loss of every step, shape `(T,)`; a silent step, which is not measured, has the last one.

    Steps before the first measured one have the first measured loss.
    """
    losses = np.array(outcome.training_losses, dtype=np.float64)
    places = np.flatnonzero(np.isfinite(losses))
    if not places.size:
        return losses
    last = np.maximum.accumulate(np.where(np.isfinite(losses), np.arange(losses.size), places[0]))
    return np.asarray(losses[last], dtype=np.float64)


def final_loss(outcome: Outcome) -> float:
    """Mean loss of the last tenth of the steps; NaN where no step was measured."""
    losses = known_losses(outcome)
    return float(np.mean(losses[-max(1, round(LAST * losses.size)) :]))


def final_losses(outcomes: Sequence[Outcome]) -> Sample | None:
    """Final losses by seed; None where one is not finite."""
    values = np.array([final_loss(one) for one in outcomes])
    if not values.size or not np.all(np.isfinite(values)):
        return None
    return Sample(values, tuple(one.experiment.seed for one in outcomes), "seed")


def dither_figure(context: Context) -> Figure | None:
    """Figure 5: median and quartiles over seeds along the steps, a line each sigma; None without data."""
    found = context.measured.dither()
    lines = []
    for sigma, outcomes in list(found.items())[:MOST_LINES]:
        curves = [known_losses(one) for one in outcomes]
        steps = min(curve.size for curve in curves)
        edges = np.unique(np.linspace(0, steps, min(POINTS, steps) + 1).astype(int))
        blocks = np.array([[float(np.mean(curve[a:b])) for a, b in pairwise(edges)] for curve in curves])
        low, middle, high = np.quantile(blocks, [0.25, 0.5, 0.75], axis=0)
        lines.append(
            Line(
                label=f"σ = {sigma:g}",
                x=tuple(float(a + b + 1) / 2.0 for a, b in pairwise(edges)),
                values=tuple(
                    Value(estimate=float(m), lower=float(lo), upper=float(hi), n=len(outcomes))
                    for lo, m, hi in zip(low, middle, high, strict=True)
                ),
            )
        )
    if not any(math.isfinite(value.estimate) for line in lines for value in line.values if value):
        return None
    return line_chart(
        "figure-5",
        "Micro-dither on a toy linear regression",
        lines,
        Scales(x_name="step", y_name="mean squared error", log_x=False, log_y=True),
        spread="quartiles over seeds",
        note=(
            f"Median over seeds of the loss of each step's sample, averaged over {POINTS} stretches of the "
            "steps. A silent step, whose loss is not looked at, keeps the last one."
        ),
        place="Figure 5",
    )


def dither_table(context: Context) -> Table | None:
    """The final loss by sigma: median and quartiles over seeds, and the ratio to no dither."""
    found = context.measured.dither()
    if not found:
        return None
    columns = ("median final loss", "ratio to no dither")
    base = final_losses(found.get(0.0, []))
    rows = []
    for sigma, outcomes in found.items():
        sample = final_losses(outcomes)
        if sample is None:
            why = "a run's loss is missing or not finite"
            rows.append(((f"{sigma:g}",), (Cell(why_blank=why), Cell(why_blank=why))))
            continue
        low, middle, high = (float(one) for one in np.quantile(sample.values, [0.25, 0.5, 0.75]))
        median = Cell(ours=Value(estimate=middle, lower=low, upper=high, n=sample.n_units))
        rows.append(((f"{sigma:g}",), (median, _ratio(base, sample, sigma, context.confidence))))
    return Table(
        id="figure-5",
        title="Final loss of the toy regression by dither",
        row_headers=("σ",),
        columns=columns,
        rows=tuple(rows),
        notes=(
            f"Final loss: mean over the last {100 * LAST:g} % of the steps. Brackets: quartiles over seeds "
            f"for the median; for the ratio (geometric mean over seeds, paired) the {context.percent} t "
            "interval of its logarithm. The paper prints its Figure 5 as a picture alone.",
        ),
    )


def _ratio(base: Sample | None, sample: Sample, sigma: float, confidence: float) -> Cell:
    if sigma == 0.0:
        return Cell(why_blank="this is the one without dither")
    if base is None:
        return Cell(why_blank="the runs without dither are missing")
    found = ratio_of(sample, base, confidence)
    return Cell(why_blank="no seed has both") if found is None else Cell(ours=found)


def dither_conditions(context: Context, claim: QualitativeClaim) -> list[Condition]:
    """The conditions of a conclusion about Figure 5.

    Args:
        context: Of the report.
        claim: With the parameters `sigmas` and `expected`.

    Raises:
        InputError: a parameter is missing or unknown.
    """
    for name in ("sigmas", "expected"):
        if not claim.parameters.get(name):
            raise InputError(f"claim {claim.id!r}: parameter {name} is missing or empty")
    expected = str(claim.parameters["expected"])
    if expected not in EXPECTED:
        raise unknown_name(f"expected of claim {claim.id!r}:", expected, EXPECTED)
    measured = context.measured.dither()
    base = final_losses(measured.get(0.0, []))
    found = []
    for sigma in map(float, claim.parameters["sigmas"]):
        where = f"final loss at σ = {sigma:g} against none"
        sample = final_losses(measured.get(sigma, []))
        if sample is None or base is None:
            found.append(untestable(where, "runs are missing, failed, or not finite"))
        elif expected == "like":
            ends = (1.0 / (1.0 + MARGIN_SHARE), 1.0 + MARGIN_SHARE)
            found.append(_like(where, (sample, base), ends, context.confidence))
        else:
            pair = (sample, base) if expected == "lower" else (base, sample)
            found.append(conditions.lower(where, TEST, pair, context.confidence))
    return found


def _like(where: str, pair: tuple[Sample, Sample], ends: tuple[float, float], confidence: float) -> Condition:
    """The geometric mean of the seeds' ratios lies within the ends."""
    found = matched(logarithm(pair[0]), logarithm(pair[1]))
    if found.first is None or found.second is None:
        return untestable(where, "no seed has both sides")
    differences = Sample(found.first.values - found.second.values, found.first.units, "seed")
    return conditions.inside(
        f"{where} (log ratio)", differences, (math.log(ends[0]), math.log(ends[1])), confidence
    )
