"""What Shuffled DPSGD prints, held against itself: its cells, the numbers of its text, its times.

Words stand in `report.toml`; what its formulas say of each other, in `formulas.py`. The GPU's peaks: NVIDIA,
"Ampere GA102 GPU Architecture" (2021), GeForce RTX 3090: 35.6 TFLOPS in single precision and 936 GB/s.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product
from typing import Any

from workbench.checks.published import PublishedCell, PublishedPaper, QualitativeClaim
from workbench.reports.shared.context import Bindings, Context
from workbench.reports.shared.declared import declared
from workbench.reports.shared.grids import Row, table
from workbench.reports.shared.printed import (
    SLACK,
    TEST_RECORDS,
    Interval,
    at,
    cell,
    centre,
    count_of,
    exactly,
    is_share,
    mean,
    said,
    shares_p,
    stands_for,
)
from workbench.reports.shared.statements import Found
from workbench.studies.report import Cell, Table, Value

OURS = "Shuffled-DPSGD"

BASELINES = ("Ghost", "MixOpt")

EPSILONS = ("0.1", "0.5", "1")
"""Of Tables III to V, whose columns are `"Ghost, 0.1"` and so on."""

UTILITY_TABLES = ("table-3", "table-4", "table-5")

VIT, SST_2 = ("ViT", "CIFAR-100"), ("BERT", "SST-2")

CIFAR_TEST_RECORDS = 10_000
"""Of CIFAR-100 (Krizhevsky 2009)."""

LEVEL = 0.05

PEAK_TERAFLOPS, PEAK_GIGABYTES = 35.6, 936.0
"""A second, of the RTX 3090."""

BYTES = 4
"""Of a number in single precision."""

_NUMERALS = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII")

_ROMAN = {f"table-{number}": f"Table {text}" for number, text in enumerate(_NUMERALS, start=1)}

_DURATION = re.compile(r"(\d+)min(\d+)s")

# Printed numbers


def words(paper: PublishedPaper, place: str, quantity: str) -> str:
    """A formula or a name of the text, as transcribed.

    Raises:
        KeyError: there is none.
    """
    return cell(paper, "texts", (place, quantity), "printed").printed


def seconds(duration: PublishedCell) -> Interval:
    """What a printed duration stands for: `2min25s` is 144.5 to 145.5 seconds.

    Raises:
        ValueError: the cell is no duration.
    """
    match = _DURATION.fullmatch(duration.printed)
    if match is None:
        raise ValueError(f"{duration.printed!r} is no duration")
    whole = 60 * int(match[1]) + int(match[2])
    return Interval(whole - 0.5, whole + 0.5)


def value_at(paper: PublishedPaper, path: str) -> Interval:
    """The numbers that a printed number, or a printed duration in seconds, stands for.

    Args:
        path: `"table-3 | ViT | CIFAR-100 | Ghost, 1"`: table, row headers, column.

    Raises:
        KeyError: there is no such cell.
    """
    stated = at(paper, path)
    return seconds(stated) if math.isnan(stated.value) else stands_for(stated)


def parameters_of(paper: PublishedPaper, model: str) -> PublishedCell:
    """Trainable parameters of a model, millions."""
    return cell(paper, "table-1", (model,), "trainable parameters")


def dimension_of(paper: PublishedPaper) -> int:
    """Number d of parameters of the paper's ViT."""
    return round(1e6 * parameters_of(paper, "ViT").value)


def delta_of(paper: PublishedPaper) -> float:
    """The delta of the paper's vision tasks."""
    return said(paper, "section VI-A", "delta of CV tasks").value


def _milliseconds(paper: PublishedPaper, method: str) -> PublishedCell:
    return cell(paper, "table-7", (method,), "milliseconds")


def epsilons(paper: PublishedPaper, place: str) -> list[float]:
    """The epsilons that a figure's caption lists, in order."""
    rows = paper.table("statements").cells
    return [row.value for row in rows if row.row[0] == place and row.row[1].startswith("epsilon, ")]


def utility_rows(paper: PublishedPaper) -> list[tuple[str, tuple[str, ...]]]:
    """Table and row headers of every row of Tables III to V."""
    return [
        (name, row)
        for name in UTILITY_TABLES
        for row in dict.fromkeys(entry.row for entry in paper.table(name).cells)
    ]


