"""What the tables of a DP-Weights report share: the printed cell beside ours, and the notes on scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.published import PublishedCell, PublishedPaper, PublishedTable
from workbench.reports._dp_weights_layout import EPSILONS, FINE_TUNED, Grid
from workbench.reports._dp_weights_samples import Measured
from workbench.reports.statistics import Sample
from workbench.study_report import Cell, Value

NOT_IN_PAPER = "no such cell in the paper"

LEAST_UNITS = 3
"""Fewer replicates decide nothing: two differ by one number, which shows neither a spread nor its shape."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What every table is made from.

    Attributes:
        measured: The study's outcomes.
        paper: The printed numbers; None for our numbers alone.
        confidence: Of all intervals.
    """

    measured: Measured
    paper: PublishedPaper | None
    confidence: float

    @property
    def unit(self) -> str:
        """What a replicate is: `"seed"`."""
        return self.measured.unit

    @property
    def percent(self) -> str:
        """The confidence as a text: `"95 %"`."""
        return f"{100.0 * self.confidence:g} %"

    def published(self, table_id: str) -> PublishedTable | None:
        """A printed table, or None."""
        return None if self.paper is None else self.paper.table(table_id)

    def missing(self, grid: Grid, variant: str, values: Sequence[int]) -> str:
        """Why there is no number of a variant at these settings."""
        known = [value for value in values if value in self.measured.values(grid.group)]
        if not known:
            return f"{grid.group} {', '.join(map(str, values))} is no part of this run"
        if variant not in self.measured.variants:
            return f"{variant} is no part of this run"
        return f"{variant} has no finished run with a finite value here"

    def pair(
        self, grid: Grid, sides: tuple[str, str], metric: str, values: Sequence[int]
    ) -> tuple[Sample, Sample] | str:
        """Both sides of a comparison, or why there is none."""
        found = []
        for variant in sides:
            sample = self.measured.sample(grid.group, variant, metric, values=values)
            if sample is None:
                return self.missing(grid, variant, values)
            found.append(sample)
        return found[0], found[1]

    def scale_notes(self, grid: Grid, shown: PublishedTable | None) -> list[str]:
        """Where our numbers were made at another scale than the paper's, and what did not finish."""
        notes = []
        epsilons = self.measured.epsilons(grid.group)
        if shown is not None and len(epsilons) != EPSILONS:
            notes.append(
                f"Ours has {len(epsilons)} epsilons ({', '.join(f'{epsilon:g}' for epsilon in epsilons)}) "
                f"where the paper has {EPSILONS}: means and spreads over epsilons are of different budgets, "
                "and Wilcoxon statistics are on another scale and have no difference."
            )
        sizes = sorted({outcome.experiment.members for outcome in self.measured.outcomes[grid.group]})
        stated = None if shown is None else shown.settings.get("members")
        if stated is not None and sizes and [int(stated)] != sizes:
            notes.append(
                f"Ours has {', '.join(map(str, sizes))} members and as many non-members; the paper states "
                f"{stated} of each."
            )
        lost = sum(not outcome.metrics for outcome in self.measured.outcomes[grid.group])
        if lost:
            notes.append(
                f"{lost} of {len(self.measured.outcomes[grid.group])} runs of this grid failed or are not "
                "done."
            )
        return notes


def beside(
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


def first_unit(sample: Sample) -> Sample:
    """The measurements of the first unit alone: what a paper with one training has."""
    name = sample.unit_names[0]
    return sample.taken([place for place, unit in enumerate(sample.units) if unit == name])


def too_few(count: int, unit: str) -> str:
    """Why too few replicates decide nothing."""
    return f"a verdict needs at least {LEAST_UNITS} {unit}s of every variant, got {count}"


def broadcast_note() -> str:
    """What becomes of the model that has no epsilon."""
    return (
        f"{FINE_TUNED} has no epsilon: as in the paper its value stands beside every epsilon, and its spread "
        "over epsilons is 0 by definition."
    )
