"""What FERRET prints, held against itself: its cells, its text, its conclusions and its own equations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from workbench.checks.published import PublishedPaper, QualitativeClaim, printed_numbers
from workbench.reports.papers.ferret.places import (
    ADVANTAGE,
    AUC,
    BUDGETS,
    BY_MODEL,
    DPSGD,
    EIGHTH,
    GAP,
    MAX,
    MEANS,
    MODEL_MEAN,
    NO_BUDGET,
    NON_DP,
    PAPER_MODELS,
    RANGES,
    SECONDS,
    TEST,
    TRAIN,
    TWO,
    Place,
    asks,
    by_model,
    comparisons,
    direction,
    in_words,
    known_to,
    middle,
    over_models,
    place_of,
    plural_epochs,
    printed_budgets,
    printed_places,
    quotient,
    value,
)
from workbench.reports.shared import printed
from workbench.reports.shared.declared import declared
from workbench.reports.shared.findings import listed
from workbench.reports.shared.printed import SLACK, Interval, cell, exactly, said, short, stands_for
from workbench.reports.shared.statements import Found

EPOCHS = ("1", "3", "5")
FERRETS = (MAX, EIGHTH, TWO)

BY_SIZE = ("GPT-2", "SmolLM-360M", "BLOOM-560M", "TinyLlama-1.1B", "DeepSeek-1.5B")
"""The models from the smallest to the largest (section 6.2: 137 M to 1.78 B parameters)."""

READINGS = (EPOCHS, ("1",), ("3",), ("5",))
"""Numbers of epochs that an unqualified number of the text may be of."""

ONE = exactly(1.0)
LN_2 = math.log(2.0)


# Conclusions, asked of the cells


def against(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[str]:
    """A text for each place that is compared: empty where the cells do not contradict it beyond rounding.

    A cell that our copy lacks, or that the paper does not print, contradicts nothing; Figure 5 prints none.
    """
    test = declared("ferret").content["test"][claim.test]
    if "ask" not in test:
        return
    parts = [list(_against(paper, claim, test["each"], *part)) for part in asks(claim, test)]
    for texts in zip(*parts, strict=True):
        yield "; ".join(text for text in texts if text)


def _against(
    paper: PublishedPaper, claim: QualitativeClaim, each: str, metric: str, ask: str
) -> Iterator[str]:
    for comparison in comparisons(claim, each):
        places = [place_of(setting) for setting in comparison.settings]
        for model in claim.parameters.get("models", [None]):
            numbers: list[Interval | None]
            if ask == "spread":
                numbers = [over_models(paper, metric, place) for place in places]
            elif each == "order":
                numbers = [stands_for(cell(paper, "table-3", place[:1], metric)) for place in places]
            else:
                numbers = [value(paper, metric, place, model) for place in places]
            known = [number for number in numbers if number is not None]
            if ask == "trend":
                yield from _against_trend(places, numbers, direction(claim))
            elif ask == "not monotone":
                middles = [middle(number) for number in known]
                is_monotone = middles in (sorted(middles), sorted(middles, reverse=True))
                yield f"{in_words((*places[0][:2], NO_BUDGET))}: {middles}" if is_monotone else ""
            elif len(known) == len(places):
                yield _against_one(claim, ask if each != "order" else each, places, known, model)


def _against_trend(places: Sequence[Place], line: Sequence[Interval | None], way: str) -> Iterator[str]:
    for place, (first, second) in zip(places, pairwise(line), strict=False):
        if first is not None and second is not None:
            is_wrong = _is_above(first, second) if way == "rises" else _is_above(second, first)
            yield f"{in_words(place)}: {_show(first)}, then {_show(second)}" if is_wrong else ""


def _against_one(
    claim: QualitativeClaim, ask: str, places: Sequence[Place], known: Sequence[Interval], model: str | None
) -> str:
    start_place, end_place, first, second = places[0], places[-1], known[0], known[-1]
    start = in_words(start_place, model)
    versus = f"{end_place[0]}'s {_show(second)}"
    if start_place[1] != end_place[1]:
        versus += f" at {plural_epochs(end_place[1])}"
    match ask:
        case "inside":
            return "" if first.meets(Interval(*listed(claim, "between"))) else f"{start}: {_show(first)}"
        case "ratio":
            is_inside = quotient(first, second).meets(Interval(*listed(claim, "between")))
            return "" if is_inside else f"{start}: {middle(first) / middle(second):.3g} times {versus}"
        case "spread":
            text = f"{start}: {middle(first):.3g} times between models, {end_place[0]} {middle(second):.3g}"
        case "order":
            text = f"{start_place[0]}: {_show(first)} against {versus}"
        case _:
            text = f"{start}: {_show(first)} against {versus}"
    return text if _is_above(first, second) else ""


def _is_above(first: Interval, second: Interval) -> bool:
    return first.lower > second.upper + SLACK


def _show(interval: Interval) -> str:
    return f"{middle(interval):.7g}"


# Numbers of the text

STATEMENTS: Sequence[Mapping[str, Any]] = declared("ferret").content["own"]["statements"]
"""Numbers of the text that are about cells; those of the accounting stand in checks of their own."""


def values_of(paper: PublishedPaper, statement: Mapping[str, Any], epochs: Sequence[str]) -> list[Interval]:
    """The values that a number of the text summarises, at some numbers of epochs; none if not in our copy."""
    compared = []
    for first, second in _sides(paper, statement, epochs):
        if first is not None and second is not None:
            compared.append(_compared(statement.get("as", ""), first, second))
    return compared


def _sides(
    paper: PublishedPaper, statement: Mapping[str, Any], epochs: Sequence[str]
) -> Iterator[tuple[Interval | None, Interval | None]]:
    """Both sides of each quotient; one over one where there is none."""
    metric, model, then = statement.get("number", ""), statement.get("model"), statement.get("over_epochs")
    under = stands_for(printed.at(paper, statement["over_cell"])) if "over_cell" in statement else ONE
    for path in statement.get("cells", ()):
        yield stands_for(printed.at(paper, path)), under
    firsts, seconds = (_several(statement.get(name, default)) for name, default in (("of", []), ("over", "")))
    for first, second, when in product(firsts, seconds, epochs):
        for budget in statement.get("at", BUDGETS if second else printed_budgets(first)):
            other = value(paper, metric, _place(second, then or when, budget), model) if second else under
            yield value(paper, metric, _place(first, when, budget), model), other


def _several(named: str | Sequence[str]) -> Sequence[str]:
    return [named] if isinstance(named, str) else named


def _place(method: str, epochs: str, budget: str) -> Place:
    return method, epochs, NO_BUDGET if method == NON_DP else budget


def _compared(kind: str, first: Interval, second: Interval) -> Interval:
    match kind:
        case "less":
            return first - second
        case "percent":
            return quotient(first, second).times(100.0)
        case "percent above":
            return (quotient(first, second) - ONE).times(100.0)
        case "percent saved":
            return (ONE - quotient(first, second)).times(100.0)
        case "inverse":
            return quotient(ONE, quotient(first, second))
    return quotient(first, second)


def gives(paper: PublishedPaper, statement: Mapping[str, Any], epochs: Sequence[str]) -> bool:
    """Whether the cells at these numbers of epochs give what the text prints, within rounding."""
    values = values_of(paper, statement, epochs)
    if not values:
        return False
    stated = [Interval.of(number) for number in printed_numbers(text_of(paper, statement))]
    which = statement.get("which", "each")
    if which == "mean":
        return printed.mean(values).meets(stated[0])
    least, largest = printed.least(values), printed.largest(values)
    if which == "each":
        return least.meets(stated[0]) and largest.meets(stated[-1])
    return (least if which == "least" else largest).meets(stated[0])


def text_of(paper: PublishedPaper, statement: Mapping[str, Any]) -> str:
    """The number of a statement as the paper's text prints it.

    Raises:
        KeyError: the table `statements` has no such row.
    """
    return said(paper, statement["place"], statement["quantity"]).printed


def numbers_of_the_text(paper: PublishedPaper) -> tuple[Found, Found]:
    """Numbers of the text that no cells give, and that only some of the cells give that they are said of."""
    wrong, partly, checked = [], [], 0
    for statement in STATEMENTS:
        readings = [(statement["epochs"],)] if "epochs" in statement else list(READINGS)
        values = values_of(paper, statement, readings[0])
        if not values:
            continue  # Our copy lacks the cells.
        checked += 1
        fits = [epochs for epochs in readings if gives(paper, statement, epochs)]
        middles = sorted(0.5 * (interval.lower + interval.upper) for interval in values)
        facts = {
            **statement,
            "printed": text_of(paper, statement),
            "middles": middles[:: max(1, len(middles) - 1)],
        }
        if not fits:
            wrong.append(facts)
        elif fits[0] != readings[0]:
            partly.append({**facts, "fits": fits})
    return Found(checked, wrong), Found(checked, partly)


# The accounting


def _given(paper: PublishedPaper, name: str) -> float:
    return cell(paper, "section-6.2", (name,), "DPSGD and FERRET").value


def _batch(paper: PublishedPaper) -> float:
    """The effective batch of section 6.2."""
    return _given(paper, "batch size") * _given(paper, "gradient accumulation steps")


def steps_of(paper: PublishedPaper, epochs: str) -> float:
    """T: epochs times records over the effective batch of section 6.2."""
    return float(epochs) * _given(paper, "records") / _batch(paper)


def sampling_rate(paper: PublishedPaper) -> float:
    """s: the effective batch of section 6.2 over its records."""
    return _batch(paper) / _given(paper, "records")


def ceiling_nats(paper: PublishedPaper, groups: float, epochs: str) -> float:
    """G T s ln 2 of Eq. 13: the largest budget that a run of so many epochs can spend."""
    return groups * steps_of(paper, epochs) * sampling_rate(paper) * LN_2


def released_signs(paper: PublishedPaper, budget: str) -> float:
    """Expected number of signs of a whole run: G T p* = epsilon / (s ln 2), whatever G and T."""
    return float(budget) / (sampling_rate(paper) * LN_2)


def ceilings(paper: PublishedPaper) -> Found:
    """Settings that the tables print although Theorem 1 gives them no firing probability."""
    failed, checked = [], 0
    groups = {cell.row[0]: cell.value for cell in paper.table("table-3").cells if cell.column == "groups"}
    for method, epochs, budget in printed_places():
        if method not in FERRETS or method not in groups:
            continue
        ceiling, checked = ceiling_nats(paper, groups[method], epochs), checked + 1
        if float(budget) > ceiling:
            facts = {"method": method, "budget": budget, "epochs": plural_epochs(epochs), "ceiling": ceiling}
            facts |= {"groups": groups[method], "steps": steps_of(paper, epochs)}
            printed_number = cell(paper, MEANS[TEST], (method, epochs), budget).printed
            failed.append({**facts, "rate": sampling_rate(paper), "printed": printed_number})
    return Found(checked, failed)


def steps(paper: PublishedPaper) -> Found:
    """Section 6.4's T and s, said to be of all runs, against section 6.2's records and batches."""
    stated, rate = (
        said(paper, "section 6.4", name).value for name in ("steps T, all runs", "sampling rate s")
    )
    made = {epochs: steps_of(paper, epochs) for epochs in EPOCHS}
    right = [epochs for epochs, count in made.items() if count == stated]
    failed: list[dict[str, Any]] = []
    if len(right) < len(made):
        facts = {
            "records": _given(paper, "records"),
            "batch": sampling_rate(paper) * _given(paper, "records"),
        }
        failed.append({"stated": stated, **facts, "made": made, "right": right})
    if not math.isclose(rate, sampling_rate(paper)):
        failed.append({"rate": rate, "given": sampling_rate(paper)})
    return Found(1 + len(EPOCHS), failed)


def head_room(paper: PublishedPaper) -> Found:
    """Table 3's ceilings and firing probabilities from its groups, with its own T and s."""
    table = paper.table("table-3")
    steps, rate = (float(table.settings[name]) for name in ("steps", "sampling_probability"))
    failed, checked = [], 0
    for method in dict.fromkeys(entry.row[0] for entry in table.cells):
        ceiling = cell(paper, "table-3", (method,), "groups").value * steps * rate * LN_2
        for column, ours in (("ceiling", ceiling), ("firing probability at epsilon 0.5", 0.5 / ceiling)):
            printed_cell, checked = table.cell((method,), column), checked + 1
            if printed_cell is not None and not exactly(ours).meets(stands_for(printed_cell)):
                failed.append(
                    {"method": method, "column": column, "printed": printed_cell.printed, "ours": ours}
                )
    return Found(checked, failed, {"steps": steps, "rate": rate})


