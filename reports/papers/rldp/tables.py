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
        run
        for chosen in ([Setting.of(stands_for=name) for name in named] or [Setting()])
        for run in context.outcomes.runs(part, chosen)
    ]
    trained = {name: context.outcomes.values(part, "trained", Setting.of(stands_for=name)) for name in named}
    lost = [run for run in runs if run.status is not Status.DONE]
    return context.render(
        "{% include 'scale' %}",
        runs=len(runs),
        places={name: ours for name, ours in trained.items() if ours},
        sizes=[(name, min(values), max(values)) for name, values in _sizes(context, runs)] if runs else [],
        lost=len(lost),
        failed=sum(run.status is Status.FAILED for run in lost),
    )


def _sizes(context: Context, runs: Sequence[Outcome]) -> list[tuple[str, set[int]]]:
    experiments = [experiment.experiment for experiment in runs]
    return [
        ("members", {experiment.members for experiment in experiments}),
        ("batch size", {experiment.batch_size for experiment in experiments}),
        ("steps", {experiment.steps for experiment in experiments}),
        (f"{context.outcomes.unit}s", {len({experiment.seed for experiment in experiments})}),
    ]


def evaluations(context: Context) -> list[str]:
    """How fine the shares of steps are: the least and the largest distance of two evaluations, percent."""
    shares = {
        100.0 * (steps[1] - steps[0]) / outcome.experiment.steps
        for outcome in context.outcomes.outcomes
        for steps in [outcome.traces.get("evaluation_steps", ())]
        if len(steps) > 1
    }
    return list(dict.fromkeys(f"{end:.2g}" for end in (min(shares), max(shares)))) if shares else []


def endings(context: Context, *models: str) -> list[float]:
    """Which shares of a record our scores are of."""
    runs = [run for name in models for run in context.outcomes.runs(MODELS, Setting.of(stands_for=name))]
    return sorted({float(run.experiment.attack_parameters.get("ending_share", 1.0)) for run in runs})


def deltas(context: Context) -> list[float]:
    """The deltas at which the tables' epsilons hold."""
    values: list[float] = context.outcomes.values(MODELS, "delta")
    return values


