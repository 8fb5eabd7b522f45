"""What PACZero's printed accuracies can tell apart: by their test records, their seeds, and their budgets.

A step on which the subsets disagree releases sign(s + sigma N) with s = ±1. It differs from sign(N), which
knows nothing of the secret, with probability Phi(1/sigma) - 1/2. By I <= 2 q (1 - q) / sigma² (Gaussian
channel of that variance) a step of beta nats has sigma at most sqrt(2 q (1 - q) / beta), nearly with equality
for the small beta of the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.core.errors import InputError
from workbench.estimation.clopper_pearson import binomial_lower, binomial_upper
from workbench.reports.shared import statistics
from workbench.reports.shared.declared import declared
from workbench.reports.shared.printed import TEST_RECORDS, cell, count_of, is_share, said, short
from workbench.reports.shared.statements import Found
from workbench.reports.shared.statistics import Sample, StatisticalTest
from workbench.reports.shared.statistics.student import t_quantile

FT, LORA = "FT", "LoRA"
MI, ZPL = "PACZero-MI", "PACZero-ZPL"
BUDGETS = ("0.33 nats", "0.68 nats")
SEEDS = ("1st", "2nd", "3rd", "4th")
LADDER_SEEDS = ("seed 0", "seed 1", "seed 2")
EPSILONS = ("0.2", "0.3", "0.5", "1.0", "2.0")
METHODS = (("DPZero K=1", "20000"), ("DP-AggZO K=64", "1000"))
"""The rows of Table 3."""

LARGER_CLASS = 444
"""Of the test records are positive: a model that says so of all is right on 50.92 %."""

LARGEST_SET = 1000
"""Sizes of a set of test records that are tried: up to what section 4.1 says."""


def singles(paper: PublishedPaper, records: str) -> list[PublishedCell]:
    """Accuracies of SST-2 on the `"test"` or `"dev"` records that are of one training, not a mean."""
    columns: Mapping[str, Sequence[str]] = declared("paczero").content["own"]["accuracies"][records]
    return [
        printed
        for name, chosen in columns.items()
        for printed in paper.table(name).cells
        if printed.column in chosen and printed.spread is None
    ]


def seed_cells(paper: PublishedPaper, table: str, *row: str) -> list[PublishedCell]:
    """Single values of a row, seed by seed."""
    cells = (paper.table(table).cell(row, column) for column in SEEDS)
    return [printed for printed in cells if printed is not None]


def seed_values(paper: PublishedPaper, table: str, *row: str) -> list[float]:
    """Accuracies of a row, seed by seed."""
    return [printed.value for printed in seed_cells(paper, table, *row)]


# Accuracies as counts of records


def chance_p(percent: float, chance: float = 0.5, records: int = TEST_RECORDS) -> float:
    """Two-sided exact p-value of "the accuracy is `chance`", of a printed accuracy of so many records."""
    from scipy import stats

    return float(stats.binomtest(count_of(percent, records), records, chance).pvalue)


def limits(percent: float, records: int = TEST_RECORDS, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided binomial interval of a printed accuracy of so many records, in percent."""
    right, level = count_of(percent, records), 0.5 * (1.0 - confidence)
    return 100.0 * binomial_lower(right, records, level), 100.0 * binomial_upper(right, records, level)


def test_size(paper: PublishedPaper) -> Found:
    """Of how many test records the accuracies of SST-2 can be shares."""
    accuracies = singles(paper, "test")
    stated = round(said(paper, "section 4.1", "evaluation records").value)
    fit = [
        size for size in range(1, LARGEST_SET + 1) if all(is_share(accuracy, size) for accuracy in accuracies)
    ]
    misfits = sum(not is_share(accuracy, stated) for accuracy in accuracies)
    lower, upper = limits(89.0, min(fit or [stated]))
    answers = "answers of LoRA 6.7B, K = 4 and 16"
    facts = {
        "stated": stated,
        "misfits": misfits,
        "largest": LARGEST_SET,
        "fit": fit,
        "right": said(paper, "appendix M", f"right {answers}").value,
        "answers": said(paper, "appendix M", answers).value,
        "width": math.ceil(10.0 * (upper - lower)) / 10.0,
    }
    return Found(len(accuracies), [facts] if misfits else [])


