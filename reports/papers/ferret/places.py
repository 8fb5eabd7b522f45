"""Where FERRET's numbers stand: in our runs, as samples over models, and in the paper's tables, as intervals.

The unit of replication is the model, as in the paper's tables. Every model and method of a seed has the same
members and non-members. If the members happen to be the easier texts, all models show an AUC above one half
without any leak: an interval over models does not see that luck. What each record adds to an AUC (DeLong et
al. 1988) does, also where two AUCs on the same records differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count, pairwise, product
from typing import Any

import numpy as np
from scipy.stats import rankdata

from workbench.checks.published import (
    PublishedCell,
    PublishedPaper,
    PublishedTable,
    QualitativeClaim,
    printed_numbers,
)
from workbench.core.errors import InputError, unknown_name
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import FloatArray
from workbench.reports.shared import statistics
from workbench.reports.shared.context import Bindings, Context
from workbench.reports.shared.declared import declared
from workbench.reports.shared.findings import listed
from workbench.reports.shared.outcomes import METHOD, Number, Setting
from workbench.reports.shared.paper_cells import has_curve
from workbench.reports.shared.printed import Interval, cell, stands_for
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Value

DPSGD, NON_DP = "DPSGD", "Non-DP"
MAX, HALF, QUARTER, EIGHTH, TWO = (f"FERRET-{size}" for size in ("MAX", "HALF", "QUARTER", "EIGHTH", "2"))
METHODS = (DPSGD, MAX, EIGHTH, TWO, NON_DP)
"""The paper's methods in the order of its tables."""

GRANULARITIES = (MAX, HALF, QUARTER, EIGHTH, TWO)
"""All groupings, finest first."""

EPOCHS = (1, 3, 5)
EPSILONS = (0.1, 0.5, 1.0, 2.0)

COMPARISON, HEAD_ROOM, LIRA, TRANSCRIPT, DITHER = "comparison", "head-room", "lira", "transcript", "dither"
UNKNOWN_BATCHES, UNTRAINED, RATES = "unknown batches", "untrained", "learning rates"
"""Parts of the study."""

TRAINED = (COMPARISON, HEAD_ROOM, LIRA)
"""Parts whose experiments train one of the base models each."""

CAPPED = "capped"
"""Tag of a method that is run at p = 1 where the budget of the method that it names is above its ceiling."""

MODELS: Mapping[str, str] = declared("ferret").content["own"]["models"]
"""Which of the paper's models each of ours stands in for, in the order of its Tables 12 to 14."""

PAPER_MODELS = tuple(dict.fromkeys(MODELS.values()))

MODEL_MEAN = "Mean"
"""The paper's row for the mean over models."""

TEST, TRAIN, GAP = "perplexity_non_member", "perplexity_member", "gap"
AUC, ADVANTAGE, SECONDS = "roc_auc", "advantage", "training_seconds"
GROUP_COUNT, CEILING, FIRING, FIRED = "groups", "ceiling_nats", "firing_probability", "fired"
TPR_AT_LOW_FPR = "tpr_at_low_fpr"
"""Numbers of a run; advantage, gap (test less train perplexity) and the last are computed here."""

LOW_FPR = 0.01

METRIC_WORDS: Mapping[str, str] = declared("ferret").content["own"]["metrics"]
"""Numbers in a sentence."""

POSITIVE = (TEST, TRAIN, SECONDS)
"""Numbers that are compared by ratios, on a logarithmic scale."""


def optimistic_advantage(outcome: Outcome) -> float:
    """Largest TPR less FPR over all thresholds on the same scores, as in the paper; NaN without scores."""
    if not has_curve(outcome):
        return math.nan
    curve = roc_curve(np.array(outcome.scores), np.array(outcome.included))
    return float(np.max(curve.tpr - curve.fpr))


def observed_tpr(outcome: Outcome) -> float:
    """Observed true-positive rate at a false-positive rate of `LOW_FPR` or less; NaN without scores."""
    if not has_curve(outcome):
        return math.nan
    curve = roc_curve(np.array(outcome.scores), np.array(outcome.included))
    return float(curve.tpr[curve.fpr <= LOW_FPR].max())


def _gap(outcome: Outcome) -> float:
    test, train = (float(outcome.metrics.get(name, math.nan)) for name in (TEST, TRAIN))
    return test - train


