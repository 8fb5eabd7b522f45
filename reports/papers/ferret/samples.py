"""A FERRET study's outcomes by place, and as samples whose unit of replication is the trained base model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import InputError
from workbench.estimation.metrics import roc_curve
from workbench.interfaces import FloatArray
from workbench.reports.papers.ferret.draws import Drawn, Placements, placements_of
from workbench.reports.papers.ferret.layout import (
    ADVANTAGE,
    AUC,
    BESIDE,
    CEILING,
    COMPARISON,
    DITHER,
    GAP,
    GROUPS,
    HEAD_ROOM,
    LIRA,
    LOW_FPR,
    METHODS,
    MODELS,
    SECONDS,
    TEST,
    TPR_AT_LOW_FPR,
    TRAIN,
    TRANSCRIPT,
    UNKNOWN_BATCHES,
    WORDS,
    Setting,
    plural_epochs,
)
from workbench.reports.shared import statistics
from workbench.reports.shared.beside import has_curve
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Experiment, Outcome, Status, StudyResults
from workbench.studies.report import Value

UNIT = "model"
"""The paper's means and deviations are over five models, and so are ours."""

TRAINED = (COMPARISON, HEAD_ROOM, LIRA)
"""Groups whose experiments train one of the base models each."""


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


def metric_of(outcome: Outcome, metric: str) -> float:
    """A number of a finished outcome; NaN where it has none."""
    if metric == ADVANTAGE:
        return optimistic_advantage(outcome)
    if metric == TPR_AT_LOW_FPR:
        return observed_tpr(outcome)
    if metric == SECONDS:
        return float(outcome.cost.get(SECONDS, math.nan))
    if metric == GAP:
        return metric_of(outcome, TEST) - metric_of(outcome, TRAIN)
    return float(outcome.metrics.get(metric, math.nan))


def setting_of(experiment: Experiment) -> Setting:
    """Where an experiment stands in the paper's tables."""
    return Setting(variant=experiment.variant, epochs=experiment.epochs, epsilon=experiment.epsilon)


