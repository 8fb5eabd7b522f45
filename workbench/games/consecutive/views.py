"""The views of an audit of permuted weights: three adversaries who read the same releases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.accounting import ApproximateDP
from workbench.accounting import subsampled_gaussian as accountant
from workbench.core.keys import JSON
from workbench.core.templates import Words, percent
from workbench.games.consecutive import PROBES, VIEWS
from workbench.games.words import Form, Judged, bound_of, combined_kind, guarantee_of, view_form

HEADING = "Three adversaries, one transcript of weights"

_NOTHING = 1e-6
"""A smaller epsilon is rounding."""


def consecutive_views(words: Words, judged: Judged) -> dict[str, JSON]:
    """Returns the views in words, of a subject all of whose games are of consecutive weights."""
    subject, control, confidence = judged.by_view["claim"], judged.control, judged.confidence
    attacks: list[Any] = list(judged.attacks)
    forms = [_view(words, key, subject, confidence) for key in VIEWS]
    used = sorted({int(form["details"][PROBES]) for form in subject["attacks"] if PROBES in form["details"]})
    notes = words.entries(
        "notes",
        subject={"own_claim": None, **subject},
        games=_games(subject, "blind"),
        attacks=attacks,
        probes=[(fewest, attack.probes) for attack in attacks for fewest in used if fewest < attack.probes],
        certified=_certified(subject, control),
        mechanism=judged.mechanism,
        confidence=confidence,
    )
    return {
        "heading": HEADING,
        "in_short": words.text("in_short", forms=forms, control=control),
        "notes": notes["note"],
        "of": forms,
    }


def _games(subject: Form, key: str) -> list[dict[str, Any]]:
    """The rounds of one adversary, which are named `ATTACK (KEY, WHERE)`, with their numbers."""
    return [_game(form) for form in subject["attacks"] if f"({key}, " in str(form["attack"])]


def _game(form: Form) -> dict[str, Any]:
    details, bound = form["details"], bound_of(form)
    lower = 0.0 if bound is None else float(bound["lower"])
    quarters = [f"recovered_{end}_quarter" for end in ("first", "last")]
    return {
        "form": form,
        "where": str(form["attack"]).rpartition(", ")[2].rstrip(")"),
        "n": len(form["scores"]),
        "is_constant": len(set(form["scores"])) == 1,
        "bound": "no bound"
        if bound is None
        else f"{bound['quantity']} >= {lower if lower > _NOTHING else 0.0:.3g}",
        "as_printed": float(details["as_printed"]),
        "recovered": float(details.get("recovered", math.nan)),
        "units": [float(details[name]) for name in details if name.startswith("recovered (")],
        "quarters": [float(details[name]) for name in quarters if name in details],
        "areas": {
            name.removeprefix("auc (").rstrip(")"): float(value)
            for name, value in details.items()
            if name.startswith("auc (")
        },
    }


def _view(words: Words, key: str, subject: Form, confidence: float) -> dict[str, JSON]:
    games = _games(subject, key)
    kind = combined_kind([game["form"] for game in games])
    entries = words.entries(
        "view",
        key=key,
        games=games,
        guarantee=guarantee_of(subject),
        kind=kind.value,
        error=percent((1.0 - confidence) * len(games) / len(subject["attacks"])),
    )
    return view_form(entries, key, kind)


def _certified(subject: Form, control: Form | None) -> Mapping[str, Any] | None:
    """The noise of both, and what a certified accountant says of the subject's; None for nothing."""
    noise = float(subject["metrics"].get("noise_multiplier", math.nan))
    guarantee, setup = guarantee_of(subject), subject["parameters"]
    if not noise > 0.0 or not isinstance(guarantee, ApproximateDP) or guarantee.delta == 0.0:
        return None
    control_noise = (
        math.nan if control is None else float(control["metrics"].get("noise_multiplier", math.nan))
    )
    epsilon = accountant.epsilon(
        noise_multiplier=noise,
        sampling_probability=float(setup["sampling_probability"]),
        steps=int(setup["steps"]),
        delta=guarantee.delta,
    )
    return {
        "noise": noise,
        "control": control["name"] if control is not None and control_noise > 0.0 else "",
        "control_noise": control_noise,
        "epsilon": epsilon,
        "delta": guarantee.delta,
        "claimed": guarantee.epsilon,
    }
