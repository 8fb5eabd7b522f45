"""Runs that differ in their seed alone are trained as one ensemble, and say what they said one at a time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_driver as driver

from workbench.execution.store import Store
from workbench.execution.tasks import Finished, Started
from workbench.studies import together
from workbench.studies.experiments import Experiment, Status, Study, StudyResults
from workbench.studies.jobs import Training, jobs_of
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study

DP_SGD: dict[str, Any] = {"mechanism": "dp_sgd", "variant": "DP-SGD", "model": "digits_mlp"}


def seeds_of(count: int, **changes: Any) -> list[Experiment]:
    return [driver.experiment(**{**DP_SGD, "seed": seed, **changes}) for seed in range(count)]


def ran(study: Study, out: Path) -> tuple[StudyResults, list[Any]]:
    """The results, and the events of the run."""
    events: list[Any] = []
    run_study(study, out=out, options=RunOptions(workers=0), listener=events.append)
    with closing(Store(out / "store")) as store:
        return read_results(study, store), events


def trainings(events: list[Any]) -> list[int]:
    """How many runs each task trained."""
    payloads = [event.task.payload for event in events if isinstance(event, Started)]
    return [len(p.trainings) if isinstance(p, together.Together) else 1 for p in payloads if _trains(p)]


def _trains(payload: object) -> bool:
    return isinstance(payload, together.Together | Training)


def numbers(results: StudyResults) -> dict[str, dict[str, float]]:
    return {outcome.experiment.name: dict(outcome.metrics) for outcome in results.outcomes}


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(together, "group_of", lambda training: "")
    return monkeypatch


def test_seeds_are_one_task_and_each_has_its_record(tmp_path: Path) -> None:
    study = driver.study_of(*seeds_of(4), *seeds_of(3, epsilon=1.0))
    results, events = ran(study, tmp_path)
    assert sorted(trainings(events)) == [3, 4]
    assert all(outcome.status is Status.DONE for outcome in results.outcomes)
    ended = [
        e.task.id
        for e in events
        if isinstance(e, Finished) and not isinstance(e.task.payload, together.Together)
    ]
    keys = {jobs_of(e).trainings[0].key for e in study.experiments}
    assert keys <= set(ended)


@pytest.mark.slow
def test_the_numbers_are_those_of_one_at_a_time(tmp_path: Path, one_at_a_time: pytest.MonkeyPatch) -> None:
    study = driver.study_of(*seeds_of(3))
    alone, events = ran(study, tmp_path / "alone")
    assert trainings(events) == [1, 1, 1]
    one_at_a_time.undo()
    joint, events = ran(study, tmp_path / "joint")
    assert trainings(events) == [3]
    expected, found = numbers(alone), numbers(joint)
    assert len({str(row) for row in found.values()}) == 3
    for name, row in expected.items():
        assert found[name].keys() == row.keys()
        for metric, value in row.items():
            if "auc" not in metric:  # A rank may turn on the last bit.
                assert found[name][metric] == pytest.approx(value, rel=1e-3, abs=0.03), metric


def test_who_else_is_trained_changes_no_bit(tmp_path: Path) -> None:
    few, _ = ran(driver.study_of(*seeds_of(1)), tmp_path / "few")
    many, _ = ran(driver.study_of(*seeds_of(4)), tmp_path / "many")
    (first,) = few.outcomes
    assert np.array_equal(first.scores, many.outcomes[0].scores)


def test_one_that_diverges_fails_no_other(tmp_path: Path) -> None:
    """An ensemble in which one diverges is trained again one at a time, and only that one fails."""
    wild = {**DP_SGD, "mechanism": "non_private", "epsilon": None, "delta": None, "optimizer": "sgd"}
    study = driver.study_of(
        *[driver.experiment(**{**wild, "seed": s, "learning_rate": 1e38}) for s in (0, 1)]
    )
    results, events = ran(study, tmp_path)
    assert trainings(events) == [2, 1, 1]
    assert [outcome.status for outcome in results.outcomes] == [Status.FAILED, Status.FAILED]
    assert all("not finite" in outcome.error for outcome in results.outcomes)


def test_what_no_ensemble_trains_is_trained_by_itself() -> None:
    (job,) = jobs_of(driver.experiment(**DP_SGD)).trainings
    assert isinstance(job.payload, Training)
    group = together.group_of(job.payload)
    assert group
    reseeded = replace(job.payload, setup=replace(job.payload.setup, seed=7))
    assert together.group_of(reseeded) == group
    for changes in ({"learning_rate": 0.5}, {"steps": 3}, {"model": "digits_logistic"}):
        assert together.group_of(replace(job.payload, setup=replace(job.payload.setup, **changes))) != group  # type: ignore[arg-type]
    for changes in (
        {"mechanism": "rldp"},
        {"model": "digits_vit"},
        {"mechanism_parameters": {"evaluation_interval": 2}},
    ):
        setup = replace(job.payload.setup, **changes)  # type: ignore[arg-type]
        assert together.group_of(replace(job.payload, setup=setup)) == ""
    assert together.group_of(replace(job.payload, unreleased=True)) == ""
