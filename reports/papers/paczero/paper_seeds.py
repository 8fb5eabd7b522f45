"""PACZero's means, deviations and differences, recomputed from the printed single values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.reports.papers.paczero.paper_cells import (
    TEST_RECORDS,
    cell,
    centre,
    check,
    count_of,
    deviation,
    mean,
    named,
    stands_for,
)
from workbench.reports.shared.published_checks import Check
from workbench.studies.report import Cell, Table, Value

LADDER_SEEDS = ("seed 0", "seed 1", "seed 2")
FT, LORA = "FT", "LoRA"


@dataclass(frozen=True)
class Pool:
    """A printed mean and the single values that it is said to be of."""

    values: tuple[PublishedCell, ...]
    mean: PublishedCell

    @property
    def name(self) -> str:
        """Its place in words."""
        return named(self.mean)


def pools(paper: PublishedPaper) -> list[Pool]:
    """Every mean whose single values are printed (Tables 4, 5, 13, 15, 17, Appendix E)."""
    found = []
    for name in ("table-4", "table-5"):
        table = paper.table(name)
        for row in dict.fromkeys(one.row for one in table.cells):
            values = [table.cell(row, column) for column in ("1st", "2nd", "3rd", "4th")]
            found.append(_pool(values, cell(paper, name, row, "mean")))
    for row in (("SQuAD", FT, "1.3B"), ("SST-2", LORA, "6.7B")):
        ones = [one for one in paper.table("appendix-e").cells if one.row[:3] == row and one.column == "test"]
        found.append(_pool(ones[:-1], ones[-1]))
    row = (FT, "1.3B", "infinite")
    canonical = [cell(paper, "table-13", row, column) for column in ("1st", "2nd", "3rd")]
    found.append(_pool(canonical, cell(paper, "table-13", row, "test")))
    for steps in ("500", "1000", "1500"):
        rung = [cell(paper, "table-15", (steps,), f"{seed}, test") for seed in LADDER_SEEDS]
        found.append(_pool(rung, cell(paper, "table-15", (steps,), "mean")))
    for together in ("0, 1, 2", "1, 2"):
        for column in ("dev", "test"):
            ones = [cell(paper, "table-17", (seed,), column) for seed in together.split(", ")]
            found.append(_pool(ones, cell(paper, "table-17", (together,), column)))
    return found


def mean_check(paper: PublishedPaper) -> Check:
    """Printed means and sample deviations against the printed single values."""
    failed, found = [], pools(paper)
    for pool in found:
        values = [stands_for(one) for one in pool.values]
        if not mean(values).meets(stands_for(pool.mean)):
            ours = fmean(one.value for one in pool.values)
            failed.append(f"{pool.name}: mean {pool.mean.value:g} printed, {ours:.4g} computed")
        if not deviation(values).meets(stands_for(pool.mean, 1)):
            ours = stdev(one.value for one in pool.values)
            failed.append(f"{pool.name}: deviation {pool.mean.spread:g} printed, {ours:.3g} computed")
    right = (
        f"All {len(found)} printed means and sample standard deviations of printed single values follow from "
        "them (Tables 4, 5, 13, 15, 17, Appendix E)"
    )
    start = "Printed means or deviations do not follow from the printed single values: "
    return check("means and deviations", 2 * len(found), failed, right=right, start=start)


def difference_check(paper: PublishedPaper) -> Check:
    """Printed differences against the printed accuracies (Tables 14, 15, 18, 19)."""
    failed, checked = [], 0
    for one, base, shown in _differences(paper):
        checked += 1
        ours = stands_for(one) - stands_for(base)
        if not ours.meets(stands_for(shown)):
            failed.append(f"{named(one)}: {shown.printed} printed, {centre(ours):+.2f} computed")
    right = f"All {checked} printed differences of Tables 14, 15, 18 and 19 follow from their accuracies"
    return check("differences", checked, failed, right=right, start="Differences do not follow: ")


def copies_check(paper: PublishedPaper) -> Check:
    """Cells that the paper prints in several places."""
    failed, pairs = [], list(_copies(paper))
    for one, other in pairs:
        if one.printed != other.printed:
            failed.append(f"{named(one)} prints {one.printed}, {named(other)} {other.printed}")
    right = f"{len(pairs)} numbers that two tables share are the same in both"
    return check("copies", len(pairs), failed, right=right, start="One number is printed in two ways: ")


def noise_check(paper: PublishedPaper) -> Check:
    """Deltas of Tables 18 and 19 that are said to lie within a deviation of the baseline's seeds."""
    failed, checked = [], 0
    claimed = [("table-18", LORA, "1.3B"), ("table-19", FT, "6.7B")]
    for table, track, model in claimed:
        base = cell(paper, table, (track, "1"), "test")
        seeds = [count_of(one.value, TEST_RECORDS) for one in _seeds(paper, track, model, "0.33")]
        middle, spread = fmean(seeds), stdev(seeds)
        for directions in ("4", "16"):
            one = cell(paper, table, (track, directions), "test")
            checked += 1
            apart = abs(count_of(one.value, TEST_RECORDS) - middle)
            if apart > spread:
                shown = cell(paper, table, (track, directions), "test less that at K = 1")
                failed.append(
                    f"{named(one)}: {shown.printed} is called within the baseline's ±{base.spread:g}, and is "
                    f"{apart / TEST_RECORDS * 100:.3f} against {spread / TEST_RECORDS * 100:.3f} from the "
                    f"right answers of {TEST_RECORDS}"
                )
    start = "Differences said to lie within a deviation of the baseline's seeds do not: "
    return check("within seed noise", checked, failed, start=start)


