"""The cells on which accountants are judged: shapes of questions, and two grids of parameters for each.

A shape builds a question from named parameters, and lists for each parameter the values that a reader finds
simple, simplest first: a counterexample is shrunk towards them. The grids stand in `cells.toml`; between
their round values lie cells that a seed draws, evenly over ranges. Cells come in an order in which any
beginning of it is spread over the whole, so that a slow accountant is asked about all kinds of runs.

The cells of the checks besides the first: deltas, TPRs, calibrations, edges, adjacencies, compositions.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.attacks.accountant_checks.conformance.other_shapes import OTHER_SHAPES
from workbench.attacks.accountant_checks.conformance.questions import CalibrationQuestion, Question
from workbench.attacks.accountant_checks.conformance.shapes import (
    RUN,
    RUN_REPLACE_ONE,
    SHAPES,
    Cell,
    Parameters,
    Shape,
    epsilon_question,
)
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency

_ALL_SHAPES = SHAPES | OTHER_SHAPES


@cache
def _shape(name: str, adjacency: str = "") -> Shape:
    """A shape by its name, or that of the same questions under another adjacency."""
    shape = _ALL_SHAPES[name]
    if not adjacency:
        return shape

    def build(**parameters: float) -> Question:
        return replace(shape.build(**parameters), adjacency=Adjacency(adjacency))

    return Shape(build=build, simple=shape.simple)


@cache
def _grids() -> dict[str, Any]:
    """`cells.toml`, which says how it is read."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _rows(table: Mapping[str, Any], grid: str) -> list[dict[str, float]]:
    """Parameters of each cell of a grid; each once."""
    found: dict[tuple[float, ...], None] = {}
    for row in table.get(grid, table["quick"]):
        for part in table["quick"] if row == "quick" else [row]:
            choices = (value if isinstance(value, list) else [value] for value in part)
            found |= dict.fromkeys(product(*choices))
    return [dict(zip(table["names"].split(), row, strict=True)) for row in found]


_GOLDEN = (math.sqrt(5) - 1) / 2

T = TypeVar("T")


def _spread(values: Sequence[T]) -> list[T]:
    """The values in an order in which any beginning of it is spread evenly over the sequence."""
    return [values[place] for place in sorted(range(len(values)), key=lambda place: place * _GOLDEN % 1)]


def _merged(*lists: Sequence[T]) -> tuple[T, ...]:
    """All lists in one, each spread evenly over it; the first of each come first."""
    placed = [(place / len(values), value) for values in lists for place, value in enumerate(values)]
    return tuple(value for _, value in sorted(placed, key=lambda pair: pair[0]))


def _cells(tables: Sequence[Mapping[str, Any]], grid: str) -> tuple[Cell, ...]:
    lists = [
        _spread([Cell(shape=_shape(table["shape"]), parameters=row) for row in _rows(table, grid)])
        for table in tables
    ]
    lists += [
        [Cell(shape=_shape(table["shape"], other), parameters=row) for row in _rows(table, "quick")]
        for table in tables
        for other in table.get("also", ())
    ]
    return _merged(*lists)


def families(grid: str) -> dict[str, tuple[Cell, ...]]:
    """The cells of `never_below_certified_lower`, by family of events.

    Args:
        grid: `"quick"` or `"full"`.
    """
    return {family: _cells(tables, grid) for family, tables in _grids()["family"].items()}


_WHOLE = frozenset(
    {
        *("steps", "second_steps", "gaussians", "laplaces", "responses", "categories", "records", "cutoff"),
        *("dataset_size", "largest_batch", "batch_size", "batches", "epochs", "dimension", "groups", "bands"),
        *("participations", "separation", "place", "contribution", "with_record", "without", "exposed"),
    }
)
"""Parameters that are whole numbers."""

_EACH_GRID = {"quick": 1, "full": 10}
"""How many times the cells of the quick grid are drawn."""


def _points(dimensions: int, stream: Sequence[int]) -> Iterator[Any]:
    """Points of the unit cube, any beginning of which is spread evenly (a shifted Kronecker sequence).

    The steps are powers of the root of x^(d+1) = x + 1, as of the golden ratio in one dimension.
    """
    root = 2.0
    for _ in range(60):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = root ** -np.arange(1.0, dimensions + 1)
    point = np.random.default_rng(stream).random(dimensions)
    while True:
        point = (point + steps) % 1
        yield point


