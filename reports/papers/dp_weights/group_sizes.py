"""Which numbers of members and non-members could print DP-Weights' attack metrics.

With m members and n non-members, recall is a multiple of 1/m, accuracy of 1/(m + n), and ROC AUC of
1/(2 m n). So are differences between two models; a median of 28 of them is a multiple of half that, a mean
absolute difference of 1/28 of it, and a mean squared one of 1/28 of its square (the test of granularity known
as GRIM). What coarse groups could print, groups that are a multiple of them could print too, so that large
groups are never excluded; what can be said of them is how unlikely it is that they print coarse numbers
alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.checks.published import PublishedPaper, PublishedTable
from workbench.reports.papers.dp_weights.runs import (
    COMPARISONS,
    EPSILONS,
    FINE_TUNED,
    GRIDS,
    MODELS,
    detail_tables,
)
from workbench.reports.shared.printed import Interval, printed, same_numbers
from workbench.reports.shared.statements import Found

MOST = 1000
_SLACK = 1e-9

COUNTED = ("recall", "accuracy", "roc_auc")
"""Metrics that are a count over a number of records or pairs."""


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Printed distances between two models in one metric, as intervals.

    Attributes:
        mean_absolute: MAE, a multiple of 1/28 of the metric's unit.
        mean_squared: What MSE and RMSE allow together, a multiple of 1/28 of the unit's square.
        median: MedAE, a multiple of half the unit.
        decimals: Printed digits of `median`.
    """

    mean_absolute: Interval
    mean_squared: Interval
    median: Interval
    decimals: int

    def fit(self, size: int) -> bool:
        """Whether differences k_i / size with whole k_i could print these distances.

        The k_i have sum |k_i| <= sum k_i^2, both even or both odd, and (sum |k_i|)^2 <= 28 sum k_i^2.
        """
        if not _whole(self.median.times(2 * size)):
            return False
        sums = _wholes(self.mean_absolute.times(EPSILONS * size))
        squares = _wholes(self.mean_squared.times(EPSILONS * size**2))
        return any(
            total <= square and (square - total) % 2 == 0 and total**2 <= EPSILONS * square
            for total in sums
            for square in squares
        )


@dataclass(frozen=True, kw_only=True)
class GroupSizes:
    """Sizes that could have printed the numbers.

    Attributes:
        members: Numbers of members in [1, 1000] that fit every recall.
        both: Numbers of records in [2, 2000] that fit every accuracy.
        pairs: `pairs[m - 1, n - 1]` says whether m members and n non-members fit everything, shape
            `(1000, 1000)`.
    """

    members: tuple[int, ...]
    both: tuple[int, ...]
    pairs: npt.NDArray[np.bool_]

    @property
    def smallest(self) -> tuple[int, int]:
        """The pair with the fewest records."""
        m, n = np.nonzero(self.pairs)
        best = int(np.argmin(m + n))
        return int(m[best]) + 1, int(n[best]) + 1

    @property
    def equal(self) -> list[int]:
        """Sizes that fit for both groups at once."""
        return [int(k) + 1 for k in np.nonzero(np.diag(self.pairs))[0]]


def group_sizes(paper: PublishedPaper) -> GroupSizes:
    """The sizes of both groups up to 1000 that fit all fine-tuned rows and all distances."""
    rows = fine_tuned_rows(paper)
    distances = {metric: attack_distances(paper, metric) for metric in COUNTED}
    members = _sizes(distances["recall"], [row["recall"] for row in rows], MOST)
    both = _sizes(distances["accuracy"], [row["accuracy"] for row in rows], 2 * MOST)
    fits_both = np.zeros(2 * MOST + 1, dtype=np.bool_)
    fits_both[both] = True
    n = np.arange(1, MOST + 1)
    pairs = np.zeros((MOST, MOST), dtype=np.bool_)
    for m in members:
        fits = fits_both[m + n]
        for distance in distances["roc_auc"]:
            fits = fits & _has_whole(distance.median, 4 * m * n)
        for row in rows:
            fits = fits & _has_whole(row["roc_auc"], 2 * m * n)
        for row in rows:
            left = np.flatnonzero(fits)
            if not left.size:
                break
            fits[left] = _counts_fit(row, m, n[left])
        pairs[m - 1] = fits
    return GroupSizes(members=tuple(members), both=tuple(both), pairs=pairs)


def fine_tuned_rows(paper: PublishedPaper) -> list[dict[str, Interval]]:
    """The fine-tuned rows of Tables 1 and 2, intervals by metric, each different row once."""
    rows: dict[tuple[float, ...], dict[str, Interval]] = {}
    for grid in GRIDS.values():
        for value in grid.details:
            row = (str(value), MODELS[FINE_TUNED])
            cells = {
                metric: printed(paper.table(grid.means), row, metric)[0]
                for metric in ("precision", "f1", *COUNTED)
            }
            rows[tuple(cell.value for cell in cells.values())] = {
                metric: Interval.of(cell, floor=0.0) for metric, cell in cells.items()
            }
    return list(rows.values())


