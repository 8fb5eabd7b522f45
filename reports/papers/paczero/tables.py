"""Cells of PACZero's tables that are no plain means, and both sides of its claim.

Inside the claim: trainings on secret candidate subsets, and the exact posterior of an adversary who knows all
but which subset it was. Outside: records of the universe against fresh records of the same distribution, by
attacks on the trained model. Every record of the universe shapes the released bits, whichever subset is
secret; a bound on the information about the index says nothing of whether a record was in the universe.
Differential privacy's claim is about a record among the trained ones, so there this game is inside the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np

from workbench.accounting import MutualInformation, NoGuarantee, guarantee_from_json
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import Guarantee
from workbench.reports.papers.paczero.paper import pools
from workbench.reports.papers.paczero.runs import (
    AGGZO,
    BASELINES,
    CLIFF,
    DEV,
    DPZERO,
    FT,
    HEADLINE,
    HYBRID,
    INSIDE,
    METHOD_OF,
    MEZO,
    MI,
    OUTSIDE,
    PLATEAU,
    SCORE,
    START,
    TASK_OF,
    TRACKS,
    UNANIMITY,
    ZPL,
    headline_rate,
    place_in,
    settings,
)
from workbench.reports.shared import statistics
from workbench.reports.shared.conditions import differences
from workbench.reports.shared.context import Bindings, Context, Place, Spot, blank
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.outcomes import Setting
from workbench.reports.shared.paper_cells import has_curve
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.student import t_quantile
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

ONE_MODEL = "this study trains one model, which stands in for OPT-1.3B"

UNTRAINED = "before training"
"""The row of the model before it is trained."""


# Words


def scale(context: Context, *parts: str) -> str:
    """How large the runs of some parts are, what stands in for what, and what did not finish."""
    runs = context.outcomes.part(parts)
    if not runs:
        return ""
    experiments = [run.experiment for run in runs]
    return context.render(
        "{% include 'scale' %}",
        models=sorted({str(each.model_parameters.get("base", each.model)) for each in experiments}),
        sizes=sorted({each.members for each in experiments}),
        steps=sorted({each.steps for each in experiments}),
        seeds=len({each.seed for each in experiments}),
        runs=len(runs),
        lost=sum(run.status is not Status.DONE for run in runs),
    )


def _directions(context: Context) -> list[int]:
    """How many directions a step DP-AggZO has in our runs."""
    runs = (context.outcomes.runs(part, Setting.of(method=AGGZO)) for part in (BASELINES, CLIFF))
    return sorted(
        {int(run.experiment.mechanism_parameters.get("directions", 1)) for some in runs for run in some}
    )


def _rates(context: Context) -> list[str]:
    """Our headline rate of each track."""
    rates = {track: headline_rate(context, track) for track in TRACKS}
    return sorted(f"{track} {rate:g}" for track, rate in rates.items() if rate is not None)


def _tracks(context: Context, part: str) -> list[str]:
    return sorted(context.outcomes.values(part, "track"))


WORDS: dict[str, Callable[..., Any]] = {
    "scale": scale,
    "aggzo_directions": _directions,
    "rates": _rates,
    "tracks": _tracks,
}


# Tables of the paper


def _place(context: Context, spot: Spot, **changes: Any) -> Place:
    """Where a cell's row and column stand in our study."""
    at = {**spot.bindings, **spot.column.get("at", {}), **changes}
    if at.get("model", "1.3B") != "1.3B":
        return Place(parts=(), setting=Setting(), why=ONE_MODEL)
    return place_in(context, spot.place.parts, at)


def _here(context: Context, spot: Spot) -> Cell:
    place = _place(context, spot)
    if place.why:
        return blank(spot.printed, place.why)
    return context.cell(spot.printed, place.parts, place.setting, spot.column["number"])


def _headline(context: Context, spot: Spot) -> Cell:
    """A cell of Table 1, whose MeZO stands in the paper's text."""
    at = {**spot.bindings, **spot.column["at"]}
    if at["method"] == MEZO and at["track"] == FT:
        place = "abstract" if at["model"] == "1.3B" else "section 4.2"
        quantity = f"non-private MeZO, {spot.column['name']} FT"
        spot = replace(spot, printed=context.printed("statements", (place, quantity), "value"))
    if at["method"] == UNTRAINED and at["model"] == "1.3B":  # of the same seeds, whatever trains from there
        start = Setting.of(task=TASK_OF[at["task"]], track=at["track"])
        return context.cell(spot.printed, spot.place.parts, start, START)
    return _here(context, spot)


