"""Answers that were trivial, failed or never came: atoms of the loss, large rates, extreme numbers."""

from __future__ import annotations

import itertools
import math
import re
import time

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import quad

from workbench.accounting import (
    BatchMean,
    Composed,
    Event,
    SubsampledLaplace,
    SubsampledUser,
    exact,
    gaussian_run,
)
from workbench.accounting.certified import delta_bounds as delta_of
from workbench.accounting.certified import epsilon_bounds as epsilon_of
from workbench.accounting.certified import tpr_bounds as tpr_of
from workbench.accounting.events import GaussianMixturePair
from workbench.accounting.grid.questions import DeltaQuestion, EpsilonQuestion, RateQuestion, on_grid
from workbench.accounting.samples import FixedBatch
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency, Direction

AT_AN_ATOM = [
    (0.5, 0.1, 1e-5),
    (0.2, 0.1, 1e-5),
    (0.3, 0.1, 1e-5),
    (0.5, 0.1, 1e-9),
    (0.7, 0.1, 1e-5),
    (2.0, 0.5, 1e-5),
]
"""Scale, sampling probability and delta at which the lower end was 0."""


def sampled_epsilon(scale: float, q: float, delta: float) -> float:
    """Amplification by sampling of the Laplace mechanism, with the record against without."""
    plain = 1 / scale + 2 * math.log1p(-delta / q)
    return math.log1p(q * math.expm1(plain)) if plain > 0 else 0.0


@pytest.mark.parametrize(("scale", "q", "delta"), AT_AN_ATOM)
def test_epsilon_just_below_the_largest_loss(scale: float, q: float, delta: float) -> None:
    event = SubsampledLaplace(scale=scale, sampling_probability=q)
    truth = sampled_epsilon(scale, q, delta)
    once = epsilon_of(event, delta)
    assert once.lower * (1 - 1e-13) <= truth <= once.upper * (1 + 1e-13)
    assert once.relative_width < 1e-11
    lower, upper = on_grid(EpsilonQuestion(event, Adjacency.ADD_REMOVE, Direction.BOTH), delta, 1e-3)
    assert lower <= truth <= upper <= lower * (1 + 1e-3)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    ("scale", "q"),
    [(0.5, 0.1), (1.0, 0.5), (3.0, 0.9), pytest.param(0.1, 0.001, marks=pytest.mark.slow), (2.0, 1.0)],
)
def test_sampled_laplace_closed_form_is_its_integral_and_its_grid(
    scale: float, q: float, adjacency: Adjacency
) -> None:
    event = SubsampledLaplace(scale=scale, sampling_probability=q)
    away = -1.0 if adjacency is Adjacency.REPLACE_ONE else 0.0

    def density(x: float, centre: float) -> float:
        at_none, moved = (math.exp(-abs(x - m) / scale) / (2 * scale) for m in (0.0, centre))
        return (1 - q) * at_none + q * moved

    directions = list(Direction) if adjacency is not Adjacency.REPLACE_ONE else [Direction.BOTH]
    for direction in directions:
        for level in (0.0, 0.05, 0.4, 1.5):

            def integral(first: float, second: float, level: float = level) -> float:
                def positive(x: float) -> float:
                    return max(density(x, first) - math.exp(level) * density(x, second), 0.0)

                edges = [-40 * scale - 1, *np.linspace(-1, 1, 81), 40 * scale + 1]
                return math.fsum(quad(positive, a, b)[0] for a, b in itertools.pairwise(edges))

            truths = {Direction.REMOVE: integral(1.0, away), Direction.ADD: integral(away, 1.0)}
            truth = max(truths.values()) if direction is Direction.BOTH else truths[direction]
            found = exact.delta_bounds(event, level, adjacency, direction)
            assert found.lower - 1e-8 <= truth <= found.upper + 1e-8
            assert found.upper - found.lower <= 1e-12 * found.upper
        if q < 1:
            for question, value, bounds in (
                (EpsilonQuestion, 1e-3 * q, exact.epsilon_bounds),
                (DeltaQuestion, 0.05, exact.delta_bounds),
                (RateQuestion, 0.1, exact.tpr_bounds),
                (RateQuestion, 0.7, exact.tpr_bounds),
            ):
                lower, upper = on_grid(question(event, adjacency, direction), value, 1e-3)
                found = bounds(event, value, adjacency, direction)
                assert lower <= found.upper
                assert found.lower <= upper


def test_largest_sampled_laplace_loss() -> None:
    event, q, c = SubsampledLaplace(scale=0.5, sampling_probability=0.1), 0.1, 2.0
    forward, backward = math.log1p(q * math.expm1(c)), -math.log1p(q * math.expm1(-c))
    for adjacency, direction, truth in (
        (Adjacency.ADD_REMOVE, Direction.BOTH, forward),
        (Adjacency.ADD_REMOVE, Direction.ADD, backward),
        (Adjacency.REPLACE_ONE, Direction.BOTH, forward + backward),
    ):
        found = exact.epsilon_bounds(event, 0.0, adjacency, direction)
        assert found.lower * (1 - 1e-14) <= truth <= found.upper * (1 + 1e-14)


@pytest.mark.parametrize(("scale", "q", "steps"), [(0.2, 0.1, 2), (1.0, 0.5, 2), (0.3, 0.01, 3)])
def test_a_few_sampled_laplace_steps_at_an_atom(scale: float, q: float, steps: int) -> None:
    event = Composed(events=((SubsampledLaplace(scale=scale, sampling_probability=q), steps),))
    theirs = pld.from_laplace_mechanism(scale, sampling_prob=q, value_discretization_interval=1e-4)
    for delta in (1e-9, 1e-5):
        found = epsilon_of(event, delta)
        peer = theirs.self_compose(steps).get_epsilon_for_delta(delta)
        assert found.lower <= peer <= found.upper + 1e-3
        assert found.relative_width <= 1e-3


