"""The page: one self-contained HTML file from a report record, the verdict first.

Nothing is fetched, nothing runs: style and drawings are inline, and the page's own content security policy
forbids the rest. Equal records give equal bytes. The template is handed text, rows and drawings, and has
nothing left to compute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.accounting import guarantee_from_json
from workbench.core.errors import InputError
from workbench.core.keys import JSON
from workbench.core.registry import register
from workbench.estimation.low_fpr import CERTAIN
from workbench.interfaces import BoolArray, FloatArray, Trials, VerdictKind
from workbench.reports.shared.markup import rendered
from workbench.reports.shared.numbers import number, percent, real, reals
from workbench.reports.shared.pages.currencies import Allowed, allowed_by, stated_epsilon
from workbench.reports.shared.pages.plots import (
    Lower,
    bounds_plot,
    histogram_plot,
    roc_plot,
    step_plots,
    training_plot,
)
from workbench.reports.shared.pages.reach import reach_plot
from workbench.reports.shared.pages.words import (
    HARDWARE,
    MEANINGS,
    NO_NUMBER_OF_TRIALS,
    ROLES,
    SYMBOLS,
    TRIALS,
    metric_name,
)

Pairs = tuple[tuple[str, str], ...]
View = dict[str, Any]
"""What the template prints of a verdict, bound, metric, game, subject or currency, by its names."""

DIVISOR = 2.0**100
MOST_DRAWN = 1e300
"""Larger scores are divided before they are drawn: differences of them may be infinite."""

_LONGEST_VALUE = 300


def verdict_view(verdict: Mapping[str, JSON]) -> View:
    """A verdict and its meaning in words, for the page."""
    kind = VerdictKind(verdict["kind"])
    meaning = MEANINGS[kind]
    needed = verdict.get("trials_needed")
    if kind is VerdictKind.UNDERPOWERED and needed is None:
        meaning = NO_NUMBER_OF_TRIALS
    return {
        "kind": kind.value.lower().replace("_", "-"),
        "word": meaning.word,
        "sentence": str(verdict["sentence"]),
        "means": meaning.means.format(significance=percent(real(verdict["significance"]))),
        "means_not": meaning.means_not,
        "reasons": tuple(str(reason) for reason in verdict.get("reasons") or ()),
        "trials_needed": number(real(needed)) if needed is not None else "",
    }


def allowed_views(claim: Mapping[str, JSON]) -> tuple[View, ...]:
    """The claim and its references, each by its highest success and its true-positive rates."""
    views = []
    for allowed in allowed_by(guarantee_from_json(claim["guarantee"])):
        low, high = allowed.max_tpr(np.array([0.001, 0.01]))
        views.append(
            {
                "key": allowed.key,
                "currency": allowed.guarantee.currency,
                "text": allowed.guarantee.describe(),
                "agreement": allowed.agreement or "the claim itself",
                "success": percent(allowed.success),
                "rates": (percent(float(low)), percent(float(high))),
            }
        )
    return tuple(views)


def subject_view(subject: Mapping[str, JSON], index: int) -> View:
    """Everything about one subject; `index` makes its ids unique on the page."""
    guarantee = guarantee_from_json(subject["claim"]["guarantee"])
    allowed = allowed_by(guarantee)
    stated = stated_epsilon(guarantee)
    labels = _attack_labels(subject["attacks"])
    metrics = {str(name): real(value) for name, value in subject.get("metrics", {}).items()}
    own_claim = subject.get("own_claim")
    labelled = list(zip(labels, subject["attacks"], strict=True))
    role = str(subject["role"])
    return {
        "name": str(subject["name"]),
        "role": role,
        "role_text": ROLES.get(role, role),
        "verdict": verdict_view(subject["verdict"]),
        "claim_text": str(subject["claim"]["text"]),
        "own_claim": _own_claim(own_claim, subject["claim"]),
        "attacks": tuple(
            _attack_view(attack, label, f"s{index}a{place}", allowed)
            for place, (label, attack) in enumerate(labelled)
        ),
        "bounds": _bound_rows(labelled),
        "bounds_plot": bounds_plot(
            f"s{index}-bounds", _epsilon_rows(labelled), stated.epsilon if stated else math.nan
        ),
        "reach_plot": reach_plot(f"s{index}-reach", labelled, claimed=stated.epsilon if stated else math.nan),
        "metrics": _metric_rows(subject["attacks"]),
        "metrics_assume": _metric_assumptions(subject["attacks"]),
        "training": training_plot(
            f"s{index}-training", str(subject["name"]), reals(subject.get("losses", ()))
        ),
        "perplexities": _perplexities(metrics),
        "facts": (
            *((name, number(value)) for name, value in metrics.items() if "perplexity" not in name),
            *((f"cost, {name}", value) for name, value in cost_pairs(subject.get("cost", {}))),
        ),
        "parameters": tuple(_flat(subject.get("parameters", {}))),
    }


def _own_claim(claimed: Mapping[str, JSON] | None, audited: Mapping[str, JSON]) -> str:
    """What the mechanism says of itself, where that differs from the audited claim."""
    if not claimed or claimed.get("guarantee") == audited["guarantee"]:
        return ""
    return guarantee_from_json(claimed["guarantee"]).describe()


def _attack_labels(attacks: Sequence[Mapping[str, JSON]]) -> list[str]:
    """The attacks' names; an attack that played several games has them numbered."""
    names = [str(attack["attack"]) for attack in attacks]
    totals, seen = Counter(names), Counter[str]()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(f"{name}, game {seen[name]}" if totals[name] > 1 else name)
    return labels


