"""A DP-Weights study's outcomes as samples: a metric of a variant, by seed, setting and epsilon.

The fine-tuned model has no epsilon; as in the paper its value is set beside every epsilon. That makes no
further replicates: the unit of every sample is the study's unit of replication.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.checks.published import PublishedPaper, PublishedTable
from workbench.core.errors import InputError
from workbench.reports.shared.context import Context
from workbench.reports.shared.declared import declared
from workbench.reports.shared.outcomes import Setting
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome, Status

LAYOUT: Mapping[str, Any] = declared("dp_weights").content["own"]

METRICS = tuple(LAYOUT["metrics"])
"""The columns of Tables 1 and 2; names of the metrics of an outcome."""

METRIC_WORDS: Mapping[str, str] = {name: entry["words"] for name, entry in LAYOUT["metrics"].items()}

SECURITY_METRICS = METRICS[2:]
"""Those of the membership attack, all in [0, 1]."""

DP_SGD, DP_WEIGHTS, FINE_TUNED = "DP-SGD", "DP-Weights", "Fine-tuned"
MODELS: Mapping[str, str] = LAYOUT["models"]
COMPARISONS: Mapping[str, tuple[str, str]] = {
    name: (first, second) for name, (first, second) in LAYOUT["comparisons"].items()
}

STATISTIC, INTERVAL, WORDS = "t-statistic, p-value", "95% confidence interval", "interpretation"
"""Columns of sections 4.3 and 4.4."""

LEVEL = 0.05
"""Of the paper's tests."""

EPSILONS = 28
"""Settings of epsilon behind a cell. Not said in the paper; a Wilcoxon statistic of 0 with p = 7.451e-9 = 2 /
2^28 and 1 to 10, 20 to 100 and 200 to 1000 in Figs. 4 to 6 both say so."""

MARGIN_SHARE = 0.1
"""Perplexities count as alike within this share of the fine-tuned model's: about 0.1 nats a token."""

MARGIN_ATTACK = 0.05
"""Attack metrics in [0, 1] count as alike within this much: a tenth of what a coin reaches."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One of the two grids of the evaluation.

    Attributes:
        group: Part of the study.
        field: Field of `Experiment` that varies.
        means, tests, summary: Ids of the table of means, of the section of t-tests, and of its summary.
        details: Id of the table of comparison measures, by the field's value.
    """

    group: str
    field: str
    means: str
    tests: str
    summary: str
    details: Mapping[int, str]


GRIDS = {
    group: Grid(group=group, **{**entry, "details": {int(k): v for k, v in entry["details"].items()}})
    for group, entry in LAYOUT["grid"].items()
}
"""By group."""


def detail_tables(paper: PublishedPaper) -> Iterator[tuple[PublishedTable, PublishedTable, str]]:
    """Tables 3 to 10 in order: each with its table of means and the first header of its rows there."""
    places = [(table, grid, value) for grid in GRIDS.values() for value, table in grid.details.items()]
    for table_id, grid, value in sorted(places, key=lambda place: int(place[0].removeprefix("table-"))):
        yield paper.table(table_id), paper.table(grid.means), str(value)


def check(context: Context) -> None:
    """Refuse a study without the paper's variants, or with two experiments in one place.

    Raises:
        InputError: it has one of these faults.
    """
    study, unit = context.outcomes.outcomes, context.outcomes.unit
    if not any(outcome.experiment.variant in MODELS for outcome in study):
        raise InputError(f"the study must have a variant of {', '.join(map(repr, MODELS))}")
    seen = set()
    for group, grid in GRIDS.items():
        for outcome in context.outcomes.part(group):
            experiment = outcome.experiment
            value, replicate = getattr(experiment, grid.field), getattr(experiment, unit)
            place = group, experiment.variant, value, experiment.epsilon, replicate
            if place in seen:
                name = experiment.name if unit == "seed" else f"{experiment.name}, {unit} {replicate}"
                raise InputError(f"group {group!r} must have one experiment a place, got two of {name}")
            seen.add(place)


def values_of(context: Context, group: str) -> list[int]:
    """Settings of a grid's varied field, ascending."""
    return context.outcomes.values(group, GRIDS[group].field)


def epsilons_of(context: Context, group: str) -> list[float]:
    """All epsilons of a grid, ascending."""
    return context.outcomes.values(group, "epsilon")


def runs(context: Context, group: str, variant: str, values: Sequence[int] | None = None) -> list[Outcome]:
    """A variant's outcomes at some settings (None: at all), by setting, epsilon and unit."""
    field, unit = GRIDS[group].field, context.outcomes.unit

    def order(outcome: Outcome) -> tuple[int, float, str]:
        """Sort key: setting of the varied field, epsilon (none first), unit."""
        epsilon = outcome.experiment.epsilon
        return (
            getattr(outcome.experiment, field),
            -1.0 if epsilon is None else epsilon,
            str(getattr(outcome.experiment, unit)),
        )

    ordered = context.once(
        f"runs of {group}, {variant}",
        lambda: sorted(context.outcomes.runs(group, Setting.of(method=variant)), key=order),
    )
    return [run for run in ordered if values is None or getattr(run.experiment, field) in values]


def _has(outcome: Outcome, metric: str) -> bool:
    return outcome.status is Status.DONE and usable(outcome.metrics.get(metric, math.nan))


