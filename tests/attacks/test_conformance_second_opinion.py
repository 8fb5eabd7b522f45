"""The conformance suite's second method: against closed forms, the certified bounds, and a naive twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from workbench.accounting import certified
from workbench.accounting.events import (
    Composed,
    Event,
    FinitePair,
    Gaussian,
    GaussianMixturePair,
    Laplace,
    RandomisedResponse,
    SubsampledGaussian,
    gaussian_run,
)
from workbench.accounting.gaussian import delta_of_epsilon
from workbench.attacks.accountant_checks.conformance.questions import Question
from workbench.attacks.accountant_checks.conformance.second_opinion import Curve
from workbench.attacks.accountant_checks.conformance.truth import confirmed, truth
from workbench.core.errors import InconclusiveError, UnsupportedError
from workbench.interfaces import Adjacency

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE

CASES = [
    (gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=100), 1e-5, ADD_REMOVE),
    (gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=100), 1e-12, ADD_REMOVE),
    (gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000), 1e-15, ADD_REMOVE),
    (gaussian_run(noise_multiplier=0.5, sampling_probability=0.01, steps=10), 1e-5, ADD_REMOVE),
    (gaussian_run(noise_multiplier=1.0, sampling_probability=0.5, steps=2), 1e-5, ADD_REMOVE),
    (gaussian_run(noise_multiplier=1.0, sampling_probability=0.5, steps=1), 1e-10, ADD_REMOVE),
    (gaussian_run(noise_multiplier=1.0, sampling_probability=0.5, steps=10), 1e-5, REPLACE_ONE),
    (Laplace(scale=1.0), 1e-3, ADD_REMOVE),
    (Composed(events=((Laplace(scale=1.0), 10),)), 1e-3, ADD_REMOVE),
    (Composed(events=((RandomisedResponse(noise_parameter=0.5, categories=5), 10),)), 1e-5, REPLACE_ONE),
    (
        Composed(events=((Gaussian(noise_multiplier=2.0), 1), (Laplace(scale=1.0), 3))),
        1e-5,
        ADD_REMOVE,
    ),
    (
        GaussianMixturePair(
            p_means=(0.0, 1.0), p_weights=(0.9, 0.1), q_means=(0.0,), q_weights=(1.0,), standard_deviation=0.7
        ),
        1e-5,
        ADD_REMOVE,
    ),
]


@pytest.mark.parametrize(("event", "delta", "adjacency"), CASES, ids=[c[0].describe()[:50] for c in CASES])
def test_it_agrees_with_the_certified_bounds(event: Event, delta: float, adjacency: Adjacency) -> None:
    """delta at the ends of the certified epsilon lies on either side of what was asked, within the error."""
    bounds = certified.epsilon_bounds(event, delta, adjacency=adjacency)
    curve = Curve(event, adjacency)
    low, high = curve.delta(bounds.lower), curve.delta(bounds.upper)
    assert low.value + 5 * low.error >= delta * (1 - 1e-9)
    assert high.value - 5 * high.error <= delta * (1 + 1e-9)
    assert low.error < 1e-2 * low.value


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_gaussians_against_the_closed_form(noise: float, epsilon: float) -> None:
    found = Curve(Gaussian(noise_multiplier=noise), ADD_REMOVE).delta(epsilon)
    exact = delta_of_epsilon(1 / noise, epsilon)
    assert found.value == pytest.approx(exact, rel=1e-10, abs=1e-20)


def test_randomised_response_against_a_naive_twin() -> None:
    """Binary, 7 times: a binomial sum."""
    flip, count, epsilon = 0.2, 7, 1.3
    told = np.arange(count + 1)
    losses = (2 * told - count) * math.log((1 - flip) / flip)
    naive = float(np.sum(binom.pmf(told, count, 1 - flip) * np.maximum(0, 1 - np.exp(epsilon - losses))))
    event = Composed(events=((RandomisedResponse(noise_parameter=0.4), count),))
    assert Curve(event, REPLACE_ONE).delta(epsilon).value == pytest.approx(naive, rel=1e-10)


def test_both_directions_count() -> None:
    """Exchanging the neighbours changes nothing: the larger of both directions is taken."""
    sides = {"means": (0.0, 1.0), "weights": (0.9, 0.1)}
    one = GaussianMixturePair(
        p_means=sides["means"],
        p_weights=sides["weights"],
        q_means=(0.0,),
        q_weights=(1.0,),
        standard_deviation=1.0,
    )
    other = GaussianMixturePair(
        p_means=(0.0,),
        p_weights=(1.0,),
        q_means=sides["means"],
        q_weights=sides["weights"],
        standard_deviation=1.0,
    )
    event = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.1)
    values = [Curve(made, ADD_REMOVE).delta(0.5).value for made in (one, other, event)]
    assert values == pytest.approx([values[0]] * 3, rel=1e-9)


@pytest.mark.slow
def test_it_confirms_what_is_below_and_denies_what_is_above() -> None:
    for event, delta, adjacency in CASES[:3]:
        question = Question(quantity="epsilon", event=event, argument=delta, adjacency=adjacency)
        bounds = truth(question)
        assert bounds is not None
        below, above = confirmed(question, 0.99 * bounds.lower), confirmed(question, 1.01 * bounds.upper)
        assert below is not None
        assert below.agrees
        assert bounds.lower * (1 - 1e-6) <= below.value <= bounds.upper * (1 + 1e-6)
        assert above is not None
        assert not above.agrees


def test_what_it_cannot_tell_it_does_not_tell() -> None:
    event, delta, adjacency = CASES[0]
    question = Question(quantity="epsilon", event=event, argument=delta, adjacency=adjacency)
    bounds = truth(question)
    assert bounds is not None
    value = Curve(event, adjacency).epsilon(delta, bounds.lower, bounds.upper)
    assert bounds.lower < value < bounds.upper
    assert confirmed(question, value) is None
    pair = FinitePair(p=(1,), q=(1,))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError):
        Curve(pair, ADD_REMOVE)
    assert confirmed(Question(quantity="epsilon", event=pair, argument=1e-5), 0.0) is None


def test_a_mean_loss_far_above_epsilon_is_inconclusive() -> None:
    """Half a million steps, claimed to keep an epsilon of 1: the integrand leaves the range of floats."""
    event = gaussian_run(noise_multiplier=1.0, sampling_probability=0.5, steps=500_000)
    with pytest.raises(InconclusiveError):
        Curve(event, ADD_REMOVE).delta(1.0)
    assert confirmed(Question(quantity="epsilon", event=event, argument=1e-5), 1.0) is None


def test_trade_off_curves_of_gaussians() -> None:
    question = Question(quantity="tpr", event=Gaussian(noise_multiplier=1.0), argument=0.1)
    second = confirmed(question, 0.3)
    assert second is not None
    assert second.agrees
    assert second.value == pytest.approx(0.389143691645361, rel=1e-12)  # 1 - Phi(Phi^-1(0.9) - 1)
    denied = confirmed(question, 0.4)
    assert denied is not None
    assert not denied.agrees
