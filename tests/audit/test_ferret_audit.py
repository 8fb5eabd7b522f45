"""An audit of nats: three views of one number, each a claim of its own, through the runner and the command.

The full games are thousands of trainings; the default tests play a hundred on sixty digits, and one slow test
runs the command end to end.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import AuditSettings, claim_of, default_settings, embedded_settings
from workbench.audit.subjects import PlayedBy, attacks_of
from workbench.cli.app import main
from workbench.cli.audit import AuditOptions, audit
from workbench.cli.junit import junit_xml
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.judge import judge
from workbench.interfaces import (
    Adjacency,
    Claim,
    Evidence,
    GameTerms,
    Guarantee,
    Released,
    Secret,
    Trials,
    VerdictKind,
)

SMALL = replace(
    default_settings("ferret"),
    members={},
    candidates=60,
    steps=40,
    sampling_probability=0.1,
    attacks=("sign_transcript", "loss"),
    attack_parameters={"sign_transcript": {"canary": "opposed,average", "trials": 120}},
    workers=0,
)


def claim(guarantee: Guarantee) -> Claim:
    about = guarantee.secret if isinstance(guarantee, MutualInformation) else Adjacency.ADD_REMOVE
    return Claim(guarantee=guarantee, about=about, released=Released.EVERY_UPDATE, source="the test")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("audit")
    return out, audit_mechanisms(SMALL, out=out, command="the command")


def views(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {view["key"]: view for view in report["views"]["of"]}


@pytest.mark.slow
def test_one_number_is_judged_in_three_views(played: tuple[Path, dict[str, Any]]) -> None:
    """Of trainings with an opposed canary 1 - (1 - s p)^(G T), near 51 %, betray it: (0.5, 1e-5)-DP falls.

    Fewer than 15 of 60 would not refute it: a chance below 0.01 %, for this one fixed seed. The nats allow
    95 % of guesses to be right, about 75 % are, and 120 trials are too few to tell whether a perfect attack
    could do more: what their verdict is, is not what this test is about.
    """
    _, report = played
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    by_key = views(report)
    assert list(by_key) == ["claim", "reading", "members"]
    roles = [(subject["name"], subject["role"]) for subject in report["subjects"]]
    assert roles == [
        *[("ferret", role) for role in ("subject", "reading", "reading")],
        ("non_private", "control"),
    ]
    kinds = {key: view["verdict"] for key, view in by_key.items()}
    assert kinds["reading"] == "REFUTED"
    assert report["verdict"]["kind"] == kinds["claim"] == report["subjects"][0]["verdict"]["kind"]
    assert report["subjects"][0]["claim"]["guarantee"]["nats"] == 0.5
    assert report["subjects"][1]["claim"]["guarantee"] == ApproximateDP(epsilon=0.5, delta=1e-5).to_json()
    assert "not the authors' claim" in report["subjects"][1]["claim"]["source"]
    assert "not the authors' claim" in by_key["reading"]["label"]
    for subject in report["subjects"]:
        able = [attack for attack in subject["attacks"] if not attack["game"]["beyond"]]
        assert sum(one["verdict"]["significance"] for one in able) == pytest.approx(1 - SMALL.confidence)
    for said in ("own, judged at 95 %", "refuted has a probability of 85 % at least"):
        assert said in report["views"]["notes"][0]


def test_each_view_says_what_is_allowed_and_what_was_measured(played: tuple[Path, dict[str, Any]]) -> None:
    by_key = views(played[1])
    game = played[1]["subjects"][0]["attacks"][0]
    assert game["attack"] == "sign_transcript (opposed)"
    scores, members = np.array(game["scores"], dtype=float), np.array(game["members"])
    assert (members.sum(), members.size) == (60, 120)
    right = float(np.mean((scores > 0) == members))
    nats = " ".join(by_key["claim"]["says"])
    assert "at most 95.2 % of all guesses may be right" in nats
    assert f"120 trainings, half of them with the record: {100 * right:.3g} % [" in nats
    reading = " ".join(by_key["reading"]["says"])
    assert f"Measured: {int(game['details']['certain'])} of 60 trainings" in reading
    assert "at most 0.001 % of the trainings" in reading
    assert "and 0 of 60 without it" in reading
    ends = [row for row in by_key["reading"]["rates"] if row["game"] == game["attack"]]
    assert [row["fpr"] for row in ends] == [0.0, 0.001, 0.01]
    assert ends[0]["allowed"] == 1e-5
    assert ends[0]["tpr_lower"] <= ends[0]["tpr"] <= ends[0]["tpr_upper"]
    assert "scores of one training say nothing" in " ".join(by_key["members"]["says"])
    assert "AUC" in by_key["members"]["row"]["measured"]


def test_a_game_that_grants_more_than_the_transcript_refutes_nothing(
    played: tuple[Path, dict[str, Any]],
) -> None:
    """The average record's adversary knows the batches too, which no claim about a transcript grants."""
    _, report = played
    for subject in report["subjects"][:2]:
        opposed, average = subject["attacks"][:2]
        assert (opposed["game"]["beyond"], average["attack"]) == ("", "sign_transcript (average)")
        assert average["game"]["beyond"] == "in which steps the other records took part"
        assert average["verdict"]["kind"] in ("UNDECIDED", "NOT_REFUTED", "UNDERPOWERED")
    (said,) = [one for one in views(report)["reading"]["says"] if "this game refutes nothing" in one]
    assert "that shows" not in said


