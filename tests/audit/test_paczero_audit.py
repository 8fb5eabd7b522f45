"""An audit of nats about a candidate subset: inside the claim and outside it, through runner and command.

The full games are hundreds of trainings of a hundred steps; the default tests play twenty-two of six steps on
a dozen digits, and one slow test runs the command end to end.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.accounting import ApproximateDP, MutualInformation
from workbench.audit.run import audit_mechanisms
from workbench.audit.settings import AuditSettings, claim_of, default_settings, embedded_settings
from workbench.audit.subjects import PlayedBy, attacks_of
from workbench.cli.app import main
from workbench.core import registry
from workbench.core.errors import InputError, UnsupportedError
from workbench.execution.tasks import silent
from workbench.games.base import Part, play_part
from workbench.games.subset import SubsetGame, comparable_epsilon, small_world, world_jobs
from workbench.games.words import Judged
from workbench.interfaces import Claim, Guarantee, Plan, Released, Secret
from workbench.mechanisms.paczero import PACZero
from workbench.training.subject import TrainedSubject

FEW: dict[str, Any] = {
    "members": {},
    "candidates": 24,
    "steps": 6,
    "attack_parameters": {"subset_posterior": {"trials": 22, "counted": 12}},
    "model_parameters": {"hidden": 4},
    "workers": 0,
}
UNCOUNTED = {"subset_posterior": {"trials": 22}}
SMALL = replace(
    default_settings("paczero", {"variant": "mi"}),
    mechanism_parameters={"variant": "mi", "subset_count": 8},
    **FEW,
)
FREE = replace(
    default_settings("paczero", {"variant": "zpl"}),
    mechanism_parameters={"variant": "zpl", "subset_count": 8},
    **FEW,
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("audit")
    return out, audit_mechanisms(SMALL, out=out, command="the command")


def views(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {view["key"]: view for view in report["views"]["of"]}


def test_the_claim_decides_and_what_is_outside_it_is_called_so(played: tuple[Path, dict[str, Any]]) -> None:
    _, report = played
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    roles = [(subject["name"], subject["role"]) for subject in report["subjects"]]
    assert roles == [("paczero", "subject"), ("paczero", "reading"), ("mezo", "control")]
    by_key = views(report)
    assert list(by_key) == ["claim", "outside"]
    assert report["verdict"]["kind"] == by_key["claim"]["verdict"] == "NOT_REFUTED"
    assert report["exit_code"] == 0
    assert "nobody claims this" in by_key["outside"]["label"]
    claim, outside, control = (subject["claim"] for subject in report["subjects"])
    assert claim["guarantee"] == MutualInformation(nats=0.33, secret=Secret.SUBSET).to_json()
    assert outside["guarantee"]["epsilon"] == pytest.approx(2.0, abs=0.02)  # PACZero, section 2.
    assert "nobody's claim" in outside["source"]
    assert control == outside
    said = " ".join(by_key["claim"]["says"])
    for words in ("one of 8, holds ln 8 = 2.08 nats", "at most 88.2 % of guesses", "in 22 trainings"):
        assert words in said
    details = report["subjects"][0]["attacks"][0]["details"]
    assert details["charged_nats"] <= 0.33
    assert f"its ledger charged {details['charged_nats']:.3g}" in said
    assert "(4 candidates, 6 released bits, 12 trainings" in said
    assert "For comparing the two, these are too few trainings." in said
    assert "Who sees only the released bits and the noise, and trusts it, guesses right in" in said
    assert 0.0 < details["bits_success_lower"] < details["bits_success_upper"] < 1.0
    assert "is 2.01; as DP it would promise" in " ".join(by_key["outside"]["says"])
    assert "trained once; the control, without privacy" in " ".join(report["views"]["notes"])
    curves = report["views"]["curves"]
    assert {name: len(curve) for name, curve in curves.items()} == {
        "entropy": 6,
        "budget": 6,
        "unanimity": 6,
    }
    assert curves["budget"][-1] == pytest.approx(details["charged_nats"], abs=1e-5)


def test_its_page_draws_what_the_mechanism_did(played: tuple[Path, dict[str, Any]]) -> None:
    page = registry.create("report", "html", report=played[1])
    for words in ("Inside the claim, and outside it", "Posterior entropy", "Budget used", "Unanimity"):
        assert words in page
    assert page.count("mean over trainings") >= 3


def test_a_game_is_resumed_from_its_parts(
    played: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, first = played
    records = [json.loads(path.read_text())["content"] for path in (out / "store" / "records").iterdir()]
    parts = [one for one in records if one["job"]["kind"] == "subset"]
    assert sorted(len(one["scores"]) for one in parts) == [10, 12]
    assert sum(one["job"]["kind"] == "subset world" for one in records) == 1

    def refuse(*_: object) -> None:
        raise AssertionError("work was done again")

    for name in ("train", "play_part"):
        monkeypatch.setattr(f"workbench.audit.subjects.{name}", refuse)
    second = audit_mechanisms(SMALL, out=out, command="the command")
    changing = ("created", "cost")
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in second.items() if k not in changing
    }


def test_zero_nats_are_judged_and_read_as_epsilon_zero(tmp_path: Path) -> None:
    """The posterior never moves; the comparable epsilon is 0, which nothing divides by."""
    assert FREE.claim.guarantee == MutualInformation(nats=0.0, secret=Secret.SUBSET)
    report = audit_mechanisms(FREE, out=tmp_path, command="c")
    assert (report["verdict"]["kind"], report["exit_code"]) == ("NOT_REFUTED", 0)
    details = report["subjects"][0]["attacks"][0]["details"]
    assert details["charged_nats"] == 0.0
    assert details["mean_entropy"] == pytest.approx(math.log(8), rel=1e-12)
    assert report["subjects"][1]["claim"]["guarantee"] == ApproximateDP(epsilon=0.0, delta=1e-5).to_json()
    said = " ".join(views(report)["claim"]["says"])
    assert "With 0 nats nobody learns anything about it" in said
    assert "0 nats" in report["views"]["in_short"]
    assert registry.create("report", "html", report=report)


def words(subject: dict[str, Any], outside: dict[str, Any] | None = None) -> dict[str, Any]:
    """The views of a judged subject in words."""
    by_view = {"claim": subject} | ({"outside": outside} if outside else {})
    judged = Judged(by_view=by_view, control=None, attacks=(), mechanism="paczero", confidence=0.95)
    return SubsetGame().views(judged)


def sentence(report: dict[str, Any], beginning: str, **changes: dict[str, float]) -> str:
    """What is said of the claim in the sentence that begins so, after changes of counts or details."""
    subject = copy.deepcopy(report["subjects"][0])
    subject["counted"] |= changes.get("counted", {})
    subject["attacks"][0]["details"] |= changes.get("details", {})
    (said,) = [one for one in words(subject)["of"][0]["says"] if one.startswith(beginning)]
    return str(said)


def test_counted_nats_are_held_to_the_ledgers_charge(played: tuple[Path, dict[str, Any]]) -> None:
    def said(**changes: float) -> str:
        found = {"sparse": 0.2, "excess_lower": -0.02, "excess_upper": 0.01}
        return sentence(played[1], "Counted", counted=found | changes)

    compared = "What they share is not shown to be more than was charged (the difference: -0.02 to 0.01)."
    assert f" {compared} " in said()
    assert "share is more than was charged" in said(excess_lower=0.005)
    assert "For comparing the two, these are too few trainings." in said(sparse=0.25)


def test_counts_too_few_for_an_interval_have_none(played: tuple[Path, dict[str, Any]]) -> None:
    def said(**changes: float) -> str:
        found = {"corrected": 0.345, "lower": 0.3, "upper": 0.4, "sparse": 0.2}
        return sentence(played[1], "Counted", counted=found | changes)

    assert "secret and bits share 0.345 nats [0.3 to 0.4, asymptotic], " in said()
    assert "0.3 to" not in said(sparse=1.0)
    assert "without an interval: there are too few trainings" in said(sparse=1.0)


def test_a_score_below_zero_is_called_no_leak_and_is_no_upper_bound(
    played: tuple[Path, dict[str, Any]],
) -> None:
    def said(score: float, lower: float, upper: float) -> str:
        found = {"log_score": score, "log_score_lower": lower, "log_score_upper": upper}
        return sentence(played[1], "Whatever the noise is", details=found)

    below = said(-0.115, -0.188, -0.0386)
    assert "score -0.115 nats [-0.188 to -0.0386]" in below
    assert "bounds them from below alone" in below
    assert below.endswith("So these guesses show no leak.")
    assert "no leak" not in said(0.1, -0.1, 0.3)


def test_the_notes_name_the_tests_that_decided_and_the_intervals_confidence(
    played: tuple[Path, dict[str, Any]],
) -> None:
    note = played[1]["views"]["notes"][0]
    assert "by guesses about records and by nats about the index, which share the error" in note
    assert note.endswith("Intervals in brackets: 95 % each, by itself.")
    one = copy.deepcopy(played[1]["subjects"][0])
    one["attacks"][0]["verdict"]["bounds"] = [{"quantity": "nats"}]
    assert "at 95 % confidence, by nats about the index. Intervals" in words(one)["notes"][0]


def test_what_is_not_refuted_is_not_called_hidden(played: tuple[Path, dict[str, Any]]) -> None:
    claim, outside, _ = copy.deepcopy(played[1]["subjects"])
    claim["verdict"]["kind"], outside["verdict"]["kind"] = "UNDERPOWERED", "REFUTED"
    said = words(claim, outside)["in_short"]
    assert "who is in the universe can be told" in said
    assert "hidden" not in said


@dataclass(frozen=True, kw_only=True)
class Leaky(PACZero):
    """ZPL that releases the secret's sign where it says that it tosses a coin: its noise is a hundredth."""

    def train_on(self, plan: Plan, *, secret: Any = None, watch: Any = None, progress: Any = None) -> Any:
        """As a mechanism with nats to spend, but telling the watcher of coins."""
        honest = replace(self, variant="mi")
        budget = MutualInformation(nats=5.0, secret=Secret.SUBSET)

        def lie(release: Any) -> None:
            if release.noise > 0.0:
                release = replace(release, noise=math.inf, value=math.nan, budget_nats=0.0)
            watch(release)

        return PACZero.train_on(
            honest,
            replace(plan, budget=budget),
            secret=secret,
            watch=lie if watch is not None else None,
            progress=progress,
        )

    def train(self, plan: Plan, progress: Any = None) -> TrainedSubject:
        """As `train_on`."""
        return self.train_on(plan, progress=progress)


