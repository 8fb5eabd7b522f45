"""Shuffled DPSGD's Tables III, IV and V, regenerated, and beside them DP-SGD at the same sigma.

A row is one claimed epsilon. Who accounts a column stands in its header; the epsilon of the last columns is
what a certified accountant gives for Theorem 6's sigma.
"""

from __future__ import annotations

from dataclasses import replace

from workbench.checks.published import PublishedCell
from workbench.reports.papers.shuffled_dp_sgd.cells import Context, scale_notes
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    ACCURACY,
    BLEU,
    CLASSIFICATION,
    DPSGD,
    GENERATION,
    GHOST,
    LEFT_ALONE,
    METEOR,
    NON_PRIVATE,
    SAME_CLIP,
    SAME_SIGMA,
    SHUFFLED,
    VISION,
    Setting,
)
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import EPSILONS, OURS
from workbench.reports.papers.shuffled_dp_sgd.same_sigma import certified_cell
from workbench.reports.shared.beside import NOT_IN_PAPER
from workbench.reports.shared.paper_cells import Row, blank, printed_place, rows_of
from workbench.studies.report import Cell, Table

MIXOPT = "MixOpt (RDP)"
HEADERS = {
    NON_PRIVATE: "Non-private",
    GHOST: "Ghost (RDP)",
    SHUFFLED: "Shuffled DPSGD (Theorem 6)",
    DPSGD: "DPSGD (certified)",
    SAME_CLIP: "Shuffled DPSGD, c' = c (Theorem 6)",
    LEFT_ALONE: "Shuffled DPSGD, left alone at sigma_0 (Theorems 6 and 1)",
    SAME_SIGMA: "DPSGD at the same sigma",
}
"""Columns by variant, each with the accountant that its epsilon is by."""

WORTH = "its epsilon (certified)"
COLUMNS = (
    HEADERS[NON_PRIVATE],
    HEADERS[GHOST],
    MIXOPT,
    HEADERS[SHUFFLED],
    HEADERS[SAME_SIGMA],
    WORTH,
    HEADERS[DPSGD],
    HEADERS[SAME_CLIP],
    HEADERS[LEFT_ALONE],
)
VARIANTS = {header: variant for variant, header in HEADERS.items()}
PRINTED = {HEADERS[GHOST]: GHOST, MIXOPT: "MixOpt", HEADERS[SHUFFLED]: OURS}
"""What the paper calls a column."""

SAME_MECHANISM = (
    "MixOpt computes the same mechanism as Ghost, otherwise: it would be a second draw of its noise"
)
LOST_OR_NONE = "no such cell in our copy of the paper"

METRICS = {"BLEU": BLEU, "METEOR": METEOR}
TABLES = {
    "table-3": (VISION, "Image classification: accuracy, percent"),
    "table-4": (CLASSIFICATION, "Classification of texts: accuracy, percent"),
    "table-5": (GENERATION, "Texts generated from records: BLEU (0 to 100) and METEOR (0 to 1)"),
}


def utility_tables(context: Context) -> list[Table]:
    """Tables III, IV and V, as far as they are printed or the study has runs for them."""
    made = (_table(context, table_id) for table_id in TABLES)
    return [table for table in made if table is not None]