def test_the_parts_of_a_game_are_one_game(played: tuple[Path, dict[str, Any]]) -> None:
    """120 trials are two jobs: their certain trials add up, their firings average."""
    out, report = played
    records = [json.loads(path.read_text())["content"] for path in (out / "store" / "records").iterdir()]
    parts = [one for one in records if one["job"]["kind"] == "transcript"]
    assert len(parts) == 4
    opposed = [one for one in parts if one["job"]["job"]["parameters"]["canary"] == "opposed"]
    assert sum(len(one["scores"]) for one in opposed) == 120
    details = report["subjects"][0]["attacks"][0]["details"]
    assert details["certain"] == sum(one["details"]["certain"] for one in opposed)
    assert details["firings"] == pytest.approx(np.mean([one["details"]["firings"] for one in opposed]))
    # p* of 0.5 nats: G T p* = 0.5 / (s ln 2), and firings are Binomial(G T, p*): 60 + 60 trainings.
    expected = 0.5 / (SMALL.sampling_probability * math.log(2))
    assert abs(details["firings"] - expected) < 5 * math.sqrt(expected / 120)


def test_a_second_run_does_no_work_and_says_the_same(
    played: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, first = played

    def refuse(*_: object) -> None:
        raise AssertionError("work was done again")

    for name in ("train", "play_part"):
        monkeypatch.setattr(f"workbench.audit.subjects.{name}", refuse)
    second = audit_mechanisms(SMALL, out=out, command="the command")
    changing = ("created", "cost")
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in second.items() if k not in changing
    }


def test_a_claim_of_dp_decides_where_the_user_makes_it(played: tuple[Path, dict[str, Any]]) -> None:
    """The same trainings (the budget is as many nats), and another claim under audit."""
    out, first = played
    dp = replace(SMALL, claim=claim(ApproximateDP(epsilon=0.5, delta=1e-5)))
    assert dp.budget == MutualInformation(nats=0.5, secret=Secret.RECORD)
    report = audit_mechanisms(dp, out=out, command="c")
    assert (report["verdict"]["kind"], report["exit_code"]) == ("REFUTED", 1)
    by_key = views(report)
    assert list(by_key) == ["claim", "reading", "members"]
    assert "itself claims nats" in by_key["claim"]["label"]
    assert by_key["reading"]["verdict"] == views(first)["claim"]["verdict"]
    assert len(report["subjects"][0]["attacks"]) == 3  # Every game tests the claim under audit.
    assert report["subjects"][0]["attacks"][0]["scores"] == first["subjects"][0]["attacks"][0]["scores"]


def test_nats_beyond_one_bit_promise_nothing_and_the_audit_says_so(tmp_path: Path) -> None:
    given = {"canary": "opposed", "trials": 20}
    settings = replace(
        SMALL,
        claim=claim(MutualInformation(nats=1.0, secret=Secret.RECORD)),
        attacks=("sign_transcript",),
        attack_parameters={"sign_transcript": given},
    )
    report = audit_mechanisms(settings, out=tmp_path, command="c")
    assert (report["verdict"]["kind"], report["exit_code"]) == ("UNDERPOWERED", 3)
    assert "promises nothing about guessing one record's membership" in report["verdict"]["sentence"]
    assert report["verdict"]["trials_needed"] is None
    said = " ".join(views(report)["claim"]["says"])
    assert "promise nothing about guessing one record's membership" in said
    assert "no experiment of this kind can test it" in said
    assert "There is no control" in " ".join(report["views"]["notes"])
    assert [subject["role"] for subject in report["subjects"]] == ["subject", "reading"]
    assert not (tmp_path / "store" / "subjects").is_dir() or not any(
        (tmp_path / "store" / "subjects").iterdir()
    )


