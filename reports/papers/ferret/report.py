"""FERRET's conclusions, each a list of conditions that it says to hold, asked of our runs.

`[test]` of `report.toml` says over which settings a kind of conclusion goes (`each`) and what it says of a
comparison (`ask`). Our runs answer by one-sided t tests over models, and so do the paper's five models as its
Tables 12 to 14 print them; what its other cells say stands in `paper.py`. A condition has two
p-values: of "it does not hold", which is small where it is shown to hold, and of "it holds, by a margin at
least", which is small where it is shown not to. Perplexities and times are compared by ratios of each unit.
AUCs of all models of a seed share the luck of one draw of members, whose error is added to that over units.
"At chance" and "matching" are shown by equivalence alone, never by a test that found no difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.interfaces import FloatArray
from workbench.reports.papers.ferret.figures import figures, final_losses
from workbench.reports.papers.ferret.paper import AGAINST, CHECKS, REMARKS
from workbench.reports.papers.ferret.places import (
    AUC,
    CAPPED,
    COMPARISON,
    DITHER,
    HEAD_ROOM,
    METRIC_WORDS,
    MODELS,
    NUMBERS,
    PAPER_MODELS,
    POSITIVE,
    SECONDS,
    TEST,
    Comparison,
    Drawn,
    asks,
    check,
    comparisons,
    direction,
    draw_error,
    is_complete,
    logarithm,
    missing,
    model_number,
    named,
    place_of,
    sample,
)
from workbench.reports.papers.ferret.places import models as run_models
from workbench.reports.papers.ferret.tables import CELLS, COLUMNS, ROWS, TABLES, WORDS
from workbench.reports.shared.claims import contradictions
from workbench.reports.shared.conditions import LEAST_FOR_SPREAD, Condition, untestable
from workbench.reports.shared.context import Context, PaperFunctions
from workbench.reports.shared.declared import declared
from workbench.reports.shared.findings import decided, described, finding_of, listed
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import METHOD, Setting
from workbench.reports.shared.paper_cells import LEAST_UNITS, too_few
from workbench.reports.shared.statistics import Sample, matched
from workbench.reports.shared.statistics.sample import spreads
from workbench.reports.shared.statistics.student import below_zero_p, ends_with_shared, pitman_morgan
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import Status, StudyResults
from workbench.studies.report import Replication, ReplicationFinding, StudyReport

MARGIN_SHARE = 0.05
"""A perplexity or time counts as not lower where the difference is shown to be below this share."""

MARGIN_AREA = 0.01
"""Likewise an AUC or advantage."""

FAR_SIDES = {SECONDS: ("faster than claimed", "slower than claimed")}
"""How a metric lies below and above what is claimed, where it has words of its own."""

EXPECTED = ("like", "lower", "higher")
"""What a conclusion says of a dithered loss."""

MOST_SHOWN = 8
"""Conditions of a finding that are printed in full."""

NO_SCORES = "a run has no scores, from which the luck of the draw of members is known"
"""Why an AUC alone decides nothing."""


# What one condition says of samples

Pair = tuple[Sample, Sample]


@dataclass(frozen=True)
class Scale:
    """Whether differences are of logarithms, and how they read."""

    logs: bool

    @property
    def margin(self) -> float:
        return math.log1p(MARGIN_SHARE) if self.logs else MARGIN_AREA

    def words(self, mean: float, ends: tuple[float, float]) -> str:
        values = [mean, *ends]
        if self.logs:
            values = [math.exp(min(max(value, -700.0), 700.0)) for value in values]
        mean_words, low, high = (number(value, 3) for value in values)
        return f"{'ratio' if self.logs else 'difference'} {mean_words} [{low}, {high}]"


def lower(where: str, metric: str, pair: Pair, confidence: float) -> Condition:
    """The first is lower than the second, by ratios if the metric is one of `POSITIVE`."""
    sides = _paired(where, pair)
    if isinstance(sides, Condition):
        return sides
    first, second = sides
    logs = metric in POSITIVE
    if logs and min(first.min(), second.min()) <= 0.0:
        return untestable(where, "a value is not positive", first.size)
    differences = np.log(first) - np.log(second) if logs else first - second
    luck = draw_error([(pair[0], 1.0), (pair[1], -1.0)])
    return below(where, differences, Scale(logs=logs), unit=pair[0].unit, confidence=confidence, luck=luck)


def below(
    where: str, differences: FloatArray, scale: Scale, *, unit: str, confidence: float, luck: float = 0.0
) -> Condition:
    """The mean of differences is below zero; it is shown not to be where it is above minus the margin.

    Args:
        luck: Standard error of the mean from what all units share.
    """
    if differences.size < LEAST_UNITS:
        return untestable(where, too_few(differences.size, unit), differences.size)
    if not spreads(differences, max(float(np.max(np.abs(differences))), 1.0)):
        return untestable(
            where, f"all {unit}s differ by the same {number(float(differences[0]))}", differences.size
        )
    return Condition(
        where=where,
        shown=scale.words(float(differences.mean()), ends_with_shared(differences, confidence, luck)),
        hold_p=below_zero_p(differences, luck),
        break_p=below_zero_p(-differences - scale.margin, luck),
        n=differences.size,
    )


def trend(
    where: str,
    metric: str,
    samples: Sequence[Sample],
    x: Sequence[float],
    *,
    direction: str,
    confidence: float,
) -> Condition:
    """A metric rises (or falls) along x: the least-squares change of each unit over the range of log x.

    Args:
        metric: On a logarithmic scale if it is one of `POSITIVE`.
        x: Of each sample: positive, ascending.
        direction: `"rises"` or `"falls"`.
    """
    means, unit, scale = [mean.by_unit() for mean in samples], samples[0].unit, Scale(logs=metric in POSITIVE)
    shared = [name for name in means[0].unit_names if all(name in mean.unit_names for mean in means)]
    table = np.array([[float(mean.values[mean.units.index(name)]) for mean in means] for name in shared])
    if not shared or (scale.logs and table.min() <= 0.0):
        return untestable(where, f"no {unit} has all values" if not shared else "a value is not positive")
    spots = np.log(np.array(x)) - np.mean(np.log(np.array(x)))
    weights = spots / float(spots @ spots) * float(np.ptp(spots))
    changes = (np.log(table) if scale.logs else table) @ weights
    luck = draw_error(list(zip(samples, map(float, weights), strict=True)))
    signed = -changes if direction == "rises" else changes
    condition = below(where, signed, scale, unit=unit, confidence=confidence, luck=luck)
    words = scale.words(float(changes.mean()), ends_with_shared(changes, confidence, luck))
    return condition if condition.why else replace(condition, shown=f"change over the range: {words}")


def ratio(where: str, metric: str, pair: Pair, between: tuple[float, float]) -> Condition:
    """The ratio of the means over units, first over second, lies in an interval (Fieller's method).

    Mean(first) / mean(second) > r exactly where the mean of first - r second is positive, which a paired t
    test decides. A lower end of zero or less is no condition.
    """
    sides = _paired(where, pair)
    if isinstance(sides, Condition):
        return sides
    (first, second), (low, high) = sides, between
    above, under = ((first - end * second, draw_error([(pair[0], 1.0), (pair[1], -end)])) for end in between)
    claimed = f"{number(low)} to {number(high)}" if low > 0.0 else f"at most {number(high)}"
    each = first / second
    words = (
        f"ratio of means {number(float(first.mean() / second.mean()), 3)} (claimed {claimed}; of each "
        f"{pair[0].unit} {number(float(each.min()), 3)} to {number(float(each.max()), 3)})"
    )
    return _inside(where, metric, [above] if low > 0.0 else [], [under], words=words, unit=pair[0].unit)


def inside(
    where: str, metric: str, sample: Sample, between: tuple[float, float], confidence: float
) -> Condition:
    """The mean over units lies in an interval: equivalence, by two one-sided t tests."""
    values = sample.by_unit().values
    if values.size < LEAST_UNITS:
        return untestable(where, too_few(values.size, sample.unit), values.size)
    luck = draw_error([(sample, 1.0)])
    mean, low, high = (number(end, 4) for end in (values.mean(), *ends_with_shared(values, confidence, luck)))
    words = f"mean {mean} [{low}, {high}] (claimed {number(between[0])} to {number(between[1])})"
    above, under = ([(values - end, luck)] for end in between)
    return _inside(where, metric, above, under, words=words, unit=sample.unit)


Side = tuple[FloatArray, float]
"""Values of each unit, and the standard error of their mean from what all units share."""


def _inside(
    where: str, metric: str, above: Sequence[Side], under: Sequence[Side], *, words: str, unit: str
) -> Condition:
    """Every mean of `above` is positive and every mean of `under` negative."""
    sides = [*((-values, luck) for values, luck in above), *under]
    size = sides[0][0].size
    if not all(spreads(values, max(float(np.max(np.abs(values))), 1e-300)) for values, _ in sides):
        return untestable(where, f"all {unit}s gave the same value", size)
    broken = [below_zero_p(-values, luck) for values, luck in sides]
    far = FAR_SIDES.get(metric, ("below what is claimed", "above what is claimed"))
    return Condition(
        where=where,
        shown=words,
        hold_p=max(below_zero_p(values, luck) for values, luck in sides),
        break_p=min(1.0, len(sides) * min(broken)),
        n=size,
        otherwise=far[0] if broken.index(min(broken)) < len(above) else far[1],
    )


def less_spread(where: str, metric: str, pair: Pair) -> Condition:
    """The units differ less on the first side than on the second (Pitman and Morgan's test, 1939)."""
    sides, unit, logs = _paired(where, pair), pair[0].unit, metric in POSITIVE
    if isinstance(sides, Condition):
        return sides
    first, second = sides
    if first.size < LEAST_FOR_SPREAD:
        return untestable(
            where, f"two variances need at least {LEAST_FOR_SPREAD} {unit}s, got {first.size}", first.size
        )
    if logs:
        if min(first.min(), second.min()) <= 0.0:
            return untestable(where, "a value is not positive", first.size)
        first, second = np.log(first), np.log(second)
    if not (spreads(first + second) and spreads(first - second)):
        return untestable(where, f"the {unit}s do not differ", first.size)
    widths = " against ".join(number(float(side.std(ddof=1)), 3) for side in (first, second))
    hold_p, break_p = pitman_morgan(first, second)
    return Condition(
        where=where,
        shown=f"SD{' of the logarithm' if logs else ''} over {unit}s {widths}",
        hold_p=hold_p,
        break_p=break_p,
        n=first.size,
    )


def not_monotone(
    where: str, metric: str, samples: Sequence[Sample], x: Sequence[float], confidence: float
) -> Condition:
    """Along x there is a rise and a fall; shown by one of each, Bonferroni over all pairs of places.

    It is shown not to be so where every neighbouring step is shown to rise, or every one to fall.
    """
    places = [(i, j) for i in range(len(samples)) for j in range(i + 1, len(samples))]
    steps = {
        (i, j): [lower("", metric, (samples[a], samples[b]), confidence) for a, b in ((i, j), (j, i))]
        for i, j in places
    }
    broken = next((side for pair in steps.values() for side in pair if side.why), None)
    if broken is not None:
        return untestable(where, broken.why, broken.n)
    neighbours = [(i, i + 1) for i in range(len(samples) - 1)]
    words, p_values, only = [], [], []
    for side, name in enumerate(("rise", "fall")):
        strongest = min(steps, key=lambda place: steps[place][side].hold_p)
        p_values.append(min(1.0, len(places) * steps[strongest][side].hold_p))
        start, end = (number(x[place]) for place in strongest)
        words.append(f"strongest {name} {start} to {end} (p = {number(p_values[-1], 2)})")
        only.append(max(steps[place][side].hold_p for place in neighbours))
    return Condition(
        where=where,
        shown=", ".join(words),
        hold_p=max(p_values),
        break_p=min(1.0, 2.0 * min(only)),
        n=min(pair[0].n for pair in steps.values()),
    )


def _paired(where: str, pair: Pair) -> tuple[FloatArray, FloatArray] | Condition:
    """Both sides' unit means of the units that they share."""
    matching, unit = matched(*pair), pair[0].unit
    if matching.first is None or matching.second is None:
        return untestable(where, f"no {unit} has both sides")
    first, second = matching.first.by_unit().values, matching.second.by_unit().values
    if first.size < LEAST_UNITS:
        return untestable(where, too_few(first.size, unit), first.size)
    return first, second


# Asked of samples

Source = Callable[[Setting, str], Sample | str]
"""A metric at a setting by unit, or the reason why there is none."""

Ask = Callable[[str, str, Sequence[Sample], Sequence[float]], Condition]
"""A condition's words, metric, samples, and the x of each."""


def conditions(
    claim: QualitativeClaim, test: Mapping[str, Any], source: Source, confidence: float
) -> list[Condition]:
    """The conditions of a conclusion, all of which it says to hold, on samples of any source.

    Raises:
        InputError: a parameter is missing or unknown.
    """
    made = []
    models = f" of {', '.join(claim.parameters['models'])}" if "models" in claim.parameters else ""
    for metric, name in asks(claim, test):
        ask = _ask(claim, name, confidence)
        for comparison in comparisons(claim, test["each"]):
            settings = comparison.settings[:1] if comparison.x else comparison.settings
            where = f"{METRIC_WORDS.get(metric, metric)}{models}, {' against '.join(map(named, settings))}"
            if comparison.x:
                where += f" to {test['each']} {comparison.x[-1]:g}"
            samples, why = _samples(comparison, source, metric)
            made.append(untestable(where, why) if why else ask(where, metric, samples, comparison.x))
    return made


def _samples(comparison: Comparison, source: Source, metric: str) -> tuple[list[Sample], str]:
    """The samples that are compared, and why one of them is missing; empty where none is."""
    samples: list[Sample] = []
    why = ""
    for setting in comparison.settings:
        known = source(setting, metric)
        if isinstance(known, Sample):
            samples.append(known)
            continue
        why = why or (known if len(comparison.settings) == 1 else f"{named(setting)}: {known}")
        if not comparison.x:
            break
    return samples, why


def _ask(claim: QualitativeClaim, name: str, confidence: float) -> Ask:
    """What a conclusion says of a comparison."""
    if name == "lower":
        return lambda where, metric, some, x: lower(where, metric, (some[0], some[1]), confidence)
    if name == "spread":
        return lambda where, metric, some, x: less_spread(where, metric, (some[0], some[1]))
    if name == "not monotone":
        return lambda where, metric, some, x: not_monotone(where, metric, some, x, confidence)
    if name == "trend":
        return partial(trend, direction=direction(claim), confidence=confidence)
    low, high = map(float, listed(claim, "between"))
    if name == "ratio":
        return lambda where, metric, some, x: ratio(where, metric, (some[0], some[1]), (low, high))
    return lambda where, metric, some, x: inside(where, metric, some[0], (low, high), confidence)


class OurRuns:
    """A study's runs as a source of samples for one conclusion; it remembers what it had to take.

    A setting with a failed or missing run gives none: the mean of the rest is of other models.
    """

    def __init__(self, context: Context, models: Sequence[str] | None) -> None:
        """Samples over all models, or of the paper's names of single ones by seed."""
        self._context, self._models = context, models
        self.stand_ins: dict[str, None] = {}
        """Settings above their ceiling for which runs at p = 1 were taken."""
        self.is_awaited = False
        """Whether a run of a setting that was asked for is not made yet."""

    def __call__(self, setting: Setting, metric: str) -> Sample | str:
        context, setting = self._context, self._at_one(setting)
        part = COMPARISON if context.outcomes.runs(COMPARISON, setting) else HEAD_ROOM
        runs = context.outcomes.runs(part, setting)
        ours = None
        if self._models is not None:
            ours = [name for name in run_models(context) if MODELS.get(name) in self._models]
        self.is_awaited |= any(
            run.status is Status.MISSING and (ours is None or run.experiment.model in ours) for run in runs
        )
        measured = sample(context, setting, metric, part=part, among=ours)
        if ours is None:
            if measured is None or not is_complete(context, setting, metric, part):
                return self._lost(setting, metric, part)
            return NO_SCORES if metric == AUC and not isinstance(measured, Drawn) else measured
        if measured is None:
            return missing(context, setting, metric, part=part, model=ours[0] if ours else None)
        seeds = tuple(int(str(cell)) for cell in measured.cells)
        if isinstance(measured, Drawn):
            return Drawn(measured.values, seeds, "seed", placements=measured.placements)
        return NO_SCORES if metric == AUC else Sample(measured.values, seeds, "seed")

    def _at_one(self, setting: Setting) -> Setting:
        """The setting, or that of the runs at p = 1 where its own budget is above the ceiling."""
        capped = setting.but(**{CAPPED: setting.get(METHOD), METHOD: None})
        runs = self._context.outcomes.runs(COMPARISON, capped)
        if self._context.outcomes.runs(COMPARISON, setting) or not runs:
            return setting
        self.stand_ins[named(setting)] = None
        return setting.but(**{METHOD: runs[0].experiment.variant})

    def _lost(self, setting: Setting, metric: str, part: str) -> str:
        runs = self._context.outcomes.runs(part, setting)
        lost = [run for run in runs if run.status is not Status.DONE]
        if lost and len(lost) < len(runs):
            first = next((run.error for run in lost if run.error), "not run yet")
            return f"{len(lost)} of {len(runs)} runs are lost ({first})"
        return missing(self._context, setting, metric, part=part)


def printed_models(paper: PublishedPaper, models: Sequence[str] | None) -> Source:
    """The paper's own models, as its tables print them; those that cannot be read are left out."""

    def source(setting: Setting, metric: str) -> Sample | str:
        """The paper's numbers by model, or a reason why there are none."""
        names = PAPER_MODELS if models is None else models
        numbers = {name: model_number(paper, metric, place_of(setting), name) for name in names}
        known = {name: value for name, value in numbers.items() if not math.isnan(value)}
        if not known:
            return "not printed by model, or not readable"
        return Sample(np.array(list(known.values())), tuple(known), "model")

    return source


def _dithered(context: Context, claim: QualitativeClaim) -> list[Condition]:
    """The conditions of a conclusion about Figure 5.

    Raises:
        InputError: a parameter is missing or unknown.
    """
    sigmas, expected = listed(claim, "sigmas"), str(listed(claim, "expected"))
    if expected not in EXPECTED:
        raise unknown_name(f"expected of claim {claim.id!r}:", expected, EXPECTED)
    base, made = final_losses(context, 0.0), []
    for sigma in map(float, sigmas):
        where, loss = f"final loss at σ = {sigma:g} against none", final_losses(context, sigma)
        if loss is None or base is None:
            made.append(untestable(where, "runs are missing, failed, or not finite"))
        elif expected == "like":
            made.append(_like(where, (loss, base), context.confidence))
        else:
            pair = (loss, base) if expected == "lower" else (base, loss)
            made.append(lower(where, TEST, pair, context.confidence))
    return made


def _like(where: str, pair: Pair, confidence: float) -> Condition:
    """The geometric mean of the seeds' ratios is one, within the margin."""
    matching = matched(logarithm(pair[0]), logarithm(pair[1]))
    if matching.first is None or matching.second is None:
        return untestable(where, "no seed has both sides")
    ends = math.log(1.0 / (1.0 + MARGIN_SHARE)), math.log(1.0 + MARGIN_SHARE)
    differences = Sample(matching.first.values - matching.second.values, matching.first.units, "seed")
    return inside(f"{where} (log ratio)", "", differences, ends, confidence)


# Findings


def finding(context: Context, claim: QualitativeClaim) -> ReplicationFinding:
    """Test a conclusion of the paper on our results.

    Raises:
        InputError: a parameter of it is missing or unknown.
    """
    test, paper = context.declared.content["test"][claim.test], cast(PublishedPaper, context.paper)
    models = claim.parameters.get("models")
    if "ask" in test:
        ours = OurRuns(context, models)
        ours_tested = conditions(claim, test, ours, context.confidence)
        printed = conditions(claim, test, printed_models(paper, models), context.confidence)
        is_awaited, theirs = ours.is_awaited, _by_the_paper(printed, context.confidence)
        if ours.stand_ins:
            theirs = f"Above the ceiling, so its runs at p = 1: {'; '.join(ours.stand_ins)}. {theirs}"
    else:
        ours_tested, theirs = _dithered(context, claim), ""
        is_awaited = any(run.status is Status.MISSING for run in context.outcomes.part(DITHER))
    outcome, why = decided(ours_tested, context.confidence)
    if is_awaited and outcome is Replication.NOT_TESTABLE:
        outcome = Replication.NOT_RUN
    tested, reasons, left = described(ours_tested, MOST_SHOWN, lambda why: why.rpartition(": ")[2])
    words = context.render(
        test["words"],
        units="seeds of one model" if models else f"{context.outcomes.unit}s" if "ask" in test else "seeds",
        share=f"{100 * MARGIN_SHARE:g} %",
        area=MARGIN_AREA,
        count=len(ours_tested),
        is_area="ask" in test and any(metric == AUC for metric, _ in asks(claim, test)),
    )
    return finding_of(
        claim,
        outcome,
        [
            f"{why[0].upper()}{why[1:]}",
            tested,
            reasons + (f"; and {left} other reasons" if left else ""),
            theirs,
        ],
        test=words.strip(),
        against=contradictions(context.functions, context.declared, paper, claim),
    )


def _by_the_paper(theirs: Sequence[Condition], confidence: float) -> str:
    """What the same tests say of the paper's own models."""
    if all(condition.why for condition in theirs):
        return f"The same test on the paper's own models: not testable, {theirs[0].why}"
    outcome, why = decided(theirs, confidence)
    worst = max(theirs, key=lambda condition: (condition.hold_p, not condition.why))
    return (
        "The same test on the paper's own models (its Tables 12 to 14, as far as readable) would say: "
        f"{outcome.value} ({why}; least shown: {worst.describe()})"
    )


FINDINGS = dict.fromkeys(declared("ferret").content["test"], finding)


FERRET = PaperFunctions(
    paper="ferret",
    numbers=NUMBERS,
    rows=ROWS,
    columns=COLUMNS,
    cells=CELLS,
    tables=TABLES,
    words=WORDS,
    findings=FINDINGS,
    against=AGAINST,
    checks=CHECKS,
    remarks=REMARKS,
    figures=figures,
    check=check,
)


@register("study_report", "ferret")
def ferret(
    *,
    results: StudyResults,
    published: PublishedPaper | None,
    confidence: float = 0.95,
    only_findings: bool = False,
) -> StudyReport:
    """Tables, figures and conclusions of FERRET over models, and its claim judged in both currencies."""
    return study_report(
        FERRET, results=results, published=published, confidence=confidence, only_findings=only_findings
    )