def _attack_view(attack: Mapping[str, JSON], label: str, identifier: str, allowed: Sequence[Allowed]) -> View:
    game = attack["game"]
    scores, members = _scores(attack)
    steps, q = int(game.get("steps", 1)), real(game.get("sampling_probability", 1.0))
    rules = [
        ("What the adversary saw", str(game["released"])),
        ("Trials", TRIALS[Trials(game["trials"])]),
        ("Probability of “member”", number(real(game["prior"]))),
        ("Score family", str(game["family"])),
        ("Scores", f"{number(float(members.sum()))} members, {number(float((~members).sum()))} non-members"),
    ]
    single = steps > 1 or q < 1.0
    if single:
        rules.append(
            ("Releases the claim covers", f"{number(steps)}, each taking part with probability {number(q)}")
        )
    details = [(str(name), number(real(value))) for name, value in attack.get("details", {}).items()]
    details += [(f"seed, {name}", str(seed)) for name, seed in attack.get("seeds", {}).items()]
    details += [(f"cost, {name}", value) for name, value in cost_pairs(attack.get("cost", {}))]
    return {
        "label": label,
        "description": str(game["description"]),
        "verdict": verdict_view(attack["verdict"]),
        "rules": tuple(rules),
        "details": tuple(details),
        "roc": roc_plot(f"{identifier}-roc", label, scores, members, allowed),
        "histogram": histogram_plot(f"{identifier}-scores", *_drawable(label, scores), members),
        "single_release": single,
    }


def _drawable(label: str, scores: FloatArray) -> tuple[str, FloatArray]:
    """Scores with those that stand for an infinite likelihood ratio put at the ends of the finite ones.

    They would squeeze all others into one bin; a fifth of the range beyond is beyond enough. Scores whose
    range no float holds are divided, and the label says so.
    """
    if np.abs(scores).max() > MOST_DRAWN:
        return f"{label} (scores divided by {DIVISOR:g})", scores / DIVISOR
    finite = scores[np.abs(scores) < CERTAIN]
    if finite.size in (0, scores.size):
        return label, scores
    low, high = float(finite.min()), float(finite.max())
    gap = 0.2 * (high - low) or 1.0
    return label, np.clip(scores, low - gap, high + gap)


def _scores(attack: Mapping[str, JSON]) -> tuple[FloatArray, BoolArray]:
    return reals(attack["scores"]), np.array(attack["members"], dtype=bool)


def _is_same(first: Mapping[str, JSON] | None, second: Mapping[str, JSON]) -> bool:
    return first is not None and all(
        first[key] == second[key] for key in ("name", "quantity", "lower", "delta")
    )


