"""What PACZero's claim is about, and what it is not: one table with both, at a stated accuracy.

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

import numpy as np

from workbench.accounting import MutualInformation, NoGuarantee, guarantee_from_json
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import Guarantee
from workbench.reports.papers.paczero.cells import Context, scale_notes
from workbench.reports.papers.paczero.layout import (
    INSIDE,
    MI,
    OUTSIDE,
    SCORE,
    UNIT,
    ZPL,
    Setting,
    variant_of,
)
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import has_curve
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Table, Value

COLUMNS = (
    "test %",
    "allowed",
    "inside the claim",
    "outside the claim",
    "loss AUC",
    "LiRA AUC",
    "TPR at FPR 1 %",
    "inside, from bits alone",
)
NATS_COLUMNS = (
    "nats claimed",
    "nats charged",
    "information, if the noise is as stated",
    "shown by guesses, whatever the noise",
)
LOW_FPR = 0.01
LIRA, LOSS = "lira", "loss"
GAME_CONFIDENCE = 0.95
"""Of the interval that a run of the game inside the claim brings along, whatever a report's own is."""

TRUSTING = (
    "The adversary inside the claim believes what the mechanism says of its noise. Of PACZero-ZPL its "
    "posterior then never moves, whatever the coins are: 50 there is arithmetic, and no test. The audit of "
    "PACZero-ZPL asks an adversary who doubts."
)
ABOUT_SUBSETS = (MI, ZPL)


def game_table(context: Context) -> Table | None:
    """Success inside and outside the claim, with what the claim allows; None without such runs."""
    settings = _settings(context)
    if not settings:
        return None
    rows = [((_name(one),), tuple(_row(context, one))) for one in settings]
    runs = context.measured.by_group[INSIDE]
    trials = sorted({len(one.scores) for one in runs if one.status is Status.DONE})
    games = sorted(
        {f"{one.experiment.model}, N = {one.experiment.members}, T = {one.experiment.steps}" for one in runs}
    )
    return Table(
        id="inside-and-outside",
        title="Inside the claim and outside: membership guessed right",
        row_headers=("method",),
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(
            "Inside the claim: percent of records of the universe of which the exact posterior, given all "
            "but the secret index, tells rightly whether the secret subset holds them (guessing: 50); "
            f"brackets are a {100.0 * GAME_CONFIDENCE:g} % interval over independent trainings"
            f"{f' ({_listed(trials)} a run)' if trials else ''}, which are of {'; '.join(games) or 'none'}; "
            f"where a cell has several {UNIT}s, the {context.interval}.",
            "Inside, from bits alone: the same of the posterior of who sees the released bits and the noise, "
            "and none of the values behind them.",
            *([TRUSTING] if _is_trusting(runs) else []),
            "Allowed: percent of right guesses at even odds that the claim allows about what it is about: of "
            "the secret subset for PACZero, of a record among the trained ones for differential privacy.",
            "Outside the claim: percent of right guesses whether a record is of the universe or a fresh one, "
            "by the stronger of our attacks in its mean, its threshold chosen on one half of the records "
            f"and counted on the other; brackets are the {context.interval}, of one {UNIT} alone over its "
            "records. PACZero says nothing of this game, so no number in it contradicts its claim. For "
            "differential privacy this game is its claim's own, and stands inside it; for a method that "
            "claims nothing every game is outside.",
            "The two columns answer different questions, and a number below the other's means nothing.",
            *scale_notes(context, (OUTSIDE,)),
        ),
        decimals={
            "test %": 1,
            "allowed": 1,
            "inside the claim": 1,
            "outside the claim": 1,
            "loss AUC": 3,
            "LiRA AUC": 3,
            "TPR at FPR 1 %": 3,
            "inside, from bits alone": 1,
        },
    )


