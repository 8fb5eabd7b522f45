"""Cells of RLDP's tables that are no plain means, and the tables that are no plain grids."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.accounting.subsampled_gaussian import same_sigma_epsilon
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Sampling
from workbench.reports.papers.rldp.runs import (
    ABLATION,
    BASELINES,
    FINAL,
    INSERTIONS,
    LEDGER,
    MODELS,
    NOISE,
    OURS,
    SAMPLING,
    Bar,
    Matches,
    bars,
    chance_similarity,
    drop,
    matches,
    setting,
)
from workbench.reports.shared import statistics
from workbench.reports.shared.claims import mean_over
from workbench.reports.shared.context import Bindings, Context, Place, Spot, blank
from workbench.reports.shared.grids import Row, cells, has_runs, rows_of, table, why
from workbench.reports.shared.numbers import number
from workbench.reports.shared.outcomes import NOT_HERE, Setting
from workbench.reports.shared.paper_cells import NOT_IN_PAPER, compared_cell
from workbench.reports.shared.statistics import NotTestable, Sample, StatisticalTest
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Experiment, Outcome, Status
from workbench.studies.report import Cell, Table, Value

Answer = StatisticalTest | NotTestable | str

KNOBS = {"interval": "decision_interval", "batch": "sac_batch_size", "updates": "sac_updates"}
"""What varies in an ablation: parameters of the mechanism."""


def places(context: Context) -> list[Bindings]:
    """The settings of the paper's tables, and our own budgets beside them."""
    return rows_of(context, context.declared.entry("table", "table-2"))


# Words


def scale(context: Context, part: str, *models: str) -> str:
    """How large our runs are, what stands in for what, and what did not finish."""
    named = models or context.declared.list("$models") if part == MODELS else ()
    runs = [
        one
        for chosen in ([Setting.of(stands_for=name) for name in named] or [Setting()])
        for one in context.outcomes.runs(part, chosen)
    ]
    trained = {name: context.outcomes.values(part, "trained", Setting.of(stands_for=name)) for name in named}
    lost = [one for one in runs if one.status is not Status.DONE]
    return context.render(
        "{% include 'scale' %}",
        runs=len(runs),
        places={name: ours for name, ours in trained.items() if ours},
        sizes=[(name, min(values), max(values)) for name, values in _sizes(context, runs)] if runs else [],
        lost=len(lost),
        failed=sum(one.status is Status.FAILED for one in lost),
    )


def _sizes(context: Context, runs: Sequence[Outcome]) -> list[tuple[str, set[int]]]:
    found = [one.experiment for one in runs]
    return [
        ("members", {one.members for one in found}),
        ("batch size", {one.batch_size for one in found}),
        ("steps", {one.steps for one in found}),
        (f"{context.outcomes.unit}s", {len({one.seed for one in found})}),
    ]


def evaluations(context: Context) -> list[str]:
    """How fine the shares of steps are: the least and the largest distance of two evaluations, percent."""
    shares = {
        100.0 * (steps[1] - steps[0]) / one.experiment.steps
        for one in context.outcomes.outcomes
        for steps in [one.traces.get("evaluation_steps", ())]
        if len(steps) > 1
    }
    return list(dict.fromkeys(f"{end:.2g}" for end in (min(shares), max(shares)))) if shares else []


def endings(context: Context, *models: str) -> list[float]:
    """Which shares of a record our scores are of."""
    runs = [one for name in models for one in context.outcomes.runs(MODELS, Setting.of(stands_for=name))]
    return sorted({float(one.experiment.attack_parameters.get("ending_share", 1.0)) for one in runs})


def deltas(context: Context) -> list[float]:
    """At which deltas the epsilons of the tables hold."""
    found: list[float] = context.outcomes.values(MODELS, "delta")
    return found


