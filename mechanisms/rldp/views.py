"""The views of an audit of a mechanism that steers its radii and noise: one release, and the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.core.keys import JSON
from workbench.core.templates import percent
from workbench.estimation import clopper_pearson_all, gaussian_location
from workbench.estimation.deciding import GAUSSIAN_SHARE
from workbench.games.base import game_named
from workbench.games.words import Form, Judged, bound_of, combined_kind, guarantee_of, view_form, view_words
from workbench.interfaces import Attack, Bound, Family, Guarantee


def steered_views(judged: Judged) -> dict[str, JSON]:
    """The words of an audit of a mechanism that steers its radii and noise; as
    `workbench.games.base.Game.views`.
    """
    subject, control, confidence = judged.by_view["claim"], judged.control, judged.confidence
    words, attacks = view_words(Path(__file__).with_suffix(".j2")), _attack_types(subject)
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
