"""Held-out perplexity in the course of a run: what it is, and that looking changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from workbench.core import registry
from workbench.core.errors import InputError
from workbench.execution.store import Store
from workbench.interfaces import Claim, Corpus, GradientCanary, Insertions, Model, Plan, Record
from workbench.mechanisms.dp_sgd import DPSGD
from workbench.mechanisms.non_private import NonPrivate
from workbench.studies.costs import terms
from workbench.studies.experiments import Experiment, Status, Study
from workbench.studies.jobs import JobKind
from workbench.studies.results import read_results
from workbench.studies.run import RunOptions, run_study
from workbench.training import evaluations
from workbench.training.content import settled
from workbench.training.fine_tuning import quality, record_hits, record_losses, trainable
from workbench.training.loop import load_subject
from workbench.training.steps import PrivatisedSums, Steps
from workbench.training.subject import TrainedSubject


@cache
def digits() -> Corpus:
    corpus: Corpus = registry.create("corpus", "digits", size=40, seed=0, held_out=20)
    return corpus


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        records=digits().records,
        held_out=digits().held_out,
        model="digits_logistic",
        steps=5,
        sampling_probability=0.3,
        learning_rate=0.1,
        optimizer="adamw",
        insertions=Insertions(gradient_canary=GradientCanary(coordinate=3, magnitude=2.0)),
        seed=1,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Traced(DPSGD):
    """DP-SGD with a trace of its own, of two numbers."""

    def claim(self, plan: Plan) -> Claim:
        """That of no privacy: the plan has no budget."""
        return NonPrivate().claim(plan)

    def steps(self, plan: Plan, model: Model) -> Steps:
        """Traced ones."""
        return _TracedSteps(self, plan, model)


class _TracedSteps(PrivatisedSums):
    def released(self) -> Mapping[str, Any]:
        return {**super().released(), "traces": {"decision": np.array([1.0, math.nan])}}


def train(interval: int, **changes: object) -> TrainedSubject:
    return Traced(noise_multiplier=1.0, evaluation_interval=interval).train(make_plan(**changes))


def weights(subject: TrainedSubject) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainable(subject.model.module).values()])


def test_the_traces_hold_the_held_out_perplexity() -> None:
    subject = train(2)
    traces, metrics = subject.transcript.traces, subject.transcript.metrics
    assert traces["evaluation_steps"].tolist() == [0.0, 2.0, 4.0, 5.0]
    perplexities = traces["evaluation_perplexity"]
    assert perplexities[0] == metrics["test_perplexity_before"]
    assert perplexities[-1] == metrics["test_perplexity_after"]
    # The weights after two steps are those of a run of two steps: the streams are the same.
    short = train(0, steps=2)
    assert perplexities[1] == quality(short.model, digits().held_out)["perplexity"]
    assert train(5).transcript.traces["evaluation_steps"].tolist() == [0.0, 5.0]
    assert train(9).transcript.traces["evaluation_steps"].tolist() == [0.0, 5.0]


def test_looking_changes_no_number() -> None:
    blind, looking = train(0), train(1)
    assert torch.equal(weights(blind), weights(looking))
    for name in ("losses", "sample_sizes", "canary_observations", "canary_included"):
        assert np.array_equal(getattr(blind.transcript, name), getattr(looking.transcript, name))
    assert list(blind.transcript.traces) == ["decision"]


def test_an_untrained_model_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def counting(model: Model, records: Sequence[Record]) -> dict[str, float]:
        counted.append(len(records))
        return quality(model, records)

    monkeypatch.setattr(evaluations, "quality", counting)
    monkeypatch.setattr(evaluations, "_known", {})
    mlp = {"model": "digits_mlp"}
    first = train(2, **mlp).transcript
    assert counted == [40, 20] * 2
    # The same weights at first, and another training.
    second = train(2, learning_rate=0.2, **mlp).transcript
    assert counted == [40, 20] * 3
    before = [name for name in first.metrics if name.endswith("_before")]
    assert len(before) == 4
    for name in before:
        assert second.metrics[name] == first.metrics[name]
        assert second.metrics[name] != second.metrics[name.replace("_before", "_after")]
    # Other weights, other records, another model of no weights that differ in number.
    others = train(2, seed=2, **mlp).transcript
    assert counted == [40, 20] * 5
    assert others.metrics["train_perplexity_before"] != first.metrics["train_perplexity_before"]
    train(2, held_out=digits().held_out[:7], **mlp)
    assert counted == [*[40, 20] * 5, 7, 40, 7]


def test_one_pass_gives_what_a_pass_a_label_gives() -> None:
    model = train(0, model="digits_mlp").model
    for records in (digits().records, [r for r in digits().records if r.label in (2, 3, 7)]):
        labels = sorted({int(r.label) for r in records if r.label is not None})
        losses = [record_losses(model, [replace(r, label=label) for r in records]) for label in labels]
        right = np.array(labels)[np.argmin(losses, axis=0)] == [r.label for r in records]
        found = quality(model, records)
        assert found["accuracy"] == right.mean()
        assert 0 < found["accuracy"] < 1
        assert found["perplexity"] == pytest.approx(math.exp(record_losses(model, records).mean()), rel=1e-6)
        assert [bool(hit[0]) for hit in record_hits(model, records)] == right.tolist()


def test_nothing_is_looked_at_where_there_is_nothing_to_see() -> None:
    assert list(train(2, held_out=()).transcript.traces) == ["decision"]
    quiet = Traced(noise_multiplier=1.0, evaluation_interval=2, measures_quality=False)
    assert list(quiet.train(make_plan()).transcript.traces) == ["decision"]


def test_traces_of_any_length_survive_the_disk(tmp_path: Path) -> None:
    subject = train(2)
    subject.save(tmp_path)
    loaded = load_subject(tmp_path, subject.mechanism, subject.plan)
    assert set(loaded.transcript.traces) == {"decision", "evaluation_steps", "evaluation_perplexity"}
    for name, series in subject.transcript.traces.items():
        assert np.array_equal(loaded.transcript.traces[name], series, equal_nan=True)


@pytest.mark.parametrize("interval", [-1, 1.5, True])
def test_an_interval_out_of_range_is_refused(interval: Any) -> None:
    with pytest.raises(InputError, match="evaluation_interval must be a whole number >= 0"):
        NonPrivate(evaluation_interval=interval)


def test_old_keys_stay_as_they_were() -> None:
    for name, own in (("dp_sgd", "accountant"), ("non_private", "shuffle"), ("ferret", "")):
        found = settled("mechanism", name, {})
        assert "evaluation_interval" not in found
        assert own not in found
        assert "micro_batch_size" in found
    assert settled("mechanism", "dp_sgd", {"evaluation_interval": 0}) == settled("mechanism", "dp_sgd", {})
    assert settled("mechanism", "dp_sgd", {"evaluation_interval": 3})["evaluation_interval"] == 3


def test_a_study_keeps_the_traces(tmp_path: Path) -> None:
    one = Experiment(
        group="g", variant="v", mechanism="non_private", mechanism_parameters={"evaluation_interval": 3},
        attack="loss", corpus="digits", corpus_parameters={"held_out": 20, "public": 10},
        model="digits_logistic", members=12, epochs=4, batch_size=12, learning_rate=0.1, optimizer="sgd",
        seed=0,
    )  # fmt: skip
    study = Study(
        name="s", title="S", profile="quick", replication="seed", experiments=(one,), source_sha256="0" * 64
    )
    run_study(study, out=tmp_path, options=RunOptions(workers=0))
    found = read_results(study, Store(tmp_path / "store")).outcomes[0]
    assert found.status is Status.DONE, found.error
    assert found.traces["evaluation_steps"] == (0.0, 3.0, 4.0)
    perplexities = found.traces["evaluation_perplexity"]
    assert len(perplexities) == 3
    assert perplexities[-1] == found.metrics["test_perplexity_after"]
    assert perplexities[-1] < perplexities[0]


def test_looks_cost_what_they_read() -> None:
    form = {
        "mechanism": "dp_sgd", "members": 12, "batch_size": 6, "epochs": 4, "epsilon": None,
        "corpus_parameters": {"held_out": 20}, "mechanism_parameters": {},
    }  # fmt: skip
    off = terms(JobKind.TRAINING, form, 0)
    on = terms(JobKind.TRAINING, {**form, "mechanism_parameters": {"evaluation_interval": 3}}, 0)
    assert on[1] - off[1] == 20 * 2 / 2  # eight steps: after 3 and 6; before and after are looked at anyway
    assert on[2:] == off[2:]
