"""A cell of ours beside the printed one, and the fewest replicates that decide anything."""

from __future__ import annotations

import math
from dataclasses import replace

from workbench.checks.published import PublishedCell
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Value

NOT_IN_PAPER = "no such cell in the paper"

LEAST_UNITS = 3
"""Fewer replicates decide nothing: two differ by one number, which shows neither a spread nor its shape."""


def compared_cell(
    printed: PublishedCell | None, ours: Value, *, why: str = NOT_IN_PAPER, comparable: bool = True
) -> Cell:
    """A cell of ours beside the printed one, with the difference and the uncertainty of ours.

    Args:
        printed: None leaves the paper's place blank, for the reason `why`.
        ours: Our number.
        why: Why the paper has none.
        comparable: Whether a difference means anything.
    """
    if printed is None:
        return Cell(ours=ours, why_blank=why)
    shift = printed.value
    if not comparable or math.isnan(shift) or math.isnan(ours.estimate):
        return Cell(paper=printed, ours=ours)
    difference = replace(
        ours,
        estimate=ours.estimate - shift,
        lower=None if ours.lower is None else ours.lower - shift,
        upper=None if ours.upper is None else ours.upper - shift,
        spread=None,
        p_value=None,
        text="",
    )
    return Cell(paper=printed, ours=ours, difference=difference)


def too_few(count: int, unit: str) -> str:
    """Why too few replicates decide nothing."""
    return f"a verdict needs at least {LEAST_UNITS} {unit}s of every variant, got {count}"


def has_curve(outcome: Outcome) -> bool:
    """Whether members and non-members of an outcome have finite scores, so that it has an ROC curve."""
    return (
        outcome.status is Status.DONE
        and len(set(outcome.included)) == 2
        and len(outcome.scores) == len(outcome.included)
        and all(map(math.isfinite, outcome.scores))
    )
