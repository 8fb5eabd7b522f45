"""The views of an audit of nats about a record: one number in two currencies, and ordinary members.

A number in nats is read in three ways, each a claim of its own:

1. The claim under audit. In nats: judged by guesses over independent trainings, whose transcripts the
   adversary sees; they are held against the highest success that the nats allow.
2. A reading: the same number as (epsilon, delta)-DP, in the very same games. Nobody need have claimed it; it
   has no part in the exit code. Where the user claims (epsilon, delta)-DP the places are changed: that claim
   is under audit, by every game, and the nats are the reading.
3. Ordinary members of one training, as papers measure leakage: black-box attacks, held against the same
   (epsilon, delta)-DP. Scores of one training cannot test nats, which bound an average over trainings.

Each of the three is judged at the audit's own confidence, and within each the games share the error: a reader
who quotes one verdict quotes one claim. A game that is about no record at all has no such reading, and may
hold its ordinary members against something else (`workbench.games.base.Game.members_claim`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from workbench.accounting import MutualInformation
from workbench.core.keys import JSON
from workbench.core.templates import percent
from workbench.estimation.low_fpr import LEVELS
from workbench.games.words import (
    Form,
    Judged,
    claimed_otherwise,
    guarantee_of,
    interval,
    kind_of,
    triple,
    view_form,
    view_words,
)
from workbench.interfaces import Guarantee

_CURRENCIES = Path(__file__).with_suffix(".j2")


def currency_views(judged: Judged) -> dict[str, JSON]:
    """The words of an audit of nats about a record: the claim, its other currency, and ordinary members.

    `judged`: the views `"claim"`, `"reading"` and `"members"`, as far as there are games for them. Returns as
    `workbench.games.base.Game.views`, with transcript games' `rates` at low false-positive rates.
    """
    by_key, mechanism, confidence = judged.by_view, judged.mechanism, judged.confidence
    words, error = view_words(_CURRENCIES), percent(1.0 - confidence)
    forms = [_currency_view(key, subject, mechanism, error) for key, subject in by_key.items()]
    kinds = {
        ("nats" if isinstance(guarantee_of(subject), MutualInformation) else "dp"): kind_of(subject).value
        for key, subject in by_key.items()
        if key in ("claim", "reading")
    }
    members = by_key.get("members")
    in_short = words.text(
        "in_short",
        forms=forms,
        nats=kinds.get("nats"),
        dp=kinds.get("dp"),
        members=None if members is None else kind_of(members).value,
    )
    notes = words.entries(
        "notes",
        views=len(forms),
        confidence=confidence,
        own_nats=_own_nats(by_key),
        mechanism=mechanism,
        main=by_key.get("claim", {}).get("parameters"),
        members=(members or {}).get("parameters"),
        has_control=judged.control is not None,
        has_members=members is not None,
    )
    return {"in_short": in_short, "notes": notes["note"], "of": forms}


def _currency_view(key: str, subject: Form, mechanism: str, error: str) -> dict[str, JSON]:
    guarantee, kind, attacks = guarantee_of(subject), kind_of(subject), subject["attacks"]
    in_nats = isinstance(guarantee, MutualInformation)
    tpr_at_fpr_0 = area = 0.0
    if not in_nats:
        tpr_at_fpr_0 = float(guarantee.max_tpr(np.array([0.0]))[0])
        curve = guarantee.max_tpr(np.linspace(0.0, 1.0, 10_001))
        area = float(np.mean((curve[1:] + curve[:-1]) / 2.0))
    able = [attack for attack in attacks if not attack["game"].get("beyond")] or list(attacks)
    lower = [float(attack["verdict"]["bound"]["lower"]) for attack in able if attack["verdict"]["bound"]]
    entries = view_words(_CURRENCIES).entries(
        "view",
        key=key,
        subject=subject,
        guarantee=guarantee,
        kind=kind.value,
        error=error,
        mechanism=mechanism,
        in_nats=in_nats,
        told=tpr_at_fpr_0,
        curve_area=area,
        best=_strongest(key, in_nats, able),
        lower=max(lower, default=0.0),
    )
    entries["row.view"] = entries["title"]
    rates = [] if in_nats or key == "members" else _rates(guarantee, attacks)
    return view_form(entries, key, kind, rates)


def _strongest(key: str, in_nats: bool, attacks: Sequence[Form]) -> Form:
    """The game that shows most, in the terms of what is allowed."""
    if in_nats:
        return max(attacks, key=lambda attack: _success(attack)[0])
    exact = [attack for attack in attacks if "hits_at_fpr_0" in attack["details"]]
    if key == "members" or not exact:
        return max(attacks, key=lambda attack: interval(attack, "auc")[0])
    return max(exact, key=lambda attack: float(attack["details"]["tpr_at_fpr_0"]))


def _success(attack: Form) -> tuple[float, float, float]:
    """Share of right guesses, at a threshold fixed beforehand where there is one."""
    return triple(attack, "success") if "success" in attack["details"] else interval(attack, "accuracy")


def _rates(guarantee: Guarantee, attacks: Sequence[Form]) -> list[dict[str, JSON]]:
    """True-positive rates at low false-positive rates, and what the guarantee allows."""
    rows = []
    for attack in attacks:
        details = attack["details"]
        for level in LEVELS:
            if f"tpr_at_fpr_{level:g}" not in details:
                continue
            row = {"game": attack["attack"], "fpr": level}
            row |= {"allowed": float(guarantee.max_tpr(np.array([level]))[0])}
            for name in ("hits", "alarms", "tpr", "tpr_lower", "tpr_upper"):
                row[name] = float(details[f"{name}_at_fpr_{level:g}"])
            rows.append({**row, "members": details["trials_in"], "nonmembers": details["trials_out"]})
    return rows


def _own_nats(by_key: Mapping[str, Form]) -> tuple[float, float] | None:
    """As `claimed_otherwise`, of the view that is judged in nats."""
    mechanism_claim = next(iter(by_key.values()))["own_claim"]
    judged = (guarantee_of(subject) for subject in by_key.values())
    nats = next((guarantee for guarantee in judged if isinstance(guarantee, MutualInformation)), None)
    return None if nats is None else claimed_otherwise(mechanism_claim, nats)