WEAK = [
    (3.983715525159513, 0.004842627790791171, 911, 0.2),
    (3.983715525159513, 0.004842627790791171, 911, 0.3025689978867857),
    (3.983715525159513, 0.004842627790791171, 911, 0.5),
    (3.983715525159513, 0.004842627790791171, 911, 0.7),
    (19.206911528062598, 0.049780178165990924, 106, 0.18416809740290063),
    (11.553617831640453, 0.12245791039487304, 66, 0.5071377565211869),
    (10.675825360007806, 0.010564912156810982, 5459, 0.5595472828409738),
    (0.5031353597425496, 0.0017889615342217607, 128, 0.5498478090142289),
]
"""Noise multiplier, sampling probability, steps and false-positive rate where the lower end was the rate."""


@pytest.mark.parametrize(("noise", "q", "steps", "fpr"), WEAK)
def test_true_positive_rates_of_weak_runs_are_narrow(noise: float, q: float, steps: int, fpr: float) -> None:
    run = gaussian_run(noise_multiplier=noise, sampling_probability=q, steps=steps)
    by_direction = [tpr_of(run, fpr, direction=direction) for direction in (Direction.REMOVE, Direction.ADD)]
    both = tpr_of(run, fpr)
    assert both.lower > fpr
    assert all(found.relative_width <= 1e-3 for found in (both, *by_direction))
    # Another library's optimistic and pessimistic curves bound the least of e^epsilon fpr + delta(epsilon).
    for pessimistic in (True, False) if noise > 1 else ():
        theirs = pld.from_gaussian_mechanism(
            noise, pessimistic_estimate=pessimistic, sampling_prob=q, value_discretization_interval=1e-4
        ).self_compose(steps)
        levels = np.linspace(-0.5, 0.5, 401).tolist()
        sides = (theirs._pmf_remove, theirs._pmf_add)
        curves = [side.get_delta_for_epsilon(levels) for side in sides]
        rates = [float(np.min(np.exp(levels) * fpr + np.asarray(curve))) for curve in curves]
        for found, rate in zip((*by_direction, both), (*rates, max(rates)), strict=True):
            # Their optimistic grid moves losses down; where noise is little, it is too slow.
            if pessimistic:
                assert found.lower <= rate * (1 + 1e-6)
            else:
                assert found.upper >= rate * (1 - 1e-3)


def test_true_positive_rate_of_weak_laplace_steps() -> None:
    step = SubsampledLaplace(scale=16.997173786201845, sampling_probability=0.01652018046781954)
    found = tpr_of(Composed(events=((step, 110),)), 0.3373064127855635)
    assert found.relative_width <= 1e-3
    assert found.lower > 0.3408


def pair(deviation: float, distance: float = 1.0) -> GaussianMixturePair:
    return GaussianMixturePair(
        p_means=(0.0, distance),
        p_weights=(0.5, 0.5),
        q_means=(0.0,),
        q_weights=(1.0,),
        standard_deviation=deviation,
    )


@pytest.mark.parametrize("noise", [5e-324, 1.7e308])
def test_extreme_mixtures_are_refused_by_name(noise: float) -> None:
    with pytest.raises(InputError, match=rf"standard_deviation must be from .* got {re.escape(str(noise))}"):
        pair(noise)
    with pytest.raises(
        InputError, match=rf"noise_multiplier must be in \[1e-10, 1e\+30\], got {re.escape(str(noise))}"
    ):
        SubsampledUser(noise_multiplier=noise, sampling_probability=0.1, records=2)
    batches = FixedBatch(noise_multiplier=noise, dataset_size=100, batch_size=10)
    with pytest.raises(InputError, match=rf"noise_multiplier must be in .* got {re.escape(str(noise))}"):
        epsilon_of(batches, 1e-5, adjacency=Adjacency.REPLACE_ONE)


def test_a_tiny_sampling_probability_of_a_batch_mean_is_refused_by_name() -> None:
    def of(q: float) -> Event:
        return BatchMean(noise_multiplier=0.1, sampling_probability=q, dataset_size=10, dimension=2)

    with pytest.raises(InputError, match=r"sampling_probability must be in \[1e-100, 1\), got 5e-324"):
        of(5e-324)
    for adjacency in Adjacency:
        found = epsilon_of(of(1e-100), 1e-5, adjacency=adjacency)
        assert (found.lower, found.upper) == (0.0, 0.0)


@pytest.mark.parametrize("deviation", [2e-15, 1e-7, 1e-6, 1e5, 9e39])
def test_the_widest_mixtures_have_answers_in_time(deviation: float) -> None:
    event, start = pair(deviation), time.process_time()
    # To so many digits the mixture's second component is seen, or neither.
    apart = 0.5 * math.erf(1 / deviation / math.sqrt(8))
    found = delta_of(event, 0.0)
    assert found.lower * (1 - 1e-12) <= apart <= found.upper * (1 + 1e-12)
    found = epsilon_of(event, 1e-5)
    if deviation < 1:
        # The losses of the second component are N(m, 2 m) less log 2, m = 1 / (2 s^2); all are above m / 2.
        assert 1e11 <= found.lower <= 0.5 / deviation**2 * 1.1
        assert found.upper >= 0.5 / deviation**2
    else:
        assert found.lower == 0
        assert found.upper == (0 if apart < 1e-5 else found.upper)
    assert time.process_time() - start < 20
