"""The views of an audit of a mechanism that steers its radii and noise: what one release shows, and the run.

Everything is computed from the judged subjects of the report: no verdict is written here, each is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.accounting import ApproximateDP, guarantee_from_json
from workbench.audit.words import FOLLOWS, WORDS, Form, area_words, claimed_words, percent, training_words
from workbench.core import registry
from workbench.core.errors import UnsupportedError
from workbench.core.keys import JSON
from workbench.estimation import clopper_pearson_all, gaussian_location
from workbench.estimation.deciding import GAUSSIAN_SHARE
from workbench.estimation.judge import COMBINED
from workbench.interfaces import AccessLevel, Bound, Family, VerdictKind

HEADING = "One release, and the run"

TITLES = {
    "joint_canary": ("All clipping groups at once", "a record that fills the bound of each"),
    "dirac_canary": ("One clipping group", "a record that fills the bound of one"),
    "trajectory": ("Radii and noise alone", "no update and no weights are seen"),
}
MEMBERS = ("Ordinary members", "black-box attacks on the trained model")


def steered_view_forms(subject: Form, *, confidence: float, control: Form | None) -> dict[str, JSON]:
    """The views in words.

    Args:
        subject: The judged subject.
        confidence: Of the audit.
        control: The judged control, where there is one.

    Returns:
        As `workbench.audit.words.view_forms`, with a `heading` of the comparison.
    """
    keys = dict.fromkeys(_key(attack) for attack in subject["attacks"])
    forms = [_view(key, subject, confidence) for key in keys]
    return {
        "heading": HEADING,
        "in_short": _in_short(forms, control),
        "notes": _notes(subject, confidence, control),
        "of": forms,
    }


def _name(attack: Form) -> str:
    return str(attack["attack"]).partition(" (")[0]


def _key(attack: Form) -> str:
    """The view that a game belongs to: its attack, or the members that all others are about."""
    return _name(attack) if _name(attack) in TITLES else "members"


def _view(key: str, subject: Form, confidence: float) -> dict[str, JSON]:
    guarantee = guarantee_from_json(subject["claim"]["guarantee"])
    attacks = [attack for attack in subject["attacks"] if _key(attack) == key]
    kinds = {VerdictKind(attack["verdict"]["kind"]) for attack in attacks}
    kind = next(one for one in COMBINED if one in kinds)
    title, label = TITLES.get(key, MEMBERS)
    error = percent((1.0 - confidence) * len(attacks) / len(subject["attacks"]))
    delta = guarantee.delta if isinstance(guarantee, ApproximateDP) else 0.0
    shown = [_shown(attack, delta) for attack in attacks]
    says = [f"{_measured(attack)} {what}" for attack, what in zip(attacks, shown, strict=True)]
    return {
        "key": key,
        "title": title,
        "label": label,
        "verdict": kind.value,
        "says": [*says, FOLLOWS[kind].format(what="the claim", error=error)],
        "row": {
            "view": title,
            "currency": "(epsilon, delta)-DP",
            "claimed": claimed_words(guarantee),
            "allows": f"right guesses up to {percent(guarantee.max_success())} in a whole run",
            "measured": "; ".join(_row(attack, delta) for attack in attacks),
            "verdict": kind.value,
        },
        "rates": [],
    }


def _measured(attack: Form) -> str:
    where = str(attack["attack"]).partition(" (")[2].rstrip(")")
    return (
        f"{where.capitalize() or 'Measured'}, {len(attack['scores']):,} scores: AUC {area_words(attack)}, "
        "where 0.5 is blind guessing."
    )


def _shown(attack: Form, delta: float) -> str:
    kind = WORDS[VerdictKind(attack["verdict"]["kind"])]
    run, confidence = _of_the_run(attack), percent(1.0 - float(attack["verdict"]["significance"]))
    single = one_release(attack, delta)
    if single is None:
        return f"The run: {run} with {confidence} confidence; {kind}."
    return (
        f"One release that the record takes part in: epsilon >= {single.lower:.4g} by itself; the run of "
        f"{attack['game']['steps']} such releases, in each of which a record takes part with probability "
        f"{float(attack['game']['sampling_probability']):g}: {run}; both with {confidence} confidence, "
        f"{kind}."
    )


def _row(attack: Form, delta: float) -> str:
    single = one_release(attack, delta)
    first = "" if single is None else f"one release epsilon >= {single.lower:.3g}, "
    return f"{first}the run {_of_the_run(attack)}"


def _of_the_run(attack: Form) -> str:
    bound = attack["verdict"]["bound"] or next(iter(attack["verdict"]["bounds"]), None)
    return "no bound" if bound is None else f"epsilon >= {max(0.0, float(bound['lower'])):.4g}"


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
        except UnsupportedError:
            pass  # The scores are no normals: what assumes no family is left.
    error *= 1.0 - GAUSSIAN_SHARE if game["family"] == Family.GAUSSIAN else 1.0
    generator = np.random.default_rng(0)
    return clopper_pearson_all(scores, members, delta=delta, confidence=1.0 - error, generator=generator)


def _in_short(forms: Sequence[Mapping[str, JSON]], control: Form | None) -> str:
    parts = [f"{form['title']}: {WORDS[VerdictKind(form['verdict'])].upper()}." for form in forms]
    if control is not None:
        kind = WORDS[VerdictKind(control["verdict"]["kind"])]
        parts.append(
            f"The same attacks on {control['name']} under the same numbers (adjacency: "
            f"{control['claim']['about']}): {kind}."
        )
    return " ".join(parts)


def _notes(subject: Form, confidence: float, control: Form | None) -> list[str]:
    games, setup = len(subject["attacks"]), subject["parameters"]
    notes = [
        f"The {games} games share the error: each is judged at {percent(1.0 - confidence)} / {games}.",
        f"The audited run: {training_words(setup)}, {setup['optimizer']} with step size "
        f"{float(setup['learning_rate']):g}, adapter {setup['adapter']}.",
    ]
    seen = set()
    for attack in subject["attacks"]:
        name = _name(attack)
        about: AccessLevel | None = getattr(registry.entries("attack")[name].factory, "access", None)
        if about is AccessLevel.TRAJECTORY and name not in seen:
            notes.append(f"The game of {name}: {attack['game']['description']}.")
        seen.add(name)
    own = subject.get("own_claim")
    if own is not None:
        notes.append(f"The claim of {subject['name']}: {own['source']}.")
    for form in (subject, *([control] if control is not None else [])):
        if "noise_multiplier" in form["metrics"]:
            noise = float(form["metrics"]["noise_multiplier"])
            notes.append(f"Noise over clip norm at the start: {form['name']} has {noise:.4g}.")
    return notes
