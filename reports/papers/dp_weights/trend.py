"""How a metric moves with epsilon: the slope over log10 epsilon within each seed."""

from __future__ import annotations

from typing import cast

import numpy as np

from workbench.checks.published import QualitativeClaim
from workbench.interfaces import FloatArray
from workbench.reports.papers.dp_weights.cells import Context
from workbench.reports.papers.dp_weights.layout import GRIDS, METRIC_WORDS
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import LEAST_UNITS, too_few
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import Answer, NotTestable, Sample
from workbench.studies.report import Replication, ReplicationFinding


def trend_finding(context: Context, claim: QualitativeClaim) -> ReplicationFinding:
    """Whether metrics rise or fall with epsilon, as a conclusion says.

    Args:
        context: Of the report.
        claim: With the parameters groups, variants, metrics and direction.
    """
    parameters = claim.parameters
    places = [
        (group, variant, metric)
        for group in parameters["groups"]
        for variant in parameters["variants"]
        for metric in parameters["metrics"]
    ]
    answers = statistics.adjust([_test(context, *place) for place in places])
    lost = {run for place in places for run in context.measured.unusable(*place)}
    wanted = str(parameters["direction"])
    signs = [_sign(answer) for answer in answers]
    short = min((answer.n_units for answer in answers), default=0)
    gaps = dict.fromkeys(gap for gap in map(context.uncovered, parameters["groups"]) if gap)
    if gaps:
        outcome, why = Replication.NOT_TESTABLE, "; ".join(gaps)
    elif lost:
        outcome, why = (
            context.measured.undecided(lost),
            f"runs behind it that failed, are missing or have no finite value: {len(lost)}",
        )
    elif short < LEAST_UNITS:
        outcome, why = Replication.NOT_TESTABLE, too_few(short, context.unit)
    elif all(sign == wanted for sign in signs):
        outcome, why = Replication.REPLICATED, "every slope is shown"
    elif any(sign and sign != wanted for sign in signs):
        outcome, why = Replication.NOT_REPLICATED, "a slope of the other sign is shown"
    else:
        known = sum(bool(sign) for sign in signs)
        outcome, why = (
            Replication.NOT_TESTABLE,
            f"{known} of {len(signs)} slopes are shown, none of the other sign",
        )
    details = "; ".join(_describe(place, answer) for place, answer in zip(places, answers, strict=True))
    return ReplicationFinding(
        id=claim.id,
        place=claim.place,
        statement=claim.statement,
        tables=claim.tables,
        outcome=outcome,
        test=(
            f"t test over {context.unit}s that the slope against log10 epsilon is zero, a {context.unit}'s "
            f"slope being the mean of those of its settings; level {1.0 - context.confidence:.2g}, Holm over "
            f"{len(places)} comparisons."
        ),
        figures=f"{why[0].upper()}{why[1:]}. Slope a factor 10 of epsilon: {details}.",
    )


def slopes(sample: Sample) -> Sample | None:
    """Each unit's slope against log10 epsilon, averaged over its settings; None where no unit has one.

    Args:
        sample: With cells (setting, epsilon).
    """
    grouped: dict[str | int, dict[int, list[tuple[float, float]]]] = {}
    for place, unit in enumerate(sample.units):
        value, epsilon = cast("tuple[int, float]", sample.cells[place])
        point = (float(np.log10(epsilon)), float(sample.values[place]))
        grouped.setdefault(unit, {}).setdefault(value, []).append(point)
    found = {}
    for unit, settings in grouped.items():
        each = [_slope(np.array(points)) for points in settings.values() if len(points) > 1]
        if each:
            found[unit] = float(np.mean(each))
    return Sample(np.array(list(found.values())), tuple(found), sample.unit) if found else None


def _slope(points: FloatArray) -> float:
    """Least squares, shape `(n, 2)` of x and y."""
    x, y = points[:, 0] - points[:, 0].mean(), points[:, 1]
    return float(x @ y / (x @ x))


def _test(context: Context, group: str, variant: str, metric: str) -> Answer:
    sample = context.measured.sample(group, variant, metric)
    found = None if sample is None else slopes(sample)
    if found is None:
        why = context.missing(GRIDS[group], variant, context.measured.values(group), metric)
        return NotTestable(name="slope", why=why, n_units=0, unit=context.unit)
    zeros = Sample(np.zeros(found.values.size), found.units, found.unit)
    return statistics.paired_t(found, zeros, confidence=context.confidence)


def _sign(answer: Answer) -> str:
    """The direction that is shown, or empty."""
    if isinstance(answer, NotTestable) or not answer.significant:
        return ""
    return "higher" if answer.estimate > 0 else "lower"


def _describe(place: tuple[str, str, str], answer: Answer) -> str:
    group, variant, metric = place
    name = f"{METRIC_WORDS[metric]} of {variant}, {group}"
    if isinstance(answer, NotTestable):
        return f"{name}: not testable, {answer.why}"
    ends = ""
    if answer.lower is not None and answer.upper is not None:
        ends = f" [{number(answer.lower)}, {number(answer.upper)}]"
    test = f"p = {number(answer.decisive_p, 3)} (Holm), n = {answer.n_units}"
    return f"{name}: {number(answer.estimate)}{ends}, {test}"