def test_a_leaky_coin_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test before: the same claim, and a mechanism that says it tosses coins."""
    monkeypatch.setattr(
        "workbench.games.base.create_mechanism", lambda setup: Leaky(**dict(setup.mechanism_parameters))
    )
    settings = replace(FREE, attacks=("subset_posterior",), attack_parameters=UNCOUNTED)
    report = audit_mechanisms(settings, out=tmp_path, command="c")
    assert (report["verdict"]["kind"], report["exit_code"]) == ("REFUTED", 1)
    said = " ".join(views(report)["claim"]["says"])
    assert "So the claim is false" in said
    assert "Counted" not in said


def claim(guarantee: Guarantee, about: Any = Secret.SUBSET) -> Claim:
    return Claim(guarantee=guarantee, about=about, released=Released.EVERY_UPDATE, source="the test")


def test_more_nats_than_one_bit_are_judged_by_the_index(tmp_path: Path) -> None:
    """From ln 2 on guesses about a record test nothing, nats about the index do; no epsilon compares."""
    assert comparable_epsilon(1.0) == math.inf
    assert comparable_epsilon(0.0) == 0.0
    settings = replace(
        SMALL,
        claim=claim(MutualInformation(nats=1.0, secret=Secret.SUBSET)),
        attacks=("subset_posterior",),
        attack_parameters=UNCOUNTED,
    )
    report = audit_mechanisms(settings, out=tmp_path, command="c")
    bounds = report["subjects"][0]["attacks"][0]["verdict"]["bounds"]
    assert [bound["quantity"] for bound in bounds] == ["nats"]
    said = " ".join(views(report)["claim"]["says"])
    assert "only that the index is not given away whole" in said
    assert list(views(report)) == ["claim"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attacks": ("loss", "lira")}, r"one training \(loss, lira\) cannot test: add the attack subset"),
        ({"attacks": ("sign_transcript", "subset_posterior")}, "reads released signs, and paczero"),
        ({"attacks": ("subset_posterior", "weight_canary")}, "'weight_canary' adds a record or removes it"),
        ({"mechanism_parameters": {"public_seed": 3}}, "public_seed must be None"),
        ({"attack_parameters": {"subset_posterior": {"view": "valus"}}}, "did you mean 'values'"),
        ({"sampling_probability": 0.5}, "sampling_probability must be 1 for paczero"),
        ({"optimizer": "adamw"}, "optimizer must be 'sgd'"),
        (
            {"claim": claim(MutualInformation(nats=0.3, secret=Secret.RECORD), Secret.RECORD)},
            "which candidate",
        ),
    ],
)
def test_what_cannot_be_tested_fails_before_anything_is_written(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        audit_mechanisms(replace(SMALL, **change), out=tmp_path / "out", command="c")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mechanism", ["dp_sgd", "ferret"])
def test_a_mechanism_without_subsets_has_no_such_game(mechanism: str, tmp_path: Path) -> None:
    settings = replace(default_settings(mechanism), attacks=("sign_transcript", "subset_posterior"))
    if mechanism == "dp_sgd":
        settings = embedded_settings(attacks=("subset_posterior",))
    with pytest.raises(UnsupportedError, match="candidate subset"):
        audit_mechanisms(settings, out=tmp_path / "out", command="c")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mechanism dp_sgd --nats 1", "--nats goes with a mechanism that claims nats, not with dp_sgd"),
        ("--nats 1", "--nats goes with a mechanism that claims nats, not with dp_sgd"),
        ("--mechanism dp_sgd --variant zpl", "--variant goes with a mechanism that has variants, not with"),
        ("--variant zpl", "not with dp_sgd"),
        ("--mechanism paczero --variant zp", "did you mean 'zpl'"),
        ("--mechanism paczero --variant zpl --nats 0.3", "spends nothing; its budget must be 0, got 0.3"),
        ("--mechanism paczero --variant hybrid", "mi_steps must be given for variant 'hybrid'"),
        ("--mechanism paczero --nats -1", "must be finite and >= 0, got -1"),
        ("--mechanism paczero --nats 0.3 --epsilon 0.3", "--epsilon and --nats exclude each other"),
        ("--mechanism paczero --variant mi --mechanism-parameter variant=zpl", "exclude each other"),
        ("--mechanism paczero --claim epsilon=1,delta=1e-5,adjacency=add-remove", "claim nats=...,secret="),
        ("--mechanism paczero --claim nats=0.3,secret=record", "about the record needs scores"),
        ("--scores s.csv --variant zpl", "--variant goes with an audit of a mechanism"),
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
    assert main(["audit", *shlex.split(words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


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
    main(["audit", "--mechanism", "paczero", *shlex.split(words)])
    return seen[0]


def test_variant_and_nats_are_all_that_need_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = settings_of(monkeypatch, tmp_path, "--variant zpl")
    assert free.claim == claim_of("paczero", 0.0, 0.0, source="the embedded default")
    assert free.mechanism_parameters == {"variant": "zpl"}
    assert (free.optimizer, free.sampling_probability) == ("sgd", 1.0)
    assert free.for_members().steps > free.steps
    paid = settings_of(monkeypatch, tmp_path, "--variant mi --nats 0.33 --attack lira")
    assert paid.claim.guarantee == MutualInformation(nats=0.33, secret=Secret.SUBSET)
    assert (paid.attacks, paid.attack_parameters) == (("lira",), {"lira": {"shadows": 4}})
    same = settings_of(monkeypatch, tmp_path, "--epsilon 0.33 --mechanism-parameter variant=mi")
    assert same.claim == paid.claim
    written = settings_of(monkeypatch, tmp_path, "--claim nats=0.25,secret=candidate-subset --steps 5")
    assert written.claim.guarantee == MutualInformation(nats=0.25, secret=Secret.SUBSET)
    assert (written.steps, written.members) == (5, {})
    bits = settings_of(monkeypatch, tmp_path, "--mechanism-parameter posterior=bits")
    views_seen = [one.attack_parameters["subset_posterior"]["view"] for one in (free, bits)]
    assert views_seen == ["values", "bits"]
    endless = settings_of(monkeypatch, tmp_path, "--mechanism-parameter clip=inf")
    assert endless.mechanism_parameters == {"clip": math.inf}


def game_of(settings: AuditSettings, **given: Any) -> PlayedBy:
    """The game of the attack with these parameters."""
    attack = "subset_posterior"
    (one,) = attacks_of(replace(settings, attacks=(attack,), attack_parameters={attack: given}))
    return one


def test_jobs_of_the_games() -> None:
    one = game_of(SMALL, view="bits", trials=50)
    assert (one.game.name_of(one.name, one.attack), one.game.name) == ("subset_posterior (bits)", "subset")
    hybrid = replace(SMALL, mechanism_parameters={"variant": "hybrid", "mi_steps": 9, "directions": 2})
    setup = hybrid.setup(())
    sizes = [job.payload.trials for job in one.game.jobs(setup, [True] * 24, one.name, one.given)]
    assert sum(sizes) == 50
    assert max(sizes) <= 20
    small = small_world(setup)
    assert (small.steps, small.mechanism_parameters["subset_count"]) == (3, 4)
    assert small.mechanism_parameters["mi_steps"] == 3
    worlds = [job.payload for job in world_jobs(setup, [True] * 24, one.name, one.given, 600)]
    assert [world.trials for world in worlds] == [200, 200, 200]
    assert world_jobs(setup, [True] * 24, one.name, one.given, 0) == []


def test_no_two_parts_of_a_game_share_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of two parts with one seed would be the same trials: the bounds want independent ones."""
    seeds: list[int] = []

    def noted(*_: object, seed: int, **__: object) -> None:
        seeds.append(seed)
        raise InterruptedError

    monkeypatch.setattr("workbench.games.subset.play_subsets", noted)
    one = game_of(FREE, trials=100)
    for job in one.game.jobs(FREE.setup(()), [True] * 24, one.name, one.given):
        with pytest.raises(InterruptedError):
            play_part(job.payload, {}, Path(), silent)
    assert len(seeds) == len(set(seeds)) == 5


