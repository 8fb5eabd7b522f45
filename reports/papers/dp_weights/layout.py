"""How DP-Weights lays out its tables: which stands for what, and the models and metrics by their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper, PublishedTable

METRICS = ("perplexity_member", "perplexity_non_member", "roc_auc", "accuracy", "precision", "recall", "f1")
"""The columns of Tables 1 and 2; registered names of the metrics of an outcome."""

METRIC_WORDS = {
    "perplexity_member": "member perplexity",
    "perplexity_non_member": "non-member perplexity",
    "roc_auc": "ROC AUC",
    "accuracy": "accuracy",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1 score",
}
"""Metrics in a sentence."""

SECURITY_METRICS = METRICS[2:]
"""Those of the membership attack, all in [0, 1]."""

DP_SGD, DP_WEIGHTS, FINE_TUNED = "DP-SGD", "DP-Weights", "Fine-tuned"
MODELS = {DP_SGD: "dp_model", FINE_TUNED: "fine_tuned_model", DP_WEIGHTS: "non_dp_model"}
"""What the paper's tables call each variant, in the order of its rows."""

COMPARISONS = {
    "DP vs DP-Weights": (DP_SGD, DP_WEIGHTS),
    "DP vs Fine-Tuned": (DP_SGD, FINE_TUNED),
    "DP-Weights vs Fine-Tuned": (DP_WEIGHTS, FINE_TUNED),
}
"""The columns of Tables 3 to 10: first and second variant; a difference is the first less the second."""

EPSILONS = 28
"""Settings of epsilon behind a cell. Not said in the paper; a Wilcoxon statistic of 0 with p = 7.451e-9 = 2 /
2^28 and 1 to 10, 20 to 100 and 200 to 1000 in Figs. 4 to 6 both say so."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One of the two grids of the evaluation.

    Attributes:
        group: Group of the study's experiments.
        field: Field of `Experiment` that varies.
        means: Id of the table of means.
        tests: Id of the section of t-tests.
        summary: Id of the section that sums them up.
        details: Id of the table of comparison measures, by the field's value.
    """

    group: str
    field: str
    means: str
    tests: str
    summary: str
    details: dict[int, str]


GRIDS = {
    "batch size": Grid(
        group="batch size",
        field="batch_size",
        means="table-1",
        tests="section-4.3",
        summary="section-4.3.8",
        details={5: "table-7", 10: "table-8", 50: "table-9", 100: "table-10"},
    ),
    "epochs": Grid(
        group="epochs",
        field="epochs",
        means="table-2",
        tests="section-4.4",
        summary="section-4.4.8",
        details={1: "table-3", 5: "table-4", 10: "table-5", 20: "table-6"},
    ),
}
"""By group."""


def detail_tables(paper: PublishedPaper) -> Iterator[tuple[PublishedTable, PublishedTable, str]]:
    """Tables 3 to 10 in order: each with its table of means and the first header of its rows there."""
    places = [(table, grid, value) for grid in GRIDS.values() for value, table in grid.details.items()]
    for table_id, grid, value in sorted(places, key=lambda place: int(place[0].removeprefix("table-"))):
        yield paper.table(table_id), paper.table(grid.means), str(value)
