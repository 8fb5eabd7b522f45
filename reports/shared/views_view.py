"""The views of an audit of nats, from the report record to what the template prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.core.keys import JSON
from workbench.interfaces import VerdictKind
from workbench.reports.shared.numbers import number, percent, real
from workbench.reports.shared.plots import Plot
from workbench.reports.shared.step_plots import step_plots
from workbench.reports.shared.words import MEANINGS

COLUMNS = ("currency", "claimed", "allows", "measured")
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
        cells=tuple(str(view["row"][name]) for name in COLUMNS),
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