def dev_size(paper: PublishedPaper) -> Found:
    """Whether the accuracies on the dev records are shares of the stated number."""
    accuracies, stated = singles(paper, "dev"), round(said(paper, "section 4.1", "dev records").value)
    misfits = sum(not is_share(accuracy, stated) for accuracy in accuracies)
    return Found(len(accuracies), [{"misfits": misfits}] if misfits else [], {"stated": stated})


def chance(paper: PublishedPaper) -> Mapping[str, Any]:
    """What the cells that are called chance say against 50 %, with the number of test records."""
    table = paper.table("table-3").cells
    called = [
        (
            f"{method} at epsilon {epsilon}",
            next(printed for printed in table if (printed.row[0], printed.column) == place),
        )
        for method, epsilons in (("DPZero K=1", EPSILONS[:4]), ("DP-AggZO K=64", EPSILONS[:2]))
        for epsilon in epsilons
        for place in [(method, epsilon)]
    ]
    longer = said(paper, "section 4.2", "DP-AggZO at epsilon 0.2, T = 2000")
    called.append(("DP-AggZO K=64 at 0.2 and T = 2000", longer))
    called.append(("random_sign", cell(paper, "table-12", ("random_sign", "2000"), "test")))
    values = [
        (name, printed.value, limits(printed.value), chance_p(printed.value)) for name, printed in called
    ]
    return {
        "values": values,
        "least": min(p_value for *_, p_value in values),
        "largest": max(ends[1] for _, _, ends, _ in values),
        "records": TEST_RECORDS,
        "positive": 100 * LARGER_CLASS / TEST_RECORDS,
    }


def cliff(paper: PublishedPaper) -> Mapping[str, Any]:
    """From which epsilon a single DP run is above chance."""
    first = [
        (
            name,
            next(
                (e for e in EPSILONS if limits(cell(paper, "table-3", (name, steps), e).value)[0] > 50.0), ""
            ),
        )
        for name, steps in METHODS
    ]
    value = cell(paper, "table-3", ("DP-AggZO K=64", "1000"), "0.5").value
    return {"first": first, "value": value, "ends": limits(value)}


def welch(sides: Sequence[Sequence[float]], confidence: float = 0.95) -> StatisticalTest:
    """Welch's test of two sides' seeds, at least two of each, not both without a spread."""
    first, second = (Sample(np.array(values), tuple(range(len(values))), "seed") for values in sides)
    test = statistics.welch_t(first, second, confidence=confidence)
    if not isinstance(test, StatisticalTest):
        raise InputError(f"seeds must have a spread to be compared: {test.why}")
    return test


def indistinguishable(paper: PublishedPaper, confidence: float = 0.95) -> Mapping[str, Any]:
    """How far apart the cells may be that are called statistically equivalent or indistinguishable."""
    differences, single = [], []
    within = 2.0 * confidence - 1.0
    for name in paper.table("table-1").settings["bold"].split("; "):
        track, column = name.split(" ", 1)
        task, model = column.split(" ")
        ours = cell(paper, "table-1", (track, "0 nats", ZPL), column)
        cells = [cell(paper, "table-1", (track, nats, MI), column) for nats in BUDGETS]
        best = max(cells, key=lambda printed: printed.value)
        sides: list[list[float]] = [[], []]
        if task == "SST-2":
            row = track, model, best.row[1].removesuffix(" nats")
            sides = [seed_values(paper, "table-5", track, model), seed_values(paper, "table-4", *row)]
        if min(map(len, sides)) < 2:
            single.append((name, ours.value - best.value))
        else:
            differences.append((name, welch(sides, within)))
    pools = seed_values(paper, "table-13", FT, "1.3B", "infinite"), seed_values(paper, "table-5", FT, "1.3B")
    differences.append(("M = 128 less M = 126 (FT 1.3B)", welch(pools, within)))
    return {"shown": differences, "single": single, "percent": 100 * within, "level": 1 - confidence}


