"""The Gaussian mechanism's curve against golden values, high-precision arithmetic, and its laws."""

from __future__ import annotations

import doctest
import math

import mpmath
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workbench.accounting import gaussian
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta, mu_of_epsilon
from workbench.core.errors import InputError

MUS = st.floats(1e-3, 50)
DELTAS = st.floats(-12 * math.log(10), math.log(0.5)).map(math.exp)


def slow_delta(mu: float, epsilon: float) -> float:
    """The printed formula (Balle and Wang 2018, theorem 8) at 1200 digits."""
    with mpmath.workdps(1200):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.25, 1.0, 3.7, 12.0, 50.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.5, 1.0, 8.0, 120.0, 1000.0])
def test_delta_equals_the_printed_formula_in_high_precision(mu: float, epsilon: float) -> None:
    expected = slow_delta(mu, epsilon)
    assert delta_of_epsilon(mu, epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_one_gdp_at_delta_1e_5_is_the_issues_anchor() -> None:
    assert epsilon_of_delta(1.0, 1e-5) == pytest.approx(4.38, abs=5e-3)


@given(mu=MUS, delta=DELTAS)
@settings(max_examples=150, deadline=None)
def test_mu_of_epsilon_inverts_epsilon_of_delta(mu: float, delta: float) -> None:
    epsilon = epsilon_of_delta(mu, delta)
    assume(epsilon > 1e-6)
    assert delta_of_epsilon(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert mu_of_epsilon(epsilon, delta) == pytest.approx(mu, rel=1e-6)


@given(mu=MUS, factor=st.floats(1.01, 2), delta=DELTAS)
@settings(max_examples=100, deadline=None)
def test_epsilon_rises_with_mu_and_falls_with_delta(mu: float, factor: float, delta: float) -> None:
    epsilon = epsilon_of_delta(mu, delta)
    assume(epsilon > 0)
    assert epsilon_of_delta(mu * factor, delta) > epsilon
    assert epsilon_of_delta(mu, min(delta * factor, 0.999)) < epsilon


@given(epsilon=st.floats(0, 1000), delta=DELTAS)
@settings(max_examples=100, deadline=None)
def test_mu_of_epsilon_meets_its_delta(epsilon: float, delta: float) -> None:
    mu = mu_of_epsilon(epsilon, delta)
    assert delta_of_epsilon(mu, epsilon) == pytest.approx(delta, rel=1e-7)


def test_the_ends_of_the_range() -> None:
    assert delta_of_epsilon(0.0, 0.0) == 0.0
    assert delta_of_epsilon(math.inf, 5.0) == 1.0
    assert epsilon_of_delta(0.0, 1e-5) == 0.0
    assert epsilon_of_delta(math.inf, 1e-5) == math.inf
    assert mu_of_epsilon(math.inf, 1e-5) == math.inf
    assert epsilon_of_delta(1e-7, 1e-5) == 0.0  # 2 Phi(mu / 2) - 1 = 4e-8 is below delta already


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputError, match=r"delta must be in \(0, 1\), got 1.5"):
        epsilon_of_delta(1.0, 1.5)
    with pytest.raises(InputError, match=r"mu must be >= 0, got -1\.0"):
        delta_of_epsilon(-1.0, 1.0)
    with pytest.raises(InputError, match="epsilon must be >= 0, got nan"):
        mu_of_epsilon(math.nan, 1e-5)


def test_doctest() -> None:
    assert doctest.testmod(gaussian).failed == 0


@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.5, 0.9])
def test_a_huge_mu_has_its_epsilon_too(delta: float) -> None:
    assert epsilon_of_delta(4e8, delta) == pytest.approx(8e16, rel=1e-6)
