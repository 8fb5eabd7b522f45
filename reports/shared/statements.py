"""A paper's own numbers, checked: its text against its cells, and its cells against each other.

A `[[check]]` of `report.toml` is a list of `statements` (numbers of the text, and which printed numbers
they are of), two `texts` that are to say the same, or a function of the paper's own, which gives
statements or finds facts; `failed`, `right` and `start`, or `finding` for all of it, word them. A
`[[remark]]` words the facts of a function. Words read a printed cell by its path: `{{ at('table-7 | index
shuffle | milliseconds').value }}`.

```toml
[[check]]
name = "drops"
start = "{{ count }} of {{ checked }} numbers of the text do not follow from Table 2: "
statements = [
    { place = "abstract", quantity = "largest drop, percent", number = "drop", at = { epsilon = 0.5 } },
    { place = "section 4.1", quantity = "mean drop, percent", number = "drop", of = "mean" },
    { place = "section 4.2", quantity = "fewer steps, percent", number = "share", of = "mean", from = 100 },
]
```

`at` binds columns, the others of `[tests.of]` take all of their values; several readings stand in `or`.
With `about` a number stands for half a unit of its last digit that is not zero (930 for 925 to 935);
`instead = { ..., words = "..." }` names other values, whose words are added where they would give the number.
`of` is `"each"` (every one prints as the number), `"any"` (one does, the default), `"range"` (least and
largest print as its ends), `"mean"`, `"median"`, `"least"` or `"largest"`. `from` takes them off a
number, `times` multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.reports.shared import printed
from workbench.reports.shared.claims import SHOWN, claim_check
from workbench.reports.shared.context import PaperFunctions
from workbench.reports.shared.declared import Declared
from workbench.reports.shared.printed import Check, Interval, centre, exactly, stands_for

SUMMARIES = {
    "mean": printed.mean,
    "median": printed.middle,
    "least": printed.least,
    "largest": printed.largest,
}
"""One number of several."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A number of the text and what it is of.

    Attributes:
        place, quantity: Its row of the table `statements`.
        values: What it is of, in one or several readings.
        kind: `"any"` (one of the values prints as it), `"each"`, `"range"` (least and largest print as its
            ends), `"within"` (each lies in the printed range), `"over"` or `"under"` (each is).
        words: Of the values; empty for none.
        about: Whether the number is rounded to its last digit that is not zero.
    """

    place: str
    quantity: str
    values: Sequence[Interval]
    kind: str = "any"
    words: str = ""
    about: bool = False


@dataclass(frozen=True)
class Found:
    """The outcome of a check of the paper's own numbers.

    Attributes:
        checked: How many places.
        failed: Facts of each place that fails, for the words of `report.toml`; or its words themselves.
        facts: Of the whole, for the words before and after.
    """

    checked: int
    failed: Sequence[Mapping[str, Any] | str] = ()
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class PaperSide:
    """The part of a report about the paper's own numbers.

    Attributes:
        inconsistencies: What contradicts itself inside the paper, a sentence each; none is typed in.
        remarks: What follows from the printed numbers without contradicting them, a sentence each.
    """

    inconsistencies: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def paper_side(functions: PaperFunctions, declared: Declared, paper: PublishedPaper) -> PaperSide:
    """Everything that a report says of the paper's own numbers: what it contradicts, then what follows."""
    all_checks = checks(functions, declared, paper)
    texts = (remark(functions, declared, paper, entry) for entry in declared.content.get("remark", ()))
    return PaperSide(
        inconsistencies=tuple(checked.finding for checked in all_checks if checked.contradiction),
        remarks=(
            *(text for text in texts if text),
            *(checked.finding for checked in all_checks if checked.finding and not checked.contradiction),
        ),
    )


def checks(functions: PaperFunctions, declared: Declared, paper: PublishedPaper) -> list[Check]:
    """All checks of what the paper prints, in the order of a report."""
    return [
        check(functions, declared, paper, str(entry["name"])) for entry in declared.content.get("check", ())
    ]


def remark(
    functions: PaperFunctions, declared: Declared, paper: PublishedPaper, entry: Mapping[str, Any]
) -> str:
    """A remark in words; empty where its function finds nothing to remark."""
    facts = functions.remarks[entry["name"]](paper)
    cells = {"at": partial(printed.at, paper)}
    return "" if facts is None else declared.render(entry["text"], **{**cells, **facts}).strip()


def check(functions: PaperFunctions, declared: Declared, paper: PublishedPaper, name: str) -> Check:
    """Check what the paper prints, by the check's name.

    Raises:
        InputError: `report.toml` has none of this name.
    """
    entry = declared.entry("check", name, "name")
    if entry.get("conclusions"):
        return claim_check(functions, declared, paper)
    outcome: Found | Check | Sequence[Statement]
    if "statements" in entry:
        outcome = [_statement(functions, declared, paper, statement) for statement in entry["statements"]]
    else:
        outcome = _two_texts(paper, entry["texts"]) if "texts" in entry else functions.checks[name](paper)
    if isinstance(outcome, Check):
        return outcome
    if not isinstance(outcome, Found):
        made = [statement for statement in outcome if statement.values]
        outcome = Found(
            len(made), [text for text in (wrong(declared, paper, statement) for statement in made) if text]
        )
    facts = {"at": partial(printed.at, paper), **(outcome.facts or {})}
    facts |= {"checked": outcome.checked, "count": len(outcome.failed)}
    failed = [
        failure
        if isinstance(failure, str)
        else declared.render(entry["failed"], **{**facts, **failure}).strip()
        for failure in outcome.failed
    ]
    is_wrong = bool(entry.get("contradiction", True))
    if "finding" in entry:
        text = declared.render(entry["finding"], **facts, failed=failed).strip()
        return Check(name, outcome.checked, tuple(failed), text, bool(text) and is_wrong)
    return printed.check(
        name,
        outcome.checked,
        failed,
        right=declared.render(entry.get("right", ""), **facts),
        start=declared.render(entry.get("start", ""), **facts),
        contradiction=is_wrong,
    )


