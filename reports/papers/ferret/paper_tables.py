"""Whether FERRET's tables agree with one another: copies, means, ranges, deviations, gaps, advantages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import pstdev, stdev

from workbench.checks.published import PublishedPaper, printed_numbers
from workbench.reports.papers.ferret.paper_cells import (
    ADVANTAGE,
    AUC,
    BY_MODEL,
    GAP,
    MEAN,
    MEANS,
    MODELS,
    RANGES,
    SECONDS,
    TEST,
    TRAIN,
    by_model,
    half_unit,
    named,
    settings,
    stands_for,
)
from workbench.reports.shared.published_checks import SLACK, Check, Interval, same_numbers, short

COPIES = (("table-5", "table-8"),)
"""Tables with one content."""

DAMAGED = (
    "our copy of Tables 12 to 14 is a damaged text, so a misreading cannot be told from a contradiction here"
)


def table_checks(paper: PublishedPaper) -> list[Check]:
    """All checks of tables against tables."""
    return [
        copies(paper),
        equal_means(paper),
        recomputed(paper),
        kind_of_deviation(paper),
        before_training(paper),
        gaps(paper),
        advantages(paper),
    ]


def copies(paper: PublishedPaper) -> Check:
    """Tables that are to print the same."""
    failed = []
    for first, second in COPIES:
        one, other = paper.table(first), paper.table(second)
        places = [(cell.row, cell.column) for cell in one.cells]
        if places != [(cell.row, cell.column) for cell in other.cells] or not same_numbers(
            one.cells, other.cells
        ):
            failed.append(f"{short(one)} and {short(other)} differ")
    right = "Table 8 prints the cells of Table 5 again"
    return _check("copies", len(COPIES), failed, "pairs of tables of one content differ", right)


def equal_means(paper: PublishedPaper) -> Check:
    """The means that are printed twice, with deviations and with ranges (Tables 2 and 9, 6 and 11)."""
    failed, checked = [], 0
    for metric in (AUC, SECONDS, TEST):
        one, other = paper.table(MEANS[metric]), paper.table(RANGES[metric])
        for cell in one.cells:
            twin = other.cell(cell.row, cell.column)
            checked += 1
            if twin is None or twin.value != cell.value:
                failed.append(f"{short(one)} and {short(other)}, {named((*_pair(cell.row), cell.column))}")
    right = f"All {checked} means that Tables 2, 5 and 6 share with Tables 9, 8 and 11 agree"
    return _check("equal means", checked, failed, "means that are printed twice differ", right)


def recomputed(paper: PublishedPaper) -> Check:
    """Printed means, least and largest values against the models' own numbers, where all five are legible."""
    failed, checked = [], 0
    for metric in RANGES:
        for setting in settings():
            five = model_values(paper, metric, setting)
            if five is None:
                continue
            checked += 1
            failed += [f"{metric}, {named(setting)}: {text}" for text in _summary(paper, metric, setting)]
    right = (
        f"In all {checked} settings whose five models are legible, the printed means, least and largest "
        "values follow from the models (a number of Tables 12 to 14 that did not fit was taken for misread)"
    )
    return _check(
        "means of the models", checked, failed, "summaries do not follow from the five models", right
    )


def model_values(paper: PublishedPaper, metric: str, setting: tuple[str, str, str]) -> list[Interval] | None:
    """The five models' numbers, or None where our copy lacks one."""
    cells = [by_model(paper, metric, setting, model) for model in MODELS]
    if any(cell is None for cell in cells):
        return None
    return [stands_for(cell, 0.0) for cell in cells if cell is not None]


def kind_of_deviation(paper: PublishedPaper) -> Check:
    """Whether the deviations of Tables 2 and 6 are sample or population deviations of the five models."""
    fits = {"sample": 0, "population": 0}
    only = {"sample": 0, "population": 0}
    checked = 0
    for metric in (AUC, SECONDS):
        table = paper.table(MEANS[metric])
        for setting in settings():
            five = model_values(paper, metric, setting)
            cell = table.cell(setting[:2], setting[2])
            if five is None or cell is None:
                continue
            checked += 1
            shown = stands_for(cell, half_unit(table), part=1)
            meets = {kind: deviations(five, kind).meets(shown) for kind in fits}
            for kind, met in meets.items():
                fits[kind] += met
                only[kind] += met and sum(meets.values()) == 1
    neither = checked - fits["sample"] - only["population"]
    return Check(
        name="kind of deviation",
        checked=checked,
        finding=(
            f"Of {checked} deviations in Tables 2 and 6 whose five models are legible, {fits['sample']} fit "
            f"the sample standard deviation (n - 1) and {fits['population']} the population's (n); "
            f"{only['sample']} fit only the first, {only['population']} only the second, {neither} neither"
        ),
    )