@pytest.mark.parametrize(("prior", "nats"), [(0.5, 0.7), (0.3, 0.36)])
def test_a_vacuous_claim_is_underpowered_whatever_the_scores(prior: float, nats: float) -> None:
    """At prior 0.3 the answer takes -ln 0.7 = 0.357 nats."""
    members = np.arange(1000) < round(1000 * prior)
    evidence = Evidence(
        scores=members + 0.0,
        members=members,
        attack="perfect",
        game=GameTerms(
            description="a test", trials=Trials.INDEPENDENT, prior=prior, released=Released.EVERY_UPDATE
        ),
    )
    vacuous = claim(MutualInformation(nats=nats, secret=Secret.RECORD))
    verdict = judge(vacuous, evidence, confidence=0.95, generator=np.random.default_rng(0))
    assert verdict.kind is VerdictKind.UNDERPOWERED
    assert "No number of trials can test it" in verdict.sentence
    strict = claim(MutualInformation(nats=0.2, secret=Secret.RECORD))
    assert (
        judge(strict, evidence, confidence=0.95, generator=np.random.default_rng(0)).kind
        is VerdictKind.REFUTED
    )


@pytest.mark.parametrize(("tpr", "fpr"), [(0.9, 0.0), (0.8, 0.2)])
def test_a_claim_that_is_just_true_is_rarely_refuted(tpr: float, fpr: float) -> None:
    """200 audits at 95 % of a channel whose success is exactly what the nats allow.

    At most 5 % + 3.5 standard errors (0.054) may be refuted; false alarm below 0.03 %. The control, of half
    the nats that the channel needs, is refuted more often than not.
    """
    success = (tpr + 1 - fpr) / 2
    nats = math.log(2) + success * math.log(success) + (1 - success) * math.log(1 - success)

    def refuted(stated: float) -> float:
        found = 0
        for seed in range(200):
            generator = np.random.default_rng(seed)
            members = generator.permutation(400) < 200
            scores = (generator.random(400) < np.where(members, tpr, fpr)) + 0.0
            evidence = Evidence(
                scores=scores,
                members=members,
                attack="channel",
                game=GameTerms(
                    description="a test", trials=Trials.INDEPENDENT, released=Released.EVERY_UPDATE
                ),
            )
            judged = judge(
                claim(MutualInformation(nats=stated, secret=Secret.RECORD)),
                evidence,
                confidence=0.95,
                generator=generator,
            )
            found += judged.kind is VerdictKind.REFUTED
        return found / 200

    assert refuted(nats) <= 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 200)
    assert refuted(0.5 * nats) > 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"claim": MutualInformation(nats=50.0, secret=Secret.RECORD)},
            "epsilon must be at most .* the ceiling",
        ),
        (
            {"attacks": ("loss", "lira")},
            r"scores of one training \(loss, lira\) cannot test: add the attack sign",
        ),
        ({"attacks": ("sign_transcript", "dirac_canary")}, "'dirac_canary' reads noised sums"),
        ({"mechanism_parameters": {"public_seed": 3}}, "public_seed must be None"),
        ({"attacks": ("sign_transcrip",)}, "did you mean 'sign_transcript'"),
        (
            {"attack_parameters": {"sign_transcript": {"canary": "opposed,averag"}}},
            "did you mean 'average'",
        ),
        (
            {"attack_parameters": {"sign_transcript": {"knowledge": "records"}}},
            "'records' sums over all batches of at most 16 other records",
        ),
        ({"corpus": "clinical", "members": {}}, "'digits_mlp' cannot read texts"),
        (
            {"mechanism_parameters": {"dither_standard_deviation": 0.1}},
            "ferret with dither_standard_deviation=0.1 claims Renyi-DP",
        ),
    ],
)
def test_what_cannot_be_tested_fails_before_anything_is_written(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if isinstance(change.get("claim"), Guarantee):
        change = {"claim": claim(change["claim"])}
    with pytest.raises((InputError, UnsupportedError), match=message):
        audit_mechanisms(replace(SMALL, **change), out=tmp_path / "out", command="c")
    assert not (tmp_path / "out").exists()


def test_a_mechanism_without_signs_has_no_transcript_game(tmp_path: Path) -> None:
    settings = embedded_settings(attacks=("sign_transcript",))
    with pytest.raises(UnsupportedError, match="dp_sgd releases none"):
        audit_mechanisms(settings, out=tmp_path / "out", command="c")
    assert not (tmp_path / "out").exists()


def games_of(**given: object) -> tuple[PlayedBy, ...]:
    """The games of the attack with these parameters."""
    attack = "sign_transcript"
    return attacks_of(replace(SMALL, attacks=(attack,), attack_parameters={attack: given}))


def test_several_canaries_are_several_games() -> None:
    opposed, average = games_of(canary="opposed, average", trials=40)
    names = [one.game.name_of(one.name, one.attack) for one in (opposed, average)]
    assert names == ["sign_transcript (opposed)", "sign_transcript (average)"]
    assert (opposed.given["others"], average.given.get("others")) == ("copies", None)
    (chosen,) = games_of(canary="opposed", others="corpus")
    assert chosen.given["others"] == "corpus"
    with pytest.raises(InputError, match="must not name one twice"):
        games_of(canary="average,average")
    (many,) = games_of(trials=250)
    jobs = many.game.jobs(SMALL.setup(()), [True] * 60, many.name, many.given)
    sizes = [job.payload.trials for job in jobs]
    assert sum(sizes) == 250
    assert max(sizes) <= 100
    assert all(size % 2 == 0 and size >= 4 for size in sizes)


def test_the_number_is_in_the_currency_of_the_mechanism() -> None:
    nats = claim_of("ferret", 0.5, 1e-5)
    assert nats.guarantee == MutualInformation(nats=0.5, secret=Secret.RECORD)
    dp = claim_of("dp_sgd", 2.0, 1e-6)
    assert (dp.guarantee, dp.about) == (ApproximateDP(epsilon=2.0, delta=1e-6), Adjacency.ADD_REMOVE)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="epsilon must be finite and > 0"):
            claim_of("ferret", bad, 1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--epsilon 0.5 --claim nats=1,secret=record", "--epsilon and --claim exclude each other"),
        ("--epsilon 0.5 --delta 1.5", "delta must be in [0, 1), got 1.5"),
        ("--epsilon -1", "--epsilon must be finite and >= 0, got -1"),
        ("--claim epsilon=1,delta=1e-5,adjacency=add-remove --delta 0.1", "write it into --claim"),
        ("--claim mu=1,adjacency=add-remove", "ferret budgets in nats"),
        ("--claim epsilon=1,delta=1e-5,adjacency=replace-one", "the games are add-remove"),
        ("--claim nats=0.1,secret=candidate-subset", "about the candidate-subset needs scores"),
        ("--mechanism-parameter clip_norm=abc", "'ferret': clip_norm must be a number, got 'abc'"),
        ("--mechanism-parameter granularity=true", "'ferret': granularity must be text, got True"),
        ("--mechanism-parameter firing_probability=x", "firing_probability must be a number, got 'x'"),
        (
            "--attack-parameter sign_transcript.trials=abc",
            "trials must be an even whole number >= 20, got 'abc'",
        ),
        ("--corpus clinical --model huggingface", "model 'huggingface' needs its parameter 'path'"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_2(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--mechanism", "ferret", *shlex.split(words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_epsilon_and_delta_belong_to_a_mechanism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.csv").write_text("score,member\n1,1\n")
    assert main(["audit", "--scores", "s.csv", "--epsilon", "1"]) == 2
    assert "--epsilon goes with an audit of a mechanism" in capsys.readouterr().err
    assert main(["audit", "--delta", "0.1"]) == 2
    assert "--delta goes with --epsilon" in capsys.readouterr().err


def settings_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str) -> AuditSettings:
    """The settings that a command line comes to."""
    from workbench.audit import run as runner

    seen: list[AuditSettings] = []

    class EnoughError(Exception):
        """Nothing more is wanted."""

    def keep(settings: AuditSettings, **_: object) -> None:
        seen.append(settings)
        raise EnoughError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "audit_mechanisms", keep)
    main(["audit", "--mechanism", "ferret", *shlex.split(words)])
    return seen[0]


