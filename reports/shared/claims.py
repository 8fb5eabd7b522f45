"""A paper's conclusions, each a declared test, asked of two sources: our runs, and the paper's own cells.

```toml
[test."area at most"]
each = { stands_for = "models", epsilon = "budgets", method = "methods", other = "others" }
less = { method = "other" }            # the same number of another method is taken off
number = "roc_auc"
high = 0.01                            # a number, or the name of a parameter of the conclusion
slack = 0.01
where = "{{ stands_for }}, epsilon {{ epsilon | g }}, {{ method }} less {{ other }}"
words = "One-sided paired t tests over {{ unit }}s ..."

[test."area at most".printed]          # what differs where the paper's cells are asked
less = { method = "others" }
pick = "least"
high = 0.0
where = "{{ stands_for }}: {{ method }} {{ first | fixed(3) }}, {{ pick }} {{ second | fixed(3) }}"
```

`each` names the parameters of the conclusion whose values are combined, a condition a combination (`at`
and `less` bind further columns of the first and the second place); or it says how places that are listed
are compared: `"pairs"`, `"settings"`, `"any two"`, `"neighbours"` or `"first"` (with each of the others), of
the parameter `of` (a list of such lists where it is `groups`), the last place first with `backwards = true`.
`times` names a factor of the second number, and `once = true` drops conditions of equal words. `apart` names
parameters whose means of methods stand for each of them. `merge = "all"` or `"any"` makes one condition of
those that differ in the last name alone, `mean = true` one of the mean over all places. A condition says that
a number (of a pair: first less second; of two pairs: the first gain less the second) lies between `low` and
`high`: our samples by tests over units, the cells by the intervals that they stand for. With `why` our runs
cannot test it. A cell counts against a conclusion only beyond its rounding; `rounded = true` allows for that
of the stated ends, too, and `strict = true` counts an end itself. Of several methods of a place `pick` takes
the one with the least (or largest) cell. A test without `printed` is asked of our runs alone; one that is no
comparison is a function of the paper's own. `nothing` says why there may be no condition at all; words for
the paper's side know the `places` that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any

from workbench.checks.published import PublishedPaper, QualitativeClaim
from workbench.core.errors import unknown_name
from workbench.reports.shared import findings, printed
from workbench.reports.shared.conditions import (
    Asked,
    Ends,
    all_of,
    any_of,
    asked,
    asked_between,
    less,
    untestable,
)
from workbench.reports.shared.context import Bindings, Context, PaperFunctions, Place
from workbench.reports.shared.declared import Declared
from workbench.reports.shared.outcomes import NOT_HERE
from workbench.reports.shared.printed import SLACK, Check, Interval, centre
from workbench.reports.shared.statistics import Sample
from workbench.studies.report import ReplicationFinding

SHOWN = 4
"""Most contradicting places that a sentence lists."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison to test: one place, or several whose numbers are compared.

    Attributes:
        names: Values that words know it by.
        places: One; first and second; or both of two gains.
        merged: What the conditions share that are merged with this one; empty for none.
    """

    names: Bindings
    places: tuple[Bindings, ...]
    merged: tuple[Any, ...] = ()


def comparisons(claim: QualitativeClaim, test: Mapping[str, Any], declared: Declared) -> list[Comparison]:
    """Everything that a conclusion compares.

    Raises:
        InputError: the conclusion lacks a parameter.
    """
    each = test["each"]
    if isinstance(each, str):
        return list(_listed(claim, test, each, test.get("of", "settings" if each != "pairs" else "pairs")))
    columns = [(name, _values(claim, parameter, test, declared)) for name, parameter in each.items()]
    made = []
    for values in product(*(values for _, values in columns)):
        names = {**dict(zip(each, values, strict=True)), "parameters": claim.parameters}
        place = {**claim.parameters, **names}
        places = tuple({**place, **_bound(place, test[side])} for side in ("at", "less") if side in test)
        merged = values[:-1] if "merge" in test else ()
        made.append(
            Comparison(names=names, places=places if "at" in test else (place, *places), merged=merged)
        )
    return made


def _bound(place: Bindings, sources: Mapping[str, str]) -> dict[str, Any]:
    """Values by column, of names of a place or of an entry of its lists: `"budgets.0"`."""
    bound = {}
    for column, source in sources.items():
        name, _, entry = source.partition(".")
        bound[column] = place[name][int(entry)] if entry else place.get(name, source)
    return bound


def _values(
    claim: QualitativeClaim, parameter: str, test: Mapping[str, Any], declared: Declared
) -> list[Any]:
    """A parameter's values; a mean of methods that the test takes apart stands for each of them."""
    apart = declared.layout.means if parameter in test.get("apart", ()) else {}
    return [
        separate for value in findings.listed(claim, parameter) for separate in apart.get(value, (value,))
    ]


