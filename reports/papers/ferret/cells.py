"""What the tables of a FERRET report share: the printed cell beside ours, and the notes on scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.checks.published import PublishedPaper, PublishedTable
from workbench.reports.papers.ferret.draws import guessing_deviation
from workbench.reports.papers.ferret.layout import (
    COMPARISON,
    EPOCHS,
    EPSILONS,
    METHODS,
    MODELS,
    NON_DP,
    Setting,
    plural_epochs,
)
from workbench.reports.papers.ferret.samples import UNIT, Measured, over_models
from workbench.reports.shared.beside import NOT_IN_PAPER, beside
from workbench.reports.shared.cells import fixed
from workbench.studies.experiments import Outcome, Status
from workbench.studies.report import Cell, Value

WALL_CLOCK = (
    "Wall-clock seconds of the training steps alone: they differ from run to run and from machine to machine."
)


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
    def percent(self) -> str:
        """The confidence as a text: `"95 %"`."""
        return f"{100.0 * self.confidence:g} %"

    @property
    def interval(self) -> str:
        """What an interval over models is, in words."""
        return f"{self.percent} t interval of the mean over {UNIT}s"

    def published(self, table_id: str) -> PublishedTable | None:
        """A printed table, or None."""
        tables = () if self.paper is None else self.paper.tables
        return next((table for table in tables if table.id == table_id), None)

    def cell(
        self, table_id: str, place: tuple[tuple[str, ...], str], ours: Value | None, missing: str = ""
    ) -> Cell:
        """A cell of ours beside the printed one, each blank with its reason.

        Args:
            table_id: Of the printed table.
            place: Row and column there.
            ours: Our number, or None.
            missing: Why there is none.
        """
        table = self.published(table_id)
        printed = None if table is None else table.cell(*place)
        why = "" if table is None else table.why_unreadable(*place)
        if ours is not None:
            return beside(printed, ours, why=f"paper: {why}" if why else NOT_IN_PAPER)
        reasons = [f"paper: {why}"] if why else []
        return Cell(paper=printed, why_blank="; ".join([*reasons, f"ours: {missing}"]))


def budgets(measured: Measured, group: str = COMPARISON) -> list[float | None]:
    """Budgets of a table's columns: the paper's and ours, ascending; None, no budget, comes last."""
    return [*sorted({*EPSILONS, *measured.epsilons(group)}), None]


def column(epsilon: float | None) -> str:
    """The name of a budget's column in our tables."""
    return "ε = ∞" if epsilon is None else f"ε = {epsilon:g}"


def printed_column(epsilon: float | None) -> str:
    """The name of a budget's column in the printed tables: `"0.5"`, `"1.0"`, `"inf"`."""
    return "inf" if epsilon is None else str(float(epsilon))


def settings(measured: Measured) -> list[tuple[str, int]]:
    """Method and epochs of each row: the paper's, and further ones of ours after the paper's of a method."""
    epochs = sorted({*EPOCHS, *measured.epochs()})
    further = {
        (one.experiment.variant, one.experiment.epochs)
        for one in measured.by_group[COMPARISON]
        if one.experiment.variant not in METHODS
    }
    known = [(variant, count) for variant in METHODS for count in epochs]
    order = measured.variants()
    return [*known, *sorted(further, key=lambda place: (order.index(place[0]), place[1]))]


def no_such_budget(setting: Setting, *, has_budget: bool) -> str:
    """Why a method has no number in a column; empty where it may have one."""
    if has_budget and setting.epsilon is None:
        return f"{setting.variant} always has a budget"
    if not has_budget and setting.epsilon is not None:
        return f"{setting.variant} has no budget"
    return ""


def has_budget(measured: Measured, variant: str) -> bool:
    """Whether a method's experiments have budgets."""
    if variant in METHODS:
        return variant != NON_DP
    return any(
        one.experiment.epsilon is not None
        for one in measured.by_group[COMPARISON]
        if one.experiment.variant == variant
    )


def mean_value(
    context: Context, setting: Setting, metric: str, *, decimals: int, ranged: bool, group: str = COMPARISON
) -> Value | None:
    """Mean over models: with its SD, or with least and largest in its text; None where there is none."""
    sample = context.measured.sample(setting, metric, group=group)
    if sample is None:
        return None
    found = over_models(sample, context.confidence)
    mean = found.mean
    if not ranged:
        return mean
    text = (
        f"{fixed(mean.estimate, decimals)} ({fixed(found.least, decimals)} to {fixed(found.most, decimals)})"
    )
    return Value(estimate=mean.estimate, lower=mean.lower, upper=mean.upper, n=mean.n, text=text)


def scale_notes(context: Context, group: str = COMPARISON) -> list[str]:
    """Where our numbers were made at another scale than the paper's, and what did not finish."""
    measured = context.measured
    runs = measured.by_group[group]
    if not runs:
        return []
    stands = ", ".join(f"{name} for {MODELS[name]}" for name in measured.models if name in MODELS)
    notes = [f"Our models stand in for the paper's: {stands}."] if stands else []
    seeds = len({one.experiment.seed for one in runs})
    notes.append(
        f"Each of our {UNIT}s was trained once a setting (one seed), so that the spread over {UNIT}s holds "
        "the spread of trainings too."
        if seeds == 1
        else f"Each of our {UNIT}s was trained with {seeds} seeds a setting, which are averaged first."
    )
    sizes = sorted({one.experiment.members for one in runs})
    notes.append(
        f"Ours: {_listed(sizes)} members and as many non-members; the paper: 10000 of each."
        if sizes != [10_000]
        else "Members and non-members: 10000 each, as in the paper."
    )
    lost = [one for one in runs if one.status is not Status.DONE]
    if lost:
        notes.append(
            f"{len(lost)} of {len(runs)} runs behind these numbers failed or are not done; a {UNIT} without "
            "its run is left out of a mean, whose n then says so."
        )
    capped = capped_settings(runs)
    if capped:
        notes.append(
            f"At p = 1 because their budget is above the ceiling G T s ln 2: {'; '.join(capped)}. What they "
            "claim is the ceiling."
        )
    return notes


def draw_notes(context: Context) -> list[str]:
    """What an interval of an AUC or advantage over models does not hold; none where nothing was trained."""
    trained = context.measured.trained
    if not trained:
        return []
    fewest = min(one.experiment.members for one in trained)
    return [
        f"AUC and advantage: all {UNIT}s of a seed share one draw of {fewest} members, whose luck intervals "
        f"over {UNIT}s do not hold. It alone moves the AUC of pure guessing by "
        f"{guessing_deviation(fewest):.2g} (standard deviation), that of all {UNIT}s together; the tests of "
        "the conclusions add it."
    ]


def capped_settings(runs: Sequence[Outcome]) -> list[str]:
    """Finished settings whose budget is above the ceiling that they state."""
    found: dict[str, float] = {}
    for one in runs:
        ceiling, epsilon = one.metrics.get("ceiling_nats"), one.experiment.epsilon
        if one.status is Status.DONE and ceiling is not None and epsilon is not None and epsilon > ceiling:
            experiment = one.experiment
            name = f"{experiment.variant} at epsilon {epsilon:g}, {plural_epochs(experiment.epochs)}"
            found[name] = min(ceiling, found.get(name, ceiling))
    return [f"{name} (ceiling {ceiling:.4g})" for name, ceiling in found.items()]


def _listed(values: Sequence[int]) -> str:
    return " or ".join(map(str, values))
