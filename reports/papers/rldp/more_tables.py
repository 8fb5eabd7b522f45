"""RLDP's section 4.5, the controller's three knobs; and Poisson samples against shuffled epochs."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.reports.papers.rldp.cells import Context, places, scale_notes
from workbench.reports.papers.rldp.layout import (
    ABLATION,
    AUC,
    CURVE,
    EXPOSURE,
    FINAL,
    JOINT,
    KNOBS,
    LEDGER,
    OURS,
    PAPER_MODELS,
    SAMPLING,
    Setting,
    model_name,
    part_of,
)
from workbench.reports.papers.rldp.samples import Measured
from workbench.reports.papers.rldp.utility import compared_cell, log_ratio
from workbench.reports.shared.paper_cells import Row
from workbench.reports.shared.paper_samples import UNIT
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome
from workbench.studies.report import Cell, Table, Value

LOWEST = "lowest perplexity of the run"
_COLUMNS = {
    "final perplexity": FINAL,
    "ledger at the end": LEDGER,
    "certified: all adapters": JOINT,
    "AUC": AUC,
    "exposure, bits": EXPOSURE,
}


def more_tables(context: Context) -> list[Table]:
    """RLDP changed in one thing, one table a knob, and the samples."""
    made = [_knob(context, part) for part in context.measured.parts(ABLATION)]
    return [table for table in (_controls(context), *made, _sampling(context)) if table is not None]


def knob_values(measured: Measured, part: str) -> list[float]:
    """Values of an ablation's parameter, ascending; none where the part is unknown."""
    name = KNOBS.get(part)
    found = {
        one.experiment.mechanism_parameters.get(name)
        for one in measured.by_group.get(ABLATION, ())
        if name is not None and part_of(one.experiment) == part
    }
    return sorted(value for value in found if isinstance(value, int | float))


def knob_setting(part: str, value: float, epsilon: float | None = None) -> Setting:
    """The runs of an ablation at a value."""
    return Setting(part=part, knob=(KNOBS[part], value), epsilon=epsilon)


def lowest(outcome: Outcome) -> float:
    """Lowest perplexity of a run's evaluations; NaN without any."""
    return min((value for value in outcome.traces.get(CURVE, ()) if usable(value)), default=float("nan"))


def ablation_budgets(measured: Measured, part: str) -> list[float]:
    """Budgets of an ablation, ascending."""
    runs = [one for one in measured.by_group.get(ABLATION, ()) if part_of(one.experiment) == part]
    return sorted({one.experiment.epsilon for one in runs if one.experiment.epsilon is not None})


def ablation_place(measured: Measured, epsilon: float) -> str | None:
    """The group of the tables whose runs have the ablation's model and budget; None where there is none."""
    names = {model_name(one.experiment) for one in measured.by_group.get(ABLATION, ())}
    for group in PAPER_MODELS:
        found = measured.by_group.get(group, ())
        if epsilon in measured.budgets(group) and {model_name(one.experiment) for one in found} & names:
            return group
    return None


def _knob(context: Context, part: str) -> Table | None:
    values = knob_values(context.measured, part)
    if not values:
        return None
    rows: list[Row] = []
    for epsilon in ablation_budgets(context.measured, part):
        for value in values:
            setting = knob_setting(part, value, epsilon)
            rows.append(((f"{epsilon:g}", f"{value:g}"), tuple(_cells(context, ABLATION, setting))))
    names = ", ".join(
        dict.fromkeys(model_name(one.experiment) for one in context.measured.by_group[ABLATION])
    )
    knob = KNOBS[part].replace("_", " ").replace("sac", "SAC")
    return Table(
        id=f"ablation-{part}",
        title=f"The controller's {knob} (section 4.5)",
        row_headers=("epsilon", knob),
        columns=(*_COLUMNS, LOWEST),
        rows=tuple(rows),
        notes=(
            f"Model: {names}. Everything else is at its default. The paper prints no cell of its ablation; "
            "it prefers an interval of 112 steps of 3,600, a batch of 4 to 16 by budget, and 2 updates.",
            "The lowest perplexity of a run is chosen on the held-out records, and not paid for.",
            *scale_notes(context, (ABLATION,)),
        ),
        decimals={"final perplexity": 3, LOWEST: 3, "AUC": 3},
    )


