"""Filters: budgets against closed forms, integrals of divergences, and an adversary that chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.stats import laplace, norm

from workbench.accounting import (
    Composed,
    CorrelatedGaussian,
    Event,
    Gaussian,
    GaussianDP,
    GaussianFilter,
    GaussianOdometer,
    Laplace,
    PrivateStep,
    RenyiDP,
    RenyiFilter,
    SubsampledGaussian,
    to_dp_event,
    tree_encoder,
)
from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.gaussian import delta_of_epsilon, epsilon_of_delta
from workbench.core.errors import InputError, UnsupportedError
from workbench.interfaces import Adjacency


def renyi(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """Of densities on one grid, which are scaled to sum to 1; the larger of both orders."""
    p, q = np.log(p / p.sum()), np.log(q / q.sum())
    return max(
        math.log(float(np.exp(alpha * a + (1 - alpha) * b).sum())) / (alpha - 1) for a, b in ((p, q), (q, p))
    )


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 8.0])
def test_costs_are_divergences(alpha: float, adjacency: Adjacency) -> None:
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    budget = RenyiFilter(alpha=alpha, budget=10.0, adjacency=adjacency)
    x = np.linspace(-40, 40, 800_001)
    assert float(budget.cost(Gaussian(noise_multiplier=1.5))) == pytest.approx(
        renyi(norm.pdf(x, moved, 1.5), norm.pdf(x, 0, 1.5), alpha), rel=1e-6
    )
    assert float(budget.cost(Laplace(scale=1.2))) == pytest.approx(
        renyi(laplace.pdf(x, moved, 1.2), laplace.pdf(x, 0, 1.2), alpha), rel=1e-4
    )
    share = math.exp(0.7) / (1 + math.exp(0.7))
    both = np.array([share, 1 - share])
    assert float(budget.cost(PrivateStep(epsilon=0.7))) == pytest.approx(renyi(both, both[::-1], alpha))
    if alpha != 1.5 and adjacency is Adjacency.ADD_REMOVE:
        sampled = SubsampledGaussian(noise_multiplier=1.5, sampling_probability=0.3)
        mixed = 0.7 * norm.pdf(x, 0, 1.5) + 0.3 * norm.pdf(x, 1, 1.5)
        assert float(budget.cost(sampled)) == pytest.approx(
            renyi(mixed, norm.pdf(x, 0, 1.5), alpha), rel=1e-6
        )
    # Costs add up, and count.
    twice = Composed(events=((Gaussian(noise_multiplier=1.5), 2), (Laplace(scale=1.2), 1)))
    assert budget.cost(twice) == 2 * budget.cost(Gaussian(noise_multiplier=1.5)) + budget.cost(
        Laplace(scale=1.2)
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("mu", [0.1, 1.0, 2.5])
def test_a_gaussian_budget_is_the_gaussian_of_its_mu(mu: float, adjacency: Adjacency) -> None:
    budget = GaussianFilter(mu=mu, adjacency=adjacency)
    assert budget.guarantee() == GaussianDP(mu=mu)
    found = epsilon_bounds(budget.event(), 1e-5, adjacency=adjacency)
    assert found.upper >= epsilon_of_delta(mu, 1e-5) * (1 - 1e-12)
    assert found.upper == pytest.approx(epsilon_of_delta(mu, 1e-5), rel=1e-9)
    assert budget.spend(budget.event()) or budget.cost(budget.event()) > budget.mu**2
    tree = CorrelatedGaussian(noise_multiplier=50.0, encoder=tree_encoder(steps=7))
    moved = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    assert float(budget.cost(tree)) == pytest.approx(3 * (moved / 50) ** 2, rel=1e-8)


def test_an_adversary_that_chooses_by_what_it_sees_stays_within() -> None:
    """It spends little while the loss is low; the power of its best threshold stays below the budget's."""
    generator, trials = np.random.default_rng(9), 40_000
    losses = []
    for present in (True, False):
        loss, left = np.zeros(trials), np.full(trials, 1.0)
        for _ in range(12):
            squared = np.minimum(np.where(loss > 0.2, 0.3, 0.05), left)
            y = generator.normal(size=trials) + np.sqrt(squared) * present
            loss, left = loss + np.sqrt(squared) * y - squared / 2, left - squared
        losses.append(loss)
    for level in (0.3, 0.8):
        threshold = losses[0] > level
        found = threshold.mean() - math.exp(level) * (losses[1] > level).mean()
        # Five deviations of both shares.
        slack = 5 * (1 + math.exp(level)) / (2 * math.sqrt(trials))
        assert found <= delta_of_epsilon(1.0, level) + slack