def head_room_area(paper: PublishedPaper) -> Found:
    """Which cells of Table 2 Table 3's mean ROC AUCs may be the mean of."""
    methods = [method for method in FERRETS if paper.table("table-3").cell((method,), AUC) is not None]
    printed_areas = {method: stands_for(cell(paper, "table-3", (method,), AUC)) for method in methods}
    fits = {}
    for when, epochs in [("all epochs", EPOCHS), *((f"{count} epochs", (count,)) for count in EPOCHS)]:
        for which, at in (("epsilon 0.5", ("0.5",)), ("all epsilons", printed_budgets(methods[0]))):
            fits[f"{when}, {which}"] = [
                method
                for method in methods
                if printed.mean(
                    [
                        known_to(paper, MEANS[AUC], (method, count, budget))
                        for count in epochs
                        for budget in at
                    ]
                ).meets(printed_areas[method])
            ]
    whole = [name for name, methods_met in fits.items() if len(methods_met) == len(methods)]
    partly = {
        method: (
            middle(printed_areas[method]),
            [name for name, methods_met in fits.items() if method in methods_met],
        )
        for method in methods
    }
    return Found(len(fits), [] if whole else [{"partly": partly}], {"methods": methods, "whole": whole})


def variants(paper: PublishedPaper) -> Found:
    """Variants with results in Table 3 and nowhere else, and the other way round."""
    inside = list(dict.fromkeys(cell.row[0] for cell in paper.table("table-3").cells))
    outside = [method for method in FERRETS if paper.table("table-2").cell((method, "5"), "0.5")]
    only, lacking = ([name for name in a if name not in b] for a, b in ((inside, outside), (outside, inside)))
    return Found(len(inside), [{"only": only, "lacking": lacking}] if only or lacking else [])


