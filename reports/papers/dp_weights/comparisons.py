"""All comparisons between two variants that a DP-Weights report makes, and its conclusions held to them.

The unit of replication is the study's (a seed): a seed's values are averaged over settings and epsilons, and
the differences of two variants within a seed are tested. "No difference" is answered by an equivalence test
as well, because a test that finds nothing has not shown that there is nothing. How a conclusion follows from
its comparisons stands at `[tests]` of `report.toml`. What the paper itself prints of a comparison is asked by
the paper's own criterion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import InputError, unknown_name
from workbench.interfaces import FloatArray
from workbench.reports.papers.dp_weights.runs import (
    COMPARISONS,
    GRIDS,
    LEVEL,
    METRIC_WORDS,
    METRICS,
    MODELS,
    STATISTIC,
    epsilons_of,
    first_unit,
    margin,
    missing,
    pair,
    sample,
    uncovered,
    unusable,
    values_of,
)
from workbench.reports.shared import statistics
from workbench.reports.shared.context import Bindings, Context
from workbench.reports.shared.findings import finding_of
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_cells import LEAST_UNITS, too_few
from workbench.reports.shared.printed import printed, short
from workbench.reports.shared.statistics import Answer, Equivalence, NotTestable, Sample, StatisticalTest
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Replication, ReplicationFinding

DIRECTIONS = ("higher", "lower", "")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Two variants and the metric that they are compared by.

    Attributes:
        first, second: Variants.
        metric: Of the outcomes.
        value: Setting of the varied field; None for the mean over all of the grid.
    """

    group: str
    first: str
    second: str
    metric: str
    value: int | None = None

    @property
    def column(self) -> str:
        """The paper's name of the pair; empty where it has none."""
        pairs = {sides: column for column, sides in COMPARISONS.items()}
        return pairs.get((self.first, self.second), "")

    @property
    def values(self) -> list[int] | None:
        """Settings of the varied field; None for all."""
        return None if self.value is None else [self.value]

    @property
    def grid(self) -> str:
        """The grid, and the setting in it where there is one."""
        return self.group if self.value is None else f"{self.group} {self.value}"

    @property
    def words(self) -> str:
        """The metric's name as it stands in a sentence."""
        return METRIC_WORDS[self.metric]

    def __str__(self) -> str:
        return f"{self.words}, {self.grid}, {self.first} less {self.second}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of two variants, with its statistical tests.

    Attributes:
        difference: Paired t over units, adjusted for its family.
        margin: Within what the two count as alike; None where it could not be computed.
        as_printed: The paper's own test on the first seed: every epsilon a replicate.
    """

    place: Place
    difference: Answer
    equivalence: Equivalence | NotTestable
    margin: float | None
    as_printed: Answer

    @property
    def significant(self) -> bool:
        """Whether a difference is shown, after correction."""
        return isinstance(self.difference, StatisticalTest) and self.difference.significant

    @property
    def equivalent(self) -> bool:
        """Whether the difference is shown to be within the margin."""
        return isinstance(self.equivalence, Equivalence) and self.equivalence.equivalent

    @property
    def direction(self) -> str:
        """`"higher"` or `"lower"`: where the first is estimated to be; empty where unknown."""
        if isinstance(self.difference, NotTestable) or self.difference.estimate == 0.0:
            return ""
        return _side(self.difference.estimate)

    def describe(self) -> str:
        """Effect, interval, p-values and replicates in one clause."""
        answer = self.difference
        if isinstance(answer, NotTestable):
            return f"{self.place}: not testable, {answer.why}"
        text = f"{self.place}: {_estimate(answer)}, p = {number(answer.p_value, 3)}"
        if answer.adjusted_p is not None:
            text += f" ({answer.correction} over {answer.family}: {number(answer.adjusted_p, 3)})"
        if isinstance(self.equivalence, Equivalence) and self.margin is not None:
            text += f", within ±{number(self.margin, 3)}: p = {number(self.equivalence.decisive_p, 3)}"
        return f"{text}, n = {answer.n_units}"


def _side(difference: float) -> str:
    return "higher" if difference > 0 else "lower"


def _estimate(answer: StatisticalTest) -> str:
    ends = ""
    if answer.lower is not None and answer.upper is not None:
        ends = f" [{number(answer.lower)}, {number(answer.upper)}]"
    return number(answer.estimate) + ends


Judge = Callable[[Sequence[Comparison], str], tuple[Replication, Bindings]]
"""What comparisons say of a conclusion with a direction, and the facts for its words."""


def compare(context: Context, places: Sequence[Place]) -> list[Comparison]:
    """The comparisons of one family, their p-values adjusted together by Holm's method.

    Args:
        places: The whole family; what cannot be tested counts with p = 1.
    """
    raw = [_tests(context, place) for place in places]
    adjusted = statistics.adjust([difference for difference, _, _, _ in raw]) if raw else ()
    return [
        Comparison(
            place=place, difference=difference, equivalence=alike, margin=within, as_printed=as_printed
        )
        for place, difference, (_, alike, within, as_printed) in zip(places, adjusted, raw, strict=True)
    ]


def pooled(context: Context) -> list[Comparison]:
    """The family of sections 4.3 and 4.4: both grids, all pairs, all metrics."""
    places = [
        Place(group=group, first=first, second=second, metric=metric)
        for group in GRIDS
        for metric in METRICS
        for first, second in COMPARISONS.values()
    ]
    return context.once("pooled", lambda: compare(context, places))


def _tests(context: Context, place: Place) -> tuple[Answer, Equivalence | NotTestable, float | None, Answer]:
    """Difference, equivalence, margin, and the paper's own test."""
    unit, sides = context.outcomes.unit, (place.first, place.second)
    both = pair(context, place.group, sides, place.metric, place.values or values_of(context, place.group))
    if isinstance(both, str):
        nothing = NotTestable(name="paired t", why=both, n_units=0, unit=unit)
        return nothing, nothing, None, nothing
    within = margin(context, place.group, place.metric, place.values)
    difference = statistics.paired_t(*both, confidence=context.confidence)
    alike: Equivalence | NotTestable
    if within is None:
        why = "the margin needs the fine-tuned model"
        alike = NotTestable(name="TOST", why=why, n_units=0, unit=unit)
    else:
        alike = statistics.tost_paired(*both, margin=within, confidence=context.confidence)
    once = first_unit(both)
    if once is None:
        why = f"no {unit} has both models"
        return difference, alike, within, NotTestable(name="as printed", why=why, n_units=0, unit=unit)
    test = statistics.pooled_t_as_printed if place.value is None else statistics.wilcoxon_as_printed
    return difference, alike, within, test(*once, confidence=context.confidence)


