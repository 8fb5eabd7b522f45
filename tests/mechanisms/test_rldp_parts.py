"""RLDP's release, dials, state and ledger, each against a naive twin of the printed equation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from workbench.accounting import ApproximateDP
from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import Composed, SubsampledGaussian, gaussian_run
from workbench.core import registry
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency, FloatArray, GradientCanary, Groups
from workbench.mechanisms.rldp import (
    FARTHEST,
    LARGEST_STEP,
    chosen_radii,
    clip_factors,
    clipped_noisy_sum,
    noise_step,
    reward,
    smoothed_log_noise,
)
from workbench.mechanisms.rldp.controller import NormBuffer, state_size, statistics
from workbench.mechanisms.rldp.ledger import (
    ACCOUNTANTS,
    NOISE_GRID,
    Ledger,
    calibrated_noise,
    certified_epsilons,
    constant_noise_epsilon,
    rounded_down,
)
from workbench.training.canary import SignalsWithCanary
from workbench.training.flat import FlatLayout
from workbench.training.loop import gaussian_noise
from workbench.training.per_record import EmptySignals, MatrixSignals

FALSE_ALARM = 1e-6
"""Probability that a statistical test here fails by chance, two-sided."""

MODULE = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
LAYOUT = FlatLayout.of(MODULE)
GROUPS: Groups = [["0.weight", "1.bias"], ["1.weight"], ["0.bias"]]
RADII = [0.5, 2.0, 0.25]


def some_signals(records: int = 6, scale: float = 3.0) -> MatrixSignals:
    rows = torch.randn(records, LAYOUT.dimension, generator=torch.Generator().manual_seed(5)) * scale
    return MatrixSignals(LAYOUT, rows, torch.ones(records))


def naively_clipped(gradients: Tensor) -> list[dict[str, Tensor]]:
    """Eqs. 3 to 5, record by record and pair by pair."""
    found = []
    for row in gradients:
        parts = {name: row[place].clone() for name, (place, _) in LAYOUT.places.items()}
        for group, radius in zip(GROUPS, RADII, strict=True):
            norm = math.sqrt(sum(float(parts[name].double().square().sum()) for name in group))
            factor = min(1.0, radius / (norm + 1e-6))
            for name in group:
                parts[name] *= factor
        found.append(parts)
    return found


def released(signals: MatrixSignals, sigma: float, seed: int = 0) -> Tensor:
    return clipped_noisy_sum(
        signals,
        GROUPS,
        norms=signals.group_norms(GROUPS),
        radii=RADII,
        noise_multiplier=sigma,
        generator=torch.Generator().manual_seed(seed),
    )


def test_pairs_are_clipped_jointly_and_noised_by_their_own_radius() -> None:
    signals, sigma = some_signals(), 0.7
    wanted = torch.zeros(LAYOUT.dimension)
    for parts in naively_clipped(signals.gradients()):
        for name, (place, _) in LAYOUT.places.items():
            wanted[place] += parts[name]
    noise = gaussian_noise(wanted, 1.0, torch.Generator().manual_seed(0))
    for group, radius in zip(GROUPS, RADII, strict=True):
        for name in group:
            place = LAYOUT.places[name][0]
            wanted[place] += sigma * radius * noise[place]
    torch.testing.assert_close(released(signals, sigma), wanted)


def test_noise_has_its_size_on_each_pair() -> None:
    nobody, sigma, trials = EmptySignals(LAYOUT), 1.3, 400
    draws = torch.stack([released(nobody, sigma, seed) for seed in range(trials)]).double()  # type: ignore[arg-type]
    for group, radius in zip(GROUPS, RADII, strict=True):
        own = torch.cat([draws[:, LAYOUT.places[name][0]] for name in group], dim=1)
        square = float(own.square().sum()) / (sigma * radius) ** 2
        tail = stats.chi2(own.numel())
        assert tail.ppf(FALSE_ALARM / 6) < square < tail.isf(FALSE_ALARM / 6)
        assert not tail.ppf(FALSE_ALARM) < square * 1.5**2 < tail.isf(FALSE_ALARM)  # a wrong scale is seen


@given(norm=st.floats(0, 1e6), radius=st.floats(1e-6, 1e3))
def test_a_clipped_pair_stays_within_its_radius(norm: float, radius: float) -> None:
    factor = clip_factors(torch.tensor([[norm]], dtype=torch.float64), [radius]).item()
    assert factor * norm <= radius
    assert factor == min(1.0, radius / (norm + 1e-6))


def test_a_canary_goes_through_trials_included() -> None:
    canary = GradientCanary(coordinate=0, magnitude=1e3, everywhere=True)
    watched = SignalsWithCanary(some_signals(), canary, True, trials=4, groups=GROUPS)
    found = clipped_noisy_sum(
        watched,
        GROUPS,
        norms=watched.group_norms(GROUPS),
        radii=RADII,
        noise_multiplier=1e-9,
        generator=torch.Generator().manual_seed(0),
    )
    assert found.shape == (4, LAYOUT.dimension)
    # Each pair holds its whole radius: whitened by their radii, n of them sum to n C / (sqrt(n) C).
    observed = watched.observed(found, RADII)
    assert observed.shape == (4,)
    assert np.ptp(observed.numpy()) < 1e-6


# Dials


@given(
    pushes=st.lists(st.floats(-1e6, 1e6), max_size=60),
    spent=st.lists(st.floats(0, 1e3), min_size=60, max_size=60),
    first=st.floats(1e-2, 1e2),
)
def test_no_policy_takes_the_noise_beyond_a_factor_of_two(
    pushes: list[float], spent: list[float], first: float
) -> None:
    log_first = math.log(first)
    log_noise = log_first
    for push, share in zip(pushes, spent, strict=False):
        after = smoothed_log_noise(log_noise, log_first, push, share)
        assert abs(after - log_first) <= math.log(FARTHEST) + 1e-12
        assert abs(after - log_noise) <= 0.2 * LARGEST_STEP * abs(1 - share) + 1e-12
        log_noise = after


def test_dials_are_turned_as_printed() -> None:
    radii = chosen_radii(np.array([-0.7, 3.0]), 1.0)
    noise_multiplier = math.exp(smoothed_log_noise(math.log(1.1), math.log(0.9), -0.4, 0.3))
    step = 0.1 * (1 - 0.3)
    proposed = min(max(math.log(1.1) + math.tanh(-0.4) * step, math.log(0.45)), math.log(1.8))
    assert radii == pytest.approx([math.exp(-0.7), 1.0])
    assert noise_multiplier == pytest.approx(math.exp(0.8 * math.log(1.1) + 0.2 * proposed), rel=1e-14)


def test_past_the_budget_a_push_turns_the_other_way() -> None:
    assert noise_step(1.5) == pytest.approx(-0.05)
    assert smoothed_log_noise(0.0, 0.0, -20.0, 0.5) < 0 < smoothed_log_noise(0.0, 0.0, -20.0, 1.5)


@given(log_radii=st.lists(st.floats(-1e8, 1e8), min_size=1, max_size=4), largest=st.floats(1e-3, 1e3))
def test_radii_are_positive_and_capped(log_radii: list[float], largest: float) -> None:
    found = chosen_radii(np.array(log_radii), largest)
    assert (found > 0).all()
    assert (found <= largest).all()
    inner = [(r, a) for r, a in zip(found, log_radii, strict=True) if -60 < a < math.log(largest)]
    assert all(radius == pytest.approx(math.exp(a)) for radius, a in inner)


@given(gain=st.floats(-50, 50), spent=st.floats(-2, 2), floor=st.floats(0.1, 20))
def test_the_reward_is_eq_20(gain: float, spent: float, floor: float) -> None:
    if spent + 1e-6 == 0:
        return
    ratio = gain / (spent + 1e-6)
    wanted = max(-floor, math.log(1 + max(ratio, -0.999)))
    assert reward(gain, spent, floor) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_the_reward_is_bounded_below_and_defined_at_its_pole() -> None:
    assert reward(-9.0, 0.1, 10.0) == pytest.approx(math.log(0.001))
    assert reward(-9.0, 0.1, 5.0) == -5.0
    assert reward(1.0, -1e-6, 5.0) == 0.0
    # A falling ledger turns the sign: losing utility pays.
    assert reward(-1.0, -0.1, 5.0) > 0 > reward(-0.01, 0.1, 5.0)


# State


def test_statistics_against_their_definitions() -> None:
    norms = np.abs(np.random.default_rng(0).standard_cauchy((7, 3)))
    found = statistics(norms, 1.25, 0.4)
    quartiles = [np.quantile(norms[:, i], p) for p in (0.25, 0.5, 0.75) for i in range(3)]
    every = norms.ravel()
    wanted = [
        *quartiles,
        -1.25,
        0.4,
        float(np.var(every)),
        1.25,
        *(float(np.mean(norms[:, i] ** 2)) for i in range(3)),
        *(float(np.var(norms[:, i] ** 2)) for i in range(3)),
        float(stats.skew(every)),
        float(stats.kurtosis(every, fisher=False)),
    ]
    assert found.shape == (state_size(3),)
    assert found == pytest.approx(wanted)


def test_equal_norms_have_no_shape() -> None:
    found = statistics(np.full((1, 2), 3.0), 1.0, 0.0)
    assert np.isfinite(found).all()
    assert found[-2:] == pytest.approx([0.0, 0.0])


def test_the_buffer_keeps_the_latest_norms() -> None:
    buffer, first = NormBuffer(5, 2), np.array([0.1, 0.1])
    assert buffer.medians(first) is first
    rows: FloatArray = np.arange(16.0).reshape(8, 2) % 16
    for start in range(0, 8, 3):
        buffer.add(rows[start : start + 3])
    assert buffer.medians(first) == pytest.approx(np.median(rows[-5:], axis=0))
    buffer.add(np.array([[0.0, 7.0]] * 5))
    assert buffer.medians(first) == pytest.approx([0.1, 7.0])


# Ledger


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_calibrated_ledger_ends_at_the_budget(accountant: str) -> None:
    budget = ApproximateDP(epsilon=2.0, delta=1e-5)
    sigma = calibrated_noise(accountant, budget, 0.02, 80)
    ledger = Ledger(accountant, 0.02, 1e-5)
    spent = [ledger.step(sigma) for _ in range(80)]
    assert 2.0 * (1 - 1e-6) < spent[-1] <= 2.0 * (1 + 1e-9)
    assert np.all(np.diff(spent) > 0)
    assert spent[-1] == pytest.approx(constant_noise_epsilon(accountant, sigma, 1e-5, 0.02, 80))


def test_the_default_ledger_is_the_central_limit_at_constant_noise() -> None:
    theirs = registry.create("accountant", "rldp_gdp")  # whose own test holds it to Opacus's
    run = gaussian_run(noise_multiplier=0.8, sampling_probability=0.03, steps=50)
    wanted = theirs.epsilon(run, delta=1e-5, adjacency=Adjacency.ADD_REMOVE)
    for accountant in ("algorithm-1", "per-step"):
        ledger = Ledger(accountant, 0.03, 1e-5)
        for _ in range(50):
            ledger.step(0.8)
        assert ledger.epsilon == pytest.approx(wanted, rel=1e-6)


def test_line_14_forgets_and_the_other_does_not() -> None:
    printed, honest = Ledger("algorithm-1", 0.05, 1e-5), Ledger("per-step", 0.05, 1e-5)
    for _ in range(20):
        printed.step(0.7), honest.step(0.7)
    before = printed.epsilon
    assert printed.step(1.4) < before < honest.step(1.4)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=80))
def test_noises_are_rounded_down_to_few(noises: list[float]) -> None:
    given_noises = np.array(noises)
    found = rounded_down(given_noises)
    assert len(np.unique(found)) <= NOISE_GRID
    assert (found <= given_noises).all()
    assert (found >= given_noises * (given_noises.min() / given_noises.max()) ** (1.5 / NOISE_GRID)).all()


def test_certified_numbers_are_upper_ends_of_the_sequence() -> None:
    noises = np.geomspace(0.8, 1.2, 40).tolist()
    one, joint = certified_epsilons(
        noises, adapters=3, sampling_probability=0.05, delta=1e-5, adjacency=Adjacency.ADD_REMOVE
    )
    for found, scale in ((one, 1.0), (joint, 3**-0.5)):
        parts = [SubsampledGaussian(noise_multiplier=s * scale, sampling_probability=0.05) for s in noises]
        itself = epsilon_bounds(Composed(events=tuple((part, 1) for part in parts)), 1e-5)
        assert itself.lower <= found <= 1.05 * itself.upper
    run = gaussian_run(noise_multiplier=0.8, sampling_probability=0.05, steps=40)
    assert one < epsilon_bounds(run, 1e-5).upper < joint
    constant = certified_epsilons(
        [0.8] * 40, adapters=1, sampling_probability=0.05, delta=1e-5, adjacency=Adjacency.ADD_REMOVE
    )
    assert constant[0] == constant[1] == pytest.approx(epsilon_bounds(run, 1e-5).upper, rel=1e-9)


def test_at_full_samples_the_certified_number_is_that_of_one_gaussian() -> None:
    one, joint = certified_epsilons(
        [2.0] * 8, adapters=2, sampling_probability=1.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE
    )
    wanted = [
        epsilon_bounds(gaussian_run(noise_multiplier=s, sampling_probability=1.0, steps=8), 1e-5).upper
        for s in (1.0, 2**-0.5)
    ]
    assert [one, joint] == pytest.approx(wanted, rel=1e-9)


def test_a_budget_that_no_noise_meets() -> None:
    with pytest.raises(InputError, match="target_epsilon"):
        calibrated_noise("algorithm-1", ApproximateDP(epsilon=1e-9, delta=1e-12), 1.0, 100_000)