def speed_by_size(paper: PublishedPaper) -> Found:
    """Section 6.6, item 3: the speed-up over DPSGD is the largest for the largest model."""
    speed: dict[str, Interval] = {}
    for model in BY_SIZE:
        slow, fast = (value(paper, SECONDS, (method, "5", "0.1"), model) for method in (DPSGD, MAX))
        if slow is not None and fast is not None:
            speed[model] = quotient(slow, fast)
    largest = BY_SIZE[-1]
    faster = [model for model in speed if largest in speed and speed[model].lower > speed[largest].upper]
    speeds = {model: middle(ratio) for model, ratio in speed.items()}
    facts = {"largest": largest, "speed": speeds, "faster": len(faster), "others": len(speed) - 1}
    return Found(len(speed), [facts] if faster else [])


def signs(paper: PublishedPaper) -> dict[str, Any]:
    """How few signs a run releases, beside the perplexity that it is said to gain."""
    strict = BUDGETS[0]
    after = {method: cell(paper, MEANS[TEST], (method, "5"), strict).value for method in FERRETS}
    return {
        "signs": {budget: released_signs(paper, budget) for budget in BUDGETS},
        "strict": strict,
        "before": cell(paper, "table-4", (MODEL_MEAN,), TEST).value,
        "after": after,
    }


