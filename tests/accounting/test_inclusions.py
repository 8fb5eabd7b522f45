"""Bounds by the number of steps that a record is in, for little noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from workbench.accounting import epsilon, gaussian_run, inclusions
from workbench.accounting.certified import epsilon_bounds
from workbench.interfaces import Adjacency, Direction


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("rate", "steps"), [(0.1, 20), (0.01, 1000), (0.5, 100), (0.9, 3)])
@pytest.mark.parametrize("noise", [0.05, 0.099])
def test_they_meet_the_grids_bounds(
    monkeypatch: pytest.MonkeyPatch, adjacency: Adjacency, rate: float, steps: int, noise: float
) -> None:
    run = gaussian_run(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    directions = [Direction.BOTH] if adjacency is Adjacency.REPLACE_ONE else list(Direction)
    for direction in directions:
        loud = inclusions.epsilon_bounds(run, 1e-5, adjacency, direction)
        assert loud is not None
        with monkeypatch.context() as context:
            context.setattr(inclusions, "LOUD", 0.0)
            grid = epsilon_bounds(run, 1e-5, adjacency=adjacency, direction=direction)
        assert grid.upper < math.inf
        assert loud.lower <= grid.upper
        assert grid.lower <= loud.upper
        assert direction is Direction.ADD or loud.upper < 1.6 * loud.lower


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.02, 0.005, 1e-4, 1e-9])
def test_little_noise_has_an_epsilon_within_a_fiftieth(noise: float) -> None:
    run = gaussian_run(noise_multiplier=noise, sampling_probability=0.1, steps=20)
    found = epsilon(run, 1e-5)
    assert 0 < found.lower <= found.upper < 1.02 * found.lower
    # About that of the Gaussian in as many steps as a record is in with probability delta.
    assert found.lower < 10 * (0.5 / noise**2 + 10 / noise)


def test_the_lower_end_is_below_the_likelihood_ratios_own_tail() -> None:
    """The privacy loss itself, drawn, shows how large delta is at the lower end."""
    rate, steps, distance, delta = 0.3, 4, 12.0, 0.05
    run = gaussian_run(noise_multiplier=1 / distance, sampling_probability=rate, steps=steps)
    loud = inclusions.epsilon_bounds(run, delta, Adjacency.ADD_REMOVE, Direction.REMOVE)
    assert loud is not None
    drawn = np.random.default_rng(1)
    outputs = drawn.normal(size=(200_000, steps)) + distance * (drawn.random((200_000, steps)) < rate)
    losses = np.logaddexp(math.log1p(-rate), math.log(rate) + distance * (outputs - distance / 2)).sum(axis=1)

    def divergence(at: float) -> float:
        return float(np.maximum(-np.expm1(np.minimum(at - losses, 0.0)), 0.0).mean())

    assert divergence(loud.lower) > delta - 0.003
    assert divergence(loud.upper) < delta + 0.003


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [(0.5, 0.1, 20), (1e-200, 0.1, 20), (0.01, 1.0, 20), (0.01, 0.1, 10**18), (0.01, 0.5, 10**6)],
)
def test_other_events_are_left_to_others(noise: float, rate: float, steps: int) -> None:
    run = gaussian_run(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    assert inclusions.epsilon_bounds(run, 1e-5, Adjacency.ADD_REMOVE, Direction.BOTH) is None
