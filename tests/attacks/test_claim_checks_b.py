"""Checks of RLDP's, DP-Weights' and Shuffled DPSGD's claims: each verdict moves when its claim is moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flint import ctx
from oracles.dp_weights_renyi import subsampled_renyi
from scipy import stats

from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import gaussian_run
from workbench.accounting.gaussian import delta_of_epsilon
from workbench.attacks.claim_checks.dp_weights import composition as dp_weights_composition
from workbench.attacks.claim_checks.dp_weights import statements as dp_weights
from workbench.attacks.claim_checks.rldp import budgets as rldp_budgets
from workbench.attacks.claim_checks.rldp import controller as rldp_controller
from workbench.attacks.claim_checks.rldp import ledger as rldp_ledger
from workbench.attacks.claim_checks.shared import claims, lemmas
from workbench.attacks.claim_checks.shared.claims import ball
from workbench.attacks.claim_checks.shuffled_dp_sgd import statements as shuffled_dp_sgd
from workbench.core import registry
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding
from workbench.mechanisms.accountants import dp_weights as printed_dp_weights
from workbench.mechanisms.accountants import rldp as printed_rldp
from workbench.mechanisms.accountants import shuffled_dp_sgd as printed_shuffled

PROVEN, REFUTED, HOLDS_UNDER, UNDECIDED = (
    VerdictKind.PROVEN,
    VerdictKind.REFUTED,
    VerdictKind.HOLDS_UNDER,
    VerdictKind.UNDECIDED,
)


@pytest.fixture(autouse=True)
def _precise() -> Iterator[None]:
    with ctx.workprec(192):
        yield


LONG = {"rldp_budget_kept", "rldp_ledger_verifies", "dp_weights_algorithm_2"}
"""Checks of some seconds."""

# The check, its verdict on the claim as printed, then altered claims with theirs.
CASES: list[tuple[str, VerdictKind, dict[str, Any], VerdictKind]] = [
    ("rldp_sensitivity", PROVEN, {"scale": 0.5}, REFUTED),
    ("rldp_noise", REFUTED, {"sensitivity_in_clip_norms": 1}, PROVEN),
    ("rldp_lemma_7_4", REFUTED, {"reading": "mended"}, PROVEN),
    ("rldp_lemma_7_4", REFUTED, {"reading": "reversed", "epsilon": "0.5"}, UNDECIDED),
    ("rldp_lemma_7_4", REFUTED, {"reading": "reversed", "epsilon": "20"}, REFUTED),
    ("rldp_theorem_7_5", HOLDS_UNDER, {"scale": 0.5}, REFUTED),
    ("rldp_lemma_7_6", PROVEN, {"scale": 0.9}, REFUTED),
    ("rldp_lemma_7_7", PROVEN, {"power": 2}, REFUTED),
    ("rldp_theorem_7_8", PROVEN, {"scale": 0.9}, REFUTED),
    ("rldp_lemma_7_9", PROVEN, {"scale": 0.1}, REFUTED),
    ("rldp_theorem_7_11", PROVEN, {"scale": 0.9}, REFUTED),
    ("rldp_corollary_7_12", PROVEN, {"scale": 2.0}, UNDECIDED),
    ("rldp_eq_7", REFUTED, {"scale": 10.0}, UNDECIDED),
    ("rldp_eq_7", REFUTED, {"noise_multiplier": "5"}, UNDECIDED),
    ("rldp_eq_7", REFUTED, {"mu": "central limit"}, REFUTED),
    ("rldp_theorem_7_10_amplification", REFUTED, {"power": 1}, PROVEN),
    ("rldp_theorem_7_10", REFUTED, {"power": 1}, UNDECIDED),
    ("rldp_algorithm_1_ledger", REFUTED, {"dial": 0.0}, UNDECIDED),
    ("rldp_algorithm_1_ledger", REFUTED, {"dial": 0.09}, UNDECIDED),
    ("rldp_eq_13", PROVEN, {"momentum": "-1"}, REFUTED),
    ("rldp_theorem_7_13_noise", REFUTED, {"floor": "-1"}, PROVEN),
    ("rldp_theorem_7_13_adapters", REFUTED, {"count": 1}, UNDECIDED),
    ("rldp_corollary_7_15", REFUTED, {"reads": "released values"}, HOLDS_UNDER),
    ("rldp_corollary_7_15", REFUTED, {"gradient": "1"}, UNDECIDED),
    ("rldp_theorem_7_13", REFUTED, {"dial": 0.0}, REFUTED),
    ("rldp_theorem_7_13", REFUTED, {"dial": 0.0, "gradient": "1"}, UNDECIDED),
    ("rldp_theorem_7_13", REFUTED, {"dial": -0.09, "gradient": "1"}, UNDECIDED),
    ("rldp_theorem_7_13", REFUTED, {"dial": 0.0, "gradient": "1", "pairs": 2}, REFUTED),
    ("rldp_joint_budget", REFUTED, {"adapters": {"one": 1}}, PROVEN),
    ("rldp_replaced_record", REFUTED, {"noise_unit": "sensitivity"}, PROVEN),
    ("rldp_replaced_record", REFUTED, {"neighbours": "added or removed"}, PROVEN),
    ("rldp_shuffled_epochs", REFUTED, {"sampling": "poisson"}, PROVEN),
    ("rldp_budget_kept", REFUTED, {"dial": 0.0}, PROVEN),
    ("rldp_ledger_verifies", REFUTED, {"dial": 0.0}, UNDECIDED),
    ("rldp_first_radius", REFUTED, {"radii": "public"}, PROVEN),
    ("rldp_first_radius", REFUTED, {"unlike": False}, UNDECIDED),
    ("rldp_tables_4_and_5", REFUTED, {"slack": "0.5"}, UNDECIDED),
    ("rldp_table_7", REFUTED, {"slack": "0.003"}, UNDECIDED),
    ("dp_weights_sensitivity", REFUTED, {"scale": 2000.0}, UNDECIDED),
    ("dp_weights_guarantee", REFUTED, {"scale": 10.0}, UNDECIDED),
    ("dp_weights_eq_1", REFUTED, {"form": "appendix"}, PROVEN),
    ("dp_weights_eq_1", REFUTED, {"learning_rate": "0.001"}, UNDECIDED),
    ("dp_weights_ratio", REFUTED, {"noise_free": True}, PROVEN),
    ("dp_weights_simple_condition", REFUTED, {"epsilon": "1"}, PROVEN),
    ("dp_weights_full_condition", REFUTED, {"weights": 1}, PROVEN),
    ("dp_weights_simulation", REFUTED, {"neighbours": "DW apart"}, PROVEN),
    ("dp_weights_pointwise", REFUTED, {"noise": "1"}, UNDECIDED),
    ("dp_weights_algorithm_2", REFUTED, {"noise": "10"}, UNDECIDED),
    ("dp_weights_composition", REFUTED, {"scale": 4.0}, UNDECIDED),
    ("dp_weights_thousand_compositions", HOLDS_UNDER, {"scale": 0.01}, REFUTED),
    ("dp_weights_thousand_compositions", HOLDS_UNDER, {"count": 10**6}, REFUTED),
    ("dp_weights_gaussian_rdp", PROVEN, {"scale": 0.5}, REFUTED),
    ("dp_weights_subsampling", REFUTED, {"batch_size": 1000}, UNDECIDED),
    ("dp_weights_final", REFUTED, {"batch_size": 1000}, UNDECIDED),
    ("dp_weights_printed_tests", REFUTED, {"level": "1e-6"}, UNDECIDED),
    ("shuffled_theorem_1", PROVEN, {"first_term": "0"}, REFUTED),
    ("shuffled_theorem_2", REFUTED, {"draws": ("independent",)}, PROVEN),
    ("shuffled_theorem_2", REFUTED, {"draws": ("independent",), "scale": 0.5}, UNDECIDED),
    ("shuffled_eq_35", REFUTED, {"dependent": False}, PROVEN),
    ("shuffled_theorem_5", PROVEN, {"scale": 0.9}, REFUTED),
    ("shuffled_theorem_6", REFUTED, {"batch_clip": "1000"}, UNDECIDED),
    ("shuffled_theorem_6_own_pair", REFUTED, {"scale": 10.0}, UNDECIDED),
    ("shuffled_lemma_2", REFUTED, {"scale": -1.0}, UNDECIDED),
    ("shuffled_lemma_3", PROVEN, {"scale": 2.0}, UNDECIDED),
    ("shuffled_permutations", REFUTED, {"permuted": "entries"}, PROVEN),
    ("shuffled_noise_order", REFUTED, {"shrinks": False, "constants": (25, 100)}, UNDECIDED),
    ("shuffled_algorithm_1", REFUTED, {"batch_clip": "1000"}, UNDECIDED),
    ("shuffled_algorithm_1", REFUTED, {"gap": "1"}, UNDECIDED),
    ("shuffled_accounting", REFUTED, {"batch_clip": "1000"}, UNDECIDED),
    ("shuffled_accounting", REFUTED, {"batch_clip": "1", "noise_multiplier": "0.5"}, REFUTED),
    ("shuffled_noise_first", PROVEN, {"other_deviation": "2"}, REFUTED),
    ("shuffled_eq_45", PROVEN, {"with_delta": False}, REFUTED),
]


def _check(name: str, **parameters: Any) -> Finding:
    found = registry.create("claim_check", name, **parameters)
    assert isinstance(found, Finding)
    return found


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("name", "printed", "altered", "then"),
    [pytest.param(*case, marks=[pytest.mark.slow] if case[0] in LONG else []) for case in CASES],
)
def test_an_altered_claim_gets_another_verdict(
    name: str, printed: VerdictKind, altered: dict[str, Any], then: VerdictKind
) -> None:
    assert _check(name).verdict is printed
    assert _check(name, **altered).verdict is then


# Lemmas: a step that merely suffices never refutes.


def test_a_failing_step_of_a_sufficient_proof_is_undecided() -> None:
    assert lemmas.classical_gaussian(limit=Fraction(9, 5)).verdict is PROVEN
    assert lemmas.classical_gaussian(limit=Fraction(5, 2)).verdict is UNDECIDED


@pytest.mark.parametrize("delta", [0.9, 0.5, 1e-2, 1e-5, 1e-12])
@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 1.8])
def test_the_classical_gaussian_that_was_proven_holds_in_floats(epsilon: float, delta: float) -> None:
    mu = epsilon / math.sqrt(2 * math.log(1.25 / delta))
    assert delta_of_epsilon(mu, epsilon) <= delta


# Distinguishers against SciPy and against the certified bounds.


def test_events_against_scipy() -> None:
    single = claims.subsampled_threshold(ball("0.7"), ball("0.1"), ball("1.5"))
    without = stats.norm.sf(1.5 / 0.7)
    assert float(single.false_positive) == pytest.approx(without, rel=1e-12)
    with_record = 0.9 * without + 0.1 * stats.norm.sf(0.5 / 0.7)
    assert float(single.true_positive) == pytest.approx(with_record, rel=1e-12)
    several = claims.some_step(single, 40)
    assert float(several.true_positive) == pytest.approx(stats.binom.sf(0, 40, with_record), rel=1e-12)
    exact = delta_of_epsilon(1.7, 0.9)
    assert float(claims.gaussian_delta(ball("1.7"), ball("0.9"))) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("least", [5, 20, 26, 30, 60])
def test_counting_bounds_lie_outside_the_exact_binomials(least: int) -> None:
    single = claims.subsampled_threshold(ball("0.7"), ball("0.1"), ball("1.5"))
    counted = claims.many_steps(single, 1000, least)
    high, low = float(single.true_positive), float(single.false_positive)
    assert float(counted.true_positive) <= stats.binom.sf(least - 1, 1000, high)
    assert float(counted.false_positive) >= stats.binom.sf(least - 1, 1000, low)


def test_lower_bounds_stay_below_the_certified_upper_ones() -> None:
    found = _check("rldp_eq_7").counterexample
    run = gaussian_run(noise_multiplier=0.408, sampling_probability=float(rldp_budgets.SAMPLING), steps=3600)
    bounds = epsilon_bounds(run, 1e-5)
    assert float(found["claimed_epsilon"]) < float(found["epsilon_at_least"]) <= bounds.upper


def test_a_renyi_lower_bound_stays_below_the_exact_divergence() -> None:
    # At order 2 a subsampled Gaussian has moment 1 + q^2 (e^(1 / sigma^2) - 1), exactly.
    single = claims.subsampled_threshold(ball("0.4"), ball("0.01"), ball("1.2"))
    exact = math.log1p(1e-4 * math.expm1(1 / 0.16))
    assert 0 < float(rldp_ledger.divergence(single, ball(2))) <= exact


def test_the_raw_median_release_against_a_simulation_of_both_steps() -> None:
    # At q = 16 / 73,271 the record is drawn too rarely, so the simulation starts where it is drawn. Of 4000
    # first batches the share with the record as median is within 0.02 of the exact one but with probability
    # below 1e-4 (standard error 0.005).
    rng = np.random.default_rng(1)
    sigma, norm, small, draws = 0.345, 1e-9, 1e-18, 4000
    test = rldp_controller.raw_median_release(gradient="1e-9", sigma=ball("0.345"))
    big, tiny = rng.binomial(36_635, 16 / 73_271, (2, draws))
    odd_middle = (big == tiny).mean()
    assert float(test.true_positive) / float(rldp_budgets.SAMPLING) == pytest.approx(odd_middle, abs=0.02)

    def inside(clip: float) -> np.ndarray:
        noisy = rng.normal(0, sigma * clip, (draws, 1000))
        noisy[:, 0] += rng.binomial(73_270, 16 / 73_271, draws) * clip
        largest = np.abs(noisy).max(axis=1)
        return (largest >= norm / 1000) & (largest <= norm * 1e5)

    assert inside(norm).mean() > 0.999
    for clip in (1.0, 0.1, small):
        assert not inside(clip).any()
    assert float(test.false_positive) < 1e-100


def test_the_joint_divergence_of_adapters_by_numerical_integration() -> None:
    # Two adapters, one coordinate each, q = 0.3, sigma = 1.2: chi-square of the mixture on a grid.
    q, sigma = 0.3, 1.2
    axis = np.linspace(-12, 14, 1301)
    x, y = np.meshgrid(axis, axis)
    base = np.exp(-(x**2 + y**2) / (2 * sigma**2)) / (2 * np.pi * sigma**2)
    moved = np.exp(-((x - 1) ** 2 + (y - 1) ** 2) / (2 * sigma**2)) / (2 * np.pi * sigma**2)
    moment = (((1 - q) * base + q * moved) ** 2 / base).sum() * (axis[1] - axis[0]) ** 2
    assert moment == pytest.approx(1 + q**2 * math.expm1(2 / sigma**2), rel=1e-6)


# Twins: the checks' ball formulas against the accountants' floats.


@pytest.mark.parametrize("sigma", ["0.408", "1", "3"])
def test_eq_7_in_balls_and_floats(sigma: str) -> None:
    duality, quantile = rldp_ledger.eq_7(ball(sigma), ball("0.001"), 5000, ball("0.00001"))
    mu = printed_rldp.eq_7_mu(noise_multiplier=float(sigma), sampling_probability=0.001, steps=5000)
    assert float(duality) == pytest.approx(printed_rldp.eq_7_epsilon(mu, 1e-5), rel=1e-9)
    assert float(quantile) >= printed_rldp.eq_7_epsilon(mu, 1e-5, reading="quantile")


@pytest.mark.parametrize("power", [1, 2])
def test_theorem_7_10_in_balls_and_floats(power: int) -> None:
    found = rldp_ledger.rho_1(ball("2.5"), ball("0.8"), ball("0.05"), power)
    twin = printed_rldp.subsampled_rho(2.5, noise_multiplier=0.8, sampling_probability=0.05, power=power)
    assert float(found) == pytest.approx(twin, rel=1e-12)


def test_dp_weights_formulas_in_balls_and_floats() -> None:
    rooted, added = dp_weights.noise_scales(Fraction(3, 10), ball(2), Fraction(1, 10**6))
    for form, value in zip(printed_dp_weights.FORMS, (rooted, added), strict=True):
        twin = printed_dp_weights.noise_scale(epsilon=2, delta=1e-6, weight_sensitivity=0.3, form=form)
        assert float(value) == pytest.approx(twin, rel=1e-12)
    found = dp_weights_composition.subsampled_rdp(ball(5), ball(1), ball("0.01"))
    twin = subsampled_renyi(5, ratio=1, sampling_probability=0.01)
    assert float(found) == pytest.approx(twin, rel=1e-12)


@pytest.mark.parametrize("main_text", [True, False])
@pytest.mark.parametrize("dimension", [2, 1000, 85_800_000])
def test_eq_25_in_balls_and_floats(dimension: int, main_text: bool) -> None:
    found = shuffled_dp_sgd.eq_25(ball("0.2"), ball("0.3"), dimension, ball(3), main_text=main_text)
    twin = printed_shuffled.theorem_6_delta(
        epsilon=0.2,
        noise_multiplier=0.3,
        dimension=dimension,
        batch_clip=3.0,
        zeta_2="main text" if main_text else "appendix",
    )
    assert max(0.0, float(found)) == pytest.approx(twin, rel=1e-9)


def test_h_at_the_lemmas_own_pair_is_eq_83() -> None:
    # 1 / sqrt(2) to 40 digits: the pair of Eqs. 43 and 44 for d = 2 and c' = 1/2.
    root = Fraction("0.7071067811865475244008443621048490392848")
    f, g = (root / 2, -root / 2), (root, -root)
    own = shuffled_dp_sgd.general_h(ball("0.5"), ball(1), f, g)
    claimed = shuffled_dp_sgd.eq_25(ball("0.5"), ball(1), 2, ball("0.5"), main_text=False)
    assert float(own) == pytest.approx(float(claimed), rel=1e-12)


# The mechanisms behind the counterexamples.


def test_the_pair_of_trainings_against_plain_float_sgd() -> None:
    training = dp_weights.EXPERIMENTS

    def float_sgd(first: float) -> float:
        weight = 0.0
        records = ["first"] + ["other"] * (training.records - 1)
        for _ in range(training.epochs):
            for start in range(0, training.records, training.batch_size):
                batch = records[start : start + training.batch_size]
                slope = min(1.0, max(-1.0, weight / (5e-5 / training.batch_size)))
                gradients = [first if record == "first" else -slope for record in batch]
                clipped = [g * min(1.0, 1.0 / abs(g)) if g else 0.0 for g in gradients]
                weight -= 5e-5 * sum(clipped) / training.batch_size
        return weight

    for first in (1, 0, -1):
        exact = dp_weights.final_weight(first, training, divisor=training.batch_size)
        assert float(exact) == pytest.approx(float_sgd(first), rel=1e-9)


def test_records_that_ignore_the_weights_move_them_by_the_direct_share_only() -> None:
    training = dp_weights.Training(epochs=3, records=1, batch_size=1, learning_rate=Fraction(1, 10))
    assert dp_weights.final_weight(1, training, divisor=1) == -Fraction(3, 10)
    assert training.claimed_sensitivity == Fraction(3, 10)


def test_the_sum_of_a_vector_survives_shuffling() -> None:
    # 4000 draws a side; a false alarm of the two tests has probability 2e-6.
    rng = np.random.default_rng(2)
    d, sigma, n = 50, 0.5, 4000
    across = rng.normal(size=d)
    across -= across.mean()
    across *= math.sqrt(3) / 2 / np.linalg.norm(across)
    query = 1 / (2 * math.sqrt(d)) + across
    assert np.linalg.norm(query) == pytest.approx(1)
    assert len(set(query)) == d
    for side in (-0.5, 0.5):
        released = side * query + rng.normal(0, sigma, (n, d))
        sums = rng.permuted(released, axis=1).sum(axis=1) / math.sqrt(d)
        assert stats.kstest(sums, stats.norm(side / 2, sigma).cdf).pvalue > 1e-6


def test_controlled_noise_starts_at_the_base_and_follows_eqs_13_to_15() -> None:
    schedule = rldp_ledger.controlled(0.4, -0.1, 3)
    assert [count for _, count in schedule] == [112, 112, 112, 3600 - 336]
    noises = [sigma for sigma, _ in schedule]
    assert noises[0] == 0.4
    # A fifth of the asked change reaches log(sigma).
    assert all(math.log(later / sooner) == pytest.approx(-0.02) for sooner, later in pairwise(noises))
    clamped = rldp_ledger.controlled(0.4, -5.0, 30)
    assert 0.2 <= min(sigma for sigma, _ in clamped) < 0.21


def test_a_dial_beyond_the_ledgers_step_size_is_out_of_reach() -> None:
    base = rldp_budgets.calibrated(8.0)
    for dial, reachable in ((0.0, True), (-0.02, True), (-0.09, False)):
        schedule = rldp_ledger.controlled(base, dial, 3)
        assert rldp_ledger.within_reach(schedule, dial, 3, 8.0) is reachable


def test_findings_are_the_same_at_any_precision_of_the_caller() -> None:
    with ctx.workprec(53):
        low = _check("shuffled_theorem_6").to_json()
    assert low == _check("shuffled_theorem_6").to_json()


def test_own_pair_is_a_pair_of_permuted_queries() -> None:
    finding = _check("shuffled_theorem_6_own_pair")
    rng = np.random.default_rng(3)
    draws = rng.choice([-2.0, 2.0], 200_000) + rng.normal(0, 3, 200_000)
    density = {
        mean: (stats.norm.pdf(draws, mean, 3) + stats.norm.pdf(draws, -mean, 3)) / 2 for mean in (1.0, 2.0)
    }
    estimate = np.maximum(0, 1 - math.exp(0.1) * density[1.0] / density[2.0]).mean()
    # Hoeffding: 200,000 draws of a number in [0, 1] are within 0.005 but with probability 1e-4.
    assert estimate == pytest.approx(finding.counterexample["delta_at_least"], abs=0.005)


def test_hidden_units_are_matched_with_their_weights_before() -> None:
    # 200 units of 50 weights, steps of norm at most 1 plus noise 1 on each; the union bound is below 1e-20.
    rng = np.random.default_rng(4)
    before = rng.normal(0, 30, (200, 50))
    gaps = np.linalg.norm(before[:, None] - before[None, :], axis=2)
    assert np.min(gaps + 1e9 * np.eye(200)) > 100
    step = np.zeros((200, 50))
    step[0, 0] = 1.0
    order = rng.permutation(200)
    after = (before - step + rng.normal(size=(200, 50)))[order]
    nearest = np.linalg.norm(after[:, None] - before[None, :], axis=2).argmin(axis=1)
    assert (nearest == order).all()
