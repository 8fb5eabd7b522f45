"""Shuffled DPSGD's Tables I and II: what is trained on what, and whether shuffling changes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd.cells import Context, less, scale_notes, span
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    ACCURACY,
    CIFAR,
    GROUPS,
    INVARIANCE,
    LOSS,
    NON_PRIVATE,
    NON_PRIVATE_SHUFFLED,
    TWIN,
    TWIN_SHUFFLED,
    UTILITY,
    Setting,
    dataset_of,
    model_of,
    number_of,
    own_dataset_of,
    own_model_of,
)
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import said
from workbench.reports.papers.shuffled_dp_sgd.paper_models import MODELS
from workbench.reports.shared.beside import NOT_IN_PAPER
from workbench.reports.shared.paper_cells import Row, blank, printed_place, rows_of
from workbench.reports.shared.paper_samples import NOT_HERE, UNIT
from workbench.reports.shared.statistics import Sample
from workbench.studies.experiments import Outcome
from workbench.studies.report import Cell, Table, Value

PARAMETERS, SHARE, MOVED = "trainable parameters, millions", "shuffled, percent", "moved in the paper's model"

MODES = {
    "non-private": NON_PRIVATE,
    "shuffled non-private": NON_PRIVATE_SHUFFLED,
    "DPSGD": TWIN,
    "shuffled with same sigma": TWIN_SHUFFLED,
}
"""Table II's methods, and our variants."""

TWINS = {NON_PRIVATE_SHUFFLED: NON_PRIVATE, TWIN_SHUFFLED: TWIN}
"""Shuffled variants of Table II, and what each is compared with."""

DISTANCE = "distance to the unshuffled weights"
APART = ("largest difference in loss", "largest difference in accuracy")


def model_tables(context: Context) -> list[Table]:
    """Table I in its two parts, and Table II."""
    made = (_models(context), _datasets(context), _invariance(context))
    return [table for table in made if table is not None]


def _runs(context: Context, groups: Sequence[str], wanted: Setting) -> list[Outcome]:
    """Finished runs of all groups that fit."""
    return [one for group in groups for one in context.measured.done(group, wanted)]


def _models(context: Context) -> Table | None:
    printed = context.published("table-1")
    names = [] if printed is None else [row[0] for row in rows_of(printed)]
    names += [model for model, _ in context.measured.places(GROUPS) if model not in names]
    if not names:
        return None
    columns = (PARAMETERS, SHARE, MOVED)
    rows: list[Row] = []
    for name in names:
        runs = _runs(context, GROUPS, Setting(model=name))
        ours = dict.fromkeys(
            own_model_of(one.experiment)
            for group in GROUPS
            for one in context.measured.runs(group, Setting(model=name))
        )
        moved = MODELS.get(name)
        cells = (
            _shared(runs, _millions, context.printed("table-1", (name,), "trainable parameters")),
            _shared(runs, _moved_share, context.printed("table-1", (name,), "shuffle ratio")),
            Cell(why_blank="no model of the paper")
            if moved is None
            else Cell(ours=Value(estimate=100.0 * moved.share), why_blank="not printed"),
        )
        rows.append(((name, ", ".join(ours) or "none"), cells))
    return printed_place(
        printed,
        "table-1",
        "The models: parameters, and how much of them is shuffled",
        headers=("model", "ours"),
        columns=columns,
        rows=rows,
        notes=(
            "Shuffled: as printed, and what our runs permuted of their own trainable parameters, as each "
            "run counted it. Ours are other models, so no difference is taken.",
            "Moved in the paper's model: the share that Theorems 3 and 4 can move, counted from the named "
            "model's published sizes: not embeddings, normalisers, biases after a layer, poolers, "
            "classifiers.",
        ),
        decimals={PARAMETERS: 3, SHARE: 1, MOVED: 1},
    )


def _millions(outcome: Outcome) -> float:
    return number_of(outcome, "dimension") / 1e6


def _moved_share(outcome: Outcome) -> float:
    share = number_of(outcome, "shuffled_share")
    return 100.0 * share if share > 0.0 else math.nan  # A run that permuted nothing says nothing.


def _shared(runs: Sequence[Outcome], of: Callable[[Outcome], float], printed: PublishedCell | None) -> Cell:
    """A property of the runs beside the printed one, without a difference."""
    known = sorted({value for value in map(of, runs) if not math.isnan(value)})
    if not known:
        return blank(printed, "the runs do not say" if runs else "no finished run")
    text = "" if len(known) == 1 else span(known)
    why = "" if printed is not None else "not printed"
    return Cell(paper=printed, ours=Value(estimate=known[0], text=text), why_blank=why)


_PRINTED_PLANS = {
    "N": "training records",
    "learning rate": "learning rate",
    "epochs": "epochs",
    "delta": "delta",
}


def _datasets(context: Context) -> Table | None:
    printed = context.published("table-1-datasets")
    places = _printed_places(context.paper)
    ours = context.measured.places(UTILITY)
    names = [*places, *(one for one in ours if one not in places)]
    if not names:
        return None
    columns = (*_PRINTED_PLANS, "batch size", "steps T", "clip c")
    rows: list[Row] = []
    for model, dataset in names:
        runs = [
            one
            for group in UTILITY
            for one in context.measured.runs(group, Setting(model=model, dataset=dataset))
        ]
        row = places.get((model, dataset), ())
        cells = [_plan(context, row, column, runs) for column in columns]
        mine = dict.fromkeys(own_dataset_of(one.experiment) for one in runs)
        rows.append(((model, dataset, ", ".join(mine) or "none"), tuple(cells)))
    return printed_place(
        printed,
        "table-1-datasets",
        "The trainings: records, rates, epochs, delta",
        headers=("model", "dataset", "ours"),
        columns=columns,
        rows=rows,
        notes=(
            "Ours as the study states them; where the variants of a row differ, from the least to the "
            "largest. delta of GLUE is printed as 1/(2N). Ours are other records, so no difference is taken.",
            "Table I prints no batch size, no number of steps and no c'; the clip c stands in section VI-A.",
        ),
        decimals={},
    )


