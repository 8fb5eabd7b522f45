"""What the tables of an RLDP report share: their context, places, and notes on scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from workbench.reports.papers.rldp.layout import PAPER_MODELS, model_name
from workbench.reports.papers.rldp.samples import Measured
from workbench.reports.shared.numbers import number
from workbench.reports.shared.paper_cells import PaperContext
from workbench.reports.shared.paper_samples import UNIT
from workbench.studies.experiments import Outcome, Status

Context: TypeAlias = PaperContext[Measured]

Place: TypeAlias = tuple[str, str, float]
"""Group, the paper's model, epsilon."""

PAPER_BUDGETS = (0.5, 2.0, 4.0, 5.0, 8.0)


def places(context: Context) -> Iterator[Place]:
    """The settings of the paper's tables, and our own budgets beside them."""
    for group, model in PAPER_MODELS.items():
        printed = PAPER_BUDGETS if context.paper is not None else ()
        for epsilon in sorted({*printed, *context.measured.budgets(group)}):
            yield group, model, epsilon


def scale_notes(context: Context, groups: Iterable[str]) -> list[str]:
    """How large our runs are, what stands in for what, and what did not finish."""
    runs = [one for group in groups for one in context.measured.by_group.get(group, ())]
    if not runs:
        return ["Runs: none in this profile."]
    places_of = {
        PAPER_MODELS[group]: ", ".join(
            dict.fromkeys(model_name(one.experiment) for one in context.measured.by_group.get(group, ()))
        )
        for group in groups
        if group in PAPER_MODELS and context.measured.by_group.get(group)
    }
    lines = []
    if places_of:
        listed = "; ".join(f"{theirs}: {ours}" for theirs, ours in places_of.items())
        lines.append(f"In the places of {listed}.")
    lines.append(f"Runs: {_sizes(runs)}; {context.interval}.")
    lost = [one for one in runs if one.status is not Status.DONE]
    if lost:
        failed = sum(one.status is Status.FAILED for one in lost)
        lines.append(f"Not finished: {len(lost)} of {len(runs)} runs ({failed} failed).")
    return lines


def _sizes(runs: Iterable[Outcome]) -> str:
    listed = list(runs)
    parts = []
    for name, values in (
        ("members", {one.experiment.members for one in listed}),
        ("batch size", {one.experiment.batch_size for one in listed}),
        ("steps", {one.experiment.steps for one in listed}),
        (f"{UNIT}s", {len({one.experiment.seed for one in listed})}),
    ):
        low, high = min(values), max(values)
        parts.append(f"{name} {number(low)}" if low == high else f"{name} {number(low)} to {number(high)}")
    return ", ".join(parts)
