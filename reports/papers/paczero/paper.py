"""What PACZero prints, held against itself: its text, its cells, and how its test records limit them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev
from typing import Any

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.reports.papers.paczero.uncertainty import (
    BUDGETS,
    FT,
    LADDER_SEEDS,
    LORA,
    MI,
    ZPL,
    budgets_span,
    chance,
    cliff,
    dev_size,
    divergence,
    indistinguishable,
    limits,
    order,
    same_runs,
    seed_cells,
    seed_values,
    spans,
    success,
    test_size,
    trends,
)
from workbench.reports.shared.context import Bindings
from workbench.reports.shared.declared import declared
from workbench.reports.shared.printed import (
    TEST_RECORDS,
    Interval,
    at,
    cell,
    centre,
    count_of,
    deviation,
    exactly,
    mean,
    said,
    shares_p,
    short,
    stands_for,
)
from workbench.reports.shared.statements import Found

DECLARED: Mapping[str, Any] = declared("paczero").content["own"]
"""Which cells are set against each other."""


def named(printed: PublishedCell) -> str:
    """A cell's place in words: `Table 4, FT, 1.3B, 0.33, 1st`."""
    table = printed.table.replace("table-", "Table ").replace("appendix-e", "Appendix E")
    table = "the text" if table == "statements" else table
    return ", ".join(
        (table, *printed.row, *(() if printed.column in ("test", "value") else (printed.column,)))
    )


# Printed numbers, and what formulas give


def _cell(paper: PublishedPaper, at_place: Bindings) -> Interval:
    """The cell at a path, less another one; names in braces are columns of the place."""
    first, *less = (
        stands_for(at(paper, at_place[name].format_map(at_place)))
        for name in ("cell", "less")
        if name in at_place
    )
    return first - less[0] if less else first


def _unanimity_cell(paper: PublishedPaper, place: Bindings) -> Interval:
    return stands_for(
        cell(paper, "table-6", (place["track"], place["model"], place["privacy"]), place["task"])
    )


PRINTED = {"cell": _cell, "unanimity": _unanimity_cell}


def dp_success(epsilon: float, delta: float) -> float:
    """Success that (epsilon, delta)-DP allows at prior 1/2 by section 2's formula."""
    return math.exp(epsilon) / (1.0 + math.exp(epsilon)) + delta


def tolerance_nats(tolerance: float) -> float:
    """The binary entropy at a tolerance in (0, 1), in nats."""
    return -tolerance * math.log(tolerance) - (1.0 - tolerance) * math.log1p(-tolerance)


def _orders(paper: PublishedPaper, least: float | None = None) -> list[Interval]:
    """Orders of magnitude between the tolerance's nats of a run and a budget, or the least."""
    if least is None:
        sweeps = paper.table("table-2").cells + paper.table("table-11").cells
        least = min(float(each.row[0]) for each in sweeps)
    run = said(paper, "appendix C", "nats of 2000 steps at the tolerance, at most").value
    return [exactly(math.floor(math.log10(least / run)))]


def _squad_hours(paper: PublishedPaper, *models: str) -> list[Interval]:
    """GPU hours of the SQuAD cells of these models."""
    rows = [each for each in paper.table("table-20").cells if each.column == "GPU-hours"]
    squad = [each for each in rows if each.row[0] == "SQuAD" and any(name in each.row[1] for name in models)]
    return [exactly(sum(each.value for each in squad))]


VALUES = {
    "success at 1/4 nats": lambda paper: [exactly(100.0 * success(0.25))],
    "success at 1/128 nats": lambda paper: [exactly(100.0 * success(1.0 / 128.0))],
    "success at epsilon 1": lambda paper: [exactly(100.0 * dp_success(1.0, 1e-5))],
    "success at epsilon 0.1": lambda paper: [exactly(100.0 * dp_success(0.1, 1e-5))],
    "nats of epsilon 2": lambda paper: [exactly(divergence(dp_success(2.0, 1e-5)))],
    "nats of epsilon 6": lambda paper: [exactly(divergence(dp_success(6.0, 1e-5)))],
    "nats of a step": lambda paper: [exactly(-1e-12 * math.log(1e-12))],
    "nats of 2000 steps": lambda paper: [exactly(2000.0 * tolerance_nats(1e-12))],
    "orders below the tightest": _orders,
    "orders below the headline": lambda paper: _orders(paper, 0.33),
    "SQuAD hours, 6.7B": lambda paper: _squad_hours(paper, "6.7B"),
    "SQuAD hours": lambda paper: _squad_hours(paper, "1.3B", "6.7B"),
}