def _symbol(bound: Mapping[str, JSON]) -> str:
    """The symbol of what a bound bounds, with its order if it has one."""
    quantity, alpha = str(bound["quantity"]), bound.get("alpha")
    symbol = SYMBOLS.get(quantity, quantity)
    return symbol if alpha is None else f"{symbol}(α = {number(real(alpha))})"


def _bound_rows(labelled: Sequence[tuple[str, Mapping[str, JSON]]]) -> tuple[View, ...]:
    """One row a bound; an assumption is spelt out in the first row that makes it."""
    rows, first = list[View](), dict[str, str]()
    for label, attack in labelled:
        for bound in attack["verdict"]["bounds"]:
            row = _bound_row(label, bound, _is_same(attack["verdict"]["bound"], bound))
            row["assumes_as"] = first.get(row["assumption"], "")
            first.setdefault(row["assumption"], f"{label} · {row['name']}")
            rows.append(row)
    return tuple(rows)


def _bound_row(label: str, bound: Mapping[str, JSON], decides: bool) -> View:
    in_words = percent if bound["quantity"] == "success" else number
    lower, estimate = real(bound["lower"]), real(bound["estimate"])
    unlimited = estimate == math.inf and lower < math.inf
    return {
        "attack": label,
        "name": str(bound["name"]),
        "value": f"{_symbol(bound)} ≥ {in_words(lower)}",
        "unlimited": unlimited,
        "estimate": "without a limit" if unlimited else in_words(estimate),
        "confidence": percent(real(bound["confidence"]), 4),
        "delta": number(real(bound["delta"])) if bound["delta"] is not None else "none",
        "family": str(bound["family"]),
        "trials": str(bound["trials"]),
        "n": number(real(bound["n"])),
        "assumption": str(bound["assumption"]),
        "decides": decides,
    }


def _epsilon_rows(labelled: Sequence[tuple[str, Mapping[str, JSON]]]) -> list[Lower]:
    return [
        Lower(
            label=f"{label} · {bound['name']}",
            lower=real(bound["lower"]),
            estimate=real(bound["estimate"]),
            decides=_is_same(attack["verdict"]["bound"], bound),
        )
        for label, attack in labelled
        for bound in attack["verdict"]["bounds"]
        if bound["quantity"] == "epsilon"
    ]


def _metric_rows(
    attacks: Sequence[Mapping[str, JSON]],
) -> tuple[tuple[str, tuple[View | None, ...]], ...]:
    """One row a metric with a cell for each game, None where the game lacks the metric."""
    columns = [
        {str(interval["name"]): interval for interval in attack["verdict"]["intervals"]} for attack in attacks
    ]
    names = dict.fromkeys(name for column in columns for name in column)
    return tuple(
        (
            metric_name(name),
            tuple(_metric_view(column[name]) if name in column else None for column in columns),
        )
        for name in names
    )


def _metric_assumptions(attacks: Sequence[Mapping[str, JSON]]) -> tuple[str, ...]:
    assumptions = (
        str(interval["assumption"]) for attack in attacks for interval in attack["verdict"]["intervals"]
    )
    return tuple(dict.fromkeys(assumptions))


def _metric_view(interval: Mapping[str, JSON]) -> View:
    estimate, lower, upper = (real(interval[end]) for end in ("estimate", "lower", "upper"))
    in_words = number if interval["name"] == "auc" else percent
    track = [min(max(end, 0.0), 1.0) if math.isfinite(end) else 0.0 for end in (lower, upper, estimate)]
    return {
        "estimate": in_words(estimate, 3),
        "interval": f"{in_words(lower, 3)} to {in_words(upper, 3)}",
        "confidence": percent(real(interval["confidence"]), 4),
        "start": f"{100 * track[0]:.1f}",
        "length": f"{100 * max(track[1] - track[0], 0.0):.1f}",
        "centre": f"{100 * track[2]:.1f}",
    }


