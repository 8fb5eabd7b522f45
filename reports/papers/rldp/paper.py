"""What contradicts itself inside RLDP, computed from what it prints; and what follows from that.

>>> from workbench.checks.published import published
>>> [one.name for one in checks(published("rldp")) if one.contradiction][:2]
['conclusions', 'settings']
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.rldp import paper_attacks as attacks
from workbench.reports.papers.rldp import paper_controller as controller
from workbench.reports.papers.rldp import paper_utility as utility
from workbench.reports.papers.rldp.paper_claims import claim_check
from workbench.reports.shared.published_checks import Check


@dataclass(frozen=True, kw_only=True)
class PaperSide:
    """What a report says of the paper's own numbers.

    Attributes:
        inconsistencies: What contradicts itself inside the paper, a sentence each; none is typed in.
        remarks: What follows from the printed numbers without contradicting them, a sentence each.
    """

    inconsistencies: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def paper_side(paper: PublishedPaper) -> PaperSide:
    """Everything that a report says of the paper's own numbers.

    What our results say of a conclusion is another matter; where the cells contradict one, see
    `workbench.reports.papers.rldp.paper_claims.contradictions`. What its proof is worth stands in the ledger
    of claims.

    Args:
        paper: `published("rldp")`.
    """
    found = checks(paper)
    confirmed = (one.finding for one in found if one.finding and not one.contradiction)
    return PaperSide(
        inconsistencies=tuple(one.finding for one in found if one.contradiction),
        remarks=(*(text for text in _remarks(paper) if text), *confirmed),
    )


def checks(paper: PublishedPaper) -> list[Check]:
    """All checks of what the paper prints, in the order of a report."""
    return [
        claim_check(paper),
        utility.settings_check(paper),
        utility.drops_check(paper),
        utility.shares_check(paper),
        utility.means_check(paper),
        utility.steps_check(paper),
        utility.times_check(paper),
        attacks.membership_check(paper),
        attacks.direction_check(paper),
        attacks.averages_check(paper),
        attacks.canary_check(paper),
        attacks.floor_check(paper),
        attacks.valid_check(paper),
        attacks.counts_check(paper),
        attacks.tenth_check(paper),
        attacks.least_check(paper),
        attacks.unit_check(paper),
        controller.sigma_check(paper),
        controller.rise_check(paper),
        controller.radius_check(paper),
        *controller.text_checks(paper),
    ]


def _remarks(paper: PublishedPaper) -> list[str]:
    return [
        utility.tighter_remark(paper),
        utility.spread_remark(paper),
        utility.runs_remark(paper),
        utility.smaller_faster_remark(paper),
        attacks.perplexity_remark(paper),
        attacks.chance_remark(paper),
        attacks.degenerate_remark(paper),
        controller.prompt_remark(paper),
    ]
