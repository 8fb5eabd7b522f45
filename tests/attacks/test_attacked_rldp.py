"""RLDP's entries with evidence from runs: the verdicts that we report, and controls that are not refuted."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.core import registry
from workbench.interfaces import VerdictKind
from workbench.interfaces.findings import Finding

REFUTED, UNDECIDED = VerdictKind.REFUTED, VerdictKind.UNDECIDED


def _check(name: str, **parameters: Any) -> Finding:
    found = registry.create("claim_check", name, **parameters)
    assert isinstance(found, Finding)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "altered", "verdict"),
    [
        ("rldp_joint_attacked", {}, REFUTED),
        ("rldp_joint_attacked", {"mechanism": "dp_sgd"}, UNDECIDED),
        ("rldp_joint_attacked", {"everywhere": False}, UNDECIDED),
        ("rldp_trajectory_attacked", {}, REFUTED),
        ("rldp_trajectory_attacked", {"policy": "static", "warm_up": 0}, UNDECIDED),
        ("rldp_trajectory_attacked", {"mechanism": "dp_sgd"}, UNDECIDED),
        ("rldp_controller_attacked", {}, REFUTED),
        ("rldp_controller_attacked", {"policy": "static"}, UNDECIDED),
    ],
)
def test_measured_claims_and_their_controls(name: str, altered: dict[str, Any], verdict: VerdictKind) -> None:
    """Each control is refuted by chance with probability 0.001 at most; the seeds are fixed."""
    found = _check(name, **altered)
    assert found.verdict is verdict
    assert found.evidence[0].startswith("setting: ")
