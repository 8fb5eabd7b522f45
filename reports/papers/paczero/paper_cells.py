"""PACZero's printed cells: read by their place, as the intervals that they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any

from workbench.checks.published import PublishedCell, PublishedPaper, PublishedTable, printed_numbers
from workbench.reports.shared.published_checks import Check, Interval

TEST_RECORDS = 872
"""Of SST-2's dev set, which has the labels and stands in for a test set (Socher et al. 2013; GLUE)."""

SST2_COLUMNS = {
    "table-2": ("test",),
    "table-3": ("0.2", "0.3", "0.5", "1.0", "2.0"),
    "table-4": ("1st", "2nd", "3rd", "4th"),
    "table-5": ("1st", "2nd", "3rd"),
    "table-8": ("test",),
    "table-9": ("test",),
    "table-10": ("test",),
    "table-11": ("test",),
    "table-12": ("test",),
    "table-13": ("1st", "2nd", "3rd"),
    "table-14": ("test",),
    "table-15": ("seed 0, test", "seed 1, test", "seed 2, test"),
    "table-16": ("test",),
    "table-17": ("test",),
    "table-18": ("test",),
    "table-19": ("test",),
}
"""Where accuracies of SST-2 on the test records are printed; those with a spread are means."""

DEV_COLUMNS = {
    **{f"table-{number}": ("dev",) for number in (2, 8, 9, 10, 11, 14, 16, 17, 18, 19)},
    "table-15": ("seed 0, dev", "seed 1, dev", "seed 2, dev"),
}
"""Where accuracies on the dev records are printed."""

LARGER_CLASS = 444
"""Of them are positive: a model that says so of all is right on 50.92 %."""

TASKS = {"sst2": "SST-2", "squad": "SQuAD"}


def cell(paper: PublishedPaper, table: str, row: Sequence[str], column: str) -> PublishedCell:
    """A printed cell.

    Raises:
        KeyError: there is none.
    """
    found = paper.table(table).cell(tuple(row), column)
    if found is None:
        raise KeyError(f"{table} has no cell {tuple(row)}, {column}")
    return found


def at(paper: PublishedPaper, path: str) -> PublishedCell:
    """The cell of a claim's setting.

    Args:
        paper: PACZero's printed numbers.
        path: `"table-1 | FT | 0 nats | PACZero-ZPL | SST-2 1.3B"`: table, row headers, column.

    Raises:
        KeyError: there is none.
    """
    table, *row, column = path.split(" | ")
    return cell(paper, table, row, column)


def said(paper: PublishedPaper, place: str, quantity: str) -> PublishedCell:
    """A number of the text.

    Raises:
        KeyError: there is none.
    """
    return cell(paper, "statements", (place, quantity), "value")


def stands_for(one: PublishedCell, part: int = 0) -> Interval:
    """The numbers that one of a cell's numbers stands for.

    Args:
        one: Printed.
        part: 0 is the value, 1 the spread; of an interval 0 and 1 are its ends.
    """
    return Interval.of(printed_numbers(one.printed)[part])


def named(one: PublishedCell) -> str:
    """A cell's place in words: `Table 4, FT, 1.3B, 0.33, 1st`."""
    table = one.table.replace("table-", "Table ").replace("appendix-e", "Appendix E")
    table = "the text" if table == "statements" else table
    return ", ".join((table, *one.row, *(() if one.column in ("test", "value") else (one.column,))))


def setting_named(setting: Mapping[str, Any]) -> str:
    """A claim's setting in words: `PACZero-MI, FT, 1.3B, sst2, 0.33 nats`."""
    words = [str(setting[name]) for name in ("method", "track", "model", "task") if name in setting]
    words = [TASKS.get(word, word) for word in words]
    units = {"nats": "{:g} nats", "epsilon": "epsilon {:g}", "directions": "K = {}", "steps": "T = {}"}
    units |= {"clip": "clip {:g}"}
    return ", ".join(words + [text.format(setting[name]) for name, text in units.items() if name in setting])


def singles(paper: PublishedPaper, columns: Mapping[str, Sequence[str]]) -> list[PublishedCell]:
    """The cells of these columns that are one training's, not a mean's."""
    return [
        one
        for name, chosen in columns.items()
        for one in paper.table(name).cells
        if one.column in chosen and one.spread is None
    ]


def mean(values: Sequence[Interval]) -> Interval:
    """Of numbers known to their rounding."""
    return Interval(sum(one.lower for one in values), sum(one.upper for one in values)).times(
        1.0 / len(values)
    )


def deviation(values: Sequence[Interval]) -> Interval:
    """Bounds of the sample standard deviation of numbers known to their rounding.

    That of the middles moves by at most sqrt(n / (n - 1)) times the largest rounding error.
    """
    n = len(values)
    reach = max(0.5 * (one.upper - one.lower) for one in values) * math.sqrt(n / (n - 1))
    middle = stdev(centre(one) for one in values)
    return Interval(max(0.0, middle - reach), middle + reach)


def centre(one: Interval) -> float:
    """Of an interval."""
    return 0.5 * (one.lower + one.upper)


def count_of(percent: float, records: int) -> int:
    """The right answers of so many records that come nearest to a percentage."""
    return round(percent / 100.0 * records)


def is_share(one: PublishedCell, records: int) -> bool:
    """Whether a printed percentage is a whole number of so many records, within its rounding."""
    share = 100.0 * count_of(one.value, records) / records
    return Interval(share, share).meets(stands_for(one))


def short(table: PublishedTable) -> str:
    """`Table 5`."""
    return table.place.partition(" (")[0]


def check(
    name: str,
    checked: int,
    failed: Sequence[str],
    *,
    right: str = "",
    start: str = "",
    contradiction: bool = True,
) -> Check:
    """A check whose finding lists what failed, or says what it confirms.

    Args:
        name: Short, for tests.
        checked: Places.
        failed: A clause each.
        right: The finding where nothing failed.
        start: Put before the list of what failed.
        contradiction: Whether what failed contradicts the paper; else it is worth a remark.
    """
    return Check(
        name=name,
        checked=checked,
        failed=tuple(failed),
        finding=start + "; ".join(failed) if failed else right,
        contradiction=contradiction and bool(failed),
    )
