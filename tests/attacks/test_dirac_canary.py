"""The Dirac canary: what it sees of a correct privatise step, and that it finds the broken ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from workbench.accounting import ApproximateDP
from workbench.accounting.subsampled_gaussian import mu_to_run_epsilon
from workbench.attacks.dirac_canary import DiracCanary
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.games.release import ReleaseSeen
from workbench.interfaces import (
    BoolArray,
    Corpus,
    FloatArray,
    GradientCanary,
    Insertions,
    Plan,
    Signals,
)
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.training.subject import TrainedSubject

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance."""

BUDGET = ApproximateDP(epsilon=1.0, delta=1e-5)


@dataclass(frozen=True, kw_only=True)
class TenthOfTheNoise(DPSGD):
    """A broken DP-SGD: noise scaled by a tenth."""

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """DP-SGD's step with a tenth of the noise."""
        assert self.noise_multiplier is not None
        return DPSGD(noise_multiplier=self.noise_multiplier / 10).privatise(signals, generator)


@dataclass(frozen=True, kw_only=True)
class WithoutClipping(DPSGD):
    """A broken DP-SGD: clipping left out."""

    def clip_factors(self, norms: Tensor) -> Tensor:
        """Every gradient as it is."""
        return torch.ones_like(norms)


@dataclass(frozen=True, kw_only=True)
class Watched(DPSGD):
    """DP-SGD that keeps the shape of each release, and the number of records in its sample."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def privatise(self, signals: Signals, generator: torch.Generator) -> Tensor:
        """DP-SGD's step, watched."""
        released = super().privatise(signals, generator)
        self.shapes.append(tuple(released.shape))
        self.sizes.append(signals.n)
        return released


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=100, seed=0)
    return corpus


def insertions() -> Insertions:
    attack: DiracCanary = registry.create("attack", "dirac_canary")
    return attack.prepare(digits(), np.random.default_rng(8))


def trained(mechanism: DPSGD, steps: int = 20) -> TrainedSubject:
    return mechanism.train(
        Plan(
            records=digits().records,
            held_out=(),
            model="digits_logistic",
            steps=steps,
            sampling_probability=0.2,
            learning_rate=0.5,
            optimizer="sgd",
            budget=BUDGET,
            insertions=insertions(),
            seed=2,
        )
    )


def observe(subject: TrainedSubject, trials: int) -> tuple[FloatArray, BoolArray]:
    canary = insertions().gradient_canary
    assert canary is not None
    coins = np.random.default_rng(9).random(trials) < 0.5
    return subject.release_canary(canary, coins, np.random.default_rng(10)), coins


def mu_lower(values: FloatArray, coins: BoolArray) -> float:
    """Lower bound on the shift over the noise's scale; false-alarm rate about `FALSE_ALARM`."""
    with_canary, without = values[coins], values[~coins]
    scale = math.sqrt((with_canary.var(ddof=1) + without.var(ddof=1)) / 2)
    mu = (with_canary.mean() - without.mean()) / scale
    error = math.sqrt(1 / len(with_canary) + 1 / len(without) + mu * mu / (2 * len(values)))
    return float(mu - stats.norm.isf(FALSE_ALARM) * error)


