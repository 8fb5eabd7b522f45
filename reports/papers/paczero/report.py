"""PACZero, regenerated: its tables beside the printed numbers, both sides of its claim, its conclusions.

Settings of the paper's larger model are left out, for none of our models stands in for it. Two pairs of
printed settings that our study does not tell apart are one condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.core.registry import register
from workbench.reports.papers.paczero.figures import figures
from workbench.reports.papers.paczero.paper import CHECKS, PRINTED, REMARKS, VALUES
from workbench.reports.papers.paczero.runs import DEV, NUMBERS, OTHER_MODEL, SCORE, UNANIMITY, in_words, place
from workbench.reports.papers.paczero.tables import CELLS, ROWS, TABLES, WORDS
from workbench.reports.papers.paczero.uncertainty import chance_p
from workbench.reports.shared.claims import Comparison, comparisons, ends_of
from workbench.reports.shared.conditions import (
    Asked,
    Condition,
    Ends,
    asked_between,
    differences,
    untestable,
)
from workbench.reports.shared.context import Bindings, Context, Own, Place
from workbench.reports.shared.declared import declared
from workbench.reports.shared.findings import listed, parameter
from workbench.reports.shared.numbers import number
from workbench.reports.shared.printed import SLACK, at, centre, stands_for
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import Status, StudyResults
from workbench.studies.report import StudyReport

METRICS = {
    "accuracy": SCORE,
    "f1": SCORE,
    "accuracy or f1": SCORE,
    "dev accuracy": DEV,
    "unanimity": UNANIMITY,
    "nats_used": "nats_used",
}

EXACT = 1e-9
"""Relative rounding error that a sum of charges may have."""

LEVEL = 0.05
"""Of the exact tests of the paper's cells."""


def _metric(claim: QualitativeClaim) -> str:
    name = str(claim.parameters.get("metric", ""))
    if name not in METRICS:
        raise unknown_name(f"metric of claim {claim.id!r}:", name, METRICS)
    return METRICS[name]


def _sample(context: Context, here: Place, metric: str) -> Sample | str:
    return here.why or context.outcomes.complete(here.parts, here.setting, metric)


def _is_awaited(context: Context, here: Place) -> bool:
    return not here.why and context.outcomes.is_awaited(here.parts, here.setting)


def _asked(
    context: Context, claim: QualitativeClaim, chosen: Iterable[Comparison], ends: Ends | None = None
) -> list[Asked]:
    """A number at a place, or at the first less the second, lies between the ends of the declared test."""
    ends, metric = ends or ends_of(claim, context.declared.content["test"][claim.test]), _metric(claim)
    conditions: dict[tuple[Place, ...], Asked] = {}
    for comparison in chosen:
        places = tuple(place(context, at) for at in comparison.places)
        if any(here.why == OTHER_MODEL for here in places) or places in conditions:
            continue
        where = " less ".join(in_words(here.setting) for here in places)
        samples = [_sample(context, here, metric) for here in places]
        lost = [sample for sample in samples if isinstance(sample, str)]
        known = [sample for sample in samples if isinstance(sample, Sample)]
        sample = lost[0] if lost else known[0] if len(known) == 1 else differences(*known)
        not_run = bool(lost) and any(_is_awaited(context, here) for here in places)
        conditions[places] = asked_between(where, sample, ends, context.confidence, not_run=not_run)
    return list(conditions.values())


def _compared(context: Context, claim: QualitativeClaim) -> list[Asked]:
    test = context.declared.content["test"][claim.test]
    return _asked(context, claim, comparisons(claim, test, context.declared))


def _at_chance(context: Context, claim: QualitativeClaim) -> list[Asked]:
    test, chance = context.declared.content["test"][claim.test], parameter(claim, "chance")
    ends = Ends(low=chance - test["margin"], high=chance + test["margin"])
    return _asked(context, claim, comparisons(claim, test, context.declared), ends)


