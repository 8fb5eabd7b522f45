"""What contradicts itself inside PACZero, computed from its printed numbers; and what follows from them.

>>> from workbench.checks.published import published
>>> side = paper_side(published("paczero"))
>>> len(side.tables)
3
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.checks.published import PublishedPaper
from workbench.core.errors import InputError
from workbench.reports.papers.paczero import paper_budgets as budgets
from workbench.reports.papers.paczero import paper_conflicts as conflicts
from workbench.reports.papers.paczero import paper_rates as rates
from workbench.reports.papers.paczero import paper_seeds as seeds
from workbench.reports.papers.paczero.paper_claims import claim_check
from workbench.reports.papers.paczero.paper_statements import statement_check
from workbench.reports.shared.published_checks import Check
from workbench.studies.report import Table


@dataclass(frozen=True, kw_only=True)
class PaperSide:
    """What a report says of the paper's own numbers.

    Attributes:
        inconsistencies: What contradicts itself inside the paper, a sentence each; none is typed in.
        remarks: What follows from the printed numbers without contradicting them, a sentence each.
        tables: Of the paper's numbers alone: recomputed means, its DP cells and its plateau with intervals.
    """

    inconsistencies: tuple[str, ...]
    remarks: tuple[str, ...]
    tables: tuple[Table, ...]


def paper_side(paper: PublishedPaper, *, confidence: float = 0.95) -> PaperSide:
    """Everything that a report says of the paper's own numbers.

    What our results say of a conclusion is another matter; where the cells contradict one, see
    `workbench.reports.papers.paczero.paper_claims.contradictions`.

    Args:
        paper: `published("paczero")`.
        confidence: Of the tables' intervals, in (0.5, 1).

    Raises:
        InputError: the confidence is out of range.
    """
    if not 0.5 < confidence < 1.0:
        raise InputError(f"confidence must be in (0.5, 1), got {confidence}")
    found = checks(paper)
    return PaperSide(
        inconsistencies=_contradicting(found),
        remarks=(*_remarks(paper), *_confirming(found)),
        tables=(
            seeds.recomputed_table(paper, confidence),
            rates.cliff_table(paper, confidence),
            budgets.plateau_table(paper, confidence),
        ),
    )


def checks(paper: PublishedPaper) -> list[Check]:
    """All checks of the paper's printed numbers, in the order of a report."""
    return [
        claim_check(paper),
        statement_check(paper),
        rates.test_size_check(paper),
        conflicts.steps_check(paper),
        conflicts.unanimity_check(paper),
        seeds.plateau_seed_check(paper),
        seeds.noise_check(paper),
        seeds.baseline_check(paper),
        conflicts.seed_names_check(paper),
        conflicts.counted_cells_check(paper),
        conflicts.clip_note_check(paper),
        conflicts.hours_check(paper),
        seeds.mean_check(paper),
        seeds.difference_check(paper),
        seeds.copies_check(paper),
        budgets.spans_check(paper),
        rates.dev_size_check(paper),
    ]


def inconsistencies(paper: PublishedPaper) -> list[str]:
    """What contradicts itself inside the paper, a sentence each; none is typed in."""
    return list(_contradicting(checks(paper)))


def remarks(paper: PublishedPaper) -> list[str]:
    """What follows from the printed numbers without contradicting them, a sentence each."""
    return [*_remarks(paper), *_confirming(checks(paper))]


def _remarks(paper: PublishedPaper) -> list[str]:
    return [
        budgets.same_runs_remark(paper),
        budgets.trend_remark(paper),
        budgets.decades_remark(paper),
        rates.chance_remark(paper),
        rates.cliff_remark(paper),
        rates.indistinguishable_remark(paper),
        rates.order_remark(paper),
        conflicts.unanimity_remark(paper),
        conflicts.subset_count_remark(paper),
        conflicts.allocation_remark(paper),
        conflicts.quantization_remark(paper),
        conflicts.criteria_remark(paper),
    ]


def _contradicting(found: list[Check]) -> tuple[str, ...]:
    return tuple(one.finding for one in found if one.contradiction)


def _confirming(found: list[Check]) -> tuple[str, ...]:
    return tuple(one.finding for one in found if one.finding and not one.contradiction)
