"""Cells, rows and words of FERRET's tables: Tables 1 to 6 and 8 to 14, and what the paper leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.estimation.clopper_pearson import half_split
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import BoolArray, FloatArray
from workbench.reports.papers.ferret.figures import dithers, final_losses
from workbench.reports.papers.ferret.game import game_facts, three_views, transcript_table
from workbench.reports.papers.ferret.places import (
    AUC,
    CEILING,
    COMPARISON,
    DPSGD,
    EPOCHS,
    EPSILONS,
    FIRED,
    FIRING,
    GRANULARITIES,
    GROUP_COUNT,
    HALF,
    HEAD_ROOM,
    LIRA,
    LOW_FPR,
    MAX,
    METHODS,
    MODEL_MEAN,
    MODELS,
    NON_DP,
    QUARTER,
    RATES,
    SECONDS,
    TEST,
    TPR_AT_LOW_FPR,
    TWO,
    UNTRAINED,
    at,
    epochs_of,
    epsilons_of,
    geometric,
    guessing_deviation,
    logarithm,
    methods,
    missing,
    models,
    place_of,
    places_of_models,
    plain,
    plural_epochs,
    sample,
    sample_of,
    setting_at,
    trained,
)
from workbench.reports.shared.cells import fixed
from workbench.reports.shared.context import Bindings, Context, Spot
from workbench.reports.shared.grids import Row, cells, table
from workbench.reports.shared.numbers import number, percent
from workbench.reports.shared.outcomes import METHOD, Number, Setting
from workbench.reports.shared.paper_cells import NOT_IN_PAPER, compared_cell, has_curve
from workbench.reports.shared.statistics import Sample, matched
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

MakeCell = Callable[[Context, Spot], Cell]

HEAD_ROOM_EPSILON = 0.5
"""Of Table 3."""

ALPHABETS = {"signSGD": 2, "QSGD": 256, "DP-SIGNSGD": 2, "FERRET": 2}
"""Values that a released update may take: signs, or QSGD's levels at the most bits that Table 1 allows."""


# Rows and columns


def budgets(context: Context) -> list[float | None]:
    """Budgets of a table's columns: the paper's and ours, ascending; None, no budget, comes last."""
    return [*sorted({*EPSILONS, *epsilons_of(context)}), None]


def settings(context: Context) -> list[Bindings]:
    """Method and epochs of the rows, the paper's first; none where the comparison was not run."""
    runs = context.outcomes.part(COMPARISON)
    epochs = sorted({*EPOCHS, *epochs_of(context)})
    known = [(method, count) for method in METHODS for count in epochs]
    further = [
        (method, count)
        for method in methods(context)
        if method not in METHODS
        for count in context.outcomes.values(COMPARISON, "epochs", Setting.of(method=method))
    ]
    return [{METHOD: method, "epochs": count} for method, count in (*known, *further)] if runs else []


def _compressed(context: Context) -> list[Bindings]:
    """Rows of Table 1: the paper's methods, then our groupings that have run."""
    ours = [method for method in GRANULARITIES if _released(context, method)]
    return [{METHOD: method} for method in (*ALPHABETS, *ours)] if _has_groups(context) else []


def _head_room(context: Context) -> list[Bindings]:
    return [{METHOD: method} for method in (MAX, HALF, QUARTER, TWO)] if _has_groups(context) else []


def _has_groups(context: Context) -> bool:
    return bool(context.outcomes.part((COMPARISON, HEAD_ROOM)))


def _models(context: Context) -> list[Bindings]:
    """Our models with the paper's names, then the mean; a model that stands for none stands for itself."""
    rows: list[Bindings] = [
        {"model": ours, "stands_for": theirs, "label": ours if ours == theirs else f"{theirs} ({ours})"}
        for ours, theirs in places_of_models(context).items()
    ]
    rows.append({"model": None, "stands_for": MODEL_MEAN, "label": MODEL_MEAN})
    return rows if context.outcomes.part(COMPARISON) else []


def _settings_by_model(context: Context) -> list[Bindings]:
    return [{**row, **model} for row in settings(context) for model in _models(context)]


