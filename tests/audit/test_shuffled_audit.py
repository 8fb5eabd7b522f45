"""The audit of permuted weights: three adversaries in six games, one verdict, and honest noise beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import claim_of, default_settings, embedded_settings
from workbench.cli.app import main
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.games.consecutive import VIEWS
from workbench.games.words import combined_kind
from workbench.interfaces import Currency, Release, VerdictKind
from workbench.training.setup import mechanism_of

SMALL = replace(
    default_settings("shuffled_dp_sgd"),
    claim=claim_of("shuffled_dp_sgd", 0.5, 1e-5),
    candidates=40,
    steps=4,
    sampling_probability=0.5,
    model_parameters={"hidden": 8},
    attack_parameters={"weight_tidying": {"releases": 200, "runs": 24, "probes": 64}},
    workers=0,
)
GAMES = [f"weight_tidying ({view}, {where})" for where in ("one release", "whole run") for view in VIEWS]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return audit_mechanisms(SMALL, out=tmp_path_factory.mktemp("audit"), command="the command")


@pytest.mark.slow
def test_six_games_share_the_error_and_only_tidying_sees_through(report: dict[str, Any]) -> None:
    """A true claim would be refuted with probability 5 % at most; sigma is a seventh of the honest one."""
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    roles = [(subject["name"], subject["role"]) for subject in report["subjects"]]
    assert roles == [("shuffled_dp_sgd", "subject"), ("dp_sgd", "control")]
    subject, control = report["subjects"]
    for one in (subject, control):
        assert [attack["attack"] for attack in one["attacks"]] == GAMES
        for attack in one["attacks"]:
            assert attack["verdict"]["significance"] == pytest.approx(0.05 / 6)
            assert all(bound["family"] == "any (epsilon, delta)" for bound in attack["verdict"]["bounds"][:1])
    kinds = {view["key"]: view["verdict"] for view in report["views"]["of"]}
    assert kinds["tidying"] == report["verdict"]["kind"] == "REFUTED"
    assert kinds["blind"] == "NOT_REFUTED"
    assert report["exit_code"] == 1
    assert control["verdict"]["kind"] in ("NOT_REFUTED", "UNDERPOWERED")
    assert subject["metrics"]["noise_multiplier"] < 0.5 * control["metrics"]["noise_multiplier"]


def test_the_report_says_what_was_found_and_what_eq_45_would_say(report: dict[str, Any]) -> None:
    subject = report["subjects"][0]
    details = {attack["attack"]: attack["details"] for attack in subject["attacks"]}
    found = details["weight_tidying (tidying, one release)"]
    assert found["recovered"] == found["recovered (0.hidden)"] == 1.0
    assert "recovered_last_quarter (0.hidden)" in details["weight_tidying (tidying, whole run)"]
    assert set(details["weight_tidying (invariant, one release)"]) == {
        "as_printed",
        "auc (sorted)",
        "auc (sums)",
        "auc (norms)",
        "auc (function)",
        "probes",
    }
    said = {view["key"]: " ".join(view["says"]) for view in report["views"]["of"]}
    assert "permutation was found exactly in 100 % of releases" in said["tidying"]
    assert all("As printed, Eq. 45 would give epsilon = " in words for words in said.values())
    assert "AUC by statistic, without a verdict: " in said["invariant"]
    notes = " ".join(report["views"]["notes"])
    for words in (
        "each is judged at 5 % / 6",
        "'function' in single releases",
        "No Gaussian family",
        "a certified accountant gives DP-SGD",
    ):
        assert words in notes
    assert "zeta_2" in notes  # Whose claim it is.
    assert "beside no other record" in notes
    assert "on dp_sgd under the same claim" in report["views"]["in_short"]
    page = registry.create("report", "html", report=report)
    for words in ("Three adversaries, one transcript of weights", "Tidying", "recovered (0.hidden)"):
        assert words in page


def test_defaults_belong_to_mechanisms_that_shuffle() -> None:
    shuffled, plain = (mechanism_of(name, {}).capabilities for name in ("shuffled_dp_sgd", "dp_sgd"))
    assert Release.PERMUTED_WEIGHTS in shuffled.releases
    assert Release.PERMUTED_WEIGHTS not in plain.releases
    assert shuffled.currency is Currency.DP
    chosen = default_settings("shuffled_dp_sgd")
    assert (chosen.attacks, chosen.optimizer, chosen.model) == (("weight_tidying",), "sgd", "digits_mlp")
    assert chosen.control_mechanism == "dp_sgd"
    control = chosen.as_control()
    assert (control.optimizer, control.learning_rate) == ("sgd", chosen.learning_rate)
    assert default_settings("dp_sgd") == embedded_settings(mechanism="dp_sgd")
    with pytest.raises(InputError, match="unknown mechanism 'no such mechanism'"):
        default_settings("no such mechanism")


def test_what_cannot_be_read_is_told_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was trained")

    for name in ("train", "play_part"):
        monkeypatch.setattr(f"workbench.audit.subjects.{name}", refuse)
    for changes, error, words in (
        ({"attacks": ("weight_tidying", "dirac_canary")}, UnsupportedError, "releases none"),
        ({"attack_parameters": {"weight_tidying": {"place": "here"}}}, InputError, "place"),
        (
            {"model": "tiny_gpt2", "model_parameters": {}},
            InputError,
            "model 'tiny_gpt2' cannot read images",
        ),
        ({"claim": claim_of("dp_weights", 1.0, 1e-5)}, UnsupportedError, "final weights"),
    ):
        with pytest.raises(error, match=words):
            audit_mechanisms(replace(SMALL, **changes), out=tmp_path, command="c")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_the_kind_of_a_view_is_that_of_its_strongest_game() -> None:
    def attack(kind: VerdictKind) -> dict[str, Any]:
        return {"verdict": {"kind": kind.value}}

    kinds = VerdictKind
    assert combined_kind([attack(kinds.NOT_REFUTED), attack(kinds.REFUTED)]) is kinds.REFUTED
    assert combined_kind([attack(kinds.UNDERPOWERED), attack(kinds.NOT_REFUTED)]) is kinds.NOT_REFUTED
    assert combined_kind([attack(kinds.INVALID), attack(kinds.NOT_REFUTED)]) is kinds.INVALID


@pytest.mark.slow
def test_the_command_audits_at_the_embedded_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The claim at epsilon = 0.5, tested as a user would; exit code 1 is a refutation."""
    out = tmp_path / "out"
    code = main(["audit", "--mechanism", "shuffled_dp_sgd", "--epsilon", "0.5", "--out", str(out)])
    assert code == 1
    shown = capsys.readouterr().out
    for words in ("Tidying", "REFUTED", "(tidying, whole run)", "dp_sgd (control)"):
        assert words in shown
    found = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert found["subjects"][1]["verdict"]["kind"] == "NOT_REFUTED"


@pytest.mark.slow
def test_too_little_noise_for_an_epsilon_is_audited_under_the_users_claim(tmp_path: Path) -> None:
    settings = replace(SMALL, mechanism_parameters={"noise_multiplier": 0.001}, control=False)
    report = audit_mechanisms(settings, out=tmp_path, command="the command")
    assert report["verdict"]["kind"] == "REFUTED"
    assert report["subjects"][0]["own_claim"]["guarantee"] == {"currency": "none"}