def seeds_needed(comparison: Comparison, confidence: float) -> int | None:
    """Units that would decide a comparison, by the spread seen here; None where that is not known."""
    answer, within = comparison.difference, comparison.margin
    if isinstance(answer, NotTestable) or answer.spread is None or within is None:
        return None
    return statistics.units_to_decide(within, answer.spread, answer.family, confidence=confidence)


# Conclusions


def claim_places(claim: QualitativeClaim) -> list[Place]:
    """The comparisons that a conclusion of the paper is about.

    Raises:
        InputError: its parameters are not those of a comparison.
    """
    parameters = claim.parameters
    for name in ("groups", "pairs", "metrics", "values"):
        if name not in parameters and name != "values":
            raise InputError(f"claim {claim.id!r}: parameter {name} is missing")
        if not parameters.get(name, True):
            raise InputError(f"claim {claim.id!r}: parameter {name} must not be empty")
    for group in parameters["groups"]:
        if group not in GRIDS:
            raise unknown_name(f"group of claim {claim.id!r}:", group, GRIDS)
    if parameters.get("direction", "") not in DIRECTIONS:
        raise unknown_name(f"direction of claim {claim.id!r}:", parameters["direction"], DIRECTIONS)
    values = parameters.get("values", [None])
    return [
        Place(group=group, first=first, second=second, metric=metric, value=value)
        for group in parameters["groups"]
        for value in (GRIDS[group].details if parameters.get("each") else values)
        for first, second in parameters["pairs"]
        for metric in parameters["metrics"]
    ]


