"""Numbers of a Shuffled DPSGD run, and the cells of its tables that are no plain means.

A seed draws records, start, samples, noise and permutations: runs of one seed that differ in the method alone
are compared as pairs. Next to the paper's columns stands the one that it lacks: DP-SGD at the noise of
Theorem 6, and the epsilon that a certified accountant gives for it. The permutations leave the network's
function as it is; DP-SGD at the same sigma has no batch clip c', so that a difference between the two is that
clip's and the luck of the noise. A time means something next to another one of the same process alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from workbench.accounting.bounds import Bounds
from workbench.accounting.subsampled_gaussian import same_sigma_epsilon
from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.core.errors import UnsupportedError
from workbench.reports.papers.shuffled_dp_sgd.formulas import MODELS
from workbench.reports.papers.shuffled_dp_sgd.paper import EPSILONS, overheads, share_of_epochs
from workbench.reports.shared.conditions import differences
from workbench.reports.shared.context import Bindings, Context, Place, Spot, blank
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import NOT_HERE, Number, Parts, Setting
from workbench.reports.shared.paper_cells import NOT_IN_PAPER
from workbench.reports.shared.printed import centre, said
from workbench.reports.shared.statistics import Sample, matched, mean_interval
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

GENERATION = "generation"
UTILITY = ("vision", "classification", GENERATION)
"""Parts of the study: Tables III to V."""

INVARIANCE, OVERHEAD = "invariance", "overhead"
TIMED = (OVERHEAD, INVARIANCE)
"""Parts whose runs are timed; the first that has any."""

AUDIT, RATES, NOISES = "audit", "audit by rate", "audit by noise"

NON_PRIVATE, GHOST, SHUFFLED, SAME_SIGMA = "Non-private", "Ghost", "Shuffled DPSGD", "DPSGD at the same sigma"
NON_PRIVATE_SHUFFLED, TWIN, TWIN_SHUFFLED = "Non-private, shuffled", "Twin, unshuffled", "Twin, shuffled"
TWINS = {NON_PRIVATE_SHUFFLED: NON_PRIVATE, TWIN_SHUFFLED: TWIN}
"""Shuffled methods of Table II, and what each is compared with."""

PLAN = ("members", "learning_rate", "epochs", "delta", "batch_size", "steps")
"""Fields of an experiment that stand in a table."""


def _metric(name: str, outcome: Outcome, factor: float = 1.0) -> float:
    return factor * float(outcome.metrics.get(name, math.nan))


def _loss(outcome: Outcome) -> float:
    """Mean loss on held-out records, nats."""
    perplexity = _metric("test_perplexity_after", outcome)
    return math.log(perplexity) if perplexity > 0 else math.nan


def _score_of(outcome: Outcome) -> float:
    """BLEU of generated texts, else accuracy in percent."""
    is_text = "test_bleu_after" in outcome.metrics
    return NUMBERS["bleu" if is_text else "accuracy"](outcome)


def _shuffling_share(outcome: Outcome) -> float:
    """Percent of a training's steps that shuffling takes, timed inside the steps."""
    parts = ("shuffling_seconds", "training_seconds")
    shuffling, training = (float(outcome.cost.get(part, math.nan)) for part in parts)
    return 100.0 * shuffling / training if training > 0 else math.nan


def _moved_share(outcome: Outcome) -> float:
    share = _metric("shuffled_share", outcome)
    return 100.0 * share if share > 0.0 else math.nan  # A run that permuted nothing says nothing.


def _planned(field: str, outcome: Outcome) -> float:
    value = getattr(outcome.experiment, field)
    return math.nan if value is None else float(value)


def used_noise(outcome: Outcome) -> float:
    """The smallest noise multiplier of any weight: sigma_0 where Shuffled DPSGD fell back to DP-SGD."""
    least = _metric("least_noise_multiplier", outcome)
    return _metric("noise_multiplier", outcome) if math.isnan(least) else least


