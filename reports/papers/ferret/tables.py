"""FERRET's Tables 2, 4 to 6 and 8 to 14 from a study's results, beside the printed numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.reports.papers.ferret.cells import (
    WALL_CLOCK,
    Context,
    budgets,
    column,
    draw_notes,
    has_budget,
    mean_value,
    no_such_budget,
    printed_column,
    scale_notes,
    settings,
)
from workbench.reports.papers.ferret.layout import (
    ADVANTAGE,
    AUC,
    COMPARISON,
    GAP,
    MODEL_MEAN,
    MODELS,
    SECONDS,
    TEST,
    TRAIN,
    UNTRAINED,
    Setting,
)
from workbench.reports.papers.ferret.samples import UNIT, over_models
from workbench.reports.shared.statistics import Sample
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.report import Cell, Table, Value

OPTIMISTIC = (
    "Advantage is the largest TPR less FPR over all thresholds on the same scores, as the paper has it: the "
    "threshold is chosen on the labels and not paid for, so that pure guessing shows a positive number."
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A table of means over models.

    Attributes:
        id: Of the printed table.
        metric: What it shows.
        ranged: Whether it prints least and largest model, and not the SD.
        decimals: Digits after the point.
        title: In our words.
    """

    id: str
    metric: str
    ranged: bool
    decimals: int
    title: str


SUMMARIES = (
    Summary(id="table-2", metric=AUC, ranged=False, decimals=3, title="Membership ROC AUC"),
    Summary(id="table-5", metric=TEST, ranged=True, decimals=2, title="Test perplexity"),
    Summary(id="table-6", metric=SECONDS, ranged=False, decimals=1, title="Training time, seconds"),
    Summary(id="table-8", metric=TEST, ranged=True, decimals=2, title="Test perplexity (appendix)"),
    Summary(id="table-9", metric=AUC, ranged=True, decimals=3, title="Membership ROC AUC, with its range"),
    Summary(id="table-10", metric=ADVANTAGE, ranged=True, decimals=3, title="Membership advantage"),
    Summary(
        id="table-11", metric=SECONDS, ranged=True, decimals=1, title="Training time, seconds, with its range"
    ),
)

BY_MODEL = {
    "table-12": ("Test perplexity, membership AUC and training seconds by model", (TEST, AUC, SECONDS)),
    "table-13": ("Membership AUC and advantage by model", (AUC, ADVANTAGE)),
    "table-14": ("Train and test perplexity, gap and training seconds by model", (TRAIN, TEST, GAP, SECONDS)),
}
"""Title and metrics of the tables by model."""

DECIMALS = {AUC: 3, ADVANTAGE: 3, TEST: 2, TRAIN: 2, GAP: 2, SECONDS: 1}
SHORT = {
    AUC: "AUC",
    ADVANTAGE: "advantage",
    TEST: "test PPL",
    TRAIN: "train PPL",
    GAP: "gap",
    SECONDS: "seconds",
}


def summary_table(context: Context, summary: Summary) -> Table:
    """One of Tables 2, 5, 6 and 8 to 11: mean over models with SD or range, and the t interval."""
    measured = context.measured
    shown = context.published(summary.id)
    columns = budgets(measured)
    rows = []
    for variant, epochs in settings(measured):
        cells = tuple(
            _summary_cell(context, summary, Setting(variant=variant, epochs=epochs, epsilon=epsilon))
            for epsilon in columns
        )
        rows.append(((variant, str(epochs)), cells))
    spread = (
        "Paper: mean [least, largest] over its five models. Ours: mean (least to largest)"
        if summary.ranged
        else "± is the standard deviation over models, in the paper and in ours"
    )
    notes = [
        f"{spread}; brackets in ours: {context.interval}, which knows no limits and assumes that models are "
        "draws from one normal distribution.",
        *(draw_notes(context) if summary.metric in (AUC, ADVANTAGE) else []),
        *(harm_notes(context) if summary.metric == TEST else []),
        *([OPTIMISTIC] if summary.metric == ADVANTAGE else []),
        *([WALL_CLOCK] if summary.metric == SECONDS else []),
        *scale_notes(context),
    ]
    return Table(
        id=summary.id,
        title=summary.title,
        place=shown.place if shown else "",
        row_headers=("method", "epochs"),
        columns=tuple(map(column, columns)),
        rows=tuple(rows),
        notes=tuple(notes),
        decimals=dict.fromkeys(map(column, columns), summary.decimals),
    )


