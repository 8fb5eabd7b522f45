"""The views of an audit of permuted weights, in plain words: three adversaries who read the same releases.

Everything is computed from the judged subjects of the report: no verdict is written here, each is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.accounting import ApproximateDP, guarantee_from_json
from workbench.accounting import dp_sgd as accountant
from workbench.audit.words import (
    FOLLOWS,
    WORDS,
    Form,
    area_words,
    claimed_words,
    percent,
    training_words,
)
from workbench.core import registry
from workbench.core.keys import JSON
from workbench.estimation.judge import COMBINED
from workbench.games.consecutive.releases import PROBES, VIEWS
from workbench.interfaces import Guarantee, VerdictKind

HEADING = "Three adversaries, one transcript of weights"

TITLES = {
    "blind": ("Blind", "ignores that weights were permuted, as the paper's own audit did"),
    "invariant": ("Invariant", "reads what no permutation changes"),
    "tidying": ("Tidying", "undoes the permutation, then looks where the canary is"),
}


_NOTHING = 1e-6
"""A smaller epsilon is rounding."""


def shuffled_view_forms(
    subject: Form, *, mechanism: str, confidence: float, control: Form | None
) -> dict[str, JSON]:
    """The views in words.

    Args:
        subject: The judged subject, all of whose games are of consecutive weights.
        mechanism: Its name.
        confidence: Of the audit.
        control: The judged control, where there is one.

    Returns:
        As `workbench.audit.words.view_forms`, with a `heading` of the comparison.
    """
    forms = [_view(key, subject, confidence) for key in VIEWS]
    return {
        "heading": HEADING,
        "in_short": _in_short(forms, subject, control),
        "notes": _notes(subject, mechanism, confidence, control),
        "of": forms,
    }


def view_kind(attacks: Sequence[Form]) -> VerdictKind:
    """The verdict of several games of one adversary: refuted if one of them refutes."""
    kinds = {VerdictKind(attack["verdict"]["kind"]) for attack in attacks}
    return next(kind for kind in COMBINED if kind in kinds)


def _games(subject: Form, key: str) -> list[Form]:
    """The games of one adversary, by their names: `ATTACK (KEY, WHERE)`."""
    return [attack for attack in subject["attacks"] if f"({key}, " in str(attack["attack"])]


def _where(attack: Form) -> str:
    return str(attack["attack"]).rpartition(", ")[2].rstrip(")")


def _view(key: str, subject: Form, confidence: float) -> dict[str, JSON]:
    guarantee = guarantee_from_json(subject["claim"]["guarantee"])
    attacks = _games(subject, key)
    kind, (title, does) = view_kind(attacks), TITLES[key]
    error = percent((1.0 - confidence) * len(attacks) / len(subject["attacks"]))
    says = [_measured(attack) for attack in attacks]
    if key == "tidying":
        says += [_found(attack) for attack in attacks]
    if key == "invariant":
        says += [_others(attack) for attack in attacks]
    says += [_printed(attacks), FOLLOWS[kind].format(what="the claim", error=error)]
    bounds = [f"{_bound(attack)} ({_where(attack)})" for attack in attacks]
    return {
        "key": key,
        "title": title,
        "label": does,
        "verdict": kind.value,
        "says": says,
        "row": {
            "view": title,
            "currency": "(epsilon, delta)-DP",
            "claimed": claimed_words(guarantee),
            "allows": _allows(guarantee),
            "measured": "; ".join(bounds),
            "verdict": kind.value,
        },
        "rates": [],
    }


def _allows(guarantee: Guarantee) -> str:
    return f"right guesses up to {percent(guarantee.max_success())} in a whole run"


def _measured(attack: Form) -> str:
    area = area_words(attack)
    what = {"one release": "releases of one step", "whole run": "trainings, read step by step"}
    return (
        f"Measured in {len(attack['scores']):,} {what.get(_where(attack), 'trials')}: AUC {area}, where 0.5 "
        f"is blind guessing{_alike(attack)}; that shows {_bound(attack)} of the run, with an error of "
        f"{percent(float(attack['verdict']['significance']))}; "
        f"{WORDS[VerdictKind(attack['verdict']['kind'])]}."
    )


def _alike(attack: Form) -> str:
    """Said of scores that are one number, as they are where there is hardly any noise to read."""
    alike = len(set(attack["scores"])) == 1
    return "; all its scores are the same number, whoever took part, and tell nothing" if alike else ""


def _bound(attack: Form) -> str:
    """The bound that a game shows."""
    bound = attack["verdict"]["bound"] or next(iter(attack["verdict"]["bounds"]), None)
    if bound is None:
        return "no bound"
    lower = float(bound["lower"])
    return f"{bound['quantity']} >= {lower if lower > _NOTHING else 0.0:.3g}"


def _found(attack: Form) -> str:
    """How much of the permutations was found."""
    details = attack["details"]
    units = [name for name in details if name.startswith("recovered (")]
    whole = (
        f"{_where(attack).capitalize()}: the whole permutation was found exactly in "
        f"{percent(float(details['recovered']))} of releases"
    )
    if len(units) > 1:
        least = min(float(details[name]) for name in units)
        whole += f", that of the worst of {len(units)} units in {percent(least)}"
    if "recovered_first_quarter" not in details:
        return f"{whole}."
    first, last = (percent(float(details[f"recovered_{end}_quarter"])) for end in ("first", "last"))
    return f"{whole}; in the first quarter of the steps {first}, in the last {last}."


def _others(attack: Form) -> str:
    """Statistics that are measured beside the one that is judged."""
    areas = {
        name.removeprefix("auc (").rstrip(")"): float(value)
        for name, value in attack["details"].items()
        if name.startswith("auc (")
    }
    listed = ", ".join(f"{name} {value:.3f}" for name, value in areas.items())
    listed = listed or "each has one score for all"
    return f"{_where(attack).capitalize()}, AUC by statistic, without a verdict: {listed}."


def _printed(attacks: Sequence[Form]) -> str:
    values = " and ".join(
        f"{float(attack['details']['as_printed']):.3g} ({_where(attack)})" for attack in attacks
    )
    return (
        f"As printed, Eq. 45 would give epsilon = {values}: at the best threshold on these very scores, "
        "without confidence, and of one release as if it were the run. It decides nothing."
    )


def _in_short(forms: Sequence[Mapping[str, JSON]], subject: Form, control: Form | None) -> str:
    parts = [f"{form['title']}: {WORDS[VerdictKind(form['verdict'])].upper()}." for form in forms]
    kinds = {form["key"]: VerdictKind(form["verdict"]) for form in forms}
    if kinds["tidying"] is VerdictKind.REFUTED and kinds["blind"] is not VerdictKind.REFUTED:
        parts.append(
            "What the blind audit does not see is there: it is the permutation that is in its way, and the "
            "permutation can be undone by whoever has the weights before the step."
        )
    if control is not None:
        kind = VerdictKind(control["verdict"]["kind"])
        parts.append(f"The same adversaries on {control['name']} under the same claim: {WORDS[kind]}.")
    return " ".join(parts)


def _notes(subject: Form, mechanism: str, confidence: float, control: Form | None) -> list[str]:
    games = len(subject["attacks"])
    notes = [
        f"The {games} games share the error: each is judged at {percent(1.0 - confidence)} / {games}. Bounds "
        "search all thresholds and pay for that.",
        "No Gaussian family is assumed, for the subject or the control: a release that was permuted and "
        "matched again is a mixture. Bounds hold for any mechanism with (epsilon, delta)-DP.",
        f"The runs: {training_words(subject['parameters'])}, {subject['parameters']['optimizer']} with step "
        f"size {float(subject['parameters']['learning_rate']):g}.",
    ]
    own = subject["parameters"]["attack_parameters"]
    judged = [registry.create("attack", name, **dict(given)) for name, given in own.items()]
    notes += [
        f"The invariant adversary is judged by the statistic {one.invariant!r} in single releases and "
        f"{one.invariant_run!r} in runs, fixed in advance; the others are shown without a verdict."
        for one in judged
    ]
    notes += _probe_notes(subject, judged)
    notes += [f"The game of {_where(one)}: {one['game']['description']}." for one in _games(subject, "blind")]
    claimed = subject.get("own_claim")
    if claimed is not None:
        notes.append(f"The claim of {mechanism}: {claimed['source']}.")
    return notes + _noise_notes(subject, mechanism, control)


def _probe_notes(subject: Form, judged: Sequence[Any]) -> list[str]:
    """Where the function was looked at on fewer inputs than asked for."""
    used = {int(one["details"][PROBES]) for one in subject["attacks"] if PROBES in one["details"]}
    return [
        f"The function was looked at on {fewest} probe inputs, not {one.probes}: a rule on the model's size, "
        "fixed in advance."
        for one in judged
        for fewest in sorted(used)
        if fewest < one.probes
    ]


def _noise_notes(subject: Form, mechanism: str, control: Form | None) -> list[str]:
    """The noise of both, and what a certified accountant says of the subject's."""
    noise = float(subject["metrics"].get("noise_multiplier", math.nan))
    guarantee = guarantee_from_json(subject["claim"]["guarantee"])
    if not noise > 0.0 or not isinstance(guarantee, ApproximateDP) or guarantee.delta == 0.0:
        return []
    beside = ""
    if control is not None:
        honest = float(control["metrics"].get("noise_multiplier", math.nan))
        beside = f"; {control['name']} has {honest:.4g}" if honest > 0.0 else ""
    setup = subject["parameters"]
    certified = accountant.epsilon(
        noise_multiplier=noise,
        sampling_probability=float(setup["sampling_probability"]),
        steps=int(setup["steps"]),
        delta=guarantee.delta,
    )
    return [
        f"Noise over clip norm: {mechanism} has {noise:.4g}{beside}. With that of {mechanism}, unpermuted, a "
        f"certified accountant gives DP-SGD epsilon = {certified:.4g} at delta = {guarantee.delta:g}, where "
        f"the claim is {guarantee.epsilon:g}."
    ]
