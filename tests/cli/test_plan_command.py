"""`workbench plan`: its text, its JSON, and what it refuses in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli.app import main

CLAIM = "epsilon=8,delta=1e-5,adjacency=add-remove"


@pytest.mark.slow
def test_a_plan_counts_random_coins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """11,136 perfect scores do not refute epsilon 8 half of the time, 16,000 do."""
    words = ["plan", "--claim", CLAIM, "--game", "membership", "--trials", "11136", "--trials", "16000"]
    words += ["--fault", "noise", "--json", str(tmp_path / "plan.json")]
    assert main(words) == 0
    shown = capsys.readouterr().out
    for said in (
        "Claim: (epsilon = 8, delta = 1e-05)-DP",
        "Attack: perfect",
        "Suspected: noise",
        "First: ",
    ):
        assert said in shown
    record = json.loads((tmp_path / "plan.json").read_text())
    (game,) = record["games"]
    assert game["needed"][0]["trials"] > 11136
    few, many = (row["power"] for row in game["shown"])
    assert few < 0.5
    assert many > 0.95
    assert f" {game['needed'][1]['trials']} " in shown
    assert f"First: {record['fault']['first']}: workbench" in shown


def test_an_attack_too_weak_for_the_claim_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--claim", CLAIM, "--game", "membership", "--attack-strength", "mu=0.5"]
    assert main([*words, "--trials", "50"]) == 0
    assert "never: at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--claim epsilon=1", "claim: adjacency is missing"),
        ("--claim nats=1,secret=record", "claim: plans are of differential privacy, or of nats"),
        ("--game memberships", "unknown game 'memberships'; did you mean 'membership'?"),
        ("--game subset", "game 'subset' does not test claims about add-remove: leave it out"),
        ("--game membership --game membership", "--game must not repeat"),
        ("--attack-strength mu=-1", "--attack-strength: mu must be in (0, 100], got -1.0"),
        ("--attack-strength strong", "--attack-strength: attack strength must be perfect"),
        ("--trials 3", "--trials must be a whole number >= 4, got 3"),
        ("--trials many", "'many'"),
        ("--steps 0", "--steps must be a whole number >= 1, got 0"),
        ("--sampling-probability 0", "--sampling-probability must be in (0, 1], got 0"),
        ("--prior 1", "--prior must be in (0, 1), got 1"),
        ("--confidence nan", "--confidence must be in (0.5, 1), got nan"),
        ("--seed -1", "--seed must be a whole number >= 0, got -1"),
        ("--fault nois", "unknown fault 'nois'; did you mean 'noise'?"),
        ("--cost-from none.json", "cannot read none.json: No such file or directory"),
        ("--json .", "--json must be a file"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not list(tmp_path.iterdir())
