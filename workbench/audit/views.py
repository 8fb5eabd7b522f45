"""The claims that an audit judges by what it found (its views), and the words in which its report says them.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting import MutualInformation
from workbench.audit.settings import AuditSettings
from workbench.audit.subjects import CONTROL, MAIN, MEMBERS, Audited, Found
from workbench.core.keys import JSON, plain
from workbench.core.templates import percent
from workbench.estimation.judge import judged_subject
from workbench.estimation.low_fpr import LEVELS
from workbench.games.base import read_as_dp
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
from workbench.interfaces import Claim, Evidence, Guarantee, Secret, Trials
from workbench.training.setup import mechanism_of


@dataclass(frozen=True, kw_only=True)
class View:
    """One claim with the games that judge it.

    Attributes:
        key: `"claim"`, the one that decides, or `"reading"`, or what a game calls its ordinary members.
        facts: What the report says of the training, by field.
    """

    key: str
    claim: Claim
    games: Sequence[Evidence]
    facts: Mapping[str, JSON]


def judged_views(
    settings: AuditSettings, claimed: Claim, audited: Mapping[str, Audited], played: Mapping[str, Found]
) -> tuple[list[dict[str, JSON]], dict[str, JSON] | None]:
    """Judge every view and the control, each at the audit's confidence.

    `claimed`: what the mechanism claims. `audited`, `played`: what was trained and attacked, by its part in
    the audit. Returns the subjects of the report, one a view, that of the claim under audit first and the
    control last; and the views in words, or None.
    """
    views = _views(settings, audited, played)
    by_view = {view.key: _judged(settings, view, {"own_claim": plain(claimed)}) for view in views}
    control = None
    if CONTROL in played:
        held = audited[CONTROL].settings
        claim = held.claim if settings.secret is None else views[-1].claim
        games, facts = played[CONTROL].games, played[CONTROL].facts
        control = _judged(held, View(key="control", claim=claim, games=games, facts=facts))
    attacks = tuple(attack.attack for attack in audited[MAIN].attacks) if MAIN in audited else ()
    judged = Judged(
        by_view=by_view,
        control=control,
        attacks=attacks,
        mechanism=settings.mechanism,
        confidence=settings.confidence,
    )
    return [*by_view.values(), *([control] if control else [])], _words(settings, audited, judged)


def _words(settings: AuditSettings, audited: Mapping[str, Audited], judged: Judged) -> dict[str, JSON] | None:
    """The words of the games of the claim, or else those of such mechanisms and claims; None for none."""
    games = {attack.game.name: attack.game for attack in audited[MAIN].attacks} if MAIN in audited else {}
    view_forms = next(iter(games.values())).views(judged) if len(games) == 1 else None
    if view_forms is not None:
        return view_forms
    if settings.secret is not None:
        return currency_views(judged)
    return mechanism_of(settings.mechanism, settings.mechanism_parameters).views(judged)


def _judged(
    settings: AuditSettings, view: View, otherwise: Mapping[str, Any] | None = None
) -> dict[str, JSON]:
    role = {"claim": "subject", "control": "control"}.get(view.key, "reading")
    judged = judged_subject(
        settings.mechanism, role, view.claim, view.games, confidence=settings.confidence, seed=settings.seed
    )
    return {**judged, **(otherwise or {}), **view.facts}


def _views(
    settings: AuditSettings, audited: Mapping[str, Audited], played: Mapping[str, Found]
) -> list[View]:
    """The views that there are games for, the deciding one first."""
    main, members = played.get(MAIN, Found()), played.get(MEMBERS, Found())
    claim = settings.claim
    games = [attack.game for attack in audited[MAIN].attacks] if MAIN in audited else []
    if settings.secret is None:
        return [View(key="claim", claim=claim, games=main.games, facts=main.facts)]
    independent = [game for game in main.games if game.game.trials is Trials.INDEPENDENT]
    decides = independent
    if not isinstance(claim.guarantee, MutualInformation):
        decides = [*main.games, *members.games]
    views = [View(key="claim", claim=claim, games=decides, facts=main.facts)]
    if independent and any(game.adjacencies for game in games):
        views.append(View(key="reading", claim=_other_currency(settings), games=independent, facts={}))
    if members.games:
        key, held = next(
            (game.members_claim(claim, settings.delta) for game in games), read_as_dp(claim, settings.delta)
        )
        views.append(View(key=key, claim=held, games=members.games, facts=members.facts))
    return views


def _other_currency(settings: AuditSettings) -> Claim:
    """The same number as DP, or, where DP is claimed, as nats about one record."""
    if isinstance(settings.claim.guarantee, MutualInformation):
        return read_as_dp(settings.claim, settings.delta)[1]
    source = "the budget that the mechanism is given"
    return replace(settings.claim, guarantee=settings.budget, about=Secret.RECORD, source=source)


_CURRENCIES = Path(__file__).with_name("currencies.j2")


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