def baseline_check(paper: PublishedPaper) -> Check:
    """Table 18's baseline of FT against the pool of the same recipe (Table 4)."""
    base = cell(paper, "table-18", (FT, "1"), "test")
    values = [one.value for one in _seeds(paper, FT, "1.3B", "0.33")]
    pool = cell(paper, "table-4", (FT, "1.3B", "0.33"), "mean")
    failed = []
    if base.value not in values:
        gaps = [cell(paper, "table-18", (FT, k), "test").value - pool.value for k in ("4", "16")]
        failed.append(
            f"Table 18's baseline of FT is one run of {base.value:g}, which is none of the {len(values)} "
            f"seeds of Table 4 at the same recipe ({', '.join(f'{value:g}' for value in values)}); against "
            f"their mean, as for LoRA, the differences are {gaps[0]:+.2f} and {gaps[1]:+.2f} with a "
            f"deviation of {pool.spread:g}"
        )
    return check("baseline of Table 18", 1, failed, contradiction=False)


def plateau_seed_check(paper: PublishedPaper) -> Check:
    """Seed 0 of the two sweeps over budgets against the pools of the same recipe and budget."""
    lost, checked = [], 0
    for table, track in (("table-2", FT), ("table-11", LORA)):
        for nats in ("0.33", "0.68"):
            checked += 1
            one = cell(paper, table, (nats,), "test")
            values = [seed.value for seed in _seeds(paper, track, "1.3B", nats)]
            if one.value not in values:
                shown = ", ".join(f"{value:g}" for value in values)
                lost.append(f"{named(one)}: {one.value:g}, Table 4 has {shown}")
    start = (
        f"Tables 2 and 11 are of seed 0 with the recipes of Table 7, but {len(lost)} of {checked} of their "
        "cells that Table 4 has too are none of its seeds, so its pools leave out seed 0, or a recipe and "
        "a seed give several results: "
    )
    return check("seed 0 in the pools", checked, lost, start=start, contradiction=False)


def recomputed_table(paper: PublishedPaper, confidence: float) -> Table:
    """Every pool's mean and deviation as printed and as recomputed, with a t interval over the seeds.

    Args:
        paper: PACZero's printed numbers.
        confidence: Of the intervals.
    """
    from scipy import stats

    rows = []
    for pool in pools(paper):
        values = [one.value for one in pool.values]
        n, middle, spread = len(values), fmean(values), stdev(values)
        reach = float(stats.t.ppf(0.5 + 0.5 * confidence, n - 1)) * spread / math.sqrt(n)
        ours = Value(estimate=middle, lower=middle - reach, upper=middle + reach, spread=spread, n=n)
        shift = Value(estimate=middle - pool.mean.value)
        rows.append(((pool.name,), (Cell(paper=pool.mean, ours=ours, difference=shift),)))
    return Table(
        id="paper-means",
        title="The paper's means, recomputed from its single values",
        row_headers=("place",),
        columns=("percent",),
        rows=tuple(rows),
        notes=(
            'All numbers are the paper\'s; "ours" is what its printed single values give.',
            f"{100 * confidence:g} % t intervals over its seeds: the spread of trainings, on one set of test "
            "records.",
        ),
        decimals={"percent": 2},
    )


def _pool(values: Sequence[PublishedCell | None], printed: PublishedCell) -> Pool:
    return Pool(tuple(one for one in values if one is not None), printed)


def _seeds(paper: PublishedPaper, track: str, model: str, nats: str) -> list[PublishedCell]:
    table = paper.table("table-4")
    ones = [table.cell((track, model, nats), column) for column in ("1st", "2nd", "3rd", "4th")]
    return [one for one in ones if one is not None]