def test_the_attack_draws_its_coordinate_from_the_generator() -> None:
    attack = DiracCanary()
    drawn = [attack.prepare(digits(), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0].replaced == ()
    canary = drawn[0].gradient_canary
    assert canary is not None
    assert canary.magnitude == 100.0
    assert 0 <= canary.coordinate < 2**31
    assert attack.game == "release"
    assert attack.references_needed == 0


def test_the_score_is_the_released_value() -> None:
    seen = ReleaseSeen(values=np.array([0.5, -2.0]), where="one state")
    assert DiracCanary().score(seen, np.random.default_rng(0)).values.tolist() == [0.5, -2.0]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"magnitude": 0.0}, "magnitude must be finite"),
        ({"magnitude": 1e300}, r"magnitude must be at most 1e\+15, got 1e\+300"),
        ({"releases": 1}, "releases must be a whole number >= 20, got 1"),
        ({"releases": 1e300}, "releases must be at most 1000000, got"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.create("attack", "dirac_canary", **parameters)


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_releases_at_one_state_are_gaussian_about_zero_and_about_the_clipping_norm(clipping: str) -> None:
    subject = trained(DPSGD(clipping=clipping, l2_clip_norm=0.5))
    scale = 0.5 * subject.transcript.metrics["noise_multiplier"]
    values, coins = observe(subject, 20_000)
    clipped = 0.5 if clipping == "flat" else 0.5 * 100 / 100.01
    for part, mean in ((values[coins], clipped), (values[~coins], 0.0)):
        z = (part.mean() - mean) / (scale / math.sqrt(len(part)))
        tail = stats.chi2.cdf(np.sum((part - mean) ** 2) / scale**2, len(part))
        assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)
        assert FALSE_ALARM < tail < 1 - FALSE_ALARM
        assert stats.kstest((part - mean) / scale, "norm").pvalue > FALSE_ALARM


@pytest.mark.slow
def test_observations_of_every_step_have_the_same_law() -> None:
    subject = trained(DPSGD(), steps=2000)
    scale = subject.transcript.metrics["noise_multiplier"]
    values, coins = subject.transcript.canary_observations, subject.transcript.canary_included
    assert stats.binomtest(int(coins.sum()), 2000).pvalue > FALSE_ALARM
    residuals = (values - coins) / scale
    assert stats.kstest(residuals, "norm").pvalue > FALSE_ALARM
    # Not constant, and not explained by the coin: noise is fresh in each step.
    assert abs(np.corrcoef(residuals[1:], residuals[:-1])[0, 1]) * math.sqrt(1999) < stats.norm.isf(
        FALSE_ALARM / 2
    )


def test_each_observation_is_a_full_release_and_misses_the_canary_where_it_is_out() -> None:
    mechanism = Watched()
    subject = trained(mechanism, steps=1)
    mechanism.shapes.clear()
    mechanism.sizes.clear()
    coins = observe(subject, 3000)[1]
    assert all(len(shape) == 2 and shape[1] == 650 for shape in mechanism.shapes)
    trials = np.array([shape[0] for shape in mechanism.shapes])
    sizes = np.array(mechanism.sizes)
    assert trials.sum() == 3000
    assert trials[sizes == sizes.max()].sum() == coins.sum()
    assert set(sizes.tolist()) == {sizes.min(), sizes.min() + 1}


def test_each_trial_has_noise_of_its_own() -> None:
    values, _ = observe(trained(DPSGD(), steps=1), 2000)
    assert len(np.unique(values)) > 1900


def test_a_correct_mechanism_stays_below_its_claim() -> None:
    subject = trained(DPSGD())
    claimed_mu = 1 / subject.transcript.metrics["noise_multiplier"]
    assert mu_lower(*observe(subject, 1000)) < claimed_mu
    seen = subject.transcript
    assert mu_lower(seen.canary_observations, seen.canary_included) < claimed_mu


@pytest.mark.parametrize("broken", [TenthOfTheNoise, WithoutClipping])
def test_a_broken_mechanism_is_far_above_its_claim_with_the_shipped_defaults(broken: type[DPSGD]) -> None:
    subject = trained(broken())
    found = mu_lower(*observe(subject, DiracCanary().releases))
    assert found > 2 / subject.transcript.metrics["noise_multiplier"]
    run = mu_to_run_epsilon(found, sampling_probability=0.2, steps=20, delta=1e-5)
    assert run > 2 * BUDGET.epsilon


def test_a_canary_that_lies_below_the_clipping_norm_shows_its_own_size() -> None:
    subject = trained(DPSGD(), steps=1)
    quiet = replace(subject.mechanism, noise_multiplier=1e-6)
    subject.mechanism = quiet
    small = GradientCanary(coordinate=3, magnitude=0.25)
    values = subject.release_canary(small, np.array([True, False]), np.random.default_rng(0))
    np.testing.assert_allclose(values, [0.25, 0.0], atol=1e-4)
