"""RLDP's printed cells: read by their place, as the intervals that they stand for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.reports.papers.paczero.paper_cells import cell, centre, check, mean, said, stands_for
from workbench.reports.shared.published_checks import Check, Interval

__all__ = [
    "BASELINES",
    "BUDGETS",
    "METHODS",
    "MODELS",
    "OURS",
    "Statement",
    "best",
    "cell",
    "centre",
    "check",
    "drops",
    "epochs_steps",
    "joined",
    "mean",
    "medians",
    "membership",
    "one",
    "places",
    "said",
    "shares",
    "similarity",
    "stands_for",
    "statements",
    "training_records",
    "valid",
    "words",
]

MODELS = ("GPT2", "Llama-1B", "Llama-3B", "Mistral-7B")
BUDGETS = ("0.5", "2", "4", "5", "8")
OURS = ("RLDP-H", "RLDP-L")
BASELINES = ("Static", "AdaClip", "AutoClip", "DC-SGD", "GeoClip", "PSAC", "DP-LoRA")
METHODS = (*OURS, *BASELINES)
"""As Tables 4 to 9 have them: one DC-SGD, two RLDPs."""

SHOWN = 4
"""Most places that a sentence lists."""


@dataclass(frozen=True)
class Statement:
    """Numbers of the text and what they are of.

    Attributes:
        place, quantity: Row of the table `statements`.
        values: What it is of, in one or several readings.
        kind: `"is"` (one of the values prints as it) or `"range"` (least and largest print as its ends).
        words: Of the values; empty for none.
    """

    place: str
    quantity: str
    values: tuple[Interval, ...]
    kind: str = "is"
    words: str = ""


def statements(paper: PublishedPaper, name: str, asked: list[Statement], start: str) -> Check:
    """Which numbers of the text do not follow from the cells or the arithmetic that they are of."""
    failed = [text for text in (_wrong(paper, one) for one in asked) if text]
    return check(name, len(asked), failed, start=f"{len(failed)} of {len(asked)} {start}: ")


def _wrong(paper: PublishedPaper, one: Statement) -> str:
    printed = said(paper, one.place, one.quantity)
    low, high = min(value.lower for value in one.values), max(value.lower for value in one.values)
    if one.kind == "range":
        least = Interval(low, min(value.upper for value in one.values))
        most = Interval(high, max(value.upper for value in one.values))
        fits = least.meets(stands_for(printed, 0)) and most.meets(stands_for(printed, 1))
        found = f"{centre(least):.3g} to {centre(most):.3g}"
    else:
        fits = any(value.meets(stands_for(printed)) for value in one.values)
        found = " or ".join(dict.fromkeys(f"{centre(value):.4g}" for value in one.values))
        if len(one.values) > SHOWN:
            found = f"{centre(one.values[0]):.4g} to {centre(one.values[-1]):.4g}"
    if fits:
        return ""
    about = f" ({one.words})" if one.words else ""
    return f"{one.quantity} ({one.place}): {printed.printed} printed, {found} found{about}"


def places() -> Iterator[tuple[str, str]]:
    """Model and budget of every setting, in the tables' order."""
    return ((model, budget) for model in MODELS for budget in BUDGETS)


def words(paper: PublishedPaper, place: str, quantity: str) -> str:
    """What the text says at a place.

    Raises:
        KeyError: there is none.
    """
    return cell(paper, "texts", (place, quantity), "said").printed


def one(value: float) -> Interval:
    """A number that is known."""
    return Interval(value, value)


def medians(values: list[Interval]) -> Interval:
    """Of numbers known to their rounding."""
    return Interval(median(value.lower for value in values), median(value.upper for value in values))


def drops(paper: PublishedPaper, model: str, *, percent: bool = True) -> list[Interval]:
    """By how much RLDP's perplexity is below the best baseline's, by budget: Table 2."""
    found = []
    for budget in BUDGETS:
        ours, best_one = (
            stands_for(cell(paper, "table-2", (model,), f"{name}, {budget}"))
            for name in ("RLDP", "best baseline")
        )
        if percent:
            found.append(
                Interval(
                    100.0 * (1.0 - ours.upper / best_one.lower), 100.0 * (1.0 - ours.lower / best_one.upper)
                )
            )
        else:
            found.append(best_one - ours)
    return found


def shares(paper: PublishedPaper, models: tuple[str, ...] = MODELS) -> list[Interval]:
    """Shares of the steps, percent: Table 3."""
    return [stands_for(cell(paper, "table-3", (model,), budget)) for model in models for budget in BUDGETS]


def membership(paper: PublishedPaper, model: str, budget: str, method: str, column: str) -> PublishedCell:
    """A cell of Tables 4 and 5."""
    table = "table-4" if model in MODELS[:2] else "table-5"
    return cell(paper, table, (model, budget, method), column)


def similarity(paper: PublishedPaper, n: int, model: str, budget: str, method: str) -> PublishedCell:
    """The similarity of n-grams: Tables 6 to 9."""
    return cell(paper, f"table-{5 + n}", (model, budget, method), "similarity")


def valid(paper: PublishedPaper, n: int, model: str, budget: str, method: str) -> PublishedCell:
    """The number of valid continuations beside the similarity of n-grams."""
    return cell(paper, f"table-{5 + n}", (model, budget, method), "valid")


def best(cells: list[PublishedCell]) -> PublishedCell:
    """The lowest."""
    return min(cells, key=lambda found: found.value)


def training_records(paper: PublishedPaper) -> int:
    """Training records: of the encounters without the attack set, the share that is trained on."""
    raw = said(paper, "section 2.1", "raw encounters").value
    attack = said(paper, "section 2.1", "attack set, percent").value
    train = said(paper, "section 2.1", "training share of the rest, percent").value
    return math.floor(raw * (1.0 - attack / 100.0) * train / 100.0)


def epochs_steps(paper: PublishedPaper) -> int:
    """Updates of the printed number of epochs at the printed batch size."""
    per_epoch = training_records(paper) / said(paper, "section 3.1", "batch size").value
    return round(said(paper, "section 3.1", "epochs").value * per_epoch)


def joined(found: list[str]) -> str:
    """A list in words, its first entries alone where it is long."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more
