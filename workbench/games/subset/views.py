"""The views of an audit of nats about a candidate subset: inside the claim, and outside it."""

from __future__ import annotations

from typing import Any

from workbench.core.keys import JSON
from workbench.core.templates import Words, percent
from workbench.estimation.information import MOST_SPARSE
from workbench.games.words import Form, Judged, claimed_otherwise, guarantee_of, interval, kind_of, view_form

HEADING = "Inside the claim, and outside it"

_DECIDED_BY = {"success": "guesses about records", "nats": "nats about the index"}
"""What a claim is judged by (`workbench.estimation.deciding.mean_tests`), in words."""


def subset_views(words: Words, judged: Judged) -> dict[str, JSON]:
    """Returns the views in words: `"claim"`, and `"outside"` where records of the universe were attacked."""
    control, error = judged.control, percent(1.0 - judged.confidence)
    claim, outside = judged.by_view["claim"], judged.by_view.get("outside")
    forms, areas = [_view(words, "inside", "claim", claim, error)], None
    if outside is not None:
        forms.append(_view(words, "outside", "outside", outside, error))
        if control is not None:
            areas = [
                max(interval(attack, "auc")[0] for attack in subject["attacks"])
                for subject in (outside, control)
            ]
    decided = {bound["quantity"] for attack in claim["attacks"] for bound in attack["verdict"]["bounds"]}
    notes = words.entries(
        "notes",
        claim=claim,
        outside=outside,
        control=control,
        judged_by=[text for quantity, text in _DECIDED_BY.items() if quantity in decided],
        claims_nats=claimed_otherwise(claim["own_claim"], guarantee_of(claim)),
        mechanism=judged.mechanism,
        confidence=judged.confidence,
    )
    return {
        "heading": HEADING,
        "in_short": words.text("in_short", forms=forms, areas=areas),
        "notes": notes["note"],
        "of": forms,
        "curves": dict(claim.get("curves", {})),
    }


def _view(words: Words, macro: str, key: str, subject: Form, error: str) -> dict[str, JSON]:
    kind, context = kind_of(subject), dict[str, Any]()
    if macro == "inside":
        context = {"counted": subject.get("counted"), "most_sparse": MOST_SPARSE}
    else:
        context = {"best": max(subject["attacks"], key=lambda attack: interval(attack, "auc")[0])}
    guarantee = guarantee_of(subject)
    entries = words.entries(
        macro, subject=subject, guarantee=guarantee, kind=kind.value, error=error, **context
    )
    return view_form(entries, key, kind)
