"""The page: one self-contained HTML file from a report record, the verdict first.

Nothing is fetched, nothing runs: style and drawings are inline, and the page's own content security policy
forbids the rest. Equal records give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.reports.shared.extraction_view import extraction_views
from workbench.reports.shared.numbers import number, percent, real
from workbench.reports.shared.page import rendered
from workbench.reports.shared.view import allowed_views, cost_pairs, subject_view, verdict_view
from workbench.reports.shared.views_view import views_view
from workbench.reports.shared.words import HARDWARE, SYMBOLS

SCHEMA = 1


@register("report", "html")
def html(*, report: Mapping[str, JSON]) -> str:
    """One self-contained HTML page of an audit's report record.

    Args:
        report: What `report.json` holds: JSON types, non-finite numbers as `"inf"`, `"-inf"`, `"nan"`.

    Returns:
        The page, deterministic in the record.

    Raises:
        InputError: the record has another schema or lacks a field.
    """
    if report.get("schema") != SCHEMA:
        raise InputError(f"report schema must be {SCHEMA}, got {report.get('schema')!r}")
    try:
        context = _context(report)
    except KeyError as error:
        raise InputError(f"report lacks the field {error}") from error
    return rendered("audit.html.j2", context)


def _context(report: Mapping[str, JSON]) -> dict[str, Any]:
    """What the template prints."""
    subjects = [subject_view(subject, index) for index, subject in enumerate(report["subjects"])]
    claim = report["claim"]
    return {
        "verdict": verdict_view(report["verdict"]),
        "glance": _glance(report),
        "claim": {
            "text": claim["text"],
            "about": claim["about"],
            "released": claim["released"],
            "source": claim["source"],
            "assumptions": claim.get("assumptions") or (),
        },
        "allowed": allowed_views(claim),
        "views": views_view(report.get("views")),
        "extraction": extraction_views(report.get("extraction") or ()),
        "subjects": [subject for subject in subjects if subject.role not in ("control", "reading")],
        "readings": [subject for subject in subjects if subject.role == "reading"],
        "controls": [subject for subject in subjects if subject.role == "control"],
        "created": report["created"],
        "command": report["command"],
        "seed": report["seed"],
        "exit_code": report["exit_code"],
        "workbench_version": report["workbench_version"],
        "versions": sorted((str(name), str(version)) for name, version in report["versions"].items()),
        "hardware": [
            (HARDWARE.get(name, str(name)), str(value)) for name, value in report["hardware"].items()
        ],
        "cost": cost_pairs(report["cost"]),
    }


def _glance(report: Mapping[str, JSON]) -> list[tuple[str, str, str]]:
    """Tiles under the verdict: what is asked, the answer in figures, its small print."""
    verdict, guarantee = report["verdict"], report["claim"]["guarantee"]
    parameters = [
        f"{SYMBOLS.get(name, name)} = {number(real(value))}"
        for name, value in guarantee.items()
        if name not in ("currency", "secret", "delta")
    ]
    small = f"δ = {number(real(guarantee['delta']))}" if "delta" in guarantee else str(guarantee["currency"])
    tiles = [("Claimed", ", ".join(parameters) or "nothing", small)]
    bound = verdict.get("bound")
    if bound is None:
        tiles.append(("Measured", "no bound", "none decided"))
    else:
        quantity = str(bound["quantity"])
        shown = (
            percent(real(bound["lower"])) if quantity == "success" else number(max(real(bound["lower"]), 0.0))
        )
        value = f"{SYMBOLS.get(quantity, quantity)} ≥ {shown}"
        tiles.append(
            (
                "Measured, at least",
                value,
                f"{percent(real(bound['confidence']), 4)} confidence, {bound['name']}",
            )
        )
    counted = [subject for subject in report["subjects"] if subject["role"] not in ("control", "reading")]
    games = [attack for subject in counted for attack in subject["attacks"]]
    names = list(dict.fromkeys(str(game["attack"]) for game in games))
    tiles.append(("Games played", number(len(games)), ", ".join(names)))
    return tiles