def best_baseline(
    paper: PublishedPaper, table_id: str, row: tuple[str, ...], epsilon: str
) -> PublishedCell | None:
    """The baseline with the largest number at an epsilon; None where our copy lost one of the two."""
    cells = [paper.table(table_id).cell(row, f"{name}, {epsilon}") for name in BASELINES]
    known = [entry for entry in cells if entry is not None]
    return max(known, key=lambda entry: entry.value) if len(known) == len(BASELINES) else None


def named(place: PublishedCell) -> str:
    """A cell's place in words: `Table IV, BERT, QQP, Ghost, 1`."""
    return ", ".join((_ROMAN.get(place.table, place.table), *place.row, place.column))


def overheads(paper: PublishedPaper) -> dict[tuple[str, ...], tuple[Interval, Interval]]:
    """Seconds of an epoch without and with shuffling, by model and dataset."""
    rows = dict.fromkeys(entry.row for entry in paper.table("table-8").cells)
    sides = ("unshuffled", "shuffled")
    return {
        row: (seconds(cell(paper, "table-8", row, sides[0])), seconds(cell(paper, "table-8", row, sides[1])))
        for row in rows
    }


def share_of_epochs(pairs: Sequence[tuple[Interval, Interval]]) -> Interval:
    """Overhead of all shuffled epochs, in percent of them."""
    before = Interval(sum(time.lower for time, _ in pairs), sum(time.upper for time, _ in pairs))
    after = Interval(sum(time.lower for _, time in pairs), sum(time.upper for _, time in pairs))
    return Interval(100.0 * (1.0 - before.upper / after.lower), 100.0 * (1.0 - before.lower / after.upper))


