"""One order of the neighbours alone: against naive integrals of that order, and against another library."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import quad
from scipy.stats import norm

from workbench.accounting import Bounds, Composed, Direction, Event, FinitePair, delta, epsilon, tpr
from workbench.accounting.events import (
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    ShuffledBatches,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.core.errors import UnsupportedError

ONE_WAY = (Direction.REMOVE, Direction.ADD)
SAMPLED = SubsampledGaussian(noise_multiplier=0.8, sampling_probability=0.2)


def hockey_stick(sigma: float, q: float, epsilon: float, direction: Direction) -> float:
    """Integral of the positive part for one sampled step in one order."""

    def gain(x: float) -> float:
        without = norm.pdf(x, scale=sigma)
        present = (1 - q) * without + q * norm.pdf(x, loc=1, scale=sigma)
        first, second = (present, without) if direction is Direction.REMOVE else (without, present)
        return max(first - math.exp(epsilon) * second, 0.0)

    return float(quad(gain, -9 * sigma, 1 + 9 * sigma, limit=2000, epsabs=1e-13)[0])


@pytest.mark.parametrize("direction", ONE_WAY)
@pytest.mark.parametrize(
    ("sigma", "q", "level"), [(0.8, 0.2, 0.1), (2.0, 0.5, 0.3), (0.5, 0.05, 0.01), (1.0, 0.9, 1.0)]
)
def test_one_step_is_its_integral_in_each_direction(
    sigma: float, q: float, level: float, direction: Direction
) -> None:
    step = SubsampledGaussian(noise_multiplier=sigma, sampling_probability=q)
    pair = GaussianMixturePair(
        p_means=(0.0, 1.0), p_weights=(1 - q, q), q_means=(0.0,), q_weights=(1.0,), standard_deviation=sigma
    )
    twin = hockey_stick(sigma, q, level, direction)
    for event in (step, pair):
        found = delta(event, level, direction=direction)
        assert isinstance(found, Bounds)
        assert found.lower <= twin + 1e-8
        assert twin <= found.upper + 1e-8
        assert found.width < 1e-9


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.0, 0.1, 20), (0.7, 0.02, 100), (3.0, 0.5, 10)])
def test_runs_agree_with_another_library_in_each_direction(
    sigma: float, q: float, steps: int, adjacency: str
) -> None:
    run = gaussian_run(noise_multiplier=sigma, sampling_probability=q, steps=steps)
    theirs = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
    composed = theirs.self_compose(steps)
    sides = {Direction.REMOVE: composed._pmf_remove, Direction.ADD: composed._pmf_add}
    both = epsilon(run, 1e-6, adjacency=adjacency)
    ends = []
    for direction, side in sides.items():
        found = epsilon(run, 1e-6, adjacency=adjacency, direction=direction)
        peer = side.get_epsilon_for_delta(1e-6)
        assert found.lower <= peer <= found.upper * (1 + 2e-3)
        assert found.relative_width < 2e-3
        ends.append(found)
    assert max(found.lower for found in ends) <= both.upper
    assert both.lower <= max(found.upper for found in ends)
    assert ends[0].lower > ends[1].upper  # Removing is worse here.


def test_a_membership_test_has_the_rates_of_removal() -> None:
    step, fpr = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.3), 0.05
    threshold = norm.isf(fpr)
    truth = 0.7 * fpr + 0.3 * norm.sf(threshold - 1)
    found = tpr(step, fpr, direction="remove")
    assert isinstance(found, Bounds)
    assert found.lower <= truth * (1 + 1e-9)
    assert truth <= found.upper * (1 + 1e-9)
    assert found.relative_width < 1e-9
    twice = tpr(Composed(events=((step, 2),)), fpr, direction="remove")
    assert isinstance(twice, Bounds)
    x = np.linspace(-9, 10, 2401)
    pace = x[1] - x[0]
    without = norm.pdf(x) * pace
    present = 0.7 * without + 0.3 * norm.pdf(x, loc=1) * pace
    p, q = np.outer(present, present).ravel(), np.outer(without, without).ravel()
    order = np.argsort(-(p / np.maximum(q, 1e-300)))
    best = float(np.interp(fpr, np.cumsum(q[order]), np.cumsum(p[order])))
    assert twice.lower * (1 - 1e-4) <= best <= twice.upper * (1 + 1e-4)


def test_a_finite_pair_has_two_directions() -> None:
    pair = FinitePair(p=(Fraction(1, 2), Fraction(1, 2)), q=(Fraction(9, 10), Fraction(1, 10)))
    for direction, truth in ((Direction.REMOVE, 0.4), (Direction.ADD, 0.4)):
        assert delta(pair, 0.0, direction=direction).lower == pytest.approx(truth)
    removed, added = (epsilon(pair, 1e-9, direction=direction) for direction in ONE_WAY)
    assert removed.upper == pytest.approx(math.log(5), rel=1e-6)
    assert added.upper == pytest.approx(math.log(1.8), rel=1e-6)
    mixed = Composed(events=((pair, 2), (SAMPLED, 2)))
    removed, added = (epsilon(mixed, 1e-4, direction=direction) for direction in ONE_WAY)
    assert removed.lower > added.upper


@pytest.mark.parametrize("event", [Gaussian(noise_multiplier=1.0), Laplace(scale=2.0)])
def test_symmetric_noise_has_one_answer(event: Event) -> None:
    for times in (1, 3):
        composed = Composed(events=((event, times),))
        both = epsilon(composed, 1e-5)
        for direction in ONE_WAY:
            found = epsilon(composed, 1e-5, direction=direction)
            assert found.lower <= both.upper
            assert both.lower <= found.upper
            assert found.relative_width < 2e-3


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (SAMPLED, "replace-one"),
        (RandomisedResponse(noise_parameter=0.5), "replace-one"),
        (RandomisedResponse(noise_parameter=0.5), "add-remove"),
        (ShuffledBatches(noise_multiplier=1.0, batches=3), "zero-out"),
    ],
)
def test_a_direction_that_makes_no_sense_is_refused(event: Event, adjacency: str) -> None:
    for question in (epsilon, delta, tpr):
        with pytest.raises(UnsupportedError, match=r"direction|replace-one"):
            question(event, 0.1, adjacency=adjacency, direction="remove")
