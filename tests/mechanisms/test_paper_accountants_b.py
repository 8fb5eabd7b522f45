"""RLDP's, DP-Weights' and Shuffled DPSGD's accountants: as printed, and what they answer or refuse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import dp_weights_renyi

from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import Composed, Gaussian, Laplace, SubsampledGaussian, gaussian_run
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta
from workbench.checks.accountants import Accountant, DeltaAccountant, NoiseCalibrator
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency
from workbench.mechanisms.accountants import dp_weights, rldp, shuffled_dp_sgd

ADD_REMOVE = Adjacency.ADD_REMOVE
NAMES = (
    "rldp_eq_7",
    "rldp_gdp",
    "rldp_theorem_7_10",
    "dp_weights_eq_1",
    "dp_weights_appendix",
    "shuffled_dp_sgd",
    "shuffled_dp_sgd_unshuffled",
)


@pytest.mark.parametrize("name", NAMES)
def test_registered_accountants_satisfy_the_protocol_and_refuse_what_they_do_not_know(name: str) -> None:
    accountant = registry.create("accountant", name)
    assert isinstance(accountant, Accountant)
    with pytest.raises(UnsupportedError):
        accountant.epsilon(Laplace(scale=1.0), delta=1e-5, adjacency=ADD_REMOVE)
    with pytest.raises(InputError, match="delta must be in"):
        accountant.epsilon(Gaussian(noise_multiplier=1.0), delta=1.5, adjacency=ADD_REMOVE)


@pytest.mark.parametrize("name", NAMES)
@given(noise=st.floats(0.05, 50), count=st.integers(1, 5000), delta=st.floats(1e-12, 1e-2))
@settings(max_examples=25, deadline=None)
def test_epsilon_is_a_number_at_least_zero(name: str, noise: float, count: int, delta: float) -> None:
    event = Composed(events=((Gaussian(noise_multiplier=noise), count),))
    value = registry.create("accountant", name).epsilon(event, delta=delta, adjacency=ADD_REMOVE)
    assert value >= 0


def test_eq_7_by_hand() -> None:
    mu = rldp.eq_7_mu(noise_multiplier=0.5, sampling_probability=0.01, steps=400)
    assert mu == pytest.approx(0.2 * (math.e**2 - 1), rel=1e-14)
    other = rldp.eq_7_mu(noise_multiplier=0.5, sampling_probability=0.01, steps=400, mu="central limit")
    assert other == pytest.approx(0.2 * math.sqrt(math.e**4 - 1), rel=1e-14)
    assert rldp.eq_7_epsilon(mu, 1e-5) == epsilon_of_delta(mu, 1e-5)
    # The normal quantile of 1 - 1e-5 is 4.2648907939 (tables).
    quantile = rldp.eq_7_epsilon(mu, 1e-5, reading="quantile")
    assert quantile == pytest.approx(mu * mu / 2 + 4.2648907939 * mu, rel=1e-9)


@given(mu=st.floats(0.01, 20), delta=st.floats(1e-10, 0.1))
@settings(deadline=None)
def test_the_quantile_reading_is_never_the_smaller(mu: float, delta: float) -> None:
    assert rldp.eq_7_epsilon(mu, delta, reading="quantile") >= rldp.eq_7_epsilon(mu, delta) - 1e-9


def test_the_printed_mu_is_below_the_central_limit_for_small_noise_only() -> None:
    def ratio(sigma: float) -> float:
        settings = {"noise_multiplier": sigma, "sampling_probability": 0.01, "steps": 100}
        return rldp.eq_7_mu(**settings) / rldp.eq_7_mu(**settings, mu="central limit")

    assert ratio(0.54) < 1 < ratio(0.56)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.0, 0.01, 1000), (0.4, 0.01, 10**5), (5.0, 1.0, 10)])
def test_theorem_7_10_against_a_plain_grid(power: int, sigma: float, q: float, steps: int) -> None:
    def at(alpha: float) -> float:
        grown = (alpha - 1) * alpha / (2 * sigma**2)
        rho = math.log(1 - q**power + q**power * math.exp(grown)) / (alpha - 1)
        return steps * rho + math.log(1e5) / (alpha - 1)

    orders = [1 + 10 ** (k / 400) for k in range(-1200, 800)]
    naive = min(at(alpha) for alpha in orders if (alpha - 1) * alpha / (2 * sigma**2) < 600)
    found = rldp.theorem_7_10_epsilon([(sigma, q, steps)], 1e-5, power=power)
    assert found <= naive * (1 + 1e-12)
    assert found == pytest.approx(naive, rel=1e-4)


def test_theorem_7_10_composes_different_noise_and_eq_7_refuses_it() -> None:
    parts = ((gaussian_run(noise_multiplier=1.0, sampling_probability=0.1, steps=10), 1),)
    mixed = Composed(
        events=(*parts, (gaussian_run(noise_multiplier=2.0, sampling_probability=0.1, steps=10), 1))
    )
    theorem = rldp.RldpTheorem710()
    single = theorem.epsilon(parts[0][0], delta=1e-5, adjacency=ADD_REMOVE)
    assert theorem.epsilon(mixed, delta=1e-5, adjacency=ADD_REMOVE) > single
    with pytest.raises(UnsupportedError, match="constant noise"):
        rldp.RldpEq7().epsilon(mixed, delta=1e-5, adjacency=ADD_REMOVE)


def test_the_central_limit_ledger_is_what_opacus_computes() -> None:
    run = gaussian_run(noise_multiplier=0.9, sampling_probability=0.02, steps=300)
    ours = registry.create("accountant", "rldp_gdp").epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    theirs = registry.create("accountant", "opacus_gdp").epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_rldp_options_and_adjacencies() -> None:
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=100)
    printed, scaled = rldp.RldpEq7(), rldp.RldpEq7(noise_unit="sensitivity")
    both = [printed.epsilon(run, delta=1e-5, adjacency=a) for a in (ADD_REMOVE, Adjacency.REPLACE_ONE)]
    assert both[0] == both[1]
    assert scaled.epsilon(run, delta=1e-5, adjacency=ADD_REMOVE) == both[0]
    half = gaussian_run(noise_multiplier=0.5, sampling_probability=0.01, steps=100)
    replaced = scaled.epsilon(run, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert replaced == printed.epsilon(half, delta=1e-5, adjacency=ADD_REMOVE) > both[0]
    with pytest.raises(UnsupportedError):
        printed.epsilon(run, delta=1e-5, adjacency=Adjacency.ZERO_OUT)
    for options in ({"reading": "x"}, {"mu": "x"}, {"noise_unit": "x"}):
        with pytest.raises(InputError, match="must be one of"):
            rldp.RldpEq7(**options)
    with pytest.raises(InputError, match="power must be 1 or 2"):
        rldp.RldpTheorem710(power=3).epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)


@pytest.mark.parametrize("name", ["rldp_eq_7", "rldp_gdp", "rldp_theorem_7_10"])
def test_rldp_calibration_inverts_and_lands_on_its_own_private_side(name: str) -> None:
    accountant = registry.create("accountant", name)
    assert isinstance(accountant, NoiseCalibrator)
    sigma = accountant.noise_multiplier(
        target_epsilon=2.0, delta=1e-5, sampling_probability=0.01, steps=500, adjacency=ADD_REMOVE
    )
    found = [
        accountant.epsilon(
            gaussian_run(noise_multiplier=noise, sampling_probability=0.01, steps=500),
            delta=1e-5,
            adjacency=ADD_REMOVE,
        )
        for noise in (sigma, sigma * (1 - 1e-6))
    ]
    assert found[0] <= 2.0 < found[1]


def test_eq_7_answers_delta_by_duality() -> None:
    accountant = rldp.RldpEq7()
    assert isinstance(accountant, DeltaAccountant)
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=100)
    epsilon = accountant.epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    assert accountant.delta(run, epsilon=epsilon, adjacency=ADD_REMOVE) == pytest.approx(1e-5, rel=1e-6)
    with pytest.raises(UnsupportedError):
        rldp.RldpEq7(reading="quantile").delta(run, epsilon=1.0, adjacency=ADD_REMOVE)


def test_the_ledger_of_line_14_forgets_the_noise_of_earlier_steps() -> None:
    spent = [
        rldp.eq_7_epsilon(rldp.eq_7_mu(noise_multiplier=sigma, sampling_probability=0.01, steps=steps), 1e-5)
        for sigma, steps in ((0.7, 500), (1.4, 501))
    ]
    assert spent[1] < spent[0]


def test_dp_weights_prints_the_papers_composition_example() -> None:
    # Section 4.2, "Composed epsilon" and "Composed delta".
    assert dp_weights.compose(epsilon=1, delta=1e-8, count=1000) == (191.94103648752323, 1.001e-05)


def test_dp_weights_two_forms_by_hand() -> None:
    change = dp_weights.sensitivity(
        epochs=10, learning_rate=5e-5, l2_clip_norm=1.0, records=1000, batch_size=10
    )
    assert change == pytest.approx(5e-8, rel=1e-12)
    tail = 2 * math.log(1.25e6)
    rooted = dp_weights.noise_scale(epsilon=2, delta=1e-6, weight_sensitivity=0.3, form="eq. 1")
    added = dp_weights.noise_scale(epsilon=2, delta=1e-6, weight_sensitivity=0.3)
    assert rooted == pytest.approx(math.sqrt(tail * 0.15 + 0.009760 / 2**0.078008), rel=1e-14)
    assert added == pytest.approx(math.sqrt(tail) * 0.15 + 0.009760 / 2**0.078008, rel=1e-14)


def test_dp_weights_forms_differ_tenfold_at_the_experiments() -> None:
    rooted, added = (
        dp_weights.noise_scale(epsilon=1, delta=1e-6, weight_sensitivity=5e-8, form=form)
        for form in dp_weights.FORMS
    )
    assert rooted / added == pytest.approx(10.1, rel=0.01)


@given(
    epsilon=st.floats(1e-6, 1e6),
    delta=st.floats(1e-12, 0.5),
    change=st.floats(1e-9, 1e3),
    form=st.sampled_from(dp_weights.FORMS),
)
@settings(deadline=None)
def test_dp_weights_noise_scale_inverts(epsilon: float, delta: float, change: float, form: str) -> None:
    noise = dp_weights.noise_scale(epsilon=epsilon, delta=delta, weight_sensitivity=change, form=form)
    found = dp_weights.epsilon_of_noise_scale(noise=noise, delta=delta, weight_sensitivity=change, form=form)
    # The scale falls as slowly as epsilon^-0.039, which multiplies rounding errors by 26.
    assert found == pytest.approx(epsilon, rel=1e-9)


def test_dp_weights_answers_its_own_event_and_a_repeated_release() -> None:
    accountant = dp_weights.DPWeights()
    noise = dp_weights.noise_scale(epsilon=1.5, delta=1e-6, weight_sensitivity=1e-4)
    own = dp_weights.NoisedWeights(
        epochs=10,
        learning_rate=1e-2,
        l2_clip_norm=1.0,
        records=1000,
        batch_size=1,
        standard_deviation=noise,
    )
    assert own.weight_sensitivity == pytest.approx(1e-4)
    assert accountant.epsilon(own, delta=1e-6, adjacency=ADD_REMOVE) == pytest.approx(1.5)
    thrice = Composed(events=((own, 3),))
    single = accountant.epsilon(own, delta=1e-6, adjacency=ADD_REMOVE)
    whole = accountant.epsilon(thrice, delta=4e-6, adjacency=ADD_REMOVE)
    assert whole == pytest.approx(single * math.sqrt(6 * math.log(1e6)))
    with pytest.raises(UnsupportedError):
        accountant.epsilon(own, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(InputError, match="standard_deviation must be finite and > 0"):
        dp_weights.NoisedWeights(
            epochs=1,
            learning_rate=1.0,
            l2_clip_norm=1.0,
            records=1,
            batch_size=1,
            standard_deviation=0.0,
        )


@pytest.mark.parametrize("variant", dp_weights_renyi.VARIANTS)
def test_dp_weights_final_bound_against_a_plain_grid(variant: str) -> None:
    def at(alpha: float) -> float:
        grown = math.expm1((alpha - 1) * alpha / 2)
        spent = 10 * math.log(1 + 1e-4 * alpha * (alpha - 1) / 2 * grown) / (alpha - 1)
        return spent * (alpha / 2 if variant == "product" else 1) + math.log(1e6) / (alpha - 1)

    naive = min(at(1 + k / 1000) for k in range(10, 20_000))
    found = dp_weights_renyi.final_epsilon(
        ratio=1, epochs=10, sampling_probability=0.01, delta=1e-6, variant=variant
    )
    assert found == pytest.approx(naive, rel=1e-5)


def test_theorem_6_in_one_dimension_and_at_a_huge_clip_is_the_gaussian() -> None:
    for epsilon in (0.0, 0.5, 3.0):
        exact = delta_of_epsilon(0.8, epsilon)
        alone = shuffled_dp_sgd.theorem_6_delta(epsilon=epsilon, noise_multiplier=1.25, dimension=1)
        loose = shuffled_dp_sgd.theorem_6_delta(
            epsilon=epsilon, noise_multiplier=1.25, dimension=1000, batch_clip=1e3
        )
        assert alone == pytest.approx(exact, rel=1e-9)
        assert loose == pytest.approx(exact, rel=1e-9)


def test_theorem_6_by_hand_in_two_dimensions() -> None:
    # sigma = c = c' = 1, epsilon = 0.5, Eqs. 25 and 83 evaluated once in 30 digits.
    found = [
        shuffled_dp_sgd.theorem_6_delta(epsilon=0.5, noise_multiplier=1.0, dimension=2, zeta_2=zeta_2)
        for zeta_2 in shuffled_dp_sgd.ZETA_2
    ]
    assert found == pytest.approx([_eq_25_in_two_dimensions(far) for far in (4.0, 2.0)], rel=1e-12)


def _eq_25_in_two_dimensions(exponent_of_zeta_2: float) -> float:
    """Eq. 25 written out for d = 2 and c = c' = sigma = 1."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    def spread(x: float) -> float:
        ones, squares = 1 + math.exp(-x), 1 + math.exp(-2 * x)
        return math.sqrt(math.log(squares / ones**2 * (math.e - 1) + 1))

    one, two = spread(2.0), spread(4.0)
    zeta_1 = -math.log(1 + math.exp(-2.0))
    zeta_2 = -math.log(1 + math.exp(-exponent_of_zeta_2)) - 1
    return phi(one / 2 + (zeta_1 - 0.5) / one) - math.exp(0.5) * phi(two / 2 + (zeta_2 - 0.5) / two)


