"""What the tables of a DP-Weights report share: the printed cell beside ours, and the notes on scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper, PublishedTable
from workbench.reports.papers.dp_weights.layout import EPSILONS, FINE_TUNED, GRIDS, METRIC_WORDS, Grid
from workbench.reports.papers.dp_weights.samples import Measured
from workbench.reports.shared.statistics import Sample


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

    def missing(self, grid: Grid, variant: str, values: Sequence[int], metric: str) -> str:
        """Why there is no number of a variant at these settings."""
        known = [value for value in values if value in self.measured.values(grid.group)]
        if not known:
            return f"{grid.group} {', '.join(map(str, values))} is no part of this run"
        if variant not in self.measured.variants:
            return f"{variant} is no part of this run"
        bad = self.measured.not_finite(grid.group, variant, metric, values)
        if bad:
            return f"{METRIC_WORDS[metric]} of {variant} is not finite in {bad} of the finished runs here"
        return f"no {self.unit} has finished all of its runs of {variant} here"

    def uncovered(self, group: str, values: Sequence[int] | None = None) -> str:
        """Which of the paper's settings and range of epsilon this run lacks; empty where none.

        Args:
            group: A key of `GRIDS`.
            values: The settings that are needed; None for all of the paper's.
        """
        wanted = list(GRIDS[group].details) if values is None else values
        known = self.measured.values(group)
        lacking = [str(value) for value in wanted if value not in known]
        if lacking:
            return f"{group} {', '.join(lacking)} is no part of this run"
        shown = self.published(GRIDS[group].means)
        ends = [] if shown is None else [float(end) for end in shown.settings["epsilons"].split(" to ")]
        epsilons = self.measured.epsilons(group)
        if ends and not (epsilons and epsilons[0] <= ends[0] and epsilons[-1] >= ends[1]):
            ours = ", ".join(f"{epsilon:g}" for epsilon in epsilons) or "none"
            return f"the paper's epsilons go from {ends[0]:g} to {ends[1]:g}, this run's do not ({ours})"
        return ""

    def pair(
        self, grid: Grid, sides: tuple[str, str], metric: str, values: Sequence[int]
    ) -> tuple[Sample, Sample] | str:
        """Both sides of a comparison, or why there is none."""
        found = []
        for variant in sides:
            sample = self.measured.sample(grid.group, variant, metric, values=values)
            if sample is None:
                return self.missing(grid, variant, values, metric)
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
                "and test statistics over epsilons (Wilcoxon's and t) are on another scale and have no "
                "difference."
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
                f"done; a {self.unit} that lacks one is left out of the means that need it."
            )
        return notes


def first_unit(pair: tuple[Sample, Sample]) -> tuple[Sample, Sample] | None:
    """Both sides' measurements of the first unit that they share: what a paper with one training has."""
    one, other = pair
    name = next((name for name in one.unit_names if name in other.unit_names), None)
    if name is None:
        return None
    first, second = (
        side.taken([place for place, unit in enumerate(side.units) if unit == name]) for side in pair
    )
    return first, second


def broadcast_note() -> str:
    """What becomes of the model that has no epsilon."""
    return (
        f"{FINE_TUNED} has no epsilon: as in the paper its value stands beside every epsilon, and its spread "
        "over epsilons is 0 by definition."
    )
