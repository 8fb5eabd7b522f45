"""The audit of permuted weights inside a study: all adversaries in all games, judged, kept, and read back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from study_driver import probed

from workbench.accounting import NoGuarantee
from workbench.execution.store import Store
from workbench.games.base import Part, match_of
from workbench.games.consecutive import RUN, SINGLE, VIEWS
from workbench.games.consecutive.game import ConsecutiveGame, audit_form, flat_metrics
from workbench.interfaces import Sampling
from workbench.studies.experiments import Experiment, Outcome, Status, Study
from workbench.studies.jobs import JobKind, Training, jobs_of, membership, setup_of
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.studies.study import check_experiments
from workbench.training import setup as workers

RELEASES, RUNS = 200, 20
PLACES = [(view, where) for where in (SINGLE, RUN) for view in VIEWS]


def experiment(**changes: Any) -> Experiment:
    """Twenty of 40 digits in four steps."""
    return Experiment(
        **{
            "group": "audit",
            "variant": "Shuffled DPSGD (audited)",
            "mechanism": "shuffled_dp_sgd",
            "attack": "weight_tidying",
            "attack_parameters": {"releases": RELEASES, "runs": RUNS, "probes": 64},
            "corpus": "digits",
            "model": "digits_mlp",
            "model_parameters": {"hidden": 8},
            "members": 20,
            "epochs": 2,
            "batch_size": 10,
            "learning_rate": 1.0,
            "optimizer": "sgd",
            "seed": 0,
            "epsilon": 0.5,
            "delta": 1e-5,
            **changes,
        }
    )


def study(*experiments: Experiment) -> Study:
    return Study(
        name="small",
        title="Small",
        profile="quick",
        replication="seed",
        experiments=experiments,
        source_sha256="0" * 64,
    )


CONTROL = experiment(group="audit, control", variant="DPSGD (audited)", mechanism="dp_sgd")
SINGLES = experiment(
    group="audit, rates",
    attack_parameters={"releases": 24, "runs": 0, "state": "start"},
    learning_rate=1000.0,
    seed=1,
)
REFUSED = experiment(sampling=Sampling.SHUFFLED)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, ...]:
    wanted = study(experiment(), CONTROL, SINGLES, REFUSED)
    check_experiments(wanted.experiments)
    out = tmp_path_factory.mktemp("study")
    run_study(wanted, out=out, options=RunOptions(workers=0))
    return read_results(wanted, Store(out / "store")).outcomes


def test_an_audit_needs_no_shared_training() -> None:
    found = jobs_of(experiment())
    assert (found.refusal, found.trainings, found.measuring.needs) == (None, (), ())
    assert found.measuring.kind is JobKind.MEASURING
    keys = {jobs_of(one).measuring.key for one in (experiment(), CONTROL, SINGLES, REFUSED)}
    assert len(keys) == 4


@pytest.mark.slow
def test_every_adversary_is_judged_in_every_game(outcomes: tuple[Outcome, ...]) -> None:
    """The same payment as in `workbench audit`: six games share the error."""
    for one in outcomes[:2]:
        audit: Any = one.audit
        assert json.loads(json.dumps(audit, allow_nan=False)) == audit
        assert [(game["view"], game["where"]) for game in audit["games"]] == PLACES
        assert audit["judged_at"] == pytest.approx(1 - (1 - audit["confidence"]) / 6)
        for game in audit["games"]:
            assert game["verdict"]["significance"] == pytest.approx(1 - audit["judged_at"])
            assert game["bound"]["quantity"] == "epsilon"
            assert game["n"] == (RELEASES if game["where"] == SINGLE else RUNS)
            assert game["auc"]["lower"] <= game["auc"]["estimate"] <= game["auc"]["upper"]
            place = f"({game['view']}, {game['where']})"
            assert one.metrics[f"epsilon_lower {place}"] == game["bound"]["lower"]
            assert one.metrics[f"as_printed {place}"] == game["details"]["as_printed"]
        assert audit["claim"]["guarantee"]["epsilon"] == 0.5
    subject, control = (one.audit for one in outcomes[:2])
    assert subject is not None
    assert control is not None
    by_place = {(game["view"], game["where"]): game for game in subject["games"]}
    assert by_place["tidying", SINGLE]["verdict"]["kind"] == subject["verdict"]["kind"] == "REFUTED"
    assert by_place["blind", SINGLE]["verdict"]["kind"] == "NOT_REFUTED"
    assert control["verdict"]["kind"] in ("NOT_REFUTED", "UNDERPOWERED")


def test_what_was_found_is_kept_unit_by_unit_and_step_by_step(outcomes: tuple[Outcome, ...]) -> None:
    whole: Any = outcomes[0].audit
    single, run = (whole["recovery"][where] for where in (SINGLE, RUN))
    assert (single["n"], run["n"]) == (RELEASES, RUNS * outcomes[0].experiment.steps)
    for own, steps in ((single, 1), (run, outcomes[0].experiment.steps)):
        assert set(own["exact"]) == {"0.hidden", "all"}
        assert all(len(series) == steps for series in own["exact_by_step"].values())
        assert np.mean(own["placed_by_step"]["0.hidden"]) == pytest.approx(own["placed"]["0.hidden"])
    assert outcomes[0].metrics[f"recovered ({SINGLE})"] == single["exact"]["all"] == 1.0
    few: Any = outcomes[2].audit
    assert list(few["recovery"]) == [SINGLE]
    assert [(game["view"], game["where"]) for game in few["games"]] == [(view, SINGLE) for view in VIEWS]
    assert few["judged_at"] == pytest.approx(1 - 0.05 / 3)
    assert few["recovery"][SINGLE]["placed"]["0.hidden"] < 1.0  # At a thousand times the rate.
    assert len(outcomes[2].scores) == 24


def test_the_tidying_adversarys_whole_runs_stand_for_the_experiment(outcomes: tuple[Outcome, ...]) -> None:
    assert [one.status for one in outcomes[:3]] == [Status.DONE] * 3
    assert len(outcomes[0].scores) == RUNS
    assert sum(outcomes[0].included) == RUNS // 2
    assert outcomes[0].audit is not None
    assert outcomes[0].claim == outcomes[0].audit["claim"]
    assert outcomes[0].metrics["noise_multiplier"] < 0.5 * outcomes[1].metrics["noise_multiplier"]


def test_what_cannot_be_read_is_recorded_as_failed(outcomes: tuple[Outcome, ...]) -> None:
    assert outcomes[3].status is Status.FAILED
    assert "Poisson samples" in outcomes[3].error
    assert outcomes[3].audit is None


def test_without_a_claim_there_are_bounds_and_no_verdict() -> None:
    """Of a mechanism without permutations or noise nobody claims anything."""
    setup = setup_of(
        experiment(
            attack_parameters={"releases": 100, "runs": 0},
            mechanism_parameters={"shuffle": False, "noise_multiplier": 0.0},
        )
    )
    included = membership(Training(setup=setup, run=0, shadows=0, unreleased=False))
    target = workers.create_mechanism(setup).train(workers.make_plan(setup, included, 0))
    assert isinstance(target.claim.guarantee, NoGuarantee)
    part = Part(setup=setup, attack="weight_tidying", included=tuple(included.tolist()), by_coin=False)
    match = replace(match_of(part, {}), target=target)
    played = ConsecutiveGame().play(match)
    form: Any = audit_form(match, played)
    assert form["verdict"] is None
    assert {game["verdict"] for game in form["games"]} == {None}
    bounds = {game["view"]: game["bound"]["lower"] for game in form["games"]}
    assert bounds["blind"] == bounds["tidying"] > 1.0
    first, *others = played.rounds
    silent = replace(first, scores=np.full(100, -0.1))
    form = audit_form(match, replace(played, rounds=(silent, *others)))
    blind = form["games"][0]
    assert (blind["bound"]["lower"], blind["auc"]["estimate"]) == (0.0, 0.5)
    assert all(math.isfinite(value) for value in flat_metrics(form).values())


@pytest.mark.slow
def test_what_an_audit_will_cost_is_tried() -> None:
    """Fifty times the runs cost more than twice as much, however busy the machine is meanwhile."""
    seconds = []
    for runs in (20, 1000):
        sizes = {"releases": RELEASES, "runs": runs}
        found = probed(study(experiment(attack_parameters=sizes)), seconds=60.0)
        assert (found.unknown, found.is_probed) == ((), True)
        seconds.append(found.core_seconds)
    assert seconds[1] > 2 * seconds[0] > 0