def _listed(claim: QualitativeClaim, test: Mapping[str, Any], each: str, name: str) -> Iterator[Comparison]:
    given = findings.listed(claim, name)
    for group in given if name == "groups" else [given]:
        if each in ("pairs", "settings"):
            chosen: Any = group if each == "pairs" else [(member,) for member in group]
        elif each == "first":
            chosen = [(group[0], other) for other in group[1:]]
        else:
            chosen = pairwise(group) if each == "neighbours" else combinations(group, 2)
        for sides in chosen:
            places = [place for side in sides for place in (side if isinstance(side, list) else [side])]
            places = places[::-1] if test.get("backwards") else places
            names: dict[str, Any] = dict(zip(("first", "second", "third", "fourth"), places, strict=False))
            names |= {"parameters": claim.parameters, "places": places}
            yield Comparison(names=names, places=tuple({**claim.parameters, **place} for place in places))


def ends_of(claim: QualitativeClaim, test: Mapping[str, Any], *, rounded: Any = False) -> Ends:
    """The ends of a test, those that name a parameter of the conclusion (or minus it) read there.

    Args:
        test: Of it.
        rounded: Whether a stated end stands for all that prints like it; `"written"` counts its zeros.
    """

    def end(name: str, default: float) -> float:
        """One end of the test; a stated one is moved outwards by its rounding."""
        stated = test.get(name, default)
        if not isinstance(stated, str):
            return float(stated)
        value = findings.parameter(claim, stated.removeprefix("-"))
        digits = len((str(value) if rounded == "written" else f"{value:g}").partition(".")[2])
        half = 0.5 * 10.0**-digits + SLACK if rounded else 0.0
        value = -value if stated.startswith("-") else value
        return value + (half if default > 0.0 else -half)

    return Ends(low=end("low", -math.inf), high=end("high", math.inf), slack=float(test.get("slack", 0.0)))


# Our runs


def conclusions(context: Context, paper: PublishedPaper) -> list[ReplicationFinding]:
    """What our results say of each of the paper's conclusions, in its order.

    Raises:
        InputError: a conclusion names an unknown test, or lacks a parameter.
    """
    tests: Mapping[str, Any] = context.declared.content["test"]
    findings_made = []
    for claim in paper.claims:
        if claim.test not in tests:
            raise unknown_name(f"test of claim {claim.id!r}:", claim.test, tests)
        with context.outcomes.reading() as read:
            found = _finding(context, paper, claim, tests[claim.test])
        findings_made.append(replace(found, reads=tuple(sorted(read))))
    return findings_made


def _finding(
    context: Context, paper: PublishedPaper, claim: QualitativeClaim, test: Mapping[str, Any]
) -> ReplicationFinding:
    if claim.test in context.functions.findings:
        return context.functions.findings[claim.test](context, claim)
    decide: findings.Decide = findings.decided
    if test.get("mostly"):
        decide = partial(findings.mostly, findings.parameter(claim, "share"))
    own_conditions = context.functions.questions.get(claim.test)
    return findings.finding(
        claim,
        _asked(context, claim, test) if own_conditions is None else own_conditions(context, claim),
        confidence=context.confidence,
        test=partial(_words, context, claim),
        against=contradictions(context.functions, context.declared, paper, claim),
        nothing=test.get("nothing", context.declared.content["tests"]["nothing"]),
        decide=decide,
    )


def _words(context: Context, claim: QualitativeClaim, count: int) -> str:
    """The test of a conclusion in words."""
    words = context.declared.content["test"][claim.test]["words"]
    return context.render(words, parameters=claim.parameters, count=count).strip()


def _asked(context: Context, claim: QualitativeClaim, test: Mapping[str, Any]) -> list[Asked]:
    ends, all_comparisons = ends_of(claim, test), comparisons(claim, test, context.declared)
    if test.get("mean"):
        return [_over_all(context, test, ends, all_comparisons)]
    merged: dict[Any, list[tuple[Comparison, Asked]]] = {}
    for place, comparison in enumerate(all_comparisons):
        merged.setdefault(comparison.merged or place, []).append(
            (comparison, _condition(context, test, ends, comparison))
        )
    if "merge" not in test:
        made = [condition for [(_, condition)] in merged.values()]
        by_words = {question.condition.where: question for question in reversed(made)}
        return (
            [question for question in made if by_words[question.condition.where] is question]
            if test.get("once")
            else made
        )
    merge = all_of if test["merge"] == "all" else any_of
    return [
        merge(context.render(test["merged"], **some[0][0].names), [condition for _, condition in some])
        for some in merged.values()
    ]