def _drawn(place: int, table: Mapping[str, Any], grid: str, seed: int) -> list[dict[str, float]]:
    """Parameters at random between a table's ranges, log-uniform, as many as it says."""
    found = list[dict[str, float]]()
    for point in _points(len(table["ranges"]), [place, seed]):
        if len(found) == table["cells"] * _EACH_GRID[grid]:
            return found
        values = {
            name: least * (most / least) ** float(share) if least < most else least
            for (name, (least, most)), share in zip(table["ranges"].items(), point, strict=True)
        }
        row = {name: round(value) if name in _WHOLE else value for name, value in values.items()}
        low, high = table.get("loss", (0.0, math.inf))
        if low <= _loss(row) <= high:
            found.append(row)
    raise AssertionError("the sequence has no end")


def _loss(parameters: Parameters) -> float:
    """Standard deviation of the privacy loss, about: cells that are all noise or none are left out by it."""
    steps = parameters.get("steps", 1)
    if "noise_multiplier" in parameters:
        rate, exponent = parameters.get("sampling_probability", 1.0), parameters["noise_multiplier"] ** -2
        return rate * math.sqrt(steps * math.expm1(min(exponent, 100.0)))
    return math.sqrt(steps) / parameters.get("scale", 1.0)


def _random(quantity: str, grid: str, seed: int) -> list[tuple[Cell, ...]]:
    """The random cells of all shapes that ask for a quantity."""
    return [
        tuple(
            Cell(shape=_shape(table["shape"], adjacency), parameters=row)
            for row, adjacency in zip(
                _drawn(place, table, grid, seed), cycle(["", *table.get("also", ())]), strict=False
            )
        )
        for place, table in enumerate(_grids()["between"])
        if table["quantity"] == quantity
    ]


@cache
def cells_between(grid: str, seed: int) -> tuple[Cell, ...]:
    """Questions for epsilon whose parameters are drawn by the seed, so that no accountant can know them.

    Args:
        grid: `"quick"` or `"full"`.
        seed: The same one draws the same cells.
    """
    drawn = _random("epsilon", grid, seed)
    runs = drawn[0][: HARDER * _EACH_GRID[grid]]
    return _merged(*drawn, [_harder(cell, 0.01 / (1 + 9 * (n % 2))) for n, cell in enumerate(runs)])


HARDER = 12
"""Random runs of the quick grid of which a slightly harder neighbour is asked too."""


def _harder(cell: Cell, by: float) -> Cell:
    """A run that tells a little more, for accountants that take it for the other, asked before."""
    given = cell.parameters
    harder = {
        "noise_multiplier": (1 - by) * given["noise_multiplier"],
        "sampling_probability": min((1 + by) * given["sampling_probability"], 1.0),
        "delta": given["delta"] / (1 + 20 * by),
    }
    return replace(cell, parameters={**given, **harder})


_HARDENING = {
    "steps": 1,
    "delta": -1,
    "sampling_probability": 1,
    "noise_multiplier": -1,
    "scale": -1,
    "noise_parameter": -1,
}
"""Parameters of which more tells more about a record (1), or less (-1)."""

_CHAINED = ("subsampled_gaussian", "laplace", "randomised_response", "replace_one")
"""Families with chains of questions that differ in one parameter alone."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Questions that differ in one parameter alone, the easiest first.

    Attributes:
        unlike: A question of the same shape that differs from the first in every parameter; None without one.
            Asked before, it ends what an accountant keeps until some parameters change.
    """

    unlike: Question | None
    questions: tuple[Question, ...]


@cache
def hardening_chains(grid: str) -> tuple[Chain, ...]:
    """The longest chain of each parameter that the grid holds, for each shape of four families."""
    known = families(grid)
    chains = list[Chain]()
    for family in _CHAINED:
        shapes = {id(cell.shape): cell.shape for cell in known[family]}
        for shape in shapes.values():
            rows = [cell.parameters for cell in known[family] if cell.shape is shape]
            chains += [_chain(shape, rows, name) for name in _HARDENING if name in rows[0]]
    return tuple(chain for chain in chains if len(chain.questions) > 1)