def _along(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Each of the settings that our study has runs of against the next."""
    kept = _present(context, listed(claim, "settings"))
    pairs = pairwise(kept)
    return _asked(context, claim, (Comparison(names={}, places=pair) for pair in pairs))


def _flat(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """All pairs; of settings that ran the same steps in every seed one stands for all.

    At small budgets the noise drowns the sign, and every released bit is the same noise's: such runs are one
    run, whose difference to itself tests nothing.
    """
    distinct: list[Bindings] = []
    for setting in _present(context, listed(claim, "settings")):
        if not any(_same_steps(context, setting, other) for other in distinct):
            distinct.append(setting)
    pairs = combinations(distinct, 2)
    return _asked(context, claim, (Comparison(names={}, places=pair) for pair in pairs))


def _same_steps(context: Context, first: Bindings, second: Bindings) -> bool:
    """Whether two settings have the same losses in every step of every seed."""
    losses = []
    for setting in (first, second):
        here = place(context, setting)
        runs = [] if here.why else context.outcomes.runs(here.parts, here.setting)
        losses.append({run.experiment.seed: run.training_losses for run in runs})
    return losses[0] == losses[1] and all(losses[0].values()) and bool(losses[0])


def _present(context: Context, settings: Sequence[Bindings]) -> Sequence[Bindings]:
    """The settings that our study has runs of; all of them where those are fewer than two."""
    places = [place(context, setting) for setting in settings]
    kept = [
        setting
        for setting, here in zip(settings, places, strict=True)
        if not here.why and context.outcomes.runs(here.parts, here.setting)
    ]
    return kept if len(kept) > 1 else settings


def _budget_kept(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Of every run with a budget in nats: a fact of each realisation, which needs no test."""
    metric = _metric(claim)
    shares = [
        run.metrics[metric] / float(run.experiment.epsilon or math.nan)
        for run in context.outcomes.outcomes
        if run.status is Status.DONE and run.experiment.epsilon is not None and metric in run.metrics
    ]
    if not shares:
        return [Asked(untestable("nats used", "no finished run with a budget tells what it used"))]
    holds = max(shares) <= 1.0 + EXACT
    return [
        Asked(
            Condition(
                where=f"nats used over the budget in the worst of {len(shares)} runs",
                shown=number(max(shares), 6),
                hold_p=0.0 if holds else 1.0,
                break_p=1.0 if holds else 0.0,
                n=len(shares),
            )
        )
    ]


QUESTIONS = {
    **dict.fromkeys(("higher", "within", "like", "above chance"), _compared),
    "at chance": _at_chance,
    "falls": _along,
    "flat": _flat,
    "budget kept": _budget_kept,
}


# The paper's cells, where they are not compared one by one


def setting_named(setting: Mapping[str, object]) -> str:
    """A conclusion's setting in words: `PACZero-MI, FT, 1.3B, SST-2, 0.33 nats`."""
    return declared("paczero").render("{% from 'named' import named %}{{ named(setting) }}", setting=setting)


def _flat_cells(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    values = [stands_for(at(paper, setting["cell"])) for setting in claim.parameters["settings"]]
    span = max(value.lower for value in values) - min(value.upper for value in values)
    middles = [centre(value) for value in values]
    text = f"spans {max(middles) - min(middles):.2f} points"
    allowed = ends_of(claim, {"high": "span"}, rounded="written").high
    yield text if span > allowed else ""


def _chance_cells(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    settings, chance = claim.parameters["settings"], parameter(claim, "chance") / 100.0
    for setting in settings:
        value = at(paper, setting["cell"]).value
        p_value = chance_p(value, chance)
        text = f"{setting_named(setting)}: {value:g} %, p = {p_value:.2g}"
        yield text if p_value * len(settings) < LEVEL else ""


def _spent_cells(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    for setting in claim.parameters["settings"]:
        spent = stands_for(at(paper, setting["cell"]))
        text = f"{setting_named(setting)}: {centre(spent):g} nats"
        yield text if spent.lower > setting["nats"] * (1.0 + SLACK) else ""


AGAINST = {"flat": _flat_cells, "at chance": _chance_cells, "budget kept": _spent_cells}


PACZERO = Own(
    paper="paczero",
    numbers=NUMBERS,
    printed=PRINTED,
    rows=ROWS,
    cells=CELLS,
    tables=TABLES,
    words=WORDS,
    questions=QUESTIONS,
    against=AGAINST,
    checks=CHECKS,
    values=VALUES,
    remarks=REMARKS,
    figures=figures,
)


@register("study_report", "paczero")
def paczero(
    *, results: StudyResults, published: PublishedPaper | None, confidence: float = 0.95
) -> StudyReport:
    """Tables, figures and conclusions of PACZero over seeds, and both sides of its claim."""
    return study_report(PACZERO, results=results, published=published, confidence=confidence)
