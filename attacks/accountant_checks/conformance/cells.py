"""The cells on which accountants are judged: shapes of questions, and two grids of parameters for each.

A shape builds a question from named parameters, and lists for each parameter the values that a reader finds
simple, simplest first: a counterexample is shrunk towards them. The grids stand in `cells.toml`. The quick
one is chosen for accountants that take half a second a call; its cells that find most come first.

The cells of the checks besides the first: deltas, TPRs, calibrations, edges, adjacencies, compositions.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from workbench.accounting.events import (
    Composed,
    Event,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.attacks.accountant_checks.conformance.questions import CalibrationQuestion, Question
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency

Parameters = Mapping[str, float]
"""Values of a shape's parameters, by name; counts are whole numbers."""

NOISES = (1.0, 2.0, 0.5, 5.0, 10.0, 0.3, 50.0, 0.1)
RATES = (1.0, 0.5, 0.1, 0.01, 0.001, 1e-4)
STEPS = (1, 2, 3, 4, 5, 10, 20, 50, 100, 1000)
DELTAS = (1e-5, 1e-3, 1e-2, 0.1, 1e-6, 1e-8, 1e-10, 1e-12, 1e-15)
EPSILONS = (1.0, 2.0, 0.5, 0.1, 4.0, 8.0, 10.0)
FPRS = (0.1, 0.01, 0.5, 1e-3, 1e-4, 1e-6)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of question to an accountant, with the parameters that it may be asked with.

    Attributes:
        simple: For each parameter its simple values, simplest first; the first parameter counts most.
    """

    build: Callable[..., Question]
    simple: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A shape with its parameters."""

    shape: Shape
    parameters: Parameters

    @property
    def question(self) -> Question:
        """The question to the accountant that this cell stands for."""
        return self.shape.build(**self.parameters)


def repeated(event: Event, steps: int) -> Event:
    """The event itself, or its composition with a count."""
    return event if steps == 1 else Composed(events=((event, steps),))


def _run(adjacency: Adjacency, quantity: str = "epsilon") -> Callable[..., Question]:
    def build(
        *, noise_multiplier: float, sampling_probability: float, steps: float, **argument: float
    ) -> Question:
        """The question about one run."""
        event = gaussian_run(
            noise_multiplier=noise_multiplier, sampling_probability=sampling_probability, steps=int(steps)
        )
        (value,) = argument.values()
        return Question(quantity=quantity, event=event, argument=value, adjacency=adjacency)

    return build


_RUN_SIMPLE = {"steps": STEPS, "sampling_probability": RATES, "noise_multiplier": NOISES}
RUN = Shape(build=_run(Adjacency.ADD_REMOVE), simple={**_RUN_SIMPLE, "delta": DELTAS})
RUN_REPLACE_ONE = Shape(build=_run(Adjacency.REPLACE_ONE), simple={**_RUN_SIMPLE, "delta": DELTAS})
DELTA_OF_RUN = Shape(build=_run(Adjacency.ADD_REMOVE, "delta"), simple={**_RUN_SIMPLE, "epsilon": EPSILONS})
TPR_OF_RUN = Shape(build=_run(Adjacency.ADD_REMOVE, "tpr"), simple={**_RUN_SIMPLE, "fpr": FPRS})


def _epsilon(event: Event, delta: float, adjacency: Adjacency) -> Question:
    return Question(quantity="epsilon", event=event, argument=delta, adjacency=adjacency)


def _laplace(adjacency: Adjacency) -> Callable[..., Question]:
    def build(*, steps: float, scale: float, delta: float) -> Question:
        return _epsilon(repeated(Laplace(scale=scale), int(steps)), delta, adjacency)

    return build


_LAPLACE_SIMPLE = {"steps": STEPS, "scale": NOISES, "delta": DELTAS}
LAPLACE = Shape(build=_laplace(Adjacency.ADD_REMOVE), simple=_LAPLACE_SIMPLE)
LAPLACE_REPLACE_ONE = Shape(build=_laplace(Adjacency.REPLACE_ONE), simple=_LAPLACE_SIMPLE)


def _randomised_response(
    *, steps: float, categories: float, noise_parameter: float, delta: float
) -> Question:
    event = RandomisedResponse(noise_parameter=noise_parameter, categories=int(categories))
    return _epsilon(repeated(event, int(steps)), delta, Adjacency.REPLACE_ONE)


RANDOMISED_RESPONSE = Shape(
    build=_randomised_response,
    simple={
        "steps": STEPS,
        "categories": (2, 3, 5, 10),
        "noise_parameter": (0.5, 0.1, 0.9, 0.01),
        "delta": DELTAS,
    },
)


def _gaussian_and_laplace(
    *, noise_multiplier: float, scale: float, gaussians: float, laplaces: float, delta: float
) -> Question:
    parts = (
        (Gaussian(noise_multiplier=noise_multiplier), int(gaussians)),
        (Laplace(scale=scale), int(laplaces)),
    )
    return _epsilon(Composed(events=parts), delta, Adjacency.ADD_REMOVE)


def _two_phases(
    *,
    noise_multiplier: float,
    second_noise_multiplier: float,
    sampling_probability: float,
    steps: float,
    second_steps: float,
    delta: float,
) -> Question:
    first = SubsampledGaussian(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)
    second = SubsampledGaussian(
        noise_multiplier=second_noise_multiplier, sampling_probability=sampling_probability
    )
    parts = ((first, int(steps)), (second, int(second_steps)))
    return _epsilon(Composed(events=parts), delta, Adjacency.ADD_REMOVE)


