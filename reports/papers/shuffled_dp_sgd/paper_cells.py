"""Shuffled DPSGD's printed cells: read by their place, as the intervals that they stand for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.checks.published import PublishedCell, PublishedPaper
from workbench.reports.papers.paczero.paper_cells import at, cell, centre, check, said, stands_for
from workbench.reports.shared.published_checks import Interval

__all__ = [
    "BASELINES",
    "EPSILONS",
    "OURS",
    "TASKS",
    "UTILITY_TABLES",
    "at",
    "best_baseline",
    "cell",
    "centre",
    "check",
    "epsilons",
    "named",
    "said",
    "seconds",
    "setting_named",
    "stands_for",
    "utility_rows",
    "value_at",
    "words",
]

OURS = "Shuffled-DPSGD"
BASELINES = ("Ghost", "MixOpt")
EPSILONS = ("0.1", "0.5", "1")
"""Of Tables III to V, whose columns are `"Ghost, 0.1"` and so on."""

UTILITY_TABLES = ("table-3", "table-4", "table-5")

_NUMERALS = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII")
_ROMAN = {f"table-{number}": f"Table {text}" for number, text in enumerate(_NUMERALS, start=1)}
_DURATION = re.compile(r"(\d+)min(\d+)s")
TASKS = {
    "cifar100": "CIFAR-100",
    "sst2": "SST-2",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "e2e": "E2E",
    "dart": "DART",
}
"""What a claim's setting calls a dataset, and what the tables do."""


def words(paper: PublishedPaper, place: str, quantity: str) -> str:
    """A formula or a name of the text, as transcribed.

    Raises:
        KeyError: there is none.
    """
    return cell(paper, "texts", (place, quantity), "printed").printed


def seconds(one: PublishedCell) -> Interval:
    """What a printed duration stands for: `2min25s` is 144.5 to 145.5 seconds.

    Raises:
        ValueError: the cell is no duration.
    """
    match = _DURATION.fullmatch(one.printed)
    if match is None:
        raise ValueError(f"{one.printed!r} is no duration")
    whole = 60 * int(match[1]) + int(match[2])
    return Interval(whole - 0.5, whole + 0.5)


def value_at(paper: PublishedPaper, path: str) -> Interval:
    """The numbers that a printed number, or a printed duration in seconds, stands for.

    Args:
        paper: Shuffled DPSGD's printed numbers.
        path: `"table-3 | ViT | CIFAR-100 | Ghost, 1"`: table, row headers, column.

    Raises:
        KeyError: there is no such cell.
    """
    one = at(paper, path)
    return seconds(one) if math.isnan(one.value) else stands_for(one)


def utility_rows(paper: PublishedPaper) -> list[tuple[str, tuple[str, ...]]]:
    """Table and row headers of every row of Tables III to V."""
    return [
        (name, row)
        for name in UTILITY_TABLES
        for row in dict.fromkeys(one.row for one in paper.table(name).cells)
    ]


def best_baseline(
    paper: PublishedPaper, table: str, row: tuple[str, ...], epsilon: str
) -> PublishedCell | None:
    """The baseline with the largest number at an epsilon; None where our copy lost one of the two."""
    found = [paper.table(table).cell(row, f"{name}, {epsilon}") for name in BASELINES]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.value) if len(known) == len(BASELINES) else None


def epsilons(paper: PublishedPaper, place: str) -> list[float]:
    """The epsilons that a figure's caption lists, in order."""
    rows = paper.table("statements").cells
    return [one.value for one in rows if one.row[0] == place and one.row[1].startswith("epsilon, ")]


def named(one: PublishedCell) -> str:
    """A cell's place in words: `Table IV, BERT, QQP, Ghost, 1`."""
    return ", ".join((_ROMAN.get(one.table, one.table), *one.row, one.column))


def setting_named(setting: Mapping[str, Any]) -> str:
    """A claim's setting in words: `Ghost, ViT, CIFAR-100, epsilon 0.1`."""
    return ", ".join(_parts(setting))


def _parts(setting: Mapping[str, Any]) -> Iterator[str]:
    for name in ("method", "mode", "model", "task"):
        if name in setting:
            yield TASKS.get(setting[name], setting[name])
    if "epsilon" in setting:
        yield f"epsilon {setting['epsilon']:g}"
