"""The numbers of Shuffled DPSGD's text against the cells and the arithmetic that they are said of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import (
    EPSILONS,
    OURS,
    cell,
    centre,
    check,
    said,
    stands_for,
    value_at,
)
from workbench.reports.papers.shuffled_dp_sgd.paper_times import overheads
from workbench.reports.shared.published_checks import Check, Interval

Values = Callable[[PublishedPaper], list[Interval]]


@dataclass(frozen=True)
class Statement:
    """A number of the text and what it is of.

    Attributes:
        place, quantity: Its row of the table `statements`.
        values: What it is of.
        kind: `"is"` (each value prints as it), `"over"` or `"under"` (each value is), or `"within"` (each
            value is in the printed range).
    """

    place: str
    quantity: str
    values: Values
    kind: str = "is"


def statement_check(paper: PublishedPaper) -> Check:
    """Which numbers of the text do not follow from the cells or the arithmetic that they are of."""
    failed = [text for text in (_wrong(paper, one) for one in STATEMENTS) if text]
    return check(
        "numbers of the text",
        len(STATEMENTS),
        failed,
        right=f"All {len(STATEMENTS)} numbers of the text that cells or arithmetic give follow from them",
        start=f"{len(failed)} of {len(STATEMENTS)} numbers of the text do not follow from the cells or "
        "arithmetic that they are said of: ",
    )


def _wrong(paper: PublishedPaper, one: Statement) -> str:
    printed, values = said(paper, one.place, one.quantity), one.values(paper)
    if one.kind == "within":
        low, high = stands_for(printed, 0).lower, stands_for(printed, 1).upper
        bad = [value for value in values if value.upper < low or value.lower > high]
    elif one.kind == "over":
        bad = [value for value in values if value.upper <= printed.value]
    elif one.kind == "under":
        bad = [value for value in values if value.lower >= printed.value]
    else:
        bad = [value for value in values if not value.meets(stands_for(printed))]
    if not bad:
        return ""
    middles = [centre(value) for value in values]
    least, most = f"{min(middles):.4g}", f"{max(middles):.4g}"
    found = least if least == most else f"{least} to {most}"
    count = f" ({len(bad)} of {len(values)} outside)" if len(values) > 1 else ""
    return f"{one.place}, {one.quantity}: {printed.printed} printed, {found} found{count}"


def _same(*paths: str) -> Values:
    return lambda paper: [value_at(paper, path) for path in paths]


def _below_non_private(paper: PublishedPaper) -> list[Interval]:
    """Non-private less ours, every row and epsilon of Table IV."""
    rows = dict.fromkeys(one.row for one in paper.table("table-4").cells)
    return [
        stands_for(cell(paper, "table-4", row, "Non-private"))
        - stands_for(cell(paper, "table-4", row, f"{OURS}, {epsilon}"))
        for row in rows
        for epsilon in EPSILONS
    ]


def _share_of_index(method: str) -> Values:
    def values(paper: PublishedPaper) -> list[Interval]:
        index, other = (
            stands_for(cell(paper, "table-7", (name,), "milliseconds")) for name in ("index shuffle", method)
        )
        return [Interval(100.0 * index.lower / other.upper, 100.0 * index.upper / other.lower)]

    return values


def _added_seconds(large: bool) -> Values:
    def values(paper: PublishedPaper) -> list[Interval]:
        return [
            after - before
            for row, (before, after) in overheads(paper).items()
            if (row[0] == "GPT-2-large") == large
        ]

    return values


def _steps(paper: PublishedPaper) -> list[Interval]:
    records = cell(paper, "table-1-datasets", ("ViT", "CIFAR-100"), "training records").value
    epochs, batch = (said(paper, "section VI-F", name).value for name in ("epochs", "batch size"))
    steps = epochs * records / batch
    return [Interval(steps, steps)]


STATEMENTS = (
    Statement("section VI-A", "delta of CV tasks", _same("table-1-datasets | ViT | CIFAR-100 | delta")),
    *(
        Statement(
            "section VI-D",
            f"parameters, {order}, millions",
            _same(f"table-1 | {model} | trainable parameters"),
        )
        for order, model in (
            ("1st", "ViT"),
            ("2nd", "BERT"),
            ("3rd", "RoBERTa"),
            ("4th", "GPT-2"),
            ("5th", "GPT-2-large"),
        )
    ),
    Statement(
        "section VI-E",
        "accuracy of ViT at epsilon 0.1, well over",
        _same(f"table-3 | ViT | CIFAR-100 | {OURS}, 0.1"),
        "over",
    ),
    Statement("section VI-E", "accuracy below non-private, NLP", _below_non_private, "within"),
    Statement("section VI-F", "epsilon audited, 1st", _same("table-6 | first | theoretical epsilon")),
    Statement("section VI-F", "epsilon audited, 2nd", _same("table-6 | second | theoretical epsilon")),
    Statement("section VI-F", "training steps", _steps),
    Statement("section VI-F", "observations", _same("statements | section VI-F | training steps | value")),
    Statement(
        "section VI-G",
        "index shuffle of matrix multiplication, percent",
        _share_of_index("matrix multiplication"),
    ),
    Statement(
        "section VI-G",
        "index shuffle of sparse matrix multiplication, percent",
        _share_of_index("sparse matrix multiplication"),
    ),
    Statement(
        "section VI-G", "seconds of overhead but for GPT-2-large, under", _added_seconds(False), "under"
    ),
    Statement("section VI-G", "seconds of overhead of GPT-2-large", _added_seconds(True)),
)
"""Every number of the text that cells or arithmetic determine; 2.3 % has a check of its own."""
