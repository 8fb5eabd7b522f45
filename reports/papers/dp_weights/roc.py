"""ROC curves of DP-Weights' attack: what its tables' one threshold, and the area, leave out."""

from __future__ import annotations

from workbench.reports.papers.dp_weights.cells import Context
from workbench.reports.papers.dp_weights.layout import DP_SGD, DP_WEIGHTS, FINE_TUNED, GRIDS
from workbench.reports.shared.beside import has_curve
from workbench.reports.shared.charts import RocSubject, roc_chart
from workbench.studies.experiments import Outcome
from workbench.studies.report import Figure

ENDS = {"batch size": min, "epochs": max}
"""The end of each grid at which a model takes most steps, and so gives away most of its members."""


def roc_figure(context: Context, group: str) -> Figure | None:
    """The three models' curves where the attack is strongest; None where no score was kept.

    One training each: scores of several trainings have no threshold in common. The seed is the first that has
    most of the models, the epsilon the middle one of the study.

    Args:
        context: Of the report.
        group: A key of `GRIDS`.
    """
    measured = context.measured
    values, epsilons = measured.values(group), measured.epsilons(group)
    if not values:
        return None
    value = ENDS[group](values)
    epsilon = epsilons[len(epsilons) // 2] if epsilons else None
    by_unit: dict[str | int, dict[str, Outcome]] = {}
    for outcome in measured.outcomes[group]:
        experiment = outcome.experiment
        fits = getattr(experiment, GRIDS[group].field) == value and experiment.epsilon in (None, epsilon)
        if fits and has_curve(outcome):
            by_unit.setdefault(getattr(experiment, measured.unit), {})[experiment.variant] = outcome
    found = {unit: [v for v in (DP_SGD, DP_WEIGHTS, FINE_TUNED) if v in one] for unit, one in by_unit.items()}
    if not any(found.values()):
        return None
    unit = max(sorted(found, key=str), key=lambda name: len(found[name]))
    subjects = [
        RocSubject(label=name, scores=by_unit[unit][name].scores, included=by_unit[unit][name].included)
        for name in found[unit]
    ]
    budget = "" if epsilon is None else f", epsilon {epsilon:g} (none for {FINE_TUNED})"
    return roc_chart(
        f"roc-{group.replace(' ', '-')}",
        f"ROC of the attack at {group} {value}",
        subjects,
        note=f"One training each, of {measured.unit} {unit}{budget}.",
    )