# Means, deviations and differences, from the printed single values


@dataclass(frozen=True)
class Pool:
    """A printed mean and the single values that it is said to be of."""

    values: tuple[PublishedCell, ...]
    mean: PublishedCell

    @property
    def name(self) -> str:
        """The mean's table, row and column in words."""
        return named(self.mean)


def pools(paper: PublishedPaper) -> list[Pool]:
    """Every mean whose single values are printed (Tables 4, 5, 13, 15, 17, Appendix E)."""
    made = [
        Pool(tuple(seed_cells(paper, name, *row)), cell(paper, name, row, "mean"))
        for name in ("table-4", "table-5")
        for row in dict.fromkeys(printed.row for printed in paper.table(name).cells)
    ]
    for place in (("SQuAD", FT, "1.3B"), ("SST-2", LORA, "6.7B")):
        cells = paper.table("appendix-e").cells
        *values, last = (each for each in cells if each.row[:3] == place and each.column == "test")
        made.append(Pool(tuple(values), last))
    row = (FT, "1.3B", "infinite")
    made.append(Pool(tuple(seed_cells(paper, "table-13", *row)), cell(paper, "table-13", row, "test")))
    for steps in ("500", "1000", "1500"):
        rung = tuple(cell(paper, "table-15", (steps,), f"{seed}, test") for seed in LADDER_SEEDS)
        made.append(Pool(rung, cell(paper, "table-15", (steps,), "mean")))
    for together, column in product(("0, 1, 2", "1, 2"), ("dev", "test")):
        seeds = tuple(cell(paper, "table-17", (seed,), column) for seed in together.split(", "))
        made.append(Pool(seeds, cell(paper, "table-17", (together,), column)))
    return made


def means(paper: PublishedPaper) -> Found:
    """Printed means and sample deviations against the printed single values."""
    failed: list[Mapping[str, Any]] = []
    every = pools(paper)
    for pool in every:
        intervals, values = [stands_for(each) for each in pool.values], [each.value for each in pool.values]
        for part, what, bounds, ours, printed in (
            (0, "mean", mean(intervals), fmean(values), pool.mean.value),
            (1, "deviation", deviation(intervals), stdev(values), pool.mean.spread),
        ):
            if not bounds.meets(stands_for(pool.mean, part)):
                failed.append({"name": pool.name, "what": what, "printed": printed, "computed": ours})
    return Found(2 * len(every), failed, {"means": len(every)})


def differences(paper: PublishedPaper) -> Found:
    """Printed differences against the printed accuracies (Tables 14, 15, 18, 19)."""
    failed: list[Mapping[str, Any]] = []
    places = [(entry, row) for entry in DECLARED["differences"] for row in entry["rows"]]
    for entry, row in places:
        value, base = (at(paper, entry["value"].format(name)) for name in (row, entry["base"]))
        printed = at(paper, entry["difference"].format(row))
        gap = stands_for(value) - stands_for(base)
        if not gap.meets(stands_for(printed)):
            failed.append({"name": named(value), "printed": printed.printed, "computed": centre(gap)})
    return Found(len(places), failed)


def copies(paper: PublishedPaper) -> Found:
    """Cells that the paper prints in several places."""
    pairs = []
    for table, method in (("table-4", MI), ("table-5", ZPL)):
        for printed in paper.table(table).cells:
            if printed.column == "mean":
                track, model, *nats = printed.row
                row = (track, f"{nats[0] if nats else '0'} nats", method)
                pairs.append((printed, cell(paper, "table-1", row, f"SST-2 {model}")))
    pairs += [(at(paper, place), at(paper, twin)) for place, twin in DECLARED["copies"]]
    failed = [
        {"first": named(first), "prints": first.printed, "second": named(second), "printed": second.printed}
        for first, second in pairs
        if first.printed != second.printed
    ]
    return Found(len(pairs), failed)


