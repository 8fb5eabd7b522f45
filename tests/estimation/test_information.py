"""Nats from counts, from guesses, and the bounds of means that decide about them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from workbench.core.errors import InputError
from workbench.estimation.bounded_mean import mean_bounds, mean_lower
from workbench.estimation.information import MOST_SPARSE, information, plug_in_information
from workbench.estimation.subset_trials import (
    FLOOR,
    log_score,
    perfect_log_score,
)
from workbench.games.subset.play import balanced, index_success, record_success
from workbench.interfaces import FloatArray


def channel(leak: float, secrets: int = 3, symbols: int = 4) -> FloatArray:
    """A joint law: the symbol is the secret with probability `leak`, else uniform."""
    joint = np.full((secrets, symbols), (1.0 - leak) / symbols)
    joint[np.arange(secrets), np.arange(secrets)] += leak
    return joint / secrets


def drawn(joint: FloatArray, n: int, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    cells = generator.choice(joint.size, size=n, p=joint.ravel())
    return np.divmod(cells, joint.shape[1])


def test_information_of_known_laws() -> None:
    assert information(np.full((2, 3), 1 / 6)) == pytest.approx(0.0, abs=1e-15)
    assert information(np.eye(4) / 4) == pytest.approx(math.log(4))
    q = 0.11  # The binary symmetric channel: ln 2 - h(q).
    entropy = -q * math.log(q) - (1 - q) * math.log(1 - q)
    assert information(np.array([[1 - q, q], [q, 1 - q]]) / 2) == pytest.approx(math.log(2) - entropy)


@pytest.mark.parametrize("leak", [0.0, 0.3, 0.8])
def test_the_correction_takes_the_bias_off_and_the_interval_covers(leak: float) -> None:
    """Against the exact information, over 400 samples of 400 pairs.

    The standard error of the mean of 400 estimates is below 0.0013: a sound correction misses by 0.0036 with
    probability below 1 %. Intervals that cover with 93 % do so 360 times of 400 but with probability 1 %.
    """
    joint = channel(leak)
    exact, generator = information(joint), np.random.default_rng(11)
    found = [plug_in_information(*drawn(joint, 400, generator), confidence=0.95) for _ in range(400)]
    raw, corrected = (np.mean([getattr(one, name) for one in found]) for name in ("plug_in", "corrected"))
    assert abs(corrected - exact) < min(0.0036, abs(raw - exact))
    assert sum(one.lower <= exact <= one.upper for one in found) >= 360


def test_the_difference_to_a_charge_that_hangs_on_the_secret_is_covered() -> None:
    """As above; the charge of 400 pairs is off its mean by 0.02 alone, which neither interval may leave out.

    One that took the mean charge for its expectation would miss far more often than in 40 of 400 samples.
    """
    joint, costs = channel(0.8), np.array([0.1, 0.5, 1.5])
    exact, generator = information(joint) - float(costs.mean()), np.random.default_rng(12)
    right = careless = 0
    for _ in range(400):
        secrets, symbols = drawn(joint, 400, generator)
        charged = costs[secrets]
        found = plug_in_information(secrets, symbols, confidence=0.95, charged=charged)
        right += found.lower <= exact <= found.upper
        alone, mean = plug_in_information(secrets, symbols, confidence=0.95), float(charged.mean())
        careless += alone.lower - mean <= exact <= alone.upper - mean
        assert found.corrected == pytest.approx(alone.corrected - mean)
    assert right >= 360 > careless


@pytest.mark.parametrize(("n", "is_sparse"), [(2000, False), (400, True)])
def test_counts_too_few_for_the_interval_are_called_sparse(n: int, is_sparse: bool) -> None:
    """64 symbols that know nothing of 4 secrets: of 400 pairs nearly every interval lies above 0.

    Of 2000 none of 100 did; one that covers with 97.5 % on this side misses in more than 9 of 100 with
    probability below 0.1 %.
    """
    joint, generator = np.full((4, 64), 1 / 256), np.random.default_rng(13)
    found = [plug_in_information(*drawn(joint, n, generator), confidence=0.95) for _ in range(100)]
    assert all((one.sparse > MOST_SPARSE) == is_sparse for one in found)
    above = sum(one.lower > 0.0 for one in found)
    assert above >= 90 if is_sparse else above <= 9


def test_the_plug_in_refuses_what_it_cannot_count() -> None:
    pair = np.array([0, 1])
    with pytest.raises(InputError, match=r"charged must have shape \(2,\), got \(1,\)"):
        plug_in_information(pair, pair, confidence=0.9, charged=np.zeros(1))
    for secrets, symbols, confidence in ((pair, pair[:1], 0.9), (pair[:1], pair[:1], 0.9), (pair, pair, 1.0)):
        with pytest.raises(InputError, match="must be"):
            plug_in_information(secrets, symbols, confidence=confidence)


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_the_lower_bound_of_a_mean_covers_and_closes_in(rate: float) -> None:
    """At 90 % more than 30 of 150 bounds above the mean have probability below 0.01 % (binomial tail)."""
    generator = np.random.default_rng(3)
    samples = (generator.random((150, 300)) < rate).astype(float)
    lowers = np.array([mean_lower(row, confidence=0.9) for row in samples])
    assert binom.sf(30, 150, 0.1) < 1e-4
    assert np.sum(lowers > rate) <= 30
    assert rate - 0.12 < lowers.mean() < rate
    stretched = mean_lower(3.0 * samples[0] - 1.0, confidence=0.9, low=-1.0, high=2.0)
    assert stretched == pytest.approx(3.0 * lowers[0] - 1.0)
    lower, upper = mean_bounds(samples[0], confidence=0.8)
    assert lower == pytest.approx(lowers[0])
    assert upper == pytest.approx(1.0 - mean_lower(1.0 - samples[0], confidence=0.9))


def test_values_that_never_move_refute_nothing() -> None:
    for value in (0.0, 0.5, 1.0):
        assert mean_lower(np.full(5000, value), confidence=0.99) <= value
    low, high = math.log(FLOOR), math.log(128)
    assert -0.02 < mean_lower(np.zeros(5000), confidence=0.975, low=low, high=high) <= 0.0


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ([0.5], {}, "at least two"),
        ([0.5, 1.5], {}, r"in \[0, 1\]"),
        ([0.5, math.nan], {}, r"in \[0, 1\]"),
        ([0.5, 0.5], {"confidence": 1.0}, "confidence"),
    ],
)
def test_bounds_refuse_unusable_values(values: list[float], options: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        mean_lower(np.array(values), **{"confidence": 0.9, **options})


def test_a_log_score_never_expects_more_than_the_information() -> None:
    """Whatever is believed: exact enumeration of a channel, for the true posterior and for wrong ones."""
    joint = channel(0.6, secrets=4)
    exact = information(joint)
    true = joint / joint.sum(axis=0)
    generator = np.random.default_rng(5)
    beliefs = [
        true,
        true**3 / (true**3).sum(0),
        *(generator.dirichlet(np.ones(4), size=4).T for _ in range(20)),
    ]
    expected = [
        sum(joint[s, y] * log_score(belief[:, y], s) for s in range(4) for y in range(4))
        for belief in beliefs
    ]
    assert max(expected) <= exact
    assert exact - 0.01 < expected[0]
    assert max(expected[1:]) < expected[0]
    sure = np.array([0.0, 1.0, 0.0, 0.0])
    assert log_score(sure, 1) == perfect_log_score(4) < math.log(4)
    assert log_score(sure, 0) == math.log(FLOOR)


def test_guesses_count_even_records_alone_and_ties_half() -> None:
    candidates = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 0]], dtype=bool)
    assert balanced(candidates).tolist() == [True, True, False]
    uniform, first = np.full(4, 0.25), np.array([0.7, 0.3, 0.0, 0.0])
    assert record_success(uniform, candidates, 0) == 0.5
    assert record_success(first, candidates, 0) == 1.0
    assert record_success(first, candidates, 1) == 0.5
    assert record_success(first, candidates, 3) == 0.0
    assert index_success(uniform, 2) == 0.25
    assert (index_success(first, 0), index_success(first, 1)) == (1.0, 0.0)
    with pytest.raises(InputError, match="exactly half"):
        record_success(uniform, np.ones((4, 3), dtype=bool), 0)
