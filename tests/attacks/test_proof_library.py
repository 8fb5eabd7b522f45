"""The papers' statements: each rule beside a broken form, so that the verdict is seen to depend on it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import statements_of_papers as papers

from workbench.attacks.accountant_checks.proof import (
    Statement,
    TransitionSystem,
    holds_under,
    prove,
    prove_invariant,
    real,
)
from workbench.core.errors import InputError
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding, assume

Made = Statement | TransitionSystem | Finding


def _verdict(made: Made) -> VerdictKind:
    if isinstance(made, Finding):
        return made.verdict
    return (prove_invariant(made) if isinstance(made, TransitionSystem) else prove(made)).verdict


GOOD: dict[str, Callable[[], Made]] = {
    "subsampling": papers.subsampling_amplifies,
    "p* inverts": papers.ferret_p_star_inverts,
    "p* is a probability": papers.ferret_p_star_is_a_probability,
    "mixture step": papers.ferret_mixture_step,
    "unit vectors": papers.ferret_unit_vectors,
    "PACZero budget": papers.paczero_budget,
    "tolerance, rounded up": lambda: papers.paczero_tolerance_sum(nats="5.8e-8"),
    "zero information": papers.paczero_zero_information,
    "RLDP range": papers.rldp_noise_range,
    "RLDP never lowers": lambda: papers.rldp_noise_range(floor="base", lowers=False),
    "RLDP step": papers.rldp_noise_step,
    "Lemma 3": papers.shuffled_lemma_3,
    "epsilon range": papers.dp_weights_epsilon_range,
    "advanced composition": lambda: papers.composition_on_randomised_response(
        papers.advanced_composition, exp_epsilon=2, delta="1/100", count=50
    ),
}
BROKEN: dict[str, Callable[[], Made]] = {
    "subsampling, linear": lambda: papers.subsampling_amplifies(linear=True),
    "p* doubled": lambda: papers.ferret_p_star_inverts(factor=2),
    "p* above the ceiling": lambda: papers.ferret_p_star_is_a_probability(below_ceiling=False),
    "unit vectors, closer": lambda: papers.ferret_unit_vectors(most=3),
    "PACZero, half the divisor": lambda: papers.paczero_budget(divisor=lambda left: left / 2),
    "PACZero, leaks for free": lambda: papers.paczero_budget(tolerance_nats=Fraction(1, 10**11)),
    "RLDP step, smaller": lambda: papers.rldp_noise_step(most="0.01"),
    "Lemma 3, any sign": lambda: papers.shuffled_lemma_3(size=2, positive=False),
    "epsilon range, wider": lambda: papers.dp_weights_epsilon_range(factor=5),
}


@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD)
def test_sound_rules_are_proven(make: Callable[[], Made]) -> None:
    assert _verdict(make()) is VerdictKind.PROVEN


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_broken_rules_are_refuted(make: Callable[[], Made]) -> None:
    assert _verdict(make()) is VerdictKind.REFUTED


def test_composition_without_its_second_term_fails_where_epsilon_is_large() -> None:
    # Exact counting by hand: P(all ten answers true) = (150/151)^10 = 0.9357, loss 10 ln 150 = 50.1.
    found = papers.composition_on_randomised_response(
        papers.dp_weights_composition, exp_epsilon=150, delta="1/100", count=10
    )
    assert found.verdict is VerdictKind.REFUTED
    full = papers.composition_on_randomised_response(
        papers.advanced_composition, exp_epsilon=150, delta="1/100", count=10
    )
    assert full.verdict is VerdictKind.PROVEN


def test_the_noise_ledger_holds_where_noise_never_rises() -> None:
    first, second = real("m1", low=0), real("m2", low=0)
    found = holds_under(
        papers.rldp_ledger_at_current_noise(),
        assumption=assume("noise never rises", bool, left_open={"noise never rises": (False, True)}),
        formula=first <= second,
    )
    assert found.verdict is VerdictKind.HOLDS_UNDER


@pytest.mark.parametrize(
    "make",
    [
        papers.ferret_power_of_p,
        papers.shuffled_lower_bound_as_upper,
        papers.shuffled_zeta_gap,
        papers.dp_weights_ratio_step,
        papers.dp_weights_two_noise_scales,
        papers.paczero_tolerance_sum,
    ],
)
def test_steps_without_a_sound_form_come_to_a_verdict(make: Callable[[], Made]) -> None:
    assert _verdict(make()) in (VerdictKind.PROVEN, VerdictKind.REFUTED)


def test_an_unknown_floor_is_refused() -> None:
    with pytest.raises(InputError, match="floor must be"):
        papers.rldp_noise_range(floor="none")
