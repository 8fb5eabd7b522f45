"""Shuffled DPSGD's accuracies and scores held against each other: copies, order, chance, bold marks."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.reports.papers.paczero.paper_cells import TEST_RECORDS, count_of, is_share
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import (
    BASELINES,
    EPSILONS,
    OURS,
    best_baseline,
    cell,
    check,
    named,
    said,
    stands_for,
    utility_rows,
)
from workbench.reports.shared.published_checks import Check
from workbench.studies.report import Cell, Table, Value

CIFAR_TEST_RECORDS = 10_000
"""Of CIFAR-100 (Krizhevsky 2009)."""

LEVEL = 0.05

_SAME = {
    ("ViT", "non-private"): ("table-3", ("ViT", "CIFAR-100"), "Non-private"),
    ("BERT", "non-private"): ("table-4", ("BERT", "SST-2"), "Non-private"),
}
"""Cells of Table II and where another table prints the same training."""


def copies_check(paper: PublishedPaper) -> Check:
    """Accuracies without privacy of Table II against Tables III and IV."""
    failed = []
    for row, place in _SAME.items():
        one, other = cell(paper, "table-2", row, "test accuracy"), cell(paper, *place)
        if one.printed == other.printed:
            continue
        text = f"{row[0]} without privacy is {one.printed} in Table II and {other.printed} in {named(other)}"
        failed.append(text + _share_of_both(one, other))
    return check("copies", len(_SAME), failed)


def same_epsilon_check(paper: PublishedPaper) -> Check:
    """DP-SGD at epsilon 1 in Table II against the baselines, which compute DP-SGD, at epsilon 1."""
    epsilon = f"{said(paper, 'section VI-B', 'epsilon of the noise in DP-SGD').value:g}"
    places = {
        "ViT": ("table-3", ("ViT", "CIFAR-100"), CIFAR_TEST_RECORDS),
        "BERT": ("table-4", ("BERT", "SST-2"), TEST_RECORDS),
    }
    pairs = []
    for model, (table, row, records) in places.items():
        one = cell(paper, "table-2", (model, "DPSGD"), "test accuracy")
        for name in BASELINES:
            other = paper.table(table).cell(row, f"{name}, {epsilon}")
            if other is not None:
                pairs.append((one, other, shares_p(one.value, other.value, records), records))
    failed = [
        f"{one.row[0]} {one.value:g} in Table II, {other.value:g} by {other.column.partition(',')[0]} "
        f"(p = {p_value:.1g} on {records} test records)"
        for one, other, p_value, records in pairs
        if p_value * len(pairs) < LEVEL
    ]
    shuffled = cell(paper, "table-3", ("ViT", "CIFAR-100"), f"{OURS}, {epsilon}").value
    start = (
        f"Table II trains with DP-SGD's noise of epsilon {epsilon}, and so do the baselines of Tables III "
        "and IV, which only compute it faster; yet (Fisher's exact test, two-sided; how trainings differ is "
        f"not in it; Shuffled DPSGD, with less noise, has {shuffled:g} for ViT): "
    )
    return check("DP-SGD at one epsilon", len(pairs), failed, start=start)


def bold_check(paper: PublishedPaper) -> Check:
    """Whether each bold mark that our copy shows is at the largest number of its row and epsilon."""
    marks = paper.table("table-4").settings["bold"].split("; ")
    failed = []
    for mark in marks:
        model, dataset, column = mark.split(" ", 2)
        method, epsilon = column.split(", ")
        row = (model, dataset)
        others = [
            paper.table("table-4").cell(row, f"{name}, {epsilon}")
            for name in (*BASELINES, OURS)
            if name != method
        ]
        one = cell(paper, "table-4", row, column)
        larger = [other for other in others if other is not None and other.value > one.value]
        failed += [
            f"{named(one)} ({one.value:g}) is bold, {named(other)} is {other.value:g}" for other in larger
        ]
    return check(
        "bold marks",
        len(marks),
        failed,
        right=f"The {len(marks)} bold marks that our copy shows (all in Table IV) are at the largest number "
        "that it shows of their row and epsilon; where the other rows are bold cannot be seen in it",
        start="Bold marks that are not at the largest number: ",
    )


def implementations_remark(paper: PublishedPaper) -> str:
    """How far two implementations of one mechanism lie apart, beside the gain of shuffling."""
    apart: dict[str, list[tuple[float, PublishedCell]]] = defaultdict(list)
    beyond = compared = 0
    for table, row in utility_rows(paper):
        for epsilon in EPSILONS:
            best = best_baseline(paper, table, row, epsilon)
            if best is None:
                continue
            one, other = (cell(paper, table, row, f"{name}, {epsilon}") for name in BASELINES)
            gap = abs(one.value - other.value)
            apart[_metric(row)].append((gap, one))
            if epsilon == EPSILONS[-1]:
                compared += 1
                gain = cell(paper, table, row, f"{OURS}, {epsilon}").value - best.value
                beyond += gap >= abs(gain)
    largest = {metric: max(gaps, key=lambda pair: pair[0]) for metric, gaps in apart.items()}
    texts = [
        f"{metric} {gap:.3g} ({one.row[0]}, {one.row[1]}, epsilon {one.column.partition(', ')[2]})"
        for metric, (gap, one) in largest.items()
    ]
    return (
        "Ghost clipping and MixOpt compute the same mechanism, DP-SGD, at the same epsilon, so their "
        f"difference is the luck of a training (or its settings). It reaches {_and(texts)}. At epsilon "
        f"{EPSILONS[-1]} it is at least as large as the difference between Shuffled DPSGD and the better of "
        f"them in {beyond} of {compared} rows of Tables III to V that our copy shows whole"
    )


def falls_remark(paper: PublishedPaper) -> str:
    """Where a method prints less at a larger epsilon."""
    falls: dict[str, list[str]] = defaultdict(list)
    steps: dict[str, int] = defaultdict(int)
    for table, row in utility_rows(paper):
        for name in (*BASELINES, OURS):
            for low, high in pairwise(EPSILONS):
                one, other = (paper.table(table).cell(row, f"{name}, {epsilon}") for epsilon in (low, high))
                if one is None or other is None:
                    continue
                steps[name] += 1
                if stands_for(other).upper <= stands_for(one).lower:
                    falls[name].append(
                        f"{', '.join(row)} {one.printed} to {other.printed} from epsilon {low} to {high}"
                    )
    counts = ", ".join(f"{name} {len(falls[name])} of {steps[name]}" for name in (OURS, *BASELINES))
    return (
        "A larger epsilon is less noise, yet the printed number falls in some steps from one epsilon to the "
        f"next ({counts}), so that much is luck: {'; '.join(falls[OURS])} (Shuffled DPSGD)"
    )


def repeated_remark(paper: PublishedPaper) -> str:
    """Cells of one dataset and epsilon that print the same number."""
    groups: dict[tuple[str, str], list[PublishedCell]] = defaultdict(list)
    for table, row in utility_rows(paper):
        for one in paper.table(table).cells:
            if one.row == row and ", " in one.column:
                groups[" ".join(row[1:]), one.column.partition(", ")[2]].append(one)
    pairs = [
        (one, other)
        for group in groups.values()
        for one, other in combinations(group, 2)
        if one.printed == other.printed
    ]
    total = sum(len(group) * (len(group) - 1) // 2 for group in groups.values())
    texts = [f"{one.printed} ({named(one)}; {named(other)})" for one, other in pairs]
    return (
        f"Of {total} pairs of cells of one dataset and epsilon {len(pairs)} print the same number to the "
        f"last digit: {'; '.join(texts)}"
    )


def shares_remark(paper: PublishedPaper) -> str:
    """Of which records the accuracies of SST-2 are shares."""
    ones = [
        *(one for one in paper.table("table-4").cells if one.row[1] == "SST-2"),
        *(
            cell(paper, "table-2", ("BERT", method), "test accuracy")
            for method in ("non-private", "shuffled non-private", "DPSGD", "shuffled with same sigma")
        ),
    ]
    fit = [one for one in ones if is_share(one, TEST_RECORDS)]
    cut = [one for one in ones if one not in fit and _is_cut(one)]
    rest = [one for one in ones if one not in fit and one not in cut]
    named_rest = "; ".join(named(one) for one in rest)
    odd = f"; {named_rest} {'is' if len(rest) == 1 else 'are'} neither" if rest else ""
    return (
        f"Of the {len(ones)} accuracies of SST-2 {len(fit)} are whole numbers of {TEST_RECORDS} records (the "
        f"dev set of GLUE, whose test labels are not public), rounded, and {len(cut)} cut off after two "
        f"digits (9 % of all numbers of two digits after the point are the one){odd}. No other records are "
        "named on which learning rates or epochs could have been chosen"
    )


def chance_remark(paper: PublishedPaper) -> str:
    """What the accuracies that are called random guesses say, and the gain at the largest epsilon."""
    from scipy import stats

    chance = 1.0 / said(paper, "section VI-E", "classes of CIFAR-100").value
    row, texts = ("ViT", "CIFAR-100"), []
    for name in BASELINES:
        one = cell(paper, "table-3", row, f"{name}, {EPSILONS[0]}")
        right = round(one.value / 100.0 * CIFAR_TEST_RECORDS)
        p_value = float(stats.binomtest(right, CIFAR_TEST_RECORDS, chance).pvalue)
        texts.append(f"{name} {one.value:g} % (p = {p_value:.2g} against {100 * chance:g} %)")
    ours = cell(paper, "table-3", row, f"{OURS}, {EPSILONS[-1]}").value
    best = best_baseline(paper, "table-3", row, EPSILONS[-1])
    assert best is not None
    records = round((ours - best.value) / 100.0 * CIFAR_TEST_RECORDS)
    return (
        f"On CIFAR-100's {CIFAR_TEST_RECORDS} test records {_and(texts)} at epsilon {EPSILONS[0]}, two-sided "
        f"exact binomial tests. At epsilon {EPSILONS[-1]} Shuffled DPSGD is right on {records} records more "
        f"than {best.column.partition(', ')[0]} (p = {shares_p(ours, best.value, CIFAR_TEST_RECORDS):.2g}, "
        "Fisher's exact test, as for independent records)"
    )


def gains_table(paper: PublishedPaper) -> Table:
    """Shuffled DPSGD less the better baseline, and its distance from training without privacy."""
    columns = tuple(
        f"{name}, {epsilon}" for epsilon in EPSILONS for name in ("less better baseline", "less non-private")
    )
    rows = []
    for table, row in utility_rows(paper):
        cells = []
        for epsilon in EPSILONS:
            ours = stands_for(cell(paper, table, row, f"{OURS}, {epsilon}"))
            best = best_baseline(paper, table, row, epsilon)
            plain = cell(paper, table, row, "Non-private")
            for other in (best, plain):
                if other is None:
                    cells.append(Cell(why_blank="our copy lost a baseline's number"))
                    continue
                gap = ours - stands_for(other)
                middle = 0.5 * (gap.lower + gap.upper)
                cells.append(Cell(ours=Value(estimate=middle, lower=gap.lower, upper=gap.upper)))
        rows.append(((row[0], row[1], _metric(row)), tuple(cells)))
    return Table(
        id="paper-gains",
        title="The paper's scores: Shuffled DPSGD less the better baseline and less training without privacy",
        row_headers=("model", "dataset", "metric"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            "All numbers are the paper's; bounds are those of rounding. No spread over trainings is printed, "
            "so no difference has a confidence interval. The epsilons are claimed by different accountants: "
            "Theorem 6 with advanced composition for Shuffled DPSGD, Renyi accounting for the baselines.",
        ),
        decimals={},
    )


def shares_p(one: float, other: float, records: int) -> float:
    """Fisher's exact two-sided p-value of two accuracies, taken for independent shares.

    Args:
        one, other: In percent.
        records: Of each.
    """
    from scipy import stats

    counts = [round(value / 100.0 * records) for value in (one, other)]
    return float(stats.fisher_exact([[count, records - count] for count in counts]).pvalue)


def _is_cut(one: PublishedCell) -> bool:
    """Whether a share of SST-2's records prints as this if digits are cut off."""
    unit = 10.0**-one.decimals
    right = int((one.value + unit) / 100.0 * TEST_RECORDS)
    share = 100.0 * right / TEST_RECORDS
    return one.value - 1e-9 <= share < one.value + unit


def _share_of_both(one: PublishedCell, other: PublishedCell) -> str:
    """What share of SST-2's records prints as both, if one is rounded and one cut off."""
    if not is_share(other, TEST_RECORDS) or not _is_cut(one) or one.row[0] != "BERT":
        return ""
    right = count_of(other.value, TEST_RECORDS)
    share = 100.0 * right / TEST_RECORDS
    return f" ({right} of {TEST_RECORDS} records are {share:.4f} %: the one is cut off, the other rounded)"


def _metric(row: tuple[str, ...]) -> str:
    return row[2] if len(row) > 2 else "accuracy"


def _and(names: list[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))
