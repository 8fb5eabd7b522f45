"""An audit of a mechanism that gives finished weights away: what it plays, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.accounting import ApproximateDP
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import AuditSettings, embedded_settings
from workbench.cli.audit import AuditOptions, audit
from workbench.core.errors import UnsupportedError
from workbench.interfaces import Adjacency, Claim, Released

CLAIM = Claim(
    guarantee=ApproximateDP(epsilon=1.0, delta=1e-4),
    about=Adjacency.ADD_REMOVE,
    released=Released.FINAL_WEIGHTS,
    source="the user",
)

SETTINGS = embedded_settings(
    claim=CLAIM,
    mechanism="dp_weights",
    # A thousandth of what the canary moves its weight by: the claim of epsilon 1 is the user's, and false.
    mechanism_parameters={"noise_scale": 4e-4},
    control=False,
    attacks=("weight_canary", "loss"),
    attack_parameters={"weight_canary": {"trials": 100, "references": 2, "canary": "coordinate"}},
    corpus="digits",
    corpus_parameters={},
    model="digits_logistic",
    model_parameters={},
    candidates=40,
    steps=4,
    sampling_probability=0.5,
    learning_rate=2.0,
    optimizer="sgd",
    workers=0,
)


def played(settings: AuditSettings, out: Path) -> dict[str, Any]:
    return audit_mechanisms(settings, out=out, command="test")


@pytest.mark.slow
def test_the_weights_are_played_for_beside_other_attacks(tmp_path: Path) -> None:
    report = played(SETTINGS, tmp_path)
    (subject,) = report["subjects"]
    games = {attack["attack"]: attack for attack in subject["attacks"]}
    assert list(games) == ["weight_canary", "loss"]
    weights, loss = (games[name]["game"] for name in games)
    assert (weights["trials"], weights["released"]) == ("independent", "final weights")
    assert (loss["trials"], loss["released"]) == ("one-run", "scores")
    assert len(games["weight_canary"]["scores"]) == 100
    assert sum(games["weight_canary"]["members"]) == 50
    assert subject["own_claim"]["released"] == "final weights"
    assert report["verdict"]["kind"] == "REFUTED"
    assert "weight_canary" in report["verdict"]["sentence"]


@pytest.mark.slow
def test_the_attack_of_an_audit_is_deterministic(tmp_path: Path) -> None:
    few = replace(SETTINGS, attacks=("weight_canary",), attack_parameters={"weight_canary": {"trials": 20}})
    first, second = (played(few, tmp_path / name) for name in "ab")
    assert first["subjects"][0]["attacks"][0]["scores"] == second["subjects"][0]["attacks"][0]["scores"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attacks": ("dirac_canary",)}, "claim covers final weights, and attack 'dirac_canary' sees every"),
        (
            {"attacks": ("dirac_canary",), "claim": replace(CLAIM, released=Released.EVERY_UPDATE)},
            "dp_weights covers final weights, and attack 'dirac_canary' sees every update",
        ),
        (
            {"claim": replace(CLAIM, released=Released.EVERY_UPDATE)},
            "dp_weights promises nothing beyond its final weights",
        ),
        (
            {"claim": replace(CLAIM, released=Released.SCORES)},
            "claim covers scores, and attack 'weight_canary' sees final weights",
        ),
    ],
)
def test_what_nobody_claimed_is_not_tested(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=message):
        played(replace(SETTINGS, **changes), tmp_path)


def test_a_claim_that_leaves_it_open_is_about_what_the_mechanism_gives_away(tmp_path: Path) -> None:
    options = AuditOptions(
        mechanism="dp_weights",
        attack=["dirac_canary"],
        corpus="digits",
        model="digits_logistic",
        out=tmp_path,
        workers=0,
    )
    with pytest.raises(UnsupportedError, match="claim covers final weights, and attack 'dirac_canary'"):
        audit(options)