def other_epochs(paper: PublishedPaper) -> dict[str, Any]:
    """Which non-private run the abstract's distance is measured from."""
    near = known_to(paper, MEANS[TEST], (EIGHTH, "5", "0.5"))
    stated = said(paper, "abstract", "FERRET-EIGHTH above Non-DP, percent")
    distances = []
    for epochs in EPOCHS:
        other = known_to(paper, MEANS[TEST], (NON_DP, epochs, NO_BUDGET))
        distance = (quotient(near, other) - ONE).times(100.0)
        distances.append((epochs, middle(distance), middle(other), distance.meets(stands_for(stated))))
    words = [plural_epochs(epochs) for epochs, _, _, fits in distances if fits]
    return {"found": distances, "stated": stated.value, "words": words}


# Tables against tables


def model_values(paper: PublishedPaper, metric: str, place: Place) -> list[Interval] | None:
    """The five models' numbers, or None where our copy lacks one."""
    intervals = [value(paper, metric, place, model) for model in PAPER_MODELS]
    known = [interval for interval in intervals if interval is not None]
    return known if len(known) == len(intervals) else None


def copies(paper: PublishedPaper) -> Found:
    """Tables 5 and 8, which are to print the same."""
    first, second = paper.table("table-5"), paper.table("table-8")
    places = [[(cell.row, cell.column) for cell in table.cells] for table in (first, second)]
    alike = places[0] == places[1] and printed.same_numbers(first.cells, second.cells)
    return Found(1, [] if alike else [f"{short(first)} and {short(second)} differ"])


