"""Transcript games in studies and audits: no shared training, one score a trial, and keys of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_driver import probed, training_key

from workbench.core.errors import InputError
from workbench.core.keys import plain
from workbench.estimation.low_fpr import low_fpr_details
from workbench.execution.processes import one_thread
from workbench.execution.store import Store
from workbench.execution.tasks import Stepped, silent
from workbench.games.base import Part, game_named, match_of, play_part
from workbench.games.transcript import TranscriptGame
from workbench.interfaces import Currency, Released, Trials
from workbench.studies.costs import estimate
from workbench.studies.experiments import Experiment, Status, Study
from workbench.studies.jobs import JobKind, Training, jobs_of, membership, setup_of
from workbench.studies.results import pending, read_results
from workbench.studies.run import RunOptions, run_study

TRIALS = 20


def experiment(**changes: Any) -> Experiment:
    """Twelve of 24 digits, and 20 trials."""
    return Experiment(
        **{
            "group": "transcript",
            "variant": "FERRET-2",
            "mechanism": "ferret",
            "mechanism_parameters": {"granularity": "2"},
            "attack": "sign_transcript",
            "attack_parameters": {"trials": TRIALS, "others": "copies"},
            "corpus": "digits",
            "model": "digits_mlp",
            "model_parameters": {"hidden": 4},
            "members": 12,
            "epochs": 2,
            "batch_size": 3,
            "learning_rate": 1e-3,
            "seed": 0,
            "epsilon": 0.5,
            "currency": Currency.RECORD_NATS,
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


def key(**changes: Any) -> str:
    return jobs_of(experiment(**changes)).measuring.key


def test_a_transcript_needs_no_training() -> None:
    found = jobs_of(experiment())
    assert found.refusal is None
    assert found.trainings == ()
    assert found.measuring.kind is JobKind.MEASURING
    assert found.measuring.needs == ()
    with pytest.raises(InputError, match="'sign_transcript' attacks no shared training"):
        training_key(experiment())


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 1.0},
        {"seed": 1},
        {"members": 11},
        {"epochs": 3},
        {"learning_rate": 2e-3},
        {"model_parameters": {"hidden": 5}},
        {"mechanism_parameters": {"granularity": "max"}},
        {"attack_parameters": {"trials": TRIALS, "others": "corpus"}},
        {"attack_parameters": {"trials": TRIALS + 2, "others": "copies"}},
        {"corpus_parameters": {"held_out": 70}},
    ],
)
def test_what_decides_a_game_decides_its_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


def test_defaults_and_labels_are_no_part_of_a_games_key() -> None:
    written_out = {"trials": TRIALS, "others": "copies", "canary": "opposed", "knowledge": "batches"}
    assert key(attack_parameters=written_out) == key()
    assert key(mechanism_parameters={"granularity": "2", "clip_norm": 1.0}) == key()
    assert key(group="elsewhere", variant="another name") == key()


def test_a_game_is_run_and_read_back(tmp_path: Path) -> None:
    """Scores, labels and metrics of the trials; progress by trial; the same again from the same seed."""
    told: list[tuple[int, int]] = []

    def listen(event: object) -> None:
        if isinstance(event, Stepped):
            told.append((event.done, event.total))

    asked = study(experiment(), experiment(epsilon=0.25))
    summary = run_study(asked, out=tmp_path, options=RunOptions(workers=0), listener=listen)
    assert (summary.done, summary.failed, summary.trained) == (2, 0, 0)
    assert (TRIALS, TRIALS) in told
    store = Store(tmp_path / "store")
    assert pending(asked, store).measurings == ()
    more = study(*(experiment(epsilon=epsilon) for epsilon in (0.5, 0.125, 0.1)))
    cost = estimate(store, pending(more, store))
    assert (cost.unknown, cost.measured_from) == ((), 2)
    assert 0 < cost.core_seconds < 60
    first, second = read_results(asked, store).outcomes
    assert first.status is second.status is Status.DONE
    assert len(first.scores) == len(first.included) == TRIALS
    assert sum(first.included) == TRIALS // 2
    assert first.training_losses == ()
    assert not any(name.startswith(("perplexity", "loss_")) for name in first.metrics)
    expected = low_fpr_details(np.array(first.scores), np.array(first.included))
    assert {name: first.metrics[name] for name in expected} == pytest.approx(expected)
    for name in ("roc_auc", "attack_firings", "attack_certain", "firing_probability", "groups", "fired"):
        assert np.isfinite(first.metrics[name])
    assert first.metrics["groups"] == 2
    assert first.claim is not None
    assert first.claim["guarantee"]["nats"] == 0.5
    setup = setup_of(experiment())
    target = Training(setup=setup, run=0, shadows=0, unreleased=False)
    included = tuple(membership(target).tolist())
    with one_thread():
        part = Part(setup=setup, attack="sign_transcript", included=included, by_coin=False)
        (played,) = TranscriptGame().play(match_of(part, {})).rounds
    assert played.scores.tolist() == list(first.scores)
    assert played.members.tolist() == list(first.included)


@pytest.mark.slow
def test_what_a_game_will_cost_is_tried(tmp_path: Path) -> None:
    """Twenty times the trials cost more than twice as much, however busy the machine is meanwhile."""
    seconds = []
    for trials in (TRIALS, 20 * TRIALS):
        found = probed(study(experiment(attack_parameters={"trials": trials, "others": "copies"})))
        assert (found.unknown, found.is_probed) == ((), True)
        seconds.append(found.core_seconds)
    assert seconds[1] > 2 * seconds[0] > 0


def test_what_cannot_be_played_is_recorded(tmp_path: Path) -> None:
    above = experiment(epsilon=30.0)
    shuffled = replace(experiment(), attack_parameters={"trials": TRIALS, "canary": "oposed"})
    asked = study(above, shuffled, experiment(mechanism="dp_sgd", mechanism_parameters={}))
    summary = run_study(asked, out=tmp_path, options=RunOptions(workers=0))
    assert (summary.done, summary.failed) == (0, 3)
    errors = [outcome.error for outcome in read_results(asked, Store(tmp_path / "store")).outcomes]
    assert "epsilon must be at most" in errors[0]
    assert "did you mean 'opposed'" in errors[1]
    assert "\n" not in "".join(errors)


def test_an_audits_worker_plays_it_too(tmp_path: Path) -> None:
    setup = setup_of(experiment())
    part = Part(setup=setup, attack="sign_transcript", included=tuple(i % 2 == 0 for i in range(24)))
    record = plain(play_part(part, {}, tmp_path, silent))
    (found,) = game_named("sign_transcript").evidence("transcript", [record], seed=0, confidence=0.95)
    assert found.game.trials is Trials.INDEPENDENT
    assert found.game.released is Released.EVERY_UPDATE
    assert found.scores.size == found.members.size == TRIALS
    assert found.details["trials_in"] == TRIALS // 2
    assert game_named("sign_transcript").released is Released.EVERY_UPDATE
