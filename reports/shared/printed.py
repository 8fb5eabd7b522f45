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
    """All numbers that a printed number, or a formula of printed numbers, may stand for."""

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
        """All numbers times a factor >= 0."""
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
    found = paper.table(table).cell(tuple(row), column)
    if found is None:
        raise KeyError(f"{table} has no cell {tuple(row)}, {column}")
    return found


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


def stands_for(one: PublishedCell, part: int = 0) -> Interval:
    """What a cell's numbers stand for: part 0 is the value, 1 the spread; of an interval, the two ends."""
    return Interval.of(printed_numbers(one.printed)[part])


def about(one: Interval) -> Interval:
    """What a round number stands for: half a unit of its last digit that is not zero, 930 for 925 to 935."""
    middle, unit = centre(one), 1.0
    while middle != 0.0 and math.isclose(middle % (10.0 * unit), 0.0):
        unit *= 10.0
    half = max(0.5 * unit, 0.5 * (one.upper - one.lower))
    return one if middle == 0.0 else Interval(middle - half, middle + half)


def exactly(value: float) -> Interval:
    """The interval of a number that is known exactly."""
    return Interval(value, value)


def centre(one: Interval) -> float:
    """The midpoint of an interval."""
    return 0.5 * (one.lower + one.upper)


def mean(values: Sequence[Interval]) -> Interval:
    """Of numbers known to their rounding."""
    total = Interval(sum(one.lower for one in values), sum(one.upper for one in values))
    return total.times(1.0 / len(values))


def middle(values: Sequence[Interval]) -> Interval:
    """The median of numbers known to their rounding."""
    return Interval(median(one.lower for one in values), median(one.upper for one in values))


def least(values: Sequence[Interval]) -> Interval:
    """The least of numbers known to their rounding."""
    return Interval(min(one.lower for one in values), min(one.upper for one in values))


def largest(values: Sequence[Interval]) -> Interval:
    """The largest of numbers known to their rounding."""
    return Interval(max(one.lower for one in values), max(one.upper for one in values))


def deviation(values: Sequence[Interval], kind: str = "sample") -> Interval:
    """Bounds of the `"sample"` or `"population"` standard deviation of numbers known to their rounding.

    That of the middles moves by at most its own Lipschitz constant times the largest rounding error:
    sqrt(n / (n - 1)) for the sample's, 1 for the population's.
    """
    n, middles = len(values), [centre(one) for one in values]
    reach = max(0.5 * (one.upper - one.lower) for one in values)
    reach *= math.sqrt(n / (n - 1)) if kind == "sample" else 1.0
    known = stdev(middles) if kind == "sample" else pstdev(middles)
    return Interval(max(0.0, known - reach), known + reach)


TEST_RECORDS = 872
"""Of SST-2's dev set, which has the labels and stands in for a test set (Socher et al. 2013; GLUE)."""


def count_of(percent: float, records: int) -> int:
    """The right answers of so many records that come nearest to a percentage."""
    return round(percent / 100.0 * records)


def shares_p(one: float, other: float, records: int = TEST_RECORDS) -> float:
    """Fisher's exact two-sided p-value of two accuracies in percent, as of independent records."""
    from scipy import stats

    counts = [count_of(value, records) for value in (one, other)]
    return float(stats.fisher_exact([[count, records - count] for count in counts]).pvalue)


def is_share(one: PublishedCell, records: int) -> bool:
    """Whether a printed percentage is a whole number of so many records, within its rounding."""
    share = 100.0 * count_of(one.value, records) / records
    return exactly(share).meets(stands_for(one))