NUMBERS: Mapping[str, Number] = {
    ADVANTAGE: optimistic_advantage,
    TPR_AT_LOW_FPR: observed_tpr,
    SECONDS: lambda outcome: float(outcome.cost.get(SECONDS, math.nan)),
    GAP: _gap,
}


# What the study has


def at(method: str, epochs: int, epsilon: float | None) -> Setting:
    """The setting of a method's trainings; the non-private one has no epsilon."""
    return Setting.of(method=method, epochs=epochs, epsilon=epsilon)


def setting_at(bindings: Bindings) -> Setting:
    """The setting of a table's place."""
    return at(bindings[METHOD], bindings["epochs"], bindings["epsilon"])


def named(setting: Setting) -> str:
    """A setting in words: `"FERRET-2, 5 epochs, epsilon 0.5"`."""
    epsilon = setting.get("epsilon")
    budget = "" if epsilon is None else f", epsilon {epsilon:g}"
    return f"{setting.get(METHOD)}, {plural_epochs(setting.get('epochs'))}{budget}"


def plural_epochs(epochs: float | str) -> str:
    """A number of epochs in words: `"1 epoch"`, `"5 epochs"`, `"0.5 epochs"`."""
    amount = epochs if isinstance(epochs, str) else f"{epochs:g}"
    return f"{amount} epoch{'' if amount == '1' else 's'}"


def check(context: Context) -> None:
    """Refuse a study with two experiments in one place.

    Raises:
        InputError: it has.
    """
    for part in TRAINED:
        seen = set()
        for outcome in context.outcomes.part(part):
            experiment = outcome.experiment
            place = (
                experiment.variant,
                experiment.epochs,
                experiment.epsilon,
                experiment.model,
                experiment.seed,
            )
            if place in seen:
                raise InputError(
                    f"group {part!r} must have one experiment a place, "
                    f"got two of {experiment.name}, model {experiment.model}"
                )
            seen.add(place)


def trained(context: Context) -> list[Outcome]:
    """Outcomes of all parts that train a base model."""
    return context.outcomes.part(TRAINED)


def transcripts(context: Context) -> list[Outcome]:
    """All outcomes of the transcript game, whatever its adversary knows."""
    return context.outcomes.part((TRANSCRIPT, UNKNOWN_BATCHES))


def models(context: Context) -> list[str]:
    """Base models in the paper's order, further ones after them."""
    known = {run.experiment.model for run in context.outcomes.part(COMPARISON) or trained(context)}
    return [*(name for name in MODELS if name in known), *sorted(known - set(MODELS))]


def places_of_models(context: Context) -> dict[str, str]:
    """Each model of the runs with the one in whose place it stands; then one for each other of the paper."""
    found = {name: MODELS.get(name, name) for name in models(context)}
    return found | {name: theirs for name, theirs in MODELS.items() if theirs not in found.values()}


def methods(context: Context, part: str = COMPARISON) -> list[str]:
    """Methods of a part in the paper's order, further ones in the study's order after them."""
    known = context.outcomes.values(part, METHOD)
    return [*(name for name in METHODS if name in known), *(name for name in known if name not in METHODS)]


def epochs_of(context: Context, part: str = COMPARISON) -> list[int]:
    """Numbers of epochs of a part, ascending."""
    return context.outcomes.values(part, "epochs")


def epsilons_of(context: Context, part: str = COMPARISON) -> list[float]:
    """Budgets of a part, ascending."""
    return context.outcomes.values(part, "epsilon")


def ceiling(context: Context, method: str, epochs: int) -> float:
    """Least ceiling G T s ln 2 over the models, nats, as a run of another budget states it; else NaN."""
    ceilings = [
        run.metrics[CEILING]
        for run in trained(context)
        if CEILING in run.metrics and (run.experiment.variant, run.experiment.epochs) == (method, epochs)
    ]
    return min(ceilings, default=math.nan)


def missing(
    context: Context, setting: Setting, metric: str, *, part: str = COMPARISON, model: str | None = None
) -> str:
    """Why there is no number at a place: above the ceiling, not run, failed, or not finite."""
    runs = [run for run in context.outcomes.runs(part, setting) if model in (None, run.experiment.model)]
    done = [run for run in runs if run.status is Status.DONE]
    method, epochs, epsilon = (setting.get(name) for name in (METHOD, "epochs", "epsilon"))
    most = ceiling(context, method, epochs)
    if epsilon is not None and epsilon > most and not done:
        return (
            f"above the ceiling G T s ln 2 = {most:.4g} nats of {method} at {plural_epochs(epochs)}: no "
            "firing probability up to 1 spends that budget"
        )
    if not runs:
        return "no part of this run"
    if not done:
        failed = next((run for run in runs if run.status is Status.FAILED), None)
        return "not run yet" if failed is None else f"failed: {failed.error}"
    bad = sum(not usable(context.outcomes.number(run, metric)) for run in done)
    words = METRIC_WORDS.get(metric, metric)
    return f"{words} is missing or not finite in {bad} of {len(done)} finished runs"


