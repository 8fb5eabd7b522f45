"""FERRET's printed cells by what they measure, as the intervals that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count

from workbench.checks.published import PublishedCell, PublishedPaper, PublishedTable, printed_numbers
from workbench.reports.shared.published_checks import Interval

BUDGETS = ("0.1", "0.5", "1.0", "2.0")
NO_BUDGET = "inf"
EPOCHS = ("1", "3", "5")
FERRETS = ("FERRET-MAX", "FERRET-EIGHTH", "FERRET-2")
METHODS = ("DPSGD", *FERRETS, "Non-DP")
MODELS = ("DeepSeek-1.5B", "SmolLM-360M", "TinyLlama-1.1B", "BLOOM-560M", "GPT-2")
MEAN = "Mean"

TEST, TRAIN, GAP = "perplexity_non_member", "perplexity_member", "gap"
AUC, ADVANTAGE, SECONDS = "roc_auc", "advantage", "training_seconds"

MEANS = {TEST: "table-5", AUC: "table-2", ADVANTAGE: "table-10", SECONDS: "table-6"}
"""Where the mean over the models is printed, by metric."""

RANGES = {TEST: "table-8", AUC: "table-9", ADVANTAGE: "table-10", SECONDS: "table-11"}
"""Where mean, least and largest are printed."""

BY_MODEL = {
    TEST: ("table-12", "table-14"),
    AUC: ("table-12", "table-13"),
    SECONDS: ("table-12", "table-14"),
    ADVANTAGE: ("table-13",),
    TRAIN: ("table-14",),
    GAP: ("table-14",),
}
"""Where each model's number is printed."""


def budgets(method: str) -> tuple[str, ...]:
    """The columns in which a method has numbers."""
    return (NO_BUDGET,) if method == "Non-DP" else BUDGETS


def settings() -> Iterator[tuple[str, str, str]]:
    """Method, epochs and budget of every training."""
    for method in METHODS:
        for epochs in EPOCHS:
            for budget in budgets(method):
                yield method, epochs, budget


def by_model(
    paper: PublishedPaper, metric: str, setting: tuple[str, str, str], model: str
) -> PublishedCell | None:
    """One model's printed cell from the first table that our copy shows it in; None where none does.

    Args:
        paper: FERRET's printed numbers.
        metric: Key of `BY_MODEL`.
        setting: Method, epochs, budget: `("FERRET-MAX", "5", "0.5")`.
        model: Of `MODELS`, or `MEAN` for the mean that these tables print.
    """
    method, epochs, budget = setting
    cells = (
        paper.table(table).cell((method, epochs, model), f"{metric}, {budget}") for table in BY_MODEL[metric]
    )
    return next((cell for cell in cells if cell is not None), None)


def mean_cell(paper: PublishedPaper, metric: str, setting: tuple[str, str, str]) -> PublishedCell:
    """The printed mean over the five models (Tables 2, 5, 6, 10).

    Raises:
        KeyError: there is none.
    """
    method, epochs, budget = setting
    return _cell(paper.table(MEANS[metric]), (method, epochs), budget)


def value(
    paper: PublishedPaper, metric: str, setting: tuple[str, str, str], model: str | None = None
) -> Interval | None:
    """What a mean over the models, or one model's number, may stand for; None where our copy lacks it.

    Raises:
        KeyError: the paper prints no such number.
    """
    if model is None:
        table = paper.table(MEANS[metric])
        return stands_for(mean_cell(paper, metric, setting), half_unit(table))
    cell = by_model(paper, metric, setting, model)
    return None if cell is None else stands_for(cell, 0.0)


def stands_for(cell: PublishedCell, least: float, part: int = 0) -> Interval:
    """The numbers that one of a cell's numbers stands for.

    Args:
        cell: Printed.
        least: Half a unit of the table's rounding; a cell's own where that is larger.
        part: Which of its numbers: 0 is the value.
    """
    number = printed_numbers(cell.printed)[part]
    half = max(least, number.half_unit)
    return Interval(number.value - half, number.value + half)


def half_unit(table: PublishedTable) -> float:
    """Half a unit of a table's rounding: of the last digit printed, or of tens where all numbers are tens."""
    return _half_unit(tuple(cell.printed for cell in table.cells))


@lru_cache(maxsize=64)
def _half_unit(printed: tuple[str, ...]) -> float:
    numbers = [number for text in printed for number in printed_numbers(text)]
    decimals = max(number.decimals for number in numbers)
    if decimals > 0 or not any(number.value for number in numbers):
        return float(0.5 * 10.0**-decimals)
    power = next(k for k in count(1) if any(number.value % 10.0**k for number in numbers))
    return float(0.5 * 10.0 ** (power - 1))


def named(setting: tuple[str, str, str], model: str | None = None) -> str:
    """A setting in words: `FERRET-MAX, 5 epochs, epsilon 0.5`."""
    method, epochs, budget = setting
    parts = [method, f"{epochs} epoch{'' if epochs == '1' else 's'}"]
    if budget != NO_BUDGET:
        parts.append(f"epsilon {budget}")
    return ", ".join([model, *parts] if model else parts)


def number(paper: PublishedPaper, table: str, row: tuple[str, ...], column: str) -> float:
    """A printed value.

    Raises:
        KeyError: there is none.
    """
    return _cell(paper.table(table), row, column).value


def _cell(table: PublishedTable, row: tuple[str, ...], column: str) -> PublishedCell:
    cell = table.cell(row, column)
    if cell is None:
        raise KeyError(f"{table.id} has no cell {row}, {column}")
    return cell