def _chain(shape: Shape, rows: Sequence[Parameters], parameter: str) -> Chain:
    """The longest chain of cells in a parameter; of several, that of the earliest cell."""
    by_rest: dict[tuple[float, ...], list[Parameters]] = {}
    for row in rows:
        rest = tuple(value for name, value in row.items() if name != parameter)
        by_rest.setdefault(rest, []).append(row)
    longest = max(by_rest.values(), key=len)
    longest.sort(key=lambda row: _HARDENING[parameter] * row[parameter])
    first = longest[0]
    unlike = (row for row in rows if all(row[name] != first[name] for name in first if name != "categories"))
    before = next(unlike, None)
    return Chain(
        unlike=None if before is None else shape.build(**before),
        questions=tuple(shape.build(**row) for row in longest),
    )


def delta_cells(grid: str, seed: int) -> tuple[Cell, ...]:
    """Events of which delta is asked at an epsilon."""
    return _merged(_cells(_grids()["delta"], grid), *_random("delta", grid, seed))


def tpr_cells(grid: str, seed: int) -> tuple[Cell, ...]:
    """Runs of which the largest TPR is asked at an FPR."""
    return _merged(_cells(_grids()["tpr"], grid), *_random("tpr", grid, seed))


def calibration_cells(grid: str, seed: int) -> tuple[CalibrationQuestion, ...]:
    """The questions to noise calibrators that a grid holds, and as many between, of both adjacencies.

    Those that need most noise come first: a slow calibrator with a cap may be asked only a few.
    """
    table: Mapping[str, Any] = _grids()["calibration"]
    names = table["names"].split()
    much_noise = [CalibrationQuestion(**dict(zip(names, row, strict=True))) for row in table["much_noise"]]
    rows: list[dict[str, Any]] = _rows(table, grid)
    drawn: list[dict[str, Any]] = _drawn(len(_grids()["between"]), table, grid, seed)
    adjacencies = (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    merged = _merged(
        _spread([CalibrationQuestion(**row) for row in rows]),
        [CalibrationQuestion(**row, adjacency=adjacencies[i % 2]) for i, row in enumerate(drawn)],
    )
    return (*much_noise, *merged)


def edge_cells() -> tuple[tuple[str, Cell], ...]:
    """Corners at which accountants break, each with its name."""
    names = ("noise_multiplier", "sampling_probability", "steps", "delta")
    return tuple(
        (name, Cell(shape=RUN, parameters=dict(zip(names, row, strict=True))))
        for name, row in _grids()["edges"].items()
    )


@dataclass(frozen=True, kw_only=True)
class PairShape:
    """A kind of two questions whose answers are compared.

    Attributes:
        build: Both questions, from the parameters as keywords; `InputError` where they make none.
        places: Parameters that stand for a place in a list, and tell a reader nothing.
    """

    build: Callable[..., tuple[Question, Question]]
    simple: Mapping[str, Sequence[float]]
    places: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class PairCell:
    """A shape with its parameters."""

    shape: PairShape
    parameters: Parameters


_ADJACENCIES = PairShape(
    build=lambda **run: (RUN.build(**run), RUN_REPLACE_ONE.build(**run)), simple=RUN.simple
)


def adjacency_pairs(grid: str) -> tuple[PairCell, ...]:
    """Runs of which replace-one neighbours tell more than add-remove neighbours do."""
    cells = _cells(_grids()["adjacency"], grid)
    return tuple(PairCell(shape=_ADJACENCIES, parameters=cell.parameters) for cell in cells)


_REPEATABLE: tuple[tuple[Event, Adjacency], ...] = (
    (Gaussian(noise_multiplier=2.0), Adjacency.ADD_REMOVE),
    (SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.1), Adjacency.ADD_REMOVE),
    (RandomisedResponse(noise_parameter=0.5), Adjacency.REPLACE_ONE),
    (Laplace(scale=2.0), Adjacency.ADD_REMOVE),
)
"""Events to be repeated, by place."""

_SINGLES, _NESTED = 0, 1