def deviations(values: list[Interval], kind: str) -> Interval:
    """Bounds of the standard deviation of numbers known to their rounding.

    The deviation of the middles moves by at most the deviation's own Lipschitz constant times the largest
    rounding error: sqrt(n / (n - 1)) for the sample's, 1 for the population's.
    """
    middles = [0.5 * (one.lower + one.upper) for one in values]
    half = max(0.5 * (one.upper - one.lower) for one in values)
    n = len(values)
    middle = stdev(middles) if kind == "sample" else pstdev(middles)
    reach = half * (math.sqrt(n / (n - 1)) if kind == "sample" else 1.0)
    return Interval(max(0.0, middle - reach), middle + reach)


def before_training(paper: PublishedPaper) -> Check:
    """The means of Table 4, without Phi-3.5."""
    table = paper.table("table-4")
    failed = []
    for column in table.columns:
        cells = [table.cell((model,), column) for model in (*MODELS, MEAN)]
        *five, mean = [stands_for(cell, 0.0) for cell in cells if cell is not None]
        if not average(five).meets(mean):
            failed.append(f"{short(table)}, {column}")
    right = "The means of Table 4 follow from its five models"
    return _check("before training", len(table.columns), failed, "means do not follow from the models", right)


def gaps(paper: PublishedPaper) -> Check:
    """Table 14: the gap is test less train perplexity."""
    failed, checked = [], 0
    for setting in settings():
        for model in (*MODELS, MEAN):
            cells = [by_model(paper, metric, setting, model) for metric in (TEST, TRAIN, GAP)]
            if any(cell is None for cell in cells):
                continue
            test, train, gap = (stands_for(cell, 0.0) for cell in cells if cell is not None)
            checked += 1
            if not (test - train).meets(gap):
                shown = " and ".join(cell.printed for cell in cells[:2] if cell is not None)
                failed.append(f"{named(setting, model)}: {cells[2].printed if cells[2] else ''} for {shown}")
    return Check(
        name="gaps",
        checked=checked,
        failed=tuple(failed),
        finding=(
            f"{len(failed)} of {checked} legible gaps of Table 14 are not test less train perplexity within "
            f"rounding ({'; '.join(failed)}); {DAMAGED}"
        )
        if failed
        else "",
    )


def advantages(paper: PublishedPaper) -> Check:
    """No ROC curve with the largest TPR - FPR of J has an AUC above 1/2 + J - J²/2.

    The curve lies below the line TPR = FPR + J and below 1: the area under both is the bound.
    """
    failed, checked = [], 0
    for setting in settings():
        for model in MODELS:
            auc, advantage = (by_model(paper, metric, setting, model) for metric in (AUC, ADVANTAGE))
            if auc is None or advantage is None:
                continue
            checked += 1
            least, most = stands_for(auc, 0.0).lower, stands_for(advantage, 0.0).upper
            if least > 0.5 + most - most**2 / 2.0 + SLACK:
                failed.append(
                    f"{named(setting, model)}: AUC {auc.printed} with advantage {advantage.printed}"
                )
    right = f"All {checked} legible pairs of ROC AUC and advantage can belong to one ROC curve"
    wrong = "ROC AUCs are above what their advantages allow"
    return _check("advantages", checked, failed, wrong, right)


def average(values: list[Interval]) -> Interval:
    """The mean."""
    total = Interval(0.0, 0.0)
    for one in values:
        total = total + one
    return total.times(1.0 / len(values))


def _summary(paper: PublishedPaper, metric: str, setting: tuple[str, str, str]) -> Iterator[str]:
    """What of a setting's printed summaries its five models contradict."""
    five = model_values(paper, metric, setting) or []
    mean = average(five)
    for name in dict.fromkeys((MEANS[metric], RANGES[metric])):
        table = paper.table(name)
        cell = table.cell(setting[:2], setting[2])
        if cell is None:
            continue
        half = half_unit(table)
        if not mean.meets(stands_for(cell, half)):
            yield f"{short(table)} prints a mean of {cell.value:g}, the models' is {_show(mean)}"
        if len(printed_numbers(cell.printed)) < 3:
            continue
        ends = (("least", 1, min), ("largest", 2, max))
        for word, part, end in ends:
            ours = Interval(end(one.lower for one in five), end(one.upper for one in five))
            if not ours.meets(stands_for(cell, half, part)):
                yield f"{short(table)} prints {cell.printed}, the models' {word} is {_show(ours)}"
    for name in BY_MODEL[metric]:
        printed = paper.table(name).cell((*setting[:2], MEAN), f"{metric}, {setting[2]}")
        if printed is not None and not mean.meets(stands_for(printed, 0.0)):
            where = short(paper.table(name))
            yield f"{where} prints a mean of {printed.value:g}, the models' is {_show(mean)}"


def _pair(row: tuple[str, ...]) -> tuple[str, str]:
    method, epochs = row
    return method, epochs


def _check(name: str, checked: int, failed: list[str], wrong: str, right: str) -> Check:
    return Check(
        name=name,
        checked=checked,
        failed=tuple(failed),
        finding=f"{len(failed)} of {checked} {wrong}: {'; '.join(failed)}" if failed else right,
        contradiction=bool(failed),
    )


def _show(interval: Interval) -> str:
    return f"{interval.lower:.6g} to {interval.upper:.6g}"