def _comparison_finding(judge: Judge, context: Context, claim: QualitativeClaim) -> ReplicationFinding:
    places, by_place = claim_places(claim), {comparison.place: comparison for comparison in pooled(context)}
    is_known = all(place in by_place for place in places)
    compared = [by_place[place] for place in places] if is_known else compare(context, places)
    direction = str(claim.parameters.get("direction", ""))
    lost = [
        run
        for place in places
        for variant in (place.first, place.second)
        for run in unusable(context, place.group, variant, place.metric, place.values)
    ]
    gaps = [uncovered(context, place.group, place.values) for place in places]
    replicates = min(comparison.difference.n_units for comparison in compared)
    outcome, why = _held(
        context, claim, judge(compared, direction), gaps=gaps, lost=lost, replicates=replicates
    )
    is_open = outcome is Replication.NOT_TESTABLE and not lost and not any(gaps)
    paper = context.paper
    against = [] if paper is None else [_against(context, paper, claim, direction, place) for place in places]
    sizes = [
        comparison.difference.family
        for comparison in compared
        if isinstance(comparison.difference, StatisticalTest)
    ]
    found = finding_of(
        claim,
        outcome,
        [
            why,
            _needed(context, compared) if is_open else "",
            "; ".join(comparison.describe() for comparison in compared),
            _by_the_paper(context, compared),
        ],
        test=_words(
            context,
            claim,
            counts=sorted({len(epsilons_of(context, place.group)) for place in places}),
            is_over_all=any(place.value is None for place in places),
            family=max(sizes, default=len(compared)),
        ),
        against="; ".join(text for text in against if text),
    )
    return replace(found, units_decide=not any(gaps))


def _words(context: Context, claim: QualitativeClaim, kind: str = "words", **facts: Any) -> str:
    return context.render(context.declared.content["test"][claim.test][kind], **facts)


def _held(
    context: Context,
    claim: QualitativeClaim,
    judged: tuple[Replication, Bindings],
    *,
    gaps: Sequence[str],
    lost: Sequence[Outcome],
    replicates: int,
) -> tuple[Replication, str]:
    """What was judged, or what keeps a conclusion from being asked: settings, lost runs, too few seeds."""
    outcome, facts = judged
    known = dict.fromkeys(gap for gap in gaps if gap)
    if known:
        outcome, why = Replication.NOT_TESTABLE, "; ".join(known)
    elif lost:
        waits = any(run.status is Status.MISSING for run in lost)
        outcome = Replication.NOT_RUN if waits else Replication.NOT_TESTABLE
        why = context.render(context.declared.content["tests"]["lost"], count=len({id(run) for run in lost}))
    elif replicates < LEAST_UNITS:
        outcome, why = Replication.NOT_TESTABLE, too_few(replicates, context.outcomes.unit)
    else:
        why = _words(context, claim, "says", outcome=outcome, **facts)
    return outcome, f"{why[0].upper()}{why[1:]}"


def _judge_no_difference(compared: Sequence[Comparison], direction: str) -> tuple[Replication, Bindings]:
    differing = [
        comparison for comparison in compared if comparison.significant and not comparison.equivalent
    ]
    alike = [comparison for comparison in compared if comparison.equivalent]
    facts = {"shown": differing, "alike": alike, "found": compared}
    if len(alike) == len(compared):
        return Replication.REPLICATED, facts
    return Replication.NOT_REPLICATED if differing else Replication.NOT_TESTABLE, facts


