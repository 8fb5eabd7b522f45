"""Random allocation: against integrals over outputs, simulated losses, Renyi moments, Poisson samples."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from workbench.accounting import Composed, Gaussian, RandomAllocation, delta, epsilon, gaussian_run, tpr
from workbench.accounting.balls.ball import to_arb
from workbench.accounting.balls.finite_bounds import pair_above, pair_of_tests
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Direction

LEVELS = (0.1, 0.4, 1.0)


def hockey_stick(p: np.ndarray, q: np.ndarray, level: float) -> float:
    return float(np.maximum(p - math.exp(level) * q, 0).sum())


def on_a_grid(sigma: float, steps: int, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Masses of cells of all outputs, with the record and without."""
    axis = np.linspace(-8 * sigma, 1 + 8 * sigma, points)
    pace = axis[1] - axis[0]
    none, one = (
        np.exp(-0.5 * ((axis - m) / sigma) ** 2) * pace / (sigma * 2.5066282746310002) for m in (0, 1)
    )
    without = np.ones((1,) * steps)
    for step in range(steps):
        shape = [1] * steps
        shape[step] = points
        without = without * none.reshape(shape)
    present = np.zeros_like(without)
    for step in range(steps):
        shape = [1] * steps
        shape[step] = points
        present = present + without * (one / none).reshape(shape)
    return present / steps, without


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("sigma", "steps", "points"), [(1.0, 2, 1501), (2.0, 2, 1501), (1.0, 3, 161), (0.9, 3, 161)]
)
def test_few_steps_have_the_divergence_of_all_outputs(
    sigma: float, steps: int, points: int, level: float
) -> None:
    p, q = on_a_grid(sigma, steps, points)
    event = RandomAllocation(noise_multiplier=sigma, steps=steps)
    for direction, one, two in ((Direction.REMOVE, p, q), (Direction.ADD, q, p)):
        truth = hockey_stick(one, two, level)
        found = delta_bounds(event, level, direction=direction)
        assert found.lower * (1 - 1e-3) - 1e-9 <= truth <= found.upper * (1 + 1e-3) + 1e-9
        if truth > 1e-6:
            assert found.upper <= found.lower * 1.02


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "steps", "level"), [(1.0, 20, 0.5), (2.0, 10, 0.1)])
def test_simulated_losses_stay_within(sigma: float, steps: int, level: float) -> None:
    """The mean over P of max(1 - exp(level - loss), 0); five deviations fail once in two million seeds."""
    generator = np.random.default_rng(steps)
    trials = 200_000
    means = []
    for _ in range(4):
        y = generator.normal(scale=sigma, size=(trials // 4, steps))
        y[:, 0] += 1
        loss = np.log(np.exp((y - 0.5) / sigma**2).mean(axis=1))
        means.append(np.maximum(-np.expm1(level - loss), 0))
    gains = np.concatenate(means)
    found = delta_bounds(RandomAllocation(noise_multiplier=sigma, steps=steps), level)
    slack = 5 * gains.std() / math.sqrt(trials)
    assert found.lower - slack <= gains.mean() <= found.upper + slack
    assert slack < 0.2 * found.upper


def moment(sigma: float, steps: int, order: int) -> float:
    """E_Q[(P / Q)^order] as the coefficient of a power series (Feldman and Shenfeld 2025)."""
    row = [math.exp((n * n - n) / (2 * sigma**2)) / math.factorial(n) for n in range(order + 1)]
    power = [1.0] + [0.0] * order
    for _ in range(steps):
        power = [sum(power[k] * row[n - k] for k in range(n + 1)) for n in range(order + 1)]
    return math.factorial(order) * power[order] / steps**order


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 2), (1.0, 20), (2.0, 10)])
def test_the_upper_end_is_below_the_renyi_one(sigma: float, steps: int) -> None:
    event = RandomAllocation(noise_multiplier=sigma, steps=steps)
    found = epsilon_bounds(event, 1e-6, direction=Direction.REMOVE)
    renyi = min(
        (math.log(moment(sigma, steps, a)) - math.log(1e-6 * a)) / (a - 1) + math.log1p(-1 / a)
        for a in range(2, 30)
    )
    assert found.upper <= renyi * (1 + 1e-6)
    # A Renyi bound by whole orders is seldom twice as large.
    assert renyi <= 2 * found.lower


@pytest.mark.parametrize(("epochs", "mu"), [(1, 1.0), (4, 2.0)])
def test_where_the_grid_knows_nothing_the_upper_end_is_a_known_steps(epochs: int, mu: float) -> None:
    event = Composed(events=((RandomAllocation(noise_multiplier=1.0, steps=3), epochs),))
    found, plain = epsilon_bounds(event, 1e-13), epsilon_bounds(Gaussian(noise_multiplier=1 / mu), 1e-13)
    assert found.upper == pytest.approx(plain.upper, rel=1e-9)
    assert 0.3 * found.upper < found.lower < plain.upper
    assert (
        epsilon_bounds(event, 1e-4).upper
        < 0.99 * epsilon_bounds(Gaussian(noise_multiplier=1 / mu), 1e-4).lower
    )