def order(paper: PublishedPaper) -> Mapping[str, Any]:
    """FT against LoRA at 6.7B, canonical and headline."""
    canonical = (
        [cell(paper, "table-17", (seed,), "test").value for seed in ("0", "1", "2")],
        [cell(paper, "table-15", ("500",), f"{seed}, test").value for seed in LADDER_SEEDS],
    )
    headline = [seed_values(paper, "table-5", track, "6.7B") for track in (FT, LORA)]
    return {"tests": [("canonical", welch(canonical)), ("headline", welch(headline))]}


# Budgets

SWEEPS = ("table-2", "table-11")
COLUMNS = ("dev", "test", "unanimity")


@dataclass(frozen=True)
class Sweep:
    """A printed table whose rows are budgets.

    Attributes:
        name: Of the table, in words.
        nats: Rising.
        values: By column: dev, test, unanimity, in percent.
        steps: T.
    """

    name: str
    nats: tuple[float, ...]
    values: dict[str, tuple[float, ...]]
    steps: int

    @property
    def runs(self) -> list[list[int]]:
        """Places of neighbouring budgets whose three cells are all the same."""
        groups = [[0]]
        for before, after in pairwise(range(len(self.nats))):
            same = all(self.values[column][before] == self.values[column][after] for column in COLUMNS)
            groups[-1].append(after) if same else groups.append([after])
        return groups


def sweep(paper: PublishedPaper, table: str) -> Sweep:
    """Read the budgets and accuracies of Table 2 or 11."""
    rows = list(dict.fromkeys(printed.row for printed in paper.table(table).cells))
    values = {name: tuple(cell(paper, table, row, name).value for row in rows) for name in COLUMNS}
    nats = tuple(float(row[0]) for row in rows)
    printed = paper.table(table)
    return Sweep(short(printed), nats, values, int(printed.settings["T"]))


def turned_bits(nats: float, steps: int, unanimity: float, plus: float = 0.5) -> float:
    """Expected number of a run's released bits that the secret turns, of those on disagreement steps.

    Args:
        nats: Total budget, spread evenly over the disagreement steps (what Eq. 6 amounts to).
        steps: T.
        unanimity: Share of unanimous steps, in [0, 1).
        plus: q+, the posterior weight of the positive sign on these steps, in (0, 1).
    """
    disagreements = (1.0 - unanimity) * steps
    sigma = math.sqrt(2.0 * plus * (1.0 - plus) * disagreements / nats)
    return disagreements * 0.5 * math.erf(1.0 / (sigma * math.sqrt(2.0)))


def same_runs(paper: PublishedPaper) -> Mapping[str, Any]:
    """Neighbouring budgets with identical cells, and how few bits the budget can have turned."""
    sweeps = []
    for table in (sweep(paper, name) for name in SWEEPS):
        rates = [rate / 100.0 for rate in table.values["unanimity"]]
        low, high = table.nats[0], table.nats[-1]
        bits = [turned_bits(low, table.steps, rates[0]), turned_bits(high, table.steps, rates[-1])]
        sweeps.append(
            {
                "table": table.name,
                "different": len(table.runs),
                "rows": len(table.nats),
                "same": [
                    (table.nats[group[0]], table.nats[group[-1]]) for group in table.runs if len(group) > 1
                ],
                "low": low,
                "high": high,
                "bits": [*bits, turned_bits(high, table.steps, rates[-1], 1.0 / 128.0)],
                "released": (1.0 - rates[-1]) * table.steps,
            }
        )
    return {"sweeps": sweeps}


