"""Numbers of an RLDP run, and what is compared over runs of one seed: bars, drops, matches, curves.

A seed draws the records, the secrets, the split, the samples and the noise: runs of one seed that differ in
the method alone share records, secrets and start, and are compared as pairs.

The strongest baseline is not known beforehand. Where RLDP is compared with "the best", it is with the lowest
final perplexity of any baseline in the same seed: nothing is chosen over seeds, so nothing need be paid for,
and the bar is never easier than that of any one baseline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from workbench.reports.shared.context import Bindings, Context
from workbench.reports.shared.outcomes import Number, Setting
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome, Status

MODELS, ABLATION, INSERTIONS, SAMPLING = "models", "ablation", "insertions", "sampling"
"""Parts of the study."""

OURS = ("RLDP-H", "RLDP-L")
BASELINES = ("Static", "AdaClip", "AutoClip", "DC-SGD-P", "DC-SGD-E", "GeoClip", "PSAC", "DP-LoRA")

FINAL, EXPOSURE, LEDGER = "final perplexity", "attack_exposure_mean", "ledger_epsilon"
STEPS, CURVE = "evaluation_steps", "evaluation_perplexity"
NOISE, RADIUS = "noise_multiplier", "l2_clip_norm"
"""Traces of a run."""

NEVER = 100.0
"""Percent of the steps that a run counts with that never matches: at least so many."""

PHASE = 0.15
"""Share of the steps that section 4.1 calls exploratory."""


def final(outcome: Outcome) -> float:
    """Held-out perplexity at the end of training; NaN where a run has none."""
    curve = outcome.traces.get(CURVE, ())
    return float(curve[-1]) if curve else float(outcome.metrics.get("test_perplexity_after", math.nan))


def lowest(outcome: Outcome) -> float:
    """Lowest perplexity of a run's evaluations; NaN without any."""
    return min((value for value in outcome.traces.get(CURVE, ()) if usable(value)), default=math.nan)


def log_prob(outcome: Outcome) -> float:
    """Mean log-likelihood of a token over the attacked records, nats; NaN without scores."""
    return sum(outcome.scores) / len(outcome.scores) if outcome.scores else math.nan


def perplexity(outcome: Outcome) -> float:
    """Eq. 38's mean of exp(-log-likelihood) over the attacked records; infinite where one overflows."""
    try:
        return (
            sum(math.exp(-score) for score in outcome.scores) / len(outcome.scores)
            if outcome.scores
            else math.nan
        )
    except OverflowError:
        return math.inf


def valid_share(outcome: Outcome) -> float:
    """Valid continuations of all that were generated, percent."""
    valid, made = (float(outcome.metrics.get(f"attack_{name}", math.nan)) for name in ("valid", "generated"))
    return 100.0 * valid / made if made > 0 else math.nan


def rise(outcome: Outcome, share: float = PHASE) -> float:
    """Largest noise multiplier of the first part of a run, less the first; NaN without a trace."""
    sigma = outcome.traces.get(NOISE, ())
    return max(sigma[: _phase(len(sigma), share)]) - sigma[0] if sigma else math.nan


def fall(outcome: Outcome) -> float:
    """By how many percent the last noise multiplier is below the largest; NaN without a trace."""
    sigma = outcome.traces.get(NOISE, ())
    return 100.0 * (1.0 - sigma[-1] / max(sigma)) if sigma else math.nan


def widening(outcome: Outcome, share: float = PHASE) -> float:
    """Mean radius after the first part of a run over the first; NaN without a trace."""
    radii = outcome.traces.get(RADIUS, ())
    return radii[_phase(len(radii), share) - 1] / radii[0] if radii and radii[0] > 0 else math.nan


def late(outcome: Outcome) -> float:
    """Mean radius at the end over that after the first part of a run; NaN without a trace."""
    radii = outcome.traces.get(RADIUS, ())
    early = radii[_phase(len(radii), PHASE) - 1] if radii else 0.0
    return radii[-1] / early if early > 0 else math.nan


def last_radius(outcome: Outcome) -> float:
    """Mean radius at the end of a run; NaN without a trace."""
    radii = outcome.traces.get(RADIUS, ())
    return radii[-1] if radii else math.nan


def _phase(steps: int, share: float) -> int:
    return max(1, round(share * steps))