NUMBERS: Mapping[str, Number] = {
    "accuracy": partial(_metric, "test_accuracy_after", factor=100.0),
    "bleu": partial(_metric, "test_bleu_after"),
    "meteor": partial(_metric, "test_meteor_after", factor=100.0),
    "METEOR, 0 to 1": partial(_metric, "test_meteor_after"),
    "loss": _loss,
    "score": _score_of,
    "step seconds": lambda run: float(run.cost.get("training_seconds", math.nan)) / run.experiment.steps,
    "shuffling share": _shuffling_share,
    "moved share": _moved_share,
    "millions": lambda run: _metric("dimension", run) / 1e6,
    "used noise": used_noise,
    "c' / c": lambda run: _metric("batch_clip_norm", run) / _metric("l2_clip_norm", run),
    **{field: partial(_planned, field) for field in PLAN},
}


def certified(outcome: Outcome) -> Bounds | str:
    """Epsilon of a finished run's noise as DP-SGD, add-remove, between certified bounds; or why it has none.

    Clipped records add at most the clip to a sum. A batch clip is a projection on a ball, which takes no two
    sums further apart, and a permutation follows the noise: neither can raise it.
    """
    experiment, noise = outcome.experiment, used_noise(outcome)
    if experiment.delta is None:
        return "the run has no delta"
    if not noise > 0.0:
        return "the run has no noise"
    try:
        return same_sigma_epsilon(
            noise_multiplier=noise,
            sampling_probability=experiment.batch_size / experiment.members,
            steps=experiment.steps,
            delta=experiment.delta,
        )
    except UnsupportedError as error:
        return str(error)


def less(context: Context, parts: Parts, first: Setting, second: Setting, name: str) -> Sample | str:
    """A number of the first less that of the second, paired over seeds; the reason where there is none."""
    samples = []
    for setting in (first, second):
        sample = context.outcomes.sample(parts, setting, name)
        if sample is None:
            return f"{setting.get('method')}: {context.outcomes.missing(parts, setting)}"
        samples.append(sample)
    return differences(*samples)


def twin_differences(context: Context, shuffled: Setting, name: str) -> Sample | str:
    """A number of shuffled runs less that of their unshuffled twins, one a seed; or why there is none."""
    return less(context, INVARIANCE, shuffled, shuffled.but(method=TWINS[shuffled.get("method")]), name)


def distinct(context: Context, parts: Iterable[str], *columns: str) -> list[tuple[Any, ...]]:
    """Values of columns that the runs of some parts have together, each once, part by part."""
    table = context.outcomes.table
    rows = (table.loc[table["part"] == part, list(columns)] for part in parts)
    return list(dict.fromkeys(row for some in rows for row in some.itertuples(index=False, name=None)))


def places(context: Context, parts: Iterable[str]) -> list[tuple[str, str]]:
    """Model and dataset of the runs of some parts, as the paper names them, each once."""
    return [(model, dataset) for model, dataset in distinct(context, parts, "stands_for", "dataset")]


def is_claimed(outcome: Outcome) -> bool:
    """Whether a run is of Shuffled DPSGD, and not of the control."""
    return outcome.experiment.mechanism == "shuffled_dp_sgd"


# Words


