"""PACZero's figures: accuracy against what is promised, with the cliff of differential privacy, and drift.

A nat and an epsilon are no common axis. What both allow an adversary to gain over guessing at even odds is
one: the promise's `max_success` less one half. It is the paper's own way of matching the two, and no claim
that they promise the same: one is about the secret subset, the other about a record.
"""

from __future__ import annotations

from workbench.accounting import guarantee_from_json
from workbench.reports.papers.paczero.cells import Context
from workbench.reports.papers.paczero.layout import (
    AGGZO,
    BASELINES,
    CLIFF,
    DPZERO,
    DRIFT,
    FT,
    HEADLINE,
    MEZO,
    MI,
    PLATEAU,
    SCORE,
    SENTIMENT,
    TRACKS,
    UNANIMITY,
    UNIT,
    ZPL,
    Setting,
)
from workbench.reports.papers.paczero.steps import step_figures
from workbench.reports.shared.charts import Line, Scales, line_chart
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Figure, Value

MOST_LINES = 8


def figures(context: Context) -> list[Figure]:
    """All figures that the study has runs for."""
    made = [_promises(context), _budgets(context, SCORE), _budgets(context, UNANIMITY), _drift(context)]
    return [*(figure for figure in made if figure is not None), *step_figures(context)]


def _levels(context: Context, track: str) -> list[Line]:
    """PACZero-ZPL and MeZO, which have no budget, as levels."""
    lines = []
    for variant, groups, label in (
        (ZPL, (HEADLINE,), f"{ZPL} (zero nats)"),
        (MEZO, (BASELINES,), f"{MEZO} (no privacy)"),
    ):
        for task in (SENTIMENT, ""):
            value = context.value(groups, Setting(variant=variant, task=task, track=track), SCORE)
            if value is not None:
                lines.append(Line(label=label, x=(), values=(value,)))
                break
    return lines


def _promises(context: Context) -> Figure | None:
    """Accuracy over the gain over guessing that each promise allows."""
    lines = []
    for variant, group in ((MI, PLATEAU), (DPZERO, CLIFF), (AGGZO, CLIFF)):
        points: dict[float, Value] = {}
        for setting in context.measured.settings(group, variant=variant, track=FT):
            gain = _gain(context.measured.runs(group, setting))
            value = context.value(group, setting, SCORE)
            if gain is not None and value is not None:
                points[gain] = value
        if points:
            places = tuple(sorted(points))
            lines.append(Line(label=variant, x=places, values=tuple(points[place] for place in places)))
    if not lines:
        return None
    return line_chart(
        "plateau-and-cliff",
        f"Accuracy against what the promise allows ({FT})",
        [*lines, *_levels(context, FT)],
        Scales(x_name="gain over guessing at even odds that is allowed", y_name="test accuracy, %"),
        spread=context.interval,
        note=(
            "Over the success at even odds that each promise allows, less one half: of telling the secret "
            "subset's records for PACZero, of telling a trained record for differential privacy. The same "
            "place on the axis is the same number, not the same promise."
        ),
        place="Tables 2 and 3",
    )


def _gain(runs: list[Outcome]) -> float | None:
    """The allowed success less one half; None where a run has no claim, or one that allows nothing."""
    for one in runs:
        form = None if one.claim is None else one.claim.get("guarantee")
        if one.status is Status.DONE and isinstance(form, dict):
            gain = guarantee_from_json(form).max_success(0.5) - 0.5
            return gain if gain > 0.0 else None
    return None


def _budgets(context: Context, name: str) -> Figure | None:
    """A number over the budget in nats, a line each track."""
    lines = []
    for track in TRACKS:
        settings = sorted(
            context.measured.settings(PLATEAU, variant=MI, track=track), key=lambda one: one.epsilon or 0.0
        )
        values = [context.value(PLATEAU, setting, name) for setting in settings]
        if any(value is not None for value in values):
            places = tuple(float(setting.epsilon or 0.0) for setting in settings)
            lines.append(Line(label=f"{MI}, {track}", x=places, values=tuple(values)))
    if not lines:
        return None
    words = "test accuracy, %" if name == SCORE else "steps with one sign, %"
    title = "Accuracy" if name == SCORE else "Unanimity rate"
    return line_chart(
        f"plateau-{name}",
        f"{title} over the budget in nats",
        [*lines, *(_levels(context, FT) if name == SCORE else [])],
        Scales(x_name="total budget, nats", y_name=words),
        spread=context.interval,
        note=f"Runs of one {UNIT} share directions and subsets over all budgets. Levels are of {FT}."
        if name == SCORE
        else f"Runs of one {UNIT} share directions and subsets over all budgets.",
        place="Tables 2 and 11",
    )


def _drift(context: Context) -> Figure | None:
    """Test accuracy over T, without a checkpoint chosen by dev records."""
    lines = []
    variants = dict.fromkeys(one.variant for one in context.measured.settings(DRIFT))
    for variant in list(variants)[:MOST_LINES]:
        settings = sorted(context.measured.settings(DRIFT, variant=variant), key=lambda one: one.steps or 0)
        values = [context.value(DRIFT, setting, SCORE) for setting in settings]
        if any(value is not None for value in values):
            places = tuple(float(setting.steps or 0) for setting in settings)
            lines.append(Line(label=str(variant), x=places, values=tuple(values)))
    if not lines:
        return None
    return line_chart(
        "drift",
        "Accuracy at the last step over the number of steps",
        lines,
        Scales(x_name="steps T", y_name="test accuracy, %", log_x=False),
        spread=context.interval,
        note=(
            f"The model after the last step, no checkpoint chosen. Runs of one {UNIT} are one trajectory, "
            "stopped at each T."
        ),
        place="Table 14",
    )