def begins(context: Context, called: Mapping[str, bool]) -> list[dict[str, Any]]:
    """From how many insertions on every finished run of each training is called."""
    found = []
    for method in context.outcomes.values(INSERTIONS, "method"):
        verdicts = {
            count: [
                called[one.key]
                for one in context.outcomes.done(INSERTIONS, Setting.of(method=method, insertions=count))
                if one.key in called
            ]
            for count in context.outcomes.values(INSERTIONS, "insertions", Setting.of(method=method))
        }
        always = [count for count, some in verdicts.items() if some and all(some)]
        partly = [count for count, some in verdicts.items() if any(some)]
        first = always[-1] if always else None
        for count in reversed(verdicts):
            if count not in always:
                break
            first = count
        found.append(
            {
                "method": method,
                "tested": any(verdicts.values()),
                "always": first,
                "partly": partly[0] if partly else None,
                "most": max(verdicts),
            }
        )
    return found


def _chance_of(context: Context, n: int) -> float:
    return chance_similarity(n)


WORDS: Mapping[str, Callable[..., Any]] = {
    "scale": scale,
    "evaluations": evaluations,
    "endings": endings,
    "deltas": deltas,
    "begins": begins,
    "chance": _chance_of,
}


# Utility


def _bar(context: Context, spot: Spot) -> Cell:
    """Mean of the seeds' bars."""
    found = bars(context, spot.bindings)
    if isinstance(found, str):
        return blank(spot.printed, found)
    values = np.array([one.perplexity for one in found.values()])
    return compared_cell(spot.printed, context.mean(Sample(values, tuple(found), context.outcomes.unit)))


def _whose(context: Context, spot: Spot) -> Cell:
    found = bars(context, spot.bindings)
    if isinstance(found, str):
        return Cell(why_blank=found)
    ours = Value(estimate=math.nan, text=_names(found))
    return Cell(ours=ours, why_blank="not printed" if spot.is_beside else "")


def _names(found: Mapping[int, Bar]) -> str:
    counts = Counter(bar.variant for bar in found.values())
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())


def _drop(context: Context, spot: Spot) -> Cell:
    return context.compared(None, drop(context, spot.bindings))


def log_ratio(context: Context, at: Bindings, first: str, second: str) -> Answer:
    """The paired t test of the logarithms of two methods' perplexities; the reason where there is none."""
    logs = []
    for name in (first, second):
        found = context.outcomes.complete(MODELS, setting(context, at, name), FINAL)
        if isinstance(found, str):
            return found if found == NOT_HERE else f"{name}: {found}"
        logs.append(Sample(np.log(found.values), found.units, found.unit))
    return statistics.paired_t(logs[0], logs[1], confidence=context.confidence)


def comparisons(context: Context) -> Table | None:
    """RLDP against each baseline in each setting, paired over seeds; Holm over the table's comparisons."""
    found: dict[tuple[int, str], Answer] = {}
    settings = places(context)
    for place, at in enumerate(settings):
        for name in BASELINES:
            if has_runs(context, MODELS, {**at, "method": name}):
                found[place, name] = log_ratio(context, at, "RLDP", name)
    tested = {where: one for where, one in found.items() if not isinstance(one, str)}
    adjusted = dict(zip(tested, statistics.adjust(list(tested.values())), strict=True))
    rows: list[Row] = []
    for place in dict.fromkeys(place for place, _ in found) if tested else ():
        answers = {name: found.get((place, name), NOT_HERE) for name in BASELINES}
        row = tuple(_compared(adjusted.get((place, name), one)) for name, one in answers.items())
        rows.append(((settings[place]["stands_for"], f"{settings[place]['epsilon']:g}"), row))
    signs = [
        one.estimate for one in adjusted.values() if isinstance(one, StatisticalTest) and one.significant
    ]
    lower, higher = sum(one < 0 for one in signs), sum(one > 0 for one in signs)
    return table(context, "comparisons", rows, tested=len(adjusted), lower=lower, higher=higher)


def _compared(found: Answer) -> Cell:
    """A paired comparison of logarithms in percent, with its p-value; or why there is none."""
    if not isinstance(found, StatisticalTest):
        return Cell(why_blank=found if isinstance(found, str) else found.why)
    ends = [None if end is None else 100.0 * math.expm1(end) for end in (found.lower, found.upper)]
    return Cell(
        ours=Value(
            estimate=100.0 * math.expm1(found.estimate),
            lower=ends[0],
            upper=ends[1],
            p_value=found.decisive_p,
            n=found.n_units,
        )
    )