def seed_noise(paper: PublishedPaper) -> Found:
    """Deltas of Tables 18 and 19 that are said to lie within a deviation of the baseline's seeds."""
    failed: list[Mapping[str, Any]] = []
    claimed = list(product((("table-18", LORA, "1.3B"), ("table-19", FT, "6.7B")), ("4", "16")))
    for (table, track, model), directions in claimed:
        seeds = [
            count_of(value, TEST_RECORDS) for value in seed_values(paper, "table-4", track, model, "0.33")
        ]
        printed = cell(paper, table, (track, directions), "test")
        apart = abs(count_of(printed.value, TEST_RECORDS) - fmean(seeds))
        if apart > stdev(seeds):
            facts = {
                "name": named(printed),
                "printed": cell(paper, table, (track, directions), "test less that at K = 1").printed,
                "spread": cell(paper, table, (track, "1"), "test").spread,
                "apart": apart / TEST_RECORDS * 100,
                "deviation": stdev(seeds) / TEST_RECORDS * 100,
                "records": TEST_RECORDS,
            }
            failed.append(facts)
    return Found(len(claimed), failed)


def baseline(paper: PublishedPaper) -> Found:
    """Table 18's baseline of FT against the pool of the same recipe (Table 4)."""
    base = cell(paper, "table-18", (FT, "1"), "test")
    seeds, pool = (
        seed_values(paper, "table-4", FT, "1.3B", "0.33"),
        cell(paper, "table-4", (FT, "1.3B", "0.33"), "mean"),
    )
    gaps = [cell(paper, "table-18", (FT, k), "test").value - pool.value for k in ("4", "16")]
    facts = {"base": base.value, "seeds": seeds, "gaps": gaps, "spread": pool.spread}
    return Found(1, [] if base.value in seeds else [facts])


def seed_0(paper: PublishedPaper) -> Found:
    """Seed 0 of the two sweeps over budgets against the pools of the same recipe and budget."""
    failed: list[Mapping[str, Any]] = []
    places = list(product((("table-2", FT), ("table-11", LORA)), ("0.33", "0.68")))
    for (table, track), nats in places:
        printed, seeds = (
            cell(paper, table, (nats,), "test"),
            seed_values(paper, "table-4", track, "1.3B", nats),
        )
        if printed.value not in seeds:
            failed.append({"name": named(printed), "value": printed.value, "seeds": seeds})
    return Found(len(places), failed)


# Where tables and captions say different things of one run


def steps(paper: PublishedPaper) -> Found:
    """T of the same cells in several tables."""
    failed: list[Mapping[str, Any]] = []
    recipe = cell(paper, "table-7", ("SST-2", MI, "LoRA 6.7B"), "T").value
    captions = {"Table 9": ("table-9", "T"), "Table 19": ("table-19", "T, LoRA")}
    stated = {name: float(paper.table(table).settings[key]) for name, (table, key) in captions.items()}
    other = [name for name, value in stated.items() if value != recipe]
    if other:
        hours = _hours_a_step(paper, recipe)
        captioned = sorted({f"{value:g}" for value in stated.values()})
        facts = {"recipe": recipe, "captioned": captioned, "tables": other, "hours": hours}
        failed.append({"kind": "LoRA", **facts})
    recipe = cell(paper, "table-7", ("SST-2", ZPL, "FT 6.7B"), "T").value
    counted = cell(paper, "table-20", ("SST-2", f"{ZPL} 6.7B FT"), "T").value
    if counted != recipe:
        failed.append({"kind": "FT", "recipe": recipe, "counted": counted})
    best = said(paper, "appendix L", "T of the dev-best of the canonical FT cells").value
    rungs = [cell(paper, "table-17", (seed,), "T").value for seed in ("0", "1", "2")]
    if any(rung != best for rung in rungs):
        failed.append({"kind": "canonical", "best": best, "rungs": [f"{rung:g}" for rung in rungs]})
    return Found(3, failed)


