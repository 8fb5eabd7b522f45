"""DP-Weights' conclusions, held to a study's results by stated tests.

An outcome is computed from tests with a known error rate:

- "no difference" is replicated where every comparison is shown to be within its margin (two one-sided tests;
  all must reject, so no correction is needed), not replicated where a comparison shows a difference (Holm)
  and not that it is within the margin;
- "difference" is replicated where every comparison shows one (Holm) in the direction that is claimed, not
  replicated where one shows the other direction, or lies within the margin (Holm over the claim's
  comparisons) without showing the claimed one even uncorrected: what the correction alone hides, more seeds
  may show;
- anything else, any comparison with a lost or non-finite run, any with fewer than three seeds, and any that
  lacks a setting or the range of epsilon that the conclusion is about, is not testable at our scale; where a
  lost run is one that is not made yet, it is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import InputError, unknown_name
from workbench.reports.papers.dp_weights.cells import Context
from workbench.reports.papers.dp_weights.comparisons import Comparison, Place, compare, seeds_needed
from workbench.reports.papers.dp_weights.contradictions import contradictions
from workbench.reports.papers.dp_weights.layout import EPSILONS, GRIDS, METRIC_WORDS
from workbench.reports.papers.dp_weights.samples import margin_in_words
from workbench.reports.papers.dp_weights.t_tests import LEVEL
from workbench.reports.papers.dp_weights.trend import trend_finding
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import LEAST_UNITS, too_few
from workbench.reports.shared.numbers import number
from workbench.reports.shared.statistics import Equivalence, NotTestable, StatisticalTest
from workbench.studies.report import Replication, ReplicationFinding

NO_DIFFERENCE, DIFFERENCE, TREND = "no difference", "difference", "trend over epsilon"
DIRECTIONS = ("higher", "lower", "")


def findings(
    context: Context, paper: PublishedPaper, pooled: Sequence[Comparison]
) -> list[ReplicationFinding]:
    """What our results say of each of the paper's conclusions, in its order.

    Args:
        context: Of the report.
        paper: The conclusions and the printed numbers.
        pooled: The comparisons of `pooled_places`, adjusted as one family.

    Raises:
        InputError: a conclusion names an unknown test, group or direction.
    """
    by_place = {one.place: one for one in pooled}
    found = []
    for claim in paper.claims:
        if claim.test == TREND:
            found.append(trend_finding(context, claim))
            continue
        if claim.test not in _JUDGES:
            raise unknown_name(f"test of claim {claim.id!r}:", claim.test, (*_JUDGES, TREND))
        places = claim_places(claim)
        comparisons = (
            [by_place[place] for place in places]
            if all(place in by_place for place in places)
            else compare(context, places)
        )
        found.append(_finding(context, paper, claim, comparisons))
    return found


def claim_places(claim: QualitativeClaim) -> list[Place]:
    """What a conclusion compares.

    Raises:
        InputError: its parameters are not those of a comparison.
    """
    parameters = claim.parameters
    for name in ("groups", "pairs", "metrics"):
        if name not in parameters:
            raise InputError(f"claim {claim.id!r}: parameter {name} is missing")
    for name in ("groups", "pairs", "metrics", "values"):
        if name in parameters and not parameters[name]:
            raise InputError(f"claim {claim.id!r}: parameter {name} must not be empty")
    for group in parameters["groups"]:
        if group not in GRIDS:
            raise unknown_name(f"group of claim {claim.id!r}:", group, GRIDS)
    if parameters.get("direction", "") not in DIRECTIONS:
        raise unknown_name(f"direction of claim {claim.id!r}:", parameters["direction"], DIRECTIONS)
    return [
        Place(group=group, first=first, second=second, metric=metric, value=value)
        for group in parameters["groups"]
        for value in _values(parameters, group)
        for first, second in parameters["pairs"]
        for metric in parameters["metrics"]
    ]


def _values(parameters: Mapping[str, Any], group: str) -> Sequence[int | None]:
    if parameters.get("each"):
        return list(GRIDS[group].details)
    values: Sequence[int | None] = parameters.get("values", [None])
    return values


def _finding(
    context: Context, paper: PublishedPaper, claim: QualitativeClaim, comparisons: list[Comparison]
) -> ReplicationFinding:
    judge, words = _JUDGES[claim.test]
    outcome, why = judge(comparisons, claim.parameters.get("direction", ""))
    lost = frozenset().union(*(one.lost for one in comparisons))
    replicates = min(one.difference.n_units for one in comparisons)
    gaps = dict.fromkeys(gap for gap in (_gap(context, one.place) for one in comparisons) if gap)
    if gaps:
        outcome, why = Replication.NOT_TESTABLE, "; ".join(gaps)
    elif lost:
        outcome, why = (
            context.measured.undecided(lost),
            f"runs behind it that failed, are missing or have no finite value: {len(lost)}",
        )
    elif replicates < LEAST_UNITS:
        outcome, why = Replication.NOT_TESTABLE, too_few(replicates, context.unit)
    parts = [f"{why[0].upper()}{why[1:]}"]
    if outcome is Replication.NOT_TESTABLE and not lost and not gaps:
        parts.append(_needed(context, comparisons))
    parts.append("; ".join(one.describe() for one in comparisons))
    parts.append(_by_the_paper(comparisons, context.unit))
    return ReplicationFinding(
        id=claim.id,
        place=claim.place,
        statement=claim.statement,
        tables=claim.tables,
        outcome=outcome,
        test=_pooled(context, comparisons)
        + words.format(
            unit=context.unit,
            level=f"{1.0 - context.confidence:.2g}",
            family=_family(comparisons),
            margins=margin_in_words(),
        ),
        figures=". ".join(part for part in parts if part) + ".",
        paper_contradicts=contradictions(paper, claim.test == NO_DIFFERENCE, claim.parameters, comparisons),
    )


def _judge_no_difference(comparisons: Sequence[Comparison], direction: str) -> tuple[Replication, str]:
    """See the module."""
    if all(one.equivalent for one in comparisons):
        return Replication.REPLICATED, "every difference is shown to be within its margin"
    shown = [one for one in comparisons if one.significant and not one.equivalent]
    if shown:
        places = ", ".join(_short(one) for one in shown)
        return (
            Replication.NOT_REPLICATED,
            f"a difference is shown, and not that it is within the margin: {places}",
        )
    count = sum(one.equivalent for one in comparisons)
    return Replication.NOT_TESTABLE, (
        f"{count} of {len(comparisons)} comparisons are shown to be within their margin, and none of the "
        "rest shows a difference"
    )


def _judge_difference(comparisons: Sequence[Comparison], direction: str) -> tuple[Replication, str]:
    """See the module."""
    fits = [one.significant and direction in ("", one.direction) for one in comparisons]
    if all(fits):
        return Replication.REPLICATED, "every difference is shown, as it is claimed"
    opposite = [one for one in comparisons if one.significant and direction not in ("", one.direction)]
    if opposite:
        places = ", ".join(f"{_short(one)} is {one.direction}" for one in opposite)
        return Replication.NOT_REPLICATED, f"the opposite is shown: {places}"
    tests: list[Equivalence | NotTestable] = [one.equivalence for one in comparisons]
    alike = [
        one
        for one, answer, fit in zip(comparisons, statistics.adjust(tests), fits, strict=True)
        if not (fit or _leans(one, direction)) and isinstance(answer, Equivalence) and answer.equivalent
    ]
    if alike:
        places = ", ".join(_short(one) for one in alike)
        return Replication.NOT_REPLICATED, f"shown to be within the margin instead: {places}"
    count = sum(fits)
    return (
        Replication.NOT_TESTABLE,
        f"{count} of {len(fits)} comparisons show the difference, and the rest neither show nor exclude it",
    )


def _leans(comparison: Comparison, direction: str) -> bool:
    """Whether a comparison by itself, uncorrected, shows the claimed difference."""
    answer = comparison.difference
    return (
        isinstance(answer, StatisticalTest)
        and answer.p_value <= 1.0 - answer.confidence
        and direction in ("", comparison.direction)
    )


_JUDGES: dict[str, tuple[Callable[[Sequence[Comparison], str], tuple[Replication, str]], str]] = {
    NO_DIFFERENCE: (
        _judge_no_difference,
        "Equivalence: two one-sided paired t tests over {unit}s at level {level}, all of which must reject; "
        "not replicated where a "
        "paired t test over {unit}s at level {level} (Holm over {family} comparisons) shows a difference "
        "that is not shown to be within "
        "the margin; {margins}.",
    ),
    DIFFERENCE: (
        _judge_difference,
        "Paired t tests over {unit}s at level {level}, Holm over {family} comparisons, all of which must "
        "show the difference; not "
        "replicated where one shows the opposite, or is equivalent within the margin (two one-sided tests, "
        "Holm over the conclusion's comparisons) and shows no such difference even uncorrected; {margins}.",
    ),
}


def _gap(context: Context, place: Place) -> str:
    """What this run lacks of what a comparison is about; empty where nothing."""
    return context.uncovered(place.group, None if place.value is None else [place.value])


def _pooled(context: Context, comparisons: Sequence[Comparison]) -> str:
    """Over what a mean is taken, which opposite differences can hide in."""
    counts = {len(context.measured.epsilons(one.place.group)) for one in comparisons}
    epsilons = f"{' or '.join(map(str, sorted(counts)))} epsilons"
    if counts != {EPSILONS}:
        epsilons += f" (the paper: {EPSILONS})"
    settings = "" if all(one.place.value is not None for one in comparisons) else "all settings and "
    return f"Means over {settings}{epsilons}, as in the paper, so that opposite differences cancel. "


def _family(comparisons: Sequence[Comparison]) -> int:
    sizes = [one.difference.family for one in comparisons if not isinstance(one.difference, NotTestable)]
    return max(sizes, default=len(comparisons))


def _short(comparison: Comparison) -> str:
    place = comparison.place
    setting = "" if place.value is None else f" {place.value}"
    return f"{METRIC_WORDS[place.metric]} ({place.group}{setting}, {place.first} less {place.second})"


def _needed(context: Context, comparisons: Sequence[Comparison]) -> str:
    """How many seeds would decide, or why that is unknown; empty where there is no spread to reckon with."""
    open_ones = [one for one in comparisons if not one.equivalent and not one.significant]
    needed = [seeds_needed(one, context.confidence) for one in open_ones or comparisons]
    known = [count for count in needed if count is not None]
    if len(known) < len(needed):
        return f"How many {context.unit}s would decide cannot be reckoned from the spread seen here"
    return (
        f"About {max(known)} {context.unit}s would decide all of it four times in five, if the true "
        "differences are zero or as large as the margin (by the spread seen here, which few seeds estimate "
        "roughly)"
    )


def _by_the_paper(comparisons: Sequence[Comparison], unit: str) -> str:
    """What the paper's own criterion would say of our first seed."""
    answers = [one.as_printed for one in comparisons]
    tested = [answer for answer in answers if not isinstance(answer, NotTestable)]
    if not tested:
        return ""
    powerless = min(answer.smallest_p for answer in tested)
    if powerless >= LEVEL:
        return (
            f"The paper's own criterion on the first {unit} (every epsilon a replicate) can find no "
            f"difference with so few epsilons: no p-value is below {number(powerless, 2)}"
        )
    found = sum(answer.p_value < LEVEL for answer in tested)
    values = ", ".join(number(answer.p_value, 2) for answer in tested[:14])
    more = ", …" if len(tested) > 14 else ""
    return (
        f"By the paper's own criterion on the first {unit} (every epsilon a replicate) {found} of "
        f"{len(tested)} comparisons show a significant difference (p = {values}{more})"
    )
