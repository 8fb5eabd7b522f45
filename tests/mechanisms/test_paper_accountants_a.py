"""FERRET's and PACZero's accountants, as printed: golden values, refusals, and where Eq. 12 under-reports."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.paczero_success import comparable_epsilon, dp_success, posterior_success
from scipy import integrate, stats

from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import Composed, FinitePair, Gaussian
from workbench.checks.accountants import Accountant
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants import ferret, paczero

NAMES = ("ferret", "ferret_same_epsilon", "ferret_dither", "paczero")
ADD_REMOVE = Adjacency.ADD_REMOVE


@pytest.mark.parametrize("name", NAMES)
def test_each_is_registered_and_refuses_what_it_does_not_account_for(name: str) -> None:
    accountant = registry.create("accountant", name)
    assert isinstance(accountant, Accountant)
    assert accountant.name == name
    with pytest.raises(UnsupportedError, match=name):
        accountant.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, adjacency=ADD_REMOVE)


@pytest.mark.parametrize(
    ("groups", "ceiling", "best"),
    [(200, 693, 7.2e-4), (100, 347, 1.4e-3), (50, 173, 2.9e-3), (2, 6.93, 0.072)],
)
def test_ferret_prints_table_3(groups: int, ceiling: float, best: float) -> None:
    run = {"groups": groups, "steps": 1000, "sampling_probability": 0.005}
    assert ferret.ceiling_nats(**run) == pytest.approx(ceiling, rel=2e-3)
    p = ferret.firing_probability(budget_nats=0.5, **run)
    assert p == pytest.approx(best, rel=0.035)
    assert ferret.total_nats(firing_probability=p, **run) == pytest.approx(0.5, rel=1e-12)


def test_ferret_refuses_a_budget_at_or_above_its_ceiling() -> None:
    run = {"groups": 2, "steps": 200, "sampling_probability": 0.005}
    with pytest.raises(InputError, match=r"budget_nats must be in \(0, 1.38629\), got 2.0"):
        ferret.firing_probability(budget_nats=2.0, **run)
    with pytest.raises(InputError, match="budget_nats"):
        ferret.firing_probability(budget_nats=0.0, **run)
    with pytest.raises(InputError, match="firing_probability must be in"):
        ferret.total_nats(firing_probability=1.5, **run)


def test_ferret_nats_are_no_dp_epsilon_unless_asked_to_be_read_so() -> None:
    run = ferret.FerretRun(groups=1, steps=1, sampling_probability=1.0, firing_probability=0.5)
    assert ferret.FerretAccountant().nats(Composed(events=((run, 3),))) == pytest.approx(1.5 * math.log(2))
    with pytest.raises(UnsupportedError, match="nats"):
        ferret.FerretAccountant().epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    read = ferret.FerretSameEpsilon().epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    # With the record in every sample it decides every sign: silence, the one sign, the other.
    half, none = Fraction(1, 2), Fraction(0)
    truth = epsilon_bounds(FinitePair(p=(half, half, none), q=(half, none, half)), 1e-5)
    assert read == pytest.approx(0.5 * math.log(2))
    assert truth.lower == math.inf


@pytest.mark.parametrize("form", ["eq-12", "step-2"])
def test_dithered_bound_against_the_divergence_itself(form: ferret.Form) -> None:
    order, p, shift = 4.0, 0.1, 0.25

    def integrand(x: float) -> float:
        noise = (1 - p) * stats.norm.pdf(x)
        up, down = noise + p * stats.norm.pdf(x - shift), noise + p * stats.norm.pdf(x + shift)
        return float(up**order / down ** (order - 1))

    truth = math.log(integrate.quad(integrand, -12, 12, epsabs=1e-13)[0]) / (order - 1)
    claimed = ferret.dithered_renyi_nats(
        order=order, firing_probability=p, clip_norm=1.0, dither_standard_deviation=4.0, form=form
    )
    assert (claimed >= truth) == (form == "step-2")


def test_dithered_bound_never_overflows_into_nan() -> None:
    for order in (1.0001, 2.0, 512.0):
        for dither in (1e-6, 1.0, 1e6):
            for p in (0.0, 1e-9, 1.0):
                found = ferret.dithered_renyi_nats(
                    order=order, firing_probability=p, clip_norm=1.0, dither_standard_deviation=dither
                )
                assert found >= 0


def test_eq_12_under_reports_epsilon_and_the_line_before_it_does_not() -> None:
    step = ferret.DitheredFerretStep(firing_probability=0.1, clip_norm=1.0, dither_standard_deviation=4.0)
    run = Composed(events=((step.pair(), 3000),))
    truth = epsilon_bounds(run, 1e-5)
    printed = ferret.FerretDither().epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    before = ferret.FerretDither(form="step-2").epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    assert printed < truth.lower
    assert before >= truth.upper
    same = ferret.FerretDither().epsilon(Composed(events=((step, 3000),)), delta=1e-5, adjacency=ADD_REMOVE)
    assert same == pytest.approx(printed, rel=1e-12)


@pytest.mark.parametrize("q", [0.5, 0.1, 1 / 128])
@pytest.mark.parametrize("sigma", [1.0, 5.0, 40.0])
def test_binary_information_against_adaptive_quadrature(q: float, sigma: float) -> None:
    def integrand(y: float) -> float:
        up, down = stats.norm.pdf(y, 1, sigma), stats.norm.pdf(y, -1, sigma)
        mixed = q * up + (1 - q) * down
        return float(q * up * np.log(up / mixed) + (1 - q) * down * np.log(down / mixed))

    reach = 10 * sigma
    truth = integrate.quad(integrand, -reach, reach, epsabs=1e-13, limit=200)[0]
    assert paczero.binary_mi_nats(agreement=q, noise=sigma) == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize(("q", "budget"), [(0.5, 3.3e-4), (0.5, 0.3), (1 / 128, 0.04), (0.9, 1e-8)])
def test_noise_inverts_the_information(q: float, budget: float) -> None:
    noise = paczero.noise_for(agreement=q, budget_nats=budget)
    assert paczero.binary_mi_nats(agreement=q, noise=noise) == pytest.approx(budget, rel=1e-6)


def test_noise_of_no_budget_and_of_too_much() -> None:
    assert paczero.noise_for(agreement=0.5, budget_nats=0.0) == math.inf
    with pytest.raises(InputError, match=r"below h\(q\+\)"):
        paczero.noise_for(agreement=1 / 128, budget_nats=0.33)


def test_section_2_figures() -> None:
    assert round(100 * posterior_success(nats=0.25)) == 84
    assert round(100 * posterior_success(nats=1 / 128)) == 56
    assert posterior_success(nats=0.7) == 1.0
    assert posterior_success(nats=0.0) == 0.5
    assert round(100 * dp_success(epsilon=1.0, delta=1e-5), 2) == 73.11
    assert round(100 * dp_success(epsilon=0.1, delta=1e-5), 2) == 52.50
    assert comparable_epsilon(0.33) == pytest.approx(2, abs=0.02)
    assert comparable_epsilon(0.68) == pytest.approx(6, abs=0.4)
    assert comparable_epsilon(0.7) == math.inf


@settings(max_examples=15, deadline=None)
@given(
    total=st.floats(1e-4, 2.0),
    steps=st.integers(1, 25),
    unanimity=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**16),
)
def test_the_ledger_never_spends_more_than_its_total(
    total: float, steps: int, unanimity: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    ledger = paczero.PacZeroLedger(total_nats=total, steps=steps, candidates=6)
    for _ in range(steps):
        agree = generator.random() < unanimity
        signs = np.ones(6) if agree else np.where(generator.random(6) < 0.5, 1.0, -1.0)
        charge = ledger.charge(signs)
        if not charge.unanimous and math.isfinite(charge.noise):
            ledger.observe(signs, signs[0] + charge.noise * generator.normal())
        assert ledger.posterior.sum() == pytest.approx(1.0)
    assert 0 <= ledger.used_nats <= total * (1 + 1e-12)
    with pytest.raises(InputError, match="step"):
        ledger.charge(np.ones(6))


def test_adaptive_budgets_recover_what_unanimity_saved_and_uniform_ones_do_not() -> None:
    signs = np.array([1.0, 1.0, -1.0, -1.0])
    spent = {}
    for allocation in ("adaptive", "uniform"):
        ledger = paczero.PacZeroLedger(total_nats=0.1, steps=4, candidates=4, allocation=allocation)
        for unanimous in (True, True, True, False):
            ledger.charge(np.ones(4) if unanimous else signs)
        spent[allocation] = ledger.used_nats
    assert spent["adaptive"] == pytest.approx(0.1)
    assert spent["uniform"] == pytest.approx(0.025)


def test_the_posterior_is_bayes_rule() -> None:
    ledger = paczero.PacZeroLedger(total_nats=0.5, steps=1, candidates=3)
    signs = np.array([1.0, -1.0, -1.0])
    charge = ledger.charge(signs)
    ledger.observe(signs, 0.4)
    weights = stats.norm.pdf(0.4, signs, charge.noise)
    assert ledger.posterior == pytest.approx(weights / weights.sum())


def test_zpl_spends_nothing_and_keeps_the_uniform_posterior() -> None:
    ledger = paczero.PacZeroLedger(total_nats=1.0, steps=3, candidates=4, variant="zpl")
    signs = np.array([1.0, 1.0, 1.0, -1.0])
    charge = ledger.charge(signs)
    assert charge.noise == math.inf
    assert not charge.unanimous
    ledger.observe(signs, 1.0)
    assert ledger.charge(np.ones(4)).unanimous
    assert ledger.used_nats == 0
    assert ledger.posterior == pytest.approx(np.full(4, 0.25))


def test_algorithm_1_without_the_cap_meets_a_budget_without_noise() -> None:
    signs = np.array([1.0] + [-1.0] * 127)
    capped = paczero.PacZeroLedger(total_nats=0.33, steps=1, candidates=128)
    assert capped.charge(signs).budget_nats == pytest.approx(0.999 * paczero.binary_entropy_nats(1 / 128))
    bare = paczero.PacZeroLedger(total_nats=0.33, steps=1, candidates=128, capped=False)
    with pytest.raises(InputError, match="capped must be true"):
        bare.charge(signs)


def test_the_ledger_refuses_malformed_signs() -> None:
    ledger = paczero.PacZeroAccountant().ledger(total_nats=0.1, steps=2, candidates=3)
    for signs in (np.array([1.0, 0.0, 1.0]), np.ones(4)):
        with pytest.raises(InputError, match="signs must be"):
            ledger.charge(signs)