# The luck of the draw


@dataclass(frozen=True, eq=False)
class Placements:
    """Each record's contributions to an AUC.

    Attributes:
        draw: Which records are members; equal for runs that share it.
        inside: Share of non-members that each member outscores, shape `(n1,)`; a tie counts one half.
        outside: Share of members that outscore each non-member, shape `(n0,)`.
    """

    draw: Hashable
    inside: FloatArray
    outside: FloatArray


@dataclass(frozen=True, eq=False)
class Drawn(Sample):
    """AUCs, each with the placements of its records."""

    placements: tuple[Placements, ...] = field(default=(), kw_only=True)


def placements_of(outcome: Outcome) -> Placements:
    """Placements of an outcome that has scores of both classes."""
    scores, members = np.array(outcome.scores), np.array(outcome.included, dtype=bool)
    ranks, n1, n0 = rankdata(scores), int(members.sum()), int(np.sum(~members))
    return Placements(
        draw=(outcome.experiment.corpus, outcome.experiment.seed, outcome.included),
        inside=(ranks[members] - rankdata(scores[members])) / n0,
        outside=1.0 - (ranks[~members] - rankdata(scores[~members])) / n1,
    )


def draw_error(parts: Sequence[tuple[Sample, float]]) -> float:
    """Standard error, from the draw of members, of a weighted sum of means over units; 0 without placements.

    Placements of runs with the same draw are added record by record, so that luck which two AUCs share
    cancels in their difference and does not cancel in their mean.

    Args:
        parts: Samples and the weight of each one's mean over units.
    """
    totals: dict[Hashable, tuple[FloatArray, FloatArray]] = {}
    for sample, weight in parts:
        if not isinstance(sample, Drawn):
            continue
        counts = Counter(sample.units)
        for unit, placement in zip(sample.units, sample.placements, strict=True):
            share = weight / (len(counts) * counts[unit])
            inside, outside = totals.get(placement.draw, (np.zeros(1), np.zeros(1)))
            totals[placement.draw] = (inside + share * placement.inside, outside + share * placement.outside)
    return math.sqrt(sum(float(side.var(ddof=1)) / side.size for both in totals.values() for side in both))


def guessing_deviation(members: int) -> float:
    """Standard deviation of the AUC of pure guessing on so many members and as many non-members."""
    return math.sqrt((2.0 * members + 1.0) / (12.0 * members**2))


# Samples over models


def sample_of(context: Context, runs: Sequence[Outcome], metric: str | Number) -> Sample:
    """A number of some runs, one of them or several (a cell each) a model."""
    return Sample(
        np.array([context.outcomes.number(run, metric) for run in runs]),
        tuple(run.experiment.model for run in runs),
        context.outcomes.unit,
        tuple(run.experiment.seed for run in runs),
    )


def sample(
    context: Context,
    setting: Setting,
    metric: str,
    *,
    part: str = COMPARISON,
    among: Sequence[str] | None = None,
) -> Sample | None:
    """A number by model; a model without a finished run is left out.

    Returns:
        None where nothing is finished, or where a finished run's value is not finite: leaving that out would
        flatter the mean. AUCs come with what each record adds where all runs have scores.
    """

    def make() -> Sample | None:
        """The metric over the finished runs; None where there is none, or a value is not finite."""
        done = [
            run
            for run in context.outcomes.done(part, setting)
            if among is None or run.experiment.model in among
        ]
        if not done or not all(usable(context.outcomes.number(run, metric)) for run in done):
            return None
        values_by_unit = sample_of(context, done, metric)
        if metric != AUC or not all(map(has_curve, done)):
            return values_by_unit
        placed = (context.once(f"placements {run.key}", partial(placements_of, run)) for run in done)
        return Drawn(
            values_by_unit.values,
            values_by_unit.units,
            values_by_unit.unit,
            values_by_unit.cells,
            placements=tuple(placed),
        )

    return context.once(f"{metric} of {part}, {setting}, {among}", make)