def harm_notes(context: Context) -> list[str]:
    """In how many settings training made the base models worse; none where no run states the base's."""
    measured = context.measured
    base = {model: baseline(context, model, TEST) for model in measured.models}
    worse, compared = 0, 0
    for variant, epochs in settings(measured):
        for epsilon in budgets(measured):
            setting = Setting(variant=variant, epochs=epochs, epsilon=epsilon)
            sample = measured.sample(setting, TEST)
            found = [] if sample is None else [base.get(str(unit)) for unit in sample.units]
            if epsilon is None or sample is None or not all(found) or sample.values.min() <= 0.0:
                continue
            before = np.array([one.estimate for one in found if one is not None])
            compared += 1
            worse += bool(np.mean(np.log(sample.values / before)) > 0.0)
    if not compared:
        return []
    return [
        f"In {worse} of {compared} settings with a budget our test perplexity is above that of the base "
        f"before training (Table 4; geometric mean ratio over {UNIT}s). There training harmed the {UNIT}s, "
        "and a lower perplexity than another method's says that it harmed less, not that it taught more."
    ]


def _summary_cell(context: Context, summary: Summary, setting: Setting) -> Cell:
    place = ((setting.variant, str(setting.epochs)), printed_column(setting.epsilon))
    none = no_such_budget(setting, has_budget=has_budget(context.measured, setting.variant))
    if none:
        return Cell(why_blank=none)
    ours = mean_value(context, setting, summary.metric, decimals=summary.decimals, ranged=summary.ranged)
    missing = "" if ours is not None else context.measured.missing(setting, summary.metric)
    return context.cell(summary.id, place, ours, missing)


def baseline_table(context: Context) -> Table:
    """Table 4: perplexity of the untrained base models on both splits."""
    shown = context.published("table-4")
    names = {TRAIN: "train perplexity", TEST: "test perplexity"}
    found = {
        (model, metric): baseline(context, model, metric)
        for model in context.measured.models
        for metric in (TRAIN, TEST)
    }
    rows = []
    for model, stands in _model_rows(context):
        cells = tuple(
            context.cell(
                "table-4",
                ((stands,), metric),
                found.get((model, metric)),
                "no run states it" if model in context.measured.models else "no part of this run",
            )
            for metric in names
        )
        rows.append(((_row_name(model, stands),), cells))
    means = []
    for metric in names:
        values = {model: value for model in context.measured.models if (value := found[model, metric])}
        sample = (
            Sample(np.array([one.estimate for one in values.values()]), tuple(values), UNIT)
            if values
            else None
        )
        mean = None if sample is None else over_models(sample, context.confidence).mean
        ours = (
            None
            if mean is None
            else Value(estimate=mean.estimate, lower=mean.lower, upper=mean.upper, n=mean.n)
        )
        means.append(context.cell("table-4", ((MODEL_MEAN,), metric), ours, "no run states it"))
    rows.append(((MODEL_MEAN,), tuple(means)))
    return Table(
        id="table-4",
        title="Perplexity before training",
        place=shown.place if shown else "",
        row_headers=("model",),
        columns=tuple(names.values()),
        rows=tuple(rows),
        notes=(
            "One number a model: the base model as it is before any training, on the members and the "
            "non-members of the first seed, the records of all other tables. Brackets of the mean: "
            f"{context.interval}.",
        ),
        decimals=dict.fromkeys(names.values(), 2),
    )


def baseline(context: Context, model: str, name: str) -> Value | None:
    """Perplexity of the base model as it was, over the records of all other tables.

    Args:
        context: The study's numbers.
        model: Of the study.
        name: `TEST` (non-members) or `TRAIN` (members).

    Returns:
        None where the group of untrained models has not run.
    """
    for one in sorted(context.measured.by_group[UNTRAINED], key=lambda one: one.experiment.seed):
        if one.experiment.model == model and usable(one.metrics.get(name, np.nan)):
            return Value(estimate=float(one.metrics[name]), n=1)
    return None