def _hours_a_step(paper: PublishedPaper, length: float) -> tuple[float, float]:
    """GPU hours of 1,000 steps of a seed: of the headline cells at so many steps, and of Table 21's ranks."""
    rows = [("SST-2", f"{MI} 6.7B LoRA {nats}") for nats in BUDGETS]
    hours = sum(cell(paper, "table-20", row, "GPU-hours").value for row in rows)
    seeds = sum(cell(paper, "table-20", row, "n").value for row in rows)
    ranks = [("Table 10", f"6.7B LoRA, rank {rank}") for rank in ("4", "16")]
    other = sum(cell(paper, "table-21", row, "GPU-hours").value for row in ranks)
    runs = sum(
        cell(paper, "table-21", row, "n").value * cell(paper, "table-21", row, "T").value for row in ranks
    )
    return 1000.0 * hours / (seeds * length), 1000.0 * other / runs


def seed_names(paper: PublishedPaper) -> Found:
    """The seeds of the canonical 6.7B LoRA cell."""
    names = [each.row[3] for each in paper.table("appendix-e").cells if each.row[0] == "SST-2"][:-1]
    ladder = [column[5] for column in paper.table("table-15").columns if column.endswith("test")]
    return Found(1, [{"names": names, "ladder": ladder}] if names != ladder else [])


def counted_cells(paper: PublishedPaper) -> Found:
    """How many multi-seed cells of SST-2 there are."""
    stated = said(paper, "appendix E", "multi-seed SST-2 cells of Table 1").value
    cells = len({(name, each.row) for name in ("table-4", "table-5") for each in paper.table(name).cells})
    return Found(1, [{"stated": stated, "listed": cells}] if cells != stated else [])


def unanimity(paper: PublishedPaper) -> Found:
    """The text's range of the unanimity on SST-2 against every cell that prints one."""
    stated = said(paper, "section 1", "unanimity on SST-2")
    low, high = stands_for(stated, 0).lower, stands_for(stated, 1).upper
    failed: list[Mapping[str, Any]] = []
    checked = 0
    for name in ("table-2", "table-6", "table-9", "table-11"):
        cells = [each for each in paper.table(name).cells if each.column in ("unanimity", "SST-2")]
        outside = [
            each.value for each in cells if stands_for(each).upper < low or stands_for(each).lower > high
        ]
        checked += len(cells)
        if outside:
            place = short(paper.table(name))
            failed.append({"outside": sorted(outside), "cells": len(cells), "table": place})
    return Found(checked, failed, {"lower": stated.lower, "upper": stated.upper})


def clip_note(paper: PublishedPaper) -> Found:
    """Table 8's note that LoRA needs a clip, where both are printed at one rate."""
    table, checked = paper.table("table-8"), 0
    failed: list[Mapping[str, Any]] = []
    for noted in table.cells:
        clipped = (noted.row[0], "25", noted.row[2])
        is_noted = noted.column == "note" and "clip required" in noted.printed
        if not is_noted or table.cell(clipped, "dev") is None:
            continue
        checked += 1
        free, bound = (
            [cell(paper, "table-8", row, name).value for name in ("dev", "test")]
            for row in (noted.row, clipped)
        )
        if free[0] >= bound[0]:
            failed.append({"rate": noted.row[2], "free": free, "bound": bound})
    return Found(checked, failed)


def hours(paper: PublishedPaper) -> Found:
    """Compare the printed sums of hours with the sums of the rows (Tables 20 and 21)."""
    failed: list[Mapping[str, Any]] = []
    sums = []
    for name, label in (("table-20", "main tables"), ("table-21", "appendix")):
        rows = [entry for entry in paper.table(name).cells if entry.column == "GPU-hours"]
        total = math.fsum(entry.value for entry in rows if entry.row[0] != "total")
        printed = cell(paper, name, ("total", label), "GPU-hours").value
        sums.append(total)
        if abs(total - printed) > 0.05 * printed:
            failed.append({"label": label, "printed": printed, "total": total})
    return Found(2, failed, {"sums": sums})


