"""Shuffled DPSGD's printed times: the overhead, and what the two tables of times say of each other.

The GPU's peaks: NVIDIA, "Ampere GA102 GPU Architecture" (2021), GeForce RTX 3090: 35.6 TFLOPS in single
precision and 936 GB/s.
"""

from __future__ import annotations

from workbench.checks.published import PublishedPaper
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import (
    cell,
    centre,
    check,
    said,
    seconds,
    stands_for,
)
from workbench.reports.shared.published_checks import Check, Interval
from workbench.studies.report import Cell, Table, Value

PEAK_TERAFLOPS = 35.6
PEAK_GIGABYTES = 936.0
"""A second, of the RTX 3090."""

BYTES = 4
"""Of a number in single precision."""


def overheads(paper: PublishedPaper) -> dict[tuple[str, ...], tuple[Interval, Interval]]:
    """Seconds of an epoch without and with shuffling, by model and dataset."""
    table = paper.table("table-8")
    rows = dict.fromkeys(one.row for one in table.cells)
    return {
        row: (
            seconds(cell(paper, table.id, row, "unshuffled")),
            seconds(cell(paper, table.id, row, "shuffled")),
        )
        for row in rows
    }


def overhead_check(paper: PublishedPaper) -> Check:
    """Section VI-G's 2.3 % against Table VIII, in each sense that it may have."""
    stated = said(paper, "section VI-G", "overhead of the training time, percent")
    times = overheads(paper)
    readings: dict[str, Interval] = {row[0]: share_of_epochs([pair]) for row, pair in times.items()}
    shares = list(readings.values())
    readings["all epochs together"] = share_of_epochs(list(times.values()))
    readings["the mean of the five"] = Interval(
        sum(one.lower for one in shares) / len(shares), sum(one.upper for one in shares) / len(shares)
    )
    failed = []
    if not any(one.meets(stands_for(stated)) for one in readings.values()):
        failed.append("; ".join(f"{name} {centre(one):.2g} %" for name, one in readings.items()))
    start = (
        f"Section VI-G says that shuffling takes {stated.value:g} % of the training time; Table VIII's times "
        "give, as a share of the shuffled epoch, another number in every sense: "
    )
    right = f"Table VIII gives the {stated.value:g} % of section VI-G in one of the senses it may have"
    return check("overhead", len(readings), failed, right=right, start=start)


def products_remark(paper: PublishedPaper) -> str:
    """What rates Table VII's times mean on the stated GPU."""
    rows, columns = (
        said(paper, "section VI-G", f"{name} of the matrix").value for name in ("rows", "columns")
    )
    index, dense = (
        cell(paper, "table-7", (name,), "milliseconds").value / 1e3
        for name in ("index shuffle", "matrix multiplication")
    )
    bandwidth = 2.0 * BYTES * rows * columns / index / 1e9
    rate = 2.0 * rows * rows * columns / dense / 1e12
    fast = 2.0 * rows * rows * columns / (PEAK_TERAFLOPS * 1e12)
    return (
        f"Table VII's index shuffle, one pass over {rows:g} by {columns:g} numbers of {BYTES} bytes, moves "
        f"{bandwidth:.0f} GB/s ({100 * bandwidth / PEAK_GIGABYTES:.0f} % of an RTX 3090's peak); its matrix "
        f"product does {rate:.2g} teraflops ({100 * rate / PEAK_TERAFLOPS:.0f} % of the peak in single "
        f"precision; twice that if rows and columns are two products). At the peak a product takes "
        f"{1e3 * fast:.0f} ms, of which an index shuffle is {100 * index / fast:.1f} %, not "
        f"{100 * index / dense:.1g} %"
    )


def epochs_remark(paper: PublishedPaper) -> str:
    """How many index shuffles of a whole model Table VIII's overheads would be."""
    numbers = (
        said(paper, "section VI-G", "rows of the matrix").value
        * said(paper, "section VI-G", "columns of the matrix").value
    )
    each = cell(paper, "table-7", ("index shuffle",), "milliseconds").value / 1e3 / numbers
    texts = []
    for row, (before, after) in overheads(paper).items():
        if "(on A100)" in row[1] or row[0] == "GPT-2-large":
            continue
        name, dataset = row
        d = 1e6 * cell(paper, "table-1", (name,), "trainable parameters").value
        shuffles = centre(after - before) / (each * d)
        records = _records(paper, dataset)
        texts.append(f"{name} {shuffles:,.0f} (batches of {records / shuffles:.1f})")
    return (
        "At Table VII's rate the overheads of Table VIII on the same GPU are so many shuffles of every "
        f"number of the model in an epoch: {'; '.join(texts)}. With larger batches most of the overhead is "
        "something else than moving numbers, such as drawing permutations or clipping the batch"
    )


def overhead_table(paper: PublishedPaper) -> Table:
    """Table VIII with the overhead in seconds and as a share."""
    columns = ("unshuffled, seconds", "shuffled, seconds", "overhead, seconds", "overhead, percent")
    rows = []
    for row, (before, after) in overheads(paper).items():
        share = share_of_epochs([(before, after)])
        values = (before, after, after - before, share)
        cells = tuple(
            Cell(ours=Value(estimate=centre(one), lower=one.lower, upper=one.upper)) for one in values
        )
        rows.append((row, cells))
    return Table(
        id="paper-overhead",
        title="The paper's epoch times with the overhead of shuffling",
        row_headers=("model", "dataset"),
        columns=columns,
        rows=tuple(rows),
        notes=(
            "All numbers are the paper's; bounds are those of rounding to whole seconds. How epochs vary is "
            "not printed. The percentage is of the shuffled epoch.",
        ),
        decimals=dict(zip(columns, (0, 0, 0, 1), strict=True)),
    )


def share_of_epochs(pairs: list[tuple[Interval, Interval]]) -> Interval:
    """Overhead of all shuffled epochs, in percent of them."""
    before = Interval(sum(one.lower for one, _ in pairs), sum(one.upper for one, _ in pairs))
    after = Interval(sum(one.lower for _, one in pairs), sum(one.upper for _, one in pairs))
    return Interval(100.0 * (1.0 - before.upper / after.lower), 100.0 * (1.0 - before.lower / after.upper))


def _records(paper: PublishedPaper, dataset: str) -> float:
    """Training records of a dataset that Table VIII names (CIFAR is CIFAR-100)."""
    table = paper.table("table-1-datasets")
    (row,) = {one.row for one in table.cells if one.row[1].startswith(dataset)}
    return cell(paper, table.id, row, "training records").value
