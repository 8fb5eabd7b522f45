"""Each check of the ledger on other versions of its claim: it must give another verdict on at least one.

A check whose verdict did not follow the claim would keep it when the claim is altered. The ledger holds the
versions (`weaker`, `stronger`, `altered`); logic says besides that a weaker claim is not refuted where the
claim is proven, and a stronger one not proven where it is refuted.
"""

from __future__ import annotations

import pytest

from workbench.checks.ledger import Method, PublishedClaim, load_ledger
from workbench.checks.run import check_claim
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

SLOW_CHECKS = {
    "dp_weights_algorithm_2",
    "ferret_eq_12",
    "ferret_step_capacity",
    "paczero_concentration",
    "paczero_secret_flow",
    "paczero_spending",
    "paczero_theorem_3",
    "rldp_budget_kept",
    "rldp_controller_attacked",
    "rldp_joint_budget",
    "rldp_ledger_verifies",
    "rldp_replaced_record",
    "rldp_same_contract",
    "rldp_shuffled_epochs",
    "rldp_theorem_7_13",
    "shuffled_same_noise",
    "shuffled_theorem_6_equal_entries",
}
"""Besides those that sample or attack: they take more than some three seconds."""

SETTINGS_FIRST = ("rldp", "dp_weights", "shuffled_dp_sgd")
"""Papers of whose neighbours, game and delta each check's evidence speaks first."""

CLAIMS = {claim.id: claim for claim in load_ledger() if claim.check is not None}


def is_slow(claim: PublishedClaim) -> bool:
    return claim.method in (Method.ATTACK, Method.MONTE_CARLO) or claim.check in SLOW_CHECKS


def every_claim() -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.slow) if is_slow(claim) else name
        for name, claim in CLAIMS.items()
    ]


ANSWERS: dict[str, Finding] = {}
"""By check and parameters: several entries may share both."""


def answer(claim: PublishedClaim) -> Finding:
    key = f"{claim.check}({sorted(claim.parameters.items())})"
    if key not in ANSWERS:
        checked = check_claim(claim)
        assert checked.finding is not None, checked.details
        ANSWERS[key] = checked.finding
    return ANSWERS[key]


@pytest.mark.thinned
@pytest.mark.parametrize("name", every_claim())
def test_the_verdict_follows_the_claim(name: str) -> None:
    finding = answer(CLAIMS[name])
    printed = finding.verdict
    versions = {kind: answer(version).verdict for kind, version in CLAIMS[name].versions().items()}
    assert any(other is not printed for other in versions.values()), (printed, versions)
    assert not (printed is VerdictKind.PROVEN and versions.get("weaker") is VerdictKind.REFUTED)
    assert not (printed is VerdictKind.REFUTED and versions.get("stronger") is VerdictKind.PROVEN)
    if CLAIMS[name].paper in SETTINGS_FIRST and finding.evidence:
        assert finding.evidence[0].startswith("setting: ")


def test_every_claim_that_is_checked_has_another_version() -> None:
    assert [name for name, claim in CLAIMS.items() if not claim.versions()] == []


def test_a_version_says_something_else() -> None:
    for claim in CLAIMS.values():
        for version in claim.versions().values():
            assert version.parameters != claim.parameters
            assert not version.versions()
