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

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.audit.settings import AuditSettings
from workbench.audit.subjects import CONTROL, MAIN, MEMBERS, Audited, Found
from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.core.keys import JSON, plain
from workbench.core.templates import percent
from workbench.estimation import clopper_pearson_all, gaussian_location
from workbench.estimation.deciding import GAUSSIAN_SHARE
from workbench.estimation.judge import judged_subject
from workbench.estimation.low_fpr import LEVELS
from workbench.games.base import game_named, read_as_dp
from workbench.games.words import (
    Form,
    Judged,
    bound_of,
    claimed_otherwise,
    combined_kind,
    guarantee_of,
    interval,
    kind_of,
    triple,
    view_form,
    view_words,
)
from workbench.interfaces import Attack, Bound, Claim, Evidence, Family, Guarantee, Secret, Trials


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
    return steered_views(judged) if settings.capabilities.is_steered else None


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
_STEERED = Path(__file__).with_name("steered.j2")


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


def steered_views(judged: Judged) -> dict[str, JSON]:
    """The words of an audit of a mechanism that steers its radii and noise; as
    `workbench.games.base.Game.views`.
    """
    subject, control, confidence = judged.by_view["claim"], judged.control, judged.confidence
    words, attacks = view_words(_STEERED), _attack_types(subject)
    by_view: dict[str, list[Form]] = {}
    for form in subject["attacks"]:
        name = _name(form)
        by_view.setdefault(name if attacks[name].title else "members", []).append(form)
    forms = []
    for key, games in by_view.items():
        kind, attack = combined_kind(games), attacks.get(key)
        entries = words.entries(
            "view",
            title=attack.title if attack else "",
            label=attack.label if attack else "",
            games=[_game(game, guarantee_of(subject)) for game in games],
            guarantee=guarantee_of(subject),
            kind=kind.value,
            error=percent((1.0 - confidence) * len(games) / len(subject["attacks"])),
        )
        forms.append(view_form(entries, key, kind))
    known = [
        form for form in (subject, control) if form is not None and "noise_multiplier" in form["metrics"]
    ]
    notes = words.entries(
        "notes",
        subject={"own_claim": None, **subject},
        confidence=confidence,
        described={
            name: game["game"]["description"]
            for game in reversed(subject["attacks"])
            if game_named(name := _name(game)).plays_elsewhere
        },
        noises={form["name"]: float(form["metrics"]["noise_multiplier"]) for form in known},
    )
    in_short = words.text("in_short", forms=forms, control=control)
    return {"heading": "One release, and the run", "in_short": in_short, "notes": notes["note"], "of": forms}


def _name(attack: Form) -> str:
    return str(attack["attack"]).partition(" (")[0]


def _attack_types(subject: Form) -> dict[str, type[Attack[Any]]]:
    known = registry.entries("attack")
    return {name: known[name].factory for name in map(_name, subject["attacks"])}  # type: ignore[misc]


def _game(form: Form, guarantee: Guarantee) -> dict[str, Any]:
    """A judged game with what it shows of one release and of the run."""
    bound, delta = bound_of(form), guarantee.delta if isinstance(guarantee, ApproximateDP) else 0.0
    single = one_release(form, delta)
    return {
        "form": form,
        "where": str(form["attack"]).partition(" (")[2].rstrip(")"),
        "single": None if single is None else single.lower,
        "run": "no bound" if bound is None else f"epsilon >= {max(0.0, float(bound['lower'])):.4g}",
    }


def one_release(attack: Form, delta: float) -> Bound | None:
    """What a game of single releases shows of one release by itself; None for other games.

    It takes the error that the judge gave the bound which it composes over the run, so both hold at once.
    """
    game = attack["game"]
    if int(game["steps"]) == 1 and float(game["sampling_probability"]) == 1.0:
        return None
    scores = np.array([float(score) for score in attack["scores"]], dtype=np.float64)
    members = np.array(attack["members"], dtype=bool)
    error = float(attack["verdict"]["significance"])
    if game["family"] == Family.GAUSSIAN and delta > 0.0:
        try:
            return gaussian_location(scores, members, delta=delta, confidence=1.0 - GAUSSIAN_SHARE * error)
        except UnsupportedError:  # The scores are no normals: what assumes no family is left.
            error *= 1.0 - GAUSSIAN_SHARE
    elif game["family"] == Family.GAUSSIAN:
        error *= 1.0 - GAUSSIAN_SHARE
    generator = np.random.default_rng(0)
    return clopper_pearson_all(scores, members, delta=delta, confidence=1.0 - error, generator=generator)