def _of_seed(context: Context, spot: Spot) -> Cell:
    """One seed's number; its difference to the paper's means nothing."""
    place, rank = _place(context, spot), spot.column["seed"]
    if place.why:
        return blank(spot.printed, place.why)
    sample = context.outcomes.sample(place.parts, place.setting, SCORE)
    if sample is None:
        return blank(spot.printed, context.outcomes.missing(place.parts, place.setting))
    unit = context.outcomes.unit
    if rank >= sample.values.size:
        return blank(spot.printed, f"no such {unit}")
    ours = Value(estimate=float(sample.values[rank]), n=1)
    return Cell(
        paper=spot.printed, ours=ours, why_blank="" if spot.printed is not None else f"paper: no such {unit}"
    )


def _less(context: Context, spot: Spot) -> Cell:
    """Mean difference over seeds to the row that the column names."""
    places = _place(context, spot), _place(context, spot, **spot.column["less"])
    if places[0].why:
        return blank(spot.printed, places[0].why)
    first, base = (
        None if place.why else context.outcomes.sample(place.parts, place.setting, SCORE) for place in places
    )
    return context.compared(spot.printed, _difference(first, base))


def _difference(first: Sample | None, second: Sample | None) -> Sample | str:
    return "a run is missing" if first is None or second is None else differences(first, second)


def headline_rows(context: Context) -> list[Bindings]:
    """Table 1's rows, those that the paper has no row for, and the hybrid."""
    printed = context.published("table-1")
    known = dict.fromkeys(() if printed is None else (cell.row for cell in printed.cells))
    for part, words in ((HEADLINE, "{:g} nats"), (BASELINES, "epsilon {:g}")) if not known else ():
        for setting in settings(context, part):
            budget = setting.get("epsilon")
            if budget or part == HEADLINE:
                known[setting.get("track"), words.format(budget or 0), setting.get("method")] = None
    further = context.outcomes.values(HYBRID, "method")
    rows = [
        *known,
        *((track, "none", name) for track in TRACKS for name in (MEZO, UNTRAINED)),
        *((FT, "0.33 nats", name) for name in further),
    ]
    return [dict(zip(("track", "privacy", "method"), row, strict=True)) for row in rows]


def budget_rows(context: Context, table_id: str, track: str) -> list[Bindings]:
    """The printed budgets and ours, ascending."""
    printed = context.published(table_id)
    theirs = {} if printed is None else {float(cell.row[0]): cell.row[0] for cell in printed.cells}
    ours = context.outcomes.values(PLATEAU, "epsilon", Setting.of(track=track))
    return [{"nats": theirs.get(nats, f"{nats:g}")} for nats in sorted({*theirs, *ours})]


def cliff(context: Context) -> Table | None:
    """Table 3: a column an epsilon, of the paper or of ours."""
    printed = context.published("table-3")
    theirs = {} if printed is None else {float(column): column for column in printed.columns}
    epsilons = sorted({*theirs, *context.outcomes.values(CLIFF, "epsilon")})
    places: list[tuple[str, ...]] = [(DPZERO, ""), (AGGZO, "")]
    if printed is not None:
        places = list(dict.fromkeys(cell.row for cell in printed.cells))
    rows: list[Row] = []
    for place in places if epsilons else ():
        cells = []
        for epsilon in epsilons:
            setting = Setting.of(method=METHOD_OF.get(place[0], place[0]), epsilon=epsilon)
            cell = context.printed("table-3", place, theirs.get(epsilon, ""))
            cells.append(context.cell(cell, CLIFF, setting, SCORE))
        rows.append((place, tuple(cells)))
    return table(context, "table-3", rows, columns=[f"ε = {epsilon:g}" for epsilon in epsilons])


def means(context: Context) -> Table | None:
    """Every pool's mean and deviation as printed and as recomputed, with a t interval over the seeds."""
    rows: list[Row] = []
    for pool in () if context.paper is None else pools(context.paper):
        values = [cell.value for cell in pool.values]
        n, middle, spread = len(values), fmean(values), stdev(values)
        reach = t_quantile(0.5 + 0.5 * context.confidence, n - 1) * spread / math.sqrt(n)
        ours = Value(estimate=middle, lower=middle - reach, upper=middle + reach, spread=spread, n=n)
        shift = Value(estimate=middle - pool.mean.value)
        rows.append(((pool.name,), (Cell(paper=pool.mean, ours=ours, difference=shift),)))
    return table(context, "paper-means", rows)


