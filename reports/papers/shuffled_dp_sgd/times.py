"""Shuffled DPSGD's Tables VII and VIII: what shuffling costs, as ratios.

A time means something beside another one of the same process alone. Of Table VII the ratios to a matrix
product count, which a benchmark measures and no study; of Table VIII the share of a training's steps that
their permutations took, timed inside the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.reports.papers.shuffled_dp_sgd.cells import Context, scale_notes
from workbench.reports.papers.shuffled_dp_sgd.layout import (
    INVARIANCE,
    NON_PRIVATE,
    NON_PRIVATE_SHUFFLED,
    OVERHEAD,
    SHUFFLING_SHARE,
    STEP_SECONDS,
    TWIN,
    TWIN_SHUFFLED,
    Setting,
)
from workbench.reports.papers.shuffled_dp_sgd.paper_cells import centre
from workbench.reports.papers.shuffled_dp_sgd.paper_times import overheads, share_of_epochs
from workbench.reports.shared.paper_cells import Row, blank, printed_place, rows_of
from workbench.reports.shared.paper_conditions import differences
from workbench.reports.shared.paper_samples import UNIT
from workbench.reports.shared.published_checks import Interval
from workbench.reports.shared.statistics import Sample, matched
from workbench.studies.report import Cell, Table, Value

TIMED = (OVERHEAD, INVARIANCE)
"""Groups whose runs are timed; the first that has any."""

TARGET = 2.0
"""Percent of an epoch that shuffling should take at most."""

PRODUCTS = "python benchmarks/shuffle_overhead.py"
RATIO = "the paper's: percent of it that an index shuffle takes"
SHARE, RATIO_OF_TWINS, BOTH = (
    "shuffling, percent of the steps",
    "step, shuffled over unshuffled",
    "without privacy",
)


def time_tables(context: Context) -> list[Table]:
    """Tables VII and VIII."""
    made = (_products(context), _epochs(context))
    return [table for table in made if table is not None]


def _products(context: Context) -> Table | None:
    printed = context.published("table-7")
    if printed is None:
        return None
    index = context.printed("table-7", ("index shuffle",), "milliseconds")
    why = f"no part of a study: `{PRODUCTS}` measures it on this machine"
    rows: list[Row] = []
    for row in rows_of(printed):
        cell = context.printed("table-7", row, "milliseconds")
        ratio = (
            Cell(why_blank="a time is missing")
            if index is None or cell is None
            else Cell(
                ours=Value(estimate=100.0 * index.value / cell.value), why_blank="computed, not printed"
            )
        )
        rows.append((row, (Cell(paper=cell, why_blank=f"ours: {why}"), ratio)))
    return printed_place(
        printed,
        "table-7",
        "Shuffling a matrix of 10,000 by 10,000",
        headers=printed.row_headers,
        columns=("milliseconds", RATIO),
        rows=rows,
        notes=(
            "The percentages are of the paper's own times: a time of our machine beside one of an RTX 3090 "
            "says nothing, and the ratios do.",
            f"Ours: `{PRODUCTS}` times index shuffle, dense and sparse product in turns in one process, and "
            "writes the ratios with their range to `benchmarks/results/shuffle_overhead.md`.",
        ),
        decimals={"milliseconds": 4, RATIO: 3},
    )


def timed(context: Context, setting: Setting, name: str) -> Sample | None:
    """A time of the runs of a setting in the first group that has any."""
    return context.measured.sample(TIMED, setting, name)


def step_ratio(context: Context, shuffled: Setting, plain: Setting) -> Sample | str:
    """Step time of a setting over that of another, one a seed; the reason where there is none."""
    first, second = (timed(context, one, STEP_SECONDS) for one in (shuffled, plain))
    if first is None or second is None:
        return context.measured.missing(TIMED, shuffled if first is None else plain)
    pair = matched(first, second)
    if pair.first is None or pair.second is None or isinstance(differences(first, second), str):
        return f"no {UNIT} has both"
    if not np.all(pair.second.values > 0.0):
        return "a step has no time"
    return Sample(pair.first.values / pair.second.values, pair.first.units, UNIT)


def _epochs(context: Context) -> Table | None:
    printed = context.published("table-8")
    theirs = {} if printed is None or context.paper is None else overheads(context.paper)
    places: dict[str, tuple[str, ...]] = {row[0]: row for row in theirs}
    for model, dataset in context.measured.places(TIMED):
        places.setdefault(model, (model, dataset))
    if not places:
        return None
    columns = ("the paper's overhead, percent", SHARE, RATIO_OF_TWINS, f"{SHARE}, {BOTH}")
    rows: list[Row] = []
    for model, row in places.items():
        twin = Setting(model=model, variant=TWIN_SHUFFLED)
        bare = Setting(model=model, variant=NON_PRIVATE_SHUFFLED)
        own = step_ratio(context, twin, Setting(model=model, variant=TWIN))
        cells = (
            _theirs(theirs.get(row)),
            _share(context, twin),
            blank(None, own) if isinstance(own, str) else Cell(ours=context.mean(own)),
            _share(context, bare),
        )
        rows.append((row, cells))
    return printed_place(
        printed,
        "table-8",
        "What shuffling adds to an epoch",
        headers=("model", "dataset"),
        columns=columns,
        rows=rows,
        notes=(
            "The paper's: of the shuffled epoch, from its two printed times, bounds of their rounding to "
            f"whole seconds. Ours: target {TARGET:g} %, {_met(rows)}.",
            "Percent of the steps: the time inside the steps of a shuffled training that drawing and "
            "applying the permutations took, over that of the steps. Other runs beside it slow both down "
            "alike.",
            f'Step, shuffled over unshuffled: "{TWIN_SHUFFLED}" over "{TWIN}" of the same {UNIT}, which ran '
            "at another time: it holds whatever else the machine did then, and needs a quiet one. "
            f'Without privacy: "{NON_PRIVATE_SHUFFLED}" (its twin is "{NON_PRIVATE}"), whose steps are '
            "shorter.",
            *scale_notes(context, TIMED),
        ),
        decimals=dict(zip(columns, (1, 2, 3, 2), strict=True)),
    )


def _met(rows: Sequence[Row]) -> str:
    """Where the target is met, and where it is not, in words."""
    shares: dict[bool, list[str]] = {True: [], False: []}
    for headers, cells in rows:
        for cell, what in ((cells[1], ""), (cells[3], f" {BOTH}")):
            if cell.ours is not None:
                shares[cell.ours.estimate <= TARGET].append(f"{headers[0]}{what}")
    met = f"met by {', '.join(shares[True])}" if shares[True] else "met nowhere"
    return f"{met}, not met by {', '.join(shares[False])}" if shares[False] else met


def _theirs(times: tuple[Interval, Interval] | None) -> Cell:
    if times is None:
        return Cell(why_blank="not printed")
    share = share_of_epochs([times])
    return Cell(ours=Value(estimate=centre(share), lower=share.lower, upper=share.upper))


def _share(context: Context, setting: Setting) -> Cell:
    sample = timed(context, setting, SHUFFLING_SHARE)
    if sample is None:
        return blank(None, context.measured.missing(TIMED, setting))
    return Cell(ours=context.mean(sample))