def test_theorems_1_and_2_by_hand() -> None:
    found = shuffled_dp_sgd.theorem_1_epsilon([(0.1, 100)], 1e-6)
    assert found == pytest.approx(0.5 + math.sqrt(2 * math.log(1e6)), rel=1e-12)
    assert shuffled_dp_sgd.theorem_1_epsilon([(0.1, 3)], 1e-6) == pytest.approx(0.3)
    assert shuffled_dp_sgd.theorem_2(math.log(3), 1e-4, 0.5) == pytest.approx((math.log(2), 5e-5))


@pytest.mark.parametrize(("noise", "q", "steps"), [(1.0, 0.01, 100), (4.0, 1.0, 10), (0.7, 0.1, 50)])
def test_the_unshuffled_accounting_is_an_upper_bound(noise: float, q: float, steps: int) -> None:
    run = gaussian_run(noise_multiplier=noise, sampling_probability=q, steps=steps)
    claimed = registry.create("accountant", "shuffled_dp_sgd_unshuffled").epsilon(
        run, delta=1e-5, adjacency=ADD_REMOVE
    )
    assert claimed >= epsilon_bounds(run, 1e-5).upper


def test_theorem_6_at_the_papers_dimension_is_below_the_certified_bound() -> None:
    run = gaussian_run(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
    claimed = registry.create("accountant", "shuffled_dp_sgd").epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    assert claimed < 0.01 < epsilon_bounds(run, 1e-5).lower


def test_a_shuffled_run_is_its_own_event() -> None:
    accountant = shuffled_dp_sgd.ShuffledDPSGD(dimension=1)
    run = shuffled_dp_sgd.ShuffledGaussianRun(
        noise_multiplier=2.0, sampling_probability=0.1, steps=20, dimension=50, batch_clip=2.0
    )
    step = Composed(events=((SubsampledGaussian(noise_multiplier=2.0, sampling_probability=0.1), 20),))
    same = shuffled_dp_sgd.ShuffledDPSGD(dimension=50, batch_clip=2.0)
    found = accountant.epsilon(run, delta=1e-5, adjacency=ADD_REMOVE)
    assert found == same.epsilon(step, delta=1e-5, adjacency=Adjacency.ZERO_OUT)
    assert found < accountant.epsilon(step, delta=1e-5, adjacency=ADD_REMOVE)
    with pytest.raises(UnsupportedError):
        accountant.epsilon(run, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(InputError, match="dimension must be >= 1"):
        shuffled_dp_sgd.ShuffledDPSGD(dimension=0)