def begins(context: Context, called: Mapping[str, bool]) -> list[dict[str, Any]]:
    """The least number of insertions from which every finished run of a training is called, by training."""
    rows = []
    for method in context.outcomes.values(INSERTIONS, "method"):
        verdicts = {
            count: [
                called[run.key]
                for run in context.outcomes.done(INSERTIONS, Setting.of(method=method, insertions=count))
                if run.key in called
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
        rows.append(
            {
                "method": method,
                "tested": any(verdicts.values()),
                "always": first,
                "partly": partly[0] if partly else None,
                "most": max(verdicts),
            }
        )
    return rows


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
    by_seed = bars(context, spot.bindings)
    if isinstance(by_seed, str):
        return blank(spot.printed, by_seed)
    values = np.array([bar.perplexity for bar in by_seed.values()])
    return compared_cell(spot.printed, context.mean(Sample(values, tuple(by_seed), context.outcomes.unit)))


def _whose(context: Context, spot: Spot) -> Cell:
    by_seed = bars(context, spot.bindings)
    if isinstance(by_seed, str):
        return Cell(why_blank=by_seed)
    ours = Value(estimate=math.nan, text=_names(by_seed))
    return Cell(ours=ours, why_blank="not printed" if spot.is_beside else "")


def _names(by_seed: Mapping[int, Bar]) -> str:
    counts = Counter(bar.variant for bar in by_seed.values())
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())


def _drop(context: Context, spot: Spot) -> Cell:
    return context.compared(None, drop(context, spot.bindings))


def log_ratio(context: Context, at: Bindings, first: str, second: str) -> Answer:
    """The paired t test of the logarithms of two methods' perplexities; the reason where there is none."""
    logs = []
    for name in (first, second):
        sample = context.outcomes.complete(MODELS, setting(context, at, name), FINAL)
        if isinstance(sample, str):
            return sample if sample == NOT_HERE else f"{name}: {sample}"
        logs.append(Sample(np.log(sample.values), sample.units, sample.unit))
    return statistics.paired_t(logs[0], logs[1], confidence=context.confidence)


def comparisons(context: Context) -> Table | None:
    """RLDP against each baseline in each setting, paired over seeds; Holm over the table's comparisons."""
    answers_by_place: dict[tuple[int, str], Answer] = {}
    settings = places(context)
    for place, at in enumerate(settings):
        for name in BASELINES:
            if has_runs(context, MODELS, {**at, "method": name}):
                answers_by_place[place, name] = log_ratio(context, at, "RLDP", name)
    tested = {where: answer for where, answer in answers_by_place.items() if not isinstance(answer, str)}
    adjusted = dict(zip(tested, statistics.adjust(list(tested.values())), strict=True))
    rows: list[Row] = []
    for place in dict.fromkeys(place for place, _ in answers_by_place) if tested else ():
        answers = {name: answers_by_place.get((place, name), NOT_HERE) for name in BASELINES}
        row = tuple(_compared(adjusted.get((place, name), answer)) for name, answer in answers.items())
        rows.append(((settings[place]["stands_for"], f"{settings[place]['epsilon']:g}"), row))
    signs = [
        answer.estimate
        for answer in adjusted.values()
        if isinstance(answer, StatisticalTest) and answer.significant
    ]
    lower, higher = sum(sign < 0 for sign in signs), sum(sign > 0 for sign in signs)
    return table(context, "comparisons", rows, tested=len(adjusted), lower=lower, higher=higher)


def _compared(answer: Answer) -> Cell:
    """A paired comparison of logarithms in percent, with its p-value; or why there is none."""
    if not isinstance(answer, StatisticalTest):
        return Cell(why_blank=answer if isinstance(answer, str) else answer.why)
    ends = [None if end is None else 100.0 * math.expm1(end) for end in (answer.lower, answer.upper)]
    return Cell(
        ours=Value(
            estimate=100.0 * math.expm1(answer.estimate),
            lower=ends[0],
            upper=ends[1],
            p_value=answer.decisive_p,
            n=answer.n_units,
        )
    )


def _against(context: Context, spot: Spot) -> Cell:
    """A method's perplexity against that of the form that decides rarely."""
    method = spot.bindings["method"]
    if method == OURS[0]:
        return Cell(why_blank="it is what the others are compared with")
    return _compared(log_ratio(context, spot.bindings, method, OURS[0]))


# Steps to match


def _share_value(context: Context, matched: Matches) -> Value:
    """The mean share of the steps; a text where a run never matches, for then it is at least so much."""
    if matched.sample is None:
        return Value(estimate=math.nan)
    value = context.mean(matched.sample)
    if not matched.never:
        return value
    text = f"at least {value.estimate:.0f}; never in {matched.never} of {matched.runs} runs"
    if matched.never == matched.runs:
        text = f"never ({matched.runs} run{'s' * (matched.runs > 1)})"
    return replace(value, lower=None, upper=None, text=text)


def _match(context: Context, spot: Spot) -> Cell:
    others = spot.column.get("against", BASELINES)
    matched = matches(context, spot.bindings, spot.bindings["method"], others)
    if matched.sample is None:
        return Cell(why_blank=matched.why)
    return Cell(ours=_share_value(context, matched))


def shares(context: Context) -> Table | None:
    """Table 3: a row a model, and the mean of the models that have runs."""
    models = context.declared.list("$models")
    budgets = sorted({at["epsilon"] for at in places(context)})
    columns = [f"{epsilon:g}" for epsilon in budgets]
    matched = {
        (model, epsilon): matches(context, {"stands_for": model, "epsilon": epsilon})
        for model in models
        for epsilon in budgets
    }
    rows: list[Row] = []
    for model in models if budgets else ():
        row = tuple(_share_cell(context, model, epsilon, matched[model, epsilon]) for epsilon in budgets)
        rows.append(((model,), row))
    if budgets:
        means = [
            _mean_cell(context, epsilon, [matched[model, epsilon] for model in models]) for epsilon in budgets
        ]
        rows.append((("Mean",), tuple(means)))
    return table(context, "table-3", rows, columns=columns)


def _share_cell(context: Context, row: str, epsilon: float, matched: Matches) -> Cell:
    printed = context.printed("table-3", (row,), f"{epsilon:g}")
    if matched.sample is None:
        return blank(printed, matched.why)
    made = compared_cell(printed, _share_value(context, matched))
    return replace(made, difference=None) if matched.never else made


def _mean_cell(context: Context, epsilon: float, all_matches: Sequence[Matches]) -> Cell:
    samples = [matched.sample for matched in all_matches if matched.sample is not None]
    merged = mean_over(samples) if samples else all_matches[0].why
    never, runs = sum(matched.never for matched in all_matches), sum(matched.runs for matched in all_matches)
    whole = (
        Matches(sample=None, why=merged)
        if isinstance(merged, str)
        else Matches(sample=merged, runs=runs, never=never)
    )
    made = _share_cell(context, "Mean", epsilon, whole)
    alike = len(samples) == len(all_matches) and epsilon in context.declared.list("$budgets")
    return made if alike else replace(made, difference=None)


# What the noise was worth


def _done(context: Context, spot: Spot) -> list[Outcome]:
    return context.outcomes.done(spot.place.parts, spot.place.setting)


def _claimed(context: Context, spot: Spot) -> Cell:
    done, epsilon = _done(context, spot), spot.bindings["epsilon"]
    if not done:
        return Cell(why_blank=why(context, spot))
    about = sorted({str((run.claim or {}).get("about", "")) for run in done} - {""})
    words = f"{epsilon:g} ({', '.join(about)})" if about else f"{epsilon:g}"
    return Cell(ours=Value(estimate=epsilon, text=words))


def _together(context: Context, spot: Spot) -> Cell:
    """The largest certified epsilon of all that a step releases."""
    done = _done(context, spot)
    values = [value for run in done if usable(value := context.outcomes.number(run, spot.column["number"]))]
    if values:
        return Cell(ours=Value(estimate=max(values), n=len(values)))
    has_ledger = any(LEDGER in run.metrics for run in done)
    return Cell(why_blank="the run has no such number" if has_ledger else why(context, spot))


def _alone(context: Context, spot: Spot) -> Cell:
    """The largest certified epsilon of the noise as one query a step."""
    worth = [_worth(run) for run in _done(context, spot)]
    values = [value for value in worth if not isinstance(value, str)]
    if values:
        return Cell(ours=Value(estimate=max(values), n=len(values)))
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
    values = [value for run in done for value in run.traces.get(NOISE, ()) if usable(value)]
    values = values or [run.metrics[NOISE] for run in done if usable(run.metrics.get(NOISE, math.nan))]
    if not values:
        return Cell(why_blank="the run has no noise multiplier" if done else why(context, spot))
    low, high, mean = min(values), max(values), float(np.mean(values))
    same = high - low <= 1e-9 * high
    text = "" if same else f"{mean:.3f} ({number(low, 3)} to {number(high, 3)})"
    return Cell(ours=Value(estimate=mean, text=text))


# Memorisation


def _called_runs(context: Context, all_places: Sequence[Place], name: str) -> dict[str, bool]:
    """Whether each run of a table is called when its p-value is corrected for all of them, by its key.

    Benjamini and Hochberg (1995): of the runs called at most 1 - confidence are called falsely on average,
    where the tests are independent or positively dependent, as those of runs that share secrets are. A
    randomisation test's p-value cannot fall below one over its draws, so that a correction of the largest
    (Holm) could never call one of many runs.
    """
    runs = [run for place in all_places for run in context.outcomes.done(place.parts, place.setting)]
    values = {run.key: float(run.metrics.get(name, math.nan)) for run in runs}
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
    values = {run.key: float(run.metrics.get(name, math.nan)) for run in _done(context, spot)}
    return _counted(context, spot, {key: value <= level for key, value in values.items() if usable(value)})


def _counted(context: Context, spot: Spot, called: Mapping[str, bool]) -> Cell:
    """How many runs are called, of those that could be."""
    known = [called[run.key] for run in _done(context, spot) if run.key in called]
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
    chances = [
        tuple(factor * float(run.metrics.get(f"{name}{end}", math.nan)) for end in ("", "_low", "_high"))
        for run in _done(context, spot)
        if usable(run.metrics.get(name, math.nan))
    ]
    if not chances:
        return blank(None, context.outcomes.missing(spot.place.parts, spot.place.setting))
    mean = sum(chance[0] for chance in chances) / len(chances)
    low, high = min(chance[1] for chance in chances), max(chance[2] for chance in chances)
    value = Value(estimate=mean, text=f"{mean:.3g} ({low:.2g} to {high:.2g})", n=len(chances))
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
    setting = Setting.of(knob=knob)
    values = context.outcomes.values(ABLATION, knob_column(knob), setting) if knob in KNOBS else []
    return [
        (epsilon, value)
        for epsilon in context.outcomes.values(ABLATION, "epsilon", setting)
        for value in values
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
        knob_table = table(context, "ablation", rows, id=f"ablation-{knob}", knob=name, models=models)
        made += [] if knob_table is None else [knob_table]
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
