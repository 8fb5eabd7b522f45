"""The page: one self-contained HTML file from a report record, the verdict first.

Nothing is fetched, nothing runs: style and drawings are inline, and the page's own content security policy
forbids the rest. Equal records give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.interfaces import VerdictKind
from workbench.reports.shared.markup import rendered
from workbench.reports.shared.numbers import number, percent, real
from workbench.reports.shared.pages.plots import Plot, step_plots
from workbench.reports.shared.pages.subjects import allowed_views, cost_pairs, subject_view, verdict_view
from workbench.reports.shared.pages.words import HARDWARE, MEANINGS, ROLES, SYMBOLS

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
        "replay": _replay(report.get("replay")),
        "views": views_view(report.get("views")),
        "asides": [aside_view(terms, report[key]) for key, terms in report.get("asides", {}).items()],
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


def _replay(form: Mapping[str, JSON] | None) -> Mapping[str, Any] | None:
    """The form of a forced replay with its verdict in words; None where the report has none."""
    return None if form is None else {"form": form, "verdict": verdict_view(form["verdict"])}


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
        lower = (
            percent(real(bound["lower"])) if quantity == "success" else number(max(real(bound["lower"]), 0.0))
        )
        value = f"{SYMBOLS.get(quantity, quantity)} ≥ {lower}"
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
    names += ["forced replay"] if "replay" in report else []
    count = len(games) + ("replay" in report)
    tiles.append(("Games played", number(count), ", ".join(names)))
    return tiles


# The ways to read a number of nats

VIEW_COLUMNS = ("currency", "claimed", "allows", "measured")
"""Fields of a comparison's row, between its view and its verdict."""


@dataclass(frozen=True, kw_only=True)
class RateView:
    """One row of the table of true-positive rates at low false-positive rates."""

    game: str
    fpr: str
    allowed: str
    measured: str
    interval: str
    counts: str
    above: bool


@dataclass(frozen=True, kw_only=True)
class OneView:
    """One way to read the number."""

    key: str
    title: str
    label: str
    kind: str
    word: str
    says: tuple[str, ...]
    cells: tuple[str, ...]
    rates: tuple[RateView, ...]


@dataclass(frozen=True, kw_only=True)
class ViewsView:
    """All views, and what is said of them together."""

    heading: str
    in_short: str
    notes: tuple[str, ...]
    of: tuple[OneView, ...]
    plots: tuple[Plot, ...]


def views_view(views: Mapping[str, JSON] | None) -> ViewsView | None:
    """The views of a report record; None where it has none."""
    if views is None:
        return None
    return ViewsView(
        heading=str(views.get("heading") or f"One number, read in {len(views['of'])} ways"),
        in_short=str(views["in_short"]),
        notes=tuple(str(note) for note in views["notes"]),
        of=tuple(_one(view) for view in views["of"]),
        plots=step_plots(views.get("curves") or {}),
    )


def _one(view: Mapping[str, JSON]) -> OneView:
    kind = VerdictKind(view["verdict"])
    return OneView(
        key=str(view["key"]),
        title=str(view["title"]),
        label=str(view["label"]),
        kind=kind.value.lower().replace("_", "-"),
        word=MEANINGS[kind].word,
        says=tuple(str(sentence) for sentence in view["says"]),
        cells=tuple(str(view["row"][name]) for name in VIEW_COLUMNS),
        rates=tuple(_rate(row) for row in view["rates"]),
    )


def _rate(row: Mapping[str, JSON]) -> RateView:
    lower, upper, allowed = (real(row[name]) for name in ("tpr_lower", "tpr_upper", "allowed"))
    counts = [number(real(row[name])) for name in ("hits", "members", "alarms", "nonmembers")]
    return RateView(
        game=str(row["game"]),
        fpr=percent(real(row["fpr"])),
        allowed=percent(allowed),
        measured=percent(real(row["tpr"])),
        interval=f"{percent(lower)} to {percent(upper)}",
        counts="{} of {} with the record, {} of {} without".format(*counts),
        above=lower > allowed,
    )


# What attacks add beside the claim

ASIDE_COLUMNS = ("measured", "chance", "p_value")
"""Fields of a row, after its name."""


@dataclass(frozen=True, kw_only=True)
class AsideView:
    """What an attack adds of one subject.

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


def aside_view(terms: Mapping[str, str], forms: Sequence[Mapping[str, JSON]]) -> dict[str, Any]:
    """What an attack adds beside the claim, in its terms (`workbench.interfaces.Attack.aside_terms`).

    What is shown is drawn like a refutation, and what is not like what is undecided: nobody is to take it for
    privacy.
    """
    views = [
        AsideView(
            subject=str(form["subject"]),
            role=ROLES.get(str(form["role"]), str(form["role"])),
            kind="refuted" if form["verdict"] == terms.get("shown") else "undecided",
            word=str(form["verdict"]).capitalize(),
            says=tuple(str(sentence) for sentence in form["says"]),
            rows=tuple(
                (str(row["name"]), tuple(str(row[name]) for name in ASIDE_COLUMNS)) for row in form["rows"]
            ),
        )
        for form in forms
    ]
    return {"note": "", "caption": "", **terms, "views": views}