def is_complete(context: Context, setting: Setting, metric: str, part: str = COMPARISON) -> bool:
    """Whether every run of a setting is finished with a finite value, and there is at least one."""
    runs = context.outcomes.runs(part, setting)
    return bool(runs) and all(
        run.status is Status.DONE and usable(context.outcomes.number(run, metric)) for run in runs
    )


def plain(value: Value) -> Value:
    """A mean with its interval, without the spread."""
    return replace(value, spread=None)


def geometric(sample: Sample, confidence: float) -> Value:
    """Geometric mean of positive values with the t interval of the logarithm, turned back."""
    interval = statistics.value_of(statistics.mean_interval(logarithm(sample), confidence=confidence))
    ends = [
        None if end is None else math.exp(min(max(end, -700.0), 700.0))
        for end in (interval.lower, interval.upper)
    ]
    return Value(estimate=math.exp(interval.estimate), lower=ends[0], upper=ends[1], n=interval.n)


def logarithm(sample: Sample) -> Sample:
    """Natural logarithms of positive values, with the same units and cells."""
    values: FloatArray = np.log(np.maximum(sample.values, np.finfo(np.float64).tiny))
    return Sample(values, sample.units, sample.unit, sample.cells)


# The paper's cells, as the intervals that they stand for

BUDGETS, NO_BUDGET = ("0.1", "0.5", "1.0", "2.0"), "inf"
"""Columns of the printed tables."""


MEANS = {TEST: "table-5", AUC: "table-2", ADVANTAGE: "table-10", SECONDS: "table-6"}
"""Where the mean over the models is printed, by metric."""

RANGES = {TEST: "table-8", AUC: "table-9", ADVANTAGE: "table-10", SECONDS: "table-11"}
"""Where mean, least and largest are printed."""

BY_MODEL = {
    TEST: ("table-12", "table-14"),
    AUC: ("table-12", "table-13"),
    SECONDS: ("table-12", "table-14"),
    ADVANTAGE: ("table-13",),
    TRAIN: ("table-14",),
    GAP: ("table-14",),
}
"""Where each model's number is printed."""

Place = tuple[str, str, str]
"""Method, epochs and budget as printed: `("FERRET-MAX", "5", "0.5")`."""


def printed_budgets(method: str) -> tuple[str, ...]:
    """The columns in which a method has numbers."""
    return (NO_BUDGET,) if method == NON_DP else BUDGETS


def printed_places() -> Iterator[Place]:
    """Every training that the paper prints: method, epochs and budget."""
    return (
        (name, str(epochs), budget)
        for name in METHODS
        for epochs in EPOCHS
        for budget in printed_budgets(name)
    )


def place_of(setting: Setting) -> Place:
    """The printed place of a setting of ours."""
    epsilon = setting.get("epsilon")
    budget = NO_BUDGET if epsilon is None else str(float(epsilon))
    return setting.get(METHOD), str(setting.get("epochs")), budget


def in_words(place: Place, model: str | None = None) -> str:
    """A place in words: `FERRET-MAX, 5 epochs, epsilon 0.5`."""
    method, epochs, budget = place
    words = [method, plural_epochs(epochs), *([] if budget == NO_BUDGET else [f"epsilon {budget}"])]
    return ", ".join([model, *words] if model else words)


def by_model(paper: PublishedPaper, metric: str, place: Place, model: str) -> PublishedCell | None:
    """One model's cell (or the mean's) of the first table by model that our copy shows it in; else None."""
    tables = (table for table in paper.tables if table.id in BY_MODEL.get(metric, ()))
    cells = (table.cell((*place[:2], model), f"{metric}, {place[2]}") for table in tables)
    return next((known for known in cells if known is not None), None)


def model_number(paper: PublishedPaper, metric: str, place: Place, model: str) -> float:
    """One model's number; NaN where our copy lacks it."""
    printed_cell = by_model(paper, metric, place, model)
    return math.nan if printed_cell is None else printed_numbers(printed_cell.printed)[0].value


def value(paper: PublishedPaper, metric: str, place: Place, model: str | None = None) -> Interval | None:
    """What a mean over the models, or one model's number, may stand for; None where our copy lacks it.

    Raises:
        KeyError: the paper prints no such number.
    """
    if model is None:
        return known_to(paper, MEANS[metric], place)
    printed_cell = by_model(paper, metric, place, model)
    return None if printed_cell is None else stands_for(printed_cell)