def _gaussian_and_response(
    *, noise_multiplier: float, noise_parameter: float, gaussians: float, responses: float, delta: float
) -> Question:
    parts = (
        (Gaussian(noise_multiplier=noise_multiplier), int(gaussians)),
        (RandomisedResponse(noise_parameter=noise_parameter), int(responses)),
    )
    return _epsilon(Composed(events=parts), delta, Adjacency.REPLACE_ONE)


GAUSSIAN_AND_LAPLACE = Shape(
    build=_gaussian_and_laplace,
    simple={
        "gaussians": STEPS,
        "laplaces": STEPS,
        "noise_multiplier": NOISES,
        "scale": NOISES,
        "delta": DELTAS,
    },
)
TWO_PHASES = Shape(
    build=_two_phases,
    simple={
        "steps": STEPS,
        "second_steps": STEPS,
        "sampling_probability": RATES[1:],
        "noise_multiplier": NOISES,
        "second_noise_multiplier": NOISES,
        "delta": DELTAS,
    },
)
GAUSSIAN_AND_RESPONSE = Shape(
    build=_gaussian_and_response,
    simple={
        "gaussians": STEPS,
        "responses": STEPS,
        "noise_multiplier": NOISES,
        "noise_parameter": (0.5, 0.1, 0.9),
        "delta": DELTAS,
    },
)


def _mixtures(*, weight: float, shift: float, standard_deviation: float, delta: float) -> Question:
    event = GaussianMixturePair(
        p_means=(0.0, shift),
        p_weights=(1 - weight, weight),
        q_means=(0.0,),
        q_weights=(1.0,),
        standard_deviation=standard_deviation,
    )
    return _epsilon(event, delta, Adjacency.ADD_REMOVE)


MIXTURES = Shape(
    build=_mixtures,
    simple={"weight": (0.5, 0.1, 0.01), "shift": (1.0, 2.0), "standard_deviation": NOISES, "delta": DELTAS},
)


def _shuffled(*, batches: float, epochs: float, noise_multiplier: float, delta: float) -> Question:
    event = ShuffledBatches(noise_multiplier=noise_multiplier, batches=int(batches), epochs=int(epochs))
    return _epsilon(event, delta, Adjacency.ZERO_OUT)


SHUFFLED = Shape(
    build=_shuffled,
    simple={"epochs": STEPS, "batches": (10, 100, 1000), "noise_multiplier": NOISES, "delta": DELTAS},
)


SHAPES = {
    "run": RUN,
    "run, replace-one": RUN_REPLACE_ONE,
    "laplace": LAPLACE,
    "laplace, replace-one": LAPLACE_REPLACE_ONE,
    "randomised response": RANDOMISED_RESPONSE,
    "gaussian and laplace": GAUSSIAN_AND_LAPLACE,
    "two phases": TWO_PHASES,
    "gaussian and response": GAUSSIAN_AND_RESPONSE,
    "mixtures": MIXTURES,
    "shuffled": SHUFFLED,
    "delta of run": DELTA_OF_RUN,
    "tpr of run": TPR_OF_RUN,
}
"""Shapes by their names in `cells.toml`."""


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


def _cells(tables: Sequence[Mapping[str, Any]], grid: str) -> tuple[Cell, ...]:
    return tuple(
        Cell(shape=SHAPES[table["shape"]], parameters=row) for table in tables for row in _rows(table, grid)
    )


def families(grid: str) -> dict[str, tuple[Cell, ...]]:
    """The cells of `never_below_certified_lower`, by family of events.

    Args:
        grid: `"quick"` or `"full"`.
    """
    return {family: _cells(tables, grid) for family, tables in _grids()["family"].items()}


BETWEEN = {"quick": 40, "full": 400}
"""Random runs of each grid."""

_BETWEEN_STREAM = 2


@cache
def cells_between(grid: str, seed: int) -> tuple[Cell, ...]:
    """Runs whose parameters are log-uniform, so that no accountant can know them; none is all noise or none.

    Noise multipliers from 0.4 to 30, sampling probabilities from 0.001, up to 50,000 steps, delta from 1e-11
    to 0.01.

    Args:
        grid: `"quick"` or `"full"`.
        seed: The same one draws the same runs.
    """
    generator, found = np.random.default_rng([_BETWEEN_STREAM, seed]), list[Cell]()
    while len(found) < BETWEEN[grid]:
        noise, rate, steps, delta = (
            math.exp(generator.uniform(math.log(least), math.log(most)))
            for least, most in ((0.4, 30.0), (1e-3, 1.0), (1.0, 50_000.0), (1e-11, 1e-2))
        )
        loss = rate * math.sqrt(round(steps) * math.expm1(noise**-2))
        if 0.05 < loss < 4.0:
            values = {"noise_multiplier": noise, "sampling_probability": rate}
            found.append(Cell(shape=RUN, parameters={**values, "steps": round(steps), "delta": delta}))
    return tuple(found)


def delta_cells(grid: str) -> tuple[Cell, ...]:
    """Runs of which delta is asked at an epsilon."""
    return _cells(_grids()["delta"], grid)


def tpr_cells(grid: str) -> tuple[Cell, ...]:
    """Runs of which the largest TPR is asked at an FPR."""
    return _cells(_grids()["tpr"], grid)


def calibration_cells(grid: str) -> tuple[CalibrationQuestion, ...]:
    """The questions to noise calibrators that a grid holds."""
    rows: list[dict[str, Any]] = [*_rows(_grids()["calibration"], grid)]
    return tuple(CalibrationQuestion(**row) for row in rows)


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
    return _epsilon(counted, 1e-5, adjacency), _epsilon(other, 1e-5, adjacency)


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
    return _epsilon(Composed(events=parts), 1e-5, adjacency), _epsilon(
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