@dataclass(frozen=True)
class Check:
    """What came of one kind of check.

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
        (one, other)
        for one, other in combinations(paper.tables, 2)
        if _comparable(one, other) and _conflicts(one, other)
    ]
    same = [(one, other) for one, other in pairs if same_numbers(one.cells, other.cells)]
    groups: list[list[PublishedTable]] = []
    for one, other in same:
        home = next((group for group in groups if one in group or other in group), None)
        if home is None:
            groups.append([one, other])
        else:
            home.extend(table for table in (one, other) if table not in home)
    failed = [
        f"{enumerated([short(table) for table in group])} print the same {_count(group[0])} cells, to the "
        f"digits that are printed, under different settings ({_settings(group)})"
        for group in groups
    ]
    return check("repeated tables", len(pairs), failed)


def repeated_rows(one: PublishedTable, other: PublishedTable) -> Check:
    """Blocks of rows that two tables share, number for number, under different first headers.

    Args:
        one, other: Tables with equal columns whose first row header is the setting.
    """
    failed: list[str] = []
    blocks = [(a, b) for a in _first_headers(one) for b in _first_headers(other)]
    for a, b in blocks:
        mine = [cell for cell in one.cells if cell.row[0] == a]
        theirs = [cell for cell in other.cells if cell.row[0] == b]
        if _same_places(mine, theirs) and same_numbers(tuple(mine), tuple(theirs)):
            failed.append(
                f"{short(one)}, {one.row_headers[0]} {a}, and {short(other)}, {other.row_headers[0]} {b}, "
                f"print the same {len(mine)} cells"
            )
    return check(f"repeated rows of {one.id} and {other.id}", len(blocks), failed)


def short(table: PublishedTable) -> str:
    """A table's place without its section: `Table 5`."""
    return table.place.partition(" (")[0]


def _settings(group: list[PublishedTable]) -> str:
    """The settings in which tables contradict each other, a table at a time."""
    names = dict.fromkeys(name for one, other in combinations(group, 2) for name in _conflicts(one, other))
    return "; ".join(
        f"{short(table)}: "
        + ", ".join(f"{name} {table.settings[name]}" for name in names if name in table.settings)
        for table in group
    )


def _conflicts(one: PublishedTable, other: PublishedTable) -> list[str]:
    """Settings that both tables state, and not as the same."""
    return [
        name
        for name, value in one.settings.items()
        if name in other.settings and other.settings[name] != value
    ]


def _first_headers(table: PublishedTable) -> list[str]:
    return list(dict.fromkeys(cell.row[0] for cell in table.cells))


def _comparable(one: PublishedTable, other: PublishedTable) -> bool:
    return (
        one.columns == other.columns
        and one.row_headers == other.row_headers
        and _count(one) > 0
        and [(cell.row, cell.column) for cell in one.cells]
        == [(cell.row, cell.column) for cell in other.cells]
    )


def _same_places(one: list[PublishedCell], other: list[PublishedCell]) -> bool:
    return [(cell.row[1:], cell.column) for cell in one] == [(cell.row[1:], cell.column) for cell in other]


def same_numbers(one: tuple[PublishedCell, ...], other: tuple[PublishedCell, ...]) -> bool:
    """Whether all cells, taken in pairs, may have been printed from the same numbers."""
    return all(_agree(a, b) for mine, theirs in zip(one, other, strict=True) for a, b in _pairs(mine, theirs))


def _pairs(one: PublishedCell, other: PublishedCell) -> Iterator[tuple[PrintedNumber, PrintedNumber]]:
    if math.isnan(one.value) and math.isnan(other.value):
        return iter(())
    return zip(printed_numbers(one.printed), printed_numbers(other.printed), strict=True)


def _agree(one: PrintedNumber, other: PrintedNumber) -> bool:
    """Whether one number may have been printed as both, each at its own number of digits."""
    if math.isnan(one.value) or math.isnan(other.value):
        return math.isnan(one.value) and math.isnan(other.value)
    return Interval.of(one).meets(Interval.of(other)) and (
        one.decimals != other.decimals or one.value == other.value
    )


def _count(table: PublishedTable) -> int:
    return sum(not math.isnan(cell.value) for cell in table.cells)


def enumerated(items: Sequence[str]) -> str:
    """A list in words: `"1, 2 and 3"`."""
    return " and ".join(", ".join(items).rsplit(", ", 1))