def nats_table(context: Context) -> Table | None:
    """Nats that are claimed, charged, and measured inside the claim; None without such runs."""
    settings = [one for one in _settings(context) if one.variant in ABOUT_SUBSETS]
    if not any(context.measured.runs(INSIDE, one) for one in settings):
        return None
    rows = tuple(((_name(one),), _nats_row(context, one)) for one in settings)
    return Table(
        id="inside-nats",
        title="Inside the claim: nats about which subset was the secret",
        row_headers=("method",),
        columns=NATS_COLUMNS,
        rows=rows,
        notes=(
            "Claimed: of a whole training. Charged: the sum in the mechanism's own ledger, a mean over "
            "trainings.",
            "Information, if the noise is as stated: logarithm of the number of candidates less the entropy "
            "that the exact posterior is left with, a mean over trainings. It takes the mechanism's word for "
            "its noise: of noise that is less it shows too little, and of coins 0, whatever they are.",
            "Shown by guesses: logarithm of the probability that the adversary gave to the right candidate, "
            "less that of a blind guess. It assumes that trainings are independent and nothing of the noise, "
            "and is on average no more than the information: alone its lower end speaks against a claim, and "
            "it may be negative.",
            f"Brackets are a {100.0 * GAME_CONFIDENCE:g} % interval over independent trainings, each by "
            f"itself, which holds at every number of them; where a cell has several {UNIT}s, the "
            f"{context.interval}.",
        ),
        decimals=dict.fromkeys(NATS_COLUMNS, 4),
    )


def _nats_row(context: Context, setting: Setting) -> tuple[Cell, ...]:
    games = [one for one in context.measured.runs(INSIDE, setting) if one.status is Status.DONE]
    guarantee, why = _guarantee(games), context.measured.missing(INSIDE, setting)
    claimed = guarantee.nats if isinstance(guarantee, MutualInformation) else None
    names = ("attack_charged_nats", "attack_information", "attack_log_score")
    return (
        _cell(None if claimed is None else Value(estimate=claimed), why),
        *(_cell(_of_games(context, games, name, scale=1.0), why) for name in names),
    )


def _settings(context: Context) -> list[Setting]:
    """Variant and budget of each row, in the study's order."""
    found: dict[Setting, None] = {}
    for group in (INSIDE, OUTSIDE):
        for one in context.measured.settings(group):
            found[Setting(variant=one.variant, epsilon=one.epsilon)] = None
    return list(found)


def _name(setting: Setting) -> str:
    if setting.epsilon is None:
        return f"{setting.variant}"
    unit = "nats" if setting.variant in ABOUT_SUBSETS else "epsilon"
    return f"{setting.variant}, {setting.epsilon:g} {unit}"


def _row(context: Context, setting: Setting) -> list[Cell]:
    measured = context.measured
    games = [one for one in measured.runs(INSIDE, setting) if one.status is Status.DONE]
    attacked = [one for one in measured.runs(OUTSIDE, setting) if one.status is Status.DONE]
    about_subsets = setting.variant in ABOUT_SUBSETS
    guarantee = _guarantee([*games, *attacked])
    inside = (
        _of_games(context, games, "attack_success", scale=100.0)
        if about_subsets
        else _best_success(context, attacked)
    )
    why_inside = measured.missing(INSIDE if about_subsets else OUTSIDE, setting)
    outside = _best_success(context, attacked) if about_subsets else None
    why_outside = measured.missing(OUTSIDE, setting)
    return [
        _cell(context.value(OUTSIDE, setting, SCORE), measured.missing(OUTSIDE, setting)),
        _cell(_allowed(guarantee), "claims nothing, so allows every guess"),
        _cell(inside if guarantee is not None else None, why_inside if about_subsets else "claims nothing"),
        _cell(
            outside if guarantee is not None else _best_success(context, attacked),
            why_outside if about_subsets else "records against fresh ones are what its claim is about",
        ),
        _cell(_over_seeds(context, attacked, LOSS, _auc), why_outside),
        _cell(_over_seeds(context, attacked, LIRA, _auc), "LiRA is not run on it"),
        _cell(_over_seeds(context, attacked, LIRA, _low_fpr), "LiRA is not run on it"),
        _cell(
            _of_games(context, games, "attack_bits_success", scale=100.0),
            why_inside if about_subsets else "it releases no bits",
        ),
    ]