def _ratios(context: Context) -> list[Bindings]:
    """Rows of time ratios: over each base that the method is not, ours and that of the paper's means."""
    return [
        {**row, "base": base, "is_printed": is_printed}
        for row in settings(context)
        for base in (DPSGD, NON_DP)
        if row[METHOD] not in (DPSGD, base)
        for is_printed in (False, True)
    ]


def _rated(context: Context) -> list[Bindings]:
    """Methods and budgets that were trained at several learning rates."""
    places = {(run.experiment.variant, run.experiment.epsilon) for run in context.outcomes.part(RATES)}
    order = dict(zip(METHODS, range(len(METHODS)), strict=True))
    ordered = sorted(places, key=lambda place: (order.get(place[0], len(METHODS)), str(place)))
    return [{METHOD: method, "epsilon": epsilon} for method, epsilon in ordered]


ROWS: Mapping[str, Callable[[Context], Sequence[Bindings]]] = {
    "compressed": _compressed,
    "settings": settings,
    "head-room": _head_room,
    "models": _models,
    "settings by model": _settings_by_model,
    "ratios": _ratios,
    "rated": _rated,
    "dithers": lambda context: [{"sigma": sigma} for sigma in dithers(context)],
}

COLUMNS: Mapping[str, Callable[[Context], Sequence[Any]]] = {
    "budgets": budgets,
    "LiRA's budgets": lambda context: [*epsilons_of(context, LIRA), None],
    "learning rates": lambda context: context.outcomes.values(RATES, "learning_rate"),
}


# Words


def scale(context: Context, part: str = COMPARISON) -> dict[str, Any]:
    """At which scale our runs were made, and what did not finish."""
    runs = context.outcomes.part(part)
    return {
        "runs": len(runs),
        "models": {name: MODELS[name] for name in models(context) if name in MODELS},
        "seeds": len({run.experiment.seed for run in runs}),
        "sizes": sorted({run.experiment.members for run in runs}),
        "lost": sum(run.status is not Status.DONE for run in runs),
        "capped": _capped(runs),
    }