def equal_means(paper: PublishedPaper) -> Found:
    """The means that are printed twice, with deviations and with ranges (Tables 2 and 9, 6 and 11)."""
    failed, checked = [], 0
    for metric in (AUC, SECONDS, TEST):
        means, ranges = paper.table(MEANS[metric]), paper.table(RANGES[metric])
        for mean_cell in means.cells:
            twin, checked = ranges.cell(mean_cell.row, mean_cell.column), checked + 1
            if twin is None or twin.value != mean_cell.value:
                place = in_words((mean_cell.row[0], mean_cell.row[1], mean_cell.column))
                failed.append(f"{short(means)} and {short(ranges)}, {place}")
    return Found(checked, failed)


def recomputed(paper: PublishedPaper) -> Found:
    """Printed means, least and largest values against the models' own numbers, where all five are legible."""
    failed, checked = [], 0
    for metric in RANGES:
        for place in printed_places():
            five = model_values(paper, metric, place)
            if five is not None:
                checked += 1
                failed += [
                    f"{metric}, {in_words(place)}: {text}" for text in _summary(paper, metric, place, five)
                ]
    return Found(checked, failed)


def _summary(paper: PublishedPaper, metric: str, place: Place, five: Sequence[Interval]) -> Iterator[str]:
    """What of a setting's printed summaries its five models contradict."""
    mean = printed.mean(five)
    for name in dict.fromkeys((MEANS[metric], RANGES[metric])):
        printed_cell, table = cell(paper, name, place[:2], place[2]), short(paper.table(name))
        if not mean.meets(known_to(paper, name, place)):
            yield f"{table} prints a mean of {printed_cell.value:g}, the models' is {_ends(mean)}"
        if len(printed_numbers(printed_cell.printed)) < 3:
            continue
        for part, (word, end) in enumerate((("least", printed.least), ("largest", printed.largest)), start=1):
            if not end(five).meets(known_to(paper, name, place, part)):
                yield f"{table} prints {printed_cell.printed}, the models' {word} is {_ends(end(five))}"
    for name in BY_MODEL[metric]:
        stated = paper.table(name).cell((*place[:2], MODEL_MEAN), f"{metric}, {place[2]}")
        if stated is not None and not mean.meets(stands_for(stated)):
            table = short(paper.table(name))
            yield f"{table} prints a mean of {stated.value:g}, the models' is {_ends(mean)}"


