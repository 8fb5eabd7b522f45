"""Samples of a step: shuffled epochs, and what a plan says of their sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from workbench.accounting import ApproximateDP
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Corpus, GradientCanary, Plan, Sampling
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.non_private import NonPrivate
from workbench.training.fine_tuning import epochs, shuffled_batch_size
from workbench.training.samples import shuffled_batches, step_samples

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance."""


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=23, seed=0)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=(),
        model="digits_logistic",
        steps=10,
        sampling_probability=5 / 23,
        sampling=Sampling.SHUFFLED,
        learning_rate=0.1,
        optimizer="sgd",
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


def test_an_epoch_goes_through_all_records_once() -> None:
    batches = list(shuffled_batches(23, 5, np.random.default_rng(0)))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3]
    assert sorted(np.concatenate(batches).tolist()) == list(range(23))


def test_every_epoch_of_a_plan_is_whole_and_fresh() -> None:
    samples = [s.tolist() for s in islice(step_samples(make_plan(), np.random.default_rng(1)), 15)]
    for start in (0, 5, 10):
        assert sorted(i for sample in samples[start : start + 5] for i in sample) == list(range(23))
    assert samples[:5] != samples[5:10] != samples[10:15]


def pairs_p_value(shuffle: bool) -> float:
    """P-value of 4,000 epochs of 6 records in batches of 2: how often each pair shares a batch."""
    generator, counts = np.random.default_rng(2), np.zeros((6, 6))
    for _ in range(4000):
        order = generator.permutation(6) if shuffle else np.arange(6)
        batches = shuffled_batches(6, 2, generator) if shuffle else (order[:2], order[2:4], order[4:])
        for first, second in batches:
            counts[first, second] += 1
    return float(stats.chisquare(counts[np.triu_indices(6, 1)]).pvalue)


def test_every_pair_shares_a_batch_as_often_as_any_other() -> None:
    assert pairs_p_value(shuffle=True) > FALSE_ALARM


def test_the_pair_test_refutes_batches_in_the_records_order() -> None:
    assert pairs_p_value(shuffle=False) < FALSE_ALARM


def test_a_shuffled_run_takes_its_mean_over_the_whole_batch_size() -> None:
    subject = NonPrivate().train(make_plan(steps=5))
    assert subject.transcript.sample_sizes.tolist() == [5, 5, 5, 5, 3]
    # One epoch of batches of everything is one step of plain gradient descent, whatever the order.
    whole = NonPrivate().train(make_plan(steps=1, sampling_probability=1.0))
    assert whole.transcript.sample_sizes.tolist() == [23]


def test_the_same_seed_draws_the_same_order_and_another_does_not() -> None:
    drawn = [
        [s.tolist() for s in islice(step_samples(make_plan(), np.random.default_rng(seed)), 5)]
        for seed in (3, 3, 4)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": 10}, 2.0),
        ({"steps": 11}, 3.0),
        ({"steps": 10, "sampling": Sampling.POISSON}, 50 / 23),
        ({"steps": 4, "sampling_probability": 1.0}, 4.0),
        ({"steps": 10, "public_size": 25, "sampling_probability": 0.2}, 2.0),
    ],
)
def test_epochs_are_passes(changes: dict[str, object], expected: float) -> None:
    assert epochs(make_plan(**changes)) == pytest.approx(expected)


@pytest.mark.parametrize("size", [7, 10, 1000, 999_983])
def test_the_batch_size_survives_the_quotient(size: int) -> None:
    for batch in (1, 3, 7):
        plan = make_plan(public_size=size, sampling_probability=batch / size)
        assert shuffled_batch_size(plan) == batch


def test_a_batch_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"must be a whole number of records .* got 0\.2 \* 23 = 4\.6"):
        NonPrivate().train(make_plan(sampling_probability=0.2))
    NonPrivate().train(make_plan(sampling_probability=0.2, sampling=Sampling.POISSON, steps=1))


def test_an_unknown_sampling_is_refused() -> None:
    with pytest.raises(InputError, match="unknown sampling 'shufled'; did you mean 'shuffled'"):
        NonPrivate().train(make_plan(sampling="shufled"))


def test_dp_sgd_and_canary_releases_refuse_what_they_are_not_accounted_for() -> None:
    plan = make_plan(budget=ApproximateDP(epsilon=1.0, delta=1e-5))
    for mechanism in (DPSGD(), DPSGD(noise_multiplier=1.0)):
        with pytest.raises(UnsupportedError, match="Poisson samples only, got sampling 'shuffled'"):
            mechanism.train(plan)
    subject = NonPrivate().train(make_plan(steps=1))
    canary = GradientCanary(coordinate=0, magnitude=1.0)
    with pytest.raises(UnsupportedError, match="in Poisson samples, not shuffled ones"):
        subject.release_canary(canary, np.array([True]), np.random.default_rng(0))
