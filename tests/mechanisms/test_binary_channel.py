"""The certified binary channel against ball arithmetic; and its inverse."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.accounting.guarantees import binary_kl_nats
from workbench.attacks.claim_checks.paczero import numerics as exact_channel
from workbench.core.errors import InputError
from workbench.mechanisms.accountants.paczero import binary_mi_nats
from workbench.mechanisms.accountants.shared import binary_channel
from workbench.mechanisms.accountants.shared.binary_channel import binary_mi_bounds, noise_for

AGREEMENTS = st.floats(1e-12, 1 - 1e-12) | st.floats(-12, -0.31).map(lambda x: 10.0**x)
NOISES = st.floats(-3, 6).map(lambda x: 10.0**x)


@pytest.fixture
def precise(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The ball, relatively as sharp for tiny values: by default its integral is right to 1e-19 nats."""
    flint = pytest.importorskip("flint")

    def enclosed(agreement: float, noise: float) -> Any:
        tiny = min(agreement, 1 - agreement) < 1e-20
        monkeypatch.setattr(exact_channel, "TOLERANCE", 2.0**-420 if tiny else 2.0**-200)
        monkeypatch.setattr(exact_channel, "REACH", 24 if tiny else 16)
        with flint.ctx.workprec(600 if tiny else 320):
            return exact_channel.binary_mi(Fraction(agreement), Fraction(noise))

    return enclosed


def grid(count: int, seed: int) -> list[tuple[float, float]]:
    generator = np.random.default_rng(seed)
    agreements = 10 ** generator.uniform(-12, math.log10(0.5), count)
    agreements[::2] = 1 - agreements[::2]
    return list(zip(agreements, 10 ** generator.uniform(-1.3, 6, count), strict=True))


def contains(precise: Any, agreement: float, noise: float) -> bool:
    import flint

    low, high = binary_mi_bounds(agreement, noise)
    exact = precise(agreement, noise)
    with flint.ctx.workprec(600):
        assert exact.rad() < 1e-20 * exact.mid()
        return bool(flint.arb(low) <= exact <= flint.arb(high))


def test_the_bounds_contain_the_exact_value_on_a_random_grid(precise: Any) -> None:
    for agreement, noise in grid(14, 1):
        assert contains(precise, agreement, noise), (agreement, noise)


@pytest.mark.slow
def test_the_bounds_contain_the_exact_value_on_a_large_grid_and_at_the_seams(precise: Any) -> None:
    seams = [
        (q, noise)
        for q in (0.5, 0.5 - 2**-54, 1e-3, 1e-12)
        for noise in (0.0250001, 0.0249999, 0.999999, 1.0, 1.000001, 3.0, 1e3)
    ]
    tiny = [(1e-100, 0.05), (1e-100, 0.9), (1e-100, 1.5)]
    for agreement, noise in grid(200, 2) + seams + tiny:
        assert contains(precise, agreement, noise), (agreement, noise)


