"""The cells on which accountants are judged: shapes of questions, and two grids of parameters for each.

A shape builds a question from named parameters, and lists for each parameter the values that a reader finds
simple, simplest first: a counterexample is shrunk towards them. The quick grid is chosen for accountants that
take half a second a call; its cells stand so that those which find most come first.

The cells of the checks besides the first: deltas, TPRs, calibrations, edges, adjacencies, compositions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

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
FPRS = (0.1, 0.01, 0.5, 1e-3, 1e-4)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of question.

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
        """What is asked."""
        return self.shape.build(**self.parameters)


def repeated(event: Event, steps: int) -> Event:
    """The event itself, or its composition with a count."""
    return event if steps == 1 else Composed(events=((event, steps),))


def _run(adjacency: Adjacency, quantity: str = "epsilon") -> Callable[..., Question]:
    def build(
        *, noise_multiplier: float, sampling_probability: float, steps: float, **argument: float
    ) -> Question:
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


def cells_of(shape: Shape, names: str, rows: Sequence[tuple[float, ...]]) -> tuple[Cell, ...]:
    """Cells of a shape from rows of parameters, in the order of `names`; each row once."""
    keys = names.split()
    return tuple(
        Cell(shape=shape, parameters=dict(zip(keys, row, strict=True))) for row in dict.fromkeys(rows)
    )


RUN_NAMES = "noise_multiplier sampling_probability steps delta"
"""The parameters of a DP-SGD run in the order of the rows below."""


def _gaussian_rows(full: bool) -> list[tuple[float, ...]]:
    noises = (0.3, 0.5, 0.8, 1.0, 2.0, 5.0, 10.0, 50.0) if full else (1.0, 2.0, 10.0, 0.5, 0.3)
    deltas = (1e-5, 1e-10, 1e-15, 1e-3, 0.1)
    return [(noise, 1.0, 1, delta) for noise in noises for delta in deltas]


def _composed_rows(full: bool) -> list[tuple[float, ...]]:
    rows: list[tuple[float, ...]] = [
        (1.0, 1.0, 2, 1e-5),
        (5.0, 1.0, 10, 1e-5),
        (5.0, 1.0, 10, 1e-12),
        (10.0, 1.0, 100, 1e-5),
        (10.0, 1.0, 100, 1e-15),
        (50.0, 1.0, 1000, 1e-5),
        (50.0, 1.0, 1000, 1e-10),
        (2.0, 1.0, 10, 1e-3),
    ]
    if full:
        rows += list(product((1.0, 5.0, 20.0, 100.0), (1.0,), (2, 10, 100, 1000), (1e-3, 1e-6, 1e-10, 1e-15)))
    return rows


def _subsampled_rows(full: bool) -> list[tuple[float, ...]]:
    """Chains through one base point in each parameter, then a block of short runs."""
    rows: list[tuple[float, ...]] = [
        (1.0, 0.01, 100, delta) for delta in (1e-5, 1e-3, 1e-8, 1e-10, 1e-12, 1e-15)
    ]
    rows += [(noise, 0.01, 100, 1e-5) for noise in (0.5, 2.0, 5.0)]
    rows += [(1.0, rate, 100, 1e-5) for rate in (0.1, 0.5, 0.001)]
    rows += [(1.0, 0.01, steps, 1e-5) for steps in (1, 10, 1000)]
    rows += [(1.0, 0.01, 1000, delta) for delta in (1e-10, 1e-15)]
    short = product((0.5, 1.0, 2.0), (0.01, 0.1, 0.5), (1, 10), (1e-5, 1e-10))
    rows += sorted(short, key=lambda row: row[2])
    rows += [(2.0, 0.1, 100, 1e-5), (0.6, 0.001, 1000, 1e-6), (0.3, 0.01, 10, 1e-5), (5.0, 0.5, 1000, 1e-5)]
    rows += [(1.0, 0.001, 1000, 1e-3)]  # one step alone is within delta
    if full:
        rows += list(
            product(
                (0.3, 0.5, 0.8, 1.0, 2.0, 5.0, 20.0, 50.0),
                (1e-4, 1e-3, 0.01, 0.1, 0.5),
                (1, 10, 100, 1000, 10000),
                (1e-3, 1e-5, 1e-8, 1e-10, 1e-12, 1e-15),
            )
        )
    return rows


def _replace_one(full: bool) -> tuple[Cell, ...]:
    rows: list[tuple[float, ...]] = [(noise, 1.0, 1, 1e-5) for noise in (0.5, 1.0, 2.0, 10.0)]
    rows += [(1.0, 1.0, 1, 1e-12), (10.0, 1.0, 100, 1e-5)]
    rows += [(1.0, 0.1, 1, 1e-5), (1.0, 0.5, 10, 1e-5), (1.0, 0.01, 100, 1e-5), (1.0, 0.01, 100, 1e-10)]
    rows += [(2.0, 0.1, 100, 1e-5), (0.5, 0.01, 10, 1e-5)]
    if full:
        rows += list(
            product((0.5, 1.0, 2.0, 10.0), (0.001, 0.01, 0.1, 0.5), (1, 10, 100, 1000), (1e-5, 1e-10))
        )
    return cells_of(RUN_REPLACE_ONE, RUN_NAMES, rows) + cells_of(
        LAPLACE_REPLACE_ONE, "steps scale delta", [(1, 1.0, 1e-5), (1, 5.0, 1e-3), (10, 10.0, 1e-5)]
    )


def _laplace_rows(full: bool) -> list[tuple[float, ...]]:
    rows: list[tuple[float, ...]] = list(product((1, 2, 10), (0.5, 1.0, 5.0), (1e-5, 1e-10, 0.05)))
    if full:
        rows += list(product((1, 3, 10, 100, 1000), (0.2, 1.0, 2.0, 20.0), (1e-2, 1e-4, 1e-8, 1e-12, 1e-15)))
    return rows


def _response_rows(full: bool) -> list[tuple[float, ...]]:
    rows: list[tuple[float, ...]] = list(product((1, 2, 10), (2, 5), (0.1, 0.5, 0.9), (1e-5,)))
    rows += [(10, 2, 0.5, 1e-10), (100, 2, 0.9, 1e-5), (1, 2, 0.5, 0.1), (100, 2, 0.9, 1e-12)]
    rows += [(10, 2, 0.1, 0.1), (100, 2, 0.1, 1e-5)]
    if full:
        rows += list(
            product((1, 3, 10, 50, 200), (2, 3, 10), (0.05, 0.3, 0.7, 0.95), (1e-3, 1e-6, 1e-10, 1e-15))
        )
    return rows


def _heterogeneous(full: bool) -> tuple[Cell, ...]:
    mixed: list[tuple[float, ...]] = [
        (1, 1, 1.0, 1.0, 1e-5),
        (10, 2, 5.0, 2.0, 1e-5),
        (1, 10, 2.0, 5.0, 1e-10),
    ]
    phases: list[tuple[float, ...]] = [
        (1, 1, 0.1, 1.0, 2.0, 1e-5),
        (50, 10, 0.01, 1.0, 0.5, 1e-5),
        (50, 50, 0.01, 2.0, 0.8, 1e-10),
    ]
    answers: list[tuple[float, ...]] = [(1, 1, 2.0, 0.5, 1e-5), (10, 3, 10.0, 0.9, 1e-5)]
    if full:
        mixed += list(product((1, 5, 50), (1, 4, 20), (2.0, 10.0), (1.0, 8.0), (1e-3, 1e-6, 1e-12)))
        phases += list(
            product((10, 100), (10, 1000), (0.1, 0.01, 0.001), (1.0, 3.0), (0.7, 5.0), (1e-5, 1e-10))
        )
        answers += list(product((1, 20), (1, 10), (2.0, 20.0), (0.3, 0.8), (1e-3, 1e-6, 1e-12)))
    return (
        cells_of(GAUSSIAN_AND_LAPLACE, "gaussians laplaces noise_multiplier scale delta", mixed)
        + cells_of(
            TWO_PHASES,
            "steps second_steps sampling_probability noise_multiplier second_noise_multiplier delta",
            phases,
        )
        + cells_of(
            GAUSSIAN_AND_RESPONSE, "gaussians responses noise_multiplier noise_parameter delta", answers
        )
    )


def _mixture_cells(full: bool) -> tuple[Cell, ...]:
    rows: list[tuple[float, ...]] = [(0.5, 1.0, 1.0, 1e-5), (0.1, 2.0, 1.0, 1e-5), (0.01, 1.0, 0.5, 1e-10)]
    if full:
        rows += list(product((0.5, 0.1, 0.01, 0.001), (1.0, 2.0), (0.3, 1.0, 4.0), (1e-3, 1e-6, 1e-12)))
    return cells_of(MIXTURES, "weight shift standard_deviation delta", rows)


def _shuffled_cells(full: bool) -> tuple[Cell, ...]:
    rows: list[tuple[float, ...]] = [
        (100, 1, 0.5, 1e-5),
        (10, 1, 1.0, 1e-5),
        (1000, 1, 0.4, 1e-6),
        (100, 5, 0.8, 1e-5),
    ]
    if full:
        rows += list(product((10, 100, 1000), (1, 10), (0.3, 0.5, 0.8, 1.5), (1e-3, 1e-6, 1e-10)))
    return cells_of(SHUFFLED, "batches epochs noise_multiplier delta", rows)


def families(grid: str) -> dict[str, tuple[Cell, ...]]:
    """The cells of `never_below_certified_lower`, by family of events.

    Args:
        grid: `"quick"` or `"full"`.
    """
    full = grid == "full"
    return {
        "gaussian": cells_of(RUN, RUN_NAMES, _gaussian_rows(full)),
        "composed_gaussian": cells_of(RUN, RUN_NAMES, _composed_rows(full)),
        "subsampled_gaussian": cells_of(RUN, RUN_NAMES, _subsampled_rows(full)),
        "replace_one": _replace_one(full),
        "laplace": cells_of(LAPLACE, "steps scale delta", _laplace_rows(full)),
        "randomised_response": cells_of(
            RANDOMISED_RESPONSE, "steps categories noise_parameter delta", _response_rows(full)
        ),
        "heterogeneous": _heterogeneous(full),
        "gaussian_mixtures": _mixture_cells(full),
        "shuffled_batches": _shuffled_cells(full),
    }


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
