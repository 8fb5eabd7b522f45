"""PACZero's plateau: which of the sweeps' cells are one and the same run, and whether the budget matters.

A step on which the subsets disagree releases sign(s + sigma N) with s = ±1. It differs from sign(N), which
knows nothing of the secret, with probability Phi(1/sigma) - 1/2. By I <= 2 q (1 - q) / sigma² (Gaussian
channel of that variance) a step of beta nats has sigma at most sqrt(2 q (1 - q) / beta), nearly with equality
for the small beta of the tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.paczero.paper_cells import cell, check, said, short
from workbench.reports.shared.published_checks import Check
from workbench.studies.report import Cell, Table, Value

SWEEPS = ("table-2", "table-11")
COLUMNS = ("dev", "test", "unanimity")


@dataclass(frozen=True)
class Sweep:
    """A table over budgets.

    Attributes:
        nats: Rising.
        values: By column: dev, test, unanimity, in percent.
        steps: T.
    """

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
    """Table 2 or 11.

    Args:
        paper: PACZero's printed numbers.
        table: Of `SWEEPS`.
    """
    rows = list(dict.fromkeys(one.row for one in paper.table(table).cells))
    values = {name: tuple(cell(paper, table, row, name).value for row in rows) for name in COLUMNS}
    nats = tuple(float(row[0]) for row in rows)
    return Sweep(nats=nats, values=values, steps=int(paper.table(table).settings["T"]))


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


def same_runs_remark(paper: PublishedPaper) -> str:
    """Neighbouring budgets with identical cells, and how few bits the budget can have turned."""
    parts = []
    for name in SWEEPS:
        one = sweep(paper, name)
        groups = [group for group in one.runs if len(group) > 1]
        shown = ", ".join(f"{one.nats[group[0]]:g} to {one.nats[group[-1]]:g}" for group in groups)
        rates = one.values["unanimity"]
        low, high = one.nats[0], one.nats[-1]
        bits = [
            turned_bits(nats, one.steps, rate / 100.0) for nats, rate in ((low, rates[0]), (high, rates[-1]))
        ]
        bits.append(turned_bits(high, one.steps, rates[-1] / 100.0, 1.0 / 128.0))
        released = (1.0 - rates[-1] / 100.0) * one.steps
        parts.append(
            f"{short(paper.table(name))} has {len(one.runs)} different rows of {len(one.nats)} (the same "
            f"dev, test and unanimity at {shown}); its budgets can turn about {bits[0]:.2g} ({low:g} nats) "
            f"to {bits[1]:.2g} ({high:g} nats) of some {released:.0f} bits released on disagreement (q+ = "
            f"1/2; {bits[2]:.0f} at {high:g} nats with the most uneven split of 128 subsets)"
        )
    return (
        "The plateau over budgets is in part one run, counted several times: with one seed the directions "
        "and the noise are shared (so the cells suggest), and at small budgets the released bit is the "
        "noise's sign. "
        + "; ".join(parts)
        + ". So at every budget most bits released on disagreement are the noise's, and the sweep of one "
        "seed cannot show what a budget buys"
    )


def trend(values: Sequence[float], nats: Sequence[float], confidence: float = 0.95) -> tuple[float, ...]:
    """Change along a sweep by a straight line over log10(nats): estimate, lower, upper, p-value.

    Args:
        values: One for each budget.
        nats: Budgets; at least three different ones.
        confidence: Of the t interval, which takes the cells for independent.
    """
    from scipy import stats

    logs = [math.log10(one) for one in nats]
    line = stats.linregress(logs, values)
    span = max(logs) - min(logs)
    reach = float(stats.t.ppf(0.5 + 0.5 * confidence, len(values) - 2)) * float(line.stderr)
    slope = float(line.slope)
    return slope * span, (slope - reach) * span, (slope + reach) * span, float(line.pvalue)


def trend_remark(paper: PublishedPaper, confidence: float = 0.95) -> str:
    """Whether accuracy depends on the budget, and how flat it is shown to be.

    Args:
        paper: PACZero's printed numbers.
        confidence: Of the interval; that of the two one-sided tests is half as far from 1.
    """
    parts = []
    for name in SWEEPS:
        one = sweep(paper, name)
        for column, word in (("test", "test accuracy"), ("unanimity", "unanimity")):
            change, lower, upper, p_value = _distinct_trend(one, column, confidence)
            margin = max(abs(edge) for edge in _distinct_trend(one, column, 2.0 * confidence - 1.0)[1:3])
            parts.append(
                f"{short(paper.table(name))}, {word} {change:+.2f} points from end to end ({lower:+.2f} to "
                f"{upper:+.2f}, p = {p_value:.2g}), flat within {margin:.1f} points at level "
                f"{1 - confidence:.2g}"
            )
    return (
        "A straight line over the logarithm of the budget, identical neighbours counted once "
        f"({100 * confidence:g} % t intervals; the rows share one seed, so they are less independent than "
        f"the test takes them to be, and nothing is said of other seeds): {'; '.join(parts)}"
    )


def spans_check(paper: PublishedPaper) -> Check:
    """The printed ranges and spans of the two sweeps."""
    failed, checked = [], 0
    for table, place, track in (("table-2", "section 4.2", "FT"), ("table-11", "appendix J", "LoRA")):
        values = sweep(paper, table).values
        for column in COLUMNS:
            least, most = min(values[column]), max(values[column])
            ends = said(paper, place, f"{column} over the budgets, {track}")
            quantities: list[tuple[str, tuple[float, ...], tuple[float, ...], int]] = [
                ("range", (float(ends.lower or 0.0), float(ends.upper or 0.0)), (least, most), ends.decimals)
            ]
            if column != "unanimity":
                span = said(paper, place, f"span of {column} over the budgets, {track}")
                quantities.append(("span", (span.value,), (most - least,), span.decimals))
            for word, shown, ours, decimals in quantities:
                checked += 1
                half = 0.5 * 10.0**-decimals + 1e-9
                if any(abs(a - b) > half for a, b in zip(shown, ours, strict=True)):
                    failed.append(
                        f"{short(paper.table(table))}, {word} of {column}: {shown} printed, {ours} found"
                    )
    right = f"All {checked} printed ranges and spans of Tables 2 and 11 follow from their cells"
    return check("spans", checked, failed, right=right, start="Ranges do not follow: ")


def decades_remark(paper: PublishedPaper) -> str:
    """How many decades the sweeps span, and where the bound on an attack stands at their end."""
    one = sweep(paper, SWEEPS[0])
    decades = math.log10(one.nats[-1] / one.nats[0])
    return (
        f"The budgets span {decades:.1f} decades ({one.nats[0]:g} to {one.nats[-1]:g} nats). At "
        f"{one.nats[-1]:g} nats the bound on an attack is {100 * success(one.nats[-1]):.1f} % right "
        "guesses at prior 1/2; at ln 2 = 0.693 it excludes nothing"
    )


def success(nats: float) -> float:
    """The largest p with KL(p || 1/2) <= nats (Eq. 2), by bisection.

    Args:
        nats: At least 0.
    """
    low, high = 0.5, 1.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if divergence(middle) <= nats else (low, middle)
    return low


def divergence(p: float) -> float:
    """KL(p || 1/2) in nats, p in [0, 1]."""
    return math.log(2.0) + sum(x * math.log(x) for x in (p, 1.0 - p) if x > 0.0)


def plateau_table(paper: PublishedPaper, confidence: float) -> Table:
    """Both sweeps: the change from end to end over the distinct rows.

    Args:
        paper: PACZero's printed numbers.
        confidence: Of the intervals.
    """
    rows = []
    for name in SWEEPS:
        one = sweep(paper, name)
        cells = []
        for column in COLUMNS:
            change, lower, upper, p_value = _distinct_trend(one, column, confidence)
            value = Value(estimate=change, lower=lower, upper=upper, p_value=p_value, n=len(one.runs))
            cells.append(Cell(ours=value, why_blank="not printed"))
        rows.append(((short(paper.table(name)),), tuple(cells)))
    return Table(
        id="paper-plateau",
        title="Change over the paper's budgets, by a straight line, in percent points",
        row_headers=("sweep",),
        columns=COLUMNS,
        rows=tuple(rows),
        notes=(
            "From the smallest to the largest budget, over the logarithm; neighbouring rows with the same "
            f"three cells are counted once (n). {100 * confidence:g} % t intervals that take the rows for "
            "independent; all share one seed.",
        ),
        decimals=dict.fromkeys(COLUMNS, 2),
    )


def _distinct_trend(one: Sweep, column: str, confidence: float) -> tuple[float, ...]:
    """The change over rows that differ; a group of identical ones stands at its mean log budget."""
    nats = [10.0 ** (sum(math.log10(one.nats[i]) for i in group) / len(group)) for group in one.runs]
    values = [one.values[column][group[0]] for group in one.runs]
    whole = math.log10(one.nats[-1] / one.nats[0]) / (math.log10(max(nats)) - math.log10(min(nats)))
    change, lower, upper, p_value = trend(values, nats, confidence)
    return change * whole, lower * whole, upper * whole, p_value