def _ends(interval: Interval) -> str:
    return f"{interval.lower:.6g} to {interval.upper:.6g}"


def kind_of_deviation(paper: PublishedPaper) -> Found:
    """Whether the deviations of Tables 2 and 6 are sample or population deviations of the five models."""
    fits, only, checked = {"sample": 0, "population": 0}, {"sample": 0, "population": 0}, 0
    for metric in (AUC, SECONDS):
        for place in printed_places():
            five = model_values(paper, metric, place)
            if five is None:
                continue
            checked += 1
            printed_deviation = known_to(paper, MEANS[metric], place, part=1)
            meets = {kind: printed.deviation(five, kind).meets(printed_deviation) for kind in fits}
            for kind, met in meets.items():
                fits[kind] += met
                only[kind] += met and sum(meets.values()) == 1
    neither = checked - fits["sample"] - only["population"]
    return Found(checked, facts={"fits": fits, "only": only, "neither": neither})


def before_training(paper: PublishedPaper) -> Found:
    """The means of Table 4, without Phi-3.5."""
    table, failed = paper.table("table-4"), []
    for column in table.columns:
        *five, mean = (
            stands_for(cell(paper, "table-4", (model,), column)) for model in (*PAPER_MODELS, MODEL_MEAN)
        )
        failed += [] if printed.mean(five).meets(mean) else [f"{short(table)}, {column}"]
    return Found(len(table.columns), failed)


def gaps(paper: PublishedPaper) -> Found:
    """Table 14: the gap is test less train perplexity."""
    failed, checked = [], 0
    for place in printed_places():
        for model in (*PAPER_MODELS, MODEL_MEAN):
            cells = [by_model(paper, metric, place, model) for metric in (TEST, TRAIN, GAP)]
            known = [gap for gap in cells if gap is not None]
            if len(known) < len(cells):
                continue
            checked += 1
            test, train, gap = known
            if not (stands_for(test) - stands_for(train)).meets(stands_for(gap)):
                failed.append(
                    f"{in_words(place, model)}: {gap.printed} for {test.printed} and {train.printed}"
                )
    return Found(checked, failed)


def advantages(paper: PublishedPaper) -> Found:
    """No ROC curve with the largest TPR - FPR of J has an AUC above 1/2 + J - J²/2.

    The curve lies below the line TPR = FPR + J and below 1: the area under both is the bound.
    """
    failed, checked = [], 0
    for place in printed_places():
        for model in PAPER_MODELS:
            area, advantage = (by_model(paper, metric, place, model) for metric in (AUC, ADVANTAGE))
            if area is None or advantage is None:
                continue
            checked += 1
            least, most = stands_for(area).lower, stands_for(advantage).upper
            if least > 0.5 + most - most**2 / 2.0 + SLACK:
                failed.append(
                    f"{in_words(place, model)}: AUC {area.printed} with advantage {advantage.printed}"
                )
    return Found(checked, failed)


AGAINST = dict.fromkeys(declared("ferret").content["test"], against)

CHECKS = {
    "numbers of the text": lambda paper: numbers_of_the_text(paper)[0],
    "numbers of some epochs": lambda paper: numbers_of_the_text(paper)[1],
    "ceiling": ceilings,
    "steps": steps,
    "head-room": head_room,
    "mean ROC AUC of the head-room": head_room_area,
    "variants": variants,
    "speed by size": speed_by_size,
    "copies": copies,
    "equal means": equal_means,
    "means of the models": recomputed,
    "kind of deviation": kind_of_deviation,
    "before training": before_training,
    "advantages": advantages,
    "gaps": gaps,
}

REMARKS = {"signs": signs, "other epochs": other_epochs}
