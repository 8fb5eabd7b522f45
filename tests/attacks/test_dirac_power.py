"""How much of the truth the gradient canary audits, through the real privatise step of DP-SGD."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.accounting import ApproximateDP
from workbench.accounting.gaussian import epsilon_of_delta, mu_of_epsilon
from workbench.core import registry
from workbench.estimation import gaussian_location
from workbench.interfaces import GradientCanary, Plan, Subject

DELTA = 1e-5


def one_release(epsilon: float) -> Subject:
    """A logistic model after one full-batch step of DP-SGD that is calibrated to epsilon exactly."""
    corpus = registry.create("corpus", "digits", size=80, seed=0)
    plan = Plan(
        records=corpus.records,
        held_out=corpus.held_out,
        model="digits_logistic",
        steps=1,
        sampling_probability=1.0,
        learning_rate=0.1,
        optimizer="sgd",
        budget=ApproximateDP(epsilon=epsilon, delta=DELTA),
    )
    subject: Subject = registry.create("mechanism", "dp_sgd").train(plan)
    return subject


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "observations", "audits", "floor"),
    [  # The floors are the project's goals; the information limits are 0.87, 0.96 and 0.96.
        (1.0, 10_000, 40, 0.80),
        (4.0, 10_000, 40, 0.92),
        (1.0, 100_000, 10, 0.93),
    ],
)
def test_the_mean_audited_epsilon_comes_close_to_the_true_one(
    epsilon: float, observations: int, audits: int, floor: float
) -> None:
    """Also sound: 40 audits at 95 % exceed the truth more than 7 times in under 0.2 % of test runs."""
    subject = one_release(epsilon)
    assert epsilon_of_delta(mu_of_epsilon(epsilon, DELTA), DELTA) == pytest.approx(epsilon)
    canary = GradientCanary(coordinate=123, magnitude=100.0)
    bounds = []
    for audit in range(audits):
        generator = np.random.default_rng([5, audit])
        coins = generator.random(observations) < 0.5
        values = subject.release_canary(canary, coins, generator)
        bounds.append(gaussian_location(values, coins, delta=DELTA, confidence=0.95).lower)
    assert np.mean(bounds) / epsilon >= floor
    assert np.sum(np.array(bounds) > epsilon) <= 7
