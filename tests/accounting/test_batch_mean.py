"""Sums over the real batch size: against enumerated batch sizes, SciPy's t, and simulated steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom, nct
from scipy.stats import t as student

from tests.accounting.test_events_independently import CELLS, LESS, Values, between, masses, noise, whole
from workbench.accounting import BatchMean, Composed, delta, epsilon, gaussian_run, tpr
from workbench.accounting.balls.batch_mean import batch_mean_pairs
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency

ROUNDING = 1e-4
Curve = Callable[[float], float]


def normal(x: Values, mean: float, noise: float) -> Values:
    return np.asarray(np.exp(-0.5 * ((x - mean) / noise) ** 2) / (noise * math.sqrt(2 * math.pi)))


def enumerated(noise: float, rate: float, count: int, adjacency: Adjacency) -> Curve:
    """All batch sizes, told along with the noised sum; others of -1, a record of 1, or none, or -1."""
    reach, rows = 10 * noise + 2, ([], [])
    at = {mean: masses(lambda x, m=mean: normal(x, m, noise), reach, 6001) for mean in (0.0, 1.0, 2.0)}
    for size in range(count + 1):
        out, taken = (
            (1 - rate) * binom.pmf(size, count - 1, rate),
            rate * binom.pmf(size - 1, count - 1, rate),
        )
        rows[0].append(out * at[0.0] + taken * at[2.0])
        other = {Adjacency.ZERO_OUT: 1.0, Adjacency.REPLACE_ONE: 0.0}.get(adjacency)
        if other is None:
            rows[1].append(binom.pmf(size, count - 1, rate) * at[0.0])
        else:
            rows[1].append(out * at[0.0] + taken * at[other])
    p, q = (np.concatenate(side) for side in rows)

    def value(level: float) -> float:
        gain = math.exp(level)
        return float(max(np.maximum(p - gain * q, 0).sum(), np.maximum(q - gain * p, 0).sum()))

    return value


def half_lines(noise: float, rate: float, dimension: int) -> Curve:
    """The best half-line of the first coordinate over the root mean square of the others."""
    at = np.linspace(-8, 8 + 2 / noise, 2001)
    without, taken = student.sf(at, dimension - 1), nct.sf(at, dimension - 1, 2 / noise)
    with_it = (1 - rate) * without + rate * taken

    def value(level: float) -> float:
        gain = math.exp(level)
        return float(max((with_it - gain * without).max(), (1 - without - gain * (1 - with_it)).max()))

    return value


def cells(adjacency: Adjacency) -> list[tuple[float, float, int, int, float]]:
    """Noise, rate, records, dimension, and an epsilon at which delta is some of that at 0."""
    found = []
    for u in np.random.default_rng([20260802, *adjacency.value.encode()]).random((CELLS, 5)):
        drawn = noise(u), between(u[1], 0.02, 0.6), whole(u[2], 60, 200), whole(u[3], 40, 90)
        value, low, high = enumerated(*drawn[:3], adjacency), 0.0, 12.0
        target = value(0.0) * between(u[4], 0.01, 0.5)
        for _ in range(8):
            middle = (low + high) / 2
            low, high = (middle, high) if value(middle) > target else (low, middle)
        found.append((*drawn, low))
    return found


@pytest.mark.slow
def test_the_upper_end_is_that_of_a_known_batch_size() -> None:
    for sigma, rate, count, dimension, level in cells(Adjacency.ADD_REMOVE):
        event = BatchMean(
            noise_multiplier=sigma, sampling_probability=rate, dataset_size=count, dimension=dimension
        )
        upper = delta(event, level).upper
        right, wrong = (
            enumerated(share * sigma, rate, count, Adjacency.ADD_REMOVE)(level) for share in (1, LESS)
        )
        assert right <= upper * (1 + ROUNDING) <= right * 1.01 < wrong


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_replaced_records_are_below_the_upper_end(adjacency: Adjacency) -> None:
    for sigma, rate, count, dimension, level in cells(adjacency):
        event = BatchMean(
            noise_multiplier=sigma, sampling_probability=rate, dataset_size=count, dimension=dimension
        )
        bounds = delta(event, level, adjacency=adjacency)
        right, wrong = (enumerated(share * sigma, rate, count, adjacency)(level) for share in (1, LESS))
        assert bounds.lower <= right <= bounds.upper * (1 + ROUNDING)
        if adjacency is Adjacency.REPLACE_ONE:  # The worst that is known; zero-out has its upper end.
            assert bounds.upper <= right * 1.01 < wrong


@pytest.mark.slow
def test_the_lower_end_is_that_of_half_lines() -> None:
    for sigma, rate, count, dimension, level in cells(Adjacency.ADD_REMOVE):
        empty = (1 - rate) ** (count - 1)
        event = BatchMean(
            noise_multiplier=sigma, sampling_probability=rate, dataset_size=count, dimension=dimension
        )
        lower = delta(event, level).lower
        right, wrong = (half_lines(share * sigma, rate, dimension)(level) for share in (1, 1 / LESS))
        assert lower <= right * (1 + ROUNDING)
        assert lower >= 0.96 * right - 2 * math.exp(level) * empty
        assert wrong < lower or empty > 1e-3 * lower


def test_a_simulated_step_has_the_law_of_t() -> None:
    """The whole mechanism: who is drawn, the sum, the noise, the division. Two rates within 5 deviations.

    False alarm in one of a million runs; the control, noise that is not divided, is rejected.
    """
    generator, runs = np.random.default_rng(7), 40_000
    sigma, rate, count, dimension, at = 1.3, 0.2, 40, 12, 1.5

    def share(*, with_it: bool, is_divided: bool = True) -> float:
        taken = generator.random(runs) < (rate if with_it else 0.0)
        others = generator.binomial(count - 1, rate, runs)
        drawn = np.maximum(others + taken, 1)
        released = sigma * generator.standard_normal((runs, dimension))
        released[:, 0] += taken * 1.0 - others
        if is_divided:
            released /= drawn[:, None]
        scale = np.sqrt((released[:, 1:] ** 2).mean(axis=1))
        return float(((released[:, 0] + 1) / scale > at).mean())

    without = student.sf(at, dimension - 1)
    expected = (1 - rate) * without + rate * nct.sf(at, dimension - 1, 2 / sigma)
    for with_it, value in ((False, without), (True, expected)):
        allowed = 5 * math.sqrt(value / runs)
        assert abs(share(with_it=with_it) - value) < allowed
        assert abs(share(with_it=with_it, is_divided=False) - value) > allowed


@pytest.mark.slow
def test_the_divisor_all_but_halves_the_noise() -> None:
    step = BatchMean(noise_multiplier=2.0, sampling_probability=0.02, dataset_size=20_000, dimension=10**6)
    bounds = epsilon(Composed(events=((step, 200),)), 1e-5)
    run = {"sampling_probability": 0.02, "steps": 200}
    assert bounds.lower > 3 * epsilon(gaussian_run(noise_multiplier=2.0, **run), 1e-5).upper
    half = epsilon(gaussian_run(noise_multiplier=1.0, **run), 1e-5)
    assert 0.99 * half.lower < bounds.lower < half.upper
    assert bounds.upper < 1.01 * half.upper


@pytest.mark.slow
def test_more_dimensions_and_less_noise_tell_more() -> None:
    def lower(dimension: int, sigma: float = 1.0) -> float:
        event = BatchMean(
            noise_multiplier=sigma, sampling_probability=0.1, dataset_size=500, dimension=dimension
        )
        return tpr(event, 0.01).lower

    ordered = [lower(2), lower(10), lower(1000), lower(10**8), lower(10**8, 0.9)]
    assert ordered == sorted(ordered)
    assert ordered[-1] < 1


def test_the_pairs_are_probabilities() -> None:
    for adjacency in Adjacency:
        for pair in batch_mean_pairs(1.0, 0.1, 300, 1000, adjacency):
            assert sum(pair.p) == sum(pair.q) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("sampling_probability", 1), ("dimension", 1), ("dataset_size", 1), ("noise_multiplier", 0)],
)
def test_what_is_out_of_range_is_refused(field: str, value: float) -> None:
    given = {"noise_multiplier": 1, "sampling_probability": 0.1, "dataset_size": 100, "dimension": 10}
    with pytest.raises(InputError, match=field):
        BatchMean(**given | {field: value})


def test_noise_beyond_the_bounds_is_refused() -> None:
    event = BatchMean(noise_multiplier=0.01, sampling_probability=0.1, dataset_size=100, dimension=10)
    with pytest.raises(UnsupportedError, match="real batch size"):
        epsilon(event, 1e-5)
