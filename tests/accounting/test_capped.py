"""Capped Poisson samples: against all samples of small data sets, and another library."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event as theirs
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom, norm

from workbench.accounting import (
    CappedPoisson,
    Composed,
    Event,
    FixedBatch,
    Gaussian,
    SubsampledGaussian,
    delta,
    epsilon,
    event_of,
    gaussian_run,
    to_dp_event,
    tpr,
)
from workbench.accounting.balls.capped import Capped, opposed_pair
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency

SMALL = [(1.0, 0.3, 4, 2), (2.0, 0.5, 5, 2), (0.8, 0.2, 4, 1), (1.5, 0.7, 5, 4)]


def capped(noise: float, q: float, dataset: int, cap: int) -> CappedPoisson:
    return CappedPoisson(
        noise_multiplier=noise, sampling_probability=q, dataset_size=dataset, largest_batch=cap
    )


def times(event: Event, count: int) -> Event:
    return Composed(events=((event, count),))


def density(values: np.ndarray, q: float, cap: int, noise: float, x: np.ndarray) -> np.ndarray:
    """Output density, by all samples of the data set and all batches that may be kept of them."""
    total = np.zeros_like(x)
    for size in range(len(values) + 1):
        chance = q**size * (1 - q) ** (len(values) - size)
        for drawn in itertools.combinations(range(len(values)), size):
            batches = list(itertools.combinations(drawn, min(size, cap)))
            for batch in batches:
                total += chance / len(batches) * norm.pdf(x, loc=values[list(batch)].sum(), scale=noise)
    return total


def divergence(p: np.ndarray, q: np.ndarray, level: float, pace: float) -> float:
    return max(float(np.maximum(a - math.exp(level) * b, 0).sum() * pace) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("noise", "q", "dataset", "cap"), SMALL)
def test_no_small_data_set_leaves_the_bounds(
    noise: float, q: float, dataset: int, cap: int, adjacency: Adjacency
) -> None:
    generator = np.random.default_rng(3)
    x = np.linspace(-cap - 9 * noise, cap + 9 * noise, 4001)
    pace = float(x[1] - x[0])
    found = delta_bounds(capped(noise, q, dataset, cap), 0.3, adjacency=adjacency)
    best = 0.0
    for trial in range(8):
        values = generator.uniform(-1, 1, dataset)
        if trial == 0:
            values = np.append(1.0, np.zeros(dataset - 1))
        if trial == 1:
            values = np.append(1.0, -np.ones(dataset - 1))
        if adjacency is Adjacency.ADD_REMOVE:
            other = values[1:]
        else:
            other = values.copy()
            other[0] = 0.0 if adjacency is Adjacency.ZERO_OUT else -values[0]
        p, without = (density(each, q, cap, noise, x) for each in (values, other))
        best = max(best, divergence(p, without, 0.3, pace))
    assert best <= found.upper * (1 + 1e-5)
    assert best >= found.lower * (1 - 1e-4)
    assert found.lower > 0


@pytest.mark.parametrize(("q", "others", "cap"), [(0.1, 30, 5), (0.5, 9, 9), (0.01, 999, 20), (0.3, 1, 1)])
def test_probabilities_are_those_of_the_binomial(q: float, others: int, cap: int) -> None:
    found = Capped.of(q, others, cap)
    k = np.arange(others + 1)
    weights, rates = binom.pmf(k, others, q), q * np.minimum(1.0, cap / (k + 1))
    full = float(weights[k >= cap].sum())
    truths = (
        (found.room, 1 - full),
        (found.full, full),
        (found.kept_when_full, float((weights * rates)[k >= cap].sum()) / full),
        (found.kept, float(weights @ rates)),
    )
    for (low, high), truth in truths:
        assert low == pytest.approx(truth, rel=1e-9)
        assert high == pytest.approx(low, rel=1e-14)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    ("noise", "q", "others", "cap"), [(1.0, 0.1, 999, 80), (0.3, 0.5, 30, 12), (10.0, 0.3, 99, 28)]
)
def test_opposed_records_tell_a_little_less_in_intervals(
    noise: float, q: float, others: int, cap: int, replaced: bool
) -> None:
    """Against sums over the numbers of others on a fine line; 1 % less noise tells more than the line."""
    k = np.arange(others + 1)
    weights, kept = binom.pmf(k, others, q), q * np.minimum(1.0, cap / (k + 1))
    base = -np.minimum(k, cap)
    moved = np.where(k < cap, base, base + 1)  # The record takes the place of another.
    x = np.arange(-cap - 12 * noise, 3 + 12 * noise, noise / 100)

    def line(parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        return sum(w @ norm.pdf(x[None, :], loc=m[:, None], scale=noise) for w, m in parts)

    with_record = line([(weights * (1 - kept), base), (weights * kept, moved + 1)])
    without = line(
        [(weights * (1 - kept), base), (weights * kept, moved - 1)] if replaced else [(weights, base)]
    )
    pair = opposed_pair(noise, q, others, cap, replaced=replaced)
    closer = opposed_pair(0.99 * noise, q, others, cap, replaced=replaced)
    for level in (0.0, 0.1 / noise, 0.5 / noise):
        truth = divergence(with_record, without, level, noise / 100)
        found, more = (
            divergence(np.array(each.p, float), np.array(each.q, float), level, 1.0)
            for each in (pair, closer)
        )
        assert 0.995 * truth < found < truth * (1 + 1e-4)
        assert more > truth * (1 + 1e-4)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_a_cap_that_is_often_met_costs_more_than_a_sample_without(adjacency: Adjacency) -> None:
    sample = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.1)
    without = epsilon_bounds(times(sample, 10), 1e-5, adjacency=adjacency)
    found = epsilon_bounds(times(capped(1.0, 0.1, 1000, 80), 10), 1e-5, adjacency=adjacency)
    assert without.upper < 0.7 * found.lower


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "q", "dataset", "cap", "steps"),
    [(1.0, 0.01, 10_000, 130, 100), (2.0, 0.1, 1000, 110, 50), (1.0, 0.02, 500, 10, 10)],
)
def test_another_library_lies_between_the_lower_end_and_above_the_upper(
    noise: float, q: float, dataset: int, cap: int, steps: int
) -> None:
    """It takes replacing, not standing in for another, wherever the cap is met: a little more."""
    event = times(capped(noise, q, dataset, cap), steps)
    found = epsilon_bounds(event, 1e-6)
    peer = PLDAccountant().compose(to_dp_event(event)).get_epsilon(1e-6)
    assert found.lower <= peer
    assert found.upper <= peer * (1 + 2e-3)
    assert event_of(to_dp_event(event)) == event


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_it_lies_between_a_cap_that_is_never_met_and_one_that_always_is(adjacency: Adjacency) -> None:
    sampled = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=100)
    seldom = epsilon_bounds(times(capped(1.0, 0.01, 10_000, 250), 100), 1e-5, adjacency=adjacency)
    never = epsilon_bounds(times(capped(1.0, 0.01, 10_000, 10_000), 100), 1e-5, adjacency=adjacency)
    plain = epsilon_bounds(sampled, 1e-5, adjacency=adjacency)
    assert never == plain
    assert seldom.lower == pytest.approx(plain.lower, rel=2e-3)
    assert seldom.upper == pytest.approx(plain.upper, rel=2e-3)
    often = epsilon_bounds(times(capped(1.0, 0.01, 10_000, 110), 100), 1e-5, adjacency=adjacency)
    assert plain.lower < often.upper
    assert often.lower < plain.lower
    assert "lower end by outputs on two data sets" in often.method


def test_sampling_everybody_is_the_fixed_batch() -> None:
    event, batch = (
        capped(3.0, 1.0, 100, 10),
        FixedBatch(noise_multiplier=3.0, dataset_size=100, batch_size=10),
    )
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
        assert epsilon_bounds(times(event, 5), 1e-5, adjacency=adjacency) == epsilon_bounds(
            times(batch, 5), 1e-5, adjacency=adjacency
        )
    with pytest.raises(UnsupportedError, match="add-remove and replace-one only"):
        epsilon_bounds(event, 1e-5, adjacency=Adjacency.ZERO_OUT)


def test_it_composes_with_others() -> None:
    event = Composed(events=((capped(2.0, 0.1, 1000, 130), 10), (Gaussian(noise_multiplier=5.0), 1)))
    alone = epsilon_bounds(Gaussian(noise_multiplier=5.0), 1e-5)
    assert alone.upper < epsilon_bounds(event, 1e-5).lower
    for question, argument in ((epsilon, 1e-6), (delta, 0.5), (tpr, 0.01)):
        found = question(event, argument)
        assert isinstance(found, Bounds)
        assert 0 < found.lower <= found.upper < 1.2 * found.lower


def test_anybodys_event_is_read() -> None:
    made = theirs.TruncatedSubsampledGaussianDpEvent(1000, 0.1, 120, 1.5)
    assert event_of(made) == capped(1.5, 0.1, 1000, 120)
    with pytest.raises(UnsupportedError, match="releases nothing"):
        event_of(theirs.TruncatedSubsampledGaussianDpEvent(1000, 0.0, 120, 1.5))
    small = theirs.TruncatedSubsampledGaussianDpEvent(5, 0.1, 9, 1.5)
    assert epsilon(small, 1e-5) == epsilon(
        SubsampledGaussian(noise_multiplier=1.5, sampling_probability=0.1), 1e-5
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise": 0.0}, "noise_multiplier must be"),
        ({"q": 0.0}, "sampling_probability must be in"),
        ({"dataset": 0}, "dataset_size must be"),
        ({"cap": 0}, "largest_batch must be"),
    ],
)
def test_a_sample_out_of_range_is_named(given: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        capped(**{"noise": 1.0, "q": 0.1, "dataset": 10, "cap": 3} | given)  # type: ignore[arg-type]
