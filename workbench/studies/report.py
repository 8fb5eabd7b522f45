"""The parts of a study's report: tables of *paper / ours / difference*, figures, and replication findings.

A study report (registry kind `"study_report"`, in `reports/papers/`) is called with the results and
the paper's printed numbers and returns a `StudyReport`. Writers turn it into files and into the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from workbench.checks.published import PublishedCell


@dataclass(frozen=True, kw_only=True)
class Value:
    """A number with its uncertainty.

    Attributes:
        lower, upper: Two-sided confidence interval at the table's confidence, or None.
        spread: Standard deviation, where the table prints one; its meaning is the table's `spread`.
        p_value: Of a test whose statistic is `estimate`, or None.
        text: What to print in place of the number where a format is asked for; empty for the default.
    """

    estimate: float
    lower: float | None = None
    upper: float | None = None
    spread: float | None = None
    p_value: float | None = None
    n: int | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """*paper / ours / difference* at one place of a table.

    Attributes:
        paper: The printed cell, or None.
        ours: Our number, or None.
        difference: Ours less the paper's, with the uncertainty of ours; None where either is missing.
        why_blank: Why `paper` or `ours` is missing; empty where nothing is.
    """

    paper: PublishedCell | None = None
    ours: Value | None = None
    difference: Value | None = None
    why_blank: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a study's report.

    Attributes:
        id: File name without ending: `"table-1"`.
        title, place: As in `PublishedTable`; `place` is empty for a table of ours alone.
        rows: Row headers and cells, in order; each has a cell for every column.
        notes: What a reader must know: the unit of replication, confidence, spread's meaning, what differs.
        decimals: Digits after the point by column; missing for a general format.
    """

    id: str
    title: str
    row_headers: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Cell, ...]], ...]
    place: str = ""
    notes: tuple[str, ...] = ()
    decimals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FigureKey:
    """One entry of a figure's legend: the style's class name, what it stands for, and its shape."""

    css: str
    label: str
    shape: str = "line"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing: `svg` is markup that relies on the page's style sheet; `standalone` carries its own.

    Attributes:
        id: File name without ending: `"figure-3"`.
        standalone: The same drawing as a whole SVG file with legend, light colours, fit for print.
    """

    id: str
    title: str
    caption: str
    svg: str
    standalone: str
    legend: tuple[FigureKey, ...] = ()
    place: str = ""


class Replication(StrEnum):
    """Whether our results replicate a conclusion of the paper."""

    REPLICATED = "replicated"
    NOT_REPLICATED = "not replicated"
    NOT_TESTABLE = "not testable at our scale"
    NOT_RUN = "not run"
    """Runs that it asks for are missing, and what is there does not decide it."""


@dataclass(frozen=True, kw_only=True)
class ReplicationFinding:
    """A conclusion of the paper, compared with our results by a stated test.

    Attributes:
        id, place, statement, tables: Of the `QualitativeClaim`.
        test: The test in words, with its level, its unit of replication and its correction for many
            comparisons.
        figures: What was found: effect, interval, p-value, number of replicates.
        paper_contradicts: Where the paper's own numbers contradict its conclusion: how; else empty.
        units_decide: Whether more units of replication could decide it, where it is not decided.
        needed: About how many units would show all of it that looks as claimed, or None.
        reads: Keys of the experiments that it was tested on.
    """

    id: str
    place: str
    statement: str
    tables: tuple[str, ...]
    outcome: Replication
    test: str
    figures: str
    paper_contradicts: str = ""
    units_decide: bool = True
    needed: int | None = None
    reads: tuple[str, ...] = ()

    @property
    def is_decided(self) -> bool:
        """Whether our results say yes or no."""
        return self.outcome in (Replication.REPLICATED, Replication.NOT_REPLICATED)


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """Everything that `workbench report` writes of a study.

    Attributes:
        name, title, profile: Of the study.
        tables, figures, findings: In the order of the page.
        inconsistencies: What contradicts itself inside the paper, a line each.
        notes: What a reader must know of the whole: scale, substitutes, unit of replication, failures.
    """

    name: str
    title: str
    profile: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    findings: tuple[ReplicationFinding, ...]
    inconsistencies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
