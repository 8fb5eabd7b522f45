"""Shuffled DPSGD, regenerated: Tables I to VIII and Figs. 2 to 4 beside the printed numbers.

Beside the paper's columns stands the one that it lacks: DP-SGD with the noise of Theorem 6, and the epsilon
that a certified accountant gives for it. Three adversaries share one table, and each of the paper's
conclusions is held to a stated test. What is said of Figs. 3 and 4 follows from the paper's own accountant,
and is seen to hold or not; Fig. 2's distributions are drawn, and its conditions have p-values by the draws.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.registry import register
from workbench.reports.papers.shuffled_dp_sgd import audit, formulas, paper, tables
from workbench.reports.papers.shuffled_dp_sgd import figures as drawn
from workbench.reports.shared.conditions import Asked, Condition, Ends, asked_between, less, seen, untestable
from workbench.reports.shared.context import Bindings, Context, PaperFunctions, Place
from workbench.reports.shared.findings import listed, parameter
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import Setting
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.study import study_report
from workbench.studies.experiments import StudyResults
from workbench.studies.report import StudyReport

VISION_CHANCE = 10.0
"""Accuracy of guessing a digit, percent."""

ALIKE = 1.1
"""Largest over smallest sigma up to which a curve is almost the same at every epsilon."""

CLOSE = 0.05
"""Error of a distribution function up to which an approximation is sufficiently close."""


# Where a setting of a conclusion stands in our study


def place_of(context: Context, printed: Bindings) -> Place:
    """Where a setting of a conclusion stands: one with `cell`, and what applies of task, model, method."""
    ours = context.declared.content["own"]
    table, method = str(printed["cell"]).partition(" | ")[0], str(printed["method"])
    parts: tuple[str, ...] = tuple(ours["parts"][table])
    if table == "table-2":
        return Place(
            parts=parts, setting=Setting.of(stands_for=printed["model"], method=ours["modes"][method])
        )
    known = {"method": ours["methods"][method], "epsilon": printed.get("epsilon")}
    return context.place(
        parts, {"stands_for": printed["model"], "dataset": ours["tasks"][printed["task"]], **known}
    )


def ours(context: Context, printed: Bindings) -> str:
    """Where a printed setting stands in our study, in words: `Ghost, ViT, CIFAR-100, epsilon 0.1`."""
    return _named(place_of(context, printed).setting)


def _named(setting: Setting) -> str:
    budget = "" if setting.get("epsilon") is None else f"epsilon {setting.get('epsilon'):g}"
    names = (setting.get(name) or "" for name in ("method", "stands_for", "dataset"))
    return ", ".join(part for part in (*names, budget) if part)


# What conclusions ask that is no difference of means


def _sample(context: Context, place: Place, name: str) -> Sample | str:
    return context.outcomes.complete(place.parts, place.setting, name)


def _is_awaited(context: Context, *places: Place) -> bool:
    return any(context.outcomes.is_awaited(place.parts, place.setting) for place in places)


def _equal(context: Context, claim: QualitativeClaim) -> Iterator[Asked]:
    """Shuffled and unshuffled runs of each seed print the same, at the paper's digits."""
    assert context.paper is not None
    for pair in listed(claim, "pairs"):
        places = [place_of(context, side) for side in pair]
        where = " less ".join(_named(place.setting) for place in places)
        first, second = (_sample(context, place, claim.parameters["metric"]) for place in places)
        sample, awaited = less(first, second), _is_awaited(context, *places)
        if isinstance(sample, str):
            yield Asked(untestable(where, sample), not_run=awaited)
            continue
        printed = paper.value_at(context.paper, str(pair[1]["cell"]))
        allowed, worst = 0.5 * (printed.upper - printed.lower), float(np.max(np.abs(sample.values)))
        words = f"largest difference {number(worst, 3)} (allowed {number(allowed, 3)})"
        yield Asked(seen(where, words, worst <= allowed, sample.values.size), not_run=awaited)