def _condition(context: Context, test: Mapping[str, Any], ends: Ends, comparison: Comparison) -> Asked:
    if "why" in test:
        return Asked(untestable(context.render(test["where"], **comparison.names), test["why"]))
    samples = [number_at(context, test, place) for place in comparison.places]
    if "times" in test:
        samples[1] = _scaled(samples[1], comparison.names["parameters"][test["times"]])
    while len(samples) > 1:
        samples = [less(*samples[place : place + 2]) for place in range(0, len(samples), 2)]
    return _ask(
        context,
        context.render(test["where"], **comparison.names),
        samples[0],
        ends,
        not_run=any(awaited(context, test, place) for place in comparison.places),
        measure=test.get("measure", " points"),
    )


def _scaled(sample: Sample | str, factor: float) -> Sample | str:
    if isinstance(sample, str):
        return sample
    import numpy as np

    return Sample(factor * np.array(sample.values), sample.units, sample.unit)


def _ask(
    context: Context, where: str, sample: Sample | str, ends: Ends, *, not_run: bool, measure: str
) -> Asked:
    ask = asked if context.declared.content["tests"].get("sign_test") else asked_between
    return ask(where, sample, ends, context.confidence, not_run=not_run, measure=measure)


def _over_all(context: Context, test: Mapping[str, Any], ends: Ends, compared: Sequence[Comparison]) -> Asked:
    """The mean over all places that this profile has, a value a unit."""
    samples = {
        place: number_at(context, test, comparison.places[0]) for place, comparison in enumerate(compared)
    }
    here = {place: sample for place, sample in samples.items() if sample != NOT_HERE}
    where = context.render(test["where"], here=len(here), all=len(compared))
    if not here:
        return Asked(untestable(where, NOT_HERE))
    lost = [sample for sample in here.values() if isinstance(sample, str)]
    return _ask(
        context,
        where,
        lost[0] if lost else mean_over([sample for sample in here.values() if isinstance(sample, Sample)]),
        ends,
        not_run=any(awaited(context, test, compared[place].places[0]) for place in here),
        measure=test.get("measure", " points"),
    )


def mean_over(samples: Sequence[Sample]) -> Sample | str:
    """The mean of several settings, for each unit that all of them have."""
    import numpy as np

    unit = samples[0].unit
    shared = set.intersection(*(set(sample.units) for sample in samples))
    if not shared:
        return f"no {unit} has all of them"
    units = [name for name in samples[0].units if name in shared]
    values = [dict(zip(sample.units, sample.values, strict=True)) for sample in samples]
    means = [float(np.mean([by_unit[name] for by_unit in values])) for name in units]
    return Sample(np.array(means), tuple(units), unit)


def place_at(context: Context, bindings: Bindings) -> Place:
    """Where a place of a conclusion stands in our study: by default, at the columns that `[tests]` names."""
    if context.functions.place is not None:
        return context.functions.place(context, bindings)
    tests = context.declared.content["tests"]
    known = {name: bindings[name] for name in tests["columns"] if name in bindings}
    return context.place(tests["part"], known)


def number_at(context: Context, test: Mapping[str, Any], bindings: Bindings) -> Sample | str:
    """A test's number at a place, a value a unit; the reason where a run is lost."""
    number = test["number"]
    if number in context.functions.quantities:
        return context.functions.quantities[number].of(context, bindings)
    place = place_at(context, bindings)
    return place.why or context.outcomes.complete(place.parts, place.setting, _named(number, bindings))


def _named(number: str, bindings: Bindings) -> str:
    """The name of a number that depends on a place: `"attack_jaccard_{n}"`."""
    return number.format_map(bindings)


def awaited(context: Context, test: Mapping[str, Any], bindings: Bindings) -> bool:
    """Whether a run that a number needs is not made yet."""
    place, quantity = place_at(context, bindings), context.functions.quantities.get(test["number"])
    settings: Sequence[Any] = [place.setting]
    if quantity is not None and quantity.settings is not None:
        settings = quantity.settings(context, bindings)
    return not place.why and context.outcomes.is_awaited(place.parts, *settings)


# The paper's cells


