"""The best of a random number of runs: against sums over their number, and random mechanisms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from flint import arb
from scipy.stats import logser, poisson

from workbench.accounting import BestOfRuns, Composed, Gaussian, delta, epsilon, to_dp_event, tpr
from workbench.accounting.balls.repeated import _PLACES, _SHARES, Runs
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds
from workbench.core.errors import InputError, UnsupportedError

CELLS = [
    (level, shape, mean)
    for level, mean in ((0.1, 5.0), (0.5, 30.0), (1.0, 3.0))
    for shape in (0.0, 0.5, 1.0, 3.0, math.inf)
]


def weights(shape: float, mean: float) -> np.ndarray:
    """P(K = k) for k from 0, with gamma by bisection and each term by the recursion of its definition."""
    k = np.arange(6000)
    if math.isinf(shape):
        return np.asarray(poisson.pmf(k, mean))
    low, high = 1e-9, 1 - 1e-9
    for _ in range(200):
        gamma = (low + high) / 2
        if shape:
            found = shape * (1 - gamma) / (gamma * (1 - gamma**shape))
        else:
            found = (1 / gamma - 1) / math.log(1 / gamma)
        low, high = (gamma, high) if found > mean else (low, gamma)
    if not shape:
        return np.asarray(logser.pmf(k, 1 - gamma))
    terms = [0.0]
    for index in range(1, len(k)):
        grown = terms[-1] * (index - 1 + shape) / index if index > 1 else shape
        terms.append(grown * (1 - gamma))
    return np.array(terms) / math.fsum(terms)


def best(base: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Law of the best of all runs, worst output first; and of no run."""
    below = np.concatenate(([0.0], np.cumsum(base)))
    powers = below[:, None] ** np.arange(len(number))
    reached = powers @ number
    return np.append(np.diff(reached), number[0])


def hockey_stick(p: np.ndarray, q: np.ndarray, level: float) -> float:
    return float(np.maximum(p - math.exp(level) * q, 0).sum())


def mechanism(generator: np.random.Generator, level: float, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """A pair within exp(level), at its limits for about half of the outputs."""
    q = generator.dirichlet(np.full(outputs, 0.3))
    high = generator.random(outputs) < 0.5
    mass = q[high].sum()
    # As far as both sides allow: up by a factor, and down by what keeps the sum.
    up = min(math.exp(level), (1 - math.exp(-level) * (1 - mass)) / mass) if 0 < mass < 1 else 1.0
    down = (1 - up * mass) / (1 - mass) if mass < 1 else 1.0
    return np.where(high, up * q, down * q), q


@pytest.mark.parametrize(("level", "shape", "mean"), CELLS)
def test_no_mechanism_leaves_the_upper_end(level: float, shape: float, mean: float) -> None:
    generator = np.random.default_rng(6)
    event, number = BestOfRuns(epsilon=level, shape=shape, mean=mean), weights(shape, mean)
    assert number @ np.arange(len(number)) == pytest.approx(mean, rel=1e-6)
    at = 0.5 * level
    found = delta_bounds(event, at)
    largest = float(event.loss())
    for _ in range(40):
        p, q = mechanism(generator, level, int(generator.integers(2, 6)))
        one, two = best(p, number), best(q, number)
        kept = (one > 1e-12) & (two > 1e-12)
        assert np.abs(np.log(one[kept] / two[kept])).max() <= largest * (1 + 1e-6) + 1e-3 * level
        for a, b in ((one, two), (two, one)):
            assert hockey_stick(a, b, at) <= found.upper * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize(("level", "shape", "mean"), CELLS)
def test_mechanisms_of_three_outputs_attain_the_lower_end(level: float, shape: float, mean: float) -> None:
    event, number = BestOfRuns(epsilon=level, shape=shape, mean=mean), weights(shape, mean)
    at, growth, attained = 0.5 * level, math.exp(level), 0.0
    most = (1 - 1e-9) / (growth + 1)
    places = [(b * most, a * most) for b, a in _SHARES]
    for b, a in [*places, *((min(b / mean, most), min(a / mean, most)) for b, a in _PLACES)]:
        one = best(np.array([1 - b - growth * a, growth * a, b]), number)
        two = best(np.array([1 - growth * b - a, a, growth * b]), number)
        attained = max(attained, hockey_stick(one, two, at), hockey_stick(two, one, at))
    found = delta_bounds(event, at)
    assert found.lower == pytest.approx(attained, rel=1e-6, abs=1e-9)
    assert 0 < found.lower <= found.upper
    assert "lower end by outputs on two data sets" in found.method


@pytest.mark.parametrize(
    ("shape", "mean"), [(0.0, 4.0), (0.5, 10.0), (1.0, 20.0), (2.5, 3.0), (math.inf, 7.0)]
)
def test_generating_functions_are_sums(shape: float, mean: float) -> None:
    number = weights(shape, mean)
    for x in (0.0, 0.3, 0.9, 1.0):
        assert float(Runs(shape, mean).generating(arb(x))) == pytest.approx(
            float(number @ x ** np.arange(len(number))), rel=1e-7, abs=1e-12
        )


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_many_runs_all_but_attain_the_pure_promise(shape: float) -> None:
    event = BestOfRuns(epsilon=0.2, shape=shape, mean=1000.0)
    found = epsilon_bounds(event, 1e-9)
    assert found.upper == pytest.approx((2 + shape) * 0.2, rel=1e-6)
    assert found.lower > 0.9 * found.upper


@pytest.mark.slow
def test_larger_shapes_cost_more_and_rounds_compose() -> None:
    found = [
        epsilon_bounds(BestOfRuns(epsilon=0.1, shape=shape, mean=50.0), 1e-6) for shape in (0.0, 1.0, 4.0)
    ]
    assert all(less.upper < more.upper for less, more in itertools.pairwise(found))
    assert all(less.lower < more.lower for less, more in itertools.pairwise(found))
    event = Composed(
        events=((BestOfRuns(epsilon=0.1, shape=1.0, mean=20.0), 10), (Gaussian(noise_multiplier=5.0), 1))
    )
    for question, argument in ((epsilon, 1e-6), (delta, 0.5), (tpr, 0.01)):
        answer = question(event, argument)
        assert isinstance(answer, Bounds)
        assert 0 < answer.lower <= answer.upper


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"shape": -0.5}, "shape must be"),
        ({"mean": 1.0}, "mean must be"),
        ({"shape": math.inf, "mean": 0.0}, "mean must be"),
    ],
)
def test_runs_out_of_range_are_named(given: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BestOfRuns(**{"epsilon": 0.1, "shape": 1.0, "mean": 5.0} | given)


def test_what_has_no_bounds_or_counterpart_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="dp-accounting has no event for best of about 5 runs"):
        to_dp_event(BestOfRuns(epsilon=0.1, shape=1.0, mean=5.0))
    with pytest.raises(UnsupportedError, match="may have losses beyond 500"):
        epsilon(BestOfRuns(epsilon=100.0, shape=9.0, mean=5.0), 1e-6)