def test_coarse_sums_err_and_their_bounds_grow_with_them(
    precise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error bounds are at work: where the sums are wrong by far more than round-off, they say so."""
    monkeypatch.setattr(binary_channel, "_STEP", 2.5)
    monkeypatch.setattr(binary_channel, "_DECAY", 8.0)
    monkeypatch.setattr(binary_channel, "_REACH", 3.0)
    monkeypatch.setattr(binary_channel, "_DROP", 5.0)
    wrong = 0
    for agreement, noise in [(0.5, 0.9), (0.3, 0.2), (0.5, 1.5), (0.01, 1.0), (1e-9, 40.0)]:
        assert contains(precise, agreement, noise)
        low, high = binary_mi_bounds(agreement, noise)
        exact = float(precise(agreement, noise).mid())
        wrong += abs((low + high) / 2 - exact) > 1e-8 * exact
    assert wrong >= 4


def test_a_wrong_integrand_lies_outside_the_ball(precise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the tests above."""
    monkeypatch.setattr(binary_channel, "_psi", lambda x: 0.999999 * ((1 + x) * np.log1p(x) - x))
    assert not contains(precise, 0.5, 1.5)


@given(agreement=AGREEMENTS, noise=NOISES)
@settings(max_examples=150, deadline=None)
def test_the_bounds_are_narrow_and_within_entropy_and_variance(agreement: float, noise: float) -> None:
    low, high = binary_mi_bounds(agreement, noise)
    q = min(agreement, 1 - agreement)
    entropy = -q * math.log(q) - (1 - q) * math.log1p(-q)
    variance = 0.5 * math.log1p(4 * q * (1 - q) / noise**2)
    assert 0 <= low <= high <= min(entropy, variance) * (1 + 1e-13)
    if high >= 1e-12:
        assert high - low <= 1e-8 * high
    assert (low, high) == binary_mi_bounds(1 - agreement, noise) or agreement < 0.5


@given(agreement=AGREEMENTS, noise=NOISES, more=st.floats(1.001, 10.0))
@settings(max_examples=100, deadline=None)
def test_more_noise_tells_less(agreement: float, noise: float, more: float) -> None:
    assert binary_mi_bounds(agreement, noise * more)[0] <= binary_mi_bounds(agreement, noise)[1]


@given(agreement=AGREEMENTS, noise=NOISES)
@settings(max_examples=100, deadline=None)
def test_the_bit_alone_tells_less(agreement: float, noise: float) -> None:
    """Data processing: the sign of the noisy value, whose information has a closed form."""
    flip = math.erfc(1 / noise / math.sqrt(2)) / 2
    plus = agreement * (1 - flip) + (1 - agreement) * flip
    if not 0 < plus < 1 or flip == 0:
        return
    bit = agreement * binary_kl_nats(1 - flip, plus) + (1 - agreement) * binary_kl_nats(flip, plus)
    assert bit <= binary_mi_bounds(agreement, noise)[1] + 1e-13


def test_ends_and_extremes() -> None:
    assert (
        binary_mi_bounds(0.0, 1.0) == binary_mi_bounds(1.0, 1.0) == binary_mi_bounds(0.3, math.inf) == (0, 0)
    )
    low, high = binary_mi_bounds(0.5, 1e-3)
    assert low <= math.log(2) <= high < math.log(2) * (1 + 1e-13)
    for q in (5e-324, 1e-300):
        low, high = binary_mi_bounds(q, 1.0)
        assert 0 <= low <= 2 * q * 1.001 <= high * 1.01 + 1e-314
    low, high = binary_mi_bounds(0.5, 1e200)
    assert low == 0
    assert high < 1e-300


def test_the_printed_quadrature_misses_nats_between_little_and_much_noise() -> None:
    """What 60 nodes leave out, certified: 9e-7 nats at sigma = 0.3, nothing at the paper's noise (39)."""
    low, _ = binary_mi_bounds(0.5, 0.3)
    assert 9e-7 < low - binary_mi_nats(agreement=0.5, noise=0.3) < 1e-6
    low, high = binary_mi_bounds(0.5, 39.0)
    assert low <= binary_mi_nats(agreement=0.5, noise=39.0) <= high


# --- the inverse -----------------------------------------------------------------------------------


@given(agreement=AGREEMENTS, share=st.floats(-9, -1e-5).map(lambda x: 10.0**x) | st.just(0.999))
@settings(max_examples=100, deadline=None)
def test_the_noise_is_enough_and_no_more(agreement: float, share: float) -> None:
    q = min(agreement, 1 - agreement)
    nats = share * (-q * math.log(q) - (1 - q) * math.log1p(-q))
    noise = noise_for(agreement, nats)
    assert binary_mi_bounds(agreement, noise)[1] <= nats
    assert binary_mi_bounds(agreement, noise / (1 + 1.1e-6))[1] > nats
    if nats >= 1e-12 and share <= 0.9999:
        assert binary_mi_bounds(agreement, noise / (1 + 1.1e-6))[0] > nats


def test_no_budget_needs_infinite_noise_and_all_of_the_entropy_none() -> None:
    assert noise_for(0.3, 0.0) == math.inf
    assert noise_for(0.0, 0.0) == math.inf
    with pytest.raises(InputError, match=r"nats must be below h\(0\.5\) = 0\.693147, got 0\.7"):
        noise_for(0.5, 0.7)
    with pytest.raises(InputError, match=r"nats must be below h\(1\) = 0, got 0\.1"):
        noise_for(1.0, 0.1)


@pytest.mark.parametrize("nats", [1e-300, 1e-200, 1e-30])
def test_tiny_budgets_have_finite_noise(nats: float) -> None:
    noise = noise_for(0.5, nats)
    assert math.isfinite(noise)
    assert binary_mi_bounds(0.5, noise)[1] <= nats
    assert noise == pytest.approx(1 / math.sqrt(2 * nats), rel=1e-5)


@pytest.mark.parametrize("agreement", [0.5, 1e-12, 1e-303])
def test_budgets_at_the_end_of_the_floats_get_infinite_noise(agreement: float) -> None:
    """No finite noise is found whose upper bound, slack included, is below them."""
    assert noise_for(agreement, 1e-316) == noise_for(agreement, 5e-324) == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: binary_mi_bounds(1.5, 1.0), r"agreement must be in \[0, 1\], got 1\.5"),
        (lambda: binary_mi_bounds(math.nan, 1.0), "agreement must be"),
        (lambda: binary_mi_bounds(0.5, 0.0), r"noise must be > 0, got 0\.0"),
        (lambda: binary_mi_bounds(0.5, math.nan), "noise must be"),
        (lambda: noise_for(0.5, -1.0), r"nats must be finite and >= 0, got -1\.0"),
        (lambda: noise_for(0.5, math.nan), "nats must be"),
    ],
)
def test_out_of_range(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.slow
def test_a_calibration_takes_milliseconds() -> None:
    """One, on an idle core: processor time, and a median of many, so that a busy machine does not fail it."""
    generator = np.random.default_rng(0)
    seconds = []
    for _ in range(200):
        q = 10 ** generator.uniform(-12, math.log10(0.5))
        entropy = -q * math.log(q) - (1 - q) * math.log1p(-q)
        share = generator.choice([0.999, 10 ** generator.uniform(-6, -0.001)])
        started = time.process_time()
        noise_for(q, share * entropy)
        seconds.append(time.process_time() - started)
    assert np.median(seconds) < 1e-2