def _against(context: Context, spot: Spot) -> Cell:
    """A method's perplexity against that of the form that decides rarely."""
    method = spot.bindings["method"]
    if method == OURS[0]:
        return Cell(why_blank="it is what the others are compared with")
    return _compared(log_ratio(context, spot.bindings, method, OURS[0]))


# Steps to match


def _share_value(context: Context, found: Matches) -> Value:
    """The mean share of the steps; a text where a run never matches, for then it is at least so much."""
    if found.sample is None:
        return Value(estimate=math.nan)
    value = context.mean(found.sample)
    if not found.never:
        return value
    text = f"at least {value.estimate:.0f}; never in {found.never} of {found.runs} runs"
    if found.never == found.runs:
        text = f"never ({found.runs} run{'s' * (found.runs > 1)})"
    return replace(value, lower=None, upper=None, text=text)


def _match(context: Context, spot: Spot) -> Cell:
    others = spot.column.get("against", BASELINES)
    found = matches(context, spot.bindings, spot.bindings["method"], others)
    if found.sample is None:
        return Cell(why_blank=found.why)
    return Cell(ours=_share_value(context, found))


def shares(context: Context) -> Table | None:
    """Table 3: a row a model, and the mean of the models that have runs."""
    models = context.declared.list("$models")
    budgets = sorted({at["epsilon"] for at in places(context)})
    columns = [f"{epsilon:g}" for epsilon in budgets]
    found = {
        (model, epsilon): matches(context, {"stands_for": model, "epsilon": epsilon})
        for model in models
        for epsilon in budgets
    }
    rows: list[Row] = []
    for model in models if budgets else ():
        row = tuple(_share_cell(context, model, epsilon, found[model, epsilon]) for epsilon in budgets)
        rows.append(((model,), row))
    if budgets:
        means = [
            _mean_cell(context, epsilon, [found[model, epsilon] for model in models]) for epsilon in budgets
        ]
        rows.append((("Mean",), tuple(means)))
    return table(context, "table-3", rows, columns=columns)


def _share_cell(context: Context, row: str, epsilon: float, found: Matches) -> Cell:
    printed = context.printed("table-3", (row,), f"{epsilon:g}")
    if found.sample is None:
        return blank(printed, found.why)
    made = compared_cell(printed, _share_value(context, found))
    return replace(made, difference=None) if found.never else made


def _mean_cell(context: Context, epsilon: float, found: Sequence[Matches]) -> Cell:
    samples = [one.sample for one in found if one.sample is not None]
    merged = mean_over(samples) if samples else found[0].why
    never, runs = sum(one.never for one in found), sum(one.runs for one in found)
    whole = (
        Matches(sample=None, why=merged)
        if isinstance(merged, str)
        else Matches(sample=merged, runs=runs, never=never)
    )
    made = _share_cell(context, "Mean", epsilon, whole)
    alike = len(samples) == len(found) and epsilon in context.declared.list("$budgets")
    return made if alike else replace(made, difference=None)


# What the noise was worth


def _done(context: Context, spot: Spot) -> list[Outcome]:
    return context.outcomes.done(spot.place.parts, spot.place.setting)


def _claimed(context: Context, spot: Spot) -> Cell:
    done, epsilon = _done(context, spot), spot.bindings["epsilon"]
    if not done:
        return Cell(why_blank=why(context, spot))
    about = sorted({str((one.claim or {}).get("about", "")) for one in done} - {""})
    words = f"{epsilon:g} ({', '.join(about)})" if about else f"{epsilon:g}"
    return Cell(ours=Value(estimate=epsilon, text=words))


def _together(context: Context, spot: Spot) -> Cell:
    """The largest certified epsilon of all that a step releases."""
    done = _done(context, spot)
    found = [value for one in done if usable(value := context.outcomes.number(one, spot.column["number"]))]
    if found:
        return Cell(ours=Value(estimate=max(found), n=len(found)))
    has_ledger = any(LEDGER in one.metrics for one in done)
    return Cell(why_blank="the run has no such number" if has_ledger else why(context, spot))


