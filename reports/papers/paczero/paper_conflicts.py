"""Where PACZero's tables and captions say different things of one run, and what else its cells say."""

from __future__ import annotations

import math

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.paczero.paper_cells import (
    TEST_RECORDS,
    cell,
    check,
    count_of,
    said,
    short,
    stands_for,
)
from workbench.reports.papers.paczero.paper_rates import limits
from workbench.reports.shared.published_checks import Check

LORA_67 = ("SST-2", "PACZero-MI", "LoRA 6.7B")


def steps_check(paper: PublishedPaper) -> Check:
    """T of the same cells in several tables."""
    failed = []
    recipe = cell(paper, "table-7", LORA_67, "T").value
    stated = {name: float(paper.table(name).settings[key]) for name, key in _LORA_STEPS}
    other = [f"Table {name.removeprefix('table-')}" for name, value in stated.items() if value != recipe]
    if other:
        short, long = _hours_a_step(paper, recipe)
        failed.append(
            f"T of the 6.7B LoRA cells of PACZero-MI: {recipe:g} in Tables 7 and 20 and section 4.1, but "
            f"{_and(sorted({f'{value:g}' for value in stated.values()}))} in the captions of "
            f"{_and(other)}, which say that they show, or match, the headline cells (Table 9 with the same "
            f"numbers). Table 20's GPU hours are {short:.2g} for 1,000 steps of a seed if T = {recipe:g}, "
            f"against {long:.2g} of the same model, track and GPU in Table 21 at T = 1000"
        )
    row = ("SST-2", "PACZero-ZPL 6.7B FT")
    recipe = cell(paper, "table-7", ("SST-2", "PACZero-ZPL", "FT 6.7B"), "T").value
    hours = cell(paper, "table-20", row, "T").value
    if hours != recipe:
        failed.append(
            f"T of the headline PACZero-ZPL cell of 6.7B FT: {recipe:g} in Table 7, {hours:g} in Table 20"
        )
    best = said(paper, "appendix L", "T of the dev-best of the canonical FT cells").value
    rungs = [cell(paper, "table-17", (seed,), "T").value for seed in ("0", "1", "2")]
    if any(rung != best for rung in rungs):
        failed.append(
            f"Table 13 says that the canonical FT cells are dev-best at T = {best:g}; Table 17 pools T = "
            f"{_and([f'{rung:g}' for rung in rungs])} for 6.7B"
        )
    start = "Steps of one cell differ between places: "
    return check("steps", 3, failed, start=start)


def seed_names_check(paper: PublishedPaper) -> Check:
    """The seeds of the canonical 6.7B LoRA cell."""
    names = [one.row[3] for one in paper.table("appendix-e").cells if one.row[0] == "SST-2"][:-1]
    ladder = [column[5] for column in paper.table("table-15").columns if column.endswith("test")]
    failed = []
    if names != ladder:
        failed.append(
            f"The seeds of the canonical 6.7B LoRA cell are {_and(names)} in Appendix E and {_and(ladder)} "
            "in Table 15, with the same accuracies"
        )
    return check("names of seeds", 1, failed)


def counted_cells_check(paper: PublishedPaper) -> Check:
    """How many multi-seed cells of SST-2 there are."""
    stated = said(paper, "appendix E", "multi-seed SST-2 cells of Table 1").value
    rows = {(name, one.row) for name in ("table-4", "table-5") for one in paper.table(name).cells}
    failed = []
    if len(rows) != stated:
        failed.append(
            f"Appendix E speaks of {stated:g} multi-seed SST-2 cells; Tables 4 and 5 list {len(rows)}"
        )
    return check("multi-seed cells", 1, failed)


def unanimity_check(paper: PublishedPaper) -> Check:
    """The text's range of the unanimity on SST-2 against every cell that prints one."""
    stated = said(paper, "section 1", "unanimity on SST-2")
    ends = [stands_for(stated, part) for part in (0, 1)]
    failed, checked = [], 0
    for name in ("table-2", "table-6", "table-9", "table-11"):
        cells = [one for one in paper.table(name).cells if one.column in ("unanimity", "SST-2")]
        checked += len(cells)
        outside = [
            one.value
            for one in cells
            if stands_for(one).upper < ends[0].lower or stands_for(one).lower > ends[1].upper
        ]
        if outside:
            failed.append(
                f"{len(outside)} of {len(cells)} in {short(paper.table(name))} ({min(outside):g} to "
                f"{max(outside):g})"
            )
    start = (
        f"The text gives {stated.lower:g} to {stated.upper:g} % for the share of unanimous steps on SST-2; "
        "cells outside it: "
    )
    return check("unanimity", checked, failed, start=start)


