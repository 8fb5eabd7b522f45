"""The views of an audit of nats about a candidate subset, in plain words: inside the claim, and outside it.

Everything is computed from the judged subjects of the report: no verdict is written here, each is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from workbench.accounting import ApproximateDP, MutualInformation, guarantee_from_json
from workbench.audit.words import (
    FOLLOWS,
    WORDS,
    Form,
    area_words,
    between,
    bound_words,
    claimed_words,
    interval,
    percent,
    training_words,
)
from workbench.core.keys import JSON
from workbench.estimation.information import MOST_SPARSE
from workbench.interfaces import VerdictKind

HEADING = "Inside the claim, and outside it"

OUTSIDE = "outside the claim: nobody claims this; not for the exit code"


def subset_view_forms(
    keys: Sequence[str],
    subjects: Sequence[Form],
    *,
    mechanism: str,
    confidence: float,
    control: Form | None,
    curves: Mapping[str, JSON],
) -> dict[str, JSON]:
    """The views in words.

    Args:
        keys: `"claim"`, and `"outside"` where there are attacks on records of the universe.
        subjects: The judged subject of each, as it stands in the report.
        mechanism: Name of the subject.
        confidence: Of each view's verdict.
        control: The judged control, where there is one.
        curves: Of the claim's game; see `workbench.games.subset.parts.pooled_curves`.

    Returns:
        As `workbench.audit.words.view_forms`, with a `heading` of the comparison and `curves`.
    """
    by_key = dict(zip(keys, subjects, strict=True))
    error = percent(1.0 - confidence)
    forms = [_claim_view(by_key["claim"], error)]
    if "outside" in by_key:
        forms.append(_outside_view(by_key["outside"], error))
    return {
        "heading": HEADING,
        "in_short": _in_short(forms, by_key, control),
        "notes": _notes(by_key, mechanism, confidence, control),
        "of": forms,
        "curves": dict(curves),
    }


# --- inside the claim ---


def _claim_view(subject: Form, error: str) -> dict[str, JSON]:
    guarantee = guarantee_from_json(subject["claim"]["guarantee"])
    assert isinstance(guarantee, MutualInformation)  # What is refused before, is no view.
    kind, most = VerdictKind(subject["verdict"]["kind"]), guarantee.max_success()
    says = [_allows(guarantee, subject["attacks"])]
    for attack in subject["attacks"]:
        says += _measured(attack)
    if subject.get("counted"):
        says.append(_counted(subject["counted"]))
    says.append(FOLLOWS[kind].format(what="the claim", error=error))
    best = max(subject["attacks"], key=lambda attack: float(attack["details"]["success"]))
    return {
        "key": "claim",
        "title": "Inside the claim: which candidate subset was the secret",
        "label": "decides the exit code",
        "verdict": subject["verdict"]["kind"],
        "says": says,
        "row": {
            "view": "Inside: which subset",
            "currency": "nats about the candidate subset",
            "claimed": claimed_words(guarantee),
            "allows": f"right guesses about a record up to {percent(most)}",
            "measured": f"right guesses {between(*_triple(best, 'success'))}",
            "verdict": subject["verdict"]["kind"],
        },
        "rates": [],
    }


def _allows(guarantee: MutualInformation, attacks: Sequence[Form]) -> str:
    count = int(float(attacks[0]["details"]["candidates"]))
    whole = f"The index of the secret subset, one of {count}, holds ln {count} = {math.log(count):.3g} nats."
    most, given = guarantee.max_success(), f"{guarantee.nats:g} nats"
    if guarantee.nats == 0.0:
        return (
            f"{whole} With 0 nats nobody learns anything about it, and a guess whether it holds a given "
            "record "
            "is right half of the time, as a blind one is."
        )
    if most == 1.0:
        return (
            f"{whole} {given} are as much as a single record's membership holds: they promise nothing about "
            "guessing it, only that the index is not given away whole."
        )
    return f"{whole} With {given} at most {percent(most)} of guesses about a record may be right."


def _measured(attack: Form) -> list[str]:
    """What was measured in one game."""
    details, n = attack["details"], len(attack["scores"])
    most = math.log(float(details["candidates"]))
    known = attack["game"].get("beyond")
    says = [
        f"Measured in {n:,} trainings, each with its own secret: {between(*_triple(attack, 'success'))} of "
        "the "
        "guesses about records are right, by the posterior of an adversary who knows everything but the "
        "index "
        f"({attack['attack']}). It names the right one of {float(details['candidates']):.0f} subsets in "
        f"{percent(float(details['index_success']))} of trainings; blindly in "
        f"{percent(1.0 / float(details['candidates']))}.",
        "Who sees only the released bits and the noise, and trusts it, guesses right in "
        f"{between(*_triple(attack, 'bits_success'))}.",
        f"If the noise is what the mechanism says, training gave away {_nats(details, 'information')} of "
        f"{most:.3g}; its ledger charged {float(details['charged_nats']):.3g} on average. The exact "
        "posterior "
        f"ends with {float(details['mean_entropy']):.6g} nats of entropy, of {most:.6g} at the start. "
        f"{percent(float(details['unanimity_rate']))} of releases were unanimous.",
        _log_score(details),
    ]
    if known:
        says.append(f"The adversary also knows {known}, so that this game refutes nothing.")
    return says


def _log_score(details: Form) -> str:
    """What the guesses themselves prove about the index."""
    score, upper = _nats(details, "log_score"), float(details["log_score_upper"])
    follows = " So these guesses show no leak." if upper <= 0.0 else ""
    return (
        "Whatever the noise is: by the probability that the adversary gave to the right subset, its guesses "
        f"score {score}. A blind guess scores 0, and a wrong suspicion less; on average nobody scores more "
        f"nats than were given away, so the score bounds them from below alone.{follows}"
    )


def _counted(found: Form) -> str:
    """What the joint counts of a small world say."""
    n, candidates, bits = (int(float(found[name])) for name in ("n", "candidates", "releases"))
    plug_in, charged = float(found["plug_in"]), float(found["charged"])
    return (
        f"Counted, in a world small enough for it ({candidates} candidates, {bits} released bits, {n:,} "
        f"trainings on one draw of what is public): secret and bits share {_shared(found)}, {plug_in:.3g} "
        "before Miller and Madow's correction of the bias; the "
        f"ledger charged {charged:.3g} on average. {_compared(found)} This assumes nothing of the noise, and "
        "decides nothing."
    )


def _shared(found: Form) -> str:
    """What was counted, with its interval where the counts are large enough for one."""
    corrected, lower, upper = (float(found[name]) for name in ("corrected", "lower", "upper"))
    if float(found["sparse"]) > MOST_SPARSE:
        return f"{corrected:.3g} nats (likely too much, and without an interval: there are too few trainings)"
    return f"{corrected:.3g} nats [{lower:.3g} to {upper:.3g}, asymptotic]"


def _compared(found: Form) -> str:
    """Whether what was counted is more than what was charged."""
    if float(found["sparse"]) > MOST_SPARSE:
        return "For comparing the two, these are too few trainings."
    least, most = float(found["excess_lower"]), float(found["excess_upper"])
    exceeds = "more than was charged" if least > 0.0 else "not shown to be more than was charged"
    return f"What they share is {exceeds} (the difference: {least:.3g} to {most:.3g})."


def _triple(attack: Form, name: str) -> tuple[float, float, float]:
    details = attack["details"]
    return tuple(float(details[one]) for one in (name, f"{name}_lower", f"{name}_upper"))  # type: ignore[return-value]


def _nats(details: Form, name: str) -> str:
    """Nats with their interval."""
    found, lower, upper = (float(details[one]) for one in (name, f"{name}_lower", f"{name}_upper"))
    return f"{found:.3g} nats [{lower:.3g} to {upper:.3g}]"


# --- outside it ---


def _outside_view(subject: Form, error: str) -> dict[str, JSON]:
    guarantee = guarantee_from_json(subject["claim"]["guarantee"])
    assert isinstance(guarantee, ApproximateDP)  # As `_runner_views.outside` makes it.
    kind = VerdictKind(subject["verdict"]["kind"])
    says = [
        "Records of the universe against fresh records of the same distribution: the claim is silent on "
        "them, "
        "for every candidate subset is made of the universe, and on unanimous steps all of it moves the "
        "model.",
        "The comparable epsilon, which allows as many right guesses at prior 1/2, is "
        f"{guarantee.epsilon:.3g}; "
        f"as DP it would promise of every record that at most {percent(guarantee.max_success())} of guesses "
        "about it are right. The paper prints it for reference and claims no DP.",
        *[_auc_sentence(attack) for attack in subject["attacks"]],
        FOLLOWS[kind].format(what="that reading", error=error),
    ]
    best = max(subject["attacks"], key=lambda attack: interval(attack, "auc")[0])
    area = area_words(best)
    return {
        "key": "outside",
        "title": "Outside the claim: who is in the universe",
        "label": OUTSIDE,
        "verdict": subject["verdict"]["kind"],
        "says": says,
        "row": {
            "view": "Outside: universe or fresh",
            "currency": "(epsilon, delta)-DP, the comparable one",
            "claimed": f"nothing; read as epsilon = {guarantee.epsilon:.3g}, delta = {guarantee.delta:g}",
            "allows": f"right guesses up to {percent(guarantee.max_success())}",
            "measured": f"AUC {area} ({best['attack']})",
            "verdict": subject["verdict"]["kind"],
        },
        "rates": [],
    }


def _auc_sentence(attack: Form) -> str:
    area = area_words(attack)
    return (
        f"Measured by {attack['attack']} on {len(attack['scores']):,} records, each in the universe or "
        "fresh by "
        f"a fair coin: AUC {area}, where 0.5 is blind guessing; {bound_words(attack)}."
    )


# --- all views ---


def _in_short(forms: Sequence[Form], by_key: Mapping[str, Form], control: Form | None) -> str:
    parts = [
        f"{form['row']['view']} ({form['row']['claimed']}): {WORDS[VerdictKind(form['verdict'])].upper()}."
        for form in forms
    ]
    kinds = {form["key"]: VerdictKind(form["verdict"]) for form in forms}
    held = kinds["claim"] in (VerdictKind.NOT_REFUTED, VerdictKind.UNDERPOWERED)
    if held and kinds.get("outside") is VerdictKind.REFUTED:
        parts.append(
            "What is claimed and what a reader may take it for are not the same: the claim is about which "
            "subset was the secret, and who is in the universe can be told."
        )
    if control is not None and "outside" in by_key:
        area = {
            name: max(interval(attack, "auc")[0] for attack in subject["attacks"])
            for name, subject in (("subject", by_key["outside"]), ("control", control))
        }
        parts.append(
            f"Without privacy the same attacks reach an AUC of {area['control']:.3f}, here "
            f"{area['subject']:.3f}."
        )
    return " ".join(parts)


def _tests(claim: Form) -> str:
    """What the claim is judged by; see `workbench.estimation.deciding.mean_tests`."""
    words = {"success": "guesses about records", "nats": "nats about the index"}
    decided = {bound["quantity"] for attack in claim["attacks"] for bound in attack["verdict"]["bounds"]}
    named = [text for quantity, text in words.items() if quantity in decided]
    return " and by ".join(named) + (", which share the error" if len(named) > 1 else "")


def _notes(by_key: Mapping[str, Form], mechanism: str, confidence: float, control: Form | None) -> list[str]:
    claim = by_key["claim"]
    notes = [
        f"The claim is judged at {percent(confidence)} confidence, by {_tests(claim)}"
        + (f"; what is outside it by itself, at {percent(confidence)}" if "outside" in by_key else "")
        + f". Intervals in brackets: {percent(confidence)} each, by itself.",
        f"The game inside the claim: {training_words(claim['parameters'])}.",
    ]
    own = guarantee_from_json(claim["own_claim"]["guarantee"])
    judged = guarantee_from_json(claim["claim"]["guarantee"])
    if (
        isinstance(own, MutualInformation)
        and isinstance(judged, MutualInformation)
        and own.nats != judged.nats
    ):
        notes.append(f"Of this run {mechanism}'s authors claim {own.nats:.4g} nats, not {judged.nats:g}.")
    if "outside" in by_key:
        notes.append(
            f"Outside: {training_words(by_key['outside']['parameters'])}, trained once"
            + ("; the control, without privacy, on the same records." if control is not None else ".")
        )
    return notes
