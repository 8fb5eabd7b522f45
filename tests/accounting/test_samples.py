"""Samples of records: against integrals, enumerated data sets, products of grids, and another library."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, laplace, norm

from workbench.accounting import Composed, Event, delta, epsilon, tpr
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds
from workbench.accounting.events import Laplace, SubsampledGaussian, gaussian_run
from workbench.accounting.samples import FixedBatch, SubsampledLaplace, SubsampledUser, user_run
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Direction

Density = Callable[[np.ndarray], np.ndarray]
ADD, REMOVE = Direction.ADD, Direction.REMOVE


def times(event: Event, count: int) -> Event:
    return Composed(events=((event, count),))


def integral(p: Density, q: Density, level: float, ends: tuple[float, float]) -> float:
    """Integral of the positive part of p - exp(level) q, by the midpoint rule on a fine grid."""
    edges = np.linspace(*ends, 100_001)
    x = (edges[1:] + edges[:-1]) / 2
    return float(np.maximum(p(x) - math.exp(level) * q(x), 0).sum() * (edges[1] - edges[0]))


def twice(p: Density, q: Density, level: float, ends: tuple[float, float], points: int = 3001) -> float:
    """The same of two independent steps, on the product of a midpoint grid."""
    edges = np.linspace(*ends, points)
    x, pace = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    a, b = p(x) * pace, q(x) * pace
    return float(np.maximum(np.outer(a, a) - math.exp(level) * np.outer(b, b), 0).sum())


def laplaces(scale: float, q: float, adjacency: Adjacency) -> tuple[Density, Density]:
    """Outputs with the record, and without it or with another."""

    def mixed(mean: float) -> Density:
        return lambda x: (1 - q) * laplace.pdf(x, scale=scale) + q * laplace.pdf(x, loc=mean, scale=scale)

    return mixed(1.0), mixed(-1.0) if adjacency is Adjacency.REPLACE_ONE else mixed(0.0)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    ("scale", "q", "level"),
    [
        (1.0, 0.1, 0.05),
        (0.5, 0.5, 0.8),
        (3.0, 0.9, 0.1),
        (0.2, 0.01, 0.3),
        (10.0, 0.3, 0.0),
        (0.1, 0.001, 1.0),
    ],
)
def test_one_sampled_laplace_step_is_its_integral(
    scale: float, q: float, level: float, adjacency: Adjacency
) -> None:
    event = SubsampledLaplace(scale=scale, sampling_probability=q)
    p, other = laplaces(scale, q, adjacency)
    # Whole numbers of steps to the kinks at -1, 0 and 1.
    ends = (-math.ceil(40 * scale + 1), math.ceil(40 * scale + 1))
    truths = {
        REMOVE: integral(p, other, level, ends),
        ADD: integral(other, p, level, ends),
    }
    both = delta_bounds(event, level, adjacency=adjacency)
    assert both.lower - 1e-7 <= max(truths.values()) <= both.upper + 1e-7
    assert both.width <= 2e-3 * both.lower + 1e-9
    if adjacency is not Adjacency.REPLACE_ONE:
        for direction, truth in truths.items():
            found = delta_bounds(event, level, adjacency=adjacency, direction=direction)
            assert found.lower - 1e-7 <= truth <= found.upper + 1e-7


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(("scale", "q", "level"), [(1.0, 0.2, 0.2), (0.5, 0.6, 1.0)])
def test_two_sampled_laplace_steps_enclose_a_product(
    scale: float, q: float, level: float, adjacency: Adjacency
) -> None:
    p, other = laplaces(scale, q, adjacency)
    truth = max(twice(*pair, level, (-13.0, 13.0), 5201) for pair in ((p, other), (other, p)))
    found = delta_bounds(
        times(SubsampledLaplace(scale=scale, sampling_probability=q), 2), level, adjacency=adjacency
    )
    assert found.lower * (1 - 2e-4) <= truth <= found.upper * (1 + 2e-4)
    assert found.relative_width < 2e-3


@pytest.mark.parametrize(("scale", "q", "steps"), [(1.0, 0.1, 30), (2.0, 0.02, 200), (0.5, 0.5, 10)])
def test_sampled_laplace_runs_agree_with_another_library(scale: float, q: float, steps: int) -> None:
    theirs = pld.from_laplace_mechanism(scale, sampling_prob=q, value_discretization_interval=1e-4)
    composed = theirs.self_compose(steps)
    event = times(SubsampledLaplace(scale=scale, sampling_probability=q), steps)
    for direction, side in ((REMOVE, composed._pmf_remove), (ADD, composed._pmf_add)):
        found, peer = epsilon_bounds(event, 1e-6, direction=direction), side.get_epsilon_for_delta(1e-6)
        assert found.lower <= peer <= found.upper * (1 + 3e-3)


@pytest.mark.slow
def test_sampling_everybody_is_the_laplace_event() -> None:
    always = times(SubsampledLaplace(scale=2.0, sampling_probability=1.0), 3)
    for adjacency in Adjacency:
        found = epsilon_bounds(always, 1e-5, adjacency=adjacency)
        assert found == epsilon_bounds(times(Laplace(scale=2.0), 3), 1e-5, adjacency=adjacency)


def users(noise: float, q: float, records: int) -> tuple[Density, Density]:
    weights = binom.pmf(np.arange(records + 1), records, q)

    def with_them(x: np.ndarray) -> np.ndarray:
        parts = [w * norm.pdf(x, loc=i, scale=noise) for i, w in enumerate(weights)]
        return np.asarray(sum(parts))

    return with_them, lambda x: norm.pdf(x, scale=noise)


@pytest.mark.parametrize("direction", [ADD, REMOVE])
@pytest.mark.parametrize(
    ("noise", "q", "records", "level"), [(1.0, 0.1, 2, 0.1), (4.0, 0.3, 8, 0.5), (2.0, 0.01, 30, 0.2)]
)
def test_one_step_of_a_persons_records_is_its_integral(
    noise: float, q: float, records: int, level: float, direction: Direction
) -> None:
    event = SubsampledUser(noise_multiplier=noise, sampling_probability=q, records=records)
    p, other = users(noise, q, records)
    pair = (p, other) if direction is REMOVE else (other, p)
    truth = integral(*pair, level, (-10 * noise, records + 10 * noise))
    for adjacency in ("add-remove", "zero-out"):
        found = delta(event, level, adjacency=adjacency, direction=direction)
        assert isinstance(found, Bounds)
        assert found.lower - 1e-7 <= truth <= found.upper + 1e-7
        assert found.relative_width < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "q", "records", "steps"),
    [
        (10.0, 0.01, 40, 100),
        pytest.param(3.0, 0.05, 4, 50, marks=pytest.mark.slow),
        pytest.param(5.0, 0.5, 3, 5, marks=pytest.mark.slow),
    ],
)
def test_runs_about_a_person_agree_with_another_library(
    noise: float, q: float, records: int, steps: int
) -> None:
    run = user_run(noise_multiplier=noise, sampling_probability=q, steps=steps, records_per_user=records)
    weights = binom.pmf(np.arange(records + 1), records, q)
    theirs = pld.from_mixture_gaussian_mechanism(
        noise, list(range(records + 1)), list(weights / weights.sum()), value_discretization_interval=1e-4
    ).self_compose(steps)
    found = epsilon_bounds(run, 1e-6)
    peer = theirs.get_epsilon_for_delta(1e-6)
    assert found.lower <= peer <= found.upper * (1 + 3e-3)
    assert found.relative_width < 2e-3


def test_two_steps_of_a_persons_records_enclose_a_product() -> None:
    p, other = users(2.0, 0.2, 3)
    truth = twice(p, other, 0.5, (-16.0, 20.0))
    found = delta_bounds(
        times(SubsampledUser(noise_multiplier=2.0, sampling_probability=0.2, records=3), 2), 0.5
    )
    assert found.lower * (1 - 1e-4) <= truth <= found.upper * (1 + 1e-4)


def test_a_person_of_one_record_is_a_record_and_more_records_cost_more() -> None:
    one, run = (
        user_run(noise_multiplier=2.0, sampling_probability=0.05, steps=20, records_per_user=1),
        gaussian_run(noise_multiplier=2.0, sampling_probability=0.05, steps=20),
    )
    for adjacency in Adjacency:
        assert epsilon_bounds(one, 1e-5, adjacency=adjacency) == epsilon_bounds(
            run, 1e-5, adjacency=adjacency
        )
    found = [
        epsilon_bounds(
            user_run(noise_multiplier=20.0, sampling_probability=0.01, steps=10, records_per_user=records),
            1e-5,
        )
        for records in (1, 2, 10, 300, 3000)
    ]
    assert all(less.upper < more.lower for less, more in itertools.pairwise(found))
    # Records that contribute less, or some of which do not exist, stay below.
    full = user_run(noise_multiplier=3.0, sampling_probability=1.0, steps=2, records_per_user=6)
    whole = gaussian_run(noise_multiplier=0.5, sampling_probability=1.0, steps=2)
    assert epsilon_bounds(full, 1e-5).upper == pytest.approx(epsilon_bounds(whole, 1e-5).upper, rel=1e-9)
    with pytest.raises(UnsupportedError, match="replace-one"):
        epsilon_bounds(full, 1e-5, adjacency=Adjacency.REPLACE_ONE)


def batches(values: np.ndarray, size: int, noise: float) -> Density:
    """Output density of a sum over a uniform batch of these contributions."""
    sums = [values[list(chosen)].sum() for chosen in itertools.combinations(range(len(values)), size)]
    return lambda x: np.asarray(sum(norm.pdf(x, loc=at, scale=noise) for at in sums) / len(sums))


@pytest.mark.parametrize(("dataset", "size", "noise"), [(4, 2, 1.0), (5, 1, 2.0), (5, 4, 0.7)])
def test_no_small_data_set_leaves_the_bounds_of_fixed_batches(dataset: int, size: int, noise: float) -> None:
    event, level = FixedBatch(noise_multiplier=noise, dataset_size=dataset, batch_size=size), 0.4
    generator = np.random.default_rng(11)
    bounds = {
        adjacency: delta_bounds(event, level, adjacency=adjacency)
        for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    }
    ends = (-size - 9 * noise, size + 9 * noise)
    best = dict.fromkeys(bounds, 0.0)
    for trial in range(8):
        values = generator.uniform(-1, 1, dataset) if trial else np.append(1.0, -np.ones(dataset - 1))
        other = values.copy()
        other[0] = generator.uniform(-1, 1) if trial else -1.0
        whole = batches(values, size, noise)
        pairs = {
            Adjacency.ADD_REMOVE: (whole, batches(values[1:], size, noise)),
            Adjacency.REPLACE_ONE: (whole, batches(other, size, noise)),
        }
        for adjacency, (p, q) in pairs.items():
            found = max(integral(*pair, level, ends) for pair in ((p, q), (q, p)))
            assert found <= bounds[adjacency].upper + 1e-7
            best[adjacency] = max(best[adjacency], found)
    for adjacency, found in best.items():
        assert found >= bounds[adjacency].lower - 1e-7
        assert bounds[adjacency].relative_width < 2e-3


@pytest.mark.parametrize(
    ("noise", "q", "level"), [(4.0, (1, 10), 0.05), (2.0, (1, 4), 0.3), (6.0, (1, 2), 0.1)]
)
def test_an_adversary_may_change_the_order_of_the_pair(
    noise: float, q: tuple[int, int], level: float
) -> None:
    """One step in one order and one in the other: within the upper bound under replace-one."""
    event = FixedBatch(noise_multiplier=noise, dataset_size=q[1], batch_size=q[0])
    rate = q[0] / q[1]
    x = np.linspace(-9 * noise, 2 + 9 * noise, 2501)
    pace = x[1] - x[0]
    without = norm.pdf(x, scale=noise) * pace
    present = (1 - rate) * without + rate * norm.pdf(x, loc=2, scale=noise) * pace
    growth = math.exp(level)
    found = delta_bounds(times(event, 2), level, adjacency=Adjacency.REPLACE_ONE)
    orders = [(present, without), (without, present)]
    truths = [
        float(np.maximum(np.outer(a, c) - growth * np.outer(b, d), 0).sum())
        for (a, b), (c, d) in itertools.product(orders, orders)
    ]
    assert max(truths) <= found.upper * (1 + 1e-5)
    assert max(truths[0], truths[3]) >= found.lower * (1 - 1e-5)


def test_fixed_batches_of_a_composition_are_labelled() -> None:
    event = times(FixedBatch(noise_multiplier=4.0, dataset_size=1000, batch_size=10), 100)
    removed = epsilon_bounds(event, 1e-5)
    sampled = gaussian_run(noise_multiplier=2.0, sampling_probability=0.01, steps=100)
    assert removed.lower <= epsilon_bounds(sampled, 1e-5).upper
    assert epsilon_bounds(sampled, 1e-5).lower <= removed.upper
    replaced = epsilon_bounds(event, 1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert "upper end by a dominating pair" in replaced.method
    assert removed.lower <= replaced.upper
    assert replaced.lower <= replaced.upper <= 1.3 * replaced.lower
    for question, argument in ((epsilon, 1e-5), (delta, 0.5), (tpr, 0.01)):
        found = question(event, argument, adjacency="replace-one")
        assert isinstance(found, Bounds)
        assert found.lower > 0
        with pytest.raises(UnsupportedError, match="add-remove and replace-one only"):
            question(event, argument, adjacency="zero-out")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SubsampledLaplace(scale=1.0, sampling_probability=0.0), "sampling_probability must be in"),
        (
            lambda: SubsampledUser(noise_multiplier=1.0, sampling_probability=0.1, records=0),
            "records must be",
        ),
        (lambda: FixedBatch(noise_multiplier=1.0, dataset_size=5, batch_size=5), "batch_size must be below"),
        (
            lambda: user_run(noise_multiplier=1.0, sampling_probability=0.1, steps=2, records_per_user=10**6),
            "records_per_user must be at most 10000",
        ),
    ],
)
def test_a_sample_out_of_range_is_named(make: Callable[[], Event], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_mixed_compositions_of_samples_are_bounded() -> None:
    event = Composed(
        events=(
            (SubsampledLaplace(scale=5.0, sampling_probability=0.1), 10),
            (SubsampledUser(noise_multiplier=5.0, sampling_probability=0.1, records=2), 10),
            (SubsampledGaussian(noise_multiplier=2.0, sampling_probability=0.1), 10),
        )
    )
    found = epsilon_bounds(event, 1e-6)
    parts = [epsilon_bounds(times(part, count), 1e-6) for part, count in event.events]
    assert max(part.lower for part in parts) < found.lower
    assert found.relative_width < 5e-3