def unanimity_remark(paper: PublishedPaper) -> str:
    """Table 6 against the other tables that print the unanimity of a run of the same cell."""
    texts, gaps = [], []
    for (track, model, nats), (table, row) in _UNANIMITY.items():
        one = cell(paper, "table-6", (track, model, f"{nats} nats"), "SST-2")
        other = cell(paper, table, row, "unanimity")
        gaps.append(abs(one.value - other.value))
        texts.append(
            f"{track} {model} at {nats} nats {one.value:g} and {other.value:g} ({short(paper.table(table))})"
        )
    clip = cell(paper, "table-9", ("25", "0.33"), "unanimity")
    mine = cell(paper, "table-6", ("LoRA", "6.7B", "0.33 nats"), "SST-2")
    copied = (
        f". Table 6's {mine.value:g} of 6.7B LoRA at 0.33 nats is what Table 9 prints for clip 25, not for "
        "the headline's 10"
    )
    return (
        "Table 6 prints the unanimity of one representative seed a cell and calls it stable over budgets and "
        f"variants. Two runs of one cell differ by up to {max(gaps):.1f} points: {'; '.join(texts)}"
        + (copied if clip.value == mine.value else "")
    )


def clip_note_check(paper: PublishedPaper) -> Check:
    """Table 8's note that LoRA needs a clip, where both are printed at one rate."""
    table, failed, checked = paper.table("table-8"), [], 0
    for one in table.cells:
        if one.column != "note" or "clip required" not in one.printed:
            continue
        clipped = (one.row[0], "25", one.row[2])
        if table.cell(clipped, "dev") is None:
            continue
        checked += 1
        dev, test = (
            (cell(paper, "table-8", one.row, name), cell(paper, "table-8", clipped, name))
            for name in ("dev", "test")
        )
        if dev[0].value >= dev[1].value:
            failed.append(
                f'Table 8 notes "clip required" at LoRA, no clip, rate {one.row[2]}: dev {dev[0].value:g} '
                "and test "
                f"{test[0].value:g}, with the clip of 25 at that rate {dev[1].value:g} and {test[1].value:g}"
            )
    return check("clip required", checked, failed, contradiction=False)


def hours_check(paper: PublishedPaper) -> Check:
    """Sums of Tables 20 and 21."""
    failed = []
    sums = {}
    for name, label in (("table-20", "main tables"), ("table-21", "appendix")):
        hours = [one for one in paper.table(name).cells if one.column == "GPU-hours"]
        sums[label] = math.fsum(one.value for one in hours if one.row[0] != "total")
        printed = cell(paper, name, ("total", label), "GPU-hours").value
        if abs(sums[label] - printed) > 0.05 * printed:
            failed.append(f"{label}: {printed:g} printed, the rows sum to {sums[label]:.4g}")
    return check(
        "GPU hours",
        2,
        failed,
        right=f"Tables 20 and 21 sum to {sums['main tables']:.0f} and {sums['appendix']:.0f} GPU hours",
        start='Totals of GPU hours (each said to be "about") differ by more than 5 % from their rows: ',
        contradiction=False,
    )


def subset_count_remark(paper: PublishedPaper) -> str:
    """Numbers of candidate subsets of PACZero-ZPL."""
    table = paper.table("table-7")
    used = {one.value for one in table.cells if one.column == "M" and one.row[1] == "PACZero-ZPL"}
    chosen = float(paper.table("table-8").settings["M"])
    drawn = said(paper, "section 1", "candidate subsets M").value
    return (
        f"PACZero-ZPL's headline cells have M = {_and([f'{one:g}' for one in sorted(used)])}, for "
        '"implementation reasons" that Appendix L, to which section 4.1 refers, does not give; its '
        f"learning rates were chosen at M = {chosen:g} (Table 8), and section 1 and Figure 1 speak of M = "
        f"{drawn:g} alone"
    )


