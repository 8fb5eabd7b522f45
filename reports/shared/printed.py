"""A paper's printed numbers: read by their place, as the intervals that they stand for, and checked.

A printed number is known to half a unit of its last digit. A check fails only if no numbers inside the
intervals satisfy it, so rounding alone never makes a contradiction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median, pstdev, stdev

from workbench.checks.published import (
    PrintedNumber,
    PublishedCell,
    PublishedPaper,
    PublishedTable,
    printed_numbers,
)

SLACK = 1e-9
"""Relative allowance for the rounding of our own arithmetic."""


@dataclass(frozen=True)
class Interval:
    """The interval of numbers that a printed number, or a formula of printed numbers, may stand for."""

    lower: float
    upper: float

    @classmethod
    def of(cls, number: PrintedNumber, *, floor: float = -math.inf) -> Interval:
        """The numbers that print like this one and are not below `floor`."""
        return cls(max(floor, number.value - number.half_unit), max(floor, number.value + number.half_unit))

    def meets(self, other: Interval) -> bool:
        """Whether some number lies in both; False with a NaN."""
        slack = SLACK * max(abs(self.lower), abs(self.upper), abs(other.lower), abs(other.upper))
        return self.lower <= other.upper + slack and other.lower <= self.upper + slack

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lower - other.upper, self.upper - other.lower)

    def times(self, factor: float) -> Interval:
        """The interval with both ends times a factor >= 0."""
        return Interval(self.lower * factor, self.upper * factor)

    @property
    def squared(self) -> Interval:
        """The interval of the squares."""
        low, high = sorted((abs(self.lower), abs(self.upper)))
        return Interval(0.0 if self.lower <= 0.0 <= self.upper else low**2, high**2)


def cell(paper: PublishedPaper, table: str, row: Sequence[str], column: str) -> PublishedCell:
    """A printed cell by table, row and column.

    Raises:
        KeyError: there is none.
    """
    printed_cell = paper.table(table).cell(tuple(row), column)
    if printed_cell is None:
        raise KeyError(f"{table} has no cell {tuple(row)}, {column}")
    return printed_cell


def at(paper: PublishedPaper, path: str) -> PublishedCell:
    """The cell at a path: `"table-1 | FT | 0 nats | PACZero-ZPL | SST-2 1.3B"`, table, row headers, column.

    Raises:
        KeyError: there is none.
    """
    table, *row, column = path.split(" | ")
    return cell(paper, table, row, column)


def said(paper: PublishedPaper, place: str, quantity: str) -> PublishedCell:
    """A number of the text, from the table `statements`.

    Raises:
        KeyError: there is none.
    """
    return cell(paper, "statements", (place, quantity), "value")


def stands_for(printed_cell: PublishedCell, part: int = 0) -> Interval:
    """What a cell's numbers stand for: part 0 is the value, 1 the spread; of an interval, the two ends."""
    return Interval.of(printed_numbers(printed_cell.printed)[part])


def about(interval: Interval) -> Interval:
    """What a round number stands for: half a unit of its last digit that is not zero, 930 for 925 to 935."""
    middle, unit = centre(interval), 1.0
    while middle != 0.0 and math.isclose(middle % (10.0 * unit), 0.0):
        unit *= 10.0
    half = max(0.5 * unit, 0.5 * (interval.upper - interval.lower))
    return interval if middle == 0.0 else Interval(middle - half, middle + half)


def exactly(value: float) -> Interval:
    """The interval of a number that is known exactly."""
    return Interval(value, value)


def centre(interval: Interval) -> float:
    """The midpoint of an interval."""
    return 0.5 * (interval.lower + interval.upper)


def mean(values: Sequence[Interval]) -> Interval:
    """The mean of numbers known to their rounding."""
    total = Interval(sum(interval.lower for interval in values), sum(interval.upper for interval in values))
    return total.times(1.0 / len(values))


def middle(values: Sequence[Interval]) -> Interval:
    """The median of numbers known to their rounding."""
    return Interval(
        median(interval.lower for interval in values), median(interval.upper for interval in values)
    )


def least(values: Sequence[Interval]) -> Interval:
    """The least of numbers known to their rounding."""
    return Interval(min(interval.lower for interval in values), min(interval.upper for interval in values))


def largest(values: Sequence[Interval]) -> Interval:
    """The largest of numbers known to their rounding."""
    return Interval(max(interval.lower for interval in values), max(interval.upper for interval in values))


def deviation(values: Sequence[Interval], kind: str = "sample") -> Interval:
    """Bounds of the `"sample"` or `"population"` standard deviation of numbers known to their rounding.

    That of the middles moves by at most its own Lipschitz constant times the largest rounding error:
    sqrt(n / (n - 1)) for the sample's, 1 for the population's.
    """
    n, middles = len(values), [centre(interval) for interval in values]
    reach = max(0.5 * (interval.upper - interval.lower) for interval in values)
    reach *= math.sqrt(n / (n - 1)) if kind == "sample" else 1.0
    known = stdev(middles) if kind == "sample" else pstdev(middles)
    return Interval(max(0.0, known - reach), known + reach)


TEST_RECORDS = 872
"""Of SST-2's dev set, which has the labels and stands in for a test set (Socher et al. 2013; GLUE)."""


def count_of(percent: float, records: int) -> int:
    """The right answers of so many records that come nearest to a percentage."""
    return round(percent / 100.0 * records)


def shares_p(first: float, second: float, records: int = TEST_RECORDS) -> float:
    """Fisher's exact two-sided p-value of two accuracies in percent, as of independent records."""
    from scipy import stats

    counts = [count_of(value, records) for value in (first, second)]
    return float(stats.fisher_exact([[count, records - count] for count in counts]).pvalue)