def _two_texts(paper: PublishedPaper, places: Sequence[Sequence[str]]) -> Found:
    """What the text says in one way here and in another there."""
    first, second = (printed.cell(paper, "texts", place, "said").printed for place in places)
    return Found(1, [{"first": first, "second": second}] if first != second else [])


def _statement(
    functions: PaperFunctions, declared: Declared, paper: PublishedPaper, entry: Mapping[str, Any]
) -> Statement:
    readings = [_values(functions, declared, paper, reading) for reading in (entry, *entry.get("or", ()))]
    kind = entry.get("of", "any")
    made = Statement(
        place=entry["place"],
        quantity=entry["quantity"],
        values=[value for values in readings for value in values],
        kind="any" if kind in SUMMARIES else kind,
        words=declared.render(entry.get("words", ""), said=partial(printed.said, paper)),
        about=entry.get("about", False),
    )
    if "instead" not in entry:
        return made
    other = replace(made, values=_values(functions, declared, paper, entry["instead"]), kind="each")
    is_it = _fits(printed.said(paper, made.place, made.quantity), other)
    return replace(made, words=entry["instead"]["words"]) if is_it else made


def _values(
    functions: PaperFunctions, declared: Declared, paper: PublishedPaper, entry: Mapping[str, Any]
) -> Sequence[Interval]:
    """The printed numbers that an entry names, summarised as it says."""
    if "values" in entry:
        values = functions.values[entry["values"]](paper)
    elif "exactly" in entry:
        values = [exactly(float(entry["exactly"]))]
    else:
        values = numbers(functions, declared, paper, entry["number"], entry.get("at", {}))
    summary = SUMMARIES.get(entry.get("of", ""))
    values = values if summary is None else [summary(values)]
    values = [value.times(entry.get("times", 1.0)) for value in values]
    return [exactly(entry["from"]) - value for value in values] if "from" in entry else values


def numbers(
    functions: PaperFunctions, declared: Declared, paper: PublishedPaper, number: str, at: Mapping[str, Any]
) -> list[Interval]:
    """A printed number at all places that columns leave open; those that are not printed are left out."""
    every = declared.content["tests"].get("of", {}).get(number, {})
    columns = {**every, **at}
    choices = [declared.list(stated) if _is_several(stated) else [stated] for stated in columns.values()]
    places = (dict(zip(columns, values, strict=True)) for values in product(*choices))
    intervals = (functions.printed[number](paper, place) for place in places)
    return [interval for interval in intervals if interval is not None]


def _is_several(stated: Any) -> bool:
    return isinstance(stated, list) or (isinstance(stated, str) and stated.startswith("$"))


def wrong(declared: Declared, paper: PublishedPaper, statement: Statement) -> str:
    """What is wrong with a number of the text, in words; empty where the printed numbers give it."""
    cell = printed.said(paper, statement.place, statement.quantity)
    if _fits(cell, statement):
        return ""
    outside = 0
    if statement.kind not in ("any", "range"):
        outside = sum(not _fits(cell, replace(statement, values=[value])) for value in statement.values)
    least, most = printed.least(statement.values), printed.largest(statement.values)
    if statement.kind == "any":
        ours = " or ".join(dict.fromkeys(f"{centre(value):.4g}" for value in statement.values))
        if len(statement.values) > SHOWN:
            middles = sorted(map(centre, statement.values))
            ours = f"{middles[0]:.4g} to {middles[-1]:.4g}"
    else:
        digits = ".3g" if statement.kind == "range" else ".4g"
        ends = [f"{centre(end):{digits}}" for end in (least, most)]
        ours = ends[0] if ends[0] == ends[1] and statement.kind != "range" else f"{ends[0]} to {ends[1]}"
    facts = {"place": statement.place, "quantity": statement.quantity, "printed": cell.printed, "found": ours}
    counts = {"outside": outside, "of": len(statement.values)}
    return declared.render(
        declared.content["tests"]["wrong"], **facts, **counts, words=statement.words
    ).strip()


def _fits(cell: PublishedCell, statement: Statement) -> bool:
    least, most = printed.least(statement.values), printed.largest(statement.values)
    match statement.kind:
        case "range":
            return least.meets(stands_for(cell, 0)) and most.meets(stands_for(cell, 1))
        case "within":
            low, high = stands_for(cell, 0).lower, stands_for(cell, 1).upper
            return all(value.upper >= low and value.lower <= high for value in statement.values)
        case "over":
            return all(value.upper > cell.value for value in statement.values)
        case "under":
            return all(value.lower < cell.value for value in statement.values)
    number = stands_for(cell)
    if statement.about:
        number = printed.about(number)
    return (all if statement.kind == "each" else any)(value.meets(number) for value in statement.values)
