"""The views of an audit in plain words: what a number allows, what was measured, what follows.

Everything is computed from the judged subjects of the report: no verdict is written here, each is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from workbench.accounting import ApproximateDP, MutualInformation, guarantee_from_json
from workbench.core.keys import JSON
from workbench.estimation.low_fpr import LEVELS
from workbench.interfaces import Guarantee, VerdictKind

Form = Mapping[str, JSON]

WORDS = {
    VerdictKind.REFUTED: "refuted",
    VerdictKind.NOT_REFUTED: "not refuted",
    VerdictKind.UNDERPOWERED: "underpowered",
    VerdictKind.INVALID: "invalid",
    VerdictKind.UNDECIDED: "undecided",
}

FOLLOWS = {
    # What a verdict means; `what` is the claim or a reading of it.
    VerdictKind.REFUTED: "So {what} is false, with an error of at most {error}.",
    VerdictKind.NOT_REFUTED: "This is compatible with {what}; it does not show that it is true.",
    VerdictKind.UNDERPOWERED: "So this audit cannot tell whether {what} is true: even a perfect attack would "
    "have shown no more than it allows.",
    VerdictKind.INVALID: "The experiment broke its own assumptions, so it says nothing about {what}.",
    VerdictKind.UNDECIDED: "In every game that shows more the adversary knows more than {what} grants, so "
    "this audit says nothing about it.",
}

_CANARIES = {
    "(opposed)": "the record pulls against all others together, as hard as a record can",
    "(outlier)": "the record is huge and wrongly labelled",
    "(average)": "the record is an ordinary one",
}


def view_forms(
    keys: Sequence[str], subjects: Sequence[Form], *, mechanism: str, confidence: float, has_control: bool
) -> dict[str, JSON]:
    """The views of an audit in words.

    Args:
        keys: `"claim"`, `"reading"` or `"members"` of each view, the claim under audit first.
        subjects: The judged subject of each, as it stands in the report.
        mechanism: Name of the subject.
        confidence: Of each view's verdict.
        has_control: Whether a control was attacked too.

    Returns:
        `in_short` (one sentence on all verdicts), `notes`, and `of`: for each view its `key`, `title`,
        `label`, `verdict`, what it `says` in sentences, the `row` of the comparison (currency, claimed,
        allows, measured, verdict), and the `rates` of transcript games at low false-positive rates.
    """
    error = percent(1.0 - confidence)
    by_key = dict(zip(keys, subjects, strict=True))
    forms = [_view(key, subject, mechanism=mechanism, error=error) for key, subject in by_key.items()]
    return {
        "in_short": _in_short(forms, by_key),
        "notes": [
            _errors_note(len(forms), confidence),
            *_own_claim_notes(by_key, mechanism),
            *_data_notes(by_key),
            *_control_notes(by_key, has_control),
        ],
        "of": forms,
    }


def percent(value: float) -> str:
    """A probability in percent, three digits."""
    return f"{100.0 * value:.3g} %"


def _guarantee(subject: Form) -> Guarantee:
    return guarantee_from_json(subject["claim"]["guarantee"])


def _view(key: str, subject: Form, *, mechanism: str, error: str) -> dict[str, JSON]:
    guarantee, kind = _guarantee(subject), VerdictKind(subject["verdict"]["kind"])
    in_nats = isinstance(guarantee, MutualInformation)
    what = "the claim" if key == "claim" else "this reading"
    if isinstance(guarantee, MutualInformation):
        allows, measured = _nats_sentences(guarantee, subject["attacks"])
    elif key == "members":
        allows, measured = _members_sentences(guarantee, subject["attacks"])
    else:
        allows, measured = _dp_sentences(guarantee, subject["attacks"])
    follows = FOLLOWS[kind].format(what=what, error=error)
    if in_nats and guarantee.max_success() == 1.0 and kind is VerdictKind.UNDERPOWERED:
        follows = "A promise of nothing cannot be broken: no experiment of this kind can test it."
    title, label = _heading(key, in_nats, mechanism)
    return {
        "key": key,
        "title": title,
        "label": label,
        "verdict": subject["verdict"]["kind"],
        "says": [allows, *measured, follows],
        "row": {
            "view": title,
            "currency": "nats about one record" if in_nats else "(epsilon, delta)-DP",
            "claimed": claimed_words(guarantee),
            "allows": _allows_short(guarantee, members=key == "members"),
            "measured": _measured_short(key, in_nats, subject),
            "verdict": subject["verdict"]["kind"],
        },
        "rates": [] if in_nats or key == "members" else _rates(guarantee, subject["attacks"]),
    }


def _heading(key: str, in_nats: bool, mechanism: str) -> tuple[str, str]:
    """Title and label of a view."""
    if key == "members":
        return "Ordinary members, as papers measure", "one training, black-box attacks; not for the exit code"
    if key == "claim" and in_nats:
        return "The authors' own claim", "decides the exit code"
    if key == "claim":
        return (
            "The claim under audit",
            f"decides the exit code; {mechanism} itself claims nats, not this: its number is read as DP here",
        )
    if in_nats:
        return "The same number in nats", f"what {mechanism}'s authors claim; not for the exit code"
    return "The same number read as DP", "a reading, not the authors' claim; not for the exit code"


def claimed_words(guarantee: Guarantee) -> str:
    """The number of a guarantee."""
    if isinstance(guarantee, MutualInformation):
        return f"{guarantee.nats:g} nats"
    if isinstance(guarantee, ApproximateDP):
        return f"epsilon = {guarantee.epsilon:g}, delta = {guarantee.delta:g}"
    return guarantee.describe()


# --- nats: how often a guess may be right ---


def _nats_sentences(guarantee: MutualInformation, attacks: Sequence[Form]) -> tuple[str, list[str]]:
    most, nats = guarantee.max_success(), f"{guarantee.nats:g} nats"
    coin = "A fair coin decides whether a record is used; a blind guess is right half of the time."
    if most == 1.0:
        allows = (
            f"{coin} The answer holds ln 2 = {math.log(2):.3f} nats, so {nats} allow every guess to be "
            "right: they promise nothing about guessing one record's membership."
        )
    else:
        allows = f"{coin} With {nats} at most {percent(most)} of all guesses may be right."
    return allows, [_success_sentence(attack) for attack in attacks]


def _success(attack: Form) -> tuple[float, float, float]:
    """Share of right guesses, with its interval: at a threshold fixed beforehand where there is one."""
    details = attack["details"]
    if "success" in details:
        return tuple(float(details[name]) for name in ("success", "success_lower", "success_upper"))  # type: ignore[return-value]
    return interval(attack, "accuracy")


def interval(attack: Form, name: str) -> tuple[float, float, float]:
    """A metric of a judged game by its name: estimate, and both ends."""
    one = next(one for one in attack["verdict"]["intervals"] if one["name"] == name)
    return float(one["estimate"]), float(one["lower"]), float(one["upper"])


def area_words(attack: Form) -> str:
    """The AUC of a judged game with its interval, and what must be said where that lies below one half."""
    area, lower, upper = interval(attack, "auc")
    said = " (below one half: a broken game or a flipped score, not privacy)" if upper < 0.5 else ""
    return f"{area:.3f} [{lower:.3f} to {upper:.3f}]{said}"


def between(estimate: float, lower: float, upper: float) -> str:
    """A share with its interval."""
    return f"{percent(estimate)} [{percent(lower)} to {percent(upper)}]"


def _where(attack: Form) -> str:
    """What record a game is about, as the end of a sentence."""
    name = str(attack["attack"])
    found = [words for end, words in _CANARIES.items() if name.endswith(end)]
    return f", where {found[0]}" if found else f" (attack {name})"


def _success_sentence(attack: Form) -> str:
    n = len(attack["scores"])
    return (
        f"Measured in {n:,} trainings, half of them with the record: {between(*_success(attack))} of the "
        f"guesses from what training released are right{_where(attack)}{_beyond(attack)}."
    )


def _beyond(attack: Form) -> str:
    """What the adversary of a game was given beyond the claim, as the end of a sentence."""
    known = attack["game"].get("beyond")
    return f" and the adversary also knows {known}, so that this game refutes nothing" if known else ""


def _able(attacks: Sequence[Form]) -> list[Form]:
    """The games that can refute, or all where none can."""
    return [attack for attack in attacks if not attack["game"].get("beyond")] or list(attacks)


# --- (epsilon, delta)-DP: what may be recognised without a false alarm ---


def _dp_sentences(guarantee: Guarantee, attacks: Sequence[Form]) -> tuple[str, list[str]]:
    most = float(guarantee.max_tpr(np.array([0.0]))[0])
    allows = (
        f"As DP the same number would promise, of every single record: without a false alarm at most "
        f"{percent(most)} of the trainings with it can be recognised, and at most "
        f"{percent(guarantee.max_success())} of guesses may be right."
    )
    return allows, [_told_sentence(attack) for attack in attacks]


def _told_sentence(attack: Form) -> str:
    details = attack["details"]
    bound = bound_words(attack)
    if "hits_at_fpr_0" not in details:
        return f"Measured by {attack['attack']}: AUC {area_words(attack)}; {bound}."
    hits, members = int(float(details["hits_at_fpr_0"])), int(float(details["trials_in"]))
    alarms, rest = int(float(details["alarms_at_fpr_0"])), int(float(details["trials_out"]))
    rates = [float(details[f"{name}_at_fpr_0"]) for name in ("tpr", "tpr_lower", "tpr_upper")]
    shown = "" if attack["game"].get("beyond") else f"; {bound}"
    return (
        f"Measured: {hits} of {members} trainings with the record, {between(*rates)}, released signs that "
        f"are impossible without it, and {alarms} of {rest} without it{_where(attack)}{_beyond(attack)}"
        f"{shown}."
    )


def bound_words(attack: Form) -> str:
    """What a judged game shows."""
    bound = attack["verdict"]["bound"] or next(iter(attack["verdict"]["bounds"]), None)
    if bound is None:
        return "no bound"
    lower = max(float(bound["lower"]), 0.0)
    return f"that shows {bound['quantity']} >= {lower:.3g}"


def _rates(guarantee: Guarantee, attacks: Sequence[Form]) -> list[dict[str, JSON]]:
    """True-positive rates at low false-positive rates, beside what the guarantee allows."""
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


# --- ordinary members of one training ---


def _members_sentences(guarantee: Guarantee, attacks: Sequence[Form]) -> tuple[str, list[str]]:
    allows = (
        f"Read as DP, at most {percent(guarantee.max_success())} of guesses about a member may be right, by "
        "whatever attack. For a claim in nats scores of one training say nothing, for or against: it bounds "
        "an average over many trainings."
    )
    measured = []
    for attack in attacks:
        area = area_words(attack)
        measured.append(
            f"Measured by {attack['attack']} on {len(attack['scores']):,} candidates: AUC {area}, where 0.5 "
            f"is blind guessing; {bound_words(attack)}."
        )
    return allows, measured


# --- the comparison ---


def _allows_short(guarantee: Guarantee, *, members: bool) -> str:
    most = f"right guesses up to {percent(guarantee.max_success())}"
    if isinstance(guarantee, MutualInformation):
        return most
    if members:
        curve = guarantee.max_tpr(np.linspace(0.0, 1.0, 10_001))
        return f"AUC up to {np.mean((curve[1:] + curve[:-1]) / 2.0):.3f}"
    told = float(guarantee.max_tpr(np.array([0.0]))[0])
    return f"recognised without a false alarm up to {percent(told)}; {most}"


def _measured_short(key: str, in_nats: bool, subject: Form) -> str:
    """The strongest of a view's games that can refute, in the terms of what is allowed."""
    attacks = _able(subject["attacks"])
    if in_nats:
        best = max(attacks, key=lambda attack: _success(attack)[0])
        return f"right guesses {between(*_success(best))}"
    told = [attack for attack in attacks if "hits_at_fpr_0" in attack["details"]]
    if key == "members" or not told:
        best = max(attacks, key=lambda attack: interval(attack, "auc")[0])
        return f"AUC {area_words(best)} ({best['attack']})"
    best = max(told, key=lambda attack: float(attack["details"]["tpr_at_fpr_0"]))
    rates = [float(best["details"][f"{name}_at_fpr_0"]) for name in ("tpr", "tpr_lower", "tpr_upper")]
    lower = max(
        (float(a["verdict"]["bound"]["lower"]) for a in attacks if a["verdict"]["bound"]), default=0.0
    )
    return f"recognised without a false alarm {between(*rates)}; epsilon >= {max(lower, 0.0):.3g}"


