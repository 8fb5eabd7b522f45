"""Per-step series of a training in a study, its LoRA rank, and what a step of several directions costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.core import registry
from workbench.core.keys import plain
from workbench.execution.store import Store
from workbench.interfaces import Plan
from workbench.mechanisms.mezo import MeZO
from workbench.studies.costs import kind_text, probe, terms
from workbench.studies.experiments import Experiment, Status, Study
from workbench.studies.jobs import JobKind, Training, jobs_of, membership, setup_of
from workbench.studies.results import _training_record, pending, read_results
from workbench.studies.run import RunOptions, run_study
from workbench.training import setup as workers


def experiment(**changes: Any) -> Experiment:
    """Twelve of 24 digits, all in each of four steps."""
    return Experiment(
        **{
            "group": "traces",
            "variant": "MeZO",
            "mechanism": "mezo",
            "mechanism_parameters": {"dev_every": 2, "directions": 2},
            "attack": "loss",
            "corpus": "digits",
            "corpus_parameters": {"held_out": 20, "public": 10},
            "model": "digits_mlp",
            "model_parameters": {"hidden": 4},
            "members": 12,
            "epochs": 4,
            "batch_size": 12,
            "learning_rate": 1e-3,
            "optimizer": "sgd",
            "seed": 0,
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


def test_traces_come_back_with_the_outcome(tmp_path: Path) -> None:
    one = study(experiment())
    run_study(one, out=tmp_path, options=RunOptions(workers=0))
    found = read_results(one, Store(tmp_path / "store")).outcomes[0]
    assert found.status is Status.DONE, found.error
    losses = found.traces["dev_loss"]
    assert [math.isfinite(value) for value in losses] == [False, True, False, True]
    assert len(found.training_losses) == 4
    assert 0.0 <= found.metrics["test_accuracy_after"] <= 1.0
    assert found.metrics["best_step"] in (2.0, 4.0)


def test_a_record_of_an_earlier_version_has_no_traces() -> None:
    record = {"status": "done", "losses": [1.0, "nan"], "cost": {"training_seconds": 2.0}}
    found = _training_record(record)
    assert found.losses[0] == 1.0
    assert (dict(found.traces), dict(found.cost)) == ({}, {"training_seconds": 2.0})
    assert _training_record({**record, "traces": {"bit": [1.0, "nan"]}}).traces["bit"][0] == 1.0
    assert _training_record({**record, "traces": [3]}).losses == ()


def test_the_rank_of_an_adapter_reaches_the_plan_and_the_key() -> None:
    lora = experiment(adapter="lora", lora_rank=8)
    target = Training(setup=setup_of(lora), run=0, shadows=0, unreleased=False)
    assert workers.make_plan(target.setup, membership(target), 0).lora_rank == 8
    assert jobs_of(lora).measuring.key != jobs_of(replace(lora, lora_rank=4)).measuring.key


def test_a_step_of_more_directions_costs_more() -> None:
    """Two forward passes a direction."""
    one, many = (
        terms(JobKind.TRAINING, plain(experiment(mechanism_parameters=parameters)), 0)
        for parameters in ({}, {"directions": 5})
    )
    assert many == (one[0], one[1], 5 * one[2], 5 * one[3])


def test_a_probe_keeps_all_records_in_a_step_where_the_study_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mechanism that refuses a share of the records could be tried in no other way."""
    seen: list[float] = []

    class OfAll(MeZO):
        def train(self, plan: Plan, progress: Callable[[int, int], None] | None = None) -> Any:
            seen.append(plan.sampling_probability)
            return super().train(plan, progress)

    registry.entries("mechanism")
    entry = registry.Entry(name="mezo_of_all", factory=OfAll, summary="")
    monkeypatch.setitem(registry._entries["mechanism"], "mezo_of_all", entry)
    whole = study(experiment(mechanism="mezo_of_all", members=40, batch_size=40))
    found = probe(Store(tmp_path), pending(whole, Store(tmp_path)))
    assert set(seen) == {1.0}
    assert not found.unknown
    assert found.core_seconds > 0.0


def test_zeroth_order_mechanisms_are_one_kind() -> None:
    """Forward passes are what they cost, whoever makes what of them; no other mechanism is of that kind."""
    kinds = {
        name: kind_text(JobKind.TRAINING, {**plain(experiment(mechanism_parameters={})), "mechanism": name})
        for name in ("mezo", "dpzero", "paczero", "dp_sgd")
    }
    assert kinds["mezo"] == kinds["dpzero"] == kinds["paczero"]
    assert kinds["dp_sgd"] != kinds["mezo"]


def test_held_out_records_are_read_too() -> None:
    few, many = (
        terms(JobKind.TRAINING, plain(experiment(corpus_parameters={"held_out": count})), 0)
        for count in (20, 1000)
    )
    assert many[1] - few[1] == 980
    assert many[2:] == few[2:]
