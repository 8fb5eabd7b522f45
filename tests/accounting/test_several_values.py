"""Several values at once: as certified as one by one, and much cheaper."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.accounting import (
    Bounds,
    BoundsArray,
    Composed,
    Event,
    FixedBatch,
    Gaussian,
    Laplace,
    RandomAllocation,
    SubsampledGaussian,
    delta,
    epsilon,
    gaussian_run,
    tpr,
)
from workbench.accounting.certified import bounds_at
from workbench.accounting.grid.composition import Composition, KeptSum
from workbench.accounting.grid.curves import SumCurve
from workbench.accounting.grid.questions import EpsilonQuestion, on_grid
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency, Direction

RUN = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
DELTAS = np.geomspace(1e-10, 1e-2, 50)

EVENTS: list[tuple[Event, Adjacency]] = [
    (RUN, Adjacency.ADD_REMOVE),
    (gaussian_run(noise_multiplier=0.7, sampling_probability=0.1, steps=50), Adjacency.REPLACE_ONE),
    (Composed(events=((Laplace(scale=5.0), 20),)), Adjacency.ADD_REMOVE),
    (
        Composed(events=((FixedBatch(noise_multiplier=2.0, dataset_size=1000, batch_size=10), 50),)),
        Adjacency.REPLACE_ONE,
    ),
    (
        Composed(
            events=(
                (SubsampledGaussian(noise_multiplier=2.0, sampling_probability=0.1), 50),
                (Laplace(scale=5.0), 5),
            )
        ),
        Adjacency.ADD_REMOVE,
    ),
    (Gaussian(noise_multiplier=1.0), Adjacency.ADD_REMOVE),
    (Composed(events=((RandomAllocation(noise_multiplier=2.0, steps=10), 3),)), Adjacency.ADD_REMOVE),
]


def hold(together: Bounds | BoundsArray, each: list[Bounds], width: float) -> None:
    """Both hold the same truth, and those together are no wider than is asked for, or than one by one."""
    assert isinstance(together, BoundsArray)
    assert together.rigorous
    for low, high, single in zip(together.lower, together.upper, each, strict=True):
        assert low <= single.upper * (1 + 1e-12)
        assert single.lower <= high * (1 + 1e-12)
        assert high - low <= max(width * low, 1.01 * single.width)


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [EVENTS[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in EVENTS[1:])],
)
def test_several_values_are_bounded_as_each_is(event: Event, adjacency: Adjacency) -> None:
    deltas = DELTAS[::7]
    each = [epsilon(event, float(value), adjacency=adjacency) for value in deltas]
    hold(epsilon(event, deltas, adjacency=adjacency), each, 1e-3)
    epsilons = each[3].upper * np.linspace(0.0, 1.2, 6)
    singles = [delta(event, float(value), adjacency=adjacency) for value in epsilons]
    hold(delta(event, epsilons, adjacency=adjacency), singles, 1e-3)  # type: ignore[arg-type]
    rates = np.geomspace(1e-6, 0.5, 6)
    singles = [tpr(event, float(value), adjacency=adjacency) for value in rates]
    hold(tpr(event, rates, adjacency=adjacency), singles, 1e-3)  # type: ignore[arg-type]


def test_narrower_bounds_lie_within_those_of_several_values() -> None:
    """At a tenth of the width, one by one."""
    together = epsilon(RUN, DELTAS[::5])
    assert isinstance(together, BoundsArray)
    for value, low, high in zip(DELTAS[::5], together.lower, together.upper, strict=True):
        single = epsilon(RUN, float(value), relative_width=1e-4)
        assert low <= single.lower
        assert single.upper <= high


@pytest.mark.parametrize("direction", ["add", "remove"])
def test_one_direction_alone(direction: str) -> None:
    each = [epsilon(RUN, float(value), direction=direction) for value in DELTAS[::9]]
    hold(epsilon(RUN, DELTAS[::9], direction=direction), each, 1e-3)


def seconds(call: Callable[[], object]) -> float:
    """The least processor time of several calls, the answers of earlier ones forgotten."""
    spent = []
    for _ in range(5):
        on_grid.cache_clear()
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return min(spent)


def test_fifty_deltas_cost_less_than_five_times_one() -> None:
    one, fifty = seconds(lambda: epsilon(RUN, 1e-5)), seconds(lambda: epsilon(RUN, DELTAS))
    assert fifty < 5 * one


def test_order_repetition_and_shape_are_kept() -> None:
    found = epsilon(RUN, [[1e-3, 1e-6], [1e-6, 1e-3]])
    assert isinstance(found, BoundsArray)
    assert found.lower.shape == (2, 2)
    assert found.lower[0, 1] == found.lower[1, 0] > found.lower[0, 0] == found.lower[1, 1]


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("epsilons", [0.1], "kind"),
        ("epsilon", [0.1, 0.0], "delta must be"),
        ("delta", [-1.0, 0.1], "epsilon must be"),
        ("tpr", [0.1, float("nan")], "fpr must be"),
    ],
)
def test_what_is_no_value_is_named(kind: Any, values: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        bounds_at(kind, RUN, values)


def test_no_values_have_no_bounds() -> None:
    assert bounds_at("epsilon", RUN, []) == []


def kept_sums() -> tuple[Composition, list[KeptSum]]:
    """The sums of a composition, kept while one delta is asked."""
    question = EpsilonQuestion(RUN, Adjacency.ADD_REMOVE, Direction.BOTH)
    composition = question.composition([1e-8])
    composition.kept = []
    question.refined(composition, 1e-5, 1e-3)
    return composition, composition.kept


def test_a_curve_lies_outside_of_the_sum_that_it_is_of() -> None:
    """From a table of grid points, against the sum asked at each value: on the safe side, and close."""
    _, kept = kept_sums()
    assert {each.total.upper for each in kept} == {True, False}
    values = np.geomspace(1e-7, 1e-3, 40)
    for each in kept:
        total, curve = each.total, SumCurve(each.total)
        side = 1 if total.upper else -1
        epsilons = curve.epsilons(values)
        exact = np.array([total.epsilon(float(v), float(e)) for v, e in zip(values, epsilons, strict=True)])
        assert (side * (epsilons - exact) >= -1e-11).all()
        assert np.allclose(epsilons, exact, rtol=1e-4)
        places = np.linspace(max(total.losses[0], 0.01), min(2.0, total.losses[-1]), 40)
        table = curve.deltas(places)
        direct = np.array([total.delta(float(place)) for place in places])
        assert (side * (table - direct) >= -1e-9 * direct).all()
        assert np.allclose(table, direct, rtol=1e-4)
        rates = curve.rates(values)
        found = np.array([total.tpr(float(value)) for value in values])
        assert np.allclose(rates, found, rtol=1e-4)


def test_a_curve_says_nothing_outside_of_its_window() -> None:
    _, kept = kept_sums()
    for each in kept:
        curve, losses = SumCurve(each.total), each.total.losses
        beyond = curve.deltas(np.array([losses[0] - 1, losses[-1] + 1]))
        if each.total.upper:
            assert beyond[0] == 1
            assert np.isinf(curve.epsilons(np.array([1e-200]))[0])
        else:
            assert beyond[1] == 0
            assert curve.epsilons(np.array([0.999999999]))[0] == -np.inf