def listed(names: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(", ".join(names).rsplit(", ", 1))


# What numbers of the text are of


def _printed_cell(paper: PublishedPaper, place: Bindings) -> Interval:
    return value_at(paper, place["cell"])


PRINTED = {"cell": _printed_cell}


def _below_non_private(paper: PublishedPaper) -> list[Interval]:
    """Non-private less ours, every row and epsilon of Table IV."""
    rows = dict.fromkeys(entry.row for entry in paper.table("table-4").cells)
    return [
        stands_for(cell(paper, "table-4", row, "Non-private"))
        - stands_for(cell(paper, "table-4", row, f"{OURS}, {epsilon}"))
        for row in rows
        for epsilon in EPSILONS
    ]


def _share_of_index(paper: PublishedPaper, method: str) -> list[Interval]:
    index, other = (stands_for(_milliseconds(paper, name)) for name in ("index shuffle", method))
    return [Interval(100.0 * index.lower / other.upper, 100.0 * index.upper / other.lower)]


def _added_seconds(paper: PublishedPaper, *, large: bool) -> list[Interval]:
    times = overheads(paper).items()
    return [after - before for row, (before, after) in times if (row[0] == "GPT-2-large") == large]


def _steps(paper: PublishedPaper) -> list[Interval]:
    records = cell(paper, "table-1-datasets", VIT, "training records").value
    epochs, batch = (said(paper, "section VI-F", name).value for name in ("epochs", "batch size"))
    return [exactly(epochs * records / batch)]


VALUES = {
    "below non-private": _below_non_private,
    "share of a product": lambda paper: _share_of_index(paper, "matrix multiplication"),
    "share of a sparse product": lambda paper: _share_of_index(paper, "sparse matrix multiplication"),
    "seconds but for GPT-2-large": lambda paper: _added_seconds(paper, large=False),
    "seconds of GPT-2-large": lambda paper: _added_seconds(paper, large=True),
    "steps": _steps,
}

# Checks


def _same_epsilon(paper: PublishedPaper) -> Found:
    """DP-SGD at epsilon 1 in Table II against the baselines, which compute DP-SGD, at epsilon 1."""
    epsilon = f"{said(paper, 'section VI-B', 'epsilon of the noise in DP-SGD').value:g}"
    places = (("table-3", VIT, CIFAR_TEST_RECORDS), ("table-4", SST_2, TEST_RECORDS))
    pairs = []
    for table_id, row, records in places:
        plain = cell(paper, "table-2", (row[0], "DPSGD"), "test accuracy")
        for name in BASELINES:
            other = paper.table(table_id).cell(row, f"{name}, {epsilon}")
            if other is not None:
                facts = {"method": name, "one": plain, "other": other, "records": records}
                pairs.append((shares_p(plain.value, other.value, records), facts))
    shuffled = cell(paper, "table-3", VIT, f"{OURS}, {epsilon}").value
    failed = [{**facts, "p_value": p_value} for p_value, facts in pairs if p_value * len(pairs) < LEVEL]
    return Found(len(pairs), failed, {"epsilon": epsilon, "shuffled": shuffled})


def _is_cut(accuracy: PublishedCell) -> bool:
    """Whether a share of SST-2's records prints as this if digits are cut off."""
    unit = 10.0**-accuracy.decimals
    right = int((accuracy.value + unit) / 100.0 * TEST_RECORDS)
    share = 100.0 * right / TEST_RECORDS
    return accuracy.value - 1e-9 <= share < accuracy.value + unit


def _copies(paper: PublishedPaper) -> Found:
    """Accuracies without privacy of Table II against Tables III and IV, which print the same training."""
    failed = []
    places = (("table-3", VIT), ("table-4", SST_2))
    for table_id, row in places:
        plain = cell(paper, "table-2", (row[0], "non-private"), "test accuracy")
        other = cell(paper, table_id, row, "Non-private")
        if plain.printed == other.printed:
            continue
        is_both = is_share(other, TEST_RECORDS) and _is_cut(plain) and row == SST_2
        right = count_of(other.value, TEST_RECORDS) if is_both else 0
        facts = {"one": plain, "other": other, "place": named(other)}
        failed.append({**facts, "right": right, "records": TEST_RECORDS})
    return Found(len(places), failed)


def _bold(paper: PublishedPaper) -> Found:
    """Whether each bold mark that our copy shows is at the largest number of its row and epsilon."""
    marks = paper.table("table-4").settings["bold"].split("; ")
    failed = []
    for mark in marks:
        *row, column = mark.split(" ", 2)
        method, epsilon = column.split(", ")
        bold = cell(paper, "table-4", row, column)
        for name in (*BASELINES, OURS):
            other = paper.table("table-4").cell(tuple(row), f"{name}, {epsilon}")
            if name != method and other is not None and other.value > bold.value:
                places = {"place": named(bold), "larger": named(other)}
                failed.append({**places, "one": bold, "other": other})
    return Found(len(marks), failed)


def _overhead_check(paper: PublishedPaper) -> Found:
    """Section VI-G's 2.3 % against Table VIII, in each sense that it may have."""
    stated, times = said(paper, "section VI-G", "overhead of the training time, percent"), overheads(paper)
    readings = {row[0]: share_of_epochs([pair]) for row, pair in times.items()}
    shares = list(readings.values())
    readings["all epochs together"] = share_of_epochs(list(times.values()))
    readings["the mean of the five"] = mean(shares)
    middles = {name: centre(reading) for name, reading in readings.items()}
    is_any = any(reading.meets(stands_for(stated)) for reading in readings.values())
    return Found(len(readings), [] if is_any else [{"readings": middles}], {"stated": stated.value})


CHECKS = {
    "DP-SGD at one epsilon": _same_epsilon,
    "overhead": _overhead_check,
    "copies": _copies,
    "bold marks": _bold,
}

# Remarks


def _metric(row: tuple[str, ...]) -> str:
    return row[2] if len(row) > 2 else "accuracy"


def _implementations(paper: PublishedPaper) -> Mapping[str, Any]:
    """How far two implementations of one mechanism lie apart, beside the gain of shuffling."""
    apart: dict[str, list[tuple[float, PublishedCell]]] = defaultdict(list)
    beyond = compared = 0
    for table_id, row in utility_rows(paper):
        for epsilon in EPSILONS:
            best = best_baseline(paper, table_id, row, epsilon)
            if best is None:
                continue
            first, second = (cell(paper, table_id, row, f"{name}, {epsilon}") for name in BASELINES)
            gap = abs(first.value - second.value)
            apart[_metric(row)].append((gap, first))
            if epsilon == EPSILONS[-1]:
                compared += 1
                beyond += gap >= abs(cell(paper, table_id, row, f"{OURS}, {epsilon}").value - best.value)
    largest = {metric: max(gaps, key=lambda pair: pair[0]) for metric, gaps in apart.items()}
    texts = [
        f"{metric} {gap:.3g} ({entry.row[0]}, {entry.row[1]}, epsilon {entry.column.partition(', ')[2]})"
        for metric, (gap, entry) in largest.items()
    ]
    return {"largest": listed(texts), "epsilon": EPSILONS[-1], "beyond": beyond, "compared": compared}


def _falls(paper: PublishedPaper) -> Mapping[str, Any]:
    """Where a method prints less at a larger epsilon."""
    counts, ours = [], list[str]()
    for name in (OURS, *BASELINES):
        steps, falls = 0, []
        for (table_id, row), (low, high) in product(utility_rows(paper), pairwise(EPSILONS)):
            sides = (paper.table(table_id).cell(row, f"{name}, {epsilon}") for epsilon in (low, high))
            known = [side for side in sides if side is not None]
            if len(known) < 2:
                continue
            steps += 1
            if stands_for(known[1]).upper <= stands_for(known[0]).lower:
                change = f"{known[0].printed} to {known[1].printed} from epsilon {low} to {high}"
                falls.append(f"{', '.join(row)} {change}")
        counts.append(f"{name} {len(falls)} of {steps}")
        ours = falls if name == OURS else ours
    return {"counts": counts, "ours": ours}


def _chance(paper: PublishedPaper) -> Mapping[str, Any]:
    """What the accuracies that are called random guesses say, and the gain at the largest epsilon."""
    from scipy import stats

    chance, texts = 1.0 / said(paper, "section VI-E", "classes of CIFAR-100").value, []
    for name in BASELINES:
        accuracy = cell(paper, "table-3", VIT, f"{name}, {EPSILONS[0]}")
        right = round(accuracy.value / 100.0 * CIFAR_TEST_RECORDS)
        p_value = float(stats.binomtest(right, CIFAR_TEST_RECORDS, chance).pvalue)
        texts.append(f"{name} {accuracy.value:g} % (p = {p_value:.2g} against {100 * chance:g} %)")
    ours = cell(paper, "table-3", VIT, f"{OURS}, {EPSILONS[-1]}").value
    best = best_baseline(paper, "table-3", VIT, EPSILONS[-1])
    assert best is not None
    return {
        "records": CIFAR_TEST_RECORDS,
        "texts": listed(texts),
        "least": EPSILONS[0],
        "most": EPSILONS[-1],
        "more": round((ours - best.value) / 100.0 * CIFAR_TEST_RECORDS),
        "best": best.column.partition(", ")[0],
        "p_value": shares_p(ours, best.value, CIFAR_TEST_RECORDS),
    }


def _repeated(paper: PublishedPaper) -> Mapping[str, Any]:
    """Cells of one dataset and epsilon that print the same number."""
    groups: dict[tuple[str, str], list[PublishedCell]] = defaultdict(list)
    for table_id, row in utility_rows(paper):
        for first in paper.table(table_id).cells:
            if first.row == row and ", " in first.column:
                groups[" ".join(row[1:]), first.column.partition(", ")[2]].append(first)
    pairs = [pair for group in groups.values() for pair in combinations(group, 2)]
    same = [(first, second) for first, second in pairs if first.printed == second.printed]
    texts = [f"{first.printed} ({named(first)}; {named(second)})" for first, second in same]
    return {"total": len(pairs), "texts": texts}


def _shares(paper: PublishedPaper) -> Mapping[str, Any]:
    """Of which records the accuracies of SST-2 are shares."""
    methods = ("non-private", "shuffled non-private", "DPSGD", "shuffled with same sigma")
    ones = [accuracy for accuracy in paper.table("table-4").cells if accuracy.row[1] == "SST-2"]
    ones += [cell(paper, "table-2", ("BERT", method), "test accuracy") for method in methods]
    fit = [accuracy for accuracy in ones if is_share(accuracy, TEST_RECORDS)]
    cut = [accuracy for accuracy in ones if accuracy not in fit and _is_cut(accuracy)]
    rest = [named(accuracy) for accuracy in ones if accuracy not in fit and accuracy not in cut]
    return {"all": len(ones), "fit": len(fit), "cut": len(cut), "rest": rest, "records": TEST_RECORDS}


def _rates(paper: PublishedPaper) -> Mapping[str, Any]:
    """What rates Table VII's times mean on the stated GPU."""
    rows, columns = (
        said(paper, "section VI-G", f"{name} of the matrix").value for name in ("rows", "columns")
    )
    index, dense = (
        _milliseconds(paper, name).value / 1e3 for name in ("index shuffle", "matrix multiplication")
    )
    bandwidth = 2.0 * BYTES * rows * columns / index / 1e9
    rate = 2.0 * rows * rows * columns / dense / 1e12
    fast = 2.0 * rows * rows * columns / (PEAK_TERAFLOPS * 1e12)
    return {
        "rows": rows,
        "columns": columns,
        "bytes": BYTES,
        "bandwidth": bandwidth,
        "of_bandwidth": 100 * bandwidth / PEAK_GIGABYTES,
        "rate": rate,
        "of_rate": 100 * rate / PEAK_TERAFLOPS,
        "fast": 1e3 * fast,
        "share_of_fast": 100 * index / fast,
        "share": 100 * index / dense,
    }


def _shuffles(paper: PublishedPaper) -> Mapping[str, Any]:
    """How many index shuffles of a whole model Table VIII's overheads would be."""
    numbers = (
        said(paper, "section VI-G", "rows of the matrix").value
        * said(paper, "section VI-G", "columns of the matrix").value
    )
    each = _milliseconds(paper, "index shuffle").value / 1e3 / numbers
    plans, texts = paper.table("table-1-datasets"), []
    for (name, dataset), (before, after) in overheads(paper).items():
        if "(on A100)" in dataset or name == "GPT-2-large":
            continue
        d = 1e6 * parameters_of(paper, name).value
        shuffles = centre(after - before) / (each * d)
        # Table VIII calls CIFAR-100 CIFAR.
        (row,) = {plan.row for plan in plans.cells if plan.row[1].startswith(dataset)}
        records = cell(paper, plans.id, row, "training records").value
        texts.append(f"{name} {shuffles:,.0f} (batches of {records / shuffles:.1f})")
    return {"texts": texts}


def _weights(paper: PublishedPaper) -> Mapping[str, Any]:
    """What the printed distance of ViT's weights is a weight."""
    distance = said(paper, "section VI-B", "distance between the weights of ViT").value
    d = 1e6 * parameters_of(paper, "ViT").value
    return {"distance": distance, "each": distance / math.sqrt(d), "millions": d / 1e6}


def _figure_3(paper: PublishedPaper) -> Mapping[str, Any]:
    """Epsilons and experiments of Fig. 3 beside those of the tables."""
    drawn = epsilons(paper, "figure 3")
    sizes = [entry for entry in paper.table("statements").cells if entry.row[1].startswith("parameters, ")]
    return {
        "drawn": listed([f"{value:g}" for value in drawn]),
        "missing": listed([text for text in EPSILONS if float(text) not in drawn]),
        "experiments": said(paper, "section VI-D", "experiments").value,
        "sizes": len(sizes),
        "panels": words(paper, "figure 3", "panels"),
    }


def _not_printed(paper: PublishedPaper) -> Mapping[str, Any]:
    """What a repetition would need and the paper does not print."""
    utility = [entry for name in UTILITY_TABLES for entry in paper.table(name).cells]
    columns = " ".join(paper.table("table-1-datasets").columns)
    missing = [name for name in ("batch size", "batch clip", "sigma", "optimiser") if name not in columns]
    spreads = sum(entry.spread is not None for entry in utility)
    return {"missing": listed(missing, "or"), "spreads": spreads, "numbers": len(utility)}


REMARKS = {
    "implementations": _implementations,
    "falls": _falls,
    "chance": _chance,
    "repeated": _repeated,
    "shares": _shares,
    "products": _rates,
    "epochs": _shuffles,
    "weights": _weights,
    "figure 3": _figure_3,
    "not printed": _not_printed,
}

# Where the cells contradict conclusions that are no plain difference of cells

Against = Iterator[str]
"""A text each place, empty where the cells do not contradict the conclusion beyond their rounding."""


def setting_named(setting: Bindings) -> str:
    """A conclusion's setting in words: `Ghost, ViT, CIFAR-100, epsilon 0.1`."""
    return declared("shuffled_dp_sgd").render("{% include 'setting' %}", place=setting)


def _pairs(paper: PublishedPaper, claim: QualitativeClaim) -> Iterator[tuple[str, Interval, Interval]]:
    for first, second in claim.parameters["pairs"]:
        yield setting_named(first), value_at(paper, first["cell"]), value_at(paper, second["cell"])


def largest(stated: float) -> float:
    """The largest number that prints as a stated one."""
    digits = len(f"{stated}".partition(".")[2])
    return float(stated) + 0.5 * 10.0**-digits


def _near_chance(paper: PublishedPaper, claim: QualitativeClaim) -> Against:
    chance, margin = claim.parameters["chance"], claim.parameters["margin"]
    for setting in claim.parameters["settings"]:
        accuracy = value_at(paper, setting["cell"])
        apart = max(accuracy.lower - chance, chance - accuracy.upper)
        yield f"{setting_named(setting)}: {centre(accuracy):g}" if apart > margin + SLACK else ""


def _flat(paper: PublishedPaper, claim: QualitativeClaim) -> Against:
    for group in claim.parameters["groups"]:
        values = [value_at(paper, setting["cell"]) for setting in group]
        span = max(value.lower for value in values) - min(value.upper for value in values)
        middles = [centre(value) for value in values]
        text = f"{setting_named(group[0])} on: spans {max(middles) - min(middles):.3g}"
        yield text if span > claim.parameters["span"] + SLACK else ""


def _share(paper: PublishedPaper, claim: QualitativeClaim) -> Against:
    for name, first, second in _pairs(paper, claim):
        percent = 100.0 * first.lower / second.upper
        yield f"{name}: {percent:.3g} %" if percent > largest(claim.parameters["percent"]) + SLACK else ""


def _overhead(paper: PublishedPaper, claim: QualitativeClaim) -> Against:
    for name, first, second in _pairs(paper, claim):
        least = 100.0 * (1.0 - second.upper / first.lower)
        middle = 100.0 * (1.0 - centre(second) / centre(first))
        yield f"{name}: {middle:.2g} %" if least > largest(claim.parameters["percent"]) + SLACK else ""


AGAINST = {"near chance": _near_chance, "flat": _flat, "share": _share, "overhead": _overhead}

# Tables


def _gains(context: Context) -> Table | None:
    """Shuffled DPSGD less the better baseline, and its distance from training without privacy."""
    paper, rows = context.paper, list[Row]()
    for table_id, row in [] if paper is None else utility_rows(paper):
        assert paper is not None
        cells = []
        for epsilon in EPSILONS:
            ours = stands_for(cell(paper, table_id, row, f"{OURS}, {epsilon}"))
            plain = cell(paper, table_id, row, "Non-private")
            for other in (best_baseline(paper, table_id, row, epsilon), plain):
                if other is None:
                    cells.append(Cell(why_blank="our copy lost a baseline's number"))
                else:
                    cells.append(_interval(ours - stands_for(other)))
        rows.append(((row[0], row[1], _metric(row)), tuple(cells)))
    return table(context, "paper-gains", rows)


def _interval(interval: Interval) -> Cell:
    return Cell(ours=Value(estimate=centre(interval), lower=interval.lower, upper=interval.upper))


def _epochs(context: Context) -> Table | None:
    """Table VIII with the overhead in seconds and as a share."""
    times = {} if context.paper is None else overheads(context.paper)
    rows: list[Row] = [
        (row, tuple(map(_interval, (before, after, after - before, share_of_epochs([(before, after)])))))
        for row, (before, after) in times.items()
    ]
    return table(context, "paper-overhead", rows)


TABLES = {"gains": _gains, "epochs": _epochs}
