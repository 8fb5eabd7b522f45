"""A study's outcomes as samples: a metric of a variant, by seed, setting and epsilon.

The fine-tuned model has no epsilon; as in the paper its value is set beside every epsilon. That makes no
further replicates: the unit of every sample is the study's unit of replication.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from workbench.core.errors import InputError
from workbench.reports.papers.dp_weights.layout import FINE_TUNED, GRIDS, SECURITY_METRICS
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Experiment, Outcome, Status, StudyResults
from workbench.studies.report import Replication

MARGIN_SHARE = 0.1
"""Perplexities count as alike within this share of the fine-tuned model's: about 0.1 nats a token."""

MARGIN_ATTACK = 0.05
"""Attack metrics in [0, 1] count as alike within this much: a tenth of what a coin reaches."""

Place = tuple[int, float | None, str | int]
"""Value of the varied field, epsilon (None without a budget), seed."""

NO_REPLICATES = ("epsilon", "delta", *(grid.field for grid in GRIDS.values()))
"""Fields that the tables average over: measurements of one training, or the settings that are compared."""


class Measured:
    """Metrics of all outcomes of the two grids, by group, variant and place; None where one is not done."""

    def __init__(self, results: StudyResults) -> None:
        """Sort the outcomes.

        Args:
            results: Of a study with the groups and variants of `_dp_weights_layout`; others are ignored.

        Raises:
            InputError: the unit of replication is an axis of the tables, or two experiments share a place.
        """
        self.unit = results.study.replication
        if self.unit in NO_REPLICATES:
            raise InputError(
                f"replication must not be one of {', '.join(NO_REPLICATES)}, whose values are no independent "
                f"repeats here, got {self.unit!r}"
            )
        self.variants = list(dict.fromkeys(one.experiment.variant for one in results.outcomes))
        self._metrics: dict[tuple[str, str], dict[Place, Mapping[str, float] | None]] = {}
        self._not_run: set[tuple[str, str, Place]] = set()
        self._epsilons: dict[str, list[float]] = {}
        self._values: dict[str, list[int]] = {}
        self.outcomes: dict[str, list[Outcome]] = {group: [] for group in GRIDS}
        for outcome in results.outcomes:
            group = outcome.experiment.group
            if group in GRIDS:
                self.outcomes[group].append(outcome)
                self._keep(outcome, group)

    def _keep(self, outcome: Outcome, group: str) -> None:
        experiment = outcome.experiment
        value = int(getattr(experiment, GRIDS[group].field))
        values, epsilons = self._values.setdefault(group, []), self._epsilons.setdefault(group, [])
        if value not in values:
            values.append(value)
        if experiment.epsilon is not None and experiment.epsilon not in epsilons:
            epsilons.append(experiment.epsilon)
        place = (value, experiment.epsilon, getattr(experiment, self.unit))
        found = self._metrics.setdefault((group, experiment.variant), {})
        if place in found:
            raise InputError(
                f"group {group!r} must have one experiment a place, got two of {_name(experiment, self.unit)}"
            )
        found[place] = outcome.metrics if outcome.status is Status.DONE else None
        if outcome.status is Status.MISSING:
            self._not_run.add((group, experiment.variant, place))

    def values(self, group: str) -> list[int]:
        """Settings of the varied field, ascending."""
        return sorted(self._values.get(group, []))

    def epsilons(self, group: str) -> list[float]:
        """All epsilons of a group, ascending."""
        return sorted(self._epsilons.get(group, []))

    def sample(
        self,
        group: str,
        variant: str,
        metric: str,
        *,
        values: Sequence[int] | None = None,
        epsilons: Sequence[float] | None = None,
    ) -> Sample | None:
        """A metric as a sample whose units are seeds and whose cells are (setting, epsilon).

        A seed that lacks a run is left out: its mean would be of other budgets than the others'. A value that
        is not finite leaves no mean at all; leaving it out would flatter it.

        Args:
            group: A key of `GRIDS`.
            variant: Name of the mechanism in tables.
            metric: Name of an outcome's metric.
            values: Settings of the varied field; None for all.
            epsilons: None for all.

        Returns:
            None where no seed has all of its runs, or a value is not finite.
        """
        wanted = self.values(group) if values is None else list(values)
        budgets = self.epsilons(group) if epsilons is None else list(epsilons)
        chosen = [
            (place, metrics)
            for place, metrics in sorted(self._metrics.get((group, variant), {}).items(), key=_order)
            if place[0] in wanted and (place[1] is None or place[1] in budgets)
        ]
        incomplete = {seed for (_, _, seed), metrics in chosen if metrics is None}
        numbers, units, cells = [], [], []
        for (value, epsilon, seed), metrics in chosen:
            number = math.nan if metrics is None else float(metrics.get(metric, math.nan))
            if metrics is not None and not usable(number):
                return None
            beside: Sequence[float | None] = (budgets or [None]) if epsilon is None else [epsilon]
            for budget in beside:
                if seed not in incomplete:
                    numbers.append(number)
                    units.append(seed)
                    cells.append((value, budget))
        return Sample(np.array(numbers), tuple(units), self.unit, tuple(cells)) if numbers else None

    def not_finite(self, group: str, variant: str, metric: str, values: Sequence[int]) -> int:
        """How many finished runs lack a finite value of a metric (below 1e150 in size)."""
        return sum(
            metrics is not None and not usable(metrics.get(metric, math.nan))
            for (value, _, _), metrics in self._metrics.get((group, variant), {}).items()
            if value in values
        )

    def unusable(
        self, group: str, variant: str, metric: str, values: Sequence[int] | None = None
    ) -> set[tuple[str, str, Place]]:
        """The experiments that lack a finite value of a metric: failed, missing, or not finite."""
        return {
            (group, variant, place)
            for place, metrics in self._metrics.get((group, variant), {}).items()
            if (values is None or place[0] in values)
            and not (metrics is not None and usable(metrics.get(metric, math.nan)))
        }

    def undecided(self, unusable: Iterable[tuple[str, str, Place]]) -> Replication:
        """What a conclusion is that hangs on unusable runs: not run where one of them is not made yet."""
        waits = not self._not_run.isdisjoint(unusable)
        return Replication.NOT_RUN if waits else Replication.NOT_TESTABLE

    def margin(self, group: str, metric: str, values: Sequence[int] | None = None) -> float | None:
        """Within what two variants count as alike; None where the fine-tuned model's value is missing."""
        if metric in SECURITY_METRICS:
            return MARGIN_ATTACK
        sample = self.sample(group, FINE_TUNED, metric, values=values)
        return None if sample is None else MARGIN_SHARE * float(np.mean(sample.values))


def margin_in_words() -> str:
    """The margins and why they are what they are."""
    return (
        f"margins: {MARGIN_ATTACK:g} in the attack's metrics, a tenth of the 0.5 that guessing reaches, and "
        f"{100 * MARGIN_SHARE:g} % of the fine-tuned model's perplexity, about 0.1 nats a token"
    )


def _name(experiment: Experiment, unit: str) -> str:
    """An experiment by its place."""
    name = experiment.name
    return name if unit == "seed" else f"{name}, {unit} {getattr(experiment, unit)}"


def _order(item: tuple[Place, Mapping[str, float] | None]) -> tuple[int, float, str]:
    (value, epsilon, seed), _ = item
    return value, -1.0 if epsilon is None else epsilon, str(seed)