@pytest.mark.slow
@pytest.mark.parametrize("steps", [8, 200])
def test_it_lies_below_the_gaussian_and_near_the_poisson_sample(steps: int) -> None:
    event = RandomAllocation(noise_multiplier=1.0, steps=steps)
    found = epsilon_bounds(event, 1e-5)
    plain = epsilon_bounds(Gaussian(noise_multiplier=1.0), 1e-5)
    sampled = epsilon_bounds(
        gaussian_run(noise_multiplier=1.0, sampling_probability=1 / steps, steps=steps), 1e-5
    )
    assert found.upper < plain.lower
    assert found.upper < 1.1 * sampled.lower
    assert found.upper <= found.lower * 1.02
    assert epsilon_bounds(event, 1e-5, adjacency=Adjacency.ZERO_OUT) == found


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.3, 0.6])
def test_little_noise_is_bounded_more_loosely(sigma: float) -> None:
    event = RandomAllocation(noise_multiplier=sigma, steps=50)
    found = epsilon_bounds(event, 1e-5)
    assert 0 < found.lower <= found.upper
    assert found.upper <= epsilon_bounds(Gaussian(noise_multiplier=sigma), 1e-5).upper * 1.02


@pytest.mark.slow
def test_epochs_compose() -> None:
    event = RandomAllocation(noise_multiplier=1.5, steps=3)
    twice = Composed(events=((event, 2),))
    p, q = on_a_grid(1.5, 3, 41)
    # A coarse summary of the outputs by their loss, which tells less; both orders.
    order = np.argsort((np.log(p) - np.log(q)).ravel())
    bins = np.array_split(order, 500)
    one, two = (np.array([values.ravel()[places].sum() for places in bins]) for values in (p, q))
    for level in (0.2, 0.8):
        found = delta_bounds(twice, level)
        truth = hockey_stick(np.outer(one, one), np.outer(two, two), level)
        assert truth == pytest.approx(found.upper, rel=0.02)
        assert found.lower <= found.upper <= 1.02 * found.lower
    both = Composed(events=((event, 2), (Gaussian(noise_multiplier=4.0), 1)))
    assert epsilon_bounds(twice, 1e-5).upper < epsilon_bounds(both, 1e-5).lower
    for question, argument in ((epsilon, 1e-6), (delta, 0.2), (tpr, 0.1)):
        answer = question(both, argument)
        assert isinstance(answer, Bounds)
        assert answer.lower < answer.upper < 1.05 * answer.lower


@pytest.mark.slow
def test_one_step_is_the_gaussian_and_more_steps_keep_more() -> None:
    assert epsilon_bounds(RandomAllocation(noise_multiplier=2.0, steps=1), 1e-5) == epsilon_bounds(
        Gaussian(noise_multiplier=2.0), 1e-5
    )
    found = [
        epsilon_bounds(RandomAllocation(noise_multiplier=1.0, steps=steps), 1e-5) for steps in (2, 8, 20)
    ]
    assert all(more.upper < less.lower for less, more in itertools.pairwise(found))


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_above_tells_more_at_every_level(seed: int) -> None:
    generator = np.random.default_rng(seed)
    p, q = (generator.dirichlet(np.full(7, 0.7)) for _ in range(2))
    levels = [Fraction(k, 8) for k in range(1, 40, 3)]
    exact = [to_arb(float(np.maximum(p - float(u) * q, 0).sum())) for u in levels]
    pair = pair_above(levels, exact)
    wide = pair_above(levels, [ball + to_arb(0.0).union(to_arb(1e-3)) for ball in exact])
    for level in np.linspace(-4, 4, 33):
        truth = hockey_stick(p, q, level)
        assert hockey_stick(np.array(pair.p, float), np.array(pair.q, float), level) >= truth - 1e-12
        assert hockey_stick(np.array(wide.p, float), np.array(wide.q, float), level) >= truth - 1e-12
    tests = [(to_arb(float(p[:k].sum())), to_arb(float(q[:k].sum()))) for k in range(1, 7)]
    below = pair_of_tests(tests)
    for level in np.linspace(-4, 4, 33):
        kept = hockey_stick(np.array(below.p, float), np.array(below.q, float), level)
        assert kept <= hockey_stick(p, q, level) + 1e-12


def test_what_is_not_bounded_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"replace-one"):
        epsilon(RandomAllocation(noise_multiplier=1.0, steps=4), 1e-5, adjacency="replace-one")
    with pytest.raises(UnsupportedError, match=r"noise multipliers from 0\.3 to 50, not for 0\.1"):
        epsilon(RandomAllocation(noise_multiplier=0.1, steps=4), 1e-5)
    with pytest.raises(InputError, match="steps must be"):
        RandomAllocation(noise_multiplier=1.0, steps=0)