def _in_short(forms: Sequence[Form], by_key: Mapping[str, Form]) -> str:
    """All verdicts in a sentence each, and what it means where they differ."""
    parts = [
        f"{form['title']} ({form['row']['claimed']}): {WORDS[VerdictKind(form['verdict'])].upper()}."
        for form in forms
    ]
    nats = dp = None
    for key in ("claim", "reading"):
        if key in by_key:
            kind = VerdictKind(by_key[key]["verdict"]["kind"])
            if isinstance(_guarantee(by_key[key]), MutualInformation):
                nats = kind
            else:
                dp = kind
    if dp is VerdictKind.REFUTED and nats in (VerdictKind.NOT_REFUTED, VerdictKind.UNDERPOWERED):
        parts.append(
            "The number does not mean the same in both currencies: nats bound an average over all that is "
            "random, DP bounds what any one training may betray."
        )
    members = by_key.get("members")
    missed = members is not None and members["verdict"]["kind"] == VerdictKind.NOT_REFUTED.value
    if missed and dp is VerdictKind.REFUTED:
        parts.append("Attacks on ordinary members do not see what the transcript betrays.")
    return " ".join(parts)


def _errors_note(views: int, confidence: float) -> str:
    together = 1.0 - views * (1.0 - confidence)
    return (
        f"Each view is a claim of its own, judged at {percent(confidence)} confidence; within a view its "
        f"games share the error. That no true one of all {views} is refuted has a probability of "
        f"{percent(together)} at least. Intervals in brackets: {percent(confidence)} each, by itself."
    )


