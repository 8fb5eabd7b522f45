"""What a paper's report is made from, and the cells of its tables: ours beside the printed one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from workbench.checks.published import PublishedCell, PublishedPaper, PublishedTable, QualitativeClaim
from workbench.reports.shared import statistics
from workbench.reports.shared.conditions import Asked
from workbench.reports.shared.declared import Declared
from workbench.reports.shared.outcomes import METHOD, Number, Outcomes, Parts, Setting
from workbench.reports.shared.paper_cells import NOT_IN_PAPER, compared_cell
from workbench.reports.shared.printed import Interval
from workbench.reports.shared.statistics import Sample
from workbench.studies.report import Cell, Figure, ReplicationFinding, Table, Value

T = TypeVar("T")

Bindings = Mapping[str, Any]
"""Values by column, and whatever else tells a place of a table or conclusion."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The parts and the setting of a study where runs stand; or why there are none."""

    parts: Parts
    setting: Setting
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number of ours that is no plain mean of runs.

    Attributes:
        of: The sample at a place, or the reason why there is none.
        settings: The settings whose runs it waits for; None for the place's own.
    """

    of: Callable[[Context, Bindings], Sample | str]
    settings: Callable[[Context, Bindings], Sequence[Setting]] | None = None


@dataclass(frozen=True, kw_only=True)
class PaperFunctions:
    """Functions that a paper's folder adds, by the names that its `report.toml` uses.

    Attributes:
        numbers: Numbers of a run.
        quantities: Numbers of a place that conditions compare.
        printed: The same of the paper's cells: each given the paper and a place; None where none is printed.
        place: Where a place of a conclusion stands in our study; None: at the columns that it names.
        rows: Rows of tables: each a binding.
        columns: Values of columns of tables, one a column.
        facts: What cells and notes need to know of all rows of a table, given what the table says of it.
        tables: Whole tables, under the titles and notes of `report.toml`.
        words: Functions that templates call.
        questions: Conditions of tests that are no comparison of settings.
        against: Where the paper's cells contradict such a conclusion, a text each place; empty where not.
        checks: What fails in a check of the paper's own numbers: see `statements`.
        values: What a statement of the text is of, where no printed number says it.
        remarks: Facts of a remark on the paper's own numbers; None for no remark.
        findings: What our results say of conclusions that are not held to a list of conditions.
        check: Refuses a study that the report cannot be made from.
    """

    paper: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    printed: Mapping[str, Callable[[PublishedPaper, Bindings], Interval | None]] = field(default_factory=dict)
    place: Callable[[Context, Bindings], Place] | None = None
    rows: Mapping[str, Callable[[Context], Sequence[Bindings]]] = field(default_factory=dict)
    columns: Mapping[str, Callable[[Context], Sequence[Any]]] = field(default_factory=dict)
    cells: Mapping[str, Callable[[Context, Spot], Cell]] = field(default_factory=dict)
    facts: Mapping[str, Callable[[Context, Sequence[Place], str], Any]] = field(default_factory=dict)
    tables: Mapping[str, Callable[[Context], Table | Sequence[Table] | None]] = field(default_factory=dict)
    words: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    questions: Mapping[str, Callable[[Context, QualitativeClaim], Sequence[Asked]]] = field(
        default_factory=dict
    )
    against: Mapping[str, Callable[[PublishedPaper, QualitativeClaim], Iterable[str]]] = field(
        default_factory=dict
    )
    checks: Mapping[str, Callable[[PublishedPaper], Any]] = field(default_factory=dict)
    values: Mapping[str, Callable[[PublishedPaper], Sequence[Interval]]] = field(default_factory=dict)
    remarks: Mapping[str, Callable[[PublishedPaper], Mapping[str, Any] | None]] = field(default_factory=dict)
    findings: Mapping[str, Callable[[Context, QualitativeClaim], ReplicationFinding]] = field(
        default_factory=dict
    )
    figures: Callable[[Context], Sequence[Figure]] | None = None
    check: Callable[[Context], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One cell's place in a table.

    Attributes:
        place: Whose runs it is about.
        bindings: Values of the row and the column.
        column: What `report.toml` says of the column.
        unreadable: Why our copy of the paper does not show it; empty where it does, or where none is printed.
        is_beside: Whether the table stands at a printed one's place.
    """

    place: Place
    bindings: Bindings
    column: Mapping[str, Any] = field(default_factory=dict)
    printed: PublishedCell | None = None
    unreadable: str = ""
    is_beside: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Everything that the parts of a report are computed from.

    Attributes:
        paper: The printed numbers; None for our numbers alone.
        confidence: Of all intervals; tests are at level 1 - confidence.
    """

    outcomes: Outcomes
    paper: PublishedPaper | None
    confidence: float
    declared: Declared
    functions: PaperFunctions
    made: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    read: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Something that several parts of a report need, made once."""
        if name not in self.made:
            with self.outcomes.reading() as self.read[name]:
                self.made[name] = make()
        self.outcomes.note_read(self.read.get(name, ()))
        kept: T = self.made[name]
        return kept

    @property
    def percent(self) -> str:
        """The confidence as a text: `"95 %"`."""
        return f"{100.0 * self.confidence:g} %"

    @property
    def level(self) -> str:
        """The level of tests as a text: `"0.05"`."""
        return f"{1.0 - self.confidence:.2g}"

    @property
    def interval(self) -> str:
        """The kind of interval over units, in words."""
        return f"{self.percent} t interval of the mean over {self.outcomes.unit}s"

    def render(self, text: str, **facts: Any) -> str:
        """A text of `report.toml` with its facts put in."""
        return self.declared.render(text, **{**self._facts, **facts})

    def lines(self, texts: Sequence[str], **facts: Any) -> tuple[str, ...]:
        """Several texts, a line each; empty ones are left out."""
        return self.declared.lines(texts, **{**self._facts, **facts})

    @property
    def _facts(self) -> dict[str, Any]:
        return {
            "unit": self.outcomes.unit,
            "percent": self.percent,
            "level": self.level,
            "interval": self.interval,
            "paper": self.paper,
            **{name: partial(of, self) for name, of in self.functions.words.items()},
        }

    def published(self, table_id: str) -> PublishedTable | None:
        """A printed table by its id; None if the paper has none."""
        tables = () if self.paper is None else self.paper.tables
        return next((table for table in tables if table.id == table_id), None)

    def printed(self, table_id: str, row: tuple[str, ...], column: str) -> PublishedCell | None:
        """A printed cell by table, row and column; None if there is none."""
        table = self.published(table_id)
        return None if table is None else table.cell(row, column)

    def place(self, parts: Parts, bindings: Bindings) -> Place:
        """Where values of columns stand; a method without a budget has none."""
        known = dict(bindings)
        if known.get(METHOD) in self.outcomes.layout.without_budget:
            known["epsilon"] = None
        return Place(parts=parts, setting=Setting.of(**known))

    def mean(self, sample: Sample) -> Value:
        """Mean of a sample with its deviation and interval."""
        return statistics.value_of(statistics.mean_interval(sample, confidence=self.confidence))

    def value(self, parts: Parts, setting: Setting, number: str) -> Value | None:
        """Mean over units with its deviation and interval; None where there is no number."""
        sample = self.outcomes.sample(parts, setting, number)
        return None if sample is None else self.mean(sample)

    def cell(
        self,
        printed: PublishedCell | None,
        parts: Parts,
        setting: Setting,
        number: str,
        *,
        factor: float = 1.0,
    ) -> Cell:
        """A number of ours, times a factor, beside the printed one; each blank with its reason."""
        ours = self.value(parts, setting, number)
        if ours is None:
            return blank(printed, self.outcomes.missing(parts, setting))
        return compared_cell(printed, ours if factor == 1.0 else scaled(ours, factor))

    def compared(self, printed: PublishedCell | None, sample: Sample | str) -> Cell:
        """The mean of a sample beside the printed cell, or the reason why there is none."""
        return (
            blank(printed, sample) if isinstance(sample, str) else compared_cell(printed, self.mean(sample))
        )

    def alone(self, sample: Sample | str) -> Cell:
        """The mean of a sample where the paper has no such table, or the reason why there is none."""
        return Cell(why_blank=sample) if isinstance(sample, str) else Cell(ours=self.mean(sample))


def scaled(value: Value, factor: float) -> Value:
    """A value and its interval, multiplied by a change of unit."""
    ends = (value.lower, value.upper, value.spread)
    lower, upper, spread = (None if end is None else factor * end for end in ends)
    return replace(value, estimate=factor * value.estimate, lower=lower, upper=upper, spread=spread)


def blank(printed: PublishedCell | None, why: str) -> Cell:
    """A place without a number of ours, for a reason."""
    missing = "" if printed is not None else f"paper: {NOT_IN_PAPER}; "
    return Cell(paper=printed, why_blank=f"{missing}ours: {why}")