def _alone(context: Context, spot: Spot) -> Cell:
    """The largest certified epsilon of the noise as one query a step."""
    worth = [_worth(one) for one in _done(context, spot)]
    found = [one for one in worth if not isinstance(one, str)]
    if found:
        return Cell(ours=Value(estimate=max(found), n=len(found)))
    return Cell(why_blank=str(worth[0]) if worth else why(context, spot))


def _worth(outcome: Outcome) -> float | str:
    """What a run's record certifies, or the certified upper end for its constant noise; or why neither."""
    metrics, experiment = outcome.metrics, outcome.experiment
    certified = float(metrics.get("certified_epsilon_one_adapter", math.nan))
    if usable(certified):
        return certified
    if experiment.sampling is not Sampling.POISSON:
        return "certified bounds are for Poisson samples"
    if LEDGER in metrics:
        return "the run has no such number"
    noise = float(metrics.get(NOISE, math.nan))
    if experiment.delta is None or not usable(noise) or noise <= 0.0:
        return "the run has no noise multiplier"
    return _upper(noise, _rate(experiment), experiment.steps, experiment.delta)


@lru_cache(maxsize=256)
def _upper(noise: float, rate: float, steps: int, delta: float) -> float | str:
    try:
        return same_sigma_epsilon(
            noise_multiplier=noise, sampling_probability=rate, steps=steps, delta=delta
        ).upper
    except UnsupportedError as error:
        return str(error)


def _rate(experiment: Experiment) -> float:
    from workbench.studies.jobs import setup_of

    return setup_of(experiment).sampling_probability


def _sigma(context: Context, spot: Spot) -> Cell:
    """Mean of the noise multipliers that were used, with their range where they vary."""
    done = _done(context, spot)
    values = [value for one in done for value in one.traces.get(NOISE, ()) if usable(value)]
    values = values or [one.metrics[NOISE] for one in done if usable(one.metrics.get(NOISE, math.nan))]
    if not values:
        return Cell(why_blank="the run has no noise multiplier" if done else why(context, spot))
    low, high, mean = min(values), max(values), float(np.mean(values))
    same = high - low <= 1e-9 * high
    text = "" if same else f"{mean:.3f} ({number(low, 3)} to {number(high, 3)})"
    return Cell(ours=Value(estimate=mean, text=text))


# Memorisation


def _called_runs(context: Context, found: Sequence[Place], name: str) -> dict[str, bool]:
    """Whether each run of a table is called when its p-value is corrected for all of them, by its key.

    Benjamini and Hochberg (1995): of the runs called at most 1 - confidence are called falsely on average,
    where the tests are independent or positively dependent, as those of runs that share secrets are. A
    randomisation test's p-value cannot fall below one over its draws, so that a correction of the largest
    (Holm) could never call one of many runs.
    """
    runs = [one for place in found for one in context.outcomes.done(place.parts, place.setting)]
    values = {one.key: float(one.metrics.get(name, math.nan)) for one in runs}
    known = {key: value for key, value in values.items() if not math.isnan(value)}
    level, count = 1.0 - context.confidence, len(known)
    passing = [
        value for rank, value in enumerate(sorted(known.values()), start=1) if value <= level * rank / count
    ]
    most = max(passing, default=-1.0)
    return {key: value <= most for key, value in known.items()}


def _called(context: Context, spot: Spot) -> Cell:
    return _counted(context, spot, spot.facts["called"])


def _uncorrected(context: Context, spot: Spot) -> Cell:
    """How many runs are called, each by itself."""
    level, name = 1.0 - context.confidence, spot.column["number"]
    values = {one.key: float(one.metrics.get(name, math.nan)) for one in _done(context, spot)}
    return _counted(context, spot, {key: value <= level for key, value in values.items() if usable(value)})


def _counted(context: Context, spot: Spot, called: Mapping[str, bool]) -> Cell:
    """How many runs are called, of those that could be."""
    known = [called[one.key] for one in _done(context, spot) if one.key in called]
    if not known:
        missing = context.outcomes.missing(spot.place.parts, spot.place.setting)
        return blank(None, missing) if spot.is_beside else Cell(why_blank=missing)
    ours = Value(estimate=float(sum(known)), text=f"{sum(known)} of {len(known)}")
    return Cell(ours=ours, why_blank=NOT_IN_PAPER)