def _own_claim_notes(by_key: Mapping[str, Form], mechanism: str) -> list[str]:
    """Where the mechanism's authors claim another number for this run than the one that is judged."""
    own = guarantee_from_json(next(iter(by_key.values()))["own_claim"]["guarantee"])
    for subject in by_key.values():
        judged = _guarantee(subject)
        if not isinstance(judged, MutualInformation) or not isinstance(own, MutualInformation):
            continue
        if not math.isclose(own.nats, judged.nats, rel_tol=1e-6):
            return [f"Of this run {mechanism}'s authors claim {own.nats:.4g} nats, not {judged.nats:g}."]
    return []


def _data_notes(by_key: Mapping[str, Form]) -> list[str]:
    """What was trained on what."""
    notes = []
    main, members = (by_key.get(key, {}).get("parameters", {}) for key in ("claim", "members"))
    if main:
        notes.append(f"The games of whole trainings: {training_words(main)}.")
    if members:
        notes.append(f"Ordinary members: {training_words(members)}, trained once.")
    return notes


def training_words(setup: Form) -> str:
    """What was trained on what, from the plain form of a setup."""
    return (
        f"model {setup['model']} on corpus {setup['corpus']}, about half of {setup['candidates']} "
        f"candidates, {setup['steps']} steps with sampling probability "
        f"{float(setup['sampling_probability']):g}"
    )


def _control_notes(by_key: Mapping[str, Form], has_control: bool) -> list[str]:
    if has_control:
        return [
            "The control, trained without privacy, releases no signs, so it has no transcript game: it shows "
            "what the attacks on ordinary members find where nothing protects them."
        ]
    if "members" in by_key:
        return []
    return ["There is no control: one without privacy releases no signs, so it has no transcript game."]