def _cells(context: Context, group: str, setting: Setting) -> list[Cell]:
    why = context.measured.missing(group, setting)
    found = [context.value(group, setting, name) for name in _COLUMNS.values()]
    cells = [Cell(why_blank=why) if value is None else Cell(ours=value) for value in found]
    sample = context.measured.computed(group, setting, lowest)
    return [*cells, Cell(why_blank=sample) if isinstance(sample, str) else Cell(ours=context.mean(sample))]


AGAINST = "perplexity against RLDP-H, percent"


def _controls(context: Context) -> Table | None:
    """Variants beside those of the paper's tables, between the form that decides rarely and static DP-SGD."""
    rows: list[Row] = []
    for place in places(context):
        group, model, epsilon = place
        extras = context.measured.extras(group)
        for name in (OURS[0], *extras, "Static") if extras else ():
            setting = Setting(variant=name, epsilon=epsilon)
            if not context.measured.runs(group, setting):
                continue
            cells = _cells(context, group, setting)[:-1]
            against = (
                Cell(why_blank="it is what the others are compared with")
                if name == OURS[0]
                else compared_cell(log_ratio(context, place, name, OURS[0]))
            )
            rows.append(((model, f"{epsilon:g}", name), (*cells, against)))
    if not rows:
        return None
    return Table(
        id="controls",
        title="RLDP changed in one thing",
        row_headers=("model", "epsilon", "method"),
        columns=(*_COLUMNS, AGAINST),
        rows=tuple(rows),
        notes=(
            "What the study's names say is changed: the controller at rest, or the noise paid for all "
            "adapters. "
            "Certified: see the table of what was claimed.",
            f"Paired t tests over {UNIT}s of logarithms, each by itself at {context.percent}, uncorrected.",
            *scale_notes(context, PAPER_MODELS),
        ),
        decimals={"final perplexity": 3, "AUC": 3, AGAINST: 2},
    )


def _sampling(context: Context) -> Table | None:
    if not context.measured.by_group.get(SAMPLING):
        return None
    rows: list[Row] = []
    for epsilon in context.measured.budgets(SAMPLING):
        for variant in context.measured.variants(SAMPLING):
            setting = Setting(variant=variant, epsilon=epsilon)
            if not context.measured.runs(SAMPLING, setting):
                continue
            poisson = _poisson_runs(context.measured, setting)
            cells = [*_cells(context, SAMPLING, setting)[:-1], _beside(context, poisson, setting)]
            rows.append(((f"{epsilon:g}", variant), tuple(cells)))
    return Table(
        id="sampling",
        title="Shuffled epochs in the place of Poisson samples",
        row_headers=("epsilon", "method"),
        columns=(*_COLUMNS, "final perplexity, Poisson"),
        rows=tuple(rows),
        notes=(
            "Section 3.1 shuffles the training data each epoch and accounts for Poisson samples. The noise "
            "is the same here; no epsilon of the paper's accountants holds of shuffled epochs, so none is "
            "certified.",
            *scale_notes(context, (SAMPLING,)),
        ),
        decimals={"final perplexity": 3, "final perplexity, Poisson": 3, "AUC": 3},
    )


def _poisson_runs(measured: Measured, setting: Setting) -> Sequence[str]:
    """Groups of the tables that train the same model on Poisson samples."""
    names = {model_name(one.experiment) for one in measured.by_group.get(SAMPLING, ())}
    return [
        group
        for group in PAPER_MODELS
        if {model_name(one.experiment) for one in measured.runs(group, setting)} & names
    ]


def _beside(context: Context, groups: Sequence[str], setting: Setting) -> Cell:
    value: Value | None = context.value(groups, setting, FINAL) if groups else None
    return Cell(why_blank="no such runs in the tables") if value is None else Cell(ours=value)
