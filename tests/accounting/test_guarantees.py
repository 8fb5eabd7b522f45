"""Guarantees: the anchors of the papers, and laws that hold for every currency."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.accounting import (
    ApproximateDP,
    GaussianDP,
    MutualInformation,
    NoGuarantee,
    RenyiDP,
    binary_kl_nats,
    guarantee_from_json,
)
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Guarantee, Secret

RATES = np.concatenate([[0.0], np.geomspace(1e-9, 1e-3, 20), np.linspace(0.002, 1.0, 500)])

ANY_GUARANTEE = st.one_of(
    st.builds(ApproximateDP, epsilon=st.floats(0, 20), delta=st.floats(0, 0.5)),
    st.builds(GaussianDP, mu=st.floats(0, 10)),
    st.builds(RenyiDP, alpha=st.floats(1.01, 100), epsilon=st.floats(0, 5)),
    st.builds(NoGuarantee),
)


@pytest.mark.parametrize(
    ("guarantee", "success"),
    [  # The DP figures are e^eps / (1 + e^eps); the nats are PACZero's, section 2.
        (ApproximateDP(epsilon=1.0, delta=1e-5), 0.731),
        (ApproximateDP(epsilon=0.1, delta=1e-5), 0.525),
        (MutualInformation(nats=1 / 4, secret=Secret.RECORD), 0.84),
        (MutualInformation(nats=1 / 128, secret=Secret.SUBSET), 0.56),
        (MutualInformation(nats=0.0, secret=Secret.SUBSET), 0.5),
        (NoGuarantee(), 1.0),
    ],
)
def test_anchors_of_success(guarantee: Guarantee, success: float) -> None:
    assert guarantee.max_success(0.5) == pytest.approx(success, abs=0.004)


@given(ANY_GUARANTEE)
def test_trade_off_curve_is_monotone_concave_and_above_chance(guarantee: Guarantee) -> None:
    tpr = guarantee.max_tpr(RATES)
    assert np.all(tpr >= RATES - 1e-12)
    assert np.all(tpr <= 1.0)
    assert np.all(np.diff(tpr) >= -1e-12)
    chord = (tpr[:-1] + tpr[1:]) / 2
    assert np.all(guarantee.max_tpr((RATES[:-1] + RATES[1:]) / 2) >= chord - 1e-7)


@pytest.mark.slow
@given(ANY_GUARANTEE, st.floats(0.05, 0.95))
@settings(deadline=None)
def test_success_is_the_best_point_of_the_curve(guarantee: Guarantee, prior: float) -> None:
    on_curve = prior * guarantee.max_tpr(RATES) + (1 - prior) * (1 - RATES)
    success = guarantee.max_success(prior)
    assert success >= np.max(on_curve) - 1e-7
    assert max(prior, 1 - prior) <= success <= 1.0


@given(st.floats(1e-6, 0.6), st.floats(0.1, 0.9))
def test_mutual_information_inverts_the_kl_inequality(nats: float, prior: float) -> None:
    blind = max(prior, 1 - prior)
    success = MutualInformation(nats=nats, secret=Secret.RECORD).max_success(prior)
    spent = binary_kl_nats(success, blind)
    assert spent == pytest.approx(nats, rel=1e-6) or (success == 1.0 and spent <= nats)


@given(st.floats(0.01, 3.0))
def test_gaussian_curve_is_symmetric(mu: float) -> None:
    guarantee = GaussianDP(mu=mu)
    fpr = np.linspace(0.01, 0.99, 50)
    mirrored = 1.0 - guarantee.max_tpr(fpr)
    assert np.allclose(1.0 - guarantee.max_tpr(mirrored), fpr, atol=1e-9)


def test_renyi_of_large_order_approaches_pure_dp() -> None:
    fpr = np.linspace(0.001, 0.99, 50)
    renyi = RenyiDP(alpha=5000.0, epsilon=1.0).max_tpr(fpr)
    pure = ApproximateDP(epsilon=1.0, delta=0.0).max_tpr(fpr)
    assert np.all(renyi >= pure - 1e-9)
    assert np.max(renyi - pure) < 0.01


def test_mutual_information_has_no_trade_off_curve() -> None:
    with pytest.raises(UnsupportedError, match="no trade-off curve"):
        MutualInformation(nats=0.1, secret=Secret.RECORD).max_tpr(RATES)


@given(
    st.one_of(
        ANY_GUARANTEE,
        st.builds(MutualInformation, nats=st.floats(0, 5), secret=st.sampled_from(Secret)),
    )
)
def test_json_round_trip(guarantee: Guarantee) -> None:
    assert guarantee_from_json(guarantee.to_json()) == guarantee


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ApproximateDP(epsilon=-1.0, delta=0.0), "epsilon must be finite and >= 0, got -1"),
        (lambda: ApproximateDP(epsilon=1.0, delta=1.0), r"delta must be in \[0, 1\), got 1"),
        (lambda: ApproximateDP(epsilon=float("nan"), delta=0.0), "got nan"),
        (lambda: GaussianDP(mu=float("inf")), "mu must be finite"),
        (lambda: RenyiDP(alpha=1.0, epsilon=0.0), "alpha must be finite and > 1, got 1"),
        (lambda: MutualInformation(nats=-0.1, secret=Secret.RECORD), "nats must be"),
        (lambda: guarantee_from_json({"currency": "mu-GPD", "mu": 1.0}), "did you mean 'mu-GDP'"),
        (lambda: GaussianDP(mu=1.0).max_success(0.0), r"prior must be in \(0, 1\), got 0"),
        (lambda: GaussianDP(mu=1.0).max_tpr(np.array([1.5])), r"fpr must lie in \[0, 1\]"),
    ],
)
def test_bad_parameters_are_refused(build: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()  # type: ignore[operator]