def _judge_difference(compared: Sequence[Comparison], direction: str) -> tuple[Replication, Bindings]:
    fits = [comparison.significant and direction in ("", comparison.direction) for comparison in compared]
    opposite = [
        comparison
        for comparison in compared
        if comparison.significant and direction not in ("", comparison.direction)
    ]
    tests: list[Equivalence | NotTestable] = [comparison.equivalence for comparison in compared]
    alike = [
        comparison
        for comparison, answer, fit in zip(compared, statistics.adjust(tests), fits, strict=True)
        if not (fit or _leans(comparison, direction))
        and isinstance(answer, Equivalence)
        and answer.equivalent
    ]
    facts = {"count": sum(fits), "opposite": opposite, "alike": alike, "found": compared}
    if all(fits):
        return Replication.REPLICATED, facts
    return Replication.NOT_REPLICATED if opposite or alike else Replication.NOT_TESTABLE, facts


def _leans(comparison: Comparison, direction: str) -> bool:
    """Whether a comparison by itself, uncorrected, shows the claimed difference."""
    answer = comparison.difference
    return (
        isinstance(answer, StatisticalTest)
        and answer.p_value <= 1.0 - answer.confidence
        and direction in ("", comparison.direction)
    )


def _needed(context: Context, comparisons: Sequence[Comparison]) -> str:
    """How many seeds would decide, or why that is unknown."""
    undecided = [
        comparison for comparison in comparisons if not comparison.equivalent and not comparison.significant
    ]
    counts = [seeds_needed(comparison, context.confidence) for comparison in undecided or comparisons]
    known = [count for count in counts if count is not None]
    needed = max(known) if len(known) == len(counts) else None
    return context.render(context.declared.content["tests"]["needed"], needed=needed)


def _by_the_paper(context: Context, comparisons: Sequence[Comparison]) -> str:
    """What the paper's own criterion would say of our first seed."""
    tested = [
        comparison.as_printed
        for comparison in comparisons
        if isinstance(comparison.as_printed, StatisticalTest)
    ]
    return context.render(
        context.declared.content["tests"]["by_the_paper"],
        tested=tested,
        least=min((test.smallest_p for test in tested), default=1.0),
        criterion=LEVEL,
        found=sum(test.p_value < LEVEL for test in tested),
    )


# How a metric moves with epsilon: the slope over log10 epsilon within each seed


def _trend_finding(context: Context, claim: QualitativeClaim) -> ReplicationFinding:
    parameters = claim.parameters
    places = [
        (group, variant, metric)
        for group in parameters["groups"]
        for variant in parameters["variants"]
        for metric in parameters["metrics"]
    ]
    answers = statistics.adjust([_trend(context, *place) for place in places])
    gaps = [uncovered(context, group) for group in parameters["groups"]]
    lost = [run for place in places for run in unusable(context, *place)]
    judged = _judge_trend(answers, str(parameters["direction"]))
    replicates = min((answer.n_units for answer in answers), default=0)
    outcome, why = _held(context, claim, judged, gaps=gaps, lost=lost, replicates=replicates)
    details = "; ".join(_describe(place, answer) for place, answer in zip(places, answers, strict=True))
    sentences = [why, f"Slope a factor 10 of epsilon: {details}"]
    return finding_of(claim, outcome, sentences, test=_words(context, claim, family=len(places)), against="")


def _judge_trend(answers: Sequence[Answer], wanted: str) -> tuple[Replication, Bindings]:
    significant = [answer for answer in answers if isinstance(answer, StatisticalTest) and answer.significant]
    facts = {"count": len(significant), "all": len(answers)}
    if any(_side(answer.estimate) != wanted for answer in significant):
        return Replication.NOT_REPLICATED, facts
    return Replication.REPLICATED if len(significant) == len(answers) else Replication.NOT_TESTABLE, facts