def _n_fold(*, place: float, count: float, written: float) -> tuple[Question, Question]:
    repeated, adjacency = _REPEATABLE[int(place)]
    counted = Composed(events=((repeated, int(count)),))
    if written == _SINGLES:
        other = Composed(events=((repeated, 1),) * int(count))
    else:
        other = Composed(events=((Composed(events=((repeated, 1),)), int(count)),))
    return epsilon_question(counted, 1e-5, adjacency), epsilon_question(other, 1e-5, adjacency)


_N_FOLD = PairShape(
    build=_n_fold,
    simple={"count": (2, 3, 4, 5, 10, 50), "place": (0, 1, 2, 3), "written": (_SINGLES, _NESTED)},
    places=frozenset({"place", "written"}),
)


def n_fold_pairs(grid: str) -> tuple[PairCell, ...]:
    """An event with a count, against the same composition written out, singly or nested."""
    counts = (2, 4) if grid == "quick" else (2, 3, 10, 50)
    rows = list(product((2, 0, 3, 1), counts, (_SINGLES, _NESTED)))  # the cheapest event first
    return tuple(
        PairCell(shape=_N_FOLD, parameters={"place": place, "count": count, "written": written})
        for place, count, written in rows
    )


_MIXED: tuple[tuple[Event, Event, Adjacency], ...] = (
    (_REPEATABLE[0][0], _REPEATABLE[1][0], Adjacency.ADD_REMOVE),
    (_REPEATABLE[0][0], _REPEATABLE[3][0], Adjacency.ADD_REMOVE),
    (
        _REPEATABLE[1][0],
        SubsampledGaussian(noise_multiplier=0.7, sampling_probability=0.01),
        Adjacency.ADD_REMOVE,
    ),
    (_REPEATABLE[0][0], _REPEATABLE[2][0], Adjacency.REPLACE_ONE),
)
"""Two events to be composed in both orders, by place."""


def _order(*, place: float, first_count: float, second_count: float) -> tuple[Question, Question]:
    first, second, adjacency = _MIXED[int(place)]
    parts = ((first, int(first_count)), (second, int(second_count)))
    return epsilon_question(Composed(events=parts), 1e-5, adjacency), epsilon_question(
        Composed(events=parts[::-1]), 1e-5, adjacency
    )


_ORDER = PairShape(
    build=_order,
    simple={"place": (0, 1, 2, 3), "first_count": (1, 2, 5, 50), "second_count": (1, 2, 5, 50)},
    places=frozenset({"place"}),
)


def order_pairs(grid: str) -> tuple[PairCell, ...]:
    """A composition of two events, against the same in the other order."""
    counts = ((1, 1), (2, 5)) if grid == "quick" else ((1, 1), (2, 5), (50, 1), (1, 50))
    return tuple(
        PairCell(shape=_ORDER, parameters={"place": place, "first_count": first, "second_count": second})
        for place in (1, 3, 0, 2)  # the cheapest first
        for first, second in counts
    )


def _neighbours(parameter: str) -> PairShape:
    """Two runs that differ in one parameter; the second has the larger value."""

    def build(*, larger: float, **parameters: float) -> tuple[Question, Question]:
        if larger <= parameters[parameter]:
            raise InputError(f"larger must be above {parameters[parameter]!r}, got {larger!r}")
        return RUN.build(**parameters), RUN.build(**{**parameters, parameter: larger})

    return PairShape(build=build, simple={**RUN.simple, "larger": sorted(RUN.simple[parameter])})


def neighbours_in(parameter: str, grid: str) -> tuple[PairCell, ...]:
    """Pairs of DP-SGD cells of the grid that differ in this parameter alone, the smaller value first."""
    shape = _neighbours(parameter)
    by_rest: dict[tuple[tuple[str, float], ...], dict[float, Cell]] = {}
    known = families(grid)
    for cell in known["subsampled_gaussian"] + known["gaussian"] + known["composed_gaussian"]:
        rest = tuple((name, value) for name, value in cell.parameters.items() if name != parameter)
        by_rest.setdefault(rest, {})[cell.parameters[parameter]] = cell
    return tuple(
        PairCell(shape=shape, parameters={**cells[smaller].parameters, "larger": larger})
        for cells in by_rest.values()
        for smaller, larger in pairwise(sorted(cells))
    )
