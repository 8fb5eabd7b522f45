"""FERRET's conclusions, held to a study's results by stated tests over models.

A conclusion is a list of conditions that it says to hold, all of them. It is replicated where every one is
shown (each by a one-sided test at the level; an intersection needs no correction), not replicated where one
is shown not to hold (Holm's correction over all of its conditions) without being shown to hold. Else it is
not run where runs that it asks for are missing, and not testable at our scale where none is. "At chance" and
"matching" are shown by equivalence alone, never by a test that found no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.papers.ferret.cells import Context
from workbench.reports.papers.ferret.conditions import MARGIN_AREA, MARGIN_SHARE, Condition
from workbench.reports.papers.ferret.dither import dither_conditions
from workbench.reports.papers.ferret.draws import Drawn
from workbench.reports.papers.ferret.layout import AUC, COMPARISON, DITHER, HEAD_ROOM, MODELS, Setting
from workbench.reports.papers.ferret.paper_claims import contradictions
from workbench.reports.papers.ferret.printed import PrintedRuns
from workbench.reports.papers.ferret.questions import DITHER_TEST, asked
from workbench.reports.papers.ferret.samples import UNIT, Measured
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Replication, ReplicationFinding

CAPPED = " (capped)"
"""Ending of the name under which a study runs a variant at p = 1 where its budget is above the ceiling."""

MOST_SHOWN = 8
"""Conditions of a finding that are printed in full."""

NO_SCORES = "a run has no scores, from which the luck of the draw of members is known"
"""Why an AUC alone decides nothing."""

MOST_REASONS = 3
"""Reasons why others cannot be tested that are printed."""


class OurRuns:
    """A study's runs as a source of samples."""

    def __init__(self, measured: Measured) -> None:
        """Keep the outcomes."""
        self._measured = measured
        self.stand_ins: dict[str, None] = {}
        """Settings above their ceiling for which runs at p = 1 were taken."""
        self.not_run: dict[str, None] = {}
        """Settings that were asked for and some of whose runs are not made yet."""

    def sample(self, setting: Setting, metric: str, models: Sequence[str] | None) -> Sample | str:
        """A metric by model, or of one model by seed; the reason where a run is lost.

        A setting with a failed or missing run gives none: the mean of the rest is of other models.
        """
        measured = self._measured
        setting = self._capped(setting)
        group = COMPARISON if measured.runs(setting) else HEAD_ROOM
        ours = [name for name, theirs in MODELS.items() if theirs in (models or ())]
        if _not_run(measured.runs(setting, group), None if models is None else ours):
            self.not_run[str(setting)] = None
        if models is None:
            if not measured.complete(setting, metric, group=group):
                return _lost(measured, setting, metric, group)
            found = measured.sample(setting, metric, group=group)
            if found is None:
                return _lost(measured, setting, metric, group)
            return NO_SCORES if metric == AUC and not isinstance(found, Drawn) else found
        chosen = measured.sample(setting, metric, group=group, models=ours)
        if chosen is None:
            return measured.missing(setting, metric, group=group, model=ours[0] if ours else None)
        seeds = tuple(int(str(cell)) for cell in chosen.cells)
        if isinstance(chosen, Drawn):
            return Drawn(chosen.values, seeds, "seed", placements=chosen.placements)
        return NO_SCORES if metric == AUC else Sample(chosen.values, seeds, "seed")

    def _capped(self, setting: Setting) -> Setting:
        """The setting, or that of the runs at p = 1 where its own budget is above the ceiling."""
        capped = Setting(variant=f"{setting.variant}{CAPPED}", epochs=setting.epochs, epsilon=setting.epsilon)
        if self._measured.runs(setting) or not self._measured.runs(capped):
            return setting
        self.stand_ins[str(setting)] = None
        return capped


def _not_run(runs: Sequence[Outcome], models: Sequence[str] | None = None) -> bool:
    """Whether a run (of one of these models) is not made yet."""
    wanted = [one for one in runs if models is None or one.experiment.model in models]
    return any(one.status is Status.MISSING for one in wanted)


def _lost(measured: Measured, setting: Setting, metric: str, group: str) -> str:
    runs = measured.runs(setting, group)
    lost = [one for one in runs if one.status is not Status.DONE]
    if runs and lost and len(lost) < len(runs):
        first = next((one.error for one in lost if one.error), "not run yet")
        return f"{len(lost)} of {len(runs)} runs are lost ({first})"
    return measured.missing(setting, metric, group=group)