def sample(
    context: Context,
    group: str,
    variant: str,
    metric: str,
    *,
    values: Sequence[int] | None = None,
    epsilons: Sequence[float] | None = None,
) -> Sample | None:
    """A metric as a sample whose units are seeds and whose cells are (setting, epsilon).

    A seed that lacks a run is left out: its mean would be of other budgets than the others'. A value that is
    not finite leaves no mean at all; leaving it out would flatter it.

    Args:
        values: Settings of the varied field; None for all.

    Returns:
        None where no seed has all of its runs, or a value is not finite.
    """
    field, unit = GRIDS[group].field, context.outcomes.unit
    budgets = epsilons_of(context, group) if epsilons is None else list(epsilons)
    chosen = [
        run
        for run in runs(context, group, variant, values)
        if run.experiment.epsilon is None or run.experiment.epsilon in budgets
    ]
    if any(run.status is Status.DONE and not _has(run, metric) for run in chosen):
        return None
    lost = {getattr(run.experiment, unit) for run in chosen if run.status is not Status.DONE}
    every_budget: Sequence[float | None] = budgets or [None]
    rows = [
        (run.metrics[metric], getattr(run.experiment, unit), (getattr(run.experiment, field), budget))
        for run in chosen
        for budget in (every_budget if run.experiment.epsilon is None else [run.experiment.epsilon])
        if getattr(run.experiment, unit) not in lost
    ]
    if not rows:
        return None
    numbers, units, cells = zip(*rows, strict=True)
    return Sample(np.array(numbers), units, unit, cells)


def unusable(
    context: Context, group: str, variant: str, metric: str, values: Sequence[int] | None = None
) -> list[Outcome]:
    """The runs that lack a finite value of a metric: failed, missing, or not finite."""
    return [run for run in runs(context, group, variant, values) if not _has(run, metric)]


def margin(context: Context, group: str, metric: str, values: Sequence[int] | None = None) -> float | None:
    """Within what two variants count as alike; None where the fine-tuned model's value is missing."""
    if metric in SECURITY_METRICS:
        return MARGIN_ATTACK
    fine_tuned = sample(context, group, FINE_TUNED, metric, values=values)
    return None if fine_tuned is None else MARGIN_SHARE * float(np.mean(fine_tuned.values))


def missing(context: Context, group: str, variant: str, values: Sequence[int], metric: str) -> str:
    """Why there is no number of a variant at these settings."""
    known = [value for value in values if value in values_of(context, group)]
    if not known:
        return f"{group} {', '.join(map(str, values))} is no part of this run"
    if all(outcome.experiment.variant != variant for outcome in context.outcomes.outcomes):
        return f"{variant} is no part of this run"
    bad = sum(outcome.status is Status.DONE for outcome in unusable(context, group, variant, metric, values))
    if bad:
        return f"{METRIC_WORDS[metric]} of {variant} is not finite in {bad} of the finished runs here"
    return f"no {context.outcomes.unit} has finished all of its runs of {variant} here"


def uncovered(context: Context, group: str, values: Sequence[int] | None = None) -> str:
    """Which of the paper's settings and range of epsilon this run lacks; empty where none.

    Args:
        values: The settings that are needed; None for all of the paper's.
    """
    known = values_of(context, group)
    lacking = [
        str(value) for value in (GRIDS[group].details if values is None else values) if value not in known
    ]
    if lacking:
        return f"{group} {', '.join(lacking)} is no part of this run"
    means = context.published(GRIDS[group].means)
    ends = [] if means is None else [float(end) for end in means.settings["epsilons"].split(" to ")]
    epsilons = epsilons_of(context, group)
    if ends and not (epsilons and epsilons[0] <= ends[0] and epsilons[-1] >= ends[1]):
        ours = ", ".join(f"{epsilon:g}" for epsilon in epsilons) or "none"
        return f"the paper's epsilons go from {ends[0]:g} to {ends[1]:g}, this run's do not ({ours})"
    return ""


def pair(
    context: Context, group: str, sides: tuple[str, str], metric: str, values: Sequence[int]
) -> tuple[Sample, Sample] | str:
    """Both sides of a comparison, or why there is none."""
    samples = []
    for variant in sides:
        measured = sample(context, group, variant, metric, values=values)
        if measured is None:
            return missing(context, group, variant, values, metric)
        samples.append(measured)
    return samples[0], samples[1]


def first_unit(both: tuple[Sample, Sample]) -> tuple[Sample, Sample] | None:
    """Both sides' measurements of the first unit that they share: what a paper with one training has."""
    first, other = both
    name = next((name for name in first.unit_names if name in other.unit_names), None)
    if name is None:
        return None
    first, second = (
        side.taken([place for place, unit in enumerate(side.units) if unit == name]) for side in both
    )
    return first, second


def scale(context: Context, group: str) -> dict[str, Any]:
    """Where our numbers of a grid were made at another scale than the paper's, and what did not finish."""
    means, epsilons = context.published(GRIDS[group].means), epsilons_of(context, group)
    sizes: list[int] = context.outcomes.values(group, "members")
    stated = None if means is None else means.settings.get("members")
    outcomes = context.outcomes.part(group)
    return {
        "epsilons": epsilons,
        "other_epsilons": means is not None and len(epsilons) != EPSILONS,
        "sizes": sizes,
        "stated": stated,
        "other_sizes": stated is not None and bool(sizes) and [int(stated)] != sizes,
        "lost": sum(not outcome.metrics for outcome in outcomes),
        "runs": len(outcomes),
    }
