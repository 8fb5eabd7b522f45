"""RLDP's further entries of the ledger: their formulas against simulations and slower twins."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from flint import ctx
from scipy import stats

from workbench.accounting.certified import epsilon_bounds
from workbench.accounting.events import ShuffledBatches
from workbench.attacks.claim_checks.rldp import budgets, controller
from workbench.attacks.claim_checks.shared.claims import ball
from workbench.checks.ledger import load_ledger, select_claims
from workbench.core import registry
from workbench.interfaces import Adjacency, VerdictKind
from workbench.mechanisms.rldp import smoothed_log_noise


@pytest.fixture(autouse=True)
def _precise() -> Iterator[None]:
    with ctx.workprec(192):
        yield


def test_part_of_an_epoch_against_a_simulation_of_its_batches() -> None:
    """20,000 epochs of 5 batches, of which 3 are run: each bound holds but for five deviations (3e-7)."""
    rng, trials, batches, steps, sigma, threshold = np.random.default_rng(0), 20_000, 5, 3, 0.5, 1.9
    place = rng.integers(batches, size=trials)
    noise = sigma * rng.standard_normal((trials, batches))
    test = budgets.part_of_an_epoch(ball(sigma), steps=steps, batches=batches, threshold=ball(threshold))
    shares = []
    for height in (2.0, 1.0):
        sums = noise.copy()
        sums[np.arange(trials), place] += height
        shares.append(float((sums[:, :steps].max(axis=1) > threshold).mean()))
    slack = 5 * 0.5 / math.sqrt(trials)
    assert shares[0] >= float(test.true_positive) - slack
    assert shares[1] <= float(test.false_positive) + slack
    assert float(test.true_positive) == pytest.approx(3 / 5 * stats.norm.sf(-0.1 / 0.5), abs=1e-9)


def test_a_part_of_an_epoch_shows_no_more_than_the_whole() -> None:
    whole = epsilon_bounds(
        ShuffledBatches(noise_multiplier=0.5, batches=100), 1e-5, adjacency=Adjacency.ZERO_OUT
    )
    part = budgets.best_part(0.5, steps=79, batches=100)
    assert 0 < float(part.epsilon(ball("1e-5")).lower()) <= whole.upper


def test_the_policies_turn_sigma_as_the_mechanism_does() -> None:
    """Eqs. 11 to 14 in two programs; line 14 is exact here and a central limit there, so it is passed on."""
    found = controller.play(budget=8.0, interval=600, lowering=2, beyond=False, dial=0.5)
    level = first = math.log(found.base)
    for number, (told, (sigma, _)) in enumerate(zip(found.reported[:-1], found.schedule[1:], strict=True)):
        push = math.atanh(-0.5 if number < 2 else 0.5)
        level = smoothed_log_noise(level, first, push, min(told / 8.0, 1.0))
        assert sigma == pytest.approx(math.exp(level), rel=1e-12)
    assert sum(count for _, count in found.schedule) == 3600


def test_noise_that_is_rounded_up_spends_no_more() -> None:
    sigmas = [0.3 + 0.001 * index for index in range(5)]
    rounded = [controller._rounded_up(sigma) for sigma in sigmas]
    assert all(sigma <= other <= 1.0101 * sigma for sigma, other in zip(sigmas, rounded, strict=True))


def test_what_is_rounded_up_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upper end for more noise than was used is none: the same policy is then undecided."""
    sigmas = [0.3 + 0.001 * index for index in range(41)]
    steps = tuple((sigma, 10) for sigma in sigmas)
    assert controller.Trajectory(base=0.3, schedule=steps, reported=()).is_rounded
    assert not controller.Trajectory(base=0.3, schedule=steps[:40] * 2, reported=()).is_rounded
    asked = {"budgets": (8.0,), "intervals": (1800,), "dial": 0.0}
    assert registry.create("claim_check", "rldp_budget_kept", **asked).verdict is VerdictKind.PROVEN
    monkeypatch.setattr(controller, "_MANY", 0)
    assert registry.create("claim_check", "rldp_budget_kept", **asked).verdict is VerdictKind.UNDECIDED


def test_a_replaced_record_has_twice_the_shift() -> None:
    """At q = 1 the bound is that of the Gaussian of half the noise; the calibrated sigma is for one shift."""
    one = budgets.run_epsilon([(2.0, 10)], 1.0)
    two = budgets.run_epsilon([(4.0, 10)], 1.0, Adjacency.REPLACE_ONE)
    assert two.lower == pytest.approx(one.lower, rel=1e-9)


def test_papers_are_found_by_their_names() -> None:
    claims = load_ledger()
    by_key = select_claims(claims, ["rldp"])
    assert select_claims(claims, ["RLDP"]) == by_key
    assert {claim.paper for claim in select_claims(claims, ["Shuffled DPSGD"])} == {"shuffled_dp_sgd"}
    assert len(by_key) > 30