@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_an_odometer_holds_at_all_times_against_an_adversary_and_a_fixed_bound_does_not(delta: float) -> None:
    """The adversary spends more while the loss is high, and its whole run counts."""
    generator, trials = np.random.default_rng(10), 40_000
    steps = np.array([0.02, 0.3])
    reached: dict[float, float] = {}

    def epsilon_at(clock: float) -> float:
        key = round(clock, 9)
        if key not in reached:
            odometer = GaussianOdometer(delta=delta)
            if clock:
                odometer.spend(Gaussian(noise_multiplier=clock**-0.5))
            reached[key] = odometer.epsilon()
        return reached[key]

    loss, clock = np.zeros(trials), np.zeros(trials)
    beyond, beyond_fixed = np.zeros(trials, bool), np.zeros(trials, bool)
    for _ in range(40):
        squared = steps[(loss > 0.5).astype(int)]
        drawn = generator.normal(size=trials) + np.sqrt(squared)
        loss, clock = loss + np.sqrt(squared) * drawn - squared / 2, clock + squared
        beyond |= loss > np.array([epsilon_at(value) for value in clock])
        beyond_fixed |= loss > clock / 2 + np.sqrt(clock) * norm.isf(delta)
    slack = 5 * math.sqrt(delta * (1 - delta) / trials)
    assert beyond.mean() <= delta + slack
    assert beyond.mean() > delta / 20
    assert beyond_fixed.mean() > delta + slack


def test_an_odometer_is_near_what_a_budget_would_have_kept() -> None:
    for mu in (0.5, 1.0, 2.0):
        odometer = GaussianOdometer(delta=1e-5, narrowest_at=mu)
        assert odometer.epsilon() == 0.0
        found = [odometer.spend(Gaussian(noise_multiplier=4 / mu)) for _ in range(16)]
        assert found == sorted(found)
        fixed = mu**2 / 2 + mu * float(norm.isf(1e-5))
        assert fixed < found[-1] < 1.3 * fixed
        elsewhere = GaussianOdometer(delta=1e-5, narrowest_at=100 * mu)
        assert elsewhere.spend(Gaussian(noise_multiplier=1 / mu)) > found[-1]
    moved = GaussianOdometer(delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert moved.spend(Gaussian(noise_multiplier=2.0)) == GaussianOdometer(delta=1e-5).spend(
        Gaussian(noise_multiplier=1.0)
    )


@pytest.mark.parametrize(
    "given", [{"delta": 0.0}, {"delta": math.nan}, {"delta": 0.1, "narrowest_at": 0.0}], ids=str
)
def test_an_odometers_parameters_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InputError, match=list(given)[-1]):
        GaussianOdometer(**given)
    with pytest.raises(UnsupportedError, match="only Gaussian releases have a mu, not Laplace"):
        GaussianOdometer(delta=0.1).spend(Laplace(scale=1.0))


def test_steps_are_admitted_until_the_budget_is_spent() -> None:
    budget = GaussianFilter(mu=1.0)
    assert [budget.spend(Gaussian(noise_multiplier=2.0)) for _ in range(5)] == [True] * 4 + [False]
    assert budget.spent == 1
    assert not budget.admits(Gaussian(noise_multiplier=1e6))
    mixed = RenyiFilter(alpha=8.0, budget=0.5)
    steps: list[Event] = [Laplace(scale=10.0), Gaussian(noise_multiplier=10.0), PrivateStep(epsilon=0.1)]
    taken = [step for step in steps * 40 if mixed.spend(step)]
    assert 0.4 < float(mixed.spent) <= 0.5
    assert len(taken) < 120
    assert float(mixed.spent) == pytest.approx(sum(float(mixed.cost(step)) for step in taken))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_a_renyi_budget_is_that_of_another_library_at_its_order(delta: float) -> None:
    step = SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.01)
    run = Composed(events=((step, 500),))
    cost = RenyiFilter(alpha=12.0, budget=1.0).cost(run)
    budget = RenyiFilter(alpha=12.0, budget=float(cost) * (1 + 1e-12))
    assert sum(budget.spend(step) for _ in range(510)) == 500
    peer = RdpAccountant(orders=[12]).compose(to_dp_event(run)).get_epsilon(delta)
    assert budget.epsilon(delta) == pytest.approx(peer, rel=1e-6)
    assert budget.epsilon(delta) >= epsilon_bounds(run, delta).lower
    assert budget.guarantee() == RenyiDP(alpha=12.0, epsilon=budget.budget)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianFilter(mu=0.0), "mu must be"),
        (lambda: RenyiFilter(alpha=1.0, budget=1.0), "alpha must be"),
        (lambda: RenyiFilter(alpha=2.0, budget=math.inf), "budget must be"),
        (lambda: RenyiFilter(alpha=2.0, budget=1.0).epsilon(0.0), "delta must be"),
        (lambda: GaussianFilter(mu=1.0).admits("Gaussian"), "event must be an Event"),  # type: ignore[arg-type]
        (lambda: GaussianFilter(mu=1.0, adjacency="near"), "adjacency must be"),  # type: ignore[arg-type]
    ],
)
def test_budgets_out_of_range_are_named(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("budget", "event", "message"),
    [
        (GaussianFilter(mu=1.0), Laplace(scale=1.0), "only Gaussian releases have a mu, not Laplace"),
        (RenyiFilter(alpha=2.0, budget=1.0), PrivateStep(epsilon=1.0, delta=0.1), "has no cost for any"),
        (
            RenyiFilter(alpha=2.5, budget=1.0),
            SubsampledGaussian(noise_multiplier=1.0, sampling_probability=0.1),
            "at whole orders up to 1000 only, and not under",
        ),
    ],
)
def test_events_without_a_cost_are_refused(
    budget: GaussianFilter | RenyiFilter, event: Event, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        budget.spend(event)
    assert budget.spent == 0
