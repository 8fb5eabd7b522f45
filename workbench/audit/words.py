"""The views of an audit in words: one number in several currencies, and what one release shows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.core.keys import JSON
from workbench.core.templates import percent
from workbench.estimation import clopper_pearson_all, gaussian_location
from workbench.estimation.deciding import GAUSSIAN_SHARE
from workbench.estimation.low_fpr import LEVELS
from workbench.games.base import game_named
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
from workbench.interfaces import Attack, Bound, Family, Guarantee

_CURRENCIES = Path(__file__).with_name("currencies.j2")
_STEERED = Path(__file__).with_name("steered.j2")


def currency_views(judged: Judged) -> dict[str, JSON]:
    """An audit of nats about a record: the claim, its other currency, and ordinary members.

    Args:
        judged: The views `"claim"`, `"reading"` and `"members"`, as far as there are games for them.

    Returns:
        As `workbench.games.base.Game.views`, with the `rates` of transcript games at low false-positive
        rates.
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
    told = area = 0.0
    if not in_nats:
        told = float(guarantee.max_tpr(np.array([0.0]))[0])
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
        told=told,
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
    own = next(iter(by_key.values()))["own_claim"]
    judged = (guarantee_of(subject) for subject in by_key.values())
    nats = next((one for one in judged if isinstance(one, MutualInformation)), None)
    return None if nats is None else claimed_otherwise(own, nats)


def steered_views(judged: Judged) -> dict[str, JSON]:
    """An audit of a mechanism that steers its radii and noise: one adversary each, and the ordinary members.

    Returns:
        As `workbench.games.base.Game.views`.
    """
    subject, control, confidence = judged.by_view["claim"], judged.control, judged.confidence
    words, attacks = view_words(_STEERED), _attack_types(subject)
    by_view: dict[str, list[Form]] = {}
    for form in subject["attacks"]:
        name = _name(form)
        by_view.setdefault(name if attacks[name].title else "members", []).append(form)
    forms = []
    for key, games in by_view.items():
        kind, shown = combined_kind(games), attacks.get(key)
        entries = words.entries(
            "view",
            title=shown.title if shown else "",
            label=shown.label if shown else "",
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