def _printed_places(paper: PublishedPaper | None) -> dict[tuple[str, str], tuple[str, ...]]:
    """Row of Table I's datasets by model and dataset: a printed row speaks of several models."""
    if paper is None:
        return {}
    return {
        (model, row[1]): row
        for row in rows_of(paper.table("table-1-datasets"))
        for model in row[0].split(", ")
    }


def _plan(context: Context, row: tuple[str, ...], column: str, runs: Sequence[Outcome]) -> Cell:
    printed = context.printed("table-1-datasets", row, _PRINTED_PLANS.get(column, ""))
    if column == "delta" and row and printed is None:
        printed = context.printed("table-1-datasets", row, "delta, formula")
    if column == "clip c" and row and context.paper is not None:
        task = "CV tasks" if row[1] == CIFAR else "all NLP tasks"
        printed = said(context.paper, "section VI-A", f"clip of {task}")
    values = sorted({value for one in runs for value in _planned(one, column)})
    if not values:
        return blank(printed, NOT_HERE if not runs else "the runs do not say")
    text = "" if len(values) == 1 else span(values)
    why = "" if printed is not None else "not printed"
    return Cell(paper=printed, ours=Value(estimate=values[0], text=text), why_blank=why)


def _planned(outcome: Outcome, column: str) -> list[float]:
    """A number of the run's plan; none where it has none."""
    experiment = outcome.experiment
    found = {
        "N": experiment.members,
        "learning rate": experiment.learning_rate,
        "epochs": experiment.epochs,
        "delta": experiment.delta,
        "batch size": experiment.batch_size,
        "steps T": experiment.steps,
        "clip c": number_of(outcome, "l2_clip_norm"),
    }[column]
    return [] if found is None or math.isnan(found) else [float(found)]


def _invariance(context: Context) -> Table | None:
    printed = context.published("table-2")
    places = [] if printed is None else rows_of(printed)
    for model, _ in context.measured.places(INVARIANCE):
        places += [(model, mode) for mode in MODES if (model, mode) not in places]
    if not places:
        return None
    columns = ("test loss", "test accuracy", DISTANCE, *APART)
    rows: list[Row] = []
    for model, mode in places:
        setting = Setting(model=model, variant=MODES[mode])
        cells = [
            context.cell(context.printed("table-2", (model, mode), column), INVARIANCE, setting, name)
            for column, name in (("test loss", LOSS), ("test accuracy", ACCURACY))
        ]
        cells.append(_distance(context, setting))
        cells += [_apart(context, setting, name) for name in (LOSS, ACCURACY)]
        rows.append(((model, mode), tuple(cells)))
    return printed_place(
        printed,
        "table-2",
        "Shuffled and unshuffled training: loss (nats) and accuracy (percent) on held-out records",
        headers=("model", "method"),
        columns=columns,
        rows=rows,
        notes=(
            "Rows with privacy are twins of one sigma: the shuffled one draws its noise in the order of the "
            "first weights and permutes it along, so that both runs are one run but for rounding.",
            f"Largest difference: of the shuffled run to the unshuffled one of the same {UNIT}, over "
            f"{UNIT}s; a fact of these runs, not an estimate.",
            "Distance: L2, of the released weights and the same weights with all permutations undone. The "
            "paper prints one number, of ViT, and not of which training.",
            _datasets_said(context),
            *scale_notes(context, (INVARIANCE,)),
        ),
        decimals={"test loss": 4, "test accuracy": 2, DISTANCE: 2},
    )


def _datasets_said(context: Context) -> str:
    """Where the paper's rows are of other records than our stand-ins are called after; empty mostly."""
    found = {
        f"{model_of(one.experiment)} on {dataset_of(one.experiment)}"
        for one in context.measured.by_group[INVARIANCE]
    }
    return f"Ours stand in for {', '.join(sorted(found))}." if found else ""


def _distance(context: Context, setting: Setting) -> Cell:
    is_printed = context.paper is not None and setting == Setting(model="ViT", variant=TWIN_SHUFFLED)
    printed = (
        said(context.paper, "section VI-B", "distance between the weights of ViT")
        if is_printed and context.paper is not None
        else None
    )
    if setting.variant not in TWINS:
        return Cell(why_blank="it permutes nothing")
    made = context.cell(printed, INVARIANCE, setting, "shuffle_distance")
    return replace(made, difference=None)  # Of models of another size.


def _apart(context: Context, setting: Setting, name: str) -> Cell:
    if setting.variant not in TWINS:
        return Cell(why_blank="it is what the shuffled one is compared with")
    found = twin_differences(context, setting, name)
    if isinstance(found, str):
        return blank(None, found)
    worst = float(np.max(np.abs(found.values)))
    return Cell(ours=Value(estimate=worst, n=found.values.size), why_blank=NOT_IN_PAPER)


def twin_differences(context: Context, shuffled: Setting, name: str) -> Sample | str:
    """A number of shuffled runs less that of their unshuffled twins, one a seed; or why there is none."""
    other = Setting(model=shuffled.model, dataset=shuffled.dataset, variant=TWINS[str(shuffled.variant)])
    return less(context, INVARIANCE, shuffled, other, name)