def _perplexities(metrics: Mapping[str, float]) -> tuple[tuple[str, str, str], ...]:
    """Rows `(which text, before, after)` of the perplexities that the record has."""
    rows = []
    for split, words in (("train", "Training records"), ("test", "Held-out records")):
        before, after = (metrics.get(f"{split}_perplexity_{when}", math.nan) for when in ("before", "after"))
        if not (math.isnan(before) and math.isnan(after)):
            rows.append((words, number(before), number(after)))
    return tuple(rows)


def cost_pairs(cost: Mapping[str, JSON]) -> Pairs:
    """Seconds and memory in words."""
    pairs = []
    for name, value in cost.items():
        if name == "seconds":
            pairs.append(("time", duration(real(value))))
        elif name == "peak_memory_mb":
            pairs.append(("peak memory", f"{number(real(value))} MB"))
        else:
            pairs.append((str(name), number(real(value))))
    return tuple(pairs)


def duration(value: float) -> str:
    """Below a minute in seconds, else in minutes and seconds."""
    if not math.isfinite(value) or value < 60.0:
        return f"{number(value, 3)} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


def _flat(form: Mapping[str, JSON], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested parameters as dotted names with their values in one line each."""
    for name, value in form.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = "none" if value is None else str(value)
            yield f"{prefix}{name}", text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


SCHEMA = 1


@register("report", "html")
def html(*, report: Mapping[str, JSON]) -> str:
    """One self-contained HTML page of an audit's report record.

    Args:
        report: What `report.json` holds: JSON types, non-finite numbers as `"inf"`, `"-inf"`, `"nan"`.

    Returns:
        The page, deterministic in the record.

    Raises:
        InputError: the record has another schema or lacks a field.
    """
    if report.get("schema") != SCHEMA:
        raise InputError(f"report schema must be {SCHEMA}, got {report.get('schema')!r}")
    try:
        context = _context(report)
    except KeyError as error:
        raise InputError(f"report lacks the field {error}") from error
    return rendered("audit.html.j2", context)


def _context(report: Mapping[str, JSON]) -> dict[str, Any]:
    """What the template prints."""
    subjects = [subject_view(subject, index) for index, subject in enumerate(report["subjects"])]
    claim = report["claim"]
    return {
        "verdict": verdict_view(report["verdict"]),
        "glance": _glance(report),
        "claim": {
            "text": claim["text"],
            "about": claim["about"],
            "released": claim["released"],
            "source": claim["source"],
            "assumptions": claim.get("assumptions") or (),
        },
        "allowed": allowed_views(claim),
        "replay": _run(report.get("replay")),
        "run": _run(report.get("run")),
        "unplayed": report.get("unplayed", []),
        "views": views_view(report.get("views")),
        "asides": [aside_view(terms, report[key]) for key, terms in report.get("asides", {}).items()],
        "subjects": [subject for subject in subjects if subject["role"] not in ("control", "reading")],
        "readings": [subject for subject in subjects if subject["role"] == "reading"],
        "controls": [subject for subject in subjects if subject["role"] == "control"],
        "created": report["created"],
        "command": report["command"],
        "seed": report["seed"],
        "exit_code": report["exit_code"],
        "workbench_version": report["workbench_version"],
        "versions": sorted((str(name), str(version)) for name, version in report["versions"].items()),
        "hardware": [
            (HARDWARE.get(name, str(name)), str(value)) for name, value in report["hardware"].items()
        ],
        "cost": cost_pairs(report["cost"]),
    }


def _run(form: Mapping[str, JSON] | None) -> Mapping[str, Any] | None:
    """The form of a measured training run with its verdict in words; None where the report has none."""
    return None if form is None else {"form": form, "verdict": verdict_view(form["verdict"])}


def _glance(report: Mapping[str, JSON]) -> list[tuple[str, str, str]]:
    """Tiles under the verdict: what is asked, the answer in figures, its small print."""
    verdict, guarantee = report["verdict"], report["claim"]["guarantee"]
    parameters = [
        f"{SYMBOLS.get(name, name)} = {number(real(value))}"
        for name, value in guarantee.items()
        if name not in ("currency", "secret", "delta")
    ]
    small = f"δ = {number(real(guarantee['delta']))}" if "delta" in guarantee else str(guarantee["currency"])
    tiles = [("Claimed", ", ".join(parameters) or "nothing", small)]
    bound = verdict.get("bound")
    if bound is None:
        tiles.append(("Measured", "no bound", "none decided"))
    else:
        quantity = str(bound["quantity"])
        lower = (
            percent(real(bound["lower"])) if quantity == "success" else number(max(real(bound["lower"]), 0.0))
        )
        value = f"{_symbol(bound)} ≥ {lower}"
        tiles.append(
            (
                "Measured, at least",
                value,
                f"{percent(real(bound['confidence']), 4)} confidence, {bound['name']}",
            )
        )
    counted = [subject for subject in report["subjects"] if subject["role"] not in ("control", "reading")]
    games = [attack for subject in counted for attack in subject["attacks"]]
    names = list(dict.fromkeys(str(game["attack"]) for game in games))
    runs = [name for key, name in (("replay", "forced replay"), ("run", "watched run")) if key in report]
    names += runs
    count = len(games) + len(runs)
    tiles.append(("Games played", number(count), ", ".join(names)))
    return tiles


# The ways to read a number of nats

VIEW_COLUMNS = ("currency", "claimed", "allows", "measured")
"""Fields of a comparison's row, between its view and its verdict."""


def views_view(views: Mapping[str, JSON] | None) -> View | None:
    """The views of a report record; None where it has none."""
    if views is None:
        return None
    return {
        "heading": str(views.get("heading") or f"One number, read in {len(views['of'])} ways"),
        "in_short": str(views["in_short"]),
        "notes": tuple(str(note) for note in views["notes"]),
        "of": tuple(_one(view) for view in views["of"]),
        "plots": step_plots(views.get("curves") or {}),
    }


def _one(view: Mapping[str, JSON]) -> View:
    kind = VerdictKind(view["verdict"])
    return {
        "key": str(view["key"]),
        "title": str(view["title"]),
        "label": str(view["label"]),
        "kind": kind.value.lower().replace("_", "-"),
        "word": MEANINGS[kind].word,
        "says": tuple(str(sentence) for sentence in view["says"]),
        "cells": tuple(str(view["row"][name]) for name in VIEW_COLUMNS),
        "rates": tuple(_rate(row) for row in view["rates"]),
    }


def _rate(row: Mapping[str, JSON]) -> View:
    lower, upper, allowed = (real(row[name]) for name in ("tpr_lower", "tpr_upper", "allowed"))
    counts = [number(real(row[name])) for name in ("hits", "members", "alarms", "nonmembers")]
    return {
        "game": str(row["game"]),
        "fpr": percent(real(row["fpr"])),
        "allowed": percent(allowed),
        "measured": percent(real(row["tpr"])),
        "interval": f"{percent(lower)} to {percent(upper)}",
        "counts": "{} of {} with the record, {} of {} without".format(*counts),
        "above": lower > allowed,
    }


# What attacks add beside the claim

ASIDE_COLUMNS = ("measured", "chance", "p_value")
"""Fields of a row, after its name."""


def aside_view(terms: Mapping[str, str], forms: Sequence[Mapping[str, JSON]]) -> View:
    """What an attack adds beside the claim, in its terms (`workbench.interfaces.Attack.aside_terms`).

    What is shown is drawn like a refutation, and what is not like what is undecided: nobody is to take it for
    privacy.
    """
    views = [
        {
            "subject": str(form["subject"]),
            "role": ROLES.get(str(form["role"]), str(form["role"])),
            "kind": "refuted" if form["verdict"] == terms.get("shown") else "undecided",
            "word": str(form["verdict"]).capitalize(),
            "says": tuple(str(sentence) for sentence in form["says"]),
            "rows": tuple(
                (str(row["name"]), tuple(str(row[name]) for name in ASIDE_COLUMNS)) for row in form["rows"]
            ),
        }
        for form in forms
    ]
    return {"note": "", "caption": "", **terms, "views": views}
