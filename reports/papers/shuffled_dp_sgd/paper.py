"""What contradicts itself inside Shuffled DPSGD, computed from what it prints; and what follows from that.

>>> from workbench.checks.published import published
>>> [one.name for one in checks(published("shuffled_dp_sgd")) if one.contradiction][:2]
['conclusions', 'numbers of the text']
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd import paper_audit as audit
from workbench.reports.papers.shuffled_dp_sgd import paper_formulas as formulas
from workbench.reports.papers.shuffled_dp_sgd import paper_models as models
from workbench.reports.papers.shuffled_dp_sgd import paper_tables as tables
from workbench.reports.papers.shuffled_dp_sgd import paper_times as times
from workbench.reports.papers.shuffled_dp_sgd.paper_claims import claim_check
from workbench.reports.papers.shuffled_dp_sgd.paper_statements import statement_check
from workbench.reports.shared.published_checks import Check
from workbench.studies.report import Table


@dataclass(frozen=True, kw_only=True)
class PaperSide:
    """What a report says of the paper's own numbers.

    Attributes:
        inconsistencies: What contradicts itself inside the paper, a sentence each; none is typed in.
        remarks: What follows from the printed numbers without contradicting them, a sentence each.
        tables: Of the paper's numbers alone: its models counted, its gains, its overheads.
    """

    inconsistencies: tuple[str, ...]
    remarks: tuple[str, ...]
    tables: tuple[Table, ...]


def paper_side(paper: PublishedPaper) -> PaperSide:
    """Everything that a report says of the paper's own numbers.

    What our results say of a conclusion is another matter; where the cells contradict one, see
    `workbench.reports.papers.shuffled_dp_sgd.paper_claims.contradictions`. What its theorems are worth stands
    in the ledger of claims.

    Args:
        paper: `published("shuffled_dp_sgd")`.
    """
    found = checks(paper)
    return PaperSide(
        inconsistencies=tuple(one.finding for one in found if one.contradiction),
        remarks=(*_remarks(paper), *(one.finding for one in found if one.finding and not one.contradiction)),
        tables=(models.models_table(paper), tables.gains_table(paper), times.overhead_table(paper)),
    )


def checks(paper: PublishedPaper) -> list[Check]:
    """All checks of what the paper prints, in the order of a report."""
    return [
        claim_check(paper),
        statement_check(paper),
        tables.same_epsilon_check(paper),
        models.ratio_check(paper),
        models.worst_case_check(paper),
        models.count_check(paper),
        models.permutations_check(paper),
        formulas.theorem_6_check(paper),
        formulas.sigma_check(paper),
        formulas.normalisation_check(paper),
        formulas.titles_check(paper),
        formulas.code_check(paper),
        formulas.element_wise_check(paper),
        formulas.delta_check(paper),
        formulas.figure_1_check(paper),
        times.overhead_check(paper),
        tables.copies_check(paper),
        tables.bold_check(paper),
    ]


def inconsistencies(paper: PublishedPaper) -> list[str]:
    """What contradicts itself inside the paper, a sentence each; none is typed in."""
    return [one.finding for one in checks(paper) if one.contradiction]


def remarks(paper: PublishedPaper) -> list[str]:
    """What follows from the printed numbers without contradicting them, a sentence each."""
    confirmed = [one.finding for one in checks(paper) if one.finding and not one.contradiction]
    return [*_remarks(paper), *confirmed]


def _remarks(paper: PublishedPaper) -> list[str]:
    return [
        audit.audit_remark(paper),
        audit.approximation_remark(paper),
        audit.accountants_remark(paper),
        tables.implementations_remark(paper),
        tables.falls_remark(paper),
        tables.chance_remark(paper),
        tables.repeated_remark(paper),
        tables.shares_remark(paper),
        times.products_remark(paper),
        times.epochs_remark(paper),
        formulas.weights_remark(paper),
        audit.figure_3_remark(paper),
        audit.not_printed_remark(paper),
    ]
