"""RLDP's Tables 4 to 9: membership, and what is generated in the place of the secrets, beside chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from workbench.reports.papers.rldp.cells import Context, Place, places, scale_notes
from workbench.reports.papers.rldp.chance import chance_similarity
from workbench.reports.papers.rldp.layout import (
    AUC,
    BASELINES,
    LOG_PROB,
    NGRAMS,
    NON_PRIVATE,
    OURS,
    PAPER_MODELS,
    PERPLEXITY,
    VALID,
    Setting,
    chance_jaccard,
    jaccard,
    number_of,
)
from workbench.reports.papers.rldp.paper_cells import METHODS as PAPER_METHODS
from workbench.reports.shared.beside import NOT_IN_PAPER, beside
from workbench.reports.shared.paper_cells import Row, blank, printed_place
from workbench.reports.shared.statistics.sample import usable
from workbench.studies.experiments import Outcome
from workbench.studies.report import Cell, Table, Value

OURS_ALONE = ("DC-SGD-P", "DC-SGD-E", NON_PRIVATE)
"""Rows that the paper's tables do not have."""

CHANCE, ABOVE = "chance", "runs above chance"

IN_TABLE_9 = 1e7
"""Table 9 prints its similarities in 1e-7."""


def attack_tables(context: Context) -> list[Table]:
    """Tables 4 to 9."""
    models = list(PAPER_MODELS.values())
    made = [_membership(context, f"table-{4 + part}", models[2 * part : 2 * part + 2]) for part in (0, 1)]
    made += [_similarities(context, n) for n in NGRAMS]
    return [table for table in made if table is not None]


def rows_of_methods(context: Context, models: Sequence[str]) -> list[tuple[Place, str]]:
    """Settings and methods of these models' rows: the paper's, and ours where we have runs."""
    found = []
    for place in places(context):
        _group, model, _epsilon = place
        if model not in models:
            continue
        printed = PAPER_METHODS if context.published("table-4") is not None else (*OURS, *BASELINES)
        names = [name for name in printed if context.paper is not None or _has_runs(context, place, name)]
        names += [name for name in OURS_ALONE if name not in names and _has_runs(context, place, name)]
        found += [(place, name) for name in names]
    return found


def _has_runs(context: Context, place: Place, name: str) -> bool:
    return has_row(context, place, name) and bool(context.measured.runs(place[0], setting_of(place, name)))


def has_row(context: Context, place: Place, name: str) -> bool:
    """Whether a method may stand at a budget: one without a budget where others of the model have runs."""
    budgets = context.measured.budgets(place[0])
    return name != NON_PRIVATE or not budgets or place[2] in budgets


def setting_of(place: Place, name: str) -> Setting:
    """The runs of a method in a setting; without a budget where it has none."""
    return Setting(variant=name, epsilon=None if name == NON_PRIVATE else place[2])


def _membership(context: Context, table_id: str, models: Sequence[str]) -> Table | None:
    listed = rows_of_methods(context, models)
    if not listed:
        return None
    columns = ("log-prob", "perplexity", "AUC")
    rows: list[Row] = []
    for place, name in listed:
        group, model, epsilon = place
        row = (model, f"{epsilon:g}", name)
        cells = tuple(
            context.cell(context.printed(table_id, row, column), group, setting_of(place, name), number)
            for column, number in zip(columns, (LOG_PROB, PERPLEXITY, AUC), strict=True)
        )
        rows.append((row, cells))
    return printed_place(
        context.published(table_id),
        table_id,
        f"Membership inference by log-likelihood: {' and '.join(models)}",
        headers=("model", "epsilon", "method"),
        columns=columns,
        rows=rows,
        notes=(
            "Mean log-likelihood of a token over all attacked records, members and others, in nats; mean of "
            "their perplexities (Eq. 38); AUC of the log-likelihood (Eq. 39).",
            "Runs of one model and one seed share records and the base's own leanings towards some of them: "
            "what lifts or lowers the AUC of all methods alike is one event, not many.",
            "An AUC below 0.5 is no evidence of privacy: read backwards, the same score has 1 less that "
            "AUC. Where nothing leaks it is 0.5, whatever the method.",
            _scored_part(context, models),
            "DC-SGD: the paper does not say which of its two forms; ours is their mean, and each stands by "
            "itself.",
            *scale_notes(context, [group for group, name in PAPER_MODELS.items() if name in models]),
        ),
        decimals={"log-prob": 3, "AUC": 3},
    )


def _scored_part(context: Context, models: Sequence[str]) -> str:
    """Which part of a record our scores are of."""
    groups = [group for group, name in PAPER_MODELS.items() if name in models]
    shares = {
        float(run.experiment.attack_parameters.get("ending_share", 1.0))
        for group in groups
        for run in context.measured.by_group.get(group, ())
    }
    ours = " and ".join(
        "whole records" if share == 1.0 else f"the last {share:.0%} of each record's tokens, given the rest"
        for share in sorted(shares)
    )
    return f"Ours are of {ours}; the paper splits each into prompt and ending, and does not say where."