CHECKS = {
    "evaluation records": test_size,
    "steps": steps,
    "unanimity": unanimity,
    "seed 0 in the pools": seed_0,
    "within seed noise": seed_noise,
    "baseline of Table 18": baseline,
    "names of seeds": seed_names,
    "multi-seed cells": counted_cells,
    "clip required": clip_note,
    "GPU hours": hours,
    "means and deviations": means,
    "differences": differences,
    "copies": copies,
    "spans": spans,
    "dev records": dev_size,
}


# What follows from the printed numbers without contradicting them


def _unanimity(paper: PublishedPaper) -> Mapping[str, Any]:
    """Table 6 against the other tables that print the unanimity of a run of the same cell."""
    runs: list[dict[str, Any]] = []
    for (track, model, table), nats in product(
        ((FT, "1.3B", "table-2"), (LORA, "1.3B", "table-11"), (LORA, "6.7B", "table-9")), ("0.33", "0.68")
    ):
        first = cell(paper, "table-6", (track, model, f"{nats} nats"), "SST-2").value
        row = ("10", nats) if table == "table-9" else (nats,)
        second = cell(paper, table, row, "unanimity").value
        place = f"{track} {model} at {nats} nats"
        runs.append({"place": place, "first": first, "second": second, "table": short(paper.table(table))})
    clip = cell(paper, "table-9", ("25", "0.33"), "unanimity").value
    mine = cell(paper, "table-6", (LORA, "6.7B", "0.33 nats"), "SST-2").value
    gap = max(abs(run["first"] - run["second"]) for run in runs)
    return {"runs": runs, "gap": gap, "mine": mine, "is_copied": clip == mine}


def _subset_count(paper: PublishedPaper) -> Mapping[str, Any]:
    """Numbers of candidate subsets of PACZero-ZPL."""
    cells = paper.table("table-7").cells
    used = {each.value for each in cells if each.column == "M" and each.row[1] == ZPL}
    chosen = float(paper.table("table-8").settings["M"])
    return {
        "used": sorted(used),
        "chosen": chosen,
        "drawn": said(paper, "section 1", "candidate subsets M").value,
    }


def _allocation(paper: PublishedPaper) -> Mapping[str, Any]:
    """A run of Table 12 outside all of Table 11."""
    constant = cell(paper, "table-12", ("PACZero, 0.001 nats, constant budget", "2000"), "test").value
    tests = [other.value for other in paper.table("table-11").cells if other.column == "test"]
    adaptive = cell(paper, "table-11", ("1e-3",), "test").value
    span = max(tests) - min(tests)
    return {
        "constant": constant,
        "adaptive": adaptive,
        "span": span,
        "ends": limits(constant),
        "records": TEST_RECORDS,
    }


def _quantization(paper: PublishedPaper) -> Mapping[str, Any]:
    """What Table 12 says of quantization, with the test records' uncertainty."""
    pairs = []
    for form, length in (("full", "2000"), ("half", "2000"), ("half", "1000")):
        names = f"quant_{form}", f"raw_{form}"
        signs, raw = (cell(paper, "table-12", (name, length), "test").value for name in names)
        pairs.append((*names, length, signs - raw, shares_p(signs, raw)))
    return {"pairs": pairs, "records": TEST_RECORDS}


def _criteria(paper: PublishedPaper) -> Mapping[str, Any]:
    """Table 10's two criteria for a checkpoint and a rank."""
    ranks = ("4", "8", "16")
    by_loss = min(ranks, key=lambda rank: cell(paper, "table-10", (rank,), "best evaluation loss").value)
    by_dev = max(ranks, key=lambda rank: cell(paper, "table-10", (rank,), "dev").value)
    tests = {rank: cell(paper, "table-10", (rank,), "test").value for rank in ranks}
    return {"by_loss": by_loss, "by_dev": by_dev, "tests": tests}


REMARKS = {
    "same runs": same_runs,
    "trend": trends,
    "decades": budgets_span,
    "chance": chance,
    "cliff": cliff,
    "indistinguishable": indistinguishable,
    "order": order,
    "unanimity": _unanimity,
    "subset count": _subset_count,
    "allocation": _allocation,
    "quantization": _quantization,
    "criteria": _criteria,
}