def hybrid(context: Context) -> Table | None:
    """The hybrid beside PACZero-MI of its budget and PACZero-ZPL; None without hybrid runs.

    Gaussian noise excludes no candidate, so that in exact arithmetic unanimity asks for all M in both: a gain
    can come from the tolerance alone, or from where the weights are.
    """
    hybrids = settings(context, HYBRID)
    base = Setting.of(method=ZPL, task=hybrids[0].get("task"), track=FT) if hybrids else Setting()
    rows: list[Row] = []
    for setting in hybrids:
        rows.append(_hybrid_row(context, HYBRID, setting, base))
        same_budget = base.but(method=MI, epsilon=setting.get("epsilon"))
        rows.append(_hybrid_row(context, HEADLINE, same_budget, base))
    if hybrids:
        rows.append(_hybrid_row(context, HEADLINE, base, base))
    return table(context, "hybrid", list(dict(rows).items()))


def _hybrid_row(context: Context, part: str, setting: Setting, base: Setting) -> Row:
    budget = setting.get("epsilon")
    cells = [context.cell(None, part, setting, name) for name in (SCORE, DEV, UNANIMITY, "nats_used")]
    for name in (SCORE, UNANIMITY):
        ours, theirs = (
            context.outcomes.sample(*place, name) for place in ((part, setting), (HEADLINE, base))
        )
        is_base = setting == base
        cells.append(Cell(why_blank="this is it") if is_base else _alone(context, _difference(ours, theirs)))
    return (f"{setting.get('method')}{'' if budget is None else f', {budget:g} nats'}",), tuple(cells)


def _alone(context: Context, sample: Sample | str) -> Cell:
    return blank(None, sample) if isinstance(sample, str) else Cell(ours=context.mean(sample))


# Inside the claim and outside

LOW_FPR = 0.01
LIRA, LOSS = "lira", "loss"

GAME_CONFIDENCE = 0.95
"""Of the interval that a run of the game inside the claim brings along, whatever a report's own is."""

ABOUT_SUBSETS = (MI, ZPL)

MATCHED = 0.01
"""Promises whose allowed shares of right guesses differ by less are set beside each other."""


def both_sides(context: Context) -> Table | None:
    """Success inside and outside the claim, with what the claim allows; None without such runs."""
    runs = context.outcomes.part(INSIDE)
    games = {
        f"{run.experiment.model}, N = {run.experiment.members}, T = {run.experiment.steps}" for run in runs
    }
    zpl = context.outcomes.runs(INSIDE, Setting.of(method=ZPL))
    doubts = [run.experiment.attack_parameters.get("doubt") for run in zpl]
    return table(
        context,
        "inside-and-outside",
        [((_name(setting),), tuple(_sides_row(context, setting))) for setting in _claims(context)],
        game_percent=f"{100.0 * GAME_CONFIDENCE:g} %",
        trials=sorted({len(run.scores) for run in runs if run.status is Status.DONE}),
        games=sorted(games),
        is_trusting=any(doubt is not None and float(doubt) == 0.0 for doubt in doubts),
    )


def nats(context: Context) -> Table | None:
    """Nats that are claimed, charged, and measured inside the claim; None without such runs."""
    kept = [setting for setting in _claims(context) if setting.get("method") in ABOUT_SUBSETS]
    if not any(context.outcomes.runs(INSIDE, setting) for setting in kept):
        return None
    rows = [((_name(setting),), _nats_row(context, setting)) for setting in kept]
    return table(context, "inside-nats", rows, game_percent=f"{100.0 * GAME_CONFIDENCE:g} %")


def _nats_row(context: Context, setting: Setting) -> tuple[Cell, ...]:
    games = context.outcomes.done(INSIDE, setting)
    guarantee, why = _guarantee(games), context.outcomes.missing(INSIDE, setting)
    claimed = Value(estimate=guarantee.nats) if isinstance(guarantee, MutualInformation) else None
    names = ("attack_charged_nats", "attack_information", "attack_log_score")
    return _cell(claimed, why), *(_cell(_of_games(context, games, name), why) for name in names)


def _claims(context: Context) -> list[Setting]:
    """Method and budget of each row, in the study's order."""
    parts = (context.outcomes.settings(part, ("method", "epsilon")) for part in (INSIDE, OUTSIDE))
    return list(dict.fromkeys(setting for some in parts for setting in some))