def test_the_defaults_are_those_of_the_currency_and_all_can_be_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = settings_of(monkeypatch, tmp_path, "--epsilon 0.5 --delta 1e-6")
    expected = default_settings("ferret")
    played = {name: own for name, own in expected.attack_parameters.items() if name in default.attacks}
    assert set(played) == {"sign_transcript", "loss", "lira"}
    claim = claim_of("ferret", 0.5, 0)
    assert default == replace(expected, claim=claim, delta=1e-6, attack_parameters=played)
    members = default.for_members()
    assert (default.model, members.model, members.corpus) == ("digits_mlp", "tiny_gpt2", "clinical")
    assert members.attack_parameters["loss"]["ending_marker"]
    own = settings_of(
        monkeypatch,
        tmp_path,
        "--epsilon 0.25 --candidates 80 --model-parameter hidden=16 --mechanism-parameter granularity=2 "
        "--attack-parameter sign_transcript.trials=60 --attack-parameter lira.shadows=6 --steps 20",
    )
    assert (own.candidates, own.steps, own.members) == (80, 20, {})
    assert own.for_members().model_parameters == {"hidden": 16}
    assert own.mechanism_parameters == {"granularity": "2"}  # A name that looks like a number.
    assert own.attack_parameters["sign_transcript"] == {"canary": "opposed,average", "trials": 60}
    assert own.attack_parameters["lira"] == {"shadows": 6}
    assert own.attack_parameters["loss"] == {"craft": "loud"}
    plain = AuditOptions(mechanism="ferret")
    assert plain.epsilon is None
    assert settings_of(monkeypatch, tmp_path, "").claim.guarantee == MutualInformation(
        nats=0.5, secret=Secret.RECORD
    )


