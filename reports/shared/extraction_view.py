"""Canary extraction, from the report record to what the template prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.core.keys import JSON
from workbench.reports.shared.words import ROLES

COLUMNS = ("measured", "chance", "p_value")
"""Fields of a row, after its name."""


@dataclass(frozen=True, kw_only=True)
class ExtractionView:
    """What was extracted from one subject.

    Attributes:
        subject, role: Its name, and what it is in the report.
        kind, word: Of the verdict: a style's name, and the verdict as it is read.
        says: Sentences.
        rows: Name and cells of each row of the table.
    """

    subject: str
    role: str
    kind: str
    word: str
    says: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def extraction_views(forms: Sequence[Mapping[str, JSON]]) -> tuple[ExtractionView, ...]:
    """The extractions of a report record, one a subject.

    Memorisation is drawn like a refutation, and what is not shown like what is undecided: nobody is to take
    it for privacy.
    """
    return tuple(
        ExtractionView(
            subject=str(form["subject"]),
            role=ROLES.get(str(form["role"]), str(form["role"])),
            kind="refuted" if form["verdict"] == "MEMORISED" else "undecided",
            word=str(form["verdict"]).capitalize(),
            says=tuple(str(sentence) for sentence in form["says"]),
            rows=tuple((str(row["name"]), tuple(str(row[name]) for name in COLUMNS)) for row in form["rows"]),
        )
        for form in forms
    )