class Measured:
    """All outcomes of the study by group and setting."""

    def __init__(self, results: StudyResults) -> None:
        """Sort the outcomes.

        Args:
            results: Of a study with groups of `_ferret_layout.GROUPS`; others are ignored.

        Raises:
            InputError: the unit of replication is no model, or two experiments share a place.
        """
        if results.study.replication != UNIT:
            raise InputError(
                f"replication must be {UNIT!r}, the unit over which FERRET's tables average, got "
                f"{results.study.replication!r}"
            )
        self.by_group: dict[str, list[Outcome]] = {name: [] for name in GROUPS}
        for one in results.outcomes:
            group = COMPARISON if one.experiment.group in BESIDE else one.experiment.group
            if group in self.by_group:
                self.by_group[group].append(one)
        self._places: dict[tuple[str, Setting], dict[tuple[str, int], Outcome]] = {}
        for group in TRAINED:
            for outcome in self.by_group[group]:
                self._keep(group, outcome)
        self._advantages: dict[str, float] = {}
        self._placements: dict[str, Placements] = {}

    def _keep(self, group: str, outcome: Outcome) -> None:
        experiment = outcome.experiment
        runs = self._places.setdefault((group, setting_of(experiment)), {})
        place = (experiment.model, experiment.seed)
        if place in runs:
            raise InputError(
                f"group {group!r} must have one experiment a place, got two of {experiment.name}, model "
                f"{experiment.model}"
            )
        runs[place] = outcome

    @property
    def trained(self) -> list[Outcome]:
        """Outcomes of all groups that train a base model."""
        return [outcome for group in TRAINED for outcome in self.by_group[group]]

    @property
    def models(self) -> list[str]:
        """Base models in the paper's order, further ones after them."""
        found = {outcome.experiment.model for outcome in self.by_group[COMPARISON] or self.trained}
        return [*(name for name in MODELS if name in found), *sorted(found - set(MODELS))]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the trainings."""
        return sorted({outcome.experiment.seed for outcome in self.trained})

    def variants(self, group: str = COMPARISON) -> list[str]:
        """Methods of a group in the paper's order, further ones in the study's order after them."""
        found = dict.fromkeys(outcome.experiment.variant for outcome in self.by_group[group])
        return [
            *(name for name in METHODS if name in found),
            *(name for name in found if name not in METHODS),
        ]

    def epochs(self, group: str = COMPARISON) -> list[int]:
        """Numbers of epochs of a group, ascending."""
        return sorted({outcome.experiment.epochs for outcome in self.by_group[group]})

    def epsilons(self, group: str = COMPARISON) -> list[float]:
        """Budgets of a group, ascending."""
        found = {outcome.experiment.epsilon for outcome in self.by_group[group]}
        return sorted(epsilon for epsilon in found if epsilon is not None)

    def runs(self, setting: Setting, group: str = COMPARISON) -> list[Outcome]:
        """All outcomes of a setting, a model and seed each."""
        return list(self._places.get((group, setting), {}).values())

    def value(self, outcome: Outcome, metric: str) -> float:
        """`metric_of`, with the advantage remembered."""
        if metric != ADVANTAGE:
            return metric_of(outcome, metric)
        if outcome.key not in self._advantages:
            self._advantages[outcome.key] = optimistic_advantage(outcome)
        return self._advantages[outcome.key]

    def sample(
        self, setting: Setting, metric: str, *, group: str = COMPARISON, models: Sequence[str] | None = None
    ) -> Sample | None:
        """A metric by model; a model without a finished run is left out.

        Args:
            setting: Where.
            metric: Name of a metric.
            group: Of the study.
            models: Only these; None for all.

        Returns:
            None where nothing is finished, or where a finished run's value is not finite: leaving that out
            would flatter the mean. AUCs come with what each record adds where all runs have scores.
        """
        done = [
            outcome
            for outcome in self.runs(setting, group)
            if outcome.status is Status.DONE and (models is None or outcome.experiment.model in models)
        ]
        values = [self.value(outcome, metric) for outcome in done]
        if not values or not all(map(usable, values)):
            return None
        units = tuple(outcome.experiment.model for outcome in done)
        seeds = tuple(outcome.experiment.seed for outcome in done)
        if metric == AUC and all(map(has_curve, done)):
            placements = tuple(map(self._placed, done))
            return Drawn(np.array(values), units, UNIT, seeds, placements=placements)
        return Sample(np.array(values), units, UNIT, seeds)

    def _placed(self, outcome: Outcome) -> Placements:
        """`placements_of`, remembered."""
        if outcome.key not in self._placements:
            self._placements[outcome.key] = placements_of(outcome)
        return self._placements[outcome.key]

    def complete(self, setting: Setting, metric: str, *, group: str = COMPARISON) -> bool:
        """Whether every run of a setting is finished with a finite value, and there is at least one."""
        runs = self.runs(setting, group)
        return bool(runs) and all(
            one.status is Status.DONE and usable(self.value(one, metric)) for one in runs
        )

    def ceiling(self, variant: str, epochs: int) -> float:
        """Least ceiling G T s ln 2 over the models, nats, as a run of another budget states it; else NaN."""
        found = [
            one.metrics[CEILING]
            for one in self.trained
            if CEILING in one.metrics and (one.experiment.variant, one.experiment.epochs) == (variant, epochs)
        ]
        return min(found, default=math.nan)

    def missing(
        self, setting: Setting, metric: str, *, group: str = COMPARISON, model: str | None = None
    ) -> str:
        """Why there is no number at a place: above the ceiling, not run, failed, or not finite."""
        runs = [one for one in self.runs(setting, group) if model in (None, one.experiment.model)]
        ceiling = self.ceiling(setting.variant, setting.epochs)
        if setting.epsilon is not None and setting.epsilon > ceiling and not _done(runs):
            return (
                f"above the ceiling G T s ln 2 = {ceiling:.4g} nats of {setting.variant} at "
                f"{plural_epochs(setting.epochs)}: no firing probability up to 1 spends that budget"
            )
        if not runs:
            return "no part of this run"
        failed = [one for one in runs if one.status is Status.FAILED]
        done = _done(runs)
        if failed and not done:
            return f"failed: {failed[0].error}"
        if not done:
            return "not run yet"
        bad = sum(not usable(self.value(one, metric)) for one in done)
        return f"{WORDS.get(metric, metric)} is missing or not finite in {bad} of {len(done)} finished runs"

    def dither(self) -> dict[float, list[Outcome]]:
        """Finished outcomes of the toy regression by the dither's standard deviation, ascending."""
        found: dict[float, list[Outcome]] = {}
        for outcome in self.by_group[DITHER]:
            if outcome.status is Status.DONE and outcome.training_losses:
                found.setdefault(dither_of(outcome.experiment), []).append(outcome)
        return dict(sorted(found.items()))

    def transcripts(self) -> list[Outcome]:
        """All outcomes of the transcript game, whatever its adversary knows, each group in its order."""
        return [*self.by_group[TRANSCRIPT], *self.by_group[UNKNOWN_BATCHES]]


def _done(runs: Iterable[Outcome]) -> list[Outcome]:
    return [one for one in runs if one.status is Status.DONE]


def dither_of(experiment: Experiment) -> float:
    """Standard deviation of the micro-dither of an experiment."""
    return float(experiment.mechanism_parameters.get("dither_standard_deviation", 0.0))


@dataclass(frozen=True, kw_only=True)
class OverModels:
    """A metric over the models.

    Attributes:
        mean: Arithmetic mean, its t interval, SD and number of models.
        least, most: Smallest and largest model.
    """

    mean: Value
    least: float
    most: float


def over_models(sample: Sample, confidence: float) -> OverModels:
    """Mean, spread and range over models; several seeds of a model count as one."""
    each = sample.by_unit()
    found = statistics.value_of(statistics.mean_interval(sample, confidence=confidence))
    return OverModels(mean=found, least=float(each.values.min()), most=float(each.values.max()))


def geometric(sample: Sample, confidence: float) -> Value:
    """Geometric mean of positive values with the t interval of the logarithm, turned back."""
    logs = logarithm(sample)
    found = statistics.value_of(statistics.mean_interval(logs, confidence=confidence))
    return Value(
        estimate=math.exp(found.estimate),
        lower=None if found.lower is None else _exp(found.lower),
        upper=None if found.upper is None else _exp(found.upper),
        n=found.n,
    )


def logarithm(sample: Sample) -> Sample:
    """Natural logarithms of positive values, with the same units and cells."""
    values: FloatArray = np.log(np.maximum(sample.values, np.finfo(np.float64).tiny))
    return Sample(values, sample.units, sample.unit, sample.cells, label=sample.label)


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))