def test_a_worker_plays_the_whole_game_in_one_part_too() -> None:
    """As a study does: the parameters are the setup's, and the split's members are the universe."""
    given = {"subset_posterior": {"trials": 20}}
    setup = replace(FREE, attack_parameters=given).setup(("subset_posterior",))
    included = tuple((np.arange(24) < 12).tolist())
    game = play_part(Part(setup=setup, attack="subset_posterior", included=included), {}, Path(), silent)
    assert game["scores"].shape == game["members"].shape == (20,)
    assert game["details"]["success_lower"] <= game["details"]["success"] <= 1.0
    assert game["details"]["charged_nats"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--variant zpl", "--variant mi --nats 0.33 --attack lira"])
def test_the_command_ends_with_a_verdict(words: str, tmp_path: Path) -> None:
    """As a user types it, but for the number of trainings. An error of 5 % is the verdict's own."""
    command = [
        sys.executable,
        "-m",
        "workbench.cli",
        "audit",
        "--mechanism",
        "paczero",
        *shlex.split(words),
    ]
    more = (
        "--attack subset_posterior --attack-parameter subset_posterior.trials=60 --candidates 40 --steps 20 "
        "--json audit.json"
    )
    done = subprocess.run(
        [*command, *shlex.split(more)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "audit.json").read_text())
    assert report["verdict"]["kind"] == "NOT_REFUTED"
    assert "Inside the claim" in done.stdout
    assert (tmp_path / "audit" / "report.html").is_file()
    if "lira" in words:
        outside = report["subjects"][1]
        assert [attack["attack"] for attack in outside["attacks"]] == ["lira"]
        assert np.array(outside["attacks"][0]["scores"], dtype=float).size == 40
