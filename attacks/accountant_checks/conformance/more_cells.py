"""The cells of the checks besides the first: deltas, TPRs, calibrations, edges, adjacencies, compositions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
)
from workbench.attacks.accountant_checks.conformance.asking import CalibrationQuestion, Question
from workbench.attacks.accountant_checks.conformance.grid import (
    DELTA_OF_RUN,
    RUN,
    RUN_NAMES,
    RUN_REPLACE_ONE,
    TPR_OF_RUN,
    Cell,
    Parameters,
    cells_of,
    families,
)
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency


def delta_cells(grid: str) -> tuple[Cell, ...]:
    """Runs of which delta is asked at an epsilon."""
    rows: list[tuple[float, ...]] = list(product((0.5, 1.0, 2.0), (1.0,), (1,), (0.1, 1.0, 4.0)))
    rows += [(10.0, 1.0, 100, 1.0), (10.0, 1.0, 100, 8.0)]
    rows += [(1.0, 0.01, 100, epsilon) for epsilon in (0.1, 1.0, 4.0)]
    rows += [(0.5, 0.1, 1, 1.0), (2.0, 0.5, 10, 8.0), (1.0, 0.01, 1000, 2.0)]
    if grid == "full":
        rows += list(product((0.5, 1.0, 3.0), (0.001, 0.01, 0.3), (1, 30, 1000), (0.1, 1.0, 3.0, 8.0)))
    return cells_of(DELTA_OF_RUN, "noise_multiplier sampling_probability steps epsilon", rows)


def tpr_cells(grid: str) -> tuple[Cell, ...]:
    """Runs of which the largest TPR is asked at an FPR."""
    rows: list[tuple[float, ...]] = list(product((0.5, 1.0, 2.0), (1.0,), (1,), (1e-3, 0.1)))
    rows += [(1.0, 0.01, 100, fpr) for fpr in (1e-4, 1e-2, 0.5)]
    rows += [(0.5, 0.1, 10, 0.01), (2.0, 0.5, 10, 0.01), (1.0, 0.01, 1000, 0.01)]
    if grid == "full":
        rows += list(product((0.5, 1.0, 3.0), (0.001, 0.01, 0.3), (1, 30, 1000), (1e-5, 1e-3, 0.1, 0.5)))
    return cells_of(TPR_OF_RUN, "noise_multiplier sampling_probability steps fpr", rows)


def calibration_cells(grid: str) -> tuple[CalibrationQuestion, ...]:
    """What noise calibrators are asked."""
    rows = [
        (3.0, 1e-5, 1.0, 1),
        (0.5, 1e-6, 0.01, 1000),
        (2.0, 1e-10, 0.1, 100),
        (1.0, 1e-5, 1.0, 100),
        (1.0, 1e-5, 0.01, 100),
        (8.0, 1e-5, 0.1, 10),
    ]
    if grid == "full":
        rows += list(product((0.3, 1.0, 3.0, 10.0), (1e-3, 1e-6, 1e-10), (0.001, 0.01, 0.3), (1, 100, 10000)))
    return tuple(
        CalibrationQuestion(target_epsilon=target, delta=delta, sampling_probability=rate, steps=steps)
        for target, delta, rate, steps in dict.fromkeys(rows)
    )


def edge_cells() -> tuple[tuple[str, Cell], ...]:
    """Corners at which accountants break, each with its name."""
    runs = (
        ("one step", 1.0, 0.01, 1, 1e-5),
        ("one step without sampling", 1.0, 1.0, 1, 1e-5),
        ("sampling probability 1", 10.0, 1.0, 100, 1e-5),
        ("tiny delta", 1.0, 0.01, 10, 1e-15),
        ("tiny delta without sampling", 1.0, 1.0, 1, 1e-15),
        ("delta of one half", 1.0, 0.1, 10, 0.5),
        ("delta near 1", 1.0, 0.1, 10, 0.999),
        ("tiny sampling probability", 1.0, 1e-6, 1, 1e-5),
        ("tiny sampling probability and delta", 1.0, 1e-5, 10, 1e-10),
        ("much noise", 1000.0, 0.01, 10, 1e-5),
        ("many steps without sampling", 100.0, 1.0, 100_000, 1e-5),
        ("many steps", 10.0, 0.001, 100_000, 1e-5),
        ("sampling probability just below 1", 1.0, 0.999999, 1, 1e-5),
        ("tiny noise", 0.2, 0.5, 1, 1e-5),
        ("huge epsilon", 0.1, 1.0, 1, 1e-5),
    )
    return tuple(
        (name, Cell(shape=RUN, parameters=dict(zip(RUN_NAMES.split(), row, strict=True))))
        for name, *row in runs
    )


@dataclass(frozen=True, kw_only=True)
class PairShape:
    """A kind of two questions whose answers are compared.

    Attributes:
        build: Both questions, from the parameters as keywords; `InputError` where they make none.
        simple: As of a `Shape`.
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


def _both_adjacencies(**parameters: float) -> tuple[Question, Question]:
    return RUN.build(**parameters), RUN_REPLACE_ONE.build(**parameters)


_ADJACENCIES = PairShape(build=_both_adjacencies, simple=RUN.simple)


def adjacency_pairs(grid: str) -> tuple[PairCell, ...]:
    """Runs of which replace-one neighbours tell more than add-remove neighbours do."""
    rows: list[tuple[float, ...]] = [
        (1.0, 1.0, 1, 1e-5),
        (10.0, 1.0, 10, 1e-5),
        (1.0, 0.5, 2, 1e-5),
        (2.0, 0.1, 10, 1e-5),
    ]
    if grid == "full":
        rows += list(product((0.6, 1.0, 4.0), (0.01, 0.3, 1.0), (1, 10, 300), (1e-6,)))
    return tuple(
        PairCell(shape=_ADJACENCIES, parameters=cell.parameters) for cell in cells_of(RUN, RUN_NAMES, rows)
    )


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
    return _at(counted, adjacency), _at(other, adjacency)


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
    return _at(Composed(events=parts), adjacency), _at(Composed(events=parts[::-1]), adjacency)


_ORDER = PairShape(
    build=_order,
    simple={"place": (0, 1, 2, 3), "first_count": (1, 2, 5, 50), "second_count": (1, 2, 5, 50)},
    places=frozenset({"place"}),
)


def order_pairs(grid: str) -> tuple[PairCell, ...]:
    """A composition of two events, against the same in the other order."""
    counts = ((1, 1), (2, 5)) if grid == "quick" else ((1, 1), (2, 5), (50, 1), (1, 50))
    return tuple(
        PairCell(shape=_ORDER, parameters={"place": place, "first_count": one, "second_count": two})
        for place in (1, 3, 0, 2)  # the cheapest first
        for one, two in counts
    )


def _at(event: Event, adjacency: Adjacency) -> Question:
    return Question(quantity="epsilon", event=event, argument=1e-5, adjacency=adjacency)


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
