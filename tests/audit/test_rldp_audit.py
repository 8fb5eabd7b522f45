"""`workbench audit --mechanism rldp`: its neighbours, its games, and who is held against what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.audit.settings import claim_of, default_settings
from workbench.audit.subjects import coins_of
from workbench.cli.app import main
from workbench.core.errors import InputError
from workbench.interfaces import Adjacency
from workbench.training.setup import mechanism_of

SMALL = (
    "--mechanism rldp --corpus digits --model digits_mlp --model-parameter hidden=4 --adapter full "
    "--candidates 40 --steps 8 --workers 0 --quiet --attack-parameter joint_canary.releases=400 "
    "--attack-parameter dirac_canary.releases=400 --attack-parameter trajectory.trials=40 "
    "--attack-parameter trajectory.steps=3"
)


def audited(words: str, folder: Path) -> tuple[int, dict[str, Any]]:
    code = main(["audit", *SMALL.split(), *words.split(), "--out", str(folder)])
    return code, json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_a_mechanism_says_whose_neighbours_its_claim_is_about() -> None:
    def adjacency(name: str, **parameters: str) -> Adjacency:
        return mechanism_of(name, parameters).capabilities.adjacency

    assert adjacency("rldp") is Adjacency.REPLACE_ONE
    assert adjacency("rldp", adjacency="add-remove") is Adjacency.ADD_REMOVE
    assert adjacency("dp_sgd") is Adjacency.ADD_REMOVE
    with pytest.raises(InputError, match="unknown mechanism 'unheard_of'"):
        adjacency("unheard_of")
    with pytest.raises(InputError, match="did you mean"):
        adjacency("rldp", adjacency="add-remov")
    assert claim_of("rldp", 2.0, 1e-5).about is Adjacency.REPLACE_ONE


def test_the_claim_decides_unless_the_user_has() -> None:
    settings = default_settings("rldp")
    assert settings.claim.about is Adjacency.REPLACE_ONE
    assert settings.about_claimed().mechanism_parameters == {"adjacency": "replace-one"}
    assert settings.as_control().claim.about is Adjacency.ADD_REMOVE
    dp_sgd = default_settings("dp_sgd")
    assert dp_sgd.about_claimed() is dp_sgd


@pytest.mark.parametrize("candidates", [40, 41])
def test_a_coin_replaces_one_record_of_a_pair(candidates: int) -> None:
    coins = coins_of(candidates, np.random.default_rng(0), Adjacency.REPLACE_ONE)
    assert (coins[:20] != coins[20:40]).all()
    assert coins.sum() == 20
    free = coins_of(candidates, np.random.default_rng(0), Adjacency.ADD_REMOVE)
    assert (free[:20] == coins[:20]).all()
    assert free.sum() != 20


@pytest.mark.slow
def test_the_audit_of_a_replaced_record(tmp_path: Path) -> None:
    code, report = audited("--claim epsilon=4,delta=1e-5,adjacency=replace-one", tmp_path)
    subject, control = report["subjects"]
    assert code == report["exit_code"]
    assert (code == 1) == (subject["verdict"]["kind"] == "REFUTED")
    assert [one["attack"] for one in subject["attacks"]] == [
        "joint_canary (one state)",
        "joint_canary (every step)",
        "dirac_canary (one state)",
        "loss",
        "trajectory",
    ]
    assert {one["game"]["adjacency"] for one in subject["attacks"]} == {"replace-one"}
    assert {one["game"]["adjacency"] for one in control["attacks"]} == {"add-remove"}
    assert "replace-one" in subject["own_claim"]["about"]
    loss = subject["attacks"][3]
    assert len(loss["scores"]) == len(loss["members"]) == 20
    # Shares of the error add up over the games that can refute.
    shares = [one["verdict"]["significance"] for one in subject["attacks"]]
    assert sum(shares) == pytest.approx(0.05)
    assert control["name"] == "dp_sgd"
    views = {view["title"]: view for view in report["views"]["of"]}
    assert list(views) == [
        "All clipping groups at once",
        "One clipping group",
        "Ordinary members",
        "Radii and noise alone",
    ]
    assert "one release epsilon >= " in views["One clipping group"]["row"]["measured"]
    assert "one release" not in views["Radii and noise alone"]["row"]["measured"]
    assert "The same attacks on dp_sgd" in report["views"]["in_short"]
    assert control["verdict"]["kind"] != "REFUTED"
    assert all(
        float(score) == float(control["attacks"][4]["scores"][0]) for score in control["attacks"][4]["scores"]
    )


@pytest.mark.slow
def test_both_canaries_are_their_own_at_one_state(tmp_path: Path) -> None:
    """Two groups show a canary in both sqrt(2) times as far out; four deviations of chance are allowed."""
    words = "--claim epsilon=4,delta=1e-5,adjacency=add-remove --no-control"
    words += " --attack joint_canary --attack dirac_canary"
    main(["audit", *SMALL.split()[:-4], *words.split(), "--out", str(tmp_path)])
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    found = {}
    for game in report["subjects"][0]["attacks"]:
        scores, members = np.array(game["scores"], float), np.array(game["members"], bool)
        found[game["attack"]] = (scores[members].mean() - scores[~members].mean()) / scores[~members].std()
    joint, one = found["joint_canary (one state)"], found["dirac_canary (one state)"]
    assert joint / one == pytest.approx(np.sqrt(2), abs=4 * 0.2)
    assert joint > one


def test_claims_about_other_neighbours_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--claim epsilon=4,delta=1e-5,adjacency=zero-out"
    assert main(["audit", *SMALL.split(), *words.split(), "--out", str(tmp_path / "a")]) == 2
    assert "adjacency" in capsys.readouterr().err
    words = "--claim epsilon=4,delta=1e-5,adjacency=replace-one --attack weight_canary"
    head = SMALL.split()[: SMALL.split().index("--attack-parameter")]
    assert main(["audit", *head, *words.split(), "--out", str(tmp_path / "b")]) == 2
    assert "adds a record or removes it" in capsys.readouterr().err
    words = "--claim epsilon=4,delta=1e-5,adjacency=replace-one --mechanism dp_sgd --attack loss"
    assert main(["audit", *head[2:], *words.split(), "--out", str(tmp_path / "c")]) == 2
    assert "dp_sgd and the games are add-remove" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
