"""Integer noise: against direct sums, enumerated compositions, other shifts, and another library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ive

from workbench.accounting import Composed, epsilon, tpr
from workbench.accounting.bounds import Bounds
from workbench.accounting.certified import delta_bounds, epsilon_bounds
from workbench.accounting.integers import DiscreteGaussian, DiscreteLaplace, IntegerNoise, Skellam
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency, Direction

REACH = 400
X = np.arange(-REACH, REACH + 1)
EVENTS: list[IntegerNoise] = [
    DiscreteLaplace(noise_parameter=0.7),
    DiscreteLaplace(noise_parameter=0.2, largest_contribution=3),
    DiscreteGaussian(sigma=0.6),
    DiscreteGaussian(sigma=2.5, largest_contribution=2),
    DiscreteGaussian(sigma=12.0, largest_contribution=5),
    Skellam(variance=3.0),
    Skellam(variance=40.0, largest_contribution=2),
]


def probabilities(event: IntegerNoise) -> np.ndarray:
    """Normalised by direct sum over the whole range."""
    if isinstance(event, DiscreteLaplace):
        weights = np.exp(-event.noise_parameter * np.abs(X))
    elif isinstance(event, DiscreteGaussian):
        weights = np.exp(-(X**2) / (2 * event.sigma**2))
    else:
        assert isinstance(event, Skellam)
        weights = ive(np.abs(X), event.variance)
    return np.asarray(weights / weights.sum())


def pair(event: IntegerNoise, shift: int) -> tuple[np.ndarray, np.ndarray]:
    f = probabilities(event)
    return np.concatenate((np.zeros(shift), f)), np.concatenate((f, np.zeros(shift)))


def hockey_stick(p: np.ndarray, q: np.ndarray, level: float) -> float:
    return float(np.maximum(p - math.exp(level) * q, 0).sum())


def shift_of(event: IntegerNoise, adjacency: Adjacency) -> int:
    return event.largest_contribution * (2 if adjacency is Adjacency.REPLACE_ONE else 1)


@pytest.mark.thinned
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.describe()[:40])
def test_one_release_is_the_direct_sum(event: IntegerNoise, adjacency: Adjacency) -> None:
    shift = shift_of(event, adjacency)
    # Beyond the largest loss of discrete Laplace noise delta is 0, which takes the grid long.
    for level in (0.0, 0.3) if isinstance(event, DiscreteLaplace) else (0.0, 0.3, 1.0):
        truth = hockey_stick(*pair(event, shift), level)
        found = delta_bounds(event, level, adjacency=adjacency)
        assert found.lower - 1e-12 <= truth <= found.upper + 1e-12
        assert found.width <= 2e-3 * found.lower + 1e-12
        for smaller in range(1, shift):
            assert hockey_stick(*pair(event, smaller), level) <= found.upper + 1e-12


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.describe()[:40])
def test_two_releases_are_the_double_sum(event: IntegerNoise) -> None:
    p, q = pair(event, event.largest_contribution)
    kept = (p > 1e-14) | (q > 1e-14)
    p, q = p[kept], q[kept]
    for level in (0.2, 0.5):
        truth = hockey_stick(np.outer(p, p).ravel(), np.outer(q, q).ravel(), level)
        found = delta_bounds(Composed(events=((event, 2),)), level)
        assert found.lower - 1e-10 <= truth <= found.upper + 1e-10
        one_way = delta_bounds(Composed(events=((event, 2),)), level, direction=Direction.ADD)
        assert one_way.lower - 1e-10 <= truth <= one_way.upper + 1e-10


@pytest.mark.parametrize("count", [1, 20])
def test_another_library_agrees(count: int) -> None:
    cases = [
        (DiscreteLaplace(noise_parameter=0.2), pld.from_discrete_laplace_mechanism(0.2)),
        (
            DiscreteLaplace(noise_parameter=0.1, largest_contribution=4),
            pld.from_discrete_laplace_mechanism(0.1, sensitivity=4),
        ),
        (DiscreteGaussian(sigma=5.0), pld.from_discrete_gaussian_mechanism(5.0)),
        (
            DiscreteGaussian(sigma=20.0, largest_contribution=3),
            pld.from_discrete_gaussian_mechanism(20.0, sensitivity=3),
        ),
    ]
    for event, theirs in cases:
        peer = theirs.self_compose(count).get_epsilon_for_delta(1e-6)
        found = epsilon_bounds(Composed(events=((event, count),)), 1e-6)
        assert found.lower <= peer * (1 + 1e-9)
        assert peer <= found.upper * (1 + 3e-3)


def test_two_coordinates_do_no_worse_than_one() -> None:
    """A shift of l1 norm 3 spread over two coordinates against all of it in one."""
    event = DiscreteGaussian(sigma=1.5, largest_contribution=3)
    f = probabilities(event)[REACH - 15 : REACH + 16]
    for first, second in ((1, 2), (0, 3)):
        p = np.zeros((40, 40))
        q = np.zeros((40, 40))
        p[first : first + 31, second : second + 31] = np.outer(f, f)
        q[:31, :31] = np.outer(f, f)
        for level in (0.1, 1.0, 2.0):
            assert hockey_stick(p, q, level) <= delta_bounds(event, level).upper + 1e-12


def test_the_trade_off_is_that_of_half_lines() -> None:
    event = Skellam(variance=9.0)
    p, q = pair(event, 1)
    false, true = np.cumsum(q[::-1]), np.cumsum(p[::-1])
    for fpr in (0.01, 0.3):
        found = tpr(event, fpr)
        assert isinstance(found, Bounds)
        truth = float(np.interp(fpr, false, true))
        assert found.lower * (1 - 1e-9) <= truth <= found.upper * (1 + 1e-9)
        assert found.relative_width < 5e-3


def test_small_and_large_noise_are_bounded_or_refused() -> None:
    tiny = epsilon(DiscreteGaussian(sigma=0.2), 1e-5)
    assert isinstance(tiny, Bounds)
    assert 10 < tiny.lower <= tiny.upper
    large = epsilon(DiscreteGaussian(sigma=2000.0), 1e-5)
    assert isinstance(large, Bounds)
    assert large.lower > 0
    wide = DiscreteLaplace(noise_parameter=1e-6, largest_contribution=20)
    for event in (DiscreteGaussian(sigma=1e7), wide, Skellam(variance=1e12)):
        with pytest.raises(UnsupportedError, match="outputs that count"):
            epsilon(event, 1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sigma": 0.0}, "sigma must be finite and > 0, got 0.0"),
        (
            {"sigma": 1.0, "largest_contribution": 0},
            "largest_contribution must be a whole number >= 1",
        ),
        (
            {"sigma": 1.0, "largest_contribution": 1.5},
            "largest_contribution must .* got 1.5",
        ),
    ],
)
def test_noise_out_of_range_is_named(given: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DiscreteGaussian(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [1e-6, 0.02, 1.0, 3.0, 40.0])
def test_few_discrete_laplace_releases_are_exact(noise: float) -> None:
    """Near the largest loss of three, delta is the chance of it times what exceeds exp(epsilon)."""
    event = Composed(events=((DiscreteLaplace(noise_parameter=noise), 3),))
    chance = (1 + math.exp(-noise)) ** -3
    for share in (1e-9, 1e-5, 0.01):
        delta = chance * -math.expm1(-2 * noise) * share
        found = epsilon(event, delta)
        truth = 3 * noise + math.log1p(-delta / chance)
        assert isinstance(found, Bounds)
        assert found.lower == pytest.approx(truth, rel=1e-9)
        assert found.upper == pytest.approx(truth, rel=1e-9)
        assert found.relative_width < 1e-9


def test_discrete_laplace_with_more_outputs_than_are_counted_agrees_with_the_grid() -> None:
    """A shift of 16 is counted, and one of 17 is for the grid: a little more."""
    counted, on_grid = (
        epsilon(Composed(events=((DiscreteLaplace(noise_parameter=0.1, largest_contribution=s), 10),)), 1e-6)
        for s in (16, 17)
    )
    assert isinstance(counted, Bounds)
    assert isinstance(on_grid, Bounds)
    assert counted.upper < on_grid.lower < 1.15 * counted.upper