def allocation_remark(paper: PublishedPaper) -> str:
    """A run of Table 12 outside all of Table 11."""
    one = cell(paper, "table-12", ("PACZero, 0.001 nats, constant budget", "2000"), "test")
    twin = cell(paper, "table-11", ("1e-3",), "test")
    tests = [other.value for other in paper.table("table-11").cells if other.column == "test"]
    lower, upper = limits(one.value)
    return (
        f"Table 12's run at 0.001 nats with a constant budget a step, which spends no more than the adaptive "
        f"rule, reaches {one.value:g}; with the adaptive rule Table 11 has {twin.value:g}. The "
        f"{one.value - twin.value:.2f} points between two rules at one budget exceed the "
        f"{max(tests) - min(tests):.2f} that Table 11 spans over all its budgets, so such spans measure no "
        f"more than the luck of a run (95 % interval of the {TEST_RECORDS} records: {lower:.1f} to "
        f"{upper:.1f})"
    )


def quantization_remark(paper: PublishedPaper) -> str:
    """What Table 12 says of quantization, with the test records' uncertainty."""
    texts = []
    for sign, raw, steps in (
        ("quant_full", "raw_full", "2000"),
        ("quant_half", "raw_half", "2000"),
        ("quant_half", "raw_half", "1000"),
    ):
        one, other = (cell(paper, "table-12", (name, steps), "test").value for name in (sign, raw))
        p_value = two_shares_p(one, other)
        texts.append(f"{sign} less {raw} at T = {steps}: {one - other:+.2f} (p = {p_value:.2g})")
    return (
        "Appendix K finds the gain in sign quantization from one pair of runs. The three pairs of Table "
        f"12, each of one seed, by Fisher's exact test for two independent shares of {TEST_RECORDS}: "
        f"{'; '.join(texts)}. How trainings differ is not in it"
    )


def criteria_remark(paper: PublishedPaper) -> str:
    """Table 10's two criteria for a checkpoint and a rank."""
    ranks = ("4", "8", "16")
    by_loss = min(ranks, key=lambda rank: cell(paper, "table-10", (rank,), "best evaluation loss").value)
    by_dev = max(ranks, key=lambda rank: cell(paper, "table-10", (rank,), "dev").value)
    tests = {rank: cell(paper, "table-10", (rank,), "test").value for rank in ranks}
    same = "agree" if by_loss == by_dev else "disagree"
    return (
        "Checkpoints are chosen by the evaluation loss (Table 10's steps), ranks by dev accuracy; in "
        f"Table 10 the two {same}: the lowest loss is rank {by_loss}'s (test {tests[by_loss]:g}), the "
        f"highest dev accuracy rank {by_dev}'s (test {tests[by_dev]:g})"
    )


def two_shares_p(one: float, other: float, records: int = TEST_RECORDS) -> float:
    """Fisher's exact two-sided p-value of two accuracies, taken for independent shares.

    Args:
        one, other: In percent.
        records: Of each.
    """
    from scipy import stats

    counts = [count_of(value, records) for value in (one, other)]
    table = [[count, records - count] for count in counts]
    return float(stats.fisher_exact(table).pvalue)


def _hours_a_step(paper: PublishedPaper, steps: float) -> tuple[float, float]:
    """GPU hours of 1,000 steps of a seed: of the headline cells at so many steps, and of Table 21's ranks."""
    rows = [("SST-2", f"PACZero-MI 6.7B LoRA {nats} nats") for nats in ("0.33", "0.68")]
    hours = sum(cell(paper, "table-20", row, "GPU-hours").value for row in rows)
    seeds = sum(cell(paper, "table-20", row, "n").value for row in rows)
    ranks = [("Table 10", f"6.7B LoRA, rank {rank}") for rank in ("4", "16")]
    other = sum(cell(paper, "table-21", row, "GPU-hours").value for row in ranks)
    runs = sum(
        cell(paper, "table-21", row, "n").value * cell(paper, "table-21", row, "T").value for row in ranks
    )
    return 1000.0 * hours / (seeds * steps), 1000.0 * other / runs


def _and(names: list[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


_LORA_STEPS = (("table-9", "T"), ("table-19", "T, LoRA"))

_UNANIMITY = {
    ("FT", "1.3B", "0.33"): ("table-2", ("0.33",)),
    ("FT", "1.3B", "0.68"): ("table-2", ("0.68",)),
    ("LoRA", "1.3B", "0.33"): ("table-11", ("0.33",)),
    ("LoRA", "1.3B", "0.68"): ("table-11", ("0.68",)),
    ("LoRA", "6.7B", "0.33"): ("table-9", ("10", "0.33")),
    ("LoRA", "6.7B", "0.68"): ("table-9", ("10", "0.68")),
}
"""Cells of Table 6 whose unanimity another table prints too."""