def test_a_refuted_reading_fails_no_build(played: tuple[Path, dict[str, Any]]) -> None:
    """JUnit's failures and errors are the exit code's, and a reading has no part in either."""
    report = played[1]
    suite = ElementTree.fromstring(junit_xml(report)).find("testsuite")
    assert suite is not None
    assert views(report)["reading"]["verdict"] == "REFUTED"
    expected = {"NOT_REFUTED": ("0", "0"), "UNDERPOWERED": ("0", "1")}[report["verdict"]["kind"]]
    assert (suite.get("failures"), suite.get("errors")) == expected
    names = {case.get("classname") for case in suite.iter("testcase")}
    assert names == {"workbench", "workbench.ferret", "workbench.ferret.reading", "workbench.non_private"}


@pytest.mark.slow
def test_the_command_ends_with_a_verdict_in_each_currency(tmp_path: Path) -> None:
    """One process with two workers, from the command line to the page, the JSON and the exit code."""
    words = (
        "audit --mechanism ferret --epsilon 0.5 --candidates 100 --json r.json --junit j.xml "
        "--attack-parameter sign_transcript.trials=200"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-c",
        "import sys; from workbench.cli.app import main; sys.exit(main(sys.argv[1:]))",
    ]
    done = subprocess.run(
        [*command, *shlex.split(words)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    report = json.loads((tmp_path / "r.json").read_text())
    assert done.returncode == report["exit_code"] == 0, done.stderr
    page = (tmp_path / "audit" / "report.html").read_text()
    for title in (
        "The authors&#39; own claim",
        "The same number read as DP",
        "Ordinary members, as papers measure",
    ):
        assert title in page
        assert title.replace("&#39;", "'") in done.stdout
    assert "In short: " in done.stdout
    kinds = [view["verdict"] for view in report["views"]["of"]]
    assert kinds[:2] == ["NOT_REFUTED", "REFUTED"]
    dp = shlex.split(words.replace("--epsilon 0.5", "--claim epsilon=0.5,delta=1e-5,adjacency=add-remove"))
    again = subprocess.run(
        [*command, *dp], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
    )
    assert again.returncode == 1, again.stderr
    assert again.stderr.splitlines()[0] == "playing transcripts: 4/4"  # The trainings were there.


def test_a_view_has_a_page(played: tuple[Path, dict[str, Any]]) -> None:
    text = registry.create("report", "html", report=played[1])
    assert isinstance(text, str)
    assert "One number, read in 3 ways" in text
    assert callable(audit)
