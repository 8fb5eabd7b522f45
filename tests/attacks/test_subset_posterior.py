"""The Bayesian adversary of candidate subsets: its posterior against a naive one, and what its doubts are "
"for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from workbench.attacks.subset_posterior import SubsetPosterior
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.games.subset.play import SubsetObservations, SubsetReading
from workbench.interfaces import FloatArray

SIGNS = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [-1, -1, 1, 1], [1, -1, -1, -1], [-1, -1, -1, -1]], np.int8)


def reading(signs: np.ndarray = SIGNS) -> SubsetReading:
    """Unanimous, noised, a coin, noised, unanimous."""
    return SubsetReading(
        signs=signs,
        noise=np.array([0.0, 1.5, math.inf, 0.7, 0.0]),
        bits=np.array([1, -1, 1, 1, -1]),
        values=np.array([1.0, -0.4, math.nan, 0.3, -1.0]),
        holds_target=np.array([True, False, False, True]),
    )


def naive(one: SubsetReading, view: str) -> FloatArray:
    """Bayes' rule in probabilities, one release after the other."""
    posterior = np.full(4, 0.25)
    for step in range(one.bits.size):
        for m in range(4):
            sign, noise = float(one.signs[step, m]), float(one.noise[step])
            if noise == 0.0:
                posterior[m] *= 1.0 if sign == one.bits[step] else 0.0
            elif math.isfinite(noise) and view == "values":
                posterior[m] *= norm.pdf(one.values[step], loc=sign, scale=noise)
            elif math.isfinite(noise):
                posterior[m] *= norm.cdf(one.bits[step] * sign / noise)
        posterior /= posterior.sum()
    return posterior


@pytest.mark.parametrize("view", ["values", "bits"])
def test_the_posterior_is_bayes_rule(view: str) -> None:
    attack = SubsetPosterior(view=view, doubt=0.0)
    (belief,) = attack.beliefs(SubsetObservations(trials=(reading(),)))
    expected = naive(reading(), view)
    np.testing.assert_allclose(belief.posterior, expected, rtol=1e-12)
    np.testing.assert_array_equal(belief.guess, belief.posterior)
    assert belief.entropies[-1] == pytest.approx(-np.sum(expected * np.log(expected)), rel=1e-12)
    np.testing.assert_allclose(belief.from_bits, naive(reading(), "bits"), rtol=1e-12)
    scores = attack.score(SubsetObservations(trials=(reading(),)), np.random.default_rng(0))
    assert scores.values[0] == pytest.approx(expected[0] + expected[3], abs=1e-8)


def test_coins_and_agreement_move_nothing() -> None:
    """0 nats: the entropy is ln M after every release, whatever the coins were."""
    signs = np.where(np.random.default_rng(0).random((40, 16)) < 0.5, 1, -1).astype(np.int8)
    signs[::4] = 1
    noise = np.full(40, math.inf)
    noise[::4] = 0.0
    coins = np.where(np.random.default_rng(1).random(40) < 0.5, 1, -1)
    coins[::4] = 1
    one = SubsetReading(
        signs=signs,
        noise=noise,
        bits=coins,
        values=np.where(noise == 0.0, 1.0, math.nan),
        holds_target=np.arange(16) < 8,
    )
    (belief,) = SubsetPosterior(doubt=0.0).beliefs(SubsetObservations(trials=(one,)))
    np.testing.assert_allclose(belief.entropies, math.log(16), rtol=1e-14)
    assert np.ptp(belief.posterior) == 0.0
    many = SubsetObservations(trials=(one,) * 50)
    trusting = SubsetPosterior(doubt=0.0).score(many, np.random.default_rng(2))
    assert np.unique(trusting.values).size == 50  # Ties are told apart at random.
    assert np.ptp(trusting.values) < 1e-8


def test_a_doubting_adversary_finds_coins_that_are_none() -> None:
    """40 bits that are the secret's sign: the trusting posterior sees coins, the doubting one the secret."""
    signs = np.where(np.random.default_rng(0).random((40, 16)) < 0.5, 1, -1).astype(np.int8)
    for turned in (1, -1):
        one = SubsetReading(
            signs=signs,
            noise=np.full(40, math.inf),
            bits=turned * signs[:, 5].astype(np.int64),
            values=np.full(40, math.nan),
            holds_target=np.arange(16) == 5,
        )
        seen = SubsetObservations(trials=(one,))
        (trusting,), (doubting,) = (SubsetPosterior(doubt=doubt).beliefs(seen) for doubt in (0.0, 0.5))
        assert trusting.guess[5] == pytest.approx(1 / 16)
        assert doubting.guess[5] > 0.999
        np.testing.assert_array_equal(trusting.posterior, doubting.posterior)


def test_the_majoritys_sign_excludes_nobody() -> None:
    """Released without noise though candidates differ: the secret's sign, or the majority's, as is said."""
    one = replace(reading(), signs=np.array([[1, 1, 1, -1], *SIGNS[1:]], np.int8))
    seen = SubsetObservations(trials=(one,))
    (secret,) = SubsetPosterior(doubt=0.0).beliefs(seen)
    (majority,) = SubsetPosterior(doubt=0.0, agreed="majority").beliefs(seen)
    assert secret.posterior[3] == 0.0
    np.testing.assert_allclose(majority.posterior, naive(reading(), "values"), rtol=1e-12)
    impossible = replace(one, signs=np.array([[-1, -1, -1, -1], *SIGNS[1:]], np.int8))
    with pytest.raises(InputError, match="agreed='majority'"):
        SubsetPosterior(doubt=0.0).beliefs(SubsetObservations(trials=(impossible,)))


def test_what_it_refuses() -> None:
    for options in ({"view": "weights"}, {"doubt": 1.0}, {"trials": 10}, {"agreed": "all"}):
        with pytest.raises(InputError):
            SubsetPosterior(**options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got none"):
        SubsetPosterior().score(SubsetObservations(trials=()), np.random.default_rng(0))
    for broken in ({"noise": np.array([0.0, -1.0, 1.0, 1.0, 0.0])}, {"values": np.full(5, math.nan)}):
        with pytest.raises(InputError, match="must be"):
            SubsetPosterior().beliefs(SubsetObservations(trials=(replace(reading(), **broken),)))
    turned = replace(reading(), bits=np.array([1, 1, 1, 1, -1]))
    with pytest.raises(InputError, match="bits must be the signs of its noisy values"):
        SubsetPosterior().beliefs(SubsetObservations(trials=(turned,)))
    assert SubsetPosterior(view="bits").beliefs(SubsetObservations(trials=(turned,)))
    made = registry.create("attack", "subset_posterior", trials=40)
    assert (made.game, made.trials) == ("subset", 40)