def _capped(runs: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Finished settings whose budget is above the ceiling that they state."""
    lowest: dict[tuple[str, float, float], float] = {}
    for run in runs:
        most, epsilon = run.metrics.get(CEILING), run.experiment.epsilon
        if run.status is Status.DONE and most is not None and epsilon is not None and epsilon > most:
            place = run.experiment.variant, epsilon, run.experiment.epochs
            lowest[place] = min(most, lowest.get(place, most))
    return [
        {"method": method, "epsilon": epsilon, "epochs": plural_epochs(epochs), "ceiling": most}
        for (method, epsilon, epochs), most in lowest.items()
    ]


def draw(context: Context) -> dict[str, Any] | None:
    """How much luck the draw of members is; None where nothing was trained."""
    fewest = min((run.experiment.members for run in trained(context)), default=0)
    return {"members": fewest, "deviation": guessing_deviation(fewest)} if fewest else None


def harm(context: Context) -> dict[str, int]:
    """In how many settings with a budget training made the base models worse, of those known."""
    base = {model: baseline(context, model, TEST) for model in models(context)}
    worse = compared = 0
    for row in settings(context):
        for epsilon in budgets(context)[:-1]:
            losses = sample(context, at(row[METHOD], row["epochs"], epsilon), TEST)
            before = [] if losses is None else [base.get(str(unit)) for unit in losses.units]
            if losses is None or None in before or losses.values.min() <= 0.0:
                continue
            compared += 1
            ratios = losses.values / np.array(before, dtype=np.float64)
            worse += bool(np.mean(np.log(ratios)) > 0.0)
    return {"worse": worse, "compared": compared}


def _groups_at(context: Context) -> dict[str, Any]:
    """T and s of the runs behind Table 3, ours and the paper's."""
    runs = [run.experiment for row in _head_room(context) for run in head_room_runs(context, row[METHOD])]
    printed = context.published("table-3")
    theirs = {} if printed is None else printed.settings
    return {
        "ours": sorted(
            {
                (experiment.steps, experiment.batch_size / experiment.members, experiment.epochs)
                for experiment in runs
            }
        ),
        "theirs": theirs if {"steps", "sampling_probability"} <= set(theirs) else {},
    }


def _guessing(context: Context) -> dict[str, float]:
    """What pure guessing shows in Table 10's way, on the smallest number of members."""
    fewest = min((run.experiment.members for run in context.outcomes.part(COMPARISON)), default=0)
    return {"members": fewest, "advantage": math.sqrt(math.pi / (4.0 * fewest)) if fewest else math.nan}


WORDS: Mapping[str, Callable[..., Any]] = {
    "scale": scale,
    "draw": draw,
    "harm": harm,
    "groups_at": _groups_at,
    "guessing": _guessing,
    "game": game_facts,
    "epochs_words": lambda context, epochs: plural_epochs(epochs),
    "longest": lambda context: max(epochs_of(context), default=0),
    "rate_epochs": lambda context: context.outcomes.values(RATES, "epochs"),
    "models": models,
    "seeds": lambda context: sorted({run.experiment.seed for run in trained(context)}),
}


# Means over models, and each model


def _compared(spot: Spot, ours: Value | None, missing_words: str = "") -> Cell:
    """Ours beside the printed cell, each blank with its reason."""
    unreadable = f"paper: {spot.unreadable}" if spot.unreadable else ""
    if ours is not None:
        return compared_cell(spot.printed, ours, why=unreadable or NOT_IN_PAPER)
    reasons = [unreadable, f"ours: {missing_words}"]
    return Cell(paper=spot.printed, why_blank="; ".join(reason for reason in reasons if reason))


def no_such_budget(context: Context, setting: Setting) -> str:
    """Why a method has no number in a column; empty where it may have one."""
    method, epsilon = setting.get(METHOD), setting.get("epsilon")
    known = method != NON_DP
    if method not in METHODS:
        place = Setting.of(method=method)
        known = context.once(
            f"budgets of {method}", lambda: bool(context.outcomes.values(COMPARISON, "epsilon", place))
        )
    if known and epsilon is None:
        return f"{method} always has a budget"
    return "" if known or epsilon is None else f"{method} has no budget"


def _budgeted(cell: MakeCell) -> MakeCell:
    """A cell of a table by budget, blank where its method has no such budget."""

    def made(context: Context, spot: Spot) -> Cell:
        none = no_such_budget(context, setting_at(spot.bindings))
        return Cell(why_blank=none) if none else cell(context, spot)

    return made


def _mean(context: Context, spot: Spot) -> Cell:
    """Mean over models with its deviation, or with the least and the largest model."""
    setting, metric, decimals = setting_at(spot.bindings), spot.column["number"], spot.column["decimals"]
    values = sample(context, setting, metric)
    if values is None:
        return _compared(spot, None, missing(context, setting, metric))
    mean, each = context.mean(values), values.by_unit().values
    if not spot.column.get("ranged"):
        return _compared(spot, mean)
    words = [fixed(float(value), decimals) for value in (mean.estimate, each.min(), each.max())]
    text = f"{words[0]} ({words[1]} to {words[2]})"
    return _compared(
        spot, Value(estimate=mean.estimate, lower=mean.lower, upper=mean.upper, n=mean.n, text=text)
    )


def _of_model(context: Context, spot: Spot) -> Cell:
    """One model's number (its mean over seeds), or the mean over the models."""
    setting, metric, model = setting_at(spot.bindings), spot.column["number"], spot.bindings["model"]
    values = sample(context, setting, metric, among=None if model is None else [model])
    if values is None:
        return _compared(spot, None, missing(context, setting, metric, model=model))
    if model is None:
        return _compared(spot, plain(context.mean(values)))
    return _compared(spot, Value(estimate=float(np.mean(values.values))))


def baseline(context: Context, model: str, metric: str) -> float | None:
    """Perplexity of a base model as it was, over the records of all other tables; None where it has not run.

    It is of non-members for `TEST`, of members for `TRAIN`.
    """
    for run in sorted(context.outcomes.part(UNTRAINED), key=lambda run: run.experiment.seed):
        value = run.metrics.get(metric, math.nan)
        if run.experiment.model == model and usable(value):
            return float(value)
    return None


def _before(context: Context, spot: Spot) -> Cell:
    """A model's perplexity before training, or the mean over the models."""
    metric, model, ours = spot.column["number"], spot.bindings["model"], models(context)
    if model is not None:
        value = baseline(context, model, metric) if model in ours else None
        why = "no run states it" if model in ours else "no part of this run"
        return _compared(spot, None if value is None else Value(estimate=value, n=1), why)
    known = {name: value for name in ours if (value := baseline(context, name, metric)) is not None}
    if not known:
        return _compared(spot, None, "no run states it")
    values = Sample(np.array(list(known.values())), tuple(known), context.outcomes.unit)
    return _compared(spot, plain(context.mean(values)))


# Table 1 and Table 3


def _released(context: Context, method: str) -> list[Outcome]:
    """Finished runs behind a grouping's row of Table 1, of the comparison or else for the head-room."""
    setting = at(method, max(epochs_of(context), default=0), HEAD_ROOM_EPSILON)
    return [
        run
        for run in context.outcomes.runs((COMPARISON, HEAD_ROOM), setting)
        if run.status is Status.DONE
        and all(usable(run.metrics.get(name, math.nan)) for name in (GROUP_COUNT, FIRED, FIRING))
    ]


def _bits(context: Context, spot: Spot) -> Cell:
    """log2 of the number of values that an update takes, or what an update is one of."""
    method = spot.bindings[METHOD]
    ours = Value(estimate=math.log2(ALPHABETS.get(method, ALPHABETS["FERRET"])))
    if spot.column["number"] == "granularity":
        is_group = method == "FERRET" or method not in ALPHABETS
        ours = Value(estimate=math.nan, text="group" if is_group else "coordinate")
    return compared_cell(
        spot.printed, ours, why=NOT_IN_PAPER if method in ALPHABETS else "not printed by grouping"
    )


def _signs_a_step(run: Outcome) -> float:
    return run.metrics[FIRED] / run.experiment.steps


def _mask_bits_a_step(run: Outcome) -> float:
    p = min(max(run.metrics[FIRING], 0.0), 1.0)
    return run.metrics[GROUP_COUNT] * -sum(q * math.log2(q) for q in (p, 1.0 - p) if q > 0.0)


RELEASED: Mapping[str, str | Number] = {
    GROUP_COUNT: GROUP_COUNT,
    "signs": _signs_a_step,
    "mask": _mask_bits_a_step,
}


def _release(context: Context, spot: Spot) -> Cell:
    """What our runs released, by grouping."""
    method = spot.bindings[METHOD]
    if method in ALPHABETS:
        why = "one update a parameter, and no mask: not trained here"
        return Cell(why_blank="differs by grouping: see the rows below" if method == "FERRET" else why)
    values = sample_of(context, _released(context, method), RELEASED[spot.column["number"]])
    return Cell(ours=_exact(values), why_blank="not in the paper")


def _exact(sample: Sample) -> Value:
    """Mean (least to largest) over the models of a number that no chance is in."""
    values = sample.by_unit().values
    mean, least, most = (float(find(values)) for find in (np.mean, np.min, np.max))
    text = number(mean) if least == most else f"{number(mean)} ({number(least)} to {number(most)})"
    return Value(estimate=mean, n=sample.n_units, text=text)


def head_room_runs(context: Context, method: str) -> list[Outcome]:
    """Runs behind a row of Table 3: of the head-room's, else of the comparison's longest training."""
    for part in (HEAD_ROOM, COMPARISON):
        for epochs in reversed(epochs_of(context, part)):
            runs = context.outcomes.runs(part, at(method, epochs, HEAD_ROOM_EPSILON))
            if runs:
                return runs
    return []


def _head_room_cell(context: Context, spot: Spot) -> Cell:
    """A number of Table 3."""
    runs, metric = head_room_runs(context, spot.bindings[METHOD]), spot.column["number"]
    done = [run for run in runs if run.status is Status.DONE]
    if done and all(usable(context.outcomes.number(run, metric)) for run in done):
        values = sample_of(context, done, metric)
        return _compared(spot, context.mean(values) if metric == AUC else _exact(values))
    failed = next((run.error for run in runs if run.error), "")
    why = "no run of it is finished" if runs else "no part of this run"
    if done:
        why = f"{metric} is missing or not finite in a finished run"
    elif failed:
        why = f"failed: {failed}"
    return _compared(spot, None, why)


# What the paper leaves out


def _time_ratio(context: Context, spot: Spot) -> Cell:
    """Training time over that of a base of the same epochs and budget."""
    first, base = setting_at(spot.bindings), spot.bindings["base"]
    second = at(base, first.get("epochs"), None if base == NON_DP else first.get("epsilon"))
    if spot.bindings["is_printed"]:
        return _printed_ratio(context, (first, second))
    none = no_such_budget(context, first) or no_such_budget(context, second)
    if none:
        return Cell(why_blank=none)
    samples = []
    for setting in (first, second):
        seconds = sample(context, setting, SECONDS)
        if seconds is None or np.min(seconds.values) <= 0.0:
            return Cell(why_blank=f"{setting.get(METHOD)}: {missing(context, setting, SECONDS)}")
        samples.append(seconds)
    ratio = ratio_of(samples[0], samples[1], context.confidence)
    return Cell(why_blank=f"no {context.outcomes.unit} has both") if ratio is None else Cell(ours=ratio)


def _printed_ratio(context: Context, sides: tuple[Setting, Setting]) -> Cell:
    """The quotient of two means of the paper's Table 6."""
    if context.published("table-6") is None:
        return Cell(why_blank="no printed numbers")
    places = (place_of(setting) for setting in sides)
    first, second = (context.printed("table-6", place[:2], place[2]) for place in places)
    if first is None or second is None:
        return Cell(why_blank="not printed")
    return Cell(ours=Value(estimate=first.value / second.value))


def ratio_of(first: Sample, second: Sample, confidence: float) -> Value | None:
    """Geometric mean over units of first over second, with its interval; None where no unit has both."""
    pairs = matched(logarithm(first), logarithm(second))
    if pairs.first is None or pairs.second is None:
        return None
    ratios = np.exp(pairs.first.values - pairs.second.values)
    return geometric(Sample(ratios, pairs.first.units, first.unit, pairs.first.cells), confidence)


def held_out_advantage(scores: FloatArray, members: BoolArray) -> float:
    """TPR less FPR at a threshold chosen on one half of each class and judged on the other, both ways round.

    The halves are drawn by a fixed generator, so that equal scores give the same number.

    Args:
        scores: Shape `(n,)`, finite; higher means member.
        members: Labels, shape `(n,)`; at least two of each class.
    """
    half = half_split(members, np.random.default_rng(0))
    gains = []
    for chosen in (half, ~half):
        curve = roc_curve(scores[chosen], members[chosen])
        threshold = curve.thresholds[int(np.argmax(curve.tpr - curve.fpr))]
        guess, truth = scores[~chosen] >= threshold, members[~chosen]
        gains.append(float(np.mean(guess[truth]) - np.mean(guess[~truth])))
    return float(np.mean(gains))


def _paid(context: Context, spot: Spot) -> Cell:
    """The advantage with its threshold chosen on other records than it is judged on."""
    setting = setting_at(spot.bindings)
    done = context.outcomes.done(COMPARISON, setting)
    if not done:
        return Cell(why_blank=missing(context, setting, AUC))
    if not all(has_curve(run) and 2 <= sum(run.included) <= len(run.included) - 2 for run in done):
        return Cell(why_blank="a finished run has no scores")
    values = sample_of(
        context, done, lambda run: held_out_advantage(np.array(run.scores), np.array(run.included))
    )
    return Cell(ours=plain(context.mean(values)))


def attacks_table(context: Context) -> Table | None:
    """LiRA beside the confidence attack on the same trainings: AUC and TPR at FPR 1 %; None without LiRA."""
    entry = context.declared.entry("table", "attacks")
    rows: list[Row] = []
    for method in methods(context, LIRA):
        for epochs in epochs_of(context, LIRA):
            for attack, part in (("confidence", COMPARISON), ("LiRA", LIRA)):
                for name, metric in (("AUC", AUC), (f"TPR at FPR {percent(LOW_FPR)}", TPR_AT_LOW_FPR)):
                    place = {METHOD: method, "epochs": epochs, "part": part, "metric": metric}
                    row = cells(context, entry, place)
                    if any(cell.ours is not None for cell in row):
                        rows.append(((method, str(epochs), attack, name), row))
    return table(context, "attacks", rows)


def _attack(context: Context, spot: Spot) -> Cell:
    """An attack's number on the models that LiRA was run on."""
    setting, part, metric = setting_at(spot.bindings), spot.bindings["part"], spot.bindings["metric"]
    shared = [run.experiment.model for run in context.outcomes.runs(LIRA, setting)]
    if not shared:
        return Cell(why_blank="LiRA was not run here")
    values = sample(context, setting, metric, part=part, among=shared)
    if values is None:
        return Cell(why_blank=missing(context, setting, metric, part=part))
    return Cell(ours=context.mean(values))


def _rate(context: Context, spot: Spot) -> Cell:
    """Geometric mean over models of the test perplexity over the untrained base's, at a learning rate.

    The paper prints one rate for DPSGD and FERRET and tunes neither; whether a method teaches a small model
    anything hangs on it.
    """
    logs: dict[str, list[float]] = {}
    for run in context.outcomes.part(RATES):
        experiment = run.experiment
        place = {METHOD: experiment.variant, "epsilon": experiment.epsilon}
        if {**place, "learning_rate": experiment.learning_rate} != spot.bindings:
            continue
        base, after = baseline(context, experiment.model, TEST), run.metrics.get(TEST, math.nan)
        if base is None or not usable(after):
            return Cell(why_blank="not every run of this cell is finished")
        logs.setdefault(experiment.model, []).append(math.log(after / base))
    if not logs:
        return Cell(why_blank="not in the study")
    means = np.array([np.mean(values) for values in logs.values()])
    log_rate = context.mean(Sample(means, tuple(logs), context.outcomes.unit))
    ends = [None if end is None else math.exp(end) for end in (log_rate.lower, log_rate.upper)]
    return Cell(ours=Value(estimate=math.exp(log_rate.estimate), lower=ends[0], upper=ends[1], n=log_rate.n))


def _median(context: Context, spot: Spot) -> Cell:
    """Median of the toy regression's final losses, with their quartiles."""
    losses = final_losses(context, spot.bindings["sigma"])
    if losses is None:
        return Cell(why_blank="a run's loss is missing or not finite")
    low, middle, high = (float(value) for value in np.quantile(losses.values, [0.25, 0.5, 0.75]))
    return Cell(ours=Value(estimate=middle, lower=low, upper=high, n=losses.n_units))


def _to_no_dither(context: Context, spot: Spot) -> Cell:
    """The final loss over that without dither, paired over seeds."""
    sigma = spot.bindings["sigma"]
    losses, base = final_losses(context, sigma), final_losses(context, 0.0)
    if losses is None:
        return Cell(why_blank="a run's loss is missing or not finite")
    if sigma == 0.0:
        return Cell(why_blank="this is the one without dither")
    if base is None:
        return Cell(why_blank="the runs without dither are missing")
    ratio = ratio_of(losses, base, context.confidence)
    return Cell(why_blank="no seed has both") if ratio is None else Cell(ours=ratio)


CELLS: Mapping[str, MakeCell] = {
    "mean": _budgeted(_mean),
    "of model": _budgeted(_of_model),
    "before": _before,
    "bits": _bits,
    "release": _release,
    "head-room": _head_room_cell,
    "time ratio": _time_ratio,
    "paid": _budgeted(_paid),
    "attack": _budgeted(_attack),
    "rate": _rate,
    "median": _median,
    "to no dither": _to_no_dither,
}

TABLES: Mapping[str, Callable[[Context], Table | Sequence[Table] | None]] = {
    "three views": three_views,
    "transcript": transcript_table,
    "attacks": attacks_table,
}