def _table(context: Context, table_id: str) -> Table | None:
    group, title = TABLES[table_id]
    printed = context.published(table_id)
    metrics = tuple(METRICS) if group == GENERATION else ("accuracy",)
    places = [] if printed is None else rows_of(printed)
    for model, dataset in context.measured.places(group):
        for metric in metrics:
            own = (model, dataset, *((metric,) if group == GENERATION else ()))
            places += [own] if own not in places else []
    theirs = [] if printed is None else [float(one) for one in EPSILONS]
    epsilons = sorted({*theirs, *context.measured.epsilons(group)})
    rows = [_row(context, table_id, place, epsilon) for place in places for epsilon in epsilons]
    if not rows:
        return None
    extra = ("metric",) if group == GENERATION else ()
    return printed_place(
        printed,
        table_id,
        title,
        headers=("model", "dataset", *extra, "claimed epsilon"),
        columns=COLUMNS,
        rows=rows,
        notes=(
            "Model and dataset are the paper's, and ours is what stands in for both. A row is one claimed "
            "epsilon, and training without privacy the same in all of a model and dataset.",
            "Shuffled DPSGD has sigma on all weights (Table I's 100 %), and a batch clip c', which the paper "
            'does not print (Table "same-sigma" has it). Left alone at sigma_0: Algorithm 1\'s else branch '
            "for what Theorems 3 and 4 do not move; nothing adds up its two releases.",
            "Its epsilon: of DP-SGD at Theorem 6's sigma, by a certified accountant (upper end; brackets "
            "are both ends, which hold for certain). It holds of Shuffled DPSGD, too, whatever Theorem 6 is "
            "worth: neither c' nor a permutation behind the noise can raise it.",
            _claimed(context, group),
            *scale_notes(context, (group,)),
        ),
        decimals=_decimals(metrics),
    )


def _claimed(context: Context, group: str) -> str:
    """What the epsilons of a table are of."""
    runs = context.measured.by_group.get(group, ())
    deltas = sorted({run.experiment.delta for run in runs if run.experiment.delta is not None})
    listed = f", delta {', '.join(f'{delta:.4g}' for delta in deltas)}" if deltas else ""
    return (
        "Every epsilon is of (epsilon, delta)-DP under adding or removing one record (ours"
        f"{listed}), of all updates of a training; claimed or proven, not measured: Table VI attacks."
    )


def _decimals(metrics: tuple[str, ...]) -> dict[str, int] | None:
    """Two digits; of METEOR's shares more are needed, and the general format has four."""
    return {WORTH: 2} if len(metrics) > 1 else None


def _row(context: Context, table_id: str, place: tuple[str, ...], epsilon: float) -> Row:
    group, _ = TABLES[table_id]
    model, dataset, *rest = place
    name = METRICS[rest[0]] if rest else ACCURACY
    cells = []
    for column in COLUMNS:
        if column == WORTH:
            same = Setting(model=model, dataset=dataset, variant=SAME_SIGMA, epsilon=epsilon)
            runs = context.measured.done(group, same)
            runs = runs or context.measured.done(group, replace(same, variant=SHUFFLED))  # Of one sigma.
            cells.append(certified_cell(runs, context.measured.missing(group, same)))
        else:
            cells.append(_cell(context, (table_id, place, column, epsilon), name))
    return (*place, f"{epsilon:g}"), tuple(cells)


def _cell(context: Context, where: tuple[str, tuple[str, ...], str, float], name: str) -> Cell:
    table_id, place, column, epsilon = where
    printed = _printed(context, table_id, place, column, epsilon)
    if column == MIXOPT:
        return _told(blank(printed, SAME_MECHANISM), printed)
    variant = VARIANTS[column]
    setting = Setting(
        model=place[0],
        dataset=place[1],
        variant=variant,
        epsilon=None if variant == NON_PRIVATE else epsilon,
    )
    made = context.cell(printed, TABLES[table_id][0], setting, name)
    return _told(made, printed) if column in PRINTED else made


def _told(cell: Cell, printed: PublishedCell | None) -> Cell:
    """A cell of a column that the paper has: what it lacks there, our copy may have lost."""
    if printed is not None or not cell.why_blank:
        return cell
    return Cell(ours=cell.ours, why_blank=cell.why_blank.replace(NOT_IN_PAPER, LOST_OR_NONE))


def _printed(
    context: Context, table_id: str, place: tuple[str, ...], column: str, epsilon: float
) -> PublishedCell | None:
    if column == HEADERS[NON_PRIVATE]:
        return context.printed(table_id, place, "Non-private")
    if column not in PRINTED:
        return None
    return context.printed(table_id, place, f"{PRINTED[column]}, {epsilon:g}")