NUMBERS: Mapping[str, Number] = {
    FINAL: final,
    "lowest perplexity": lowest,
    "log-prob": log_prob,
    "perplexity": perplexity,
    "valid share": valid_share,
    "rise": rise,
    "fall": fall,
    "widening": widening,
    "late": late,
    "last radius": last_radius,
}


def share_of_steps(outcome: Outcome, bar: float) -> float | None:
    """Percent of a run's steps to its first evaluation at or below a perplexity; None where it has none such.

    Args:
        outcome: Finished, with the traces of its evaluations.
        bar: The perplexity.
    """
    steps, curve = outcome.traces.get(STEPS, ()), outcome.traces.get(CURVE, ())
    reached = (step for step, value in zip(steps, curve, strict=True) if value <= bar)
    first = next(reached, None)
    return None if first is None else 100.0 * first / outcome.experiment.steps


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The lowest final perplexity of the baselines of a seed, and whose it is."""

    perplexity: float
    variant: str


@dataclass(frozen=True, kw_only=True)
class Matches:
    """How far into training runs match the perplexity that they are compared with.

    Attributes:
        sample: Percent of the steps, a value a seed (the mean over its runs); `NEVER` for a run that never
            does. None where there is no run.
        runs, never: How many there are, and how many of them never match.
        why: Why there is no sample; else empty.
    """

    sample: Sample | None
    runs: int = 0
    never: int = 0
    why: str = ""


def setting(context: Context, at: Bindings, method: str) -> Setting:
    """The runs of a method at a model and budget of the tables; without a budget where it has none."""
    place = {"stands_for": at["stands_for"], "epsilon": at["epsilon"], "method": method}
    return context.place(MODELS, place).setting


def variants(context: Context, names: Sequence[str]) -> list[str]:
    """Variants of ours behind the paper's names of baselines: DC-SGD is two."""
    means = context.outcomes.layout.means
    return [
        variant for name in names for variant in (means.get(name, (name,)) if name != "RLDP" else (name,))
    ]


def bars(context: Context, at: Bindings, others: Sequence[str] = BASELINES) -> dict[int, Bar] | str:
    """The lowest final perplexity of the baselines, by seed; the reason where there is none.

    A seed with a baseline that is not run yet is left out: its bar could still fall. A run that failed has no
    perplexity and is no bar.

    Args:
        at: Model and budget.
        others: Baselines, or names of the paper's.
    """
    by_seed: dict[int, Bar] = {}
    waiting: set[int] = set()
    names = variants(context, others)
    for name in names:
        for run in context.outcomes.runs(MODELS, setting(context, at, name)):
            seed, value = run.experiment.seed, final(run)
            if run.status is Status.MISSING:
                waiting.add(seed)
            elif usable(value) and (seed not in by_seed or value < by_seed[seed].perplexity):
                by_seed[seed] = Bar(perplexity=value, variant=name)
    kept = {seed: bar for seed, bar in sorted(by_seed.items()) if seed not in waiting}
    if kept:
        return kept
    if waiting:
        return "a baseline is not run yet"
    missing = {context.outcomes.missing(MODELS, setting(context, at, name)) for name in names}
    return " and ".join(sorted(missing)) if len(missing) == 1 else "no baseline has a number"


def drop(
    context: Context, at: Bindings, method: str = "RLDP", others: Sequence[str] = BASELINES
) -> Sample | str:
    """By how much a method's final perplexity is below the best baseline's of its seed, percent."""
    ours = context.outcomes.complete(MODELS, setting(context, at, method), FINAL)
    theirs = bars(context, at, others)
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours if isinstance(ours, str) else str(theirs)
    pairs = {
        int(seed): 100.0 * (1.0 - float(value) / theirs[int(seed)].perplexity)
        for seed, value in zip(ours.units, ours.values, strict=True)
        if int(seed) in theirs
    }
    unit = context.outcomes.unit
    return Sample(np.array(list(pairs.values())), tuple(pairs), unit) if pairs else f"no {unit} has both"