def _trend(context: Context, group: str, variant: str, metric: str) -> Answer:
    measured = sample(context, group, variant, metric)
    each = None if measured is None else slopes(measured)
    if each is None:
        why = missing(context, group, variant, values_of(context, group), metric)
        return NotTestable(name="slope", why=why, n_units=0, unit=context.outcomes.unit)
    zeros = Sample(np.zeros(each.values.size), each.units, each.unit)
    return statistics.paired_t(each, zeros, confidence=context.confidence)


def slopes(measured: Sample) -> Sample | None:
    """Each unit's slope against log10 epsilon, averaged over its settings; None where no unit has one.

    Args:
        found: With cells (setting, epsilon).
    """
    grouped: dict[str | int, dict[int, list[tuple[float, float]]]] = {}
    for place, unit in enumerate(measured.units):
        value, epsilon = cast("tuple[int, float]", measured.cells[place])
        point = (float(np.log10(epsilon)), float(measured.values[place]))
        grouped.setdefault(unit, {}).setdefault(value, []).append(point)
    means = {}
    for unit, settings in grouped.items():
        each = [_slope(np.array(points)) for points in settings.values() if len(points) > 1]
        if each:
            means[unit] = float(np.mean(each))
    return Sample(np.array(list(means.values())), tuple(means), measured.unit) if means else None


def _slope(points: FloatArray) -> float:
    """Least squares, shape `(n, 2)` of x and y."""
    x, y = points[:, 0] - points[:, 0].mean(), points[:, 1]
    return float(x @ y / (x @ x))


def _describe(place: tuple[str, str, str], answer: Answer) -> str:
    group, variant, metric = place
    name = f"{METRIC_WORDS[metric]} of {variant}, {group}"
    if isinstance(answer, NotTestable):
        return f"{name}: not testable, {answer.why}"
    return f"{name}: {_estimate(answer)}, p = {number(answer.decisive_p, 3)} (Holm), n = {answer.n_units}"


FINDINGS: Mapping[str, Callable[[Context, QualitativeClaim], ReplicationFinding]] = {
    "no difference": partial(_comparison_finding, _judge_no_difference),
    "difference": partial(_comparison_finding, _judge_difference),
    "trend over epsilon": _trend_finding,
}
"""What our results say of a conclusion, by its test."""


# What the paper prints of a comparison, by its own criterion


def printed_comparison(paper: PublishedPaper, place: Place) -> tuple[str, str, float, float]:
    """Where a comparison is printed, its statistic in words, its p-value, and first less second.

    One setting's is the Wilcoxon test of its table, with the difference of means of Tables 1 or 2; all
    settings together are the t-test of section 4.3 or 4.4.
    """
    grid = GRIDS[place.group]
    if place.value is None:
        section = paper.table(grid.tests)
        t, p = printed(section, (place.metric, place.column), STATISTIC)
        return section.place, f"t = {t.value:g}", p.value, t.value
    table, means = paper.table(grid.details[place.value]), paper.table(grid.means)
    w, p = printed(table, ("Wilcoxon test", place.metric), place.column)
    first, second = (
        printed(means, (str(place.value), MODELS[model]), place.metric)[0]
        for model in (place.first, place.second)
    )
    return short(table), f"W = {w.value:g}", p.value, first.value - second.value


def _against(
    context: Context, paper: PublishedPaper, claim: QualitativeClaim, direction: str, place: Place
) -> str:
    """How the printed numbers of a comparison contradict a conclusion; empty where they do not."""
    table, statistic, p_value, difference = printed_comparison(paper, place)
    if claim.test == "no difference":
        is_wrong, side = p_value < LEVEL, ""
    else:
        side = _side(difference) if direction and difference != 0.0 else direction
        is_wrong = p_value >= LEVEL or side != direction
    if not is_wrong:
        return ""
    facts = {"table": table, "statistic": statistic, "p": p_value, "significant": p_value < LEVEL}
    words = context.declared.content["tests"]["against"]
    return context.render(words, **facts, side=side, direction=direction, place=place)