def span(values: Iterable[float], digits: int = 3) -> str:
    """The least and the largest of some numbers, in words; one number where they print alike."""
    known = sorted(values)
    ends = [number(known[0], digits), number(known[-1], digits)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def scale(context: Context, *parts: str) -> str:
    """How large our runs are, what stands in for what, and what did not finish."""
    runs = context.outcomes.part(parts)
    trained = distinct(context, parts, "trained", "stands_for")
    return context.render(
        "{% include 'scale' %}",
        runs=len(runs),
        stands=sorted(f"{ours} for {theirs}" for ours, theirs in trained if ours != theirs),
        records=[name for (name,) in distinct(context, parts, "records")],
        sizes=sorted({run.experiment.members for run in runs}),
        steps=sorted({run.experiment.steps for run in runs}),
        count=len({run.experiment.seed for run in runs}),
        lost=sum(run.status is not Status.DONE for run in runs),
    )


def stand_ins(context: Context) -> list[str]:
    """Model and dataset in whose places the twins of Table II stand."""
    return sorted({f"{model} on {dataset}" for model, dataset in places(context, (INVARIANCE,))})


def deltas(context: Context, part: str) -> list[str]:
    """The deltas at which the epsilons of a part hold."""
    known = {run.experiment.delta for run in context.outcomes.part(part)}
    return [f"{delta:.4g}" for delta in sorted(delta for delta in known if delta is not None)]


def fallen(context: Context) -> int:
    """How many runs fell back to DP-SGD."""
    return sum(
        context.outcomes.number(run, "falls_back") > 0.0
        for part in UTILITY
        for method in (SHUFFLED, SAME_SIGMA, "Shuffled DPSGD, c' = c")
        for run in context.outcomes.done(part, Setting.of(method=method))
    )


def worth(context: Context) -> list[tuple[float, str]]:
    """Certified epsilons of Theorem 6's sigma, by the claimed one."""
    rows = []
    for epsilon in context.outcomes.values(UTILITY, "epsilon"):
        runs = [run for part in UTILITY for run in at_one_sigma(context, part, Setting.of(epsilon=epsilon))]
        bounds = [bound for bound in map(certified, runs) if not isinstance(bound, str)]
        if bounds:
            rows.append((epsilon, span(ends.upper for ends in bounds)))
    return rows


def at_one_sigma(context: Context, parts: Parts, place: Setting) -> list[Outcome]:
    """Finished runs at Theorem 6's sigma: those without shuffling, else those with it."""
    done = (context.outcomes.done(parts, place.but(method=method)) for method in (SAME_SIGMA, SHUFFLED))
    return next((runs for runs in done if runs), [])


def shuffled_less(context: Context) -> list[tuple[Setting, Sample]]:
    """Shuffled DPSGD less DP-SGD at the same sigma, points, of each place that has both."""
    pairs = []
    for part in UTILITY:
        for method, model, dataset, epsilon in distinct(
            context, [part], "method", "stands_for", "dataset", "epsilon"
        ):
            place = Setting.of(stands_for=model, dataset=dataset, epsilon=epsilon)
            first, second = (place.but(method=name) for name in (SHUFFLED, SAME_SIGMA))
            sample = less(context, part, first, second, "score") if method == SHUFFLED else ""
            if not isinstance(sample, str):
                pairs.append((place.but(part=part), sample))
    return pairs


def difference_facts(context: Context) -> dict[str, Any] | None:
    """How many intervals of differences to DP-SGD at the same sigma exclude zero; None without any."""
    samples = [sample for _, sample in shuffled_less(context)]
    if not samples:
        return None
    intervals = [mean_interval(item, confidence=context.confidence) for item in samples]
    ends = [(end.lower, end.upper) for end in intervals if end.lower is not None and end.upper is not None]
    return {
        "span": span(float(item.values.mean()) for item in samples),
        "settings": len(samples),
        "known": len(ends),
        "apart": sum(not lower <= 0.0 <= upper for lower, upper in ends),
    }


TARGET = 2.0
"""Percent of an epoch that shuffling should take at most."""

METRICS = {"BLEU": "bleu", "METEOR": "METEOR, 0 to 1"}
"""Of generated texts, as the paper calls them, and our numbers."""


def printed_rows(context: Context, table_id: str) -> list[tuple[str, ...]]:
    """Headers of a printed table's rows, each once; empty where nothing is printed."""
    printed = context.published(table_id)
    return [] if printed is None else list(dict.fromkeys(entry.row for entry in printed.cells))


# Rows


def _models(context: Context) -> list[Bindings]:
    parts = context.outcomes.layout.parts
    trained = distinct(context, parts, "stands_for", "trained")
    names = [row[0] for row in printed_rows(context, "table-1")]
    return [
        {"stands_for": name, "ours": ", ".join(ours for model, ours in trained if model == name) or "none"}
        for name in dict.fromkeys([*names, *(model for model, _ in trained)])
    ]


def _printed_plans(paper: PublishedPaper | None) -> dict[tuple[str, str], tuple[str, ...]]:
    """Row of Table I's datasets by model and dataset: a printed row speaks of several models."""
    cells = () if paper is None else paper.table("table-1-datasets").cells
    return {(model, cell.row[1]): cell.row for cell in cells for model in cell.row[0].split(", ")}


def _plans(context: Context) -> list[Bindings]:
    used = distinct(context, UTILITY, "stands_for", "dataset", "records")
    names = dict.fromkeys([*_printed_plans(context.paper), *places(context, UTILITY)])
    return [
        {
            "stands_for": model,
            "dataset": dataset,
            "ours": ", ".join(dict.fromkeys(ours for *place, ours in used if place == [model, dataset]))
            or "none",
        }
        for model, dataset in names
    ]


def _modes(context: Context) -> list[Bindings]:
    modes = context.declared.content["own"]["modes"]
    ours = product(dict.fromkeys(model for model, _ in places(context, [INVARIANCE])), modes)
    rows = dict.fromkeys([*printed_rows(context, "table-2"), *ours])
    return [{"stands_for": model, "mode": mode} for model, mode in rows]


def _scores(table_id: str, part: str, context: Context) -> list[Bindings]:
    """Places of the paper and of ours, each at every claimed epsilon of either."""
    extra: list[tuple[str, ...]] = [(name,) for name in METRICS] if part == GENERATION else [()]
    ours = [(*place, *metric) for place, metric in product(places(context, [part]), extra)]
    theirs = printed_rows(context, table_id)
    known = {*(map(float, EPSILONS) if theirs else ()), *context.outcomes.values(part, "epsilon")}
    names = ("stands_for", "dataset", "metric")
    return [
        {**dict(zip(names, place, strict=False)), "epsilon": epsilon}
        for place, epsilon in product(dict.fromkeys([*theirs, *ours]), sorted(known))
    ]


def _same_sigma(context: Context) -> list[Bindings]:
    """Every place with a run of Shuffled DPSGD, or of DP-SGD at its sigma."""
    rows: list[Bindings] = []
    for part in UTILITY:
        budgets = context.outcomes.values(part, "epsilon")
        for (model, dataset), epsilon in product(places(context, [part]), budgets):
            row = {"stands_for": model, "dataset": dataset, "epsilon": epsilon}
            sides = (Setting.of(**row, method=method) for method in (SHUFFLED, SAME_SIGMA))
            rows += [row] if any(context.outcomes.runs(part, side) for side in sides) else []
    return rows


def _timed_rows(context: Context) -> dict[str, tuple[str, ...]]:
    """Headers of Table VIII's rows by model: the printed ones, and those of our other models."""
    rows = {row[0]: row for row in printed_rows(context, "table-8")}
    for place in places(context, TIMED):
        rows.setdefault(place[0], place)
    return rows


def _epochs(context: Context) -> list[Bindings]:
    return [{"stands_for": model, "dataset": dataset} for model, dataset in _timed_rows(context).values()]


ROWS: Mapping[str, Callable[[Context], Sequence[Bindings]]] = {
    "models": _models,
    "plans": _plans,
    "modes": _modes,
    "table-3": partial(_scores, "table-3", UTILITY[0]),
    "table-4": partial(_scores, "table-4", UTILITY[1]),
    "table-5": partial(_scores, "table-5", UTILITY[2]),
    "same sigma": _same_sigma,
    "epochs": _epochs,
}


# Cells of Tables I and II


def one_value(values: Sequence[float], printed: PublishedCell | None, why: str, missing: str) -> Cell:
    """A number that all runs share, beside the printed one and without a difference; else its range.

    Args:
        values: Of the runs; NaN for none.
        printed: The printed cell, if any.
        why: Why none of the values is known.
        missing: Why nothing is printed.
    """
    known = sorted({value for value in values if not math.isnan(value)})
    if not known:
        return blank(printed, why)
    text = "" if len(known) == 1 else span(known)
    return Cell(
        paper=printed,
        ours=Value(estimate=known[0], text=text),
        why_blank="" if printed is not None else missing,
    )


def _property(context: Context, spot: Spot) -> Cell:
    """A property of the runs of all parts: what they plan, or what finished ones counted."""
    place = Setting.of(stands_for=spot.bindings["stands_for"], dataset=spot.bindings.get("dataset"))
    is_plan = "dataset" in spot.bindings
    runs = [run for part in spot.place.parts for run in context.outcomes.runs(part, place)]
    done = [run for run in runs if is_plan or run.status is Status.DONE]
    why = (NOT_HERE if is_plan else "no finished run") if not done else "the runs do not say"
    values = [context.outcomes.number(run, spot.column["number"]) for run in done]
    return one_value(values, _printed_plan(context, spot) if is_plan else spot.printed, why, "not printed")


def _printed_plan(context: Context, spot: Spot) -> PublishedCell | None:
    row = _printed_plans(context.paper).get((spot.bindings["stands_for"], spot.bindings["dataset"]))
    if row is None or context.paper is None:
        return None
    if spot.column["number"] == "l2_clip_norm":
        task = "CV tasks" if row[1] == "CIFAR-100" else "all NLP tasks"
        return said(context.paper, "section VI-A", f"clip of {task}")
    cells = (context.printed("table-1-datasets", row, name) for name in spot.column.get("theirs", ()))
    return next((entry for entry in cells if entry is not None), None)


def _moved(context: Context, spot: Spot) -> Cell:
    """What Theorems 3 and 4 move in the paper's model."""
    model = MODELS.get(spot.bindings["stands_for"])
    if model is None:
        return Cell(why_blank="no model of the paper")
    return Cell(ours=Value(estimate=100.0 * model.share), why_blank="not printed")


def _mode(context: Context, spot: Spot) -> Setting:
    """The runs of a row of Table II."""
    method = context.declared.content["own"]["modes"][spot.bindings["mode"]]
    return Setting.of(stands_for=spot.bindings["stands_for"], method=method)


def _trained(context: Context, spot: Spot) -> Cell:
    return context.cell(spot.printed, spot.place.parts, _mode(context, spot), spot.column["number"])


def _distance(context: Context, spot: Spot) -> Cell:
    setting, printed = _mode(context, spot), None
    if setting.get("method") not in TWINS:
        return Cell(why_blank="it permutes nothing")
    if context.paper is not None and setting == Setting.of(stands_for="ViT", method=TWIN_SHUFFLED):
        printed = said(context.paper, "section VI-B", "distance between the weights of ViT")
    made = context.cell(printed, INVARIANCE, setting, "shuffle_distance")
    return replace(made, difference=None)  # Of models of another size.


def _apart(context: Context, spot: Spot) -> Cell:
    """The largest difference of a shuffled run to its twin."""
    setting = _mode(context, spot)
    if setting.get("method") not in TWINS:
        return Cell(why_blank="it is what the shuffled one is compared with")
    gaps = twin_differences(context, setting, spot.column["number"])
    if isinstance(gaps, str):
        return blank(None, gaps)
    worst = float(np.max(np.abs(gaps.values)))
    return Cell(ours=Value(estimate=worst, n=gaps.values.size), why_blank=NOT_IN_PAPER)


# Cells of Tables III to V, and of what sigma is worth


def _score(context: Context, spot: Spot) -> Cell:
    """A score; of a column that the paper has: what it lacks there, our copy may have lost."""
    setting = spot.place.setting.but(metric=None)
    if "why" in spot.column:
        made = blank(spot.printed, spot.column["why"])
    else:
        number = METRICS.get(spot.bindings.get("metric", ""), "accuracy")
        made = context.cell(spot.printed, spot.place.parts, setting, number)
    if not spot.column.get("copy") or spot.printed is not None or not made.why_blank:
        return made
    return Cell(
        ours=made.ours,
        why_blank=made.why_blank.replace(NOT_IN_PAPER, "no such cell in our copy of the paper"),
    )


def _shared(context: Context, spot: Spot) -> Cell:
    """A setting that all runs of the first method with any share; a mean would be another one."""
    sides = [spot.place.setting.but(method=method) for method in spot.column["methods"]]
    done = (context.outcomes.done(spot.place.parts, side) for side in sides)
    runs = next((some for some in done if some), [])
    values = [context.outcomes.number(run, spot.column["number"]) for run in runs]
    missing = context.outcomes.missing(spot.place.parts, sides[0])
    return one_value(values, None, "the run has no such number" if runs else missing, "")


def _worth(context: Context, spot: Spot) -> Cell:
    """The certified epsilon of runs at one noise: the largest upper end."""
    place = spot.place.setting.but(metric=None)
    bounds = [certified(run) for run in at_one_sigma(context, spot.place.parts, place)]
    known = [ends for ends in bounds if not isinstance(ends, str)]
    if not known:
        missing = context.outcomes.missing(spot.place.parts, place.but(method=SAME_SIGMA))
        return blank(None, next((ends for ends in bounds if isinstance(ends, str)), missing))
    lower, upper = min(ends.lower for ends in known), max(ends.upper for ends in known)
    return Cell(ours=Value(estimate=upper, lower=lower, upper=upper), why_blank=NOT_IN_PAPER)


def _sides_less(context: Context, spot: Spot) -> Sample | str:
    first, second = (spot.place.setting.but(method=method) for method in spot.column["methods"])
    return less(context, spot.place.parts, first, second, "score")


def _less(context: Context, spot: Spot) -> Cell:
    return context.compared(None, _sides_less(context, spot))


def _margin(context: Context, spot: Spot) -> Cell:
    """The farther end of the interval of twice the tests' level."""
    less = _sides_less(context, spot)
    if isinstance(less, str):
        return blank(None, less)
    if context.confidence <= 0.75:
        return blank(None, "two tests at such a level show nothing")
    both = mean_interval(less, confidence=2.0 * context.confidence - 1.0)
    if both.lower is None or both.upper is None:
        return blank(None, both.why)
    return Cell(ours=Value(estimate=max(-both.lower, both.upper), n=less.values.size))


# Times


def step_ratio(context: Context, shuffled: Setting, plain: Setting) -> Sample | str:
    """Step time of a setting over that of another, one a seed; the reason where there is none."""
    first, second = (context.outcomes.sample(TIMED, setting, "step seconds") for setting in (shuffled, plain))
    if first is None or second is None:
        return context.outcomes.missing(TIMED, shuffled if first is None else plain)
    pair = matched(first, second)
    if pair.first is None or pair.second is None or isinstance(differences(first, second), str):
        return f"no {first.unit} has both"
    if not np.all(pair.second.values > 0.0):
        return "a step has no time"
    return Sample(pair.first.values / pair.second.values, pair.first.units, first.unit)


def _overhead(context: Context, spot: Spot) -> Cell:
    """The paper's overhead."""
    row = (spot.bindings["stands_for"], spot.bindings["dataset"])
    times = None if context.paper is None else overheads(context.paper).get(row)
    if times is None:
        return Cell(why_blank="not printed")
    share = share_of_epochs([times])
    return Cell(ours=Value(estimate=centre(share), lower=share.lower, upper=share.upper))


def _shuffling(context: Context, spot: Spot) -> Cell:
    return _shuffling_of(context, spot.place.setting, spot.column["of"])


def _shuffling_of(context: Context, place: Setting, method: str) -> Cell:
    value = context.value(TIMED, place := place.but(dataset=None, method=method), "shuffling share")
    return blank(None, context.outcomes.missing(TIMED, place)) if value is None else Cell(ours=value)


def _ratio(context: Context, spot: Spot) -> Cell:
    place = spot.place.setting.but(dataset=None)
    ratio = step_ratio(context, place.but(method=TWIN_SHUFFLED), place.but(method=TWIN))
    return blank(None, ratio) if isinstance(ratio, str) else Cell(ours=context.mean(ratio))


def _met(context: Context, rows: Sequence[Place], of: str) -> dict[bool, list[str]]:
    """Where the target is met, and where it is not."""
    by_answer: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        for method, words in ((TWIN_SHUFFLED, ""), (NON_PRIVATE_SHUFFLED, " without privacy")):
            ours = _shuffling_of(context, row.setting, method).ours
            if ours is not None:
                by_answer[ours.estimate <= TARGET].append(f"{row.setting.get('stands_for')}{words}")
    return by_answer


CELLS = {
    "property": _property,
    "moved": _moved,
    "trained": _trained,
    "distance": _distance,
    "apart": _apart,
    "score": _score,
    "shared": _shared,
    "worth": _worth,
    "less": _less,
    "margin": _margin,
    "overhead": _overhead,
    "shuffling": _shuffling,
    "ratio": _ratio,
}

FACTS = {"met": _met}


# Tables of the paper's numbers and formulas alone


def _products(context: Context) -> Table | None:
    """Table VII: ratios of the paper's own times."""
    index = context.printed("table-7", ("index shuffle",), "milliseconds")
    why, rows = context.declared.entry("table", "table-7")["why"], list[Row]()
    for row in printed_rows(context, "table-7"):
        cell = context.printed("table-7", row, "milliseconds")
        ratio = Cell(why_blank="a time is missing")
        if index is not None and cell is not None:
            value = Value(estimate=100.0 * index.value / cell.value)
            ratio = Cell(ours=value, why_blank="computed, not printed")
        rows.append((row, (Cell(paper=cell, why_blank=f"ours: {why}"), ratio)))
    return table(context, "table-7", rows)


TABLES = {"products": _products}