def _chance(context: Context, spot: Spot) -> Cell:
    """What secrets have that nobody trained on: the mean over runs, and the widest of their ranges.

    A run's range holds 95 % of sets of as many secrets: it, and not how much the mean varies over runs, says
    what chance can do.
    """
    name, factor = spot.column["number"], spot.column.get("factor", 1.0)
    found = [
        tuple(factor * float(one.metrics.get(f"{name}{end}", math.nan)) for end in ("", "_low", "_high"))
        for one in _done(context, spot)
        if usable(one.metrics.get(name, math.nan))
    ]
    if not found:
        return blank(None, context.outcomes.missing(spot.place.parts, spot.place.setting))
    mean = sum(one[0] for one in found) / len(found)
    low, high = min(one[1] for one in found), max(one[2] for one in found)
    value = Value(estimate=mean, text=f"{mean:.3g} ({low:.2g} to {high:.2g})", n=len(found))
    return Cell(ours=value, why_blank=NOT_IN_PAPER)


# RLDP changed in one thing


def controls(context: Context) -> Iterator[Bindings]:
    """Variants that no table of the paper has, between the form that decides rarely and static DP-SGD."""
    known = context.declared.list("$trained")
    for at in places(context):
        variants = context.outcomes.values(MODELS, "method", Setting.of(stands_for=at["stands_for"]))
        further = [name for name in variants if name not in known]
        for name in (OURS[0], *further, "Static") if further else ():
            if context.outcomes.runs(MODELS, setting(context, at, name)):
                yield {**at, "method": name}


def knob_column(knob: str) -> str:
    """The column of an ablation's parameter."""
    return f"mechanism_parameters.{KNOBS[knob]}"


def knob_settings(context: Context, knob: str) -> list[tuple[float, float]]:
    """Budgets of an ablation, and under each of them the values of its parameter, ascending."""
    own = Setting.of(knob=knob)
    values = context.outcomes.values(ABLATION, knob_column(knob), own) if knob in KNOBS else []
    return [
        (epsilon, value) for epsilon in context.outcomes.values(ABLATION, "epsilon", own) for value in values
    ]


def knobs(context: Context) -> list[Table]:
    """Section 4.5: a table for each parameter of the controller."""
    made = []
    entry = context.declared.entry("table", "ablation")
    models = context.outcomes.values(ABLATION, "trained")
    for knob in context.outcomes.values(ABLATION, "knob"):
        rows: list[Row] = []
        for epsilon, value in knob_settings(context, knob):
            row = {"knob": knob, "epsilon": epsilon, knob_column(knob): value}
            rows.append(((f"{epsilon:g}", f"{value:g}"), cells(context, entry, row)))
        name = KNOBS.get(knob, knob).replace("_", " ").replace("sac", "SAC")
        own = table(context, "ablation", rows, id=f"ablation-{knob}", knob=name, models=models)
        made += [] if own is None else [own]
    return made


def _poisson(context: Context, spot: Spot) -> Cell:
    """The final perplexity of the same model on Poisson samples."""
    trained = context.outcomes.values(SAMPLING, "trained")
    for model in context.declared.list("$models"):
        place = spot.place.setting.but(stands_for=model)
        if {*context.outcomes.values(MODELS, "trained", place)} & {*trained}:
            value = context.value(MODELS, place, FINAL)
            if context.outcomes.runs(MODELS, place):
                return Cell(why_blank="no such runs in the tables") if value is None else Cell(ours=value)
    return Cell(why_blank="no such runs in the tables")


ROWS = {"controls": lambda context: list(controls(context))}
FACTS = {"called": _called_runs}
TABLES = {"comparisons": comparisons, "shares": shares, "knobs": knobs}
CELLS = {
    "bar": _bar,
    "whose": _whose,
    "drop": _drop,
    "match": _match,
    "against": _against,
    "claimed": _claimed,
    "together": _together,
    "alone": _alone,
    "sigma": _sigma,
    "called": _called,
    "uncorrected": _uncorrected,
    "chance": _chance,
    "poisson": _poisson,
}