def contradictions(
    functions: PaperFunctions, declared: Declared, paper: PublishedPaper, claim: QualitativeClaim
) -> str:
    """Where the paper's own cells contradict a conclusion beyond their rounding; empty where they do not.

    A cell that is not printed, or that our copy lacks, contradicts nothing.

    Raises:
        InputError: the conclusion names an unknown test.
    """
    tests: Mapping[str, Any] = declared.content["test"]
    if claim.test not in tests:
        raise unknown_name(f"test of claim {claim.id!r}:", claim.test, tests)
    asks = functions.against.get(claim.test)
    texts = list(_against(functions, declared, paper, claim) if asks is None else asks(paper, claim))
    contradicted = [text for text in texts if text]
    if tests[claim.test].get("mostly"):
        allowed = (1.0 - findings.parameter(claim, "share")) * len(texts) + SLACK
        contradicted = contradicted if len(contradicted) > allowed else []
    return f"{len(contradicted)} of {len(texts)} printed: {joined(contradicted)}" if contradicted else ""


def joined(texts: Sequence[str]) -> str:
    """A list in words, its first entries alone where it is long."""
    more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more


def claim_check(functions: PaperFunctions, declared: Declared, paper: PublishedPaper) -> Check:
    """Which conclusions the paper's own cells contradict."""
    tests: Mapping[str, Any] = declared.content["test"]
    claims = [
        claim for claim in paper.claims if "printed" in tests[claim.test] or claim.test in functions.against
    ]
    failed = []
    for claim in claims:
        text = contradictions(functions, declared, paper, claim)
        if text:
            failed.append(f"{claim.place}: {claim.statement.rstrip('.')} ({text.partition(': ')[0]})")
    start = (
        f"{len(failed)} of {len(claims)} conclusions are contradicted by cells that the paper prints (the "
        "cells stand with each conclusion): "
    )
    return printed.check("conclusions", len(claims), failed, start=start)


def _against(
    functions: PaperFunctions, declared: Declared, paper: PublishedPaper, claim: QualitativeClaim
) -> Iterator[str]:
    """A text for each place that is compared: empty where the cells do not contradict it."""
    test = declared.content["test"][claim.test]
    if "printed" not in test:
        return
    shared = ("each", "of", "backwards", "times", "number")
    test = {name: test[name] for name in shared if name in test} | test["printed"]
    ends = ends_of(claim, test, rounded=test.get("rounded", False))
    made = comparisons(claim, test, declared)
    if test.get("mean"):
        printed_value = printed.mean(
            [number for each in made for number in _numbers(functions, paper, test, each)[0]]
        )
        yield (
            declared.render(test["where"], value=centre(printed_value))
            if _outside(printed_value, ends, test)
            else ""
        )
        return
    for comparison in made:
        values, names = _numbers(functions, paper, test, comparison)
        if not values:
            continue
        printed_value = values[0]
        if len(values) == 2:
            factor = claim.parameters[test["times"]] if "times" in test else 1.0
            printed_value = values[0] - values[1].times(factor)
        elif len(values) == 4:
            printed_value = (values[0] - values[1]) - (values[2] - values[3])
        middles = [centre(value) for value in values]
        facts = {**names, "value": centre(printed_value), "values": middles}
        facts |= dict(zip(("first", "second"), middles, strict=False))
        text = declared.render(test["where"], **{**facts, "places": comparison.places}).strip()
        yield text if _outside(printed_value, ends, test) else ""


def _numbers(
    functions: PaperFunctions, paper: PublishedPaper, test: Mapping[str, Any], comparison: Comparison
) -> tuple[list[Interval], Bindings]:
    """What is printed at the places of a comparison, and the names that words know it by.

    Where a place names several methods, the one with the least (or largest) number is picked.
    """
    number, names = functions.printed[test["number"]], dict(comparison.names)
    values = []
    for bindings in comparison.places:
        several = next((name for name, value in bindings.items() if _is_choice(test, name, value)), None)
        chosen: list[tuple[Any, Interval | None]] = (
            [(None, number(paper, bindings))]
            if several is None
            else [(value, number(paper, {**bindings, several: value})) for value in bindings[several]]
        )
        known = [(name, value) for name, value in chosen if value is not None]
        if not known:
            return [], names
        pick = max if test.get("pick") == "largest" else min
        name, value = pick(known, key=lambda item: centre(item[1]))
        names |= {} if several is None else {"pick": name}
        values.append(value)
    return values, names


def _is_choice(test: Mapping[str, Any], name: str, value: Any) -> bool:
    return "pick" in test and name in test.get("less", {}) and isinstance(value, list)


def _outside(value: Interval, ends: Ends, test: Mapping[str, Any]) -> bool:
    """Whether no number in an interval lies between the ends."""
    if test.get("strict"):
        return value.upper <= ends.low + SLACK or value.lower >= ends.high - SLACK
    return value.upper < ends.low - SLACK or value.lower > ends.high + SLACK