def _cell(value: Value | None, why: str) -> Cell:
    return Cell(why_blank=f"ours: {why}") if value is None else Cell(ours=value)


def _guarantee(runs: Sequence[Outcome]) -> Guarantee | None:
    """What is claimed; None for nothing."""
    for one in runs:
        form = None if one.claim is None else one.claim.get("guarantee")
        if isinstance(form, dict):
            found = guarantee_from_json(form)
            return None if isinstance(found, NoGuarantee) else found
    return None


def _allowed(guarantee: Guarantee | None) -> Value | None:
    return None if guarantee is None else Value(estimate=100.0 * guarantee.max_success(0.5))


def allowed_of(runs: Sequence[Outcome]) -> float | None:
    """The share of right guesses at even odds that the claim of some runs allows; None where none claims."""
    guarantee = _guarantee(runs)
    return None if guarantee is None else guarantee.max_success(0.5)


def _is_trusting(runs: Sequence[Outcome]) -> bool:
    """Whether PACZero-ZPL is attacked by an adversary without doubt."""
    doubts = [
        one.experiment.attack_parameters.get("doubt") for one in runs if variant_of(one.experiment) == ZPL
    ]
    return any(doubt is not None and float(doubt) == 0.0 for doubt in doubts)


def _of_games(context: Context, games: Sequence[Outcome], name: str, *, scale: float) -> Value | None:
    """A mean of games: over one game's trials, or over several games' seeds.

    Args:
        context: Of the report.
        games: Those that are done.
        name: Of the metric; its interval has the same name with `_lower` and `_upper`.
        scale: What is multiplied with, 100 for percent.
    """
    known = [one for one in games if name in one.metrics]
    if not known:
        return None
    if len(known) == 1:
        metrics = known[0].metrics
        lower, upper = metrics.get(f"{name}_lower"), metrics.get(f"{name}_upper")
        return Value(
            estimate=scale * metrics[name],
            lower=None if lower is None else scale * lower,
            upper=None if upper is None else scale * upper,
            n=len(known[0].scores),
        )
    sample = Sample(
        np.array([scale * one.metrics[name] for one in known]),
        tuple(one.experiment.seed for one in known),
        UNIT,
    )
    return statistics.value_of(statistics.mean_interval(sample, confidence=context.confidence))


def _over_seeds(
    context: Context, runs: Sequence[Outcome], attack: str, measure: Callable[[Outcome], float]
) -> Value | None:
    """Mean over seeds of a number of an attack's curve."""
    values = {
        one.experiment.seed: measure(one)
        for one in runs
        if one.experiment.attack == attack and has_curve(one)
    }
    if not values:
        return None
    sample = Sample(np.array(list(values.values())), tuple(values), UNIT)
    return statistics.value_of(statistics.mean_interval(sample, confidence=context.confidence))


def _best_success(context: Context, runs: Sequence[Outcome]) -> Value | None:
    """Of the attack with the larger mean success, percent."""
    found = []
    for attack in (LOSS, LIRA):
        value = _over_seeds(context, runs, attack, crossed_success)
        if value is not None and value.n == 1:
            value = _over_records(value, runs, attack, context.confidence)
        if value is not None:
            found.append(value)
    return max(found, key=lambda value: value.estimate, default=None)


def _over_records(value: Value, runs: Sequence[Outcome], attack: str, confidence: float) -> Value:
    """The share of one seed with an interval over its records, as if each were a trial of its own."""
    count = next(len(one.scores) for one in runs if one.experiment.attack == attack and has_curve(one))
    right = round(value.estimate / 100.0 * count)
    error = (1.0 - confidence) / 2.0
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
        threshold = _best_threshold(scores[chosen], members[chosen])
        inside = scores[counted] >= threshold
        own = members[counted]
        if own.all() or not own.any():
            return math.nan
        rates.append(0.5 * (float(inside[own].mean()) + float((~inside[~own]).mean())))
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


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