def is_share(printed_cell: PublishedCell, records: int) -> bool:
    """Whether a printed percentage is a whole number of so many records, within its rounding."""
    share = 100.0 * count_of(printed_cell.value, records) / records
    return exactly(share).meets(stands_for(printed_cell))


@dataclass(frozen=True)
class Check:
    """The outcome of one kind of check of the paper's numbers.

    Attributes:
        checked: How many places were checked.
        failed: The places that no rounding explains, with the numbers.
        finding: The contradiction in one sentence, or what the check confirms; empty where it says nothing.
        contradiction: Whether `finding` is something that contradicts itself inside the paper.
    """

    name: str
    checked: int
    failed: tuple[str, ...] = ()
    finding: str = ""
    contradiction: bool = False


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


def printed(table: PublishedTable, row: tuple[str, ...], column: str) -> tuple[PrintedNumber, ...]:
    """The numbers that a cell prints.

    Raises:
        KeyError: the table has no such cell.
    """
    cell = table.cell(row, column)
    if cell is None:
        raise KeyError(f"{table.id} has no cell {row}, {column}")
    return printed_numbers(cell.printed)


def repeated_tables(paper: PublishedPaper) -> Check:
    """Tables of different settings whose every number agrees to the digits printed.

    Settings differ only where both tables state one and not the same; what one of them leaves open may agree.
    """
    pairs = [
        (first, second)
        for first, second in combinations(paper.tables, 2)
        if _comparable(first, second) and _conflicts(first, second)
    ]
    same = [(first, second) for first, second in pairs if same_numbers(first.cells, second.cells)]
    groups: list[list[PublishedTable]] = []
    for first, second in same:
        home = next((group for group in groups if first in group or second in group), None)
        if home is None:
            groups.append([first, second])
        else:
            home.extend(table for table in (first, second) if table not in home)
    failed = [
        f"{enumerated([short(table) for table in group])} print the same {_count(group[0])} cells, to the "
        f"digits that are printed, under different settings ({_settings(group)})"
        for group in groups
    ]
    return check("repeated tables", len(pairs), failed)


def repeated_rows(first: PublishedTable, second: PublishedTable) -> Check:
    """Blocks of rows that two tables share, number for number, under different first headers.

    Args:
        first, second: Tables with equal columns whose first row header is the setting.
    """
    failed: list[str] = []
    blocks = [(a, b) for a in _first_headers(first) for b in _first_headers(second)]
    for a, b in blocks:
        mine = [cell for cell in first.cells if cell.row[0] == a]
        theirs = [cell for cell in second.cells if cell.row[0] == b]
        if _same_places(mine, theirs) and same_numbers(tuple(mine), tuple(theirs)):
            failed.append(
                f"{short(first)}, {first.row_headers[0]} {a}, and "
                f"{short(second)}, {second.row_headers[0]} {b}, print the same {len(mine)} cells"
            )
    return check(f"repeated rows of {first.id} and {second.id}", len(blocks), failed)


def short(table: PublishedTable) -> str:
    """A table's place without its section: `Table 5`."""
    return table.place.partition(" (")[0]


def _settings(group: list[PublishedTable]) -> str:
    """The settings in which tables contradict each other, a table at a time."""
    names = dict.fromkeys(
        name for first, second in combinations(group, 2) for name in _conflicts(first, second)
    )
    return "; ".join(
        f"{short(table)}: "
        + ", ".join(f"{name} {table.settings[name]}" for name in names if name in table.settings)
        for table in group
    )


def _conflicts(first: PublishedTable, second: PublishedTable) -> list[str]:
    """Settings that both tables state, and not as the same."""
    return [
        name
        for name, value in first.settings.items()
        if name in second.settings and second.settings[name] != value
    ]


def _first_headers(table: PublishedTable) -> list[str]:
    return list(dict.fromkeys(cell.row[0] for cell in table.cells))


def _comparable(first: PublishedTable, second: PublishedTable) -> bool:
    return (
        first.columns == second.columns
        and first.row_headers == second.row_headers
        and _count(first) > 0
        and [(cell.row, cell.column) for cell in first.cells]
        == [(cell.row, cell.column) for cell in second.cells]
    )


def _same_places(first: list[PublishedCell], second: list[PublishedCell]) -> bool:
    return [(cell.row[1:], cell.column) for cell in first] == [(cell.row[1:], cell.column) for cell in second]


def same_numbers(first: tuple[PublishedCell, ...], second: tuple[PublishedCell, ...]) -> bool:
    """Whether all cells, taken in pairs, may have been printed from the same numbers."""
    return all(
        _agree(a, b) for mine, theirs in zip(first, second, strict=True) for a, b in _pairs(mine, theirs)
    )


def _pairs(first: PublishedCell, second: PublishedCell) -> Iterator[tuple[PrintedNumber, PrintedNumber]]:
    if math.isnan(first.value) and math.isnan(second.value):
        return iter(())
    return zip(printed_numbers(first.printed), printed_numbers(second.printed), strict=True)


def _agree(first: PrintedNumber, second: PrintedNumber) -> bool:
    """Whether one number may have been printed as both, each at its own number of digits."""
    if math.isnan(first.value) or math.isnan(second.value):
        return math.isnan(first.value) and math.isnan(second.value)
    return Interval.of(first).meets(Interval.of(second)) and (
        first.decimals != second.decimals or first.value == second.value
    )


def _count(table: PublishedTable) -> int:
    return sum(not math.isnan(cell.value) for cell in table.cells)


def enumerated(items: Sequence[str]) -> str:
    """A list in words: `"1, 2 and 3"`."""
    return " and ".join(", ".join(items).rsplit(", ", 1))