def distinct_tables(paper: PublishedPaper) -> list[PublishedTable]:
    """Tables 3 to 10 without those whose numbers an earlier one has."""
    kept: list[PublishedTable] = []
    for table, _, _ in detail_tables(paper):
        if not any(same_numbers(table.cells, earlier.cells) for earlier in kept):
            kept.append(table)
    return kept


def attack_distances(paper: PublishedPaper, metric: str) -> list[Distances]:
    """All printed distances in a metric, of each pair of models in each different table."""
    distances = []
    for table in distinct_tables(paper):
        for column in COMPARISONS:
            absolute, squared, root, median = (
                printed(table, (measure, metric), column)[0] for measure in ("MAE", "MSE", "RMSE", "MedAE")
            )
            from_squared, from_root = Interval.of(squared, floor=0.0), Interval.of(root, floor=0.0).squared
            distances.append(
                Distances(
                    mean_absolute=Interval.of(absolute, floor=0.0),
                    mean_squared=Interval(
                        max(from_squared.lower, from_root.lower), min(from_squared.upper, from_root.upper)
                    ),
                    median=Interval.of(median, floor=0.0),
                    decimals=median.decimals,
                )
            )
    return distances


def group_size_check(paper: PublishedPaper) -> Found:
    """The stated group sizes against what the printed attack metrics allow."""
    sizes = group_sizes(paper)
    settings = paper.table("table-1").settings
    stated = int(settings["members"]), int(settings["non_members"])
    m, n = sizes.smallest
    tables = len(distinct_tables(paper))
    chance, coarsest = 1.0, ""
    parts, checked, coarse = [], 0, 0
    for metric, unit in zip(COUNTED, (2 * m, 2 * (m + n), 2 * m * n), strict=True):
        cells = attack_distances(paper, metric)
        on_grid = sum(_whole(cell.median.times(unit)) for cell in cells)
        checked, coarse = checked + len(cells), coarse + on_grid
        chance_here = min(1.0, (unit + 1) / 10 ** cells[0].decimals) ** tables
        if chance_here < chance:
            chance, coarsest = chance_here, metric
        parts.append((metric, on_grid, len(cells), 1 / unit))
    facts = {
        "suspicious": coarse == checked and chance < 1e-6 and stated != (m, n),
        "stated": stated,
        "m": m,
        "n": n,
        "parts": parts,
        "irregular": next((size for size in sizes.equal if size % m), MOST + 1),
        "excluded": not sizes.pairs[stated[0] - 1, stated[1] - 1],
        "coarsest": coarsest,
        "tables": tables,
        "chance": chance,
    }
    return Found(checked, facts=facts)


def _sizes(distances: list[Distances], values: list[Interval], most: int) -> list[int]:
    """Sizes k for which multiples of 1/k could print the values and distances."""
    return [
        size
        for size in range(1, most + 1)
        if all(_whole(value.times(size)) for value in values) and all(cell.fit(size) for cell in distances)
    ]


def _counts_fit(row: dict[str, Interval], m: int, n: npt.NDArray[np.int_]) -> npt.NDArray[np.bool_]:
    """Whether whole counts of true and false positives print a row's metrics, for each n.

    Args:
        row: Intervals of recall, precision, accuracy and F1.
        m: Number of members.
        n: Numbers of non-members, shape `(k,)`.
    """
    fits = np.zeros(len(n), dtype=np.bool_)
    for true in _wholes(row["recall"].times(m)):
        by_precision = (true / min(1.0, row["precision"].upper) - true, true / row["precision"].lower - true)
        by_f1 = (2 * true / row["f1"].upper - m - true, 2 * true / row["f1"].lower - m - true)
        least = np.maximum(n - (m + n) * row["accuracy"].upper + true, max(0.0, by_precision[0], by_f1[0]))
        most = np.minimum(n - (m + n) * row["accuracy"].lower + true, min(by_precision[1], by_f1[1]))
        fits |= np.floor(np.minimum(most, n) + _SLACK) >= np.ceil(least - _SLACK)
    return fits


def _has_whole(value: Interval, parts: npt.NDArray[np.int_]) -> npt.NDArray[np.bool_]:
    """Whether a multiple of 1/parts lies in the interval, by number of parts."""
    return np.asarray(np.floor(value.upper * parts + _SLACK) >= np.ceil(value.lower * parts - _SLACK))


def _wholes(interval: Interval) -> range:
    """The whole numbers in an interval."""
    return range(math.ceil(interval.lower - _SLACK), math.floor(interval.upper + _SLACK) + 1)


def _whole(interval: Interval) -> bool:
    return len(_wholes(interval)) > 0