def findings(context: Context, paper: PublishedPaper) -> list[ReplicationFinding]:
    """What our results say of each of the paper's conclusions, in its order.

    Args:
        context: Of the report.
        paper: The conclusions and the printed numbers.

    Raises:
        InputError: a conclusion names an unknown test, or lacks a parameter.
    """
    printed, ours = PrintedRuns(paper), OurRuns(context.measured)
    found = []
    for claim in paper.claims:
        if claim.test not in WORDS:
            raise unknown_name(f"test of claim {claim.id!r}:", claim.test, WORDS)
        if claim.test == DITHER_TEST:
            conditions, beside = dither_conditions(context, claim), ""
            not_run = _not_run(context.measured.by_group[DITHER])
        else:
            ours.stand_ins.clear()
            ours.not_run.clear()
            conditions = asked(claim, ours, context.confidence)
            not_run = bool(ours.not_run)
            beside = _by_the_paper(claim, printed, context.confidence)
            if ours.stand_ins:
                beside = f"Above the ceiling, so its runs at p = 1: {'; '.join(ours.stand_ins)}. {beside}"
        made = _finding(context, claim, conditions, beside, contradictions(paper, claim))
        if not_run and made.outcome is Replication.NOT_TESTABLE:
            made = replace(made, outcome=Replication.NOT_RUN)
        found.append(made)
    return found


def decided(conditions: Sequence[Condition], confidence: float) -> tuple[Replication, str]:
    """What conditions say together; see the module.

    Args:
        conditions: All of a conclusion, at least one.
        confidence: 1 - confidence is the level.
    """
    level = 1.0 - confidence
    total = len(conditions)
    shown = [not one.why and one.hold_p <= level for one in conditions]
    broken = [
        one
        for one, p_value, holds in zip(
            conditions, _holm([one.break_p for one in conditions]), shown, strict=True
        )
        if not holds and not one.why and p_value <= level
    ]
    if broken:
        words = _counted(len(broken), total, "shown not to hold")
        return Replication.NOT_REPLICATED, words + _sides([one.otherwise for one in broken])
    if all(shown):
        return Replication.REPLICATED, "every condition is shown" if total > 1 else "it is shown"
    lost = sum(bool(one.why) for one in conditions)
    if lost == total:
        return Replication.NOT_TESTABLE, "nothing of it can be tested"
    rest = f"; {lost} cannot be tested" if lost else ""
    if total == 1:
        return Replication.NOT_TESTABLE, "it is neither shown nor shown not to hold"
    words = _counted(sum(shown), total, "shown")
    return Replication.NOT_TESTABLE, f"{words}, and none is shown not to hold{rest}"


def _counted(count: int, total: int, what: str) -> str:
    if total == 1:
        return f"it is {what}"
    return f"{count} of {total} conditions {'is' if count == 1 else 'are'} {what}"


def _sides(found: Sequence[str]) -> str:
    """On which side of what is claimed conditions lie: `": faster than claimed"`, or how many on each."""
    counts = Counter(side for side in found if side)
    if len(counts) == 1 and counts.total() == len(found):
        return f": {'all ' if len(found) > 1 else ''}{next(iter(counts))}"
    return f": {', '.join(f'{count} {side}' for side, count in counts.items())}" if counts else ""


def _holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the k-th smallest of n times n + 1 - k, never below those before it."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _finding(
    context: Context, claim: QualitativeClaim, conditions: Sequence[Condition], beside: str, against: str
) -> ReplicationFinding:
    outcome, why = decided(conditions, context.confidence)
    tested = sorted((one for one in conditions if not one.why), key=lambda one: (one.break_p, -one.hold_p))
    more = f"; and {len(tested) - MOST_SHOWN} more" if len(tested) > MOST_SHOWN else ""
    parts = [
        f"{why[0].upper()}{why[1:]}",
        "; ".join(one.describe() for one in tested[:MOST_SHOWN]) + more,
        _reasons([one for one in conditions if one.why]),
        beside,
    ]
    single = claim.parameters.get("models")
    units = "seeds of one model" if single else "seeds" if claim.test == DITHER_TEST else f"{UNIT}s"
    metrics = (claim.parameters.get("metric"), *claim.parameters.get("metrics", ()))
    draw = _DRAW.format(units=units) if AUC in metrics else ""
    level = f"{1.0 - context.confidence:.2g}"
    return ReplicationFinding(
        id=claim.id,
        place=claim.place,
        statement=claim.statement,
        tables=claim.tables,
        outcome=outcome,
        test=WORDS[claim.test].format(
            units=units,
            level=level,
            share=f"{100 * MARGIN_SHARE:g} %",
            area=f"{MARGIN_AREA:g}",
            rest=draw + _REST.format(level=level, count=len(conditions)),
        ),
        figures=". ".join(part for part in parts if part) + ".",
        paper_contradicts=against,
    )