def _near_chance(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """As near to our guessing rate as the paper's margin is to its own, as shares of it."""
    margin = VISION_CHANCE * parameter(claim, "margin") / parameter(claim, "chance")
    ends = Ends(low=VISION_CHANCE - margin, high=VISION_CHANCE + margin)
    places = {ours(context, setting): place_of(context, setting) for setting in listed(claim, "settings")}
    return [
        asked_between(
            name,
            _sample(context, place, "accuracy"),
            ends,
            context.confidence,
            not_run=_is_awaited(context, place),
        )
        for name, place in places.items()
    ]


def _overhead(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """The share of the steps that shuffling takes, timed inside them, is at most the percentage."""
    settings = [
        Setting.of(stands_for=first["model"], method=tables.TWIN_SHUFFLED)
        for first, _ in listed(claim, "pairs")
    ]
    return [
        asked_between(
            _named(setting),
            context.outcomes.complete(tables.TIMED, setting, "shuffling share"),
            Ends(high=paper.largest(parameter(claim, "percent"))),
            context.confidence,
            not_run=context.outcomes.is_awaited(tables.TIMED, setting),
            measure=" percent",
        )
        for setting in settings
    ]


# What the figures are said to show


def _figure(context: Context, claim: QualitativeClaim) -> list[Asked]:
    """Of Fig. 2 the metric is `"cdf_error"`; Fig. 3's settings have an epsilon, those of Fig. 4 have none."""
    assert context.paper is not None
    if claim.parameters["metric"] == "cdf_error":
        return [Asked(condition) for condition in _sums(context, context.paper)]
    over_epsilon = "epsilon" in claim.parameters["settings"][0]
    conditions = _over_epsilon(context.paper) if over_epsilon else _over_dimension(context.paper)
    return [Asked(condition) for condition in conditions]


def _sums(context: Context, printed: PublishedPaper) -> list[Condition]:
    """Fenton-Wilkinson's distribution function is close, and Schwartz-Yeh's is not at low values."""
    comparison = drawn.compared(drawn.sums_of(printed)[0], context.confidence, drawn.DRAWS, drawn.TAIL)
    draws = comparison.sample.log_sums.size
    close, low = (
        comparison.errors["fenton_wilkinson"].estimate,
        drawn.error_at_low_values(comparison, "schwartz_yeh"),
    )
    inside, outside = drawn.far_p(close, CLOSE, comparison.sample)
    near, far = drawn.far_p(low, CLOSE, comparison.sample)
    sides = (
        (f"Fenton-Wilkinson's error at most {CLOSE:g}", close, inside, outside),
        (f"Schwartz-Yeh's error up to the median above {CLOSE:g}", low, far, near),
    )
    return [
        Condition(
            where=where,
            shown=f"{number(error, 2)} against {draws} draws",
            hold_p=hold,
            break_p=broken,
            n=draws,
        )
        for where, error, hold, broken in sides
    ]


def _over_epsilon(printed: PublishedPaper) -> Iterator[Condition]:
    budgets = paper.epsilons(printed, "figure 3")
    for model, sides in drawn.curves(printed).items():
        shuffled, plain = (max(values) / min(values) for values in sides)
        words = (
            f"sigma differs by a factor of {number(shuffled, 3)} with shuffling, {number(plain, 3)} without"
        )
        where = f"{model}, epsilon {budgets[0]:g} to {budgets[-1]:g}"
        yield seen(where, words, shuffled <= ALIKE < plain)


def _over_dimension(printed: PublishedPaper) -> Iterator[Condition]:
    """sigma falls at every step of d, and at the paper's sizes by more than it changes over epsilon."""
    budgets = paper.epsilons(printed, "figure 3")
    steps = drawn.noise_grid(printed, budgets, tuple(10**k for k in range(10)))
    falls = bool(np.all(np.diff(steps, axis=1) < 0.0))
    yield seen("sigma falls from each power of ten of d to the next", "at every epsilon of Fig. 3", falls)
    size = drawn.run_of(printed, "ViT").dimension
    ends = drawn.noise_grid(printed, budgets, (1, size))
    by_size = float(np.min(ends[:, 0] / ends[:, 1]))
    by_budget = float(ends[:, 1].max() / ends[:, 1].min())
    yield seen(
        f"from d = 1 to {size:g} sigma changes by more than over Fig. 3's epsilons there",
        f"factor {number(by_size, 3)} or more against {number(by_budget, 3)}",
        by_size > by_budget,
    )


SHUFFLED = PaperFunctions(
    paper="shuffled_dp_sgd",
    numbers=tables.NUMBERS,
    place=place_of,
    printed=paper.PRINTED,
    rows=tables.ROWS,
    cells=tables.CELLS,
    facts=tables.FACTS,
    tables={**tables.TABLES, **audit.TABLES, **drawn.TABLES, **paper.TABLES, **formulas.TABLES},
    words={
        "named": ours,
        "scale": tables.scale,
        "stand_ins": tables.stand_ins,
        "deltas": tables.deltas,
        "fallen": tables.fallen,
        "worth": tables.worth,
        "differences": tables.difference_facts,
    },
    questions={
        "equal": lambda context, claim: list(_equal(context, claim)),
        "near chance": _near_chance,
        "at most": audit.at_most,
        "overhead": _overhead,
        "figure": _figure,
    },
    against=paper.AGAINST,
    checks={**paper.CHECKS, **formulas.CHECKS},
    values=paper.VALUES,
    remarks={**paper.REMARKS, **formulas.REMARKS},
    figures=drawn.figures,
)


@register("study_report", "shuffled_dp_sgd")
def shuffled_dp_sgd(
    *,
    results: StudyResults,
    published: PublishedPaper | None,
    confidence: float = 0.95,
    only_findings: bool = False,
) -> StudyReport:
    """Tables, figures and conclusions of Shuffled DPSGD over seeds, and the audit by three adversaries."""
    return study_report(
        SHUFFLED, results=results, published=published, confidence=confidence, only_findings=only_findings
    )
