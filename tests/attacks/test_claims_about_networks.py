"""Closed forms of the ledger's newer checks against published sizes, enumeration, samples and floats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from flint import ctx
from scipy import stats

from workbench.accounting.gaussian import delta_of_epsilon
from workbench.attacks.claim_checks.ferret.sign_channel import OpposedTranscript
from workbench.attacks.claim_checks.ferret.transcript import dithered_delta
from workbench.attacks.claim_checks.paczero.games import largest_success
from workbench.attacks.claim_checks.shared.claims import BITS, ball
from workbench.attacks.claim_checks.shuffled_dp_sgd.invariance import MODELS, largest_gap


@pytest.fixture(autouse=True)
def _precise() -> Iterator[None]:
    with ctx.workprec(BITS):
        yield


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        ("GPT-2", 124_439_808),
        ("GPT-2-large", 774_030_080),
        ("GPT-2-xl", 1_557_611_200),
        ("BERT-base", 109_482_240),
        ("ViT-B/16", 85_798_656 + 100 * 769),
    ],
)
def test_a_models_size_is_the_published_one(model: str, numbers: int) -> None:
    """The counts that the models' public configurations give; the ViT with a head for 100 classes."""
    assert MODELS[model].total == numbers


def test_permutations_are_counted_by_their_factorials() -> None:
    small = MODELS["GPT-2"]
    expected = 12 * (math.lgamma(3073) + 13 * math.lgamma(65))
    assert float(small.log_permutations) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_the_gap_of_a_lognormal_fit_is_below_that_of_samples() -> None:
    """2,000 sums of 20,000 terms; the band of the sample's distribution function fails once in 10^6 (DKW)."""
    variance, terms, draws = 12.0, 20_000, 2_000
    gap, _ = largest_gap(ball("12"), terms)
    rng = np.random.default_rng(3)
    sums = np.array([np.exp(math.sqrt(variance) * rng.standard_normal(terms)).sum() for _ in range(draws)])
    spread = math.log1p(math.expm1(variance) / terms)
    mean = math.log(terms) + variance / 2 - spread / 2
    logs = np.sort(np.log(sums))
    fitted = stats.norm.cdf(logs, mean, math.sqrt(spread))
    above, below = np.arange(1, draws + 1) / draws - fitted, fitted - np.arange(draws) / draws
    band = math.sqrt(math.log(2 / 1e-6) / (2 * draws))
    assert 0 < float(gap) <= max(above.max(), below.max()) + band


def test_the_dithered_runs_delta_is_the_mean_over_enumerated_firings() -> None:
    p, s, groups, steps = 0.3, 0.2, 2, 3
    run = OpposedTranscript(
        groups=groups, steps=steps, firing_probability=ball("0.3"), sampling_probability=ball("0.2")
    )
    expected = 0.0
    for taken in range(steps + 1):
        for fired in range(1, groups * taken + 1):
            chance = stats.binom.pmf(taken, steps, s) * stats.binom.pmf(fired, groups * taken, p)
            expected += chance * delta_of_epsilon(2 * 0.7 * math.sqrt(fired), 1.5)
    assert float(dithered_delta(run, ball("0.7"), ball("1.5"))) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("nats", "blind"), [("0.33", Fraction(1, 128)), ("0.68", Fraction(1, 2))])
def test_the_largest_success_inverts_the_divergence(nats: str, blind: Fraction) -> None:
    success = float(largest_success(ball(nats), blind))
    q = float(blind)
    divergence = success * math.log(success / q) + (1 - success) * math.log((1 - success) / (1 - q))
    assert divergence == pytest.approx(float(nats), rel=1e-9)
