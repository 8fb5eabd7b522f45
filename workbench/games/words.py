"""What the texts of a report's views share: numbers of judged games, and sentences about verdicts.

A view is one claim, or one adversary, with the games that judge it, in words. Everything is read from the
judged subjects of the report: no verdict is made here, each is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.accounting import MutualInformation, guarantee_from_json
from workbench.core.keys import JSON
from workbench.core.templates import Words
from workbench.interfaces import Attack, Guarantee, VerdictKind
from workbench.interfaces.evidence import COMBINED

Form = Mapping[str, JSON]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The judged subjects of an audit, as they stand in its report.

    Attributes:
        by_view: By the key of their view, the claim under audit (`"claim"`) first.
        control: The control, where there is one.
        attacks: Those that the claim under audit was judged by.
        mechanism: Name of the subject.
        confidence: Of each view's verdict.
    """

    by_view: Mapping[str, Form]
    control: Form | None
    attacks: Sequence[Attack[Any]]
    mechanism: str
    confidence: float


WORDS = {kind: kind.value.lower().replace("_", " ") for kind in VerdictKind}
"""A verdict inside a sentence."""


def guarantee_of(subject: Form) -> Guarantee:
    """Returns the guarantee that a judged subject was judged by."""
    return guarantee_from_json(subject["claim"]["guarantee"])


def kind_of(form: Form) -> VerdictKind:
    """Returns the verdict of a subject, a game or a view."""
    verdict = form["verdict"]
    return VerdictKind(verdict if isinstance(verdict, str) else verdict["kind"])


def combined_kind(attacks: Sequence[Form]) -> VerdictKind:
    """Returns the verdict of several games of one adversary: refuted if one of them refutes."""
    kinds = {kind_of(attack) for attack in attacks}
    return next(kind for kind in COMBINED if kind in kinds)


def interval(attack: Form, name: str) -> tuple[float, float, float]:
    """Returns a metric of a judged game by its name: estimate, and both ends."""
    metric = next(metric for metric in attack["verdict"]["intervals"] if metric["name"] == name)
    return float(metric["estimate"]), float(metric["lower"]), float(metric["upper"])


def triple(attack: Form, name: str) -> tuple[float, float, float]:
    """Returns a detail of a judged game with its interval."""
    low, middle, high = (float(attack["details"][name + end]) for end in ("_lower", "", "_upper"))
    return middle, low, high


def bound_of(attack: Form) -> Form | None:
    """Returns the bound that decided, or else the first that was computed."""
    verdict = attack["verdict"]
    bound: Form | None = verdict["bound"] or next(iter(verdict["bounds"]), None)
    return bound


def claimed_otherwise(claim: Form, judged: Guarantee) -> tuple[float, float] | None:
    """Returns the nats that the authors claim of the run and those that are judged, where they differ."""
    claimed = guarantee_from_json(claim["guarantee"])
    if not isinstance(claimed, MutualInformation) or not isinstance(judged, MutualInformation):
        return None
    return None if math.isclose(claimed.nats, judged.nats, rel_tol=1e-6) else (claimed.nats, judged.nats)


def view_form(
    entries: Mapping[str, list[str]], key: str, kind: VerdictKind, rates: Sequence[Form] = ()
) -> dict[str, JSON]:
    """Returns a view from its template's entries: `title`, `label`, `says` and the cells of its row."""
    row = {name: entries[f"row.{name}"][0] for name in ("view", "currency", "claimed", "allows", "measured")}
    return {
        "key": key,
        "title": entries["title"][0],
        "label": entries["label"][0],
        "verdict": kind.value,
        "says": entries["says"],
        "row": {**row, "verdict": kind.value},
        "rates": list(rates),
    }


def _said(macro: str) -> Any:
    return lambda **context: Words(_COMMON, _NUMBERS).text(macro, **context)


_COMMON = Path(__file__).with_suffix(".j2")
_NUMBERS: dict[str, Callable[..., Any]] = {
    "interval": interval,
    "triple": triple,
    "bound_of": bound_of,
    "kind_of": kind_of,
    "word": lambda kind: WORDS[kind],
}
_HELPERS = _NUMBERS | {
    name: _said(name) for name in ("follows", "claimed", "training", "area", "bound", "beyond")
}


def view_words(path: Path) -> Words:
    """Returns a template of views, whose macros may call the helpers of this module."""
    return Words(path, _HELPERS)
