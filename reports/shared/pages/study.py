"""The page of a study: one self-contained HTML file, the replication verdicts first, then tables and figures.

Nothing is fetched. One inline script filters and folds; its hash stands in the page's own content security
policy, which forbids every other. Without it all is visible. Equal reports give equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.reports.shared.cells import Line, table_text
from workbench.reports.shared.drawing.figures import swatch
from workbench.reports.shared.markup import rendered, source
from workbench.reports.shared.numbers import number, percent, real
from workbench.reports.shared.pages.words import HARDWARE
from workbench.studies.report import Cell, Figure, Replication, StudyReport, Table


@register("report", "study_html")
def study_html(*, report: StudyReport, context: Mapping[str, JSON]) -> str:
    """One self-contained HTML page of a study's report.

    Args:
        report: What to show. All its text is escaped; the drawings of its figures are taken as markup.
        context: What surrounds it, each where known: `experiments` (numbers of done, failed, missing),
            `versions` and `hardware` (names and values), `command`, `created`, `store`, `confidence`,
            `replication`, `study_notes`, `source_sha256`; anything else is listed by its name.

    Returns:
        The page, deterministic in its arguments.

    Raises:
        InputError: two tables, figures or findings have one id, or a table's rows do not fit its columns.
    """
    script = source("study.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    view = study_view(report, context)
    return rendered("study.html.j2", {**view, "script": Markup(script), "script_hash": f"sha256-{digest}"})


Pairs = tuple[tuple[str, str], ...]

OUTCOMES = {
    Replication.REPLICATED: ("replicated", "Our results pass the stated test of this conclusion."),
    Replication.NOT_REPLICATED: ("not-replicated", "Our results contradict it, by the stated test."),
    Replication.NOT_TESTABLE: (
        "not-testable",
        "Our experiment is too small, or too unlike the paper's, to say either.",
    ),
    Replication.NOT_RUN: (
        "not-run",
        "Runs that it asks for are missing, and what is there does not decide it.",
    ),
}
"""Class name of each outcome, and what it says."""

_SCROLLS_FROM = 9
"""Columns from which a table scrolls sideways on its own, because no screen is wide enough."""

_EXPERIMENTS = ("experiments", "counts")
_HANDLED = (*_EXPERIMENTS, "versions", "hardware", "study_notes", "confidence")
_NAMES = {
    "command": "Command",
    "created": "Made",
    "store": "Store",
    "replication": "Unit of replication",
    "source_sha256": "Study file, SHA-256",
    "workbench_version": "Workbench",
    "seconds": "Time",
}

MOST_CELLS, MOST_UNRUN = 4_000, 150
"""Cells of all tables that the page holds, the smallest first, and of a table's rows that were not run; the
others, which nobody reads there, stand in the tables' files alone.
"""


View = dict[str, Any]
"""What the template prints of a conclusion, table or figure, by the names that it uses."""


def study_view(report: StudyReport, context: Mapping[str, JSON]) -> dict[str, Any]:
    """Everything that the template prints.

    Raises:
        InputError: two tables, figures or findings have one id, or a table's rows do not fit its columns.
    """
    _check_ids("table", [table.id for table in report.tables])
    _check_ids("figure", [figure.id for figure in report.figures])
    _check_ids("finding", [finding.id for finding in report.findings])
    anchors = {table.id: _anchor("t", table.id, place) for place, table in enumerate(report.tables)}
    names = {table.id: table.place.split(" (", 1)[0] or table.title for table in report.tables}
    findings = [
        {
            "anchor": _anchor("v", finding.id, place),
            "css": OUTCOMES[finding.outcome][0],
            "finding": finding,
            "is_unrun": finding.outcome is Replication.NOT_RUN,
            "tables": tuple((names.get(name, name), anchors.get(name, "")) for name in finding.tables),
        }
        for place, finding in enumerate(report.findings)
    ]
    counts = Counter(finding.outcome for finding in report.findings)
    return {
        "report": report,
        "findings": findings,
        "outcomes": [
            (css, outcome.value, meaning, counts[outcome])
            for outcome, (css, meaning) in _shown(counts).items()
        ],
        "most_columns": max((len(table.columns) for table in report.tables), default=0),
        "most_heads": max((len(table.row_headers) for table in report.tables), default=0),
        "tables": _held([_table_view(table, anchors[table.id], findings) for table in report.tables]),
        "figures": [_figure_view(figure, place) for place, figure in enumerate(report.figures)],
        "inconsistencies": report.inconsistencies,
        "tiles": _tiles(report, counts, context),
        "notes": [*report.notes, *(note for note in _study_notes(context) if note not in report.notes)],
        "command": str(context["command"]) if context.get("command") else "",
        "facts": _facts(context),
        "versions": _pairs(context.get("versions")),
        "hardware": [(HARDWARE.get(name, name), value) for name, value in _pairs(context.get("hardware"))],
    }


def _check_ids(what: str, ids: Sequence[str]) -> None:
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise InputError(f"two {what}s of the report have the id {twice[0]!r}")


def _anchor(prefix: str, name: str, place: int) -> str:
    """An id for the page: readable where the name allows it, unique in any case."""
    if re.fullmatch(r"[A-Za-z0-9._-]+", name):
        return f"{prefix}-{name}"
    return f"{prefix}--{place}"


def _table_view(table: Table, anchor: str, findings: Sequence[View]) -> View:
    text = table_text(table)
    rows: list[View] = []
    unrun: list[View] = []
    for (_, cells), row in zip(table.rows, text.rows, strict=True):
        if text.compares and all(cell.ours is None for cell in cells):
            unrun.append(
                {"row": replace(row, lines=row.lines[:1]), "differs": (), "reasons": _marks(row.lines[1:])}
            )
        else:
            rows.append({"row": row, "differs": tuple(map(_excludes_zero, cells))})
    shown = sorted({mark for view in rows for mark in _marks(view["row"].lines)})
    blank = sorted({mark for view in unrun for mark in _marks(view["row"].lines)} | set(shown))
    mine = tuple(view for view in findings if table.id in view["finding"].tables)
    return {
        "anchor": anchor,
        "table": table,
        "text": text,
        "outcomes": " ".join(dict.fromkeys(view["css"] for view in mine)),
        "findings": mine,
        "counts": tuple(
            (css, outcome.value, sum(view["finding"].outcome is outcome for view in mine))
            for outcome, (css, _) in OUTCOMES.items()
            if any(view["finding"].outcome is outcome for view in mine)
        ),
        "rows": rows,
        "unrun": unrun,
        "unrun_reasons": [
            text.reasons[mark - 1] for mark in sorted({mark for view in unrun for mark in view["reasons"]})
        ],
        "reasons": [(f"[{mark}]", text.reasons[mark - 1]) for mark in blank],
        "has_differences": any(differs for view in rows for differs in view["differs"]),
        "labels": _labels(table),
        "scrolls": len(table.columns) >= _SCROLLS_FROM,
        "cells": sum(len(view["row"].lines) for view in (*rows, *unrun)) * len(table.columns),
        "unrun_is_long": len(unrun) * len(table.columns) > MOST_UNRUN,
    }


def _held(views: Sequence[View]) -> list[View]:
    """The tables, each with whether it is too long for the page; of equal ones all or none."""
    sizes = sorted(view["cells"] for view in views)
    held = [size for size in sizes if sum(other for other in sizes if other <= size) <= MOST_CELLS]
    return [{**view, "is_long": view["cells"] > max(held, default=0)} for view in views]


def _marks(lines: Sequence[Line]) -> set[int]:
    """The numbers of the reasons for blank places."""
    return {text.reason for line in lines for text in line.texts if text.reason}


def _labels(table: Table) -> str:
    """The names of a table's columns and of its rows' headers, as properties of its style."""
    names = {f"--c{place}": name for place, name in enumerate(table.columns, 1)}
    names |= {f"--h{place}": name for place, name in enumerate(table.row_headers, 1)}
    return "; ".join(f"{name}: {css_string(value)}" for name, value in names.items())


def css_string(text: str) -> str:
    """Text as a string of a style sheet; whatever is no letter, digit or space is escaped."""
    letters = (one if one.isalnum() or one == " " else f"\\{ord(one):x} " for one in text)
    return f"'{''.join(letters)}'"


def _excludes_zero(cell: Cell) -> bool:
    difference = cell.difference
    if difference is None or difference.lower is None or difference.upper is None:
        return False
    return difference.lower > 0 or difference.upper < 0


def _figure_view(figure: Figure, place: int) -> View:
    return {
        "anchor": _anchor("f", figure.id, place),
        "figure": figure,
        "svg": Markup(figure.svg),
        "legend": tuple((swatch(key), key.label) for key in figure.legend),
    }


def _shown(counts: Mapping[Replication, int]) -> dict[Replication, tuple[str, str]]:
    """The outcomes that a page names: all, but "not run" only where something waits for runs."""
    return {name: words for name, words in OUTCOMES.items() if counts[name] or name != Replication.NOT_RUN}


def _tiles(
    report: StudyReport, counts: Mapping[Replication, int], context: Mapping[str, JSON]
) -> list[tuple[str, str, str, str]]:
    """Tiles under the title: class, name, number, small print."""
    tiles = []
    if report.findings:
        total = len(report.findings)
        tiles = [
            (css, outcome.value.capitalize(), str(counts[outcome]), f"of {total} conclusions")
            for outcome, (css, _) in _shown(counts).items()
        ]
    experiments = _experiments(context)
    if experiments:
        done, total = experiments.get("done", 0), sum(experiments.values())
        others = [f"{count} {name}" for name, count in experiments.items() if name != "done" and count]
        tiles.append(
            ("", "Experiments done", f"{done} of {total}", ", ".join(others) or "none failed or missing")
        )
    return tiles


def _experiments(context: Mapping[str, JSON]) -> dict[str, int]:
    given: Mapping[str, JSON] = next((context[name] for name in _EXPERIMENTS if context.get(name)), {})
    return {str(name): int(count) for name, count in given.items()}


def _study_notes(context: Mapping[str, JSON]) -> list[str]:
    return [str(note) for note in context.get("study_notes") or ()]


def _pairs(value: JSON) -> list[tuple[str, str]]:
    if not isinstance(value, Mapping):
        return []
    return sorted((str(name), _plain(inner)) for name, inner in value.items())


def _facts(context: Mapping[str, JSON]) -> list[tuple[str, str]]:
    """What the context says beyond what has a place of its own, by name."""
    facts = []
    if context.get("confidence") is not None:
        facts.append(("Confidence of intervals", percent(real(context["confidence"]))))
    for name, value in context.items():
        if name in _HANDLED or name == "command" or value is None or value == "":
            continue
        facts.append((_NAMES.get(name, str(name).replace("_", " ").capitalize()), _plain(value)))
    return facts


def _plain(value: JSON) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(float(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)