def _name(setting: Setting) -> str:
    method, budget = setting.get("method"), setting.get("epsilon")
    unit = "nats" if method in ABOUT_SUBSETS else "epsilon"
    return str(method) if budget is None else f"{method}, {budget:g} {unit}"


def _sides_row(context: Context, setting: Setting) -> list[Cell]:
    games, attacked = (context.outcomes.done(part, setting) for part in (INSIDE, OUTSIDE))
    why_inside, why_outside = (context.outcomes.missing(part, setting) for part in (INSIDE, OUTSIDE))
    guarantee, best = _guarantee([*games, *attacked]), _best_success(context, attacked)
    allowed = None if guarantee is None else Value(estimate=100.0 * guarantee.max_success(0.5))
    if setting.get("method") in ABOUT_SUBSETS:
        inside, outside = _of_games(context, games, "attack_success", factor=100.0), best
        reasons = why_inside, why_outside, why_inside
    else:
        inside, outside = best, None
        reasons = (
            "claims nothing",
            "records against fresh ones are what its claim is about",
            "it releases no bits",
        )
    if guarantee is None:
        inside, outside = None, best
    bits = _of_games(context, games, "attack_bits_success", factor=100.0)
    return [
        _cell(context.value(OUTSIDE, setting, SCORE), why_outside),
        _cell(allowed, "claims nothing, so allows every guess"),
        _cell(inside, reasons[0]),
        _cell(outside, reasons[1]),
        _cell(_over_seeds(context, attacked, LOSS, _auc), why_outside),
        _cell(_over_seeds(context, attacked, LIRA, _auc), "LiRA is not run on it"),
        _cell(_over_seeds(context, attacked, LIRA, _low_fpr), "LiRA is not run on it"),
        _cell(bits, reasons[2]),
    ]


def _cell(value: Value | None, why: str) -> Cell:
    return Cell(why_blank=f"ours: {why}") if value is None else Cell(ours=value)


def _guarantee(runs: Sequence[Outcome]) -> Guarantee | None:
    """What is claimed; None for nothing."""
    for run in runs:
        form = None if run.claim is None else run.claim.get("guarantee")
        if isinstance(form, dict):
            guarantee = guarantee_from_json(form)
            return None if isinstance(guarantee, NoGuarantee) else guarantee
    return None


def _of_games(context: Context, games: Sequence[Outcome], name: str, *, factor: float = 1.0) -> Value | None:
    """A metric over one game's trials, with the interval of its record, or its mean over several seeds."""
    known = [game for game in games if name in game.metrics]
    if len(known) == 1:
        metrics = known[0].metrics
        lower, upper = (metrics.get(f"{name}_{end}") for end in ("lower", "upper"))
        return Value(
            estimate=factor * metrics[name],
            lower=None if lower is None else factor * lower,
            upper=None if upper is None else factor * upper,
            n=len(known[0].scores),
        )
    values = [(game.experiment.seed, factor * game.metrics[name]) for game in known]
    return _mean(context, values)


def _mean(context: Context, numbers: Sequence[tuple[int, float]]) -> Value | None:
    """Mean of numbers by seed."""
    if not numbers:
        return None
    units, values = zip(*numbers, strict=True)
    return context.mean(Sample(np.array(values), units, context.outcomes.unit))


def _by_seed(runs: Sequence[Outcome], attack: str, measure: Callable[[Outcome], float]) -> dict[int, float]:
    """A number of an attack's curve, by seed."""
    return {
        run.experiment.seed: measure(run)
        for run in runs
        if run.experiment.attack == attack and has_curve(run)
    }


def _over_seeds(
    context: Context, runs: Sequence[Outcome], attack: str, measure: Callable[[Outcome], float]
) -> Value | None:
    return _mean(context, list(_by_seed(runs, attack, measure).items()))


def _best_success(context: Context, runs: Sequence[Outcome]) -> Value | None:
    """Of the attack with the larger mean success, percent."""
    values = []
    for attack in (LOSS, LIRA):
        value = _over_seeds(context, runs, attack, crossed_success)
        if value is not None:
            one_seed = value.n == 1
            values.append(_over_records(value, runs, attack, context.confidence) if one_seed else value)
    return max(values, key=lambda value: value.estimate, default=None)


def _over_records(value: Value, runs: Sequence[Outcome], attack: str, confidence: float) -> Value:
    """The share of one seed with an interval over its records, as if each were a trial of its own."""
    count = next(len(run.scores) for run in runs if run.experiment.attack == attack and has_curve(run))
    right, error = round(value.estimate / 100.0 * count), (1.0 - confidence) / 2.0
    lower, upper = binomial_lower(right, count, error), binomial_upper(right, count, error)
    return replace(value, lower=100.0 * lower, upper=100.0 * upper)