def _model_rows(context: Context) -> list[tuple[str, str]]:
    """Our model and the paper's name of each row; models that stand for none stand for themselves."""
    further = [name for name in context.measured.models if name not in MODELS]
    return [*MODELS.items(), *((name, name) for name in further)]


def _row_name(model: str, stands: str) -> str:
    return model if model == stands else f"{stands} ({model})"


def model_table(context: Context, table_id: str) -> Table:
    """One of Tables 12 to 14: every model by itself, and the mean."""
    title, metrics = BY_MODEL[table_id]
    shown = context.published(table_id)
    places = [(metric, epsilon) for metric in metrics for epsilon in budgets(context.measured)]
    names = [f"{SHORT[metric]}, {column(epsilon)}" for metric, epsilon in places]
    rows: list[tuple[tuple[str, ...], tuple[Cell, ...]]] = []
    for variant, epochs in settings(context.measured):
        for model, stands in [*_model_rows(context), ("", MODEL_MEAN)]:
            cells = tuple(
                _model_cell(
                    context,
                    (table_id, model, stands),
                    metric,
                    Setting(variant=variant, epochs=epochs, epsilon=epsilon),
                )
                for metric, epsilon in places
            )
            rows.append(((variant, str(epochs), _row_name(model, stands) if model else MODEL_MEAN), cells))
    seeds = context.measured.seeds
    notes = [
        "Paper's model, and in brackets ours that stands in for it. "
        + (
            f"One training a cell (seed {seeds[0]}), in ours as in the paper: no cell of a single model has "
            "a spread."
            if len(seeds) == 1
            else f"Each of our cells is the mean over {len(seeds)} seeds."
        ),
        f"{MODEL_MEAN}: over the models of the same rows; brackets: {context.interval}.",
        *(draw_notes(context) if AUC in metrics else []),
        *([OPTIMISTIC] if ADVANTAGE in metrics else []),
        *([WALL_CLOCK] if SECONDS in metrics else []),
        *scale_notes(context)[1:],
    ]
    return Table(
        id=table_id,
        title=title,
        place=shown.place if shown else "",
        row_headers=("method", "epochs", "model"),
        columns=tuple(names),
        rows=tuple(rows),
        notes=tuple(notes),
        decimals={name: DECIMALS[metric] for name, (metric, _) in zip(names, places, strict=True)},
    )


def _model_cell(context: Context, names: tuple[str, str, str], metric: str, setting: Setting) -> Cell:
    table_id, model, stands = names
    none = no_such_budget(setting, has_budget=has_budget(context.measured, setting.variant))
    if none:
        return Cell(why_blank=none)
    place = ((setting.variant, str(setting.epochs), stands), f"{metric}, {printed_column(setting.epsilon)}")
    measured = context.measured
    if not model:
        mean = mean_value(context, setting, metric, decimals=0, ranged=False)
        ours = (
            None
            if mean is None
            else Value(estimate=mean.estimate, lower=mean.lower, upper=mean.upper, n=mean.n)
        )
        return context.cell(table_id, place, ours, "" if ours else measured.missing(setting, metric))
    sample = measured.sample(setting, metric, models=[model])
    if sample is None:
        return context.cell(table_id, place, None, measured.missing(setting, metric, model=model))
    return context.cell(table_id, place, Value(estimate=float(np.mean(sample.values))))


def paper_tables(context: Context) -> list[Table]:
    """Tables 2, 4, 5, 6 and 8 to 14 in their order."""
    if not context.measured.by_group[COMPARISON]:
        return []
    by_id = {summary.id: summary_table(context, summary) for summary in SUMMARIES}
    by_id["table-4"] = baseline_table(context)
    by_id |= {name: model_table(context, name) for name in BY_MODEL}
    return [by_id[name] for name in sorted(by_id, key=lambda name: int(name.removeprefix("table-")))]