def matches(
    context: Context, at: Bindings, method: str = "RLDP", others: Sequence[str] = BASELINES
) -> Matches:
    """After which share of the steps a method's runs reach the best baseline's final perplexity.

    Args:
        at: Model and budget.
        method: Of several forms, the mean over them stands for a seed.
        others: Whose final perplexity is the bar.
    """
    theirs = bars(context, at, others)
    if isinstance(theirs, str):
        return Matches(sample=None, why=theirs)
    place = setting(context, at, method)
    runs = context.outcomes.done(MODELS, place)
    known = [run for run in runs if run.experiment.seed in theirs and run.traces.get(CURVE)]
    if not known:
        missing = context.outcomes.missing(MODELS, place)
        return Matches(sample=None, why="the runs have no curve of evaluations" if runs else missing)
    shares = [share_of_steps(run, theirs[run.experiment.seed].perplexity) for run in known]
    table = pd.DataFrame(
        {
            "unit": [run.experiment.seed for run in known],
            "value": [NEVER if share is None else share for share in shares],
        }
    )
    sample = context.outcomes.over_units(table)
    return Matches(sample=sample, runs=len(shares), never=sum(share is None for share in shares))


def curves(context: Context, place: Setting, name: str, x_name: str = "") -> dict[float, Sample]:
    """A trace over steps: at each step that all of a setting's finished runs have, a sample over seeds.

    Args:
        place: Of the runs.
        name: Of the trace.
        x_name: Of the trace that says at which steps; empty for one number a step, counted from 1.
    """
    runs = [run for run in context.outcomes.done(MODELS, place) if run.traces.get(name)]
    rows = [
        (float(step), run.experiment.seed, value)
        for run in runs
        for step, value in zip(
            run.traces.get(x_name, ()) if x_name else range(1, len(run.traces[name]) + 1),
            run.traces[name],
            strict=False,
        )
        if usable(value)
    ]
    whole = len({run.experiment.seed for run in runs})
    table = pd.DataFrame(rows, columns=["step", "unit", "value"])
    means = table.groupby(["step", "unit"], sort=False)["value"].agg(lambda values: float(np.mean(values)))
    samples = {}
    for step, some in means.groupby("step", sort=True):
        if len(some) == whole:
            units = tuple(some.index.get_level_values("unit"))
            samples[float(step)] = Sample(some.to_numpy(), units, context.outcomes.unit)
    return samples


LENGTH = 10
"""Characters of a secret."""

ALPHABET = 36
"""Characters that it is drawn from."""


@cache
def chance_similarity(n: int, *, length: int = LENGTH, alphabet: int = ALPHABET) -> float:
    """Mean Jaccard similarity of the n-grams of two independent uniform strings of one length.

    Each string's n-grams form a set; the similarity is the share of all that both have (Khadangi et al. 2025,
    Eqs. 28 to 34).

    For n = 1 exact: by the numbers of distinct characters of the two strings, whose overlap given these is
    hypergeometric. For larger n the n-grams of a string are taken to be distinct and those of two strings to
    match independently, at most once; of the secrets' form that is right to 2 %.
    """
    if n == 1:
        return _exact(length, alphabet)
    grams = length + 1 - n
    return float(grams**2) / float(alphabet) ** n / (2 * grams - 1)


def _exact(length: int, alphabet: int) -> float:
    counts = _distinct(length, alphabet)
    total = 0.0
    for first, p in counts.items():
        for second, q in counts.items():
            for shared in range(max(0, first + second - alphabet), min(first, second) + 1):
                weight = (
                    math.comb(first, shared)
                    * math.comb(alphabet - first, second - shared)
                    / math.comb(alphabet, second)
                )
                total += p * q * weight * shared / (first + second - shared)
    return total


def _distinct(length: int, alphabet: int) -> dict[int, float]:
    """Probability of each number of distinct characters of a uniform string."""
    chances = {0: 1.0}
    for _ in range(length):
        after: dict[int, float] = {}
        for count, p in chances.items():
            after[count] = after.get(count, 0.0) + p * count / alphabet
            after[count + 1] = after.get(count + 1, 0.0) + p * (alphabet - count) / alphabet
        chances = after
    return {count: p for count, p in chances.items() if p > 0.0}


def least_similarity(n: int, *, length: int = LENGTH) -> float:
    """Smallest similarity above 0 of the n-grams of two strings of at most this length: one is shared."""
    return 1.0 / (2 * (length + 1 - n) - 1)