def _reasons(conditions: Sequence[Condition]) -> str:
    """Why conditions cannot be tested, each reason with the first of its conditions; empty where none."""
    found: dict[str, list[Condition]] = {}
    for one in conditions:
        found.setdefault(one.why.rpartition(": ")[2], []).append(one)
    words = [
        f"{some[0].describe()}{f' (and {len(some) - 1} more)' if len(some) > 1 else ''}"
        for some in list(found.values())[:MOST_REASONS]
    ]
    rest = f"; and {len(found) - MOST_REASONS} other reasons" if len(found) > MOST_REASONS else ""
    return "; ".join(words) + rest


def _by_the_paper(claim: QualitativeClaim, printed: PrintedRuns, confidence: float) -> str:
    """What the same tests say of the paper's own models."""
    conditions = asked(claim, printed, confidence)
    if all(one.why for one in conditions):
        return f"The same test on the paper's own models: not testable, {conditions[0].why}"
    outcome, why = decided(conditions, confidence)
    worst = max(conditions, key=lambda one: (one.hold_p, not one.why))
    return (
        "The same test on the paper's own models (its Tables 12 to 14, as far as readable) would say: "
        f"{outcome.value} ({why}; least shown: {worst.describe()})"
    )


_DRAW = (
    "ROC AUCs: to the error over {units} is added that of the draw of members, which all models of a seed "
    "share (DeLong; not known for the paper's own). "
)
_REST = (
    "Replicated where each of the {count} conditions is shown at level {level}; not replicated where one "
    "is shown not to hold (Holm over the {count}) and not shown to hold."
)
_LOWER = (
    "One-sided paired t tests over {units} that the first is lower (perplexities and times: by the log of "
    "the ratio); shown not to hold where any difference that it claims is shown to be below {share} (AUC: "
    "{area}). {rest}"
)
_RATIO = (
    "Ratio of the means over {units}, as the paper divides them: two one-sided paired t tests of first "
    "less end times second, that it lies within the claimed ends (an equivalence test) or outside. {rest}"
)
WORDS = {
    "lower": _LOWER,
    "ordering": _LOWER,
    "ratio": _RATIO,
    "between": (
        "Equivalence: two one-sided t tests over {units} that the mean lies within the claimed ends, or "
        "outside. {rest}"
    ),
    "trade-off": f"First metric: {_RATIO.removesuffix(' {rest}')} Second: {_LOWER}",
    "trend over epsilon": (
        "One-sided t tests over {units} of the least-squares change along log epsilon; shown not to hold "
        "where a change in the claimed direction is shown to be below {share} (AUC: {area}). {rest}"
    ),
    "trend over epochs": (
        "One-sided t tests over {units} of the least-squares change along the log of the epochs; shown not "
        "to hold where a change in the claimed direction is shown to be below {share} (AUC: {area}). {rest}"
    ),
    "not monotone": (
        "A rise and a fall between epsilons are both shown by one-sided paired t tests over {units} "
        "(Bonferroni over all pairs); shown not to hold where every neighbouring step rises, or every one "
        "falls. {rest}"
    ),
    "spread": (
        "Pitman-Morgan test over {units} that the log perplexities have a smaller variance on the first "
        "side, or a larger one. {rest}"
    ),
    DITHER_TEST: (
        "Paired t tests over {units} of the log of the final loss against no dither (mean over the last "
        "tenth of the steps): within {share} by two one-sided tests, or lower, or higher. {rest}"
    ),
}
"""The test of each kind of conclusion in words; also the kinds that are known."""