def trend(values: Sequence[float], nats: Sequence[float], confidence: float = 0.95) -> tuple[float, ...]:
    """Change along a sweep by a straight line over log10(nats): estimate, lower, upper, p-value.

    Args:
        values: One for each budget.
        nats: Budgets; at least three different ones.
        confidence: Of the t interval, which takes the cells for independent.
    """
    from scipy import stats

    logs = [math.log10(budget) for budget in nats]
    line = stats.linregress(logs, values)
    span = max(logs) - min(logs)
    reach = t_quantile(0.5 + 0.5 * confidence, len(values) - 2) * float(line.stderr)
    slope = float(line.slope)
    return slope * span, (slope - reach) * span, (slope + reach) * span, float(line.pvalue)


def _distinct_trend(table: Sweep, column: str, confidence: float) -> tuple[float, ...]:
    """The change over rows that differ; a group of identical ones stands at its mean log budget."""
    nats = [10.0 ** (sum(math.log10(table.nats[i]) for i in group) / len(group)) for group in table.runs]
    values = [table.values[column][group[0]] for group in table.runs]
    whole = math.log10(table.nats[-1] / table.nats[0]) / (math.log10(max(nats)) - math.log10(min(nats)))
    change, lower, upper, p_value = trend(values, nats, confidence)
    return change * whole, lower * whole, upper * whole, p_value


def trends(paper: PublishedPaper, confidence: float = 0.95) -> Mapping[str, Any]:
    """Whether accuracy depends on the budget, and how flat it is shown to be."""
    lines = []
    for table in (sweep(paper, name) for name in SWEEPS):
        for column, words in (("test", "test accuracy"), ("unanimity", "unanimity")):
            margin = max(abs(edge) for edge in _distinct_trend(table, column, 2.0 * confidence - 1.0)[1:3])
            lines.append((table.name, words, _distinct_trend(table, column, confidence), margin))
    return {"lines": lines, "percent": 100 * confidence, "level": 1 - confidence}


def spans(paper: PublishedPaper) -> Found:
    """The printed ranges and spans of the two sweeps."""
    failed: list[Mapping[str, Any]] = []
    checked = 0
    for table, place, track in (("table-2", "section 4.2", FT), ("table-11", "appendix J", LORA)):
        budgets = sweep(paper, table)
        for column in COLUMNS:
            least, most = min(budgets.values[column]), max(budgets.values[column])
            quantity = f"{column} over the budgets, {track}"
            ends = said(paper, place, quantity)
            printed = (float(ends.lower or 0.0), float(ends.upper or 0.0))
            facts: list[tuple[str, tuple[float, ...], tuple[float, ...], int]] = [
                ("range", printed, (least, most), ends.decimals)
            ]
            if column != "unanimity":
                span = said(paper, place, f"span of {quantity}")
                facts.append(("span", (span.value,), (most - least,), span.decimals))
            checked += len(facts)
            failed += [
                {
                    "table": budgets.name,
                    "what": f"{what} of {column}",
                    "printed": printed_values,
                    "found": ours,
                }
                for what, printed_values, ours, decimals in facts
                if any(
                    abs(a - b) > 0.5 * 10.0**-decimals + 1e-9
                    for a, b in zip(printed_values, ours, strict=True)
                )
            ]
    return Found(checked, failed)


def budgets_span(paper: PublishedPaper) -> Mapping[str, Any]:
    """How many decades the sweeps span, and where the bound on an attack stands at their end."""
    nats = sweep(paper, SWEEPS[0]).nats
    ends = {"low": nats[0], "high": nats[-1]}
    return {**ends, "decades": math.log10(nats[-1] / nats[0]), "success": 100 * success(nats[-1])}


def success(nats: float) -> float:
    """The largest p with KL(p || 1/2) <= nats (Eq. 2), by bisection; nats >= 0."""
    low, high = 0.5, 1.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if divergence(middle) <= nats else (low, middle)
    return low


def divergence(p: float) -> float:
    """KL(p || 1/2) in nats, p in [0, 1]."""
    return math.log(2.0) + sum(x * math.log(x) for x in (p, 1.0 - p) if x > 0.0)