def _similarities(context: Context, n: int) -> Table | None:
    listed = rows_of_methods(context, list(PAPER_MODELS.values()))
    if not listed:
        return None
    table_id, columns = f"table-{5 + n}", ("similarity", "valid", CHANCE, ABOVE)
    called = _called(context, listed, f"attack_jaccard_{n}_p_value")
    rows: list[Row] = []
    for place, name in listed:
        group, model, epsilon = place
        row, setting = (model, f"{epsilon:g}", name), setting_of(place, name)
        printed = [context.printed(table_id, row, column) for column in columns[:2]]
        similarity = context.cell(printed[0], group, setting, jaccard(n))
        runs = context.measured.done(group, setting)
        cells = (
            scaled(similarity, IN_TABLE_9) if n == 4 else similarity,
            context.cell(printed[1], group, setting, VALID),
            chance_cell(context, runs, chance_jaccard(n), (group, setting), IN_TABLE_9 if n == 4 else 1.0),
            counted_cell(context, runs, called, (group, setting)),
        )
        rows.append((row, cells))
    unit = " (1e-7)" if n == 4 else ""
    expected = chance_similarity(n) * (IN_TABLE_9 if n == 4 else 1.0)
    return printed_place(
        context.published(table_id),
        table_id,
        f"Similarity of generated and planted secrets, {n}-grams{unit}, beside chance",
        headers=("model", "epsilon", "method"),
        columns=columns,
        rows=rows,
        notes=(
            f"Mean Jaccard similarity of the {n}-grams of all pairs of a valid continuation and a planted "
            f"secret (Eq. 34){unit}, and the number of valid continuations.",
            "Chance: the same continuations against secrets drawn alike that nobody trained on; with the "
            f"range of 95 % of sets of as many. Two whole random secrets have {expected:.3g} on average. A "
            "similarity below chance is no weaker memorisation.",
            f"Runs above chance: by exact tests that exchange secrets, corrected for all {len(called)} runs "
            f"of this table (Benjamini and Hochberg, level {context.level}).",
            *scale_notes(context, PAPER_MODELS),
        ),
        decimals={"similarity": {1: 3, 2: 4, 3: 5, 4: 1}[n], "valid": 0},
    )


def scaled(cell: Cell, factor: float) -> Cell:
    """A cell whose own number is in the unit that the paper prints."""
    if cell.ours is None:
        return cell
    ours = replace(
        cell.ours,
        estimate=factor * cell.ours.estimate,
        lower=None if cell.ours.lower is None else factor * cell.ours.lower,
        upper=None if cell.ours.upper is None else factor * cell.ours.upper,
        spread=None if cell.ours.spread is None else factor * cell.ours.spread,
    )
    return replace(beside(cell.paper, ours), why_blank=cell.why_blank)


def _called(context: Context, listed: Sequence[tuple[Place, str]], name: str) -> dict[str, bool]:
    """See `called_runs`, of all runs of a table."""
    runs = [
        one for place, method in listed for one in context.measured.done(place[0], setting_of(place, method))
    ]
    return called_runs(context, runs, name)


def called_runs(context: Context, runs: Sequence[Outcome], name: str) -> dict[str, bool]:
    """Whether each run with a p-value is called when corrected for all of them, by its key.

    Benjamini and Hochberg (1995): of the runs called at most 1 - confidence are called falsely on average,
    where the tests are independent or positively dependent, as those of runs that share secrets are. A
    randomisation test's p-value cannot fall below one over its draws, so that a correction of the largest
    (Holm) could never call one of many runs.

    Args:
        context: Of the report; the level is 1 - confidence.
        runs: One that stands twice counts once.
        name: Of the metric that is the p-value.
    """
    values = {one.key: number_of(one, name) for one in runs}
    known = {key: value for key, value in values.items() if not math.isnan(value)}
    level, count = 1.0 - context.confidence, len(known)
    passing = [
        value for rank, value in enumerate(sorted(known.values()), start=1) if value <= level * rank / count
    ]
    most = max(passing, default=-1.0)
    return {key: value <= most for key, value in known.items()}


def counted_cell(
    context: Context, runs: Sequence[Outcome], called: dict[str, bool], where: tuple[str, Setting]
) -> Cell:
    """How many runs are called, of those that could be."""
    known = [called[one.key] for one in runs if one.key in called]
    if not known:
        return blank(None, context.measured.missing(*where))
    text = f"{sum(known)} of {len(known)}"
    return Cell(ours=Value(estimate=float(sum(known)), text=text), why_blank=NOT_IN_PAPER)


def chance_cell(
    context: Context, runs: Sequence[Outcome], name: str, where: tuple[str, Setting], factor: float = 1.0
) -> Cell:
    """What secrets have that nobody trained on: the mean over runs, and the widest of their ranges.

    A run's range holds 95 % of sets of as many secrets: it, and not how much the mean varies over runs, says
    what chance can do.
    """
    found = [
        tuple(factor * number_of(one, f"{name}{end}") for end in ("", "_low", "_high"))
        for one in runs
        if usable(number_of(one, name))
    ]
    if not found:
        return blank(None, context.measured.missing(*where))
    mean = sum(one[0] for one in found) / len(found)
    low, high = min(one[1] for one in found), max(one[2] for one in found)
    value = Value(estimate=mean, text=f"{mean:.3g} ({low:.2g} to {high:.2g})", n=len(found))
    return Cell(ours=value, why_blank=NOT_IN_PAPER)
