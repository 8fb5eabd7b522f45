"""Plans: the games that test a claim, what they cost and where that comes from, and the advice on a fault."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench
from workbench.audit import plan
from workbench.audit.claims import parse_claim
from workbench.audit.plan import advice, cost_of, plan_record, planned_games
from workbench.audit.report_file import write_report
from workbench.audit.run import report_record
from workbench.core.errors import InputError, UnsupportedError
from workbench.estimation.judge import judge, judged_subject
from workbench.estimation.power import Strength
from workbench.estimation.subset_trials import SubsetEvidence, perfect_log_score
from workbench.games.subset import SubsetGame
from workbench.interfaces import Evidence, Family, GameTerms, Released, Trials, VerdictKind

RUN: dict[str, Any] = {"prior": 0.5, "steps": 40, "sampling_probability": 0.1}
MEASURED = """
machine = "a machine"
[game.replay]
seconds = 20
[game.canaries]
seconds = 2
trials = 100
[game.scores]
seconds = 10
trials = 100
[game.release]
seconds = 0.4
trials = 4000
training = 3
[fault.noise]
trainers = 4
replay = [4, 0]
canaries = [4, 0]
scores = [0, 0]
[fault.clip]
trainers = 4
replay = [4, 0]
canaries = [3, 0]
scores = [0, 0]
[fault.normaliser]
trainers = 2
replay = [0, 1]
canaries = [0, 0]
scores = [0, 0]
[fault.sampler]
trainers = 2
replay = [0, 0]
canaries = [0, 0]
scores = [0, 0]
"""


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "measured", lambda: tomllib.loads(MEASURED))


def claim_of(text: str) -> Any:
    return parse_claim(text, released=Released.EVERY_UPDATE)


EPSILON_FOUR = claim_of("epsilon=4,delta=1e-5,adjacency=add-remove")


def test_the_games_are_those_that_test_the_claim() -> None:
    usual = planned_games((), EPSILON_FOUR, **RUN)
    assert [game.name for game in usual] == ["membership", "canaries", "weights", "release"]
    assert [game.terms.trials for game in usual[:3]] == [Trials.ONE_RUN, Trials.ONE_RUN, Trials.INDEPENDENT]
    release = usual[3]
    assert (release.unit, release.terms.family, release.terms.steps) == ("releases", Family.GAUSSIAN, 40)
    replaced = planned_games((), claim_of("epsilon=4,delta=1e-5,adjacency=replace-one"), **RUN)
    assert [game.name for game in replaced] == ["membership", "release"]


@pytest.mark.parametrize(
    ("names", "claim", "message"),
    [
        (["membershp"], "epsilon=4,delta=1e-5,adjacency=add-remove", "did you mean 'membership'"),
        (["canaries"], "epsilon=4,delta=1e-5,adjacency=replace-one", "'canaries' does not test claims about"),
        ([], "epsilon=4,delta=1e-5,adjacency=zero-out", "no game tests claims about zero-out"),
    ],
)
def test_games_that_are_none_of_the_claims_are_refused(names: list[str], claim: str, message: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        planned_games(names, claim_of(claim), **RUN)


@pytest.mark.slow
@pytest.mark.usefixtures("figures")
def test_a_plan_says_trials_cost_and_what_is_shown() -> None:
    games = planned_games(["canaries", "weights"], EPSILON_FOUR, **RUN)
    record = plan_record(
        EPSILON_FOUR, Strength(), games, trials=(100, 1000), confidence=0.95, seed=0, report=None
    )
    canaries, weights = record["games"]
    half, often = canaries["needed"]
    assert half["trials"] <= often["trials"]
    assert often["seconds"] == pytest.approx(often["trials"] * 0.02)
    assert canaries["cost"]["source"] == "benchmarks/plan.py: 100 trials, a machine"
    assert (weights["cost"], weights["needed"][0]["seconds"]) == (None, None)
    few, many = canaries["shown"]
    assert (few["power"], many["power"]) == (0.0, 1.0)
    assert dict(many["epsilon"])[0.95] > 4.0 > dict(few["epsilon"])[0.5]
    assert cost_of("release", None).training == 3  # type: ignore[union-attr]


def test_other_currencies_are_planned_where_the_judge_turns_them_into_epsilon() -> None:
    claim = claim_of("mu=1,adjacency=add-remove")
    given: dict[str, Any] = {"trials": (100,), "confidence": 0.95, "seed": 0}
    record = plan_record(claim, Strength(), planned_games(["membership"], claim, **RUN), **given)
    assert record["epsilon"] == pytest.approx(4.377, abs=1e-3)
    with pytest.raises(UnsupportedError, match="tested by its own curve"):
        plan_record(claim, Strength(), planned_games(["weights"], claim, **RUN), **given)


def planned_nats(nats: float, subsets: int, *trials: int) -> Any:
    claim = claim_of(f"nats={nats},secret=candidate-subset")
    (game,) = planned_games((), claim, **RUN)
    given: dict[str, Any] = {"trials": trials, "confidence": 0.95, "seed": 0, "subsets": subsets}
    return plan_record(claim, Strength(), [game], **given)["games"][0]


@pytest.mark.parametrize(("nats", "subsets"), [(0.0, 2), (0.1, 2), (1.0, 128), (4.0, 128)])
def test_nats_are_refuted_with_the_planned_trials_and_not_with_one_fewer(nats: float, subsets: int) -> None:
    """By the judge itself, on what an adversary who is sure and right shows."""
    needed = planned_nats(nats, subsets, 100)["needed"][0]["trials"]
    claim = claim_of(f"nats={nats},secret=candidate-subset")

    def verdict(n: int) -> VerdictKind:
        evidence = SubsetEvidence(
            scores=np.ones(n),
            members=np.arange(n) % 2 == 0,
            game=SubsetGame().terms(view="values"),
            attack="subset_posterior",
            candidates=subsets,
            record_success=np.ones(n),
            log_scores=np.full(n, perfect_log_score(subsets)),
        )
        return judge(claim, evidence, confidence=0.95, generator=np.random.default_rng(0)).kind

    assert verdict(needed) is VerdictKind.REFUTED
    assert needed == 4 or verdict(needed - 1) is not VerdictKind.REFUTED


def test_nats_beyond_what_an_index_holds_are_never_refuted() -> None:
    game = planned_nats(5.0, 128, 100)
    assert (game["needed"][0]["trials"], game["shown"][0]["power"]) == (None, 0.0)
    assert 4.0 < dict(game["shown"][0]["nats"])[0.95] < game["most"] < 5.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack_strength": "mu=1"}, "nats are planned for a perfect attack alone, got mu = 1"),
        ({"games": "membership"}, "does not test claims about candidate-subset"),
        ({"subsets": 1}, "subsets must be"),
        ({"claim": "nats=1,secret=record"}, "of nats about a candidate-subset, got mutual information"),
    ],
)
def test_plans_of_nats_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        workbench.plan(**{"claim": "nats=1,secret=candidate-subset", **changes})


def test_a_plan_of_nats_reads_as_one() -> None:
    found = workbench.plan("nats=1,secret=candidate-subset", trials=100)
    assert found.sentence.startswith("subset refutes mutual information of at most 1 nats")
    assert found.bounds["subset", 100] == pytest.approx(4.47, abs=0.01)
    assert {"nats", "power", "trials"} <= set(found.to_frame().columns)


def test_the_seconds_of_a_report_come_before_those_of_the_table(tmp_path: Path) -> None:
    members = np.arange(50) % 2 == 0
    evidence = Evidence(
        scores=np.arange(50.0),
        members=members,
        game=GameTerms(description="", trials=Trials.ONE_RUN),
        attack="loss",
        cost={"seconds": 5.0},
    )
    subject = judged_subject("dp_sgd", "subject", EPSILON_FOUR, [evidence], confidence=0.95, seed=0)
    subject["cost"] = {"seconds": 20.0}

    report = report_record(EPSILON_FOUR, [subject], seed=0, command="test", started=datetime.now(UTC))
    write_report(report, out=None, json_file=tmp_path / "r.json")
    cost = cost_of("membership", tmp_path / "r.json")
    assert cost is not None
    assert cost.seconds == 0.5
    assert cost.source.endswith("r.json: 50 trials of loss")
    with pytest.raises(InputError, match=r"cannot read .*none\.json: No such file"):
        cost_of("membership", tmp_path / "none.json")
    for content in ('{"subjects": []}', '{"subjects": [{"attacks": [1]}]}', "[]"):
        (tmp_path / "bad.json").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match="is no report of an audit"):
            cost_of("membership", tmp_path / "bad.json")


@pytest.mark.usefixtures("figures")
def test_the_game_that_sees_most_is_advised_and_of_equals_the_cheapest() -> None:
    assert advice("noise")["first"] == "canaries"
    assert [game["name"] for game in advice("noise")["games"]] == ["canaries", "replay", "scores"]
    assert advice("clip")["first"] == "replay"
    assert advice("normaliser")["first"] == "replay"
    assert advice("sampler")["first"] is None
    with pytest.raises(InputError, match="unknown fault 'nois'; did you mean 'noise'"):
        advice("nois")


def test_the_table_holds_what_a_plan_reads() -> None:
    table = plan.measured()
    assert set(table["fault"]) == {"noise", "clip", "sampler", "normaliser", "accountant", "side-channel"}
    for fault in table["fault"]:
        found = advice(fault)
        assert all(game["refuted"] + game["undecided"] <= found["trainers"] for game in found["games"])
    for game in ("membership", "canaries", "weights", "release"):
        cost = cost_of(game, None)
        assert cost is not None
        assert cost.seconds > 0