def crossed_success(outcome: Outcome) -> float:
    """Percent of right guesses at even odds, by the threshold that is best on the other half of the records.

    Halves are the odd and the even records, whose order the membership does not depend on.
    """
    scores, members = np.array(outcome.scores), np.array(outcome.included, dtype=bool)
    rates = []
    for half in (0, 1):
        chosen, counted = slice(half, None, 2), slice(1 - half, None, 2)
        called = scores[counted] >= _best_threshold(scores[chosen], members[chosen])
        inside = members[counted]
        if inside.all() or not inside.any():
            return math.nan
        rates.append(0.5 * (float(called[inside].mean()) + float((~called[~inside]).mean())))
    return 100.0 * float(np.mean(rates))


def _best_threshold(scores: np.ndarray, members: np.ndarray) -> float:
    """The score from which on calling a record a member has the largest TPR less FPR."""
    order = np.unique(scores)
    inside = np.array([float((scores[members] >= value).mean()) for value in order])
    outside = np.array([float((scores[~members] >= value).mean()) for value in order])
    return float(order[int(np.argmax(inside - outside))])


def _auc(outcome: Outcome) -> float:
    return float(outcome.metrics.get("roc_auc", math.nan))


def _low_fpr(outcome: Outcome) -> float:
    curve = roc_curve(np.array(outcome.scores), np.array(outcome.included))
    return float(curve.tpr[curve.fpr <= LOW_FPR].max())


# Attacks on records at equal utility


def utility(context: Context) -> Table | None:
    """DPZero less PACZero-MI, where their promises allow nearly as many right guesses at even odds.

    A method that learns less gives less away, so attacks compare where both learn equally well: whether the
    two are equally accurate is measured, and stands beside what the attacks find.
    """
    allowed = {
        method: {
            setting: guarantee.max_success(0.5)
            for setting in context.outcomes.settings(
                OUTSIDE, ("method", "epsilon"), Setting.of(method=method)
            )
            for guarantee in [_guarantee(context.outcomes.done(OUTSIDE, setting))]
            if guarantee is not None
        }
        for method in (MI, DPZERO)
    }
    rows = [
        _utility_row(context, ours, theirs)
        for ours, most in allowed[MI].items()
        for theirs, other in allowed[DPZERO].items()
        if abs(most - other) < MATCHED
    ]
    return table(context, "equal-utility", rows)


def _utility_row(context: Context, ours: Setting, theirs: Setting) -> Row:
    def less(measure: Callable[[Context, Setting], Sample | None]) -> Sample | str:
        return _difference(measure(context, theirs), measure(context, ours))

    accuracy = less(lambda context, setting: context.outcomes.sample(OUTSIDE, setting, SCORE))
    guesses = [_alone(context, less(partial(_guesses, attack))) for attack in (LOSS, LIRA)]
    return (_name(theirs), _name(ours)), (_alone(context, accuracy), _margin(context, accuracy), *guesses)


def _guesses(attack: str, context: Context, setting: Setting) -> Sample | None:
    """Percent of right guesses by an attack, one a seed."""
    known = _by_seed(context.outcomes.done(OUTSIDE, setting), attack, crossed_success)
    return Sample(np.array(list(known.values())), tuple(known), context.outcomes.unit) if known else None


def _margin(context: Context, sample: Sample | str) -> Cell:
    """The farther end of the interval of twice the tests' level."""
    if isinstance(sample, str):
        return blank(None, sample)
    if context.confidence <= 0.75:
        return blank(None, "two tests at such a level show nothing")
    both = statistics.mean_interval(sample, confidence=2.0 * context.confidence - 1.0)
    if both.lower is None or both.upper is None:
        return blank(None, both.why)
    return Cell(ours=Value(estimate=max(-both.lower, both.upper), n=sample.values.size))


ROWS = {
    "headline": headline_rows,
    "budgets, FT": lambda context: budget_rows(context, "table-2", FT),
    "budgets, LoRA": lambda context: budget_rows(context, "table-11", "LoRA"),
}
CELLS = {"here": _here, "headline": _headline, "of seed": _of_seed, "less": _less}
TABLES = {
    "both sides": both_sides,
    "nats": nats,
    "utility": utility,
    "cliff": cliff,
    "hybrid": hybrid,
    "means": means,
}