def known_to(paper: PublishedPaper, table: str, place: Place, part: int = 0) -> Interval:
    """What a number of a table of means stands for, at the table's own rounding; part 0 is the mean.

    Raises:
        KeyError: there is none.
    """
    number = printed_numbers(cell(paper, table, place[:2], place[2]).printed)[part]
    half = max(half_unit(paper.table(table)), number.half_unit)
    return Interval(number.value - half, number.value + half)


def over_models(paper: PublishedPaper, metric: str, place: Place) -> Interval:
    """The largest over the least printed value of the models."""
    least, most = (known_to(paper, RANGES[metric], place, part) for part in (1, 2))
    return quotient(most, least)


def half_unit(table: PublishedTable) -> float:
    """Half a unit of a table's rounding: of the last digit printed, or of tens where all numbers are tens."""
    return _half_unit(tuple(cell.printed for cell in table.cells))


@lru_cache(maxsize=64)
def _half_unit(texts: tuple[str, ...]) -> float:
    numbers = [number for text in texts for number in printed_numbers(text)]
    decimals = max(number.decimals for number in numbers)
    if decimals > 0 or not any(number.value for number in numbers):
        return float(0.5 * 10.0**-decimals)
    power = next(k for k in count(1) if any(number.value % 10.0**k for number in numbers))
    return float(0.5 * 10.0 ** (power - 1))


def quotient(numerator: Interval, denominator: Interval) -> Interval:
    """The quotient of two intervals of positive numbers."""
    return Interval(numerator.lower / denominator.upper, numerator.upper / denominator.lower)


def middle(interval: Interval) -> float:
    """The midpoint of an interval, without the rounding of our own arithmetic."""
    return round(0.5 * (interval.lower + interval.upper), 9)


# What a conclusion compares


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings that are compared: one, a first and a second, or several along epsilon or the epochs."""

    settings: tuple[Setting, ...]
    x: tuple[float, ...] = ()


def comparisons(claim: QualitativeClaim, each: str) -> list[Comparison]:
    """Everything that a conclusion compares, in the way that its test names.

    Raises:
        InputError: a parameter is missing.
    """
    if each in ("pairs", "order"):
        pairs = listed(claim, each) if each == "pairs" else pairwise(listed(claim, each))
        epochs = listed(claim, "epochs")
        others = claim.parameters.get("second_epochs", epochs)
        sides = [
            (_at(first, count, epsilon), _at(second, others[min(place, len(others) - 1)], epsilon))
            for first, second in pairs
            for place, count in enumerate(epochs)
            for epsilon in _epsilons(claim, first, second)
        ]
        return [Comparison(settings=both) for both in dict.fromkeys(sides)]
    made = []
    for method in listed(claim, "variants"):
        epochs, epsilons = listed(claim, "epochs"), _epsilons(claim, method)
        if each == "variants":
            made += [Comparison(settings=(_at(method, *place),)) for place in product(epochs, epsilons)]
        elif each == "epsilon":
            x = tuple(float(epsilon or 0.0) for epsilon in epsilons)
            lines = [tuple(_at(method, count, epsilon) for epsilon in epsilons) for count in epochs]
            made += [Comparison(settings=line, x=x) for line in lines]
        else:
            x = tuple(map(float, epochs))
            lines = [tuple(_at(method, count, epsilon) for count in epochs) for epsilon in epsilons]
            made += [Comparison(settings=line, x=x) for line in lines]
    return made


def _epsilons(claim: QualitativeClaim, *methods: str) -> list[float | None]:
    """Budgets of the settings; one None where no method has a budget."""
    return [None] if set(methods) == {NON_DP} else [float(epsilon) for epsilon in listed(claim, "epsilons")]


def _at(method: str, epochs: int, epsilon: float | None) -> Setting:
    return at(method, int(epochs), None if method == NON_DP else epsilon)


def asks(claim: QualitativeClaim, test: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Metric and question of each part of a conclusion."""
    several = len(test["ask"]) > 1
    metrics = listed(claim, "metrics") if several else [listed(claim, "metric")]
    return list(zip(metrics, test["ask"], strict=True))


def direction(claim: QualitativeClaim) -> str:
    """Whether a trend `"rises"` or `"falls"`.

    Raises:
        InputError: it is neither.
    """
    stated = str(listed(claim, "direction"))
    if stated not in ("rises", "falls"):
        raise unknown_name(f"direction of claim {claim.id!r}:", stated, ("rises", "falls"))
    return stated
