"""The audit of DPZero and DP-AggZO from end to end: with what it trains, and what its verdicts are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.accounting.subsampled_gaussian import epsilon
from workbench.audit.run import AuditSettings, audit_mechanisms
from workbench.audit.settings import default_settings

DIGITS: Mapping[str, Any] = {
    "corpus": "digits",
    "corpus_parameters": {},
    "model": "digits_logistic",
    "model_parameters": {},
    "attacks": ("dirac_canary",),
    "attack_parameters": {"dirac_canary": {"releases": 20_000}},
    "candidates": 60,
    "steps": 12,
    "learning_rate": 1e-3,
    "control": False,
    "workers": 0,
}


def settings(mechanism: str, **parameters: Any) -> AuditSettings:
    return replace(default_settings(mechanism), mechanism_parameters=parameters, **DIGITS)


def audited(tmp_path: Path, wanted: AuditSettings) -> dict[str, Any]:
    """The game at the trained state."""
    report = audit_mechanisms(wanted, out=tmp_path, command="test")
    subject = report["subjects"][0]
    return {"verdict": report["verdict"]["kind"], "attack": subject["attacks"][0], "report": report}


@pytest.mark.parametrize(("mechanism", "parameters"), [("dpzero", {}), ("dp_aggzo", {"directions": 3})])
def test_an_honest_audit_comes_near_the_claim(
    mechanism: str, parameters: dict[str, Any], tmp_path: Path
) -> None:
    """At 97.5 %: refuted by chance in one seed of forty, and the seed is fixed; near by the bound's power."""
    found = audited(tmp_path, settings(mechanism, **parameters))
    assert found["verdict"] == "NOT_REFUTED"
    assert 0.6 < found["attack"]["verdict"]["bound"]["lower"] <= 1.0


def test_less_noise_under_the_same_claim_is_refuted(tmp_path: Path) -> None:
    wanted = settings("dpzero", noise_multiplier=1.5)
    truth = epsilon(
        noise_multiplier=1.5, sampling_probability=wanted.sampling_probability, steps=12, delta=1e-5
    )
    found = audited(tmp_path, wanted)
    assert found["verdict"] == "REFUTED"
    assert 1.0 < found["attack"]["verdict"]["bound"]["lower"] <= truth


def test_the_optimizer_is_the_one_that_the_mechanism_asks_for_and_the_controls_its_own() -> None:
    assert default_settings("dpzero").optimizer == default_settings("dp_aggzo").optimizer == "sgd"
    assert default_settings("dp_sgd").optimizer == default_settings(None).optimizer == "adamw"
    assert default_settings("dpzero").as_control().optimizer == "adamw"
    assert replace(default_settings("dp_sgd"), optimizer="sgd").as_control().optimizer == "sgd"
    assert default_settings(None).as_control().learning_rate == 3e-3