def _differences(paper: PublishedPaper) -> Iterator[tuple[PublishedCell, PublishedCell, PublishedCell]]:
    """A value, its baseline, and their printed difference."""
    for steps in ("1000", "2000", "3000", "4000", "5000"):
        yield _beside_base(paper, "table-14", (steps,), ("1000",), ("test", "test less that at T = 1000"))
    for steps in ("500", "1000", "1500"):
        yield _beside_base(paper, "table-15", (steps,), ("500",), ("mean", "mean less the peak"))
    for table in ("table-18", "table-19"):
        for track in (FT, LORA):
            for k in ("1", "4", "16"):
                columns = ("test", "test less that at K = 1")
                yield _beside_base(paper, table, (track, k), (track, "1"), columns)


def _beside_base(
    paper: PublishedPaper, table: str, row: tuple[str, ...], base: tuple[str, ...], columns: tuple[str, str]
) -> tuple[PublishedCell, PublishedCell, PublishedCell]:
    """Value, baseline and printed difference of a row."""
    value, difference = columns
    return (
        cell(paper, table, row, value),
        cell(paper, table, base, value),
        cell(paper, table, row, difference),
    )


def _copies(paper: PublishedPaper) -> Iterator[tuple[PublishedCell, PublishedCell]]:
    """Places that are to print the same number."""
    for one in paper.table("table-4").cells:
        if one.column == "mean":
            track, model, nats = one.row
            yield one, cell(paper, "table-1", (track, f"{nats} nats", "PACZero-MI"), f"SST-2 {model}")
    for one in paper.table("table-5").cells:
        if one.column == "mean":
            track, model = one.row
            yield one, cell(paper, "table-1", (track, "0 nats", "PACZero-ZPL"), f"SST-2 {model}")
    for place, twin in _COPIES:
        yield cell(paper, *place), cell(paper, *twin)


_Place = tuple[str, tuple[str, ...], str]
_COPIES: tuple[tuple[_Place, _Place], ...] = (
    (
        ("appendix-e", ("SQuAD", FT, "1.3B", "mean"), "test"),
        ("table-1", (FT, "0 nats", "PACZero-ZPL"), "SQuAD 1.3B"),
    ),
    (("table-9", ("10", "0.33"), "test"), ("table-4", (LORA, "6.7B", "0.33"), "mean")),
    (("table-9", ("10", "0.68"), "test"), ("table-4", (LORA, "6.7B", "0.68"), "mean")),
    (("table-9", ("25", "0.33"), "test"), ("table-10", ("8",), "test")),
    (("table-9", ("25", "0.33"), "dev"), ("table-10", ("8",), "dev")),
    (
        ("table-12", ("PACZero, 0.33 nats, adaptive budget", "2000"), "test"),
        ("table-4", (LORA, "1.3B", "0.33"), "mean"),
    ),
    (("table-8", (FT, "1e9", "1e-4"), "test"), ("table-14", ("1000",), "test")),
    (("table-8", (FT, "1e9", "1e-4"), "dev"), ("table-14", ("1000",), "dev")),
    (("table-13", (LORA, "6.7B", "25"), "test"), ("table-15", ("500",), "mean")),
    (("table-13", (FT, "6.7B", "infinite"), "test"), ("table-17", ("0, 1, 2",), "test")),
    (("table-16", ("1000",), "test"), ("table-17", ("0",), "test")),
    (("table-16", ("1000",), "dev"), ("table-17", ("0",), "dev")),
    (("table-18", (FT, "1"), "test"), ("table-2", ("0.33",), "test")),
    (("table-18", (LORA, "1"), "test"), ("table-4", (LORA, "1.3B", "0.33"), "mean")),
    (("table-19", (LORA, "1"), "test"), ("table-4", (LORA, "6.7B", "0.33"), "mean")),
    (("table-19", (FT, "1"), "test"), ("table-4", (FT, "6.7B", "0.33"), "mean")),
    (("appendix-e", ("SST-2", LORA, "6.7B", "mean"), "test"), ("table-15", ("500",), "mean")),
    (("appendix-e", ("SST-2", LORA, "6.7B", "0"), "test"), ("table-15", ("500",), "seed 0, test")),
    (("appendix-e", ("SST-2", LORA, "6.7B", "11"), "test"), ("table-15", ("500",), "seed 1, test")),
    (("appendix-e", ("SST-2", LORA, "6.7B", "22"), "test"), ("table-15", ("500",), "seed 2, test")),
)
